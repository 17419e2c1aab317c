"""What the study measures, each in a process of its own: see `labs.shared.study.serve`."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from common.device import autocast_notes, disable_tf32, empty_cache, keep_freed_memory
from common.options import StepOptions
from common.program import peak_bytes
from common.program import timed as timing_of
from labs.shared.study import serve
from labs.transformer import noise as gradient_noise
from labs.transformer import peaks
from labs.transformer import quality as of_quality
from labs.transformer.batches import DynamicPadding, FixedPadding, Packing, UniformLengthBatches, padding_share
from labs.transformer.data import training_set
from labs.transformer.tricks import SMALL_BATCH, TRICKS, assemble
from labs.transformer.variants import PREDICTED, VARIANTS, cumulative_name
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, is_out_of_memory, printable

import torch
from torch.utils.data import DataLoader

LOADED_SECONDS = {True: 1.0, False: 3.0}  # of each timed loader; by --quick
LOADED_WINDOWS = 3
WARM_UP_STEPS = {True: 6, False: 20}  # before them, at least, whatever the number of workers
CHUNK_BATCHES = 150  # of an epoch, from which padding per batch is taken
BIN_TOKENS = 16  # of the histogram of lengths
EXPLAIN_LIMIT_SECONDS = 600


def half_precision(options: StepOptions) -> StepOptions:
    """The options in half precision: bf16 on a CPU where autocast would stay off, to see it nevertheless."""
    off = options.precision == "auto" and options.device == "cpu" and autocast_notes("cpu")
    return replace(options, precision="bf16") if off else options


def options_for(variant: str, options: StepOptions) -> StepOptions:
    """The options that a variant is measured with: mixed precision alone is half precision on any device."""
    return half_precision(options) if variant == "alone mixed_precision" else options


def speeds(options: StepOptions, run: int) -> dict[str, dict[str, Any]]:
    """{variant: its speed, or why it could not be run}: one round of all `VARIANTS`. run: its number, and the seed.

    tokens, samples: per second, real tokens, of each window. Each variant has a model, an optimizer and a loader of its
    own, which are gone before the next is timed.
    """
    data, device, rows = training_set(options), torch.device(options.device), {}

    def timed(name: str, tricks: frozenset[str]) -> dict[str, Any]:
        own = options_for(name, options)
        training = assemble(own, tricks, options.seed + run, data)
        timing = timing_of(training, None, own.quick)
        tokens = timing.tokens_per_second
        return {
            "tokens": tokens.windows if tokens else [],
            "samples": timing.samples_per_second.windows,
            "step_ms": timing.step_ms.median,
            "first_step_seconds": timing.first_step_seconds,
        }

    for name, tricks in VARIANTS.items():
        rows[name] = attempted(partial(timed, name, tricks), device)
    return rows


def memory(options: StepOptions) -> dict[str, dict[str, Any]]:
    """{variant: the peak bytes of a step, or why there is none}; see `peak_bytes`."""
    data, device, heaviest = training_set(options), torch.device(options.device), peaks.HeaviestBatches()

    def peak(name: str, tricks: frozenset[str]) -> dict[str, Any]:
        training = assemble(options_for(name, options), tricks, options.seed, data)
        return {"peak_bytes": peak_bytes(training, heaviest.of(tricks, training.loader))}

    return {name: attempted(partial(peak, name, tricks), device) for name, tricks in VARIANTS.items()}


def predicted(options: StepOptions) -> dict[str, dict[str, Any]]:
    """{variant: its peak on a GPU, or why there is none}; see `peaks.predicted`. By --quick not of each program."""
    data, heaviest = peaks.prediction_data(options), peaks.HeaviestBatches()
    left_out = {cumulative_name(trick) for trick in TRICKS[:-1]} if options.quick else set()
    effective = {
        name: tricks - peaks.WITHOUT_EFFECT for name, tricks in (PREDICTED | VARIANTS).items() if name not in left_out
    }
    peak = {
        tricks: attempted(partial(peaks.predicted, options, tricks, data, heaviest), torch.device("cpu"))
        for tricks in dict.fromkeys(effective.values())
    }
    return {name: peak[tricks] for name, tricks in effective.items()}


def attempted(measure: Callable[[], dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """What measure() returns; {"failed": why} where it cannot be done here. Nothing of it is left in memory."""
    try:
        return measure()
    except Exception as error:  # a compiler that is missing, memory that is too small: the others are measured
        return {"failed": "out of memory" if is_out_of_memory(error) else printable(error, 200)}
    finally:
        torch._dynamo.reset()
        empty_cache(device)


def padding(options: StepOptions) -> dict[str, Any]:
    """How long the texts are, and how much of each batch is padding, by what makes the batches.

    lengths: [[first number of tokens of a bin, texts]]. share: {kind: of the tokens of many batches}. batches: {kind:
    the shares of single ones}. Of the baseline's batch size and, with "bigger", of the larger one.
    """
    train_set, classes = training_set(options)
    pad_id, lengths = train_set.tokens.pad_id, train_set.lengths
    bins = [0] * (train_set.length // BIN_TOKENS + 1)
    for length in lengths:
        bins[length // BIN_TOKENS] += 1
    fixed, dynamic, packed = FixedPadding(pad_id, train_set.length), DynamicPadding(pad_id), Packing(pad_id)
    collates = {"fixed": fixed, "dynamic": dynamic, "uniform": dynamic, "packed": packed}
    result: dict[str, Any] = {"batches": {}, "share": {}}
    for size, suffix in ((SMALL_BATCH, ""), (options.batch_size, " bigger")):
        for kind, collate in collates.items():
            generator = torch.Generator().manual_seed(options.seed)
            sampler = UniformLengthBatches(lengths, size, generator) if kind == "uniform" else None
            loader = DataLoader(
                train_set, size, shuffle=None if sampler else True, sampler=sampler, drop_last=True,
                collate_fn=collate, generator=generator,
            )  # fmt: skip
            batches = list(islice(loader, CHUNK_BATCHES))
            result["share"][kind + suffix] = padding_share(batches, pad_id)
            result["batches"][kind + suffix] = [padding_share([batch], pad_id) for batch in batches]
    return result | {
        "lengths": [[number * BIN_TOKENS, count] for number, count in enumerate(bins)],
        "texts": len(lengths),
        "mean_tokens": statistics.fmean(lengths),
        "median_tokens": statistics.median(lengths),
        "max_tokens": train_set.length,
        "source": train_set.source,
        "classes": len(classes),
    }


def loading(options: StepOptions, workers: Sequence[int], run: int) -> list[dict[str, Any]]:
    """The baseline's training by its loader's workers, one row for each of `workers`. run: the round, and the seed.

    The order turns with the rounds, since who comes first in a process is slower.
    """
    data = training_set(options)
    if options.device == "cpu":
        keep_freed_memory()
    turned = [workers[(number + run) % len(workers)] for number in range(len(workers))]
    return [{"workers": count} | loaded_by(replace(options, workers=count), run, data) for count in turned]


def loaded_by(options: StepOptions, run: int, data: peaks.Data) -> dict[str, Any]:
    """The baseline's samples/s with the workers of the options, and what it reads from a disk meanwhile.

    samples: of windows. loader: of the loader by itself. disk_bytes, major_faults: while it trained, of this process;
    None where the system does not say.
    """
    tricks = frozenset({"workers"} if options.workers else ())
    training = assemble(options, tricks, options.seed + run, data)
    batches = (batch for _ in range(1000) for batch in training.loader)
    begin_with = 2 + 2 * options.workers  # what workers load ahead while they start
    for _ in islice(batches, begin_with):
        pass
    begin, samples = time.perf_counter(), 0
    while time.perf_counter() - begin < LOADED_SECONDS[options.quick]:
        samples += len(next(batches)[0])
    loader = samples / (time.perf_counter() - begin)
    for _ in range(max(begin_with, WARM_UP_STEPS[options.quick])):
        training.train_step(*next(batches))
    windows, before = [], disk_reads()
    for _ in range(LOADED_WINDOWS):
        begin, samples = time.perf_counter(), 0
        while time.perf_counter() - begin < LOADED_SECONDS[options.quick] / 2:
            batch = next(batches)
            training.train_step(*batch)
            samples += len(batch[0])
        windows.append(samples / (time.perf_counter() - begin))
    after = disk_reads()
    read = [end - start for start, end in zip(before, after, strict=True)] if before and after else [None, None]
    return {"samples": windows, "loader": loader, "disk_bytes": read[0], "major_faults": read[1]}


def disk_reads() -> tuple[int, int] | None:
    """(Bytes that this process has read from a disk, pages that it has waited for); None but on Linux."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    import resource

    counts = dict(line.split(": ") for line in lines)
    return int(counts["read_bytes"]), resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def seeded(options: StepOptions, seed: int, wanted: Sequence[str]) -> dict[str, Any]:
    """{name: what training it from a seed gives}: of `quality.VARIANTS`, and of "noise", see `noise.measured`."""
    disable_tf32()
    if options.device == "cpu":
        torch.set_num_threads(1)  # one of several processes
    own = half_precision(options)
    return {
        name: gradient_noise.measured(own, seed) if name == "noise" else of_quality.trained(own, name, seed)
        for name in wanted
    }


