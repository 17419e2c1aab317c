"""`python -m common limit`: how fast this model could train on this device, and how far from its limits it stays."""

import statistics
import tempfile
import time
from datetime import datetime, timezone
from itertools import repeat
from pathlib import Path

import torch

from common import record
from common.device import autocast_dtype, device_name, empty_cache
from common.errors import InputError
from common.ladder.figures import check_figure_file
from common.model import classifier
from common.run import privacy, progress
from common.session import traced_window
from common.studies import one_batch, report
from common.studies.input.record import FILE as INPUT_FILE
from common.studies.limit import figure as roofline
from common.studies.limit import operator_times, peaks
from common.studies.limit.flops import FORWARD, count_step
from common.studies.limit.record import FILE, SMOKE, Limit
from common.studies.limit.view import print_limit

PARTS = 5  # of a whole measurement, for who follows it
COMPILE_LIMIT = 300  # s, on a GPU
CPU_BUDGET, CPU_COMPILE_LIMIT = 100, 30  # s: on a CPU, until all is compiled; and what compiling may take at least


def limit(args):
    """Measure, write `limit.json` (with `args.input` `input_limit.json`) into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can mend: options, a folder that cannot be written, a model that does not fit.
    """
    device = ready(args)
    if args.input:
        from common.studies.input.measure import input_limit
        from common.studies.input.view import print_input_limit

        return report.of(args, INPUT_FILE, lambda: input_limit(args, device), print_input_limit)
    more = "; `compare` shows each step's share of the floor"
    return report.of(args, FILE, lambda: measure(args, device), print_limit, roofline.plot, more)


def ready(args):
    """Check the options, fill in this machine's defaults, and return the device. Raises InputError."""
    if args.plot and args.input:
        raise InputError("--plot draws the roofline, which --input does not measure: leave one of them out")
    if args.download and not args.input:
        raise InputError("--download fetches the data, which limit reads with --input only: leave it out")
    device = one_batch.ready_device(args)
    if args.plot:
        check_figure_file(args.plot)
    return device


def measure(args, device):
    """The `Limit` of a model on a device. Prints its progress; see `limit` for errors."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    begin = time.perf_counter()
    torch.manual_seed(args.seed)
    model = classifier(args.model, args.image_size)  # first: it is what can be wrong
    precision, notes = autocast_dtype(device)
    progress.say(
        f"limit: {args.model}, {args.image_size} px, batch {args.batch_size}, on {device_name(device)}, with no data"
    )
    flops_peaks = peaks.peak_flops(device, precision, args.quick)
    bytes_peaks = peaks.peak_bytes(device, args.quick)
    progress.report("peaks", 1, PARTS)

    model.to(device)
    counted, batch_size, times, timings, halved = uncompiled(model, args, device, precision)
    del model  # the process that compiles has to fit beside this one
    empty_cache(device)
    settings = {
        "device": args.device, "model": args.model, "image_size": args.image_size, "batch_size": batch_size,
        "precision": _name(precision), "seed": args.seed, "quick": args.quick,
    }  # fmt: skip
    patience = args.compile_limit
    if patience is None:
        patience = compile_limit(device, time.perf_counter() - begin, args.quick)
    why_not = "--compile-limit 0"
    if patience:
        progress.say(f"  compiling, {patience} s at most")
        speeds, step_ms, why_not = one_batch.compiled_windows(settings, patience)
        if speeds:
            timings[one_batch.COMPILED] = speeds, step_ms
            progress.report(one_batch.COMPILED, PARTS, PARTS, statistics.median(speeds))
        else:
            progress.say(f"  not compiled: {why_not}")
    return Limit(
        schema=record.SCHEMA,
        device=device_name(device),
        device_type=device.type,
        model=args.model,
        image_size=args.image_size,
        batch_size=batch_size,
        precision=_name(precision),
        seed=args.seed,
        forward_flops_per_image=counted.phase_flops[FORWARD] // batch_size,
        flops_per_step=counted.flops,
        bytes_per_step=counted.bytes,
        peak_flops=flops_peaks,
        peak_bytes=bytes_peaks,
        floors=[
            one_batch.floor(kind, speeds, step_ms, batch_size, counted, flops_peaks[0].median)
            for kind, (speeds, step_ms) in timings.items()
        ],
        not_compiled=why_not and privacy.redacted(why_not),
        groups=operator_times.groups(counted, times),
        outside_ms=times.get((operator_times.OUTSIDE, operator_times.OUTSIDE), 0.0),
        without_formula=operator_times.without_formula(counted, times),
        notes=[*notes, *halved, *([SMOKE] if args.quick else [])],
        environment=record.environment(torch.__version__, torch.version.cuda),
        started=started,
    )


def compile_limit(device, elapsed, quick=False):
    """Seconds that compiling may take by default, `elapsed` after the measurement began.

    On a CPU the whole command should be done in two minutes, so it is what is left of them; the least if `quick`.
    """
    if device.type == "cuda":
        return COMPILE_LIMIT
    return CPU_COMPILE_LIMIT if quick else max(CPU_COMPILE_LIMIT, round(CPU_BUDGET - elapsed))


def uncompiled(model, args, device, precision):
    """Count, time and trace the model on one batch, as large as `args.batch_size` or as memory holds.

    Returns the `OperatorCounter` of a step, its batch size, `operator_times.operator_ms`, {kind: what `one_batch.speeds_of`
    gives}, and the notes of `one_batch.fitting_batch`.
    """
    train_step = one_batch.TrainStep(model, device, precision)
    batch, halved = one_batch.fitting_batch(train_step, args.batch_size, args.image_size)
    counted = count_step(train_step, *batch)
    progress.report("count", 2, PARTS)
    plan, timings = one_batch.QUICK if args.quick else one_batch.FULL, {}
    for part, kind in enumerate((one_batch.PLAIN, one_batch.CHANNELS_LAST), start=3):
        if kind != one_batch.PLAIN:
            train_step = one_batch.TrainStep(model, device, precision, kind)
        timings[kind] = one_batch.speeds_of(one_batch.windows_of(train_step, batch, device, plan))
        progress.report(kind, part, PARTS, statistics.median(timings[kind][0]))
    train_step = one_batch.TrainStep(model, device, precision)  # last: a process that has traced may be slower for good
    times = traced_ms(train_step, batch, device, counted)
    return counted, len(batch[1]), times, timings, halved


def traced_ms(train_step, batch, device, counted):
    """`operator_times.operator_ms` of the step that was counted, from a trace that is not kept."""
    names = {counted.name for counted in counted.counts.values()}
    with tempfile.TemporaryDirectory(prefix="limit-") as folder:
        path = Path(folder) / "trace.json"
        events = traced_window(repeat(batch), train_step, device, path)
        return operator_times.operator_ms(path, events, names)


def _name(dtype):
    return str(dtype).removeprefix("torch.")
