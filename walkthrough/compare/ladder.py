"""The ladder's table, what it amounts to in words, the published ladder next to it, and the command `compare`."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from walkthrough.compare import roofs
from walkthrough.compare.roofs import Limit
from walkthrough.compare.rounds import (
    Comparison,
    GpuUse,
    Row,
    comparisons,
    gpu_use,
    half_spread,
    is_first_step,
    ran_apart,
    rounds_compared,
    spread,
)
from walkthrough.compare.statistics import Ratio, ratio
from walkthrough.compare.table import Cell, Table
from walkthrough.results.environment import ROOT, project_folder
from walkthrough.results.errors import InputError, folder, printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

UNSTEADY = 0.25  # half the spread of a step's windows over their median: beyond it intervals are wide

# The columns. A terminal that is too narrow for all groups prints a table for each group, or several.
GAINS = ("vs step\nbefore", "vs\nbaseline")
SPEED = ("images/s", *GAINS)
LIMIT = ("% of\nlimit",)
ROOFS = ("% of arithmetic\npeak", "% of memory\nroof")
COST = ("batch", "step\nms", "window\n±", "memory\nMB", "batch\nMB")
BUSY = "GPU\nbusy"
TEMPLATES = dict.fromkeys((*GAINS, "batch", "windows", "rounds", "original"), "{}")
TEMPLATES |= dict.fromkeys(("images/s", "step\nms", "batch\nMB"), "{:.1f}") | {"memory\nMB": "{:.0f}"}
TEMPLATES |= dict.fromkeys(("window\n±", *LIMIT), "{:.0%}") | dict.fromkeys(ROOFS, "{:.1%}")
# A narrow page cuts off what is last.
PAGE = ("batch", *SPEED, "windows", "rounds", "step\nms", "memory\nMB", *LIMIT)

WINDOWS = "the windows, without a tenth at either end"  # what `spread` is of
NO_EFFECT = (
    "Where a row says what the step needs, its change has no effect on this device: it ran once, for its trace, and "
    "the next step is compared with the last one that has an effect."
)
PAIRS = "A ratio is the mean over pairs of runs, one per round, not the quotient of the medians above."
OF_ROOFS = (
    "% of arithmetic peak, % of memory roof: FLOPs of a step, and bytes that it must move at least, per second, as a "
    "share of the measured peaks (`limit`); -: not measured in the row's precision.\n"
)
OF_TRACES = "GPU busy, {}: of the traced steps and of their kernels' time; `explain` shows more.\n"
NO_GPU = "No GPU, so no columns on how busy it was and its Tensor Cores; `explain` shows where the time went.\n"


@dataclass(frozen=True)
class Published:
    """One row of the published ladder; relative: times the baseline's images/s."""

    batch_size: int
    memory_gb: float
    step_ms: float
    images_per_second: float
    relative: float


