"""What follows from an ablation: the effect of each optimisation alone and in the full ladder, and interactions.

Computed run by run: run k of one variant over run k of another, which were measured within one round, so that a
machine that drifts does it to both. Of these ratios `compare.statistics` gives the mean and its interval. Then the
tables and the figure of it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from studies import study
from studies.ablation import (
    ADDED,
    BASELINE,
    CONTROL,
    FULL,
    LADDER,
    NAMES,
    NEEDS,
    ON_DEVICE,
    TF32,
    Ablation,
    Pair,
    alone,
    before,
    dependents,
    in_full,
    pairs,
    together,
)
from walkthrough.compare.figures import GREY, MEMORY, SLOWER, SPEED, step_label, styled
from walkthrough.compare.statistics import Ratio, of_pairs
from walkthrough.compare.statistics import ratio as ratio_of_runs
from walkthrough.results.result import data_label
from walkthrough.terminal import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SEEN = {"more": "more", "less": "less", "none": "none measurable", None: "-"}
TICKS = (  # from coarse to fine
    (0.01, 0.1, 1, 10, 100),
    (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10),
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2),
)
MOST_TICKS = 9


@dataclass(frozen=True)
class Effect:
    """The effect of one optimisation. alone: over the baseline; in_full: the full ladder over the same without it.

    full_over_alone: how many times as large it is there, 1 where its place does not matter. None where that was not
    measured, full_over_alone also with fewer than two runs; no_effect: why it never has one on this device.
    """

    optimisation: str
    alone: Ratio | None
    in_full: Ratio | None
    full_over_alone: Ratio | None
    no_effect: str | None


@dataclass(frozen=True)
class Interaction:
    """Two optimisations on the baseline. together: both over the baseline; first, second: one of them alone.

    ratio: together over first times second, 1 where each gains the same with the other as without; None with fewer than
    two runs. verdict: "more" or "less" than predicted from each alone; "none" measurable; None without a ratio.
    """

    pair: Pair
    first: Ratio | None
    second: Ratio | None
    together: Ratio | None
    ratio: Ratio | None
    verdict: str | None


def as_json(ablation: Ablation) -> dict[str, Any]:
    """What the file of an ablation holds besides its measurements."""
    noise, over_tf32 = control(ablation), amp_over_tf32(ablation)
    return {
        "control": noise and asdict(noise),
        "amp_over_tf32": over_tf32 and asdict(over_tf32),
        "effects": [asdict(effect) for effect in effects(ablation)],
        "interactions": [asdict(interaction) for interaction in interactions(ablation)],
    }


def compared(ablation: Ablation, faster: str, slower: str) -> Ratio | None:
    """The `Ratio` of one variant to another, by name, over the runs that both have; None where no run has both."""
    runs = ablation.runs_with([faster, slower])
    if not runs:
        return None
    one, other = (
        {run: ablation.by_run(name)[run].samples_per_second.windows for run in runs} for name in (faster, slower)
    )
    return ratio_of_runs(one, other)


def control(ablation: Ablation) -> Ratio | None:
    """The baseline over itself, measured as if it were another program: an interval that should include 1."""
    return compared(ablation, CONTROL, BASELINE)


def amp_over_tf32(ablation: Ablation) -> Ratio | None:
    """What amp gains over float32 as cuDNN multiplies it unless told not to: both on the baseline with TF32."""
    return compared(ablation, together(Pair("amp", TF32)), alone(TF32))


def effects(ablation: Ablation) -> list[Effect]:
    """The `Effect` of each optimisation, in the order of the steps."""
    reasons = {optimisation.name: optimisation.why for optimisation in ablation.no_effect}
    results = []
    for name in NAMES:
        with_it, without_it = _in_full(ablation, name)
        results.append(
            Effect(
                optimisation=name,
                alone=compared(ablation, alone(name), before(name)),
                in_full=compared(ablation, with_it, without_it),
                full_over_alone=_products(ablation, [with_it, before(name)], [without_it, alone(name)]),
                no_effect=reasons.get(name),
            )
        )
    return results


def _in_full(ablation: Ablation, name: str) -> tuple[str, str]:
    """`plan.in_full`; with the full ladder itself in an older record, where nothing in it needs the optimisation."""
    with_it, without_it = in_full(name)
    in_ladder = {on for measurement in ablation.by_run(FULL).values() for on in measurement.on}
    older = dependents(name) and not ablation.by_run(with_it) and in_ladder.isdisjoint(dependents(name))
    return (FULL if older else with_it), without_it


def whole_ladder(ablation: Ablation) -> tuple[Ratio | None, Ratio | None]:
    """The full ladder over the baseline, and what is predicted for it: the product of the effects of each alone.

    There is no prediction with fewer than two runs.
    """
    without_effect = {optimisation.name for optimisation in ablation.no_effect}
    without_effect |= set(ablation.alone_only)
    with_effect = [name for name in LADDER if name not in without_effect]
    predicted = _products(ablation, [BASELINE, *map(alone, with_effect)], [BASELINE, *map(before, with_effect)])
    return compared(ablation, FULL, BASELINE), predicted


def interactions(ablation: Ablation) -> list[Interaction]:
    """The `Interaction` of each pair that was to be measured."""
    results = []
    for pair in pairs([optimisation.name for optimisation in ablation.no_effect]):
        first, second, both = alone(pair.first), alone(pair.second), together(pair)
        ratio = _products(ablation, [both, BASELINE], [first, second])
        results.append(
            Interaction(
                pair=pair,
                first=compared(ablation, first, BASELINE),
                second=compared(ablation, second, BASELINE),
                together=compared(ablation, both, BASELINE),
                ratio=ratio,
                verdict=ratio and verdict(ratio),
            )
        )
    return results


def verdict(ratio: Ratio) -> str:
    """ "more" or "less" than 1 where that is measurable, else "none"."""
    if not ratio.resolved:
        return "none"
    return "more" if ratio.ratio > 1 else "less"


def depends_on_place(ablation: Ablation) -> list[Effect]:
    """Every `Effect` that is measurably different in the full ladder than alone."""
    return [effect for effect in effects(ablation) if effect.full_over_alone and effect.full_over_alone.resolved]


def _products(ablation: Ablation, times: Sequence[str], over: Sequence[str]) -> Ratio | None:
    """The product of variants' speeds over that of others, by run; None where fewer than two runs have them all."""
    runs = ablation.runs_with([*times, *over])
    if len(runs) < 2:
        return None

    def product(names: Sequence[str], run: int) -> float:
        return math.prod(ablation.by_run(name)[run].samples_per_second.median for name in names)

    return of_pairs([product(times, run) / product(over, run) for run in runs])


