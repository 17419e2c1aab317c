"""torch-tb-profiler's pages in a browser, without internet: its charts on plotly, its Trace view."""

import pytest


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


@pytest.mark.parametrize("run", ["gpu", "hostile"])
def test_the_trace_view_shows_the_events_and_names_only_as_text(profiler, shot, run):
    page = profiler(run, "Trace")
    frame = page.wait_for_selector("iframe").content_frame()
    frame.wait_for_function("document.querySelector('tr-ui-timeline-view')?.model?.stats")
    frame.wait_for_selector("canvas")
    assert frame.locator("img[src=x]").count() == 0
    shot(page, f"profiler-{run}-Trace")