def simpler(options: StepOptions) -> dict[str, Any]:
    """See `quality.simpler`."""
    return of_quality.simpler(options)


def once(options: StepOptions, part: str) -> dict[str, Any]:
    """What does not vary, so is measured once: "padding", "memory" here, "predicted" for a GPU, what is "simpler"."""
    return {"padding": padding, "memory": memory, "predicted": predicted, "simpler": simpler}[part](options)


def explained(options: StepOptions, name: str) -> dict[str, Any]:
    """Trace one of the numbered programs, and what `python -m walkthrough explain` says of the trace first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, Path(__file__).with_name(f"{name}.py"), "--quick", "--logdir", folder),
            *("--device", options.device, "--data", options.data, "--model", options.model),
            *("--batch-size", options.batch_size, "--precision", options.precision, "--seed", options.seed),
        ]
        output_of([str(word) for word in command])
        report = output_of([sys.executable, "-m", "walkthrough", "explain", str(Path(folder) / name), "--json"])
    explanation = json.loads(report)
    return {"advice": explanation["advice"], "findings": explanation["findings"]}


def output_of(command: Sequence[str]) -> str:
    """What a program prints. Raises InputError with its last line where it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=EXPLAIN_LIMIT_SECONDS
    )
    if done.returncode != 0:
        raise InputError((done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1])
    return done.stdout


if __name__ == "__main__":
    serve(once, speeds, loading, seeded, explained)
