"""Advice for each step of the ladder, each cost on a trace small enough to compute by hand."""

from unittest.mock import ANY

import pytest
from pytest import approx
from support import STEPS
from support.trace_builder import analyzed, costs, one_step, repeated, two_steps

from walkthrough.advice.catalogue import BY_ID, COSTS, Advice
from walkthrough.advice.evidence import bounded
from walkthrough.advice.gains import advise, despite_a_stall, ranked
from walkthrough.trace.idle import CAUSES

LADDER = [path.stem for path in STEPS[1:]]
WORKERS = "_MultiProcessingDataLoaderIter"


def of_ids(builder, *ids):
    """The advice worth following of these costs, in order."""
    return [item for item in advise(analyzed(builder)).advice if item.id in ids]


def operators(builder, *rows):
    """Add operators: (name, start, duration)."""
    for row in rows:
        builder.op(*row)
    return builder


BACKWARD = ("autograd::engine::evaluate_function: MmBackward0", 0, 0)  # without it, an inference


def cpu_step(*rows, length=1000):
    """One training step on a CPU with these operators: (name, start, duration)."""
    return operators(one_step(length, devices=()), BACKWARD, *rows)


def loaded_images(count, *each, after=(), loader="_SingleProcessDataLoaderIter"):
    """A step on a CPU that loads `count` images until 500, one per 100 µs, with operators: (name, start, duration)."""
    builder = cpu_step(("aten::conv2d", 600, 300))
    builder.loading(0, 500, loader)
    rows = [(name, image * 100 + begin, duration) for image in range(count) for name, begin, duration in each]
    return operators(builder, *rows, *after)


def gpu_step(kernels, *rows, load=0, graphs=()):
    """One training step of 1000 µs on a GPU. kernels: (call's start, kernel's start, duration); rows: operators.

    graphs: when a graph of a kernel of 5 µs is launched.
    """
    builder = one_step()
    for call, start, duration in kernels:
        builder.launch("k", call, 2, start, duration)
    for call in graphs:
        builder.launch("k", call, 5, call + 5, 5, call="cudaGraphLaunch")
    if load:
        builder.loading(0, load, WORKERS)
    return operators(builder, BACKWARD, *rows)


def with_workers():
    builder = two_steps()
    for event in builder.events:
        event["name"] = event["name"].replace("_SingleProcess", "_MultiProcessing")
    return builder


def copying(size):
    """A step on a GPU that copies so many bytes, and computes on images."""
    builder = gpu_step([(310, 320, 600)], ("aten::to", 0, 200), ("aten::conv2d", 300, 50))
    builder.copy(10, 180, 20, 170, size)
    return builder


@pytest.mark.parametrize(
    "builder",
    [two_steps(), cpu_step(("aten::mm", 0, 500)), loaded_images(5, loader=WORKERS)],
    ids=["gpu", "cpu", "cpu with workers"],
)
def test_each_step_of_the_ladder_has_one_advice_with_a_reason(builder):
    found = costs(builder)
    assert [item.step for item in found.values() if item.step] == LADDER
    assert all(item.why and (item.predicted_gain is None or item.predicted_gain >= 1) for item in found.values())
    assert {cause for cost in COSTS for cause in cost.idle} < set(CAUSES)


def some(name, share, gain=None, estimate=None, on_cpu=False):
    """An `Advice` on that cost."""
    cost, error = BY_ID[name], BY_ID[name].error_on_cpu if on_cpu else BY_ID[name].error
    return Advice(cost.step, "t", "w", share, gain, estimate, id=name, error=error)


def bound(name, share):
    return some(name, share, bounded("w", share).gain)


