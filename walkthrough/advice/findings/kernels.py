"""Findings inside the kernels: what could be fused, what is misaligned, what only moves elements."""

import re
from collections import Counter

import msgspec
import numpy as np

from walkthrough.advice.advice import WORTHWHILE
from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.trace.columns import distinct
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import (
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    ELEMENTWISE,
    LAYOUT,
    MATRIX,
    NORMALISATION,
    REDUCTION,
    is_ordinary,
    short_name,
)
from walkthrough.trace.kernels import has_tf32
from walkthrough.trace.units import counted, time_text

_BATCHED = ("aten::bmm", "aten::baddbmm")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data", "aten::softmax")
_BETWEEN = 8  # elementwise kernels between a product and softmax, at most: scale, mask, dropout and casts
_ALIGNED = 16  # bytes, for the widest loads of a matrix kernel
_ELEMENT_BYTES = {"c10::half": 2, "c10::bfloat16": 2}  # fp32 has no such limit without Tensor Cores
_UNALIGNED = r"align[12](?![0-9])"
_FORWARD = {
    f"aten::{name}"
    for name in ("convolution", "linear", "batch_norm", "layer_norm", "native_batch_norm", "cudnn_convolution")
}
_ENGINE = re.compile("autograd::engine::evaluate_function|.*CheckpointFunctionBackward")


def unfused_attention(look: Look) -> Finding | None:
    """A batched product, softmax and a batched product in stream order, with only elementwise kernels between."""
    part, between, count = look.once(attention)
    us = look.us_per_step(part)
    if not look.worthwhile(us):
        return None
    products = part & look.launched_by(*_BATCHED)
    unaligned = look.us_per_step(products & look.named(_UNALIGNED))
    aligned = f"; {time_text(unaligned)} of it products of rows that are not aligned" if unaligned >= us / 10 else ""
    return Finding(
        "unfused_attention",
        "attention in separate kernels",
        f"{count / look.step_count:.0f}x per step a batched product, softmax and another batched product, "
        f"{time_text(look.us_per_step(between))} of it softmax and elementwise kernels between them"
        f"{_shapes(look, products)}{aligned}; {look.share_of_kernels(part):.0%} of the kernels' time",
        us,
        "call torch.nn.functional.scaled_dot_product_attention, which never stores the matrix of scores",
        look.without(between),
        when=look.while_running(part),
    )


def attention(look: Look) -> tuple[np.ndarray, np.ndarray, int]:
    """Masks of the kernels of attention in parts, and of those between its products; how often the steps have it."""
    product = look.launched_by(*_BATCHED)
    softmax = look.launched_by(*_SOFTMAX) & look.named("softmax")
    pointwise = look.of_kind(ELEMENTWISE, COPY, REDUCTION) & ~softmax & ~product
    order, thread = look.in_stream, look.trace.kernels.thread
    part, between, count = np.zeros(len(order), bool), np.zeros(len(order), bool), 0
    if not softmax.any() or not product.any():
        return part, between, count
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for index in np.flatnonzero(softmax).tolist():
        before, after = (_beside(order, int(place[index]), way, product, pointwise) for way in (-1, 1))
        if not before or not after or not thread[before[-1]] == thread[index] == thread[after[-1]]:
            continue
        count += int(look.counted_us[index] > 0)
        members = [*before, index, *after]
        part[members] = True
        between[[*before[:-1], index, *after[:-1]]] = True
    return part, between, count


def _beside(order: np.ndarray, at: int, way: int, wanted: np.ndarray, between: np.ndarray) -> list[int]:
    """The kernels from the one beside `at` to the first `wanted` one; [] if not all before it are `between`."""
    found: list[int] = []
    for place in range(at + way, at + way * (_BETWEEN + 2), way):
        if not 0 <= place < len(order):
            return []
        found.append(int(order[place]))
        if wanted[found[-1]]:
            return found
        if not between[found[-1]]:
            return []
    return []


