"""Blocks of the mystery traces: what each trace shows, the bound that follows, the fix and what it gained."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from tools.docs import mysteries
from tools.docs.recorded import Course
from walkthrough.advice.gains import advise
from walkthrough.advice.verdict import gain_text
from walkthrough.compare import markdown
from walkthrough.compare.markdown import code, escaped
from walkthrough.terminal import time_text
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.steps import ROLES

LOADER = ROLES.index("dataloader")


@dataclass(frozen=True)
class Evidence:
    """Figures of a trace, each with what it is of, and the gain that the cause can cost at most."""

    figures: list[tuple[str, str]]
    bound: float


def mystery(course: Course, name: str) -> str:
    """What a mystery's trace shows of its cause, what `explain` lists first, the bound and the measured gain."""
    shown = _analysis(name)
    evidence = EVIDENCE[name](shown)
    measured = mysteries.read_measured()
    gain = measured.gains.get(name) if measured else None
    rows = [*evidence.figures, ("bound: the step without these", f"{evidence.bound:.2f}x")]
    rows.append(("**measured gain**", f"**{gain.as_ratio}**, {gain.rounds} rounds" if gain else "not measured"))
    listed = [
        f"*{escaped(item.title)}* ({gain_text(item) or 'the gain cannot be estimated here'})"
        for item in advise(shown).advice[:2]
    ]
    table = markdown.table([f"trace {name}", "figure"], rows)
    return f"{table}\n\n`explain` lists first: {'; then '.join(listed)}."


def mystery_fix(course: Course, name: str) -> str:
    """What differs between a mystery's program and the fixed one."""
    old, new = (mysteries.program(name, fixed).read_text(encoding="utf-8").splitlines() for fixed in (False, True))
    names = (f"programs/{name}.py", f"programs/{name}_fixed.py")
    lines = [line for line in difflib.unified_diff(old, new, *names, lineterm="", n=0) if not line.startswith("@@")]
    return "\n".join(["```diff", *lines, "```"])


def mysteries_machine(course: Course) -> str:
    """What the traces and gains were recorded on."""
    measured = mysteries.read_measured()
    if measured is None:
        return "*No gain was measured: `python -m tools.docs.mysteries`.*"
    made = measured.environment
    return (
        f"*Gains: {escaped(made.cpu)}, {made.cores} CPU cores, torch {escaped(made.torch)}, "
        f"{len(next(iter(measured.gains.values())).before)} rounds of {measured.steps} steps, 95 % intervals; load of "
        f"other programs at the start: {measured.load_average:.1f}. `python -m tools.docs.mysteries` measures anew.*"
    )


BLOCKS = (mystery, mystery_fix, mysteries_machine)


@cache
def _analysis(name: str) -> Analysis:
    return analyze(mysteries.trace_of(name))


def rows_one_by_one(shown: Analysis) -> Evidence:
    """Of a loader that works with many small operators on each image."""
    steps, operators, images = shown.steps, shown.trace.operators, _samples(shown)
    bars = operators.cover(shown.trace.named(operators, lambda name: name.startswith("enumerate(DataLoader)")))
    inside = bars.holds(operators.start) & shown.trace.named(operators, lambda name: "DataLoader" not in name)
    per_step = np.count_nonzero(inside & Cover(steps.start, steps.end).holds(operators.start)) / len(steps.names)
    return Evidence(
        [
            ("the loader's bar, of a step", _of_step(shown, _waiting(shown).mean())),
            ("operators inside the bar", f"{per_step:.0f} per step, {per_step / images:.0f} per image"),
            ("half of them take at most", time_text(float(np.median(operators.duration[inside])))),
            (code("aten::roll"), f"{_count(shown, 'aten::roll') / images:.0f} per image"),
        ],
        _without(shown, _waiting(shown).mean()),
    )


def computed_again(shown: Analysis) -> Evidence:
    """Of a loader that computes what it has computed before."""
    known = shown.trace.recording
    return Evidence(
        [
            ("the loader's bar, of a step", _of_step(shown, _waiting(shown).mean())),
            ("steps per epoch; steps before the trace", f"{known and known.steps_per_epoch}; {mysteries.TRACE_WARMUP}"),
            (code("aten::_fft_r2c"), f"{_count(shown, 'aten::_fft_r2c'):.0f} per step of {_samples(shown):.0f} sounds"),
        ],
        _without(shown, _waiting(shown).mean()),
    )


