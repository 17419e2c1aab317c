"""What the study measures, each in a process of its own: see `labs.shared.study.serve`."""

import csv
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common.device import synchronize
from common.options import StepOptions
from common.program import Program, captured, timed, words_of
from labs.scale import scaling, sweep
from labs.scale.batches import bytes_on_disk, delivered, per_cpu_second
from labs.scale.gpu import decoded_batch
from labs.scale.jpegs import Engine, image_folder, listed, on_all_cores
from labs.scale.one_rank import EXCHANGES
from labs.scale.preprocess import preprocess, train_shards
from labs.scale.spark import spark_engine
from labs.scale.training import share
from labs.shared import checkpoints
from labs.shared.study import serve
from walkthrough.results import result
from walkthrough.results.errors import InputError, printable

import torch

HERE = Path(__file__).parent
PIPELINES = ("00_decode_each", "01_workers", "02_batched", "03_resized_once", "04_cached", "05_shards")
GPU_PIPELINES = ("06_nvjpeg", "07_dali")
SHARDS = PIPELINES[-1]
IN_MAIN_PROCESS = PIPELINES[:1]  # programs without workers
ENGINES = ("spark", "processes")
LOAD_SECONDS = {True: 1.0, False: 3.0}  # by --quick: of a loader alone
REASON_LENGTH = 160  # of why a program does not run here
LAST, EACH, NEVER = EXCHANGES


def offline(options: StepOptions, engine: str, size: int, run: int) -> dict[str, Any]:
    """Make shards of all JPEGs anew, which are checked at the end: seconds, images, shards, bytes, digest, folder.

    engine: of `ENGINES`. seconds: from before the engine starts; whether JPEGs are corrupt has been found out before.
    digest: of all bytes of all shards, in order. folder: where they are; None of a later round, which keeps none.
    """
    data, out = image_folder(options.data), options.logdir / "shards" / f"{engine}-{size}px-{run}"
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    with _engine(engine) as of:
        indices = preprocess(data, out, size, of)
    seconds = time.perf_counter() - begin
    sums = "".join(shard.sha256 for index in indices for shard in index.shards)
    if run > 1:  # those of the first round are read by 05_shards
        shutil.rmtree(out)
    return {
        "seconds": seconds,
        "images": sum(index.samples for index in indices),
        "shards": sum(len(index.shards) for index in indices),
        "bytes": sum(index.bytes for index in indices),
        "digest": hashlib.sha256(sums.encode()).hexdigest(),
        "folder": None if run > 1 else str(out),
    }


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    if name == "processes":
        yield on_all_cores
        return
    with spark_engine("local[*]") as engine:
        yield engine


def pipelines(
    options: StepOptions, size: int, workers: int, shards: str, run: int, with_training: bool
) -> dict[str, Any]:
    """{"consumed": images/s of the model on one batch, "pipelines": {program: what it delivers}}, one after the other.

    Of each program: "delivered": images/s with nobody training; "per_cpu_second": images for a second of one core, in
    one process; "trained": images/s of training, None but `with_training`; "bytes": of the files that it reads. The
    order turns with the rounds. Of a program that does not run here: {"error": why}. shards: their folder. workers: of
    all loaders that have some.
    """
    own = replace(options, image_size=size)
    first = captured(HERE / f"{PIPELINES[0]}.py", words_of(own))
    batch = next(iter(first.loader))
    answer: dict[str, Any] = {"consumed": timed(first, batch, own.quick).samples_per_second.median}
    names = [*PIPELINES, *(GPU_PIPELINES if options.device != "cpu" else ())]
    at = run % len(names)
    answer["pipelines"] = {}
    for name in names[at:] + names[:at]:
        of_program = replace(own, data=Path(shards)) if name == SHARDS else own
        try:
            answer["pipelines"][name] = _pipeline(of_program, name, workers, with_training)
        except InputError as refused:  # a package that is missing
            answer["pipelines"][name] = {"error": printable(refused, REASON_LENGTH)}
    return answer


def _pipeline(options: StepOptions, name: str, workers: int, with_training: bool) -> dict[str, Any]:
    file, seconds = HERE / f"{name}.py", LOAD_SECONDS[options.quick]
    on_gpu = name in GPU_PIPELINES  # its loader yields files
    per_cpu = None if on_gpu else per_cpu_second(captured(file, words_of(options)).loader, seconds)
    one = captured(file, words_of(options, 0 if name in IN_MAIN_PROCESS else workers))
    return {
        "delivered": delivered(one.loader, seconds, _decode(one, options) if on_gpu else None),
        "per_cpu_second": per_cpu,
        "trained": timed(one, None, options.quick).samples_per_second.median if with_training else None,
        "bytes": read_bytes(options, name),
    }


def _decode(one: Program, options: StepOptions) -> Callable[..., Any]:
    """What a program that decodes on a GPU makes of a loader's batch; it returns once that is done."""
    device = torch.device(options.device)
    decoder = one.variables.get("decoder") or partial(decoded_batch, size=options.image_size, device=device)

    def decode(labels: torch.Tensor, lengths: torch.Tensor, files: torch.Tensor) -> None:
        decoder(lengths, files)
        synchronize(device)

    return decode


