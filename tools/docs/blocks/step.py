"""Blocks about one step: its code, its throughput, and what its trace shows, also next to those of the step before."""

import ast
import difflib
import statistics
from collections.abc import Sequence
from pathlib import Path

from tools.docs import figures
from tools.docs.blocks.page import measured
from tools.docs.blocks.published import published
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import Advice
from walkthrough.advice.verdict import gain_text
from walkthrough.compare import markdown, runner
from walkthrough.compare.markdown import code, escaped
from walkthrough.compare.rounds import Row
from walkthrough.explain.text import sentence
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError
from walkthrough.terminal import counted, size_text, time_text
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.kernels import unit_name

UNSTEADY = 1.5  # times the shortest traced step: a longer one was disturbed
SHOWN = 5  # operators, kernels and allocations that a table lists
ADVICE = 3  # pieces of advice that a chapter lists


def diff(course: Course, before: str, after: str) -> str:
    """What changes from one step's code to the next, docstrings aside."""
    files = {file.stem: file for file in runner.step_files()}
    try:
        old, new = (_code_lines(files[step]) for step in (before, after))
    except KeyError as error:
        raise InputError(f"there is no step {error}") from error
    lines = list(difflib.unified_diff(old, new, f"steps/{before}.py", f"steps/{after}.py", lineterm="", n=1))
    lines = [line for line in lines if not line.startswith("@@")] if len(lines) < 12 else lines
    return "\n".join(["```diff", *lines, "```", "", f"[The whole program](../steps/{after}.py)."])


def number(course: Course, step: str) -> str:
    """What a step gained over the last one with an effect: the recorded rows of both, the interval, the original's."""
    shown = course.shown
    if step not in shown.steps:
        return f"`{step}` has not been recorded."
    row, at = shown.row(step), shown.steps.index(step)
    rows = [*filter(None, [shown.ladder.before(row)]), row]
    steps = [row.result.step for row in rows]
    table = markdown.ladder_table(shown.ladder, shown.limit, steps, gains=False)
    skipped = steps[0] if steps[0] != shown.steps[max(0, at - 1)] else ""
    parts = (table, measured(course), _gain(rows, skipped), published(course, step))
    return "\n\n".join(filter(None, parts))


def _gain(rows: Sequence[Row], skipped_to: str) -> str:
    """In words: the gain of the last of one or two rows, and what its run noted that the row before did not.

    skipped_to: the row before, where others stand between them that have no effect on this device; else "".
    """
    sentences, row = [], rows[-1]
    if gain := row.gain:
        verdict = ("faster" if gain.ratio > 1 else "slower") if gain.resolved else "no measurable difference"
        rounds = f"{gain.rounds} rounds" if gain.rounds > 1 else "one round"
        before = f"`{skipped_to}`, the last step before it with an effect here" if skipped_to else "the step before"
        sentences.append(f"**{gain}** the images/s of {before}, with the 95 % interval of {rounds}: {verdict}.")
    elif not row.acts:
        sentences.append(f"**No effect on this device: it {escaped(row.needs)}.**")
        sentences += [same_round(*rows)] if len(rows) > 1 else []
    known = rows[0].result.notes if len(rows) > 1 else []
    sentences += [f"The run noted: {escaped(note)}." for note in row.result.notes if note not in known]
    return " ".join(filter(None, sentences))


def same_round(before: Row, row: Row) -> str:
    """The speed of the row before in the round in which a row without effect ran; "" where both ran in one only."""
    number = next(iter(row.rounds))
    if len(before.rounds) < 2 or number not in before.rounds:
        return ""
    speed = statistics.median(before.rounds[number])
    return f"It ran in round {number} only, where `{before.result.step}` made {speed:.0f} images/s."


def profile(course: Course, step: str) -> str:
    """What a step's trace shows: where a typical step's time goes, and the advice."""
    analysis = course.shown.analyses.get(step)
    if analysis is None:
        return f"The trace of `{step}` cannot be read."
    steps, command = analysis.typical.steps, f"python -m walkthrough explain --all {_path(course, step)}"
    parts, total = steps.mean_breakdown_us, steps.mean_us
    rows = [
        [role, time_text(us), f"{us / total:.1%}"]
        for role, us in sorted(parts.items(), key=lambda part: -part[1])
        if us > 0
    ]
    lines = [
        f"`{command}` shows, for {counted(len(steps.names), 'typical step', 'typical steps')}:",
        "",
        markdown.table(["part of a step", ">time", ">share"], rows),
        "",
        measured(course),
        "",
        _traced_and_timed(course, step, analysis),
        "",
    ]
    for gpu in analysis.gpus:
        shares = {
            "busy": gpu.utilization,
            "SMs at work": gpu.sm_efficiency,
            unit_name(analysis.trace): gpu.tensor_core_share,
        }
        known = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share is not None)
        lines += [f"GPU {gpu.id}: {known}.", ""]
    advised = course.shown.advised[step]
    return "\n".join([*lines, f"**{escaped(sentence(advised.verdict))}**", "", *_advice_lines(advised.advice)])


