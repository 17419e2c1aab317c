"""What kernels cost: precision, layout, attention in parts, chains of pointwise kernels, sizes, recomputation."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from walkthrough.advice.evidence import WORTHWHILE, Evidence, bounded, of_step, per_step, step_time, worthwhile
from walkthrough.advice.replay import Change
from walkthrough.terminal import counted, rounded_time
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import launching_operators, once, places, quantile
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
    is_float64,
    short_name,
)
from walkthrough.trace.kernels import gpu_ids, has_matrix_units, has_tf32, unit_name, vendor
from walkthrough.trace.memory import direction
from walkthrough.trace.steps import is_backward, of_steps

# How many times as many matrix operations per second in fp16 or bf16 with Tensor Cores, summed in fp32, as in fp32
# without, by compute capability. Dense; NVIDIA's data sheets of V100, T4, A100, A10, L4, H100 (SXM), B200, RTX 5090.
MATRIX_RATIO = {"7.0": 8, "7.5": 8, "8.0": 16, "8.6": 4, "8.9": 4, "9.0": 15, "10.0": 28, "12.0": 2}
# Of the data sheet's rate, what matrix products and convolutions reach in practice: medians over those with recorded
# shapes in the public traces that tests/data/public_traces.md names. 16 bits: 7749 in 16 traces (T; H100, B200 and
# MI300X), half of them from 0.05 to 0.53. fp32: 1932 in two traces (K; V100), half of them from 0.55 to 0.81.
REACHED_16_BITS, REACHED_FP32 = 0.25, 0.61
_FIRST_WITH_BF16 = 8  # compute capability, major
HALF_THE_BYTES = 2.0  # times faster, for a kernel that memory bounds, and for TF32: the data sheets' ratio to 16 bits
_BATCHED = ("aten::bmm", "aten::baddbmm")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data", "aten::softmax")
_BETWEEN = 8  # elementwise kernels between a product and softmax, at most: scale, mask, dropout and casts
_ALIGNED = 16  # bytes, for the widest loads of a matrix kernel
_ELEMENT_BYTES = {"c10::half": 2, "c10::bfloat16": 2}  # fp32 has no such limit without Tensor Cores
_UNALIGNED = r"^(?!.*(simt|d884)).*align[12](?![0-9])"  # CUTLASS's without Tensor Cores, and float64's, all are align1
_FORWARD = {
    f"aten::{name}"
    for name in ("convolution", "linear", "batch_norm", "layer_norm", "native_batch_norm", "cudnn_convolution")
}
_PERMUTING = {"aten::contiguous", "aten::reshape"}  # they copy only where the order of the elements changes
_FILLS_AND_CASTS = r"subtensorop"  # MIOpen's, before and after a convolution that sums parts in float32
_DDP_COPIES = "ddp.reducer::copy_bucket_to_grad"
_AROUND = ("aten::", "autograd::", "ProfilerStep#")  # operators that do not tell whose copy it is


@once
def shortest_us(a: Analysis) -> float:
    """The fixed cost of a kernel, as the shortest in the trace show it; 0.0 without any."""
    return quantile(a.trace.kernels.duration, 0.05) if len(a.trace.kernels) else 0.0


def has_no_units(a: Analysis) -> str:
    """That no GPU of the trace has Tensor Cores, in words; "" where one has them, or may."""
    gpus = gpu_ids(a.trace)
    none = gpus and not any(has_matrix_units(a.trace, number) for number in gpus)
    return f"this GPU has no {unit_name(a.trace)}" if none else ""


def mixed_precision(a: Analysis) -> Evidence:
    """At best the matrix work in float32 is gone, and that in TF32 and the other kernels move half as many bytes."""
    kernels, cores = a.trace.kernels, a.tensor_cores
    matrix, every = cores.fp32_matrix | cores.tf32_matrix, cores.fp32_matrix | cores.tf32_matrix | cores.fp32_other
    full, both, all_work = (a.share_within(kernels.cover(mask)) for mask in (cores.fp32_matrix, matrix, every))
    tf32, others = both - full, all_work - both
    kinds = [(full, "matrix work in float32"), (tf32, "matrix work in TF32"), (others, "other kernels in float32")]
    slow = " and ".join(f"{step_time(a, share)} of {what}" for share, what in kinds if share >= WORTHWHILE)
    mix, majors = _precisions(a), [gpu.get("computeMajor") for gpu in a.trace.gpu_properties]
    do = "run the model under torch.autocast"
    old = all(isinstance(major, int) and major < _FIRST_WITH_BF16 for major in majors)
    if majors and old and vendor(a.trace) == "nvidia":
        do += " (float16 with a GradScaler: this GPU has no bf16 units)"
    if has_tf32(a.trace) and full:
        do += ", or allow TF32 (torch.backends.cuda.matmul.allow_tf32 = True)"
    return Evidence(
        f"{slow} {per_step(a)}" if slow else "hardly a kernel computes in float32",
        min(full + tf32 / 2, 1.0),
        bounded("", full + (tf32 + others) / 2).gain,
        do=do,
        what="matrix products in several precisions" if mix else "",
        detail=mix,
        us_per_step=full * a.total_us / a.step_count,
        when=a.while_running(cores.fp32_matrix),
    )


def _precisions(a: Analysis) -> str:
    """The precisions of matrix kernels where float32 is one of several, in words; else ""."""
    matrix, full, tf32 = a.of_kind(MATRIX, CONVOLUTION), a.tensor_cores.fp32_matrix, a.tensor_cores.tf32_matrix
    half = matrix & ~tf32 & ~full & a.named(r"half|bf16|bfloat16|fp16|h884|h1688|h16816|_hh?s?_|f16")
    shares = {name: a.share_of_kernels(mask) for name, mask in (("fp32", full), ("TF32", tf32), ("16 bits", half))}
    second = max(shares["TF32"], shares["16 bits"])
    if min(shares["fp32"], second) < WORTHWHILE or not worthwhile(a, a.us_per_step(full)):
        return ""
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= WORTHWHILE)
    return f"{listed} of the kernels' time; for example {_most_common(a, full)}"


def _most_common(a: Analysis, kernels: np.ndarray) -> str:
    """The name that most kernels of a mask have, on one line; "" without any."""
    names = Counter(a.trace.names[number] for number in a.trace.kernels.name[kernels].tolist())
    return "".join(short_name(name, 60) for name, _ in names.most_common(1))


def _pointed_out(a: Analysis, kernels: np.ndarray, what: str, why: str, do: str) -> Evidence | None:
    """Evidence of the kernels of a mask, for which no rule but this one looks; None where they take too little."""
    us = a.us_per_step(kernels)
    if not worthwhile(a, us):
        return None
    return bounded(why, a.share_of_steps(us), do=do, what=what, when=a.while_running(kernels))


def _of_kernels(a: Analysis, kernels: np.ndarray) -> str:
    """How many kernels of a mask a step has, and their share of all kernels' time, in words."""
    count = counted(a.count_per_step(kernels), "kernel", "kernels")
    return f"{count} {per_step(a)}, {a.share_of_kernels(kernels):.0%} of the kernels' time"


