"""Predict the memory of one training program: see `predicted`.

A program's own `main()` runs on fake tensors, which have shapes and no values, up to its call of `run_step`; its train
step, captured there, then trains twice on a fake batch. So whatever a program does is predicted as it is written, and
no list of programs or models is needed.
"""

import gc
import io
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

import common.device
import common.model
import common.options
from common.data import cifar10, resized_float
from common.device import dtype_name
from common.failures import batch_norm_problem
from common.loaders import Batch, Loader, Prefetcher
from common.options import StepOptions
from common.timing import TrainStep
from walkthrough.compare.gpu_memory import CONTEXT_BYTES, Prediction
from walkthrough.memory.allocator import reserved_bytes
from walkthrough.memory.record import Wanted, name_of
from walkthrough.memory.search import largest_batch
from walkthrough.memory.stand_in_gpu import stand_in_gpu
from walkthrough.memory.tracker import MemoryTracker
from walkthrough.results.capture import Captured, Program
from walkthrough.results.errors import InputError, printable

SAMPLES = 13  # of the batch that is loaded to learn its shapes; hardly divides a size that does not count samples
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}


class _StepKnown(BaseException):
    """Leaves the program's main() once it has passed its train step; no error."""


def check_tools() -> None:
    """Predict one linear layer; raises whatever this torch raises where it lacks what a prediction needs."""
    with FakeTensorMode(allow_non_fake_inputs=True), MemoryTracker() as tracker, stand_in_gpu(tracker, []):
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


@dataclass(frozen=True)
class Trained:
    """A program after its training steps on fake tensors; tracker: holds the peak of the last one."""

    options: StepOptions
    batch_size: int
    precision: str
    tracker: MemoryTracker
    notes: list[str]

    def needed_bytes(self, capacity: int) -> int:
        """At most `capacity` if its steps fit into so much memory, more if they do not."""
        if reserved_bytes(self.tracker.events, capacity) is not None:
            return self.tracker.peak_bytes
        return max(capacity + 1, reserved_bytes(self.tracker.events) or 0)


