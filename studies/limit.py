"""`limit`: the highest speed of the model on this device if data cost nothing, and why it is not higher.

The command, its result, tables and figure; `studies.fastest` measures. Starts without torch.

The figure is a roofline, after Williams, Waterman and Patterson, "Roofline" (2009): FLOP/s over FLOPs per byte; the
roof is the lower of the peak FLOP/s and the intensity times the peak bytes/s. Both peaks are measured, FLOPs and bytes
are counted from shapes, and the time comes from a trace of the uncompiled step (`studies.roofline`).
"""

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from common.options import add_step_options
from studies import OPTION_TEXTS, study
from studies import input as input_study
from walkthrough.compare import statistics
from walkthrough.compare.figures import GREY, SPEED, styled
from walkthrough.compare.roofs import FILE, SCHEMA, Peak, Speed, fastest_of
from walkthrough.compare.roofs import Limit as StoredLimit
from walkthrough.compare.roofs import Program as Program
from walkthrough.results.errors import InputError, folder
from walkthrough.results.result import Meta, PositiveInt, StepTime, Throughput
from walkthrough.terminal import plain_table, share_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"  # memory layouts
MOST_NAMED = 6  # operators without a FLOP formula, by name
COLOURS = {  # of the groups of `roofline.GROUPS`
    "convolution": "#0072b2",
    "depthwise convolution": "#d55e00",
    "batch norm": "#009e73",
    "other norm": "#999999",
    "attention": "#f0e442",
    "matrix product": "#56b4e9",
    "pooling": "#e69f00",
    "resize": "#aa4499",
    "loss, softmax": "#cc79a7",
    "sum, mean": "#000000",
    "copy, cast": "#44aa99",
    "elementwise": "#882255",
    "optimizer": "#117733",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `limit`, with those of `limit --input`."""
    texts = {
        "--batch-size": "images per step; without --input the first of the sizes tried (default: %(default)s)",
        "--data": "with --input: folder that holds cifar-10-batches-py (default: data/ of this project)",
        "--download": "with --input: fetch CIFAR-10 into --data first, 170 MB",
    }
    add_step_options(parser, without=("--workers", "--stacks"), texts=OPTION_TEXTS | texts)
    input_study.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--plot",
        type=folder,
        metavar="FILE",
        help="draw the roofline, with --input images/s per number of workers: .svg or .png",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, write `limit.json` (with --input: `input_limit.json`) into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    if args.input:
        return input_study.run(args)
    if args.download:
        raise InputError("--download fetches the data, which limit reads with --input only: leave it out")
    from studies.fastest import measure

    study.check_plot(args.plot)
    options = study.ready(args)
    more = "; `compare` shows each step's share of the limit"
    return study.report("limit", args, lambda: measure(options), more)


@dataclass(frozen=True)
class TrainingSpeed(Speed):
    """How fast a `Program` trains on one batch that is on the device already; see `one_batch.TrainStep`.

    flops_per_second: FLOPs of a step over its time. mfu: that over the measured peak, 0..1. bytes_per_second: bytes
    that a step's operators move (see `roofline.OperatorCounter`) over its time; of a compiled program by Inductor's own
    count of its kernels' bytes, None where it gave none. share_of_memory_roof: see `Roofs.memory_share`; the same bytes
    for every program of a batch size. None in what an earlier version wrote.
    """

    step_ms: StepTime
    flops_per_second: float
    mfu: float
    bytes_per_second: float | None
    share_of_memory_roof: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Group:
    """Operators of one kind in one step: see `roofline.OperatorCounter`; ms of a traced, uncompiled step.

    flops: None where torch has no formula for them. elements: written.
    """

    name: str
    calls: int
    flops: int | None
    bytes: int
    elements: int
    traced_ms: float

    @property
    def work(self) -> int:
        """FLOPs, or where there is no formula one for each element written: for a place in the roofline only."""
        return self.elements if self.flops is None else self.flops


@dataclass(frozen=True)
class Uncounted:
    """An operator that torch has no FLOP formula for: its calls in a step."""

    name: str
    calls: int


@dataclass(frozen=True)
class WithoutFormula:
    """Operators without a FLOP formula, most calls first, and their share of all operators of a step, 0..1.

    time_share: of the traced time of operators (on a GPU: of the kernels' that they launched); None where they were not
    timed.
    """

    operators: list[Uncounted]
    calls_share: float
    time_share: float | None


@dataclass(frozen=True, kw_only=True)
class Limit(StoredLimit, study.Study):
    """One call of `limit`. FLOPs are 2 x multiply-adds; peaks are those measured here; see `roofs`.

    speeds: of all programs that the search tried, in its order. not_compiled: why none of them is compiled. The others
    are of a step of `uncompiled`. groups: empty where operators were not timed. outside_ms: of a traced step, time on
    the CPU in no counted operator (on a GPU: of device work that no counted operator launched).
    """

    FILE: ClassVar[str] = FILE
    SCHEMA: ClassVar[int] = SCHEMA

    precision: str
    forward_flops_per_image: PositiveInt
    flops_per_step: PositiveInt
    bytes_per_step: PositiveInt
    speeds: Annotated[list[TrainingSpeed], Meta(min_length=1)]
    not_compiled: str | None
    groups: list[Group]
    outside_ms: float
    without_formula: WithoutFormula

    def problem(self) -> str | None:
        return (
            "none of its speeds is of an uncompiled program" if all(speed.compiled for speed in self.speeds) else None
        )

    @property
    def fastest(self) -> TrainingSpeed:
        """The limit itself: the fastest of the speeds."""
        return fastest_of(self.speeds)

    @property
    def uncompiled(self) -> TrainingSpeed:
        """The fastest uncompiled program: the one whose operators were counted and traced."""
        return fastest_of([speed for speed in self.speeds if not speed.compiled])

    def roof_at(self, intensity: float) -> float:
        """FLOP/s that the measured peaks allow at so many FLOPs per byte."""
        return min(self.flops_roof, intensity * self.bytes_roof)

    def share_of_roof(self, group: Group) -> float | None:
        """Speed of a `Group` in the trace over its roof, 0..1 (above 1 where data came from caches), or None.

        Under the sloped roof this is bytes/s over the peak's, whatever counts as a FLOP.
        """
        if not (group.work and group.bytes and group.traced_ms):
            return None
        return group.work / (group.traced_ms / 1e3) / self.roof_at(group.work / group.bytes)


def read(logdir: str | Path) -> Limit | None:
    """The `Limit` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Limit, logdir)


def show(limit: Limit, to: "Console") -> None:
    """Print a `Limit` on a console."""
    from rich.markup import escape
    from rich.text import Text

    to.print(
        f"\n[bold]{escape(limit.setup.model)}[/], {limit.setup.image_size} px, {limit.precision}, on "
        f"[bold]{escape(limit.setup.device)}[/] ({limit.environment.cores} CPU cores), torch "
        f"{escape(limit.environment.torch)}; one batch on the device, no input pipeline\n"
    )
    to.print(facts_table(limit))
    to.print()
    to.print(speeds_table(limit))
    to.print()
    if limit.groups:
        to.print(groups_table(limit))
        to.print()
    fastest = limit.fastest.samples_per_second
    to.print(
        f"[bold]The limit is {fastest.median:.1f} images/s ({limit.fastest.kind}, batch {limit.batch_size})[/], its "
        f"windows {min(fastest.windows):.1f} to {max(fastest.windows):.1f}: the fastest program found, so no input "
        "pipeline can make this model train faster here at this precision."
    )
    if sentence := memory_bound(limit):
        to.print(sentence)
    rates = [limit.peak_flops[0], limit.peak_bytes[0], *(speed.samples_per_second for speed in limit.speeds)]
    study.print_unsteady([rate.windows for rate in rates], to)
    if limit.not_compiled:
        to.print(Text(f"Not compiled: {limit.not_compiled}.", "yellow"))
    study.print_notes(limit.notes, to)
    to.print(Text(_legend(limit), "dim"))


def facts_table(limit: Limit) -> "Table":
    """The measured peaks, and what a step computes and moves."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("quantity", "value", "remark"):
        table.add_column(header, overflow="fold")
    flops, moved = limit.peak_flops[0], limit.peak_bytes[0]
    step, image = limit.flops_per_step, limit.forward_flops_per_image
    least = limit.least_bytes(limit.uncompiled.batch_size, limit.precision)
    at_least = (
        ()
        if least is None
        else (
            (
                "bytes it must move at least",
                rate_text(least, "B"),
                f"{step / least:.3g} FLOPs per byte; {least / limit.bytes_per_step:.0%} of what it moves uncompiled",
            ),
        )
    )
    for row in (
        ("measured peak, computing", rate_text(flops.median, "FLOP/s"), f"{flops.what}, ±{_half_range(flops):.0%}"),
        ("measured peak, memory", rate_text(moved.median, "B/s"), f"{moved.what}, ±{_half_range(moved):.0%}"),
        ("forward, per image", rate_text(image, "FLOP"), f"{image / 2e9:.4g} G multiply-adds"),
        (
            f"a training step, batch {limit.uncompiled.batch_size}",
            rate_text(step, "FLOP"),
            f"{step / limit.uncompiled.batch_size / image:.2f} x forward",
        ),
        (
            "bytes it moves, uncompiled",
            rate_text(limit.bytes_per_step, "B"),
            f"{step / limit.bytes_per_step:.3g} FLOPs per byte; the peaks balance at "
            f"{limit.flops_roof / limit.bytes_roof:.3g}",
        ),
        *at_least,
    ):
        table.add_row(*row)
    return table


def speeds_table(limit: Limit) -> "Table":
    """How fast the model trains on one batch on the device: the programs that the search tried, in its order."""
    shares = ["% of arithmetic peak", "% of memory roof", "% of peak bytes/s"]
    table = plain_table("program", ["batch", "images/s", "vs the limit", "step ms", *shares])
    for speed in limit.speeds:
        table.add_row(
            speed.kind,
            str(speed.batch_size),
            f"{speed.samples_per_second.median:.1f}",
            "1.00x" if speed is limit.fastest else _ratio(speed, limit.fastest),
            f"{speed.step_ms.median:.1f}",
            f"{speed.mfu:.1%}",
            share_text(speed.share_of_memory_roof),
            share_text(speed.bytes_per_second and speed.bytes_per_second / limit.bytes_roof, 0),
        )
    return table


def memory_bound(limit: Limit) -> str | None:
    """What a low MFU means where memory limits the uncompiled step, in sentences; None where arithmetic does."""
    speed, intensity = limit.uncompiled, limit.flops_per_step / limit.bytes_per_step
    highest = intensity * limit.bytes_roof / limit.flops_roof
    if highest >= 1 or speed.bytes_per_second is None:
        return None
    fastest, roof = limit.fastest, ""
    if fastest.share_of_memory_roof is not None:
        which = "arithmetic" if fastest.mfu > fastest.share_of_memory_roof else "memory"
        roof = (
            f" The fastest program reaches {fastest.mfu:.1%} of the measured arithmetic peak and "
            f"{fastest.share_of_memory_roof:.1%} of the memory roof: the larger, {which}, says how much is left."
        )
    return (
        f"Memory-bound by the roofline: at {intensity:.3g} FLOPs per byte, memory at its measured peak allows at most "
        f"{highest:.0%} of the measured arithmetic peak, so a low share is to be expected. Uncompiled it is "
        f"{speed.mfu:.1%}, at {speed.bytes_per_second / limit.bytes_roof:.0%} of the measured peak bytes/s; only "
        f"moving fewer bytes (fused operators, lower precision) raises that bound.{roof}"
    )


def groups_table(limit: Limit) -> "Table":
    """The operators of a step by kind: what they compute and move, their time, and how near their roof they are."""
    table = plain_table("operators of a step", ["calls", "GFLOP", "MB", "FLOPs per byte", "ms", "time", "of its roof"])
    step_ms = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group in sorted(limit.groups, key=lambda group: -group.traced_ms):
        share = limit.share_of_roof(group)
        table.add_row(
            group.name,
            str(group.calls),
            "no formula" if group.flops is None else f"{group.flops / 1e9:.2f}",
            f"{group.bytes / 1e6:.1f}",
            f"{group.flops / group.bytes:.3g}" if group.flops and group.bytes else "-",
            f"{group.traced_ms:.1f}",
            _share(group.traced_ms, step_ms),
            share_text(share, 0),
        )
    table.add_row("other", "", "", "", "", f"{limit.outside_ms:.1f}", _share(limit.outside_ms, step_ms), "")
    return table


def without_formula(limit: Limit) -> str:
    """Which operators torch has no FLOP formula for, and their share of all, in a sentence."""
    left_out = limit.without_formula
    names = [f"{operator.name.removeprefix('aten::')} {operator.calls}" for operator in left_out.operators]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    share = f"{left_out.calls_share:.0%} of the operators' calls"
    if left_out.time_share is not None:
        share += f", {left_out.time_share:.0%} of their time"
    return f"Without a FLOP formula: {share}: {', '.join(names[:MOST_NAMED])}{more}."


def rate_text(rate: float, unit: str) -> str:
    """A rate per second, or an amount, with a prefix: "85.3 GFLOP/s"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= scale * 0.9995:  # three digits of it are 1
            return f"{rate / scale:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


def _legend(limit: Limit) -> str:
    return (
        "FLOPs: 2 x multiply-adds, counted from shapes by torch.utils.flop_counter. peaks: measured here, by large "
        f"matrix products and copies. {without_formula(limit)}\n"
        "% of arithmetic peak: the model's FLOPs per second over the measured peak (MFU). % of memory roof: bytes that "
        "a step must move at least, per second, over the measured peak. % of peak bytes/s: what its operators move; of "
        "a compiled program by Inductor's count. Above 100%: served from caches.\n"
        "vs the limit: times as fast, and the 95% interval from the windows of one run each, which says nothing of how "
        "runs differ; ~, grey: no measurable difference.\n"
        "ms, time: of a traced step, uncompiled. of its roof: speed over what the measured peaks allow at its FLOPs "
        "per byte; without a formula, bytes/s over their peak."
    )


def _half_range(rates: Peak | Throughput) -> float:
    """Half the range of the windows over their median."""
    return (max(rates.windows) - min(rates.windows)) / 2 / rates.median


def _ratio(speed: TrainingSpeed, other: TrainingSpeed) -> str:
    """Their `statistics.Ratio`."""
    return study.ratio_cell(statistics.of_windows(speed.samples_per_second.windows, other.samples_per_second.windows))


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def figure(limit: Limit) -> "Figure":
    """A matplotlib `Figure`: the measured roofs, a point for each group, its area by time, and one for the step."""
    import numpy as np
    from matplotlib.collections import PathCollection  # half a second to import
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 5), layout="constrained")
    axes = drawn.subplots()
    groups = [group for group in limit.groups if limit.share_of_roof(group)]
    ridge = limit.flops_roof / limit.bytes_roof
    points = [(group.work / group.bytes, group.work / group.traced_ms * 1e3) for group in groups]
    low, high = min([ridge, *(x for x, _ in points)]) / 4, max([ridge, *(x for x, _ in points)]) * 8
    edge = np.array([low, ridge, high])
    axes.loglog(
        edge, np.minimum(edge * limit.bytes_roof, limit.flops_roof), color=GREY, linewidth=1.5,
        label=f"measured roofs: {rate_text(limit.bytes_roof, 'B/s')}, {rate_text(limit.flops_roof, 'FLOP/s')}",
    )  # fmt: skip
    step_ms = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group, (x, y) in zip(groups, points, strict=True):
        colour = GREY if COLOURS[group.name] == "#000000" else COLOURS[group.name]
        share = group.traced_ms / step_ms
        axes.scatter(
            x, y, s=30 + 900 * share, facecolors="none" if group.flops is None else colour, edgecolors=colour,
            linewidths=1.8, alpha=0.85, zorder=3,
            label=f"{group.name}, {share:.0%} of the time{' *' if group.flops is None else ''}",
        )  # fmt: skip
    stars = [(limit.uncompiled, GREY, 380)]
    if limit.fastest.compiled:
        stars.append((limit.fastest, SPEED, 150))  # smaller: where they meet, both are seen
    for speed, colour, size in stars:
        axes.scatter(
            limit.flops_per_step / limit.bytes_per_step, speed.flops_per_second, marker="*", s=size, color=colour,
            edgecolors=GREY, linewidths=0.7, zorder=4,
            label=f"the whole step, timed{' **' if speed.compiled else ''}:\n{speed.kind}, batch {speed.batch_size}"
            f"{of_roofs(speed)}",
        )  # fmt: skip
    axes.set_xlabel("FLOPs per byte of the operators' tensors", color=GREY, fontsize=9)
    axes.set_ylabel("FLOP/s", color=GREY, fontsize=9)
    setup = limit.setup
    styled(axes, f"{setup.model}, {setup.image_size} px, {limit.precision}, {setup.device}")
    legend = axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([50])
    remarks = []
    if any(group.flops is None for group in groups):
        remarks.append(
            "* no FLOP formula: drawn with one FLOP for each element written, so only the distance to the sloped roof "
            "(bytes/s) means something"
        )
    if limit.fastest.compiled:
        remarks.append("** fused, it moves fewer bytes than are counted, so its true place is further right")
    drawn.supxlabel("\n".join(remarks), fontsize=8, color=GREY)
    return drawn


def of_roofs(speed: TrainingSpeed) -> str:
    """How near the measured peaks a program is, as more lines of a label; "" where the least bytes are not known."""
    if speed.share_of_memory_roof is None:
        return ""
    roof = share_text(speed.share_of_memory_roof)
    return f"\n{speed.mfu:.1%} of measured arithmetic peak,\n{roof} of measured memory roof"
