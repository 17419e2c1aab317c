"""Training to the end, epoch by epoch: checkpoints to go on from, a table of the epochs, TensorBoard, the schedule.

What all trainers of the labs share, so that each of them is plain PyTorch:

    run = Training(folder, settings, {"model": model, "optimizer": optimizer}, generators=[generator])
    for epoch in run.epochs(settings.epochs):  # goes on after the last whole one, with the random numbers of its own
        for images, labels in loader:
            ...
        run.done(loss=loss, test_accuracy=accuracy)

A kill loses the running epoch only: the same command goes on, as if nothing had happened.
"""

import csv
import io
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from common.device import autocast_dtype, synchronize
from walkthrough.results.errors import InputError, printable
from walkthrough.results.result import check_writable, write_whole, writing

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CHECKPOINT, BEST, TABLE = "checkpoint.pt", "best.pt", "epochs.csv"
KEPT = "epoch-{}.pt"  # of `keep`: as CHECKPOINT was at the end of that epoch; 0 is before the first
ANOTHER = "move it away to begin anew, or use another --logdir"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SEEDS = 100_003  # apart: those of the epochs of two trainings
Row = dict[str, float]  # of one epoch: "epoch" from 1, what `done` is told, "seconds"


class Stateful(Protocol):
    """What a checkpoint can hold: a model, an optimizer, a scaler, a schedule."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Training:
    """The epochs of one training; in a group of processes, all of them have one each, and rank 0 alone writes.

    folder: holds `checkpoint.pt`, `epochs.csv`, `best.pt` ("epoch", "model": its weights) and TensorBoard's scalars;
    None: nothing is read or written. written: the same on rank 0, else None.
    settings: what determines the result; a checkpoint goes on with the same only. parts: what changes in training, by
    name; "model" is the one whose weights `best.pt` holds. generators: of the sampler and the like, seeded with each
    epoch. A loader with `persistent_workers` is given another one, since it draws from its own, or from torch's, when
    the workers start: in the first epoch of each run. best: the value of `done`, such as "validation_accuracy", whose
    highest epoch's weights are kept. keep: the epochs whose checkpoint stays, as `epoch-N.pt`, to go back to. after:
    the epoch that this training begins after, where its parts are as they were then. rows: of the epochs that are done
    here.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: "DataclassInstance",
        parts: Mapping[str, Stateful],
        generators: Sequence[torch.Generator] = (),
        best: str | None = None,
        device: torch.device | str = "cpu",
        keep: Sequence[int] = (),
        after: int = 0,
    ) -> None:
        self.folder, self.settings, self.parts = folder, asdict(settings), dict(parts)
        self.generators, self.best, self.device = generators, best, torch.device(device)
        self.keep, self.after = frozenset(keep), after
        self.rows, self.best_weights = list[Row](), dict[str, torch.Tensor]()
        self.rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self.seed = int(self.settings.get("seed", 0))
        self.events: Any = None
        self.written = folder if self.rank == 0 else None
        if self.written:
            check_writable(self.written)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, from 1 or `after` + 1 to `count`; `done` is called in each.

        Random numbers depend on the seed, the rank and the epoch's number alone, so that an epoch is the same
        whether or not the training was cut off before it. Raises InputError for a checkpoint that cannot be used.
        """
        self.resume()
        self._keep()
        with self._writer() as self.events:
            while self.number < count:
                number = self.number + 1
                seed = self.seed * SEEDS + number
                torch.manual_seed(seed + self.rank * SEEDS**2)
                for generator in self.generators:
                    generator.manual_seed(seed)
                self.begin = time.perf_counter()
                yield number
                if self.number != number:
                    raise RuntimeError(f"epoch {number} ended without a call of done()")

    @property
    def number(self) -> int:
        """Of the last epoch that is done."""
        return self.after + len(self.rows)

    def seconds(self) -> float:
        """Since the epoch began, with what the device was still computing: call it before validation."""
        synchronize(self.device)
        return time.perf_counter() - self.begin

    def done(self, *, loss: float, **values: float) -> None:
        """Keep an epoch: checkpoint, table and scalars; and print it in a line.

        loss: the mean in training. values: by name; shares (0..1) where it ends in "accuracy", else as they are.
        Raises InputError where the loss is no number, and where nothing can be written.
        """
        number = self.number + 1
        if not math.isfinite(loss):
            raise InputError(f"the loss of epoch {number} is no number: the training diverged, try a smaller --lr")
        row: Row = {"epoch": number, "loss": loss, **values}
        row.setdefault("seconds", self.seconds())
        self.rows.append(row)
        told = {name: value for name, value in row.items() if name != "epoch"}
        if self.written:
            self._keep()
            for name, value in told.items():
                self.events.add_scalar(name, value, number)
            self.events.flush()  # before the checkpoint: an epoch that is trained again replaces its scalars
            write_whole(self.written / CHECKPOINT, packed(self.state()))
            self._write_table()
        if self.best and row is self.best_row():
            self._keep_best()  # after the checkpoint: where a kill comes between, it holds these weights
        if self.written:
            print(f"epoch {number}: " + ", ".join(text(name, value) for name, value in told.items()), flush=True)

    def best_row(self) -> Row:
        """The epoch whose `best` is highest, the first of several."""
        assert self.best
        return max(self.rows, key=lambda row: row[self.best or ""])

    def load_best(self) -> Row:
        """Give the model the weights of the best epoch, and return its row."""
        self.parts["model"].load_state_dict(self.best_weights)
        return self.best_row()

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on; its tensors are the parts' own."""
        return {
            "settings": self.settings,
            "epochs": [dict(row) for row in self.rows],
            **{name: part.state_dict() for name, part in self.parts.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as at a `state` of a training with the same settings."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.rows = [dict(row) for row in state["epochs"]]

    def resume(self) -> None:
        """Go on from what an earlier run left in the folder, if it did: all processes from the bytes of rank 0.

        Raises InputError, and leaves the file as it is, where it is damaged or of a training with other settings.
        """
        if not self.folder:
            return
        path, best = self.folder / CHECKPOINT, self.folder / BEST
        contents = [file.read_bytes() if file.exists() and not self.rank else None for file in (path, best)]
        if dist.is_available() and dist.is_initialized():
            dist.broadcast_object_list(contents, src=0)
        if contents[0] is None:
            return
        try:
            state = unpacked(contents[0])
            theirs = state["settings"]
            if missing := ({*self.parts, "epochs"} - set(state)) | (set(self.settings) - set(theirs)):
                raise KeyError(*sorted(missing))
            if differs := difference(self.settings, theirs):
                raise InputError(f"{path} is of a training with {differs}: {ANOTHER}")
            self.load(state)
            if self.best and self.best_row() is self.rows[-1]:
                self._keep_best()
            elif self.best:
                self._load_best(best, contents[1])
        except InputError:
            raise
        except Exception as error:  # of a file that is cut off or another's: zip, pickle, keys, shapes, anything
            reason = f"damaged or no checkpoint of this program ({printable(error, 80)})"
            raise InputError(f"{path} is {reason}: {ANOTHER}") from error
        self._write_table()  # as a kill may have left it a row short
        if self.written:
            print(f"goes on after epoch {self.number}", flush=True)

    def _keep_best(self) -> None:
        """Keep the weights as they are: those of the best epoch so far."""
        self.best_weights = {name: value.detach().clone() for name, value in self.parts["model"].state_dict().items()}
        if self.written:
            write_whole(self.written / BEST, packed({"epoch": self.number, "model": self.best_weights}))

    def _load_best(self, path: Path, content: bytes | None) -> None:
        epoch = int(self.best_row()["epoch"])
        try:
            state = unpacked(content or b"")
            if state["epoch"] != epoch:
                raise ValueError(f"they are of epoch {state['epoch']}")
            self.best_weights = state["model"]
        except Exception as error:  # of a file that is cut off or another's, anything
            reason = printable(error, 80) if content else "it is missing"
            raise InputError(f"{path} does not hold the weights of epoch {epoch} ({reason}): {ANOTHER}") from error

    def _keep(self) -> None:
        """Write the checkpoint of this epoch for good, if it is one of `keep`."""
        if self.written and self.number in self.keep:
            write_whole(self.written / KEPT.format(self.number), packed(self.state()))

    def _write_table(self) -> None:
        if not self.written:
            return
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.written / TABLE, table.getvalue())

    def _writer(self) -> Any:
        if not self.written:
            return nullcontext()
        from torch.utils.tensorboard import SummaryWriter  # a second to import, which a study does not need

        with writing(self.written):
            return SummaryWriter(str(self.written), purge_step=self.number + 1)


def epochs_in(folder: Path) -> list[Row]:
    """The rows of the `epochs.csv` that a training left in a folder."""
    with open(folder / TABLE, newline="") as table:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(table)]