def show(ablation: Ablation, to: "Console") -> None:
    """Print an `Ablation` to the console `to`."""
    from rich.markup import escape
    from rich.text import Text

    setup, environment = ablation.setup, ablation.environment
    to.print(
        f"\n[bold]{escape(setup.model)}[/], {data_label(setup.data or '')}, {setup.image_size} px, batch "
        f"{ablation.batch_size} (32 without bigger_batch), on [bold]{escape(setup.device)}[/] ({environment.cores} "
        f"CPU cores), torch {escape(environment.torch)}; {ablation.run_count} interleaved run(s)\n"
    )
    to.print(programs_table(ablation))
    to.print()
    table, notes = effects_table(ablation)
    to.print(table)
    to.print()
    measured = interactions(ablation)
    if any(pair.together for pair in measured):
        to.print(pairs_table(measured))
        to.print()
    for line in (*interaction_lines(measured), *tf32_lines(ablation), *place_lines(ablation), *control_lines(ablation)):
        to.print(line)
    study.print_unsteady((measurement.samples_per_second.windows for measurement in ablation.measurements), to)
    if ablation.missing:
        to.print(Text(f"Unfinished: {len(ablation.missing)} measurements missing; the same command goes on.", "yellow"))
    for number, note in enumerate(notes, start=1):
        to.print(Text(f"[{number}] {note}", "yellow"))
    for variant in ablation.not_run:
        to.print(Text(f"{variant.name} was not run: {variant.why}.", "yellow"))
    study.print_notes(ablation.notes, to)
    to.print(Text(_legend(ablation), "dim"))