# The walkthrough that this course is based on ("PyTorch Training Optimizations using Memory Analysis"), not measured by
# us: CIFAR-10 at 224 px, SGD, one run each, no spread, from steps under the profiler.
DEVICE = "Quadro RTX 4000"
SOURCE = (  # a later version of the write-up, which names device, model and size
    "https://github.com/alishafique3/ML_and_DL_Made_Easy/tree/7432741e95c439d53a5235d49160c28245ca0d90/Deep_Learning/"
    "PyTorch%20Training%20Optimizations%20using%20Memory%20Analysis"
)
MODEL = "mobilenet_v2"  # as `--model` names it
PUBLISHED = {
    "00_baseline": Published(32, 2.51, 117.1, 273.5, 1.00),
    "01_amp": Published(32, 1.32, 81.1, 395.1, 1.44),
    "02_bigger_batch": Published(128, 4.95, 232.1, 551.5, 2.01),
    "03_reduced_h2d_copy": Published(128, 4.95, 202.6, 631.63, 2.30),
    "04_multiprocess_loading": Published(128, 4.95, 145.8, 877.84, 3.20),
    "05_pinned_memory": Published(128, 4.95, 92.6, 1381.6, 5.05),
}
RELATIVE = {step: row.relative for step, row in PUBLISHED.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    logs = project_folder("logs")
    parser.add_argument(
        "logdir", nargs="?", type=folder, default=logs, metavar="LOGDIR", help="default: logs/ of this project"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw what each step gains: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Print the comparison of the runs in `args.logdir`, as a table or as JSON; the exit code.

    Raises InputError for a folder without results, and for a file that cannot be drawn.
    """
    compared, problems = comparisons(args.logdir)
    for problem in problems:
        _warn(f"skipped: {problem}")
    if foreign := of_other_versions(compared):
        _warn(
            f"{', '.join(foreign)}: of another version of the steps, with numbers that are used twice here; remove "
            "their folders, or use another --logdir"
        )
    if len(compared) > 1:
        _warn(f"{len(compared)} ladders: the runs differ in device, data, model or image size")
    if args.plot:
        from walkthrough.compare.figures import plot

        if len(compared) > 1:
            _warn(f"only the first is drawn, from {compared[0].baseline.device}")
        plot(compared[0], args.plot)
        _warn(f"drawn: {args.plot}")
    if args.json:
        print(json.dumps(comparison(compared, _unless_broken(roofs.read, args.logdir)), indent=2))
        return 0
    from walkthrough.terminal import console

    used, problems = gpu_use(args.logdir, compared)
    for problem in problems:
        _warn(f"no figures from a trace: {problem}")
    print_ladders(compared, console(), used, _unless_broken(roofs.read, args.logdir))
    return 0


def _warn(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _unless_broken(read: Callable[[Path], T], logdir: Path) -> T | None:
    """What `read` returns for a folder; None, and a line on stderr, where that is broken."""
    try:
        return read(logdir)
    except InputError as error:
        _warn(f"skipped: {error}")
        return None


def of_other_versions(compared: Sequence[Comparison]) -> list[str]:
    """The steps that are none of `steps/`, but share their number with another step of their ladder."""
    steps = []
    for ladder in compared:
        numbers = Counter(short_name(row.result.step) for row in ladder.rows)
        steps += [step for step in (row.result.step for row in ladder.rows) if numbers[short_name(step)] > 1]
    return [printable(step) for step in steps if not (ROOT / "steps" / f"{step}.py").exists()]


def comparison(compared: Sequence[Comparison], limit: Limit | None = None) -> dict[str, Any]:
    """The object that `compare --json` prints, from `comparisons`. warnings: those of all ladders.

    Rows of another ladder than the first have null for `relative`, `relative_low`, `relative_high` and `resolved`:
    their setup is not the baseline's. limit: without, and for rows of another setup, the shares of peaks are null.
    """
    rows = []
    for number, ladder in enumerate(compared):
        known = limit if limit and limit.setup.matches(ladder.baseline.setup) else None
        for row in ladder.rows:
            relative = row.relative if number == 0 else None
            rows.append(
                row.result.as_json()
                | {
                    "relative": relative and relative.ratio,
                    "relative_low": relative and relative.low,
                    "relative_high": relative and relative.high,
                    "resolved": relative and relative.resolved,
                    "acts": row.acts,
                    "needs": row.result.needs,
                }
                | (known.shares(row.result) if known else roofs.NO_SHARES)
            )
    warnings = [warning for ladder in compared for warning in warnings_of(ladder)]
    return {"baseline": compared[0].baseline.step, "rows": rows, "warnings": warnings}


def ladder_table(
    ladder: Comparison,
    limit: Limit | None = None,
    used: Mapping[str, GpuUse] | None = None,
    numbered: Sequence[str] = (),
) -> Table:
    """Every column of a ladder, of which terminals and pages show some.

    limit: of this ladder's setup; see `roofs`. used: {step: `GpuUse`} from `gpu_use`; steps without have "-".
    numbered: notes that rows have marks of, counted from 1. Steps that were not run have rows in their places.
    """
    units = units_column(used or {})

    def cells(row: Row) -> dict[str, Cell]:
        result, known = row.result, RELATIVE.get(row.result.step)
        use = (used or {}).get(result.step)
        low, high = spread(result)
        marks = ",".join(str(number) for number, note in enumerate(numbered, start=1) if note in result.notes)
        arithmetic, memory = (limit.shares(result) if limit else roofs.NO_SHARES).values()
        return {
            "step": printable(result.step) + (f" [{marks}]" if marks else ""),
            "batch": result.batch_size,
            "images/s": result.samples_per_second.median,
            GAINS[0]: row.gain or row.needs,
            GAINS[1]: "1.00x" if result is ladder.baseline else row.relative if row.acts else "",
            "windows": f"{low:.1f} to {high:.1f}",
            "rounds": len(row.rounds),
            "step\nms": result.ms_per_step,
            "window\n±": half_spread(result),
            "memory\nMB": result.peak_memory_bytes.allocated / 1e6,
            "batch\nMB": result.batch_bytes / 1e6,
            LIMIT[0]: limit and limit.share_of_limit(result),
            ROOFS[0]: arithmetic,
            ROOFS[1]: memory,
            BUSY: use and use.utilization,
            units: use and use.tensor_cores,
            "original": f"{known:.2f}x" if known else "",
        }

    rows = [(row.result.step, cells(row)) for row in ladder.rows]
    rows += [(row.step, {"step": printable(row.step, 80), "images/s": "not run"}) for row in ladder.missing]
    rows = [row for _, row in sorted(rows, key=lambda named: named[0])]
    return Table("ladder", rows, templates=TEMPLATES | dict.fromkeys((BUSY, units), "{:.0%}"))


def units_column(used: Mapping[str, GpuUse]) -> str:
    """The column of what the GPU's maker calls Tensor Cores."""
    return next((use.matrix_units for use in used.values()), "Tensor Cores").replace(" ", "\n")


def page_table(
    ladder: Comparison, limit: Limit | None = None, steps: Collection[str] | None = None, gains: bool = True
) -> str:
    """A ladder as a Markdown table. limit: see `ladder_table`.

    steps: only these rows, by default all. gains: with the columns that compare a step with others.
    """
    table = ladder_table(replace(ladder, missing=()), limit)
    rows = [row for row in table.rows if steps is None or row["step"] in steps]
    shown = [column for column in PAGE if (limit or column not in LIMIT) and (gains or column not in GAINS)]
    return Table(table.name, rows, templates=table.templates).markdown(["step", *shown], as_code=["step"])


def print_ladders(
    ladders: Sequence[Comparison],
    to: "Console",
    used: Mapping[str, GpuUse] | None = None,
    limit: Limit | None = None,
) -> None:
    """Print every ladder with its notes to the console `to`.

    used, limit: see `ladder_table`; the limit is shown with the ladders of its setup.
    """
    if len(ladders) > 1:
        to.print(
            f"\nThese runs make {len(ladders)} ladders: they differ in device, data, model or image size. "
            "Each has a table of its own, and no figure compares one with another."
        )
    for ladder in ladders:
        its_limit = limit if limit and limit.setup.matches(ladder.baseline.setup) else None
        _print_ladder(ladder, to, used or {}, its_limit)


def _print_ladder(ladder: Comparison, to: "Console", used: Mapping[str, GpuUse], limit: Limit | None) -> None:
    from rich.markup import escape
    from rich.text import Text

    base, notes = ladder.baseline, notes_of(ladder)
    everywhere = [note for note in notes if all(note in row.result.notes for row in ladder.rows)]
    numbered = [note for note in notes if note not in everywhere]
    table = ladder_table(ladder, limit, used, numbered)
    has_roofs = any(row.get(column) is not None for row in table.rows for column in ROOFS)
    has_traces = any(row.result.step in used for row in ladder.rows)
    groups = [SPEED, *([LIMIT] if limit else []), *([ROOFS] if has_roofs else [])]
    groups += [(*COST, "original") if beside_original(ladder) else COST]
    groups += [(BUSY, units_column(used))] if has_traces else []
    to.print(
        f"\n[bold]{escape(printable(base.model))}[/], {escape(printable(base.data_label))}, {base.size_label}, on "
        f"[bold]{escape(printable(base.device))}[/] ({base.environment.cores} CPU cores), "
        f"torch {escape(printable(base.environment.torch))}\n"
    )
    for columns in _fitting(table, groups, to):
        to.print(table.rich(columns))
        to.print()
    for warning in warnings_of(ladder):
        to.print(Text(warning, "red"))
    to.print(Text(summary(ladder), "bold"))
    if not is_first_step(base):
        to.print(Text(f"No run of 00_baseline is here: everything is relative to {printable(base.step)}.", "yellow"))
    remarks = [f"All: {printable(note)}." for note in everywhere]
    remarks += [f"[{number}] {printable(note)}" for number, note in enumerate(numbered, start=1)]
    for remark in (*remarks, *(f"{printable(not_run)}." for not_run in ladder.missing)):
        to.print(Text(remark, "yellow"))
    to.print(Text(_legend(ladder, limit, has_roofs, units_column(used) if has_traces else None), "dim"))


def _fitting(table: Table, groups: Iterable[Sequence[str]], to: "Console") -> list[list[str]]:
    """The columns of as few tables as the console's width allows, each of one group or more, in order."""
    tables: list[list[str]] = []
    for group in groups:
        joined = [*(tables[-1] if tables else ["step"]), *group]
        width = to.measure(table.rich(joined), options=to.options.update(max_width=1000)).maximum
        if tables and width <= to.width:
            tables[-1] = joined
        else:
            tables.append(["step", *group])
    return tables


def beside_original(ladder: Comparison) -> bool:
    """True for a ladder that is shown next to the published one: of its model, from its baseline on."""
    return is_first_step(ladder.baseline) and ladder.baseline.model == MODEL


def _legend(ladder: Comparison, limit: Limit | None, has_roofs: bool, units: str | None) -> str:
    """What the columns are. units: the last one's header, None where no row has a GPU's trace."""
    on_cpu = ladder.baseline.device_type == "cpu"
    memory = "the profiler's peak (weights not in it)" if on_cpu else "the GPU allocator's peak"
    traced = OF_TRACES.format(units.replace("\n", " ")) if units else NO_GPU if on_cpu else ""
    original = f"original: as published for a {DEVICE} at 224 px, against its own baseline; not measured here."
    return (
        f"{intervals(ladder)}\n"
        "images/s: the median timed window, no profiler running; step ms: what a step takes at that speed; window ±: "
        f"half the range of {WINDOWS}. "
        f"memory: {memory}. batch MB: what a batch moves to the device.\n"
        f"{_of_limit(limit) if limit else ''}{OF_ROOFS if has_roofs else ''}{traced}"
        f"{original if beside_original(ladder) else ''}"
    ).rstrip()


def _of_limit(limit: Limit) -> str:
    rough = ", a smoke run" if limit.quick else ""
    return (
        f"% of limit: images/s over those of the model alone, without input pipeline ({limit.fastest.kind}, batch "
        f"{limit.batch_size}, {limit.precision}, {limit.started[:10]}{rough}: `limit`); a row's batch and precision "
        "may differ, and near 100% the windows of both overlap.\n"
    )


def intervals(ladder: Comparison) -> str:
    """How to read the ladder's ratios, and what their intervals are from."""
    (fewest, most), all_act = rounds_compared(ladder), len(ladder.acting) == len(ladder.rows)
    if most == 1:
        source = "of one round's windows, without run-to-run variation: for that, `tour --rounds N`, `record --runs N`"
    elif fewest == most:
        source = f"over {most} rounds, in each of which {'every step' if all_act else 'both steps'} ran"
    elif fewest > 1:
        source = f"over the {fewest} to {most} rounds in which both steps ran"
    else:
        source = (
            f"over the up to {most} rounds in which both steps ran; where there are none, as for a step that was run "
            "again by itself, of the windows of two runs, without run-to-run variation"
        )
    text = (
        f"1.39x (1.31-1.48): times as fast, and the 95 % interval ({source}). ~: no measurable "
        "difference, the interval includes 1; more rounds make it narrower."
    )
    text += f" {PAIRS}" if most > 1 else ""
    return text if all_act else f"{text} {NO_EFFECT}"


def notes_of(ladder: Comparison) -> list[str]:
    """What the runs noted, each note once.

    Without what steps without effect noted on it, where several need the same: their rows say what they need.
    """
    needs = Counter(row.needs for row in ladder.rows)
    rows = [row for row in ladder.rows if row.acts or needs[row.needs] == 1]
    return list(dict.fromkeys(note for row in rows for note in row.result.notes))


def warnings_of(ladder: Comparison) -> list[str]:
    """What makes a ladder's ratios doubtful: a machine that was busy, steps of another time than the others."""
    warnings = []
    if unsteady := [row.result.step for row in ladder.rows if half_spread(row.result) > UNSTEADY]:
        warnings.append(
            f"UNSTEADY: the windows of {_names(unsteady)} differ widely, so something else kept this machine busy. Run "
            "the ladder again, or more rounds."
        )
    if apart := [row.result.step for row in ran_apart(ladder)]:
        warnings.append(
            f"RUN APART: {_names(apart)} ran at another time than the others, so what changed on this machine in "
            "between is in the ratios, too. Run the whole ladder again."
        )
    return warnings


def _names(steps: Iterable[str]) -> str:
    return ", ".join(map(short_name, steps))


def summary(ladder: Comparison) -> str:
    """Where the ladder's top is reached, and which steps are faster or slower than the step before.

    Of one round it says that this is by its windows alone; see also `warnings_of`.
    """
    if len(ladder.rows) == 1:
        return f"Only {printable(ladder.baseline.step)} is here: there is nothing to compare it with."
    later, idle = ladder.acting[1:], [row.result.step for row in ladder.rows[1:] if not row.acts]
    gains = {row.result.step: row.gain for row in later if row.gain and row.gain.resolved}
    faster = _listed("faster", {step: gain for step, gain in gains.items() if gain.ratio > 1})
    slower = _listed("slower", {step: gain for step, gain in gains.items() if gain.ratio < 1})
    which = "; ".join(filter(None, (faster, slower)))
    different, more = "Measurably different from the step before", ""
    if rounds_compared(ladder)[1] == 1:
        different = "Different from the step before beyond the spread of this one round's windows"
        more = " More rounds show how much runs vary: `tour --rounds 5`."
    text = f"{_top(ladder)}. {different}: {len(gains) or 'none'} of {len(later)}{f' ({which})' if which else ''}.{more}"
    if not idle:
        return text
    steps = f"{len(idle)} steps have" if len(idle) > 1 else "1 step has"
    return f"{text} {steps} no effect on this device ({_names(idle)})."


def _top(ladder: Comparison) -> str:
    """The first step that no other is measurably faster than; and the one with the largest ratio, if that is another.

    Only of steps that are measurably faster than the baseline; without any, the one with the largest ratio.
    """
    acting = ladder.acting
    largest = max(acting, key=lambda row: row.relative.ratio)
    if largest is ladder.rows[0]:
        return "No step is faster than the baseline"

    def is_top(row: Row) -> bool:
        return _is_faster(row.relative) and not any(_is_faster(ratio(other.rounds, row.rounds)) for other in acting)

    top = next(filter(is_top, acting), largest)
    text = f"Top of the ladder: {printable(top.result.step)}, {_or_no_difference(top.relative, 'the baseline')}"
    if top is not largest:
        over = _or_no_difference(ratio(largest.rounds, top.rounds), "that")
        text += f"; {printable(largest.result.step)}, with the largest ratio, is {over}"
    return text


def _is_faster(ratio: Ratio) -> bool:
    return ratio.resolved and ratio.ratio > 1


def _or_no_difference(ratio: Ratio, of: str) -> str:
    return f"{ratio} {of}{'' if ratio.resolved else ', no measurable difference'}"


def _listed(word: str, gains: Mapping[str, Ratio]) -> str:
    """ "faster: 02 1.21x, 04 1.30x"; "" for none."""
    names = ", ".join(f"{short_name(step)} {str(gain).partition(' ')[0]}" for step, gain in gains.items())
    return f"{word}: {names}" if names else ""


def short_name(step: str) -> str:
    """A step's number, "02"; its name where it has none."""
    number = step.partition("_")[0]
    return number if number.isdecimal() else printable(step)
