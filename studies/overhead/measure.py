"""Measure what tracing itself costs a training step, for each thing that the profiler can record.

The train step of the course on one batch that is on the device, without a loader's noise. Every mode is measured in
every run, in an order that changes from run to run, each time in a process of its own: see `overhead.program`. It is
compared with "off", which the same process measures first. The control is a process that opens no profiler and measures
"off" again in its place: its interval should include 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import torch

from common.device import autocast_dtype, autocast_notes, device_name
from common.model import classifier
from common.options import StepOptions
from studies import study
from studies.overhead.program import LEAD_STEPS, QUICK, ModeRun, from_json
from studies.overhead.record import OFF_AGAIN, Mode, Overhead
from studies.overhead.tracings import Tracing, tracings
from walkthrough.compare import isolated
from walkthrough.compare.kept import Kept
from walkthrough.results import environment, privacy, progress
from walkthrough.results.errors import InputError

PROGRAM = isolated.module("studies.overhead.program")
LIMIT_SECONDS = 600  # of one process: beyond it something hangs
MOST_TRACE_BYTES = 200_000_000  # of a trace as JSON; it is read back whole, which takes ten times as much memory

T = TypeVar("T")


def measure(options: StepOptions, runs: int) -> Overhead:
    """The `Overhead` of tracing on a device. Prints its progress; see `overhead.run` for errors."""
    started, device = environment.now(), torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than in every process
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"overhead: {options.model}, {options.image_size} px, batch {options.batch_size}, on {device_name(device)}, "
        "with no data; a process for each mode and run"
    )
    kept = Kept.of("overhead", options)
    control = kept.measurement(
        f"trial, {OFF_AGAIN}", ModeRun, lambda: measured(OFF_AGAIN, replace(options, quick=True))
    )
    if isinstance(control, str):
        raise InputError(control)
    options = replace(options, batch_size=control.batch_size)
    notes = [*autocast_notes(device, options.precision), *control.notes]
    return Overhead(
        **study.header(options, precision, notes, started, schema=Overhead.SCHEMA),
        batch_size=options.batch_size,
        runs=runs,
        modes=measured_modes(tracings(device), options, runs, control, kept),
    )


def measured_modes(
    tracings: Sequence[Tracing], options: StepOptions, runs: int, control: ModeRun, kept: Kept | None = None
) -> list[Mode]:
    """A `Mode` for each `Tracing`, without numbers where it could not be measured. control: of the trial.

    The trial is a smoke run of each mode, which shows how large its traces are; with --quick it is the first run.
    """
    kept, failed = kept or Kept(), dict[str, str]()
    names = [tracing.name for tracing in tracings if tracing.why_not is None]
    others = [name for name in names if name != OFF_AGAIN]
    progress.report("trial", 0, 1)
    trial = {OFF_AGAIN: control} | measured_run("trial", others, replace(options, quick=True), failed, kept)
    of_runs = [trial] if options.quick else []
    steps = {name: most_steps(run) for name, run in trial.items()}
    for run in range(len(of_runs), runs):
        progress.report(f"run {run + 1}/{runs}", 0, 1)
        of_runs.append(measured_run(f"run {run + 1}", order_of_run(names, run), options, failed, kept, steps))
    results = {name: [run[name] for run in of_runs] for name in names if name not in failed}
    return [
        mode_of(tracing, results.get(tracing.name, []), trial.get(tracing.name), failed.get(tracing.name))
        for tracing in tracings
    ]


def measured_run(
    label: str,
    names: Sequence[str],
    options: StepOptions,
    failed: dict[str, str],
    kept: Kept,
    most_steps: Mapping[str, int | None] | None = None,
) -> dict[str, ModeRun]:
    """Measure the modes of these names once: {name: `ModeRun`}. most_steps: see `measured`; None in the trial.

    label: of the run, among what is kept.
    failed: {name: why, in a line} of those that could not be measured, to which it adds; they are not tried again.
    kept: what is there is not measured again.
    Raises InputError where the control is among them.
    """
    results = {}
    for name in names:
        if name in failed:
            continue
        most, with_sizes = (most_steps or {}).get(name), most_steps is None
        result = kept.measurement(f"{label}, {name}", ModeRun, partial(measured, name, options, most, with_sizes))
        if isinstance(result, ModeRun) and result.batch_size != options.batch_size:
            result = f"out of memory with batch size {options.batch_size}, which fitted before"
        if isinstance(result, str):
            failed[name] = result
            progress.say(f"  {name}: not measured: {result}")
            if name == OFF_AGAIN:
                raise InputError(f"a step without a profiler could not be measured: {result}")
            continue
        results[name] = result
    return results


def measured(
    name: str,
    options: StepOptions,
    most_steps: int | None = None,
    with_sizes: bool = False,
    command: Sequence[str] = PROGRAM,
) -> ModeRun | str:
    """Measure a mode once, in a process of its own; a text says why it could not be, in a line.

    most_steps, with_sizes: see `program.measured_here`.
    """
    settings: dict[str, Any] = {"mode": name, "options": asdict(options)}
    answer = isolated.answer(command, settings | {"most_steps": most_steps, "with_sizes": with_sizes}, LIMIT_SECONDS)
    if isinstance(answer, dict) and "error" not in answer:
        return from_json(answer)
    why = answer if isinstance(answer, str) else answer["error"]
    return privacy.reason(why)


def most_steps(trial: ModeRun) -> int | None:
    """How many timed steps a trace may have to stay within `MOST_TRACE_BYTES`; None where nothing is traced."""
    if trial.sizes is None:
        return None
    return max(QUICK.window_steps, MOST_TRACE_BYTES // trial.sizes.json_bytes_per_step - LEAD_STEPS)


def order_of_run(modes: Sequence[T], run: int) -> list[T]:
    """The modes in the order of a run: it begins elsewhere each time, and every other one is backwards."""
    start = run * len(modes) // 3 % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if run % 2 else order


def mode_of(tracing: Tracing, of_runs: Sequence[ModeRun], trial: ModeRun | None, failed: str | None) -> Mode:
    """The `Mode` of a tracing. of_runs: none if not measured; failed: why not. trial: has the sizes of its trace."""
    sizes = trial.sizes if trial and of_runs else None
    return Mode(
        name=tracing.name,
        switches=tracing.switches,
        not_measured=tracing.why_not or failed,
        steps=[run.steps for run in of_runs],
        off_ms=[run.off_ms for run in of_runs],
        step_ms=[run.step_ms for run in of_runs],
        finish_seconds=[run.finish_seconds for run in of_runs if run.finish_seconds is not None],
        json_bytes_per_step=sizes and sizes.json_bytes_per_step,
        gzip_bytes_per_step=sizes and sizes.gzip_bytes_per_step,
        events_per_step=sizes and sizes.events_per_step,
    )
