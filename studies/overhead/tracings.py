"""The modes that `overhead` measures: what `torch.profiler.profile` is asked to record in each."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity

from common.device import without_gpu
from studies.overhead.record import OFF_AGAIN


@dataclass(frozen=True)
class Tracing:
    """A mode before it is measured. arguments: for `torch.profiler.profile`, None to trace nothing.

    why_not: why it is not measured, if so.
    """

    name: str
    switches: str
    arguments: dict[str, Any] | None = None
    why_not: str | None = None


def tracings(device: torch.device) -> list[Tracing]:
    """Every mode, as a `Tracing`, the control first."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    operators = "activities CPU and CUDA" if gpu else "activity CPU"
    verbose = _ExperimentalConfig(verbose=True)

    def plus(name: str, switches: str, **arguments: Any) -> Tracing:
        return Tracing(name, f"{operators}, {switches}", {"activities": activities, **arguments})

    modules = plus("+ modules", "with_modules=True", with_modules=True)
    if "with_modules" not in inspect.signature(torch.profiler.profile).parameters:
        modules = Tracing(modules.name, modules.switches, None, "this torch has no with_modules any more")
    kernels_only = {"activities": [ProfilerActivity.CUDA]} if gpu else None
    why_no_kernels = next(iter(without_gpu("kernels_only", device)), None)
    return [
        Tracing(OFF_AGAIN, "no profiler"),
        Tracing("kernels only", "activity CUDA", kernels_only, why_no_kernels),
        Tracing("operators", operators, {"activities": activities}),
        plus("+ shapes", "record_shapes=True", record_shapes=True),
        plus("+ flops", "with_flops=True, which records shapes too", with_flops=True),
        plus("+ memory", "profile_memory=True", profile_memory=True),
        modules,
        plus("+ stacks", "with_stack=True", with_stack=True),
        plus(
            "+ stacks of operators",
            "with_stack=True, experimental_config=_ExperimentalConfig(verbose=True)",
            with_stack=True,
            experimental_config=verbose,
        ),
        plus("as the steps", "record_shapes=True, profile_memory=True", record_shapes=True, profile_memory=True),
    ]
