"""An ablation as a figure: the effect of each optimisation alone and in the full ladder, with the range over runs."""

from pathlib import Path
from typing import TYPE_CHECKING

from common.ladder.figures import GREY, MEMORY, SPEED, check_figure_file, reach, save, step_label, styled
from common.studies.ablation.effects import control, effects, noise_factor
from common.studies.ablation.record import Ablation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TICKS = (  # from coarse to fine
    (0.01, 0.1, 1, 10, 100),
    (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10),
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2),
)
MOST_TICKS = 9


def draw(ablation: Ablation, path: str | Path) -> None:
    """Draw an `Ablation` into `path`, .svg or .png. Raises InputError for another ending."""
    path = Path(path)
    check_figure_file(path)
    save(ablation_figure(ablation), path)


def ablation_figure(ablation: Ablation) -> "Figure":
    """A matplotlib `Figure`: a row for each optimisation, its two ratios on a log axis, the control as a grey band."""
    from matplotlib.figure import Figure  # half a second to import

    rows, noise = effects(ablation), control(ablation)
    figure = Figure(figsize=(9, 1.8 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.axvline(1, color=GREY, linewidth=1)
    if noise:
        beyond = noise_factor(noise)  # which of the two is over the other is chance
        label = "range of baseline / baseline"
        axes.axvspan(1 / beyond, beyond, color=GREY, alpha=0.25, linewidth=0, label=label)
    series = (
        ("alone: over the baseline", SPEED, "o", -0.15, [effect.alone for effect in rows]),
        ("in the full ladder: over the ladder without it", MEMORY, "s", 0.15, [effect.in_full for effect in rows]),
    )
    for label, colour, marker, shift, ratios in series:
        drawn = [(row + shift, ratio) for row, ratio in enumerate(ratios) if ratio]
        axes.errorbar(
            [ratio.ratio for _, ratio in drawn], [row for row, _ in drawn],
            xerr=reach((ratio.low, ratio.ratio, ratio.high) for _, ratio in drawn) or None,
            fmt=marker, color=colour, ecolor=colour, capsize=3, markersize=7, label=label,
        )  # fmt: skip
    for row, effect in enumerate(rows):
        if not (effect.alone or effect.in_full):
            text = "no effect on this device" if effect.no_effect else "not measured"
            axes.annotate(text, (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
    shown = [ratio for _, *_, ratios in series for ratio in ratios if ratio] + ([noise] if noise else [])
    low, high = min([0.9, *(ratio.low for ratio in shown)]) / 1.05, max([1.2, *(ratio.high for ratio in shown)]) * 1.05
    axes.set_xlim(low, high)
    ticks = shown_ticks(low, high)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(rows)), [step_label(effect.optimisation) for effect in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    setup = ablation.setup
    styled(axes, f"{setup.model}, {setup.image_size} px, on {setup.device}; {_range_of(ablation)}")
    axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)
    return figure


def shown_ticks(low: float, high: float) -> list[float]:
    """The finest round ratios on the axis that are not too many and reach over most of it."""
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in TICKS]
    fits = [ticks for ticks in within if len(ticks) <= MOST_TICKS and max(ticks) * 2 > high and min(ticks) < low * 2]
    return max(fits or within[:1], key=len)


def _range_of(ablation: Ablation) -> str:
    runs = ablation.whole_runs
    return f"median and range of {runs} interleaved runs" if runs > 1 else "one run: the range of its windows"
