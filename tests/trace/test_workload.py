"""What a trace is of, and that no advice is given for what it is not."""

import numpy as np
import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.gains import advise
from walkthrough.advice.report import tables
from walkthrough.trace.analysis import analyze
from walkthrough.trace.operators import between_operators, phases
from walkthrough.trace.reader import read
from walkthrough.trace.steps import is_backward, steps


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def advised(analysis, step):
    return next(advice for advice in advise(analysis).costs if advice.step == step)


def launching(*names, kernel="k", call="cudaLaunchKernel", devices=None):
    """A step of 1000 µs that launches ten kernels of 10 µs, too slowly, inside operators of these names."""
    builder = TraceBuilder() if devices is None else TraceBuilder(devices=devices)
    builder.step(1, 0, 1000)
    op = None
    for name in names or ("aten::mm",):
        op = builder.op(name, 0, 1000)
    for at in range(0, 1000, 100):
        builder.launch(kernel, at, 10, at + 15, 10, op=op, call=call)
    return builder


@pytest.mark.parametrize(
    "name", ["autograd::engine::evaluate_function: MmBackward0", "AddBackward0", "Optimizer.step#AdamW.step"]
)
def test_a_backward_pass_or_an_optimizer_is_training(analysis, name):
    result = analysis(launching("aten::mm", name))
    assert result.typical.workload.training is True
    assert advised(result, "02_bigger_batch").predicted_gain > 1


def test_operators_without_either_are_inference_where_no_bigger_batch_is_advised(analysis):
    result = analysis(launching("aten::mm"))
    assert result.typical.workload.training is False
    assert "02_bigger_batch" not in [advice.step for advice in advise(result).advice]
    assert advise(result).advice[0].step in ("13_compile", "15_cuda_graphs")
    on_cpu = TraceBuilder(devices=())
    on_cpu.step(1, 0, 1000)
    on_cpu.op("aten::mm", 0, 300)
    assert "02_bigger_batch" not in [advice.step for advice in advise(analysis(on_cpu)).advice]


def test_without_operators_kernels_tell_or_nothing_does(analysis):
    builder = TraceBuilder()
    builder.launch("k", 0, 10, 15, 10)
    assert analysis(builder).typical.workload.training is None
    builder.launch("void batch_norm_backward_kernel<float>", 20, 10, 35, 10)
    assert analysis(builder).typical.workload.training is True


@pytest.mark.parametrize("name", ["Torch-Compiled Region: 0/0", "CompiledFunction", "## Call CompiledFxGraph f6u ##"])
def test_what_is_compiled_is_not_to_be_compiled(analysis, name):
    result = analysis(launching("aten::mm", name))
    assert result.typical.workload.compiled
    assert advised(result, "13_compile").predicted_gain == 1
    assert advised(result, "15_cuda_graphs").predicted_gain > 1


def test_inductors_kernels_are_compiled_code(analysis):
    assert analysis(launching(kernel="triton_poi_fused_add_relu_0")).typical.workload.compiled
    assert not analysis(launching(kernel="_matmul_ogs")).typical.workload.compiled


def test_where_cuda_graphs_launch_the_kernels_compiling_launches_no_fewer(analysis):
    result = analysis(launching(call="cudaGraphLaunch"))
    assert result.typical.workload.graphed == 1
    assert [advised(result, step).predicted_gain for step in ("13_compile", "15_cuda_graphs")] == [1, 1]


def test_a_graphs_capture_gets_a_sentence_and_no_advice(analysis):
    builder = launching("aten::mm")
    builder.add("runtime", "cudaStreamBeginCapture", 100, 5, correlation=-2)
    builder.add("runtime", "cudaStreamEndCapture", 890, 10, correlation=-2)
    result = analysis(builder)
    assert result.typical.workload.capturing == pytest.approx(0.8)
    assert (advise(result).advice, advise(result).costs) == ([], [])
    assert advise(result).verdict.startswith("a CUDA graph is captured here, for 80% of the time")


def test_captures_one_after_another_count_with_what_is_between_them(analysis):
    builder = launching("aten::mm")
    for begin in (100, 350):
        builder.add("runtime", "cudaStreamBeginCapture", begin, 5, correlation=-2)
        builder.add("runtime", "cudaStreamEndCapture", begin + 40, 10, correlation=-2)
    assert analysis(builder).typical.workload.capturing == pytest.approx(0.3)
    assert analysis(builder).typical.workload.is_capture
    builder.launch("k", 600, 10, 615, 10, call="cudaGraphLaunch")  # a program that goes on
    assert analysis(builder).typical.workload.capturing == pytest.approx(0.1)
    assert not analysis(builder).typical.workload.is_capture


