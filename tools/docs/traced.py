"""What the figures of real GPUs show, from others' traces (see `walkthrough.records.samples`) or recorded ones.

The traces are not kept here. `logs/reference/samples.json` holds what was computed, with each trace's SHA-256:

    python -m tools.docs.traced FOLDER     compute it anew from the samples in a folder, whatever their names
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from tools.docs.others import traces_in
from tools.docs.recorded import RECORDS
from walkthrough.advice.catalogue import COSTS
from walkthrough.advice.gains import Gains
from walkthrough.advice.replay import Change
from walkthrough.advice.report import report
from walkthrough.explain.text import sentence, text, verdict
from walkthrough.records import samples
from walkthrough.results import result
from walkthrough.results.errors import InputError, one_line_errors
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.intervals import Cover, shares
from walkthrough.trace.kernel_names import ATTENTION, COLLECTIVE, CONVOLUTION, KINDS, MATRIX, uses_tensor_cores
from walkthrough.trace.kernels import kind_numbers
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import phases, stepping_thread
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import is_mark

FILE = "samples.json"
PAIR = ("resnet50_v100_0_workers", "resnet50_v100_4_workers")  # before and after: batches are loaded in processes
PUBLISHER = "PyTorch's published trace, ResNet-50, V100"  # the caption of both
BINS = 360  # stretches of time that a step is divided into: about two pixels each
LARGE = 1e6  # bytes: a copy of a batch, not of a number
BEFORE_COPY, AFTER_COPY = 4e3, 11e3  # µs around the largest copy, where a picture shows only that

LOADING, FORWARD, BACKWARD, OPTIMIZER = "DataLoader", "forward", "backward", "optimizer, zero_grad"
WAITING = "waits in a copy or a synchronisation"
TO_GPU, OTHER_COPIES = "to the GPU", "other copies"
MATRIX_PLAIN, MATRIX_CORES = "matrix work without Tensor Cores", "matrix work on Tensor Cores"
COLLECTIVES, OTHER_KERNELS = "collectives", "other kernels"
CPU, COPIES, KERNELS = "CPU", "copies", "kernels"
LONG_WAIT = 100.0  # µs


class TracedStep(Struct, frozen=True):
    """A stretch of one step in bins, and numbers of the whole trace.

    what: what changed, if the times are a replay's. step: its name. us: the length of the stretch. step_us: of the
    step. lanes: {lane: {group: per cent of each bin}}; groups of a lane are disjoint and sum up to at most 100.
    in_stretch: µs in it, by group. mean: of all traced steps: {"step": µs, "utilization": 0..1, group or role: µs}.
    """

    gpu: str
    step: str
    us: float
    step_us: float
    lanes: dict[str, dict[str, list[int]]]
    in_stretch: dict[str, float]
    mean: dict[str, float]
    what: str = ""


class Brief(Struct, frozen=True):
    """A trace in few words. typical_us: the length of each typical step.

    explain: where time goes, the first piece of advice, and its evidence: a line each, as `explain` prints them.
    """

    typical_us: list[float]
    explain: list[str]


class Sampled(Struct, frozen=True):
    """What `samples.json` holds. steps: {"SAMPLE" or "SAMPLE CHANGE" or "… copy": its step}. sha256: {sample: …}.

    briefs: {sample: in few words}. explain: {sample: what `explain` prints}. kernels: {sample: names
    of the longest matrix work}.
    """

    sha256: dict[str, str]
    steps: dict[str, TracedStep]
    briefs: dict[str, Brief]
    explain: dict[str, str]
    kernels: dict[str, list[str]]


@dataclass(frozen=True)
class Wanted:
    """A step to compute from a sample; the fields are the arguments of `traced_step`."""

    sample: str
    change: str | None = None
    around_copy: bool = False
    count: int = 1


WANTED = {
    **{sample: Wanted(sample) for sample in PAIR},
    "resnet50_v100_4_workers copy": Wanted("resnet50_v100_4_workers", around_copy=True),
    "resnet50_v100_4_workers uint8": Wanted("resnet50_v100_4_workers", "03_reduced_h2d_copy", around_copy=True),
    "resnet50_v100_4_workers pinned": Wanted("resnet50_v100_4_workers", "05_pinned_memory", around_copy=True),
    "resnet50_v100_ddp": Wanted("resnet50_v100_ddp"),
    "resnet50_v100_ddp amp": Wanted("resnet50_v100_ddp", "01_amp"),
    "resnet50_a100_ddp": Wanted("resnet50_a100_ddp", count=2),
    "resnet50_a100_ddp twice": Wanted("resnet50_a100_ddp", "02_bigger_batch"),
}
EXPLAINED = {"resnet50_v100_0_workers": False, "qwen_h100": True, "resnet_mi300x_ddp": True}  # whether with tables
LEFT_OUT = ("Kernels:", "Operators", "Copies", "Memory", "Allocated", "What else stands out")  # of these


def read() -> Sampled | None:
    """What the file next to the records holds; None without it."""
    path = RECORDS / FILE
    return msgspec.json.decode(path.read_bytes(), type=Sampled) if path.exists() else None


def traced_step(analysis: Analysis, change: str | None = None, around_copy: bool = False, count: int = 1) -> TracedStep:
    """The typical step of median length, as traced or replayed with a change.

    around_copy: only what is around its largest copy to the device. count: so many steps from that one on.
    """
    trace, steps = analysis.trace, analysis.steps
    usual = ~is_outlier(steps)
    by_length = np.argsort(np.where(usual, steps.duration, np.inf), kind="stable")
    index = min(int(by_length[usual.sum() // 2]), len(steps.names) - count)
    work = [trace.kernels, trace.copies]
    begin, length = float(steps.start[index]), float(steps.duration[index : index + count].sum())
    start, end = (np.concatenate([getattr(spans, column) for spans in work]) for column in ("start", "end"))
    replayed = Change()
    if change:
        gains = Gains(analysis.typical)
        replay = gains.replay
        replayed = next(gains.change(cost) for cost in COSTS if cost.step == change)
        begins, start, end = replay.timeline(replayed)
        start, end = start[: len(trace.kernels) + len(trace.copies)], end[: len(trace.kernels) + len(trace.copies)]
        begin, length = float(begins[index]), float(replay.step_us(replayed)[index])
    first, us = begin, length
    if around_copy:
        size = np.nan_to_num(trace.copies.bytes)
        inside = direction(trace, "h2d") & (trace.copies.start >= steps.start[index]) & (size > LARGE)
        copy = int(np.argmax(np.where(inside & (trace.copies.start < steps.end[index]), size, -1)))
        first, us = float(start[len(trace.kernels) + copy]) - BEFORE_COPY, BEFORE_COPY + AFTER_COPY
    covers = _device_lanes(analysis, start, end)
    if not change:
        covers = {CPU: _cpu_lane(analysis)} | covers
    return TracedStep(
        gpu=analysis.gpus[0].name if analysis.gpus and analysis.gpus[0].name else "a GPU",
        step=steps.names[index],
        us=round(us, 1),
        step_us=round(length, 1),
        lanes={lane: _binned(groups, first, us) for lane, groups in covers.items()},
        in_stretch={
            group: round(float(part), 1)
            for groups in covers.values()
            for group, part in zip(groups, shares(groups.values(), first, first + us), strict=True)
        },
        mean=_means(analysis, replayed),
        what=change or "",
    )


def _device_lanes(analysis: Analysis, start: np.ndarray, end: np.ndarray) -> dict[str, dict[str, Cover]]:
    """Of kernels and copies, in turn, that begin and end then (NaN: not at all): the covers by lane and group."""
    trace, count = analysis.trace, len(analysis.trace.kernels)
    start, end = np.nan_to_num(start, nan=0.0), np.nan_to_num(end, nan=0.0)
    group = kernel_groups(analysis)
    to_gpu = direction(trace, "h2d")

    def cover(mask: np.ndarray, offset: int) -> Cover:
        at = np.flatnonzero(mask) + offset
        return Cover(start[at], end[at])

    return {
        COPIES: {TO_GPU: cover(to_gpu, count), OTHER_COPIES: cover(~to_gpu, count)},
        KERNELS: {name: cover(group == name, 0) for name in (MATRIX_CORES, MATRIX_PLAIN, OTHER_KERNELS, COLLECTIVES)},
    }


def kernel_groups(analysis: Analysis) -> np.ndarray:
    """The group of each kernel: matrix work with Tensor Cores or without, collectives, others."""
    trace = analysis.trace
    number = kind_numbers(trace)
    matrix = np.isin(number, [KINDS.index(name) for name in (MATRIX, CONVOLUTION, ATTENTION)])
    cores = trace.named(trace.kernels, uses_tensor_cores)
    group = np.full(len(number), OTHER_KERNELS, dtype=object)
    group[number == KINDS.index(COLLECTIVE)] = COLLECTIVES
    group[matrix] = MATRIX_PLAIN
    group[matrix & cores] = MATRIX_CORES
    return group


def _cpu_lane(analysis: Analysis) -> dict[str, Cover]:
    trace, operators, runtime = analysis.trace, analysis.trace.operators, analysis.trace.runtime
    parts = phases(trace, analysis.steps)
    own = operators.thread == stepping_thread(trace)
    marks = trace.named(operators, is_mark)
    waits = (trace.calls.waits | trace.calls.copies) & (runtime.duration > LONG_WAIT)
    return {
        WAITING: runtime.cover(waits),
        LOADING: parts.loading,
        OPTIMIZER: parts.per_step,
        BACKWARD: operators.cover(~own & ~marks),
        FORWARD: operators.cover(own & ~marks),
    }


def _binned(groups: Mapping[str, Cover], first: float, us: float) -> dict[str, list[int]]:
    """Per cent of each bin by group; a moment counts for the first group that covers it."""
    edges = first + us * np.arange(BINS + 1) / BINS
    parts = shares(groups.values(), edges[:-1], edges[1:]) / (us / BINS) * 100
    return {name: np.rint(row).astype(int).tolist() for name, row in zip(groups, parts, strict=True) if row.any()}


def _means(analysis: Analysis, change: Change) -> dict[str, float]:
    """Of the mean traced step: µs, by role, by cause of an idle GPU, by group of kernels (of the typical steps)."""
    steps, count = analysis.steps, len(analysis.steps.names)
    kernels, usual = analysis.trace.kernels, analysis.typical.steps
    factor = np.ones(len(kernels)) if change.kernels is None else change.kernels
    us = Cover(usual.start, usual.end).within(kernels.start, kernels.end) * factor / len(usual.names)
    group = kernel_groups(analysis)
    values = {
        "step": steps.mean_us,
        "typical step": usual.mean_us,
        "h2d bytes": analysis.typical.step_bytes,
        "utilization": analysis.gpus[0].utilization if analysis.gpus else 0.0,
        **{f"role {name}": value for name, value in steps.mean_breakdown_us.items()},
        **{f"idle {name}": value / count for idle in analysis.idle[:1] for name, value in idle.causes_us.items()},
        **{
            f"usual idle {name}": value / len(usual.names) for name, value in analysis.typical.idle[0].causes_us.items()
        },
        **{name: float(us[group == name].sum()) for name in (MATRIX_CORES, MATRIX_PLAIN, OTHER_KERNELS, COLLECTIVES)},
    }
    return {name: round(float(value), 5) for name, value in values.items()}


def brief(analysis: Analysis) -> Brief:
    """A trace in few words."""
    shown = report(analysis)
    lines = [verdict(shown)]
    for first in shown["advice"][:1]:
        lines += [f"1  {first['title']}  {first['gain']}".rstrip(), sentence(first["why"])]
    return Brief(analysis.typical.steps.duration.tolist(), lines)


def longest_matrix_work(analysis: Analysis, count: int = 3) -> list[str]:
    """The names of the kernels that take most of the time of matrix work."""
    group = kernel_groups(analysis)
    kernels = analysis.trace.kernels
    total: dict[str, float] = {}
    for number, us in zip(kernels.name.tolist(), np.where(group == OTHER_KERNELS, 0, kernels.duration), strict=True):
        total[analysis.trace.names[number]] = total.get(analysis.trace.names[number], 0.0) + float(us)
    names = {analysis.trace.names[number] for number in kernels.name[np.isin(group, [MATRIX_CORES, MATRIX_PLAIN])]}
    return sorted(names, key=lambda name: (-total[name], name))[:count]


def explained(analysis: Analysis, everything: bool = False) -> str:
    """What `explain` prints of a trace; everything: with --all, without the parts named in `LEFT_OUT`."""
    parts = text(report(analysis), everything).rstrip("\n").split("\n\n")
    return "\n\n".join(part for part in parts if not part.startswith(LEFT_OUT)) + "\n"


def compute(traces: Mapping[str, Path]) -> Sampled:
    """Everything, from traces by their SHA-256. Raises InputError where one is missing."""
    listed = {sample.name: sample for sample in samples.read_list().samples}
    names = dict.fromkeys([*(wanted.sample for wanted in WANTED.values()), *EXPLAINED])
    missing = [name for name in names if listed[name].sha256 not in traces]
    if missing:
        raise InputError(f"the folder lacks the trace {missing[0]}: `python -m walkthrough samples` fetches it")
    analyses = {name: analyze(traces[listed[name].sha256]) for name in names}
    return Sampled(
        sha256={name: listed[name].sha256 for name in names},
        steps={
            key: traced_step(analyses[one.sample], one.change, one.around_copy, one.count)
            for key, one in WANTED.items()
        },
        briefs={name: brief(analyses[name]) for name in PAIR},
        explain={name: explained(analyses[name], everything) for name, everything in EXPLAINED.items()},
        kernels={name: longest_matrix_work(analyses[name]) for name in ("resnet50_v100_ddp", "resnet50_a100_ddp")},
    )


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a trace is missing or cannot be read."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise InputError(
            "name one folder, with the samples: `python -m walkthrough samples` fetches them into logs/samples"
        )
    sampled = compute(traces_in(Path(words[0])))
    result.write_whole(RECORDS / FILE, msgspec.json.encode(sampled, order="deterministic") + b"\n")
    print(f"written: {RECORDS / FILE}; then: make docs-figures")


if __name__ == "__main__":
    main(sys.argv[1:])
