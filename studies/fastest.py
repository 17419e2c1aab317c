"""Search for the fastest program of this model on this device, and measure how far from the device's peaks it stays.

Programs that are not compiled are counted, timed and traced in this process. A compiled one has a process of its own,
`python -m studies.fastest JSON`, since compiling can take minutes, can be stopped only from outside, and can bring a
process down.
"""

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from common.device import autocast_dtype, autocast_notes, device_name, disable_tf32, dtype_name, empty_cache
from common.failures import batch_norm_problem
from common.model import classifier
from common.options import StepOptions
from common.program import FULL, QUICK
from common.timing import Plan, Timing, Window
from common.tracing import SPARE_BYTES, traced_window
from studies import one_batch, roofline, study
from studies.limit import CHANNELS_LAST, CONTIGUOUS
from studies.roofline import FORWARD, OPTIMIZER, RESIZE, OperatorCounter, OperatorTimes, count_step, least_bytes
from walkthrough.compare import isolated
from walkthrough.compare.isolated import Isolated
from walkthrough.compare.roofs import Program, StepBytes
from walkthrough.compare.study import Study
from walkthrough.results import privacy, progress
from walkthrough.results.errors import InputError, is_out_of_memory
from walkthrough.results.result import Throughput

SEARCH_SECONDS = {"cuda": 100, "cpu": 45}  # of programs that are not compiled; the last may take longer
QUICK_SEARCH_SECONDS = 10
TOTAL_SECONDS = {"cuda": 480, "cpu": 120}  # of the whole measurement: nothing more is compiled that would exceed it
COMPILE_LIMIT = 300  # s, on a GPU at most
CPU_BUDGET, CPU_COMPILE_LIMIT = 100, 30  # s: on a CPU, until all is compiled; and what compiling may take at least
LARGEST_BATCH = 65536  # images, as for --batch-size

BATCH_SIZE = "batch_size"  # the key of `greedy`'s settings that has no value of its own
UNCOMPILED: dict[str, dict[str, object]] = {  # by device type: what to change, in this order
    "cpu": {"layout": CHANNELS_LAST, BATCH_SIZE: None},
    "cuda": {BATCH_SIZE: None, "cudnn_benchmark": True, "layout": CONTIGUOUS},
}

TimeProgram = Callable[[Program], Throughput | None]
# Elements of a GPU's tensor at most: cuDNN's batch norm refuses more (https://github.com/pytorch/pytorch/issues/51776),
# and others count them in 32 bits. A large GPU holds such batches: 2048 images of 224 px in MobileNetV2.
MOST_ELEMENTS = 2**31 - 1
COMPILED = "compiled"  # the line that a process prints once the model is


@dataclass
class Clock:
    """Seconds since it was made."""

    begin: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin


@dataclass(frozen=True)
class Uncompiled:
    """A model that is trained in `Program`s, each timed by `plan`. image_size: px that images are resized to."""

    model: nn.Module
    device: torch.device
    precision: torch.dtype
    image_size: int
    plan: Plan
    timings: dict[Program, Timing] = field(default_factory=dict)
    counters: dict[Program, OperatorCounter] = field(default_factory=dict)

    def train_step(self, program: Program) -> one_batch.TrainStep:
        channels_last = program.layout == CHANNELS_LAST
        return one_batch.TrainStep(self.model, self.device, self.precision, self.image_size, channels_last)

    def time(self, program: Program) -> Timing | None:
        """Count and time a program. None where memory does not hold it, for a batch too small for batch norm, and for
        one whose tensors have too many elements.
        """
        if program.batch_size > self.most_images:
            return None
        if self.device.type == "cpu" and self._bytes_expected(program) > psutil.virtual_memory().total / 2:
            return None  # on a CPU, memory that is used up shows in no error: the system ends the process
        try:
            with cudnn_benchmark(program.cudnn_benchmark):
                train_step = self.train_step(program)
                batch = one_batch.batch_on(self.device, program.batch_size)
                train_step(*batch)  # makes the momentum, and is counted from the next on
                counter = count_step(train_step, *batch)
                timing = one_batch.time_one_batch(train_step, batch, self.device, self.plan)
        except Exception as error:
            if not (is_out_of_memory(error) or batch_norm_problem(error, program.batch_size, self.image_size)):
                raise
        else:
            self.timings[program], self.counters[program] = timing, counter
            return timing
        train_step = batch = None
        empty_cache(self.device)
        return None

    def _bytes_expected(self, program: Program) -> float:
        """More than a step allocates: what the operators of those that ran move, by the number of images."""
        moved = (counter.bytes / known.batch_size for known, counter in self.counters.items())
        return max(moved, default=0) * program.batch_size

    @property
    def most_images(self) -> float:
        """Of a step, compiled or not, whose largest tensor has `MOST_ELEMENTS` at most; without a limit on a CPU."""
        largest = (counter.largest / known.batch_size for known, counter in self.counters.items())
        per_image = max(largest, default=0) if self.device.type == "cuda" else 0
        return MOST_ELEMENTS // per_image if per_image else float("inf")

    def operator_ms(self, program: Program) -> OperatorTimes:
        """`roofline.operator_ms` of a program that was timed, from a trace that is not kept."""
        names = {count.name for count in self.counters[program].counts.values()}
        train_step, batch = self.train_step(program), one_batch.batch_on(self.device, program.batch_size)
        with tempfile.TemporaryDirectory(prefix="limit-") as folder, cudnn_benchmark(program.cudnn_benchmark):
            path = Path(folder) / "trace.json"
            spare = max(SPARE_BYTES, min(2 * self.counters[program].bytes, 2**32))  # the batch may be large
            events = traced_window(repeat(batch), train_step, self.device, path, spare_bytes=spare)
            return roofline.operator_ms(path, events, names)


