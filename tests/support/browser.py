"""A headless Chromium with the network cut, and a TensorBoard on runs of every kind."""

from types import SimpleNamespace
from urllib.parse import urlencode, urlsplit

import pytest

from support import ROOT
from support.board import PROFILER, WALKTHROUGH, Board, fill

SHOTS = ROOT / "build" / "screenshots"  # kept, to be looked at
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: make test-browser installs it")
    from common.course.screenshots import CHROMIUM  # not at the top: every test process imports this module

    if not CHROMIUM:
        pytest.skip("no Chromium here: apt install chromium, then make test-browser")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield made
        made.close()


@pytest.fixture(scope="session")
def board(browser, tmp_path_factory):
    logdir = fill(tmp_path_factory.mktemp("logs"))
    made = Board(logdir, environment={"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))})
    made.logdir = logdir
    made.until(lambda: made.get("/data/plugins_listing")[0] == 200, "TensorBoard")
    made.runs_loaded()
    yield made
    made.stop()


@pytest.fixture
def look(request):
    """How a page is looked at: (light or dark, width in pixels). `BOTH` makes it two."""
    return getattr(request, "param", ("light", 1280))


BOTH = pytest.mark.parametrize("look", [("light", 1280), ("dark", 1920)], indirect=True, ids=lambda look: look[0])


@pytest.fixture
def visit(browser, board, look):
    """visit(path): a page of TensorBoard, watched.

    At the end of the test nothing may have gone to another host, and no error may stand in the console.
    """
    opened = []

    def go(path):
        page = browser.new_page(viewport={"width": look[1], "height": 900}, color_scheme=look[0])
        seen = SimpleNamespace(page=page, remote=[], problems=[])
        opened.append(seen)

        def watched(route):
            host = urlsplit(route.request.url).hostname
            if host not in ("localhost", None):
                seen.remote.append(route.request.url)
                route.abort()
            else:
                route.continue_()

        page.route("**/*", watched)
        page.on("console", lambda line: seen.problems.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("dialog", lambda dialog: seen.problems.append(f"dialog: {dialog.message}"))
        page.goto(board.url(path))
        return page

    yield go
    for seen in opened:
        assert seen.remote == []
        assert seen.problems == []
        assert seen.page.title() != "hacked"
        seen.page.close()


@pytest.fixture
def shot(look):
    """shot(page, name): keep a picture of the page under build/screenshots/."""

    def take(page, name):
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}-{look[0]}-{look[1]}.png")

    return take


@pytest.fixture
def tab(visit):
    """tab(page, **options): one of the Walkthrough tab's pages, once its data are there."""

    def show(name, **options):
        page = visit(f"{WALKTHROUGH}/page.html#{name}?{urlencode(options)}")
        from common.course.screenshots import wait_for_walkthrough

        wait_for_walkthrough(page)
        return page

    return show


@pytest.fixture
def profiler(visit):
    """profiler(run, view): one of torch-tb-profiler's views, chosen as a user would."""

    def show(run, view):
        page = visit(f"{PROFILER}/index.html")
        from common.course.screenshots import choose

        choose(page, 0, run)
        choose(page, 1, view)
        return page

    return show
