"""Kernels by name and by kind, the GPUs' utilisation, and their use of Tensor Cores.

Definitions: torch-tb-profiler 0.4.3, gpu_metrics_parser.py (utilisation, SM efficiency, occupancy; over the time from
the start of the first step to the end of the last one, as in its Overview) and tensor_cores_parser.py (shares of the
time of the kernels that operators launched).
"""

import re
from collections.abc import Callable, Container, Iterable
from typing import Literal

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import (
    MAX_GPUS,
    Trace,
    distinct,
    graph_launched,
    launched_in,
    launching_operators,
)
from walkthrough.trace.intervals import Cover, integral
from walkthrough.trace.kernel_names import (
    AMD_FP32,
    ATTENTION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    ELIGIBLE,
    ELIGIBLE_SINCE,
    KINDS,
    LOW_PRECISION,
    MATRIX,
    OPTIMIZER,
    OTHER,
    REDUCTION,
    TF32,
    halves_under_autocast,
    is_float64,
    is_ordinary,
    kind,
    uses_tensor_cores,
)
from walkthrough.trace.memory import Copies, copies
from walkthrough.trace.steps import Steps, of_steps, passes

# Of these kinds, a kernel that Optimizer.step launches is the optimizer's; its matrix products and collectives stay.
_OPTIMIZERS = frozenset((ELEMENTWISE, REDUCTION, COPY, OTHER))
_AMD, _INTEL = re.compile(r"AMD|Radeon|Instinct|gfx\d"), re.compile(r"Intel|\bArc\b")
_HIP_CALL, _SYCL_CALL = re.compile(r"hip[A-Z]"), re.compile(r"(ur|ze)[A-Z]")  # Unified Runtime and Level Zero
# GPUs without matrix units whose compute capability does not tell: NVIDIA's TU116 and TU117, 7.5 as those with Tensor
# Cores (GeForce GTX 16, MX450, MX550, T400 to T1200); AMD's Vega (gfx900, gfx906); Intel's graphics before Arc.
_WITHOUT_UNITS = re.compile(r"GTX 16|\bMX[45]50|\bT\d{3,4}\b|Vega|Radeon VII|MI(25|50|60)\b|Iris|UHD")
_RDNA_1_AND_2 = 10  # compute capability, major, of AMD's gfx10..
_FIRST_WITH_TENSOR_CORES, _FIRST_WITH_TF32 = 7, 8  # compute capability, major


def kind_numbers(trace: Trace) -> np.ndarray:
    """The kind of each kernel of a trace by its name, an index into `KINDS`; int64."""
    numbers = np.zeros(len(trace.names), np.int64)
    for number in np.flatnonzero(np.bincount(trace.kernels.name)).tolist():
        numbers[number] = KINDS.index(kind(trace.names[number]))
    return numbers[trace.kernels.name]


def kinds_us(trace: Trace, steps: Steps) -> dict[str, float]:
    """µs per step of the kernels of each kind that occurs, the longest first.

    Of each kernel the time within the steps, not between them, over the number of steps; kernels that overlap, on one
    GPU or several, count in full. Elementwise kernels, reductions and copies that `Optimizer.step` launches count as
    the optimizer's, without those of a closure.
    """
    kernels, number = trace.kernels, kind_numbers(trace)
    time = Cover(steps.start, steps.end).within(kernels.start, kernels.end)
    stepping = passes(trace).own
    if len(stepping.start):
        launched = launched_in(trace, kernels, stepping)
        number[launched & np.isin(number, [KINDS.index(name) for name in _OPTIMIZERS])] = KINDS.index(OPTIMIZER)
    total = np.bincount(number, weights=time, minlength=len(KINDS)) / max(len(steps.names), 1)
    rows = [(name, float(us)) for name, us in zip(KINDS, total.tolist(), strict=True) if us > 0]
    return dict(sorted(rows, key=lambda row: -row[1]))


class TensorCores(Struct, frozen=True):
    """share: per GPU id, of its kernel time, None if all names are unknown. unknown: per GPU id, the unknown share.

    eligible_share: of the kernel time, in operators that could use Tensor Cores; None without kernels.
    unknown_kind_share: of the same time, that of other kernels whose names do not tell whether they are matrix work.
    Masks over `Trace.kernels`: fp32_matrix, the matrix products and convolutions that such operators or CUDA graphs
    launched, in full precision and surely without Tensor Cores, and on AMD those whose names say float32, which its
    matrix cores multiply as well, but slower than 16 bits; tf32_matrix, those in TF32; fp32_other, the other kernels
    that name float and no narrower type, and would not under autocast: not the optimizer's, nor what autocast leaves in
    float32. None of them is in float64, which autocast leaves alone.
    """

    share: dict[int, float | None]
    unknown: dict[int, float]
    eligible_share: float | None
    unknown_kind_share: float
    fp32_matrix: np.ndarray
    tf32_matrix: np.ndarray
    fp32_other: np.ndarray


