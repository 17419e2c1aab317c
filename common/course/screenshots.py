"""`python -m common.course.screenshots`: screenshots of TensorBoard on the recorded runs, for the docs.

Needs Playwright and Chromium, as the browser tests do (`make test-browser` installs them). A list beside the pictures
says what each shows: pages use it as alternative text, and a test compares it with what is recorded now.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import record
from common.course.recorded import RECORDS, Recorded, records
from common.errors import InputError, one_line_errors
from common.machine import ROOT

if TYPE_CHECKING:  # needed to take screenshots only
    from playwright.sync_api import Page, ViewportSize  # pyright: ignore[reportMissingImports]  # by make test-browser

FOLDER = ROOT / "docs" / "screenshots"
LIST = FOLDER / "made_from.json"
SPECIMEN = ROOT / "docs" / "specimen"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZE: "ViewportSize" = {"width": 1200, "height": 900}


@dataclass(frozen=True)
class Picture:
    """A page of the tab WALKTHROUGH ("step", "timeline") or a view of PYTORCH_PROFILER, of a recorded step."""

    name: str
    tab: str
    page: str
    step: str


PICTURES = [
    Picture("walkthrough_step", "WALKTHROUGH", "step", "00_baseline"),
    Picture("timeline", "WALKTHROUGH", "timeline", "04_multiprocess_loading"),
    Picture("overview", "PYTORCH_PROFILER", "Overview", "00_baseline"),
    Picture("overview_02", "PYTORCH_PROFILER", "Overview", "02_bigger_batch"),
    Picture("trace", "PYTORCH_PROFILER", "Trace", "03_reduced_h2d_copy"),
    Picture("memory", "PYTORCH_PROFILER", "Memory", "02_bigger_batch"),
]
OF_SPECIMEN = [Picture("gpu_kernel", "PYTORCH_PROFILER", "GPU Kernel", "made_up_gpu")]


def shown(recorded: Recorded) -> dict[str, dict[str, str]]:
    """{picture: {"trace": the file that it shows, "alt": its alternative text}}."""
    device = recorded.ladder.baseline.device
    pictures = {
        picture.name: {
            "trace": recorded.row(picture.step).result.trace,
            "alt": f"Screenshot of TensorBoard, {picture.tab}, {picture.page}: {picture.step} as recorded on {device}",
        }
        for picture in PICTURES
    }
    for picture in OF_SPECIMEN:
        text = f"Screenshot of TensorBoard, {picture.tab}, {picture.page}: the specimen, a trace written by hand"
        pictures[picture.name] = {"trace": "specimen.pt.trace.json", "alt": text}
    return pictures


def alt_text(name: str) -> str:
    """A picture's alternative text: of what it shows, whatever has been recorded since."""
    return json.loads(LIST.read_text(encoding="utf-8"))[name]["alt"]


def photograph(page: "Page", base: str, picture: Picture, run: str) -> None:
    """Save a picture of a run in `FOLDER`, from a TensorBoard at the address `base`."""
    if picture.tab == "WALKTHROUGH":
        page.goto(f"{base}/data/plugin/walkthrough/page.html#{picture.page}?run={run}")
        page.reload()
        wait_for_walkthrough(page)
    else:
        page.goto(f"{base}/data/plugin/pytorch_profiler/index.html")
        choose(page, 0, run)
        choose(page, 1, picture.page)
        page.wait_for_selector("iframe" if picture.page == "Trace" else ".plotly, .main-svg", timeout=120_000)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(6000)  # until animations have ended
    page.screenshot(path=FOLDER / f"{picture.name}.png")


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


@one_line_errors()
def main() -> None:
    """Take the pictures of the record that the chapters show. Exit code 2 and one line where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise InputError("Playwright is not installed: `make test-browser` installs it") from error
    if not CHROMIUM:
        raise InputError("Chromium is not installed: on Debian and Ubuntu, apt install chromium")
    every = records()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page(viewport=SIZE)
        with _board(RECORDS, sum(len(recorded.steps) for recorded in every)) as base:
            for picture in PICTURES:
                photograph(page, base, picture, f"{every[0].folder.name}/{picture.step}")
        with _board(SPECIMEN, len(OF_SPECIMEN)) as base:
            for picture in OF_SPECIMEN:
                photograph(page, base, picture, picture.step)
    record.write_whole(LIST, json.dumps(shown(every[0]), indent=2) + "\n")
    print(f"written: {', '.join(shown(every[0]))} in {FOLDER.relative_to(ROOT)}; then: make docs-figures")


@contextmanager
def _board(logdir: Path, runs: int) -> Iterator[str]:
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


if __name__ == "__main__":
    main()
