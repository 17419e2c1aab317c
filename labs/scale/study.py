"""Input pipelines, and training on many processes: what each delivers, and what it costs.

    python labs/scale/study.py --data DIR    # the whole study; some thousand JPEGs are enough
    python labs/scale/study.py --quick       # minutes on two CPU cores, on pictures that are drawn

Trains from every pipeline by train.py, before and after images are prepared: the seconds of an epoch, and the accuracy.
Times every pipeline by itself, next to what the model consumes; trains in one process and in several; and sweeps.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

from common import ranks
from common.device import disable_tf32, keep_freed_memory, synchronize
from common.loaders import Batch, Epochs, Loader
from common.options import StepOptions
from common.program import captured, timed, words_of
from labs.scale.data import Jpegs, image_folder, on_all_cores
from labs.scale.model import DEFAULTS, mobilenet, width_of
from labs.scale.preprocess import bytes_on_disk, prepared, spark_engine
from labs.scale.sweep import FILE as SWEEP
from labs.scale.train import EXCHANGES, Replica, process_group, share
from labs.shared import study as shared
from labs.shared.training import epochs_in
from walkthrough.compare import isolated
from walkthrough.compare.statistics import Mean, Ratio, mean, ratio
from walkthrough.compare.study import Claim, Row, claim, percent
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, printable
from walkthrough.results.result import read_json

import torch

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
PROGRAMS = ("00_decode_each", "01_workers", "02_batched", "03_resized_once", "04_cached", "05_shards")
GPU_PROGRAMS = ("06_nvjpeg", "07_dali")
FIRST, BATCHED, SHARDS = PROGRAMS[0], PROGRAMS[2], PROGRAMS[-1]
BEFORE = {SHARDS: "03_resized_once", "06_nvjpeg": BATCHED}  # which each differs from, where not from the one above
LAST, EACH, NEVER = EXCHANGES
SMALL_SIZE, OTHER_SIZE = 64, 224  # px: the write-up's two
PASSES = 4  # of accumulation
MOST_PROCESSES, MOST_WORKERS = 8, 8
LIMIT_SECONDS = 6 * 3600  # of one measurement: beyond it something hangs
# By --quick.
ROUNDS, OTHER_ROUNDS, SCALING_ROUNDS = {True: 2, False: 5}, {True: 1, False: 3}, {True: 1, False: 5}
SEEDS, EPOCHS, OTHER_EPOCHS = {True: 1, False: 3}, {True: 2, False: 10}, 2
TRIALS, MOST_TRIALS = {True: (4, 1), False: (30, 6)}, 8  # of the sweep, and epochs of each; in its table
LOAD_SECONDS = {True: 1.0, False: 3.0}  # of a loader alone
WINDOWS, STEPS, WARMUP_STEPS = {True: 3, False: 7}, {True: 3, False: 10}, 3  # of processes: windows, and steps of each
# Published, of MobileNetV2 on ImageNet with batch 96, one run each: 20 h an epoch on one CPU, 3.5 h on one K80, 1 h on
# four of them at 224 px, and 15 minutes at 64 px with images prepared.
IMAGENET, CLASSES, SMALL_OVER_LARGE, PUBLISHED_GPUS, EFFICIENCY = 1_281_167, 1000, 4.0, 4, 3.5 / 4
FASTER, POINTS = 5.0, 3.0  # what we expected of shards, and by how much accuracy may differ

Answers = Sequence[Mapping[str, Any]]  # of each round, what a measurement returned
ByRound = Mapping[int, Mapping[str, Any]]  # {round: what `pipelines` returned}


# What is measured, each in a process of its own


@shared.measurement
def offline(options: StepOptions, engine: str, run: int) -> dict[str, Any]:
    """Make shards of all JPEGs anew, by "processes" or "spark": "seconds" with its start, "images", "bytes"."""
    data, out = image_folder(options.data), options.logdir / "shards"
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    with spark_engine("local[*]") if engine == "spark" else nullcontext(on_all_cores) as of:
        prepared(data, "shards", options.image_size, of, out)
    seconds, parts = time.perf_counter() - begin, read_json(out / "index.json")["parts"].values()
    images, size = sum(part["images"] for part in parts), bytes_on_disk(out, "**/*.tar")
    shutil.rmtree(out)
    return {"seconds": seconds, "images": images, "bytes": size}


@shared.measurement
def pipelines(options: StepOptions, size: int, workers: int, run: int) -> dict[str, Any]:
    """{"consumed": images/s of the model on one batch, "pipelines": {program: what it delivers}}, one after the other.

    Of each program: "delivered": images/s with nobody training; "per_cpu_second": images for a second of one core, in
    one process; "bytes": of the files that it reads. The order turns with the rounds. Of a program that does not run
    here: {"error": why}.
    """
    own = replace(options, image_size=size)
    first = captured(HERE / f"{FIRST}.py", words_of(own))
    batch = next(iter(first.loader))
    answer: dict[str, Any] = {"consumed": timed(first, batch, own.quick).samples_per_second.median, "pipelines": {}}
    names = [*PROGRAMS, *(GPU_PROGRAMS if shared.on_gpu(options) else ())]
    at = run % len(names)
    for name in names[at:] + names[:at]:
        try:
            answer["pipelines"][name] = _pipeline(own, name, 0 if name == FIRST else workers)
        except InputError as refused:  # a package that is missing
            answer["pipelines"][name] = {"error": printable(refused, 160)}
    return answer


def _pipeline(options: StepOptions, name: str, workers: int) -> dict[str, Any]:
    file, seconds = HERE / f"{name}.py", LOAD_SECONDS[options.quick]
    on_device = name in GPU_PROGRAMS  # its loader yields files
    per_cpu = None if on_device else delivered(captured(file, words_of(options)).loader, seconds)[1]
    one = captured(file, words_of(options, workers))
    folders = {"03_resized_once": "resized", "04_cached": "cached", SHARDS: "shards"}
    data = image_folder(options.data)
    folder = data / f"{folders[name]}-{options.image_size}px" if name in folders else data
    read = bytes_on_disk(folder, "train.npy" if name == "04_cached" else "train/**/*")

    def finish(*batch: torch.Tensor) -> None:
        """Decode what a GPU's loader yields, and wait for it."""
        if on_device:
            one.variables["decoder"](*batch[1:])
            synchronize(torch.device(options.device))

    return {"delivered": delivered(one.loader, seconds, finish)[0], "per_cpu_second": per_cpu, "bytes": read}


