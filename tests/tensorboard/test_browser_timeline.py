"""The Timeline in a browser: from a number to the line of code, its lanes, its search, its address."""

import json
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from support.board import WALKTHROUGH
from support.browser import BOTH
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.advice.gains import advise
from walkthrough.results.errors import InputError
from walkthrough.trace.analysis import analyze
from walkthrough.trace.reader import event
from walkthrough.trace.timeline import lanes

WIDTHS = [("light", 900), ("light", 1280), ("dark", 2560)]
ALL_WIDTHS = pytest.mark.parametrize("look", WIDTHS, indirect=True, ids=lambda look: f"{look[0]}-{look[1]}")
KERNEL = "volta_sgemm_128x64_nn"


def with_python():
    """Two steps; in each an operator below Python functions launches two kernels, and autograd's thread one."""
    builder = TraceBuilder()
    for number, begin in ((1, 10_000), (2, 11_000)):
        builder.step(number, begin, 1000)
        builder.add("python_function", "train.py(40): train", begin + 10, 900)
        builder.add("python_function", "model.py(7): forward", begin + 100, 300)
        op = builder.op("aten::mm", begin + 150, 200)
        op["args"] |= {"Input Dims": [[32, 64], [64, 10]], "Input type": ["float", "float"]}
        grid = {"grid": [8, 1, 1], "block": [128, 1, 1]}
        builder.launch(KERNEL, begin + 160, 10, begin + 260, 100, op=op, **grid)
        builder.launch("splitKreduce_kernel", begin + 200, 10, begin + 360, 20, op=op)
        for depth in range(5):
            builder.add("cuda_runtime", "cudaEventRecord", begin + 500 + depth, 50 - 2 * depth, tid=2)
        back = builder.op("MmBackward0", begin + 600, 80, tid=2)
        builder.launch("volta_sgemm_64x32_nt", begin + 610, 10, begin + 630, 150, op=back, tid=2)
        builder.memory(begin + 160, 4_000_000, 6_000_000 + 1_000_000 * number, 10_000_000, address=number)
    return builder


@pytest.fixture
def answer_of(tmp_path):
    """answer_of(builder): what the server sends of a trace, to be spoilt."""

    def read(builder):
        path = builder.write(tmp_path / "w.pt.trace.json")
        analysis = analyze(path)
        findings = [(finding.what, finding.when) for finding in advise(analysis).findings]
        return json.loads(json.dumps(lanes(analysis, findings)))

    return read


@pytest.fixture
def timeline(visit, board, tmp_path):
    """timeline(answer, **options): the page, of an answer made by hand (or a function of the query), or of a run's.

    An event's arguments are those in the file of `answer_of`, after as many answers that it is still being read as
    `page.pauses` says; page.events: the queries for them.
    """

    def show(answer=None, run="gpu", **options):
        page = visit(f"{WALKTHROUGH}/page.html#ladder")
        page.asked, page.events, page.pauses = [], [], 0

        def fulfil_event(route):
            asked = {name: value for name, [value] in parse_qs(urlsplit(route.request.url).query).items()}
            page.events.append(asked)
            if len(page.events) <= page.pauses:
                body = {"state": "reading", "reason": None, "reading": 1}
            else:
                thread, times = (asked["pid"], asked["tid"]), (float(asked["at"]), float(asked["duration"]))
                try:
                    body = {"arguments": event(tmp_path / "w.pt.trace.json", asked["name"], thread, *times)}
                except InputError as error:
                    body = {"state": "failed", "reason": str(error), "reading": 0}
            route.fulfill(body=json.dumps(body), content_type="application/json")

        if answer is not None:

            def fulfil(route):
                asked = parse_qs(urlsplit(route.request.url).query)
                page.asked.append(asked)
                body = answer(asked) if callable(answer) else answer
                route.fulfill(body=json.dumps(body), content_type="application/json")

            page.route("**/lanes?*", fulfil)
            page.route("**/event?*", fulfil_event)
        page.evaluate("hash => { location.hash = hash }", f"timeline?{urlencode({'run': run} | options)}")
        page.wait_for_selector(".wtl-canvas")
        page.wait_for_function("document.querySelector('.wtl-canvas').width > 300")
        return page

    return show


def options_of(page, until=None):
    """The options in the page's address, once `until` is among them."""
    if until:
        page.wait_for_function("name => new URLSearchParams(location.hash.split('?')[1]).has(name)", arg=until)
    return {name: value for name, [value] in parse_qs(page.evaluate("location.hash.split('?')[1]")).items()}


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
    options = options_of(page)
    return float(options["from"]), float(options["to"])


