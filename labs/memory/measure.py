"""What the study measures, each in a process of its own: see `labs.shared.study.serve`."""

import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from common.data import cifar10
from common.device import autocast_dtype, disable_tf32, empty_cache, synchronize
from common.options import StepOptions
from common.program import captured, float_batch, peak_bytes, timed, words_of
from labs.memory.data import augmented, real_data
from labs.memory.model import PUBLISHED
from labs.memory.train import PRECISION, Settings, Training
from labs.shared.study import serve
from walkthrough.memory.fit import largest_batch
from walkthrough.results.errors import is_out_of_memory

import torch
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
WINDOWS, WARM_UP_STEPS = 5, 2
LOADED_STEPS = {True: 3, False: 10}  # of a window that is timed with a loader; by --quick
OPTIMIZER_STEPS = {True: 6, False: 20}


def step(options: StepOptions, name: str, precision: str, batch_size: int, run: int) -> dict[str, Any]:
    """Speed and peak memory of a program's train step, on one batch that is on the device. run: the round."""
    options = replace(options, precision=precision, batch_size=batch_size)
    one, batch = captured(HERE / f"{name}.py", words_of(options)), float_batch(options)
    timing = timed(one, batch, options.quick)
    return {
        "samples_per_second": timing.samples_per_second.windows,
        "step_ms": timing.step_ms.median,
        "first_step_seconds": timing.first_step_seconds,
        "peak_bytes": peak_bytes(one, batch),
        "precision": one.dtype,
    }


def largest(options: StepOptions, name: str, precision: str, budget_bytes: int) -> dict[str, Any]:
    """The largest batch of a program whose peak is within a budget, and what was tried: {batch size: peak bytes}."""
    options = replace(options, precision=precision)
    one, device = captured(HERE / f"{name}.py", words_of(options)), torch.device(options.device)
    tried: dict[int, int] = {}

    def peak(size: int) -> int:
        try:
            tried[size] = peak_bytes(one, float_batch(options, size))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            one.variables["optimizer"].zero_grad()
            empty_cache(device)
            tried[size] = 2 * budget_bytes
        return tried[size]

    size = largest_batch(peak, budget_bytes, options.batch_size)
    return {"batch_size": size, "peak_bytes": tried.get(size), "tried": tried}


def loading(options: StepOptions, workers: int, run: int) -> dict[str, Any]:
    """How long the baseline waits for a batch and trains on it, with so many workers. run: the round.

    The first steps use up what workers had loaded ahead. load_ms, step_ms: means, since a batch that is waited for
    delays the epoch whether it is typical or not. samples_per_second: of windows of steps, both together.
    """
    train_set = cifar10(options.data, augmented(options.image_size))
    loader = DataLoader(
        train_set, options.batch_size, shuffle=True, drop_last=True,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip
    device = torch.device(options.device)
    train_step = captured(HERE / "00_baseline.py", words_of(options)).train_step
    batches, loads, steps = iter(loader), list[float](), list[float]()
    for _ in range(workers * (loader.prefetch_factor or 0) + WARM_UP_STEPS):
        train_step(*next(batches))
    synchronize(device)
    for _ in range(WINDOWS * LOADED_STEPS[options.quick]):
        begin = time.perf_counter()
        batch = next(batches)
        loaded = time.perf_counter()
        train_step(*batch)
        synchronize(device)
        loads.append(loaded - begin)
        steps.append(time.perf_counter() - loaded)
    size = LOADED_STEPS[options.quick]
    both = [load + step for load, step in zip(loads, steps, strict=True)]
    windows = [sum(both[at : at + size]) for at in range(0, len(both), size)]
    return {
        "load_ms": statistics.fmean(loads) * 1e3,
        "step_ms": statistics.fmean(steps) * 1e3,
        "samples_per_second": [size * options.batch_size / seconds for seconds in windows],
        "data": train_set.source,
    }


def optimizer_times(options: StepOptions, batch_size: int) -> dict[str, list[float]]:
    """The optimizer's time in ms, step by step, by where the clock waits for the device.

    "nowhere": the call alone. "after": the clock stops once the device is done, but starts while the backward pass may
    still run there. "both": it also starts only once the backward pass is done.
    """
    options = replace(options, batch_size=batch_size, precision="fp32")
    variables, device = captured(HERE / "00_baseline.py", words_of(options)).variables, torch.device(options.device)
    model, optimizer, criterion = (variables[name] for name in ("model", "optimizer", "criterion"))
    images, labels = float_batch(options)

    def once(before: bool, after: bool) -> float:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        if before:
            synchronize(device)
        begin = time.perf_counter()
        optimizer.step()
        if after:
            synchronize(device)
        seconds = time.perf_counter() - begin
        synchronize(device)
        return seconds * 1e3

    clocks = {"nowhere": (False, False), "after": (False, True), "both": (True, True)}
    for waits in clocks.values():  # the first makes the optimizer's state
        once(*waits)
    times: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(OPTIMIZER_STEPS[options.quick]):
        for name, waits in clocks.items():
            times[name].append(once(*waits))
    return times


def curves(options: StepOptions, seed: int, variants: dict[str, dict[str, Any]], epochs: int) -> dict[str, Any]:
    """Train each of `variants` ({name: changed settings}) on real data from one seed: {name: its epochs}."""
    disable_tf32()
    train_set, test_set = real_data(options.data, options.image_size)
    base = Settings(
        model=options.model, data=getattr(train_set, "source", ""), image_size=options.image_size,
        batch_size=options.batch_size, lr=0.01, precision="fp32", checkpoint=False, seed=seed,
    )  # fmt: skip
    device, results = torch.device(options.device), {}
    workers = options.workers if device.type == "cuda" else 0  # on a CPU they would compete with the training
    for name, changes in variants.items():
        settings = replace(base, **changes)
        settings = replace(settings, precision=PRECISION[autocast_dtype(device, settings.precision)])
        training = Training(settings, train_set, device, workers)
        results[name] = [asdict(training.epoch(test_set)) for _ in range(epochs)]
    return {"data": base.data, "epochs": results}


def by_kind(options: StepOptions, name: str) -> dict[str, Any]:
    """Memory by kind over one step of a program on a GPU, predicted; see `labs.memory.timeline.step_timeline`.

    Of the published model and batch, in float32.
    """
    from labs.memory.timeline import step_timeline

    options = replace(options, model=PUBLISHED, image_size=32, batch_size=128, precision="fp32")
    return step_timeline(HERE / f"{name}.py", options)


def snapshot(options: StepOptions, name: str) -> str:
    """Write what the GPU's allocator did in three steps of a program next to the study; returns the file's name.

    For https://docs.pytorch.org/memory_viz, which reads it in the browser.
    """
    device, file = torch.device(options.device), f"{name}.snapshot.pickle"
    train_step, batch = captured(HERE / f"{name}.py", words_of(options)).train_step, float_batch(options)
    train_step(*batch)
    torch.cuda.memory._record_memory_history(max_entries=200_000)
    try:
        for _ in range(3):
            train_step(*batch)
        synchronize(device)
        torch.cuda.memory._dump_snapshot(str(options.logdir / file))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return file


if __name__ == "__main__":
    serve(step, largest, loading, optimizer_times, curves, by_kind, snapshot)
