"""What the study measures, each in a process of its own: see `labs.shared.study.serve`."""

import copy
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from common.device import disable_tf32, synchronize
from common.options import StepOptions
from labs.pruning import masks as of_masks
from labs.pruning.channels import without_channels
from labs.pruning.plans import OTHER_SPARSITIES, SPARSITIES
from labs.pruning.training import Checkpoint, Training, checkpoints, data_of
from labs.shared.study import serve
from walkthrough.compare import isolated

import torch
from torch.nn import functional as F

OTHER_WEIGHTS = 10_000_019  # added to a seed: the weights of another network
TIMED_SHARE = 0.9  # of the weights, or channels, that a network is timed without
TIMED_SECONDS = {True: 0.5, False: 4.0}  # of all windows of a variant; by --quick
WINDOWS = 5
JOB_EPOCHS = 4  # of each of the trainings that are timed, one after the other and side by side
JOB_LIMIT_SECONDS = 3600
VARIANTS = ("unpruned", "masked", "masks removed", "channels pruned")
PRODUCT = 4096  # rows and columns of the matrices that 2:4 sparsity is timed on


def begun(options: StepOptions, seed: int, weights_seed: int | None = None, threads: int | None = 1) -> Training:
    """A `Training` of the options' data. threads: on a CPU, one where it is one of several processes; None for all."""
    disable_tf32()
    if options.device == "cpu" and threads:
        torch.set_num_threads(threads)
    data, plan = data_of(options)
    return Training(options, data, plan, options.seed + seed, weights_seed)


def at_the_end(options: StepOptions, seed: int, resets: Sequence[int]) -> tuple[Training, dict[int, Checkpoint]]:
    """The unpruned network as it is at the end, and the checkpoints of its training."""
    training = begun(options, seed)
    kept = checkpoints(options, training, resets)
    training.load(kept[training.plan.epochs])
    return training, kept


def trained(options: StepOptions, seed: int, resets: Sequence[int]) -> dict[str, Any]:
    """The unpruned training from a seed, whose weights are kept, and what its weights' magnitudes are.

    accuracy: 0..1. without_retraining: [[sparsity, accuracy of the weights at the end, masked]]. magnitudes: {of what:
    {quantile: value}}, see `masks.magnitudes`; counts: of those. misplaced: [[share, the share of the parameters that
    is below the threshold of that share of the pooled numbers]]. emptied: [[how, sparsity, layers without a weight]].
    """
    training, kept = at_the_end(options, seed, resets)
    values = {of: of_masks.magnitudes(training.model, of) for of in ("weights", "parameters", "pooled")}
    result: dict[str, Any] = {
        "accuracy": training.accuracy(),
        "magnitudes": {of: quantiles(numbers) for of, numbers in values.items()},
        "counts": {of: len(numbers) for of, numbers in values.items()},
        "misplaced": [],
        "without_retraining": [],
        "emptied": [
            [how, sparsity, of_masks.emptied(of_masks.masks_of(training.model, sparsity, how, training.seed))]
            for how in of_masks.HOW
            for sparsity in OTHER_SPARSITIES[options.quick]
        ],
    }
    for sparsity in SPARSITIES[options.quick]:
        below = values["parameters"] < of_masks.threshold(values["pooled"], sparsity)
        result["misplaced"].append([sparsity, below.float().mean().item()])
        pruned = begun(options, seed)
        pruned.load(kept[training.plan.epochs])
        pruned.mask(of_masks.masks_of(training.model, sparsity))
        result["without_retraining"].append([sparsity, pruned.accuracy()])
    return result


def quantiles(values: torch.Tensor) -> dict[str, float]:
    """Of magnitudes: mean, quantiles and the largest."""
    of = {f"{share:.0%}".replace("%", " %"): of_masks.threshold(values, share) for share in (0.5, 0.6, 0.9, 0.99)}
    return {"mean": values.mean().item(), **of, "largest": values.max().item()}


