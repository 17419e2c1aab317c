"""Advice for each step of the ladder, each cost on a trace small enough to compute by hand."""

import pytest
from support import ROOT, STEPS
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.advice.catalogue import BY_ID, COSTS, Advice
from walkthrough.advice.evidence import bounded
from walkthrough.advice.gains import advise, despite_a_stall, ranked
from walkthrough.advice.kernel_costs import shortest_us
from walkthrough.terminal import counted
from walkthrough.trace.analysis import analyze
from walkthrough.trace.idle import CAUSES

LADDER = [path.stem for path in STEPS[1:]]
WORKERS = "_MultiProcessingDataLoaderIter"


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def advised(analysis, step):
    return next(advice for advice in advise(analysis).costs if advice.step == step)


def operators(builder, *rows):
    """Add operators: (name, start, duration)."""
    for row in rows:
        builder.op(*row)
    return builder


BACKWARD = ("autograd::engine::evaluate_function: MmBackward0", 0, 0)  # without it, an inference


def cpu_step(*rows, length=1000):
    """One training step on a CPU with these operators: (name, start, duration)."""
    builder = TraceBuilder(devices=())
    builder.step(1, 0, length)
    return operators(builder, BACKWARD, *rows)


def loaded_images(count, *each, start=0, every=100, loader="_SingleProcessDataLoaderIter"):
    """A step on a CPU that loads `count` images until 500, one `every` µs, with operators: (name, start, duration)."""
    builder = cpu_step(("aten::conv2d", 600, 300))
    builder.loading(0, 500, loader)
    for image in range(count):
        for name, begin, duration in each:
            builder.op(name, start + image * every + begin, duration)
    return builder


def gpu_step(kernels, *rows):
    """One training step of 1000 µs on a GPU. kernels: (call's start, kernel's start, duration); rows: operators."""
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    for call, start, duration in kernels:
        builder.launch("k", call, 2, start, duration)
    return operators(builder, BACKWARD, *rows)


@pytest.mark.parametrize(
    "builder",
    [two_steps(), two_steps("2021"), cpu_step(("aten::mm", 0, 500)), loaded_images(5, loader=WORKERS)],
    ids=["gpu", "gpu 2021", "cpu", "cpu with workers"],
)
def test_each_step_of_the_ladder_has_one_advice_with_a_reason(analysis, builder):
    advice = advise(analysis(builder)).costs
    assert sorted(item.step for item in advice if item.step) == LADDER
    assert all(item.why for item in advice)


def test_a_recorded_trace_of_a_cpu_has_one_advice_for_each_step_too():
    advice = advise(analyze(ROOT / "tests" / "data" / "cpu.pt.trace.json.gz")).costs
    assert sorted(item.step for item in advice if item.step) == LADDER
    assert all(item.predicted_gain is None or item.predicted_gain >= 1 for item in advice)


def test_every_cost_has_an_id_of_its_own_and_is_about_gaps_with_a_known_cause_or_about_none():
    assert len(BY_ID) == len(COSTS)
    assert {cause for cost in COSTS for cause in cost.idle} < set(CAUSES)
    assert {cost.id for cost in COSTS if cost.title and not cost.idle and not cost.where} == WITHOUT_A_GAP
    assert [cost.step for cost in COSTS if cost.step] == LADDER


# Advice that is about no gap of a GPU: kernels become faster or fewer, or nothing in a trace shows it.
WITHOUT_A_GAP = {"mixed_precision", "channels_last", "cudnn_benchmark", "data_parallel", "fused_attention"}
WITHOUT_A_GAP |= {"spinning_threads"}


def some(name, share, gain=None, estimate=None):
    """An `Advice` on that cost."""
    return Advice(BY_ID[name].step, "t", "w", share, gain, estimate, id=name, error=BY_ID[name].error)


def some_bounded(name, share):
    return some(name, share, bounded("w", share).gain)


def test_a_cost_without_a_bound_ranks_by_its_share():
    unknown = some("compile", 0.3)  # half of which is sure
    larger, smaller = some_bounded("uint8_images", 0.4), some_bounded("pinned_memory", 0.2)
    assert ranked([some("mixed_precision", 0.0), smaller, unknown, larger]) == [larger, smaller, unknown]