def _advice_lines(advice: Sequence[Advice]) -> list[str]:
    """The first pieces of advice, a line each: title, step, gain; the first with its reason."""
    lines = []
    for shown in advice[:ADVICE]:
        gain = gain_text(shown) or "the gain cannot be estimated here"
        step = f"`{shown.step}`" if shown.step else "beyond the walkthrough's steps"
        why = "" if lines else f"; {escaped(shown.why)}"
        lines.append(f"- {shown.title} ({step}): {gain}{why}.")
    more = len(advice) - ADVICE
    if len(advice) > 1:
        lines += ["", f"`explain` prints the evidence of each{f', `--all` {more} more' if more > 0 else ''}."]
    return lines


def _traced_and_timed(course: Course, step: str, analysis: Analysis) -> str:
    """What the traced steps took, what those took that were timed without a profiler, and whether they were alike."""
    traced, timed = analysis.steps, course.shown.row(step).result.step_ms
    shortest, longest = traced.duration.min(), traced.duration.max()
    text = (
        f"Traced, a step took {time_text(traced.mean_us)} "
        f"({time_text(shortest)} to {time_text(longest)}); "
        f"timed, without the profiler, {time_text(timed.median * 1e3)}."
    )
    if longest > UNSTEADY * shortest:
        text += " The traced steps differ widely: take the time of a step from the timed ones."
    return text


def change(course: Course, before: str, after: str) -> str:
    """Two steps' traces side by side: the parts of a mean step, ms per image."""
    parts = figures.per_image_ms(course.shown)
    if before not in parts or after not in parts:
        return "One of the two traces cannot be read."
    roles = [role for role in parts[before] if parts[before][role] > 0 or parts[after][role] > 0]
    rows = [[role, f"{parts[before][role]:.3f}", f"{parts[after][role]:.3f}"] for role in roles]
    rows.append(["all", f"{sum(parts[before].values()):.3f}", f"{sum(parts[after].values()):.3f}"])
    table = markdown.table(["ms per image, traced", f">`{before}`", f">`{after}`"], rows)
    return f"{table}\n\n{measured(course)}"


def busiest(course: Course, step: str) -> str:
    """What ran longest in a step's trace: kernels, or on a CPU operators."""
    analysis = course.shown.analyses.get(step)
    if analysis is None:
        return f"The trace of `{step}` cannot be read."
    kernels = analysis.tables.kernels
    longest, what = (kernels, "kernel") if kernels else (analysis.operators, "operator on the CPU")
    count = len(analysis.steps.names)
    total = sum(item.us for item in longest)
    rows = [
        [code(item.name, 70), str(item.count), time_text(item.us), f"{item.us / total:.1%}"] for item in longest[:SHOWN]
    ]
    table = markdown.table([what, f">count, {count} steps", f">time, {count} steps", ">share"], rows)
    return f"{table}\n\n{measured(course)}"


def top_allocations(course: Course, step: str) -> str:
    """The operators that allocated most of the memory in use at the peak of a step's trace."""
    analysis = course.shown.analyses.get(step)
    if analysis is None or not analysis.memory:
        return f"The trace of `{step}` has no memory events."
    at_peak = analysis.memory[0].at_peak
    total = sum(at_peak.values())
    rows = [[code(name, 60), size_text(size), f"{size / total:.1%}"] for name, size in at_peak.items()][:SHOWN]
    table = markdown.table(["allocated while tracing, in use at the peak", ">bytes", ">share"], rows)
    return f"{table}\n\n{measured(course)}"


BLOCKS = (diff, number, profile, change, busiest, top_allocations)


def _path(course: Course, step: str) -> str:
    folder = course.shown.folder / step
    return folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else f"{folder.parent.name}/{step}"


def _code_lines(file: Path) -> list[str]:
    """A program's lines without its docstring."""
    text = file.read_text(encoding="utf-8")
    end = ast.parse(text).body[0].end_lineno
    return text.splitlines()[end:]
