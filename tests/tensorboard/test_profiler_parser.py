"""torch-tb-profiler, patched: its views agree with `explain` on today's traces; on those of 2021 nothing changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.by_tensorboard import displayed, displayed_unpatched
from support.trace_builder import V100, TraceBuilder, run_ahead, two_steps

from walkthrough.trace.analysis import analyze
from walkthrough.trace.steps import ROLES

pytest.importorskip("torch_tb_profiler")
from torch_tb_profiler.profiler.range_utils import intersection_ranges_lists, merge_ranges

from walkthrough.tensorboard.profiler_parser import intersection

RECORDED = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))


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


def test_on_a_trace_as_of_2021_nothing_changes(built):
    assert [displayed(built[1])] == displayed_unpatched(built[1:2])


def test_collectives_have_their_sizes_kernels_and_overlap(built):
    shown = displayed(built[2])
    size = {"name": "nccl:all_reduce", "shape": [[4000]], "type": ["unsigned char"]}
    assert shown["collectives"] == [size | {"kernels": [[begin, begin + 3_000]]} for begin in (12_500, 22_500)]
    computing, overlap = 2_000 + 500, (13_200 - 12_500) + 500
    times = {"computation": computing, "communication": 3_000, "overlap": overlap}
    assert times | {"other": 9_000 - computing - 3_000 + overlap} == shown["overlap"][0]


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


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=9)


@given(RANGES, RANGES)
def test_ranges_in_common_are_those_of_the_plugin(first, second):
    first, second = (merge_ranges(sorted(ranges)) for ranges in (first, second))
    for steps in (first, *([step] for step in first)):
        ours, expected = intersection(steps, list(second)), intersection_ranges_lists(list(steps), list(second))
        assert [span for span in ours if span[0] < span[1]] == [span for span in expected if span[0] < span[1]]