def test_a_start_up_gets_a_sentence_and_no_advice(analysis):
    builder = launching("aten::mm")
    builder.events[0]["dur"] = 4000
    builder.add("runtime", "cudaMalloc", 1000, 3000, correlation=-2)
    result = analysis(builder)
    assert (advise(result).advice, advise(result).costs) == ([], [])
    assert advise(result).verdict.startswith("a start-up, not a step: 75% of the time")


def test_a_step_of_compiled_code_begins_with_it(tmp_path):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::to", 10, 50)
    builder.op("## Call CompiledFxGraph fsk2 ##", 100, 300)
    trace = read(builder.write(tmp_path / "made.pt.trace.json"))
    parts = phases(trace, steps(trace))
    assert ((parts.model.start + trace.origin).tolist(), parts.preparing.total) == ([100.0], 50.0)


def batch(size, *names):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    for name in names:
        builder.op(name, 500, 100)
    builder.copy(0, 300, 5, 290, size)
    builder.launch("k", 500, 10, 515, 485)
    return builder


def test_launches_without_kernels_are_no_program_of_the_cpu(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 900)
    assert advise(analysis(builder)).verdict.startswith("there is a GPU, and nothing of it is recorded; ")
    builder.add("runtime", "cudaLaunchKernel", 10, 800, correlation=-2)
    result = analysis(builder)
    assert (result.typical.workload.is_blind, advise(result).advice) == (True, [])
    assert advise(result).verdict.startswith("the program works on a GPU, but no kernel is recorded")
    without = TraceBuilder(devices=())
    without.step(1, 0, 1000)
    without.op("aten::mm", 0, 900)
    assert not analysis(without).typical.workload.is_blind
    assert "there is a GPU" not in advise(analysis(without)).verdict


@pytest.mark.parametrize("name", ["nccl:all_to_all", "aten::record_stream", "aten::cudnn_convolution"])
def test_what_only_a_gpu_does_is_no_program_of_the_cpu(analysis, name):
    def rank(operator):
        builder = TraceBuilder(devices=())
        builder.step(1, 0, 1000)
        for name, at in (("aten::mm", 0), ("aten::add", 400), (operator, 900)):
            builder.op(name, at, 90)
        return analysis(builder)

    assert (rank(name).typical.workload.is_blind, advise(rank(name)).advice) == (True, [])
    assert tables(rank(name))["has_gpu"]
    assert not tables(rank("gloo:all_to_all"))["has_gpu"]
    for other in ("gloo:all_to_all", "aten::cudnn_is_acceptable"):
        assert advise(rank(other)).advice


@pytest.mark.parametrize("category, name", [("mtia_ccp_events", "MTIA"), ("hpu_op", "HPU")])
def test_an_accelerator_whose_events_are_not_read_is_named(analysis, category, name):
    builder = TraceBuilder(devices=())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 300)
    assert advise(analysis(builder)).advice
    builder.add(category, "fc-dtype_Float", 10, 900, tid=7, pid=0)
    result = analysis(builder)
    assert advise(result).advice == []
    assert f"accelerator ({name}) whose events are not read" in advise(result).verdict
    builder.launch("k", 0, 10, 15, 900)
    assert analysis(builder).typical.workload.accelerator == ""


def test_a_few_kernels_that_fill_no_time_are_too_little_to_advise_on(analysis):
    def fragment(kernels, us):
        builder = TraceBuilder()
        builder.step(1, 0, 1000)
        for number in range(kernels):
            builder.launch("k", 100 * number, 2, 100 * number + 5, us)
        return analysis(builder)

    result = fragment(4, 10)
    assert (advise(result).advice, advise(result).findings) == ([], [])
    assert advise(result).verdict.startswith("4 kernels fill 4.0% of the time: too little to advise on")
    assert advise(fragment(1, 0.5)).verdict.startswith("one kernel fills less than 0.1% of the time")
    on_cpu = TraceBuilder(devices=())
    on_cpu.step(1, 0, 1000)
    assert advise(analysis(on_cpu)).verdict.startswith("no operator is recorded")
    on_cpu.op("aten::mm", 0, 40)
    assert advise(analysis(on_cpu)).verdict.startswith("one operator fills 4.0% of the time")
    on_cpu.loading(500, 400)
    assert advise(analysis(on_cpu)).advice
    assert advise(fragment(10, 4)).advice
    assert advise(fragment(4, 20)).advice


def test_of_a_sample_of_the_events_nothing_is_advised(analysis):
    def every(distance):
        builder = launching("aten::mm")
        for _ in range(101):
            builder.ids += distance - 1
            builder.op("aten::add", 500, 1)
        return analysis(builder)

    assert advise(every(1)).advice
    assert every(1).typical.workload.recorded == 1
    sampled = every(20)
    assert advise(sampled).advice == []
    assert "about one of 20 is in this trace" in advise(sampled).verdict