def delivered(loader: Loader, seconds: float, finish: Callable[..., None] = lambda *_: None) -> tuple[float, float]:
    """Images/s that a loader yields with nobody training on them, over so many seconds at least; and those for a second
    of CPU time of this process, which what else the machine does hardly changes: of a loader without workers.

    finish(*batch): what is still to be done to a batch, such as decoding it on a GPU. Before that it runs on for as
    many batches as its workers had loaded ahead, and one more.
    """
    batches, images = Epochs(loader), 0
    for _ in range(1 + batches.queued):
        finish(*next(batches))
    begin, cpu = time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - begin) < seconds or not images:
        batch: Batch = next(batches)
        finish(*batch)
        images += len(batch[0])
    return images / passed, images / (time.process_time() - cpu)


@shared.measurement
def trained(
    options: StepOptions, pipeline: str, size: int, workers: int, processes: int, epochs: int, seed: int
) -> list[dict[str, float]]:
    """The epochs of a training by `train.py`, as `epochs.csv` has them."""
    folder = options.logdir / "trained" / f"{pipeline}-{size}px-{workers}-{processes}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        "--data", options.data, "--device", options.device.partition(":")[0], "--model", options.model,
        "--pipeline", pipeline, "--image-size", size, "--batch-size", options.batch_size, "--workers", workers,
        "--seed", options.seed + seed, "--epochs", epochs, "--logdir", folder,
    ]  # fmt: skip
    start = [*TORCHRUN, processes] if processes > 1 else [sys.executable]
    run_program([*start, HERE / "train.py", *words])
    return epochs_in(folder)


