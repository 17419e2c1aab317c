"""An ablation as a figure: the effect of each optimisation alone and in the full ladder, with its interval."""

from pathlib import Path
from typing import TYPE_CHECKING

from studies.ablation.effects import control, effects
from studies.ablation.plan import CONTROL
from studies.ablation.record import Ablation
from studies.study import draw_ratios, shown_range
from walkthrough.compare.figures import GREY, MEMORY, SLOWER, SPEED, check_figure_file, save, step_label, styled

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
    """A matplotlib `Figure`: a row for the control and for each optimisation, its two ratios on a log axis."""
    from matplotlib.figure import Figure  # half a second to import

    rows, noise = effects(ablation), control(ablation)
    figure = Figure(figsize=(9, 2.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.axvline(1, color=GREY, linewidth=1)
    series = (
        ("alone: over the baseline, with what it needs", SPEED, "o", -0.15, [effect.alone for effect in rows]),
        ("in the full ladder: over the ladder without it", MEMORY, "s", 0.15, [effect.in_full for effect in rows]),
    )
    for label, colour, marker, shift, ratios in series:
        drawn = [(row + shift, ratio) for row, ratio in enumerate(ratios, start=1) if ratio]
        draw_ratios(axes, drawn, colour=colour, marker=marker, label=label)
    if noise:
        draw_ratios(axes, [(0, noise)], colour=SLOWER, marker="D", label="control: baseline over baseline")
    for row, effect in enumerate(rows, start=1):
        if not (effect.alone or effect.in_full):
            text = "no effect on this device" if effect.no_effect else "not measured"
            axes.annotate(text, (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
    shown = [ratio for _, *_, ratios in series for ratio in ratios if ratio] + ([noise] if noise else [])
    low, high = shown_range(shown)
    axes.set_xlim(low / 1.05, high * 1.05)
    ticks = shown_ticks(low / 1.05, high * 1.05)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(1 + len(rows)), [CONTROL, *(step_label(effect.optimisation) for effect in rows)])
    axes.set_ylim(len(rows) + 0.5, -0.5)
    setup = ablation.setup
    styled(axes, f"{setup.model}, {setup.image_size} px, on {setup.device}; {_interval_of(ablation)}")
    if shown:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "ncols": 2}
        axes.legend(frameon=False, labelcolor=GREY, fontsize=9, **below)
    return figure


def shown_ticks(low: float, high: float) -> list[float]:
    """The finest round ratios on the axis that are not too many and reach over most of it."""
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in TICKS]
    fits = [ticks for ticks in within if len(ticks) <= MOST_TICKS and max(ticks) * 2 > high and min(ticks) < low * 2]
    return max(fits or within[:1], key=len)


def _interval_of(ablation: Ablation) -> str:
    runs = ablation.run_count
    return f"mean of {runs} interleaved runs, 95 % interval" if runs > 1 else "one run, 95 % interval of its windows"
