"""Predict the memory of a training step on fake tensors, which have shapes and no values.

A program's own `main()` runs on them up to its call of `run_step`; its train step, captured there, then trains twice on
a fake batch. So whatever a program does is predicted as it is written, and no list of programs or models is needed.
"""

import difflib
import gc
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from walkthrough.memory.allocator import reserved_bytes
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.fit import CONTEXT_BYTES, Prediction, largest_batch
from walkthrough.memory.tracker import MemoryTracker
from walkthrough.results.capture import Capture, Captured, Program, captured
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, printable

SAMPLES = 13  # of the batch that is loaded to learn its shapes; hardly divides a size that does not count samples
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}
DTYPES = {"auto": torch.bfloat16, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # on a GPU


@dataclass(frozen=True)
class Own:
    """A training of `fit`'s own: a torchvision classifier of ten classes, trained as the course's step 02 does.

    precision: of autocast, one of `DTYPES`. optimizer: one of `OPTIMIZERS`. checkpoint: recompute the model's blocks in
    the backward pass.
    """

    model: str = "mobilenet_v2"
    batch_size: int = 128
    image_size: int = 224
    precision: str = "auto"
    optimizer: str = "sgd"
    checkpoint: bool = False

    def captured(self) -> Captured:
        """The program. Raises InputError for an unknown model, and one that has no blocks."""
        images: Any = [(np.zeros((3, self.image_size, self.image_size), np.float32), 0)] * SAMPLES
        loader = DataLoader(images, batch_size=self.batch_size)
        model = self._classifier()
        criterion = nn.CrossEntropyLoss()
        optimizer = OPTIMIZERS[self.optimizer](model.parameters())
        amp_dtype = DTYPES[self.precision]
        scaler = torch.amp.GradScaler("cpu", enabled=amp_dtype == torch.float16)

        def train_step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", amp_dtype, enabled=amp_dtype != torch.float32):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return Captured(Program(__file__, self, loader, train_step, precision=amp_dtype))

    def _classifier(self) -> nn.Module:
        from torchvision import models

        known, name = models.list_models(module=models), self.model
        if name not in known:
            close = " or ".join(difflib.get_close_matches(name, known, n=3))
            hint = f"did you mean {close}?" if close else f"--model takes one of torchvision's {len(known)}"
            raise InputError(f"unknown model {name!r}: {hint}")
        settings: dict[str, Any] = {"weights": None, "num_classes": 10}
        if name in ("inception_v3", "googlenet"):
            settings.update(aux_logits=False, init_weights=True)
        elif name.startswith("vit_"):
            settings["image_size"] = self.image_size
        elif name.startswith("maxvit_"):
            settings["input_size"] = (self.image_size, self.image_size)
        model = models.get_model(name, **settings)
        if self.checkpoint:
            for block in (blocks := list(blocks_of(model))):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            if not blocks:
                raise InputError(f"--checkpoint: {name} has no blocks, modules with parts of their own in a Sequential")
        return model


@dataclass(frozen=True)
class Trained:
    """A program after its training steps on fake tensors; tracker: holds the peak of the last one."""

    program: Program
    batch_size: int
    tracker: MemoryTracker
    notes: list[str]

    def needed_bytes(self, capacity: int) -> int:
        """At most `capacity` if its steps fit into so much memory, more if they do not."""
        if reserved_bytes(self.tracker.events, capacity) is not None:
            return self.tracker.peak_bytes
        return max(capacity + 1, reserved_bytes(self.tracker.events) or 0)


def check_tools() -> None:
    """Predict one linear layer; raises whatever this torch raises where it lacks what a prediction needs."""
    with fake_gpu(tracker := MemoryTracker(), []):
        layer = nn.Linear(256, 256).to("cpu")
        optimizer = OPTIMIZERS["sgd"](layer.parameters())
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(torch.empty(8, 256)).sum()
        loss.backward()
        optimizer.step()
        loss.item()
        tracker.mark_state()
    expected = 4 * 256 * 257  # bytes of the layer, of its gradients, and of the momentum
    sizes = tracker.by_kind()
    if any(sizes[kind] != expected for kind in ("parameters", "gradients", "optimizer")):
        raise RuntimeError(f"a linear layer is predicted with {sizes}")


def predicted(
    what: Path | Own, words: Sequence[str] = (), budgets: Sequence[int] = (), tolerance: float = 0
) -> Prediction:
    """Predict a program, given by its file, or a training of `fit`'s own. Raises InputError where that cannot be.

    words: the program's command line. budgets: bytes for which the largest batch is sought; tolerance: to within which
    share of it, see `fit.largest_batch`.
    """
    own = trained(what, words)
    known: dict[int, Trained | None] = {own.batch_size: own}

    def needed(capacity: int, size: int) -> int:
        if size not in known:
            known[size] = trained_or_too_small(what, words, size)
        step = known[size]
        return 0 if step is None else step.needed_bytes(capacity)

    def largest(capacity: int) -> int:
        size = largest_batch(partial(needed, capacity), capacity, own.batch_size, tolerance)
        return 0 if known.get(size) is None else size

    args = own.program.args
    return Prediction(
        program=None if isinstance(what, Own) else name_of(what),
        words=list(words),
        model=args.model,
        image_size=args.image_size,
        batch_size=own.batch_size,
        precision=own.program.dtype,
        peak_bytes=own.tracker.peak_bytes,
        by_kind=own.tracker.by_kind(),
        reserved_bytes=reserved_bytes(own.tracker.events) or 0,
        largest={str(budget): largest(budget - CONTEXT_BYTES) for budget in budgets},
        notes=own.notes,
    )


def name_of(program: Path) -> str:
    """A program's name: that of a step's folder of runs, or with its folder, such as "labs/memory/00_baseline"."""
    path = program.resolve().with_suffix("")
    if path.parent == ROOT / "steps":
        return path.name
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def trained_or_too_small(what: Path | Own, words: Sequence[str], batch_size: int) -> Trained | None:
    """As `trained`; None where the batch is too small for the program's batch norm."""
    try:
        return trained(what, words, batch_size)
    except InputError as error:
        if "Expected more than 1 value per channel" in str(error):
            return None
        raise


def trained(what: Path | Own, words: Sequence[str] = (), batch_size: int | None = None) -> Trained:
    """Run a program up to `run_step` and two of its training steps; batch_size: in place of its own.

    Raises InputError where it cannot be predicted.
    """
    tracker, notes, output = MemoryTracker(), list[str](), io.StringIO()
    on_gpu = Capture(as_on_gpu=True, blank_data=True)
    try:
        with (
            redirect_stdout(output),
            redirect_stderr(output),
            fake_gpu(tracker, notes),
            own_modules(what) if isinstance(what, Path) else nullcontext(),
        ):
            reached = what.captured() if isinstance(what, Own) else captured(what, words, on_gpu)
            program = reached.program
            size = batch_size or program.loader.batch_size or 1
            train_twice(program, tracker, size)
            return Trained(program, size, tracker, notes)
    except InputError:
        raise
    except SystemExit as error:  # of the program's own parser
        raise InputError(printable((output.getvalue().strip().splitlines() or ["it ended"])[-1])) from error
    except Exception as error:  # a program may read values, which fake tensors have not, or fail in any way of its own
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        raise InputError(printable(f"it cannot be predicted ({reason})", 240)) from error


@contextmanager
def own_modules(program: Path) -> Iterator[None]:
    """At its end the modules next to a program are forgotten that were imported meanwhile.

    They took what is replaced for a prediction, and those of the next program may have their names.
    """
    loaded = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - loaded:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(program.resolve().parent):
                del sys.modules[name]


def blocks_of(model: nn.Module) -> Iterator[nn.Module]:
    """What a model is a sequence of: outermost members of a Sequential or ModuleList that have parts of their own."""
    in_sequence = isinstance(model, nn.Sequential | nn.ModuleList)
    for part in model.children():
        if in_sequence and any(True for _ in part.children()):
            yield part
        else:
            yield from blocks_of(part)


def train_twice(program: Program, tracker: MemoryTracker, size: int) -> None:
    """Train on a fake batch of `size` samples; `tracker` holds the peak of the second step, and both steps' events.

    In the second one the gradients and the optimizer's state of the first are there, as in every later one.
    """
    loader = program.loader
    batch, samples = host_batch(loader)
    if not samples and size != loader.batch_size:
        raise InputError("the program's loader makes batches of its own size, so no other one can be predicted")
    gc.collect()
    gc.freeze()
    tracker.begin()
    on_device = [resized(batch, samples, size) for _ in range(2 if hasattr(loader, "loader") else 1)]  # a prefetcher's
    tracker.mark("inputs", tree_leaves([on_device, list(vars(loader).values())]))
    try:
        for _ in range(2):
            gc.collect()  # what only a cycle holds is not memory that a step needs
            tracker.reset_peak()
            program.train_step(*on_device[0])
            tracker.mark_state()
    finally:
        gc.unfreeze()


def host_batch(loader: Any) -> tuple[Any, int]:
    """(A small batch of a loader, how many samples it has); 0 samples where its size cannot be changed."""
    with _disable_current_modes():
        own = getattr(loader, "loader", loader)
        if not isinstance(own, DataLoader):
            return next(iter(own)), own.batch_size or 0
        own.num_workers = 0
        if own.batch_size is None or isinstance(own.dataset, IterableDataset):
            return next(iter(own)), own.batch_size or 0
        samples = min(SAMPLES, own.batch_size, len(own.dataset))  # pyright: ignore[reportArgumentType]  # has a length
        batch = own.collate_fn([own.dataset[index] for index in range(samples)])
        return batch, samples


def resized(batch: Any, samples: int, size: int) -> Any:
    """A fake batch of `size` samples like one of `samples`: first dimensions that count samples, or multiples, grow."""

    def tensor_of(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        rows = part.shape[0] if part.dim() else 0
        if samples and rows and rows % samples == 0:
            rows = rows // samples * size
        return torch.empty((rows, *part.shape[1:]) if part.dim() else (), dtype=part.dtype)

    return tree_map(tensor_of, batch)
