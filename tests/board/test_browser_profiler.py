"""torch-tb-profiler's pages in a browser, without internet: its charts on plotly, its Trace view."""

import pytest


@pytest.mark.parametrize(
    ("run", "view"),
    [
        ("gpu", "Overview"),
        ("gpu", "Operator"),
        ("gpu", "GPU Kernel"),
        ("hostile", "Overview"),
        ("hostile", "Operator"),
        ("hostile", "GPU Kernel"),
        ("hostile", "Memory"),
        ("cpu", "Overview"),
        ("cpu", "Memory"),
        ("cpu_stacks", "Module"),
        ("distributed", "Distributed"),
    ],
)
def test_a_view_draws_its_charts(profiler, shot, run, view):
    page = profiler(run, view)
    page.wait_for_selector(".plotly, .main-svg, table", timeout=60_000)
    page.wait_for_timeout(1500)
    assert page.locator("img[src=x]").count() == 0
    shot(page, f"profiler-{run}-{view}")


def test_the_trace_view_shows_the_events(profiler, shot):
    page = profiler("gpu", "Trace")
    frame = page.frame_locator("iframe")
    frame.locator("tr-ui-timeline-view").wait_for(timeout=60_000)
    page.wait_for_timeout(4000)
    found = frame.locator("body").evaluate("document.querySelector('tr-ui-timeline-view').model.stats")
    assert found is not None
    shot(page, "profiler-gpu-Trace")


def test_hostile_names_in_the_trace_view(profiler, shot):
    page = profiler("hostile", "Trace")
    frame = page.frame_locator("iframe")
    frame.locator("tr-ui-timeline-view").wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    assert frame.locator("img[src=x]").count() == 0
    shot(page, "profiler-hostile-Trace")
