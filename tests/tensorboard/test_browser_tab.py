"""The Walkthrough tab in a browser: every page, light and dark, without internet, with hostile names."""

import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from support.board import HOSTILE, WALKTHROUGH
from support.browser import BOTH, wait_for_charts
from support.trace_builder import two_steps

EDGES = pytest.mark.parametrize("look", [("light", 900), ("dark", 2560)], indirect=True, ids=lambda look: str(look[1]))


def address(page):
    """The page that is open, and its options."""
    name, _, query = page.evaluate("location.hash").removeprefix("#").partition("?")
    return name, {key: values[0] for key, values in parse_qs(query).items()}


@pytest.fixture
def later(board):
    """later(name): the path of a trace in a new run of the log folder; the run is gone after the test."""
    folders = []

    def run(name):
        folder = Path(str(board.log).removesuffix(".log")) / name
        folder.mkdir()
        folders.append(folder)
        return folder / "w.pt.trace.json"

    yield run
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@BOTH
def test_the_ladder(tab, shot):
    page = tab("ladder")
    page.wait_for_selector(".plotly .bars")
    assert "Test GPU" in page.locator("h1").first.inner_text()
    assert "120.0" in page.locator("table").first.inner_text()
    page.wait_for_function("document.querySelectorAll('.plotly').length >= 3")
    wait_for_charts(page)
    shot(page, "ladder")


def test_a_click_on_a_step_opens_it(tab):
    page = tab("ladder")
    page.locator("button.link", has_text="04_multiprocess_loading").click()
    page.wait_for_selector(".verdict")
    assert "ladder/04_multiprocess_loading" in page.locator("h1").inner_text()
    page.wait_for_selector("text=Since 00_baseline")
    page.go_back()
    page.wait_for_selector("text=The steps")


def test_time_per_image(tab):
    page = tab("ladder")
    page.wait_for_selector(".plotly .bars")
    axis = page.locator(".xtitle")  # of the breakdown: the other charts have no title
    axis.wait_for()
    assert axis.text_content() == "ms per step"
    page.locator("select").first.select_option("image")
    page.wait_for_function("document.querySelector('.xtitle')?.textContent === 'µs per image'")


@BOTH
@pytest.mark.parametrize("run", ["gpu", "cpu", "odd [name] ünï", "distributed"])
def test_a_step(tab, shot, run):
    page = tab("step", run=run)
    page.wait_for_selector(".verdict")
    assert run in page.locator("h1").inner_text()
    text = page.locator("main").inner_text()
    assert "Mean step" in text
    if run == "gpu":
        assert "40.0 %" in text
        assert "launch-bound" in text
        assert "volta_scudnn_128x64_relu_interior_nn_v1" in text
        assert "Use DataLoader workers: about 1.25x" in text
        assert "What stands out" in text
        assert "copies that the CPU waits for" in text
    if run == "cpu":
        assert "no GPU in this trace" in text
        page.wait_for_selector(".plotly .scatterlayer path")
    wait_for_charts(page)
    shot(page, f"step-{run.replace(' ', '_')}")


def test_a_broken_trace_is_named(tab):
    page = tab("step", run="broken")
    assert "damaged" in page.locator("main").inner_text()


@BOTH
def test_compare(tab, shot):
    page = tab("compare", before="cpu", after="gpu")
    assert "two machines" in page.locator("main").inner_text()
    page.locator("select").first.select_option("of 2021")
    page.wait_for_function("!document.querySelector('main').innerText.includes('two machines')")
    wait_for_charts(page)
    shot(page, "compare")


