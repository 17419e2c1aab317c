"""`python -m common ablate`: what each optimisation brings alone and in the full ladder, and which of them interact.

Runs are interleaved: run 1 of all variants (`ablation_plan.variants`), then run 2 of all, so that a machine that drifts
(heat, neighbours) does it to every variant alike. `ablation.json` is whole after every measurement.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone

import torch

from common import record
from common.data import holds_cifar10
from common.device import autocast_dtype, device_name
from common.errors import InputError, printable
from common.ladder import runner
from common.ladder.figures import check_figure_file
from common.record import StepTime, Throughput
from common.reference.recording import code_hash
from common.run import privacy, progress
from common.run.folder import locked
from common.studies import report
from common.studies.ablation import figure as ablation_plot
from common.studies.ablation.plan import BASELINE, alone, cannot_act
from common.studies.ablation.record import (
    FILE,
    Ablation,
    Measurement,
    NotMeasured,
    Settings,
    as_object,
    read_ablation,
    write_ablation,
)  # fmt: skip
from common.studies.ablation.view import print_ablation
from common.studies.one_batch import isolated_process, ready_device

PROGRAM = (sys.executable, "-m", "common.studies.ablation.program")
RUNS, QUICK_RUNS = 5, 1
LIMIT_SECONDS = 1800  # of one measurement, compiling and all: beyond it something hangs
REASON_LENGTH = 200  # characters of why a variant was not run, at most


def ablate(args):
    """Measure what is missing, write `ablation.json` into `args.logdir`, print it, draw it with `args.plot`.

    Returns the exit code: 1 where a measurement failed that --resume can try again. Raises InputError for what the user
    can mend: options, an ablation that is there already or differs, a baseline that cannot be run.
    """
    if args.plot:
        check_figure_file(args.plot)
    ready_device(args)
    args.runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    with (
        report.aside(args),
        locked(args.logdir / ".ablation.lock", f"another `ablate` is writing to {args.logdir}: wait for it"),
    ):
        found = _opened(args)
        try:
            found, code = _measure_all(args, found)
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            if (args.logdir / FILE).exists():
                print(f"\nwhat was measured is in {args.logdir / FILE}; --resume goes on", file=sys.stderr)
            raise
        report.draw(args, found, ablation_plot.plot)
    more = "; --resume with a larger --runs adds runs"
    report.tell(args, args.logdir / FILE, found, print_ablation, more, as_object)
    return code


def _opened(args):
    """The ablation to go on with, or a new one. Raises InputError where the one in the folder must be left alone."""
    path, there = args.logdir / FILE, read_ablation(args.logdir)
    if there and not args.resume:
        raise InputError(
            f"{path} holds an ablation already ({there.whole_runs} of {there.runs} runs whole): --resume goes on with "
            "it, --resume with a larger --runs adds runs; or choose another --logdir"
        )
    new = _new(args)
    if not there:
        runner.check_input(args)
        return new
    whole = not there.missing and args.runs <= there.runs  # then it is only shown, whatever has changed since
    parts = ["settings"] if whole else ["settings", "environment"]
    differs = [
        f"{name} was {value!r} and is {now!r}"
        for part in parts
        for (name, value), now in zip(
            asdict(getattr(there, part)).items(), asdict(getattr(new, part)).values(), strict=True
        )
        if value != now and name != "git"  # the code's own hash says more
    ]
    if not whole and there.code != new.code:
        differs.append("the code of steps/ or common/ has changed")
    if differs:
        raise InputError(f"{path} holds another ablation ({'; '.join(differs)}): choose another --logdir")
    return replace(there, runs=max(there.runs, args.runs))


def _new(args):
    device = torch.device(args.device)
    precision, _ = autocast_dtype(device)
    idle = cannot_act(device.type, precision != torch.float32, args.batch_size, args.workers)
    return Ablation(
        schema=record.SCHEMA,
        settings=Settings(
            device=device_name(device),
            device_type=device.type,
            data="cifar10" if holds_cifar10(args.data) else "stand-in",
            model=args.model,
            image_size=args.image_size,
            batch_size=args.batch_size,
            workers=args.workers,
            seed=args.seed,
            quick=args.quick,
            all_pairs=args.all_pairs,
        ),
        environment=record.environment(torch.__version__, torch.version.cuda),
        code=code_hash(),
        runs=args.runs,
        cannot_act=[NotMeasured(name, why) for name, why in idle.items()],
        not_run=[],
        measurements=[],
    )


def _measure_all(args, found):
    """Measure all that is missing of an `Ablation`, run by run; returns it, and the exit code."""
    settings = found.settings
    progress.say(
        f"ablate: {settings.model}, {settings.data} data, {settings.image_size} px, on {settings.device}; "
        f"{len(found.missing)} of {found.runs} x {len(found.variants)} measurements to go"
    )
    failed, took = set(), {False: [], True: []}
    while todo := [each for each in found.missing if (each[0], each[1].name) not in failed]:
        if code_hash() != found.code:
            raise InputError("steps/ or common/ changed while measuring: put the code back, and go on with --resume")
        run, variant = todo[0]
        name, begin = f"run {run}/{found.runs}  {variant.name:<44}", time.monotonic()
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        told = measured(variant, args)
        if "windows" in told:
            found = replace(found, measurements=[*found.measurements, _measurement(variant, run, told, started)])
            took["compile" in variant.on].append(time.monotonic() - begin)
            speed = found.measurements[-1].samples_per_second.median
            print(f"{name}{speed:10.1f} images/s{_to_go(took, [each for _, each in todo[1:]])}", flush=True)
        elif "not_run" in told and variant.name == BASELINE and not found.of(BASELINE):
            raise InputError(f"the baseline cannot be run: {told['not_run']}")
        elif "not_run" in told and _can_be_left_out(found, variant):
            found = _left_out(found, variant, told["not_run"])
            print(f"{name}not run: {told['not_run']}", file=sys.stderr, flush=True)
        else:
            failed.add((run, variant.name))
            print(f"{name}failed: {told.get('not_run') or told['failed']}", file=sys.stderr, flush=True)
            continue
        write_ablation(args.logdir, found)
    return found, 1 if failed else 0


def _to_go(took, variants):
    """How long the rest will take, in words. took: {whether a program compiles: s of each so far}; "" if unknown."""
    kinds = ["compile" in each.on for each in variants]
    if not kinds or not all(took[kind] for kind in kinds):
        return ""
    return f", about {sum(statistics.median(took[kind]) for kind in kinds) / 60:.0f} min to go"


def measured(variant, args, program=PROGRAM):
    """What `python -m common.studies.ablation.program` tells of a `Variant`: see its `measure` and `main`.

    {"failed": why, in a line} where it told nothing. However this is left, the process and all it started are ended.
    """
    names = ("data", "model", "image_size", "batch_size", "workers", "seed", "device", "quick")
    words = {"on": asdict(variant.optimisations), "args": {name: getattr(args, name) for name in names}}
    last = "no message"
    with isolated_process(program, words, LIMIT_SECONDS, stderr=subprocess.STDOUT) as (process, _, late):
        for line in map(str.strip, process.stdout):
            if line.startswith(('{"windows"', '{"not_run"', '{"failed"')):
                return json.loads(line)
            last = line or last
        if late.is_set():
            return {"failed": f"not done after {LIMIT_SECONDS} s"}
        return {"failed": printable(runner.why_ended(process.wait(), last) or last, REASON_LENGTH)}


def _measurement(variant, run, told, started):
    return Measurement(
        variant=variant.name,
        on=list(variant.on),
        run=run,
        samples_per_second=Throughput(statistics.median(told["windows"]), told["windows"]),
        step_ms=StepTime(**told["step_ms"]),
        first_step_seconds=told["first_step_seconds"],
        batch_size=told["batch_size"],
        started=started,
        notes=told["notes"],
    )


def _can_be_left_out(found, variant):
    """Whether a variant that cannot be run can be left out of all runs: nothing measured so far is compared with it."""
    if variant.name == alone("compile"):
        return not any("compile" in each.on for each in found.measurements)
    return not found.of(variant.name)


def _left_out(found, variant, why):
    """The `Ablation` without a variant; where compiling alone cannot be done, without compile in the full ladder."""
    why = printable(privacy.redacted(why), REASON_LENGTH).rstrip(".")
    if variant.name == alone("compile"):
        left_out = NotMeasured("compile", f"{why}; the full ladder is without it")
        return replace(found, cannot_act=[*found.cannot_act, left_out])
    return replace(found, not_run=[*found.not_run, NotMeasured(variant.name, why)])
