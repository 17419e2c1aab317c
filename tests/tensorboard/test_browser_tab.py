"""The Walkthrough tab in a browser: every page, light and dark, without internet, with hostile names."""

import shutil
from pathlib import Path

import pytest
from support.board import HOSTILE, WALKTHROUGH
from support.browser import EDGES, options_of, wait_for_charts
from support.trace_builder import two_steps


def test_the_ladder_and_a_step_of_it(tab):
    page = tab("ladder")
    page.wait_for_selector(".plotly .bars")
    assert "Test GPU" in page.locator("h1").first.inner_text()
    assert "120.0" in page.locator("table").first.inner_text()
    assert page.locator("h1 + .bad").inner_text().startswith("RUN APART: 04")
    page.wait_for_function("document.querySelectorAll('.plotly').length >= 3")
    wait_for_charts(page)
    axis = page.locator(".xtitle")  # of the breakdown: the other charts have no title
    assert axis.text_content() == "ms per step"
    page.locator("select").first.select_option("image")
    page.wait_for_function("document.querySelector('.xtitle')?.textContent === 'µs per image'")
    page.locator("button.link", has_text="04_multiprocess_loading").click()
    page.wait_for_selector(".verdict")
    assert "ladder/04_multiprocess_loading" in page.locator("h1").inner_text()
    page.wait_for_selector("text=Since 00_baseline")
    page.go_back()
    page.wait_for_selector("text=The steps")


def test_a_step(tab):
    page = tab("step", run="odd [name] ünï")
    page.wait_for_selector(".verdict")
    assert "odd [name] ünï" in page.locator("h1").inner_text()
    text = page.locator("main").inner_text()
    for shown in ("Mean step", "40.0 %", "launch-bound", "volta_scudnn_128x64_relu_interior_nn_v1",
                  "Use DataLoader workers: about 1.25x", "What stands out", "copies that the CPU waits"):  # fmt: skip
        assert shown in text
    wait_for_charts(page)

    def in_words(route):
        answer = route.fetch().json()
        answer["findings"][0] |= {"cost": "none of the advice", "gain": "1.05x to 1.56x", "estimated_gain": 1.56}
        route.fulfill(json=answer)

    page.route("**/digest?*", in_words)
    page.reload()
    page.wait_for_selector("text=1.05x to 1.56x without")


def test_two_runs_are_compared_by_what_was_measured_or_are_no_fair_pair(tab):
    page = tab("compare", before="cpu", after="gpu")
    assert "two machines" in page.locator("main").inner_text()
    page.locator("select").first.select_option("hostile")
    page.wait_for_selector("text=Two different GPUs (<img")
    page.locator("select").first.select_option("of 2021")
    page.wait_for_function("!document.querySelector('main').innerText.includes('Two different')")
    wait_for_charts(page)
    page = tab("compare", before="ladder/00_baseline", after="ladder/04_multiprocess_loading")
    assert "100.0 before, 120.0 after: 1.20x (1.20-1.20)" in page.locator("main").inner_text()


def test_compare_and_step_have_the_same_figures(tab):
    page = tab("compare", before="gpu", after="distributed")
    row = page.locator("tr", has_text="communication alone").inner_text().split("\t")
    assert row[1] == "–"
    kernels = page.locator("tr", has=page.locator("td", has_text="kernels")).first.inner_text().split("\t")
    assert kernels[1:] == ["1", "2"]
    page = tab("step", run="distributed")
    assert row[2] in page.locator(".cards").inner_text()
    assert "Kernels per step: 2," in page.locator("main").inner_text()


def test_names_are_compared_by_kernel_kind_and_operator_and_what_is_new_is_marked(tab):
    page = tab("compare", before="gpu", after="distributed")
    names = page.locator("section", has_text="What changed most")
    rows = names.locator("tbody tr")
    assert "new" in rows.first.inner_text() and "sm80_xmma_gemm_bf16bf16" in rows.first.inner_text()
    assert "gone" in names.locator("tr", has_text="volta_scudnn").inner_text()
    names.locator("select").select_option("kind")
    assert "collective" in names.inner_text()
    names.locator("select").select_option("operator")
    assert "gone" in names.locator("tr", has_text="aten::cudnn_convolution").inner_text()
    page.reload()
    page.wait_for_selector("text=aten::cudnn_convolution")


def test_the_ranks_of_a_run(tab):
    page = tab("ladder")
    page.locator("#tabs a", has_text="Ranks").click()
    page.wait_for_selector("text=The ranks, per typical step")
    rows = page.locator("tbody tr")
    assert "500.0 µs" in rows.nth(1).inner_text()
    wait_for_charts(page)
    rows.nth(1).locator("button", has_text="rank 1").click()
    page.wait_for_selector("text=Mean step")
    name, options = options_of(page)
    assert (name, options["trace"].partition("_")[0]) == ("step", "host1")
    page.locator("button", has_text="its ranks side by side").click()
    page.locator("button", has_text="beside rank 0").click()
    page.wait_for_selector("canvas")
    name, options = options_of(page)
    assert (name, options["beside"].partition("_")[0]) == ("timeline", "host1")