def programs_table(ablation: Ablation) -> "Table":
    """The baseline, the same again, the full ladder, and what is predicted for it from each alone."""
    table = plain_table("program", ["images/s", "runs", "vs baseline"])
    ladder, predicted = whole_ladder(ablation)
    on_device = in_full(ON_DEVICE)[0]
    for name, ratio in ((BASELINE, None), (CONTROL, control(ablation)), (FULL, ladder), (on_device, None)):
        speeds = _speeds(ablation, name)
        if speeds:
            relative = "1.00x" if name == BASELINE else "" if ratio is None else study.ratio_cell(ratio)
            table.add_row(
                name, f"{statistics.median(speeds):.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", relative
            )  # fmt: skip
    if predicted:
        table.add_row("each alone, multiplied", "", "", study.ratio_cell(predicted))
    return table


def effects_table(ablation: Ablation) -> tuple["Table", list[str]]:
    """The table of effects, and notes, which it refers to as [1], [2] …: why optimisations have no effect here.

    Where a GPU is what is missing, the table says so itself.
    """
    notes = []
    table = plain_table("optimisation", ["alone\nimages/s", "\nalone", "full without\nimages/s", "in the\nfull ladder"])
    for effect in effects(ablation):
        if effect.no_effect and effect.no_effect.startswith("no GPU: "):
            table.add_row(effect.optimisation, "-", "needs a GPU", "-", "-")
            continue
        if effect.no_effect:
            notes.append(f"{effect.optimisation} has no effect on this device: {effect.no_effect}.")
            table.add_row(effect.optimisation, "-", f"no effect [dim]\\[{len(notes)}][/]", "-", "-")
            continue
        without = in_full(effect.optimisation)[1]
        table.add_row(
            effect.optimisation,
            _speed(ablation, alone(effect.optimisation)),
            study.ratio_cell(effect.alone),
            _speed(ablation, without),
            study.ratio_cell(effect.in_full),
        )
    return table, notes


def pairs_table(pairs: Sequence[Interaction]) -> "Table":
    """The pairs: the effect of each alone, together, and whether they interact."""
    table = plain_table("pair", ["first", "second", "together", "together over\nfirst x second", "interaction"])
    for pair in pairs:
        ratios = (pair.first, pair.second, pair.together, pair.ratio)
        table.add_row(str(pair.pair), *map(study.ratio_cell, ratios), SEEN[pair.verdict])
    return table


def interaction_lines(pairs: Sequence[Interaction]) -> "list[Text]":
    """Lines that name the pairs that interact, and those without a measurable interaction."""
    from rich.text import Text

    lines = []
    for pair in pairs:
        if pair.ratio and pair.verdict in ("more", "less"):
            why = f" What may be behind it: {pair.pair.why}." if pair.pair.why else ""
            lines.append(
                Text(f"{pair.pair} together gain {pair.verdict} than predicted from each alone, {pair.ratio}.{why}")
            )
    unresolved = [str(pair.pair) for pair in pairs if pair.verdict == "none"]
    if unresolved:
        lines.append(Text(f"No measurable interaction: {', '.join(unresolved)}."))
    if any(pair.together and pair.ratio is None for pair in pairs):
        lines.append(Text("Interactions are computed from two runs on: a larger --runs adds some.", "yellow"))
    return lines


def tf32_lines(ablation: Ablation) -> "list[Text]":
    """A line with what amp gains over TF32, where that was measured."""
    from rich.text import Text

    over_tf32, over_float32 = amp_over_tf32(ablation), compared(ablation, alone("amp"), BASELINE)
    if not (over_tf32 and over_float32):
        return []
    return [Text(f"AMP over TF32, which cuDNN uses unless told not to: {over_tf32}; over true fp32: {over_float32}.")]


def place_lines(ablation: Ablation) -> "list[Text]":
    """Lines that name what has another effect in the full ladder than alone."""
    from rich.text import Text

    return [
        Text(
            f"{effect.optimisation} depends on its place: {effect.in_full} in the full ladder, {effect.alone} alone; "
            f"the one over the other, {effect.full_over_alone}."
        )
        for effect in depends_on_place(ablation)
    ]


