"""torch-tb-profiler, mended: its views agree with `explain` on today's traces; on those of 2021 nothing changes."""

import gzip
import json
import subprocess
import sys

import pytest
from support import ROOT
from support.trace_builder import V100, TraceBuilder, two_steps

from common.board.translation import COLLECTIVE, translated
from common.trace.steps import ROLES
from common.trace.summary import summarize

pytest.importorskip("torch_tb_profiler")
SHARED = ROOT.parent / "shared" / "traces"
RECORDED = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))
OTHERS = sorted(SHARED.glob("*.json.gz"))
OF_2021 = [path for path in OTHERS if "resnet50" in path.name]


def by_tensorboard(*words):
    """What the plugin makes of traces, see tests/by_tensorboard.py."""
    program = [sys.executable, str(ROOT / "tests" / "support" / "by_tensorboard.py"), *map(str, words)]
    finished = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def two_gpus_and_a_collective(**more):
    """Two GPUs, an NCCL kernel beside another, memory, runtime calls whose ids name no operator."""
    made = TraceBuilder(devices=(V100, V100 | {"id": 1}), **more)
    for number in (1, 2):
        begin = number * 10_000
        made.step(number, begin, 9_000)
        made.add("gpu_user_annotation", f"ProfilerStep#{number}", begin + 50, 8_000, tid=7, pid=0)
        made.loading(begin, 500)
        op = made.op("aten::convolution_backward", begin + 1_000, 400)
        name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel"
        call, kernel = made.launch(name, begin + 1_100, 50, begin + 1_200, 2_000, op=op)
        call["args"]["External id"] = kernel["args"]["External id"] = 99_999 + number
        record = made.op("record_param_comms", begin + 2_000, 300)
        record["args"] |= {"Collective name": "allreduce", "In msg nelems": 1_000, "dtype": "Float"}
        made.op("nccl:all_reduce", begin + 2_050, 100, kind="annotation")
        made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 2_100, 20, begin + 2_500, 3_000, op=record)
        other = made.op("aten::add", begin + 4_000, 100)
        made.launch("vectorized_elementwise_kernel", begin + 4_010, 10, begin + 4_100, 500, op=other, device=1)
        made.memory(begin + 1_050, 1_000, 5_000 * number, 10_000, address=number)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return [
        two_steps("today").write(folder / "today.pt.trace.json"),
        two_steps("2021").write(folder / "of_2021.pt.trace.json"),
        two_gpus_and_a_collective().write(folder / "gpus.pt.trace.json.gz"),
    ]


def assert_agrees(path, theirs):
    ours = summarize(path)
    total = theirs["costs"][-1]
    assert theirs["steps"] == ours.steps.names
    assert ours.steps.mean_us == pytest.approx(total)
    for role, cost in zip(ROLES, theirs["costs"], strict=False):
        # times of 1e15 us and more are exact to a quarter of a microsecond there
        assert ours.steps.mean_breakdown_us[role] == pytest.approx(cost, rel=5e-3, abs=1e-6 * total + 1e-3), role
    for gpu in ours.gpus:
        assert gpu.utilization == pytest.approx(theirs["utilization"][str(gpu.id)], rel=1e-3)
        assert (gpu.tensor_core_share or 0) == pytest.approx(theirs["tensor_core_share"][str(gpu.id)], abs=1e-3)
    assert (ours.tensor_cores.eligible_share or 0) == pytest.approx(theirs["eligible_share"], abs=1e-3)
    assert [each.peak_allocated for each in ours.memory if each.peak_allocated] == pytest.approx(
        [peak for peak in theirs["peaks"] if peak]
    )


def test_the_views_have_the_numbers_of_explain(made):
    for path, theirs in zip([*made, *RECORDED], by_tensorboard(*made, *RECORDED), strict=True):
        assert_agrees(path, theirs)


@pytest.mark.skipif(not OTHERS, reason="the traces that others recorded are not here")
def test_the_views_have_the_numbers_of_explain_on_traces_of_others():
    for path, theirs in zip(OTHERS, by_tensorboard(*OTHERS), strict=True):
        assert_agrees(path, theirs)


