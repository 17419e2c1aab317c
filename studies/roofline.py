"""The parts of a roofline: FLOPs and bytes of one training step by operator, their time in a trace, the device's peaks.

FLOPs are torch's: `torch.utils.flop_counter` has a formula for matrix products, convolutions and attention, and one
multiply-add counts as two. Everything else (batch norm, activations, pooling, the optimizer) has no formula there and
counts as none; it is listed, since the count is not all of the work.

The peaks are not from a data sheet: those hold at clocks and with data that a training never sees. FLOP/s are measured
by large matrix products, bytes/s by large copies. TF32 is off, as in every step.
"""

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from common.device import dtype_name, synchronize
from studies.one_batch import TrainStep, batch_on
from walkthrough.compare.roofs import Peak, StepBytes
from walkthrough.results.errors import is_out_of_memory
from walkthrough.trace import reader
from walkthrough.trace.columns import Nesting, Trace, launching_operators
from walkthrough.trace.steps import is_step, steps

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
RESIZE = "resize"

# Where the input and the weight stand among the arguments of an operator that convolves.
CONVOLUTIONS = {"aten::convolution": (0, 1), "aten::_convolution": (0, 1), "aten::convolution_backward": (1, 2)}

# Groups of operators by parts of their names, the first that fits; `GROUPS` is the order in which they are shown.
_BY_NAME = {
    "batch norm": ("batch_norm",),
    "other norm": ("layer_norm", "group_norm"),
    "attention": ("attention",),
    "matrix product": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"),
    "pooling": ("pool",),
    RESIZE: ("upsample",),
    "loss, softmax": ("nll_loss", "softmax", "cross_entropy"),
    "sum, mean": ("aten::mean", "aten::sum"),
    "copy, cast": ("aten::copy_", "_to_copy", "aten::clone", "aten::cat", "aten::stack"),
}
CONVOLUTION, DEPTHWISE, ELEMENTWISE = "convolution", "depthwise convolution", "elementwise"
GROUPS = (CONVOLUTION, DEPTHWISE, *_BY_NAME, ELEMENTWISE, OPTIMIZER)

# They allocate memory and touch none of it. Views are recognised by their schema.
_ALLOCATING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_ALLOCATING |= {"_unsafe_view", "is_same_size", "_has_compatible_shallow_copy_type", "resize_"}
_OVERWRITING = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "_foreach_zero_"}

MATRICES = {"cuda": (2048, 4096, 8192, 12288), "cpu": (256, 512, 1024, 2048)}  # rows and columns
COPIES = {"cuda": (512, 2048), "cpu": (256, 512)}  # MiB, well beyond the caches
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 0.2, 0.02

Call = Callable[[], object]

OUTSIDE = None  # the operator of time that lies in no counted one

Label = tuple[str, str] | tuple[None, None]  # (operator, group)
OperatorTimes = dict[Label, float]  # ms of a mean step


