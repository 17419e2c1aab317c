"""The device a step trains on, and the precision it can compute in."""

import gc
import re

import torch

from common.errors import InputError
from common.machine import cpu_bf16_hardware, cpu_name


def checked_device(name=None):
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


def device_name(device):
    """What the device is called: "NVIDIA H200", or the processor's name."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu_name()


def gpu_has_bf16(device):
    """True where this GPU multiplies bf16 in hardware: NVIDIA's from compute capability 8.0 on, and AMD's."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def needs_gpu(device, what):
    """A list with the note that, without a GPU, `what` (a clause) is why a step cannot act; [] on a GPU."""
    return [] if torch.device(device).type == "cuda" else [f"no GPU: {what}"]


def autocast_dtype(device):
    """The dtype that `torch.autocast` should compute in on this device, and what the device could not do.

    Prints the choice and its reason in one line. Returns (dtype, notes):
    bfloat16 where the hardware has it (GPUs from compute capability 8.0 on; CPUs with AVX512-BF16 or AMX);
    float16 on older GPUs, to be used with `torch.amp.GradScaler`, since small gradients underflow in fp16;
    float32 (autocast off) on other CPUs, where bf16 is emulated and 10 to 30 times slower than fp32.
    """
    device = torch.device(device)
    name = device_name(device)
    if device.type == "cuda":
        if gpu_has_bf16(device):
            dtype, note, why = torch.bfloat16, None, f"{name} computes it in hardware"
        else:
            dtype, note = torch.float16, f"{name} has no bf16 hardware: autocast uses fp16 with gradient scaling"
            why = f"with gradient scaling: {name} has no bf16 hardware"
    elif hardware := cpu_bf16_hardware():
        dtype, note, why = torch.bfloat16, None, f"this CPU has {hardware}"
    else:
        dtype = torch.float32
        note = "autocast is off: this CPU has no bf16 hardware (AVX512-BF16 or AMX) and would be many times slower"
        why = "autocast stays off: bf16 without AVX512-BF16 or AMX is 10 to 30 times slower on a CPU"
    print(f"precision: {str(dtype).removeprefix('torch.')}, {why}")
    return dtype, [note] if note else []


def empty_cache(device):
    """Free what nobody holds any more, on the device too."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def disable_tf32():
    """Multiply fp32 as fp32, as every step does."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
