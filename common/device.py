"""The device that a program trains on, the precision it can compute in, and what has no effect without a GPU."""

import gc
import re

import torch

from common.errors import InputError
from common.machine import cpu_bf16_hardware, cpu_name

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # by --precision

# Why something has no effect without a GPU: an optimisation, by its step's name without the number, or what a study
# measures.
_WITHOUT_GPU = {
    "reduced_h2d_copy": "nothing is copied to a device, so a smaller copy saves nothing",
    "pinned_memory": "nothing is copied to a device, so pinned memory has no effect (torch leaves it unpinned)",
    "no_hidden_syncs": "the loss is available at once, so there is no synchronisation to avoid",
    "prefetch_stream": "there is no copy to overlap, so batches are passed on as they are",
    "on_device_data": "the data is in main memory already, so no copy is saved; images are resized a batch at a time",
    "kernels_only": "there are no kernels to record",
}


def checked_device(name: str | None = None) -> str:
    """ "cpu", "cuda" or "cuda:N" as `torch.device` takes it; without a name, the GPU if there is one, else the CPU.

    Raises InputError for another kind of device, and for a GPU that this machine or this build of torch lacks.
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9]\d*))?", name):
        raise InputError(f"unknown device {name!r}: --device takes cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise InputError(f"--device {name}: {why}; use --device cpu, and see `python -m common doctor`")
    if index and int(index) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: this machine has {torch.cuda.device_count()} GPU(s), counted from cuda:0")
    return name


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

    precision: "fp32", "bf16", "fp16", or "auto", which is bfloat16 where the hardware has it (GPUs from compute
    capability 8.0 on; CPUs with AVX512-BF16 or AMX); float16 on older GPUs, to be used with `torch.amp.GradScaler`,
    since small gradients underflow in fp16; float32 on other CPUs, where bf16 is emulated and 10 to 30 times slower.
    Prints the choice and its reason in one line.
    """
    dtype, reason, _ = _autocast(torch.device(device), precision)
    print(f"precision: {dtype_name(dtype)}, {reason}")
    return dtype


def autocast_notes(device: torch.device | str, precision: str = "auto") -> list[str]:
    """What this device cannot do of mixed precision, for a run's notes; see `autocast_dtype`."""
    return _autocast(torch.device(device), precision)[2]


def _autocast(device: torch.device, precision: str) -> tuple[torch.dtype, str, list[str]]:
    """(dtype, the reason for it, notes)."""
    gpu = device.type == "cuda"
    hardware = gpu_has_bf16(device) if gpu else cpu_bf16_hardware()
    if precision != "auto":
        dtype = _DTYPES[precision]
        notes = []
        if dtype == torch.float32:
            notes.append("autocast is off: --precision fp32")
        elif dtype == torch.bfloat16 and not hardware:
            notes.append(f"{'this GPU' if gpu else 'this CPU'} has no bf16 hardware: it is emulated, many times slower")
        return dtype, f"as --precision {precision} asks", notes
    if gpu:
        name = device_name(device)
        if hardware:
            return torch.bfloat16, f"{name} computes it in hardware", []
        note = f"{name} has no bf16 hardware: autocast uses fp16 with gradient scaling"
        return torch.float16, f"with gradient scaling: {name} has no bf16 hardware", [note]
    if hardware:
        return torch.bfloat16, f"this CPU has {hardware}", []
    note = "autocast is off: this CPU has no bf16 hardware (AVX512-BF16 or AMX) and would be many times slower"
    reason = "autocast stays off: bf16 without AVX512-BF16 or AMX is 10 to 30 times slower on a CPU"
    return torch.float32, reason, [note]


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as results name it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def disable_tf32() -> None:
    """Multiply fp32 as fp32, as every step does."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def empty_cache(device: torch.device) -> None:
    """Free the memory that no object holds any more, the caching allocator's on a GPU included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all that was launched; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
