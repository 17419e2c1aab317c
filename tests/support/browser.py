"""A headless Chromium with the network cut, and a TensorBoard on runs of every kind. One of each per test process."""

from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from support import PATIENCE
from support.board import PROFILER, WALKTHROUGH, fill, tensorboard

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DATA = {  # a view of torch-tb-profiler: the last of the requests for its data
    "Overview": "overview",
    "Operator": "operation/table",
    "GPU Kernel": "kernel/table",
    "Memory": "memory_curve",
    "Module": "module",
    "Distributed": "distributed/commops",
    "Trace": "trace",
}


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: make test-browser installs it")
    from tools.docs.screenshots import CHROMIUM  # not at the top: every test process imports this module

    if not CHROMIUM:
        pytest.skip("no Chromium here: apt install chromium, then make test-browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def board(browser, tmp_path_factory):
    logdir = fill(tmp_path_factory.mktemp("logs"))
    with tensorboard(logdir, cache=tmp_path_factory.mktemp("cache")) as board:
        board.runs_loaded()
        yield board


@pytest.fixture
def look(request):
    """How a page is looked at: (light or dark, width in pixels). `EDGES` makes it two."""
    return getattr(request, "param", ("light", 1280))


EDGES = pytest.mark.parametrize("look", [("light", 900), ("dark", 2560)], indirect=True, ids=lambda look: str(look[1]))


@pytest.fixture
def opened():
    """The pages that the test has opened, watched: namespaces of page, remote, problems and answered (addresses).

    At the end of the test no page may have asked another host, or have an error in its console.
    """
    opened = []
    yield opened
    for watched in opened:
        assert watched.remote == []
        assert watched.problems == []
        assert watched.page.title() != "hacked"
        watched.page.close()


@pytest.fixture
def visit(browser, board, look, opened):
    """visit(path): a page of TensorBoard, watched."""

    def go(path):
        page = browser.new_page(viewport={"width": look[1], "height": 900}, color_scheme=look[0])
        page.set_default_timeout(PATIENCE * 1000)
        watched = SimpleNamespace(page=page, remote=[], problems=[], answered=[])
        opened.append(watched)

        def intercept(route):
            host = urlsplit(route.request.url).hostname
            if host not in ("localhost", None):
                watched.remote.append(route.request.url)
                route.abort()
            else:
                route.continue_()

        page.route("**/*", intercept)
        page.on("requestfinished", lambda request: watched.answered.append(urlsplit(request.url)))
        page.on("console", lambda line: watched.problems.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: watched.problems.append(str(error)))
        page.on("dialog", lambda dialog: watched.problems.append(f"dialog: {dialog.message}"))
        page.goto(f"{board.address}{path}")
        return page

    return go


@pytest.fixture
def tab(visit):
    """tab(page, **options): one of the Walkthrough tab's pages, once its data are there."""
    from tools.docs.screenshots import wait_for_walkthrough

    def show(name, **options):
        page = visit(f"{WALKTHROUGH}/page.html#{name}?{urlencode(options)}")
        wait_for_walkthrough(page)
        return page

    return show


def options_of(page, until=None):
    """The name of the page that is open, and the options in its address, once `until` is among them."""
    if until:
        page.wait_for_function("name => new URLSearchParams(location.hash.split('?')[1]).has(name)", arg=until)
    name, _, query = page.evaluate("location.hash").removeprefix("#").partition("?")
    return name, {name: value for name, [value] in parse_qs(query).items()}


def wait_for_charts(page):
    """Wait until every chart of a page of the Walkthrough tab is drawn, and its texts about traces are there."""
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('.main-svg'))"
        " && !document.querySelector('main td > span.quiet')"  # a cell's "…" until its trace is read
        " && !document.querySelector('main').innerText.includes('reading the traces')"
    )


@pytest.fixture
def profiler(visit, opened):
    """profiler(run, view): one of torch-tb-profiler's views, chosen as a user would, once its data are there."""
    from tools.docs.screenshots import choose

    def wait_for_data(page, route, run=None):
        """Wait for an answer to a request of the page; of any run where None."""

        def matches(address):
            return address.path == f"{PROFILER}/{route}" and run in (None, *parse_qs(address.query).get("run", []))

        while not any(map(matches, opened[-1].answered)):
            page.wait_for_event("requestfinished")

    def show(run, view):
        page = visit(f"{PROFILER}/index.html")
        wait_for_data(page, DATA["Overview"])  # the page opens the first run, and any run's Overview first
        choose(page, 0, run)
        wait_for_data(page, DATA["Overview"], run)
        choose(page, 1, view)
        wait_for_data(page, DATA[view], run)
        return page

    return show
