"""A trace's report: numbers per step, of the steps that the advice is about, with the gaps in the timeline."""

import json
import re

import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.advice.comparison import waits
from walkthrough.advice.report import report, tables
from walkthrough.trace import communication
from walkthrough.trace.analysis import analyze
from walkthrough.trace.operators import OUTSIDE

TRACES = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))


@pytest.fixture
def of(tmp_path):
    """of(builder): the tables of a trace made by hand."""
    return lambda builder: tables(analyze(builder.write(tmp_path / "made.json")))


def communicating(rank=None, collective_us=300):
    """Two steps of 1000 µs: a kernel from 100 to 500, a collective from 400, a copy from 450 to 900."""
    builder = TraceBuilder(rank=rank)
    for number, begin in ((1, 0), (2, 1000)):
        builder.step(number, begin, 1000)
        op = builder.op("aten::mm", begin, 100)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, 400, op=op)
        builder.launch("ncclDevKernel_AllReduce", begin + 110, 10, begin + 400, collective_us)[1]["tid"] = 20
        builder.copy(begin + 130, 5, begin + 450, 450, 1000)
    return builder


def test_every_figure_is_of_one_step(of):
    numbers = of(two_steps())
    assert numbers["per"] == "per step"
    idle, numbers = numbers["idle"][0], numbers["typical"]
    assert (numbers["kernel_count"], numbers["kernel_us"]) == (1, 400)
    (kernel,) = numbers["kernels"]
    assert (kernel["count"], kernel["us"]) == (1, 400)
    assert numbers["copies"]["h2d"]["count"] == 1
    assert numbers["copies"]["h2d"]["bytes"] == numbers["step_bytes"] == 1_000_000
    assert numbers["copies"]["h2d"]["us"] == 30
    assert idle["us"] == sum(idle["causes_us"].values()) == 600


def test_operators_have_the_time_of_the_kernels_that_they_launched(of):
    builder = two_steps()
    builder.launch("stray", 10_900, 5, 10_930, 20)
    builder.launch("stray", 11_900, 5, 11_930, 30)
    rows = {row["name"]: row for row in of(builder)["typical"]["operators"]}
    assert rows["aten::cudnn_convolution"] == {
        "name": "aten::cudnn_convolution", "count": 1, "us": 40, "share": 0.4, "mean_us": 40, "device_us": 400,
    }  # fmt: skip
    assert rows["ConvolutionBackward0"]["device_us"] == 0
    assert rows[OUTSIDE]["device_us"] == 25


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_report_is_of_plain_types_and_the_tables_add_to_it(path):
    analysis = analyze(path)
    whole = report(analysis)
    assert json.loads(json.dumps(whole, allow_nan=False)).keys() == whole.keys()
    pages = tables(analysis)
    assert pages.keys() - whole.keys() == {"collectives"}
    assert pages.keys() > whole.keys()
    for key in ("kernels", "operators"):
        assert pages["typical"][key][: len(whole["typical"][key])] == whole["typical"][key]
    assert str(path.parent) not in json.dumps(pages)


def test_what_is_far_longer_is_left_out_of_all_figures_and_named(of):
    builder = TraceBuilder()
    for number, length in enumerate((1000, 1010, 5000, 1000, 990)):
        begin = number * 10_000
        builder.step(number, begin, length)
        op = builder.op("aten::mm", begin, 100)
        for at in range(7 if length == 5000 else 2):
            builder.launch("k", begin + 10 + at, 1, begin + 100 * (at + 1), 50, op=op)
    numbers = of(builder)
    assert (numbers["typical"]["count"], numbers["steps"]["count"]) == (4, 5)
    assert numbers["typical"]["kernel_count"] == 2
    assert numbers["typical"]["kernels"][0]["us"] == 100
    assert numbers["per"] == "per typical step"
    (outlier,) = numbers["steps"]["outliers"]
    assert outlier["why"].startswith("step 2 takes 5.0 ms")
    assert "4 typical steps" in numbers["of_which_steps"]


