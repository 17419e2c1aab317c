"""The limit: FLOPs and bytes by hand, peaks, training speed, the roofline, the command, compare's column.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from support import SmallNet, exit_code_of, make_limit, make_result
from support.options import small_options
from support.trace_builder import TraceBuilder
from torch import nn

from common.data import CIFAR10_MEAN, CIFAR10_STD
from common.model import classifier
from common.program import QUICK
from common.timing import Timing, Window
from studies import fastest, one_batch, roofline
from studies.fastest import Uncompiled, first_program
from studies.limit import CONTIGUOUS, share_of_roof
from walkthrough.cli import main
from walkthrough.compare import study as results
from walkthrough.compare.roofs import Peak, Program, StepBytes, of_study

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def counted(call):
    counter = roofline.OperatorCounter()
    with counter:
        call()
    return counter


def stepped(model, batch_size=4, image_size=32):
    train_step = one_batch.TrainStep(model, CPU, torch.float32)
    batch = one_batch.batch_on(CPU, batch_size, image_size)
    train_step(*batch)  # the first step makes the momentum's buffers
    return roofline.count_step(train_step, *batch)


def test_flops_of_a_convolution_and_a_linear_layer_are_those_counted_by_hand():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))  # 8 x 8 images become 6 x 6
    counter = stepped(net, batch_size=2, image_size=8)
    convolution = 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)  # two FLOPs, outputs, inputs of each
    linear = 2 * (2 * 10) * 144
    assert counter.phase_flops[roofline.FORWARD] == convolution + linear
    # Of the convolution only the weight's gradient: the images need none. Of the linear layer both.
    assert counter.phase_flops[roofline.BACKWARD] == convolution + 2 * linear
    assert counter.phase_flops[roofline.OPTIMIZER] == 0
    assert counter.flops == 2 * convolution + 3 * linear


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_both_gradients_of_a_convolution_cost_what_its_forward_pass_does_in_groups_too(groups):
    image = torch.randn(2, 8, 6, 6, requires_grad=True)
    convolution = nn.Conv2d(8, 16, 3, groups=groups)
    forward = counted(lambda: convolution(image)).flops
    assert forward == 2 * (2 * 16 * 4 * 4) * (8 // groups * 9)
    assert counted(lambda: convolution(image).sum().backward()).flops == 3 * forward


@pytest.mark.parametrize("name, published", [("mobilenet_v2", 0.30), ("resnet50", 4.1)])
def test_forward_counts_are_the_published_ones(name, published):
    """Giga multiply-adds at 224 px: 300 M in MobileNetV2's paper (table 4), 4.1 G for ResNet-50 (torchvision: 4.09)."""
    model = classifier(name, 224, classes=1000).to("meta")
    counter = counted(lambda: model(torch.empty(2, 3, 224, 224, device="meta")))
    assert counter.flops / 2 / 2 / 1e9 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("image", "weight", "group"),
    [(8, [8, 1, 3, 3], "depthwise convolution"), (1, [8, 1, 3, 3], "convolution"), (8, [8, 4, 3, 3], "convolution")],
)
def test_depthwise_convolutions_are_a_group_of_their_own(image, weight, group):
    shapes = [[2, image, 6, 6], weight]
    assert roofline.group_of("aten::convolution", shapes) == group
    assert roofline.group_of("aten::convolution_backward", [[], *shapes]) == group
    assert roofline.group_of("aten::convolution", shapes, in_optimizer=True) == "optimizer"


A, B, ONE = torch.ones(10), torch.ones(10), torch.ones(1)  # of 40 and 4 bytes


@pytest.mark.parametrize(
    ("call", "moved"),
    [
        (lambda: A + B, 3 * 40), (lambda: A.add_(B), 3 * 40), (lambda: A.copy_(B), 2 * 40), (lambda: A.zero_(), 40),
        (lambda: torch.add(A, B, out=torch.empty(10)), 3 * 40), (lambda: torch.zeros_like(A), 40),
        (lambda: torch._foreach_add_([A, B], 1.0), 4 * 40),
        (lambda: A.expand(3, 10) + ONE.expand(10), 40 + 4 + 120),  # of what is expanded, what it holds
        (lambda: (A.view(2, 5).t(), A[0], A.detach(), torch.empty(1000)), 0),
    ],
)  # fmt: skip
def test_bytes_are_each_tensor_read_and_written_once_and_views_and_allocations_move_nothing(call, moved):
    counts = counted(call).counts
    assert sum(count.bytes for count in counts.values()) == moved
    assert bool(counts) == bool(moved)


