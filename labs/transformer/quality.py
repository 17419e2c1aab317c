"""What a trick costs in quality: accuracy on held-out files after a fixed number of real tokens.

Only tricks that change what is learned are trained here. The others give the losses of the baseline up to rounding,
which tests hold: workers, accumulation, checkpointing, fused attention, dynamic padding, packing, fused AdamW, compile.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.device import autocast_dtype
from common.options import StepOptions
from labs.transformer.bag_of_words import bags_of_words
from labs.transformer.texts import PARTS, Example, Texts, texts
from labs.transformer.training import DTYPES, Settings, Training, learning_rate
from labs.transformer.tricks import SMALL_BATCH

import torch


@dataclass(frozen=True)
class Task:
    """What is trained: `classes` packages with the most texts, cut at `length` tokens; None for all, and for no cut.

    tokens: real ones, of a training. longer: of the one that is to beat a bag of words.
    """

    tokens: int
    longer: int
    classes: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Variant:
    """batches: one of `training.BATCHES`. bigger: the larger batch. half: in half precision. longer: on more tokens."""

    batches: str = "dynamic"
    bigger: bool = False
    half: bool = False
    longer: bool = False


RANDOM, UNIFORM, BIGGER, HALF = "random batches", "uniform length", "bigger batch", "half precision"
LONGER = "uniform length, bigger batch, for longer"
VARIANTS: Mapping[str, Variant] = {
    RANDOM: Variant(),
    UNIFORM: Variant(batches="uniform"),
    BIGGER: Variant(bigger=True),
    HALF: Variant(half=True),
    LONGER: Variant(batches="uniform", bigger=True, longer=True),
}
# By --quick: a few minutes of one CPU core for `tokens`, and about ten for `longer`.
TASKS = {True: Task(tokens=40_000, longer=80_000, classes=4, length=64), False: Task(tokens=400_000, longer=8_000_000)}


def task_texts(options: StepOptions) -> Texts:
    """The texts of the task that these options measure."""
    return easier(texts(options), TASKS[options.quick].classes)


def easier(of: Texts, classes: int | None) -> Texts:
    """The texts of so many classes alone, those with the most training texts."""
    if classes is None or len(of.classes) <= classes:
        return of
    largest = [label for label, _ in Counter(one.label for one in of.train).most_common(classes)]
    kept = {
        part: tuple(Example(one.text, largest.index(one.label)) for one in getattr(of, part) if one.label in largest)
        for part in PARTS
    }
    return Texts(**kept, classes=tuple(of.classes[label] for label in largest), source=of.source)


def training_for(options: StepOptions, variant: Variant, seed: int) -> Training:
    """A `Training` of the task, not begun. options: precision is that of half precision, where it is asked for."""
    device, task = torch.device(options.device), TASKS[options.quick]
    dtypes = {dtype: name for name, dtype in DTYPES.items()}
    settings = Settings(
        model=options.model, data="", batch_size=options.batch_size if variant.bigger else SMALL_BATCH, epochs=1,
        lr=learning_rate(options.model),
        precision=dtypes[autocast_dtype(device, options.precision)] if variant.half else "fp32",
        batches=variant.batches, checkpoint=False, seed=seed,
    )  # fmt: skip
    return Training(settings, task_texts(options), device, length=task.length)


def trained(options: StepOptions, variant: str, seed: int) -> dict[str, Any]:
    """Train one of `VARIANTS` from a seed: accuracy (0..1) and loss on the test texts, steps, real tokens."""
    training, task = training_for(options, VARIANTS[variant], seed), TASKS[options.quick]
    tokens = task.longer if VARIANTS[variant].longer else task.tokens
    steps = training.until(tokens)
    loss, accuracy = training.evaluated("test")
    return {"accuracy": accuracy, "loss": loss, "steps": steps, "tokens": tokens}


def simpler(options: StepOptions) -> dict[str, Any]:
    """The accuracies of what is simpler than a transformer, trained on all training texts of the task; its sizes."""
    of = task_texts(options)
    sizes = {part: len(getattr(of, part)) for part in PARTS}
    return {"accuracy": bags_of_words(of), "sizes": sizes, "classes": list(of.classes)}
