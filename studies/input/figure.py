"""The input pipeline's images/s per number of workers, next to those of the model alone."""

from pathlib import Path
from typing import TYPE_CHECKING

from studies.input.record import InputLimit
from walkthrough.compare.figures import GREY, MEMORY, SPEED, check_figure_file, reach, save, styled
from walkthrough.results.result import data_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: InputLimit, path: Path) -> None:
    """Draw an `InputLimit` into `path`, .svg or .png. Raises InputError for another ending."""
    check_figure_file(path)
    save(input_figure(result), path)


def input_figure(result: InputLimit) -> "Figure":
    """A matplotlib `Figure`: a point per number of workers, a line for the model; each with its windows' range."""
    from matplotlib.figure import Figure  # half a second to import

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    speeds = [delivered.samples_per_second for delivered in result.delivered]
    positions = range(len(speeds))
    axes.errorbar(
        positions, [speed.median for speed in speeds],
        yerr=reach((min(speed.windows), speed.median, max(speed.windows)) for speed in speeds),
        fmt="o", color=SPEED, ecolor=SPEED, capsize=3, markersize=7, label="input pipeline alone",
    )  # fmt: skip
    model = result.model_alone.samples_per_second
    axes.axhspan(min(model.windows), max(model.windows), color=MEMORY, alpha=0.25, linewidth=0)
    axes.axhline(model.median, color=MEMORY, linewidth=1.5, label=f"model alone, {result.model_alone.kind}")
    axes.set_xlim(-0.5, len(speeds) - 0.5)
    axes.set_xticks(positions, [str(delivered.workers) for delivered in result.delivered])
    axes.set_ylim(0, max(*model.windows, *(window for speed in speeds for window in speed.windows)) * 1.08)
    axes.set_xlabel("workers", color=GREY, fontsize=9)
    axes.set_ylabel("images/s, median and range of the windows", color=GREY, fontsize=9)
    setup = result.setup
    title = f"{data_label(str(setup.data))}, batch {result.batch_size}, {setup.image_size} px; {setup.model}"
    styled(axes, f"{title} on {setup.device}")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
