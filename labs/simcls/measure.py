"""The measurements of this lab's study, each called in a process of its own; see `common.studies.lab`."""

import os
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # finds `common` and `labs` from any folder

# `common` before torch: it sets how OpenMP's threads wait.
from common import record
from common.device import autocast_dtype, disable_tf32, synchronize
from common.errors import InputError
from common.options import StepOptions
from common.studies.lab import serve
from common.studies.programs import profiled_peak_bytes
from labs.simcls.data import Collate, training_set
from labs.simcls.loss import ranking_loss
from labs.simcls.model import re_ranker, size_of
from labs.simcls.training import trained

import torch
from torch.utils.data import DataLoader

LOADED_SECONDS = {True: 2.0, False: 5.0}  # by --quick
MEMORY_VOCABULARY = 4000
TIMED_STEPS = 5


def program(options: StepOptions, name: str, run: int) -> dict[str, Any]:
    """Run one of the numbered programs; what its result.json holds. run: its number, so that runs are interleaved."""
    words = [
        *("--logdir", options.logdir, "--device", options.device, "--data", options.data, "--model", options.model),
        *("--batch-size", options.batch_size, "--precision", options.precision, "--seed", options.seed),
    ]
    command = [sys.executable, Path(__file__).with_name(f"{name}.py"), *words, *(["--quick"] if options.quick else [])]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InputError((done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1])
    return record.read_json(options.logdir / name / record.FILE)


def loading(options: StepOptions, workers: int, ordered_once: bool) -> float:
    """Documents per second that the loader delivers by itself."""
    train_set = training_set(options.data, options.model, options.seed, ordered_once=ordered_once)
    loader = DataLoader(
        train_set, options.batch_size, shuffle=True, drop_last=True, collate_fn=Collate(train_set.tokens.pad_id),
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip
    batches = (batch for _ in range(1000) for batch in loader)
    for _ in islice(batches, 2 + 2 * workers):  # what workers load ahead while they start
        pass
    begin, documents = time.perf_counter(), 0
    while time.perf_counter() - begin < LOADED_SECONDS[options.quick]:
        documents += len(next(batches)[0])
    return documents / (time.perf_counter() - begin)


def memory(options: StepOptions, candidates: int, checkpointed: bool) -> dict[str, Any]:
    """What forward and backward need with that many candidates per document, beyond weights and moments.

    Sequences of full length, so that nothing hangs on which documents a batch holds. The optimizer's temporary tensors
    are left out: they are as large as the weights, whatever the batch.
    """
    disable_tf32()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    of_document, of_summary = size_of(options.model).lengths
    model = re_ranker(options.model, MEMORY_VOCABULARY, pad_id=0).to(device)
    model.encoder.checkpointed = checkpointed
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    dtype = autocast_dtype(device, options.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    shapes = (of_document,), (of_summary,), (candidates, of_summary)
    batch = tuple(torch.randint(1, MEMORY_VOCABULARY, (options.batch_size, *shape), device=device) for shape in shapes)

    def backward() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = ranking_loss(*model(*batch))
        scaler.scale(loss).backward()

    def step() -> None:
        backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(2):  # moments are there from now on
        step()
    step_ms = []
    for _ in range(TIMED_STEPS):
        synchronize(device)
        begin = time.perf_counter()
        step()
        synchronize(device)
        step_ms.append((time.perf_counter() - begin) * 1e3)
    return {
        "sequences": options.batch_size * (candidates + 2),
        "tokens": sum(part.numel() for part in batch),
        "bytes": peak_bytes(backward, device, optimizer),
        "step_ms": statistics.median(step_ms),
    }


def peak_bytes(step: Any, device: torch.device, optimizer: torch.optim.Optimizer) -> int:
    """The most bytes that were allocated during step() beyond what was before: by the allocator, or the profiler."""
    optimizer.zero_grad()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
    return profiled_peak_bytes(step)


if __name__ == "__main__":
    serve(trained, program, loading, memory)