@dataclass
class Counted:
    """All calls of one operator in one group. flops: 2 x multiply-adds; None where torch has no formula.

    bytes: of its input and output tensors. elements: of its output tensors.
    """

    name: str
    group: str
    calls: int = 0
    flops: int | None = None
    bytes: int = 0
    elements: int = 0


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that run while it is active; they run as they would without it.

    `counts`: {(name, group): Counted}. `phase_flops`: FLOPs of each phase. `phase`: set it as the step goes on.
    `largest`: elements of the largest tensor.

    Bytes are what operators that are not fused move at least: of each call, every input tensor read once and every
    output tensor written once; an operator in place both reads and writes its tensor. Views, allocations and
    questions about shapes move nothing and are left out. An expanded tensor counts the elements it has in memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[tuple[str, str], Counted] = {}
        self.phase = FORWARD
        self.phase_flops: dict[str, int] = dict.fromkeys((FORWARD, BACKWARD, OPTIMIZER), 0)
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if _moves_data(func):
            self._add(func, args, kwargs, out)
        return out

    def _add(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        name = operator_name(func)
        shapes = [list(value.shape) if isinstance(value, torch.Tensor) else value for value in args]
        group = group_of(name, shapes, self.phase == OPTIMIZER)
        counted = self.counts.setdefault((name, group), Counted(name, group))
        flops = operator_flops(func, args, kwargs, out)
        if flops is not None:
            counted.flops = (counted.flops or 0) + flops
            self.phase_flops[self.phase] += flops
        read, written = _touched(func, args, kwargs, out)
        counted.calls += 1
        counted.bytes += sum(map(_held_bytes, read)) + sum(map(_held_bytes, written))
        counted.elements += sum(tensor.numel() for tensor in written)
        self.largest = max([self.largest, *(tensor.numel() for tensor in (*read, *written))])

    @property
    def flops(self) -> int:
        return sum(self.phase_flops.values())

    @property
    def bytes(self) -> int:
        return sum(counted.bytes for counted in self.counts.values())


def group_of(name: str, shapes: Sequence[Any], in_optimizer: bool = False) -> str:
    """The group, one of `GROUPS`, of an operator's call. shapes: its arguments', those of tensors as lists of sizes.

    A convolution is depthwise where each output channel reads one of several input channels.
    """
    if in_optimizer or "_amp_" in name or "_fused_sgd" in name:
        return OPTIMIZER
    if name in CONVOLUTIONS:
        image, weight = (shapes[position] for position in CONVOLUTIONS[name])
        return DEPTHWISE if weight[1] == 1 and image[1] > 1 else CONVOLUTION
    return next((group for group, parts in _BY_NAME.items() if any(part in name for part in parts)), ELEMENTWISE)


def operator_name(func: Any) -> str:
    """ "aten::mm": the name that the profiler records, too."""
    return func._schema.name if hasattr(func, "_schema") else str(func)


def operator_flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int | None:
    """FLOPs of one call by torch's formula, None where it has none.

    Except for the backward pass of a convolution: torch's formula, up to 2.15 at least, ignores the groups in a
    weight's gradient, and counts a depthwise convolution's as often as it has channels
    (https://github.com/pytorch/pytorch/pull/183405). Here each of the two gradients costs what the forward pass does.
    """
    packet = getattr(func, "_overloadpacket", func)
    if packet is torch.ops.aten.convolution_backward:
        gradient, image, weight = args[:3]
        transposed, mask = args[7], args[10]
        places = math.prod((image if transposed else gradient).shape[2:]) * image.shape[0]
        return 2 * places * weight.numel() * sum(mask[:2])
    formula = flop_registry.get(packet)
    return None if formula is None else int(formula(*args, **kwargs, out_val=out))


def count_step(train_step: TrainStep, images: torch.Tensor, labels: torch.Tensor) -> OperatorCounter:
    """Run one training step and return its `OperatorCounter`."""
    counter = OperatorCounter()

    def enter(phase: str) -> Callable[..., None]:
        return lambda *_: setattr(counter, "phase", phase)

    hooks = [
        train_step.model.register_forward_hook(enter(BACKWARD)),
        train_step.optimizer.register_step_pre_hook(enter(OPTIMIZER)),
        train_step.optimizer.register_step_post_hook(enter(BACKWARD)),
    ]
    try:
        with counter:
            train_step(images, labels)
    finally:
        for hook in hooks:
            hook.remove()
    return counter


def least_bytes(train_step: TrainStep, sizes: tuple[int, int] = (2, 4)) -> StepBytes:
    """Bytes that a training step must move at least, whatever fuses its operators. Trains two steps to count them.

    Each parameter is read once and, where it is trained, written once; each gradient of a parameter and each
    activation that autograd keeps for the backward pass is written once and read once; the optimizer's state is read
    once and written once. Activations are what `saved_tensors_hooks` sees, each storage once, with the casts of
    parameters that autocast makes, but without parameters, buffers and the batch itself. Nothing else counts:
    activations that are not kept and gradients of activations need not leave the chip, if all is fused. A compiler that
    computes activations again instead of keeping them moves even less.

    sizes: images of the two steps; a line through both splits what is kept into fixed and per image.
    """
    small, large = (_kept_bytes(train_step, *batch_on(train_step.device, size)) for size in sizes)
    per_image = (large - small) / (sizes[1] - sizes[0])
    parameters = list(train_step.model.parameters())
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    state = _tensors([*train_step.optimizer.state.values()])
    moved = [*parameters, *trained, *(2 * [parameter.grad for parameter in trained]), *state, *state]
    fixed = sum(tensor.nbytes for tensor in moved if tensor is not None)
    return StepBytes(dtype_name(train_step.precision), fixed + 2 * (small - sizes[0] * per_image), 2 * per_image)


def _kept_bytes(train_step: TrainStep, images: torch.Tensor, labels: torch.Tensor) -> int:
    """Bytes of what autograd keeps in a step for the backward pass, without parameters, buffers and the batch."""
    known = (*train_step.model.parameters(), *train_step.model.buffers(), images, labels)
    own = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        train_step(images, labels)
    return sum(size for address, size in kept.items() if address not in own)


def _moves_data(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return True
    if schema.name.split("::")[1] in _ALLOCATING or schema.name.startswith(("prim::", "profiler::")):
        return False
    return not any(value.alias_info and not value.alias_info.is_write for value in schema.returns)


def _touched(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that a call reads, and those that it writes."""
    schema = getattr(func, "_schema", None)
    named = schema.arguments if schema else []
    changed, read = [], []
    name = schema.name.split("::")[1] if schema else ""
    if name.startswith("new_") or name.endswith("_like"):
        return [], _tensors(out)
    for argument, value in [*zip(named, args, strict=False), *_keywords(named, kwargs)]:
        tensors = _tensors(value)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes:
            changed += tensors
        if not writes or not (name in _OVERWRITING or argument.is_out):
            read += tensors
    if schema is None:
        read = _tensors((args, kwargs))
    return read, _tensors(out) or changed


def _keywords(arguments: Iterable[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(argument, kwargs[argument.name]) for argument in arguments if argument.name in kwargs]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _held_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that a tensor has in memory: along an expanded dimension there is one."""
    if tensor.layout != torch.strided:
        return tensor.numel() * tensor.element_size()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size if stride or not size else 1 for size, stride in sizes) * tensor.element_size()


def operator_ms(path: Path, events: list[dict[str, Any]], names: Collection[str]) -> OperatorTimes:
    """Where a traced step's time goes: {(operator, group): ms of a mean step}; `OUTSIDE` for what is in none of them.

    path: a trace of the step that was counted. events: the same, as `tracing.traced_window` returns them, for the
    shapes of convolutions. names: of the operators that were counted; time in what these call is theirs.

    Without a GPU it is the operators' own time on the CPU; with one, that of the kernels, copies and fills of memory
    that they launched. The optimizer's operators are those within its step, which the profiler marks.
    """
    trace = reader.read(path)
    nest = Nesting(trace.operators)
    label_of, labels = _labels(trace, nest, events, names)
    work = [table for table in (trace.kernels, trace.copies, trace.sets) if len(table)]
    if work:
        parts = []
        for table in work:
            launched = table.call
            within = launched >= 0  # the others were launched before the trace began, by a step that is not in it
            parts.append((launching_operators(trace, launched)[within], table.duration[within]))
    else:
        own = np.where(trace.named(trace.operators, is_step), 0.0, nest.own_time())
        parts = [(np.arange(len(trace.operators)), own)]
    count, times = len(steps(trace).names), {}
    for operators, us in parts:
        label = np.where(operators >= 0, label_of[operators], 0)
        for number, total in enumerate(np.bincount(label, us, len(labels)).tolist()):
            if total:
                times[labels[number]] = times.get(labels[number], 0.0) + total / 1e3 / count
    return times


def _labels(
    trace: Trace, nest: Nesting, events: list[dict[str, Any]], names: Collection[str]
) -> tuple[np.ndarray, list[Label]]:
    """For each operator of the trace the number of its label, and the labels: (operator, group); 0 is `OUTSIDE`."""
    shapes = {
        event["args"].get("External id"): event["args"].get("Input Dims")
        for event in events
        if event.get("name") in CONVOLUTIONS and "args" in event
    }
    operators = trace.operators
    parent, name_of, external = nest.parent.tolist(), operators.name.tolist(), operators.external.tolist()
    label_of, optimizing = np.zeros(len(operators), int), set()
    labels: dict[Label, int] = {(OUTSIDE, OUTSIDE): 0}
    for index in nest.order.tolist():  # those that hold others come first
        above, name = parent[index], trace.names[name_of[index]]
        if name.startswith("Optimizer.") or above in optimizing:
            optimizing.add(index)
        saves = name == "aten::clone" and above >= 0 and trace.names[name_of[above]].endswith("_")
        if above >= 0 and label_of[above] and not saves:  # saved for the backward pass: a call of its own
            label_of[index] = label_of[above]
        elif name in names:
            dims = shapes.get(external[index])
            if name in CONVOLUTIONS and not dims:
                continue
            label = (name, group_of(name, dims or [], index in optimizing))
            label_of[index] = labels.setdefault(label, len(labels))
    return label_of, list(labels)


def groups(counter: OperatorCounter, times: OperatorTimes | None) -> list[dict[str, Any]]:
    """The operators of one kind in one step, in the order of `GROUPS`, from its `OperatorCounter` and `operator_ms`.

    flops: None where torch has no formula for them. elements: written. traced_ms: of a traced, uncompiled step. times:
    None where operators were not timed; there are no groups then.
    """
    result = []
    for name in GROUPS if times is not None else ():
        members = [counted for counted in counter.counts.values() if counted.group == name]
        if not members:
            continue
        flops = [counted.flops for counted in members if counted.flops is not None]
        result.append(
            {
                "name": name,
                "calls": sum(counted.calls for counted in members),
                "flops": sum(flops) if flops else None,
                "bytes": sum(counted.bytes for counted in members),
                "elements": sum(counted.elements for counted in members),
                "traced_ms": sum(ms for (_, group), ms in (times or {}).items() if group == name),
            }
        )
    return result


def without_formula(counter: OperatorCounter, times: OperatorTimes | None) -> dict[str, Any]:
    """The operators that torch counts no FLOPs for, most calls first, and their share of all operators of a step, 0..1.

    time_share: of the traced time of operators (on a GPU: of the kernels' that they launched); None where they were not
    timed.
    """
    calls, all_calls = {}, 0
    for counted in counter.counts.values():
        all_calls += counted.calls
        if counted.flops is None:
            calls[counted.name] = calls.get(counted.name, 0) + counted.calls
    inside = {label: ms for label, ms in (times or {}).items() if label[0] is not OUTSIDE}
    known = {label for label, counted in counter.counts.items() if counted.flops is not None}
    uncounted_ms = sum(ms for label, ms in inside.items() if label not in known)
    most_calls_first = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    return {
        "operators": [{"name": name, "calls": count} for name, count in most_calls_first],
        "calls_share": sum(calls.values()) / all_calls if all_calls else 0.0,
        "time_share": None if times is None else uncounted_ms / sum(inside.values()) if inside else 0.0,
    }


def peak_flops(device: torch.device, dtype: torch.dtype, quick: bool = False) -> list[Peak]:
    """FLOP/s of C = A @ B, square, in `dtype`, 2 n^3 FLOPs each; the best size first."""

    def prepare(n: int) -> tuple[Call, int]:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, device=device, dtype=dtype)
        return partial(torch.mm, a, b, out=out), 2 * n**3

    sizes = MATRICES[device.type]
    return _best_first(
        device, sizes[:2] if quick else sizes, prepare, lambda n: f"{n} x {n} {dtype_name(dtype)}", quick
    )


def peak_bytes(device: torch.device, quick: bool = False) -> list[Peak]:
    """Bytes/s of a copy within the device's memory; the best size first.

    A byte that is copied counts twice, once read and once written.
    """

    def prepare(mib: int) -> tuple[Call, int]:
        source = torch.ones(mib * 2**20 // 4, device=device)
        target = torch.zeros_like(source)  # written to, so that its pages are there
        return partial(target.copy_, source), 2 * source.nbytes

    sizes = COPIES[device.type]
    return _best_first(device, sizes[:1] if quick else sizes, prepare, lambda mib: f"{mib} MiB copied", quick)


def _best_first(
    device: torch.device,
    sizes: Sequence[int],
    prepare: Callable[[int], tuple[Call, int]],
    name: Callable[[int], str],
    quick: bool,
) -> list[Peak]:
    """A `Peak` for each size that fits into memory. prepare(size): what to call, and the amount of work of a call."""
    seconds, peaks = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS, []
    for size in sizes:
        try:
            call, amount = prepare(size)
            rates = [amount * rate for rate in call_rates(device, call, seconds)]
        except Exception as error:  # the sizes grow: what fits is enough
            if not peaks or not is_out_of_memory(error):
                raise
            break
        peaks.append(Peak(name(size), statistics.median(rates), rates))
    return sorted(peaks, key=lambda peak: peak.median, reverse=True)


def call_rates(device: torch.device, call: Call, seconds: float) -> list[float]:
    """Calls per second of each of `WINDOWS` windows, the device synchronised at a window's edges only."""
    _seconds(device, call, 1)  # the first call: kernels are loaded, pages touched
    calls = 1
    while (elapsed := _seconds(device, call, calls)) < seconds / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / elapsed))
    return [calls / _seconds(device, call, calls) for _ in range(WINDOWS)]


def _seconds(device: torch.device, call: Call, calls: int) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - begin