def test_where_the_gpu_waits_for_itself_bounds_over_the_cpus_work_are_no_advice(analysis):
    kernels = some_bounded("mixed_precision", 0.3)
    python, launches = some_bounded("host_python", 0.3), some_bounded("cuda_graphs", 0.2)
    explained = some("cuda_graphs", 0.3, None, 1.4)
    assert despite_a_stall([python, kernels, launches, explained]) == [kernels, explained]

    builder = TraceBuilder()
    for number in range(3):
        begin = number * 1000
        builder.step(number, begin, 1000)
        builder.launch("k", begin + 5, 5, begin + 12, 100)
        builder.launch("k", begin + 20, 5, begin + 600, 100)  # launched long ago
        builder.launch("k", begin + 900, 5, begin + 910, 90)  # and one that the CPU launched late
    result = analysis(builder)
    assert any(advice.share_of_step > 0.1 for advice in advise(result).costs)
    assert "the next one is launched already" in advise(result).verdict
    assert advise(result).advice == []


def test_gains_as_good_as_equal_are_in_the_order_of_the_steps():
    def estimated(name, gain):
        return some(name, 0.3, None, gain)

    later, earlier, best = (
        estimated("no_hidden_syncs", 1.52),
        estimated("dataloader_workers", 1.49),
        estimated("pinned_memory", 1.7),
    )
    assert ranked([later, earlier, best]) == [best, earlier, later]
    assert ranked([estimated("no_hidden_syncs", 1.6), earlier])[0].id == "no_hidden_syncs"
    least, less = estimated("mixed_precision", 1.0), estimated("fused_optimizer", 1.03)
    assert ranked([least, less]) == [less, least]  # of gains that small the estimate alone decides


def test_a_wait_that_the_trace_shows_comes_before_a_guess_about_kernels_that_do_not_exist():
    waiting, guessed = some("dataloader_workers", 0.3, None, 1.3), some("compile", 0.3, None, 1.4)
    assert ranked([guessed, waiting]) == [waiting, guessed]
    assert ranked([some("compile", 0.6, None, 2.5), waiting])[0].id == "compile"  # half of it is more


def test_a_bigger_batch_is_ranked_by_its_cost():
    def bigger(share):
        return some("bigger_batch", share, None, 1.8)

    other = some("cuda_graphs", 0.3, None, 1.3)
    assert ranked([bigger(0.02), other]) == [other, bigger(0.02)]
    assert ranked([bigger(0.16), other]) == [other, bigger(0.16)]  # alike
    assert ranked([bigger(0.4), other]) == [bigger(0.4), other]


# On a CPU.


def test_images_converted_one_by_one_are_to_be_loaded_as_uint8(analysis):
    """Per image: 40 µs without an operator, in which it is read and resized, then 20 + 2 + 30 + 2 + 4 of conversion."""
    each = (("aten::to", 40, 20), ("aten::div", 62, 30), ("aten::sub_", 94, 4))
    builder = loaded_images(5, *each)
    result = analysis(builder)
    converting = advised(result, "03_reduced_h2d_copy")
    assert converting.share_of_step == pytest.approx(5 * (100 - 42) / 1000 + 0.002)  # the last pause is short
    assert converting.predicted_gain is None
    loading = advised(result, "04_multiprocess_loading")
    assert (loading.share_of_step, loading.predicted_gain) == (pytest.approx(0.5), None)
    assert [advice.step for advice in advise(result).advice[:2]] == ["04_multiprocess_loading", "03_reduced_h2d_copy"]
    for step in ("07_small_images", "08_on_device_data"):  # first use DataLoader workers
        assert (advised(result, step).share_of_step, advised(result, step).predicted_gain) == (0, None)


def test_images_that_the_loader_does_not_scale_are_uint8_already(analysis):
    result = analysis(loaded_images(5, ("aten::permute", 60, 5), ("aten::to", 70, 5)))
    assert advised(result, "03_reduced_h2d_copy").predicted_gain == 1
    assert "03_reduced_h2d_copy" not in [advice.step for advice in advise(result).advice]


def test_a_batch_that_is_normalised_after_loading_crosses_as_uint8(analysis):
    prepared = (("aten::div", 510, 20), ("aten::sub", 530, 20))
    result = analysis(operators(loaded_images(5), *prepared))
    assert advised(result, "03_reduced_h2d_copy").predicted_gain == 1