def run_program(command: Sequence[object]) -> None:
    """Run train.py or sweep.py. Raises InputError with the line by which it failed; torchrun prints more of them."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"code {done.returncode}"]
        own = [line for line in lines if line.startswith(("train: ", "sweep: "))]
        raise InputError(printable([*own, lines[-1]][0], 200))


@shared.measurement
def rank(options: StepOptions, images: int, passes: int, exchanges: Sequence[str]) -> dict[str, list[float]]:
    """Be one process of several that train together: {exchange: mean ms of a step, of each window}.

    Each trains on one batch of noise over and over, by the code that train.py runs; on a CPU with one thread, so that N
    processes have N cores. What communication costs is a step's time less that of the same step without the exchange of
    gradients: what the backward pass hides of it costs nothing. images: in one pass of one process. exchanges: of
    `EXCHANGES`, when gradients are; their windows alternate, and all processes begin and end them together.
    """
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    disable_tf32()

    def time_of_all() -> float:
        """Seconds, once every process has come here, its GPU's work done."""
        synchronize(device)
        ranks.wait_for_all()
        return time.perf_counter()

    def window_ms(exchange: str, steps: int) -> float:
        begin = time_of_all()
        for _ in range(steps):
            replica.step(repeat(batch), exchange)
        return (time_of_all() - begin) * 1000 / steps

    with process_group(device):
        torch.manual_seed(0)
        noise = torch.randn(images, 3, options.image_size, options.image_size, device=device)
        batch = noise, torch.randint(CLASSES, (images,), device=device)
        replica = Replica(mobilenet(options.model, CLASSES), device, 0.01, passes=passes)
        replica.module.train()
        for exchange in exchanges:
            window_ms(exchange, WARMUP_STEPS)
        steps, count = STEPS[options.quick], WINDOWS[options.quick]
        rounds = [[window_ms(exchange, steps) for exchange in exchanges] for _ in range(count)]
    return {exchange: list(windows) for exchange, windows in zip(exchanges, zip(*rounds, strict=True), strict=True)}


def together(
    options: StepOptions, processes: int, images: int, passes: int = 1, exchanges: Sequence[str] = EXCHANGES
) -> dict[str, Any]:
    """Train in so many processes of `rank`; what the first to end measured, as all begin and end windows together.

    {"processes", "step_ms": {exchange: [each window]}, "images_per_second": {exchange: [each window]}}. Raises
    InputError where a process fails.
    """
    settings = {"images": images, "passes": passes, "exchanges": exchanges}
    request = {"what": "rank", "options": asdict(options), "settings": settings}
    answer = isolated.answer([*TORCHRUN, str(processes), __file__, "--measure"], request, LIMIT_SECONDS)
    if isinstance(answer, str) or "error" in answer:
        raise InputError(answer if isinstance(answer, str) else answer["error"])
    per_step, step_ms = images * passes * processes, answer["value"]
    speeds = {exchange: [per_step * 1000 / ms for ms in windows] for exchange, windows in step_ms.items()}
    return {"processes": processes, "step_ms": step_ms, "images_per_second": speeds}


@shared.measurement
def scaled(options: StepOptions, most: int, run: int) -> dict[str, list[dict[str, Any]]]:
    """{"strong", "weak": [what `together` returns]} of 1, 2, 4 … `most` processes; the order turns."""
    counts = [2**power for power in range(most.bit_length())]
    cells = [("strong", count) for count in counts] + [("weak", count) for count in counts[1:]]
    at = run % len(cells)
    found = {}
    for kind, count in cells[at:] + cells[:at]:
        images = options.batch_size if kind == "weak" else share(options.batch_size, count, 1)
        exchanges = (LAST, NEVER) if count > 1 else (LAST,)
        found[kind, count] = together(options, count, images, exchanges=exchanges)
    found["weak", 1] = found["strong", 1]  # the same
    return {kind: [found[kind, count] for count in counts] for kind in ("strong", "weak")}


@shared.measurement
def accumulation(options: StepOptions, processes: int, run: int) -> dict[str, Any]:
    """A batch in `PASSES` passes, gradients exchanged in the last, in each, and never. run: the number of the round."""
    images = share(options.batch_size, processes, PASSES)
    return together(options, processes, images, PASSES)


@shared.measurement
def swept(options: StepOptions, trials: int, epochs: int) -> dict[str, Any]:
    """What `sweep.py` leaves in sweep.json, after so many trials."""
    folder = options.logdir / "sweep"
    shutil.rmtree(folder, ignore_errors=True)
    words = ["--data", options.data, "--device", options.device, "--image-size", options.image_size]
    words += ["--seed", options.seed, "--trials", trials, "--epochs", epochs, "--logdir", folder]
    run_program([sys.executable, HERE / "sweep.py", *words])
    return read_json(folder / SWEEP)


# Tables