def test_a_launch_of_milliseconds_on_an_idle_gpu_loads_code(analysis):
    builder = launching("aten::mm")
    builder.events[0]["dur"] = 4000
    builder.launch("k", 1000, 2500, 3510, 10)
    assert analysis(builder).typical.workload.is_startup


def test_only_images_are_to_cross_as_uint8(analysis):
    assert advised(analysis(batch(600_000, "aten::conv2d")), "03_reduced_h2d_copy").predicted_gain > 1
    for other in (batch(600_000, "aten::mm"), batch(120, "aten::conv2d")):
        assert advised(analysis(other), "03_reduced_h2d_copy").predicted_gain == 1


def test_sound_is_no_image_although_it_is_convolved(analysis):
    assert analysis(batch(1000, "aten::cudnn_convolution")).typical.workload.images
    assert not analysis(batch(1000, "aten::cudnn_convolution", "aten::conv1d")).typical.workload.images


def test_a_trace_with_stacks_is_not_to_be_traced_with_stacks(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch("k", 900, 10, 915, 80)
    assert "record with stacks" in advise(analysis(builder)).advice[0].do
    builder.add("python_function", "train.py(12): step", 0, 900)
    result = analysis(builder)
    assert result.typical.workload.stacks
    assert "train.py(12): step" in advise(result).advice[0].why
    assert "stacks" not in advise(result).advice[0].do


def test_where_no_operator_is_recorded_nobody_knows_what_the_cpu_does(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch("k", 900, 10, 915, 80)
    assert "no operator or function was recorded" in advise(analysis(builder)).advice[0].why
    builder.op("aten::mm", 890, 25)
    assert "neither the GPU nor any operator works" in advise(analysis(builder)).advice[0].why


def test_collectives_lose_no_sms_that_a_bigger_batch_would_fill(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("AddBackward0", 0, 10)
    builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 10, 15, 400, **{"blocks per SM": 0.1})
    builder.launch("k", 440, 10, 455, 545, op=builder.op("aten::mm", 20, 430), **{"blocks per SM": 0.5})
    share = advised(analysis(builder), "02_bigger_batch").share_of_step
    assert share == pytest.approx(0.545 * 0.5 + 0.04, abs=0.02)  # and the waits for launches


@pytest.mark.parametrize("kind, call", [("copy", "cudaMemcpyAsync"), ("set", "cudaMemsetAsync")])
def test_a_gpu_that_copies_or_sets_memory_is_no_program_of_the_cpu(analysis, kind, call):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::copy_", 0, 900)
    builder.launch("Memcpy HtoD (Pageable -> Device)", 5, 890, 10, 880, kind=kind, call=call, bytes=1000)
    result = analysis(builder)
    [gpu], [idle], calling = result.gpus, result.idle, 10 * (kind == "copy")
    assert (result.on_gpu, gpu.id, gpu.utilization) == (True, 0, 0.0)
    assert (idle.total_us, idle.causes_us["copy"], idle.causes_us["launch"]) == (1000, 880 + calling, 20 - calling)
    workload = result.workload
    assert (workload.is_blind, workload.work, workload.busy) == (False, "memory operation", 0.88)
    assert workload.has_steps


def test_launches_with_copies_but_without_kernels_are_of_a_gpu(analysis):
    builder = launching("aten::mm")
    builder.events = [event for event in builder.events if event["cat"] != "kernel"]
    assert (analysis(builder).workload.is_blind, analysis(builder).on_gpu) == (True, False)
    builder.copy(0, 50, 5, 40, 1000)
    assert (analysis(builder).workload.is_blind, analysis(builder).on_gpu) == (False, True)


@pytest.mark.parametrize(
    "name, backward",
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", True),
        ("torch::autograd::AccumulateGrad", True),
        ("CompiledFunctionBackward", True),
        ("MulBackward0", True),
        ("aten::convolution_backward", True),
        ("## backward ##", True),
        ("aten::_backwards", False),
        ("BackwardHook", False),
        ("aten::mm", False),
    ],
)
def test_what_belongs_to_a_backward_pass_is_known_by_its_name(name, backward):
    assert is_backward(name) is backward


def test_python_runs_where_no_operator_does(analysis):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.loading(0, 300)
    builder.op("aten::mm", 500, 100)
    builder.launch("k", 700, 50, 750, 100)
    trace = analysis(builder).trace
    start = np.array([0.0]) - trace.origin
    assert between_operators(trace, start, start + 1000).total == 1000 - 300 - 100 - 50
    assert between_operators(trace, start, start + 1000, loading=True).total == 1000 - 100 - 50
    assert between_operators(trace, start, start + 1000, busy=trace.kernels.cover()).total == 1000 - 300 - 100 - 150
