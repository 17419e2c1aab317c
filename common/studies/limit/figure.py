"""The roofline: how fast each kind of operator ran, beside what the device could do at that arithmetic intensity.

After Williams, Waterman and Patterson, "Roofline" (2009): FLOP/s over FLOPs per byte; the roof is the lower of the peak
FLOP/s and the intensity times the peak bytes/s. Here both peaks are measured, FLOPs and bytes are counted from shapes
(`flops`), and the time comes from a trace of the uncompiled step (`operator_times`).
"""

from pathlib import Path

import numpy as np

from common.ladder.figures import GREY, SPEED, check_figure_file, save, styled

COLOURS = {  # of the groups of `flops.GROUPS`
    "convolution": "#0072b2",
    "depthwise convolution": "#d55e00",
    "batch norm": "#009e73",
    "other norm": "#999999",
    "attention": "#f0e442",
    "matrix product": "#56b4e9",
    "pooling": "#e69f00",
    "loss, softmax": "#cc79a7",
    "sum, mean": "#000000",
    "copy, cast": "#44aa99",
    "elementwise": "#882255",
    "optimizer": "#117733",
}


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
    stars = (GREY, 380), (SPEED, 180), ("#d55e00", 60)  # ever smaller: where they meet, all are seen
    for each, (colour, size) in zip(limit.floors, stars, strict=False):
        axes.scatter(
            limit.flops_per_step / limit.bytes_per_step, each.flops_per_second, marker="*", s=size, color=colour,
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