def misaligned_matmul(look: Look) -> Finding | None:
    """Matrix products whose kernels load one or two elements at a time, or whose rows are no multiples of 16 bytes.

    Not those of attention in parts: fused attention, which `unfused_attention` asks for, does not have them.
    """
    matrix = look.of_kind(MATRIX) & ~look.once(attention)[0]
    by_name = matrix & look.named(_UNALIGNED)
    odd = np.array([_is_odd(*inputs) for inputs in look.trace.inputs] + [False])
    operators = look.trace.operators
    by_shape = matrix & odd[np.append(operators.inputs, -1)[look.operator]] if len(operators) else by_name
    bad = by_name | by_shape
    us = look.us_per_step(bad)
    if not look.worthwhile(us):
        return None
    count, named = look.per_step(bad), look.per_step(by_name)
    built = "" if not named else ", built" if named == count else f", {named:.0f} of them built"
    rows = f"{built} for rows that are not aligned (align1, align2)" if named else ""
    return Finding(
        "misaligned_matmul",
        "matrix products with unaligned sizes",
        f"{counted(count, 'kernel', 'kernels')} per step{rows}{_shapes(look, bad)}: a last dimension that is no "
        f"multiple of {_ALIGNED} bytes",
        us,
        "pad vocabulary, classes, sequence length and hidden sizes to multiples of 8 elements (64 is better)",
        when=look.while_running(bad),
    )


def _is_odd(shapes: bytes, types: bytes) -> bool:
    """Whether a last dimension of a matrix of half precision is no multiple of 16 bytes."""
    try:
        dims, names = msgspec.json.decode(shapes), msgspec.json.decode(types)
        for shape, name in zip(dims, names, strict=False):
            size = _ELEMENT_BYTES.get(str(name).lower())
            if size and len(shape) >= 2 and min(shape[-2:]) > 1 and shape[-1] * size % _ALIGNED:
                return True
    except (msgspec.DecodeError, TypeError, ValueError):
        return False
    return False


def _shapes(look: Look, kernels: np.ndarray) -> str:
    """The inputs' shapes that take the most time, as text, "" where they are not recorded."""
    operators = look.trace.operators
    if not len(operators):
        return ""
    inputs = np.append(operators.inputs, -1)[look.operator[kernels]]
    times = np.bincount(inputs + 1, weights=look.counted_us[kernels], minlength=1)
    times[0] = 0.0
    if not times.any():
        return ""
    try:
        dims = msgspec.json.decode(look.trace.inputs[int(np.argmax(times)) - 1][0])
        shapes = [shape for shape in dims if isinstance(shape, list) and len(shape) >= 2]
    except (msgspec.DecodeError, TypeError):
        return ""
    return f" (mostly {' @ '.join(str(shape) for shape in shapes[-2:])})" if shapes else ""


def chains(look: Look) -> np.ndarray:
    """The number of the chain of pointwise kernels and reductions that each kernel is in, from 1; 0 for none.

    A chain is in one stream. Not the optimizer's kernels, which compiling the model leaves as they are: for those there
    is `unfused_optimizer`.
    """
    pointwise = look.of_kind(ELEMENTWISE, NORMALISATION, REDUCTION) | (look.of_kind(COPY) & look.named("elementwise"))
    pointwise &= ~look.named("^triton_") & ~look.launched_in(look.phases.optimizer)
    order = look.in_stream
    chained, thread = pointwise[order], look.trace.kernels.thread[order]
    begins = chained & ~np.append(False, chained[:-1] & (thread[1:] == thread[:-1]))
    chain = np.zeros(len(order), np.int64)
    chain[order] = np.where(chained, np.cumsum(begins), 0)
    return chain


def fused_away(look: Look) -> np.ndarray:
    """A mask: of each of the `chains` all kernels but the longest, as if fused."""
    chain = look.once(chains)
    by_length = np.lexsort([-look.trace.kernels.duration, chain])
    gone = chain > 0
    gone[by_length[np.append(True, np.diff(chain[by_length]) > 0)[: len(chain)]]] = False
    return gone


def fusable_elementwise(look: Look) -> Finding | None:
    """Chains of elementwise kernels: each reads and writes memory anew."""
    gone, chain = look.once(fused_away), look.once(chains)
    us, members = look.us_per_step(gone), np.isin(chain, chain[gone])
    if not look.worthwhile(us):
        return None
    do = "torch.compile fuses them, with the products before them where it can"
    if look.nature.compiled:
        do = "compiled code runs here: look for what is not compiled, and for graph breaks"
        if not look.nature.fused:
            do = "compiled code runs here, but none of its kernels is fused: use torch.compile's backend inductor"
    return Finding(
        "fusable_elementwise",
        "chains of elementwise kernels",
        f"of {look.per_step(members):.0f} elementwise kernels and reductions per step that follow one another, all but "
        "the longest of each chain",
        us,
        do,
        look.without(gone),
        when=look.while_running(gone),
    )