def in_16_bits(a: Analysis) -> Change:
    """Autocast in an unchanged program. What it adds, casts of weights and gradients, is left out.

    To check `REACHED_16_BITS`: of ResNet-50's kernel time on a V100 two thirds are matrix work (K's traces), so it
    would run 2.7 times as fast. NVIDIA measured 2.3 times with pytorch-20.06, and 3.3 with 21.03, in channels_last
    (NVIDIA/DeepLearningExamples, one GPU); BERT-large gained more, 3.5 to 4.1. From TF32, on an A100, both gained
    1.8 with 20.06.
    """
    cores, duration = a.tensor_cores, np.maximum(a.trace.kernels.duration, 1e-9)
    faster = np.where(cores.fp32_matrix, _matrix_ratio(a), 1.0)
    faster[cores.tf32_matrix | cores.fp32_other] = HALF_THE_BYTES
    return Change(kernels=np.maximum(1 / faster, np.minimum(1.0, shortest_us(a) / duration)))


def _matrix_ratio(a: Analysis) -> float:
    """How many times faster a matrix product is in 16 bits than in fp32: by what both reach; on AMD half the bytes.

    AMD's GPUs are not in the table, and some have the compute capability of one that is.
    """
    if vendor(a.trace) == "amd":
        return HALF_THE_BYTES
    versions = [(gpu.get("computeMajor"), gpu.get("computeMinor")) for gpu in a.trace.gpu_properties]
    known = [MATRIX_RATIO.get(f"{major}.{minor}") for major, minor in versions]
    ratio = max(filter(None, known), default=MATRIX_RATIO["7.0"])
    return max(HALF_THE_BYTES, ratio * REACHED_16_BITS / REACHED_FP32)


