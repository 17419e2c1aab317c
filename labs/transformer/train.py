"""Train a numbered program to the end: epochs, validation, checkpoints; the best epoch is saved as transformers does.

    python labs/transformer/train.py --epochs 8
    python labs/transformer/train.py --program 00_baseline          # as slow as a training begins
    python labs/transformer/train.py --model distilbert-base-uncased --data FOLDER --epochs 3

The batches and the train step are the program's own, so a change there is one here. It writes `epochs.csv`, TensorBoard
scalars, `checkpoint.pt`, `test.json` and the folder `model/`, for predict.py, into --logdir. The same command goes on
after a kill, at the epoch after the last whole one.
"""

import argparse
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from common.device import keep_freed_memory
from common.failures import as_input_error
from common.options import StepOptions, add_step_options, named, resolved
from common.program import captured, words_of
from labs.shared.training import Training, folder_of, logdir_text, rising_then_falling
from labs.transformer.batches import Padding, token_count
from labs.transformer.data import PARTS, Texts, Tokenized, texts
from labs.transformer.model import DEFAULTS, SIZES, begin_with_word_vectors, from_hub
from walkthrough.results.errors import InputError, OneLineParser, real_number, whole_number
from walkthrough.results.result import write_json

import torch
from torch import nn
from torch.utils.data import DataLoader

FOLDER = DEFAULTS.logdir / "train"
PROGRAMS = {path.stem: path for path in sorted(Path(__file__).parent.glob("[0-9][0-9]_*.py"))}
LAST, OF_ANY_MODEL = "09_packing", "08_uniform_length"  # compiling costs more than it saves in a short training
WARMUP = 0.1  # share of all steps in which the learning rate rises; then it falls to 0
LR_TIMES_WIDTH, HUB_LR = 0.128, 5e-5
OF_TEST = 128  # texts per batch where nothing is kept for backward


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only. epochs: the learning rate ends at 0.

    data: the texts, by `Texts.key`. precision: by name, as "auto" differs from machine to machine.
    """

    program: str
    model: str
    data: str
    batch_size: int
    epochs: int
    lr: float
    precision: str
    seed: int


def words_for(options: StepOptions) -> list[str]:
    """The command line of a program."""
    return words_of(options, options.workers) + (["--quick"] if options.quick else [])


def train(
    options: StepOptions,
    of: Texts,
    program: str,
    epochs: int,
    lr: float | None = None,
    folder: Path | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Train a program on its texts, and test the weights of the best epoch.

    Returns {"accuracy": share of the test texts, "loss", "epoch": the best, "seconds": of training, without validation
    and test, "trained_on": texts per epoch}. of: what the program's options read. lr: AdamW's highest; None: by the
    model. folder: of what is written; None: nothing is. most: texts per epoch, drawn at random; None: all. A model with
    random weights begins with word vectors, see `model`. Raises InputError.
    """
    own = captured(PROGRAMS[program], words_for(options))
    model, optimizer, train_set = own.variables["model"], own.variables["optimizer"], own.loader.dataset
    device, tokenizer, from_scratch = torch.device(options.device), train_set.tokenizer, options.model in SIZES
    rate = lr or (LR_TIMES_WIDTH / SIZES[options.model].width if from_scratch else HUB_LR)  # less for wider models
    for group in optimizer.param_groups:
        group["lr"] = rate
    if from_scratch:
        begin_with_word_vectors(model, train_set)
    size = own.loader.batch_size
    steps = min(len(own.loader), most // size) if most else len(own.loader)
    schedule = rising_then_falling(optimizer, epochs * steps, WARMUP)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    parts |= {"scaler": scaler} if (scaler := own.variables.get("scaler")) else {}
    order: Any = own.loader.sampler  # of any program
    order.generator = torch.Generator()
    own.loader.generator = torch.Generator()  # apart: it is drawn from once where workers stay, not once per epoch
    if not steps:
        raise InputError(f"--batch-size {size} is larger than the training data ({len(train_set)} texts)")
    settings = Settings(program, options.model, of.key, size, epochs, rate, own.dtype, options.seed)
    sets = {part: Tokenized(getattr(of, part), tokenizer, train_set.length) for part in PARTS}
    run = Training(folder, settings, parts, [order.generator], "validation_accuracy", device)
    count = token_count(tokenizer.pad_token_id)
    if device.type == "cpu":
        keep_freed_memory()  # as where the programs are timed
    with as_input_error(options, own.loader, device, str(PROGRAMS[program])):
        for _ in run.epochs(epochs):
            model.train()
            losses, real, every = [], [], 0
            for batch in islice(own.loader, steps):
                real.append(count(batch))
                every += sum(ids.numel() for ids in batch[1::3])
                losses.append(own.train_step(*batch).detach())
                schedule.step()
            seconds, tokens = run.seconds(), int(sum(real))
            loss, accuracy = evaluated(model, sets["validation"], device, own.precision)
            run.done(
                loss=torch.stack(losses).mean().item(), validation_loss=loss, validation_accuracy=accuracy,
                seconds=seconds, tokens_per_second=tokens / seconds, padding=1 - tokens / every,
            )  # fmt: skip
    best = run.load_best()
    loss, accuracy = evaluated(model, sets["test"], device, own.precision)
    if folder:
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
    tested = {"accuracy": accuracy, "loss": loss, "epoch": int(best["epoch"]), "trained_on": steps * size}
    return tested | {"seconds": sum(row["seconds"] for row in run.rows)}


@torch.no_grad()
def evaluated(model: Any, of: Tokenized, device: torch.device, precision: torch.dtype | None) -> tuple[float, float]:
    """(Mean loss, share that is classified right) of some texts, sorted by length."""
    model.eval()
    by_length = sorted(range(len(of)), key=lambda number: of.lengths[number])
    losses, right, half = 0.0, 0, precision not in (None, torch.float32)
    for labels, ids in DataLoader(of, OF_TEST, sampler=by_length, collate_fn=Padding(of.pad_id)):
        with torch.autocast(device.type, precision, enabled=half):
            logits = model(ids.to(device), attention_mask=(ids != of.pad_id).to(device)).logits.float()
        labels = labels.to(device)
        losses += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(1) == labels).sum())
    return losses / len(of), right / len(of)


