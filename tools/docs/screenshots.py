"""`python -m tools.docs.screenshots`: pictures of TensorBoard for the docs, of recorded runs and of samples.

Until a GPU has been recorded, pictures of a GPU show others' published traces, the samples that `python -m walkthrough
samples` fetches; from then on those of the chapters show the record, while those of the pages that explain a view stay,
since these pages read numbers off them. Needs Playwright and Chromium, as the browser tests do (`make test-browser`
installs them). A list next to the pictures says what each shows: pages have its captions, and a test compares it with
what is recorded now.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.docs.photograph import PROFILER, WALKTHROUGH, Shot, browser, photograph, save, tensorboard
from tools.docs.recorded import RECORDS, Recorded, records
from tools.docs.traced import PAIR, PUBLISHER
from walkthrough.compare.markdown import escaped
from walkthrough.records import samples as reference_samples
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, one_line_errors
from walkthrough.trace.analysis import analyze

FOLDER = ROOT / "docs" / "screenshots"
LIST = FOLDER / "made_from.json"
SAMPLES = ROOT / "logs" / "samples"

BEFORE, AFTER = PAIR
WORDS = {BEFORE: "loading in the main process", AFTER: "loading in 4 worker processes"}
LISTED = reference_samples.read_list()
PUBLISHED = {sample.name: sample for sample in LISTED.samples if sample.name in PAIR}
SOURCE = PUBLISHED[BEFORE].address.replace("/raw/", "/tree/").rsplit("/", 2)[0]  # the folder that holds both
LICENCE = LISTED.licences[PUBLISHED[BEFORE].source].name


@dataclass(frozen=True)
class Picture:
    """A picture of steps of the record; of samples instead as long as no GPU has been recorded, where it has any.

    steps, samples: the runs that `shots` number. shows: what is to be seen, whatever was measured; "" where the page's
    name says it. kept: of samples for good, also once a GPU is recorded.
    """

    name: str
    shots: tuple[Shot, ...]
    steps: tuple[str, ...]
    samples: tuple[str, ...] = ()
    shows: str = ""
    kept: bool = False


_PAIR = ("03_reduced_h2d_copy", "04_multiprocess_loading")
_LANES = {"tab": WALKTHROUGH, "page": "timeline", "place": "two steps", "height": 1000}
_STEP = Shot(WALKTHROUGH, "step", bottom=712)
_OVERVIEW = Shot(PROFILER, "Overview", width=1100, height=916)
PICTURES = [
    Picture(
        "gpu_verdict",
        (Shot(WALKTHROUGH, "step", width=1100, bottom=588), Shot(**_LANES, width=1100, top=128, bottom=592)),
        _PAIR[:1],
        (BEFORE,),
        "the verdict with its advice; below it two steps in the Timeline, with the times at which the GPU is idle",
        kept=True,
    ),
    Picture("gpu_overview_before", (_OVERVIEW,), _PAIR[:1], (BEFORE,)),
    Picture("gpu_overview_after", (_OVERVIEW,), _PAIR[1:], (AFTER,)),
    Picture("gpu_step", (_STEP,), _PAIR[1:], (AFTER,), kept=True),
    Picture(
        "gpu_tables",
        (Shot(WALKTHROUGH, "step", place="tables", height=640),),
        _PAIR[:1],
        (BEFORE,),
        "the table of kernels",
        kept=True,
    ),
    Picture(
        "gpu_timeline",
        (Shot(**_LANES, top=48, bottom=594), Shot(**_LANES, run=1, top=48, bottom=622)),
        _PAIR,
        (BEFORE, AFTER),
        "the same length of time, before (above) and after (below)",
        kept=True,
    ),
    Picture(
        "gpu_gap",
        (Shot(WALKTHROUGH, "step", place="gap", height=1200, top=48),),
        _PAIR[:1],
        (BEFORE,),
        "in the Timeline the longest gap of the GPU is selected; the panel says what the CPU did meanwhile",
    ),
    Picture(
        "gpu_launch",
        (Shot(WALKTHROUGH, "step", place="kernel", height=1160, top=48),),
        _PAIR[:1],
        (BEFORE,),
        "in the Timeline a kernel is selected, with an arrow from its launch; the panel names call and operators",
        kept=True,
    ),
    Picture(
        "gpu_trace",
        (Shot(WALKTHROUGH, "timeline", place="copy", height=640, top=120, bottom=530),),
        _PAIR[:1],
        (BEFORE,),
        "the Trace view around a copy to the GPU, which is marked",
        kept=True,
    ),
    Picture(
        "gpu_kernel",
        (Shot(PROFILER, "GPU Kernel", width=1100, height=1000, bottom=930),),
        _PAIR[:1],
        (BEFORE,),
        kept=True,
    ),
    Picture("gpu_compare", (Shot(WALKTHROUGH, "compare", height=742),), _PAIR, (BEFORE, AFTER), kept=True),
    Picture("ladder", (Shot(WALKTHROUGH, "ladder", height=1000, bottom=970),), ("00_baseline",)),
    Picture("memory", (Shot(PROFILER, "Memory", width=1100, bottom=800),), ("02_bigger_batch",)),
]


def of_samples(picture: Picture, recorded: Recorded) -> bool:
    """Whether a picture shows samples: it has some, and either keeps them or no GPU has been recorded."""
    return bool(picture.samples) and (picture.kept or recorded.device_type != "cuda")


def traces(picture: Picture, recorded: Recorded, samples: Path) -> list[Path]:
    """The files that a picture shows, one for each of its runs."""
    if of_samples(picture, recorded):
        return [PUBLISHED[run].path(samples) for run in picture.samples]
    return [recorded.folder / step / recorded.row(step).result.trace for step in picture.steps]


def shown(recorded: Recorded, samples: Path = SAMPLES) -> dict[str, dict[str, Any]]:
    """{picture: what it shows}: files with their SHA-256, texts, and for samples source and licence.

    Without pictures of samples where one of their files is not there.
    """
    every = {picture: traces(picture, recorded, samples) for picture in PICTURES}
    return {
        picture.name: _described(picture, recorded, files)
        for picture, files in every.items()
        if all(file.is_file() for file in files)
    }


def _described(picture: Picture, recorded: Recorded, files: Sequence[Path]) -> dict[str, Any]:
    shot = picture.shots[0]
    where = f"Screenshot of TensorBoard, {shot.tab}, {shot.page}"
    described = {
        "traces": {file.name: reference_samples.sha256(file) for file in files},
        "alt": f"{where}: {picture.shows}" if picture.shows else where,
    }
    if of_samples(picture, recorded):
        what = ", then ".join(WORDS[run] for run in picture.samples)
        return {**described, "caption": f"{PUBLISHER}: {what}", "source": SOURCE, "licence": LICENCE}
    steps, device = ", then ".join(picture.steps), recorded.ladder.baseline.device
    return {**described, "caption": f"{steps} as recorded on {device}", "source": None, "licence": None}


def listed() -> dict[str, dict[str, Any]]:
    """What the pictures show that are there: {picture: as `shown` says}."""
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
        published, own = Path(temporary), [picture for picture in pictures if not of_samples(picture, recorded)]
        others = [picture for picture in pictures if of_samples(picture, recorded)]
        for run in sorted({run for picture in others for run in picture.samples}):
            (published / run).mkdir()
            shutil.copy(PUBLISHED[run].path(samples), published / run)
        for logdir, chosen in ((published, others), (RECORDS, own)):
            if not chosen:
                continue
            with tensorboard(logdir, len({file.parent for file in logdir.glob("**/*.pt.trace.json.gz")})) as base:
                for picture in chosen:
                    files = traces(picture, recorded, samples)
                    runs = picture.samples
                    if logdir == RECORDS:
                        runs = [file.parent.relative_to(RECORDS).as_posix() for file in files]
                    ranges = two_steps(files)
                    parts = [photograph(page, base, shot, runs, ranges[shot.run]) for shot in picture.shots]
                    save(parts, FOLDER / f"{picture.name}.png")
                    print(f"taken: {picture.name}", flush=True)


def two_steps(files: Sequence[Path]) -> list[tuple[float, float]]:
    """From the second step of each trace on, as long as two mean steps of the first trace take: µs from its begin."""
    steps = [analyze(file).steps for file in files]
    length = 2 * steps[0].mean_us
    begins = [float(one.start[min(1, len(one.start) - 1)] - one.start[0]) for one in steps]
    return [(begin - 0.02 * length, begin + length) for begin in begins]


def merged(new: Mapping[str, dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The list after pictures were taken again: the new text of those named, the old one of the others."""
    old = listed()
    entries = {**old, **{name: new[name] for name in names}}
    return {picture.name: entries[picture.name] for picture in PICTURES if picture.name in entries}