def offline_row(engine: str, runs: Answers, jpeg_bytes: int) -> Row:
    """Making shards. jpeg_bytes: of what they are made of."""
    return {
        "by": engine,
        "images": runs[0]["images"],
        "s": mean([run["seconds"] for run in runs]),
        "images/s": statistics.median(run["images"] / run["seconds"] for run in runs),
        "MB of JPEGs": jpeg_bytes / 1e6,
        "MB of shards": runs[0]["bytes"] / 1e6,
    }


def of_rounds(rounds: ByRound, name: str, what: str = "delivered") -> dict[int, list[float]]:
    """{round: [its figure]} of a pipeline, of the rounds that have one."""
    values = {number: answer["pipelines"].get(name, {}).get(what) for number, answer in rounds.items()}
    return {number: [value] for number, value in values.items() if value is not None}


def consumed(rounds: ByRound) -> dict[int, list[float]]:
    """{round: [images/s that the model consumes]}."""
    return {number: [answer["consumed"]] for number, answer in rounds.items()}


def pipeline_rows(rounds: ByRound) -> list[Row]:
    """What each pipeline delivers, next to what the model consumes. rounds: of one size."""
    speeds = {name: of_rounds(rounds, name) for name in (*PROGRAMS, *GPU_PROGRAMS)}
    before = {**{name: above for above, name in pairwise(speeds)}, **BEFORE}

    def times(name: str, other: str | None) -> Ratio | None:
        return ratio(speeds[name], speeds[other]) if other and speeds[other] else None

    rows = []
    for name in (name for name, by_round in speeds.items() if by_round):
        per_core = [value for (value,) in of_rounds(rounds, name, "per_cpu_second").values()]
        rows.append(
            {
                "pipeline": name,
                "images/s": statistics.median(value for (value,) in speeds[name].values()),
                "times decoding each": times(name, FIRST) if name != FIRST else None,
                "times the one before": times(name, before.get(name)),
                "images/s of one core": statistics.median(per_core) if per_core else None,
                "MB on disk": of_rounds(rounds, name, "bytes").popitem()[1][0] / 1e6,
                "times what the model consumes": ratio(speeds[name], consumed(rounds)),
            }
        )
    return rows


def model_rows(by_size: Mapping[int, ByRound]) -> list[Row]:
    """What the model consumes on one batch in memory. by_size: {px: rounds}, the lab's own first."""
    last = list(by_size)[-1]
    return [
        {
            "px": size,
            "images/s of the model": statistics.median(answer["consumed"] for answer in rounds.values()),
            f"times {last} px": None if size == last else ratio(consumed(rounds), consumed(by_size[last])),
        }
        for size, rounds in by_size.items()
    ]


def training_rows(trainings: Mapping[tuple[str, int, int, int], Mapping[int, Answers]], images: int) -> list[Row]:
    """An epoch by each pipeline. trainings: {(pipeline, px, workers, processes): {seed: its epochs}}.

    images: of an epoch. Seconds are of the median epoch after the first; accuracies of the last, where it is one of as
    many epochs as that of "jpeg" in workers.
    """
    rows, jpegs = list[Row](), [of for (name, *_), of in trainings.items() if name == "jpeg"]
    base = max(jpegs, key=lambda of: len(next(iter(of.values()))), default={})
    longest = max(len(epochs) for of in trainings.values() for epochs in of.values())
    speeds = {
        key: {
            seed: [images / statistics.median(epoch["seconds"] for epoch in epochs[1:] or epochs)]
            for seed, epochs in of.items()
        }
        for key, of in trainings.items()
    }
    first = next(iter(speeds))
    for key, of in trainings.items():
        name, size, workers, processes = key
        many = f", {processes} processes" if processes > 1 else ""
        seconds = mean([images / speed for (speed,) in speeds[key].values()])
        ended = {seed: epochs[-1] for seed, epochs in of.items() if len(epochs) == longest}
        points = [
            100 * (last["top1_accuracy"] - base[seed][-1]["top1_accuracy"])
            for seed, last in ended.items()
            if seed in base and name != "jpeg"
        ]
        rows.append(
            {
                "trained from": f"{name}, {size} px, {workers or 'no'} worker{'s' * (workers != 1)}{many}",
                "s of an epoch": seconds,
                "times the first": None if key == first else ratio(speeds[key], speeds[first]),
                "h of ImageNet": IMAGENET / images * seconds.mean / 3600,
                **{
                    f"top-{of} %": percent([last[f"top{of}_accuracy"] for last in ended.values()]) if ended else None
                    for of in (1, 5)
                },
                "top-1, points over jpeg": mean(points) if points else None,
            }
        )
    return rows


