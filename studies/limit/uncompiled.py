"""Programs that are not compiled: counted, timed and traced in this process."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import torch
from torch import nn

from common.device import empty_cache
from common.failures import batch_norm_problem
from common.timing import Plan, Timing
from common.tracing import SPARE_BYTES, traced_window
from studies import one_batch
from studies.limit import operator_times
from studies.limit.flops import OperatorCounter, count_step
from studies.limit.operator_times import OperatorTimes
from studies.limit.record import CHANNELS_LAST, Program
from walkthrough.results import progress
from walkthrough.results.errors import is_out_of_memory, printable

# Elements of a GPU's tensor at most: cuDNN's batch norm refuses more (https://github.com/pytorch/pytorch/issues/51776),
# and others count them in 32 bits. A large GPU holds such batches: 2048 images of 224 px in MobileNetV2.
MOST_ELEMENTS = 2**31 - 1
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Uncompiled:
    """A model that is trained in `Program`s, each timed by `plan`. image_size: px that images are resized to."""

    model: nn.Module
    device: torch.device
    precision: torch.dtype
    image_size: int
    plan: Plan
    timings: dict[Program, Timing] = field(default_factory=dict)
    counters: dict[Program, OperatorCounter] = field(default_factory=dict)

    def train_step(self, program: Program) -> one_batch.TrainStep:
        channels_last = program.layout == CHANNELS_LAST
        return one_batch.TrainStep(self.model, self.device, self.precision, self.image_size, channels_last)

    def time(self, program: Program) -> Timing | None:
        """Count and time a program. None where memory does not hold it, for a batch too small for batch norm, and for
        one larger than any before with which an operator fails, as it does where tensors have too many elements.
        """
        if program.batch_size > self.most_images:
            return None
        if self.device.type == "cpu" and self._bytes_expected(program) > memory_bytes() / 2:
            return None
        try:
            with cudnn_benchmark(program.cudnn_benchmark):
                train_step = self.train_step(program)
                batch = one_batch.batch_on(self.device, program.batch_size)
                train_step(*batch)  # makes the momentum, and is counted from the next on
                counter = count_step(train_step, *batch)
                timing = one_batch.time_one_batch(train_step, batch, self.device, self.plan)
        except Exception as error:
            if not (is_out_of_memory(error) or batch_norm_problem(error, program.batch_size, self.image_size)):
                if program.batch_size <= max((known.batch_size for known in self.timings), default=program.batch_size):
                    raise
                progress.say(f"  not timed: batch {program.batch_size}: {printable(error, 160)}")
        else:
            self.timings[program], self.counters[program] = timing, counter
            return timing
        train_step = batch = None
        empty_cache(self.device)
        return None

    def _bytes_expected(self, program: Program) -> float:
        """More than a step allocates: what the operators of those that ran move, by the number of images.

        On a CPU memory that is used up shows in no error: the system ends the process.
        """
        return self._scaled("bytes", program.batch_size)

    @property
    def most_images(self) -> float:
        """Of a step, compiled or not, whose largest tensor has `MOST_ELEMENTS` at most; without a limit on a CPU."""
        per_image = self._scaled("largest", 1) if self.device.type == "cuda" else 0
        return MOST_ELEMENTS // per_image if per_image else float("inf")

    def _scaled(self, what: str, images: int) -> float:
        """What the counters of those that ran hold per image, times so many images."""
        per_image = (getattr(counter, what) / known.batch_size for known, counter in self.counters.items())
        return max(per_image, default=0) * images

    def operator_ms(self, program: Program) -> OperatorTimes:
        """`operator_times.operator_ms` of a program that was timed, from a trace that is not kept."""
        names = {count.name for count in self.counters[program].counts.values()}
        train_step, batch = self.train_step(program), one_batch.batch_on(self.device, program.batch_size)
        with tempfile.TemporaryDirectory(prefix="limit-") as folder, cudnn_benchmark(program.cudnn_benchmark):
            path = Path(folder) / "trace.json"
            # The batch may be many times as large as those of the steps.
            spare = max(SPARE_BYTES, int(min(2 * self.counters[program].bytes, memory_bytes() / 8)))
            events = traced_window(repeat(batch), train_step, self.device, path, spare_bytes=spare)
            return operator_times.operator_ms(path, events, names)


@contextmanager
def cudnn_benchmark(on: bool | None) -> Iterator[None]:
    """Let cuDNN time its algorithms and take the fastest, or not; afterwards it is as before."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = bool(on)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def memory_bytes() -> float:
    """Bytes of memory that this process may use: the machine's, or its cgroup's where that is less."""
    machine = float("inf")
    if hasattr(os, "sysconf"):
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, float(CGROUP_MEMORY.read_text()))
    except (OSError, ValueError):  # none, or "max"
        return machine
