"""`explain`: one trace at first sight, two side by side, the ranks of one training, or a folder of runs."""

import argparse
import gc
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from walkthrough.advice import page_of, ranks_in, report_of
from walkthrough.results.environment import in_clone
from walkthrough.results.errors import InputError, printable, size

if TYPE_CHECKING:
    from walkthrough.results.result import Result

Report = dict[str, Any]


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
    parser.add_argument("--all", action="store_true", help="print the tables too: kernels, copies, memory, …")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page instead: for one trace"
    )
    parser.add_argument(
        "--max-size",
        type=size,
        metavar="SIZE",
        help="refuse a trace of more JSON than this once decompressed, such as 8GB (default: 4GiB)",
    )


class Output(NamedTuple):
    """What is printed: one JSON object, or a text with all tables or a page's place. max_size: of a trace, in bytes.

    more: see `text.text`.
    """

    as_json: bool = False
    everything: bool = False
    html: Path | None = None
    max_size: int | None = None
    more: str = ""


def run(args: argparse.Namespace) -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError."""
    if len(args.path) > 2:
        raise InputError(f"{len(args.path)} paths given: name one trace or folder, or two to see what changed")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread per core, which nothing here needs
    gc.set_threshold(100_000)  # to import numpy makes many objects and no garbage
    output = Output(args.json, args.all, args.html, args.max_size)
    try:
        if len(args.path) == 2:
            _print_change(args.path, output)
        else:
            _print_path(args.path[0], output)
    except PermissionError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    return 0


def print_traces(traces: Mapping[int | None, Path], output: Output) -> None:
    """Explain the traces of one training, by rank: one by itself, several as ranks. Raises InputError."""
    ranks = {rank: path for rank, path in traces.items() if rank is not None}
    if len(ranks) > 1:
        _print_ranks(ranks, output)
    else:
        _print_newest(list(traces.values()), output)


def traces_at(path: Path) -> list[Path]:
    """The trace files at a path: the path itself, or a folder's of training, newest first. InputError if none."""
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path} does not exist: name a trace, or a folder with one; {_how_to_get(path)}")
        return [path]
    from walkthrough.results.folder import of_training, traces_in

    traces = traces_in(path)
    if not traces:
        below = sorted({trace.parent.name for trace in path.glob("*/*.trace.json*")})
        fix = f"; its folders do: {', '.join(below[:6])}" if below else f" (*.pt.trace.json.gz): {_how_to_get(path)}"
        raise InputError(f"{path} holds no trace itself{fix}")
    return of_training(traces)


def _how_to_get(path: Path) -> str:
    """Which command makes or fetches traces, for a path without one."""
    if "samples" in path.parts:
        folder = Path(*path.parts[: path.parts.index("samples") + 1])
        return f"`walkthrough samples {shlex.quote(str(folder))}` fetches them"
    return "`make tour` fills logs/" if in_clone() else "`walkthrough samples` fetches others' traces"


def _print_path(path: Path, output: Output) -> None:
    """A trace, or what a folder holds: recorded runs, the ranks of one training, or traces, of which the newest."""
    if not path.is_dir():
        return _print_newest(traces_at(path), output)
    if runs := _recorded_runs(path):
        _one_trace_only(output)
        from walkthrough.compare.predictions import explain_runs

        return explain_runs(runs, path, output.as_json, output.max_size)
    from walkthrough.results.folder import traces_in

    training = traces_at(path)
    if left_out := len(traces_in(path)) - len(training):
        count = f"{left_out} trace{'s' * (left_out > 1)}"
        _warn(f"{path}: traces of training are shown, by their names; {count} of other stages are left out")
    if len(ranks := ranks_in(path)) > 1:
        return _print_ranks(ranks, output)
    if len(training) > 1:
        _warn(f"{path} holds {len(training)} traces, which name no ranks: the newest is read")
    return _print_newest(training, output)


