"""The ladder as a figure, and SVGs that are the same on every CPU."""

from xml.etree import ElementTree

import pytest
from support import make_result, write_run

from walkthrough.cli import main
from walkthrough.compare import figures, rounds

SLOW, FAST = (98.0, 99.0, 100.0, 101.0, 102.0), (196.0, 198.0, 200.0, 202.0, 204.0)


@pytest.fixture
def two_runs(tmp_path):
    write_run(tmp_path / "logs", make_result(windows=SLOW))
    write_run(tmp_path / "logs", make_result("01_amp", windows=FAST))
    return tmp_path / "logs"


def draw(logs, path):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(logs), "--plot", str(path)])
    return ended.value.code


def test_plots_have_the_format_of_their_name(two_runs, tmp_path):
    for suffix in ("svg", "png"):
        assert draw(two_runs, tmp_path / f"ladder.{suffix}") == 0
    root = ElementTree.parse(tmp_path / "ladder.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = "".join(root.itertext())
    assert "01 amp" in texts
    assert "2.00x" in texts
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ladder.png", "ladder.svg", "logs"]


@pytest.mark.parametrize("name", ["ladder.gif", "ladder.html", "ladder"])
def test_a_plot_of_another_kind_is_refused_in_one_line(two_runs, tmp_path, capsys, name):
    assert draw(two_runs, tmp_path / name) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "figures from a trace" not in line]
    assert line.endswith(f"--plot {tmp_path / name}: the name must end in .svg or .png")


def test_a_plot_into_a_folder_that_does_not_exist_is_refused(two_runs, tmp_path, capsys):
    for suffix in ("svg", "png"):
        assert draw(two_runs, tmp_path / "not there" / f"ladder.{suffix}") == 2
        assert f"there is no folder {tmp_path / 'not there'}" in capsys.readouterr().err


def texts_of(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_bar_is_grey_and_marked_where_its_ratio_is_not_resolved():
    near = make_result("01_amp", windows=(97.0, 99.0, 100.0, 102.0, 104.0))
    [ladder] = rounds.ladders([make_result(windows=SLOW), near, make_result("02_bigger_batch", windows=FAST)])
    figure = figures.ladder_figure(ladder)
    assert texts_of(figure) == ["1.00x", "~1.00x", "2.00x", "~1.00x", "2.00x"]
    assert [text.get_color() for text in figure.axes[1].texts] == [figures.UNRESOLVED, figures.GREY]
    assert [figures.colour_of(row.relative) for row in ladder.rows] == [
        figures.SPEED,
        figures.UNRESOLVED,
        figures.SPEED,
    ]


def test_a_step_without_effect_has_what_it_needs_in_the_place_of_its_bars():
    noise = make_result("05_pinned_memory", windows=FAST, needs="a GPU")
    [ladder] = rounds.ladders([make_result(windows=SLOW), noise])
    figure = figures.ladder_figure(ladder)
    assert texts_of(figure) == ["1.00x", "needs a GPU"]
    assert [len(axes.patches) for axes in figure.axes] == [1, 0]


def test_a_slower_step_has_a_colour_of_its_own():
    [ladder] = rounds.ladders([make_result(windows=FAST), make_result("01_amp", windows=SLOW)])
    assert figures.colour_of(ladder.rows[1].relative) == figures.SLOWER
    assert texts_of(figures.ladder_figure(ladder)) == ["1.00x", "0.50x", "0.50x"]


def test_a_figure_of_one_step_has_its_bar():
    assert texts_of(figures.ladder_figure(rounds.ladders([make_result()])[0])) == ["1.00x"]


def test_error_bars_reach_from_the_middle():
    assert figures.reach([(1.0, 3.0, 4.0), (5.0, 5.0, 7.0)]) == [[2.0, 0.0], [1.0, 2.0]]


def svg_of(results):
    return figures.svg_text(figures.ladder_figure(rounds.ladders(results)[0]))


def test_an_svg_does_not_depend_on_the_last_digits_of_a_float():
    def results(change):
        return [
            make_result(step, windows=[speed * (1 + change) for speed in windows])
            for step, windows in (("00_baseline", SLOW), ("01_amp", FAST))
        ]

    svg = svg_of(results(0))
    assert svg_of(results(0)) == svg
    assert svg_of(results(1e-13)) == svg


def test_an_svg_has_short_coordinates_and_no_hashes_of_them():
    figure = figures.ladder_figure(rounds.ladders([make_result()])[0])
    svg = figures.svg_text(figure)
    ids = [element.get("id") for element in ElementTree.fromstring(svg).iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    used = {name for name in ids if name.startswith("id_")}
    assert used
    assert all(f"#{name}" in svg for name in used)
    tags = "".join(figures._TAG.findall(svg))
    assert not figures._DECIMALS.search(tags)
