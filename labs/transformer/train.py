"""Train a classifier of texts to the end: loss and held-out accuracy of each epoch, and the weights.

    python labs/transformer/train.py --epochs 8
    python labs/transformer/train.py --epochs 3 --model distilbert-base-uncased --batch-size 256 --auto-batch

It writes `epochs.csv`, TensorBoard scalars, `checkpoint.pt` and, at the end, `test.json` into --logdir. The same
command goes on after a kill, at the epoch after the last whole one. With the tricks that change no result (fused
attention and AdamW, workers), and those that --batches, --checkpoint and --precision choose. A batch that is larger
than memory is trained in parts with --auto-batch: see auto_batch.py.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.device import autocast_dtype, device_name, disable_tf32
from common.options import StepOptions, add_step_options, resolved
from labs.shared.checkpoints import CHECKPOINT, write, write_table
from labs.shared.extras import imported
from labs.transformer.bag_of_words import bags_of_words
from labs.transformer.model import DEFAULTS, max_tokens
from labs.transformer.texts import PARTS, texts
from labs.transformer.training import BATCHES, DTYPES, STATEFUL, Epoch, Settings, Training, learning_rate
from walkthrough.results.errors import InputError, OneLineParser, printable, whole_number
from walkthrough.results.result import check_writable, write_json

import torch

TEST = "test.json"
ANOTHER = "move it away to begin anew, or use another --logdir"
PRECISION = {dtype: name for name, dtype in DTYPES.items()}
EPOCHS = 8


def too_long(training: Training) -> dict[str, int]:
    """{part: how many of its texts have more tokens than the model takes}."""
    length = max_tokens(training.settings.model)
    whole = {part: training.tokens([one.text for one in getattr(training.of, part)], sys.maxsize) for part in PARTS}
    return {part: sum(len(ids) > length for ids in sequences) for part, sequences in whole.items()}


def say_too_long(training: Training, refuse: bool) -> None:
    """Say how many texts are cut, in a line, if any are. Raises InputError where they are to be refused."""
    counts, length = too_long(training), max_tokens(training.settings.model)
    parts = ", ".join(f"{count} of {len(training.sets[part])} in {part}" for part, count in counts.items() if count)
    if parts and refuse:
        raise InputError(
            f"texts of more than {length} tokens, the most that {training.settings.model} takes: {parts}; leave "
            "--refuse-long out to have them cut"
        )
    if parts:
        print(f"cut at {length} tokens, the most that {training.settings.model} takes: {parts}")


def saved(path: Path, settings: Settings) -> dict[str, Any] | None:
    """The state that an earlier run left in the file `path`; None where there is none.

    Raises InputError, and leaves the file as it is, where it is damaged or of a training with other settings.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        theirs = Settings(**state["settings"])
        if missing := {*STATEFUL, "epochs", "rows"} - set(state):
            raise KeyError(*sorted(missing))
    except Exception as error:  # of a file that is cut off or another's: zip, pickle, keys, anything
        raise damaged(path, error) from error
    for name, value in asdict(settings).items():
        if (their := getattr(theirs, name)) != value:
            raise InputError(f"{path} is of a training with {name.replace('_', ' ')} {their}, not {value}: {ANOTHER}")
    return state


def damaged(path: Path, error: Exception) -> InputError:
    """Says that a checkpoint cannot be used, and what to do."""
    return InputError(f"{path} is damaged or no checkpoint of this program ({printable(error, 80)}): {ANOTHER}")


def resume(training: Training, path: Path) -> None:
    """Go on from what an earlier run left in the file `path`, if there is one. Raises InputError."""
    state = saved(path, training.settings)
    if state is None:
        return
    try:
        training.load(state)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what torch's loading raises
        raise damaged(path, error) from error
    if training.epochs:
        write_table(path.parent, training.epochs)  # as a kill may have left it a row short
    print(f"goes on after epoch {len(training.epochs)}")