def test_compare_and_step_have_the_same_figures(tab):
    page = tab("compare", before="gpu", after="distributed")
    row = page.locator("tr", has_text="communication alone").inner_text().split("\t")
    assert row[1] == "–"
    kernels = page.locator("tr", has=page.locator("td", has_text="kernels")).first.inner_text().split("\t")
    assert kernels[1:] == ["1", "2"]
    page = tab("step", run="distributed")
    assert row[2] in page.locator(".cards").inner_text()
    assert "Kernels per step: 2," in page.locator("main").inner_text()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("gpu", "hostile", "Two different GPUs (Tesla V100; <img"),
        ("ladder/00_baseline", "ladder/04_multiprocess_loading", "100.0 before, 120.0 after: 1.20x (1.20-1.20)"),
    ],
)
def test_two_runs_are_compared_by_what_was_measured_or_are_no_fair_pair(tab, before, after, text):
    assert text in tab("compare", before=before, after=after).locator("main").inner_text()


@pytest.fixture
def with_digests(tab):
    """with_digests(change, page, **options): a page to which change(run, digest) changes what the server knows."""

    def show(change, name, **options):
        page = tab("compare", before="gpu", after="of 2021")

        def answer(route):
            response = route.fetch()
            content = response.json()
            if "steps" in content:
                change(parse_qs(urlsplit(route.request.url).query)["run"][0], content)
            route.fulfill(response=response, json=content)

        page.route("**/digest?*", answer)
        page.evaluate(f"location.hash = '{name}?{urlencode(options)}'")
        return page

    return show


def test_gpus_are_compared_by_name_where_both_have_one_and_their_units_are_named(with_digests):
    def of_two_makers(run, digest):
        if run == "hostile":
            digest["gpus"][0]["name"] = None
            digest["matrix_units"] = "Matrix cores"

    page = with_digests(of_two_makers, "compare", before="gpu", after="hostile")
    page.wait_for_selector("text=Tensor Cores / Matrix cores")
    assert "Two different GPUs" not in page.locator("main").inner_text()


def test_an_answer_that_is_no_json_becomes_one_clear_line(tab, opened):
    answers = [
        (500, "<html>a proxy's error</html>", "TensorBoard answers with an error, 500"),
        (
            500,
            '{"error": "a defect of the page: see TensorBoard\'s log"}',
            "a defect of the page: see TensorBoard's log",
        ),
        (200, "<html>another server</html>", "TensorBoard's answer is damaged, or of another server"),
    ]
    page = tab("ladder")
    page.wait_for_selector(".plotly .bars")
    for status, body, text in answers:
        page.unroute("**/ladders*")
        page.route("**/ladders*", lambda route, _, status=status, body=body: route.fulfill(status=status, body=body))
        page.evaluate("document.getElementById('view').dispatchEvent(new Event('again'))")
        page.wait_for_selector(f"text={text}")
        assert "Unexpected token" not in page.locator("main").inner_text()
    opened[-1].problems.clear()  # the browser says that requests failed


def test_compare_takes_another_run_beside_the_first_and_no_other_for_one_that_is_gone(tab):
    page = tab("compare", run="broken")  # the first
    values = [select.input_value() for select in page.locator("select").all()]
    assert values == ["cpu", "broken"]
    text = tab("compare", run="deleted").locator("main").inner_text()
    assert "the run deleted is not here" in text
    assert "under the profiler" not in text


def test_the_ladder_has_communication_apart_where_a_step_communicates(tab, with_digests):
    assert "Communication is apart here" not in tab("ladder").locator("main").inner_text()

    def communicating(run, digest):
        if run == "ladder/04_multiprocess_loading":
            parts = digest["typical"]["breakdown_us"]
            digest["typical"]["parts_us"] = {"compute": 100, "overlapped": 50, "exposed": 250} | parts

    page = with_digests(communicating, "ladder")
    page.wait_for_selector("text=Communication is apart here")
    chart = page.locator("section", has_text="Step time by activity").first
    chart.locator(".legendtext", has_text="exposed").wait_for()
    assert chart.locator(".legendtext", has_text="kernel").count() == 0


