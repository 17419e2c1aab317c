"""The steps as lessons: their size, their differences, and what they do to images, bytes and loss."""

import ast
import difflib
import gzip
import itertools

import pytest
import torch
from support import NAMES, ROOT, STEPS, SmallNet, run_program
from torch.utils._python_dispatch import TorchDispatchMode

from common.data import CIFAR10_STD
from common.device import enable_tf32, without_gpu
from common.loaders import DeviceLoader, Prefetcher
from common.session import unmet_need, without_effect
from walkthrough.results import result as record

pytestmark = pytest.mark.usefixtures("stand_in_once")


def code_lines(path):
    """The lines of a script's code: no docstring, no comments, no blank lines."""
    text = path.read_text()
    docstring = ast.parse(text).body[0]
    lines = text.splitlines()[docstring.end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("path", STEPS, ids=NAMES)
def test_a_step_is_a_whole_program_of_at_most_80_lines_that_opens_with_its_lesson(path):
    assert 20 < len(code_lines(path)) <= 80
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring.startswith(f"Step {path.stem[:2]}: ")
    for part in ("\nIdea ", "\nChange ", "\nLook for ", "\nCaution "):
        assert docstring.count(part) == 1
    said = docstring.count("\nNo GPU ") + docstring.count("\nNeeds      a GPU. ")
    assert said == bool(without_gpu(path.stem[3:], "cpu"))


LABS = [
    sorted((ROOT / "labs" / lab).glob("[0-9]*.py")) for lab in ("memory", "scale", "simcls", "speedrun", "transformer")
]
PAIRS = [pair for files in (STEPS, *LABS) for pair in itertools.pairwise(files) if pair[1].stem != "06_nvjpeg"]


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{path.parent.name}-{path.stem}" for _, path in PAIRS])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    added, removed = (sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- "))
    assert 0 < max(added, removed) <= 15


ON_A_GPU = "05_pinned_memory 06_prefetch_stream 10_no_hidden_syncs 12_cudnn_benchmark 15_cuda_graphs".split()
ALONE = {"16_data_parallel": "a second process"}


@pytest.mark.parametrize(
    ("device", "precision", "processes", "lacking"),
    [
        ("cpu", torch.bfloat16, 1, ALONE | dict.fromkeys(ON_A_GPU, "a GPU")),
        ("cuda", torch.float16, 1, ALONE),
        ("cuda", None, 2, {"01_amp": "bf16 units"}),
    ],
)
def test_a_step_says_what_its_change_needs_and_the_device_lacks(device, precision, processes, lacking, monkeypatch):
    monkeypatch.setattr("common.ranks.world_size", lambda: processes)
    needs = {path.stem: unmet_need(str(path), torch.device(device), precision) for path in STEPS}
    assert {name: need for name, need in needs.items() if need} == lacking