def test_the_least_bytes_of_two_layers_are_those_counted_by_hand():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10, bias=False))
    full, half = (
        roofline.least_bytes(one_batch.TrainStep(net, CPU, precision)) for precision in (torch.float32, torch.bfloat16)
    )
    weights = 4 * 3 * 9 + 10 * 3600  # elements; their gradients and their momentum are as many
    image = 3 * 32 * 32  # normalised, kept by the convolution
    hidden = 4 * 30 * 30  # after the ReLU, kept once by it and by the linear layer, which views it
    logits = 10  # of log_softmax, kept by it and by the loss
    whole_batch = 1  # the loss keeps the weight of all labels
    assert (full.precision, half.precision) == ("float32", "bfloat16")
    assert full.per_image == 2 * 4 * (image + hidden + logits)  # written and read, 4 bytes each
    assert full.fixed == 2 * 4 * (3 * weights + whole_batch)
    assert half.per_image == 2 * (2 * (image + hidden) + 4 * logits)  # the loss is in float32
    assert half.fixed == full.fixed + 2 * 2 * weights  # autocast's casts of them are kept


def test_bytes_of_a_run_s_step_follow_its_batch_size_and_precision():
    # 1e9 FLOP/s, 1e8 bytes/s
    limit = make_limit(precision="float32", flops_per_image=2_000, step_bytes=[asdict(one) for one in LEAST])
    known = of_study(limit)
    assert known.least_bytes(10, "float32") == 1_000 + 10 * 500
    assert known.least_bytes(10, "float16") == known.least_bytes(10, "bfloat16") == 1_000 + 10 * 250
    assert known.least_bytes(10, "float64") is None
    run = make_result(batch_size=10, precision="float32", windows=(100.0,) * 5)
    assert known.shares(run) == {
        "share_of_arithmetic_peak": 2_000 * 100 / 1e9, "share_of_memory_roof": 6_000 * 10 / 1e8
    }  # fmt: skip
    on_two = replace(run, world_size=2)  # GPUs, so two limits
    assert known.shares(on_two)["share_of_memory_roof"] == 6_000 * 10 / 1e8 / 2
    assert (known.share_of_limit(run), known.share_of_limit(on_two)) == (0.25, 0.125)  # of 400 images/s
    assert of_study(make_limit(cores=2)).share_of_limit(on_two) == 0.25  # on a CPU all processes share one
    other = known.shares(replace(run, precision="bfloat16"))  # whose peak was not measured
    assert other == {"share_of_arithmetic_peak": None, "share_of_memory_roof": 3_500 * 10 / 1e8}


@pytest.fixture
def small_peaks(monkeypatch):
    monkeypatch.setattr(roofline, "MATRICES", {"cpu": (4, 8), "cuda": (4, 8)})
    monkeypatch.setattr(roofline, "COPIES", {"cpu": (1,), "cuda": (1,)})
    monkeypatch.setattr(roofline, "QUICK_WINDOW_SECONDS", 1e-4)