def test_workers_on_a_cpu_compete_with_the_training_so_that_less_work_for_them_has_no_bound(analysis):
    result = analysis(loaded_images(0, loader=WORKERS))
    assert advised(result, "04_multiprocess_loading").predicted_gain == 1  # they load already
    advice = advise(result).advice[0]
    assert advice.step == "08_on_device_data"
    assert advice.share_of_step == pytest.approx(0.8)  # all but Python: waiting 0.5, the convolution 0.3
    assert advice.predicted_gain is None
    assert advised(result, "07_small_images").share_of_step == 0  # nobody knows whether workers enlarge images
    assert "try first: Prepare a batch at once. The gain cannot be estimated here" in advise(result).verdict


def test_workers_that_keep_up_leave_nothing_to_load_faster(analysis):
    builder = cpu_step(("aten::conv2d", 10, 900))
    builder.loading(0, 10, WORKERS)
    result = analysis(builder)
    assert not {"07_small_images", "08_on_device_data"} & {advice.step for advice in advise(result).advice}


def test_small_images_are_not_advised_where_batches_are_resized_already(analysis):
    result = analysis(operators(loaded_images(0, loader=WORKERS), ("aten::upsample_bilinear2d", 520, 50)))
    assert advised(result, "07_small_images").predicted_gain == 1
    assert advise(result).advice[0].step == "08_on_device_data"


def test_without_a_loader_nothing_about_loading_is_advised(analysis):
    result = analysis(cpu_step(("aten::index", 0, 100), ("aten::conv2d", 100, 900)))
    for step in ("03_reduced_h2d_copy", "04_multiprocess_loading", "07_small_images", "08_on_device_data"):
        assert advised(result, step).predicted_gain == 1


STEP = (  # 100-400 preparing, 400-800 the model with 250 of products and 20 of loss, 850-950 the optimizer
    ("aten::upsample_bilinear2d", 0, 100),
    ("aten::to", 100, 100),
    ("aten::div", 200, 100),
    ("aten::sub", 300, 100),
    ("aten::conv2d", 400, 100),
    ("aten::convolution", 410, 80),
    ("aten::batch_norm", 500, 80),
    ("aten::cross_entropy_loss", 580, 20),
    ("aten::convolution_backward", 600, 150),
    ("Optimizer.step#SGD.step", 850, 100),
    ("aten::add_", 860, 50),
)


def test_compiling_removes_at_most_what_is_between_convolutions_and_the_rest_of_it_normalisation_and_loss(analysis):
    result = analysis(cpu_step(*STEP))
    model = 600 - 250 - 20 - 100  # to the end of the step, without products, loss and optimizer
    assert advised(result, "13_compile").predicted_gain == pytest.approx(1000 / (1000 - model))
    assert advised(result, "14_compile_loss").predicted_gain == pytest.approx(1000 / (1000 - 300 - 20))
    assert advised(result, "11_fused_optimizer").predicted_gain == pytest.approx(1000 / 900)
    per_step = advised(result, "02_bigger_batch")
    assert per_step.share_of_step == pytest.approx((1000 - 750 - 100 + 100) / 1000)  # Python, and the optimizer
    assert per_step.predicted_gain is None


def test_steps_are_prepared_each_for_itself(analysis):
    builder = TraceBuilder(devices=())
    for begin in (0, 1000):
        builder.step(begin, begin, 1000)
        operators(builder, *((name, begin + start, duration) for name, start, duration in STEP))
    once, twice = analysis(cpu_step(*STEP)), analysis(builder)
    for step in ("02_bigger_batch", "11_fused_optimizer", "13_compile", "14_compile_loss"):
        assert advised(twice, step).share_of_step == pytest.approx(advised(once, step).share_of_step)


def test_what_is_compiled_or_fused_already_is_not_advised_again(analysis):
    compiled = (
        ("aten::div", 0, 200),
        ("Torch-Compiled Region: 0/0", 200, 500),
        ("CompiledFunction", 210, 480),
        ("Optimizer.step#SGD.step", 800, 100),
        ("aten::_fused_sgd_", 810, 80),
    )
    result = analysis(cpu_step(*compiled))
    assert advised(result, "13_compile").predicted_gain == 1
    assert advised(result, "11_fused_optimizer").predicted_gain == 1
    assert advised(result, "14_compile_loss").predicted_gain == pytest.approx(1000 / 800)
    whole = analysis(cpu_step(("aten::upsample_bilinear2d", 0, 200), *compiled[1:]))
    assert advised(whole, "14_compile_loss").predicted_gain == 1


