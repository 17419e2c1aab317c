"""The roofline: how fast each kind of operator ran, beside what the device could do at that arithmetic intensity.

After Williams, Waterman and Patterson, "Roofline" (2009): FLOP/s over FLOPs per byte; the roof is the lower of the peak
FLOP/s and the intensity times the peak bytes/s. Here both peaks are measured, FLOPs and bytes are counted from shapes
(`flops`), and the time comes from a trace of the uncompiled step.
"""

from pathlib import Path

import numpy as np

from common.flops import CONVOLUTIONS, GROUPS, group_of
from common.limit_record import Group, Uncounted, WithoutFormula
from common.plot import GREY, SPEED, check_figure_file, save, styled
from common.trace import reader, steps
from common.trace.operators import Nesting, launches, launching_operators

COLOURS = dict(
    zip(
        GROUPS,
        ("#0072b2", "#d55e00", "#009e73", "#999999", "#f0e442", "#56b4e9", "#e69f00", "#cc79a7", "#000000", "#44aa99",
         "#882255", "#117733"),
        strict=False,
    )
)  # fmt: skip
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
        parts = [(launching_operators(trace, launches(trace, table)), table.duration) for table in work]
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


def roof_at(limit, intensity):
    """FLOP/s that the measured peaks allow at so many FLOPs per byte."""
    return min(limit.flops_roof, intensity * limit.bytes_roof)


def of_roof(limit, group):
    """What part of its roof a `Group` reached in the trace, 0..1 (above 1 where data came from caches), or None.

    Under the slanted roof this is bytes/s over the peak's, whatever counts as a FLOP.
    """
    if not (group.work and group.bytes and group.traced_ms):
        return None
    return group.work / (group.traced_ms / 1e3) / roof_at(limit, group.work / group.bytes)


def plot(limit, path):
    """Draw the roofline of a `Limit` into `path`, .svg or .png. Raises InputError for another ending."""
    path = Path(path)
    check_figure_file(path)
    save(roofline_figure(limit), path)


def roofline_figure(limit):
    """A matplotlib `Figure`: the measured roofs, a point for each group, its area by time, and one for the step."""
    from matplotlib.figure import Figure  # half a second to import

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    drawn = [group for group in limit.groups if of_roof(limit, group)]
    ridge = limit.flops_roof / limit.bytes_roof
    spots = [(group.work / group.bytes, group.work / group.traced_ms * 1e3) for group in drawn]
    low, high = min([ridge, *(x for x, _ in spots)]) / 4, max([ridge, *(x for x, _ in spots)]) * 8
    edge = np.array([low, ridge, high])
    axes.loglog(
        edge, np.minimum(edge * limit.bytes_roof, limit.flops_roof), color=GREY, linewidth=1.5,
        label=f"measured roofs: {told_rate(limit.bytes_roof, 'B/s')}, {told_rate(limit.flops_roof, 'FLOP/s')}",
    )  # fmt: skip
    whole = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group, (x, y) in zip(drawn, spots, strict=True):
        colour = GREY if COLOURS[group.name] == "#000000" else COLOURS[group.name]
        share = group.traced_ms / whole
        axes.scatter(
            x, y, s=30 + 900 * share, facecolors="none" if group.flops is None else colour, edgecolors=colour,
            linewidths=1.8, alpha=0.85, zorder=3,
            label=f"{group.name}, {share:.0%} of the time{' *' if group.flops is None else ''}",
        )  # fmt: skip
    for each, colour in zip(limit.floors, (GREY, SPEED, "#d55e00"), strict=False):
        axes.scatter(
            limit.flops_per_step / limit.bytes_per_step, each.flops_per_second, marker="*", s=160, color=colour,
            edgecolors=GREY, linewidths=0.7, zorder=4,
            label=f"the whole step, {each.kind}, timed{' **' if each.bytes_per_second is None else ''}",
        )  # fmt: skip
    axes.set_xlabel("FLOPs per byte of the operators' tensors", color=GREY, fontsize=9)
    axes.set_ylabel("FLOP/s", color=GREY, fontsize=9)
    styled(axes, f"{limit.model}, batch {limit.batch_size}, {limit.image_size} px, {limit.precision}, {limit.device}")
    legend = axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    for handle in legend.legend_handles[1:]:
        handle.set_sizes([50])
    told = []
    if any(group.flops is None for group in drawn):
        told.append(
            "* no FLOP formula: drawn with one FLOP for each element written, so only the distance to the slanted roof "
            "(bytes/s) means something"
        )
    if any(each.bytes_per_second is None for each in limit.floors):
        told.append("** fused, it moves fewer bytes than are counted, so its true place is further right")
    figure.supxlabel("\n".join(told), fontsize=8, color=GREY)
    return figure


def told_rate(rate, unit):
    """A rate per second, or an amount, with a prefix: "85.3 GFLOP/s"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= scale:
            return f"{rate / scale:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"
