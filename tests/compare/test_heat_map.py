"""Rows as a heat map."""

from dataclasses import asdict

from walkthrough.compare.figures import heat_map_figure
from walkthrough.compare.statistics import Mean


def row(batch, rate, mean, note=""):
    return {"batch": batch, "rate": rate, "accuracy": mean and asdict(Mean(mean, mean - 1, mean + 1, 3)), "note": note}


def test_cells_stand_in_order_at_their_places_with_their_values_and_notes():
    rows = [row(128, 0.1, 90.0), row(64, 0.1, 95.5), row(64, 1.0, None, "3 of 3 diverged"), row(128, 1.0, 80.0)]
    [axes] = heat_map_figure(rows, "rate", "batch", "accuracy", "note").axes
    places = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    assert places == {
        "90": (0.5, 1.7), "95.5": (0.5, 0.7), "-": (1.5, 0.7), "3 of 3 diverged": (1.5, 0.34), "80": (1.5, 1.7),
    }  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == ["64", "128"]
    assert axes.collections[0].get_array().tolist() == [[95.5, None], [90.0, 80.0]]
