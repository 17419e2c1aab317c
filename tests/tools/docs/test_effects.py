"""Chapter 18's blocks: the ablation and the outcomes of predictions, from the record and from numbers made by hand."""

from dataclasses import replace

import pytest
from support import CPU_RECORD

from tools.docs import effects
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import Advice
from walkthrough.compare.predictions import Prediction
from walkthrough.compare.statistics import Ratio

pytestmark = pytest.mark.xdist_group("course")


@pytest.fixture
def of_cpu(course):
    return Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])


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
