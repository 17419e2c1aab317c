"""What measuring costs: the session's timed loop over the same bare loop, and a traced loop over a plain one.

    python benchmarks/session_overhead.py [--rounds N]

Prints ratios. Two loops are compared round by round, one after the other in changing order, and the median of the
rounds' ratios is the answer: a machine that drifts does it to both. Three comparisons:

1. session / bare, on the ladder's own model: the ratio that matters; its noise is printed next to it.
2. session - bare with a training step that does nothing: the bookkeeping of one step in microseconds, which no noise
   hides, as a share of the ladder's step.
3. traced / plain: what torch.profiler costs while it records (shapes and memory, without and with stacks).
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.device import checked_device, synchronize
from common.model import classifier
from common.timing import timed_window


def bare_loop(batches, train_step, device, steps):
    """Seconds of a training loop with nothing around it but a clock."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        images, labels = next(batches)
        train_step(images, labels)
    synchronize(device)
    return time.perf_counter() - begin


def session_loop(batches, train_step, device, steps):
    """Seconds of the session's loop over the same batches, all its bookkeeping included."""
    begin = time.perf_counter()
    timed_window(batches, train_step, device, steps)
    return time.perf_counter() - begin


def traced_loop(batches, train_step, device, steps, stacks):
    """Seconds of the bare loop while torch.profiler records it; starting and writing the trace are not in them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True, with_stack=stacks):
        return bare_loop(batches, train_step, device, steps)


def ratios(first, second, rounds):
    """first()/second() of each round, the two in changing order."""
    ratios = []
    for number in range(rounds):
        if number % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        ratios.append(a / b)
    return ratios


def report(name, values, goal=""):
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44}{middle:8.4f}   (rounds {low:.4f} to {high:.4f}){goal}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of loops to compare (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    args = parser.parse_args()
    device = torch.device(checked_device(args.device))
    if device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler reports the missing GPU as an error
    size, batch, steps = (224, 32, 20) if device.type == "cuda" else (64, 32, 4)

    torch.manual_seed(0)
    model = classifier("mobilenet_v2", size).to(device)
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)

    def train_step(images, labels):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batches():
        while True:
            yield images, labels

    bare_loop(batches(), train_step, device, 3 * steps)  # warm-up
    print(f"mobilenet_v2, {size} px, batch {batch}, {steps} steps a loop, {args.rounds} rounds, on {device}\n")
    report("same loop twice: bare / bare (the noise)", ratios(
        lambda: bare_loop(batches(), train_step, device, steps),
        lambda: bare_loop(batches(), train_step, device, steps), args.rounds))  # fmt: skip
    report("session / bare", ratios(
        lambda: session_loop(batches(), train_step, device, steps),
        lambda: bare_loop(batches(), train_step, device, steps), args.rounds), "   goal: at most 1.01")  # fmt: skip

    nothing = torch.zeros((), device=device)
    many = 10_000
    empty = [
        (
            session_loop(batches(), lambda *_: nothing, device, many)
            - bare_loop(batches(), lambda *_: nothing, device, many)
        )
        / many
        for _ in range(5)
    ]
    step = statistics.median(bare_loop(batches(), train_step, device, steps) / steps for _ in range(5))
    per_step = statistics.median(empty)
    print(
        f"{'bookkeeping of a step':<44}{per_step * 1e6:8.2f} us = {per_step / step:.4%} of a step   goal: at most 1 %"
    )

    for stacks in (False, True):
        report(f"traced{' with stacks' if stacks else ''} / plain", ratios(
            lambda stacks=stacks: traced_loop(batches(), train_step, device, steps, stacks),
            lambda: bare_loop(batches(), train_step, device, steps), max(3, args.rounds // 3)))  # fmt: skip


if __name__ == "__main__":
    main()