@once
def attention(a: Analysis) -> tuple[np.ndarray, np.ndarray, int]:
    """Masks of the kernels of attention in parts, and of those between its products; how often the steps have it."""
    product = a.launched_by(*_BATCHED)
    softmax = a.launched_by(*_SOFTMAX) & a.named("softmax")
    pointwise = a.of_kind(ELEMENTWISE, COPY, REDUCTION) & ~softmax & ~product
    order, thread = a.in_stream_order, a.trace.kernels.thread
    part, between, count = np.zeros(len(order), bool), np.zeros(len(order), bool), 0
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for index in np.flatnonzero(softmax).tolist():
        before, after = (_beside(order, int(place[index]), way, product, pointwise) for way in (-1, 1))
        if not before or not after or not thread[before[-1]] == thread[index] == thread[after[-1]]:
            continue
        count += int(a.us_in_steps[index] > 0)
        part[[*before, index, *after]] = True
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


def fused_attention(a: Analysis) -> Evidence:
    """A batched product, softmax and a batched product in stream order, with only elementwise kernels between.

    Those between the products go, at least.
    """
    part, between, count = attention(a)
    us, between_us = a.us_per_step(part), a.us_per_step(between)
    products = part & a.launched_by(*_BATCHED)
    unaligned = a.us_per_step(products & a.named(_UNALIGNED))
    aligned = f"; {rounded_time(unaligned)} of it products of rows that are not aligned" if unaligned >= us / 10 else ""
    return bounded(
        f"{rounded_time(between_us)} {of_step(a)} are softmax and elementwise kernels between attention's products",
        a.share_of_steps(between_us),
        do="torch.nn.functional.scaled_dot_product_attention is one kernel, which never stores the matrix of scores",
        what="attention in separate kernels" if worthwhile(a, us) else "",
        detail=f"{count / a.step_count:.0f}x {per_step(a)} a batched product, softmax and another batched product, "
        f"{rounded_time(between_us)} of it softmax and elementwise kernels between them"
        f"{_shapes(a, products)}{aligned}; with the products it is {a.share_of_kernels(part):.0%} of the kernels' time",
        us_per_step=us,
        when=a.while_running(part),
    )


def misaligned_matmul(a: Analysis) -> Evidence | None:
    """Matrix products whose kernels load one or two elements at a time, or whose rows are no multiples of 16 bytes.

    Not those of attention in parts: fused attention does not have them.
    """
    matrix = a.of_kind(MATRIX) & ~attention(a)[0]
    by_name = matrix & a.named(_UNALIGNED)
    odd = np.array([_is_odd(inputs) for inputs in _factors(a)] + [False])
    by_shape = matrix & odd[_factor_numbers(a)]
    bad = by_name | by_shape
    count, named = a.count_per_step(bad), a.count_per_step(by_name)
    built = "" if not named else ", built" if named == count else f", {named:.0f} of them built"
    rows = f"{built} for rows that are not aligned (align1, align2)" if named else ""
    return _pointed_out(
        a,
        bad,
        "matrix products with unaligned sizes",
        f"{counted(count, 'kernel', 'kernels')} {per_step(a)}{rows}{_shapes(a, bad)}: a last dimension that is no "
        f"multiple of {_ALIGNED} bytes",
        do="pad vocabulary, classes, sequence length and hidden sizes to multiples of 8 elements (64 is better)",
    )


@once
def _factors(a: Analysis) -> list[list[tuple[list[int], str]]]:
    """(shape, type) of the two factors of each recorded matrix product, by `_factor_numbers`; [] if they are broken.

    First as of mm and bmm, whose inputs begin with them (a third one is out=), then as of addmm and baddbmm, whose
    first input is the bias.
    """
    known = []
    for first in (0, 1):
        for inputs in a.trace.inputs:
            try:
                shapes, types = (msgspec.json.decode(text, type=list[Any])[first : first + 2] for text in inputs)
            except (msgspec.DecodeError, msgspec.ValidationError):
                shapes, types = [], []
            known.append([pair for pair in zip(shapes, types, strict=False) if _is_matrix(*pair)])
    return known


def _is_matrix(shape: Any, name: Any) -> bool:
    """Whether an input is a matrix or a batch of them, as far as it can be read."""
    is_list = isinstance(shape, list) and len(shape) >= 2 and isinstance(name, str)
    return is_list and all(isinstance(size, int) for size in shape)


