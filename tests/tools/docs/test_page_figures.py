"""The pages' figures: each draws from what is recorded, and from tables with numbers that can be checked by hand."""

from dataclasses import asdict

import pytest
from support import CPU_RECORD

from tools.docs import figures
from walkthrough.compare.figures import svg_text
from walkthrough.compare.statistics import Mean, Ratio

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


def test_lines_are_of_the_texts_in_a_panel_for_each_column_of_intervals_or_of_the_columns_of_numbers():
    accuracy = asdict(Mean(50.0, 40.0, 60.0, 3))
    rows = [
        {"variant": name, "epoch": epoch, "loss": asdict(Mean(loss, None, None, 1)), "accuracy %": accuracy}
        for name, losses in {"base": (2.0, 1.0), "half": (2.1, 1.1)}.items()
        for epoch, loss in enumerate(losses, start=1)
    ]
    loss, percent = figures.lines(rows).axes
    assert {line.get_label(): list(line.get_ydata()) for line in loss.lines} == {"base": [2.0, 1.0], "half": [2.1, 1.1]}
    assert list(loss.lines[0].get_xdata()) == [1, 2]
    assert percent.get_ylim() == (0, 100)
    [axes] = figures.lines([{"%": share, "fixed": 80.0, "dynamic": share / 2} for share in (0.0, 100.0)]).axes
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {"fixed": [80, 80], "dynamic": [0, 50]}


def test_a_scatter_has_a_row_for_each_text_and_counts_what_has_no_value():
    rows = [{"program": name, "s": seconds} for name, seconds in (("a", 2.0), ("a", 3.0), ("b", None), ("b", 1.0))]
    axes = figures.scatter(rows, "s").axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.0], [6.0], [2.0, 3.0]]  # "a" is the upper row
    assert [text.get_text() for text in axes.texts] == ["1 of 2 failed"]
