"""Search for the highest speed of this model on this device, and measure how far from the device's peaks it stays."""

import math
import time
from dataclasses import asdict, dataclass, field, replace

import torch

from common.device import autocast_dtype, autocast_notes, device_name, dtype_name, empty_cache
from common.model import classifier
from common.options import StepOptions
from common.timing import Timing
from studies import one_batch, study
from studies.limit import operator_times, peaks
from studies.limit.compiled import CompiledTiming, time_compiled
from studies.limit.flops import FORWARD, OPTIMIZER, RESIZE, OperatorCounter, least_bytes
from studies.limit.record import SCHEMA, Limit, Program, TrainingSpeed
from studies.limit.search import BATCH_SIZE, UNCOMPILED, compiled_order, first_program, greedy
from studies.limit.uncompiled import Uncompiled
from walkthrough.compare.roofs import Roofs, StepBytes
from walkthrough.results import environment, privacy, progress, result
from walkthrough.results.errors import InputError
from walkthrough.results.result import Throughput

SEARCH_SECONDS = {"cuda": 100, "cpu": 45}  # of programs that are not compiled; the last may take longer
QUICK_SEARCH_SECONDS = 10
TOTAL_SECONDS = {"cuda": 480, "cpu": 120}  # of the whole measurement: nothing more is compiled that would exceed it
COMPILE_LIMIT = 300  # s, on a GPU at most
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
    started, clock = environment.now(), Clock()
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
    seconds = QUICK_SEARCH_SECONDS if options.quick else SEARCH_SECONDS[device.type]
    best, timing_seconds = search_uncompiled(uncompiled, start, seconds, clock)
    step_bytes, why = count_least_bytes(uncompiled, best)
    notes += why
    counter, operator_ms = uncompiled.counters[best], None
    if result.msgspec:
        try:
            operator_ms = uncompiled.operator_ms(best)  # last: who has traced may be slower for good
        except Exception as error:  # a profiler fails in any way; the speeds are worth keeping
            why = privacy.reason(f"{type(error).__name__}: {error}", 160)
            notes = [*notes, f"operators are not timed: {why}"]
    else:
        notes = [*notes, "operators are not timed: msgspec, which reads their trace, is not installed"]
    timings, counters, most_images = uncompiled.timings, uncompiled.counters, uncompiled.most_images
    del uncompiled, model  # the processes that compile have to fit alongside this one
    empty_cache(device)

    compiled, why_not = search_compiled(options, precision, best, compile_seconds, clock, timing_seconds, most_images)
    all_notes = [*autocast_notes(device, options.precision), *notes]
    header = study.header(options, precision, all_notes, started, schema=SCHEMA)
    flops_per_image = round(counter.flops / best.batch_size)
    measured = {
        "peak_flops": peak_flops, "peak_bytes": peak_bytes, "flops_per_image": flops_per_image, "step_bytes": step_bytes
    }  # fmt: skip
    roofs = Roofs(**{name: header[name] for name in ("setup", "device_type", "precision")}, **measured)
    moved = {program: counters[program].bytes for program in timings}
    moved |= {program: moved_bytes(program, timing, best, counter) for program, timing in compiled.items()}
    return Limit(
        **header,
        **measured,
        forward_flops_per_image=counter.phase_flops[FORWARD] // best.batch_size,
        flops_per_step=counter.flops,
        bytes_per_step=counter.bytes,
        speeds=[
            training_speed(program, timing, moved[program], roofs) for program, timing in (timings | compiled).items()
        ],
        not_compiled=why_not and privacy.reason(why_not),
        groups=operator_times.groups(counter, operator_ms),
        outside_ms=(operator_ms or {}).get((operator_times.OUTSIDE, operator_times.OUTSIDE), 0.0),
        without_formula=operator_times.without_formula(counter, operator_ms),
    )


def fitting_start(uncompiled: Uncompiled, batch_size: int) -> tuple[Program, list[str]]:
    """The program that the search starts from: of `batch_size` images or as many as fit; see `fitting_batch`."""
    start = first_program(uncompiled.device.type, batch_size)
    batch, notes = one_batch.fitting_batch(uncompiled.train_step(start), batch_size, one_batch.STORED_SIZE)
    return replace(start, batch_size=len(batch[1])), notes


def count_least_bytes(uncompiled: Uncompiled, best: Program) -> tuple[list[StepBytes], list[str]]:
    """(`least_bytes` in float32 and in the precision in use, notes: why there are none, if so)."""
    precisions = dict.fromkeys((torch.float32, uncompiled.precision))
    try:
        return [least_bytes(replace(uncompiled, precision=one).train_step(best)) for one in precisions], []
    except Exception as error:  # of batches of 2 and 4 images; the speeds are worth keeping
        why = privacy.reason(f"{type(error).__name__}: {error}", 160)
        return [], [f"the least bytes of a step are not counted: {why}"]


def search_uncompiled(uncompiled: Uncompiled, start: Program, seconds: float, clock: Clock) -> tuple[Program, float]:
    """Time programs until the search is over or the time is; `start` always.

    Returns the fastest, and the seconds that counting and timing it took. Raises InputError where memory does not hold
    even `start` while it is counted and timed.
    """
    end, last = clock.seconds + seconds, 0.0
    took: dict[Program, float] = {}

    def time_program(program: Program) -> Throughput | None:
        nonlocal last
        began = clock.seconds
        if program != start and began + last > end:
            return None
        timing = uncompiled.time(program)
        last = took[program] = clock.seconds - began
        return timing and reported(program, timing)

    speeds = greedy(start, UNCOMPILED[uncompiled.device.type], time_program)
    if not speeds:
        raise InputError(f"out of memory with batch size {start.batch_size}: try a smaller --batch-size")
    best = max(speeds, key=lambda program: speeds[program].median)
    return best, took[best]


