"""A trace's report: numbers per step, of the steps that the advice is about, with the gaps in the timeline."""

import json

import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, analyzed, one_step, repeated, two_steps

from walkthrough.advice.comparison import waits
from walkthrough.advice.report import report, tables
from walkthrough.trace import communication
from walkthrough.trace.analysis import analyze
from walkthrough.trace.operators import OUTSIDE

TRACES = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))


def of(builder):
    return tables(analyzed(builder))


def communicating(rank=None):
    """Two steps of 1000 µs: a kernel from 100 to 500, a collective 400 to 700, a copy from 450 to 900."""

    def add(builder, begin):
        op = builder.op("aten::mm", begin, 100)
        builder.launch("sm80_xmma_gemm_bf16bf16", begin + 10, 10, begin + 100, 400, op=op)
        builder.launch("ncclDevKernel_AllReduce", begin + 110, 10, begin + 400, 300, stream=20)
        builder.copy(begin + 130, 5, begin + 450, 450, 1000)

    return repeated(add, steps=2, rank=rank)


def test_operators_have_the_time_of_the_kernels_that_they_launched():
    builder = two_steps()
    builder.launch("stray", 10_900, 5, 10_930, 20)
    builder.launch("stray", 11_900, 5, 11_930, 30)
    rows = {row["name"]: row for row in of(builder)["typical"]["operators"]}
    assert rows["aten::cudnn_convolution"] == {
        "name": "aten::cudnn_convolution", "count": 1, "us": 40, "share": 0.4, "mean_us": 40, "device_us": 400,
    }  # fmt: skip
    assert (rows["ConvolutionBackward0"]["device_us"], rows[OUTSIDE]["device_us"]) == (0, 25)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_report_is_of_plain_types_and_the_tables_add_to_it(path):
    analysis = analyze(path)
    whole, pages = report(analysis), tables(analysis)
    assert json.loads(json.dumps(whole, allow_nan=False)).keys() == whole.keys()
    assert pages.keys() - whole.keys() == {"collectives"} and pages.keys() > whole.keys()
    for key in ("kernels", "operators"):
        assert pages["typical"][key][: len(whole["typical"][key])] == whole["typical"][key]
    assert str(path.parent) not in json.dumps(pages)


def test_what_is_far_longer_is_left_out_of_all_figures_and_named():
    builder = TraceBuilder()
    for number, length in enumerate((1000, 1010, 5000, 1000, 990)):
        begin = number * 10_000
        builder.step(number, begin, length)
        op = builder.op("aten::mm", begin, 100)
        for at in range(7 if length == 5000 else 2):
            builder.launch("k", begin + 10 + at, 1, begin + 100 * (at + 1), 50, op=op)
    numbers = of(builder)
    assert (numbers["typical"]["count"], numbers["steps"]["count"]) == (4, 5)
    assert (numbers["typical"]["kernel_count"], numbers["typical"]["kernels"][0]["us"]) == (2, 100)
    assert (numbers["per"], "4 typical steps" in numbers["of_which_steps"]) == ("per typical step", True)
    (outlier,) = numbers["steps"]["outliers"]
    assert outlier["why"].startswith("step 2 takes 5.0 ms")


def test_communication_is_apart_alone_and_overlapped():
    numbers = of(communicating(rank=1))
    parts = numbers["typical"]["parts_us"]
    assert (parts["compute"], parts["overlapped"], parts["exposed"], parts["memcpy"]) == (300, 100, 200, 200)
    assert sum(parts.values()) == numbers["typical"]["mean_us"] == 1000
    assert numbers["typical"]["breakdown_us"]["kernel"] == 600  # the plugin's definition
    own = numbers["typical"]["communication"]
    assert (numbers["rank"], own["count"], own["exposed_us"], own["hidden_us"]) == (1, 1, 200, 100)
    of_step = {"ncclDevKernel_AllReduce 0": [300]}
    assert numbers["collectives"] == {"0": of_step, "1": of_step}  # sent step by step, of a rank only
    assert of(communicating())["collectives"] == {}


def test_communication_of_cpus_is_apart_too():
    builder = one_step(devices=())
    builder.op("aten::mm", 0, 400)
    builder.op("gloo:all_reduce", 300, 300, tid=2, kind="annotation")
    parts = of(builder)["typical"]["parts_us"]
    assert (parts["overlapped"], parts["exposed"], parts["cpu_exec"], parts["other"]) == (100, 200, 300, 400)


def on_a_cpu():
    builder = TraceBuilder(devices=())
    for number, (begin, wait) in enumerate(((5_000, 400), (6_000, 500))):
        builder.step(number, begin, 1000)
        builder.loading(begin + 100, wait)
        builder.op("aten::mm", begin + 700, 200)
    return builder


LOADING, COPYING = {"start": 0, "end": 330, "device": 0}, {"start": 730, "end": 1330, "device": 0}


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (two_steps(), {"dataloader_workers": LOADING, "no_hidden_syncs": COPYING}),
        (on_a_cpu(), {"dataloader_workers": {"start": 1100, "end": 1600, "device": None}, "host_python": None}),
    ],
)
def test_advice_has_the_longest_gap_or_wait_for_a_batch_that_it_is_about(builder, expected):
    gaps = {advice["id"]: advice["gap"] for advice in of(builder)["advice"]}
    assert {name: gaps[name] for name in expected} == expected


REDUCED = {"1": {"reduce 0": [10, 20]}, "2": {"reduce 0": [10, 10]}}


@pytest.mark.parametrize(
    ("one", "other", "us", "why"),
    [
        (REDUCED, {"1": {"reduce 0": [30, 5]}, "2": {"reduce 0": [10, 10]}, "3": {"reduce 0": [99]}},
         {0: 7.5, 1: 10}, ""),  # over the two steps that both have
        (REDUCED, {"1": {"reduce 0": [10]}}, {}, "do not match"),
        (REDUCED, {"1": {"gather 0": [10, 20]}}, {}, "do not match"),
        ({"1": REDUCED["1"]}, {"2": {"reduce 0": [10, 20]}}, {}, "no step in common"),
    ],
)  # fmt: skip
def test_a_rank_waits_as_much_longer_as_its_collectives_last(one, other, us, why):
    found, reason = waits({0: one, 1: other})
    assert found == us
    assert why in reason and bool(reason) == bool(why)


@pytest.mark.parametrize(("most", "us", "why"), [(1, {0: 0, 1: 0}, ""), (0, {}, "more than 0 collectives, too many")])
def test_steps_of_too_many_collectives_are_not_compared_and_the_reason_is_named(monkeypatch, most, us, why):
    monkeypatch.setattr(communication, "MOST_COLLECTIVES", most)
    found, reason = waits({rank: of(communicating(rank))["collectives"] for rank in (0, 1)})
    assert (found, why in reason) == (us, True)
