"""`walkthrough doctor`: what this machine has, and what to do about what it lacks."""

import argparse
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walkthrough.results import environment
from walkthrough.results.errors import add_number, folder, whole_number

IMAGE_SIZE = {"cuda": 224, "cpu": 96}  # px, the course's own
CIFAR10 = "cifar-10-batches-py"
CIFAR10_FILES = ("batches.meta", *(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
NEEDED_GB = 1  # a full ladder of traces takes some tens of MB; what a run stages, a few hundred
SHARED_MEMORY = Path("/dev/shm")  # where workers put their batches
PREFETCH_FACTOR = 2  # batches that each worker has ready, DataLoader's default
HELD_BATCHES = 2  # batches in use or being copied


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
    add_number(parser, "--batch-size", "images per step from step 02 on", 1, 65536, 128)
    workers = min(8, environment.usable_cores())
    add_number(parser, "--workers", "loader processes from step 04 on, usable cores but at most 8", 0, 256, workers)


def examine(args: argparse.Namespace) -> list[Finding]:
    """All findings, in the order they are printed. args: what `add_options` adds."""
    torch, said = _torch()
    gpu = torch is not None and torch.cuda.is_available()
    return [
        Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})"),
        said,
        *(_gpus(torch) if torch else ()),
        _cpu(),
        *_compilers(gpu),
        *_shared_memory(args.workers, args.batch_size, args.image_size or IMAGE_SIZE["cuda" if gpu else "cpu"]),
        _cifar10(args.data),
        _package("tensorboard", "fix", "a step cannot write its events"),
        _package("msgspec", "fix", "results and traces cannot be read"),
        _package("rich", "note", "`tour`, `compare` and the studies cannot print their tables"),
        _package("psutil", "note", "`limit` and `sweep` cannot measure"),
        _package("torch-tb-profiler", "note", "traces are recorded, and shown elsewhere"),
        _disk(args.logdir),
    ]


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns 0, or 2 where something has to be fixed."""
    findings = examine(args)
    for finding in findings:
        print(f"{finding.state:<5}{finding.subject:<18}{finding.text}")
    return 2 if any(finding.state == "fix" for finding in findings) else 0


def _torch() -> tuple[Any, Finding]:
    """(The module, or None where it cannot be imported; what is said of it.)"""
    try:
        import torch
        import torchvision
    except Exception as error:  # a broken installation fails in many ways: OSError, RuntimeError, ImportError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, Finding("torch", "fix", f"{reason}: {_install('torch torchvision')}")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    text = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    if version < (2, 11):
        return torch, Finding("torch", "fix", f"{text}: 2.11 or later is needed, {_install('torch torchvision')}")
    return torch, Finding("torch", "ok", text)


def _gpus(torch: Any) -> Iterator[Finding]:
    driver = environment.driver_version()
    if torch.cuda.is_available():
        yield Finding("CUDA", "ok", f"{torch.version.cuda or torch.version.hip}, driver {driver or 'unknown'}")
        yield from (_gpu(torch, index) for index in range(torch.cuda.device_count()))
        return
    if torch.version.cuda is None and torch.version.hip is None:
        text = "this torch is built for CPUs only" + (f", though driver {driver} is here" if driver else "")
    else:
        why = "no NVIDIA driver here" if driver is None else f"driver {driver} does not suit CUDA {torch.version.cuda}"
        text = f"torch is built for CUDA {torch.version.cuda}, but {why}: steps run on the CPU"
    yield Finding("CUDA", "note", text)
    yield Finding(
        "GPU", "note", "none: steps that concern a GPU only have no effect and say so; no Tensor Cores to see"
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
    needed = batch_size * (3 * image_size**2 + 8) * (workers * PREFETCH_FACTOR + HELD_BATCHES)
    free = shutil.disk_usage(SHARED_MEMORY).free
    text = f"{free / 1e9:.2f} GB free in {SHARED_MEMORY}, {workers} workers need {needed / 1e9:.2f} GB"
    fix = f": mount -o remount,size={-(-2 * needed // 10**9)}G {SHARED_MEMORY}, --shm-size, or fewer --workers"
    yield Finding("Shared memory", *(("ok", text) if free >= needed else ("fix", text + fix)))


def _cifar10(data: Path) -> Finding:
    folder, state = data / CIFAR10, "fix"
    try:
        if data.is_file():
            text = f"--data {data} is a file: name the folder that holds {CIFAR10}"
        elif data.name == CIFAR10:
            text = f"--data {data} is the data set's own folder: name the folder that it is in"
        elif not data.exists() and data != environment.project_folder("data"):
            text = f"--data {data} does not exist: leave it out to use the stand-in"
        elif not folder.exists():
            state, text = "note", f"not in {data}: steps use the stand-in; --download fetches it (170 MB)"
        elif missing := [name for name in CIFAR10_FILES if name not in os.listdir(folder)]:
            fix = "run with --download to fetch it again, or delete it to use the stand-in"
            text = f"CIFAR-10 in {folder} is partial ({', '.join(missing)} missing): {fix}"
        else:
            state, text = "ok", f"found in {data}"
    except OSError as error:
        text = f"cannot look into --data {data}: {error.strerror or error}"
    return Finding("CIFAR-10", state, text)


def _package(name: str, without: str, effect: str) -> Finding:
    """without: the state where it is not installed. effect: of that."""
    if importlib.util.find_spec(name.replace("-", "_")) is None:
        return Finding(name, without, f"not installed, so {effect}: {_install(name)}")
    return Finding(name, "ok", "installed")


def _install(packages: str) -> str:
    """What installs them: the project's own list, but for where the code alone was unpacked or installed."""
    listed = (environment.ROOT / "requirements.txt").exists()
    return "run `make setup`, or pip install -r requirements.txt" if listed else f"pip install {packages}"


def _disk(logdir: Path) -> Finding:
    folder = next(path for path in (logdir, *logdir.resolve().parents) if path.exists())
    free = shutil.disk_usage(folder).free / 1e9
    if free < NEEDED_GB:
        return Finding("Disk", "fix", f"{free:.1f} GB free in {folder}: {NEEDED_GB} GB is needed for traces")
    return Finding("Disk", "ok", f"{free:.0f} GB free in {folder}")