@one_line_errors()
def main(words: Sequence[str] | None = None) -> None:
    """Take the pictures. Exit code 2 and one line where there is no browser, or where a given folder lacks samples."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these pictures (default: all)")
    parser.add_argument("--samples", type=Path, help="folder of others' traces (default: logs/samples)")
    options = parser.parse_args(words)
    recorded, samples = records()[0], options.samples or SAMPLES
    if unknown := sorted(set(options.names) - {picture.name for picture in PICTURES}):
        raise InputError(f"there is no picture {unknown[0]!r}; known: {', '.join(p.name for p in PICTURES)}")
    new = shown(recorded, samples)
    wanted = [picture for picture in PICTURES if picture.name in (options.names or [p.name for p in PICTURES])]
    missing = [picture.name for picture in wanted if picture.name not in new]
    if missing and options.samples:
        raise InputError(
            f"{samples} lacks traces of {', '.join(PUBLISHED)}: `python -m walkthrough samples` fetches them"
        )
    if missing:
        print(
            f"no samples in {samples} (python -m walkthrough samples): {len(missing)} pictures of them stay as they are"
        )
    chosen = [picture for picture in wanted if picture.name in new]
    take(chosen, recorded, samples)
    result.write_whole(LIST, json.dumps(merged(new, [picture.name for picture in chosen]), indent=2) + "\n")
    for path in FOLDER.glob("*.png"):
        if path.stem not in {picture.name for picture in PICTURES}:
            path.unlink()
    print(f"written: {len(chosen)} pictures in docs/screenshots; then: make docs-figures")


if __name__ == "__main__":
    main()
