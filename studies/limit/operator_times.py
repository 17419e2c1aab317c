"""Where the time of a traced step goes, by the operators that were counted (`flops`), and in groups of them."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.limit.flops import CONVOLUTIONS, GROUPS, OperatorCounter, group_of
from studies.limit.record import Group, Uncounted, WithoutFormula

if TYPE_CHECKING:  # needs msgspec, which what only counts operators does not
    from walkthrough.trace.columns import Nesting, Trace

OUTSIDE = None  # the operator of time that lies in no counted one

Label = tuple[str, str] | tuple[None, None]  # (operator, group)
OperatorTimes = dict[Label, float]  # ms of a mean step


def operator_ms(path: Path, events: list[dict[str, Any]], names: Collection[str]) -> OperatorTimes:
    """Where a traced step's time goes: {(operator, group): ms of a mean step}; `OUTSIDE` for what is in none of them.

    path: a trace of the step that was counted. events: the same, as `tracing.traced_window` returns them, for the
    shapes of convolutions. names: of the operators that were counted; time in what these call is theirs.

    Without a GPU it is the operators' own time on the CPU; with one, that of the kernels, copies and fills of memory
    that they launched. The optimizer's operators are those within its step, which the profiler marks.
    """
    from walkthrough.trace import reader
    from walkthrough.trace.columns import Nesting, launching_operators
    from walkthrough.trace.steps import is_step, steps

    trace = reader.read(path)
    nest = Nesting(trace.operators)
    label_of, labels = _labels(trace, nest, events, names)
    work = [table for table in (trace.kernels, trace.copies, trace.sets) if len(table)]
    if work:
        parts = []
        for table in work:
            launched = table.call
            within = launched >= 0  # the others were launched before the trace began, by a step that is not in it
            parts.append((launching_operators(trace, launched)[within], table.duration[within]))
    else:
        own = np.where(trace.named(trace.operators, is_step), 0.0, nest.own_time())
        parts = [(np.arange(len(trace.operators)), own)]
    count, times = len(steps(trace).names), {}
    for operators, us in parts:
        label = np.where(operators >= 0, label_of[operators], 0)
        for number, total in enumerate(np.bincount(label, us, len(labels)).tolist()):
            if total:
                times[labels[number]] = times.get(labels[number], 0.0) + total / 1e3 / count
    return times


def _labels(
    trace: "Trace", nest: "Nesting", events: list[dict[str, Any]], names: Collection[str]
) -> tuple[np.ndarray, list[Label]]:
    """For each operator of the trace the number of its label, and the labels: (operator, group); 0 is `OUTSIDE`."""
    shapes = {
        event["args"].get("External id"): event["args"].get("Input Dims")
        for event in events
        if event.get("name") in CONVOLUTIONS and "args" in event
    }
    operators = trace.operators
    parent, name_of, external = nest.parent.tolist(), operators.name.tolist(), operators.external.tolist()
    label_of, optimizing = np.zeros(len(operators), int), set()
    labels: dict[Label, int] = {(OUTSIDE, OUTSIDE): 0}
    for index in nest.order.tolist():  # those that hold others come first
        above, name = parent[index], trace.names[name_of[index]]
        if name.startswith("Optimizer.") or above in optimizing:
            optimizing.add(index)
        saves = name == "aten::clone" and above >= 0 and trace.names[name_of[above]].endswith("_")
        if above >= 0 and label_of[above] and not saves:  # saved for the backward pass: a call of its own
            label_of[index] = label_of[above]
        elif name in names:
            dims = shapes.get(external[index])
            if name in CONVOLUTIONS and not dims:
                continue
            label = (name, group_of(name, dims or [], index in optimizing))
            label_of[index] = labels.setdefault(label, len(labels))
    return label_of, list(labels)


def groups(counter: OperatorCounter, times: OperatorTimes | None) -> list[Group]:
    """The `Group`s of a step in the order of `flops.GROUPS`, from its `OperatorCounter` and `operator_ms`.

    times: None where operators were not timed; there are no groups then.
    """
    result: list[Group] = []
    if times is None:
        return result
    for name in GROUPS:
        members = [counted for counted in counter.counts.values() if counted.group == name]
        if not members:
            continue
        flops = [counted.flops for counted in members if counted.flops is not None]
        result.append(
            Group(
                name=name,
                calls=sum(counted.calls for counted in members),
                flops=sum(flops) if flops else None,
                bytes=sum(counted.bytes for counted in members),
                elements=sum(counted.elements for counted in members),
                traced_ms=sum(ms for (_, group), ms in times.items() if group == name),
            )
        )
    return result


def without_formula(counter: OperatorCounter, times: OperatorTimes | None) -> WithoutFormula:
    """The `WithoutFormula` of a step: the operators that torch counts no FLOPs for."""
    calls, all_calls = {}, 0
    for counted in counter.counts.values():
        all_calls += counted.calls
        if counted.flops is None:
            calls[counted.name] = calls.get(counted.name, 0) + counted.calls
    inside = {label: ms for label, ms in (times or {}).items() if label[0] is not OUTSIDE}
    known = {label for label, counted in counter.counts.items() if counted.flops is not None}
    uncounted_ms = sum(ms for label, ms in inside.items() if label not in known)
    most_calls_first = sorted(calls.items(), key=lambda item: (-item[1], item[0]))
    return WithoutFormula(
        operators=[Uncounted(name, count) for name, count in most_calls_first],
        calls_share=sum(calls.values()) / all_calls if all_calls else 0.0,
        time_share=None if times is None else uncounted_ms / sum(inside.values()) if inside else 0.0,
    )
