"""The ablation: optimisations in combinations that the ladder passes by, and which of them interact.

The command, its plan, its result and its runs; `studies.switches` is the program, `studies.effects` what follows
from the measurements. Starts without torch.

Some optimisations need another (`NEEDS`): compile_loss without compile would be nothing. Alone, it is compared
with the baseline that has what it needs; in the full ladder, an optimisation is compared without what needs it.

Some are no part of "the full ladder", which the others are left out of (`ADDED`); their effect there is the full ladder
with them over the full ladder. on_device_data takes the place of the loader and of all that is done to it; tf32 is no
step, but what cuDNN does unless told not to.

Runs are interleaved: run 1 of all variants, then run 2 of all, backwards, so that a machine that drifts (heat,
neighbours) does it to every variant alike. `ablation.json` is whole after every measurement, and the same command goes
on with it.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from common.options import StepOptions, add_step_options
from studies import OPTION_TEXTS, study
from studies.study import Study
from walkthrough.compare import isolated
from walkthrough.results import environment, privacy, progress
from walkthrough.results.environment import code_hash, cpu_bf16_hardware
from walkthrough.results.errors import InputError, folder, whole_number
from walkthrough.results.folder import locked
from walkthrough.results.result import PositiveInt, StepTime, Throughput

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from rich.console import Console

FILE = "ablation.json"
RUNS, QUICK_RUNS = 5, 1
PROGRAM = isolated.module("studies.switches")
CODE = "studies/*.py"  # what a measurement runs besides steps and flat modules
LIMIT_SECONDS = 1800  # of one measurement, compiling and all: beyond it something hangs
REASON_LENGTH = 200  # characters of why a variant was not run, at most
SETTINGS = ("precision", "batch_size", "workers", "seed", "quick")  # what its runs share besides the setup


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ablate`."""
    bigger_batch = {"--batch-size": "images per step where bigger_batch is on (default: %(default)s)"}
    add_step_options(parser, without=("--stacks",), texts=OPTION_TEXTS | bigger_batch)
    parser.add_argument(
        "--runs", type=whole_number(1, 100), metavar="N", help="runs of everything (default: 5; 1 with --quick)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the effects: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Measure what is missing, write `ablation.json` into `args.logdir`, print it, draw it with `args.plot`.

    Returns the exit code: 1 where a measurement failed that the same command can try again. Raises InputError for what
    the user can fix: options, another ablation that is there already, a baseline that cannot be run.
    """
    study.check_plot(args.plot)
    options = study.ready(args)
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    with study.progress_on_stderr(args.json):
        ablation = measure(options, runs)
        study.plot("ablation", args.plot, ablation)
    study.print_result("ablation", args.json, options.logdir / FILE, ablation, "; a larger --runs adds runs")
    return 1 if ablation.missing else 0


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
    those that are measured alone, but are not in the full ladder.
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
        for pair in pairs(no_effect)
    ]


def _with_needs(name: str) -> tuple[str, ...]:
    return (NEEDS[name], name) if name in NEEDS else (name,)


def dependents(name: str) -> tuple[str, ...]:
    """The optimisations that need that one."""
    return tuple(other for other, needed in NEEDS.items() if needed == name)


def pairs(no_effect: Collection[str]) -> list[Pair]:
    """The `Pair`s to measure: those of `PAIRS` that have an effect here."""
    return [pair for pair in PAIRS if not {pair.first, pair.second} & set(no_effect)]


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


@dataclass(frozen=True)
class Measurement:
    """One variant in one run, counted from 1, with the optimisations that were on."""

    variant: str
    on: list[str]
    run: PositiveInt
    samples_per_second: Throughput
    step_ms: StepTime
    first_step_seconds: float
    batch_size: int
    started: str


@dataclass(frozen=True)
class NotMeasured:
    """An optimisation without effect on this device, or a variant that could not be run: why, without full stop."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ablation(Study):
    """What `ablate` measured.

    precision: that of autocast where amp is on. batch_size: with bigger_batch; workers: with multiprocess_loading.
    code: hash of what was run. runs: as many as were asked for. no_effect: optimisations; not_run: variants.
    """

    FILE: ClassVar[str] = FILE

    batch_size: int
    workers: int
    code: str
    runs: PositiveInt
    no_effect: list[NotMeasured]
    not_run: list[NotMeasured]
    measurements: list[Measurement]

    @property
    def variants(self) -> list[Variant]:
        """The `Variant`s that are to be measured in every run."""
        skipped = {variant.name for variant in self.not_run}
        plan = variants([optimisation.name for optimisation in self.no_effect], self.alone_only)
        return [variant for variant in plan if variant.name not in skipped]

    @property
    def alone_only(self) -> list[str]:
        """amp where autocast is off by itself, though the CPU has bf16 instructions: measured, but in no ladder."""
        effective = "amp" not in {optimisation.name for optimisation in self.no_effect}
        return ["amp"] if self.precision == "float32" and effective else []

    @property
    def missing(self) -> list[tuple[int, Variant]]:
        """What is still to be measured, in order: (run, `Variant`). Every other run goes backwards."""
        done = {(measurement.run, measurement.variant) for measurement in self.measurements}
        forth, back = self.variants, self.variants[::-1]
        plan = ((run, variant) for run in range(1, self.runs + 1) for variant in (forth if run % 2 else back))
        return [(run, variant) for run, variant in plan if (run, variant.name) not in done]

    @property
    def run_count(self) -> int:
        """How many runs have the baseline, which others are compared with."""
        return len(self.by_run(BASELINE))

    def by_run(self, variant: str) -> dict[int, Measurement]:
        """{run: its `Measurement`} of the variant of that name, in order."""
        measured = {measurement.run: measurement for measurement in self.measurements if measurement.variant == variant}
        return dict(sorted(measured.items()))

    def runs_with(self, names: Iterable[str]) -> list[int]:
        """The runs that have all variants of these names."""
        return sorted(set.intersection(*(set(self.by_run(name)) for name in names)))

    def problem(self) -> str | None:
        named = {name for measurement in self.measurements for name in measurement.on}
        named |= {optimisation.name for optimisation in self.no_effect}
        return None if named <= set(NAMES) else f"there is no optimisation {', '.join(sorted(named - set(NAMES)))}"

    def computed(self) -> dict[str, Any]:
        from studies import effects  # which is computed from this

        return effects.as_json(self)


def read(logdir: str | Path) -> Ablation | None:
    """The `Ablation` in a folder, None where there is none. Raises InputError for one that is broken."""
    return study.read(Ablation, logdir)


def measure(options: StepOptions, runs: int) -> Ablation:
    """Measure what is missing of the `Ablation` in `options.logdir`, or of a new one, and write it.

    Prints its progress. What is missing afterwards failed; the same command tries it again. Raises InputError for what
    the user can fix: another ablation that is there already, a baseline that cannot be run.
    """
    path = options.logdir / FILE
    with locked(options.logdir / ".ablation.lock", f"another `ablate` is writing to {options.logdir}: wait for it"):
        ablation = _opened(options, runs)
        try:
            return _measure_all(options, ablation)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            if path.exists():
                print(f"\nwhat was measured is in {path}; the same command goes on", file=sys.stderr)
            raise


def _opened(options: StepOptions, runs: int) -> Ablation:
    """The ablation to go on with, or a new one. Raises InputError where the one in the folder must be left alone."""
    from common.data import check_cifar10
    from common.model import classifier

    path, there, new = options.logdir / FILE, read(options.logdir), _new(options, runs)
    if not there:
        classifier(options.model, options.image_size)  # both refused now rather than in every process
        check_cifar10(options.data)
        return new
    if changes := differences(there, new, bool(there.missing) or runs > there.runs):
        raise InputError(f"{path} holds another ablation ({'; '.join(changes)}): choose another --logdir")
    return replace(there, runs=max(there.runs, runs))


def differences(there: Ablation, new: Ablation, to_measure: bool) -> list[str]:
    """What keeps `new` from going on with the ablation that is there, in words: "seed 0, not 3".

    to_measure: whether anything is missing; if not, it is only shown, whatever else has changed since.
    """
    lines = there.setup.differences(new.setup)
    old, now = ({name: getattr(ablation, name) for name in SETTINGS} for ablation in (there, new))
    if to_measure:
        old, now = old | asdict(there.environment), now | asdict(new.environment)
        old["git"] = now["git"]  # the code's own hash says more
    lines += [
        f"{name.replace('_', ' ')} {value!r}, not {now[name]!r}" for name, value in old.items() if value != now[name]
    ]
    if to_measure and there.code != new.code:
        lines.append("the code of steps/, common/ or walkthrough/ has changed")
    return list(dict.fromkeys(lines))  # a CPU's cores are in its setup too


def _new(options: StepOptions, runs: int) -> Ablation:
    import torch

    from common.data import holds_cifar10
    from common.device import autocast_dtype, autocast_notes

    precision = autocast_dtype(options.device, options.precision)
    notes = autocast_notes(options.device, options.precision)
    off = notes.pop(0) if precision == torch.float32 else None
    if _tries_bf16(options, precision):
        notes, off = [*notes, f"{off}: amp is measured alone, in bf16"], None
    return Ablation(
        **study.header(
            options, precision, notes, environment.now(), "cifar10" if holds_cifar10(options.data) else "stand-in"
        ),
        batch_size=options.batch_size,
        workers=options.workers,
        code=code_hash(CODE),
        runs=runs,
        no_effect=[NotMeasured(name, why) for name, why in no_effect(options, off).items()],
        not_run=[],
        measurements=[],
    )


def _tries_bf16(options: StepOptions, precision: "torch.dtype") -> bool:
    """True where autocast is off by itself, though this CPU has bf16 instructions: whether they help is worth a row."""
    import torch

    unasked = options.precision == "auto" and precision == torch.float32
    return unasked and options.device == "cpu" and cpu_bf16_hardware() is not None


def _measure_all(options: StepOptions, ablation: Ablation) -> Ablation:
    """Measure all that is missing of an `Ablation`, run by run; what failed stays missing."""
    setup = ablation.setup
    progress.say(
        f"ablate: {setup.model}, {setup.data} data, {setup.image_size} px, on {setup.device}; "
        f"{len(ablation.missing)} of {ablation.runs} x {len(ablation.variants)} measurements to go"
    )
    failed: set[tuple[int, str]] = set()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    while todo := [(run, variant) for run, variant in ablation.missing if (run, variant.name) not in failed]:
        if code_hash(CODE) != ablation.code:
            raise InputError("the code changed while measuring: restore it, and repeat the command")
        run, variant = todo[0]
        name, begin, started = f"run {run}/{ablation.runs}  {variant.name:<44}", time.monotonic(), environment.now()
        in_bf16 = "amp" in variant.on and "amp" in ablation.alone_only
        answer = measured(variant, replace(options, precision="bf16") if in_bf16 else options)
        if "windows" in answer:
            measurement = _measurement(variant, run, answer, started)
            ablation = replace(ablation, measurements=[*ablation.measurements, measurement])
            seconds["compile" in variant.on].append(time.monotonic() - begin)
            speed, to_go = measurement.samples_per_second.median, _to_go(seconds, [variant for _, variant in todo[1:]])
            print(f"{name}{speed:10.1f} images/s{to_go}", flush=True)
        elif "not_run" in answer and variant.name == BASELINE and not ablation.by_run(BASELINE):
            raise InputError(f"the baseline cannot be run: {answer['not_run']}")
        elif "not_run" in answer and _can_be_left_out(ablation, variant):
            ablation = _left_out(ablation, variant, answer["not_run"])
            print(f"{name}not run: {answer['not_run']}", file=sys.stderr, flush=True)
        else:
            failed.add((run, variant.name))
            print(f"{name}failed: {answer.get('not_run') or answer['failed']}", file=sys.stderr, flush=True)
            continue
        study.write(options.logdir / FILE, ablation)
    return ablation


def _to_go(seconds: dict[bool, list[float]], variants: Sequence[Variant]) -> str:
    """How long the rest will take, in words; "" if unknown. seconds: {whether a program compiles: of each so far}."""
    kinds = ["compile" in variant.on for variant in variants]
    if not kinds or not all(seconds[kind] for kind in kinds):
        return ""
    return f", about {sum(statistics.median(seconds[kind]) for kind in kinds) / 60:.0f} min to go"


def measured(variant: Variant, options: StepOptions, command: Sequence[str] = PROGRAM) -> dict[str, Any]:
    """Measure a `Variant` in a process of its own: what `studies.switches` answers, see its `main`.

    {"failed": why, in a line} where it did not.
    """
    settings = {"on": asdict(variant.optimisations), "options": asdict(options)}
    answer = isolated.answer(command, settings, LIMIT_SECONDS)
    return {"failed": answer} if isinstance(answer, str) else answer


def _measurement(variant: Variant, run: int, answer: dict[str, Any], started: str) -> Measurement:
    return Measurement(
        variant=variant.name,
        on=list(variant.on),
        run=run,
        samples_per_second=Throughput(statistics.median(answer["windows"]), answer["windows"]),
        step_ms=StepTime(**answer["step_ms"]),
        first_step_seconds=answer["first_step_seconds"],
        batch_size=answer["batch_size"],
        started=started,
    )


def _can_be_left_out(ablation: Ablation, variant: Variant) -> bool:
    """Whether a variant that cannot be run can be left out of all runs: nothing measured so far is compared with it."""
    if variant.name == alone("compile"):
        return not any("compile" in measurement.on for measurement in ablation.measurements)
    return not ablation.by_run(variant.name)


def _left_out(ablation: Ablation, variant: Variant, why: str) -> Ablation:
    """The `Ablation` without a variant; where compiling alone cannot be done, without all that compiles in the full
    ladder.
    """
    why = privacy.reason(why, REASON_LENGTH)
    if variant.name == alone("compile"):
        skipped = {optimisation.name for optimisation in ablation.no_effect}
        names = ["compile", *(name for name, needed in NEEDS.items() if needed == "compile" and name not in skipped)]
        left_out = [NotMeasured(name, f"{why}; the full ladder is without it") for name in names]
        return replace(ablation, no_effect=[*ablation.no_effect, *left_out])
    return replace(ablation, not_run=[*ablation.not_run, NotMeasured(variant.name, why)])


def show(ablation: Ablation, to: "Console") -> None:
    """Print an `Ablation` to the console `to`."""
    from studies import effects

    effects.show(ablation, to)


def figure(ablation: Ablation) -> "Figure":
    """A matplotlib `Figure`, see `effects.figure`."""
    from studies import effects

    return effects.figure(ablation)
