"""`walkthrough ablate`: the effect of each optimisation alone and in the full ladder, and which of them interact.

Runs are interleaved: run 1 of all variants (`plan.variants`), then run 2 of all, backwards, so that a machine that
drifts (heat, neighbours) does it to every variant alike. `ablation.json` is whole after every measurement.
"""

import statistics
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from common.data import check_cifar10, holds_cifar10
from common.device import autocast_dtype, autocast_notes
from common.model import classifier
from common.options import StepOptions
from studies import study
from studies.ablation.plan import BASELINE, NEEDS, Variant, alone, no_effect, selected
from studies.ablation.record import FILE, Ablation, Measurement, NotMeasured, read
from walkthrough.compare import isolated
from walkthrough.results import environment, privacy, progress
from walkthrough.results.environment import code_hash, cpu_bf16_hardware
from walkthrough.results.errors import InputError
from walkthrough.results.folder import locked
from walkthrough.results.result import StepTime, Throughput

PROGRAM = isolated.module("studies.ablation.program")
CODE = (  # what a measurement runs besides steps and flat modules
    "studies/*.py",
    *(f"studies/ablation/{name}.py" for name in ("program", "plan", "measure")),
)
LIMIT_SECONDS = 1800  # of one measurement, compiling and all: beyond it something hangs
REASON_LENGTH = 200  # characters of why a variant was not run, at most
SETTINGS = ("precision", "batch_size", "workers", "seed", "quick", "all_pairs")  # what its runs share besides the setup


def measure(options: StepOptions, runs: int, all_pairs: bool, resume: bool, only: Collection[str] = ()) -> Ablation:
    """Measure what is missing of the `Ablation` in `options.logdir`, or of a new one, and write it.

    only: the optimisations whose effects are measured, if not all; the others stay missing. Prints its progress. What
    else is missing afterwards failed, and --resume can try it again. Raises InputError for what the user can fix: an
    ablation that is there already or differs, a baseline that cannot be run, optimisations of which none has an effect.
    """
    path = options.logdir / FILE
    with locked(options.logdir / ".ablation.lock", f"another `ablate` is writing to {options.logdir}: wait for it"):
        ablation = _opened(options, runs, all_pairs, resume, only)
        _check_effect(ablation, only)
        try:
            return _measure_all(options, ablation, only)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            if path.exists():
                print(f"\nwhat was measured is in {path}; --resume goes on", file=sys.stderr)
            raise


def _opened(options: StepOptions, runs: int, all_pairs: bool, resume: bool, only: Collection[str]) -> Ablation:
    """The ablation to go on with, or a new one. Raises InputError where the one in the folder must be left alone."""
    path, there = options.logdir / FILE, read(options.logdir)
    if there and not resume:
        raise InputError(
            f"{path} holds an ablation already ({there.whole_runs} of {there.runs} runs whole): --resume goes on with "
            "it, --resume with a larger --runs adds runs; or choose another --logdir"
        )
    new = _new(options, runs, all_pairs)
    if not there:
        classifier(options.model, options.image_size)  # both refused now rather than in every process
        check_cifar10(options.data)
        return new
    to_measure = bool(there.to_measure(only)) or runs > there.runs
    if changes := differences(there, new, to_measure):
        raise InputError(f"{path} holds another ablation ({'; '.join(changes)}): choose another --logdir")
    return replace(there, runs=max(there.runs, runs))


def _check_effect(ablation: Ablation, only: Collection[str]) -> None:
    """Raise InputError where `only` names optimisations of which none has an effect on this device."""
    reasons = {optimisation.name: optimisation.why for optimisation in ablation.no_effect}
    if only and reasons.keys() >= set(only):
        whys = "; ".join(f"{name}: {reasons[name]}" for name in only)
        raise InputError(f"--only {','.join(only)} has no effect on this device ({whys})")


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


def _new(options: StepOptions, runs: int, all_pairs: bool) -> Ablation:
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
        all_pairs=all_pairs,
        code=code_hash(*CODE),
        runs=runs,
        no_effect=[NotMeasured(name, why) for name, why in no_effect(options, off).items()],
        not_run=[],
        measurements=[],
    )


def _tries_bf16(options: StepOptions, precision: torch.dtype) -> bool:
    """True where autocast is off by itself, though this CPU has bf16 instructions: whether they help is worth a row."""
    unasked = options.precision == "auto" and precision == torch.float32
    return unasked and options.device == "cpu" and cpu_bf16_hardware() is not None


def _measure_all(options: StepOptions, ablation: Ablation, only: Collection[str]) -> Ablation:
    """Measure all that is missing of an `Ablation`, or what `only` asks for, run by run; what failed stays missing."""
    setup, programs = ablation.setup, selected(ablation.variants, only)
    progress.say(
        f"ablate: {setup.model}, {setup.data} data, {setup.image_size} px, on {setup.device}; "
        f"{len(ablation.to_measure(only))} of {ablation.runs} x {len(programs)} measurements to go"
    )
    failed: set[tuple[int, str]] = set()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    while todo := [(run, variant) for run, variant in ablation.to_measure(only) if (run, variant.name) not in failed]:
        if code_hash(*CODE) != ablation.code:
            raise InputError("the code changed while measuring: restore it, and go on with --resume")
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
    """Measure a `Variant` in a process of its own: what `studies.ablation.program` answers, see its `main`.

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