def control_lines(ablation: Ablation) -> "list[Text]":
    """A line where the control's interval leaves 1 out, though it is the baseline's program."""
    from rich.text import Text

    ratio = control(ablation)
    if ratio is None or not ratio.resolved:
        return []
    return [
        Text(
            f"The control, the baseline's program measured once more, came out at {ratio}. It should include 1, and by "
            "chance 1 of 20 does not; or what differs within a run (order, drift) is larger than the intervals say.",
            "yellow",
        )
    ]


def _legend(ablation: Ablation) -> str:
    count = ablation.run_count
    runs = (
        f"one program over another of the same run, mean over {count} runs and 95 % interval"
        if count > 1
        else "one program over another, and the 95 % interval by the windows of one run, which says nothing of how "
        "runs differ"
    )
    not_in_full = ", ".join((*ADDED, *ablation.alone_only))
    added, needing = ", ".join(ADDED), ", ".join(f"{name} ({needed})" for name, needed in NEEDS.items())
    return (
        f"1.39x (1.31-1.48): {runs}. ~, grey: no measurable difference. Of 20 intervals, 1 excludes 1 by chance.\n"
        "control: the baseline's program measured as if it were another; its interval should include 1.\n"
        "alone: the baseline with it over the baseline; of those that need another, over the baseline with that: "
        f"{needing}.\n"
        f"full: all together but {not_in_full}. in the full ladder: full over full without it; for {added}, full with "
        "it over full. on_device_data replaces loader, workers, pinned memory, prefetching and small images.\n"
        "interaction: together over first x second, run by run; more or less than 1 where that is measurable."
    )


def _speeds(ablation: Ablation, variant: str) -> list[float]:
    """images/s of each run of a variant."""
    return [measurement.samples_per_second.median for measurement in ablation.by_run(variant).values()]


def _speed(ablation: Ablation, variant: str) -> str:
    speeds = _speeds(ablation, variant)
    return f"{statistics.median(speeds):.1f}" if speeds else "-"


def figure(ablation: Ablation) -> "Figure":
    """A matplotlib `Figure`: a row for the control and for each optimisation, its two ratios on a log axis."""
    from matplotlib.figure import Figure  # half a second to import

    rows, noise = effects(ablation), control(ablation)
    drawn_figure = Figure(figsize=(9, 2.2 + 0.45 * len(rows)), layout="constrained")
    axes = drawn_figure.subplots()
    axes.set_xscale("log")
    axes.axvline(1, color=GREY, linewidth=1)
    series = (
        ("alone: over the baseline, with what it needs", SPEED, "o", -0.15, [effect.alone for effect in rows]),
        ("in the full ladder: over the ladder without it", MEMORY, "s", 0.15, [effect.in_full for effect in rows]),
    )
    for label, colour, marker, shift, ratios in series:
        drawn = [(row + shift, ratio) for row, ratio in enumerate(ratios, start=1) if ratio]
        study.draw_ratios(axes, drawn, colour=colour, marker=marker, label=label)
    if noise:
        study.draw_ratios(axes, [(0, noise)], colour=SLOWER, marker="D", label="control: baseline over baseline")
    for row, effect in enumerate(rows, start=1):
        if not (effect.alone or effect.in_full):
            text = "no effect on this device" if effect.no_effect else "not measured"
            axes.annotate(text, (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
    shown = [ratio for _, *_, ratios in series for ratio in ratios if ratio] + ([noise] if noise else [])
    low, high = study.shown_range(shown)
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
    return drawn_figure


def shown_ticks(low: float, high: float) -> list[float]:
    """The finest round ratios on the axis that are not too many and reach over most of it."""
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in TICKS]
    fits = [ticks for ticks in within if len(ticks) <= MOST_TICKS and max(ticks) * 2 > high and min(ticks) < low * 2]
    return max(fits or within[:1], key=len)


def _interval_of(ablation: Ablation) -> str:
    runs = ablation.run_count
    return f"mean of {runs} interleaved runs, 95 % interval" if runs > 1 else "one run, 95 % interval of its windows"