@pytest.mark.parametrize(
    "order",
    [
        # a cost without a bound by its share, of which half is sure
        [bound("uint8_images", 0.4), bound("pinned_memory", 0.2), some("compile", 0.3)],
        # on a CPU, 35 % of a wait for the DataLoader is sure: workers take cores from the training
        [bound("compile", 0.43), some("dataloader_workers", 0.6, on_cpu=True), bound("channels_last", 0.41)],
        # gains as good as equal are in the order of the steps
        [some("pinned_memory", 0.3, None, 1.7), some("dataloader_workers", 0.3, None, 1.49),
         some("no_hidden_syncs", 0.3, None, 1.52)],
        [some("no_hidden_syncs", 0.3, None, 1.6), some("dataloader_workers", 0.3, None, 1.49)],
        [some("fused_optimizer", 0.3, None, 1.03), some("mixed_precision", 0.3, None, 1.0)],  # not of gains that small
        # a wait that the trace shows comes before a guess about kernels that do not exist, unless half of it is more
        [some("dataloader_workers", 0.3, None, 1.3), some("compile", 0.3, None, 1.4)],
        [some("compile", 0.6, None, 2.5), some("dataloader_workers", 0.3, None, 1.3)],
        # a bigger batch by its cost, and after what is alike
        [some("cuda_graphs", 0.3, None, 1.3), some("bigger_batch", 0.02, None, 1.8)],
        [some("cuda_graphs", 0.3, None, 1.3), some("bigger_batch", 0.16, None, 1.8)],
        [some("bigger_batch", 0.4, None, 1.8), some("cuda_graphs", 0.3, None, 1.3)],
    ],
)  # fmt: skip
def test_advice_is_ranked_by_the_gain_that_is_nearly_sure(order):
    too_little = bound("prefetch_stream", 0.01)
    assert ranked([*order, too_little]) == ranked([too_little, *order[::-1]]) == order


def test_where_the_gpu_waits_for_itself_bounds_over_the_cpus_work_are_no_advice():
    kernels, explained = bound("mixed_precision", 0.3), some("cuda_graphs", 0.3, None, 1.4)
    assert despite_a_stall([bound("host_python", 0.3), kernels, bound("cuda_graphs", 0.2), explained]) == [
        kernels, explained
    ]  # fmt: skip

    def stalled(builder, begin):
        for call, start, us in ((5, 12, 100), (20, 600, 100), (900, 910, 90)):  # the second was launched long ago
            builder.launch("k", begin + call, 5, begin + start, us)

    result = advise(analyzed(repeated(stalled, steps=3)))
    assert any(advice.share_of_step > 0.1 for advice in result.costs)
    assert result.advice == []
    assert "the next one is launched already" in result.verdict


