"""What was published about the time to an accuracy on CIFAR-10. None of it was measured here.

The write-up from which this lab grew is a blog's account of a race after DAWNBench, one run each, without spread.
airbench: the head of airbench94_muon.py in github.com/KellerJordan/cifar10-airbench. Hiverge: the README of
github.com/hiverge/cifar10-speedrun, which changed airbench94_muon.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published run. who, hardware: in words. accuracy: of CIFAR-10's test images, in %. seconds: training."""

    who: str
    hardware: str
    accuracy: float
    seconds: float | None
    epochs: int | None = None
    note: str = ""


OFF_THE_CLOCK = "after a whole training off the clock, which compiles"  # both read in the source, main("warmup", model)
ROWS = (
    Published("DAWNBench, the record the write-up started from", "8 V100", 94.0, 10.0),
    Published("the write-up: a replay of that code", "one cloud GPU", 93.9, 61.0, 10, "weight averaging"),
    Published("the write-up: its own ResNet-9", "not said", 79.0, 498.0, 10, "45 s per epoch"),
    Published("the write-up: the same, for longer", "not said", 91.0, 25 * 60.0, None, "about"),
    Published("airbench94_muon", "one A100 (400 W)", 94.01, 2.59, 8, f"mean of 200 runs, torch 2.4; {OFF_THE_CLOCK}"),
    Published("Hiverge's cifar10_speedrun, from airbench", "one A100", 94.01, 2.015, None, f"mean; {OFF_THE_CLOCK}"),
)
PROFILE_CALLS, PROFILE_SECONDS = 3.9e6, 41.7  # of the write-up's cProfile
