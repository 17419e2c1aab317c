"""Search for the highest speed of this model on this device, and measure how far from the device's peaks it stays."""

import time
from dataclasses import asdict, dataclass, field, replace

import torch

from common import machine, record
from common.device import autocast_dtype, autocast_notes, device_name, dtype_name, empty_cache
from common.errors import InputError
from common.model import classifier
from common.options import StepOptions
from common.record import Throughput
from common.run import privacy, progress
from common.run.timing import Timing
from common.studies import one_batch, study
from common.studies.limit import operator_times, peaks
from common.studies.limit.compiled import time_compiled
from common.studies.limit.flops import FORWARD, OperatorCounter
from common.studies.limit.record import CHANNELS_LAST, CONTIGUOUS, SCHEMA, Limit, Program, TrainingSpeed
from common.studies.limit.search import greedy
from common.studies.limit.uncompiled import Uncompiled

SEARCH_SECONDS = {"cuda": 100, "cpu": 45}  # of programs that are not compiled; the last may take longer
QUICK_SEARCH_SECONDS = 10
TOTAL_SECONDS = {"cuda": 300, "cpu": 120}  # of the whole measurement: nothing more is compiled that would exceed it
COMPILE_LIMIT = 300  # s, on a GPU
CPU_BUDGET, CPU_COMPILE_LIMIT = 100, 30  # s: on a CPU, until all is compiled; and what compiling may take at least


@dataclass
class Clock:
    """Seconds since it was made."""

    begin: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin


def measure(options: StepOptions, compile_seconds: int | None = None) -> Limit:
    """The `Limit` of a model on a device. Prints its progress; see `limit.run` for errors.

    compile_seconds: how long compiling a program may take, 0 to compile none; None chooses by the device.
    """
    started, clock = machine.now(), Clock()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)  # first: it is what can be wrong
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"limit: {options.model}, {options.image_size} px, batch {options.batch_size} and others, on "
        f"{device_name(device)}, with no data"
    )
    peak_flops = peaks.peak_flops(device, precision, options.quick)
    peak_bytes = peaks.peak_bytes(device, options.quick)

    plan = one_batch.QUICK if options.quick else one_batch.FULL
    uncompiled = Uncompiled(model, device, precision, options.image_size, plan)
    start, notes = fitting_start(uncompiled, options.batch_size)
    best = search_uncompiled(uncompiled, start, QUICK_SEARCH_SECONDS if options.quick else SEARCH_SECONDS[device.type])
    counter, operator_ms = uncompiled.counters[best], None
    if record.msgspec:
        try:
            operator_ms = uncompiled.operator_ms(best)  # last: who has traced may be slower for good
        except Exception as error:  # a profiler fails in any way; the speeds are worth keeping
            why = privacy.reason(f"{type(error).__name__}: {error}", 160)
            notes = [*notes, f"operators are not timed: {why}"]
    else:
        notes = [*notes, "operators are not timed: msgspec, which reads their trace, is not installed"]
    timings, flops_per_image = uncompiled.timings, counter.flops / best.batch_size
    counters = uncompiled.counters
    del uncompiled, model  # the processes that compile have to fit beside this one
    empty_cache(device)

    compiled, why_not = search_compiled(options, precision, best, compile_seconds, clock)
    all_notes = [*autocast_notes(device, options.precision), *notes]
    return Limit(
        **study.header(options, precision, all_notes, started, schema=SCHEMA),
        forward_flops_per_image=counter.phase_flops[FORWARD] // best.batch_size,
        flops_per_step=counter.flops,
        bytes_per_step=counter.bytes,
        peak_flops=peak_flops,
        peak_bytes=peak_bytes,
        speeds=[
            training_speed(program, timing, flops_per_image, counters.get(program), peak_flops[0].median)
            for program, timing in (timings | compiled).items()
        ],
        not_compiled=why_not and privacy.reason(why_not),
        groups=operator_times.groups(counter, operator_ms),
        outside_ms=(operator_ms or {}).get((operator_times.OUTSIDE, operator_times.OUTSIDE), 0.0),
        without_formula=operator_times.without_formula(counter, operator_ms),
    )