def options(words: list[str] | None = None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line: (what every program takes, all of it), with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    add_step_options(
        parser,
        logdir=DEFAULTS.logdir / "train",
        batch_size=None,
        without=(*DEFAULTS.without, "--quick", "--stacks"),
        texts={"--logdir": f"folder of this training (default: {DEFAULTS.logdir / 'train'})"},
        defaults=DEFAULTS,
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(1, 10**6),
        default=EPOCHS,
        metavar="N",
        help="in all, as the learning rate ends at 0 (default: %(default)s)",
    )
    parser.add_argument("--lr", type=float, help="AdamW's highest (default: by the model)")
    parser.add_argument(
        "--batches", choices=BATCHES, default="uniform", help="how texts are filled up (default: uniform)"
    )
    parser.add_argument("--checkpoint", action="store_true", help="compute layers again in the backward pass")
    parser.add_argument("--auto-batch", action="store_true", help="train a batch larger than memory in parts")
    parser.add_argument(
        "--refuse-long", action="store_true", help="end where texts are too long, instead of cutting them"
    )
    args = parser.parse_args(words)
    if args.lr is not None and not args.lr > 0:
        raise InputError(f"--lr {args.lr} is not a number above 0")
    return resolved(args, defaults=DEFAULTS), args


def test(training: Training) -> dict[str, float]:
    """Accuracies (0..1) on the test texts, of which no file is in training: the model's, and of what is simpler."""
    return {"transformer": training.evaluated("test")[1], **bags_of_words(training.of)}


def main() -> None:
    from torch.utils.tensorboard import SummaryWriter  # a second to import, which the study does not need

    steps, args = options()
    device = torch.device(steps.device)
    disable_tf32()
    check_writable(steps.logdir)
    imported("sklearn", "transformer", "the bag of words that the model is compared with")
    of = texts(steps)
    settings = Settings(
        model=steps.model, data=of.key, batch_size=steps.batch_size, epochs=args.epochs,
        lr=args.lr or learning_rate(steps.model), precision=PRECISION[autocast_dtype(device, steps.precision)],
        batches=args.batches, checkpoint=args.checkpoint, seed=steps.seed,
    )  # fmt: skip
    training = Training(settings, of, device, steps.workers, args.auto_batch)
    texts_of = ", ".join(f"{len(training.sets[part])} for {part}" for part in PARTS)
    print(
        f"train: {steps.model} on {of.source}, texts: {texts_of}; {len(of.classes)} classes, batch {steps.batch_size}, "
        f"{args.batches} padding, on {device_name(steps.device)}",
        flush=True,
    )
    say_too_long(training, args.refuse_long)
    resume(training, steps.logdir / CHECKPOINT)
    with SummaryWriter(str(steps.logdir), purge_step=len(training.epochs) + 1) as events:
        while len(training.epochs) < settings.epochs:
            epoch = training.epoch()
            write(steps.logdir, training.state(), training.epochs)
            show(epoch, events)
        accuracies = test(training)
        for name, accuracy in accuracies.items():
            events.add_scalar(f"test_accuracy/{name}", accuracy, settings.epochs)
    write_json(steps.logdir / TEST, {"texts": len(training.sets["test"]), "accuracy": accuracies})
    print(f"test, {len(training.sets['test'])} texts: " + ", ".join(f"{k} {v:.1%}" for k, v in accuracies.items()))
    print(f"written to {steps.logdir}; look at it with: tensorboard --logdir {steps.logdir}")


def show(epoch: Epoch, events: Any) -> None:
    """Print an epoch in a line, and write its numbers as TensorBoard's scalars."""
    for tag, value in asdict(epoch).items():
        if tag != "epoch":
            events.add_scalar(tag, value, epoch.epoch)
    print(
        f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, validation {epoch.validation_loss:.4f}, "
        f"{epoch.validation_accuracy:.1%} right, {epoch.tokens_per_second:.0f} tokens/s, padding {epoch.padding:.0%}, "
        f"{epoch.seconds:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
