"""One process of a measurement: trains on one batch of noise over and over, timed, then traced. `scaling` starts it.

No images are loaded: what is measured is computing and exchanging gradients alone, by the code that `train.py` runs.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from common.device import disable_tf32, keep_freed_memory, synchronize
from labs.scale.model import mobilenet
from labs.scale.ranks import joined, reported
from labs.scale.training import Settings, Training
from walkthrough.results.errors import exit_in_one_line
from walkthrough.results.result import write_json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity
from torch.utils.data import TensorDataset

EXCHANGES = ("last pass", "each pass", "never")
WARMUP_STEPS = 3
TRACED_STEPS = 3
CLASSES = 1000  # ImageNet's


@dataclass(frozen=True)
class Measurement:
    """What a process is told. folder: where it writes rank0.json, and its trace.

    images: in one pass of one process. exchanges: of `EXCHANGES`: when gradients are; their windows alternate.
    slow_rank: a process that sleeps delay_ms before each step, None for none. windows: of so many steps, each.
    """

    folder: str
    device: str
    model: str
    image_size: int
    images: int
    passes: int
    bucket_mb: float | None
    exchanges: tuple[str, ...]
    slow_rank: int | None
    delay_ms: float
    windows: int
    steps: int
    traced: bool


class Measured(Training):
    """A training of which `exchange`, one of `EXCHANGES`, says when gradients are exchanged."""

    exchange = EXCHANGES[0]

    def without_exchange(self) -> AbstractContextManager:
        return nullcontext() if self.exchange == "each pass" else super().without_exchange()

    def whole_step(self) -> AbstractContextManager:
        """What a step is made in."""
        return super().without_exchange() if self.exchange == "never" else nullcontext()


def run(of: Measurement) -> None:
    """Measure, and write {"rank", "step_ms": {exchange: [mean of each window]}, "trace": its file or null, "parts"}.

    parts: in which gradients are sent; 0 for a process alone.
    """
    device = torch.device(of.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
    disable_tf32()
    with joined(device):
        rank, folder = dist.get_rank(), Path(of.folder)
        training, step = _step(of, device)
        for exchange in of.exchanges:
            training.exchange = exchange
            for _ in range(WARMUP_STEPS):
                step()
        step_ms: dict[str, list[float]] = {exchange: [] for exchange in of.exchanges}
        for _ in range(of.windows):
            for training.exchange in of.exchanges:
                step_ms[training.exchange].append(_window_ms(step, of.steps, device))
        training.exchange = of.exchanges[0]
        trace = _trace(step, folder / f"traced_rank{rank}.pt.trace.json", device) if of.traced else None
        answer = {"rank": rank, "step_ms": step_ms, "trace": trace and str(trace), "parts": _parts(training)}
        write_json(folder / f"rank{rank}.json", answer)


def _parts(training: Training) -> int:
    if not isinstance(training.model, DistributedDataParallel):
        return 0
    logged = training.model._get_ddp_logging_data()
    return len(str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]).split(","))


def _step(of: Measurement, device: torch.device) -> tuple[Measured, Callable[[], None]]:
    """The training, and a function that makes one step of it."""
    torch.manual_seed(0)
    batch_size = of.images * of.passes * dist.get_world_size()
    settings = Settings(
        model=of.model, data="noise", image_size=of.image_size, batch_size=batch_size, epochs=1, lr=0.01,
        precision="fp32", seed=0,
    )  # fmt: skip
    images = torch.randn(of.images, 3, of.image_size, of.image_size, device=device)
    labels = torch.randint(CLASSES, (of.images,), device=device)
    no_data = TensorDataset(torch.empty(batch_size))
    training = Measured(
        settings, mobilenet(of.model, CLASSES), no_data, no_data, device, passes=of.passes, bucket_mb=of.bucket_mb
    )
    slow = dist.get_rank() == of.slow_rank

    def step() -> None:
        if slow:
            time.sleep(of.delay_ms / 1000)
        with training.whole_step():
            training.step(repeat((images, labels), of.passes))

    return training, step


def _window_ms(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """ms of a step, over so many; all processes begin together and have ended."""
    wait_for_all(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait_for_all(device)
    return (time.perf_counter() - begin) * 1000 / steps


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


def words(of: Measurement) -> list[str]:
    """The command line of this program."""
    return [json.dumps(asdict(of))]


def main() -> None:
    exit_in_one_line()
    with reported():
        values = json.loads(sys.argv[1])
        run(Measurement(**{**values, "exchanges": tuple(values["exchanges"])}))


if __name__ == "__main__":
    main()
