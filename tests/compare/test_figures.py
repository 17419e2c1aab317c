"""The ladder as a figure, a heat map, and SVGs that are the same on every CPU."""

from dataclasses import asdict
from xml.etree import ElementTree

import pytest
from support import around, make_result, write_run

from walkthrough.compare import figures, rounds
from walkthrough.compare.statistics import Mean

SLOW, FAST = around(100.0), around(200.0)


def ladder(*later, first=SLOW):
    [ladder] = rounds.ladders([make_result(windows=first), *later])
    return ladder


@pytest.fixture
def plot(tmp_path, run_command):
    """plot(name): the finished `compare --plot`, of runs on two GPUs."""
    for step, device in (("00_baseline", "A"), ("01_amp", "A"), ("00_baseline_", "B")):
        write_run(tmp_path / "logs", make_result(step, windows=FAST if step == "01_amp" else SLOW, device=device))
    return lambda name: run_command("compare", tmp_path / "logs", "--plot", tmp_path / name)


@pytest.mark.parametrize("name", ["ladder.svg", "ladder.png"])
def test_a_plot_is_of_the_first_ladder_and_has_the_format_of_its_name(plot, tmp_path, name):
    done, path = plot(name), tmp_path / name
    assert done.stderr.splitlines()[1:3] == ["only the first is drawn, from A", f"drawn: {path}"]
    if name.endswith("png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"01 amp", "2.00x"} <= {text.strip() for text in root.itertext()}


@pytest.mark.parametrize("name", ["ladder.gif", "not there/ladder.png"])
def test_a_plot_that_cannot_be_drawn_is_refused(plot, tmp_path, name):
    assert plot(name).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("made", "texts", "colours"),
    [
        (ladder(make_result("01_amp", windows=SLOW), first=FAST), ["1.00x", "0.50x", "0.50x"],
         [figures.SPEED, figures.SLOWER]),
        (ladder(make_result("01_amp", windows=(97.0, 99.0, 100.0, 102.0, 104.0)), make_result("02_b", windows=FAST)),
         ["1.00x", "~1.00x", "2.00x", "~1.00x", "2.00x"], [figures.SPEED, figures.UNRESOLVED, figures.SPEED]),
        (ladder(make_result("05_pinned_memory", windows=FAST, needs="a GPU")), ["1.00x", "needs a GPU"], None),
    ],
)  # fmt: skip
def test_a_bar_has_its_ratio_and_the_colour_of_what_it_shows(made, texts, colours):
    figure = figures.ladder_figure(made)
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == texts
    if colours:
        assert [figures.colour_of(row.relative) for row in made.rows] == colours
    else:  # what it needs, in the place of its bars
        assert [len(axes.patches) for axes in figure.axes] == [1, 0]
    grey = [text.get_color() for text in figure.axes[1].texts if text.get_text().startswith("~")]
    assert set(grey) <= {figures.UNRESOLVED}


def test_an_interval_is_drawn_as_far_as_it_reaches_to_either_side():
    axes = figures.ladder_figure(made := ladder(make_result("01_amp", windows=FAST))).axes[0]
    ends = axes.containers[0].lines[2][0].get_segments()[1][:, 0]
    assert list(ends) == pytest.approx([made.rows[1].relative.low, made.rows[1].relative.high])


def test_the_cells_of_a_heat_map_stand_in_order_at_their_places_with_their_values_and_notes():
    def row(batch, rate, mean, note=""):
        accuracy = mean and asdict(Mean(mean, mean - 1, mean + 1, 3))
        return {"batch": batch, "rate": rate, "accuracy": accuracy, "note": note}

    rows = [row(128, 0.1, 90.0), row(64, 0.1, 95.5), row(64, 1.0, None, "3 of 3 diverged"), row(128, 1.0, 80.0)]
    [axes] = figures.heat_map_figure(rows, "rate", "batch", "accuracy", "note").axes
    places = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    assert places == {
        "90": (0.5, 1.7), "95.5": (0.5, 0.7), "-": (1.5, 0.7), "3 of 3 diverged": (1.5, 0.34), "80": (1.5, 1.7),
    }  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == ["64", "128"]
    assert axes.collections[0].get_array().tolist() == [[95.5, None], [90.0, 80.0]]