def test_a_cpu_that_only_computes_is_called_compute_bound(analysis):
    result = analysis(cpu_step(("aten::conv2d", 0, 950)))
    assert advise(result).verdict.startswith(
        "compute-bound: 95% of the step is operators on the CPU, 100% of their time aten::conv2d; biggest possible"
    )
    assert advise(analysis(cpu_step(*STEP))).verdict.endswith(
        "biggest possible gain: Compile normalisation and loss, at most 1.47x"
    )


def recorded(builder, cores, workers, **more):
    """The same, as `walkthrough trace` records it on so many cores with a loader of so many workers."""
    builder.header["walkthrough"] = {"cores": cores, "loaders": [{"num_workers": workers}], **more}
    return builder


def test_on_a_cpu_loading_in_processes_has_no_bound_and_names_the_cores(analysis):
    advice = advise(analysis(loaded_images(5))).advice[0]
    assert (advice.step, advice.share_of_step) == ("04_multiprocess_loading", pytest.approx(0.5))
    assert advice.predicted_gain is None
    assert "waits 500 us" in advice.why and "measure with `walkthrough time`" in advice.do
    assert "may use" not in advice.do
    assert "(this process may use 2 cores)" in advise(analysis(recorded(loaded_images(5), 2, 0))).advice[0].do
    assert "(this process may use 1 core)" in advise(analysis(recorded(loaded_images(5), 1, 0))).advice[0].do


@pytest.mark.parametrize(("cores", "workers", "more"), [(8, 2, True), (3, 2, False), (2, 8, False), (8, 0, False)])
def test_more_workers_on_a_cpu_are_advised_where_cores_are_left_and_have_no_bound(analysis, cores, workers, more):
    result = analysis(recorded(loaded_images(0, loader=WORKERS), cores, workers))
    advice = [item for item in advise(result).advice if item.title == "Use more DataLoader workers"]
    assert [item.predicted_gain for item in advice] == [None] * more
    assert all("this process may use 8 cores" in item.do and "2 worker processes" in item.why for item in advice)


def of_ids(analysis, *ids):
    """The advice worth following of these costs, in order."""
    return [item for item in advise(analysis).advice if item.id in ids]


@pytest.mark.parametrize(
    ("workers_cpu", "cpu_waiting", "more"),
    [(0.2, None, True), (0.2, 0.05, True), (0.7, 0.05, False), (None, None, False), (0.2, 0.5, False)],
)
def test_workers_that_wait_for_other_than_a_core_may_be_more_than_cores(analysis, workers_cpu, cpu_waiting, more):
    known = {"workers_cpu": workers_cpu, "cpu_waiting": cpu_waiting}
    result = analysis(recorded(loaded_images(0, loader=WORKERS), 2, 2, **known))
    advice = of_ids(result, "more_workers", "less_per_batch")
    assert [(item.id, item.predicted_gain) for item in advice] == (
        [("more_workers", pytest.approx(2))] if more else [("less_per_batch", None)]
    )
    assert all(len(item.do) < 95 for item in advice if not more)  # one line of the verdict
    assert all("compute for 20% of the time" in item.why for item in advice if more)
    assert all("than there are cores" in item.do for item in advice if more)


@pytest.mark.parametrize(("asleep", "more"), [(0.4, True), (0.1, False), (None, True)])
def test_more_workers_are_for_a_training_that_sleeps_while_it_waits_for_them(analysis, asleep, more):
    result = analysis(recorded(loaded_images(0, loader=WORKERS), 2, 2, workers_cpu=0.03, asleep=asleep))
    advice = of_ids(result, "more_workers", "less_per_batch")
    assert [item.id for item in advice] == ["more_workers"] * more


def test_on_a_gpu_too_workers_that_wait_may_be_more_than_cores(analysis):
    def waiting(**more):
        builder = gpu_step([(510, 512, 400)], ("aten::mm", 505, 10))
        builder.loading(0, 500, WORKERS)
        return of_ids(analysis(recorded(builder, 2, 4, **more)), "more_workers", "less_per_batch")

    assert [item.id for item in waiting()] == ["less_per_batch"]
    [advice] = waiting(workers_cpu=0.1)
    assert advice.id == "more_workers" and "compute for 10% of the time" in advice.why


