"""Drawn timelines: what they show holds (nothing overlaps, copies come before kernels), and they can be read."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from tools.docs import diagrams
from tools.docs.diagrams import COPY, CPU, GPU, Box, Panel, drawn
from tools.docs.drawing import POINT, Picture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def panels(monkeypatch):
    """{diagram: its panels}, as they are drawn."""
    seen = []
    monkeypatch.setattr(diagrams, "drawn", lambda panels, end, description: seen.append((panels, end)) or "")
    for draw in diagrams.DIAGRAMS.values():
        draw()
    return dict(zip(diagrams.DIAGRAMS, seen, strict=True))


def test_a_lane_does_one_thing_at_a_time_and_ends_within_the_axis(panels):
    for of_diagram, end in panels.values():
        for panel in of_diagram:
            for lane in (CPU, COPY, GPU):
                boxes = sorted((box.start, box.end) for box in panel.boxes if box.lane == lane)
                assert all(start < stop <= end for start, stop in boxes)
                assert all(one[1] <= next_one[0] for one, next_one in pairwise(boxes)), panel.title


def test_kernels_begin_after_their_launch_began_and_after_their_copy(panels):
    for panel in panels["pageable_pinned_prefetched"][0]:
        at = {box.label: box for box in panel.boxes}
        for batch in "12":
            kernels = at[f"kernels {batch}"]
            assert kernels.start >= at[f"launch {batch}"].start
            assert f"copy {batch}" not in at or kernels.start >= at[f"copy {batch}"].end
    ends = [panel.mark[0] for panel in panels["pageable_pinned_prefetched"][0]]
    assert ends == sorted(ends, reverse=True)  # each is sooner done than the one above it


def test_a_call_that_waits_returns_after_what_it_waits_for(panels):
    with_item, without = panels["sync_drains_the_queue"][0]
    waits = [box for box in with_item.boxes if box.kind == "wait"]
    copies = [box for box in with_item.boxes if box.lane == COPY]
    kernels = [box for box in with_item.boxes if box.label.startswith("kernels")]
    for wait, copy, step in zip(waits, copies, kernels, strict=True):
        assert step.end <= copy.start < copy.end <= wait.end
    assert min(length for time, length in without.queue if time > 0) > 0
    assert 0 in [length for time, length in with_item.queue if time > 0]


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_diagram_can_be_read_says_that_it_is_drawn_and_has_an_alternative_text(name):
    svg = diagrams.DIAGRAMS[name]()
    root = ET.fromstring(svg)
    assert root.find(f"{SVG}title").text == diagrams.ALT[name]
    assert "time, not to scale; drawn, not measured" in [text.text for text in root.iter(f"{SVG}text")]
    sizes = re.findall(r"font-size: ([\d.]+)px", svg)  # in points
    assert min(float(size) / POINT for size in sizes) >= 12
    assert "prefers-color-scheme:dark" in svg
    assert not re.findall(r"href=\"http|url\(http|@import", svg)  # nothing is loaded


def test_a_picture_is_the_same_text_each_time_and_escapes_its_words():
    assert all(draw() == draw() for draw in diagrams.DIAGRAMS.values())
    picture = Picture(100, 50, "a < b")
    picture.text((0, 10), "x & y")
    root = ET.fromstring(picture.svg())
    assert root.find(f"{SVG}title").text == "a < b"
    assert root.find(f".//{SVG}text").text == "x & y"


def test_titles_and_notes_end_within_the_picture(panels):
    for of_diagram, _ in panels.values():
        for panel in of_diagram:
            assert 0.52 * 13 * len(panel.note) <= diagrams.WIDTH, panel.note
            assert 0.52 * 15 * len(panel.title) <= diagrams.WIDTH, panel.title


def test_a_label_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="wider than its box"):
        drawn([Panel("title", "note", [Box(CPU, 0, 1, "a label that is too long")])], 10, "description")
