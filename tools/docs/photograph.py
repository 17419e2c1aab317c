"""Takes one picture of a page of TensorBoard, with Playwright and Chromium: opens it, goes to a place, cuts it out."""

import io
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from walkthrough.results.errors import InputError

if TYPE_CHECKING:  # needed to take pictures only
    from PIL.Image import Image
    from playwright.sync_api import Page  # pyright: ignore[reportMissingImports]  # by make test-browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WALKTHROUGH, PROFILER = "WALKTHROUGH", "PYTORCH_PROFILER"
SCALE = 2  # pixels of a picture per pixel of the page: sharp at the width of the docs' pages
COLOURS = 256  # of a picture: a palette makes the file smaller
BETWEEN = 24  # pixels between the parts of a picture


@dataclass(frozen=True)
class Shot:
    """A part of a picture: a page of the tab WALKTHROUGH ("step") or a view of PYTORCH_PROFILER ("Overview").

    run: which of the picture's runs. place: what is done first, one of the keys of `PLACES`. width, height: of the
    window, in pixels of the page; of it the rows from top to bottom are kept (None: to the end).
    """

    tab: str
    page: str
    run: int = 0
    place: str = ""
    width: int = 1000
    height: int = 900
    top: int = 0
    bottom: int | None = None


def photograph(page: "Page", base: str, shot: Shot, runs: Sequence[str], two_steps_us: tuple[float, float]) -> "Image":
    """A picture of a run, from a TensorBoard at the address `base`.

    two_steps_us: what the place "two steps" shows of it, from the trace's first step on.
    """
    from PIL import Image

    page.set_viewport_size({"width": shot.width, "height": shot.height})
    run = runs[shot.run]
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


def _tables(page: "Page") -> None:
    """On the Step page: its table of kernels at the top of the window."""
    page.evaluate(
        "[...document.querySelectorAll('h2')].find((h) => h.innerText.startsWith('Kernels per')).parentElement"
        ".scrollIntoView()"
    )
    page.mouse.wheel(0, -60)  # the page's header stays in its place, over it


PLACES = {
    "": lambda page: None,
    "two steps": lambda page: None,  # in the address
    "gap": _longest_gap,
    "kernel": _first_kernel,
    "copy": _copy,
    "tables": _tables,
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
