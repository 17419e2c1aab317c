"""What was published about ResNeXt on CIFAR-10: batch 128, Adam with a learning rate of 0.01, 200 epochs, one A100.

One run, no spread, from a write-up of the memory of its training ("ResNeXt memory study"), seen with Nsight Systems.
With the walkthrough's, also all published figures of GPU memory. Nothing here was measured by us.
"""

from dataclasses import dataclass
from typing import Literal

from walkthrough.compare.ladder import PUBLISHED

# {workers: (ms that the loop waits for a batch, ms per step, s per epoch)}
WORKERS = {0: (63, 104, 67.7), 1: (1.9, 105, 44.6), 2: (1.6, 104, 44.5), 4: (1.6, 104, 44.7), 8: (1.6, 104, 44.9)}


@dataclass(frozen=True)
class Run:
    """One published training; total_seconds: of 200 epochs; optimizer_ms: read without synchronising, it seems."""

    batch_size: int
    step_ms: float
    epoch_seconds: float
    total_seconds: float
    optimizer_ms: float | None = None
    memory_gb: float | None = None


BASE = Run(128, 104, 44.5, 8934, 28, 7.82)
HALF = Run(128, 78, 33.7, 6744)
CHECKPOINT = Run(128, 152, 63.5, 12703, 34, 5.11)
BASE_LARGE = Run(512, 380, 40, 8097, 200, 33.79)
CHECKPOINT_LARGE = Run(896, 948, 56.5, 11302, 560, 33.93)


@dataclass(frozen=True)
class PublishedMemory:
    """GPU memory as published. program: which of ours is nearest, with `words` on its command line.

    counts: "allocated", what the program holds, or "reserved", what it took from CUDA.
    """

    program: str
    words: tuple[str, ...]
    memory_gb: float
    counts: Literal["allocated", "reserved"]


def _of_run(program: str, run: Run, *words: str) -> PublishedMemory:
    assert run.memory_gb is not None  # of these runs it was published
    return PublishedMemory(program, (*words, "--batch-size", str(run.batch_size)), run.memory_gb, "reserved")


# The walkthrough's, as the profiler plugin's Memory view shows them; and those of the runs above by Nsight Systems,
# whose memory usage is that of the calls of cudaMalloc. Their model is ResNeXt-29 4x64d most likely.
MEMORY = (
    *(PublishedMemory(step, (), PUBLISHED[step].memory_gb, "allocated") for step in list(PUBLISHED)[:3]),
    _of_run("labs/memory/00_baseline", BASE),
    _of_run("labs/memory/02_checkpointing", CHECKPOINT, "--precision", "fp32"),
    _of_run("labs/memory/00_baseline", BASE_LARGE),
    _of_run("labs/memory/02_checkpointing", CHECKPOINT_LARGE, "--precision", "fp32"),
)
