"""Findings on what computes nothing: kernels that change a layout or a type, and copies within the GPU."""

from collections import Counter

import numpy as np

from walkthrough.advice.findings.finding import Finding, Look
from walkthrough.advice.findings.kernels import layout_kernels
from walkthrough.advice.replay import Change
from walkthrough.trace.columns import launching_operators
from walkthrough.trace.kernel_names import CONVOLUTION, COPY
from walkthrough.trace.memory import direction
from walkthrough.trace.steps import of_steps
from walkthrough.trace.units import counted, time_text

_PERMUTING = {"aten::contiguous", "aten::reshape"}  # they copy only where the order of the elements changes
_FILLS_AND_CASTS = r"subtensorop"  # MIOpen's, before and after a convolution that sums parts in float32
_DDP_COPIES = "ddp.reducer::copy_bucket_to_grad"
_AROUND = ("aten::", "autograd::", "ProfilerStep#")  # operators that do not tell whose copy it is


def layout_conversions(look: Look) -> Finding | None:
    """Kernels and copies that only move or convert elements.

    Conversions between NCHW and NHWC by the libraries' own kernels, and MIOpen's fills and casts beside its
    convolutions; copies that make a tensor contiguous; copies within the GPU, while no kernel runs.
    """
    own, filling = layout_kernels(look), look.named(_FILLS_AND_CASTS)
    permuting = _permuting(look) & ~(own | filling)
    within, copying_us = _within_the_gpu(look)
    parts = []
    for kernels, what, do in (
        (own, ("conversion between NCHW and NHWC", "conversions between NCHW and NHWC"), _own_layout(look)),
        (
            permuting,
            ("copy by .contiguous() or .reshape()", "copies by .contiguous() or .reshape()"),
            "permute once and keep that layout",
        ),
        (
            filling,
            ("fill or cast by MIOpen", "fills and casts by MIOpen"),
            "try torch.backends.cudnn.benchmark: other algorithms do without them",
        ),
    ):
        us = look.us_per_step(kernels)
        if us > 0:
            share = f"{look.share_of_kernels(kernels):.0%} of the kernels' time"
            parts.append((us, f"{counted(look.per_step(kernels), *what)} per step, {share}", do))
    if look.worthwhile(copying_us):
        text = _copies_text(look, within, copying_us)
        do = "write results where they are used, and give a CUDA graph inputs whose addresses stay the same"
        if _DDP_COPIES in text:
            do = "gradient_as_bucket_view=True spares DDP the copies between gradients and buckets"
        parts.append((copying_us, text, do))
    us = sum(part[0] for part in parts)
    if not look.worthwhile(us):
        return None
    within &= look.worthwhile(copying_us)
    kernels = own | permuting | filling
    return Finding(
        "layout_conversions",
        "what only moves or converts elements",
        "; ".join(why for part, why, _ in parts if part >= us / 20),
        us,
        "; ".join(do for part, _, do in sorted(parts, reverse=True) if part >= us / 5),
        look.without(kernels) | Change(copies=np.where(within, 0.0, 1.0)),
        when=look.while_running(kernels) | look.trace.copies.cover(within),
    )


def _own_layout(look: Look) -> str:
    return "model and images in torch.channels_last" if look.of_kind(CONVOLUTION).any() else "keep one layout"


def _permuting(look: Look) -> np.ndarray:
    """A mask: copies that `contiguous` or `reshape` launched."""
    trace = look.trace
    if not len(trace.operators):
        return np.zeros(len(trace.kernels), bool)
    permuting = trace.named(trace.operators, _PERMUTING.__contains__)
    inside = np.zeros(len(trace.kernels), bool)
    operator = np.where(look.of_kind(COPY), look.operator, -1)
    for _ in range(4):  # contiguous > clone > copy_
        inside |= (operator >= 0) & permuting[operator]
        operator = np.where(operator >= 0, trace.nesting.parent[operator], -1)
    return inside


def _within_the_gpu(look: Look) -> tuple[np.ndarray, float]:
    """A mask over `Trace.copies`: those within the GPU, in the steps; and µs per step of them without a kernel."""
    copies = look.trace.copies
    within = direction(look.trace, "d2d") & of_steps(look.trace, look.steps, copies)
    alone = [copies.cover(within & (copies.device == gpu.device)).within(gpu.start, gpu.end).sum() for gpu in look.idle]
    return within, float(np.mean(alone)) / look.step_count if alone else 0.0


def _copies_text(look: Look, within: np.ndarray, us: float) -> str:
    """How many copies, how many bytes, and inside which operator of the program's own most of their time."""
    trace = look.trace
    count, size = within.sum() / look.step_count, np.nan_to_num(trace.copies.bytes)[within].sum() / look.step_count
    size_text = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    text = f"{counted(count, 'copy', 'copies')} within the GPU per step, {size_text}, {time_text(us)}"
    text += " with no kernel beside them"
    callers = Counter[str]()
    operators = launching_operators(trace, trace.copies.call[within])
    for operator, length in zip(operators.tolist(), trace.copies.duration[within].tolist(), strict=True):
        while operator >= 0 and trace.names[trace.operators.name[operator]].startswith(_AROUND):
            operator = int(trace.nesting.parent[operator])
        if operator >= 0:
            callers[trace.names[trace.operators.name[operator]]] += length
    named = [name for name, length in callers.most_common(2) if length >= 0.2 * trace.copies.duration[within].sum()]
    return f"{text}, most of it inside {' and '.join(named)}" if named else text
