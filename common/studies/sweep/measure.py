"""`python -m common sweep`: training throughput for every number of workers, batch size and pinning.

The program is step 07's: uint8 batches, autocast where the device has it, channels last, no hidden synchronisation,
not compiled. Each setting is measured by this module as a program, `python -m common.studies.sweep.measure`, in a process of its own
and anew in each run: a worker that is killed for lack of memory, or a GPU that is full, costs that cell only.
"""

import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import torch

from common import machine, record
from common.data import check_cifar10
from common.device import autocast_dtype, device_name, disable_tf32, needs_gpu
from common.errors import InputError, is_out_of_memory, printable
from common.failures import explained
from common.model import classifier
from common.run import privacy, progress
from common.session import Plan, endless, first_step, timed_window, warm_up
from common.studies import isolated, one_batch, report
from common.studies.ablation.plan import Optimisations
from common.studies.ablation.program import training
from common.studies.input.measure import worker_memory, worker_numbers
from common.studies.sweep.figure import check_plot, plot
from common.studies.sweep.record import FILE, Cell, CellRun, ProcessMemory, Sweep
from common.studies.sweep.view import print_sweep, told_setting

FULL = Plan(warmup_steps=1, warmup_seconds=1.0, windows=3, window_steps=2, window_seconds=1.0)
QUICK = Plan(warmup_steps=1, warmup_seconds=0.0, windows=3, window_steps=1, window_seconds=0.1)
STEP_07 = Optimisations(
    amp=True, bigger_batch=True, reduced_h2d_copy=True, multiprocess_loading=True, channels_last=True,
    no_hidden_syncs=True,
)  # fmt: skip
BATCH_SIZES = {"cuda": [32, 128, 512], "cpu": [32, 64, 128]}
QUICK_WORKERS, QUICK_BATCH_SIZES = [0, 1], [8, 16]
RUNS, QUICK_RUNS = 3, 1
CELL_SECONDS = 600  # of one measurement, start-up and all: beyond it something hangs
SMOKE = "smoke run (--quick): few, short windows, so the figures are rough"


def sweep(args):
    """Measure, write `sweep.json` into `args.logdir`, draw and print it. Returns 0.

    Raises InputError for what the user can mend: options, a folder that cannot be written, no cell that could be
    measured.
    """
    if args.plot:
        check_plot(args.plot)
    device = one_batch.ready_device(args)
    return report.of(args, FILE, lambda: measure(args, device), print_sweep, plot)


