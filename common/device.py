"""The device that a program trains on: precision, memory, and what has no effect without a GPU."""

import ctypes
import gc
import os
import re
from functools import cache

import torch

from common import SHORT_SPIN
from common.options import StepOptions
from walkthrough.results import capture
from walkthrough.results.environment import cpu_bf16_hardware, cpu_name
from walkthrough.results.errors import InputError

# M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX of malloc.h: never trim, map no single tensor, one heap for all threads.
_MALLOPT = {-1: -1, -4: 0, -8: 1}

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # by --precision

# Why something has no effect without a GPU: an optimisation, by its step's name without the number, or what a study
# measures.
_WITHOUT_GPU = {
    "reduced_h2d_copy": "nothing is copied to a device; what is saved is converting and normalising image by image",
    "pinned_memory": "nothing is copied to a device, so pinned memory has no effect (torch leaves it unpinned)",
    "prefetch_stream": "there is no copy to overlap, so batches are passed on as they are",
    "small_images": "nothing is copied to a device; what is saved is resizing image by image",
    "on_device_data": "the data is in main memory already; what is saved is the loader's work per image",
    "no_hidden_syncs": "the loss is available at once, so there is no synchronisation to avoid",
    "cudnn_benchmark": "there is no cuDNN, so there is nothing to choose",
    "offload": "what the stages keep is in main memory already, so nothing is moved",
    "cuda_graphs": "there are no launches to save",
    "tf32": "there are no Tensor Cores to multiply float32 on",
    "kernels_only": "there are no kernels to record",
}