def test_names_are_compared_by_kernel_kind_and_operator_and_what_is_new_is_marked(tab):
    page = tab("compare", before="gpu", after="distributed")
    names = page.locator("section", has_text="What changed most")
    rows = names.locator("tbody tr")
    assert "new" in rows.first.inner_text() and "sm80_xmma_gemm_bf16bf16" in rows.first.inner_text()
    assert "gone" in names.locator("tr", has_text="volta_scudnn").inner_text()
    names.locator("select").select_option("kind")
    assert "collective" in names.inner_text()
    assert address(page)[1]["by"] == "kind"
    names.locator("select").select_option("operator")
    assert "gone" in names.locator("tr", has_text="aten::cudnn_convolution").inner_text()
    page.reload()
    page.wait_for_selector("text=aten::cudnn_convolution")


def test_communication_is_apart_from_computing(tab):
    page = tab("step", run="distributed")
    step = page.locator("section", has_text="Mean step").first
    for name in ("compute", "overlapped", "exposed"):
        assert step.locator("tr", has_text=name).count() >= 1
    assert "As the profiler plugin defines it" in step.inner_text()
    assert "collectives' kernels counted as kernel" in step.inner_text()
    assert "As the profiler plugin" not in tab("step", run="gpu").locator("main").inner_text()
    compared = tab("compare", before="gpu", after="distributed").locator("section", has_text="step, under the profiler")
    assert "As the profiler plugin defines it" in compared.inner_text()
    parts, roles = compared.locator("table").all()
    assert parts.locator("tr", has_text="exposed").count() == 1
    assert roles.locator("tr", has_text="kernel").count() == 1 and roles.locator("tr", has_text="exposed").count() == 0


@BOTH
def test_the_ranks_of_a_run(tab, shot):
    page = tab("ladder")
    page.locator("#tabs a", has_text="Ranks").click()
    page.wait_for_selector("text=The ranks, per typical step")
    rows = page.locator("tbody tr")
    assert "the others wait for it" in rows.nth(0).inner_text()
    assert "500.0 µs" in rows.nth(1).inner_text()
    assert "the others wait 500.0 µs of a step (6%) for rank 0" in page.locator(".verdict").inner_text()
    wait_for_charts(page)
    shot(page, "ranks")
    rows.nth(1).locator("button", has_text="rank 1").click()
    page.wait_for_selector("text=Mean step")
    name, options = address(page)
    assert (name, options["trace"].partition("_")[0]) == ("step", "host1")
    page.locator("button", has_text="its ranks side by side").click()
    page.locator("button", has_text="beside rank 0").click()
    page.wait_for_selector("canvas")
    name, options = address(page)
    assert (name, options["beside"].partition("_")[0]) == ("timeline", "host1")


def test_a_table_is_sorted_and_filtered_by_keyboard(tab):
    page = tab("step", run="cpu")
    table = page.locator("section", has_text="Operators on the CPU").last
    header = table.locator("th", has_text="name")
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    first = table.locator("td.name").first.inner_text()
    assert table.locator("td.name").count() == 30
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    table.locator("button", has_text="show all").click()
    assert table.locator("td.name").count() > 30
    assert table.locator("td.name").last.inner_text() == first
    table.locator("input").fill("CONV")
    shown = table.locator("td.name").all_inner_texts()
    assert 0 < len(shown) < 30
    assert all("conv" in name.lower() for name in shown)


def test_a_row_and_a_piece_of_advice_lead_to_the_timeline(tab):
    page = tab("step", run="gpu")
    page.locator("li", has_text="Use DataLoader workers").locator("button", has_text="longest gap: 330.0 µs").click()
    page.wait_for_selector("canvas")
    name, options = address(page)
    assert (name, options["run"], options["at"]) == ("timeline", "gpu", "idle 0@0")
    assert float(options["from"]) < 0 and float(options["to"]) > 330
    page.go_back()
    page.get_by_role("button", name="Show volta_scudnn_128x64_relu_interior_nn_v1 in the timeline").click()
    page.wait_for_selector("text=2 events, 800.0 µs")
    assert address(page)[1]["find"] == "volta_scudnn_128x64_relu_interior_nn_v1"