def search_compiled(
    options: StepOptions,
    precision: torch.dtype,
    best: Program,
    compile_seconds: int | None,
    clock: Clock,
    timing_seconds: float = 0.0,
    most_images: float = math.inf,
) -> tuple[dict[Program, Timing], str | None]:
    """Compile and time `best`, then others while there is time; and why there is none, in a line, or None.

    timing_seconds: that timing a program may take once it is compiled. most_images: of a step.
    """
    if compile_seconds == 0:
        return {}, "--compile-limit 0"
    device, timings, why_not = torch.device(options.device), {}, None
    settings = {
        "device": options.device, "model": options.model, "image_size": options.image_size,
        "precision": dtype_name(precision), "seed": options.seed, "quick": options.quick,
    }  # fmt: skip
    start, changes = compiled_order(device.type, best)
    reserved = int("cuda_graphs" in changes and not options.quick)  # programs that have to fit after the first
    last, late = 0.0, False

    def time_program(program: Program) -> Throughput | None:
        nonlocal last, late, why_not
        began, first = clock.seconds, program == start
        is_reserved = first or (bool(program.cuda_graphs) and not any(tried.cuda_graphs for tried in timings))
        if program.batch_size > most_images or (options.quick and not first):
            return None
        if not is_reserved and began + last > TOTAL_SECONDS[device.type]:
            return None
        limit = compile_limit(device, began, options.quick, 1 + reserved * first, timing_seconds)
        seconds = compile_seconds or limit
        if seconds <= 0:
            why_not = "no time was left for it"
            return None
        progress.say(f"  compiling, at most {seconds} s")
        timing, problem = time_compiled(settings | {"program": asdict(program)}, seconds)
        last = clock.seconds - began
        if timing is None:
            late, why_not = last >= seconds, problem
            progress.say(f"  not compiled: {problem}")
            return None
        timings[program] = timing
        return reported(program, timing)

    greedy(start, changes, time_program)
    if reserved and late and not timings:  # what it compiled is in torch's cache
        greedy(replace(start, cuda_graphs=True), {BATCH_SIZE: None}, time_program)
    graphs = any(tried.cuda_graphs for tried in timings)
    if reserved and not graphs and "out of memory" in (why_not or "") and start.batch_size > 1:
        greedy(replace(start, batch_size=start.batch_size // 2, cuda_graphs=True), {}, time_program)
    return timings, None if timings else why_not


def reported(program: Program, timing: Timing) -> Throughput:
    """Print a program's speed as progress; returns it."""
    speed = timing.samples_per_second
    progress.say(f"  {speed.median:10.1f} images/s  {program.kind}, batch {program.batch_size}")
    return speed


def compile_limit(
    device: torch.device, elapsed: float, quick: bool = False, programs: int = 1, timing_seconds: float = 0.0
) -> int:
    """Seconds that compiling may take by default, `elapsed` seconds after the measurement began.

    On a GPU an equal share of what is left of `TOTAL_SECONDS` for each of so many `programs`, less what timing one
    takes: a slow compilation leaves room for the one with CUDA graphs. On a CPU the whole command should be done in two
    minutes, so it is what is left of them; the least if `quick`.
    """
    if device.type == "cuda":
        return min(COMPILE_LIMIT, int((TOTAL_SECONDS["cuda"] - elapsed) / programs - timing_seconds))
    return CPU_COMPILE_LIMIT if quick else max(CPU_COMPILE_LIMIT, round(CPU_BUDGET - elapsed))


def moved_bytes(program: Program, timing: Timing, best: Program, counter: OperatorCounter) -> float | None:
    """Bytes that a compiled program moves in a step: Inductor's count, and the optimizer's and resizing's operators.

    counter: of a step of `best`. None where Inductor gave no count.
    """
    if not isinstance(timing, CompiledTiming) or timing.kernel_bytes is None:
        return None
    outside = dict.fromkeys((OPTIMIZER, RESIZE), 0)
    for counted in counter.counts.values():
        if counted.group in outside:
            outside[counted.group] += counted.bytes
    return timing.kernel_bytes + outside[OPTIMIZER] + outside[RESIZE] * program.batch_size / best.batch_size


def training_speed(program: Program, timing: Timing, moved: float | None, roofs: Roofs) -> TrainingSpeed:
    """The `TrainingSpeed` of a timing. moved: bytes of a step, None where they are not counted.

    MFU is the model's FLOPs over time and peak, after "PaLM" (Chowdhery et al. 2022, appendix B), with two differences:
    the FLOPs are counted, not estimated from the parameters, and the peak is the one measured here.
    """
    speed, batch_size = timing.samples_per_second, program.batch_size
    flops_per_second = (roofs.flops_per_image or 0) * speed.median
    return TrainingSpeed(
        **asdict(program),
        samples_per_second=speed,
        step_ms=timing.step_ms,
        flops_per_second=flops_per_second,
        mfu=flops_per_second / roofs.flops_roof,
        bytes_per_second=moved and moved * speed.median / batch_size,
        share_of_memory_roof=roofs.memory_share(batch_size, roofs.precision, speed.median),
    )
