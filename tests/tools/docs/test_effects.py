"""Chapter 18's blocks: the ablation and the outcomes of predictions, from the record and from numbers made by hand."""

import re
from dataclasses import asdict, replace

import pytest
from support import CPU_RECORD

from tools.docs import effects
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import Advice
from walkthrough.compare.predictions import Prediction
from walkthrough.compare.statistics import Mean, Ratio

pytestmark = pytest.mark.xdist_group("course")


@pytest.fixture
def of_cpu(course):
    return Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])


def ratio(value, reach=0.01):
    return asdict(Ratio(value, value - reach, value + reach, 3))


def row(name, alone, in_full, over, no_effect=None):
    times = asdict(Mean(-12.4, -20.6, 0.4, 3))
    return {
        "optimisation": name, "alone": alone, "saves, us per image": alone and times, "in the full ladder": in_full,
        "saves there, us per image": None, "full ladder over alone": over, "no effect": no_effect,
    }  # fmt: skip


@pytest.fixture
def by_hand(of_cpu):
    rows = [
        row("amp", ratio(0.98, 0.1), None, None),
        row("compile", ratio(1.0, 0.1), ratio(1.3), ratio(1.3)),
        row("bigger_batch", ratio(2.0), ratio(1.2), ratio(0.6)),
        row("channels_last", ratio(1.1), ratio(1.1), ratio(1.0, 0.1)),
        row("tf32", None, None, None, "needs a GPU"),
    ]
    programs = [{"program": name, "vs baseline": value} for name, value in (
        ("baseline", None), ("control", ratio(1.01, 0.1)), ("full", ratio(2.2)), ("each alone, multiplied", ratio(1.5)),
    )]  # fmt: skip
    starts = [(1, "10:00:00"), (1, "10:01:00"), (1, "10:02:00"), (2, "18:00:00"), (2, "18:01:00"), (2, "18:02:00")]
    measurements = [{"run": run, "started": f"2026-01-01T{at}+00:00"} for run, at in starts]
    return replace(
        of_cpu.shown.study("ablation"),
        tables={"effects": rows, "programs": programs, "pairs": []},
        conclusions={"effects": ["2 interleaved runs of 3 programs."], "programs": ["The control differs."]},
        measured={"measurements": measurements, "batch_size": 128},
        notes=["a note"],
    )


def test_the_answer_names_first_what_depends_most_on_its_place_and_all_together(of_cpu, by_hand):
    text = effects.answer(of_cpu, by_hand)
    assert text.startswith(
        "**Alone and in the full ladder: `bigger_batch` 2.00x and 1.20x, `compile` ~1.00x and 1.30x.**"
    )
    assert "multiply to 1.50x (1.49-1.51); all of them together gain 2.20x (2.19-2.21)." in text
    assert text.endswith("/README.md), a CPU with 2 cores.")


def test_the_table_has_the_control_first_and_only_what_was_measured(of_cpu, by_hand):
    text = effects.table(of_cpu, by_hand)
    names = re.findall(r"^\| (\w+) \|", text, re.MULTILINE)
    assert names == ["optimisation", "control", "amp", "compile", "bigger_batch", "channels_last"]
    assert "| control | ~1.01x (0.91-1.11) | - | - | - | - |" in text
    assert "| amp | ~0.98x (0.88-1.08) | -12 (-21 to 0) | - | - | - |" in text
    assert "No effect on this device: tf32: needs a GPU." in text
    assert "The control differs." in text
    assert "A note." in text
    assert "2 interleaved runs of 3 programs, 3 minutes each." in text, "a pause between runs is not counted"


def test_a_miss_has_the_bound_of_the_same_cost_in_the_timed_step(of_cpu):
    recorded = of_cpu.shown
    before = recorded.row("13_compile").result
    traced_ms = recorded.analyses["13_compile"].typical.steps.mean_us / 1e3
    timed_ms = before.batch_size / before.samples_per_second.median * 1e3
    missed = Prediction("13_compile", "14_compile_loss", Advice("14", "t", "w", 0.25, 4 / 3), Ratio(2.0, 1.9, 2.1, 3))
    text = effects._miss(recorded, missed)
    assert "`14_compile_loss` gained 2.00x (1.90-2.10), the bound was 1.33x." in text
    assert f"{traced_ms / 4:.1f} ms of a traced step of {traced_ms:.1f} ms" in text
    assert text.endswith(f"{timed_ms / (timed_ms - traced_ms / 4):.2f}x.")
    all_of_it = replace(missed, advice=Advice("14", "t", "w", 0.99, 100.0))
    assert effects._miss(recorded, all_of_it).endswith("the bound was 100.00x."), "longer than the timed step"