STEP = (  # 0-400 preparing, 400-800 the model with 250 of products and 20 of loss, 850-950 the optimizer
    ("aten::upsample_bilinear2d", 0, 100), ("aten::to", 100, 100), ("aten::div", 200, 100), ("aten::sub", 300, 100),
    ("aten::conv2d", 400, 100), ("aten::convolution", 410, 80), ("aten::batch_norm", 500, 80),
    ("aten::cross_entropy_loss", 580, 20), ("aten::convolution_backward", 600, 150),
    ("Optimizer.step#SGD.step", 850, 100), ("aten::add_", 860, 50),
)  # fmt: skip
COMPILED = (
    ("Torch-Compiled Region: 0/0", 200, 500), ("CompiledFunction", 210, 480),
    ("Optimizer.step#SGD.step", 800, 100), ("aten::_fused_sgd_", 810, 80),
)  # fmt: skip
CLOSURE = (  # the optimizer's call wraps all: Python until 400, the model until 700, the update until 900, and Python
    ("Optimizer.step#Adam.step", 0, 1000), ("aten::mm", 400, 100),
    ("autograd::engine::evaluate_function: MmBackward0", 500, 200), ("aten::mm", 510, 180),
    ("aten::addcdiv_", 700, 200),
)  # fmt: skip
TWICE = [(name, start / 2 + half, us / 2) for half in (0, 500) for name, start, us in CLOSURE[1:]]
LOADING = ("uint8_images", "dataloader_workers", "small_images", "data_on_device")
CONVERTING = (("aten::to", 40, 20), ("aten::div", 62, 30), ("aten::sub_", 94, 4))
WHOLE_STEP = {
    "compile": (ANY, 1000 / (1000 - (600 - 250 - 20 - 100))),  # to the step's end, without products, loss, optimizer
    "compile_loss": (ANY, 1000 / (1000 - 300 - 20)),
    "fused_optimizer": (ANY, 1000 / 900),
    "bigger_batch": ((1000 - 750 - 100 + 100) / 1000, None),  # Python, and the optimizer
}
KNOWN = {  # what runs: (trace, {cost: (its share of the step, how many times faster without it at most)})
    "images that are converted one by one": (
        # per image 40 µs without an operator, in which it is read and resized, and 58 of conversion; the last is short
        loaded_images(5, *CONVERTING),
        {"uint8_images": (5 * 0.058 + 0.002, None), "dataloader_workers": (0.5, None), "small_images": (0, None),
         "data_on_device": (0, None)},
    ),
    "images that the loader does not scale": (loaded_images(5, ("aten::to", 70, 5)), {"uint8_images": (0, 1)}),
    "a batch that is normalised after loading": (
        loaded_images(5, after=[("aten::div", 510, 20), ("aten::sub", 530, 20)]), {"uint8_images": (0, 1)}
    ),
    "workers": (  # they compete with the training for cores: no bound; all but Python is slower, waiting 0.5, work 0.3
        loaded_images(0, loader=WORKERS),
        {"dataloader_workers": (0, 1), "data_on_device": (0.8, None), "small_images": (0, None)},
    ),
    "workers, and batches that are resized after loading": (
        loaded_images(0, after=[("aten::upsample_bilinear2d", 520, 50)], loader=WORKERS), {"small_images": (0, 1)}
    ),
    "no loader": (cpu_step(("aten::conv2d", 100, 900)), dict.fromkeys(LOADING, (0, 1))),
    "a whole step": (cpu_step(*STEP), WHOLE_STEP),
    "two of them": (
        repeated(lambda builder, begin: operators(builder, *((name, begin + at, us) for name, at, us in STEP)),
                 steps=2, devices=()),
        WHOLE_STEP,
    ),
    "compiled code and a fused optimizer": (
        cpu_step(("aten::div", 0, 200), *COMPILED),
        {"compile": (0, 1), "fused_optimizer": (0, 1), "compile_loss": (0.2, 1000 / 800)},
    ),
    "compiled code that prepares": (
        cpu_step(("aten::upsample_bilinear2d", 0, 200), *COMPILED), {"compile_loss": (0, 1)}
    ),
    "recurrent layers in one call": (  # are products: of their 800 µs nothing is fused
        cpu_step(("aten::mkldnn_rnn_layer", 0, 300), ("aten::mkldnn_rnn_layer_backward", 350, 500),
                 ("aten::tanh", 300, 50), length=900),
        {"compile": (100 / 900, 900 / 800)},
    ),
    "an optimizer that wraps a closure": (
        cpu_step(*CLOSURE),
        {"fused_optimizer": (0.3, ANY), "host_python": (0.4, ANY), "bigger_batch": (0.3, None)},  # without the pause
    ),
    "a closure that runs twice": (
        cpu_step(CLOSURE[0], *TWICE),
        {"fused_optimizer": (0.15, ANY), "compile": ((800 - 2 * 140 - 150 - 250) / 1000, ANY)},
    ),
    "a GPU's optimizer": (  # the last two kernels are launched in it
        gpu_step([(10, 12, 688), (810, 812, 38), (860, 870, 30)], ("aten::conv2d", 0, 100),
                 ("Optimizer.step#SGD.step", 800, 100)),
        {"fused_optimizer": ((38 + 30 + 12 + 20) / 1000, ANY)},
    ),
    "a GPU's fused optimizer": (
        gpu_step([(10, 12, 688), (810, 812, 38)], ("Optimizer.step#SGD.step", 800, 100), ("aten::_fused_sgd_", 805, 9)),
        {"fused_optimizer": (0, 1)},
    ),
    "a GPU's closure": (  # only the last kernel is launched after the backward pass
        gpu_step([(10, 12, 688), (810, 812, 38), (860, 870, 30)], ("Optimizer.step#Adam.step", 0, 1000),
                 ("aten::conv2d", 0, 100), ("autograd::engine::evaluate_function: ConvolutionBackward0", 800, 50)),
        {"fused_optimizer": ((30 + 20 + 100) / 1000, ANY)},
    ),
    "a GPU that normalises and computes the loss": (  # the last division is after the model has begun
        gpu_step([(10, 20, 80), (110, 120, 80), (210, 220, 280), (510, 520, 30), (610, 620, 380)],
                 ("aten::div", 0, 100), ("aten::sub", 100, 100), ("aten::conv2d", 200, 100),
                 ("aten::cross_entropy_loss", 500, 100), ("aten::div", 600, 100)),
        {"compile_loss": ((80 + 80 + 30 + 40 + 20 + 50) / 1000, ANY), "uint8_images": (0, 1)},
    ),
    "a GPU that copies images": (  # which is no part of preparing them
        copying(10_000), {"compile_loss": ((10 + 10) / 1000, ANY), "uint8_images": (0.18, 1 / (1 - 0.18 * 0.75))}
    ),
    "a GPU that copies less than an image": (copying(9_999), {"uint8_images": (0, 1)}),
    "a GPU that waits for workers": (
        gpu_step([(500, 510, 490)], load=400), {"dataloader_workers": (0, 1), "more_workers": (0.4, 1000 / 600)}
    ),
    "a GPU that waits for launches": (  # but for 2 x 28 µs from 20 after a call on
        gpu_step([(100, 150, 400), (600, 650, 350)], ("aten::mm", 0, 900)),
        {"compile": (0.25 - 0.056, ANY), "cuda_graphs": (0.25 - 0.056, ANY)},
    ),
    "a GPU whose kernels most are a graph's": (
        gpu_step([(100, 150, 400), (600, 650, 350)], ("aten::mm", 0, 900), graphs=(550, 560, 570)),
        {"compile": (0, 1), "cuda_graphs": (0, 1)},
    ),
    "two steps": (  # a bigger batch: 90 µs of launches, and half the SMs idle
        two_steps(),
        {"dataloader_workers": (0.2, 1000 / 800), "mixed_precision": (0.4, 1000 / 600), "compile": (0.09, ANY),
         "pinned_memory": (0.05, 1000 / 950), "uint8_images": (ANY, 1 / (1 - 0.05 * 0.75)),
         "bigger_batch": (0.09 + 0.2, None), "channels_last": (ANY, None), "data_on_device": (ANY, None),
         "cudnn_benchmark": (0, None), "data_parallel": (0, None)},
    ),
    "two steps with workers": (
        with_workers(), {"small_images": (ANY, 1000 / 750), "data_on_device": (ANY, 1000 / 750)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_each_cost_has_its_share_of_the_step_and_its_bound(name):
    builder, expected = KNOWN[name]
    found = costs(builder)
    for cost, (share, gain) in expected.items():
        assert share is ANY or found[cost].share_of_step == approx(share), cost
        assert gain is ANY or found[cost].predicted_gain == (gain and approx(gain)), cost


def recorded(builder, cores, workers, **more):
    """The same, as `walkthrough trace` records it on so many cores with a loader of so many workers."""
    builder.header["walkthrough"] = {"cores": cores, "loaders": [{"num_workers": workers}], **more}
    return builder


WAITING = {"workers_cpu": 0.2}  # of their time, workers compute


@pytest.mark.parametrize(
    ("cores", "workers", "known", "found"),
    [
        (8, 2, {}, [("more_workers", None), ("less_per_batch", None)]),  # cores are left, for all anyone knows
        (3, 2, {}, [("less_per_batch", None)]),
        # workers that wait for other than a core may be more than cores
        (2, 2, WAITING, [("more_workers", 2)]),
        (2, 2, WAITING | {"cpu_waiting": 0.09}, [("more_workers", 2)]),
        (2, 2, WAITING | {"cpu_waiting": 0.1}, [("less_per_batch", None)]),
        # for a training that sleeps half of the time in which it waits for them
        (2, 2, WAITING | {"asleep": 0.25}, [("more_workers", 2)]),
        (2, 2, WAITING | {"asleep": 0.24}, []),
    ],
)
def test_more_workers_are_advised_where_cores_are_left_or_workers_need_none(cores, workers, known, found):
    builder = recorded(loaded_images(0, loader=WORKERS), cores, workers, **known)
    advice = of_ids(builder, "more_workers", "less_per_batch")
    assert [(item.id, item.predicted_gain) for item in advice] == [
        (name, gain and approx(gain)) for name, gain in found
    ]
    assert all("compute for 20% of the time" in item.why for item in advice if item.predicted_gain)


@pytest.mark.parametrize(("cores", "name", "gain"), [(8, "more_workers", 2), (2, "less_per_batch", None)])
def test_so_it_is_on_a_gpu(cores, name, gain):
    builder = recorded(gpu_step([(510, 512, 400)], ("aten::mm", 505, 10), load=500), cores, 4)
    [advice] = of_ids(builder, "more_workers", "less_per_batch")
    assert (advice.id, advice.share_of_step, advice.predicted_gain) == (name, approx(0.5), gain and approx(gain))


SPINNING = {"threads": 2, "cpu_waiting": 0.6}


@pytest.mark.parametrize(
    ("workers", "cores", "known", "found"),
    [
        (1, 2, SPINNING, True),
        (1, 2, SPINNING | {"openmp": {"OMP_WAIT_POLICY": "passive"}}, False),
        (1, 2, SPINNING | {"threads": 1}, False),
        (1, 2, SPINNING | {"cpu_waiting": 0.39}, False),
        (1, 2, SPINNING | {"cpu_waiting": 1.1}, False),  # no share
        (1, 2, {"threads": 2}, False),
        (0, 2, SPINNING, False),
        (1, 3, SPINNING, False),
        (1, 4, SPINNING | {"processes": 2}, True),
    ],
)
def test_threads_that_spin_beside_workers_are_an_advice_where_the_training_lacks_cores(workers, cores, known, found):
    advice = of_ids(recorded(loaded_images(0, loader=WORKERS), cores, workers, **known), "spinning_threads")
    assert [(item.predicted_gain, item.share_of_step) for item in advice] == [(None, 0.6)] * found
    assert all("for 60% of" in item.why and "OMP_WAIT_POLICY=PASSIVE" in item.do for item in advice)


@pytest.mark.parametrize(
    ("marks", "why", "do"),
    [
        (["Adam"], "Optimizer.step takes 400 us", "create the optimizer with fused=True"),
        (["RMSprop"], "torch has no fused RMSprop", ""),
        (["RMSprop", "SGD"], "Optimizer.step takes 400 us", "create the optimizer with fused=True"),
        (["Lamb"], "Optimizer.step takes 400 us", "fused=True, if it is or wraps torch's Adam"),
    ],
)
def test_only_optimizers_that_have_a_fused_form_are_to_be_fused(marks, why, do):
    rows = [(f"Optimizer.step#{name}.step", 500 + 200 * at, 400 // len(marks)) for at, name in enumerate(marks)]
    cost = costs(cpu_step(("aten::mm", 0, 500), *rows))["fused_optimizer"]
    assert why in cost.why and cost.do.startswith(do) and bool(cost.do) == bool(do)
    assert cost.predicted_gain == (approx(1 / 0.6) if do else 1)


@pytest.mark.parametrize(
    ("count", "foreach", "do"),
    [(10, False, "create the optimizer with foreach=True"), (9, False, "its kernels are few"), (10, True, "")],
)
def test_on_a_gpu_foreach_is_named_where_the_trace_does_without(count, foreach, do):
    rows = [("aten::mm", 0, 100), ("Optimizer.step#RMSprop.step", 700, 200), ("aten::addcdiv_", 700, 100)]
    kernels = [(10, 12, 688), *((at, at + 2, 8) for at in range(710, 710 + 10 * count, 10))]
    cost = costs(gpu_step(kernels, *rows, *[("aten::_foreach_add_", 800, 50)] * foreach))["fused_optimizer"]
    assert cost.do.startswith(do)
    assert (bool(cost.do), "no fused RMSprop" in cost.why) == (not foreach, foreach)


def test_the_table_of_operators_leaves_out_what_only_wraps_a_closure():
    result = analyzed(cpu_step(*CLOSURE))
    assert [(row.name, row.us) for row in result.operators[:2]] == [("aten::mm", 280), ("aten::addcdiv_", 200)]
    assert result.steps.mean_breakdown_us["cpu_exec"] == 600  # the plugin counts all of the mark: 1000
    kernels = [(10, 12, 688), (810, 812, 38), (860, 870, 30)]
    on_gpu = gpu_step(kernels, CLOSURE[0], ("autograd::engine::evaluate_function: MmBackward0", 800, 50))
    assert analyzed(on_gpu).kinds_us["optimizer"] == approx(30)


def test_python_functions_between_a_cpus_operators_are_named():
    builder = cpu_step(("aten::mm", 0, 500))
    builder.add("python_function", "train.py(10): main", 0, 1000)
    builder.add("python_function", "data.py(77): augment", 550, 400)
    builder.add("python_function", "threading.py(1): wait", 0, 1000, tid=9)  # of another thread
    advice = advise(analyzed(builder)).advice[0]
    assert (advice.id, advice.predicted_gain) == ("host_python", approx(2))
    assert advice.why.endswith("no operator runs: data.py(77): augment 400 us; train.py(10): main 100 us")
    assert [len(of_ids(cpu_step(("aten::mm", 0, us)), "host_python")) for us in (901, 899)] == [0, 1]
    short = cpu_step(*[("aten::mm", start, 50) for start in range(0, 1000, 100)])
    [python] = of_ids(short, "host_python")
    assert python.share_of_step == costs(short)["bigger_batch"].share_of_step == approx(0.5)
    assert "loader" not in python.why and "--stacks" in python.do


def gloo_step(*collectives, waits=()):
    """1000 µs on a CPU that trains until 500 and updates from 900 on. collectives: (name, start, duration)."""
    builder = cpu_step(("aten::mm", 0, 500), ("aten::add_", 900, 100), *waits)
    for name, start, duration in collectives:
        builder.add("annotation", name, start, duration, tid=5)
    return builder


def test_collectives_of_gloo_are_exposed_where_no_operator_runs():
    around = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 500, 400), ("c10d::all", 500, 50)
    result = analyzed(gloo_step(("gloo:all_reduce", 300, 300), ("gloo:all_reduce", 600, 250), waits=around))
    own = result.communication
    assert (own.count, own.us, own.hidden_us, own.exposed_us) == (2, 550, 200, 350)
    advised = advise(result)
    assert [(item.id, item.share_of_step, item.predicted_gain) for item in advised.advice[:2]] == [
        ("slowest_rank", approx(0.35), None), ("overlap_communication", approx(0.35), ANY)
    ]  # fmt: skip
    assert "2 collectives per step, 275 us on average" in advised.advice[1].why
    assert advised.verdict.startswith("55% of the step is communication, 45% is operators on the CPU (50")
    assert {item.id: item for item in advised.costs}["compile"].share_of_step == approx(0.15)  # from 850 on
    assert [len(of_ids(gloo_step(("gloo:all_reduce", 600, us)), "slowest_rank")) for us in (99, 100)] == [0, 1]
    assert "overlap_communication" not in costs(gloo_step())
    assert of_ids(gloo_step(("gloo:barrier", 100, 300)), "overlap_communication") == []


def test_setting_up_inside_the_first_operators_is_not_what_compiling_them_saves():
    builder = gpu_step([(750, 760, 240)], ("aten::to", 0, 700), ("aten::conv2d", 740, 20))
    builder.add("runtime", "cudaMalloc", 10, 480, correlation=-2)
    assert costs(builder)["compile_loss"].share_of_step <= (760 - 480) / 1000
