"""The ablation: optimisations in combinations that the ladder passes by, and which of them interact.

The command, its plan and its runs, and what follows from them; `studies.switches` is the program. Starts without torch.

Some optimisations need another (`NEEDS`): compile_loss without compile would be nothing. Alone, it is compared
with the baseline that has what it needs; in the full ladder, an optimisation is compared without what needs it.

Some are no part of "the full ladder", which the others are left out of (`ADDED`); their effect there is the full ladder
with them over the full ladder. on_device_data takes the place of the loader and of all that is done to it; tf32 is no
step, but what cuDNN does unless told not to.

Runs are interleaved: run 1 of all variants, then run 2 of all, backwards, so that a machine that drifts (heat,
neighbours) does it to every variant alike. Effects are computed run by run: run k of one variant over run k of another;
`compare.statistics` gives the mean of these ratios and its interval.
"""

import argparse
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.options import StepOptions
from studies import study
from walkthrough.compare.figures import GREY, MEMORY, SLOWER, SPEED, in_style, step_label
from walkthrough.compare.statistics import Mean, Ratio, of_pairs
from walkthrough.compare.statistics import mean as mean_of
from walkthrough.compare.statistics import ratio as ratio_of_runs
from walkthrough.compare.study import Measurements, NotMeasured, Row, Study, interval
from walkthrough.compare.study import read as read_study
from walkthrough.results import privacy, progress
from walkthrough.results.environment import cpu_bf16_hardware
from walkthrough.results.errors import InputError
from walkthrough.results.result import write_json

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

