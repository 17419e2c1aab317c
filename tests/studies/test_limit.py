"""Where the limit is: FLOPs and bytes by hand, peaks, the floor, the roofline, the input pipeline, compare's column.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import json
import math
import sys
from dataclasses import asdict
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from support import SmallNet, make_limit, make_result, write_run
from support.trace_builder import TraceBuilder
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from common import record
from common.__main__ import main
from common.errors import InputError
from common.ladder import compare, table
from common.model import classifier
from common.studies import one_batch
from common.studies.input import measure as input_limit
from common.studies.input.record import read_input_limit
from common.studies.limit import figure as roofline
from common.studies.limit import flops, operator_times, peaks
from common.studies.limit import measure as limit
from common.studies.limit import view as limit_view
from common.studies.limit.record import FILE, Group, Peak, Uncounted, WithoutFormula, read_limit

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def counted(call):
    counter = flops.OperatorCounter()
    with counter:
        call()
    return counter


def stepped(model, batch_size=4, image_size=32):
    train_step = one_batch.TrainStep(model, CPU, torch.float32)
    batch = one_batch.batch_on(CPU, batch_size, image_size)
    train_step(*batch)  # the first step makes the momentum's buffers
    return flops.count_step(train_step, *batch)


def bytes_of(call):
    return sum(each.bytes for each in counted(call).counts.values())


# FLOPs


def test_flops_of_a_convolution_and_a_linear_layer_are_those_counted_by_hand():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))  # 8 x 8 images become 6 x 6
    counter = stepped(net, batch_size=2, image_size=8)
    convolution = 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)  # two FLOPs, outputs, inputs of each
    linear = 2 * (2 * 10) * 144
    assert counter.phase_flops[flops.FORWARD] == convolution + linear
    # Of the convolution only the weight's gradient: the images need none. Of the linear layer both.
    assert counter.phase_flops[flops.BACKWARD] == convolution + 2 * linear
    assert counter.phase_flops[flops.OPTIMIZER] == 0
    assert counter.flops == 2 * convolution + 3 * linear


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_both_gradients_of_a_convolution_cost_what_its_forward_pass_does_in_groups_too(groups):
    image = torch.randn(2, 8, 6, 6, requires_grad=True)
    convolution = nn.Conv2d(8, 16, 3, groups=groups)
    forward = counted(lambda: convolution(image)).flops
    assert forward == 2 * (2 * 16 * 4 * 4) * (8 // groups * 9)
    assert counted(lambda: convolution(image).sum().backward()).flops == 3 * forward


def test_a_transposed_convolution_counts_its_input_s_places():
    image = torch.randn(2, 8, 6, 6, requires_grad=True)
    convolution = nn.ConvTranspose2d(8, 4, 3)
    forward = 2 * (2 * 6 * 6) * (8 * 4 * 9)
    assert counted(lambda: convolution(image).sum().backward()).flops == 3 * forward


@pytest.mark.parametrize("name, published", [("mobilenet_v2", 0.30), ("resnet50", 4.1)])
def test_forward_counts_are_the_published_ones(name, published):
    """Giga multiply-adds at 224 px: 300 M in MobileNetV2's paper (table 4), 4.1 G for ResNet-50 (torchvision: 4.09)."""
    model = classifier(name, 224, classes=1000).to("meta")
    counter = counted(lambda: model(torch.empty(2, 3, 224, 224, device="meta")))
    assert counter.flops / 2 / 2 / 1e9 == pytest.approx(published, rel=0.01)


def test_without_groups_the_count_is_torch_s_own():
    train_step = one_batch.TrainStep(SmallNet(), CPU, torch.float32)
    batch = one_batch.batch_on(CPU, 4, 32)
    with FlopCounterMode(display=False) as torchs:
        train_step(*batch)
    assert flops.count_step(train_step, *batch).flops == torchs.get_total_flops() > 0


def test_operators_without_a_formula_are_named_and_grouped():
    counts = stepped(SmallNet()).counts
    assert counts["aten::native_batch_norm", "batch norm"].flops is None
    assert counts["aten::convolution", "convolution"].calls == 2
    assert counts["aten::mm", "matrix product"].flops > 0
    assert {group for _, group in counts} >= {"pooling", "elementwise", "loss, softmax", "optimizer"}
    assert {group for _, group in counts} <= set(flops.GROUPS)
    assert list(roofline.COLOURS) == list(flops.GROUPS)
    assert sum(each.calls for (_, group), each in counts.items() if group == "optimizer") == 3 * 8  # parameters


