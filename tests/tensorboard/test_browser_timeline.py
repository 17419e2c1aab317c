"""The Timeline in a browser: from a number to the line of code, its lanes, its search, its address."""

import re
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from support.board import KERNEL, WALKTHROUGH
from support.browser import EDGES, options_of


@pytest.fixture
def timeline(visit):
    """timeline(change, **options): the page of a run.

    change: (what the server sends of the whole trace, the query) -> what is sent. page.asked: the queries.
    """

    def show(change=None, run="python", **options):
        page = visit(f"{WALKTHROUGH}/page.html#ladder")
        page.asked = []

        def answer(route):
            response = route.fetch(url=re.sub("&(first|last)=[0-9]+", "", route.request.url))
            content = response.json()
            if "lanes" in content:  # it has been read
                page.asked.append(parse_qs(urlsplit(route.request.url).query))
                content = change(content, page.asked[-1])
            route.fulfill(response=response, json=content)

        if change:
            page.route("**/lanes?*", answer)
        page.evaluate("hash => { location.hash = hash }", f"timeline?{urlencode({'run': run} | options)}")
        page.wait_for_selector(".wtl-canvas")
        page.wait_for_function("document.querySelector('.wtl-canvas').width > 300")
        return page

    return show


def find(page, text):
    """Search, and go to the first event found."""
    page.locator("input[type=search]").fill(text)
    page.locator("input[type=search]").press("Enter")
    page.wait_for_selector(r"text=/^\d+ of /")


def panel(page):
    return page.locator(".wtl-panel").inner_text()


def arguments(page):
    """What the panel says of the arguments, once it does."""
    part = page.locator(".wtl-part", has=page.get_by_role("heading", name="Arguments"))
    part.filter(has_not_text="…").wait_for()
    return part.locator("dd").all_inner_texts()


def seen(page):
    """What is seen, in µs: [from, to], once it is drawn and the address holds it."""
    page.wait_for_function(
        "() => { const options = new URLSearchParams(location.hash.split('?')[1]);"
        " const seen = document.querySelector('.wtl-canvas').dataset.seen;"
        " return seen && seen === `${options.get('from')} ${options.get('to')}` }"
    )
    options = options_of(page)[1]
    return float(options["from"]), float(options["to"])


