"""torch-tb-profiler, patched: its views agree with `explain` on today's traces; on those of 2021 nothing changes."""

import gzip
import json

import pytest
from support import ROOT
from support.by_tensorboard import displayed, displayed_unpatched
from support.trace_builder import V100, TraceBuilder, run_ahead, two_steps

from walkthrough.results.errors import InputError
from walkthrough.trace.analysis import analyze
from walkthrough.trace.steps import ROLES

pytest.importorskip("torch_tb_profiler")
from torch_tb_profiler.profiler.range_utils import intersection_ranges_lists

from walkthrough.tensorboard.profiler_parser import COLLECTIVE, intersection, parse, translated

RECORDED = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))
OTHERS = sorted((ROOT.parent / "shared" / "traces").glob("*.json.gz"))
OF_2021 = [path for path in OTHERS if "resnet50" in path.name]
shares_parsed_traces = pytest.mark.xdist_group("torch-tb-profiler")  # the large ones take seconds


def two_gpus_and_a_collective(**more):
    """Two GPUs, an NCCL kernel beside another, memory, runtime calls whose ids name no operator."""
    builder = TraceBuilder(devices=(V100, V100 | {"id": 1}), **more)
    for number in (1, 2):
        begin = number * 10_000
        builder.step(number, begin, 9_000)
        builder.add("gpu_user_annotation", f"ProfilerStep#{number}", begin + 50, 8_000, tid=7, pid=0)
        builder.loading(begin, 500)
        op = builder.op("aten::convolution_backward", begin + 1_000, 400)
        name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel"
        call, kernel = builder.launch(name, begin + 1_100, 50, begin + 1_200, 2_000, op=op)
        call["args"]["External id"] = kernel["args"]["External id"] = 99_999 + number
        record = builder.op("record_param_comms", begin + 2_000, 300)
        record["args"] |= {"Collective name": "allreduce", "In msg nelems": 1_000, "dtype": "Float"}
        builder.op("nccl:all_reduce", begin + 2_050, 100, kind="annotation")
        builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 2_100, 20, begin + 2_500, 3_000, op=record)
        add = builder.op("aten::add", begin + 4_000, 100)
        builder.launch("vectorized_elementwise_kernel", begin + 4_010, 10, begin + 4_100, 500, op=add, device=1)
        builder.memory(begin + 1_050, 1_000, 5_000 * number, 10_000, address=number)
    return builder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Traces built by hand: of today, of 2021, of today with two GPUs, and with a CPU that runs ahead."""
    folder = tmp_path_factory.mktemp("built")
    return [
        two_steps("today").write(folder / "today.pt.trace.json"),
        two_steps("2021").write(folder / "of_2021.pt.trace.json"),
        two_gpus_and_a_collective().write(folder / "gpus.pt.trace.json.gz"),
        run_ahead().write(folder / "ahead.pt.trace.json"),
    ]


@pytest.fixture(scope="module")
def unpatched(built):
    """{path: what the unpatched plugin shows of it}, of the traces that tests compare with it."""
    paths = [*built[:2], *OF_2021]
    return dict(zip(paths, displayed_unpatched(paths), strict=True))


def assert_agrees(path):
    """The plugin shows what `explain` prints."""
    shown, ours = displayed(path), analyze(path)
    total = shown["costs"][-1]
    assert shown["steps"] == ours.steps.names
    assert ours.steps.mean_us == pytest.approx(total)
    for role, cost in zip(ROLES, shown["costs"], strict=False):
        # times of 1e15 us and more are exact to a quarter of a microsecond there
        assert ours.steps.mean_breakdown_us[role] == pytest.approx(cost, rel=5e-3, abs=1e-6 * total + 1e-3), role
    for gpu in ours.gpus:
        assert gpu.utilization == pytest.approx(shown["utilization"][str(gpu.id)], rel=1e-3)
        assert (gpu.tensor_core_share or 0) == pytest.approx(shown["tensor_core_share"][str(gpu.id)], abs=1e-3)
    assert (ours.tensor_cores.eligible_share or 0) == pytest.approx(shown["eligible_share"], abs=1e-3)
    assert [memory.peak_allocated for memory in ours.memory if memory.peak_allocated] == pytest.approx(
        [peak for peak in shown["peaks"] if peak]
    )


def test_the_views_have_the_numbers_of_explain(built):
    for path in [*built, *RECORDED]:
        assert_agrees(path)


@shares_parsed_traces
@pytest.mark.skipif(not OTHERS, reason="the traces that others recorded are not here")
def test_the_views_have_the_numbers_of_explain_on_traces_of_others():
    for path in OTHERS:
        assert_agrees(path)


@shares_parsed_traces
def test_unpatched_the_plugin_misreads_traces_of_today(built, unpatched):
    """Should this fail one day, the plugin has learnt it, and the patch can go."""
    costs = dict(zip(ROLES, unpatched[built[0]]["costs"], strict=False))
    assert (costs["dataloader"], costs["runtime"]) == (0, 0)


@shares_parsed_traces
def test_on_traces_of_2021_nothing_changes(built, unpatched):
    for path in [built[1], *OF_2021]:
        assert displayed(path) == unpatched[path]


def test_collectives_have_their_sizes_kernels_and_overlap(built):
    shown = displayed(built[2])
    assert [collective["name"] for collective in shown["collectives"]] == ["nccl:all_reduce"] * 2
    assert shown["collectives"][0]["shape"] == [[4000]]
    assert shown["collectives"][0]["type"] == ["unsigned char"]
    assert shown["collectives"][0]["kernels"] == [[12_500, 15_500]]
    assert shown["overlap"][0]["communication"] == 3_000
    assert shown["overlap"][0]["overlap"] == (13_200 - 12_500) + 500


def test_kernels_of_unknown_ids_belong_to_the_operator_around_their_call(built):
    rows = displayed(built[2])["views"]["operation_table_by_name"]["data"]
    times = {row["name"]: row["device_total_duration"] for row in rows}
    assert times["aten::convolution_backward"] == 4_000


def test_events_that_the_plugin_would_fail_on_are_left_out(tmp_path):
    builder = two_steps()
    undamaged = displayed(builder.write(tmp_path / "undamaged.pt.trace.json"))
    builder.events[:0] = [
        {"ph": "X", "cat": None, "name": "x", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 1, "args": {"device": 9_999}},
        {"ph": "X", "cat": "cpu_op", "ts": "soon", "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "negative", "ts": 1, "dur": -1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op"},
        {"ph": "X", "cat": "fwdbwd", "name": "no arrow", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"cat": "cpu_op"},
    ]
    assert displayed(builder.write(tmp_path / "damaged.pt.trace.json")) == undamaged


def test_texts_for_numbers_bare_lists_and_literals_that_are_no_json_are_understood(tmp_path):
    builder = two_steps()
    for event in builder.events:
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
    path = tmp_path / "bare.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(builder.events).replace('"dur": "60"', '"dur": 60, "x": N/A').encode()))
    assert displayed(path)["steps"] == ["3", "4"]


@pytest.mark.parametrize("text", ["{}", "7", '{"traceEvents": 7}', '{"traceEvents": [7]}', '{"traceEvents": [{'])
def test_json_that_is_no_whole_trace_is_refused(tmp_path, text):
    path = tmp_path / "odd.pt.trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"odd\.pt\.trace\.json (has|is) "):
        parse("w", None, path)


def test_calls_and_kernels_without_a_correlation_stay_unlinked():
    builder = two_gpus_and_a_collective()
    for event in builder.events:
        event["args"].pop("correlation", None)
    events = translated(builder.events)
    assert not any(COLLECTIVE in event["args"] for event in events)
    kernel = next(event for event in events if event["cat"] == "kernel")
    assert kernel["args"]["External id"] == 99_999 + 1


def test_kernels_carry_the_id_of_their_collective():
    events = translated(two_gpus_and_a_collective().events)
    marks = {event["args"]["External id"] for event in events if event["name"] == "nccl:all_reduce"}
    kernels = [event for event in events if event["name"].startswith("nccl")]
    assert {event["args"][COLLECTIVE] for event in kernels if event["cat"] == "kernel"} == marks


def test_a_step_looks_at_the_ranges_within_it_alone():
    ranges = [(begin, begin + 5) for begin in range(0, 1_000, 10)]
    seen = []

    class Ranges(list):
        def __getitem__(self, item):
            seen.append(item)
            return super().__getitem__(item)

    for step in ((0, 5), (3, 12), (5, 10), (500, 503), (990, 2_000), (-5, 0), (0, 1_000), (7, 7)):
        expected = intersection_ranges_lists([step], list(ranges))
        seen.clear()
        assert intersection([step], Ranges(ranges)) == expected
        assert len(seen) < 20 + len(expected)
