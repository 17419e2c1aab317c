"""`explain`: one trace at first sight, two side by side, the ranks of one training, or a whole ladder."""

import json
import sys

from common.errors import InputError, printable
from common.trace import source


def explain(args, explain_runs):
    """Run the command with its parsed options (`path`: one or two, `json`, `markdown`, `max_size`); the exit code.

    explain_runs: what to do with a folder of recorded runs, `ladder.predictions.explain_runs`.
    """
    if len(args.path) > 2:
        raise InputError(f"{len(args.path)} paths given: name one trace or folder, or two to see what moved")
    try:
        return _explain(args, explain_runs, *args.path)
    except PermissionError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _explain(args, explain_runs, path, another=None):
    recorded = _recorded(path) if path.is_dir() and not another else {}
    if args.markdown and not recorded:
        raise InputError("--markdown is for a folder of recorded runs: name one, such as logs")
    if another:
        return _change(args)
    if recorded:
        return explain_runs(recorded, path, args.json, args.markdown, args.max_size)
    if path.is_dir():
        ranks = ranks_in(path)
        if len(ranks) > 1:
            return _ranks(args, ranks)
        count = len(source.traces_in(path))
        if count > 1:
            _warn(f"{path} holds {count} traces, which name no ranks: this is the newest")
    return _one(args, trace_at(path))


def trace_at(path):
    """The trace file that a path means: itself, or the newest in a run's folder. InputError where there is none."""
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path} does not exist: name a trace, or a folder with one; `make tour` fills logs/")
        return path
    found = source.traces_in(path)
    if not found:
        inside = sorted({each.parent.name for each in path.glob("*/*.trace.json*")})
        hint = (
            f"; its folders do: {', '.join(inside[:6])}" if inside else " (*.pt.trace.json.gz): `make tour` makes some"
        )
        raise InputError(f"{path} holds no trace itself{hint}")
    return found[0]


def ranks_in(folder):
    """The newest trace of each rank in a folder: {rank: path}; {} where the traces name no ranks."""
    from common.trace import reader

    found = source.traces_in(folder)
    ranks = {}
    if len(found) > 1:
        for path in found:
            rank = reader.rank_of(path)
            if rank is not None:
                ranks.setdefault(rank, path)
    return dict(sorted(ranks.items()))


def moved(before, after):
    """What differs between two summaries, µs of a mean step: [(name, before, after)], the largest change first."""
    from common.trace.steps import ROLES

    parts = [(role, before.steps.mean_breakdown_us[role], after.steps.mean_breakdown_us[role]) for role in ROLES]
    return sorted(parts, key=lambda part: -abs(part[2] - part[1]))


def _recorded(path):
    """Results by the folder they lie in: `path` itself, else those of its folders that hold runs of several steps."""
    from common import record

    folders = [path, *sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))]
    found = {}
    for folder in folders:
        found[folder], problems = record.read_results(folder)
        for problem in problems:
            _warn(problem)
    return {path: found[path]} if found[path] else {folder: results for folder, results in found.items() if results}


def _summary(args, path):
    pieces = source.Chunks(path, args.max_size)  # is being unpacked while numpy is imported

    from common.trace.summary import summarize

    summary = summarize(pieces)
    for line in summary.trace.warnings:
        _warn(line)
    return summary


def _warn(line):
    print(printable(line), file=sys.stderr)


def _one(args, path):
    summary = _summary(args, path)
    if args.json:
        return _print_json(summary.as_json())
    from common.explain.terminal import console
    from common.explain.view import print_summary

    print_summary(summary, console())
    return 0


def _change(args):
    before, after = (_summary(args, trace_at(path)) for path in args.path)
    if args.json:
        changes = [{"name": name, "before_us": old, "after_us": new} for name, old, new in moved(before, after)]
        return _print_json({"before": before.as_json(), "after": after.as_json(), "moved": changes})
    from common.explain.side_by_side import print_change
    from common.explain.terminal import console

    print_change(before, after, moved(before, after), console(), [_batch(before), _batch(after)])
    return 0


def _batch(summary):
    """Images in a step, by the result beside a trace of this project; None for others."""
    from common import record

    file = summary.trace.file.parent / record.FILE
    try:
        result = record.read_result(file)
    except InputError:
        return None
    return result.batch_size if result.trace == summary.trace.file.name else None


def _ranks(args, ranks):
    summaries, problem = {}, None
    for rank, path in ranks.items():
        try:
            summary = _summary(args, path)
        except InputError as error:
            problem = f"rank {rank} is left out: {error}"
        else:
            if not summary.trace.partial:
                summaries[rank] = summary
                continue
            problem = f"rank {rank} is left out: a part of its trace is missing"
        _warn(problem)
    if not summaries:
        raise InputError(problem)
    if args.json:
        step_us = [summary.steps.mean_us for summary in summaries.values()]
        spread = {"min": min(step_us), "mean": sum(step_us) / len(step_us), "max": max(step_us)}
        rows = [{"rank": rank, **summary.as_json()} for rank, summary in summaries.items()]
        return _print_json({"ranks": rows, "mean_step_us": spread})
    from common.explain.side_by_side import print_ranks
    from common.explain.terminal import console

    print_ranks(summaries, console())
    return 0


def _print_json(value):
    print(json.dumps(value, indent=2, allow_nan=False))
    return 0
