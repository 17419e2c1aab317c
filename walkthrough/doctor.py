"""`walkthrough doctor`: what this machine has, and what to do about what it lacks."""

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import shutil
import statistics
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from walkthrough.results import environment
from walkthrough.results.errors import InputError, folder, whole_number

IMAGE_SIZE = {"cuda": 224, "cpu": 96}  # px, the course's own
CIFAR10 = "cifar-10-batches-py"
CIFAR10_FILES = ("batches.meta", *(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
NEEDED_GB = 1  # a full ladder of traces takes some tens of MB; what a run stages, a few hundred
SHARED_MEMORY = Path("/dev/shm")  # where workers put their batches
PREFETCH_FACTOR = 2  # batches that each worker has ready, DataLoader's default
HELD_BATCHES = 2  # batches in use or being copied
BF16_SECONDS = 4.0  # for measuring bf16 on a CPU: no round of it starts that would end later
BF16_ROUNDS, BF16_STEPS = 7, 5  # of fp32 and bf16 in turn; training steps of each in a round, where time allows


@dataclass(frozen=True)
class Finding:
    """One line. state: "ok", "note" (works, with a limit) or "fix" (will not work; the text says what to do)."""

    subject: str
    state: str
    text: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`: those of a step that say what a run would need."""
    logs, data = environment.project_folder("logs"), environment.project_folder("data")
    parser.add_argument("--logdir", type=folder, default=logs, metavar="DIR", help="where runs would go")
    parser.add_argument("--data", type=folder, default=data, metavar="DIR", help="where CIFAR-10 would be")
    parser.add_argument(
        "--image-size",
        type=whole_number(16, 1024),
        metavar="PX",
        help="images are resized to PX x PX (default: 224 on a GPU; on a CPU 96, 64 with another --model, 48 with "
        "--quick)",
    )
    parser.add_argument(
        "--batch-size",
        type=whole_number(1, 65536),
        default=128,
        metavar="N",
        help="images per step from step 02 on (default: 128)",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(0, 256),
        default=min(8, environment.usable_cores()),
        metavar="N",
        help="loader processes from step 04 on (default: usable cores, at most 8: %(default)s here)",
    )


def examine(args: argparse.Namespace) -> list[Finding]:
    """All findings, in the order they are printed. args: what `add_options` adds."""
    gpu = _has_gpu()
    return [
        _python(),
        *_torch(),
        *_gpus(),
        _cpu(),
        *_cpu_bf16(gpu),
        *_compilers(gpu),
        *_shared_memory(args.workers, args.batch_size, args.image_size or IMAGE_SIZE["cuda" if gpu else "cpu"]),
        _cifar10(args.data),
        _package("tensorboard", "2.21", "TensorBoard", "fix", "its page for PyTorch traces may be broken"),
        _package("msgspec", "0.18", "msgspec", "note", "`limit` does not time operators; traces are read elsewhere"),
        _package("torch-tb-profiler", "0.4.3", "Profiler plugin", "note", "traces are recorded, and shown elsewhere"),
        _disk(args.logdir),
    ]


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns 0, or 2 where something has to be fixed."""
    findings = examine(args)
    for finding in findings:
        print(f"{finding.state:<5}{finding.subject:<18}{finding.text}")
    return 2 if any(finding.state == "fix" for finding in findings) else 0


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _torch() -> Iterator[Finding]:
    try:
        import torch
        import torchvision
    except Exception as error:  # a broken installation fails in many ways: OSError, RuntimeError, ImportError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield Finding("torch", "fix", f"{reason}: {_install('torch torchvision')}")
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    text = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    if version < (2, 11):
        yield Finding("torch", "fix", f"{text}: 2.11 or later is needed, {_install('torch torchvision')}")
    else:
        yield Finding("torch", "ok", text)


def _has_gpu() -> bool:
    try:
        import torch
    except Exception:  # reported above
        return False
    return torch.cuda.is_available()


def _gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception:  # reported above
        return
    driver = environment.driver_version()
    if torch.version.cuda is None and torch.version.hip is None:
        yield Finding(
            "CUDA",
            "note",
            "this torch is built for CPUs only" + (f", though driver {driver} is here" if driver else ""),
        )
    elif not torch.cuda.is_available():
        why = "no NVIDIA driver here" if driver is None else f"driver {driver} does not suit CUDA {torch.version.cuda}"
        yield Finding("CUDA", "note", f"torch is built for CUDA {torch.version.cuda}, but {why}: steps run on the CPU")
    else:
        yield Finding("CUDA", "ok", f"{torch.version.cuda or torch.version.hip}, driver {driver or 'unknown'}")
        for index in range(torch.cuda.device_count()):
            yield _gpu(torch, index)
        return
    yield Finding(
        "GPU",
        "note",
        "none: steps that concern a GPU only have no effect and say so; no Tensor Cores to see",
    )


def _gpu(torch: Any, index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    bf16 = torch.version.hip is not None or torch.cuda.get_device_capability(index) >= (8, 0)
    tensor_cores = torch.version.hip or (capability >= (7, 0) and "GTX 16" not in properties.name)
    traits = [
        f"{properties.total_memory / 1e9:.0f} GB",
        "Tensor Cores" if tensor_cores else "no Tensor Cores",
        "bf16" if bf16 else "no bf16, so step 01 uses fp16 with gradient scaling",
    ]
    return Finding(f"GPU cuda:{index}", "ok", f"{properties.name}: {', '.join(traits)}")


def _cpu() -> Finding:
    bf16 = environment.cpu_bf16_hardware()
    text = f"{environment.cpu_name()}, {environment.usable_cores()} usable cores"
    if bf16 == "AMX":
        return Finding("CPU", "ok", f"{text}, bf16 by AMX")
    has = f"{bf16} but no AMX" if bf16 else "no bf16 instructions"
    return Finding("CPU", "note", f"{text}, {has}: step 01 leaves autocast off on the CPU, --precision bf16 tries it")


def _cpu_bf16(gpu: bool) -> Iterator[Finding]:
    """How fast this CPU trains under bf16 autocast, measured; nothing where steps run on a GPU or torch is missing."""
    if gpu:
        return
    try:
        import torch
    except Exception:  # reported above
        return
    nn, size = torch.nn, IMAGE_SIZE["cpu"]
    images, labels = torch.randn(128, 3, size, size), torch.randint(0, 10, (128,))
    criterion = nn.CrossEntropyLoss()

    def convolution(inputs: int, **settings: int) -> list[Any]:
        return [nn.Conv2d(inputs, 16, bias=False, **settings), nn.BatchNorm2d(16), nn.ReLU()]

    def program(bf16: bool) -> Callable[[], None]:
        mixers = [convolution(16, kernel_size=3, padding=1, groups=16) + convolution(16, kernel_size=1) for _ in "12"]
        layers = [convolution(3, kernel_size=12, stride=12), *mixers, [nn.AdaptiveAvgPool2d(1), nn.Flatten()]]
        model = nn.Sequential(*itertools.chain(*layers), nn.Linear(16, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def train_step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return train_step

    speeds = relative_speeds(program(bf16=True), program(bf16=False), BF16_SECONDS)
    rounds = f"{len(speeds)} round{'s' if len(speeds) > 1 else ''}"
    text = f"{statistics.median(speeds):.2f}x the speed of fp32 in training, the median of {rounds}"
    yield Finding("bf16 on this CPU", "ok", f"{text} from {min(speeds):.2f}x to {max(speeds):.2f}x")


def relative_speeds(program: Callable[[], None], other: Callable[[], None], seconds: float) -> list[float]:
    """The speed of `program` over that of `other` for each round of both: one, and more while `seconds` last."""
    end = perf_counter() + seconds
    for _ in range(2):  # the first time only warms up
        took = _seconds(other, 1) + _seconds(program, 1)
    count = max(1, min(BF16_STEPS, int((end - perf_counter()) / (BF16_ROUNDS * took))))
    speeds = [_seconds(other, count) / _seconds(program, count)]
    while len(speeds) < BF16_ROUNDS and perf_counter() + count * took <= end:
        speeds.append(_seconds(other, count) / _seconds(program, count))
    return speeds


def _seconds(program: Callable[[], None], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        program()
    return perf_counter() - start


def _compilers(gpu: bool) -> Iterator[Finding]:
    """What torch.compile needs: on a GPU Triton, which builds C code when it runs; on a CPU a C++ compiler."""
    fails = f"without it, torch.compile, in steps from 13 on, fails on a {'GPU' if gpu else 'CPU'}"
    language = "C" if gpu else "C++"
    variable, names = ("CC", ("gcc", "clang")) if gpu else ("CXX", ("clang++" if sys.platform == "darwin" else "g++",))
    names = (os.environ[variable],) if os.environ.get(variable) else names
    if path := next(filter(None, map(shutil.which, names)), None):
        yield Finding(f"{language} compiler", "ok", path)
    else:
        yield Finding(f"{language} compiler", "note", f"no {' or '.join(names)}: {fails}")
    if gpu and importlib.util.find_spec("triton") is None:
        yield Finding("Triton", "note", f"not installed: {fails}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        yield Finding("Python's headers", "note", f"no Python.h (Debian: python3-dev): {fails}")


def _shared_memory(workers: int, batch_size: int, image_size: int) -> Iterator[Finding]:
    """What the workers' queue of batches takes, uint8 images as from step 03 on; nothing where no /dev/shm is used."""
    if not workers or not SHARED_MEMORY.is_dir():
        return
    batch = batch_size * (3 * image_size**2 + 8)
    needed = batch * (workers * PREFETCH_FACTOR + HELD_BATCHES)
    free = shutil.disk_usage(SHARED_MEMORY).free
    text = (
        f"{free / 1e9:.2f} GB free in {SHARED_MEMORY}, {needed / 1e9:.2f} GB needed for {workers} workers, "
        f"batch {batch_size}, {image_size} px"
    )
    if free >= needed:
        yield Finding("Shared memory", "ok", text)
        return
    fix = f"mount -o remount,size={-(-2 * needed // 10**9)}G {SHARED_MEMORY}, --shm-size, or fewer --workers"
    yield Finding("Shared memory", "fix", f"{text}: {fix}")


def _cifar10(data: Path) -> Finding:
    folder = data / CIFAR10
    try:
        if data.is_file():
            raise InputError(f"--data {data} is a file: name the folder that holds {CIFAR10}")
        if data.name == CIFAR10:
            raise InputError(f"--data {data} is the data set's own folder: name the folder that it is in")
        if not data.exists() and data != environment.project_folder("data"):
            raise InputError(f"--data {data} does not exist: leave it out to use the stand-in")
        if folder.exists():
            missing = [name for name in CIFAR10_FILES if name not in os.listdir(folder)]
            if missing:
                fix = "run with --download to fetch it again, or delete it to use the stand-in"
                raise InputError(f"CIFAR-10 in {folder} is partial ({', '.join(missing)} missing): {fix}")
            return Finding("CIFAR-10", "ok", f"found in {data}")
    except InputError as error:
        return Finding("CIFAR-10", "fix", str(error))
    except OSError as error:
        return Finding("CIFAR-10", "fix", f"cannot look into --data {data}: {error.strerror or error}")
    return Finding("CIFAR-10", "note", f"not in {data}: steps use the stand-in; --download fetches it (170 MB)")


def _package(name: str, wanted: str, title: str, without: str, effect: str) -> Finding:
    """wanted: the oldest version that works. without: the state where there is none. effect: of either."""
    fix = _install(name)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        why = "" if without == "fix" else f", so {effect}"
        return Finding(title, without, f"{name} is not installed{why}: {fix}")
    if _numbers(version) < _numbers(wanted):
        return Finding(title, "note", f"{name} {version} is older than {wanted}, so {effect}: {fix}")
    return Finding(title, "ok", f"{name} {version}")


def _install(packages: str) -> str:
    """What installs them: the project's own list, but for where the code alone was unpacked or installed."""
    listed = (environment.ROOT / "requirements.txt").exists()
    return "run `make setup`, or pip install -r requirements.txt" if listed else f"pip install {packages}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _disk(logdir: Path) -> Finding:
    folder = next(path for path in (logdir, *logdir.resolve().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 1e9
    if free < NEEDED_GB:
        return Finding("Disk", "fix", f"{free:.1f} GB free in {folder}: {NEEDED_GB} GB is needed for traces")
    return Finding("Disk", "ok", f"{free:.0f} GB free in {folder}")
