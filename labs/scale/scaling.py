"""How fast processes train together, and what their communication costs; `tables` makes rows of it.

Strong scaling keeps the batch of all processes, weak scaling that of each. Efficiency is the throughput of N processes
over N times the throughput of one: 1 where nothing is lost. On a CPU every process computes with one thread, so that N
processes have N cores; with more processes than cores a row says `oversubscribed`, and its efficiency means little.

Communication is measured in two ways. `exposed ms`: a step's time less that of the same step without the exchange of
gradients, their windows alternating: what communication costs. `communication_ms`: the time in which a collective runs
in a rank's trace, `breakdown_us.communication` of `python -m walkthrough explain TRACE --json`: on a CPU with what the
backward pass hides of it, and with the wait for ranks that come late.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.options import StepOptions
from labs.scale import one_rank
from labs.scale.launch import launch
from labs.scale.one_rank import EXCHANGES, Measurement
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, printable
from walkthrough.results.result import read_json

import torch

WINDOWS = {True: 3, False: 7}  # by --quick
STEPS = {True: 3, False: 10}  # of a window, by --quick

Row = dict[str, Any]


def process_counts(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def is_oversubscribed(device: str, processes: int) -> bool:
    """Whether there are more processes than cores. Raises InputError where there are more than GPUs."""
    if not device.startswith("cuda"):
        return processes > usable_cores()
    if processes > torch.cuda.device_count():
        raise InputError(f"{processes} processes need a GPU each, this machine has {torch.cuda.device_count()}")
    return False


def measured(
    options: StepOptions,
    processes: int,
    images: int,
    passes: int = 1,
    bucket_mb: float | None = None,
    exchanges: Sequence[str] = EXCHANGES[:1],
    slow_rank: int | None = None,
    delay_ms: float = 0.0,
    traced: bool = False,
) -> Row:
    """Train in so many processes, on `images` in each pass of each; see `one_rank.Measurement` for the settings.

    {"processes", "oversubscribed", "parts", "step_ms": {exchange: [each window]}, "images_per_second": {exchange: [each
    window]}, "ranks": [{"rank", "step_ms", "communication_ms"} of the traced steps], [] if not `traced`}. A window is
    as long as its slowest process. Raises InputError where a process fails.
    """
    oversubscribed = is_oversubscribed(options.device, processes)
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(
            folder=folder, device=options.device.partition(":")[0], model=options.model,
            image_size=options.image_size, images=images, passes=passes, bucket_mb=bucket_mb,
            exchanges=tuple(exchanges), slow_rank=slow_rank, delay_ms=delay_ms, windows=WINDOWS[options.quick],
            steps=STEPS[options.quick], traced=traced,
        )  # fmt: skip
        launch(Path(one_rank.__file__), one_rank.words(measurement), processes)
        of_ranks = [read_json(Path(folder) / f"rank{rank}.json") for rank in range(processes)]
        step_ms = {
            exchange: [max(window) for window in zip(*(of["step_ms"][exchange] for of in of_ranks), strict=True)]
            for exchange in exchanges
        }
        per_step = images * passes * processes
        return {
            "processes": processes,
            "oversubscribed": oversubscribed,
            "parts": of_ranks[0]["parts"],
            "step_ms": step_ms,
            "images_per_second": {of: [per_step * 1000 / ms for ms in windows] for of, windows in step_ms.items()},
            "ranks": [{"rank": of["rank"], **explained(of["trace"])} for of in of_ranks] if traced else [],
        }


def explained(trace: str) -> Row:
    """{"step_ms", "communication_ms"} of a trace's mean step, by this project's `explain`. Raises InputError."""
    steps = explanation(trace)["steps"]
    return {"step_ms": steps["mean_us"] / 1000, "communication_ms": steps["breakdown_us"]["communication"] / 1000}


def explanation(trace: str) -> Row:
    """What `explain` says of a trace, or of the newest one in a folder. Raises InputError."""
    command = [sys.executable, "-m", "walkthrough", "explain", trace, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise InputError(f"{trace} is not explained: {printable(done.stderr, 200)}")
    return json.loads(done.stdout)
