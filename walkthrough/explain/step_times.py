"""The texts of `explain` on how long the steps of a trace are, and where their time goes."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from walkthrough.advice.summary import Summary
from walkthrough.advice.wording import why_outlier
from walkthrough.results.errors import printable
from walkthrough.terminal import bare_table
from walkthrough.trace.outliers import Outlier, is_undecided
from walkthrough.trace.steps import ROLES, Steps
from walkthrough.trace.units import fine_time_text

MARKS = {  # letter and colour: without colour, the letters keep the bar readable
    "kernel": ("K", "green"),
    "memcpy": ("C", "yellow"),
    "memset": ("S", "bright_yellow"),
    "communication": ("N", "magenta"),
    "runtime": ("R", "cyan"),
    "dataloader": ("D", "red"),
    "cpu_exec": ("E", "blue"),
    "other": (".", "bright_black"),
}
ROLE_MEANING = {
    "kernel": "a GPU kernel runs",
    "memcpy": "the GPU only copies",
    "memset": "the GPU only sets memory",
    "communication": "only a marked collective; NCCL's kernels count as kernel",
    "runtime": "the GPU is idle, the CPU in a CUDA or HIP call",
    "dataloader": "the loop waits for its next batch",
    "cpu_exec": "the CPU runs operators",
    "other": "nothing recorded: Python, most likely",
}
WITHOUT_GPU = {
    "communication": "a marked collective, and nothing else",
    "runtime": "the CPU is in a call of the runtime",
}
BAR_WIDTH = 64  # columns


def step_lengths(summary: Summary) -> str:
    """How many steps there are and how long: their mean, where they are alike; else that of the typical ones."""
    steps, typical = summary.analysis.steps, summary.analysis.typical.steps
    count = f"{len(steps.names)} step{'s' * (len(steps.names) > 1)} ({_first_to_last(steps.names)})"
    if not steps.marked:
        count = "no step marks, so the whole trace counts as one step"
    elif not steps.whole:
        count = f"no whole step: step {_first_to_last(steps.names)} was not over when the profiler stopped"
        return f"{count}; {fine_time_text(steps.mean_us)} of it recorded"
    if is_undecided(typical):
        return f"{count}; {_both(typical)}"
    if not summary.analysis.outliers:
        return f"{count}; {fine_time_text(steps.mean_us)}{' per step' if steps.marked else ''}{_range(steps)}"
    others = ", ".join(fine_time_text(outlier.us) for outlier in summary.analysis.outliers)
    return (
        f"{count}; {fine_time_text(typical.mean_us)} per typical step{_range(typical)}; {_left_out(summary)}: {others}"
    )


def print_breakdown(summary: Summary, to: Console) -> None:
    """A typical step by role, as a bar and a table; where nobody can tell which is typical, each step by role."""
    typical, has_gpu = summary.analysis.typical.steps, bool(summary.analysis.gpus)
    if is_undecided(typical):
        _print_both(typical, to)
        return
    title = "Mean step" if typical.whole else "What is recorded of a step"
    if summary.analysis.outliers:
        title = f"Typical step ({len(typical.names)} of {len(summary.analysis.steps.names)})"
    parts, total = typical.mean_breakdown_us, max(typical.mean_us, 1e-9)
    to.print(Text(title, "bold"))
    bar, column = Text("  "), 0.0
    for role in ROLES:
        begin, column = round(column), column + parts[role] / total * BAR_WIDTH
        letter, colour = MARKS[role]
        bar.append(letter * (round(column) - begin), f"{colour} reverse")
    to.print(bar)
    table = bare_table("left", "left", "right", "right", "left")
    for role in ROLES:
        if fine_time_text(parts[role]) != fine_time_text(0.0):
            letter, colour = MARKS[role]
            meaning = ROLE_MEANING[role] if has_gpu else WITHOUT_GPU.get(role, ROLE_MEANING[role])
            letter = Text(f"  {letter}", f"{colour} bold")
            table.add_row(letter, role, fine_time_text(parts[role]), f"{parts[role] / total:.1%}", meaning)
    to.print(table)


def print_outliers(outliers: Sequence[Outlier], to: Console) -> None:
    """A line for each step that is far longer than the others: why, and that the advice leaves it out."""
    for step in outliers:
        text = f"{why_outlier(step)}. The advice leaves it out."
        to.print(Padding(Text(text, "yellow"), (0, 0, 0, 2), expand=False))


def _left_out(summary: Summary) -> str:
    count = len(summary.analysis.outliers)
    return f"{count} step{'s' * (count > 1)} far longer"


def _print_both(steps: Steps, to: Console) -> None:
    """Two steps of very different length, side by side."""
    to.print(Text("Two steps of very different length: no mean, and no advice", "bold"))
    table = bare_table("left", "left", "right", "right")
    table.add_row("", "step", *(printable(name, 20) for name in steps.names))
    for role, times in zip(ROLES, steps.breakdown.tolist(), strict=True):
        if fine_time_text(max(times)) != fine_time_text(0.0):
            letter, colour = MARKS[role]
            table.add_row(Text(f"  {letter}", f"{colour} bold"), role, *map(fine_time_text, times))
    to.print(table)


def _both(steps: Steps) -> str:
    lengths = zip(steps.names, steps.duration.tolist(), strict=True)
    return " and ".join(f"step {printable(name, 20)} takes {fine_time_text(us)}" for name, us in lengths)


def _first_to_last(names: Sequence[str]) -> str:
    shown = [printable(name, 20) for name in names]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _range(steps: Steps) -> str:
    """The shortest, the median and the longest step, if they differ by more than 5 %; else ""."""
    low, high = (min(steps.duration), max(steps.duration)) if len(steps.duration) else (0, 0)
    median = f"; median {fine_time_text(steps.median_us)}" if len(steps.duration) > 2 else ""
    return f" ({fine_time_text(low)} to {fine_time_text(high)}{median})" if high > 1.05 * low else ""
