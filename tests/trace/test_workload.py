"""What a trace is of, and that no advice is given for what it is not."""

import numpy as np
import pytest
from pytest import approx
from support.trace_builder import analyzed, costs, one_step, read_trace

from walkthrough.advice.gains import advise
from walkthrough.advice.report import tables
from walkthrough.trace.operators import between_operators, phases
from walkthrough.trace.steps import is_backward, steps


def operators(*names, **header):
    """A step of 1000 µs with operators of 90 µs of these names, one after another."""
    builder = one_step(**header)
    for place, name in enumerate(names):
        builder.op(name, 100 * place, 90)
    return builder


def with_event(builder, *event, **more):
    builder.add(*event, **more)
    return builder


def launching(*names, kernel="k", call="cudaLaunchKernel", length=1000):
    """A step that launches ten kernels of 10 µs, too slowly, inside operators of these names."""
    builder, op = one_step(length), None
    for name in names or ("aten::mm",):
        op = builder.op(name, 0, 1000)
    for at in range(0, 1000, 100):
        builder.launch(kernel, at, 10, at + 15, 10, op=op, call=call)
    return builder


def workload(builder):
    return analyzed(builder).typical.workload


def fragment(kernels, us, name="k", **header):
    builder = one_step(**header)
    for number in range(kernels):
        builder.launch(name, 100 * number, 2, 100 * number + 5, us)
    return builder


@pytest.mark.parametrize(
    ("builder", "training"),
    [
        (launching("aten::mm", "AddBackward0"), True),
        (launching("aten::mm", "Optimizer.step#AdamW.step"), True),
        (launching(), False),
        (fragment(1, 10, "void batch_norm_backward_kernel<float>"), True),
        (fragment(1, 10), None),
    ],
)
def test_a_backward_pass_or_an_optimizer_is_training_and_operators_without_both_are_inference(builder, training):
    assert workload(builder).training is training


@pytest.mark.parametrize(
    ("builder", "compiled", "compile_gains", "graphs_gain"),
    [
        *((launching("aten::mm", name), True, False, True)
          for name in ("Torch-Compiled Region: 0/0", "CompiledFunction", "## Call CompiledFxGraph f6u ##")),
        (launching(kernel="triton_poi_fused_add_relu_0"), True, False, True),  # by Inductor
        (launching(kernel="_matmul_ogs"), False, True, True),
        (launching(call="cudaGraphLaunch"), False, False, False),  # compiling launches no fewer then
    ],
)  # fmt: skip
def test_what_is_compiled_or_launched_by_graphs_is_not_to_be(builder, compiled, compile_gains, graphs_gain):
    found = costs(builder)
    assert workload(builder).compiled == compiled
    assert [found[name].predicted_gain > 1 for name in ("compile", "cuda_graphs")] == [compile_gains, graphs_gain]


def capturing(*spans):
    """Graphs that are captured: (begin, end)."""
    builder = launching()
    for begin, end in spans:
        builder.add("runtime", "cudaStreamBeginCapture", begin, 5, correlation=-2)
        builder.add("runtime", "cudaStreamEndCapture", end - 10, 10, correlation=-2)
    return builder


def test_captures_count_with_what_is_between_them_unless_the_program_goes_on():
    builder = capturing((100, 150), (350, 400))
    assert (workload(builder).capturing, workload(builder).is_capture) == (approx(0.3), True)
    builder.launch("k", 600, 10, 615, 10, call="cudaGraphLaunch")
    assert (workload(builder).capturing, workload(builder).is_capture) == (approx(0.1), False)


def every(distance):
    """A step of which only each so manyth event is recorded."""
    builder = launching()
    for _ in range(101):
        builder.ids += distance - 1
        builder.op("aten::add", 500, 1)
    return builder


def on_cpu(*lengths):
    builder = one_step(devices=())
    for us in lengths:
        builder.op("aten::mm", 0, us)
    return builder