def test_a_gpu_that_only_copies_has_no_shortest_kernel(analysis):
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    builder.copy(10, 20, 40, 10, 4096)
    assert shortest_us(analysis(builder)) == 0.0


SPINNING = {"threads": 2, "cpu_waiting": 0.6}


@pytest.mark.parametrize(
    ("workers", "cores", "known", "found"),
    [
        (1, 2, SPINNING, True),
        (1, 2, SPINNING | {"openmp": {"OMP_WAIT_POLICY": "ACTIVE"}}, True),
        (1, 2, SPINNING | {"openmp": {"OMP_WAIT_POLICY": "passive"}}, False),
        (1, 2, SPINNING | {"openmp": {"GOMP_SPINCOUNT": "1000"}}, False),
        (1, 2, SPINNING | {"openmp": {"KMP_BLOCKTIME": "0"}}, False),
        (1, 2, SPINNING | {"threads": 1}, False),
        (1, 2, SPINNING | {"cpu_waiting": 0.25}, False),  # where spinning was found to be as good
        (1, 2, {"threads": 2}, False),
        (0, 2, SPINNING, False),
        (1, 3, SPINNING, False),
        (1, 4, SPINNING | {"processes": 2}, True),
    ],
)
def test_threads_that_spin_beside_workers_are_an_advice_where_the_training_lacks_cores(
    analysis, workers, cores, known, found
):
    result = analysis(recorded(loaded_images(0, loader=WORKERS), cores, workers, **known))
    advice = of_ids(result, "spinning_threads")
    assert [(item.predicted_gain, item.share_of_step) for item in advice] == [(None, 0.6)] * found
    assert all("for 60% of" in item.why and "OMP_WAIT_POLICY=PASSIVE" in item.do for item in advice)
    unrecorded = loaded_images(0, loader=WORKERS)
    assert not of_ids(analysis(unrecorded), "spinning_threads")


