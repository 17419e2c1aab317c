"""How fast processes train together, and what their communication costs, without any images to load.

    torchrun --nproc-per-node 2 labs/scale/scaling.py JSON     # which `measured` starts; JSON: what `run` takes

Every process trains on one batch of noise over and over, by the code that `train.py` runs; on a CPU with one thread, so
that N processes have N cores. What communication costs is a step's time less that of the same step without the exchange
of gradients, their windows alternating: what the backward pass hides of it costs nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from common.device import disable_tf32, keep_freed_memory, synchronize
from common.options import StepOptions
from labs.scale.model import mobilenet
from labs.scale.train import EXCHANGES, Replica, process_group
from walkthrough.results.errors import InputError, exit_in_one_line, printable
from walkthrough.results.result import read_json, write_json

import torch
import torch.distributed as dist

WINDOWS, STEPS = {True: 3, False: 7}, {True: 3, False: 10}  # of a measurement, and of a window; by --quick
WARMUP_STEPS = 3
CLASSES = 1000  # ImageNet's
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def run(
    file: str, device: str, model: str, image_size: int, images: int, windows: int, steps: int, passes: int,
    exchanges: Sequence[str],
) -> None:  # fmt: skip
    """Be one process; rank 0 writes {exchange: [mean ms of a step, of each window]} into a file.

    images: in one pass of one process. exchanges: of `train.EXCHANGES`, when gradients are; their windows alternate,
    and all processes begin and end them together. windows: of so many steps, each.
    """
    own = torch.device(device)
    if own.type == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    disable_tf32()
    with process_group(own):
        torch.manual_seed(0)
        noise = torch.randn(images, 3, image_size, image_size, device=own)
        batch = noise, torch.randint(CLASSES, (images,), device=own)
        replica = Replica(mobilenet(model, CLASSES), own, 0.01, passes=passes)
        replica.module.train()

        def window_ms(exchange: str, steps: int) -> float:
            wait_for_all(own)
            begin = time.perf_counter()
            for _ in range(steps):
                replica.step(repeat(batch), exchange)
            wait_for_all(own)
            return (time.perf_counter() - begin) * 1000 / steps

        for exchange in exchanges:
            window_ms(exchange, WARMUP_STEPS)
        rounds = [[window_ms(exchange, steps) for exchange in exchanges] for _ in range(windows)]
        if dist.get_rank() == 0:
            write_json(Path(file), dict(zip(exchanges, zip(*rounds, strict=True), strict=True)))


def wait_for_all(device: torch.device) -> None:
    """Return once every process has come here, its GPU's work done."""
    synchronize(device)
    dist.all_reduce(torch.zeros(1, device=device))
    synchronize(device)


def measured(
    options: StepOptions, processes: int, images: int, passes: int = 1, exchanges: Sequence[str] = EXCHANGES[:1]
) -> dict[str, Any]:
    """Train in so many processes, on `images` in each pass of each; see `run`.

    {"processes", "step_ms": {exchange: [each window]}, "images_per_second": {exchange: [each window]}}. Raises
    InputError where a process fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/step_ms.json"
        own = {
            "file": file, "device": options.device.partition(":")[0], "model": options.model,
            "image_size": options.image_size, "images": images, "windows": WINDOWS[options.quick],
            "steps": STEPS[options.quick], "passes": passes, "exchanges": exchanges,
        }  # fmt: skip
        run_program([*TORCHRUN, processes, __file__, json.dumps(own)])
        step_ms = read_json(file)
    per_step = images * passes * processes
    speeds = {exchange: [per_step * 1000 / ms for ms in windows] for exchange, windows in step_ms.items()}
    return {"processes": processes, "step_ms": step_ms, "images_per_second": speeds}


def run_program(command: Sequence[object]) -> None:
    """Run a program, under torchrun a core for each process. Raises InputError with the line by which it failed."""
    words = [*map(str, command)]
    cores = {"OMP_NUM_THREADS": "1"} if TORCHRUN[-1] in words else {}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | cores)
    if done.returncode:
        programs = {Path(word).stem for word in words if word.endswith(".py")}
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"code {done.returncode}"]
        own = [line for line in lines if line.partition(": ")[0] in programs]
        raise InputError(printable([*own, lines[-1]][0], 200))


if __name__ == "__main__":
    exit_in_one_line()
    run(**json.loads(sys.argv[1]))
