"""A lab's rows as a heat map, drawn and interactive."""

from dataclasses import asdict

import pytest

from labs.shared.heat_map import HeatMap, drawn, interactive, write_html
from walkthrough.compare.statistics import Mean
from walkthrough.results.errors import InputError


def row(batch, rate, mean, note=""):
    return {"batch": batch, "rate": rate, "accuracy": mean and asdict(Mean(mean, mean - 1, mean + 1, 3)), "note": note}


@pytest.fixture
def heat_map():
    rows = [row(128, 0.1, 90.0), row(64, 0.1, 95.5), row(64, 1.0, None, "3 of 3 <b>diverged</b>"), row(128, 1.0, 80.0)]
    return HeatMap(rows, "rate", "batch", "accuracy", "note")


def test_cells_stand_in_order_at_their_places(heat_map):
    assert (heat_map.places("rate"), heat_map.places("batch")) == ([0.1, 1.0], [64, 128])
    assert [[heat_map.mean(cell) for cell in cells] for cells in heat_map.grid()] == [[95.5, None], [90.0, 80.0]]
    assert heat_map.cell(5, 5) == {}


def test_it_is_drawn_with_its_means_and_failures(heat_map):
    figure = drawn(heat_map)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"95.5", "90.0", "80.0", "-", "3 of 3 <b>diverged</b>"} <= set(texts)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["64", "128"]


def test_plotlys_is_the_same_with_intervals_on_hover_and_needs_no_network(heat_map, tmp_path):
    figure = interactive(heat_map)
    assert [list(values) for values in figure.data[0].z] == [[95.5, None], [90.0, 80.0]]
    assert "95.5 (94.5 to 96.5)" in figure.data[0].customdata[0][0]
    assert "&lt;b&gt;diverged" in figure.data[0].customdata[0][1]
    write_html(heat_map, tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page
    with pytest.raises(InputError, match="cannot write"):
        write_html(heat_map, tmp_path / "none" / "map.html")
