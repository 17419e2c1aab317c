"""`explain`: one trace at first sight, two side by side, the ranks of one training, or a whole ladder."""

import json
from dataclasses import asdict

from common.errors import InputError
from common.trace import source


def explain(args):
    """Run the command with its parsed options (`path`: one or two, `json`, `markdown`, `max_size`); the exit code."""
    if len(args.path) > 2:
        raise InputError(f"{len(args.path)} paths given: name one trace or folder, or two to see what moved")
    if args.markdown and not (len(args.path) == 1 and args.path[0].is_dir() and _recorded(args.path[0])):
        raise InputError("--markdown is for a folder of recorded runs: name one, such as logs")
    if len(args.path) == 2:
        return _change(args)
    [path] = args.path
    if path.is_dir():
        if results := _recorded(path):
            return _ladders(args, path, results)
        ranks = ranks_in(path)
        if len(ranks) > 1:
            return _ranks(args, ranks)
    return _one(args, trace_at(path))


def trace_at(path):
    """The trace file that a path means: itself, or the newest in a run's folder. InputError where there is none."""
    if not path.is_dir():
        return path
    found = source.traces_in(path)
    if not found:
        inside = sorted({each.parent.name for each in path.glob("*/*.trace.json*")})
        hint = f"; its folders do: {', '.join(inside[:6])}" if inside else ": it should hold a *.pt.trace.json.gz"
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
    from common import record

    return record.read_results(path)[0]


def _summary(args, path):
    pieces = source.Pieces(path, args.max_size)  # is being unpacked while numpy is imported

    from common.trace.summary import summarize

    return summarize(pieces)


def _one(args, path):
    summary = _summary(args, path)
    if args.json:
        return _print_json(summary.as_json())
    from common.explain_view import console, print_summary

    print_summary(summary, console())
    return 0


def _change(args):
    before, after = (_summary(args, trace_at(path)) for path in args.path)
    if args.json:
        changes = [{"name": name, "before_us": old, "after_us": new} for name, old, new in moved(before, after)]
        return _print_json({"before": before.as_json(), "after": after.as_json(), "moved": changes})
    from common.explain_view import console, print_change

    print_change(before, after, moved(before, after), console())
    return 0


def _ranks(args, ranks):
    summaries = {rank: _summary(args, path) for rank, path in ranks.items()}
    if args.json:
        step_us = [summary.steps.mean_us for summary in summaries.values()]
        spread = {"min": min(step_us), "mean": sum(step_us) / len(step_us), "max": max(step_us)}
        rows = [{"rank": rank, **summary.as_json()} for rank, summary in summaries.items()]
        return _print_json({"ranks": rows, "mean_step_us": spread})
    from common.explain_view import console, print_ranks

    print_ranks(summaries, console())
    return 0


def _ladders(args, logdir, results):
    from common import explain_view as view
    from common.predicted import predictions

    found, problems = predictions(logdir, results, args.max_size)
    for problem in problems:
        view.warn(problem)
    if args.json:
        rows = [
            {
                "step": row.step,
                "before": row.before,
                "predicted_gain": row.advice and row.advice.predicted_gain,
                "why": row.advice and row.advice.why,
                "measured_gain": asdict(row.gain),
                "outcome": row.outcome,
            }
            for _, rows in found
            for row in rows
        ]
        return _print_json({"ladder": rows})
    if args.markdown:
        print(view.markdown(found))
    else:
        view.print_predictions(found, view.console())
    return 0


def _print_json(value):
    print(json.dumps(value, indent=2, allow_nan=False))
    return 0
