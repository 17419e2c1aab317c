"""The cost of tracing: how much longer a step takes in each mode than without a profiler, with its interval."""

from pathlib import Path
from typing import TYPE_CHECKING

from studies.intervals import draw_ratios, shown_range
from studies.overhead.record import Overhead
from walkthrough.compare.figures import GREY, SPEED, check_figure_file, save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Overhead, path: Path) -> None:
    """Draw an `Overhead` into `path`, .svg or .png. Raises InputError for another ending."""
    check_figure_file(path)
    save(overhead_figure(result), path)


def overhead_figure(result: Overhead) -> "Figure":
    """A matplotlib `Figure`: a row for the control and for each mode, its cost and the interval; nothing of one run."""
    from matplotlib.figure import Figure  # half a second to import

    modes = result.modes
    figure = Figure(figsize=(9, 1.6 + 0.4 * len(modes)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color=GREY, linewidth=1)
    costs = [(row, mode.cost) for row, mode in enumerate(modes) if mode.cost]
    draw_ratios(axes, costs, colour=SPEED, label="mean, 95 % interval")
    low, high = shown_range(cost for _, cost in costs)
    axes.set_xlim(low - 0.02, high + 0.02)
    for row, mode in enumerate(modes):
        if mode.cost is None:
            text = "one run: no interval" if mode.not_measured is None else "not measured"
            axes.annotate(text, (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
    axes.set_yticks(range(len(modes)), [mode.name for mode in modes])
    axes.set_ylim(len(modes) - 0.5, -0.5)
    axes.set_xlabel("time of a step over that without a profiler", color=GREY, fontsize=9)
    setup = result.setup
    settings = f"{setup.model}, batch {result.batch_size}, {setup.image_size} px, {result.precision}"
    styled(axes, f"{settings}, {setup.device}; {result.runs} runs")
    if costs:
        axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
