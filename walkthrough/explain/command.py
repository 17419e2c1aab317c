"""`explain`: one trace at first sight, two side by side, the ranks of one training, or a folder of runs."""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from walkthrough.results.errors import InputError, printable, size
from walkthrough.results.folder import of_training, traces_in
from walkthrough.trace.chrome_trace import MAX_SIZE, Chunks

if TYPE_CHECKING:  # numpy and msgspec: imported while the trace is being decompressed
    from walkthrough.advice.summary import Summary
    from walkthrough.results.result import Result

    ExplainRuns = Callable[[dict[Path, list[Result]], Path, bool, int], int]

HELP = "Read any torch.profiler trace: where a step's time goes, why the GPU waits, what to do next."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `explain`."""
    parser.add_argument(
        "path",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a trace, a run's folder, a folder with one trace per rank, or a folder of runs; "
        "two traces: before and after",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--max-size",
        type=size,
        default=MAX_SIZE,
        metavar="SIZE",
        help="refuse a trace of more JSON than this once decompressed, such as 8GB (default: 4GiB)",
    )


def run(args: argparse.Namespace, explain_runs: "ExplainRuns") -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError.

    explain_runs: prints a folder of recorded runs, `ladder.predictions.explain_runs`; called with the results by
    folder, the path, and the options `json` and `max_size`.
    """
    if len(args.path) > 2:
        raise InputError(f"{len(args.path)} paths given: name one trace or folder, or two to see what changed")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread per core, which nothing here needs
    gc.set_threshold(100_000)  # to import numpy makes many objects and no garbage
    try:
        return _explain(args, explain_runs)
    except PermissionError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _explain(args: argparse.Namespace, explain_runs: "ExplainRuns") -> int:
    path = args.path[0]
    two_paths = len(args.path) == 2
    runs = _recorded_runs(path) if path.is_dir() and not two_paths else {}
    if two_paths:
        return _explain_change(args)
    if runs:
        return explain_runs(runs, path, args.json, args.max_size)
    if path.is_dir():
        traces = traces_in(path)
        training = of_training(traces)
        left_out = len(traces) - len(training)
        if left_out:
            count = f"{left_out} trace{'s' * (left_out > 1)}"
            _warn(f"{path}: traces of training are shown, by their names; {count} of other stages are left out")
        ranks = ranks_in(path)
        if len(ranks) > 1:
            return _explain_ranks(args, ranks)
        if len(training) > 1:
            _warn(f"{path} holds {len(training)} traces, which name no ranks: this is the newest")
    return _explain_trace(args, trace_at(path))


def explain_traces(args: argparse.Namespace, traces: dict[int | None, Path]) -> int:
    """Explain the traces of one training, by rank: one by itself, several as ranks. Raises InputError."""
    ranks = {rank: path for rank, path in traces.items() if rank is not None}
    return _explain_ranks(args, ranks) if len(ranks) > 1 else _explain_trace(args, next(iter(traces.values())))


def trace_at(path: Path) -> Path:
    """The trace file at a path: the path itself, or the newest trace of training in a folder. InputError if none."""
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path} does not exist: name a trace, or a folder with one; `make tour` fills logs/")
        return path
    traces = traces_in(path)
    if not traces:
        below = sorted({trace.parent.name for trace in path.glob("*/*.trace.json*")})
        fix = f"; its folders do: {', '.join(below[:6])}" if below else " (*.pt.trace.json.gz): `make tour` makes some"
        raise InputError(f"{path} holds no trace itself{fix}")
    return of_training(traces)[0]


def ranks_in(folder: Path) -> dict[int, Path]:
    """The newest trace of training of each rank in a folder, by rank; {} if the traces name no ranks."""
    from walkthrough.trace import reader

    traces = of_training(traces_in(folder))
    ranks: dict[int, Path] = {}
    if len(traces) > 1:
        for path in traces:
            rank = reader.rank_of(path)
            if rank is not None:
                ranks.setdefault(rank, path)
    return dict(sorted(ranks.items()))


def role_changes(before: "Summary", after: "Summary") -> list[tuple[str, float, float]]:
    """(role, before, after) in µs of the mean typical step, the largest change first."""
    from walkthrough.trace.steps import ROLES

    old, new = before.typical.mean_breakdown_us, after.typical.mean_breakdown_us
    changes = [(role, old[role], new[role]) for role in ROLES]
    return sorted(changes, key=lambda change: -abs(change[2] - change[1]))


def _recorded_runs(path: Path) -> "dict[Path, list[Result]]":
    """Results by folder: those in `path` itself, else those in each of its folders."""
    from walkthrough.results import result as record

    folders = [path, *sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))]
    runs = {}
    for folder in folders:
        runs[folder], problems = record.read_results(folder)
        for problem in problems:
            _warn(problem)
    return {path: runs[path]} if runs[path] else {folder: results for folder, results in runs.items() if results}


def _summary(args: argparse.Namespace, path: Path) -> "Summary":
    chunks = Chunks(path, args.max_size)  # decompresses while numpy is imported

    from walkthrough.advice.summary import summarize

    summary = summarize(chunks)
    for line in summary.analysis.trace.warnings:
        _warn(line)
    return summary


def _warn(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _explain_trace(args: argparse.Namespace, path: Path) -> int:
    summary = _summary(args, path)
    if args.json:
        return _print_json(summary.as_json())
    from walkthrough.explain.view import print_summary
    from walkthrough.terminal import console

    print_summary(summary, console())
    return 0


def _explain_change(args: argparse.Namespace) -> int:
    before, after = (_summary(args, trace_at(path)) for path in args.path)
    changes = role_changes(before, after)
    if args.json:
        rows = [{"name": name, "before_us": old, "after_us": new} for name, old, new in changes]
        return _print_json({"before": before.as_json(), "after": after.as_json(), "moved": rows})
    from walkthrough.explain.side_by_side import print_change
    from walkthrough.terminal import console

    print_change(before, after, changes, console(), (_batch_size(before), _batch_size(after)))
    return 0


def _batch_size(summary: "Summary") -> float | None:
    """Samples per step, as the trace says or the result in its folder; None where neither does."""
    from walkthrough.results import result as record

    trace = summary.analysis.trace
    if trace.recording and trace.recording.samples_per_step:
        return trace.recording.samples_per_step
    try:
        result = record.read_result(trace.file.parent / record.FILE)
    except InputError:
        return None
    return result.batch_size if result.trace == trace.file.name else None


def _explain_ranks(args: argparse.Namespace, ranks: dict[int, Path]) -> int:
    summaries, problem = {}, ""
    for rank, path in ranks.items():
        try:
            summary = _summary(args, path)
        except InputError as error:
            problem = f"rank {rank} is left out: {error}"
        else:
            if not summary.analysis.trace.partial:
                summaries[rank] = summary
                continue
            problem = f"rank {rank} is left out: a part of its trace is missing"
        _warn(problem)
    if not summaries:
        raise InputError(problem)
    if args.json:
        step_us = [summary.analysis.steps.mean_us for summary in summaries.values()]
        spread = {"min": min(step_us), "mean": sum(step_us) / len(step_us), "max": max(step_us)}
        rows = [{"rank": rank, **summary.as_json()} for rank, summary in summaries.items()]
        return _print_json({"ranks": rows, "mean_step_us": spread})
    from walkthrough.explain.side_by_side import print_ranks
    from walkthrough.terminal import console

    print_ranks(summaries, console())
    return 0


def _print_json(value: object) -> int:
    print(json.dumps(value, indent=2, allow_nan=False))
    return 0
