"""`overhead`: how much each kind of tracing slows a training step down.

The train step of the course on one batch that is on the device, without a loader's noise. Every mode is measured in
every run, in an order that changes from run to run, each time in a process of its own, `python -m studies.overhead
JSON`. It is compared with "off", which the same process measures first. The control is a process that opens no profiler
and measures "off" again in its place: its interval should include 1.

A process opens one profiler at most: once one was open, CUPTI, which records the kernels of a GPU, stays attached, and
no later step would be without it. Where it is detached (TEARDOWN_CUPTI=1), profilers that follow each other crashed the
process, or recorded no kernels: github.com/pytorch/kineto/pull/1169 and 1554. So the first traced steps warm it up.

torch is imported where it is used: `--help` and what reads a result do without.
"""

import argparse
import gc
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from common.options import StepOptions, add_step_options, options_from
from studies import OPTION_TEXTS, study
from walkthrough.compare import isolated
from walkthrough.compare.figures import GREY, SPEED, styled
from walkthrough.compare.kept import Kept
from walkthrough.compare.statistics import Ratio, of_pairs
from walkthrough.results import environment, privacy, progress
from walkthrough.results.errors import InputError, folder, printable, whole_number
from walkthrough.results.progress import end_with_reader
from walkthrough.results.result import Positive, PositiveInt
from walkthrough.terminal import plain_table

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from studies.one_batch import Batch, TrainStep

