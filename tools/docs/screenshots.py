"""`python -m tools.docs.screenshots`: pictures of TensorBoard for the docs, of recorded runs and of others' samples.

Needs Playwright and Chromium, as the browser tests do (`make test-browser` installs them), and the samples that `python
-m walkthrough samples` fetches. A list next to the pictures says what each shows: pages have its captions, and a test
compares it with what is recorded now.
"""

import io
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tools.docs.recorded import RECORDS, Recorded, records
from walkthrough.compare.table import escaped
from walkthrough.records.samples import read_list, sha256
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, OneLineParser
from walkthrough.trace.analysis import analyze

if TYPE_CHECKING:  # needed to take pictures only
    from PIL.Image import Image
    from playwright.sync_api import Page  # pyright: ignore[reportMissingImports]  # by make test-browser

FOLDER = ROOT / "docs" / "screenshots"
LIST = FOLDER / "made_from.json"
SAMPLES = ROOT / "logs" / "samples"
BEFORE, AFTER = "resnet50_v100_0_workers", "resnet50_v100_4_workers"
WORDS = {BEFORE: "loading in the main process", AFTER: "loading in 4 worker processes"}
PUBLISHER = "PyTorch's published trace, ResNet-50, V100"
LISTED = read_list()
PUBLISHED = {sample.name: sample for sample in LISTED.samples if sample.name in WORDS}
SOURCE = PUBLISHED[BEFORE].address.replace("/raw/", "/tree/").rsplit("/", 2)[0]  # the folder that holds both
LICENCE = LISTED.licences[PUBLISHED[BEFORE].source].name

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WALKTHROUGH, PROFILER = "WALKTHROUGH", "PYTORCH_PROFILER"
SCALE = 2  # pixels of a picture per pixel of the page: sharp at the width of the docs' pages
COLOURS = 256  # of a picture: a palette makes the file smaller
BETWEEN = 24  # pixels between the parts of a picture


@dataclass(frozen=True)
class Shot:
    """A part of a picture: a page of the tab WALKTHROUGH ("step") or a view of PYTORCH_PROFILER ("Overview").

    place: what is done first, one of the keys of `PLACES`. width, height: of the window, in pixels of the page; of it
    the rows from top to bottom are kept (None: to the end).
    """

    tab: str
    page: str
    place: str = ""
    width: int = 1000
    height: int = 900
    top: int = 0
    bottom: int | None = None


@dataclass(frozen=True)
class Picture:
    """A picture of steps of the record, or of samples. runs: "compare" shows two. shows: "" where the page says it."""

    name: str
    runs: tuple[str, ...]
    shots: tuple[Shot, ...]
    shows: str = ""

    @property
    def of_samples(self) -> bool:
        return self.runs[0] in PUBLISHED


PICTURES = [
    Picture(
        "gpu_verdict",
        (BEFORE,),
        (
            Shot(WALKTHROUGH, "step", width=1100, bottom=588),
            Shot(WALKTHROUGH, "timeline", place="two steps", width=1100, height=1000, top=128, bottom=592),
        ),
        "the verdict with its advice; below it two steps in the Timeline, with the times at which the GPU is idle",
    ),
    Picture("gpu_overview_before", (BEFORE,), (Shot(PROFILER, "Overview", width=1100, height=916),)),
    Picture(
        "gpu_gap",
        (BEFORE,),
        (Shot(WALKTHROUGH, "step", place="gap", height=1200, top=48),),
        "in the Timeline the longest gap of the GPU is selected; the panel says what the CPU did meanwhile",
    ),
    Picture(
        "gpu_launch",
        (BEFORE,),
        (Shot(WALKTHROUGH, "step", place="kernel", height=1160, top=48),),
        "in the Timeline a kernel is selected, with an arrow from its launch; the panel names call and operators",
    ),
    Picture(
        "gpu_trace",
        (BEFORE,),
        (Shot(WALKTHROUGH, "timeline", place="copy", height=640, top=120, bottom=530),),
        "the Trace view around a copy to the GPU, which is marked",
    ),
    Picture("gpu_kernel", (BEFORE,), (Shot(PROFILER, "GPU Kernel", width=1100, height=1000, bottom=930),)),
    Picture("gpu_compare", (BEFORE, AFTER), (Shot(WALKTHROUGH, "compare", height=742),)),
    Picture("memory", ("02_bigger_batch",), (Shot(PROFILER, "Memory", width=1100, bottom=800),)),
]


def traces(picture: Picture, recorded: Recorded, samples: Path) -> list[Path]:
    """The files that a picture shows, one for each of its runs."""
    if picture.of_samples:
        return [PUBLISHED[run].path(samples) for run in picture.runs]
    return [recorded.folder / step / recorded.row(step).result.trace for step in picture.runs]


