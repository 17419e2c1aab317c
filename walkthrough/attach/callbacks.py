"""Record a trace inside PyTorch Lightning or the Hugging Face Trainer, which own the loop that a profiler must step.

    trainer = lightning.Trainer(callbacks=[lightning_callback("logs/before")])
    trainer = transformers.Trainer(..., callbacks=[trainer_callback("logs/before")])

`walkthrough trace -- python train.py` does the same to a program that is left as it is. These are for a program that
should record a trace in every run, or of chosen steps. The frameworks are imported only when a callback is made.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from walkthrough.results.errors import InputError
from walkthrough.results.folder import host_name


class StepProfiler:
    """torch.profiler, stepped by a framework's hooks: traces `steps` steps after `skip` others, once.

    folder: where the trace goes, one per rank; see `explain`. stacks: record Python's functions as well.
    """

    def __init__(self, folder: str | Path, skip: int = 10, steps: int = 3, stacks: bool = False) -> None:
        if skip < 0 or steps < 1:
            raise InputError(f"skip={skip}, steps={steps}: skip at least 0 steps and trace at least 1")
        self.folder, self.skip, self.steps, self.stacks = Path(folder), skip, steps, stacks
        self.profiler: profile | None = None

    def start(self) -> None:
        """Before the first step; the processes of a training must know their ranks by then."""
        dist = torch.distributed
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        worker = f"{host_name()}_{rank}"
        self.profiler = profile(
            activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available(),
            schedule=schedule(wait=self.skip, warmup=1, active=self.steps, repeat=1),
            on_trace_ready=tensorboard_trace_handler(str(self.folder), worker_name=worker, use_gzip=True),
            record_shapes=True,
            with_stack=self.stacks,
        )
        self.profiler.start()

    def step(self) -> None:
        """After each step."""
        if self.profiler is not None:
            self.profiler.step()

    def stop(self) -> None:
        """After the last step, or an error."""
        if self.profiler is not None:
            profiler, self.profiler = self.profiler, None
            profiler.stop()


def lightning_callback(folder: str | Path, skip: int = 10, steps: int = 3, stacks: bool = False) -> Any:
    """A `lightning.pytorch` callback that traces `steps` optimizer steps of `fit`; see `StepProfiler`.

    Of `lightning`, or of `pytorch_lightning` where only that is installed. Raises InputError where neither is.
    """
    callback_class = _imported("lightning.pytorch", "pytorch_lightning").Callback
    profiler = StepProfiler(folder, skip, steps, stacks)

    class TraceSteps(callback_class):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.global_step = trainer.global_step
            profiler.start()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step != self.global_step:  # a batch that only accumulates gradients is not a step
                self.global_step = trainer.global_step
                profiler.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            profiler.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            profiler.stop()

    return TraceSteps()


def trainer_callback(folder: str | Path, skip: int = 10, steps: int = 3, stacks: bool = False) -> Any:
    """A `transformers.TrainerCallback` that traces `steps` optimizer steps; see `StepProfiler`.

    Raises InputError where transformers is not installed.
    """
    callback_class = _imported("transformers").TrainerCallback
    profiler = StepProfiler(folder, skip, steps, stacks)

    class TraceSteps(callback_class):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            profiler.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            profiler.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            profiler.stop()

    return TraceSteps()


def _imported(*names: str) -> Any:
    """The first of these modules whose package is installed."""
    packages = {name.partition(".")[0]: name for name in names}
    for package, name in packages.items():
        if find_spec(package):
            return import_module(name)
    raise InputError(f"{next(iter(packages))} is not installed: pip install {next(iter(packages))}")