FILE = "overhead.json"
SCHEMA = 3
OFF, OFF_AGAIN = "off", "off again"
BATCH_SIZE = {"cuda": 128, "cpu": 32}
RUNS, QUICK_RUNS = 5, 3
PROGRAM = isolated.module("studies.overhead")
LIMIT_SECONDS = 600  # of one process: beyond it something hangs
LEAD_STEPS = 2  # traced, not timed: the first after tracing began find caches and buffers cold
MOST_STEPS = 20  # timed of a trace, of which a step has up to 7 MB with stacks
HEADERS = ["step ms", "x off", "us per event", "export s", "MB per step", "gzip MB", "events per step"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `overhead`."""
    texts = {"--batch-size": "images per step (default: 128 on a GPU, 32 on a CPU)"}
    without = ("--data", "--download", "--workers", "--stacks")
    add_step_options(parser, without=without, batch_size=None, texts=OPTION_TEXTS | texts)
    parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 5; 3 with --quick)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the cost of each mode: .svg or .png")


def run(args: argparse.Namespace) -> int:
    """Measure, write `overhead.json` into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    from common.device import checked_device

    study.check_plot(args.plot)
    kind = checked_device(args.device).partition(":")[0]
    options = study.ready(args, batch_size=args.batch_size or BATCH_SIZE[kind])
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    return study.report("overhead", args, lambda: measure(options, runs))


@dataclass(frozen=True)
class Mode:
    """One way to trace, or not to. Lists hold a number per run, in order, and none where the mode was not measured.

    switches: what is passed to `torch.profiler.profile`, as one would type it. not_measured: why not. steps: timed in
    the mode. off_ms: of a step in the same process before it used a profiler; step_ms: of one in the mode, both means.
    finish_seconds: from the end of the last step until the trace is written; none where nothing is traced. Sizes and
    events (metadata aside) are those of one trace, over its steps; None without a trace.
    """

    name: str
    switches: str
    not_measured: str | None
    steps: list[PositiveInt]
    off_ms: list[Positive]
    step_ms: list[Positive]
    finish_seconds: list[float]
    json_bytes_per_step: int | None
    gzip_bytes_per_step: int | None
    events_per_step: float | None

    @property
    def ratios(self) -> list[float]:
        """How many times as long a step took as without a profiler, by run."""
        return [step / off for step, off in zip(self.step_ms, self.off_ms, strict=True)]

    @property
    def ratio(self) -> float:
        """How many times as long a step takes as without a profiler, mean of the runs."""
        return statistics.geometric_mean(self.ratios)

    @property
    def cost(self) -> Ratio | None:
        """`ratio` with its interval; above 1 is slower. None where fewer than two runs measured it."""
        return of_pairs(self.ratios) if len(self.ratios) > 1 else None

    @property
    def slower(self) -> bool:
        """True where a step takes measurably longer than without a profiler."""
        return self.cost is not None and self.cost.resolved and self.cost.ratio > 1

    @property
    def us_per_event(self) -> float | None:
        """µs that a step takes longer, over its events; None where there are none, or it is not measurably slower."""
        if not self.events_per_step or not self.slower:
            return None
        more_ms = statistics.median(step - off for step, off in zip(self.step_ms, self.off_ms, strict=True))
        return max(more_ms, 0.0) * 1e3 / self.events_per_step


@dataclass(frozen=True, kw_only=True)
class Overhead(study.Study):
    """One call of `overhead`. modes: first the control, `OFF_AGAIN`. batch_size: samples per step."""

    FILE: ClassVar[str] = FILE
    SCHEMA: ClassVar[int] = SCHEMA

    precision: str
    batch_size: PositiveInt
    runs: PositiveInt
    modes: list[Mode]

    def problem(self) -> str | None:
        if [mode.name for mode in self.modes[:1] if mode.not_measured is None] != [OFF_AGAIN]:
            return f"its modes must begin with {OFF_AGAIN!r}, measured"
        for mode in self.modes:
            runs = 0 if mode.not_measured is not None else self.runs
            if {len(mode.steps), len(mode.off_ms), len(mode.step_ms)} != {runs}:
                return f"{mode.name!r} must hold a number for each run"
        return None

    @property
    def control(self) -> Mode:
        """A second "off" in place of a mode: nothing differs, so the interval of its cost should include 1."""
        return self.modes[0]

    @property
    def traced(self) -> list[Mode]:
        """The modes with a profiler that were measured."""
        return [mode for mode in self.modes[1:] if mode.not_measured is None]

    @property
    def off_ms(self) -> float:
        """Of a step without a profiler, the median of all processes."""
        return statistics.median(off for mode in self.modes for off in mode.off_ms)

    @property
    def steps(self) -> str:
        """How many steps a timed window has, in words: "25 steps", "28 to 92 steps"."""
        steps = {number for mode in self.modes for number in mode.steps}
        low, high = min(steps), max(steps)
        return f"{low} step{'' if high == 1 else 's'}" if low == high else f"{low} to {high} steps"

    def computed(self) -> dict[str, Any]:
        return {"costs": {mode.name: mode.cost and asdict(mode.cost) for mode in (self.control, *self.traced)}}


def read(logdir: str | Path) -> Overhead | None:
    """The `Overhead` in a folder of runs, None where there is none. Raises InputError for one that is broken."""
    return study.read(Overhead, logdir)


@dataclass(frozen=True)
class Tracing:
    """A mode before it is measured. arguments: for `torch.profiler.profile`, None to trace nothing.

    why_not: why it is not measured, if so.
    """

    name: str
    switches: str
    arguments: dict[str, Any] | None = None
    why_not: str | None = None


def tracings(device: "torch.device") -> list[Tracing]:
    """Every mode, as a `Tracing`, the control first."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    from common.device import without_gpu

    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    operators = "activities CPU and CUDA" if gpu else "activity CPU"
    verbose = _ExperimentalConfig(verbose=True)

    def plus(name: str, switches: str, **arguments: Any) -> Tracing:
        return Tracing(name, f"{operators}, {switches}", {"activities": activities, **arguments})

    kernels_only = {"activities": [ProfilerActivity.CUDA]} if gpu else None
    why_no_kernels = next(iter(without_gpu("kernels_only", device)), None)
    return [
        Tracing(OFF_AGAIN, "no profiler"),
        Tracing("kernels only", "activity CUDA", kernels_only, why_no_kernels),
        Tracing("operators", operators, {"activities": activities}),
        plus("+ shapes", "record_shapes=True", record_shapes=True),
        plus("+ flops", "with_flops=True, which records shapes too", with_flops=True),
        plus("+ memory", "profile_memory=True", profile_memory=True),
        plus("+ modules", "with_modules=True", with_modules=True),
        plus("+ stacks", "with_stack=True", with_stack=True),
        plus(
            "+ stacks of operators",
            "with_stack=True, experimental_config=_ExperimentalConfig(verbose=True)",
            with_stack=True,
            experimental_config=verbose,
        ),
        plus("as the steps", "record_shapes=True, profile_memory=True", record_shapes=True, profile_memory=True),
    ]


def measure(options: StepOptions, runs: int) -> Overhead:
    """The `Overhead` of tracing on a device. Prints its progress; see `run` for errors."""
    import torch

    from common.device import autocast_dtype, autocast_notes, device_name
    from common.model import classifier

    started, device = environment.now(), torch.device(options.device)
    classifier(options.model, options.image_size)  # refused now rather than in every process
    precision = autocast_dtype(device, options.precision)
    progress.say(
        f"overhead: {options.model}, {options.image_size} px, batch {options.batch_size}, on {device_name(device)}, "
        "with no data; a process for each mode and run"
    )
    modes, batch_size, notes = measured_modes(tracings(device), options, runs, study.kept("overhead", options))
    return Overhead(
        **study.header(
            options, precision, [*autocast_notes(device, options.precision), *notes], started, schema=SCHEMA
        ),
        batch_size=batch_size,
        runs=runs,
        modes=modes,
    )


def measured_modes(
    tracings: Sequence[Tracing], options: StepOptions, runs: int, kept: Kept | None = None
) -> tuple[list[Mode], int, list[str]]:
    """A `Mode` for each `Tracing`, without numbers where it could not be measured; the batch size that fits, and notes.

    The control's first process finds the batch size. What failed is not tried again. kept: what is there is not
    measured again. Raises InputError where the control could not be measured.
    """
    kept, failed = kept or Kept(), dict[str, str]()
    names = [tracing.name for tracing in tracings if tracing.why_not is None]
    results: dict[str, list[ModeRun]] = {name: [] for name in names}
    batch_size, notes = None, list[str]()
    for run in range(runs):
        progress.report(f"run {run + 1}/{runs}", 0, 1)
        for name in order_of_run(names, run):
            if name in failed:
                continue
            own = replace(options, batch_size=batch_size or options.batch_size)
            result = kept.measurement(f"run {run + 1}, {name}", ModeRun, partial(measured, name, own, run == 0))
            if batch_size is None and isinstance(result, ModeRun):
                batch_size, notes = result.batch_size, result.notes
            if isinstance(result, ModeRun) and result.batch_size != batch_size:
                result = f"out of memory with batch size {batch_size}, which fitted before"
            if isinstance(result, ModeRun):
                results[name].append(result)
                continue
            if name == OFF_AGAIN:
                raise InputError(result if run == 0 else f"a step without a profiler could not be measured: {result}")
            failed[name] = result
            progress.say(f"  {name}: not measured: {result}")
    modes = [mode_of(tracing, results.get(tracing.name, []), failed.get(tracing.name)) for tracing in tracings]
    return modes, batch_size or options.batch_size, notes


def measured(
    name: str, options: StepOptions, with_sizes: bool = False, command: Sequence[str] = PROGRAM
) -> "ModeRun | str":
    """Measure a mode once, in a process of its own; a text says why it could not be, in a line."""
    settings = {"mode": name, "options": asdict(options), "with_sizes": with_sizes}
    answer = isolated.answer(command, settings, LIMIT_SECONDS)
    if isinstance(answer, dict) and "error" not in answer:
        return from_json(answer)
    return privacy.reason(answer if isinstance(answer, str) else answer["error"])


def order_of_run(modes: Sequence[str], run: int) -> list[str]:
    """The modes in the order of a run: it begins elsewhere each time, and every other one is backwards."""
    start = run * len(modes) // 3 % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if run % 2 else order


def mode_of(tracing: Tracing, of_runs: "Sequence[ModeRun]", failed: str | None) -> Mode:
    """The `Mode` of a tracing. of_runs: in order, the first with the sizes of its trace. failed: why not measured."""
    of_runs = [] if failed else of_runs
    sizes = of_runs[0].sizes if of_runs else None
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


# One mode in one run: a process of its own


@dataclass(frozen=True)
class TraceSizes:
    """Of a trace, per step: bytes of JSON, bytes once compressed as the steps compress theirs, events but metadata."""

    json_bytes_per_step: int
    gzip_bytes_per_step: int
    events_per_step: float


@dataclass(frozen=True)
class ModeRun:
    """One mode in one run. off_ms: of a step, before the process used a profiler; step_ms: of one in the mode.

    steps: that step_ms is the mean of. finish_seconds: from the end of the last step until the trace is written; None
    without a trace. sizes: None where they were not asked for. batch_size: the one that fits; notes: of those that
    did not.
    """

    off_ms: float
    step_ms: float
    steps: int
    finish_seconds: float | None
    sizes: TraceSizes | None
    batch_size: int
    notes: list[str]


def from_json(value: Mapping[str, Any]) -> ModeRun:
    """The `ModeRun` that a process answered with."""
    return ModeRun(**{**value, "sizes": value["sizes"] and TraceSizes(**value["sizes"])})


def measured_here(tracing: Tracing, options: StepOptions, with_sizes: bool) -> ModeRun:
    """Measure "off", then a mode, in this process.

    Raises InputError where no batch fits, and where the trace is not whole or has no kernels.
    """
    import torch

    from common.device import autocast_dtype, disable_tf32, keep_freed_memory
    from common.model import classifier
    from common.timing import Plan, warm_up
    from common.tracing import read_trace
    from studies import one_batch

    # A window lasts a certain time, since 25 steps of a fast GPU are over in 0.1 s.
    seconds = 0.0 if options.quick else 0.75
    plan = Plan(warmup_steps=1, warmup_seconds=seconds / 1.5, windows=1, window_steps=2, window_seconds=seconds)
    device = torch.device(options.device)
    if device.index is not None:
        torch.cuda.set_device(device)
    if device.type == "cpu":
        keep_freed_memory()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    disable_tf32()
    torch.manual_seed(options.seed)
    model = classifier(options.model, options.image_size)
    train_step = one_batch.TrainStep(model, device, autocast_dtype(device, options.precision))
    batch, notes = one_batch.fitting_batch(train_step, options.batch_size, options.image_size)
    off_steps = warm_up(repeat(batch), train_step, device, plan)
    gc.collect()
    off_ms = timed_steps(train_step, batch, device, off_steps)
    steps = off_steps if tracing.arguments is None else min(off_steps, MOST_STEPS)
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        path = Path(name) / "trace.json"
        step_ms, finish_seconds = mode_steps(tracing, train_step, batch, device, steps, path)
        sizes = None
        if tracing.arguments is not None:
            events, all_steps = read_trace(path), LEAD_STEPS + steps
            check_kernels(events, all_steps, device)
            sizes = trace_sizes(path, events, all_steps) if with_sizes else None
    return ModeRun(off_ms, step_ms, steps, finish_seconds, sizes, len(batch[1]), notes)


def timed_steps(train_step: "TrainStep", batch: "Batch", device: "torch.device", steps: int) -> float:
    """ms per step, the mean of `steps`. Only the edges synchronise the device."""
    from common.device import synchronize

    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        train_step(*batch)
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3 / steps


def mode_steps(
    tracing: Tracing, train_step: "TrainStep", batch: "Batch", device: "torch.device", steps: int, path: Path
) -> tuple[float, float | None]:
    """Train in a mode, `LEAD_STEPS` that are not timed and `steps` that are; write the trace of all into `path`.

    Returns ms per step, and seconds from the end of the last step until the trace is written, None without one.
    """
    import torch

    from common.tracing import leave_spare_memory

    gc.collect()
    profiler = None if tracing.arguments is None else torch.profiler.profile(**tracing.arguments)
    if profiler and device.type == "cpu":
        leave_spare_memory()
    with profiler or nullcontext():
        for _ in range(LEAD_STEPS):
            train_step(*batch)
        step_ms = timed_steps(train_step, batch, device, steps)
        end = time.perf_counter()
    if profiler is None:
        return step_ms, None
    profiler.export_chrome_trace(str(path))
    return step_ms, time.perf_counter() - end


def check_kernels(events: Sequence[Mapping[str, Any]], steps: int, device: "torch.device") -> None:
    """Raise InputError for the trace of so many steps on a GPU that has not even one kernel per step."""
    from common.tracing import kernel_count

    kernels = kernel_count(events)
    if device.type == "cuda" and kernels < steps:
        raise InputError(f"its trace holds {kernels} kernels in {steps} steps: CUPTI recorded nothing, or lost some")


def trace_sizes(path: Path, events: Sequence[Mapping[str, Any]], steps: int) -> TraceSizes:
    """The `TraceSizes` of a trace of so many steps, whose events are `events`."""
    content = path.read_bytes()
    return TraceSizes(
        json_bytes_per_step=len(content) // steps,
        gzip_bytes_per_step=len(gzip.compress(content, 6)) // steps,
        events_per_step=sum(event.get("ph") != "M" for event in events) / steps,
    )


def main(settings: str) -> None:
    """Measure the mode that a line of JSON describes: {"mode": its name, "options", "with_sizes"}.
    Answers with the fields of a `ModeRun`, or {"error": why not, in a line}.
    """
    import torch

    try:
        values = json.loads(settings)
        options = options_from(values["options"])
        tracing = next(each for each in tracings(torch.device(options.device)) if each.name == values["mode"])
        answer = asdict(measured_here(tracing, options, values["with_sizes"]))
    except Exception as error:  # profilers and drivers fail in any way; the other modes go on
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        answer = {"error": printable(f"{kind}{error}", isolated.REASON_LENGTH)}
    isolated.print_answer(answer)


def show(result: Overhead, to: "Console") -> None:
    """Print an `Overhead` on a console."""
    from rich.markup import escape
    from rich.text import Text

    setup, environment = result.setup, result.environment
    to.print(
        f"\n[bold]{escape(setup.model)}[/], batch {result.batch_size}, {setup.image_size} px, {result.precision}, on "
        f"[bold]{escape(setup.device)}[/] ({environment.cores} CPU cores), torch {escape(environment.torch)}; one "
        f"batch on the device, {result.steps} in each of {result.runs} runs\n"
    )
    to.print(modes_table(result))
    to.print(f"\n[bold]{escape(verdict(result))}[/]")
    study.print_unsteady([[*result.control.off_ms, *result.control.step_ms]], to, what="steps without a profiler")
    for mode in result.modes:
        if mode.not_measured is not None:
            to.print(Text(f"Not measured: {mode.name}: {mode.not_measured}.", "yellow"))
    study.print_notes(result.notes, to)
    to.print(Text(_legend(result), "dim"))


def modes_table(result: Overhead) -> "Table":
    """What each way of tracing costs, a row each."""
    table = plain_table("tracing", HEADERS)
    table.add_row(OFF, f"{result.off_ms:.1f}", "1.00x", *["-"] * 5)
    for mode in result.modes:
        if mode.not_measured is not None:
            table.add_row(mode.name, "-", "not measured", *[""] * 5)
            continue
        table.add_row(
            mode.name,
            f"{statistics.median(mode.step_ms):.1f}",
            _cost_cell(mode),
            "-" if mode.us_per_event is None else f"{mode.us_per_event:.1f}",
            f"{statistics.median(mode.finish_seconds):.2f}" if mode.finish_seconds else "-",
            study.mb_text(mode.json_bytes_per_step, 2),
            study.mb_text(mode.gzip_bytes_per_step, 2),
            "-" if mode.events_per_step is None else f"{mode.events_per_step:,.0f}",
        )
    return table


def verdict(result: Overhead) -> str:
    """What the control shows, which modes are measurably slower, and by how much, in a few sentences."""
    control = result.control.cost
    if control is None:
        return "One run gives no interval, so no cost is measurable: --runs 5, say."
    text = f"The control, which traces nothing either, took {control} as long"
    text += ": it should include 1, so something else differs between runs." if control.resolved else "."
    slower = sorted((mode for mode in result.traced if mode.slower), key=lambda mode: mode.ratio)
    others = [mode for mode in result.traced if not mode.slower]
    if slower:
        text += f" Slower than without a profiler, cheapest first: {_costs(slower)}."
    if others:
        text += f" Not measurably slower: {_costs(others)}."
    return text


def _costs(modes: Sequence[Mode]) -> str:
    return ", ".join(f"{mode.name} {mode.cost}" for mode in modes)


def _cost_cell(mode: Mode) -> str:
    return f"[dim]~{mode.ratio:.2f}x[/]" if mode.cost is None else study.ratio_cell(mode.cost)


def _legend(result: Overhead) -> str:
    switches = "\n".join(f"{mode.name}: {mode.switches}" for mode in result.modes[1:])
    return (
        f"{switches}\n"
        "x off: over the steps that the same process ran before it traced, mean over the runs and 95 % interval. ~, "
        f"grey: no measurable difference. {OFF_AGAIN}: the control, which never traces: it should include 1.\n"
        "us per event: what a step takes longer, over its events. The cost is per operator, not per image: steps of "
        "larger batches show a smaller ratio. export: from the end of the last step until the trace is on disk.\n"
        "+ modules: with_modules sees TorchScript models only; the modules of others come with the stacks."
    )


def figure(result: Overhead) -> "Figure":
    """A matplotlib `Figure`: a row for the control and for each mode, its cost and the interval; nothing of one run."""
    from matplotlib.figure import Figure  # half a second to import

    modes = result.modes
    drawn = Figure(figsize=(9, 1.6 + 0.4 * len(modes)), layout="constrained")
    axes = drawn.subplots()
    axes.axvline(1, color=GREY, linewidth=1)
    costs = [(row, mode.cost) for row, mode in enumerate(modes) if mode.cost]
    study.draw_ratios(axes, costs, colour=SPEED, label="mean, 95 % interval")
    low, high = study.shown_range(cost for _, cost in costs)
    axes.set_xlim(low - 0.02, high + 0.02)
    for row, mode in enumerate(modes):
        if mode.cost is None:
            text = "one run: no interval" if mode.not_measured is None else "not measured"
            axes.annotate(text, (1, row), (8, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)
    axes.set_yticks(range(len(modes)), [mode.name for mode in modes])
    axes.set_ylim(len(modes) - 0.5, -0.5)
    axes.set_xlabel("time of a step over that without a profiler", color=GREY, fontsize=9)
    setup = result.setup
    settings = f"{setup.model}, batch {result.batch_size}, {setup.image_size} px, {result.precision}"
    styled(axes, f"{settings}, {setup.device}; {result.runs} runs")
    if costs:
        axes.legend(frameon=False, labelcolor=GREY, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return drawn


if __name__ == "__main__":
    end_with_reader()
    main(sys.argv[1])