def scaling_rows(rounds: Answers, cores: int | None) -> list[Row]:
    """Strong and weak scaling. rounds: of `scaled`. cores: of a CPU; None on GPUs."""
    rows = []
    for kind in ("strong", "weak"):
        for place, run in enumerate(rounds[0][kind]):
            processes, runs = run["processes"], [answer[kind][place] for answer in rounds]
            many, one = (
                {number: answer[kind][at]["images_per_second"][LAST] for number, answer in enumerate(rounds)}
                for at in (place, 0)
            )
            faster = ratio(many, one) if processes > 1 else None
            rows.append(
                {
                    "scaling": kind,
                    "processes": processes,
                    "ms of a step": statistics.median(_step_ms(run) for run in runs),
                    "images/s": statistics.median(statistics.median(run["images_per_second"][LAST]) for run in runs),
                    "times one process": faster,
                    "efficiency": faster and _scaled(faster, processes),
                    "exposed ms": exposed(runs) if faster else None,
                    "more processes than cores": bool(cores and processes > cores),
                }
            )
    return rows


def _scaled(value: Ratio, by: float) -> Ratio:
    return replace(value, ratio=value.ratio / by, low=value.low / by, high=value.high / by)


def _step_ms(run: Mapping[str, Any], exchange: str = LAST) -> float:
    return statistics.median(run["step_ms"][exchange])


def exposed(runs: Answers, exchange: str = LAST) -> Mean:
    """ms of a step beyond those of the step without an exchange, over rounds."""
    return mean([_step_ms(run, exchange) - _step_ms(run, NEVER) for run in runs])


def accumulation_rows(runs: Answers) -> list[Row]:
    """Gradients exchanged in the last pass, in each, and never. runs: of `accumulation`, by round."""
    speeds = {key: {number: run["images_per_second"][key] for number, run in enumerate(runs)} for key in EXCHANGES}
    return [
        {
            "gradients exchanged": exchange,
            "passes": PASSES,
            "ms of a step": mean([_step_ms(run, exchange) for run in runs]),
            "exposed ms": None if exchange == NEVER else exposed(runs, exchange),
            "times as fast as in each pass": None if exchange == EACH else ratio(speeds[exchange], speeds[EACH]),
        }
        for exchange in EXCHANGES
    ]


def sweep_rows(sweep: Mapping[str, Any]) -> list[Row]:
    """The best trials of a sweep that ran to their end."""
    done = [trial for trial in sweep["trials"] if trial["state"] == "complete"]
    return [
        {
            "trial": trial["number"],
            "top-1 %": 100 * trial["epochs"][-1]["top1_accuracy"],
            "top-5 %": 100 * trial["epochs"][-1]["top5_accuracy"],
            "held-out loss": trial["epochs"][-1]["validation_loss"],
            **{name.replace("_", " "): value for name, value in trial["parameters"].items()},
            "s": trial["seconds"],
        }
        for trial in sorted(done, key=lambda trial: -trial["value"])[:MOST_TRIALS]
    ]


def loss_rows(sweep: Mapping[str, Any]) -> list[Row]:
    """For the figure: the last held-out loss of each trial, also of those that were pruned, by its configuration."""
    rows = [
        {
            "configuration": f"w{trial['parameters']['width']}, batch {trial['parameters']['batch_size']}",
            "loss of held out images": trial["epochs"][-1]["validation_loss"] if trial["epochs"] else None,
            "ended": trial["state"],
        }
        for trial in sweep["trials"]
        if "width" in trial["parameters"]
    ]
    return sorted(rows, key=lambda row: row["configuration"])


# What follows