@contextmanager
def cudnn_benchmark(on: bool | None) -> Iterator[None]:
    """Let cuDNN time its algorithms and take the fastest, or not; afterwards it is as before."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = bool(on)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def measure(options: StepOptions) -> Study:
    """The limit of a model on a device. Prints its progress; see `limit.run` for errors.

    Its `measured`: groups and without_formula are of a step of the fastest uncompiled program, see `roofline`; of the
    same are flops_per_step, bytes_per_step and outside_ms, of a traced step the time on the CPU in no counted operator
    (on a GPU: of device work that no counted operator launched). not_compiled: why no program is compiled.
    """
    clock = Clock()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)  # first: it is what can be wrong
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"limit: {options.model}, {options.image_size} px, batch {options.batch_size} and others, on "
        f"{device_name(device)}, with no data"
    )
    do = study.measurements("limit", options, precision)
    peak_flops = roofline.peak_flops(device, precision, options.quick)
    peak_bytes = roofline.peak_bytes(device, options.quick)

    plan = QUICK if options.quick else FULL
    uncompiled = Uncompiled(model, device, precision, options.image_size, plan)
    start, notes = fitting_start(uncompiled, options.batch_size)
    seconds = QUICK_SEARCH_SECONDS if options.quick else SEARCH_SECONDS[device.type]
    best, timing_seconds = search_uncompiled(uncompiled, start, seconds, clock)
    step_bytes, why = count_least_bytes(uncompiled, best)
    notes += why
    counter, operator_ms = uncompiled.counters[best], None
    try:
        operator_ms = uncompiled.operator_ms(best)  # last: who has traced may be slower for good
    except Exception as error:  # a profiler fails in any way; the speeds are worth keeping
        notes = [*notes, f"operators are not timed: {privacy.reason(f'{type(error).__name__}: {error}', 160)}"]
    timings, counters, most_images = uncompiled.timings, uncompiled.counters, uncompiled.most_images
    del uncompiled, model  # the processes that compile have to fit alongside this one
    empty_cache(device)

    compiled, why_not = search_compiled(options, precision, best, clock, timing_seconds, most_images)
    notes += [f"not compiled: {privacy.reason(why_not)}"] if why_not else []
    flops_per_image = round(counter.flops / best.batch_size)
    moved = {program: counters[program].bytes for program in timings}
    moved |= {program: moved_bytes(program, timing, best, counter) for program, timing in compiled.items()}
    peaks = peak_flops[0].median, peak_bytes[0].median
    measured = {
        "peak_flops": [asdict(peak) for peak in peak_flops],
        "peak_bytes": [asdict(peak) for peak in peak_bytes],
        "flops_per_image": flops_per_image,
        "step_bytes": [asdict(one) for one in step_bytes],
        "forward_flops_per_image": counter.phase_flops[FORWARD] // best.batch_size,
        "flops_per_step": counter.flops,
        "bytes_per_step": counter.bytes,
        "speeds": [
            training_speed(program, timing, moved[program], flops_per_image, step_bytes, peaks)
            for program, timing in (timings | compiled).items()
        ],
        "not_compiled": why_not and privacy.reason(why_not),
        "groups": roofline.groups(counter, operator_ms),
        "outside_ms": (operator_ms or {}).get((roofline.OUTSIDE, roofline.OUTSIDE), 0.0),
        "without_formula": roofline.without_formula(counter, operator_ms),
    }
    notes += study.unsteady(
        [peak_flops[0].windows, peak_bytes[0].windows]
        + [timing.samples_per_second.windows for timing in (timings | compiled).values()]
    )
    return study.finished(do, measured, [*autocast_notes(device, options.precision), *notes])


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
    clock: Clock,
    timing_seconds: float = 0.0,
    most_images: float = math.inf,
) -> tuple[dict[Program, Timing], str | None]:
    """Compile and time `best`, then others while there is time; and why there is none, in a line, or None.

    timing_seconds: that timing a program may take once it is compiled. most_images: of a step.
    """
    device, timings, why_not = torch.device(options.device), {}, None
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
        seconds = compile_limit(device, began, options.quick, 1 + reserved * first, timing_seconds)
        if seconds <= 0:
            why_not = "no time was left for it"
            return None
        progress.say(f"  compiling, at most {seconds} s")
        timing, problem = time_compiled(options, precision, program, seconds)
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


def training_speed(
    program: Program,
    timing: Timing,
    moved: float | None,
    flops_per_image: int,
    step_bytes: Sequence[StepBytes],
    peaks: tuple[float, float],
) -> dict[str, Any]:
    """How fast a `Program` trains on one batch that is on the device already; see `one_batch.TrainStep`.

    flops_per_second: FLOPs of a step over its time. mfu: that over the measured peak, 0..1, after "PaLM" (Chowdhery et
    al. 2022, appendix B), but the FLOPs are counted, not estimated from the parameters, and the peak is the one
    measured here. bytes_per_second: bytes that a step's operators move (see `roofline.OperatorCounter`) over its time;
    of a compiled program by Inductor's own count, None where it gave none. share_of_memory_roof: the bytes that a step
    must move at least, per second, over the measured peak; the same bytes for every program of a batch size.

    moved: bytes of a step, None where they are not counted. step_bytes: the last in the precision in use. peaks: FLOP/s
    and bytes/s.
    """
    speed, batch_size = timing.samples_per_second, program.batch_size
    flops_per_second = flops_per_image * speed.median
    least = step_bytes[-1].fixed + step_bytes[-1].per_image * batch_size if step_bytes else None
    return {
        **asdict(program),
        "kind": program.kind,
        "samples_per_second": asdict(speed),
        "step_ms": asdict(timing.step_ms),
        "flops_per_second": flops_per_second,
        "mfu": flops_per_second / peaks[0],
        "bytes_per_second": moved and moved * speed.median / batch_size,
        "share_of_memory_roof": least and least * speed.median / batch_size / peaks[1],
    }


def first_program(device_type: str, batch_size: int) -> Program:
    """What the search starts from; on a GPU in channels last, which its Tensor Cores need."""
    gpu = device_type == "cuda"
    off = False if gpu else None
    layout = CHANNELS_LAST if gpu else CONTIGUOUS
    return Program(batch_size, layout, cudnn_benchmark=off, compiled=False, cuda_graphs=off)


def compiled_order(device_type: str, best: Program) -> tuple[Program, dict[str, object]]:
    """The first program to compile and what to change of it, in this order; `best`: the fastest uncompiled one.

    On a GPU channels last only, and CUDA graphs before any other batch size: each of these programs may take minutes.
    """
    if device_type == "cuda":
        return replace(best, layout=CHANNELS_LAST, compiled=True), {"cuda_graphs": True, BATCH_SIZE: None}
    other = CONTIGUOUS if best.layout == CHANNELS_LAST else CHANNELS_LAST
    return replace(best, compiled=True), {"layout": other, BATCH_SIZE: None}


def greedy(start: Program, settings: Mapping[str, object], time_program: TimeProgram) -> dict[Program, Throughput]:
    """The speeds of the programs that were tried, in the order in which they were.

    settings: {field of a `Program`: another value}, in the order in which to try them; each is kept where the median is
    higher. `BATCH_SIZE` is doubled while the speed grows, and where that never helps, halved while it does. A growing
    speed is one whose median is above all windows of the fastest program before. This rule only chooses what to try
    next: whether two programs differ is decided in `compare.statistics`.

    time_program: None for a program that cannot be timed (no memory, no time left); the search does not go on there.
    """
    speeds: dict[Program, Throughput] = {}

    def timed(program: Program) -> bool:
        speed = time_program(program)
        if speed is not None:
            speeds[program] = speed
        return speed is not None

    if not timed(start):
        return speeds
    best = start
    for name, value in settings.items():
        if name == BATCH_SIZE:
            best = _resized(best, timed, speeds)
            continue
        changed = replace(best, **{name: value})  # pyright: ignore[reportArgumentType]  # of the field's type
        if timed(changed) and speeds[changed].median > speeds[best].median:
            best = changed
    return speeds


def _resized(start: Program, timed: Callable[[Program], bool], speeds: Mapping[Program, Throughput]) -> Program:
    """The fastest of the batch sizes that `greedy` tries from `start`."""
    best = start
    for resized in (lambda size: size * 2, lambda size: size // 2):
        while 1 <= (size := resized(best.batch_size)) <= LARGEST_BATCH:
            changed = replace(best, batch_size=size)
            if not timed(changed) or speeds[changed].median <= max(speeds[best].windows):
                break
            best = changed
        if best.batch_size != start.batch_size:
            break
    return best


@dataclass(frozen=True)
class CompiledTiming(Timing):
    """kernel_bytes: that the kernels of a step move at least, by Inductor's own count; None where it gave none.

    Without the optimizer and the resizing, which are not compiled.
    """

    kernel_bytes: int | None = None


def time_compiled(
    options: StepOptions,
    precision: torch.dtype,
    program: Program,
    limit_seconds: float,
    command: Sequence[str] = isolated.module("studies.fastest"),
) -> tuple[CompiledTiming, None] | tuple[None, str]:
    """Time a compiled program in a process of its own: (its timing, None), or (None, why not, in a line).

    limit_seconds: how long starting and compiling together may take; after that the process and all that it started are
    ended.
    """
    settings = {"precision": dtype_name(precision), "program": asdict(program)}
    request = {"what": "compile_and_time", "options": asdict(options), "settings": settings}
    answer = isolated.answer(command, request, limit_seconds, end_limit_once_compiled)
    if isinstance(answer, str):
        return None, f"torch.compile failed: {answer}"
    if "error" in answer:
        return None, answer["error"]
    timing = answer["value"]["timing"]
    windows = [Window(**window) for window in timing["windows"]]
    return CompiledTiming(timing["first_step_seconds"], windows, kernel_bytes=answer["value"]["kernel_bytes"]), None


def end_limit_once_compiled(line: str, child: Isolated) -> None:
    """Cancel a process's timer where it has printed that the model is compiled."""
    if line == COMPILED:
        child.timer.cancel()