def waits_in_turn(shown: Analysis) -> Evidence:
    """Of worker processes that deliver together, every few steps."""
    waits = _waiting(shown)
    own = shown.steps.mean_us - float(waits.mean())
    together = 2  # a long step and a short one
    loading = together * shown.steps.mean_us
    return Evidence(
        [
            ("waits for the loader, ms, step by step", ", ".join(f"{us / 1e3:.0f}" for us in waits)),
            ("*L*: from one long wait to the next, so one batch in one worker", time_text(loading)),
            ("*S*: the rest of a step", time_text(own)),
            ("workers that hide the loading, *L / S*", f"{loading / own:.1f}, so {math.ceil(loading / own)}"),
        ],
        shown.steps.mean_us / own,
    )


def read_one_by_one(shown: Analysis) -> Evidence:
    """Of a value of each parameter that Python reads between the backward pass and the optimizer."""
    trace, steps, inside = shown.trace, shown.steps, ("aten::isfinite", "aten::all", "aten::is_nonzero")
    checks = trace.operators.where(trace.named(trace.operators, lambda name: name in inside))
    lengths = []
    for start, end in zip(steps.start, steps.end, strict=True):
        own = (checks.start >= start) & (checks.start < end)
        lengths.append(float(checks.end[own].max() - checks.start[own].min()))
    stretch, parameters = float(np.mean(lengths)), _count(shown, "torch::autograd::AccumulateGrad")
    return Evidence(
        [
            (code("aten::is_nonzero"), f"{_count(shown, 'aten::is_nonzero'):.0f} per step"),
            (f"{code('AccumulateGrad')}, once per parameter", f"{parameters:.0f} per step"),
            ("from the backward pass to the optimizer, of a step", _of_step(shown, stretch)),
        ],
        _without(shown, stretch),
    )


def table_by_table(shown: Analysis) -> Evidence:
    """Of a model that looks up each column in an embedding of its own."""
    count, rows = len(shown.steps.names), shown.operators
    lookups = _count(shown, "aten::embedding")
    often = [item for item in rows if item.count >= lookups * count]
    own = sum(item.us for item in often) / count
    optimizer = sum(item.us for item in rows if item.name.startswith("Optimizer.")) / count
    python = float(shown.steps.breakdown[ROLES.index("other")].mean())
    return Evidence(
        [
            (code("aten::embedding"), f"{lookups:.0f} per step"),
            (code("aten::embedding_dense_backward"), f"{_count(shown, 'aten::embedding_dense_backward'):.0f} per step"),
            (
                f"operators with a count of {lookups:.0f} or more",
                f"{sum(item.count for item in often) / count:.0f} per step",
            ),
            ("their own time, of a step", _of_step(shown, own)),
            ("Python between operators; the optimizer's own", f"{time_text(python)}; {time_text(optimizer)}"),
        ],
        _without(shown, own + python + optimizer),
    )


EVIDENCE: dict[str, Callable[[Analysis], Evidence]] = {
    "a": rows_one_by_one,
    "b": computed_again,
    "c": waits_in_turn,
    "d": read_one_by_one,
    "e": table_by_table,
}


def _waiting(shown: Analysis) -> np.ndarray:
    """µs of each step in the DataLoader."""
    return shown.steps.breakdown[LOADER]


def _samples(shown: Analysis) -> float:
    known = shown.trace.recording
    return (known and known.samples_per_step) or math.nan


def _count(shown: Analysis, name: str) -> float:
    """Operators of that name per step."""
    count = sum(item.count for item in shown.operators if item.name == name)
    return count / len(shown.steps.names)


def _of_step(shown: Analysis, us: float) -> str:
    return f"{time_text(us)} of {time_text(shown.steps.mean_us)}"


def _without(shown: Analysis, us: float) -> float:
    """How many times as fast a mean step is without so many µs."""
    return shown.steps.mean_us / (shown.steps.mean_us - us)
