"""torch-tb-profiler's pages in a browser, without internet: its charts on plotly, its Trace view."""

import pytest


@pytest.mark.parametrize(
    ("run", "view", "charts", "tables"),
    [
        ("gpu", "Overview", 2, 1),
        ("gpu", "GPU Kernel", 2, 1),
        ("hostile", "Operator", 4, 1),
        ("hostile", "Memory", 1, 2),
        ("cpu_stacks", "Module", 1, 1),
        ("distributed", "Distributed", 2, 2),
    ],
)
def test_a_view_draws_its_charts_and_tables(profiler, run, view, charts, tables):
    page = profiler(run, view)
    page.wait_for_function(
        """([charts, tables]) => document.querySelectorAll(".gc-chart:has(.main-svg)").length === charts
          && document.querySelectorAll("table").length === tables""",
        arg=[charts, tables],
    )
    assert page.locator("img[src=x]").count() == 0


def test_the_tags_that_plotly_knows_are_text_in_a_name(profiler):
    page = profiler("hostile", "Operator")
    page.wait_for_selector(".gc-chart .slice path")
    assert page.locator(".legendtext").first.text_content().startswith("aten::<img src=x")
    names = ["<a href='http://x'>%{x}</a>", "<b>&amp;</b><br>"]
    tables = {
        "ColumnChart": [["name", *names], *([name, 1, 2] for name in names)],
        "PieChart": [["name", "time"], *([name, 1] for name in names)],
        "LineChart": [["time", *names], [0, 1, 2], [1, 2, 3]],
        "Timeline": [["layer", "name", "from", "to"], *([name, name, 0, 50] for name in names)],
    }
    for kind, rows in tables.items():
        page.evaluate(
            """([kind, rows, title]) => {
              const host = document.getElementById("tags") || document.body.appendChild(document.createElement("div"));
              host.id = "tags";
              host.style.cssText = "position: fixed; inset: 0; background: #fff; z-index: 9999";
              const {visualization} = google, data = visualization.arrayToDataTable(rows);
              new visualization[kind](host).draw(data, {height: 500, title, hAxis: {title}, vAxis: {title}});
            }""",
            [kind, rows, names[0]],
        )
        texts = "[...document.querySelectorAll('#tags text')].map((node) => node.textContent)"
        page.wait_for_function(f"(names) => names.every((name) => {texts}.includes(name))", arg=names, timeout=30_000)
        if kind != "PieChart":  # plotly has no call that hovers over a slice
            page.evaluate(
                "Plotly.Fx.hover(document.querySelector('#tags .gc-chart'), [{curveNumber: 0, pointNumber: 0}])"
            )
            page.wait_for_function("document.querySelector('#tags .hovertext')", timeout=30_000)
            hovered = "".join(page.locator("#tags .hovertext text").all_text_contents())
            assert names[0] in hovered, kind
        assert page.locator("#tags a, #tags tspan[style*=bold]").count() == 0, kind


def test_a_trace_that_cannot_be_read_is_named_in_the_page(profiler):
    page = profiler("gpu", "Overview")
    notice = page.wait_for_selector("#failures")
    assert "broken, w.pt.trace.json.gz: damaged" in notice.inner_text()
    page.get_by_role("button", name="hide").click()
    assert page.locator("#failures").count() == 0


def test_the_trace_view_shows_the_events_and_names_only_as_text(profiler):
    page = profiler("hostile", "Trace")
    frame = page.wait_for_selector("iframe").content_frame()
    frame.wait_for_function("document.querySelector('tr-ui-timeline-view')?.model?.stats")
    frame.wait_for_selector("canvas")
    assert frame.locator("img[src=x]").count() == 0


def test_the_trace_view_opens_at_a_place_of_the_timeline(tab):
    page = tab("trace", run="gpu", **{"from": 100, "to": 600})
    frame = page.wait_for_selector("iframe").content_frame()
    frame.wait_for_function("document.querySelector('tr-ui-timeline-view')?.trackView?.viewport.interestRange.max > 0")
    seen = frame.evaluate(
        """() => {
          const {model, trackView} = document.querySelector("tr-ui-timeline-view");
          const {viewport} = trackView, width = trackView.modelTrackContainer_.canvas.width;
          const clock = (ms) => (ms - model.timestampShiftToZeroAmount_) * 1000;
          const {min, max} = viewport.interestRange, at = viewport.currentDisplayTransform;
          return [min, max, at.xViewToWorld(0), at.xViewToWorld(width)].map(clock);
        }"""
    )
    assert seen == pytest.approx([10_100, 10_600, 10_050, 10_650], abs=0.1)  # the first step begins at 10,000
    assert page.get_by_role("link", name="download the trace").get_attribute("href") == "trace?run=gpu"