def tensor_cores(
    trace: Trace,
    eligible: Container[str] = ELIGIBLE | ELIGIBLE_SINCE,
    classify: Callable[[str], bool | None] = uses_tensor_cores,
) -> TensorCores:
    """The `TensorCores` of a trace.

    Over the kernels that operators launched, as the plugin counts (Optimizer.* marks and the wrappers of parallel
    training are not operators), and those that CUDA graphs launched, which the plugin leaves out where no operator is
    around the launch; over all kernels if the trace links none to an operator. An operator that launches Tensor Core
    kernels, or matrix work that may use them, is eligible whatever its name, and the time counts for the innermost
    eligible one. A graph's kernels name no operator: of those the matrix work is eligible.
    """
    kernels, operators = trace.kernels, trace.operators
    none = np.zeros(len(kernels), bool)
    if not len(kernels):
        return TensorCores({}, {}, None, 0.0, none, none, none)
    sure = trace.named(kernels, lambda name: classify(name) is True)
    unsure = trace.named(kernels, lambda name: classify(name) is None)
    kinds = kind_numbers(trace)
    unknown_kind = unsure & (kinds == KINDS.index(OTHER))
    old = np.isin(
        kernels.device, [device for device in distinct(kernels.device).tolist() if not has_matrix_units(trace, device)]
    )
    sure, unsure = sure & ~old, unsure & ~old
    matrix_work = sure | (unsure & np.isin(kinds, [KINDS.index(name) for name in (MATRIX, CONVOLUTION, ATTENTION)]))

    graphed = graph_launched(trace, kernels)
    operator = launching_operators(trace, np.where(graphed, -1, kernels.call))
    launched = np.append(trace.named(operators, _is_operator), False)[operator]
    linked, time = launched | graphed, kernels.duration
    counted = linked if linked.any() else np.ones(len(kernels), bool)

    share, unknown = {}, {}
    for device in gpu_ids(trace):
        here = counted & (kernels.device == device)
        total, unknown[device] = time[here].sum(), _part(time[here & unsure].sum(), time[here].sum())
        share[device] = None if (unsure | ~here).all() else _part(time[here & sure].sum(), total)

    if not linked.any():
        return TensorCores(share, unknown, None, _part(time[unknown_kind].sum(), time.sum()), none, none, none)
    able = trace.named(operators, eligible.__contains__)
    able[operator[launched & matrix_work]] = True
    ordinary = trace.named(kernels, is_ordinary)
    in_innermost = graphed & (matrix_work | ordinary)
    if launched.any():
        innermost = able & ~trace.nesting.has_descendant(able)
        in_innermost |= launched & innermost[operator]
    able_share = _part(time[in_innermost].sum(), time[counted].sum())
    unknown_share = _part(time[counted & unknown_kind & ~in_innermost].sum(), time[counted].sum())
    full = ~old & ~trace.named(kernels, lambda name: LOW_PRECISION.search(name) or is_float64(name))
    fp32_matrix = in_innermost & full & (trace.named(kernels, AMD_FP32.search) if vendor(trace) == "amd" else ordinary)
    tf32_matrix = in_innermost & full & sure & trace.named(kernels, TF32.search)
    fp32_other = full & ~sure & ~fp32_matrix & trace.named(kernels, halves_under_autocast)
    fp32_other &= ~launched_in(trace, kernels, passes(trace).per_step)
    return TensorCores(share, unknown, able_share, unknown_share, fp32_matrix, tf32_matrix, fp32_other)


