"""An ablation as tables in the terminal, understandable without the docs."""

import statistics

from rich.markup import escape
from rich.text import Text

from common.explain.terminal import plain_table
from common.ladder.table import UNSTEADY
from common.studies.ablation.plan import BASELINE, CONTROL, FULL, ON_DEVICE, alone, in_full
from common.studies.ablation.record import (
    control,
    depends_on_place,
    effects,
    interactions,
    noise_of,
    verdict,
    whole_ladder,
)

SMOKE = "Smoke run (--quick): few and short windows, so the figures are rough."
SEEN = {"more": "more", "less": "less", "none": "none seen"}
GAINS = {"more": "gains", "less": "costs", "none": "shows no difference"}


def print_ablation(ablation, to):
    """Print an `ablation_record.Ablation` to the console `to`."""
    settings, environment = ablation.settings, ablation.environment
    data = "CIFAR-10" if settings.data == "cifar10" else "stand-in data (not CIFAR-10)"
    to.print(
        f"\n[bold]{escape(settings.model)}[/], {data}, {settings.image_size} px, batch {settings.batch_size} (32 "
        f"without bigger_batch), on [bold]{escape(settings.device)}[/] ({environment.cores} CPU cores), torch "
        f"{escape(environment.torch)}; {ablation.whole_runs} interleaved run(s)\n"
    )
    to.print(programs_table(ablation))
    to.print()
    found, notes = effects(ablation), []
    to.print(effects_table(ablation, found, notes))
    to.print()
    paired = interactions(ablation)
    if any(each.ratio for each in paired):
        to.print(pairs_table(paired))
        to.print()
    for line in (*named(paired), *of_place(ablation)):
        to.print(line)
    noise = control(ablation)
    if noise and (noise.high - noise.low) / 2 > UNSTEADY:
        to.print(Text("UNSTEADY: the baseline differs widely from itself: something kept this machine busy.", "red"))
    if ablation.missing:
        to.print(Text(f"Unfinished: {len(ablation.missing)} measurements are missing; --resume goes on.", "yellow"))
    for number, note in enumerate(notes, start=1):
        to.print(Text(f"[{number}] {note}", "yellow"))
    for each in ablation.not_run:
        to.print(Text(f"{each.name} was not run: {each.why}.", "yellow"))
    for note in dict.fromkeys(note for each in ablation.measurements for note in each.notes):
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    if settings.quick:
        to.print(Text(SMOKE, "yellow"))
    to.print(Text(_legend(ablation), "dim"))


def programs_table(ablation):
    """The baseline, the same again, the full ladder, and what each alone would promise for it."""
    table = plain_table("program", ["images/s", "runs", "vs baseline"])
    ladder, promised = whole_ladder(ablation)
    on_device = in_full(ON_DEVICE)[0]
    for name, ratio in ((BASELINE, None), (CONTROL, control(ablation)), (FULL, ladder), (on_device, None)):
        speeds = [each.samples_per_second.median for each in ablation.of(name).values()]
        if speeds:
            told = "1.00x" if name == BASELINE else "" if ratio is None else _spread(ratio)
            table.add_row(
                name, f"{statistics.median(speeds):.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", told
            )  # fmt: skip
    if promised:
        table.add_row("each alone, multiplied", "", "", _spread(promised))
    return table


def effects_table(ablation, found, notes):
    """The table of effects; puts into `notes` why optimisations cannot act, and marks them with its number."""
    beyond = noise_of(ablation)
    table = plain_table("optimisation", ["alone\nimages/s", "\nalone", "full without\nimages/s", "in the\nfull ladder"])
    for effect in found:
        if effect.cannot_act:
            notes.append(f"{effect.optimisation} cannot act here: {effect.cannot_act}.")
            table.add_row(effect.optimisation, "-", f"cannot act here [dim]\\[{len(notes)}][/]", "-", "-")
            continue
        without = in_full(effect.optimisation)[1]
        table.add_row(
            effect.optimisation,
            _speed(ablation, alone(effect.optimisation)),
            effect_text(effect.alone, beyond),
            _speed(ablation, without),
            effect_text(effect.in_full, beyond),
        )
    return table


def pairs_table(paired):
    """The pairs: what each brings alone, together, and whether they interact."""
    table = plain_table("pair", ["first", "second", "together", "together over\nfirst x second", "interaction"])
    for each in paired:
        ratios = [f"{ratio.ratio:.2f}x" if ratio else "-" for ratio in (each.first, each.second, each.together)]
        ratio = _spread(each.ratio) if each.ratio else "-"
        table.add_row(str(each.pair), *ratios, ratio, SEEN.get(each.verdict, "-"))
    return table


def named(paired):
    """Lines that name the pairs that interact, and those where none was seen."""
    lines = []
    for each in paired:
        if each.verdict in ("more", "less"):
            told = f"{each.pair} bring {each.verdict} together than each alone promises, {_spread(each.ratio)}."
            lines.append(Text(told + (f" What may be behind it: {each.pair.why}." if each.pair.why else "")))
    none = [str(each.pair) for each in paired if each.verdict == "none"]
    if none:
        lines.append(Text(f"No interaction seen: {', '.join(none)}."))
    if any(each.ratio and each.verdict is None for each in paired):
        lines.append(Text("Interactions are named from two runs on: --resume --runs N adds some.", "yellow"))
    return lines


def of_place(ablation):
    """Lines that name what brings something in one place and not in the other."""
    return [
        Text(f"{name} {GAINS[by_itself]} alone and {GAINS[there]} in the full ladder.")
        for name, by_itself, there in depends_on_place(ablation)
    ]


def _legend(ablation):
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
        "on_device_data replaces loader, workers, pinned memory and prefetching (and hands out uint8), so in the full "
        "ladder it is full with it over full.\n"
        "interaction: together over first x second, run by run; more or less where all runs lie on that side of 1, "
        "farther than the control did, squared: it is a ratio of two ratios."
    )


def effect_text(ratio, beyond):
    """A ratio with its range; "no difference" where that holds 1, or is no farther from it than the factor `beyond`."""
    if ratio is None:
        return "-"
    return str(ratio) if ratio.differs and verdict(ratio, beyond) != "none" else "no difference"


def _spread(ratio):
    """A ratio with its range, even where that holds 1; without, where one run gives none."""
    if ratio.low == ratio.high:
        return f"{ratio.ratio:.2f}x"
    return f"{ratio.ratio:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _speed(ablation, variant):
    speeds = [each.samples_per_second.median for each in ablation.of(variant).values()]
    return f"{statistics.median(speeds):.1f}" if speeds else "-"