def test_depthwise_convolutions_are_a_group_of_their_own():
    assert flops.group_of("aten::convolution", [[2, 8, 6, 6], [8, 1, 3, 3]]) == "depthwise convolution"
    assert flops.group_of("aten::convolution", [[2, 1, 6, 6], [8, 1, 3, 3]]) == "convolution"
    assert flops.group_of("aten::convolution", [[2, 8, 6, 6], [8, 4, 3, 3]]) == "convolution"
    assert flops.group_of("aten::convolution_backward", [[], [2, 8, 6, 6], [8, 1, 3, 3]]) == "depthwise convolution"
    assert flops.group_of("aten::mul_", [], in_optimizer=True) == "optimizer"


# Bytes


def test_bytes_are_each_tensor_read_and_written_once():
    a, b = torch.ones(10), torch.ones(10)  # 40 bytes
    assert bytes_of(lambda: a + b) == 3 * 40
    assert bytes_of(lambda: a.add_(b)) == 3 * 40
    assert bytes_of(lambda: a.copy_(b)) == 2 * 40
    assert bytes_of(lambda: torch.add(a, b, out=torch.empty(10))) == 3 * 40
    assert bytes_of(lambda: a.zero_()) == 40
    assert bytes_of(lambda: torch.zeros_like(a)) == 40
    assert bytes_of(lambda: torch._foreach_add_([a, b], 1.0)) == 4 * 40


def test_views_and_allocations_move_nothing_and_are_no_calls():
    a = torch.ones(2, 5)
    assert not counted(lambda: (a.view(10), a.t(), a[0], a.detach(), torch.empty(1000), a.expand(3, 2, 5))).counts


def test_an_expanded_tensor_counts_what_it_holds():
    one = torch.ones(1)
    assert bytes_of(lambda: one.expand(100) + torch.ones(1).expand(100)) == 4 + 4 + 400 + 4  # with the second ones


# Peaks


@pytest.fixture
def small_peaks(monkeypatch):
    monkeypatch.setattr(peaks, "MATRICES", {"cpu": (4, 8), "cuda": (4, 8)})
    monkeypatch.setattr(peaks, "COPIES", {"cpu": (1,), "cuda": (1,)})
    monkeypatch.setattr(peaks, "QUICK_WINDOW_SECONDS", 1e-4)