def checked_device(name: str | None = None) -> str:
    """ "cpu", "cuda" or "cuda:N" as `torch.device` takes it; without a name, the GPU if there is one, else the CPU.

    Raises InputError for another kind of device, and for a GPU that this machine or this build of torch lacks.
    """
    if capture.as_on_gpu():
        return "cuda"
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9]\d*))?", name):
        raise InputError(f"unknown device {name!r}: --device takes cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise InputError(f"--device {name}: {why}; use --device cpu, and see `python -m walkthrough doctor`")
    if index and int(index) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: this machine has {torch.cuda.device_count()} GPU(s), counted from cuda:0")
    return name


def start(args: StepOptions, keep_tf32: bool = False) -> torch.device:
    """The device that a program trains on: seeds torch with --seed, and switches TF32 off, as every step does.

    keep_tf32: leave it as torch sets it, on in convolutions.
    """
    torch.manual_seed(args.seed)
    if not keep_tf32:
        disable_tf32()
    return torch.device(args.device)


def device_name(device: torch.device | str) -> str:
    """What the device is called: "NVIDIA H200", or the processor's name."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu_name()


def gpu_has_bf16(device: torch.device | str | int) -> bool:
    """True where this GPU multiplies bf16 in hardware: NVIDIA's from compute capability 8.0 on, and AMD's."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def without_gpu(optimisation: str, device: torch.device | str) -> list[str]:
    """The note that an optimisation has no effect on a device without a GPU, and why; [] where it has one.

    optimisation: a step's name without its number, such as "pinned_memory"; or a study's "kernels_only".
    """
    if torch.device(device).type == "cuda" or optimisation not in _WITHOUT_GPU:
        return []
    return [f"no GPU: {_WITHOUT_GPU[optimisation]}"]


def autocast_dtype(device: torch.device | str, precision: str = "auto") -> torch.dtype:
    """The dtype that `torch.autocast` should compute in on this device; float32 means that autocast stays off.

    precision: "fp32", "bf16", "fp16", or "auto", which is bfloat16 where the hardware multiplies matrices of it (GPUs
    from compute capability 8.0 on; CPUs with AMX); float16 on older GPUs, to be used with `torch.amp.GradScaler`, since
    small gradients underflow in fp16; float32 on other CPUs, where bf16 is emulated, or may be slower even by
    AVX512-BF16's instructions. Prints the choice and its reason in one line.
    """
    dtype, reason, _ = _autocast(torch.device(device), precision)
    print(f"precision: {dtype_name(dtype)}, {reason}")
    return dtype


def autocast_notes(device: torch.device | str, precision: str = "auto") -> list[str]:
    """What this device cannot do of mixed precision, for a run's notes; see `autocast_dtype`."""
    return _autocast(torch.device(device), precision)[2]


def _autocast(device: torch.device, precision: str) -> tuple[torch.dtype, str, list[str]]:
    """(dtype, the reason for it, notes)."""
    if precision == "auto" and capture.as_on_gpu():
        return torch.bfloat16, "as on a GPU", []
    if precision == "auto":
        return _on_gpu(device) if device.type == "cuda" else _on_cpu()
    reason = f"as --precision {precision} asks"
    notes = []
    if precision == "fp32":
        notes = ["autocast is off: --precision fp32"]
    elif precision == "bf16" and device.type == "cuda" and not gpu_has_bf16(device):
        notes = ["this GPU has no bf16 hardware: it is emulated, many times slower"]
    elif precision == "bf16" and device.type != "cuda" and (why := _slow_bf16()):
        notes = [why]
    return _DTYPES[precision], reason, notes


def _on_gpu(device: torch.device) -> tuple[torch.dtype, str, list[str]]:
    name = device_name(device)
    if gpu_has_bf16(device):
        return torch.bfloat16, f"{name} computes it in hardware", []
    note = f"{name} has no bf16 hardware: autocast uses fp16 with gradient scaling"
    return torch.float16, f"with gradient scaling: {name} has no bf16 hardware", [note]


def _on_cpu() -> tuple[torch.dtype, str, list[str]]:
    if why := _slow_bf16():
        note = f"autocast is off: {why}; --precision bf16 tries it"
        return torch.float32, note, [note]
    return torch.bfloat16, f"this CPU has {cpu_bf16_hardware()}", []


def _slow_bf16() -> str | None:
    """Why bf16 is, or may be, slower than fp32 on this CPU; None with AMX."""
    match cpu_bf16_hardware():
        case "AMX":
            return None
        case None:
            return "this CPU has no bf16 instructions, and emulated bf16 is many times slower than fp32"
        case instructions:
            return f"this CPU has {instructions} but not AMX, and bf16 may be slower than fp32 there"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as results name it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def disable_tf32() -> None:
    """Multiply fp32 in full on a GPU, convolutions and matrix products, as every step does."""
    _allow_tf32(False)


def enable_tf32() -> None:
    """Multiply fp32 as TF32 on a GPU that has it: convolutions (torch's default) and matrix products."""
    _allow_tf32(True)


def _allow_tf32(allowed: bool) -> None:
    # By the older names, which set the newer too. After the newer, `fp32_precision = …`, some releases raise where
    # anything reads the older, as torch.compile, max-autotune and `cudnn.flags()` do. No CPU is concerned.
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def empty_cache(device: torch.device) -> None:
    """Free the memory that no object holds any more, the caching allocator's on a GPU included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def gpu_peak_bytes(device: torch.device) -> tuple[int, int]:
    """The most bytes that were allocated, and reserved, on a GPU since its peaks were reset.

    The pool of a CUDA graph counts as allocated as a whole: replays write to it without the allocator, which took it
    for free once it was recorded, and nothing else can use it.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    unseen = sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot(include_traces=False)
        if segment["device"] == index and tuple(segment["segment_pool_id"]) != (0, 0)
    )
    reserved = torch.cuda.max_memory_reserved(device)
    return min(torch.cuda.max_memory_allocated(device) + unseen, reserved), reserved


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all that was launched; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep memory that is freed for what is allocated next; True where it does, now and if called again.

    torch keeps it on a GPU, in its caching allocator, but not on a CPU: glibc returns tensors of many megabytes to the
    system, or does not, depending on what else is allocated, and the next step then waits for new pages. Where a
    variable MALLOC_… is set, the user has chosen. False too where there is no glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return False
    return all([mallopt(setting, value) for setting, value in _MALLOPT.items()])


def cpu_notes() -> list[str]:
    """How OpenMP's threads wait for work here (see `common`), and whether freed memory is kept, for a run's notes."""
    chosen = {name: value for name, value in os.environ.items() if name in SHORT_SPIN}
    words = " ".join(f"{name}={value}" for name, value in sorted(chosen.items(), reverse=True))
    how = "spin only briefly while they wait, then sleep" if chosen == SHORT_SPIN else "wait as the environment says"
    keeps = ["memory that is freed is kept for the next step, as torch keeps a GPU's (mallopt)"] * keep_freed_memory()
    return [f"OpenMP's threads {how} ({words})", *keeps]


def page_faults() -> int:
    """How often this process has touched a page of memory that it did not have yet (minor faults); 0 if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