def _factor_numbers(a: Analysis) -> np.ndarray:
    """For each kernel, the place of its operator's inputs in `_factors`; -1 where they are not recorded."""
    operators = a.trace.operators
    biased = a.trace.named(operators, lambda name: "add" in name)
    numbers = np.where(operators.inputs < 0, -1, operators.inputs + biased * len(a.trace.inputs))
    return np.append(numbers, -1)[a.launching_operator]


def _is_odd(factors: list[tuple[list[int], str]]) -> bool:
    """Whether a last dimension of a matrix of half precision is no multiple of 16 bytes."""
    sizes = [(shape, _ELEMENT_BYTES.get(name.lower(), _ALIGNED)) for shape, name in factors]
    return any(min(shape[-2:]) > 1 and shape[-1] * size % _ALIGNED for shape, size in sizes)


def _shapes(a: Analysis, kernels: np.ndarray) -> str:
    """The factors' shapes that take the most time, as text, "" where they are not recorded."""
    times = np.bincount(_factor_numbers(a)[kernels] + 1, weights=a.us_in_steps[kernels], minlength=1)
    times[0] = 0.0
    shapes = [str(shape) for shape, _ in _factors(a)[int(np.argmax(times)) - 1]] if times.any() else []
    return f" (mostly {' @ '.join(shapes)})" if shapes else ""


@once
def chains(a: Analysis) -> np.ndarray:
    """The number of the chain of pointwise kernels and reductions that each kernel is in, from 1; 0 for none.

    A chain is in one stream. Not the optimizer's kernels, which compiling the model leaves as they are.
    """
    pointwise = a.of_kind(ELEMENTWISE, NORMALISATION, REDUCTION) | (a.of_kind(COPY) & a.named("elementwise"))
    pointwise &= ~a.named("^triton_") & ~a.launched_in(a.phases.optimizer)
    order = a.in_stream_order
    chained, thread = pointwise[order], a.trace.kernels.thread[order]
    begins = chained & ~np.append(False, chained[:-1] & (thread[1:] == thread[:-1]))
    chain = np.zeros(len(order), np.int64)
    chain[order] = np.where(chained, np.cumsum(begins), 0)
    return chain


@once
def fused_away(a: Analysis) -> np.ndarray:
    """A mask: of each of the `chains` all kernels but the longest, as if fused."""
    chain = chains(a)
    by_length = np.lexsort([-a.trace.kernels.duration, chain])
    gone = chain > 0
    gone[by_length[np.append(True, np.diff(chain[by_length]) > 0)[: len(chain)]]] = False
    return gone


def channels_last(a: Analysis) -> Evidence:
    """Kernels that only convert an image's layout, because the kernels before and after need different ones.

    All that only moves or converts elements stands out: also MIOpen's fills and casts with its convolutions, copies
    that make a tensor contiguous, and copies within the GPU, while no kernel runs.
    """
    own, filling = a.named(LAYOUT), a.named(_FILLS_AND_CASTS)
    permuting = _permuting(a) & ~(own | filling)
    within, copying_us = _within_the_gpu(a)
    keep = "model and images in torch.channels_last" if a.of_kind(CONVOLUTION).any() else "keep one layout"
    other = "try torch.backends.cudnn.benchmark: other algorithms do without them"
    parts = []
    for kernels, one, several, by, do in (
        (own, "conversion", "conversions", "between NCHW and NHWC", keep),
        (permuting, "copy", "copies", "by .contiguous() or .reshape()", "permute once and keep that layout"),
        (filling, "fill or cast", "fills and casts", "by MIOpen", other),
    ):
        us, count = a.us_per_step(kernels), counted(a.count_per_step(kernels), one, several)
        if us > 0:
            share = f"{a.share_of_kernels(kernels):.0%} of the kernels' time"
            parts.append((us, f"{count} {by} {per_step(a)}, {share}", do))
    within &= worthwhile(a, copying_us)
    if within.any():
        text = _copies_text(a, within, copying_us)
        do = "write results where they are used, and give a CUDA graph inputs whose addresses stay the same"
        if _DDP_COPIES in text:
            do = "gradient_as_bucket_view=True spares DDP the copies between gradients and buckets"
        parts.append((copying_us, text, do))
    us, share = sum(part[0] for part in parts), a.share_within(a.trace.kernels.cover(own))
    why = f"{step_time(a, share)} {of_step(a)} are layout conversions between NCHW and NHWC"
    if not share:
        why = "no kernel changes a layout; whether others would be faster in NHWC, no trace shows"
    return Evidence(
        why,
        share,
        bounded(why, share).gain if share else None,
        do="; ".join(do for part, _, do in sorted(parts, reverse=True) if part >= us / 5),
        what="what only moves or converts elements" if worthwhile(a, us) else "",
        detail="; ".join(why for part, why, _ in parts if part >= us / 20),
        us_per_step=us,
        when=a.while_running(own | permuting | filling) | a.trace.copies.cover(within),
    )


