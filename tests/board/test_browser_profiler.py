"""torch-tb-profiler's pages in a browser, without internet: its charts on plotly, its Trace view."""

import pytest

from common.course.screenshots import choose


@pytest.mark.parametrize(
    ("run", "view", "charts", "tables"),
    [
        ("gpu", "Overview", 2, 1),
        ("gpu", "Operator", 4, 1),
        ("gpu", "GPU Kernel", 2, 1),
        ("hostile", "Overview", 2, 1),
        ("hostile", "Operator", 4, 1),
        ("hostile", "GPU Kernel", 2, 1),
        ("hostile", "Memory", 1, 2),
        ("cpu", "Overview", 2, 1),
        ("cpu", "Memory", 1, 2),
        ("cpu_stacks", "Module", 1, 1),
        ("distributed", "Distributed", 2, 2),
    ],
)
def test_a_view_draws_its_charts_and_tables(profiler, shot, run, view, charts, tables):
    page = profiler(run, view)
    page.wait_for_function(
        """([charts, tables]) => document.querySelectorAll(".gc-frame:has(.main-svg)").length === charts
          && document.querySelectorAll("table").length === tables""",
        arg=[charts, tables],
    )
    assert page.locator("img[src=x]").count() == 0
    shot(page, f"profiler-{run}-{view}")


@pytest.mark.parametrize("run", ["only kernels", "without events"])
def test_a_trace_without_operators_has_every_view(profiler, shot, run):
    page = profiler(run, "Operator")
    page.wait_for_selector("text=Host Self Time")
    shot(page, f"profiler-{run.replace(' ', '_')}-Operator")
    page.locator("[role=button][aria-haspopup=listbox]").nth(1).click()
    views = [option.strip() for option in page.get_by_role("option").all_inner_texts()]
    page.keyboard.press("Escape")
    assert views == ["Overview", "Operator", *(["GPU Kernel"] if run == "only kernels" else []), "Trace"]
    for view, text in (("GPU Kernel", "text=Total Time (us)"), ("Overview", "text=Step Time Breakdown")):
        if view in views:
            choose(page, 1, view)
            page.wait_for_selector(text)
    choose(page, 1, "Trace")
    page.wait_for_selector("iframe").content_frame().wait_for_selector("tr-ui-timeline-view")


def test_a_trace_that_cannot_be_read_is_named_in_the_page(profiler, shot):
    page = profiler("gpu", "Overview")
    notice = page.wait_for_selector("#failures")
    assert "One trace cannot be read" in notice.inner_text()
    assert "broken, w.pt.trace.json.gz: damaged" in notice.inner_text()
    shot(page, "profiler-failures")
    page.get_by_role("button", name="hide").click()
    assert page.locator("#failures").count() == 0


@pytest.mark.parametrize("run", ["gpu", "hostile"])
def test_the_trace_view_shows_the_events_and_names_only_as_text(profiler, shot, run):
    page = profiler(run, "Trace")
    frame = page.wait_for_selector("iframe").content_frame()
    frame.wait_for_function("document.querySelector('tr-ui-timeline-view')?.model?.stats")
    frame.wait_for_selector("canvas")
    assert frame.locator("img[src=x]").count() == 0
    shot(page, f"profiler-{run}-Trace")