def drawn(page):
    """Wait until the canvas shows what was done last; returns what is seen, in µs: [from, to]."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return [float(us) for us in page.wait_for_selector(".wtl-canvas[data-seen]").get_attribute("data-seen").split()]


def colours(page, x, y):
    """The colour of the canvas at a place, in CSS pixels: [red, green, blue]."""
    return page.evaluate(
        "([x, y]) => { const c = document.querySelector('.wtl-canvas'), r = devicePixelRatio;"
        " return [...c.getContext('2d').getImageData(x * r, y * r, 1, 1).data].slice(0, 3) }",
        [x, y],
    )


@BOTH
def test_a_kernel_names_its_launch_its_operator_and_its_python_functions(timeline, answer_of, shot):
    page = timeline(answer_of(with_python()))
    find(page, KERNEL)
    text = panel(page)
    assert "Launched by" in text
    assert "100.0 µs from the call to its begin" in text
    assert {"[8, 1, 1]", "[128, 1, 1]"} < set(arguments(page))
    stack = page.locator(".wtl-stack li").all_inner_texts()
    assert stack == ["model.py(7): forward", "train.py(40): train"]
    shot(page, "timeline-kernel")
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


def test_arguments_are_those_of_what_is_selected_and_come_when_they_are_read(timeline, answer_of):
    page = timeline(answer_of(with_python()))
    page.pauses = 2
    find(page, KERNEL)
    assert "Arguments\n…" in panel(page)
    page.get_by_role("button", name="aten::mm").first.click()  # before the kernel's arguments are there
    page.wait_for_selector("h3:has-text('aten::mm')")
    assert arguments(page) == ["[[32, 64], [64, 10]]", "[float, float]"]
    find(page, "idle:")
    assert "The GPU is idle: why" in panel(page)
    assert "Python" in panel(page)
    find(page, "train.py")
    assert "Arguments" not in panel(page)
    find(page, "cudaEventRecord")  # without arguments
    page.locator(".wtl-part", has=page.get_by_role("heading", name="Arguments")).wait_for(state="detached")
    asked = {event["name"] for event in page.events}
    assert {"aten::mm", "cudaEventRecord"} <= asked
    assert not any(name.startswith(("idle", "train.py")) for name in asked)


def test_arguments_that_cannot_be_read_are_one_line(timeline, answer_of):
    answer = answer_of(with_python())
    answer["file_us"] += 500
    page = timeline(answer)
    find(page, KERNEL)
    assert arguments(page)[0] == f"w.pt.trace.json holds no event {KERNEL} at that time"


def test_an_arrow_joins_a_launch_and_its_kernel(timeline, answer_of):
    page = timeline(answer_of(with_python()))
    accent = "([179, 0, 94])"
    count = f"""() => {{ const c = document.querySelector('.wtl-canvas'), a = {accent};
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4) if (a.every((v, k) => Math.abs(v - d[i + k]) < 12)) n++; return n }}"""
    find(page, "cudaEventRecord")
    drawn(page)
    alone = page.evaluate(count)
    find(page, KERNEL)
    drawn(page)
    assert page.evaluate(count) > alone + 100


def test_the_stack_of_a_trace_of_2021_is_shown(timeline, answer_of):
    builder = two_steps("2021")
    for operator in builder.events:
        if operator["name"] == "aten::cudnn_convolution":
            operator["args"]["Call stack"] = "a.py(1): f;b.py(2): g"
    page = timeline(answer_of(builder))
    find(page, "aten::cudnn_convolution")
    page.wait_for_selector(".wtl-stack")
    assert page.locator(".wtl-stack li").all_inner_texts() == ["a.py(1): f", "b.py(2): g"]


@BOTH
def test_a_finding_lists_the_work_inside_its_marks(timeline, answer_of, shot):
    answer = answer_of(two_steps())
    finding = next(lane for lane in answer["lanes"] if lane["kind"] == "finding")
    page = timeline(answer, find="copies that the CPU waits for")
    page.wait_for_selector("text=/^2 events/")
    page.locator("input[type=search]").press("Enter")
    page.wait_for_selector("text=1 of 2")
    text = panel(page)
    assert f"In all {len(finding['start'])} marks: 2, 60.00 µs" in text
    assert "Memcpy HtoD (Pageable -> Device)" in text
    assert "volta" not in text
    shot(page, "timeline-finding")


def test_a_search_dims_what_it_does_not_find(timeline, answer_of):
    page = timeline(answer_of(two_steps()), find="volta_scudnn")
    page.wait_for_selector("text=/^2 events/")
    low, high = drawn(page)
    canvas = page.locator(".wtl-canvas").bounding_box()

    def shade(lane, time):
        """How far the colour of an event is from the ground's, in the middle of a lane's first row."""
        box = page.locator(".wtl-lane", has=page.get_by_role("button", name=lane, exact=True)).bounding_box()
        x = (time - low) / (high - low) * canvas["width"]
        event, ground = (colours(page, place, box["y"] - canvas["y"] + 12) for place in (x, 4))
        return sum(abs(a - b) for a, b in zip(event, ground, strict=True))

    assert shade("stream 7", 720) > 2 * shade("stream 7 (copies)", 225)
    assert shade("stream 7", 720) > 2 * shade("idle", 200)


def test_search_by_expression_and_duration(timeline, answer_of):
    page = timeline(answer_of(with_python()))
    search, least = page.locator("input[type=search]"), page.get_by_label("Minimum duration")
    status = page.locator(".found")
    search.fill("sgemm_(64|128)")
    assert status.inner_text() == "nothing found"
    page.get_by_role("button", name="Regular expression").click()
    assert status.inner_text().startswith("4 events")
    least.fill("0.12 ms")
    assert status.inner_text() == "2 events, 300.0 µs"
    least.fill("soon")
    assert "a duration is" in status.inner_text()
    least.fill("")
    search.fill("(")
    assert status.inner_text() == "this is not a regular expression"
    search.fill("")
    least.fill("900")
    assert "train.py" not in panel(page)
    search.press("Enter")
    page.wait_for_selector("text=/^1 of /")


def test_a_range_is_measured_on_the_time_axis(timeline, answer_of, shot):
    page = timeline(answer_of(with_python()))
    box = page.locator(".wtl-canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 32, steps=5)
    page.mouse.up()
    page.wait_for_selector("text=Busy in this range, by lane")
    assert "GPU 0, stream 7" in panel(page)
    shot(page, "timeline-range")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Click an event")
    find(page, "model.py")
    page.locator("input[type=search]").press("Escape")  # the keys are the timeline's again
    page.keyboard.press("m")
    page.wait_for_selector("text=Busy in this range, by lane")
    assert panel(page).startswith("300.0 µs")
    assert "120.0 µs\n40.0 %\nGPU 0, stream 7" in panel(page)


def test_keys_work_at_once_and_are_text_in_a_field(timeline, answer_of, shot):
    page = timeline(answer_of(with_python()))
    page.keyboard.press("w")
    low, high = seen(page)
    assert high - low < 1900
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("d")
    assert seen(page)[0] > low
    page.keyboard.press("0")
    assert seen(page) == pytest.approx((-20, 2020), abs=30)
    text = page.get_by_text("zoom to the selection")
    assert not text.is_visible()
    page.keyboard.press("?")
    assert text.is_visible()
    shot(page, "timeline-help")
    page.locator("summary", has_text="Keyboard and mouse").click()
    assert not text.is_visible()
    page.locator("input[type=search]").focus()
    page.keyboard.type("wd?")
    assert page.locator("input[type=search]").input_value() == "wd?"
    assert not text.is_visible()


def unloaded(answer):
    """The answer as if only the second of four steps were loaded."""
    answer["steps"] = [{"name": str(i), "start": 1000 * i - 1000, "end": 1000 * i} for i in range(4)]
    answer["loaded"] = {"first": 1, "last": 1, "start": -20, "end": 1020}
    answer["total"] = {"start": -1000, "end": 3000}
    return answer | {"left_out": 1234567, "partial": True, "warnings": ["a part of it is unreadable"]}


@ALL_WIDTHS
def test_what_is_not_loaded_looks_so_and_can_be_loaded_and_the_window_is_used(timeline, answer_of, shot, look):
    page = timeline(unloaded(answer_of(with_python())))
    stage, text = page.locator(".wtl-stage").bounding_box(), page.locator("main").inner_text()
    assert stage["width"] >= look[1] - 60
    assert stage["height"] > 250
    assert "0 us" not in text
    assert "1,234,567 events are not loaded" in text
    assert "The trace is truncated" in text
    assert "a part of it is unreadable" in text
    page.keyboard.press("0")
    assert drawn(page) == pytest.approx([-30.4, 1030.4])  # what is loaded, and 1 % on both sides
    for _ in range(6):
        page.keyboard.press("s")
    assert drawn(page) == pytest.approx([-1040, 3040])  # the whole trace
    box = page.locator(".wtl-canvas").bounding_box()
    middle = box["width"] * 0.5  # in the loaded step
    assert colours(page, 20, box["height"] - 30) != colours(page, middle, box["height"] - 30)
    shot(page, "timeline-not-loaded")
    page.evaluate("document.querySelector('.wtl-canvas').id = 'before'")
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + 10)  # the last step
    page.wait_for_selector(".wtl-canvas:not(#before)")
    assert page.asked[-1]["first"] == ["3"]
    assert page.evaluate("document.documentElement.scrollWidth") <= look[1]


def test_steps_are_chosen(timeline, answer_of):
    page = timeline(unloaded(answer_of(with_python())))
    assert page.get_by_label("First step").input_value() == "2"

    def redrawn(action):
        """Do what loads other steps, and wait until these are drawn; returns the steps asked for."""
        page.evaluate("document.querySelector('.wtl-canvas').id = 'before'")
        action()
        page.wait_for_selector(".wtl-canvas:not(#before)")
        return page.asked[-1]["first"] + page.asked[-1]["last"]

    assert redrawn(page.get_by_role("button", name="later").click) == ["2", "2"]
    page.get_by_label("First step").fill("1")
    page.get_by_label("Last step").fill("3")
    assert redrawn(lambda: page.get_by_label("Last step").press("Enter")) == ["0", "2"]
    assert "first=0&last=2" in page.evaluate("location.hash")


def test_it_opens_on_the_steps_with_room_for_the_lanes(timeline, answer_of):
    answer = answer_of(with_python())
    start_up = {"id": "cpu start", "label": "start", "kind": "cpu", "group": "start", "thread": 99, "levels": 1}
    answer["lanes"].append(start_up | {"start": [-1e6], "duration": [9e5], "name": [0], "level": [0]})
    answer["total"]["start"] = answer["loaded"]["start"] = -1e6
    answer["steps"][0]["start"] = 400  # its work on the GPU; its mark begins at 0
    page = timeline(answer)
    assert drawn(page) == pytest.approx([-40, 2040])
    bar = page.locator(".wtl-panel").bounding_box()
    assert bar["height"] < 40
    find(page, KERNEL)
    assert page.locator(".wtl-panel").bounding_box()["height"] > 150
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Click an event")
    assert page.locator(".wtl-panel").bounding_box()["height"] > 150
    page.keyboard.press("0")
    assert drawn(page)[0] < -1e6


def test_a_place_in_steps_that_are_not_loaded_loads_them(timeline, answer_of):
    answer = answer_of(with_python())

    def of_query(query):
        first = int(query.get("first", ["0"])[0])
        loaded = {"first": first, "last": first, "start": 1000 * first - 20, "end": 1000 * first + 1020}
        return answer | {"loaded": loaded}

    page = timeline(of_query, **{"from": 1150, "to": 1400, "at": "kernel 0 7@1260"})
    page.wait_for_selector(f"h3:has-text('{KERNEL}')")
    assert [query.get("first") for query in page.asked] == [None, ["1"]]
    assert drawn(page) == [1150, 1400]
    page = timeline(of_query, **{"from": 150, "to": 400})
    assert [query.get("first") for query in page.asked] == [None]


def test_an_address_holds_the_place(timeline, answer_of):
    answer = answer_of(with_python())
    page = timeline(answer)
    page.get_by_role("button", name="Regular expression").click()
    page.get_by_label("Minimum duration").fill("5")
    find(page, "sgemm_1.8")
    page.locator("input[type=search]").press("Escape")
    page.keyboard.press("w")
    seen(page)
    options = options_of(page, until="at")
    assert options["at"] == "kernel 0 7@260"
    assert (options["find"], options["regex"], options["least"]) == ("sgemm_1.8", "1", "5")
    other = timeline(answer, **options)
    other.wait_for_selector(f"h3:has-text('{KERNEL}')")
    assert other.locator("input[type=search]").input_value() == "sgemm_1.8"
    other.keyboard.press("d")
    other.keyboard.press("a")
    moved = seen(other)
    assert moved == pytest.approx((float(options["from"]), float(options["to"])), abs=0.01)


def labels(page):
    """The labels of the lanes that are shown, from top to bottom."""
    return page.evaluate(
        "[...document.querySelectorAll('.wtl-lane')].filter((one) => one.offsetParent)"
        ".map((one) => one.querySelector('.wtl-fold span').textContent)"
    )


def test_lanes_and_groups_fold_by_mouse_and_by_keyboard(timeline, answer_of, shot):
    page = timeline(answer_of(with_python()))
    before = labels(page)
    row = page.locator(".wtl-lane", has=page.get_by_role("button", name="operators", exact=True)).last
    tall = row.bounding_box()["height"]
    row.locator(".wtl-fold").focus()
    page.keyboard.press("Enter")
    assert row.locator(".wtl-fold").get_attribute("aria-expanded") == "false"
    assert row.bounding_box()["height"] <= tall
    page.get_by_role("button", name="GPU 0", exact=True).click()
    assert "stream 7" not in labels(page)
    shot(page, "timeline-folded")
    find(page, KERNEL)  # what is selected unfolds its group
    assert labels(page) == before


def test_counters_alone_are_drawn(timeline):
    memory = {"label": "CPU memory, allocated", "unit": "bytes", "group": "CPU"}
    page = timeline(
        {"names": [], "lanes": [], "steps": [], "counters": [memory | {"time": [5, 15], "value": [0, 9e6]}]}
    )
    low, high = drawn(page)
    assert low < 5 < 15 < high
    assert labels(page) == ["CPU memory, allocated"]


def test_deep_lanes_of_other_threads_start_folded_and_a_counter_says_its_value_under_the_pointer(timeline, answer_of):
    page = timeline(answer_of(with_python()))
    assert page.locator(".wtl-lane .wtl-fold[aria-expanded=false]").all_inner_texts() == ["calls"]
    lane = page.locator(".wtl-lane", has_text="memory, allocated").first
    lane.locator(".wtl-fold").focus()
    row, canvas = lane.bounding_box(), page.locator(".wtl-canvas").bounding_box()
    page.mouse.move(canvas["x"] + canvas["width"] - 40, row["y"] + 20)
    tip = page.locator(".wtl-tip", has_text="8.0 MB")
    tip.wait_for()
    assert tip.is_visible()


def test_two_ranks_side_by_side(timeline, shot):
    files = [f"host{rank}_{100 + rank}.1700000000000.pt.trace.json" for rank in range(2)]
    page = timeline(run="distributed", trace=files[0])
    page.get_by_label("Beside").select_option(files[1])
    page.wait_for_selector(".wtl-group:has-text('rank 1: GPU 0')")
    groups = page.locator(".wtl-group").all_inner_texts()
    assert "rank 0: GPU 0" in groups
    assert "rank 1: main thread" in groups
    assert page.get_by_label("aligned by").input_value() in ("step", "clock")
    page.locator("input[type=search]").fill("ncclDevKernel_AllReduce")
    page.wait_for_selector("text=/^4 events/")
    for _ in range(2):
        page.locator("input[type=search]").press("Enter")
    assert "rank 1: GPU 0" in panel(page)
    assert "rank 1: main thread" not in panel(page).split("Launched by")[0]
    arguments(page)  # of the other file
    assert "not read" not in panel(page)
    shot(page, "timeline-ranks")


def test_the_trace_view_and_perfetto(timeline, answer_of):
    page = timeline(answer_of(with_python()))
    find(page, KERNEL)
    page.locator("summary", has_text="Perfetto").click()
    link = page.get_by_role("link", name="Download the trace")
    assert link.get_attribute("href") == "trace?run=gpu"
    page.evaluate("addEventListener('hashchange', () => { window.left = location.hash })")
    page.get_by_role("button", name="Trace view").click()
    page.wait_for_function("window.left")
    left = parse_qs(page.evaluate("window.left").partition("?")[2])
    assert (left["from"], left["to"]) == (["260.000"], ["360.000"])
    assert parse_qs(left["back"][0])["find"] == [KERNEL]


@pytest.mark.parametrize("reason", ["TensorBoard does not answer", "out of memory"])
def test_a_page_comes_back_by_itself_or_on_demand(tab, opened, reason):
    page = tab("ladder")
    failed = json.dumps({"state": "failed", "reason": reason})
    answers = reason == "out of memory"
    page.route(
        "**/digest?*",
        lambda route: route.fulfill(body=failed, content_type="application/json") if answers else route.abort(),
    )
    page.evaluate("location.hash = 'step?run=gpu'")
    page.wait_for_selector(f"text=This cannot be shown: {reason}")
    page.unroute("**/digest?*")
    if answers:
        page.get_by_role("button", name="try again").click()
    page.wait_for_selector("text=Mean step")
    assert page.locator("text=This cannot be shown").count() == 0
    if not answers:
        opened[-1].problems.clear()  # the browser says that the request failed


def test_every_page_has_a_link_to_its_place(tab):
    page = tab("step", run="gpu")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy link").click()
    page.wait_for_selector("#copied:has-text('copied')")
    address = page.evaluate("navigator.clipboard.readText()")
    assert address.endswith("/page.html#step?run=gpu")