def difference(settings: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """The first of some settings that is another one there, such as "seed 1, not 0"; None where all are the same."""
    for name, value in settings.items():
        if theirs.get(name) != value:
            return f"{name.replace('_', ' ')} {theirs.get(name)}, not {value}"
    return None


def precision_of(device: torch.device | str, asked: str) -> str:
    """What a --precision is on a device, one of `DTYPES`: "auto" differs from machine to machine."""
    dtype = autocast_dtype(device, asked)
    return next(name for name, known in DTYPES.items() if known == dtype)


def logdir_text(default: Path) -> str:
    """The help of a trainer's --logdir, for `folder_of`."""
    return f"folder of this training (default: {default}; with --quick {default}-quick)"


def folder_of(logdir: Path, default: Path, quick: bool) -> Path:
    """Of a training: its --logdir; by --quick another default, so that a smoke run does not block the real one."""
    return default.with_name(f"{default.name}-quick") if quick and logdir == default else logdir


def text(name: str, value: float) -> str:
    """One value of an epoch, for people."""
    words = name.replace("_", " ")
    if name.endswith(("accuracy", "padding")):
        return f"{words} {value:.1%}"
    if name.endswith("per_second"):
        return f"{value:,.0f} {words.removesuffix(' per second')}/s"
    return f"{value:.1f} s" if name == "seconds" else f"{words} {value:.4f}"


def packed(state: object) -> bytes:
    """What torch.save writes."""
    content = io.BytesIO()
    torch.save(state, content)
    return content.getvalue()


def unpacked(content: bytes) -> Any:
    """The state in a checkpoint's bytes, on the CPU. Raises anything where they are none."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def rising_then_falling(
    optimizer: torch.optim.Optimizer, steps: int, rising: float, cosine: bool = False, begin: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """The learning rate by step: up to the optimizer's own over the share `rising` of all steps, then down to 0.

    Linearly, or down along a cosine. steps: optimizer steps in all; `step()` is called after each. begin: of the
    steps, those that were done before.
    """
    top = max(1, round(rising * steps))

    def factor(step: int) -> float:
        step += begin
        if step < top:
            return (step + 1) / top
        left = max(0.0, (steps - step) / max(1, steps - top))
        return 0.5 * (1 - math.cos(math.pi * left)) if cosine else left

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