def test_communication_is_apart_alone_and_overlapped(of):
    numbers = of(communicating())
    parts = numbers["typical"]["parts_us"]
    assert (parts["compute"], parts["overlapped"], parts["exposed"], parts["memcpy"]) == (300, 100, 200, 200)
    assert sum(parts.values()) == numbers["typical"]["mean_us"] == 1000
    assert numbers["typical"]["breakdown_us"]["kernel"] == 600  # the plugin's definition
    communication = numbers["typical"]["communication"]
    assert (communication["count"], communication["exposed_us"], communication["hidden_us"]) == (1, 200, 100)
    assert of(two_steps())["typical"]["parts_us"] == {}


def test_communication_of_cpus_is_apart_too(of):
    builder = TraceBuilder(devices=())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 400)
    builder.op("gloo:all_reduce", 300, 300, tid=2, kind="annotation")
    parts = of(builder)["typical"]["parts_us"]
    assert (parts["overlapped"], parts["exposed"], parts["cpu_exec"], parts["other"]) == (100, 200, 300, 400)


def test_advice_has_the_longest_gap_that_it_is_about(of):
    numbers = of(two_steps())
    gaps = {advice["step"]: advice["gap"] for advice in numbers["advice"]}
    assert gaps["04_multiprocess_loading"] == {"start": 0, "end": 330, "device": 0}
    assert gaps["10_no_hidden_syncs"] == {"start": 730, "end": 1330, "device": 0}


def test_advice_on_a_cpu_has_the_longest_wait_for_a_batch(of):
    builder = TraceBuilder(devices=())
    for number, (begin, wait) in enumerate(((5_000, 400), (6_000, 500))):
        builder.step(number, begin, 1000)
        builder.loading(begin + 100, wait)
        builder.op("aten::mm", begin + 700, 200)
    gaps = {advice["step"]: advice["gap"] for advice in of(builder)["advice"]}
    assert gaps["04_multiprocess_loading"] == {"start": 1100, "end": 1600, "device": None}


def test_what_was_recorded_beside_the_events_is_said(of):
    builder = two_steps()
    builder.header["walkthrough"] = {"untraced_step_ms": [0.5], "samples_per_step": 32, "loaders": [{"batch_size": 32}]}
    numbers = of(builder)
    assert numbers["recorded"][0].startswith("untraced: 500.0 µs in the one step before tracing")
    assert numbers["samples_per_step"] == 32


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_microseconds_have_their_sign(path):
    assert not re.search(r"\d us\b", json.dumps(tables(analyze(path)), ensure_ascii=False))


def test_a_rank_waits_as_much_longer_as_its_collectives_last():
    early = {"1": {"reduce 0": [10, 20]}, "2": {"reduce 0": [10, 10]}}
    late = {"1": {"reduce 0": [30, 5]}, "2": {"reduce 0": [10, 10]}, "3": {"reduce 0": [99]}}
    assert waits({0: early, 1: late}) == ({0: 7.5, 1: 10}, "")  # over the two steps that both have


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"1": {"reduce 0": [10]}}, "do not match"),
        ({"1": {"gather 0": [10, 20]}}, "do not match"),
        ({"2": {"reduce 0": [10, 20]}}, "no step in common"),
    ],
)
def test_ranks_that_do_not_match_have_no_wait(other, why):
    us, reason = waits({0: {"1": {"reduce 0": [10, 20]}}, 1: other})
    assert us == {}
    assert why in reason


def test_steps_of_too_many_collectives_are_not_compared_and_the_reason_is_named(of, monkeypatch):
    monkeypatch.setattr(communication, "MOST_COLLECTIVES", 1)
    both = {rank: of(communicating(rank))["collectives"] for rank in (0, 1)}
    assert [list(steps) for steps in both.values()] == [["1"], ["1"]]  # each step has one
    assert waits(both) == ({0: 0, 1: 0}, "")
    monkeypatch.setattr(communication, "MOST_COLLECTIVES", 0)
    both = {rank: of(communicating(rank))["collectives"] for rank in (0, 1)}
    assert waits(both) == ({}, "a step has more than 0 collectives, too many to compare")


def test_the_collectives_of_a_rank_are_sent_step_by_step(of):
    numbers = of(communicating(rank=1))
    assert numbers["collectives"] == {
        "1": {"ncclDevKernel_AllReduce 0": [300]},
        "2": {"ncclDevKernel_AllReduce 0": [300]},
    }
    assert (numbers["rank"], numbers["typical"]["communication"]["exposed_us"]) == (1, 200)
    assert of(communicating())["collectives"] == {}
