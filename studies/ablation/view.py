"""An ablation as tables in the terminal, understandable without the docs."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from studies import study
from studies.ablation.effects import (
    Interaction,
    amp_over_tf32,
    compared,
    control,
    depends_on_place,
    effects,
    interactions,
    whole_ladder,
)
from studies.ablation.plan import ADDED, BASELINE, CONTROL, FULL, NEEDS, ON_DEVICE, alone, in_full
from studies.ablation.record import Ablation
from studies.study import ratio_cell
from walkthrough.results.result import data_label
from walkthrough.terminal import plain_table

SEEN = {"more": "more", "less": "less", "none": "none measurable", None: "-"}


def show(ablation: Ablation, to: Console) -> None:
    """Print an `Ablation` to the console `to`."""
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
    pairs = interactions(ablation)
    if any(pair.together for pair in pairs):
        to.print(pairs_table(pairs))
        to.print()
    for line in (*interaction_lines(pairs), *tf32_lines(ablation), *place_lines(ablation), *control_lines(ablation)):
        to.print(line)
    study.print_unsteady((measurement.samples_per_second.windows for measurement in ablation.measurements), to)
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
            relative = "1.00x" if name == BASELINE else "" if ratio is None else ratio_cell(ratio)
            table.add_row(
                name, f"{statistics.median(speeds):.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", relative
            )  # fmt: skip
    if predicted:
        table.add_row("each alone, multiplied", "", "", ratio_cell(predicted))
    return table


def effects_table(ablation: Ablation) -> tuple[Table, list[str]]:
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
            ratio_cell(effect.alone),
            _speed(ablation, without),
            ratio_cell(effect.in_full),
        )
    return table, notes


def pairs_table(pairs: Sequence[Interaction]) -> Table:
    """The pairs: the effect of each alone, together, and whether they interact."""
    table = plain_table("pair", ["first", "second", "together", "together over\nfirst x second", "interaction"])
    for pair in pairs:
        ratios = (pair.first, pair.second, pair.together, pair.ratio)
        table.add_row(str(pair.pair), *map(ratio_cell, ratios), SEEN[pair.verdict])
    return table


def interaction_lines(pairs: Sequence[Interaction]) -> list[Text]:
    """Lines that name the pairs that interact, and those without a measurable interaction."""
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
        lines.append(Text("Interactions are computed from two runs on: --resume --runs N adds some.", "yellow"))
    return lines


def tf32_lines(ablation: Ablation) -> list[Text]:
    """A line with what amp gains over TF32, where that was measured."""
    over_tf32, over_float32 = amp_over_tf32(ablation), compared(ablation, alone("amp"), BASELINE)
    if not (over_tf32 and over_float32):
        return []
    return [Text(f"AMP over TF32, which cuDNN uses unless told not to: {over_tf32}; over true fp32: {over_float32}.")]


def place_lines(ablation: Ablation) -> list[Text]:
    """Lines that name what has another effect in the full ladder than alone."""
    return [
        Text(
            f"{effect.optimisation} depends on its place: {effect.in_full} in the full ladder, {effect.alone} alone; "
            f"the one over the other, {effect.full_over_alone}."
        )
        for effect in depends_on_place(ablation)
    ]


def control_lines(ablation: Ablation) -> list[Text]:
    """A line where the control's interval leaves 1 out, though it is the baseline's program."""
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