def test_without_mending_the_plugin_misreads_today_s_traces(made):
    """Should this fail one day, the plugin has learnt it, and the mending can go."""
    theirs = by_tensorboard("--as-it-is", made[0])[0]
    costs = dict(zip(ROLES, theirs["costs"], strict=False))
    assert (costs["dataloader"], costs["runtime"]) == (0, 0)


def test_on_traces_of_2021_nothing_changes(made):
    paths = [made[1], *OF_2021]
    assert by_tensorboard(*paths) == by_tensorboard("--as-it-is", *paths)


def test_collectives_have_their_sizes_kernels_and_overlap(made):
    theirs = by_tensorboard(made[2])[0]
    assert [each["name"] for each in theirs["collectives"]] == ["nccl:all_reduce"] * 2
    assert theirs["collectives"][0]["shape"] == [[4000]]
    assert theirs["collectives"][0]["type"] == ["unsigned char"]
    assert theirs["collectives"][0]["kernels"] == [[12_500, 15_500]]
    assert theirs["overlap"][0]["communication"] == 3_000
    assert theirs["overlap"][0]["overlap"] == (13_200 - 12_500) + 500


def test_kernels_of_unknown_ids_belong_to_the_operator_around_their_call(made):
    rows = by_tensorboard(made[2])[0]["views"]["operation_table_by_name"]["data"]
    times = {row["name"]: row["device_total_duration"] for row in rows}
    assert times["aten::convolution_backward"] == 4_000


def test_a_trace_of_2021_is_left_as_it_is():
    trace = two_steps("2021").json
    assert translated(json.loads(json.dumps(trace))) == trace


@pytest.mark.parametrize(
    "spoilt",
    [
        {"ph": "X", "cat": None, "name": "x", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 1, "args": {"device": 9_999}},
        {"ph": "X", "cat": "cpu_op", "ts": "soon", "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "negative", "ts": 1, "dur": -1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op"},
        {"ph": "X", "cat": "fwdbwd", "name": "no arrow", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"cat": "cpu_op"},
        7,
    ],
)
def test_what_the_plugin_would_stumble_over_is_left_out(spoilt):
    trace = two_steps().json
    good = translated(json.loads(json.dumps(trace)))
    trace["traceEvents"] = [spoilt, *trace["traceEvents"]]
    assert translated(trace) == good


def test_texts_for_numbers_and_bare_lists_are_understood():
    trace = two_steps().json
    for event in trace["traceEvents"]:
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
    found = translated(trace["traceEvents"])
    assert found["traceEvents"][0]["ts"] == 10_000


@pytest.mark.parametrize("trace", [{}, [], 7, {"traceEvents": 7}])
def test_what_is_no_trace_is_refused(trace):
    if trace == []:
        assert translated(trace)["traceEvents"] == []
    else:
        with pytest.raises(ValueError, match="no list of events"):
            translated(trace)


def test_calls_and_kernels_without_a_correlation_stay_unlinked():
    made = two_gpus_and_a_collective()
    for event in made.events:
        event["args"].pop("correlation", None)
    trace = translated(made.json)
    assert not any(COLLECTIVE in event["args"] for event in trace["traceEvents"])
    kernel = next(event for event in trace["traceEvents"] if event["cat"] == "kernel")
    assert kernel["args"]["External id"] == 99_999 + 1


def test_kernels_carry_the_id_of_their_collective():
    trace = translated(two_gpus_and_a_collective().json)
    marks = {event["args"]["External id"] for event in trace["traceEvents"] if event["name"] == "nccl:all_reduce"}
    kernels = [event for event in trace["traceEvents"] if event["name"].startswith("nccl")]
    assert {event["args"][COLLECTIVE] for event in kernels if event["cat"] == "kernel"} == marks


def test_literals_that_are_no_json_are_read(tmp_path):
    path = tmp_path / "odd.pt.trace.json.gz"
    text = json.dumps(two_steps().json).replace('"dur": 60', '"dur": 60, "x": N/A')
    path.write_bytes(gzip.compress(text.encode()))
    assert by_tensorboard(path)[0]["steps"] == ["3", "4"]