class Reads(TorchDispatchMode):
    """Counts how often Python asks for a tensor's value: .item(), bool(), float(), an `if`; a GPU is waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += operator.overloadpacket is torch.ops.aten._local_scalar_dense
        return operator(*args, **(kwargs or {}))


def reads(captured, images, labels):
    """How often a training step waits for a value."""
    with Reads() as counted:
        captured.train_step(images, labels)
    return counted.count


def settings(captured, compiled):
    images, labels = next(iter(captured.loader))
    on_device = isinstance(captured.loader, DeviceLoader)
    optimizer = captured.variables["optimizer"]
    targets, modes = zip(*compiled, strict=True) if compiled else ((), (None,))
    step_settings = {
        "batch_size": captured.loader.batch_size,
        "precision": captured.precision or torch.float32,
        "synchronises": reads(captured, images, labels),
        "channels_last": captured.model.layers[0].weight.is_contiguous(memory_format=torch.channels_last),
        "compiled": "the model" if captured.model in targets else "images to loss" if targets else "nothing",
        "mode": modes[0],
        "fused": optimizer.defaults["fused"],
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "data": "on the device" if on_device else "on the host",
        "processes": getattr(captured.loader, "world_size", 1),
        "float32": (torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    }
    if not on_device:  # what is there already is not loaded, pinned, prefetched or copied
        step_settings |= {
            "transfer": images.dtype,
            "px": images.shape[-1],
            "workers": captured.loader.num_workers,
            "pin_memory": captured.loader.pin_memory,
            "prefetched": isinstance(captured.loader, Prefetcher),
        }
    return step_settings


@pytest.fixture
def uncompiled(monkeypatch):
    """Compiling leaves modules as they are; a list of (the module, mode)."""
    asked = []

    def leave(call, mode=None):
        asked.append((call.__self__, mode))
        return call

    monkeypatch.setattr(torch, "compile", leave)
    return asked


def test_each_step_changes_exactly_one_setting(capture_step, uncompiled, monkeypatch, tmp_path):
    ladder = []
    monkeypatch.setattr("common.device.cpu_bf16_hardware", lambda: "AMX")  # so that step 01 changes the precision
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun sets it
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend: None)
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", lambda module, **_: module)
    for name in NAMES:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
        uncompiled.clear()
        enable_tf32()
        captured = capture_step(name, "--data", str(tmp_path), "--workers", "1", "--image-size", "40")
        ladder.append(settings(captured, uncompiled))
    changed = [{key for key in after if after[key] != before[key]} for before, after in itertools.pairwise(ladder)]
    assert changed == [
        {"precision"}, {"batch_size"}, {"transfer"}, {"workers"}, {"pin_memory"}, {"prefetched"}, {"px"}, {"data"},
        {"channels_last"}, {"synchronises"}, {"fused"}, {"cudnn_benchmark"}, {"compiled"}, {"compiled"}, {"mode"},
        {"processes"},
    ]  # fmt: skip
    assert ladder[0] == {
        "batch_size": 32, "precision": torch.float32, "transfer": torch.float32, "workers": 0, "pin_memory": False,
        "synchronises": 1, "channels_last": False, "compiled": "nothing", "mode": None, "prefetched": False,
        "data": "on the host", "px": 40, "fused": None, "cudnn_benchmark": False, "processes": 1,
        "float32": ("ieee", "highest"), "tf32": (False, False),
    }  # fmt: skip


@pytest.mark.parametrize(("precision", "scale"), [("fp16", 65536), ("bf16", 1)])
def test_autocast_computes_in_the_chosen_dtype_and_scales_the_loss_in_fp16_only(
    capture_step, monkeypatch, tmp_path, precision, scale
):
    scales, seen = [], []
    original = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda self: scales.append(self.item()) or original(self))
    captured = capture_step("01_amp", "--data", str(tmp_path), "--precision", precision)
    captured.model.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loss = captured.train_step(*next(iter(captured.loader)))
    assert seen == [captured.precision] == [{"fp16": torch.float16, "bf16": torch.bfloat16}[precision]]
    assert loss.dtype == torch.float32
    assert scales[0] / loss.item() == pytest.approx(scale)


def test_the_device_enlarges_images_as_pil_does(capture_step, tmp_path):
    seen = {}
    for name in ("06_prefetch_stream", "07_small_images"):
        words = ("--data", str(tmp_path), "--image-size", "96", "--workers", "0", "--batch-size", "16")
        captured = capture_step(name, *words)
        images, labels = next(iter(captured.loader))
        captured.train_step(images, labels)
        seen[name] = captured.model.seen * torch.tensor(CIFAR10_STD).view(3, 1, 1) * 255
    assert images.shape == (16, 3, 32, 32)
    difference = (seen["07_small_images"] - seen["06_prefetch_stream"]).abs()
    assert difference.max() < 1.5  # of 255: both filter alike, and round in other places


def losses_of(captured, count):
    """The loss of each of the first training steps; the program keeps every one, and no graph with it."""
    batches = itertools.islice(iter(captured.loader), count)
    losses = torch.tensor([captured.train_step(images, labels).item() for images, labels in batches])
    kept = captured.variables["losses"]
    assert list(map(float, kept)) == losses.tolist()
    assert not any(getattr(loss, "requires_grad", False) for loss in kept)
    return losses


@pytest.mark.long
def test_every_recipe_learns_as_all_have_the_same_losses(capture_step, uncompiled, tmp_path):
    """Same seed and batch size: the steps see the same images in the same order, from step 08 on in another one."""
    recipes = {name: (name, "fp32") for name in NAMES} | {"in bf16": ("01_amp", "bf16")}
    losses, count = {}, 10
    for recipe, (name, precision) in recipes.items():
        words = ("--data", str(tmp_path), "--batch-size", "32", "--workers", "0", "--precision", precision)
        losses[recipe] = losses_of(capture_step(name, *words), 300 if name == NAMES[-1] else count)
    assert losses[NAMES[-1]][-10:].mean() < 0.9 * losses[NAMES[-1]][:10].mean()
    first = {recipe: loss[:count] for recipe, loss in losses.items()}
    for recipe, loss in first.items():
        like = first["08_on_device_data" if "08" <= recipe < "in" else "00_baseline"]
        rtol = 0.05 if recipe == "in bf16" else 1e-3
        torch.testing.assert_close(loss, like, rtol=rtol, atol=0, msg=lambda text, recipe=recipe: f"{recipe}: {text}")
    torch.testing.assert_close(first["08_on_device_data"].mean(), first["00_baseline"].mean(), rtol=0.1, atol=0)


# How far losses may be apart because fused operators round in other places: by some last bits of the precision in use.
COMPILED_RTOL = {"fp32": 1e-4, "bf16": 1e-2}


@pytest.mark.parametrize(("compiled", "precision"), [("13_compile", "bf16"), ("14_compile_loss", "fp32")])
def test_what_is_compiled_gives_the_same_losses(capture_step, tmp_path, precision, compiled):
    """For real, so it takes a while."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    losses = {}
    for name in ("12_cudnn_benchmark", compiled):
        words = ("--data", str(tmp_path), "--batch-size", "32", "--workers", "0", "--precision", precision)
        losses[name] = losses_of(capture_step(name, *words), 20)
    rtol = COMPILED_RTOL[precision]
    torch.testing.assert_close(losses[compiled], losses["12_cudnn_benchmark"], rtol=rtol, atol=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # compiled, whole, and only in the first step


@pytest.mark.long
def test_step_13_compiles_for_real(tmp_path, run_here, monkeypatch):
    """With a model of few kernels."""
    torch._dynamo.reset()
    monkeypatch.setattr("common.model.classifier", lambda *_: SmallNet())
    words = "--quick --batch-size 8 --workers 0 --image-size 32 --device cpu --logdir".split()
    finished = run_here(ROOT / "steps" / "13_compile.py", *words, tmp_path, "--data", tmp_path)
    assert finished.returncode == 0, finished.stderr
    result = record.read_result(tmp_path / "13_compile" / "result.json")
    trace = gzip.decompress((tmp_path / "13_compile" / result.trace).read_bytes())
    assert b"Torch-Compiled Region" in trace


@pytest.mark.long
def test_a_step_runs_with_nothing_but_torch_torchvision_and_tensorboard_without_forking(tmp_path):
    """As on somebody's GPU machine: the clone on Python's path, none of the other packages there, Python 3.14's way."""
    blocked = ["rich", "matplotlib", "pandas", "torch_tb_profiler", "IPython", "jupyter", "msgspec", "pytest"]
    (tmp_path / "sitecustomize.py").write_text(
        "import multiprocessing, sys\nmultiprocessing.set_start_method('forkserver', force=True)\n"
        f"sys.path.append({str(ROOT)!r})\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
    )
    finished = run_program(
        ROOT / "steps" / "04_multiprocess_loading.py", "--quick", "--workers", "1", "--batch-size", "8",
        "--logdir", tmp_path, "--data", tmp_path, "--device", "cpu", cwd=tmp_path, PYTHONPATH=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert len(record.read_result(tmp_path / "04_multiprocess_loading" / "result.json").samples_per_second.windows) >= 5


def test_a_step_knows_which_options_it_does_not_use(capture_step, tmp_path):
    captured = capture_step("00_baseline", "--data", str(tmp_path), "--batch-size", "64", "--workers=3")
    assert without_effect(captured.args, captured.loader, captured.precision) == ["--batch-size", "--workers"]
    assert (captured.loader.batch_size, captured.loader.num_workers) == (32, 0)