def layout_kernels(look: Look) -> np.ndarray:
    """A mask: the libraries' kernels that only convert between NCHW and NHWC."""
    return look.named(LAYOUT)


def precision_mix(look: Look) -> Finding | None:
    """Matrix kernels of several precisions in one step."""
    matrix = look.of_kind(MATRIX, CONVOLUTION)
    half = matrix & look.named(r"half|bf16|bfloat16|fp16|h884|h1688|h16816|_hh?s?_|f16")
    tf32 = matrix & ~half & look.named(r"tf32|s1688|_s884|16x8x8_f32")
    full = matrix & ~half & ~tf32 & (look.of_names(is_ordinary) | look.named("_sb_"))
    full &= look.named(r"sgemm|ffma|simt|scudnn|_f32f32_f32f32|float|_sb_")
    shares = {name: look.share_of_kernels(mask) for name, mask in (("fp32", full), ("TF32", tf32), ("16 bits", half))}
    us = look.us_per_step(full)
    if min(shares["fp32"], max(shares["TF32"], shares["16 bits"])) < WORTHWHILE or not look.worthwhile(us):
        return None
    common = Counter(look.trace.names[number] for number in look.trace.kernels.name[full].tolist()).most_common(1)
    named = f"; for example {short_name(common[0][0], 60)}" if common else ""
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= WORTHWHILE)
    return Finding(
        "precision_mix",
        "matrix products in several precisions",
        f"{listed} of the kernels' time{named}",
        us,
        "bring what stays in fp32 under autocast"
        + (", or allow TF32 (torch.backends.cuda.matmul.allow_tf32 = True)" if has_tf32(look.trace) else ""),
        when=look.while_running(full),
    )


def recomputation(look: Look) -> Finding | None:
    """Forward operators inside the backward pass: activation checkpointing."""
    trace, operators = look.trace, look.trace.operators
    forward = trace.named(operators, _FORWARD.__contains__) if len(operators) else np.zeros(0, bool)
    backward = trace.named(operators, lambda name: bool(_ENGINE.match(name))) if len(operators) else np.zeros(0, bool)
    if not forward.any() or not backward.any():
        return None
    again = np.zeros(len(operators), bool)
    for thread in distinct(operators.thread[backward]).tolist():
        here = operators.thread == thread
        again |= forward & here & operators.cover(backward & here).holds(operators.start)
    if again.sum() < 0.05 * forward.sum():
        return None
    kernels = look.launched_in(operators.cover(again))
    us = look.us_per_step(kernels)
    if not look.worthwhile(us):
        return None
    count = (again & Cover(look.steps.cpu_start, look.steps.cpu_end).holds(operators.start)).sum() / look.step_count
    return Finding(
        "recomputation",
        "forward kernels run again in the backward pass",
        f"{counted(count, 'forward operator per step runs', 'forward operators per step run')} inside the backward "
        "pass, "
        f"{look.share_of_kernels(kernels):.0%} of the kernels' time: activation checkpointing",
        us,
        "checkpoint fewer layers, or only what is cheap to run again (selective checkpointing), if memory allows",
        when=look.while_running(kernels),
    )


def depthwise(look: Look) -> Finding | None:
    """Depthwise convolutions: no sum over channels, so no matrix product."""
    mask = look.named(DEPTHWISE)
    us = look.us_per_step(mask)
    if not look.worthwhile(us):
        return None
    return Finding(
        "depthwise",
        "depthwise convolutions",
        f"{counted(look.per_step(mask), 'kernel', 'kernels')} per step, {look.share_of_kernels(mask):.0%} of the "
        "kernels' time: each output sums over one channel only, so matrix cores cannot help, and memory decides",
        us,
        "channels_last and 16 bits move fewer bytes; wider groups, if the model may change",
        when=look.while_running(mask),
    )