@pytest.mark.parametrize(
    ("marks", "why", "do"),
    [
        (["Adam"], "Optimizer.step takes 400 us", "create the optimizer with fused=True"),
        (["Adagrad"], "Optimizer.step takes 400 us", "create the optimizer with fused=True"),
        (["RMSprop"], "torch has no fused RMSprop", ""),
        (["LBFGS", "SparseAdam"], "torch has no fused LBFGS and no fused SparseAdam", ""),
        (["RMSprop", "SGD"], "Optimizer.step takes 400 us", "create the optimizer with fused=True"),
        (["Lamb"], "Optimizer.step takes 400 us", "fused=True, if it is or wraps torch's Adam"),
    ],
)
def test_only_optimizers_that_have_a_fused_form_are_to_be_fused(analysis, marks, why, do):
    rows = [(f"Optimizer.step#{name}.step", 500 + 200 * at, 400 // len(marks)) for at, name in enumerate(marks)]
    cost = advised(analysis(cpu_step(("aten::mm", 0, 500), *rows)), "11_fused_optimizer")
    assert why in cost.why and cost.do.startswith(do) and bool(cost.do) == bool(do)
    assert cost.predicted_gain == (pytest.approx(1 / 0.6) if do else 1)


@pytest.mark.parametrize(("foreach", "do"), [(False, "create the optimizer with foreach=True"), (True, "")])
def test_on_a_gpu_foreach_is_named_where_the_trace_does_without(analysis, foreach, do):
    rows = [("aten::mm", 0, 100), ("Optimizer.step#RMSprop.step", 700, 200), ("aten::addcdiv_", 700, 100)]
    kernels = [(10, 12, 688), *((at, at + 2, 8) for at in range(710, 890, 10))]
    builder = gpu_step(kernels, *rows, *[("aten::_foreach_add_", 800, 50)] * foreach)
    cost = advised(analysis(builder), "11_fused_optimizer")
    assert (cost.do, "no fused RMSprop" in cost.why) == (do, foreach)


def test_recurrent_layers_in_one_call_are_matrix_work_that_nothing_fuses(analysis):
    layers = [
        ("aten::mkldnn_rnn_layer", 0, 300),
        ("aten::mkldnn_rnn_layer_backward", 350, 500),
        ("aten::tanh", 300, 50),
    ]
    compiling = advised(analysis(cpu_step(*layers, length=900)), "13_compile")
    assert compiling.share_of_step == pytest.approx(100 / 900)  # of the 800 us of the layers nothing
    assert "800 us" in compiling.why


def test_a_cost_that_shares_cores_or_changes_the_training_comes_after_a_sure_gain(analysis):
    rows = [("aten::mm", 200, 300), ("Optimizer.step#SGD.step", 850, 115)]
    builder = cpu_step(*rows, *[("aten::add", at, 1) for at in range(500, 850, 50)])
    builder.loading(0, 160)
    order = [item.id for item in of_ids(analysis(builder), "fused_optimizer", "dataloader_workers", "bigger_batch")]
    assert order == ["fused_optimizer", "dataloader_workers", "bigger_batch"]


CLOSURE = (  # the optimizer's call wraps all: Python until 400, the model until 700, the update until 900, and Python
    ("Optimizer.step#Adam.step", 0, 1000),
    ("aten::mm", 400, 100),
    ("autograd::engine::evaluate_function: MmBackward0", 500, 200),
    ("aten::mm", 510, 180),
    ("aten::addcdiv_", 700, 200),
)


def test_an_optimizer_that_wraps_a_closure_is_what_follows_its_backward_pass(analysis):
    result = analysis(cpu_step(*CLOSURE, length=1000))
    assert advised(result, "11_fused_optimizer").share_of_step == pytest.approx(0.3)
    assert result.steps.mean_breakdown_us["cpu_exec"] == 600  # the plugin counts all of the mark: 1000
    assert [(operator.name, operator.us) for operator in result.operators[:2]] == [
        ("aten::mm", 280), ("aten::addcdiv_", 200)
    ]  # fmt: skip
    assert advise(result).verdict.startswith(
        "60% of the step is operators on the CPU, 56% of their time aten::mm; biggest possible gain: Reduce Python"
    )
    python = advise(result).advice[0]
    assert (python.title, python.share_of_step) == ("Reduce Python overhead", pytest.approx(0.4))
    assert python.why.endswith("no operator runs: Python, most likely")
    assert "walkthrough trace --stacks" in python.do
    assert advised(result, "02_bigger_batch").share_of_step == pytest.approx(0.3)  # without the pause


def test_an_optimizer_that_multiplies_matrices_itself_wraps_no_closure(analysis):
    rows = (("aten::mm", 0, 500), ("Optimizer.step#Shampoo.step", 500, 400), ("aten::mm", 500, 300))
    result = analysis(cpu_step(*rows))
    assert advised(result, "11_fused_optimizer").share_of_step == pytest.approx(0.4)
    assert "Optimizer.step#Shampoo.step" in [operator.name for operator in result.operators]


def test_a_closure_that_runs_twice_ends_with_its_last_backward_pass(analysis):
    rows = [(name, start / 2 + half, us / 2) for half in (0, 500) for name, start, us in CLOSURE[1:]]
    result = analysis(cpu_step(CLOSURE[0], *rows))
    assert advised(result, "11_fused_optimizer").share_of_step == pytest.approx(0.15)
    compiling = advised(result, "13_compile")  # from 200 on: no products, no optimizer, no pause
    assert compiling.share_of_step == pytest.approx((800 - 2 * 140 - 150 - 250) / 1000)


def test_python_functions_between_a_cpus_operators_are_named(analysis):
    builder = cpu_step(("aten::mm", 0, 500))
    builder.add("python_function", "train.py(10): main", 0, 1000)
    builder.add("python_function", "data.py(77): augment", 550, 400)
    builder.add("python_function", "threading.py(1): wait", 0, 1000, tid=9)  # of another thread
    advice = advise(analysis(builder)).advice[0]
    assert advice.title == "Reduce Python overhead"
    assert advice.predicted_gain == pytest.approx(2)
    assert advice.why.endswith("no operator runs: data.py(77): augment 400 us; train.py(10): main 100 us")


def test_little_python_and_python_in_short_pauses_is_no_loader(analysis):
    assert "Reduce Python overhead" not in [
        advice.title for advice in advise(analysis(cpu_step(("aten::mm", 0, 950)))).advice
    ]
    short = analysis(cpu_step(*[("aten::mm", start, 50) for start in range(0, 1000, 100)]))
    python = next(item for item in advise(short).advice if item.title == "Reduce Python overhead")
    assert python.share_of_step == pytest.approx(0.5)
    assert "loader" not in python.why
    assert advised(short, "02_bigger_batch").share_of_step == pytest.approx(0.5)


def gloo_step(*collectives, waits=()):
    """1000 µs on a CPU that trains until 500 and updates from 900 on. collectives: (name, start, duration)."""
    builder = cpu_step(("aten::mm", 0, 500), ("aten::add_", 900, 100), *waits)
    for name, start, duration in collectives:
        builder.add("annotation", name, start, duration, tid=5)
    return builder


def test_collectives_of_gloo_are_exposed_where_no_operator_runs(analysis):
    around = (
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 500, 400),
        ("c10d::allreduce_", 500, 50),
    )
    result = analysis(gloo_step(("gloo:all_reduce", 300, 300), ("gloo:all_reduce", 600, 250), waits=around))
    assert (result.communication.count, result.communication.us) == (2, 550)
    assert (result.communication.hidden_us, result.communication.exposed_us) == (200, 350)
    first, advice = advise(result).advice[:2]
    assert (first.title, first.share_of_step, first.predicted_gain) == ("Compare the ranks", pytest.approx(0.35), None)
    assert (advice.title, advice.share_of_step) == ("Overlap communication", pytest.approx(0.35))
    assert "2 collectives per step, 275 us on average" in advice.why
    assert all(word in advice.do for word in ("no_sync", "bucket_cap_mb", "bigger batch", "bf16"))
    assert advise(result).verdict.startswith(
        "for 55% of the step a collective runs; try first: Compare the ranks. The gain cannot be estimated"
    )
    assert advised(result, "13_compile").share_of_step == pytest.approx(0.15)  # the update, and 850 to 900
    assert "Overlap communication" not in [item.title for item in advise(analysis(gloo_step())).costs]
    assert analysis(gloo_step()).communication is None


def test_a_barrier_that_operators_hide_is_no_advice(analysis):
    result = analysis(gloo_step(("gloo:barrier", 100, 300)))
    assert result.communication.exposed_us == 0
    assert "Overlap communication" not in [item.title for item in advise(result).advice]


# On a GPU.


def test_kernels_of_the_optimizer_and_waits_inside_it_are_what_fusing_removes(analysis):
    kernels = [(10, 12, 688), (810, 812, 38), (860, 870, 30)]  # the last two from inside the optimizer
    rows = (("aten::conv2d", 0, 100), ("Optimizer.step#SGD.step", 800, 100))
    advice = advised(analysis(gpu_step(kernels, *rows)), "11_fused_optimizer")
    assert advice.share_of_step == pytest.approx((38 + 30 + 12 + 20) / 1000)
    fused = analysis(gpu_step(kernels, *rows, ("aten::_fused_sgd_", 805, 90)))
    assert advised(fused, "11_fused_optimizer").predicted_gain == 1


def test_kernels_of_a_closure_are_not_the_optimizers(analysis):
    kernels = [(10, 12, 688), (810, 812, 38), (860, 870, 30)]  # the last one is launched after the backward pass
    rows = (
        ("Optimizer.step#Adam.step", 0, 1000),
        ("aten::conv2d", 0, 100),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", 800, 50),
    )
    result = analysis(gpu_step(kernels, *rows))
    advice = advised(result, "11_fused_optimizer")
    assert advice.share_of_step == pytest.approx((30 + 20 + 100) / 1000)
    assert result.kinds_us["optimizer"] == pytest.approx(30)


def test_kernels_that_normalise_before_the_model_or_compute_the_loss_can_be_compiled_with_it(analysis):
    kernels = [(10, 20, 80), (110, 120, 80), (210, 220, 280), (510, 520, 30), (610, 620, 380)]
    rows = (
        ("aten::div", 0, 100),
        ("aten::sub", 100, 100),
        ("aten::conv2d", 200, 100),
        ("aten::cross_entropy_loss", 500, 100),
        ("aten::div", 600, 100),  # after the model has begun: part of it
    )
    result = analysis(gpu_step(kernels, *rows))
    advice = advised(result, "14_compile_loss")
    assert advice.share_of_step == pytest.approx((80 + 80 + 30 + 40 + 20 + 50) / 1000)  # kernels, and waits for them
    assert advised(result, "03_reduced_h2d_copy").predicted_gain == 1  # it crosses as uint8: it is normalised there


def test_copies_before_the_model_do_not_count_as_preparing(analysis):
    builder = gpu_step([(310, 320, 600)], ("aten::to", 0, 200), ("aten::conv2d", 300, 50))
    builder.copy(10, 180, 20, 170, 1_000_000)
    assert advised(analysis(builder), "14_compile_loss").share_of_step == pytest.approx((10 + 10) / 1000)


def test_cuda_graphs_remove_the_waits_for_launches_unless_there_are_graphs_already(analysis):
    builder = gpu_step([(100, 150, 400), (600, 650, 350)], ("aten::mm", 0, 900))
    result = analysis(builder)
    waits = result.idle[0].causes_us["launch"] / 1000
    assert waits > 0
    assert advised(result, "15_cuda_graphs").share_of_step == pytest.approx(waits)
    assert advised(result, "13_compile").share_of_step == pytest.approx(waits)
    for start in (550, 560, 570):  # most kernels are of graphs
        builder.launch("k", start, 5, start + 5, 5, call="cudaGraphLaunch")
    operators(builder, ("Torch-Compiled Region: 0/0", 0, 900))
    result = analysis(builder)
    assert [advised(result, step).predicted_gain for step in ("13_compile", "15_cuda_graphs")] == [1, 1]


def test_workers_that_load_already_are_not_advised_again_but_more_of_them(analysis):
    builder = gpu_step([(500, 510, 490)])
    builder.loading(0, 400, WORKERS)
    result = analysis(builder)
    assert advised(result, "04_multiprocess_loading").predicted_gain == 1
    more = next(advice for advice in advise(result).advice if advice.title == "Use more DataLoader workers")
    assert (more.step, more.predicted_gain) == (None, pytest.approx(1000 / 600))


def test_workers_on_all_cores_are_no_reason_for_more_of_them(analysis):
    def titles(cores, workers):
        builder = recorded(gpu_step([(500, 510, 490)]), cores, workers)
        builder.loading(0, 400, WORKERS)
        return {advice.title: advice for advice in advise(analysis(builder)).advice}

    assert "Use more DataLoader workers" in titles(8, 4)
    few = titles(2, 4)
    assert "Use more DataLoader workers" not in few
    less = few["Do less work per batch"]
    assert less.share_of_step == pytest.approx(0.4)
    assert (less.predicted_gain, less.estimated_gain) == (None, None)
    assert "4 worker processes load on 2 cores" in less.why


def test_what_no_trace_shows_has_no_bound(analysis):
    result = analysis(two_steps())
    for step in ("12_cudnn_benchmark", "16_data_parallel"):
        assert (advised(result, step).share_of_step, advised(result, step).predicted_gain) == (0, None)


def test_setting_up_inside_the_first_operators_is_not_what_compiling_them_saves(analysis):
    builder = gpu_step([(750, 760, 240)], ("aten::to", 0, 700), ("aten::conv2d", 740, 20))
    builder.add("runtime", "cudaMalloc", 10, 480, correlation=-2)
    assert advised(analysis(builder), "14_compile_loss").share_of_step <= (760 - 480) / 1000


def test_advice_names_the_units_as_their_maker_does(analysis):
    def of(device):
        builder = TraceBuilder(devices=[device])
        builder.step(1, 0, 1000)
        op = builder.op("aten::mm", 0, 100)
        builder.launch("sgemm", 10, 5, 100, 900, op=op)
        advice = advised(analysis(builder), "01_amp")
        return f"{advice.title}; {advice.why}"

    assert "Tensor Cores" in of({"id": 0, "name": "NVIDIA A100", "computeMajor": 8})
    on_amd = of({"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9})
    assert "Use Matrix cores" in on_amd and "Tensor Cores" not in on_amd


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 copy is"), (0.6, "1 copy is"), (2, "2 copies are"), (0, "0 copies are")]
)
def test_a_count_agrees_with_its_noun(count, text):
    assert counted(count, "copy is", "copies are") == text