def _permuting(a: Analysis) -> np.ndarray:
    """A mask: copies that `contiguous` or `reshape` launched."""
    permuting = np.append(a.trace.named(a.trace.operators, _PERMUTING.__contains__), False)
    parent = np.append(a.trace.nesting.parent, -1)
    operator, inside = np.where(a.of_kind(COPY), a.launching_operator, -1), np.zeros(len(a.trace.kernels), bool)
    for _ in range(4):  # contiguous > clone > copy_
        inside |= permuting[operator]
        operator = parent[operator]
    return inside


def _within_the_gpu(a: Analysis) -> tuple[np.ndarray, float]:
    """A mask over `Trace.copies`: those within the GPU, in the steps; and µs per step of them without a kernel."""
    copies = a.trace.copies
    within = direction(a.trace, "d2d") & of_steps(a.trace, a.steps, copies)
    alone = [copies.cover(within & (copies.device == gpu.device)).within(gpu.start, gpu.end).sum() for gpu in a.idle]
    return within, float(np.mean(alone)) / a.step_count if alone else 0.0


def _copies_text(a: Analysis, within: np.ndarray, us: float) -> str:
    """How many copies, how many bytes, and inside which operator of the program's own most of their time."""
    trace, copies = a.trace, a.trace.copies
    count, size = within.sum() / a.step_count, np.nan_to_num(copies.bytes)[within].sum() / a.step_count
    size_text = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    text = f"{counted(count, 'copy', 'copies')} within the GPU {per_step(a)}, {size_text}, {rounded_time(us)}"
    text += " with no kernel running"
    operators, length = launching_operators(trace, copies.call[within]), copies.duration[within]
    operators = trace.nesting.around(operators, trace.named(trace.operators, lambda name: name.startswith(_AROUND)))
    callers = trace.longest(trace.operators.name[operators[operators >= 0]], length[operators >= 0])
    named = [name for name, us_inside in callers[:2] if us_inside >= 0.2 * length.sum()]
    return f"{text}, most of it inside {' and '.join(named)}" if named else text


def recomputation(a: Analysis) -> Evidence | None:
    """Forward operators inside the backward pass: activation checkpointing."""
    trace, operators = a.trace, a.trace.operators
    forward, backward = trace.named(operators, _FORWARD.__contains__), trace.named(operators, is_backward)
    again = np.zeros(len(operators), bool)
    for here in places(operators.thread).values():
        again[here] = forward[here] & operators.cover(here[backward[here]]).holds(operators.start[here])
    if again.sum() < 0.05 * forward.sum():
        return None
    kernels = a.launched_in(operators.cover(again))
    count = (again & Cover(a.steps.cpu_start, a.steps.cpu_end).holds(operators.start)).sum() / a.step_count
    return _pointed_out(
        a,
        kernels,
        "forward kernels run again in the backward pass",
        f"{counted(count, 'forward operator per step runs', 'forward operators per step run')} inside the backward "
        f"pass, {a.share_of_kernels(kernels):.0%} of the kernels' time: activation checkpointing",
        do="checkpoint fewer layers, or only what is cheap to run again (selective checkpointing), if memory allows",
    )


def float64(a: Analysis) -> Evidence | None:
    """Kernels in float64: on most GPUs slower by far than those in float32."""
    kernels = a.named(is_float64)
    return _pointed_out(
        a,
        kernels,
        "kernels in float64",
        f"{_of_kernels(a, kernels)}; for example {_most_common(a, kernels)}",
        do="look for a float64 constant, or a NumPy array, that makes a tensor float64",
    )


def depthwise(a: Analysis) -> Evidence | None:
    """Depthwise convolutions: no sum over channels, so no matrix product."""
    kernels = a.named(DEPTHWISE)
    return _pointed_out(
        a,
        kernels,
        "depthwise convolutions",
        f"{_of_kernels(a, kernels)}: each output sums over one channel only, so matrix cores cannot help, and memory "
        "decides",
        do="channels_last and 16 bits move fewer bytes; wider groups, if the model may change",
    )
