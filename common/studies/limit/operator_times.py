"""Where the time of a traced step goes, by the operators that were counted (`flops`), and in groups of them."""

import numpy as np

from common.studies.limit.flops import CONVOLUTIONS, GROUPS, group_of
from common.studies.limit.record import Group, Uncounted, WithoutFormula
from common.trace import reader, steps
from common.trace.operators import Nesting, launches, launching_operators

OUTSIDE = None  # the operator of time that lies in no counted one


def operator_ms(path, events, counted):
    """Where a traced step's time goes: {(operator, group): ms of a mean step}; `OUTSIDE` for what is in none of them.

    path: a trace of the step that was counted. events: the same, as `session.traced_window` returns them, for the
    shapes of convolutions. counted: names of the operators that were counted; time in what these call is theirs.

    Without a GPU it is the operators' own time on the CPU; with one, that of the kernels, copies and fills of memory
    that they launched. The optimizer's operators are those within its step, which the profiler marks.
    """
    trace = reader.read(path)
    of_operator, labels = _labels(trace, events, counted)
    work = [table for table in (trace.kernels, trace.copies, trace.sets) if len(table)]
    if not work:
        operators, times = np.arange(len(trace.operators)), Nesting(trace.operators).own_time()
        times = np.where(trace.named(trace.operators, steps.is_step), 0.0, times)
        parts = [(operators, times)]
    else:
        parts = []
        for table in work:
            launched = launches(trace, table)
            within = launched >= 0  # the others were launched before the trace began, by a step that is not in it
            parts.append((launching_operators(trace, launched)[within], table.duration[within]))
    count, found = len(steps.steps(trace).names), {}
    for operators, times in parts:
        of_time = np.where(operators >= 0, of_operator[operators], 0)
        for number, us in enumerate(np.bincount(of_time, times, len(labels)).tolist()):
            if us:
                found[labels[number]] = found.get(labels[number], 0.0) + us / 1e3 / count
    return found


def _labels(trace, events, counted):
    """For each operator of the trace the number of its label, and the labels: (operator, group); 0 is `OUTSIDE`."""
    shapes = {
        event["args"].get("External id"): event["args"].get("Input Dims")
        for event in events
        if event.get("name") in CONVOLUTIONS and "args" in event
    }
    operators, nest = trace.operators, Nesting(trace.operators)
    parent, names, external = nest.parent.tolist(), operators.name.tolist(), operators.external.tolist()
    of_operator, labels, optimizing = np.zeros(len(operators), int), {(OUTSIDE, OUTSIDE): 0}, set()
    for index in nest.order.tolist():  # those that hold others come first
        above, name = parent[index], trace.names[names[index]]
        if name.startswith("Optimizer.") or above in optimizing:
            optimizing.add(index)
        saves = name == "aten::clone" and above >= 0 and trace.names[names[above]].endswith("_")
        if above >= 0 and of_operator[above] and not saves:  # saved for the backward pass: a call of its own
            of_operator[index] = of_operator[above]
        elif name in counted:
            dims = shapes.get(external[index])
            if name in CONVOLUTIONS and not dims:
                continue
            label = (name, group_of(name, dims or [], index in optimizing))
            of_operator[index] = labels.setdefault(label, len(labels))
    return of_operator, list(labels)


def groups(counter, times):
    """The `Group`s of a step in the order of `flops.GROUPS`, from its `OperatorCounter` and `operator_ms`."""
    found = []
    for name in GROUPS:
        members = [counted for counted in counter.counts.values() if counted.group == name]
        if not members:
            continue
        flops = [counted.flops for counted in members if counted.flops is not None]
        found.append(
            Group(
                name=name,
                calls=sum(counted.calls for counted in members),
                flops=sum(flops) if flops else None,
                bytes=sum(counted.bytes for counted in members),
                elements=sum(counted.elements for counted in members),
                traced_ms=sum(ms for (_, group), ms in times.items() if group == name),
            )
        )
    return found


def without_formula(counter, times):
    """The `WithoutFormula` of a step: what of it torch counts no FLOPs for."""
    calls, of_all = {}, 0
    for counted in counter.counts.values():
        of_all += counted.calls
        if counted.flops is None:
            calls[counted.name] = calls.get(counted.name, 0) + counted.calls
    inside = {label: ms for label, ms in times.items() if label[0] is not OUTSIDE}
    known = {label for label, counted in counter.counts.items() if counted.flops is not None}
    uncounted_ms = sum(ms for label, ms in inside.items() if label not in known)
    return WithoutFormula(
        operators=[Uncounted(*each) for each in sorted(calls.items(), key=lambda each: (-each[1], each[0]))],
        calls_share=sum(calls.values()) / of_all if of_all else 0.0,
        time_share=uncounted_ms / sum(inside.values()) if inside else 0.0,
    )
