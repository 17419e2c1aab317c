"""What stands in for a GPU while a program's memory is predicted: fake tensors on the CPU, computed as a GPU would.

Fake tensors "on a GPU" would say more by themselves, but torch's backward pass asks the driver about their device, so a
machine without a GPU cannot predict with them. What differs between the two devices and matters for memory is replaced
here for as long as a prediction takes.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode  # private: torch has no public one
from torch.utils._pytree import tree_map_only

from walkthrough.memory.tracker import MemoryTracker

# Operators that autocast computes in float32 on a GPU but not on a CPU, of those whose results are as large as
# activations ("CUDA Ops that can autocast to float32", docs of torch.amp). cross_entropy is log_softmax and nll_loss.
FLOAT32_ON_GPU = ("layer_norm", "group_norm", "softmax.int", "log_softmax.int", "exp", "log", "pow.Tensor_Scalar")
FLOAT32_ON_GPU += ("rsqrt", "reciprocal", "softplus", "cumsum", "mse_loss", "smooth_l1_loss", "cosine_similarity")


@contextmanager
def fake_gpu(tracker: MemoryTracker, notes: list[str]) -> Iterator[None]:
    """Let a training in here hold what it would on a GPU, on fake tensors, which hold nothing here, as tracked.

    notes: what it uses that is not predicted is added.
    """
    torch_compile = "torch.compile: predicted as uncompiled; compiled code may hold less, a CUDA graph's pool more"

    def not_compiled(model: Any = None, **_: Any) -> Any:
        if torch_compile not in notes:
            notes.append(torch_compile)
        return model if model is not None else lambda function: function

    with ExitStack() as replaced:
        replaced.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        replaced.enter_context(tracker)
        for owner, name, replacement in (
            (torch, "compile", not_compiled),
            (nn.Module, "compile", lambda module, **_: not_compiled(module)),
            (nn.Module, "_apply", _apply),
            (nn.functional, "dropout", _dropout),
            (torch.autograd.graph, "save_on_cpu", _save_on_host(tracker)),
        ):
            replaced.enter_context(patch.object(owner, name, replacement))
        library = torch.library.Library("aten", "IMPL")
        for name in FLOAT32_ON_GPU:
            library.impl(name, _in_float32(_operator(name)), "AutocastCPU")
        replaced.callback(library._destroy)
        yield


def _apply(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """`Module.to` and the like. torch's own swaps a fake parameter for its new value, which trackers do not allow."""
    new: dict[torch.Tensor, nn.Parameter] = {}
    for part in module.modules() if recurse else [module]:
        for name, parameter in part._parameters.items():
            if parameter is not None:
                value = function(parameter.detach())
                if parameter not in new:
                    new[parameter] = nn.Parameter(value, parameter.requires_grad)
                part._parameters[name] = new[parameter]
        part._buffers.update(
            {key: buffer if buffer is None else function(buffer) for key, buffer in part._buffers.items()}
        )
    return module


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """A GPU's dropout keeps a mask of bools; a CPU's one of the input's dtype."""
    if not training or not 0 < p < 1:
        return torch.dropout(input, p, training)
    result = torch.native_dropout(input, p, training)[0]
    return input.copy_(result) if inplace else result


def _save_on_host(tracker: MemoryTracker) -> type:
    """In place of `torch.autograd.graph.save_on_cpu`: what is saved takes no memory here until it is needed again."""

    class SaveOnHost(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
            super().__init__(_without_storage, restored)

    def restored(saved: tuple[torch.Size, tuple[int, ...], torch.dtype]) -> torch.Tensor:
        size, stride, dtype = saved
        tensor = torch.empty_strided(size, stride, dtype=dtype)
        tracker.mark("activations", [tensor])
        return tensor

    return SaveOnHost


def _without_storage(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.size(), tensor.stride(), tensor.dtype


def _operator(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _in_float32(operator: Any) -> Callable[..., Any]:
    """An operator that autocast computes in float32: arguments of 16 bits are converted, which allocates."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    def kernel(*args: Any, **settings: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operator(*tree_map_only(torch.Tensor, convert, args), **settings)

    return kernel