def utilization(options: StepOptions, name: str) -> dict[str, Any]:
    """A GPU's figures in the trace of a program: {"utilization": 0..1, "occupancy_percent"}, as `explain` has them."""
    words = ["--data", options.data, "--device", options.device, "--model", options.model, "--quick"]
    words += ["--image-size", options.image_size, "--batch-size", options.batch_size, "--logdir", options.logdir]
    _run(HERE / f"{name}.py", words)
    (gpu,) = scaling.explanation(str(options.logdir / name))["gpus"]
    return {key: gpu[key] for key in ("utilization", "occupancy_percent")}


def _run(file: Path, words: Sequence[object]) -> None:
    command = [sys.executable, str(file), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InputError(done.stderr.strip().rpartition("\n")[2] or f"{file.name} ended with code {done.returncode}")


def read_bytes(options: StepOptions, name: str) -> int:
    """Bytes of the training files that a program reads in an epoch."""
    if name == SHARDS:
        return bytes_on_disk(train_shards(options.data, options.image_size)[0])
    data = image_folder(options.data)
    small = name in ("03_resized_once", "04_cached")
    return bytes_on_disk(data / f"resized-{options.image_size}px" / "train" if small else data / "train")


def scaled(options: StepOptions, most: int, run: int) -> dict[str, list[scaling.Row]]:
    """{"strong", "weak": [what `scaling.measured` returns]} from one process to `most`; the order turns with rounds."""
    counts = scaling.process_counts(most)
    cells = [("strong", count) for count in counts] + [("weak", count) for count in counts[1:]]
    at = run % len(cells)
    found = {}
    for kind, count in cells[at:] + cells[:at]:
        images = options.batch_size if kind == "weak" else share(options.batch_size, count, 1)
        several: dict[str, Any] = {"exchanges": (LAST, NEVER), "traced": True} if count > 1 else {}
        found[kind, count] = scaling.measured(options, count, images, **several)
    found["weak", 1] = found["strong", 1]  # the same
    return {kind: [found[kind, count] for count in counts] for kind in ("strong", "weak")}


def buckets(options: StepOptions, processes: int, sizes_mb: Sequence[float | None], run: int) -> list[scaling.Row]:
    """What `scaling.measured` returns for each size of the parts that gradients are sent in, MiB or None; traced.

    The order turns with the rounds.
    """
    images = share(options.batch_size, processes, 1)
    at = run % len(sizes_mb)
    found = {
        size: scaling.measured(options, processes, images, bucket_mb=size, exchanges=(LAST, NEVER), traced=True)
        for size in [*sizes_mb[at:], *sizes_mb[:at]]
    }
    return [found[size] for size in sizes_mb]


def accumulation(options: StepOptions, processes: int, passes: int, run: int) -> scaling.Row:
    """A batch in so many passes, gradients exchanged in the last, in each, and never. run: the number of the round."""
    return scaling.measured(
        options, processes, share(options.batch_size, processes, passes), passes, exchanges=EXCHANGES
    )


def straggler(options: StepOptions, processes: int, delay_ms: float, run: int) -> dict[str, scaling.Row]:
    """{"alike", "delayed": what `scaling.measured` returns}: the last rank sleeps before each step of the second."""
    images = share(options.batch_size, processes, 1)
    return {
        "alike": scaling.measured(options, processes, images, traced=True),
        "delayed": scaling.measured(
            options, processes, images, slow_rank=processes - 1, delay_ms=delay_ms, traced=True
        ),
    }


def trained(options: StepOptions, processes: int, epochs: int, seed: int) -> list[dict[str, float]]:
    """The epochs of a training by `train.py`, in so many processes: see `training.Epoch`."""
    folder = options.logdir / "trained" / f"{processes}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        "--data", options.data, "--device", options.device.partition(":")[0], "--model", options.model,
        "--image-size", options.image_size, "--batch-size", options.batch_size, "--seed", options.seed + seed,
        "--processes", processes, "--epochs", epochs, "--logdir", folder,
    ]  # fmt: skip
    _run(HERE / "train.py", words)
    with open(folder / checkpoints.TABLE, newline="") as table:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(table)]


def swept(options: StepOptions, trials: int, epochs: int) -> dict[str, Any]:
    """What `sweep.py` leaves in sweep.json, after so many trials."""
    folder = options.logdir / "sweep"
    shutil.rmtree(folder, ignore_errors=True)
    words = ["--data", options.data, "--device", options.device, "--image-size", options.image_size]
    words += ["--seed", options.seed, "--trials", trials, "--epochs", epochs, "--logdir", folder]
    words += ["--classes", min(sweep.CLASSES, len(listed(image_folder(options.data)).classes))]
    with redirect_stdout(sys.stderr):
        sweep.main([str(word) for word in words])
    return result.read_json(folder / sweep.FILE)


if __name__ == "__main__":
    serve(offline, pipelines, utilization, scaled, buckets, accumulation, straggler, trained, swept)
