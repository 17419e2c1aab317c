"""Measure how fast this model could train on this device, and how far from the device's peaks it stays."""

import tempfile
import time
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from torch import nn

from common import machine, record
from common.device import autocast_dtype, autocast_notes, device_name, dtype_name, empty_cache
from common.model import classifier
from common.options import StepOptions
from common.run import privacy, progress
from common.run.tracing import traced_window
from common.session import Timing
from common.studies import one_batch, study
from common.studies.limit import operator_times, peaks
from common.studies.limit.compiled import time_compiled
from common.studies.limit.flops import FORWARD, OperatorCounter, count_step
from common.studies.limit.operator_times import OperatorTimes
from common.studies.limit.record import Limit, TrainingSpeed

PARTS = 5  # of a whole measurement, as its progress is reported
COMPILE_LIMIT = 300  # s, on a GPU
CPU_BUDGET, CPU_COMPILE_LIMIT = 100, 30  # s: on a CPU, until all is compiled; and what compiling may take at least


def measure(options: StepOptions, compile_seconds: int | None = None) -> Limit:
    """The `Limit` of a model on a device. Prints its progress; see `limit.run` for errors.

    compile_seconds: how long compiling may take, 0 to skip it; None chooses by the device.
    """
    started, begin = machine.now(), time.perf_counter()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)  # first: it is what can be wrong
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"limit: {options.model}, {options.image_size} px, batch {options.batch_size}, on {device_name(device)}, "
        "with no data"
    )
    peak_flops = peaks.peak_flops(device, precision, options.quick)
    peak_bytes = peaks.peak_bytes(device, options.quick)
    progress.report("peaks", 1, PARTS)

    step = uncompiled(model, options, precision)
    del model  # the process that compiles has to fit beside this one
    empty_cache(device)
    timings = dict(step.timings)
    if compile_seconds is None:
        compile_seconds = compile_limit(device, time.perf_counter() - begin, options.quick)
    timing, why_not = None, "--compile-limit 0"
    if compile_seconds:
        progress.say(f"  compiling, at most {compile_seconds} s")
        settings = {
            "device": options.device, "model": options.model, "image_size": options.image_size,
            "batch_size": step.batch_size, "precision": dtype_name(precision), "seed": options.seed,
            "quick": options.quick,
        }  # fmt: skip
        timing, why_not = time_compiled(settings, compile_seconds)
        if timing:
            timings[one_batch.COMPILED] = timing
            progress.report(one_batch.COMPILED, PARTS, PARTS, timing.samples_per_second.median)
        else:
            progress.say(f"  not compiled: {why_not}")
    operator_ms = step.operator_ms or {}
    return Limit(
        **study.header(options, precision, [*autocast_notes(device, options.precision), *step.notes], started),
        batch_size=step.batch_size,
        forward_flops_per_image=step.counter.phase_flops[FORWARD] // step.batch_size,
        flops_per_step=step.counter.flops,
        bytes_per_step=step.counter.bytes,
        peak_flops=peak_flops,
        peak_bytes=peak_bytes,
        speeds=[
            training_speed(kind, timing, step.batch_size, step.counter, peak_flops[0].median)
            for kind, timing in timings.items()
        ],
        not_compiled=why_not and privacy.redacted(why_not),
        groups=operator_times.groups(step.counter, step.operator_ms),
        outside_ms=operator_ms.get((operator_times.OUTSIDE, operator_times.OUTSIDE), 0.0),
        without_formula=operator_times.without_formula(step.counter, step.operator_ms),
    )


def compile_limit(device: torch.device, elapsed: float, quick: bool = False) -> int:
    """Seconds that compiling may take by default, `elapsed` seconds after the measurement began.

    On a CPU the whole command should be done in two minutes, so it is what is left of them; the least if `quick`.
    """
    if device.type == "cuda":
        return COMPILE_LIMIT
    return CPU_COMPILE_LIMIT if quick else max(CPU_COMPILE_LIMIT, round(CPU_BUDGET - elapsed))


@dataclass(frozen=True)
class Uncompiled:
    """The uncompiled step: counted, timed in each of its kinds, and traced.

    operator_ms: None where it could not be traced; notes has why, and those of `one_batch.fitting_batch`.
    """

    counter: OperatorCounter
    batch_size: int
    timings: dict[str, Timing]
    operator_ms: OperatorTimes | None
    notes: list[str]


def uncompiled(model: nn.Module, options: StepOptions, precision: torch.dtype) -> Uncompiled:
    """Count, time and trace the model on one batch, of `options.batch_size` images or as many as fit into memory."""
    device = torch.device(options.device)
    train_step = one_batch.TrainStep(model, device, precision)
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, options.image_size)
    counter = count_step(train_step, *batch)
    progress.report("count", 2, PARTS)
    plan, timings = one_batch.QUICK if options.quick else one_batch.FULL, {}
    for part, kind in enumerate((one_batch.PLAIN, one_batch.CHANNELS_LAST), start=3):
        if kind != one_batch.PLAIN:
            train_step = one_batch.TrainStep(model, device, precision, kind)
        timings[kind] = one_batch.time_one_batch(train_step, batch, device, plan)
        progress.report(kind, part, PARTS, timings[kind].samples_per_second.median)
    operator_ms = None
    if record.msgspec:
        train_step = one_batch.TrainStep(model, device, precision)  # last: who has traced may be slower for good
        operator_ms = traced_ms(train_step, batch, counter)
    else:
        notes = [*notes, "operators are not timed: msgspec, which reads their trace, is not installed"]
    return Uncompiled(counter, len(batch[1]), timings, operator_ms, notes)


def traced_ms(train_step: one_batch.TrainStep, batch: one_batch.Batch, counter: OperatorCounter) -> OperatorTimes:
    """`operator_times.operator_ms` of the step that was counted, from a trace that is not kept."""
    names = {count.name for count in counter.counts.values()}
    with tempfile.TemporaryDirectory(prefix="limit-") as folder:
        path = Path(folder) / "trace.json"
        events = traced_window(repeat(batch), train_step, train_step.device, path)
        return operator_times.operator_ms(path, events, names)


def training_speed(
    kind: str, timing: Timing, batch_size: int, counter: OperatorCounter, flops_roof: float
) -> TrainingSpeed:
    """The `TrainingSpeed` of a timing. counter: of a step. flops_roof: the measured peak, FLOP/s.

    MFU is the model's FLOPs over time and peak, after "PaLM" (Chowdhery et al. 2022, appendix B), with two differences:
    the FLOPs are counted, not estimated from the parameters, and the peak is the one measured here.
    """
    steps_per_second = timing.samples_per_second.median / batch_size
    return TrainingSpeed(
        kind=kind,
        samples_per_second=timing.samples_per_second,
        step_ms=timing.step_ms,
        flops_per_second=counter.flops * steps_per_second,
        mfu=counter.flops * steps_per_second / flops_roof,
        bytes_per_second=counter.bytes * steps_per_second if kind != one_batch.COMPILED else None,
    )