FILE_NAME = "ablation.json"
UNFINISHED = "unfinished: the same command goes on"
RUNS, QUICK_RUNS = 5, 1
LIMIT_SECONDS = 1800  # of one measurement, compiling and all: beyond it something hangs
SEEN = {"more": "more", "less": "less", "none": "none measurable", None: "-"}
TICKS = (  # from coarse to fine
    (0.01, 0.1, 1, 10, 100),
    (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10),
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2),
)
MOST_TICKS = 9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ablate`."""
    bigger_batch = {"--batch-size": "images per step where bigger_batch is on (default: %(default)s)"}
    study.add_options(parser, texts=bigger_batch, runs="runs of everything (default: 5; 1 with --quick)")


def run(args: argparse.Namespace) -> int:
    """Measure, write `ablation.json` into `args.logdir`, print it, draw it with `args.plot`. Returns 0.

    Raises InputError for what the user can fix: options, a baseline that cannot be run.
    """
    options = study.ready(args)
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    return study.run(args, lambda: measure(options, runs), figure, "; a larger --runs adds runs")


@dataclass(frozen=True)
class Optimisations:
    """Which optimisations a training program has, one field for each step from 01 to 15; all off is the baseline.

    tf32: convolutions and matrix products of float32 on Tensor Cores, with 10 bits of mantissa.
    """

    amp: bool = False
    bigger_batch: bool = False
    reduced_h2d_copy: bool = False
    multiprocess_loading: bool = False
    pinned_memory: bool = False
    prefetch_stream: bool = False
    small_images: bool = False
    on_device_data: bool = False
    channels_last: bool = False
    no_hidden_syncs: bool = False
    fused_optimizer: bool = False
    cudnn_benchmark: bool = False
    compile: bool = False
    compile_loss: bool = False
    cuda_graphs: bool = False
    tf32: bool = False


NAMES = tuple(field.name for field in fields(Optimisations))
ON_DEVICE, TF32 = "on_device_data", "tf32"
ADDED = (ON_DEVICE, TF32)
LADDER = tuple(name for name in NAMES if name not in ADDED)
NEEDS = {"small_images": "reduced_h2d_copy", "compile_loss": "compile", "cuda_graphs": "compile"}
BASELINE, CONTROL, FULL = "baseline", "control", "full"
MULTIPLIED = "each alone, multiplied"
BASELINE_BATCH = 32  # images: that of steps 00 and 01


@dataclass(frozen=True)
class Pair:
    """Two optimisations, and why one may change the effect of the other, in a clause."""

    first: str
    second: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.first} + {self.second}"


PAIRS = (
    Pair("amp", "multiprocess_loading", "while the loader is the bottleneck, a faster model only waits longer for it"),
    Pair("amp", "channels_last", "Tensor Cores want the channels of a pixel side by side; fp32 profits less"),
    Pair(
        "bigger_batch", "multiprocess_loading",
        "an image costs the loader the same in any batch: a bigger one helps only where nothing waits for it",
    ),
    Pair("bigger_batch", "compile", "fewer launches matter most where small batches make launching the limit"),
    Pair(
        "reduced_h2d_copy", "multiprocess_loading",
        "both take work from the main process, and what workers do costs it nothing any more",
    ),
    Pair("reduced_h2d_copy", "pinned_memory", "a quarter of the bytes leaves less for a faster copy to save"),
    Pair(
        "multiprocess_loading", "pinned_memory",
        "without workers the main process itself copies each batch into pinned memory; with them a thread does",
    ),
    Pair("channels_last", "compile", "both decide the layout of tensors, and fused kernels need fewer conversions"),
    Pair("pinned_memory", "prefetch_stream", "a copy overlaps kernels only from pinned memory"),
    Pair("no_hidden_syncs", "prefetch_stream", "a loop that waits for every loss asks for its next batch late"),
    Pair("amp", TF32, "both use Tensor Cores: what amp gains over TF32 is what most people get from it"),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One training program to be measured: its name in tables and in the record, and the optimisations that are on."""

    name: str
    on: tuple[str, ...]

    @property
    def optimisations(self) -> Optimisations:
        return Optimisations(**dict.fromkeys(self.on, True))


def alone(name: str) -> str:
    """The variant's name: the baseline with one optimisation enabled, and with what it needs."""
    return f"{BASELINE} + {name}"


def before(name: str) -> str:
    """The variant's name that `alone` is compared with: the baseline, with what the optimisation needs."""
    return alone(NEEDS[name]) if name in NEEDS else BASELINE


def in_full(name: str) -> tuple[str, str]:
    """Two variants' names, with and without: their ratio is the effect of an optimisation in the full ladder.

    What needs the optimisation is in neither.
    """
    needing = dependents(name)
    full = f"{FULL} without {' and '.join(needing)}" if needing else FULL
    return (f"{FULL} + {name}", FULL) if name in ADDED else (full, f"{FULL} without {name}")


def together(pair: Pair) -> str:
    """The variant's name: the baseline with both of a `Pair`."""
    return f"{BASELINE} + {pair}"


def variants(no_effect: Collection[str], alone_only: Collection[str] = ()) -> list[Variant]:
    """All `Variant`s of an ablation, in the order in which the first run measures them.

    no_effect: names of optimisations that change nothing on this device; no variant is measured for them. The full
    ladder has them nevertheless, as step 15 does, all but `compile` and what needs it, which would stop it. alone_only:
    those that are measured alone, but are neither in the full ladder nor in a pair.
    """
    effective = [name for name in NAMES if name not in no_effect]
    left_out = {*alone_only, *(("compile", *dependents("compile")) if "compile" in no_effect else ())}
    full = tuple(name for name in LADDER if name not in left_out)
    plan = [Variant(BASELINE, ())]
    plan += [Variant(alone(name), _with_needs(name)) for name in effective]
    plan += [Variant(FULL, full), Variant(CONTROL, ())]  # as far from the baseline as others are: it shows drift too
    in_ladder: dict[str, Variant] = {}
    for name in effective:
        with_it, without_it = in_full(name)
        if name in ADDED:
            in_ladder[with_it] = Variant(with_it, (*full, name))
        elif name in full:
            rest = tuple(other for other in full if other not in dependents(name))
            in_ladder[without_it] = Variant(without_it, tuple(other for other in rest if other != name))
            if with_it != FULL:
                in_ladder[with_it] = Variant(with_it, rest)
    return [*plan, *in_ladder.values()] + [
        Variant(together(pair), tuple(dict.fromkeys((*_with_needs(pair.first), *_with_needs(pair.second)))))
        for pair in pairs(no_effect, alone_only)
    ]


def _with_needs(name: str) -> tuple[str, ...]:
    return (NEEDS[name], name) if name in NEEDS else (name,)


def dependents(name: str) -> tuple[str, ...]:
    """The optimisations that need that one."""
    return tuple(other for other, needed in NEEDS.items() if needed == name)


def pairs(no_effect: Collection[str], alone_only: Collection[str] = ()) -> list[Pair]:
    """The `Pair`s to measure: those of `PAIRS` that have an effect here, and that one would use together."""
    return [pair for pair in PAIRS if not {pair.first, pair.second} & {*no_effect, *alone_only}]


def no_effect(options: StepOptions, autocast_off: str | None) -> dict[str, str]:
    """{optimisation: why} of those that have no effect on this device with these options.

    autocast_off: why autocast is off; None where it is on.
    """
    from common.device import without_gpu  # torch: what reads a record has no need of it

    reasons = {}
    if autocast_off:
        reasons["amp"] = autocast_off
    if options.batch_size == BASELINE_BATCH:
        reasons["bigger_batch"] = f"--batch-size {options.batch_size} is the baseline's"
    if not options.workers:
        reasons["multiprocess_loading"] = "--workers 0 loads in the main process"
    # Those steps whose docstring says that they need a GPU; the others are another program without one too.
    for name in ("pinned_memory", "prefetch_stream", "no_hidden_syncs", "cudnn_benchmark", "cuda_graphs", TF32):
        for reason in without_gpu(name, options.device):
            reasons[name] = reason
    return {name: reasons[name] for name in NAMES if name in reasons}


def measure(options: StepOptions, runs: int) -> Study:
    """Measure what is not in `options.logdir` yet of an ablation with these options. Prints its progress.

    Raises InputError for what the user can fix: a baseline that cannot be run.
    """
    import torch

    from common.data import check_cifar10
    from common.device import autocast_dtype, autocast_notes, device_name
    from common.model import classifier

    classifier(options.model, options.image_size)  # both refused now rather than in every process
    data = "cifar10" if check_cifar10(options.data) else "stand-in"
    precision = autocast_dtype(options.device, options.precision)
    notes = autocast_notes(options.device, options.precision)
    off = notes.pop(0) if precision == torch.float32 else None
    alone_only = ["amp"] if _tries_bf16(options, precision) else []
    if alone_only:
        notes, off = [*notes, f"{off}: amp is measured alone, in bf16"], None
    do = study.measurements("ablation", options, precision, data, "switches", LIMIT_SECONDS)
    path = options.logdir / FILE_NAME
    carried = _carried(do, path)
    is_free = carried > 0 or not path.exists()  # another ablation is replaced by a whole one only
    runs = max(runs, carried)
    progress.say(f"ablate: {options.model}, {data} data, {options.image_size} px, on {device_name(options.device)}")
    skipped, failed = no_effect(options, off), dict[str, str]()

    def so_far(measurements: Sequence[Mapping[str, Any]], more: Sequence[str] = ()) -> Study:
        measured = {
            "batch_size": options.batch_size,
            "workers": options.workers,
            "code": do.setup["code"],
            "runs": runs,
            "alone_only": alone_only,
            "no_effect": [{"name": name, "why": why} for name, why in skipped.items()],
            "not_run": [{"name": name, "why": why} for name, why in failed.items()],
            "measurements": [*measurements],
        }
        left_out = [f"{name} was not run: {why}" for name, why in failed.items()]
        uneven = study.unsteady(one["samples_per_second"]["windows"] for one in measurements)
        return study.finished(do, measured, [*notes, *left_out, *uneven, *more])

    measurements = []
    for one in measured_variants(do, skipped, failed, alone_only, runs):
        measurements.append(one)
        if is_free:  # the file is whole after each of them: one that is cut off can be shown as well
            write_json(path, so_far(measurements, [UNFINISHED]).as_json())
    return so_far(measurements)


def _tries_bf16(options: StepOptions, precision: "torch.dtype") -> bool:
    """True where autocast is off by itself, though this CPU has bf16 instructions: whether they help is worth a row."""
    import torch

    unasked = options.precision == "auto" and precision == torch.float32
    return unasked and options.device == "cpu" and cpu_bf16_hardware() is not None


def _carried(do: Measurements, path: Path) -> int:
    """Keep what an ablation that was finished with the same options and code has measured; how many runs it had."""
    there = read_study(path) if path.exists() else None
    same = there and all(getattr(there, name) == do.header[name] for name in ("setup", "precision", "seed"))
    if not there or not same or there.measured.get("code") != do.setup["code"] or there.quick != do.options.quick:
        return 0
    if any(there.measured[name] != getattr(do.options, name) for name in ("batch_size", "workers")):
        return 0
    for one in there.measured["measurements"]:
        do.values.setdefault(do.name("program", _settings(do.options, there.measured, one)), one)
    return there.measured["runs"]


def _settings(options: StepOptions, measured: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    in_bf16 = "amp" in one["on"] and "amp" in measured["alone_only"]
    precision = "bf16" if in_bf16 else options.precision
    return {"run": one["run"], "variant": one["variant"], "on": [*one["on"]], "precision": precision}


def measured_variants(
    do: Measurements, skipped: dict[str, str], failed: dict[str, str], alone_only: Sequence[str], runs: int
) -> Iterator[dict[str, Any]]:
    """A measurement of each variant in every run, as each is there.

    What failed is not tried again; it joins `failed`, {variant: why it was not run, or not in all}. skipped:
    {optimisation: why it has no effect}; where compiling alone cannot be done, all that compiles joins it. Raises
    InputError where the baseline cannot be run.
    """
    compiled, done = False, set[tuple[int, str]]()

    def missing() -> Iterable[tuple[int, Variant]]:
        forth = variants(skipped, alone_only)
        for run in range(1, runs + 1):
            for variant in forth if run % 2 else forth[::-1]:
                if (run, variant.name) not in done and variant.name not in failed:
                    yield run, variant

    while todo := next(iter(missing()), None):
        run, variant = todo
        one = {"variant": variant.name, "on": [*variant.on], "run": run}
        try:
            result = do.measure("program", **_settings(do.options, {"alone_only": alone_only}, one))
        except NotMeasured as error:
            if variant.name == BASELINE:
                raise InputError(f"the baseline cannot be run: {error}") from error
            if variant.name == alone("compile") and not compiled:
                compiling = ["compile", *(name for name in dependents("compile") if name not in skipped)]
                skipped |= {name: f"{privacy.reason(str(error))}; the full ladder is without it" for name in compiling}
            else:
                failed[variant.name] = str(error)
            continue
        done.add((run, variant.name))
        compiled = compiled or "compile" in variant.on
        yield one | result


# What follows


def by_run(measured: Mapping[str, Any], variant: str) -> dict[int, Mapping[str, Any]]:
    """{run: its measurement} of the variant of that name, in order."""
    return {one["run"]: one for one in sorted(measured["measurements"], key=lambda one: one["run"])
            if one["variant"] == variant}  # fmt: skip


def speeds(measured: Mapping[str, Any], variant: str) -> list[float]:
    """images/s of each run of a variant."""
    return [one["samples_per_second"]["median"] for one in by_run(measured, variant).values()]


def runs_with(measured: Mapping[str, Any], names: Iterable[str]) -> list[int]:
    """The runs that have all variants of these names."""
    return sorted(set.intersection(*(set(by_run(measured, name)) for name in names)))


def compared(measured: Mapping[str, Any], faster: str, slower: str) -> Ratio | None:
    """The `Ratio` of one variant to another, by name, over the runs that both have; None where no run has both."""
    runs = runs_with(measured, [faster, slower])
    if not runs:
        return None
    one, other = (
        {run: by_run(measured, name)[run]["samples_per_second"]["windows"] for run in runs} for name in (faster, slower)
    )
    return ratio_of_runs(one, other)


def saved_us(measured: Mapping[str, Any], faster: str, slower: str) -> Mean | None:
    """How many µs per image one variant takes less than another, over the runs that both have; None where none has."""
    image_us = [
        {run: 1e6 / one["samples_per_second"]["median"] for run, one in by_run(measured, name).items()}
        for name in (slower, faster)
    ]
    runs = runs_with(measured, [faster, slower])
    return mean_of([image_us[0][run] - image_us[1][run] for run in runs]) if runs else None


def products(measured: Mapping[str, Any], times: Sequence[str], over: Sequence[str]) -> Ratio | None:
    """The product of variants' speeds over that of others, by run; None where fewer than two runs have them all."""
    runs = runs_with(measured, [*times, *over])
    if len(runs) < 2:
        return None

    def product(names: Sequence[str], run: int) -> float:
        return math.prod(by_run(measured, name)[run]["samples_per_second"]["median"] for name in names)

    return of_pairs([product(times, run) / product(over, run) for run in runs])


def whole_ladder(measured: Mapping[str, Any]) -> tuple[Ratio | None, Ratio | None]:
    """The full ladder over the baseline, and what is predicted for it: the product of the effects of each alone.

    There is no prediction with fewer than two runs.
    """
    left_out = {one["name"] for one in measured["no_effect"]} | set(measured["alone_only"])
    names = [name for name in LADDER if name not in left_out]
    predicted = products(measured, [BASELINE, *map(alone, names)], [BASELINE, *map(before, names)])
    return compared(measured, FULL, BASELINE), predicted


def verdict(ratio: Ratio | None) -> str | None:
    """ "more" or "less" than 1 where that is measurable, else "none"; None without a ratio."""
    if ratio is None:
        return None
    return "none" if not ratio.resolved else "more" if ratio.ratio > 1 else "less"


def tables(measured: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The effect of each optimisation, the programs as a whole, and the pairs."""
    return {"effects": _effects(measured), "programs": _programs(measured), "pairs": _pairs(measured)}


def _effects(measured: Mapping[str, Any]) -> list[Row]:
    """Of each optimisation, in the order of the steps: alone, over the baseline; and in the full ladder, over the same
    without it. The one over the other is 1 where its place does not matter. The time saved may be the same where the
    ratios differ, since the rest of a step is shorter in the full ladder.
    """
    reasons = {one["name"]: one["why"] for one in measured["no_effect"]}
    rows = []
    for name in NAMES:
        with_it, without_it = in_full(name)
        on_full = {on for one in by_run(measured, FULL).values() for on in one["on"]}
        if dependents(name) and not by_run(measured, with_it) and on_full.isdisjoint(dependents(name)):
            with_it = FULL  # nothing in it needs the optimisation
        why = reasons.get(name)
        rows.append(
            {
                "optimisation": name,
                "alone": compared(measured, alone(name), before(name)),
                "saves, us per image": saved_us(measured, alone(name), before(name)),
                "in the full ladder": compared(measured, with_it, without_it),
                "saves there, us per image": saved_us(measured, with_it, without_it),
                "full ladder over alone": products(measured, [with_it, before(name)], [without_it, alone(name)]),
                "no effect": why and ("needs a GPU" if why.startswith("no GPU: ") else why),
            }
        )
    return rows


def _programs(measured: Mapping[str, Any]) -> list[Row]:
    """The baseline, the same again, the full ladder, and what is predicted for it from each alone."""
    ladder, predicted = whole_ladder(measured)
    control, rows = compared(measured, CONTROL, BASELINE), []
    for name, ratio in ((BASELINE, None), (CONTROL, control), (FULL, ladder), (in_full(ON_DEVICE)[0], None)):
        if known := speeds(measured, name):
            of_runs = {"images/s": statistics.median(known), "slowest run": min(known), "fastest run": max(known)}
            rows.append({"program": name, **of_runs, "vs baseline": ratio})
    if predicted:
        rows.append({"program": MULTIPLIED, "vs baseline": predicted})
    return rows


def _pairs(measured: Mapping[str, Any]) -> list[Row]:
    """Both over the baseline, and over the product of each alone: 1 where each gains the same with and without the
    other.
    """
    rows = []
    for pair in pairs([one["name"] for one in measured["no_effect"]], measured["alone_only"]):
        first, second, both = alone(pair.first), alone(pair.second), together(pair)
        over = products(measured, [both, BASELINE], [first, second])
        if by_run(measured, both):
            rows.append(
                {
                    "pair": str(pair),
                    "first": compared(measured, first, BASELINE),
                    "second": compared(measured, second, BASELINE),
                    "together": compared(measured, both, BASELINE),
                    "together over first x second": over,
                    "interaction": SEEN[verdict(over)],
                }
            )
    return rows


def conclusions(measured: Mapping[str, Any]) -> dict[str, list[str]]:
    """What depends on its place, whether the control is 1, and which pairs interact."""
    runs, count = len(by_run(measured, BASELINE)), len({one["variant"] for one in measured["measurements"]})
    effects = [f"{runs} interleaved runs of {count} programs."]
    over = {row["optimisation"]: row["full ladder over alone"] for row in _effects(measured)}
    if places := [name for name, ratio in over.items() if ratio and ratio.resolved]:
        effects.append(f"Another effect in the full ladder than alone: {', '.join(places)}.")
    control = compared(measured, CONTROL, BASELINE)
    differs = (
        f"The control, the baseline's program measured once more, came out at {control}. It should include 1, and by "
        "chance 1 of 20 does not; or what differs within a run (order, drift) is larger than the intervals say."
    )
    programs = [differs] if control and control.resolved else []
    return {"effects": effects, "programs": programs, "pairs": [*_interactions(measured), *_over_tf32(measured)]}


def _interactions(measured: Mapping[str, Any]) -> list[str]:
    """The pairs that interact, each with what may be behind it, and those without a measurable interaction."""
    why = {str(pair): pair.why for pair in PAIRS}
    rows, lines = _pairs(measured), []
    for row in rows:
        if row["interaction"] in ("more", "less"):
            lines.append(
                f"{row['pair']} together gain {row['interaction']} than predicted from each alone, "
                f"{row['together over first x second']}. What may be behind it: {why[row['pair']]}."
            )
    if none := [row["pair"] for row in rows if row["interaction"] == SEEN["none"]]:
        lines.append(f"No measurable interaction: {', '.join(none)}.")
    if any(row["together over first x second"] is None for row in rows):
        lines.append("Interactions are computed from two runs on: a larger --runs adds some.")
    return lines


def _over_tf32(measured: Mapping[str, Any]) -> list[str]:
    """What amp gains over float32 as cuDNN multiplies it unless told not to: both on the baseline with TF32."""
    over_tf32 = compared(measured, together(Pair("amp", TF32)), alone(TF32))
    over_float32 = compared(measured, alone("amp"), BASELINE)
    if not (over_tf32 and over_float32):
        return []
    return [f"AMP over TF32, which cuDNN uses unless told not to: {over_tf32}; over true fp32: {over_float32}."]


@in_style
def figure(result: Study) -> "Figure":
    """A matplotlib `Figure`: a row for the control and for each optimisation, its two ratios on a log axis."""
    from matplotlib.figure import Figure  # half a second to import

    rows = result.tables["effects"]
    noise = next((row["vs baseline"] for row in result.tables["programs"] if row["program"] == CONTROL), None)
    drawn = Figure(figsize=(9, 2.2 + 0.45 * len(rows)))
    axes = drawn.subplots()
    axes.set_xscale("log")
    axes.axvline(1, color=GREY, linewidth=1)
    series = (
        ("alone, over the baseline", SPEED, "o", -0.15, "alone"),
        ("in the full ladder, over it without", MEMORY, "s", 0.15, "in the full ladder"),
    )
    shown = []
    for label, colour, marker, shift, column in series:
        cells = [(at + shift, interval(row[column])) for at, row in enumerate(rows, start=1)]
        points = [(at, ratio) for at, ratio in cells if isinstance(ratio, Ratio)]
        study.draw_ratios(axes, points, colour=colour, marker=marker, label=label)
        shown += [ratio for _, ratio in points]
    if isinstance(control := interval(noise), Ratio):
        study.draw_ratios(axes, [(0, control)], colour=SLOWER, marker="D", label="control")
        shown.append(control)
    for at, row in enumerate(rows, start=1):
        if row["alone"] is row["in the full ladder"] is None:
            text = "no effect on this device" if row["no effect"] else "not measured"
            axes.annotate(text, (1, at), (8, 0), textcoords="offset points", va="center", fontsize=9)
    low, high = study.shown_range(shown)
    axes.set_xlim(low / 1.05, high * 1.05)
    ticks = shown_ticks(low / 1.05, high * 1.05)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(1 + len(rows)), [CONTROL, *(step_label(row["optimisation"]) for row in rows)])
    axes.set_ylim(len(rows) + 0.5, -0.5)
    axes.set_title(f"{study.title(result)}; rounds: {result.measured['runs']}")
    axes.set_xlabel("times as fast, with the 95 % interval")
    if shown:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "ncols": 2}
        axes.legend(**below)
    return drawn


def shown_ticks(low: float, high: float) -> list[float]:
    """The finest round ratios on the axis that are not too many and reach over most of it."""
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in TICKS]
    fits = [ticks for ticks in within if len(ticks) <= MOST_TICKS and max(ticks) * 2 > high and min(ticks) < low * 2]
    return max(fits or within[:1], key=len)
