"""The roofline: how fast each kind of operator ran, next to what the device could do at that arithmetic intensity.

After Williams, Waterman and Patterson, "Roofline" (2009): FLOP/s over FLOPs per byte; the roof is the lower of the peak
FLOP/s and the intensity times the peak bytes/s. Here both peaks are measured, FLOPs and bytes are counted from shapes
(`flops`), and the time comes from a trace of the uncompiled step (`operator_times`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.limit.record import Limit, TrainingSpeed
from studies.limit.view import rate_text
from walkthrough.compare.figures import GREY, SPEED, check_figure_file, save, styled
from walkthrough.terminal import share_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {  # of the groups of `flops.GROUPS`
    "convolution": "#0072b2",
    "depthwise convolution": "#d55e00",
    "batch norm": "#009e73",
    "other norm": "#999999",
    "attention": "#f0e442",
    "matrix product": "#56b4e9",
    "pooling": "#e69f00",
    "resize": "#aa4499",
    "loss, softmax": "#cc79a7",
    "sum, mean": "#000000",
    "copy, cast": "#44aa99",
    "elementwise": "#882255",
    "optimizer": "#117733",
}


def draw(limit: Limit, path: Path) -> None:
    """Draw the roofline of a `Limit` into `path`, .svg or .png. Raises InputError for another ending."""
    check_figure_file(path)
    save(roofline_figure(limit), path)


def roofline_figure(limit: Limit) -> "Figure":
    """A matplotlib `Figure`: the measured roofs, a point for each group, its area by time, and one for the step."""
    from matplotlib.collections import PathCollection  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    groups = [group for group in limit.groups if limit.share_of_roof(group)]
    ridge = limit.flops_roof / limit.bytes_roof
    points = [(group.work / group.bytes, group.work / group.traced_ms * 1e3) for group in groups]
    low, high = min([ridge, *(x for x, _ in points)]) / 4, max([ridge, *(x for x, _ in points)]) * 8
    edge = np.array([low, ridge, high])
    axes.loglog(
        edge, np.minimum(edge * limit.bytes_roof, limit.flops_roof), color=GREY, linewidth=1.5,
        label=f"measured roofs: {rate_text(limit.bytes_roof, 'B/s')}, {rate_text(limit.flops_roof, 'FLOP/s')}",
    )  # fmt: skip
    step_ms = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group, (x, y) in zip(groups, points, strict=True):
        colour = GREY if COLOURS[group.name] == "#000000" else COLOURS[group.name]
        share = group.traced_ms / step_ms
        axes.scatter(
            x, y, s=30 + 900 * share, facecolors="none" if group.flops is None else colour, edgecolors=colour,
            linewidths=1.8, alpha=0.85, zorder=3,
            label=f"{group.name}, {share:.0%} of the time{' *' if group.flops is None else ''}",
        )  # fmt: skip
    stars = [(limit.uncompiled, GREY, 380)]
    if limit.fastest.compiled:
        stars.append((limit.fastest, SPEED, 150))  # smaller: where they meet, both are seen
    for speed, colour, size in stars:
        axes.scatter(
            limit.flops_per_step / limit.bytes_per_step, speed.flops_per_second, marker="*", s=size, color=colour,
            edgecolors=GREY, linewidths=0.7, zorder=4,
            label=f"the whole step, timed{' **' if speed.compiled else ''}:\n{speed.kind}, batch {speed.batch_size}"
            f"{of_roofs(speed)}",
        )  # fmt: skip
    axes.set_xlabel("FLOPs per byte of the operators' tensors", color=GREY, fontsize=9)
    axes.set_ylabel("FLOP/s", color=GREY, fontsize=9)
    setup = limit.setup
    styled(axes, f"{setup.model}, {setup.image_size} px, {limit.precision}, {setup.device}")
    legend = axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([50])
    remarks = []
    if any(group.flops is None for group in groups):
        remarks.append(
            "* no FLOP formula: drawn with one FLOP for each element written, so only the distance to the sloped roof "
            "(bytes/s) means something"
        )
    if limit.fastest.compiled:
        remarks.append("** fused, it moves fewer bytes than are counted, so its true place is further right")
    figure.supxlabel("\n".join(remarks), fontsize=8, color=GREY)
    return figure


def of_roofs(speed: TrainingSpeed) -> str:
    """How near the measured peaks a program is, as more lines of a label; "" where the least bytes are not known."""
    if speed.share_of_memory_roof is None:
        return ""
    roof = share_text(speed.share_of_memory_roof)
    return f"\n{speed.mfu:.1%} of measured arithmetic peak,\n{roof} of measured memory roof"
