"""Blocks and figures about labs: from a study's file, or the command that makes one."""

from dataclasses import asdict

import pytest

from labs.shared.study import FILE
from tools.docs import lab_figures
from tools.docs.blocks import BLOCKS
from tools.docs.recorded import Course, Recorded
from walkthrough.compare.statistics import Mean, Ratio
from walkthrough.compare.study import Claim, Study
from walkthrough.results import result
from walkthrough.results.environment import Environment


def by_kind(peak):
    return [{"operator": number, "parameters": 100.0, "activations": mb} for number, mb in enumerate((0.0, peak, 10.0))]


ACCURACY = asdict(Mean(50.0, 40.0, 60.0, 3))


def curve(variant, *losses):
    return [
        {"variant": variant, "epoch": number, "loss": asdict(Mean(loss, None, None, 1)), "accuracy %": ACCURACY}
        for number, loss in enumerate(losses, start=1)
    ]  # fmt: skip


@pytest.fixture
def study():
    environment = Environment("2.15", None, None, "3.11", "Linux", "A CPU", 2, None)
    rows = [{"workers": 0, "speed": None}, {"workers": 2, "speed": asdict(Ratio(1.5, 1.2, 1.8, 3))}]
    tables = {
        "workers": rows,
        "memory_by_kind_00_baseline": by_kind(7000.0),
        "memory_by_kind_02_checkpointing": by_kind(4000.0),
        "curves": [*curve("base", 2.0, 1.0), *curve("half", 2.1, 1.1)],
    }
    claims = [
        Claim("faster", "It is <b>faster</b>.", 1.5, 1.2, 1.8, True),
        Claim("other", "Another.", None, None, None, None),
    ]
    return Study(
        schema=1, name="mine", lab="mine", device="A CPU", environment=environment, started="2026-01-01", tables=tables,
        claims=claims, quick=True, notes=["no GPU: nothing waits"],
    )  # fmt: skip


@pytest.fixture
def course(study, tmp_path):
    folder = tmp_path / "labs" / "mine"
    folder.mkdir(parents=True)
    result.write_json(folder / FILE, asdict(study))
    return Course([Recorded(tmp_path / "a-cpu", None)], to_docs="../")


def test_a_table_of_a_study_is_markdown_with_intervals(course):
    assert BLOCKS["lab-table"](course, "mine", "workers").splitlines() == [
        "| workers | speed |", "|--:|--:|", "| 0 | - |", "| 2 | 1.50x (1.20-1.80) |",
    ]  # fmt: skip
    assert BLOCKS["lab-table"](course, "mine", "snapshots") == "*Not measured on this device.*"


def test_claims_notes_and_machine_come_from_the_study_and_are_escaped(course):
    claims = BLOCKS["lab-claims"](course, "mine")
    assert "<b>" not in claims
    assert "| 1.5 (1.2 to 1.8) | holds |" in claims
    assert "| - | inconclusive |" in claims
    assert BLOCKS["lab-notes"](course, "mine") == "- No GPU: nothing waits."
    assert "A CPU, 2 CPU cores, torch 2.15. A smoke run" in BLOCKS["lab-machine"](course, "mine")


def test_a_study_that_was_not_recorded_is_named_by_its_command(course):
    for name in ("lab-machine", "lab-claims", "lab-notes"):
        assert "`python labs/other/study.py`" in BLOCKS[name](course, "other")
    assert "Not recorded" in BLOCKS["lab-table"](course, "other", "workers")


def test_figures_are_those_that_the_tables_allow(course, study):
    drawings = lab_figures.figures(study)
    assert set(drawings) == {"memory_by_kind", "curves"}
    panels = drawings["memory_by_kind"][0].axes
    assert [axes.get_title() for axes in panels] == [
        "00_baseline, predicted: peak 7.10 GB", "02_checkpointing, predicted: peak 4.10 GB",
    ]  # fmt: skip
    loss, accuracy = drawings["curves"][0].axes
    assert [line.get_label() for line in loss.lines] == ["base", "half"]
    assert list(loss.lines[1].get_ydata()) == [2.1, 1.1]
    assert accuracy.get_ylim() == (0, 100)
    link = BLOCKS["lab-figure"](course, "mine", "curves")
    assert link.endswith("(../figures/labs/mine/curves.svg)")
    assert BLOCKS["lab-figure"](course, "mine", "roofline") == "*No figure: this was not measured.*"


def test_lengths_padding_and_memory_by_trick_are_drawn_from_their_tables(study):
    study.tables.clear()
    study.tables.update(
        {
            "lengths": [{"tokens": 0, "texts": 4}, {"tokens": 16, "texts": 9}],
            "padding_per_batch": [
                {"% of batches": share, "fixed": 80.0, "dynamic": share / 2} for share in (0.0, 100.0)
            ],
            "memory_by_trick": [
                {"trick": "baseline", "parameters": 0.3, "activations": 4.0},
                {"trick": "sdpa", "parameters": 0.3, "activations": 2.5},
            ],
        }
    )
    drawings = lab_figures.figures(study)
    assert set(drawings) == {"lengths", "padding_per_batch", "memory_by_trick"}
    bars = drawings["lengths"][0].axes[0].patches
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bars] == [(0, 16, 4), (16, 16, 9)]
    lines = drawings["padding_per_batch"][0].axes[0].lines
    assert {line.get_label(): list(line.get_ydata()) for line in lines} == {
        "fixed": [80.0, 80.0],
        "dynamic": [0.0, 50.0],
    }
    memory = drawings["memory_by_trick"][0].axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in memory.patches] == [(0, 0.3), (0, 0.3), (0.3, 4.0), (0.3, 2.5)]
    assert "baseline 4.30 GB; sdpa 2.80 GB" in drawings["memory_by_trick"][1]


def test_pipelines_are_bars_and_what_the_model_consumes_is_a_line(study):
    def row(name, speed):
        times = speed and asdict(Ratio(speed / 20, 0.1, 9.0, 3))
        return {"pipeline": name, "images/s": speed, "times what the model consumes": times}

    study.tables.clear()
    study.tables["pipelines"] = [row("00_decode_each", 10.0), row("06_nvjpeg", None), row("05_shards", 40.0)]
    drawings = lab_figures.figures(study)
    assert set(drawings) == {"pipelines"}
    axes = drawings["pipelines"][0].axes[0]
    assert [bar.get_width() for bar in axes.patches] == [10, 40]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["00_decode_each", "05_shards"]
    assert axes.get_xscale() == "linear"  # the length of a bar means nothing on any other
    [line] = axes.lines
    assert list(line.get_xdata()) == pytest.approx([20, 20])