def measure(args, device):
    """The `Sweep` of a device. Prints its progress; see `sweep` for errors."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    classifier(args.model, args.image_size)  # refused now rather than in every process
    data = "cifar10" if check_cifar10(args.data) else "stand-in"
    precision, notes = autocast_dtype(device)
    pin_memory = [False, True] if device.type == "cuda" else [False]
    notes = [*notes, *needs_gpu(device, "without a copy to a device pinned memory cannot act: measured without it")]
    if device.type == "cpu":
        notes.append("no GPU: the model trains on the same cores as the workers load on")
    workers = args.workers_list or (QUICK_WORKERS if args.quick else default_workers(machine.usable_cores()))
    batch_sizes = args.batch_sizes or (QUICK_BATCH_SIZES if args.quick else BATCH_SIZES[device.type])
    progress.say(
        f"sweep: {args.model}, {data} data, {args.image_size} px, on {device_name(device)}: workers "
        f"{', '.join(map(str, workers))}; batch sizes {', '.join(map(str, batch_sizes))}; a process for each"
    )
    settings = [
        {"workers": number, "batch_size": size, "pin_memory": pinned}
        for pinned in pin_memory
        for size in batch_sizes
        for number in workers
    ]
    shared = {
        "device": args.device, "model": args.model, "image_size": args.image_size, "data": str(args.data),
        "seed": args.seed, "quick": args.quick,
    }  # fmt: skip
    cells = measured(settings, shared, args.runs or (QUICK_RUNS if args.quick else RUNS))
    if all(cell.failed for cell in cells):
        raise InputError(f"no setting could be measured; {told_setting(cells[0])}: {cells[0].failed}")
    return Sweep(
        schema=record.SCHEMA,
        device=device_name(device),
        device_type=device.type,
        model=args.model,
        data=data,
        image_size=args.image_size,
        precision=str(precision).removeprefix("torch."),
        seed=args.seed,
        workers=workers,
        batch_sizes=batch_sizes,
        pin_memory=pin_memory,
        cells=cells,
        notes=[*notes, *([SMOKE] if args.quick else [])],
        environment=record.environment(torch.__version__, torch.version.cuda),
        started=started,
    )


def default_workers(cores):
    """0, 1, 2, 4 … up to the cores, and twice as many as there are."""
    return sorted({*worker_numbers(cores), 2 * cores})


def measured(settings, shared, runs):
    """A `Cell` for each of `settings`, measured in every run; every other run goes through them backwards.

    A setting that failed is not tried again. shared: what `measured_here` takes besides.
    """
    found, failed, done = [[] for _ in settings], {}, 0
    for run in range(runs):
        order = range(len(settings))
        for index in order if run % 2 == 0 else reversed(order):
            done += 1
            if index in failed:
                continue
            told, why = measured_apart(settings[index] | shared)
            if told is None:
                failed[index] = why = privacy.redacted(why)
                progress.say(f"  {told_setting(Cell(**settings[index], runs=[], failed=why))}: failed: {why}")
                continue
            found[index].append(told)
            cell = Cell(**settings[index], runs=[told], failed=None)
            progress.report(f"run {run + 1}/{runs}, {told_setting(cell)}", done, runs * len(settings), cell.median)
    return [Cell(**setting, runs=found[index], failed=failed.get(index)) for index, setting in enumerate(settings)]


def measured_apart(
    settings, limit_seconds=CELL_SECONDS, command=(sys.executable, "-m", "common.studies.sweep.measure")
):
    """Measure one setting in a process of its own: (`CellRun`, None), or (None, why not, in a line).

    settings: what `measured_here` takes. The process and all it started are ended after `limit_seconds`.
    """
    with isolated.isolated_process(command, settings, limit_seconds) as (process, _, late):
        printed = process.stdout.read()
        process.wait()
    if late.is_set():
        return None, f"not done after {limit_seconds} s"
    lines = [line for line in printed.splitlines() if line.startswith('{"cell": ')]
    told = json.loads(lines[-1])["cell"] if lines else {}
    if "windows" in told:
        process_bytes, worker_bytes = (
            None if told[name] is None else ProcessMemory(**told[name]) for name in ("process_bytes", "worker_bytes")
        )
        return CellRun(told["windows"], told["cores"], process_bytes, worker_bytes), None
    code = process.returncode
    killed = f"its process was killed by signal {-code}, most likely for lack of memory"
    return None, told.get("error") or (killed if code < 0 else f"its process ended with code {code}")


def measured_here(device, model, image_size, data, seed, quick, workers, batch_size, pin_memory):
    """Measure one setting in this process; returns the `CellRun`."""
    device = torch.device(device)
    if device.index is not None:
        torch.cuda.set_device(device)
    disable_tf32()
    torch.manual_seed(seed)
    options = {"data": Path(data), "model": model, "image_size": image_size, "batch_size": batch_size, "seed": seed}
    args = SimpleNamespace(**options, device=device, workers=workers, logdir=Path(data), ignores=())
    made = training(replace(STEP_07, pinned_memory=pin_memory), args)
    if len(made.loader) == 0:
        raise InputError(f"the batch is larger than the data ({len(made.loader.dataset)} images)")
    with explained(args, made.loader, device):
        return timed(made, device, QUICK if quick else FULL)


def timed(made, device, plan):
    """The `CellRun` of an `ablation.Training`."""
    batches, train_step = endless(made.loader), made.train_step
    first_step(train_step, *next(batches), device)
    steps = warm_up(batches, train_step, device, plan, made.loader)
    pids = [child.pid for child in multiprocessing.active_children()]
    before, begin = cpu_seconds(pids), time.perf_counter()
    windows = [timed_window(batches, train_step, device, steps).samples_per_second for _ in range(plan.windows)]
    seconds, after = time.perf_counter() - begin, cpu_seconds(pids)
    own, others = worker_memory([os.getpid()]), worker_memory(pids)
    batches.close()
    cores = None if before is None or after is None else (after - before) / seconds
    return CellRun(windows, cores, own, others)


def cpu_seconds(workers, proc=Path("/proc")):
    """CPU seconds, user and system, that this process and those of these ids took so far; None where not told."""
    total = sum(os.times()[:2])
    for pid in workers:
        try:
            values = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()  # a name may hold spaces
        except OSError:
            return None
        total += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, in ticks
    return total


def failure(error):
    """Why a setting could not be measured, in a line."""
    if isinstance(error, InputError):
        return printable(error, 200)
    if is_out_of_memory(error):
        return "out of memory before the first batch"
    return printable(f"{type(error).__name__}: {error}", 160)


if __name__ == "__main__":
    try:
        answer = asdict(measured_here(**json.loads(sys.argv[1])))
    except Exception as error:  # loaders, drivers and allocators fail in any way; the sweep goes on
        answer = {"error": failure(error)}
    print(json.dumps({"cell": answer}), flush=True)