@pytest.mark.parametrize(
    ("builder", "verdict"),
    [
        (capturing((100, 900)), "a CUDA graph is captured here, for 80% of the time"),
        (with_event(launching(length=4000), "runtime", "cudaMalloc", 1000, 3000, correlation=-2),
         "a start-up, not a step: 75% of the time"),
        (fragment(4, 10), "4 kernels fill 4.0% of the time: too little to advise on"),
        (fragment(1, 0.5), "one kernel fills less than 0.1% of the time"),
        (on_cpu(), "no operator is recorded"),
        (on_cpu(40), "one operator fills 4.0% of the time"),
        (every(20), "events are missing: by the numbers of its operators, about one of 20 is in this trace"),
        (with_event(on_cpu(300), "mtia_ccp_events", "fc-dtype_Float", 10, 900, tid=7, pid=0),
         "the work runs on an accelerator (MTIA) whose events are not read here"),
        (with_event(operators("aten::mm"), "runtime", "cudaLaunchKernel", 10, 800, correlation=-2),
         "the program works on a GPU, but no kernel is recorded"),
    ],
)  # fmt: skip
def test_what_shows_no_step_of_a_running_program_gets_a_sentence_and_no_advice(builder, verdict):
    result = advise(analyzed(builder))
    assert (result.advice, result.costs) == ([], [])
    assert result.verdict.startswith(verdict)


LOADING = ("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 500, 400)


@pytest.mark.parametrize("builder", [with_event(on_cpu(40), *LOADING), fragment(10, 4), fragment(4, 20), every(1)])
def test_a_little_more_is_enough(builder):
    assert advise(analyzed(builder)).advice


@pytest.mark.parametrize(
    ("name", "of_gpu"),
    [
        ("nccl:all_to_all", True),
        ("aten::record_stream", True),
        ("aten::cudnn_convolution", True),
        ("gloo:all_to_all", False),
        ("aten::cudnn_is_acceptable", False),
    ],
)
def test_what_only_a_gpu_does_is_no_program_of_the_cpu(name, of_gpu):
    result = analyzed(operators("aten::mm", "aten::add", name, devices=()))
    assert (result.workload.is_blind, not advise(result).advice, tables(result)["has_gpu"]) == (of_gpu,) * 3


def test_a_step_of_compiled_code_begins_with_it():
    trace = read_trace(operators("aten::to", "## Call CompiledFxGraph fsk2 ##"))
    parts = phases(trace, steps(trace))
    assert ((parts.model.start + trace.origin).tolist(), parts.preparing.total) == ([100.0], 90.0)


@pytest.mark.parametrize(
    ("size", "names", "images", "gains"),
    [
        (600_000, ["aten::conv2d"], True, True),
        (120, ["aten::conv2d"], True, False),  # fewer bytes than an image has
        (600_000, ["aten::cudnn_convolution", "aten::conv1d"], False, False),  # sound is convolved, too
    ],
)
def test_only_images_are_to_cross_as_uint8(size, names, images, gains):
    builder = operators(*["aten::empty"] * 4, *names)
    builder.copy(0, 300, 5, 290, size)
    builder.launch("k", 500, 10, 515, 485)
    assert workload(builder).images == images
    assert (costs(builder)["uint8_images"].predicted_gain > 1) == gains


@pytest.mark.parametrize("kind, call", [("copy", "cudaMemcpyAsync"), ("set", "cudaMemsetAsync")])
def test_a_gpu_that_copies_or_sets_memory_is_no_program_of_the_cpu(kind, call):
    builder = one_step()
    builder.op("aten::copy_", 0, 900)
    builder.launch("Memcpy HtoD (Pageable -> Device)", 5, 890, 10, 880, kind=kind, call=call, bytes=1000)
    result = analyzed(builder)
    [gpu], [idle], calling, own = result.gpus, result.idle, 10 * (kind == "copy"), result.workload
    assert (result.on_gpu, gpu.id, gpu.utilization) == (True, 0, 0.0)
    assert (idle.total_us, idle.causes_us["copy"], idle.causes_us["launch"]) == (1000, 880 + calling, 20 - calling)
    assert (own.is_blind, own.work, own.busy, own.has_steps) == (False, "memory operation", 0.88, True)


def test_what_belongs_to_a_backward_pass_is_known_by_its_name():
    names = "torch::autograd::AccumulateGrad CompiledFunctionBackward MulBackward0 aten::convolution_backward".split()
    names += ["autograd::engine::evaluate_function: AddmmBackward0", "## backward ##"]
    assert [name for name in [*names, "aten::_backwards", "BackwardHook", "aten::mm"] if is_backward(name)] == names


def test_python_runs_where_no_operator_does():
    builder = one_step()
    builder.loading(0, 300)
    builder.op("aten::mm", 500, 100)
    builder.launch("k", 700, 50, 750, 100)
    trace = read_trace(builder)
    start = np.array([0.0]) - trace.origin
    assert between_operators(trace, start, start + 1000).total == 1000 - 300 - 100 - 50
    assert between_operators(trace, start, start + 1000, loading=True).total == 1000 - 100 - 50
    assert between_operators(trace, start, start + 1000, busy=trace.kernels.cover()).total == 1000 - 300 - 100 - 150
