"""Which memory a training step holds, allocation by allocation, while it runs on fake tensors.

torch's own `torch.distributed._tools.mem_tracker.MemTracker` counts the same bytes, but refuses a model that is called
twice in a step (an encoder of two texts) and does not know a batch from an activation; a test holds both to one total.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from walkthrough.memory.allocator import BLOCK_BYTES, Event, rounded

KINDS: tuple[str, ...] = ("parameters", "gradients", "optimizer", "activations", "inputs", "other")


@dataclass(eq=False)
class Block:
    """What is allocated for one storage; allocated_bytes: rounded as the allocator does. kind: one of `KINDS`."""

    number: int
    allocated_bytes: int
    kind: str


class MemoryTracker(TorchDispatchMode):
    """A mode that follows every storage that operators allocate, and keeps those that were there at the peak.

    To be entered within a FakeTensorMode, whose CPU tensors stand for those on a GPU. parameters: those of every
    module that was called and of the modules in it, with their buffers, and those that an optimizer updates (a module
    may read another one's weights without calling it, as attention does with its projections). gradients: of them, also
    of those that are gone once the step is over. optimizer: its state. inputs: what `mark` was told.
    activations: allocated in the forward pass, or in one that checkpointing repeats. other: the rest, above all
    gradients of activations and what an optimizer computes in passing.

    A number that the program reads from a tensor (`loss.item()`, the scaler's check for infinite gradients) is 0; one
    that an optimizer reads (the number of its step) is 1.

    events: what was allocated and freed since `begin`, for an `allocator.CachingAllocator`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, Block] = {}
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: list[Optimizer] = []
        self._in_optimizer = False
        self._hooks: list[Any] = []
        self._allocations = 0
        self.allocated_bytes = 0
        self.events: list[Event] = []
        self.reset_peak()

    def begin(self) -> None:
        """Begin `events` with what is allocated now."""
        self.events = [(block.number, block.allocated_bytes) for block in self._blocks.values()]

    def reset_peak(self) -> None:
        """Forget the peak: the next one is sought from here on."""
        self.peak_bytes, self._at_peak = self.allocated_bytes, list(self._blocks.values())

    def by_kind(self) -> dict[str, int]:
        """{kind: bytes} at the peak, which they sum up to. After `mark_state`, since kinds are known late."""
        sizes = dict.fromkeys(KINDS, 0)
        for block in self._at_peak:
            sizes[block.kind] += block.allocated_bytes
        return sizes

    def mark(self, kind: str, tensors: Iterable[Any]) -> None:
        """Say of which kind the memory of some tensors is; what else is among `tensors` is left alone."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._block(tensor).kind = kind

    def mark_state(self) -> None:
        """Mark parameters, gradients and optimizer state, as they are at the end of a step."""
        modules = {part for module in self._modules for part in module.modules()}
        parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
        parameters += [parameter for optimizer in self._optimizers for parameter in parameters_of(optimizer)]
        self.mark("parameters", parameters)
        self.mark("parameters", (buffer for module in modules for buffer in module.buffers(recurse=False)))
        self.mark("gradients", (parameter.grad for parameter in parameters))
        for optimizer in self._optimizers:
            self.mark("optimizer", tree_iter(list(optimizer.state.values())))

    def __enter__(self) -> "MemoryTracker":
        self._hooks = [
            nn.modules.module.register_module_forward_pre_hook(lambda module, _: self._modules.add(module)),
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            number = int(self._in_optimizer)
            return float(number) if args[0].dtype.is_floating_point else number
        result = func(*args, **kwargs or {})
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._block(tensor)
        if self.allocated_bytes > self.peak_bytes:
            self.reset_peak()
        return result

    def _block(self, tensor: torch.Tensor) -> Block:
        """The block of a tensor's storage, known from now on. Views and in-place results share one."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._blocks:
            self._allocations += 1
            block = Block(self._allocations, rounded(storage.nbytes(), BLOCK_BYTES), self._kind())
            self._blocks[key] = block
            self.allocated_bytes += block.allocated_bytes
            self.events.append((block.number, block.allocated_bytes))
            weakref.finalize(storage, self._free, key).atexit = False
        return self._blocks[key]

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key)
        self.allocated_bytes -= block.allocated_bytes
        self.events.append((block.number, 0))

    def _kind(self) -> str:
        """What is allocated now: a backward pass computes without gradients, but checkpointing repeats with them."""
        in_backward = torch._C._current_graph_task_id() != -1
        return "other" if self._in_optimizer or (in_backward and not torch.is_grad_enabled()) else "activations"

    def _before_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        self._in_optimizer = True
        self.mark("gradients", (parameter.grad for parameter in parameters_of(optimizer)))
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        for group in optimizer.param_groups:  # as a GPU's default: all parameters at once, which takes temporaries
            if group.get("foreach") is None and not group.get("fused"):
                group["foreach"] = True

    def _after_optimizer(self, *_: Any) -> None:
        self._in_optimizer = False


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """The parameters that an optimizer updates."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