def compile_and_time(options: StepOptions, precision: str, program: Mapping[str, Any]) -> dict[str, Any]:
    """Compile and time here: {"timing", "kernel_bytes"}. Prints `COMPILED` once the model is. Raises InputError.

    precision: name of a dtype, such as "float32". program: the fields of a `Program`.
    """
    count_kernel_bytes()
    chosen = Program(**program)
    on = torch.device(options.device)
    if on.index is not None:
        torch.cuda.set_device(on)
    disable_tf32()
    torch.backends.cudnn.benchmark = bool(chosen.cudnn_benchmark)
    torch.manual_seed(options.seed)
    try:
        batch = one_batch.batch_on(on, chosen.batch_size)
        network, dtype = classifier(options.model, options.image_size), getattr(torch, precision)
        channels_last, graphs = chosen.layout == CHANNELS_LAST, bool(chosen.cuda_graphs)
        train_step = one_batch.TrainStep(
            network, on, dtype, options.image_size, channels_last, compiled=True, cuda_graphs=graphs
        )
        train_step(*batch).item()
        print(COMPILED, flush=True)
        moved = kernel_bytes()
        timing = one_batch.time_one_batch(train_step, batch, on, QUICK if options.quick else FULL)
    except Exception as error:  # a compiler fails in any way
        raise InputError(not_compiled(error)) from error
    return {"timing": asdict(timing), "kernel_bytes": moved}


