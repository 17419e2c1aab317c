"""The cost of tracing: how much longer a step takes in each mode than without a profiler."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.ladder.figures import GREY, SPEED, check_figure_file, reach, save, styled
from common.studies.overhead.record import Overhead

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Overhead, path: Path) -> None:
    """Draw an `Overhead` into `path`, .svg or .png. Raises InputError for another ending."""
    check_figure_file(path)
    save(overhead_figure(result), path)


def overhead_figure(result: Overhead) -> "Figure":
    """A matplotlib `Figure`: a row for each mode, its median ratio and the runs' range; the control as a grey band."""
    from matplotlib.figure import Figure  # half a second to import

    modes = result.modes[2:]
    figure = Figure(figsize=(9, 1.6 + 0.4 * len(modes)), layout="constrained")
    axes = figure.subplots()
    low, high = result.noise
    axes.axvspan(low, high, color=GREY, alpha=0.25, linewidth=0, label="control, no profiler: noise")
    axes.axvline(1, color=GREY, linewidth=1)
    rows = [row for row, mode in enumerate(modes) if mode.not_measured is None]
    measured = [modes[row] for row in rows]
    if measured:
        axes.errorbar(
            [mode.ratio for mode in measured], rows,
            xerr=reach((min(mode.ratios), mode.ratio, max(mode.ratios)) for mode in measured),
            fmt="o", color=SPEED, ecolor=SPEED, capsize=3, markersize=7, label="with the profiler",
        )  # fmt: skip
    for row, mode in enumerate(modes):
        if mode.not_measured is not None:
            axes.annotate(
                "not measured", (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9
            )
    axes.set_yticks(range(len(modes)), [mode.name for mode in modes])
    axes.set_ylim(max(1, len(modes)) - 0.5, -0.5)
    axes.set_xlabel("time of a step over that without a profiler, median and range of the runs", color=GREY, fontsize=9)
    setup = result.setup
    settings = f"{setup.model}, batch {result.batch_size}, {setup.image_size} px, {result.precision}"
    styled(axes, f"{settings}, {setup.device}; {result.runs} runs")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