def drawn(page):
    """Wait until the canvas shows what was done last; returns what is seen, in µs: [from, to]."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return [float(us) for us in page.wait_for_selector(".wtl-canvas[data-seen]").get_attribute("data-seen").split()]


def test_a_kernel_names_its_launch_its_operator_and_its_python_functions(timeline):
    page = timeline()
    find(page, KERNEL)
    text = panel(page)
    assert "Launched by" in text
    assert "100.0 µs from the call to its begin" in text
    assert {"[8, 1, 1]", "[128, 1, 1]"} < set(arguments(page))
    stack = page.locator(".wtl-stack li").all_inner_texts()
    assert stack == ["model.py(7): forward", "train.py(40): train"]
    page.get_by_role("button", name="model.py(7): forward").click()
    page.wait_for_selector("h3:has-text('model.py(7): forward')")
    text = panel(page)
    assert "aten::mm" in text  # the operators inside
    assert KERNEL in text  # and their work on the GPU
    page.get_by_role("button", name=KERNEL).click()
    page.get_by_role("button", name="cudaLaunchKernel").click()
    page.wait_for_selector("h3:has-text('cudaLaunchKernel')")
    assert KERNEL in panel(page)  # what the call launched
    page.get_by_role("button", name="aten::mm").first.click()
    page.wait_for_selector("h3:has-text('aten::mm')")
    text = panel(page)
    assert "Kernels and copies\n2" in text
    assert "120.0 µs, 120.0 µs without overlaps" in text
    assert arguments(page) == ["[[32, 64], [64, 10]]", "[float, float]"]


def test_search_by_expression_and_duration(timeline):
    page = timeline()
    search, least = page.locator("input[type=search]"), page.get_by_label("Minimum duration")
    status = page.locator(".found")
    search.fill("sgemm_(64|128)")
    assert status.inner_text() == "nothing found"
    page.get_by_role("button", name="Regular expression").click()
    assert status.inner_text().startswith("4 events")
    least.fill("0.12 ms")
    assert status.inner_text() == "2 events, 300.0 µs"
    search.fill("(")
    assert status.inner_text() == "this is not a regular expression"


def test_a_range_is_measured_on_the_time_axis(timeline):
    page = timeline()
    box = page.locator(".wtl-canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 32, steps=5)
    page.mouse.up()
    page.wait_for_selector("text=Busy in this range, by lane")
    assert "GPU 0, stream 7" in panel(page)
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Click an event")
    find(page, "model.py")
    page.locator("input[type=search]").press("Escape")  # the keys are the timeline's again
    page.keyboard.press("m")
    page.wait_for_selector("text=Busy in this range, by lane")
    assert panel(page).startswith("300.0 µs")
    assert "120.0 µs\n40.0 %\nGPU 0, stream 7" in panel(page)


def test_a_gap_narrower_than_a_pixel_is_as_faint_as_the_share_of_it_that_it_covers(timeline):
    painted = """async (kind) => {
        const {Drawing} = await import("./timeline_draw.js"), pixels = new Uint32Array(4);
        const track = {lane: {kind, shade: [0], palette: {pixels: [0]}}, start: [250], end: [275], name: [0],
          busy: [0, 25], size: 1, firstReaching: () => 0, longest: () => 0};
        Drawing.prototype.paintTrack.call({columns: 4, pixels}, track, 0, {us: 100, first: 0});
        return [...pixels].map((pixel) => pixel >>> 24);
    }"""
    page = timeline()
    assert [page.evaluate(painted, kind) for kind in ("idle", "kernel")] == [[0, 0, 63, 0], [0, 0, 138, 0]]


def test_keys_work_at_once_and_are_text_in_a_field(timeline):
    page = timeline()
    page.keyboard.press("w")
    low, high = seen(page)
    assert high - low < 1900
    page.keyboard.press("d")
    assert seen(page)[0] > low
    page.keyboard.press("0")
    assert seen(page) == pytest.approx((-20, 2020), abs=30)
    page.locator("input[type=search]").focus()
    page.keyboard.type("wd?")
    assert page.locator("input[type=search]").input_value() == "wd?"


def unloaded(answer, _):
    """The answer as if only the second of four steps were loaded."""
    answer["steps"] = [{"name": str(i), "start": 1000 * i - 1000, "end": 1000 * i} for i in range(4)]
    answer["loaded"] = {"first": 1, "last": 1, "start": -20, "end": 1020}
    answer["total"] = {"start": -1000, "end": 3000}
    return answer | {"left_out": 1234567, "partial": True, "warnings": ["a part of it is unreadable"]}


@EDGES
def test_what_is_not_loaded_can_be_loaded_and_the_window_is_used(timeline, look):
    page = timeline(unloaded)
    stage, text = page.locator(".wtl-stage").bounding_box(), page.locator("main").inner_text()
    assert stage["width"] >= look[1] - 60
    assert stage["height"] > 250
    assert "1,234,567 events are not loaded" in text and "a part of it is unreadable" in text
    page.keyboard.press("0")
    assert drawn(page) == pytest.approx([-30.4, 1030.4])  # what is loaded, and 1 % on both sides
    for _ in range(6):
        page.keyboard.press("s")
    assert drawn(page) == pytest.approx([-1040, 3040])  # the whole trace

    def redrawn(action, *args):
        """Do what loads other steps, and wait until these are drawn; returns the query for them."""
        page.evaluate("document.querySelector('.wtl-canvas').id = 'before'")
        action(*args)
        page.wait_for_selector(".wtl-canvas:not(#before)")
        return page.asked[-1]

    box = page.locator(".wtl-canvas").bounding_box()
    last_step = box["x"] + box["width"] * 0.9, box["y"] + 10
    assert redrawn(page.mouse.click, *last_step)["first"] == ["3"]
    assert page.get_by_label("First step").input_value() == "2"
    query = redrawn(page.get_by_role("button", name="later").click)
    assert (query["first"], query["last"]) == (["2"], ["2"])
    page.get_by_label("First step").fill("1")
    query = redrawn(page.get_by_label("First step").press, "Enter")
    assert query["first"] == ["0"]


def test_a_place_in_steps_that_are_not_loaded_loads_them(timeline):
    def of_query(answer, query):
        first = int(query.get("first", ["0"])[0])
        begin = 1000 * first
        return answer | {"loaded": {"first": first, "last": first, "start": begin - 20, "end": begin + 1020}}

    page = timeline(of_query, **{"from": 1150, "to": 1400, "at": "kernel 0 7@1260"})
    page.wait_for_selector(f"h3:has-text('{KERNEL}')")
    assert [query.get("first") for query in page.asked] == [None, ["1"]]
    assert drawn(page) == [1150, 1400]
    page = timeline(of_query, **{"from": 150, "to": 400})
    assert [query.get("first") for query in page.asked] == [None]


def test_an_address_holds_the_place(timeline):
    page = timeline()
    page.get_by_role("button", name="Regular expression").click()
    page.get_by_label("Minimum duration").fill("5")
    find(page, "sgemm_1.8")
    page.locator("input[type=search]").press("Escape")
    page.keyboard.press("w")
    seen(page)
    _, options = options_of(page, until="at")
    assert options["at"] == "kernel 0 7@260"
    assert (options["find"], options["regex"], options["least"]) == ("sgemm_1.8", "1", "5")
    other = timeline(**options)
    other.wait_for_selector(f"h3:has-text('{KERNEL}')")
    other.keyboard.press("d")
    other.keyboard.press("a")
    assert seen(other) == pytest.approx((float(options["from"]), float(options["to"])), abs=0.01)


def test_two_ranks_side_by_side(timeline):
    files = [f"host{rank}_{100 + rank}.1700000000000.pt.trace.json" for rank in range(2)]
    page = timeline(run="distributed", trace=files[0])
    page.get_by_label("Beside").select_option(files[1])
    page.wait_for_selector(".wtl-group:has-text('rank 1: GPU 0')")
    assert {"rank 0: GPU 0", "rank 1: main thread"} < set(page.locator(".wtl-group").all_inner_texts())
    assert page.get_by_label("aligned by").input_value() in ("step", "clock")
    page.locator("input[type=search]").fill("ncclDevKernel_AllReduce")
    page.wait_for_selector("text=/^4 events/")
    for _ in range(2):
        page.locator("input[type=search]").press("Enter")
    assert "rank 1: GPU 0" in panel(page)
    assert "rank 1: main thread" not in panel(page).split("Launched by")[0]
    arguments(page)  # of the other file
    assert "not read" not in panel(page)


def test_a_page_comes_back_by_itself(tab, opened):
    page = tab("ladder")
    page.route("**/digest?*", lambda route: route.abort())
    page.evaluate("location.hash = 'step?run=gpu'")
    page.wait_for_selector("text=This cannot be shown: TensorBoard does not answer")
    page.unroute("**/digest?*")
    page.wait_for_selector("text=Mean step")
    assert page.locator("text=This cannot be shown").count() == 0
    opened[-1].problems.clear()  # the browser says that the request failed