def count_kernel_bytes() -> None:
    """Let Inductor count the bytes that its kernels move: since 2.11 or earlier it does so only for a log.

    Nothing is logged. A program from torch's caches would count as the process did that put it there, so these are not
    used; those of kernels are.
    """
    try:
        from torch._functorch import config as functorch
        from torch._inductor import compile_fx, config, graph
    except ImportError:  # a build without Inductor
        return
    config.fx_graph_cache = functorch.enable_autograd_cache = False
    # torch's own also estimates times, which may fail
    graph.GraphLowering.count_bytes = _moved  # pyright: ignore[reportAttributeAccessIssue]
    log = getattr(compile_fx, "inductor_metrics_log", None)
    if log is not None:
        log.setLevel(logging.INFO)
        log.addFilter(lambda _: False)


def _moved(graph: Any) -> tuple[float, list, list]:
    """(bytes that the kernels of a graph move, and two lists for the log); not a number where that cannot be told."""
    try:
        return sum(node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes), [], []
    except Exception:  # no reason for a compilation to fail
        return math.nan, [], []


def kernel_bytes() -> int | None:
    """What Inductor counted of all that it compiled so far: of each kernel, every buffer read and written once.

    None where this torch does not count.
    """
    try:
        from torch._inductor import metrics
    except ImportError:
        return None
    counted = getattr(metrics, "num_bytes_accessed", 0)
    return int(counted) if counted > 0 else None  # NaN is not


def not_compiled(error: BaseException) -> str:
    """Why the compiled model could not be measured, in a line."""
    if is_out_of_memory(error):
        return "the compiled model runs out of memory at this batch size"
    return isolated.not_compiled(error)


if __name__ == "__main__":
    study.serve(compile_and_time)