def _part(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _is_operator(name: str) -> bool:
    return not name.startswith(("Optimizer.", "enumerate(Data", "ProfilerStep#")) and name not in (
        "DataParallel.forward",
        "DistributedDataParallel.forward",
    )


def vendor(trace: Trace) -> Literal["nvidia", "amd", "intel"]:
    """Who made the GPUs: by their names, AMD's also by their wavefronts of 64, or by the calls of the runtime.

    A process runs CUDA, HIP or SYCL, so this holds for all its GPUs; ROCm's device numbers often have no properties.
    """
    names = " ".join(str(device.get("name", "")) for device in trace.properties.values())
    if _AMD.search(names) or any(device.get("warpSize") == 64 for device in trace.properties.values()):
        return "amd"
    if trace.hip or trace.has_name(_HIP_CALL.match, trace.runtime):
        return "amd"
    return "intel" if _INTEL.search(names) or trace.has_name(_SYCL_CALL.match, trace.runtime) else "nvidia"


def has_tf32(trace: Trace) -> bool:
    """Whether a GPU is known to multiply in TF32: NVIDIA's from compute capability 8.0."""
    majors = [device.get("computeMajor") for device in trace.properties.values()]
    known = any(isinstance(major, int) and major >= _FIRST_WITH_TF32 for major in majors)
    return known and vendor(trace) == "nvidia"


def unit_name(trace: Trace) -> str:
    """What the GPU's maker calls its matrix units."""
    return {"nvidia": "Tensor Cores", "amd": "Matrix cores", "intel": "XMX engines"}[vendor(trace)]


def has_matrix_units(trace: Trace, device: float) -> bool:
    """False for a GPU that is known to have no matrix units: see `_WITHOUT_UNITS`, and by its compute capability."""
    maker, properties = vendor(trace), trace.properties.get(int(device), {}) if np.isfinite(device) else {}
    if maker == "amd":
        properties = properties or next(iter(trace.properties.values()), {})
    major = properties.get("computeMajor")
    old = isinstance(major, int) and 0 < major < _FIRST_WITH_TENSOR_CORES
    old = major == _RDNA_1_AND_2 if maker == "amd" else old
    return not old and not _WITHOUT_UNITS.search(str(properties.get("name", "")))


class Gpu(Struct, frozen=True):
    """Shares 0..1, None where the trace cannot tell.

    utilization: of the time, with at least one kernel running. sm_efficiency: of the SMs that had work, estimated:
    blocks per SM of the running kernels, at most 1, over time. occupancy_percent: estimated achieved occupancy of the
    kernels, weighted by their time. tensor_core_share: see `TensorCores`.
    """

    id: int
    name: str | None
    utilization: float
    sm_efficiency: float | None
    occupancy_percent: float | None
    tensor_core_share: float | None


def gpu(trace: Trace, number: int, begin: float, end: float, tensor_cores: dict[int, float | None]) -> Gpu:
    """A GPU's numbers from `begin` to `end`; tensor_cores: the share of each GPU."""
    kernels, length = trace.kernels.where(trace.kernels.device == number), end - begin
    working = kernels.where(kernels.blocks_per_sm > 0)
    blocks = integral(working.start, working.end, working.blocks_per_sm, begin, end, 1.0)
    known = kernels.where(kernels.occupancy >= 0)
    us = np.clip(np.minimum(known.end, end) - np.maximum(known.start, begin), 0, None)
    return Gpu(
        id=number,
        name=gpu_name(trace, number),
        utilization=float(kernels.cover().within(begin, end)) / length if length > 0 else 0.0,
        sm_efficiency=float(blocks) / length if len(working) and length > 0 else None,
        occupancy_percent=float(np.average(known.occupancy, weights=us)) if us.sum() > 0 else None,
        tensor_core_share=tensor_cores.get(number),
    )


def gpu_ids(trace: Trace) -> list[int]:
    """The devices on which kernels ran, sorted; of more than `MAX_GPUS` those with the most kernels.

    In a trace without kernels: those that copied or set memory.
    """
    work = trace.kernels if len(trace.kernels) else trace.device_work
    ids, count = np.unique(work.device, return_counts=True)
    ids = ids[np.argsort(-count, kind="stable")[:MAX_GPUS]]
    return sorted(int(number) for number in ids.tolist() if np.isfinite(number))


def gpu_name(trace: Trace, number: int) -> str | None:
    """The GPU's name in the trace; where its number has no properties, the one name of all others; or None."""
    if number in trace.properties:
        name = trace.properties[number].get("name")
        return name if isinstance(name, str) else None
    names = {name for device in trace.properties.values() if isinstance(name := device.get("name"), str)}
    return names.pop() if len(names) == 1 else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class Kernel(Struct, frozen=True):
    """Kernels of one name: how many, their summed µs, and whether they use Tensor Cores (None: unknown)."""

    name: str
    count: int
    us: float
    tensor_cores: bool | None


class Tables(Struct, frozen=True):
    """kernels: by name, the longest first. copies: by direction."""

    kernels: list[Kernel]
    copies: dict[str, Copies]


def tables(trace: Trace, steps: Steps | None = None) -> Tables:
    """The `Tables` of a whole trace, or of its steps: of the device work that they called."""
    of_kernels, of_copies = (
        of_steps(trace, steps, work) if steps else np.ones(len(work), bool) for work in (trace.kernels, trace.copies)
    )
    kernels = trace.kernels.where(of_kernels)
    us, count = np.bincount(kernels.name, weights=kernels.duration), np.bincount(kernels.name)
    units = any(has_matrix_units(trace, number) for number in gpu_ids(trace))
    rows = [
        Kernel(name := trace.names[at], int(count[at]), float(us[at]), units and uses_tensor_cores(name))
        for at in np.flatnonzero(count).tolist()
    ]
    return Tables(sorted(rows, key=lambda row: (-row.us, row.name)), copies(trace, of_copies))
