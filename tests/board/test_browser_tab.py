"""The Walkthrough tab in a browser: every page, light and dark, without internet, with hostile names."""

import pytest
from support.board import HOSTILE
from support.browser import BOTH, wait_for_charts


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
        assert "load in processes: about 1.25x as fast" in text
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


def test_two_steps_of_a_ladder_are_compared_by_what_was_measured(tab):
    page = tab("compare", before="ladder/00_baseline", after="ladder/04_multiprocess_loading")
    assert "100.0 before, 120.0 after: 1.20x (1.20-1.20)" in page.locator("main").inner_text()


@BOTH
def test_the_timeline(tab, shot):
    page = tab("timeline", run="gpu")
    page.wait_for_selector("canvas")
    page.locator("input[type=search]").fill("volta")
    assert "2 events, 800.0 µs" in page.locator("form[role=search]").inner_text()
    page.locator("input[type=search]").press("Enter")
    page.wait_for_selector("text=1 of 2")
    assert "volta_scudnn_128x64_relu_interior_nn_v1" in page.locator("main").inner_text()
    shot(page, "timeline")


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
