"""The numbers that the pages about views read off their pictures are those of the published traces pictured there."""

import os
from pathlib import Path

import pytest
from support import ROOT

from tools.docs.screenshots import AFTER, BEFORE, PUBLISHED
from walkthrough.trace.analysis import analyze

FOLDER = Path(os.environ.get("WALKTHROUGH_SAMPLES", ROOT / "logs" / "samples"))
FILES = {run: FOLDER / run / sample.file for run, sample in PUBLISHED.items()}
pytestmark = [
    pytest.mark.xdist_group("course"),
    pytest.mark.skipif(
        not all(path.exists() for path in FILES.values()),
        reason="no samples here: python -m walkthrough samples fetches them",
    ),
]


@pytest.fixture(scope="module")
def before():
    return analyze(FILES[BEFORE])


@pytest.fixture(scope="module")
def after():
    return analyze(FILES[AFTER])


def words_of(page):
    return " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


def test_the_trace_views_copy_is_the_samples(before):
    text = words_of("trace_view.md")
    copies = before.trace.copies
    assert 1940 in copies.duration
    assert before.all_tables.copies["h2d"].bytes // 6 - 256 == 32 * 3 * 224 * 224 * 4 == 19_267_584
    assert "19,267,584 bytes in 1.940 ms" in text
    assert f"{19_267_584 / 1940 / 1e3:.1f} GB/s" in text
    assert before.steps.mean_breakdown_us["dataloader"] / before.steps.mean_us == pytest.approx(1 / 3, abs=0.01)


def test_the_kernel_views_shares_are_the_samples(before):
    text = words_of("gpu_kernel_view.md")
    assert f"In the sample {before.tensor_cores.eligible_share:.1%}".replace("%", " %") in text
    assert f"In the sample they fill {before.gpus[0].utilization:.1%}".replace("%", " %") in text
    assert before.gpus[0].tensor_core_share == 0


def test_the_numbers_of_the_page_about_tensorboard_are_the_samples(before, after):
    text = words_of("tensorboard.md")
    assert f"kernels fill {before.gpus[0].utilization:.0%}".replace("%", " %") in text
    waits = [one.typical.steps.mean_breakdown_us["dataloader"] / 1e3 for one in (before, after)]
    assert "{:.1f} → {:.1f} ms in a typical step".format(*waits) in text
    assert len(after.outliers) == 2