def fitting_start(uncompiled: Uncompiled, batch_size: int) -> tuple[Program, list[str]]:
    """The program that the search starts from: of `batch_size` images or as many as fit; see `fitting_batch`."""
    gpu = uncompiled.device.type == "cuda"
    off = False if gpu else None
    start = Program(batch_size, CONTIGUOUS, cudnn_benchmark=off, compiled=False, cuda_graphs=off)
    batch, notes = one_batch.fitting_batch(uncompiled.train_step(start), batch_size, one_batch.STORED_SIZE)
    return replace(start, batch_size=len(batch[1])), notes


def search_uncompiled(uncompiled: Uncompiled, start: Program, seconds: float) -> Program:
    """Time programs until the search is over or the time is; `start` always. Returns the fastest.

    Raises InputError where memory does not hold even `start` while it is counted and timed.
    """
    clock, last = Clock(), 0.0

    def time_program(program: Program) -> Throughput | None:
        nonlocal last
        if program != start and clock.seconds + last > seconds:
            return None
        began = clock.seconds
        timing = uncompiled.time(program)
        last = clock.seconds - began
        return timing and reported(program, timing)

    settings: dict[str, object] = {"layout": CHANNELS_LAST}
    if start.cudnn_benchmark is not None:
        settings["cudnn_benchmark"] = True
    speeds = greedy(start, settings, time_program)
    if not speeds:
        raise InputError(f"out of memory with batch size {start.batch_size}: try a smaller --batch-size")
    return max(speeds, key=lambda program: speeds[program].median)


def search_compiled(
    options: StepOptions, precision: torch.dtype, best: Program, compile_seconds: int | None, clock: Clock
) -> tuple[dict[Program, Timing], str | None]:
    """Compile and time `best`, then others while there is time; and why there is none, in a line, or None."""
    if compile_seconds == 0:
        return {}, "--compile-limit 0"
    device, timings, why_not = torch.device(options.device), {}, None
    settings = {
        "device": options.device, "model": options.model, "image_size": options.image_size,
        "precision": dtype_name(precision), "seed": options.seed, "quick": options.quick,
    }  # fmt: skip
    last = 0.0

    def time_program(program: Program) -> Throughput | None:
        nonlocal last, why_not
        began = clock.seconds
        if timings and (options.quick or began + last > TOTAL_SECONDS[device.type]):
            return None
        seconds = compile_seconds or compile_limit(device, began, options.quick)
        progress.say(f"  compiling, at most {seconds} s")
        timing, problem = time_compiled(settings | {"program": asdict(program)}, seconds)
        last = clock.seconds - began
        if timing is None:
            why_not = problem
            progress.say(f"  not compiled: {problem}")
            return None
        timings[program] = timing
        return reported(program, timing)

    changes: dict[str, object] = {"layout": CONTIGUOUS if best.layout == CHANNELS_LAST else CHANNELS_LAST}
    if best.cuda_graphs is not None:
        changes["cuda_graphs"] = True
    greedy(replace(best, compiled=True), changes, time_program)
    return timings, None if timings else why_not


def reported(program: Program, timing: Timing) -> Throughput:
    """Print a program's speed as progress; returns it."""
    speed = timing.samples_per_second
    progress.say(f"  {speed.median:10.1f} images/s  {program.kind}, batch {program.batch_size}")
    return speed


def compile_limit(device: torch.device, elapsed: float, quick: bool = False) -> int:
    """Seconds that compiling may take by default, `elapsed` seconds after the measurement began.

    On a CPU the whole command should be done in two minutes, so it is what is left of them; the least if `quick`.
    """
    if device.type == "cuda":
        return COMPILE_LIMIT
    return CPU_COMPILE_LIMIT if quick else max(CPU_COMPILE_LIMIT, round(CPU_BUDGET - elapsed))


def training_speed(
    program: Program, timing: Timing, flops_per_image: float, counter: OperatorCounter | None, flops_roof: float
) -> TrainingSpeed:
    """The `TrainingSpeed` of a timing. counter: of a step, None if compiled. flops_roof: the measured peak, FLOP/s.

    MFU is the model's FLOPs over time and peak, after "PaLM" (Chowdhery et al. 2022, appendix B), with two differences:
    the FLOPs are counted, not estimated from the parameters, and the peak is the one measured here.
    """
    speed = timing.samples_per_second
    return TrainingSpeed(
        **asdict(program),
        samples_per_second=speed,
        step_ms=timing.step_ms,
        flops_per_second=flops_per_image * speed.median,
        mfu=flops_per_image * speed.median / flops_roof,
        bytes_per_second=None if counter is None else counter.bytes * speed.median / program.batch_size,
    )