def claims(tables: Mapping[str, Sequence[Row]], on_gpu: bool) -> list[Claim]:
    """What was published or expected, from the tables as they are stored. What a CPU cannot test has no verdict."""
    cell, consumes = partial(shared.cell, tables), "times what the model consumes"
    needs = None if on_gpu else "a GPU: here the loader and the model share the cores"

    def by_workers(name: str, size: int) -> str:
        """The row of a training in one process, if there is one: its images came through workers."""
        pattern = rf"{name}, {size} px, \d+ workers?"
        return next((row["trained from"] for row in trainings if re.fullmatch(pattern, row["trained from"])), "")

    trainings = tables.get("trainings", ())
    large, shards = by_workers("jpeg", OTHER_SIZE), by_workers("shards", SMALL_SIZE)
    is_first = bool(large) and trainings[0]["trained from"] == large  # what "times the first" compares with
    counts = {row["processes"] for row in tables.get("scaling", ())}
    processes = PUBLISHED_GPUS if PUBLISHED_GPUS in counts else max(counts, default=1)
    several = None if on_gpu and processes > 1 else "several GPUs"
    smaller = next((key for row in tables.get("model", ()) for key in row if key.startswith("times")), "")
    four = f"{processes if processes > 1 else 'Several'} processes are as efficient as four K80 were, {{}} scaling"
    return [
        claim(
            "prepared", "Training from shards of 64 px is at least 4 times as fast as from JPEGs at 224 px",
            cell("trainings", "times the first", **{"trained from": shards}) if is_first else None,
            above=SMALL_OVER_LARGE, needs=needs, published="4x: 1 h to 15 minutes",
        ),
        claim(
            "small-images", "The model alone trains at least 4 times the images/s at 64 px that it does at 224 px",
            cell("model", smaller), above=SMALL_OVER_LARGE,
        ),
        claim(
            "accuracy", f"Training from shards is within {POINTS:.0f} points of the top-1 accuracy from JPEGs",
            cell("trainings", "top-1, points over jpeg", **{"trained from": shards}), within=(-POINTS, POINTS),
        ),
        claim(
            "shards",
            f"Shards, read by workers, deliver at least {FASTER:.0f} times the images/s of one process that decodes",
            cell("pipelines", "times decoding each", pipeline=SHARDS), above=FASTER,
        ),
        claim(
            "batched", "Normalising whole batches delivers more images/s than normalising images",
            cell("pipelines", "times the one before", pipeline=BATCHED), above=1, published="a gain",
        ),
        claim(
            "starved", "Decoding each photograph in one process delivers less than the model consumes",
            cell("pipelines", consumes, pipeline=FIRST), below=1, needs=needs, published="the bottleneck",
        ),
        claim(
            "fed", "Shards deliver more than the model consumes", cell("pipelines", consumes, pipeline=SHARDS),
            above=1, needs=needs,
        ),
        *(
            claim(
                f"efficiency-{kind}", four.format(kind),
                cell("scaling", "efficiency", scaling=kind, processes=processes),
                above=EFFICIENCY, needs=several, published=f"{EFFICIENCY}",
            )
            for kind in ("strong", "weak")
        ),
        claim(
            "no-sync", "Exchanging gradients in the last pass alone is faster than in each",
            cell("accumulation", "times as fast as in each pass"), above=1,
        ),
    ]  # fmt: skip


