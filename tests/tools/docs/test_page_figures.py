"""The pages' figures: each draws from what is recorded, and from tables with numbers that can be checked by hand."""

from dataclasses import asdict

import pytest
from support import CPU_RECORD

from tools.docs import figures
from walkthrough.compare.figures import svg_text
from walkthrough.compare.statistics import Ratio

pytestmark = pytest.mark.xdist_group("course")
OF_STUDIES = ("roofline", "ablation", "sweep")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_the_same_text_each_time_follows_the_readers_theme_and_says_what_it_shows(name, course, gpu_course):
    draw, alt = figures.FIGURES[name]((course if name in OF_STUDIES else gpu_course).shown)
    text = svg_text(draw())
    assert text == svg_text(draw())
    assert "prefers-color-scheme:dark" in text and "currentColor" in text and "dc:date" not in text
    assert len(text) < 300_000
    assert len(alt) > 40


def test_the_parts_of_an_image_add_up_to_its_share_of_the_step(course, gpu_course):
    [cpu] = [shown for shown in course.records if shown.folder.name == CPU_RECORD]
    parts = figures.per_image_ms(cpu)
    for step, analysis in cpu.analyses.items():
        batch_size = cpu.row(step).result.batch_size
        assert sum(parts[step].values()) == pytest.approx(analysis.steps.mean_us / 1e3 / batch_size)
    # of 1000 us per step with 32 images, the made-up GPU computes 400 us
    assert figures.per_image_ms(gpu_course.shown)["00_baseline"]["kernel"] == pytest.approx(0.4 / 32)


def test_bars_have_the_intervals_of_their_rows_and_ratios_a_line_at_1():
    rows = [{"pipeline": name, "times": ratio and asdict(ratio)} for name, ratio in (
        ("00_decode", Ratio(0.5, 0.4, 0.6, 3)), ("06_nvjpeg", None), ("05_shards", Ratio(2.0, 1.5, 2.5, 3)),
    )]  # fmt: skip
    draw, alt = figures.of_tables({"pipelines": rows}, "pipelines", "bars", "times")
    axes = draw().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 2.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["00_decode", "05_shards"]
    intervals = axes.containers[0].lines[2][0].get_segments()
    assert [end[0] for interval in intervals for end in interval] == pytest.approx([0.4, 0.6, 1.5, 2.5])
    assert list(axes.lines[-1].get_xdata()) == [1, 1]
    assert alt == "Bars: times; 00_decode, 06_nvjpeg, 05_shards"
