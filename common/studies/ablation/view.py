"""An ablation as tables in the terminal, understandable without the docs."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.explain.terminal import plain_table
from common.ladder.compare import Ratio
from common.ladder.table import UNSTEADY
from common.record import data_label
from common.studies import study
from common.studies.ablation.effects import (
    Interaction,
    control,
    depends_on_place,
    effects,
    interactions,
    noise_of,
    verdict,
    whole_ladder,
)
from common.studies.ablation.plan import BASELINE, CONTROL, FULL, ON_DEVICE, alone, in_full
from common.studies.ablation.record import Ablation

SEEN = {"more": "more", "less": "less", "none": "none seen", None: "-"}
GAINS = {"more": "gains", "less": "costs", "none": "shows no difference"}


def show(ablation: Ablation, to: Console) -> None:
    """Print an `Ablation` to the console `to`."""
    setup, environment = ablation.setup, ablation.environment
    to.print(
        f"\n[bold]{escape(setup.model)}[/], {data_label(setup.data or '')}, {setup.image_size} px, batch "
        f"{ablation.batch_size} (32 without bigger_batch), on [bold]{escape(setup.device)}[/] ({environment.cores} "
        f"CPU cores), torch {escape(environment.torch)}; {ablation.whole_runs} interleaved run(s)\n"
    )
    to.print(programs_table(ablation))
    to.print()
    table, notes = effects_table(ablation)
    to.print(table)
    to.print()
    pairs = interactions(ablation)
    if any(pair.ratio for pair in pairs):
        to.print(pairs_table(pairs))
        to.print()
    for line in (*interaction_lines(pairs), *place_lines(ablation)):
        to.print(line)
    noise = control(ablation)
    if noise and (noise.high - noise.low) / 2 > UNSTEADY:
        to.print(Text("UNSTEADY: the baseline differs widely from itself: something kept this machine busy.", "red"))
    if ablation.missing:
        to.print(Text(f"Unfinished: {len(ablation.missing)} measurements are missing; --resume goes on.", "yellow"))
    for number, note in enumerate(notes, start=1):
        to.print(Text(f"[{number}] {note}", "yellow"))
    for variant in ablation.not_run:
        to.print(Text(f"{variant.name} was not run: {variant.why}.", "yellow"))
    study.print_notes(ablation.notes, to)
    to.print(Text(_legend(ablation), "dim"))


def programs_table(ablation: Ablation) -> Table:
    """The baseline, the same again, the full ladder, and what is predicted for it from each alone."""
    table = plain_table("program", ["images/s", "runs", "vs baseline"])
    ladder, predicted = whole_ladder(ablation)
    on_device = in_full(ON_DEVICE)[0]
    for name, ratio in ((BASELINE, None), (CONTROL, control(ablation)), (FULL, ladder), (on_device, None)):
        speeds = _speeds(ablation, name)
        if speeds:
            relative = "1.00x" if name == BASELINE else "" if ratio is None else _with_range(ratio)
            table.add_row(
                name, f"{statistics.median(speeds):.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", relative
            )  # fmt: skip
    if predicted:
        table.add_row("each alone, multiplied", "", "", _with_range(predicted))
    return table


def effects_table(ablation: Ablation) -> tuple[Table, list[str]]:
    """The table of effects, and notes, which it refers to as [1], [2] …: why optimisations have no effect here."""
    beyond, notes = noise_of(ablation), []
    table = plain_table("optimisation", ["alone\nimages/s", "\nalone", "full without\nimages/s", "in the\nfull ladder"])
    for effect in effects(ablation):
        if effect.no_effect:
            notes.append(f"{effect.optimisation} has no effect on this device: {effect.no_effect}.")
            table.add_row(effect.optimisation, "-", f"no effect [dim]\\[{len(notes)}][/]", "-", "-")
            continue
        without = in_full(effect.optimisation)[1]
        table.add_row(
            effect.optimisation,
            _speed(ablation, alone(effect.optimisation)),
            effect_text(effect.alone, beyond),
            _speed(ablation, without),
            effect_text(effect.in_full, beyond),
        )
    return table, notes


def pairs_table(pairs: Sequence[Interaction]) -> Table:
    """The pairs: the effect of each alone, together, and whether they interact."""
    table = plain_table("pair", ["first", "second", "together", "together over\nfirst x second", "interaction"])
    for pair in pairs:
        ratios = [f"{ratio.ratio:.2f}x" if ratio else "-" for ratio in (pair.first, pair.second, pair.together)]
        ratio = _with_range(pair.ratio) if pair.ratio else "-"
        table.add_row(str(pair.pair), *ratios, ratio, SEEN[pair.verdict])
    return table


def interaction_lines(pairs: Sequence[Interaction]) -> list[Text]:
    """Lines that name the pairs that interact, and those where none was seen."""
    lines = []
    for pair in pairs:
        if pair.ratio and pair.verdict in ("more", "less"):
            ratio, why = _with_range(pair.ratio), f" What may be behind it: {pair.pair.why}." if pair.pair.why else ""
            lines.append(
                Text(f"{pair.pair} together gain {pair.verdict} than predicted from each alone, {ratio}.{why}")
            )
    none = [str(pair.pair) for pair in pairs if pair.verdict == "none"]
    if none:
        lines.append(Text(f"No interaction seen: {', '.join(none)}."))
    if any(pair.ratio and pair.verdict is None for pair in pairs):
        lines.append(Text("Interactions are named from two runs on: --resume --runs N adds some.", "yellow"))
    return lines


def place_lines(ablation: Ablation) -> list[Text]:
    """Lines that name what has an effect in one place and not in the other."""
    return [
        Text(f"{name} {GAINS[by_itself]} alone and {GAINS[there]} in the full ladder.")
        for name, by_itself, there in depends_on_place(ablation)
    ]


def _legend(ablation: Ablation) -> str:
    runs = (
        "the median over the runs of one program over another of the same run, and its range"
        if ablation.whole_runs > 1
        else "the median windows' ratio, and the range that the windows of this one run allow"
    )
    return (
        f"1.39x (1.31-1.48): {runs}; no difference: that range holds 1, or is no farther from "
        "it than the control's.\n"
        "control: the baseline's program measured as if it were another: what no difference looks like.\n"
        "alone: the baseline with it over the baseline. full: steps 01 to 09 together. in the full ladder: full over "
        "full without it.\n"
        "on_device_data replaces loader, workers, pinned memory and prefetching (and yields uint8), so in the full "
        "ladder it is full with it over full.\n"
        "interaction: together over first x second, run by run; more or less where all runs lie on that side of 1, "
        "farther than the control did, squared: it is a ratio of two ratios."
    )


def effect_text(ratio: Ratio | None, beyond: float) -> str:
    """A ratio with its range; "no difference" where that holds 1, or is no farther from it than the factor `beyond`."""
    if ratio is None:
        return "-"
    return str(ratio) if ratio.differs and verdict(ratio, beyond) != "none" else "no difference"


def _with_range(ratio: Ratio) -> str:
    """A ratio with its range, even where that holds 1; without, where one run gives none."""
    if ratio.low == ratio.high:
        return f"{ratio.ratio:.2f}x"
    return f"{ratio.ratio:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _speeds(ablation: Ablation, variant: str) -> list[float]:
    """images/s of each run of a variant."""
    return [measurement.samples_per_second.median for measurement in ablation.by_run(variant).values()]


def _speed(ablation: Ablation, variant: str) -> str:
    speeds = _speeds(ablation, variant)
    return f"{statistics.median(speeds):.1f}" if speeds else "-"