class Study(shared.Measured):
    """The measurements. data: the folder of JPEGs."""

    def __init__(self, options: StepOptions, data: Path) -> None:
        super().__init__(shared.measurements("scale", options, limit_seconds=LIMIT_SECONDS))
        self.data, own = data, options.image_size
        self.sizes = [own] if self.quick else sorted({own, OTHER_SIZE}, key=lambda size: size != own)
        self.workers = min(usable_cores(), MOST_WORKERS)
        self.processes = most_processes(options.device)

    def tables(self, images: int) -> dict[str, list[Row]]:
        """All that is measured. images: of training."""
        engines = {engine: partial(self.one, "offline", engine=engine) for engine in ("processes", "spark")}
        made = self.rounds(OTHER_ROUNDS[self.quick], engines)
        jpeg_bytes = sum(bytes_on_disk(self.data, f"{part}/**/*") for part in ("train", "val"))
        trainings, by_size = self.trainings(), self.pipelines()
        several = {"scaled": partial(self.one, "scaled", most=self.processes)}
        if self.processes > 1:
            several["accumulation"] = partial(self.one, "accumulation", processes=self.processes)
        runs = self.rounds(SCALING_ROUNDS[self.quick], several)
        scaled, accumulated = (list(runs.get(name, {}).values()) for name in ("scaled", "accumulation"))
        trials, epochs = TRIALS[self.quick]
        sweep = self.one("swept", trials=trials, epochs=epochs)
        cores = usable_cores() if self.options.device == "cpu" else None
        return {
            "trainings": training_rows(trainings, images) if trainings else [],
            **{
                name: pipeline_rows(rounds)
                for name, rounds in zip(("pipelines", "pipelines_large"), by_size.values(), strict=False)
            },
            "model": model_rows(by_size),
            "offline": [offline_row(engine, [*runs.values()], jpeg_bytes) for engine, runs in made.items()],
            "scaling": scaling_rows(scaled, cores) if scaled else [],
            "accumulation": accumulation_rows(accumulated) if accumulated else [],
            "sweep": sweep_rows(sweep) if sweep else [],
            "losses": loss_rows(sweep) if sweep else [],
        }

    def trainings(self) -> dict[tuple[str, int, int, int], dict[int, Any]]:
        """{(pipeline, px, workers, processes): {seed: its epochs}}, seed after seed; what fails is left out."""
        own, workers, epochs = self.options.image_size, self.workers, EPOCHS[self.quick]
        plan = {
            **{("jpeg", size, workers, 1): OTHER_EPOCHS for size in self.sizes[1:]},
            ("jpeg", own, 0, 1): OTHER_EPOCHS,
            **{(name, own, workers, 1): epochs for name in ("jpeg", "resized", "cached", "shards")},
            **{(name, own, workers, 1): epochs for name in ("nvjpeg", "dali") if self.options.device != "cpu"},
            **{("shards", own, 1, many): epochs for many in (self.processes,) if many > 1},
        }
        found: dict[tuple[str, int, int, int], dict[int, Any]] = {}
        for seed in range(SEEDS[self.quick]):
            for (name, size, count, processes), of in plan.items():
                settings = {"pipeline": name, "size": size, "workers": count, "processes": processes}
                if answer := self.one("trained", **settings, epochs=of, seed=seed):
                    found.setdefault((name, size, count, processes), {})[seed] = answer
        return found

    def pipelines(self) -> dict[int, dict[int, Any]]:
        """{px: {round: answer}}, interleaved, the lab's own size first. Raises InputError where none was measured."""
        by_size: dict[int, dict[int, Any]] = {size: {} for size in self.sizes}
        for run in range(1, ROUNDS[self.quick] + 1):
            for size in self.sizes if run <= OTHER_ROUNDS[self.quick] else self.sizes[:1]:
                if answer := self.one("pipelines", workers=self.workers, size=size, run=run):
                    by_size[size][run] = answer
                    for name, of in sorted(answer["pipelines"].items()):
                        if "error" in of:
                            self.note(f"{name} was not measured: {of['error']}")
        if not by_size[self.sizes[0]]:
            raise InputError(f"no pipeline could be measured: {'; '.join(self.notes)}")
        return {size: rounds for size, rounds in by_size.items() if rounds}


def most_processes(device: str) -> int:
    """How many processes train together: one for each core, or for each GPU, two on a CPU of one core.

    A power of two, so that they can share a batch.
    """
    there = max(2, usable_cores()) if device == "cpu" else torch.cuda.device_count()
    return 2 ** (min(there, MOST_PROCESSES).bit_length() - 1)


def main() -> None:
    small = replace(DEFAULTS, cuda=replace(DEFAULTS.cuda, image_size=SMALL_SIZE))  # next to `OTHER_SIZE`, everywhere
    options, _ = shared.lab_options(__doc__, "scale", small)
    width_of(options.model)
    data = image_folder(options.data)
    train, val = (Jpegs(data, part, str) for part in ("train", "val"))
    study = Study(options, data)
    tables = study.tables(len(train))
    notes = [
        f"{len(train)} training and {len(val)} validation images of {len(train.classes)} classes, {train.source}; "
        f"{options.model}, batch {options.batch_size}",
        "the system keeps all files in memory: no figure holds what a disk or a network adds",
        "intervals of times and ratios are of rounds, those of trainings of seeds",
    ]
    if train.source == "drawn JPEGs":
        notes.append("drawn JPEGs are easier than photographs: their accuracies say how training goes, and no more")
    if options.device == "cpu":
        notes.append("no GPU: 06_nvjpeg and 07_dali are not measured; workers and the model share the cores")
        notes.append("no GPU: processes exchange gradients by gloo, on one machine, with one thread each")
    notes += study.notes
    shared.report(study.lab.study(tables, claims(shared.as_stored(tables), shared.on_gpu(options)), notes), options)


if __name__ == "__main__":
    shared.program(main, claims)