def predicted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Prediction` of a `Wanted`, given as its fields; {"failed": why} where there can be none."""
    wanted = Wanted(**settings)
    known: dict[int, Trained | None] = {}

    def needed(capacity: int, size: int) -> int:
        if size not in known:
            known[size] = trained_or_too_small(wanted, size)
        step = known[size]
        return 0 if step is None else step.needed_bytes(capacity)

    def largest(capacity: int, start: int) -> int:
        size = largest_batch(partial(needed, capacity), capacity, start, wanted.tolerance)
        return 0 if known.get(size) is None else size

    try:
        own = trained(wanted)
        known[own.batch_size] = own
        budgets = {budget: budget - CONTEXT_BYTES for budget in wanted.budgets}
        prediction = Prediction(
            program=wanted.program and name_of(wanted.program),
            words=list(wanted.words),
            model=own.options.model,
            image_size=own.options.image_size,
            batch_size=own.batch_size,
            precision=own.precision,
            peak_bytes=own.tracker.peak_bytes,
            by_kind=own.tracker.by_kind(),
            reserved_bytes=reserved_bytes(own.tracker.events) or 0,
            largest={str(memory): largest(left, own.batch_size) for memory, left in budgets.items()},
            notes=own.notes,
        )
    except InputError as error:
        return {"failed": printable(error)}
    return asdict(prediction)


def trained_or_too_small(wanted: Wanted, batch_size: int) -> Trained | None:
    """As `trained`; None where the batch is too small for the program's batch norm."""
    try:
        return trained(wanted, batch_size)
    except InputError as error:
        if batch_norm_problem(error, batch_size, 0):
            return None
        raise


def trained(wanted: Wanted, batch_size: int | None = None) -> Trained:
    """Run a program up to `run_step` and two of its training steps; batch_size: in place of its own.

    Raises InputError where it cannot be predicted.
    """
    tracker, notes, output, step = MemoryTracker(), list[str](), io.StringIO(), list[Trained]()

    def train(program: Program) -> None:
        size = batch_size or program.loader.batch_size or 1
        train_twice(program.loader, program.train_step, tracker, size)
        step.append(Trained(program.args, size, dtype_name(program.precision or torch.float32), tracker, notes))
        raise _StepKnown

    try:
        with (
            redirect_stdout(output),
            redirect_stderr(output),
            FakeTensorMode(allow_non_fake_inputs=True),
            tracker,
            stand_in_gpu(tracker, notes),
            checkpointing(wanted.checkpoint),
        ):
            start(wanted, train)
    except _StepKnown:
        return step[0]
    except InputError:
        raise
    except SystemExit as error:  # of the program's own parser
        raise InputError((output.getvalue().strip().splitlines() or ["it ended"])[-1]) from error
    except Exception as error:  # a program may read values, which fake tensors have not, or fail in any way of its own
        what = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
        raise InputError(printable(f"it cannot be predicted ({what})", 240)) from error
    raise InputError("it cannot be predicted: it ended without a call of run_step")


def start(wanted: Wanted, train: Callable[[Program], None]) -> None:
    """Run the program as from a command line, or the training of `fit`'s own."""
    if wanted.program is None:
        train(own_training(wanted))
        return
    file, loaded = Path(wanted.program).resolve(), set(sys.modules)
    try:
        with (
            patch.object(sys, "argv", [str(file), *wanted.words]),
            patch.object(sys, "path", [str(file.parent), *sys.path]),
        ):
            runpy.run_path(str(file), run_name="__main__")
    except Captured as reached:  # trains in here: what the program's main() holds stays held
        train(reached.program)
    finally:  # modules next to the program took the replaced functions, and those of the next one may have their names
        for name in set(sys.modules) - loaded:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(file.parent):
                del sys.modules[name]


def own_training(wanted: Wanted) -> Program:
    """Step 02 with another optimizer: a classifier in the asked precision."""
    args = common.options.step_options(None, list(wanted.words))
    loader = DataLoader(cifar10(args.data, transform=resized_float(args.image_size)), batch_size=args.batch_size)
    model = common.model.classifier(args.model, args.image_size)
    criterion = nn.CrossEntropyLoss()
    optimizer = OPTIMIZERS[wanted.optimizer](model.parameters())
    amp_dtype = common.device.autocast_dtype(args.device, args.precision)
    scaler = torch.amp.GradScaler("cpu", enabled=amp_dtype == torch.float16)

    def train_step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Program(__file__, args, loader, train_step, precision=amp_dtype)


def train_twice(loader: Loader, train_step: TrainStep, tracker: MemoryTracker, size: int) -> None:
    """Train on a fake batch of `size` samples; `tracker` holds the peak of the second step, and both steps' events.

    In the second one the gradients and the optimizer's state of the first are there, as in every later one.
    """
    batch, samples = host_batch(loader)
    if not samples and size != loader.batch_size:
        raise InputError("the program's loader makes batches of its own size, so no other one can be predicted")
    gc.collect()
    gc.freeze()
    tracker.begin()
    on_device = [resized(batch, samples, size) for _ in range(2 if isinstance(loader, Prefetcher) else 1)]
    tracker.mark("inputs", tree_leaves([on_device, list(vars(loader).values())]))
    for _ in range(2):
        gc.collect()  # what only a cycle holds is not memory that a step needs
        tracker.reset_peak()
        train_step(*on_device[0])
        tracker.mark_state()
    gc.unfreeze()


def host_batch(loader: Loader) -> tuple[Batch, int]:
    """(A small batch of a loader, how many samples it has); 0 samples where its size cannot be changed."""
    with _disable_current_modes():
        own = loader.loader if isinstance(loader, Prefetcher) else loader
        if not isinstance(own, DataLoader):
            return next(iter(own)), own.batch_size or 0
        own.num_workers = 0
        if own.batch_size is None or isinstance(own.dataset, IterableDataset):
            return next(iter(own)), own.batch_size or 0
        samples = min(SAMPLES, own.batch_size, len(own.dataset))  # pyright: ignore[reportArgumentType]  # has a length
        batch: Any = own.collate_fn([own.dataset[index] for index in range(samples)])
        return batch, samples


def resized(batch: Batch, samples: int, size: int) -> Batch:
    """A fake batch of `size` samples like one of `samples`: first dimensions that count samples, or multiples, grow."""

    def tensor_of(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        rows = part.shape[0] if part.dim() else 0
        if samples and rows and rows % samples == 0:
            rows = rows // samples * size
        return torch.empty((rows, *part.shape[1:]) if part.dim() else (), dtype=part.dtype)

    return tree_map(tensor_of, batch)


@contextmanager
def checkpointing(enabled: bool) -> Iterator[None]:
    """Within it `classifier` returns models whose blocks are computed again in the backward pass, if `enabled`.

    Raises InputError at its end where no model was made by `classifier`.
    """
    if not enabled:
        yield
        return
    classifier, made = common.model.classifier, []

    def checkpointed(name: str, *args: Any, **settings: Any) -> nn.Module:
        model = classifier(name, *args, **settings)
        for block in (blocks := list(blocks_of(model))):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if not blocks:
            raise InputError(f"--checkpoint: {name} has no blocks, modules with parts of their own in a Sequential")
        made.append(model)
        return model

    with patch.object(common.model, "classifier", checkpointed):
        try:
            yield
        except _StepKnown as error:
            if not made:
                what = "the program makes its model by itself, so what it checkpoints is in it"
                raise InputError(f"--checkpoint: {what}") from error
            raise


def blocks_of(model: nn.Module) -> Iterator[nn.Module]:
    """What a model is a sequence of: outermost members of a Sequential or ModuleList that have parts of their own."""
    in_sequence = isinstance(model, nn.Sequential | nn.ModuleList)
    for part in model.children():
        if in_sequence and any(True for _ in part.children()):
            yield part
        else:
            yield from blocks_of(part)
