"""`python -m common.course.screenshots`: TensorBoard on the recorded runs, photographed for the docs.

Needs Playwright and Chromium, as the tests of the pages do (`make test-browser` installs them). Beside the pictures
lies a list of the traces that they show, so that a test can tell when another record has replaced them.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from common import record
from common.course.recorded import RECORDS, records
from common.errors import InputError, one_line_errors
from common.machine import ROOT

FOLDER = ROOT / "docs" / "screenshots"
LIST = FOLDER / "made_from.json"
SIZE = {"width": 1280, "height": 760}
PAGES = {  # of the Walkthrough tab: its page, the step
    "walkthrough_step": ("step", "00_baseline"),
    "timeline": ("timeline", "04_multiprocess_loading"),
}
VIEWS = {  # of the profiler's tab: its view, the step
    "overview": ("Overview", "00_baseline"),
    "overview_02": ("Overview", "02_bigger_batch"),
    "trace": ("Trace", "03_reduced_h2d_copy"),
    "memory": ("Memory", "02_bigger_batch"),
}


def made_from(recorded):
    """{picture: file name of the trace that it shows}."""
    return {name: recorded.row(step).result.trace for name, (_, step) in (PAGES | VIEWS).items()}


def told(recorded, name):
    """A picture's alternative text."""
    kind, step = (PAGES | VIEWS)[name]
    place = f"the tab WALKTHROUGH, {kind}" if name in PAGES else f"the tab PYTORCH_PROFILER, {kind}"
    return f"Screenshot of TensorBoard: {place}, for {step} as recorded on {recorded.ladder.baseline.device}."


def photograph(page, base, recorded):
    """Save every picture with a page of Playwright's, from a TensorBoard at the address `base`."""
    run = recorded.folder.name
    for name, (kind, step) in PAGES.items():
        page.goto(f"{base}/data/plugin/walkthrough/page.html#{kind}?run={run}/{step}")
        page.reload()
        page.wait_for_function(
            "document.querySelector('#view').children.length > 0 && !document.querySelector('#progress').textContent",
            timeout=120_000,
        )
        _save(page, name)
    for name, (view, step) in VIEWS.items():
        page.goto(f"{base}/data/plugin/pytorch_profiler/index.html")
        _choose(page, 0, f"{run}/{step}")
        _choose(page, 1, view)
        page.wait_for_selector("iframe" if view == "Trace" else ".plotly, .main-svg", timeout=120_000)
        _save(page, name)


def _choose(page, number, text):
    select = page.locator("[role=button][aria-haspopup=listbox]").nth(number)
    select.wait_for(timeout=120_000)
    if select.inner_text().strip() != text:
        select.click()
        page.get_by_role("option", name=text, exact=True).click()
    page.wait_for_timeout(500)


def _save(page, name):
    page.wait_for_timeout(6000)  # for what still moves
    page.screenshot(path=FOLDER / f"{name}.png")


@one_line_errors()
def main():
    """Photograph the record that the chapters show. Exit code 2 and one line where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise InputError("there is no Playwright here: `make test-browser` installs it") from error
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        raise InputError("there is no Chromium here: on Debian and Ubuntu, apt install chromium")
    recorded = records()[0]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("tensorboard")
    words = [program, "--logdir", RECORDS, "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as board:
        try:
            _wait_for_runs(f"http://localhost:{port}", len(records()) * len(recorded.steps))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                photograph(browser.new_page(viewport=SIZE), f"http://localhost:{port}", recorded)
        finally:
            board.terminate()
    record.write_whole(LIST, json.dumps(made_from(recorded), indent=2) + "\n")
    print(f"written: {', '.join(made_from(recorded))} in {FOLDER.relative_to(ROOT)}")


def _wait_for_runs(base, count):
    ends = time.monotonic() + 180
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"{base}/data/plugin/pytorch_profiler/runs", timeout=30) as answer:
                if len(json.load(answer).get("runs", [])) >= count:
                    return
        except OSError:
            pass
        time.sleep(1)
    raise InputError(f"TensorBoard did not show {count} runs of {RECORDS} within three minutes")


if __name__ == "__main__":
    main()