def described(picture: Picture, recorded: Recorded, samples: Path = SAMPLES) -> dict[str, Any] | None:
    """Files with their SHA-256, texts, and for samples source and licence; None where one of its files is not there."""
    files, shot = traces(picture, recorded, samples), picture.shots[0]
    if not all(file.is_file() for file in files):
        return None
    where = f"Screenshot of TensorBoard, {shot.tab}, {shot.page}"
    what = ", then ".join(WORDS.get(run, run) for run in picture.runs)
    own = f"{what} as recorded on {recorded.ladder.baseline.device}"
    return {
        "traces": {file.name: sha256(file) for file in files},
        "alt": f"{where}: {picture.shows}" if picture.shows else where,
        "caption": f"{PUBLISHER}: {what}" if picture.of_samples else own,
        "source": SOURCE if picture.of_samples else None,
        "licence": LICENCE if picture.of_samples else None,
    }


def listed() -> dict[str, dict[str, Any]]:
    """{picture: what it shows}, of the pictures that are there."""
    return json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}


def markdown(name: str, to_docs: str = "") -> str:
    """A picture with its alternative text and, below it, its caption: of what it shows, whatever is recorded since.

    Raises KeyError for a picture that was never taken.
    """
    picture = listed()[name]
    caption, source = escaped(picture["caption"]), picture["source"]
    if source:
        caption = caption.replace(PUBLISHER, f"[{PUBLISHER}]({source})", 1)
    alt = escaped(f"{picture['alt']}. {picture['caption']}")
    return f"![{alt}]({to_docs}screenshots/{name}.png)\n\n*{caption}*"


def take(pictures: Sequence[Picture], recorded: Recorded, samples: Path) -> None:
    """Take pictures, of the record and of samples."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with browser() as page, tempfile.TemporaryDirectory() as temporary:
        published = Path(temporary)
        for run in {run for picture in pictures if picture.of_samples for run in picture.runs}:
            (published / run).mkdir()
            shutil.copy(PUBLISHED[run].path(samples), published / run)
        for logdir in (published, RECORDS):
            chosen = [picture for picture in pictures if picture.of_samples is (logdir == published)]
            if not chosen:
                continue
            with tensorboard(logdir, len({file.parent for file in logdir.glob("**/*.pt.trace.json.gz")})) as base:
                for picture in chosen:
                    files = traces(picture, recorded, samples)
                    runs = [file.parent.name for file in files]
                    if logdir == RECORDS:
                        runs = [file.parent.relative_to(RECORDS).as_posix() for file in files]
                    begin_and_end_us = two_steps(files[0])
                    parts = [photograph(page, base, shot, runs, begin_and_end_us) for shot in picture.shots]
                    save(parts, FOLDER / f"{picture.name}.png")
                    print(f"taken: {picture.name}", flush=True)


def two_steps(file: Path) -> tuple[float, float]:
    """From the second step of a trace on, as long as two mean steps take: µs from its begin."""
    steps = analyze(file).steps
    begin, length = float(steps.start[min(1, len(steps.start) - 1)] - steps.start[0]), 2 * steps.mean_us
    return begin - 0.02 * length, begin + length


def photograph(page: "Page", base: str, shot: Shot, runs: Sequence[str], two_steps_us: tuple[float, float]) -> "Image":
    """A picture of a run, from a TensorBoard at the address `base`.

    two_steps_us: what the place "two steps" shows of it, from the trace's first step on.
    """
    from PIL import Image

    page.set_viewport_size({"width": shot.width, "height": shot.height})
    run = runs[0]
    if shot.tab == WALKTHROUGH:
        options = {"before": runs[0], "after": runs[1]} if shot.page == "compare" else {"run": run}
        if shot.place == "two steps":
            options |= {"from": f"{two_steps_us[0]:.0f}", "to": f"{two_steps_us[1]:.0f}"}
        page.goto(f"{base}/data/plugin/walkthrough/page.html#{shot.page}?{urlencode(options)}")
        page.reload()
        wait_for_walkthrough(page)
    else:
        page.goto(f"{base}/data/plugin/pytorch_profiler/index.html")
        choose(page, 0, run)
        page.wait_for_load_state("networkidle")  # the page shows the run's Overview first, whatever was chosen before
        choose(page, 1, shot.page)
        page.wait_for_selector("iframe" if shot.page == "Trace" else ".plotly, .main-svg", timeout=120_000)
        page.locator("button").first.click()  # the lists fold away: the view is what the page tells about
        page.add_style_tag(content="button[class*=MuiFab] { display: none }")
    PLACES[shot.place](page)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(6000)  # until animations have ended
    height = (shot.bottom or shot.height) - shot.top
    taken = page.screenshot(clip={"x": 0, "y": shot.top, "width": shot.width, "height": height})
    return Image.open(io.BytesIO(taken)).convert("RGB")


def _longest_gap(page: "Page") -> None:
    """From the Step page: the longest gap of the first piece of advice that has one, in the Timeline."""
    page.locator("button.mark", has_text="longest gap").first.click()
    wait_for_walkthrough(page)


def _first_kernel(page: "Page") -> None:
    """From the Step page: the kernel with the most time, its first event selected in the Timeline."""
    page.locator("button[aria-label$='in the timeline']:not(.mark)").first.click()
    wait_for_walkthrough(page)
    page.wait_for_timeout(2000)
    page.keyboard.press("Enter")


def _copy(page: "Page") -> None:
    """From the Timeline: the first copy to the GPU in the Trace view, with what is around it."""
    page.locator("input[type=search], input[type=text]").first.fill("Memcpy HtoD")
    page.keyboard.press("Enter")
    page.wait_for_timeout(3000)
    page.get_by_text("Trace view", exact=True).first.click()
    page.wait_for_selector("iframe").content_frame().wait_for_selector("tr-ui-timeline-view")  # pyright: ignore[reportOptionalMemberAccess]
    page.wait_for_timeout(8000)
    page.mouse.click(560, 330)
    for _ in range(3):
        page.keyboard.press("s")
        page.wait_for_timeout(600)


PLACES = {
    "": lambda page: None,
    "two steps": lambda page: None,  # in the address
    "gap": _longest_gap,
    "kernel": _first_kernel,
    "copy": _copy,
}


def save(parts: "Sequence[Image]", path: Path) -> None:
    """Write the parts of a picture, one below the other, with a palette of `COLOURS` colours."""
    from PIL import Image

    height = sum(part.height for part in parts) + BETWEEN * (len(parts) - 1)
    whole, top = Image.new("RGB", (max(part.width for part in parts), height), "white"), 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height + BETWEEN
    # this method keeps the rare colours, such as those of a legend; kmeans the exact ones of large areas
    whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


def wait_for_walkthrough(page: "Page") -> None:
    """Wait until a page of the tab WALKTHROUGH shows its data."""
    page.wait_for_function(
        "document.querySelector('#view').children.length > 0 && !document.querySelector('#progress').textContent",
        timeout=120_000,
    )


def choose(page: "Page", number: int, text: str) -> None:
    """Choose an entry of one of the lists on the left of the profiler's page."""
    select = page.locator("[role=button][aria-haspopup=listbox]").nth(number)
    select.wait_for(timeout=60_000)
    if select.inner_text().strip() != text:
        select.click()
        page.get_by_role("option", name=text, exact=True).click()
    page.wait_for_timeout(500)