def test_a_peak_is_the_best_size_s_median_window(small_peaks, monkeypatch):
    rates = iter([[1.0, 3.0, 2.0, 9.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    monkeypatch.setattr(roofline, "call_rates", lambda *_: next(rates))
    best, other = roofline.peak_flops(CPU, torch.float32)
    assert (best.what, best.median) == ("8 x 8 float32", 2 * 8**3)
    assert (other.median, other.windows) == (2 * 4**3 * 2.0, [128.0, 384.0, 256.0, 1152.0, 256.0])
    monkeypatch.setattr(roofline, "call_rates", lambda *_: [10.0])  # a byte that is copied is read and written
    assert roofline.peak_bytes(CPU) == [Peak("1 MiB copied", 2 * 2**20 * 10.0, [2 * 2**20 * 10.0])]


def test_the_window_s_edges_synchronise_a_gpu_and_a_size_that_does_not_fit_ends_the_search(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("s"))

    def prepared(size):
        if size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: happened.append("c"), 1

    result = roofline._best_first(CUDA, (1, 2, 3, 4), prepared, str, quick=True)
    assert sorted(peak.what for peak in result) == ["1", "2"]
    assert re.fullmatch("(sc+s)+", "".join(happened))
    assert "cc" in "".join(happened)


def timed(*speeds, step_ms=(1.0,)):
    """A `Timing` of windows of these images/s."""
    return Timing(9.0, [Window(speed, None, list(step_ms), 0.5) for speed in speeds])


OPTIONS = small_options(image_size=48, precision="fp32")
PLAIN = Program(4, CONTIGUOUS, cudnn_benchmark=None, compiled=False)


LEAST = [StepBytes("bfloat16", 1_000.0, 250.0), StepBytes("float32", 1_000.0, 500.0)]


def test_mfu_is_the_step_s_flops_over_its_time_and_the_measured_peak():
    timing = timed(10.0, 30.0, 20.0, step_ms=(400.0, 390.0, 410.0))
    speed = fastest.training_speed(PLAIN, timing, 400, 2_000, LEAST, (80_000.0, 1e8))
    assert speed["flops_per_second"] == 8_000 * 20 / 4
    assert speed["mfu"] == 0.5
    assert speed["bytes_per_second"] == 400 * 20 / 4
    assert speed["share_of_memory_roof"] == (1_000 + 4 * 500) * 20 / 4 / 1e8
    assert (speed["samples_per_second"]["median"], speed["step_ms"]["median"]) == (20.0, 400.0)
    assert (speed["kind"], speed["batch_size"]) == ("uncompiled, contiguous", 4)
    not_counted = fastest.training_speed(PLAIN, timed(1.0), None, 2_000, [], (1.0, 1.0))
    assert (not_counted["bytes_per_second"], not_counted["share_of_memory_roof"]) == (None, None)


def test_a_compiled_step_moves_what_inductor_counted_and_what_is_not_compiled():
    counter = SimpleNamespace(
        counts={
            number: roofline.Counted("aten::x", group, 1, None, size, 1)
            for number, (group, size) in enumerate([("optimizer", 700), ("resize", 40), ("convolution", 9_999)])
        }
    )
    eight = replace(PLAIN, batch_size=8, compiled=True)
    timing = fastest.CompiledTiming(1.0, timed(1.0).windows, kernel_bytes=5_000)
    assert fastest.moved_bytes(eight, timing, PLAIN, counter) == 5_000 + 700 + 40 * 8 / 4
    assert fastest.moved_bytes(eight, replace(timing, kernel_bytes=None), PLAIN, counter) is None


def an_uncompiled(device, **counted):
    programs = Uncompiled(SmallNet(), device, torch.float32, 32, QUICK)
    programs.counters[PLAIN] = SimpleNamespace(**counted)
    return programs


def test_on_a_cpu_a_batch_that_might_exhaust_memory_is_not_tried(monkeypatch):
    programs = an_uncompiled(CPU, bytes=4_000)
    for total in (15_999, 16_000):
        monkeypatch.setattr(fastest.psutil, "virtual_memory", lambda total=total: SimpleNamespace(total=total))
        assert (programs.time(replace(PLAIN, batch_size=8)) is None) == (total == 15_999)


def test_on_a_gpu_no_tensor_has_more_elements_than_all_its_libraries_can_count():
    mobilenet_v2_at_224_px = an_uncompiled(CUDA, largest=4 * 96 * 112**2)
    assert mobilenet_v2_at_224_px.most_images == 1783
    assert mobilenet_v2_at_224_px.time(replace(PLAIN, batch_size=1784)) is None
    assert an_uncompiled(CPU, largest=4 * 96 * 112**2).most_images == float("inf")


class FakeDevice:
    """A device and its clock, for the search. one, compiling: seconds of a program; speed(program): images/s."""

    def __init__(self, kind, speed, one=1.0, compiling=20.0):
        self.device, self.clock = torch.device(kind), SimpleNamespace(seconds=0.0)
        self.one, self.compiling, self.speed, self.tried = one, compiling, speed, []

    def time(self, program):
        self.tried.append((program.batch_size, program.kind))
        self.clock.seconds += self.one
        return timed(self.speed(program))

    def time_compiled(self, options, precision, program, limit_seconds):
        self.clock.seconds += min(self.compiling, limit_seconds)
        if self.compiling > limit_seconds:
            return None, f"not done after {limit_seconds} s"
        return self.time(program), None

    def search(self, monkeypatch):
        """Search as `limit` does; returns what `search_compiled` does."""
        options = replace(OPTIONS, device=str(self.device), quick=False)
        monkeypatch.setattr(fastest, "time_compiled", self.time_compiled)
        start, seconds = first_program(self.device.type, batch_size=4), fastest.SEARCH_SECONDS[self.device.type]
        best, took = fastest.search_uncompiled(self, start, seconds, self.clock)
        return fastest.search_compiled(options, torch.float32, best, self.clock, took)


def up_to_16(program):
    """Faster with each doubling up to 16 images, compiled and as graphs; slower in contiguous memory."""
    speed = 100.0 * min(program.batch_size, 16) * (2 if program.compiled else 1) * (1.5 if program.cuda_graphs else 1)
    return speed * (0.9 if program.layout == CONTIGUOUS else 1)


def test_on_a_gpu_the_batch_size_comes_first_then_the_compiler_then_cuda_graphs(monkeypatch):
    gpu = FakeDevice("cuda", up_to_16)
    timings, why_not = gpu.search(monkeypatch)
    last, compiled_last = "channels last", "compiled, channels last"
    assert gpu.tried == [
        *((size, f"uncompiled, {last}") for size in (4, 8, 16, 32)),
        (16, f"uncompiled, {last}, cudnn.benchmark"),
        (16, "uncompiled, contiguous"),
        (16, compiled_last),
        (16, f"{compiled_last}, CUDA graphs"),
        (32, f"{compiled_last}, CUDA graphs"),
        (8, f"{compiled_last}, CUDA graphs"),
    ]
    assert max(timings, key=lambda program: timings[program].samples_per_second.median).cuda_graphs
    assert why_not is None


def test_a_big_model_whose_programs_take_long_reaches_cuda_graphs_within_the_time(monkeypatch):
    gpu = FakeDevice("cuda", up_to_16, one=60.0, compiling=120.0)
    timings, why_not = gpu.search(monkeypatch)
    assert any(program.cuda_graphs for program in timings), why_not
    assert gpu.clock.seconds <= fastest.TOTAL_SECONDS["cuda"] == 480


def test_on_a_cpu_both_layouts_are_tried_then_batches_and_both_are_compiled(monkeypatch):
    cpu = FakeDevice("cpu", lambda program: 100.0 if program.layout == CONTIGUOUS else 120.0)
    timings, why_not = cpu.search(monkeypatch)
    assert cpu.tried == [
        (4, "uncompiled, contiguous"),
        *((size, "uncompiled, channels last") for size in (4, 8, 2)),
        (4, "compiled, channels last"),
        (4, "compiled, contiguous"),
        (8, "compiled, channels last"),
        (2, "compiled, channels last"),
    ]
    assert (len(timings), why_not) == (4, None)


def test_the_train_step_normalises_and_resizes_as_the_steps_do():
    net, (images, labels) = SmallNet(), one_batch.batch_on(CPU, 2)
    one_batch.TrainStep(net, CPU, torch.float32)(images, labels)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR10_MEAN, CIFAR10_STD))
    torch.testing.assert_close(net.seen, (images / 255 - mean) / std)
    one_batch.TrainStep(net, CPU, torch.float32, image_size=64, channels_last=True)(images, labels)
    assert net.seen.shape == (2, 3, 64, 64)
    assert net.seen.is_contiguous(memory_format=torch.channels_last)
    grey = (torch.full((2, 3, 1, 1), 128) / 255 - mean) / std
    one_batch.TrainStep(net, CPU, torch.float32, image_size=48)(torch.full_like(images, 128), labels)
    torch.testing.assert_close(net.seen, grey.expand(2, 3, 48, 48))
    assert one_batch.TrainStep(net, CPU, torch.float16).scaler.is_enabled()


def test_on_a_cpu_time_belongs_to_the_counted_operator_that_it_was_spent_in(tmp_path):
    trace = TraceBuilder(devices=())
    trace.step(1, 0, 1000)
    trace.op("aten::conv2d", 0, 120)  # 20 us of its own: outside
    trace.op("aten::convolution", 10, 100)["args"]["Input Dims"] = [[2, 8, 6, 6], [8, 1, 3, 3]]
    trace.op("aten::mkldnn_convolution", 20, 60)
    trace.op("aten::add_", 30, 10)  # within the convolution: the convolution's
    trace.op("aten::hardtanh_", 200, 50)
    trace.op("aten::clone", 210, 20)  # saved for the backward pass
    trace.op("Optimizer.step#SGD.step", 400, 100, kind="annotation")
    trace.op("aten::add_", 410, 30)
    trace.write(tmp_path / "t.json")
    names = {"aten::convolution", "aten::add_", "aten::hardtanh_", "aten::clone"}
    times = roofline.operator_ms(tmp_path / "t.json", trace.events, names)
    assert {label: round(ms * 1e3) for label, ms in times.items()} == {
        ("aten::convolution", "depthwise convolution"): 100,
        ("aten::hardtanh_", "elementwise"): 30,
        ("aten::clone", "copy, cast"): 20,
        ("aten::add_", "optimizer"): 30,
        (None, None): 20 + 70,  # of conv2d, and of the optimizer's mark
    }


def test_on_a_gpu_kernels_belong_to_the_operator_that_launched_them(tmp_path):
    trace = TraceBuilder()
    for number, begin in ((1, 0), (2, 1000)):
        trace.step(number, begin, 1000)
        outer = trace.op("aten::convolution", begin, 100)
        outer["args"]["Input Dims"] = [[2, 8, 6, 6], [8, 8, 3, 3]]
        inner = trace.op("aten::cudnn_convolution", begin + 10, 50)
        trace.launch("kernel", begin + 20, 5, begin + 120, 400, op=inner)
        trace.op("Optimizer.step#SGD.step", begin + 200, 100, kind="annotation")
        step = trace.op("aten::_fused_sgd_", begin + 210, 50)
        trace.launch("kernel2", begin + 220, 5, begin + 600, 100, op=step)
        trace.copy(begin + 400, 10, begin + 700, 30, 1000)
    trace.add("kernel", "from before", 5, 90, tid=7, pid=0, device=0, stream=7, correlation=999)  # launched untraced
    trace.write(tmp_path / "t.json")
    names = {"aten::convolution", "aten::_fused_sgd_"}
    times = roofline.operator_ms(tmp_path / "t.json", trace.events, names)
    assert times == {
        ("aten::convolution", "convolution"): pytest.approx(0.4),
        ("aten::_fused_sgd_", "optimizer"): pytest.approx(0.1),
        (None, None): pytest.approx(0.03),
    }


def test_groups_join_what_was_counted_with_what_was_timed():
    mm, addmm, add = ("aten::mm", "matrix product"), ("aten::addmm", "matrix product"), ("aten::add_", "elementwise")
    counts = {mm: (2, 600, 60, 6), addmm: (1, 400, 40, 4), add: (1, None, 30, 3)}
    counter = SimpleNamespace(counts={label: roofline.Counted(*label, *count) for label, count in counts.items()})
    times = {mm: 2.0, addmm: 1.0, add: 1.0, (None, None): 5.0}
    matrix, elementwise = roofline.groups(counter, times)
    assert list(matrix.values()) == ["matrix product", 3, 1000, 100, 10, 3.0]
    assert list(elementwise.values()) == ["elementwise", 1, None, 30, 3, 1.0]
    left = roofline.without_formula(counter, times)
    assert left == {"operators": [{"name": "aten::add_", "calls": 1}], "calls_share": 0.25, "time_share": 0.25}


def test_a_group_s_share_of_its_roof_is_that_of_the_lower_roof():
    measured = make_limit().measured  # 1e9 FLOP/s, 1e8 bytes/s: the ridge is at 10 FLOPs per byte

    def share(flops, moved, ms):
        return share_of_roof(measured, {"flops": flops, "bytes": moved, "elements": 123, "traced_ms": ms})

    assert share(10**8, 10**6, 200.0) == pytest.approx(0.5)
    assert share(10**7, 10**7, 200.0) == pytest.approx(0.5)  # below the ridge
    assert share(None, 10**7, 200.0) == pytest.approx(0.5)  # bytes/s
    assert share(None, 10**7, 0.0) is None


def test_what_fails_costs_its_own_part_of_the_limit_and_nothing_else(
    small_peaks, room_for_two, tmp_path, monkeypatch, capsys
):
    """In bf16, on any CPU: without the hardware it is emulated, which a small model survives."""

    def operator_ms(self, program):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES in <module>")

    monkeypatch.setattr(Uncompiled, "operator_ms", operator_ms)
    monkeypatch.setattr(fastest, "QUICK_SEARCH_SECONDS", 0)
    monkeypatch.setattr(fastest, "classifier", lambda *_: SmallNet())
    monkeypatch.setattr(fastest.isolated, "answer", lambda *_: {"error": "no compiler here"})
    words = "limit --device cpu --quick --batch-size 4 --precision bf16 --logdir".split()
    assert exit_code_of(main, [*words, str(tmp_path)]) == 0
    assert "out of memory with batch size 4: measured with batch 2" in capsys.readouterr().out.lower()
    result = results.read(tmp_path / "limit.json")
    [speed] = result.measured["speeds"]
    assert (speed["batch_size"], speed["kind"], result.precision) == (2, "uncompiled, contiguous", "bfloat16")
    assert "not compiled: no compiler here" in result.notes
    assert "operators are not timed: RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES in (module)" in result.notes
    assert (result.measured["groups"], result.tables["operators"]) == ([], [])
    assert any("least bytes of a step are not counted" in note for note in result.notes)
    assert result.measured["step_bytes"] == []