def _recorded_runs(path: Path) -> "dict[Path, list[Result]]":
    """Results by folder: those in `path` itself, else those in each of its folders."""
    from walkthrough.results.result import read_results

    folders = [path, *sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))]
    runs = {}
    for folder in folders:
        runs[folder], problems = read_results(folder)
        for problem in problems if not runs[folder] else ():  # else `explain_runs` names them
            _warn(problem)
    return {path: runs[path]} if runs[path] else {folder: results for folder, results in runs.items() if results}


def _print_newest(traces: Sequence[Path], output: Output) -> None:
    if output.html:
        from walkthrough.explain.html import write_page

        write_page(_newest(traces, output.max_size, page_of), output.html)
        return print(f"written: {printable(output.html)}")
    report = _newest(traces, output.max_size)
    _show(output, report, lambda of, *screen: of.text(report, output.everything, *screen, output.more))


def _one_trace_only(output: Output) -> None:
    if output.html:
        raise InputError("--html is for one trace: name one")


def _print_change(paths: Sequence[Path], output: Output) -> None:
    _one_trace_only(output)
    reports = before, after = [_newest(traces_at(path), output.max_size) for path in paths]
    from walkthrough.advice.comparison import change

    for report in reports:
        report["samples_per_step"] = report["samples_per_step"] or _batch_size(Path(report["file"]))
    changed = change(before, after)
    both = {"before": before, "after": after} | changed
    _show(output, both, lambda of, *screen: of.change_text(before, after, changed, *screen))


def _batch_size(trace: Path) -> int | None:
    """Samples per step, by the result in the trace's folder; None where none is of that trace."""
    from walkthrough.results.result import FILE as RESULT_FILE
    from walkthrough.results.result import read_result

    try:
        result = read_result(trace.parent / RESULT_FILE)
    except InputError:
        return None
    return result.batch_size if result.trace == trace.name else None


def _print_ranks(ranks: Mapping[int, Path], output: Output) -> None:
    _one_trace_only(output)
    reports, problem = {}, ""
    for rank, path in ranks.items():
        try:
            report = _report(path, output.max_size)
        except InputError as error:
            problem = f"rank {rank} is left out: {error}"
        else:
            if not report["partial"]:
                reports[rank] = report
                continue
            problem = f"rank {rank} is left out: a part of its trace is missing"
        _warn(problem)
    if not reports:
        raise InputError(problem)
    from walkthrough.advice import comparison

    compared = comparison.ranks(reports)
    step_us = [report["steps"]["mean_us"] for report in reports.values()]
    spread = {"min": min(step_us), "mean": sum(step_us) / len(step_us), "max": max(step_us)}
    rows = [report | {"rank": rank} for rank, report in reports.items()]
    value = {"ranks": rows, "mean_step_us": spread, "compared": compared}
    _show(output, value, lambda of, *screen: of.ranks_text(reports, compared, *screen))


def _newest(traces: Sequence[Path], max_size: int | None, of: Callable[..., Report] = report_of) -> Report:
    """The report of the first of these traces that can be read; a line on stderr for each before it."""
    for path in traces[:-1]:
        try:
            return _report(path, max_size, of)
        except InputError as error:
            _warn(f"{error}; the next newest trace is read")
    return _report(traces[-1], max_size, of)


def _report(path: Path, max_size: int | None, of: Callable[..., Report] = report_of) -> Report:
    """The report of a trace, its warnings on stderr."""
    report = of(path, max_size)
    for line in report["warnings"]:
        _warn(line)
    return report


def _warn(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _show(output: Output, value: object, text_of: Callable[..., str]) -> None:
    """Print an object as JSON, or else as a text. text_of: called with the module of texts, a width and a colour."""
    if output.as_json:
        return print(json.dumps(value, indent=2, allow_nan=False))
    from walkthrough.explain import text
    from walkthrough.terminal import print_text, screen

    return print_text(text_of(text, *screen()))