@contextmanager
def browser() -> Iterator["Page"]:
    """A page of a headless Chromium. Raises InputError where it or Playwright is not installed."""
    try:
        from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise InputError("Playwright is not installed: `make test-browser` installs it") from error
    if not CHROMIUM:
        raise InputError("Chromium is not installed: on Debian and Ubuntu, apt install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium.new_page(device_scale_factor=SCALE)


@contextmanager
def tensorboard(logdir: Path, runs: int) -> Iterator[str]:
    """A TensorBoard on a folder, once it lists so many runs: its address."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        base = f"http://localhost:{free.getsockname()[1]}"
    words = [Path(sys.executable).with_name("tensorboard"), "--logdir", logdir, "--port", base.rpartition(":")[2]]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as board:
        try:
            _wait_for_runs(base, logdir, runs)
            yield base
        finally:
            board.terminate()


def _wait_for_runs(base: str, logdir: Path, count: int) -> None:
    ends = time.monotonic() + 180
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"{base}/data/plugin/pytorch_profiler/runs", timeout=30) as answer:
                if len(json.load(answer).get("runs", [])) >= count:
                    return
        except OSError:
            pass
        time.sleep(1)
    raise InputError(f"TensorBoard did not show {count} runs of {logdir} within three minutes")


def main(words: Sequence[str] | None = None) -> None:
    """Take the pictures. Exit code 2 and one line where there is no browser, or where a given folder lacks samples."""
    parser = OneLineParser(prog="python -m tools.docs.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these pictures (default: all)")
    parser.add_argument("--samples", type=Path, help="folder of others' traces (default: logs/samples)")
    options = parser.parse_args(words)
    recorded, samples, known = records()[0], options.samples or SAMPLES, {picture.name: picture for picture in PICTURES}
    if unknown := sorted(set(options.names) - set(known)):
        raise InputError(f"there is no picture {unknown[0]!r}; known: {', '.join(known)}")
    new = {name: described(known[name], recorded, samples) for name in options.names or known}
    if missing := [name for name, entry in new.items() if entry is None]:
        line = f"no samples in {samples} (python -m walkthrough samples)"
        if options.samples:
            raise InputError(line)
        print(f"{line}: {len(missing)} pictures of them stay as they are")
    taken = {name: entry for name, entry in new.items() if entry}
    take([known[name] for name in taken], recorded, samples)
    entries = {**listed(), **taken}
    ordered = {name: entries[name] for name in known if name in entries}
    result.write_whole(LIST, json.dumps(ordered, indent=2) + "\n")
    for path in FOLDER.glob("*.png"):
        if path.stem not in known:
            path.unlink()
    print(f"written: {len(taken)} pictures in docs/screenshots; then: make docs-figures")


if __name__ == "__main__":
    main()