def retrained(
    options: StepOptions, seed: int, sparsity: float, reset: int, resets: Sequence[int], how: str = of_masks.HOW[0],
    reinitialised: bool = False, begin: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Prune the weights as they are at the end, reset the others to the end of an epoch, and train from there.

    resets: the epochs whose weights are kept. how: see `masks.masks_of`. reinitialised: the weights that stay are those
    of another network, which has not been trained. begin: the epoch whose batches and learning rates come first, that
    of `reset` if None. {"accuracy": 0..1}.
    """
    training, kept = at_the_end(options, seed, resets)
    masks = of_masks.masks_of(training.model, sparsity, how, training.seed)
    if reinitialised:
        training = begun(options, seed, training.seed + OTHER_WEIGHTS)
    else:
        training.load(kept[reset])
    training.mask(masks)
    training.run(begin=reset if begin is None else begin)
    return {"accuracy": training.accuracy()}


def iterated(options: StepOptions, seed: int, reset: int, resets: Sequence[int]) -> list[dict[str, float]]:
    """Prune in rounds, each from the weights that the one before ends with, reset and train again after each.

    For each of the plan's rounds: sparsity, accuracy (0..1).
    """
    training, kept = at_the_end(options, seed, resets)
    rows = []
    for sparsity in training.plan.rounds:
        masks = of_masks.masks_of(training.model, sparsity)
        training = begun(options, seed)
        training.load(kept[reset])
        training.mask(masks)
        training.run(begin=reset)
        rows.append({"sparsity": sparsity, "accuracy": training.accuracy()})
    return rows


def channel_pruned(
    options: StepOptions, seed: int, reset: int, resets: Sequence[int], share: float
) -> dict[str, float]:
    """Without a share of the channels inside blocks: which go is seen at the end, those that stay are reset.

    Momentum begins at zero. accuracy: 0..1. parameters: how many are left.
    """
    training, kept = at_the_end(options, seed, resets)
    at_end = copy.deepcopy(training.model)
    training.load(kept[reset])
    training.use(without_channels(training.model, share, at_end))
    training.run(begin=reset)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    return {"accuracy": training.accuracy(), "parameters": parameters}


def speeds(options: StepOptions, run: int) -> dict[str, dict[str, list[float]]]:
    """{variant: {"training", "inference": images/s of each window}} of `VARIANTS`, with all threads.

    run: the number of the round. Windows take turns, so that what else the machine does meets all variants. A network
    whose masks are removed is timed in inference alone: its zeros are parameters like others, and a training step would
    fill them.
    """
    windows: dict[tuple[str, str], tuple[Training, Callable[[], Any]]] = {}
    for name in VARIANTS:
        training = variant(options, run, name)
        images, labels = training.images[: training.batch_size], training.labels[: training.batch_size]
        windows[name, "inference"] = training, partial(infer, training, images)
        if name != "masks removed":
            windows[name, "training"] = training, partial(training.step, images, labels)
    rows: dict[str, dict[str, list[float]]] = {name: {"training": [], "inference": []} for name in VARIANTS}
    for number in range(WINDOWS + 1):
        for (name, what), (training, step) in windows.items():
            training.model.train(what == "training")
            seconds = TIMED_SECONDS[options.quick] / WINDOWS
            speed = rate(step, training.batch_size, training.device, seconds)
            rows[name][what] += [speed] if number else []  # the first warms up
    return rows


def variant(options: StepOptions, seed: int, name: str) -> Training:
    """One of `VARIANTS`, not trained."""
    training = begun(options, seed, threads=None)
    if name == "channels pruned":
        training.use(without_channels(training.model, TIMED_SHARE))
    elif name != "unpruned":
        training.mask(of_masks.masks_of(training.model, TIMED_SHARE))
        if name == "masks removed":
            of_masks.remove(training.model)
    return training


@torch.no_grad()
def infer(training: Training, images: torch.Tensor) -> None:
    """What inference on a batch computes."""
    training.model(images)


def rate(step: Callable[[], Any], count: int, device: torch.device, seconds: float) -> float:
    """How many per second of what step() does `count` of, over so many seconds."""
    synchronize(device)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        step()
        steps += 1
    synchronize(device)
    return steps * count / (time.perf_counter() - begin)


def semi_structured(options: StepOptions, run: int) -> dict[str, list[float]]:
    """{"with its zeros", "2:4": products/s of each window} of a large matrix product in fp16, two weights of four zero.

    Large, so that a product takes longer than calling it. Needs an NVIDIA GPU of capability 8.0 or later.
    """
    device = torch.device(options.device)
    generator = torch.Generator(device).manual_seed(options.seed + run)
    shape = {"size": (PRODUCT, PRODUCT), "device": device, "dtype": torch.float16, "generator": generator}
    inputs, weight = torch.randn(**shape), torch.randn(**shape)
    weight *= of_masks.two_of_four(weight)
    products = {"with its zeros": weight, "2:4": torch.sparse.to_sparse_semi_structured(weight)}
    results = [F.linear(inputs, own) for own in products.values()]
    torch.testing.assert_close(*results, rtol=1e-2, atol=1.0)  # of 4,096 products each
    rows: dict[str, list[float]] = {name: [] for name in products}
    for number in range(WINDOWS + 1):
        for name, own in products.items():
            speed = rate(partial(F.linear, inputs, own), 1, device, TIMED_SECONDS[options.quick] / WINDOWS)
            rows[name] += [speed] if number else []
    return rows


def jobs(options: StepOptions, at_a_time: int, count: int, run: int) -> dict[str, float]:
    """`count` short trainings, so many at a time, each in a process of its own: {"seconds": of all, start included}."""
    command = (sys.executable, __file__)
    settings = [{"seed": run * count + number, "alone": at_a_time == 1} for number in range(count)]
    values = [{"what": "job", "options": asdict(options), "settings": own} for own in settings]
    begin = time.perf_counter()
    with ThreadPoolExecutor(at_a_time) as pool:
        answers = list(pool.map(lambda own: isolated.answer(command, own, JOB_LIMIT_SECONDS), values))
    failed = [answer if isinstance(answer, str) else answer.get("error") for answer in answers]
    if reasons := [reason for reason in failed if reason]:
        raise RuntimeError(f"{len(reasons)} of {count} trainings failed: {reasons[0]}")
    return {"seconds": time.perf_counter() - begin}


def job(options: StepOptions, seed: int, alone: bool) -> float:
    """A short training, with all cores where it runs alone, with one core otherwise. Its last loss."""
    return begun(options, seed, threads=None if alone else 1).run(until=JOB_EPOCHS)[-1]


if __name__ == "__main__":
    serve(trained, retrained, iterated, channel_pruned, speeds, semi_structured, jobs, job)