def test_a_long_name_is_shown_whole_on_demand(tab, later):
    builder = two_steps()
    long = f"void kernel_{'x' * 150}_end"
    builder.launch(long, 10_900, 5, 10_930, 20)
    builder.launch(long, 11_900, 5, 11_930, 20)
    builder.write(later("zz_long"))
    page = tab("ladder")
    page.wait_for_selector("text=zz_long")
    page = tab("step", run="zz_long")
    button = page.locator("button.whole")
    assert long not in page.locator("main").inner_text()
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    assert button.inner_text() == long


def test_a_reader_is_told_of_changes_and_a_failed_page_is_drawn_again(tab, board, later):
    path = later("zz_changing")
    path.write_text("{")
    board.until(lambda: "zz_changing" in str(board.json(f"{WALKTHROUGH}/runs")), "the run")
    page = tab("step", run="zz_changing")
    page.wait_for_selector("text=This cannot be shown")
    two_steps().write(path)
    page.wait_for_selector("text=Mean step")
    builder = two_steps()
    builder.loading(11_880, 50)
    builder.write(path)
    page.wait_for_selector("text=There is new data in zz_changing.")
    assert page.locator("text=Mean step").is_visible()
    page.locator("button", has_text="reload this page").click()
    page.wait_for_selector("td:has-text('225.0 µs')")
    assert page.locator("#changed").is_hidden()
    path.unlink()
    page.wait_for_selector("text=The run zz_changing is gone.")
    assert page.locator("text=Mean step").is_visible()
    page.locator("button", has_text="reload this page").click()
    page.wait_for_selector("text=the run zz_changing is not here")
    assert page.locator("form select").count() == 1


@EDGES
@pytest.mark.parametrize("name", ["ladder", "step", "compare", "ranks"])
def test_nothing_is_wider_than_the_window(tab, shot, name):
    run = "distributed" if name == "ranks" else "gpu"
    page = tab(name, run=run)
    wait_for_charts(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shot(page, f"edge-{name}")


@BOTH
def test_a_finding_is_shown_in_the_timeline(tab, shot):
    page = tab("step", run="gpu")
    finding = page.locator("li", has_text="copies that the CPU waits for")
    finding.locator("button", has_text="show in the timeline").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("canvas")
    page.wait_for_selector("text=2 events, 100.0 µs")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1 of 2")
    assert page.locator(".wtl-lane", has_text="copies that the CPU waits for").is_visible()
    shot(page, "finding")
    page.go_back()
    page.wait_for_selector("text=What stands out")


def test_by_keyboard_alone(tab):
    page = tab("ladder")
    page.wait_for_selector(".plotly .bars")
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Step"
    page.keyboard.press("Enter")
    page.wait_for_selector("label:has-text('Run')")
    page.wait_for_selector("text=damaged")  # the first run of the list is the broken one
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    for _ in range(3):  # past the other pages, to the choice of runs
        if page.evaluate("document.activeElement.tagName") != "SELECT":
            page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("text=Mean step")


@pytest.mark.parametrize("name", ["ladder", "step", "compare", "timeline"])
def test_names_are_text_and_never_html(tab, shot, name):
    page = tab(name, run="hostile", before="gpu", after="hostile")
    if name == "timeline":  # which draws its names; a search selects an event and shows its name
        page.locator("input[type=search]").fill("img src")
        page.locator("input[type=search]").press("Enter")
    page.wait_for_function("text => document.querySelector('main').innerText.includes(text)", arg=HOSTILE)
    wait_for_charts(page)
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("main script").count() == 0
    shot(page, f"hostile-{name}")


def test_the_tab_inside_tensorboard(visit, shot):
    page = visit("/#walkthrough")
    frame = page.frame_locator("iframe").first
    frame.locator("text=The steps").wait_for()
    assert "Test GPU" in frame.locator("h1").first.inner_text()
    frame.locator(".chart .main-svg").first.wait_for()
    shot(page, "in_tensorboard")
