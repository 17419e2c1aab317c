"""The predicted memory of every program as bars, by what holds it."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from walkthrough.compare.figures import GREY, save, step_label, styled
from walkthrough.compare.gpu_memory import KINDS, Fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#cc79a7", "#009e73", "#e69f00", "#999999"), strict=True))


def draw(fit: Fit, path: Path) -> None:
    """Draw a `Fit` into `path`, .svg or .png. Raises InputError for another ending."""
    save(gpu_memory_figure(fit), path)


def gpu_memory_figure(fit: Fit) -> "Figure":
    """A matplotlib `Figure`: a bar per program with its own settings, GB allocated at the peak; a line: reserved."""
    from matplotlib.figure import Figure

    rows = [one for one in fit.predictions if not one.words]
    figure = Figure(figsize=(9, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(rows))
    for kind in KINDS:
        widths = np.array([one.by_kind[kind] / 1e9 for one in rows])
        axes.barh(range(len(rows)), widths, left=left, height=0.62, color=COLOURS[kind], label=kind)
        left += widths
    reserved = [one.reserved_bytes / 1e9 for one in rows]
    axes.scatter(reserved, range(len(rows)), marker="|", s=90, color=GREY, label="reserved", zorder=3)
    names = [f"{step_label((one.program or '').rpartition('/')[2])}, {one.model}, {one.batch_size}" for one in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    styled(axes, "GB on a GPU, predicted")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