def test_a_table_is_sorted_and_filtered_by_keyboard(tab):
    page = tab("step", run="cpu")
    table = page.locator("section", has_text="Operators on the CPU").last
    header = table.locator("th", has_text="name")
    header.locator("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    first = table.locator("td.name").first.inner_text()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    table.locator("button", has_text="show all").click()
    assert table.locator("td.name").count() > 30
    assert table.locator("td.name").last.inner_text() == first
    table.locator("input").fill("CONV")
    shown = table.locator("td.name").all_inner_texts()
    assert 0 < len(shown) < 30
    assert all("conv" in name.lower() for name in shown)


def test_advice_a_row_and_a_finding_lead_to_the_timeline(tab):
    page = tab("step", run="gpu")
    page.locator("li", has_text="Use DataLoader workers").locator("button", has_text="longest gap: 330.0 µs").click()
    page.wait_for_selector("canvas")
    name, options = options_of(page)
    assert (name, options["run"], options["at"]) == ("timeline", "gpu", "idle 0@0")
    assert float(options["from"]) < 0 and float(options["to"]) > 330
    page.go_back()
    page.get_by_role("button", name="Show volta_scudnn_128x64_relu_interior_nn_v1 in the timeline").click()
    page.wait_for_selector("text=2 events, 800.0 µs")
    assert options_of(page)[1]["find"] == "volta_scudnn_128x64_relu_interior_nn_v1"
    page.go_back()
    finding = page.locator("li", has_text="copies that the CPU waits for")
    finding.locator("button", has_text="show in the timeline").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=2 events, 100.0 µs")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=1 of 2")
    panel = page.locator(".wtl-panel").inner_text()  # lists the work inside the marks
    assert "In all 2 marks: 2, 60.00 µs" in panel
    assert "Memcpy HtoD (Pageable -> Device)" in panel


def test_a_reader_is_told_of_changes_and_a_failed_page_is_drawn_again(tab, board):
    path = Path(str(board.log).removesuffix(".log")) / "zz_changing" / "w.pt.trace.json"
    path.parent.mkdir()
    path.write_text("{")
    board.until(lambda: "zz_changing" in str(board.json(f"{WALKTHROUGH}/runs")), "the run")
    page = tab("step", run="zz_changing")
    page.wait_for_selector("text=This cannot be shown")
    two_steps().write(path)
    page.wait_for_selector("text=Mean step")
    builder, long = two_steps(), f"void kernel_{'x' * 150}_end"
    builder.loading(11_880, 50)
    builder.launch(long, 11_950, 5, 11_960, 20)
    builder.write(path)
    page.wait_for_selector("text=There is new data in zz_changing.")
    assert page.locator("text=Mean step").is_visible()
    page.locator("button", has_text="reload this page").click()
    page.wait_for_selector("td:has-text('225.0 µs')")
    assert page.locator("#changed").is_hidden()
    whole = page.locator("button.whole")
    assert long not in page.locator("main").inner_text()
    whole.press("Enter")
    assert (whole.get_attribute("aria-expanded"), whole.inner_text()) == ("true", long)
    shutil.rmtree(path.parent)
    page.wait_for_selector("text=The run zz_changing is gone.")
    assert page.locator("text=Mean step").is_visible()


@EDGES
def test_nothing_is_wider_than_the_window(tab):
    for name in ("ladder", "step", "compare", "ranks"):
        page = tab(name, run="distributed" if name == "ranks" else "gpu")
        wait_for_charts(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name


@pytest.mark.parametrize("name", ["ladder", "step", "compare", "timeline"])
def test_names_are_text_and_never_html(tab, name):
    page = tab(name, run="hostile", before="gpu", after="hostile")
    if name == "timeline":  # which draws its names; a search selects an event and shows its name
        page.locator("input[type=search]").fill("img src")
        page.locator("input[type=search]").press("Enter")
    page.wait_for_function("text => document.querySelector('main').innerText.includes(text)", arg=HOSTILE)
    wait_for_charts(page)
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("main script").count() == 0


def test_the_tab_inside_tensorboard(visit):
    page = visit("/#walkthrough")
    frame = page.frame_locator("iframe").first
    frame.locator("text=The steps").wait_for()
    assert "Test GPU" in frame.locator("h1").first.inner_text()
    frame.locator(".chart .main-svg").first.wait_for()
