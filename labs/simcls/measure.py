"""The measurements of this lab's study, each called in a process of its own; see `labs.shared.study`."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from common.device import synchronize
from common.options import StepOptions
from common.program import captured, profiled_peak_bytes, words_of
from labs.shared.study import serve
from labs.simcls.data import Collate, training_set
from labs.simcls.model import size_of
from labs.simcls.training import trained
from walkthrough.results import result
from walkthrough.results.errors import InputError

import torch
from torch.utils.data import DataLoader

LOADED_SECONDS = {True: 2.0, False: 5.0}  # by --quick
PLAIN, CHECKPOINTED = "02_half_precision", "03_checkpointing"
SOME_TOKENS = 10, 100  # ids that every tokenizer has, none of which fills sequences up
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
    return result.read_json(options.logdir / name / result.FILE)


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

    Of the train step of `PLAIN` or `CHECKPOINTED`, on sequences of full length, so that nothing depends on which
    documents a batch holds. The optimizer's temporary tensors are left out: they are as large as the weights, whatever
    the batch.
    """
    device, size = torch.device(options.device), size_of(options.model)
    file = Path(__file__).with_name(f"{CHECKPOINTED if checkpointed else PLAIN}.py")
    one = captured(file, words_of(options))
    shapes = (size.document_tokens,), (size.summary_tokens,), (candidates, size.summary_tokens)
    batch = tuple(torch.randint(*SOME_TOKENS, (options.batch_size, *shape), device=device) for shape in shapes)
    step = partial(one.train_step, *batch)
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
        "bytes": peak_bytes(step, device, one.variables["optimizer"]),
        "step_ms": statistics.median(step_ms),
    }


def peak_bytes(step: Callable[[], object], device: torch.device, optimizer: torch.optim.Optimizer) -> int:
    """The most bytes that were allocated during step() beyond what was before: by the allocator, or the profiler.

    Without gradients of an earlier step, and without the optimizer's own step, which does nothing meanwhile.
    """
    optimizer.zero_grad()
    with patch.object(optimizer, "step", lambda *_, **__: None):
        if device.type == "cuda":
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            step()
            return torch.cuda.max_memory_allocated(device) - before
        return profiled_peak_bytes(step)


if __name__ == "__main__":
    serve(trained, program, loading, memory)