def test_a_peak_is_the_best_size_s_median_window(small_peaks, monkeypatch):
    rates = iter([[1.0, 3.0, 2.0, 9.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    monkeypatch.setattr(peaks, "call_rates", lambda *_: next(rates))
    best, other = peaks.peak_flops(CPU, torch.float32)
    assert (best.what, best.median) == ("8 x 8 float32", 2 * 8**3)
    assert (other.median, other.windows) == (2 * 4**3 * 2.0, [128.0, 384.0, 256.0, 1152.0, 256.0])


def test_a_copied_byte_counts_as_read_and_as_written(small_peaks, monkeypatch):
    monkeypatch.setattr(peaks, "call_rates", lambda *_: [10.0])
    assert peaks.peak_bytes(CPU) == [Peak("1 MiB copied", 2 * 2**20 * 10.0, [2 * 2**20 * 10.0])]


def test_the_window_s_edges_synchronise_a_gpu_and_a_size_that_does_not_fit_ends_the_search(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("sync"))

    def prepared(size):
        if size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: happened.append("call"), 1

    found = peaks._best_first(CUDA, (1, 2, 3, 4), prepared, str, quick=True)
    assert sorted(peak.what for peak in found) == ["1", "2"]
    assert happened[0] == happened[-1] == "sync"
    text = "".join(each[0] for each in happened)
    assert "cc" in text  # within a window calls follow each other
    with pytest.raises(torch.OutOfMemoryError):
        peaks._best_first(CUDA, (3,), prepared, str, quick=True)


def test_real_windows_are_positive(small_peaks):
    for peak in (*peaks.peak_flops(CPU, torch.float32, quick=True), *peaks.peak_bytes(CPU, quick=True)):
        assert len(peak.windows) == peaks.WINDOWS
        assert min(peak.windows) > 0


# The floor


class Fussy:
    """A train step whose device holds batches of so many images."""

    device = CPU
    optimizer = SimpleNamespace(zero_grad=lambda: None)

    def __init__(self, holds, error=None):
        self.holds, self.error = holds, error or torch.OutOfMemoryError("CUDA out of memory")

    def __call__(self, images, labels):
        if len(labels) > self.holds:
            raise self.error


def test_the_batch_is_halved_until_memory_holds_it():
    batch, notes = one_batch.fitting_batch(Fussy(16), 100, 16)
    assert (len(batch[1]), notes) == (12, ["out of memory with batch size 100, 50, 25: measured with batch 12"])
    assert one_batch.fitting_batch(Fussy(16), 16, 16)[1] == []


def test_a_model_that_does_not_fit_at_all_names_what_was_tried():
    with pytest.raises(InputError, match=r"tried batch size 4, 2, 1 at 16 px; try a smaller --model"):
        one_batch.fitting_batch(Fussy(0), 4, 16)
    with pytest.raises(ZeroDivisionError):
        one_batch.fitting_batch(Fussy(0, ZeroDivisionError()), 4, 16)
    with pytest.raises(InputError, match="batch norm needs more than one value"):
        one_batch.fitting_batch(Fussy(0, ValueError("Expected more than 1 value per channel when training")), 1, 16)


def test_mfu_is_the_step_s_flops_over_its_time_and_the_measured_peak():
    counter = SimpleNamespace(flops=8_000, bytes=400)
    found = one_batch.floor(one_batch.PLAIN, [10.0, 30.0, 20.0], [400.0, 390.0, 410.0], 4, counter, flops_roof=80_000.0)
    assert found.flops_per_second == 8_000 * 20 / 4
    assert found.mfu == 0.5
    assert found.bytes_per_second == 400 * 20 / 4
    assert (found.samples_per_second.median, found.step_ms.median) == (20.0, 400.0)
    assert one_batch.floor(one_batch.COMPILED, [1.0], [1.0], 4, counter, 1.0).bytes_per_second is None


def test_compiling_on_a_cpu_may_take_what_is_left_of_two_minutes():
    assert limit.compile_limit(CPU, 40.2) == 60
    assert limit.compile_limit(CPU, 500.0) == limit.compile_limit(CPU, 40.2, quick=True) == 30
    assert limit.compile_limit(CUDA, 500.0) == 300


def told_by(code, limit_seconds=60):
    return one_batch.compiled_windows({}, limit_seconds, command=(sys.executable, "-c", code))


def test_the_compiled_floor_comes_from_a_process_of_its_own():
    lines = 'print("noise"); print(\'{"compiled": true}\'); print(\'{"samples_per_second": [1.5], "step_ms": [2.0]}\')'
    assert told_by(lines) == ([1.5], [2.0], None)


def test_why_there_is_no_compiled_floor_is_a_line():
    assert told_by('print(\'{"error": "torch.compile found no compiler"}\')')[2] == "torch.compile found no compiler"
    assert told_by("raise SystemExit(3)") == ([], [], "torch.compile failed: its process ended with code 3")
    speeds, _, why = told_by("import sys, threading; threading.Event().wait()", limit_seconds=0.2)
    assert not speeds
    assert "not done after 0.2 s" in why


def test_a_compiler_that_takes_too_long_is_asked_to_clean_up_before_it_is_killed(tmp_path):
    """g++ removes what it had half written; left in torch's cache, that would break every later compile."""
    half, begun = tmp_path / "half.so", tmp_path / "begun"
    code = (
        "import pathlib, signal, sys, time\n"
        f"half, begun = pathlib.Path({str(half)!r}), pathlib.Path({str(begun)!r})\n"
        "def clean(*_):\n    half.unlink()\n    time.sleep(60)\n"
        "signal.signal(signal.SIGTERM, clean)\nhalf.touch(); begun.touch(); time.sleep(60)"
    )
    assert "not done" in told_by(code, limit_seconds=3)[2]
    assert begun.exists()
    assert not half.exists()


def test_a_compiler_s_error_is_told_without_advice_for_a_step():
    out_of_memory = torch.OutOfMemoryError("CUDA out of memory")
    assert one_batch.not_compiled(out_of_memory).startswith("the compiled model runs out")
    error = RuntimeError("torch.compile is not supported on Python 3.99")
    assert "not supported" in one_batch.not_compiled(error)
    assert "skip" not in one_batch.not_compiled(error)
    assert one_batch.not_compiled(KeyError("odd")) == "torch.compile failed: KeyError: 'odd'"


def test_the_kinds_of_floor_differ_as_the_steps_do():
    images, labels = one_batch.batch_on(CPU, 2, 16)
    kinds = one_batch.PLAIN, one_batch.CHANNELS_LAST
    plain, last = (one_batch.TrainStep(SmallNet(), CPU, torch.float32, kind) for kind in kinds)
    assert plain.laid_out(images, labels)[0].is_contiguous()
    assert last.laid_out(images, labels)[0].is_contiguous(memory_format=torch.channels_last)
    assert plain.optimizer.defaults["fused"] is None  # torch chooses: on a GPU foreach, which False would forbid
    assert last.optimizer.defaults["fused"]
    assert one_batch.TrainStep(SmallNet(), CPU, torch.float16).scaler.is_enabled()


# The roofline


def on_the_cpu(path):
    """One step: a depthwise convolution 100 us in all, an addition, time in none, and the optimizer's addition."""
    made = TraceBuilder(devices=())
    made.step(1, 0, 1000)
    made.op("aten::conv2d", 0, 120)  # 20 us of its own: outside
    made.op("aten::convolution", 10, 100)["args"]["Input Dims"] = [[2, 8, 6, 6], [8, 1, 3, 3]]
    made.op("aten::mkldnn_convolution", 20, 60)
    made.op("aten::add_", 30, 10)  # within the convolution: the convolution's
    made.op("aten::hardtanh_", 200, 50)
    made.op("aten::clone", 210, 20)  # saved for the backward pass
    made.op("Optimizer.step#SGD.step", 400, 100, kind="annotation")
    made.op("aten::add_", 410, 30)
    made.write(path)
    return made.events


NAMES = {"aten::convolution", "aten::add_", "aten::hardtanh_", "aten::clone"}


def test_on_a_cpu_time_belongs_to_the_counted_operator_that_it_was_spent_in(tmp_path):
    events = on_the_cpu(tmp_path / "t.json")
    times = operator_times.operator_ms(tmp_path / "t.json", events, NAMES)
    assert {label: round(ms * 1e3) for label, ms in times.items()} == {
        ("aten::convolution", "depthwise convolution"): 100,
        ("aten::hardtanh_", "elementwise"): 30,
        ("aten::clone", "copy, cast"): 20,
        ("aten::add_", "optimizer"): 30,
        (None, None): 20 + 70,  # of conv2d, and of the optimizer's mark
    }


def test_on_a_gpu_kernels_belong_to_the_operator_that_launched_them(tmp_path):
    made = TraceBuilder()
    for number, begin in ((1, 0), (2, 1000)):
        made.step(number, begin, 1000)
        outer = made.op("aten::convolution", begin, 100)
        outer["args"]["Input Dims"] = [[2, 8, 6, 6], [8, 8, 3, 3]]
        inner = made.op("aten::cudnn_convolution", begin + 10, 50)
        made.launch("kernel", begin + 20, 5, begin + 120, 400, op=inner)
        made.op("Optimizer.step#SGD.step", begin + 200, 100, kind="annotation")
        step = made.op("aten::_fused_sgd_", begin + 210, 50)
        made.launch("kernel2", begin + 220, 5, begin + 600, 100, op=step)
        made.copy(begin + 400, 10, begin + 700, 30, 1000)
    made.add("kernel", "from before", 5, 90, tid=7, pid=0, device=0, stream=7, correlation=999)  # launched untraced
    made.write(tmp_path / "t.json")
    names = {"aten::convolution", "aten::_fused_sgd_"}
    times = operator_times.operator_ms(tmp_path / "t.json", made.events, names)
    assert times == {
        ("aten::convolution", "convolution"): pytest.approx(0.4),
        ("aten::_fused_sgd_", "optimizer"): pytest.approx(0.1),
        (None, None): pytest.approx(0.03),
    }


def test_groups_join_what_was_counted_with_what_was_timed():
    counter = SimpleNamespace(
        counts={
            ("aten::mm", "matrix product"): flops.Counted("aten::mm", "matrix product", 2, 600, 60, 6),
            ("aten::addmm", "matrix product"): flops.Counted("aten::addmm", "matrix product", 1, 400, 40, 4),
            ("aten::add_", "elementwise"): flops.Counted("aten::add_", "elementwise", 1, None, 30, 3),
        }
    )
    times = {
        ("aten::mm", "matrix product"): 2.0,
        ("aten::addmm", "matrix product"): 1.0,
        ("aten::add_", "elementwise"): 1.0,
        (None, None): 5.0,
    }
    matrix, elementwise = operator_times.groups(counter, times)
    assert matrix == Group("matrix product", 3, 1000, 100, 10, 3.0)
    assert elementwise == Group("elementwise", 1, None, 30, 3, 1.0)
    assert elementwise.work == 3
    left = operator_times.without_formula(counter, times)
    assert left == WithoutFormula([Uncounted("aten::add_", 1)], calls_share=0.25, time_share=0.25)


def test_a_group_s_part_of_its_roof_is_that_of_the_lower_roof():
    found = make_limit()  # 1e9 FLOP/s, 1e8 bytes/s: the ridge is at 10 FLOPs a byte
    assert roofline.roof_at(found, 100) == 1e9
    assert roofline.roof_at(found, 1) == 1e8
    assert roofline.of_roof(found, Group("convolution", 1, 10**8, 10**6, 0, 200.0)) == pytest.approx(0.5)
    assert roofline.of_roof(found, Group("batch norm", 1, None, 10**7, 123, 200.0)) == pytest.approx(0.5)  # bytes/s
    assert roofline.of_roof(found, Group("batch norm", 1, None, 10**7, 123, 0.0)) is None


def test_the_figure_is_what_its_name_says(tmp_path):
    roofline.plot(make_limit(), tmp_path / "roof.svg")
    roofline.plot(make_limit(), tmp_path / "roof.png")
    text = (tmp_path / "roof.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "measured roofs: 100 MB/s, 1 GFLOP/s" in text
    assert "convolution, 71% of the time" in text  # 15 of 21 ms
    assert "the whole step, compiled, timed **" in text
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
    for name in ("roof.html", "not there/roof.svg"):
        with pytest.raises(InputError):
            roofline.plot(make_limit(), tmp_path / name)


# The command


def shown(show, found, width=140):
    console = Console(width=width, highlight=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(found, console)
    return console.export_text()


@pytest.fixture
def small(small_peaks, monkeypatch):
    """`limit` on `SmallNet`, nothing compiled."""
    monkeypatch.setattr(limit, "classifier", lambda *_: SmallNet())
    monkeypatch.setattr(input_limit, "classifier", lambda *_: SmallNet())
    monkeypatch.setattr(one_batch, "compiled_windows", lambda *_: ([], [], "no compiler here"))


def ended(*words):
    with pytest.raises(SystemExit) as end:
        main(["limit", "--device", "cpu", "--quick", "--batch-size", "4", *map(str, words)])
    return end.value.code


def test_the_command_prints_json_alone_and_writes_the_same(small, tmp_path, capsys):
    assert ended("--logdir", tmp_path, "--json", "--plot", tmp_path / "roof.svg") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / FILE).read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "roof.svg"]
    found = read_limit(tmp_path)
    assert (found.schema, found.batch_size, found.image_size, found.precision[:2]) == (1, 4, 32, found.precision[:2])
    assert [each.kind for each in found.floors] == ["uncompiled", "channels last"]
    assert found.not_compiled == "no compiler here"
    assert len(found.floor.samples_per_second.windows) == 5
    assert found.forward_flops_per_image * 4 < found.flops_per_step < found.forward_flops_per_image * 4 * 3
    assert sum(group.flops or 0 for group in found.groups) == found.flops_per_step
    assert sum(group.bytes for group in found.groups) == found.bytes_per_step
    assert 0 < found.without_formula.calls_share < 1
    assert 0 < found.without_formula.time_share < 1
    assert all(group.traced_ms > 0 for group in found.groups)  # each operator that was counted is found in the trace


def test_the_tables_say_what_they_show(small, tmp_path, capsys):
    assert ended("--logdir", tmp_path) == 0
    text = capsys.readouterr().out
    for words in ("measured peak, computing", "x forward", "Not compiled: no compiler here", "2 x multiply-adds",
                  "no formula", "The floor is", "read + written", "smoke run"):  # fmt: skip
        assert words.lower() in text.lower()


def test_the_fastest_floor_is_the_floor_and_fits_a_narrow_terminal():
    text = shown(limit_view.print_limit, make_limit(), width=80)
    assert "The floor is 400.0 images/s (compiled)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_batch_that_does_not_fit_is_said_and_the_rest_goes_on(small, room_for_two, tmp_path, capsys):
    assert ended("--logdir", tmp_path) == 0
    assert "out of memory with batch size 4: measured with batch 2" in capsys.readouterr().out.lower()
    assert read_limit(tmp_path).batch_size == 2


@pytest.mark.parametrize(
    "words, told",
    [
        (["--model", "mobilenet_v22"], "unknown model"),
        (["--plot", "roof.gif"], ".svg or .png"),
        (["--plot", "not there/roof.svg"], "no folder"),
        (["--plot", "roof.svg", "--input"], "leave one of them out"),
        (["--download"], "--input only"),
        (["--device", "tpu"], "unknown device"),
        (["--compile-limit", "-1"], "whole number"),
        (["--logdir", "/dev/null/logs"], "cannot write"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert ended("--logdir", tmp_path, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not (tmp_path / FILE).exists()


def test_a_gpu_is_chosen_before_anything_runs_on_it(tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    args = SimpleNamespace(
        plot=None, input=False, device="cuda:1", image_size=None, quick=False, logdir=tmp_path, download=False
    )
    assert limit.ready(args) == torch.device("cuda:1")
    assert (chosen, args.image_size) == ([torch.device("cuda:1")], 224)
    assert torch.backends.cuda.matmul.allow_tf32 is False


# Beside the ladder


def ladder_text(found, **changes):
    ladders = compare.ladders([make_result(), make_result("01_amp", windows=(200.0,) * 5)])
    return shown(lambda each, to: table.print_ladders(each, to, limit=found), ladders, **changes)


def test_compare_shows_each_step_s_share_of_the_floor():
    text = ladder_text(make_limit())
    rows = [line.split() for line in text.splitlines() if line.startswith("0")]
    assert [row[-1] for row in rows] == ["26%", "50%"]  # 102 and 200 of 400 images/s
    assert "batch 4, bfloat16" in text
    assert "of the floor" in text.replace("\n", " ")


@pytest.mark.parametrize("change", [{"device": "Other GPU"}, {"model": "resnet18"}, {"image_size": 64}])
def test_a_floor_of_something_else_is_not_shown(change):
    assert "floor" not in ladder_text(make_limit(**change))
    assert "floor" not in ladder_text(None)


def test_a_broken_limit_is_skipped_and_the_json_stays_as_it_is(tmp_path, capsys):
    write_run(tmp_path, make_result())

    def printed(*words):
        with pytest.raises(SystemExit) as end:
            main(["compare", str(tmp_path), *words])
        assert end.value.code == 0
        return capsys.readouterr()

    before = printed("--json").out
    for content in ("torn", '{"schema": 1}', json.dumps(asdict(make_limit(floors=[])))):
        (tmp_path / FILE).write_text(content)
        found = printed()
        assert "skipped: " in found.err
        assert "the floor" not in found.out
    (tmp_path / FILE).write_text(json.dumps(asdict(make_limit())))
    assert "of the floor: " in printed().out
    assert printed("--json").out == before


# The input pipeline


def delivered(workers, *windows):
    median = sorted(windows)[len(windows) // 2]
    return input_limit.Delivered(workers, record.Throughput(median, list(windows)), 0.1, None)


MODEL = input_limit.Consumed(record.Throughput(100.0, [90.0, 100.0, 110.0]), "compiled", "bfloat16", 4, "limit.json")


def test_worker_numbers_double_up_to_the_cores():
    assert input_limit.worker_numbers(1) == [0, 1, 2]
    assert input_limit.worker_numbers(2) == [0, 1, 2]
    assert input_limit.worker_numbers(6) == [0, 1, 2, 4, 6]
    assert input_limit.worker_numbers(16) == [0, 1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "found, told",
    [
        ([delivered(0, 200, 210, 220)], "the model is the bottleneck with any number"),
        ([delivered(0, 50, 60, 70), delivered(1, 120, 130, 140)], "below 1 worker, the model from there on"),
        ([delivered(0, 50, 60, 70), delivered(2, 80, 95, 120)], "below 2 workers; there it is as fast"),
        ([delivered(0, 9, 10, 11), delivered(2, 39, 40, 41)], "about 5 of them, each with a core of its own"),
    ],
)
def test_the_verdict_says_which_side_is_slower_and_what_changes_it(found, told):
    assert told in input_limit.verdict(found, MODEL, cores=2)


def test_worker_memory_is_the_median_of_what_the_system_tells(tmp_path):
    for pid, rss in ((1, 100), (2, 300), (3, 200)):
        (tmp_path / str(pid)).mkdir()
        text = f"00-ff ---p [rollup]\nRss: {rss} kB\nPss: {rss // 2} kB\nPss_Anon: 7 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(text)
    memory = input_limit.worker_memory([1, 2, 3, 99], tmp_path)
    assert memory == input_limit.ProcessMemory(200 * 1024, 100 * 1024)
    assert input_limit.worker_memory([99], tmp_path) is None
    assert input_limit.worker_memory([]) is None


class Few(torch.utils.data.Dataset):
    """Eight small images."""

    source = "stand-in"

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(3, 4, 4, dtype=torch.uint8), index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_delivers_in_windows(workers):
    found = input_limit.deliver(Few(), 4, workers, False, 0, window_seconds=1e-4)
    assert found.workers == workers
    assert len(found.samples_per_second.windows) == input_limit.WINDOWS
    assert all(math.isfinite(speed) and speed > 0 for speed in found.samples_per_second.windows)
    assert workers or found.worker_bytes is None


def test_beside_the_input_a_model_that_memory_does_not_hold_is_halved_and_said(
    small, room_for_two, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(input_limit, "cifar10", lambda *_, **__: Few())
    monkeypatch.setattr(input_limit, "worker_numbers", lambda cores: [0])
    assert ended("--logdir", tmp_path, "--input") == 0
    assert "The model alone: out of memory with batch size 4: measured with batch 2." in capsys.readouterr().out
    found = read_input_limit(tmp_path)
    assert (found.batch_size, found.model_alone.batch_size) == (4, 2)


def test_the_input_command_prints_both_sides(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(input_limit, "cifar10", lambda *_, **__: Few())
    monkeypatch.setattr(input_limit, "worker_numbers", lambda cores: [0])
    assert ended("--logdir", tmp_path, "--input") == 0
    text = capsys.readouterr().out
    assert "measured briefly: no limit.json here" in text
    assert "-" in next(line for line in text.splitlines() if line.startswith("0 ")).split()
    assert ended("--logdir", tmp_path, "--input", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["workers"] for each in printed["delivered"]] == [0]
    assert printed["model_alone"]["kind"] == "uncompiled"
    assert not (tmp_path / FILE).exists()
    assert ended("--logdir", tmp_path, "--input", "--batch-size", "9") == 2
    assert "larger than the data" in capsys.readouterr().err


def test_the_model_s_side_is_taken_from_a_limit_that_matches(small, tmp_path):
    assert ended("--logdir", tmp_path) == 0
    kept = read_limit(tmp_path)
    args = SimpleNamespace(logdir=tmp_path, model="mobilenet_v2", image_size=32, batch_size=8, seed=0)
    consumed, _ = input_limit.model_alone(args, CPU)
    assert consumed.samples_per_second == kept.floor.samples_per_second
    assert consumed.source.startswith("limit.json of 20")
    args.image_size = 40
    assert "another device" in input_limit.model_alone(args, CPU)[0].source


def test_a_worker_that_died_is_one_line():
    with pytest.raises(InputError, match=r"with 4 workers .*killed by signal"), input_limit.told_of_workers(4):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    with pytest.raises(RuntimeError), input_limit.told_of_workers(4):
        raise RuntimeError("a defect")
