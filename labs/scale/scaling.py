"""How fast processes train together, and what their communication costs, without any images to load.

    torchrun --nproc-per-node 2 labs/scale/scaling.py JSON     # which `measured` starts; JSON: a `Measurement`

Every process trains on one batch of noise over and over, by the code that `train.py` runs; on a CPU with one thread, so
that N processes have N cores. Communication is measured in two ways. Exposed: a step's time less that of the same step
without the exchange of gradients, their windows alternating: what communication costs. In collectives: the time in which
one runs in a rank's trace, `breakdown_us.communication` of `walkthrough explain TRACE --json`: on a CPU with what the
backward pass hides of it, and with the wait for ranks that come late.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from common.device import disable_tf32, keep_freed_memory, synchronize
from common.options import StepOptions
from labs.scale.model import mobilenet
from labs.scale.train import EXCHANGES, Replica, process_group
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, exit_in_one_line, printable
from walkthrough.results.result import read_json, write_json

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

WINDOWS, STEPS = {True: 3, False: 7}, {True: 3, False: 10}  # of a measurement, and of a window; by --quick
WARMUP_STEPS, TRACED_STEPS = 3, 3
CLASSES = 1000  # ImageNet's
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")

Row = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """What a process is told. folder: where it writes rank0.json, and its trace.

    images: in one pass of one process. exchanges: of `train.EXCHANGES`, when gradients are; their windows alternate.
    slow_rank: a process that sleeps delay_ms before each step, None for none. windows: of so many steps, each.
    """

    folder: str
    device: str
    model: str
    image_size: int
    images: int
    windows: int
    steps: int
    passes: int = 1
    exchanges: Sequence[str] = EXCHANGES[:1]
    slow_rank: int | None = None
    delay_ms: float = 0.0
    traced: bool = False


def run(of: Measurement) -> None:
    """Be one process: write {"step_ms": {exchange: [mean of each window]}, "trace": its file or null}."""
    device = torch.device(of.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    disable_tf32()
    with process_group(device):
        rank, folder = dist.get_rank(), Path(of.folder)
        torch.manual_seed(0)
        images = torch.randn(of.images, 3, of.image_size, of.image_size, device=device)
        batch = images, torch.randint(CLASSES, (of.images,), device=device)
        replica = Replica(mobilenet(of.model, CLASSES), device, 0.01, passes=of.passes)
        replica.module.train()

        def step(exchange: str = of.exchanges[0]) -> None:
            if rank == of.slow_rank:
                time.sleep(of.delay_ms / 1000)
            replica.step(repeat(batch), exchange)

        for exchange in of.exchanges:
            for _ in range(WARMUP_STEPS):
                step(exchange)
        step_ms: dict[str, list[float]] = {exchange: [] for exchange in of.exchanges}
        for _ in range(of.windows):
            for exchange in of.exchanges:
                wait_for_all(device)
                begin = time.perf_counter()
                for _ in range(of.steps):
                    step(exchange)
                wait_for_all(device)
                step_ms[exchange].append((time.perf_counter() - begin) * 1000 / of.steps)
        trace = _trace(step, folder / f"traced_rank{rank}.pt.trace.json", device) if of.traced else None
        write_json(folder / f"rank{rank}.json", {"step_ms": step_ms, "trace": trace and str(trace)})


def wait_for_all(device: torch.device) -> None:
    """Return once every process has come here, its GPU's work done."""
    synchronize(device)
    dist.all_reduce(torch.zeros(1, device=device))
    synchronize(device)


def _trace(step: Callable[[], None], path: Path, device: torch.device) -> Path:
    """Record a torch.profiler trace of `TRACED_STEPS` steps into `path`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports a missing GPU as an error
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=TRACED_STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(2 + TRACED_STEPS):
            step()
            profiler.step()
    return path


def measured(options: StepOptions, processes: int, images: int, **settings: Any) -> Row:
    """Train in so many processes, on `images` in each pass of each. settings: of a `Measurement`.

    {"processes", "step_ms": {exchange: [each window]}, "images_per_second": {exchange: [each window]}, "ranks":
    [{"rank", "step_ms", "communication_ms"} of the traced steps], [] if not traced}. A window is as long as its slowest
    process. Raises InputError where a process fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        of = Measurement(
            folder, options.device.partition(":")[0], options.model, options.image_size, images,
            WINDOWS[options.quick], STEPS[options.quick], **settings,
        )  # fmt: skip
        run_program([*TORCHRUN, str(processes), __file__, json.dumps(asdict(of))])
        of_ranks = [read_json(Path(folder) / f"rank{rank}.json") for rank in range(processes)]
        step_ms = {
            exchange: [max(window) for window in zip(*(rank["step_ms"][exchange] for rank in of_ranks), strict=True)]
            for exchange in of.exchanges
        }
        per_step = images * of.passes * processes
        return {
            "processes": processes,
            "step_ms": step_ms,
            "images_per_second": {key: [per_step * 1000 / ms for ms in windows] for key, windows in step_ms.items()},
            "ranks": [{"rank": at, **_steps(rank["trace"])} for at, rank in enumerate(of_ranks)] if of.traced else [],
        }


def _steps(trace: str) -> Row:
    """{"step_ms", "communication_ms"} of a trace's mean step."""
    steps = explanation(trace)["steps"]
    return {"step_ms": steps["mean_us"] / 1000, "communication_ms": steps["breakdown_us"]["communication"] / 1000}


def explanation(trace: str) -> Row:
    """What `explain` says of a trace, or of the newest one in a folder. Raises InputError."""
    return json.loads(run_program([sys.executable, "-m", "walkthrough", "explain", trace, "--json"]))


def run_program(command: Sequence[object]) -> str:
    """What a command prints. Raises InputError with the line of the program that failed, under torchrun of a rank."""
    cores = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if "--nproc-per-node" in command else {}
    environment = os.environ | cores | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    if done.returncode:
        programs = {Path(str(word)).stem for word in command if str(word).endswith(".py")}
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        own = [line for line in lines if line.partition(": ")[0] in programs]
        raise InputError(printable(([*own, *lines[-1:]] or [f"it ended with code {done.returncode}"])[0], 200))
    return done.stdout


if __name__ == "__main__":
    exit_in_one_line()
    run(Measurement(**json.loads(sys.argv[1])))
