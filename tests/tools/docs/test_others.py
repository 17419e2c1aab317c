"""Pairs of traces that others recorded: what is computed from them, and where it stands in the page."""

import shutil

import pytest
from support.trace_builder import TraceBuilder

from tools.docs import others


def loading(wait, steps=(1000,) * 3, workers=False):
    """A trace of steps (µs each), in which the loop waits for its batch first, while the GPU has nothing to do."""
    builder, begin = TraceBuilder(), 0
    loader = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
    for number, length in enumerate(steps, start=5):
        builder.step(number, begin, length)
        if wait:
            builder.loading(begin, wait, loader)
        op = builder.op("aten::mm", begin + wait, 100)
        builder.launch("volta_sgemm_128x64_nn", begin + wait + 10, 10, begin + wait + 30, length - wait - 50, op=op)
        begin += length
    return builder


@pytest.fixture
def pair(tmp_path):
    """A pair whose traces lie in `tmp_path`: workers gain 1000 / 800; one step of the second is far longer."""
    loading(200).write(tmp_path / "one.json")
    loading(0, (800, 800, 2000, 800), workers=True).write(tmp_path / "two.json")
    sums = {path.name: number for number, path in others.traces_in(tmp_path).items()}
    sides = (others.Traced(f"https://example.org/{name}", sums[name]) for name in ("one.json", "two.json"))
    return others.Pair("a | made-up <pair>", "04_multiprocess_loading", *sides)


def test_what_the_first_trace_predicts_stands_beside_what_the_second_shows(pair, tmp_path):
    shutil.move(tmp_path / "one.json", tmp_path / "any name.json")
    result = others.compute_pair(pair, others.traces_in(tmp_path))
    assert result.before.steps_us == {"5": 1000, "6": 1000, "7": 1000}
    assert (result.after.outlying, result.after.typical_us) == (["7"], [800, 800, 800])
    assert result.gpu == "Tesla V100"
    row = result.prediction
    assert row.predicted_gain == row.estimated_gain == pytest.approx(1.25)
    assert (row.gain.ratio, row.estimate, row.outcome) == (pytest.approx(1.25), "inside", "within")

    page = others.pairs_table(others.Others([result], "2026-01-02T03:04:05+00:00", "abc"))
    assert r"a \| made-up &lt;pair>, steps 5 to 7, Tesla V100: [before](https://example.org/one.json)" in page
    assert "| 1.25x | 1.25x | 1.25x (1.25-1.25) | 1.25x | each step waits 200 us" in page
    assert "; within; estimate inside |" in page
    assert "Computed on 2026-01-02 at commit abc" in page