def arguments(words: list[str] | None = None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line: (what every program takes, all of it), with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    add_step_options(
        parser,
        logdir=FOLDER,
        batch_size=None,
        without=(*DEFAULTS.without, "--stacks"),
        texts={"--logdir": logdir_text(FOLDER), "--quick": "fewer texts, and shorter ones"},
        defaults=DEFAULTS,
    )
    every = f"{', '.join(PROGRAMS)} (default: {LAST}; {OF_ANY_MODEL} of another model than DistilBERT)"
    parser.add_argument("--program", choices=PROGRAMS, metavar="NAME", help=every)
    parser.add_argument("--epochs", type=whole_number(1, 10**6), default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--lr", type=real_number(0), help="AdamW's highest (default: by the model)")
    words = sys.argv[1:] if words is None else words
    args = parser.parse_args(words)
    args.logdir = folder_of(args.logdir, FOLDER, args.quick)
    return resolved(args, named(words), defaults=DEFAULTS), args


def program_for(model: str) -> str:
    """The fastest program for a model: packing is for DistilBERT. Raises InputError."""
    return LAST if model in SIZES or from_hub("AutoConfig", model).model_type == "distilbert" else OF_ANY_MODEL


def main() -> None:
    options, args = arguments()
    of, program, folder = texts(options), args.program or program_for(options.model), options.logdir
    sizes = ", ".join(f"{len(getattr(of, part))} for {part}" for part in PARTS)
    print(f"train: {options.model} as {program} on {of.source}, texts: {sizes}; {len(of.classes)} classes", flush=True)
    tested = train(options, of, program, args.epochs, args.lr, folder)
    write_json(folder / "test.json", {"texts": len(of.test), **tested})
    print(f"test, {len(of.test)} texts: accuracy {tested['accuracy']:.1%}, with the weights of epoch {tested['epoch']}")
    print(f"trained for {tested['seconds'] / 60:.1f} minutes; model in {folder / 'model'}, for predict.py")


if __name__ == "__main__":
    main()
