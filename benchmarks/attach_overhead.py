"""What `trace` costs the steps that it does not trace: runs of one training, attached and not, in turn.

    python benchmarks/attach_overhead.py [--rounds 9] [--steps 400]

Attached is with a warm-up that does not end, so only three early steps are traced. Prints for each kind of step the
ratio of its time attached to not attached, with its 95 % interval, and the median step.
"""

import argparse
import statistics
import subprocess
import sys
import time

from walkthrough.compare.statistics import of_pairs

KINDS = {"one small layer": (64, 1), "twenty layers": (256, 20), "twenty wide layers": (1024, 20)}  # width, layers


def train(width: int, layers: int, steps: int) -> None:
    """Train in this process and print the median step in s: AdamW, batches of 32 by a DataLoader."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    network = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
    optimizer = torch.optim.AdamW(network.parameters())
    loader = DataLoader(TensorDataset(torch.randn(32 * steps, width)), 32)
    seconds, begin = [], time.thread_time()  # of the CPU: other programs do not lengthen it
    for (inputs,) in loader:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
        now = time.thread_time()
        seconds.append(now - begin)
        begin = now
    print(f"median step: {statistics.median(seconds[steps // 4 :])}")


def median_step(kind: str, steps: int, attached: bool) -> float:
    command = [sys.executable, __file__, "--train", kind, "--steps", str(steps)]
    if attached:
        command = [sys.executable, "-m", "walkthrough", "trace", "--warmup", "1000000", "--", *command]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return float(next(line for line in output.splitlines() if line.startswith("median step: ")).partition(": ")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--train", choices=KINDS)
    args = parser.parse_args()
    if args.train:
        train(*KINDS[args.train], args.steps)
        return
    for kind in KINDS:
        ratios, plain = [], []
        for number in range(args.rounds):
            order = (False, True) if number % 2 else (True, False)
            times = {attached: median_step(kind, args.steps, attached) for attached in order}
            ratios.append(times[True] / times[False])
            plain.append(times[False])
        print(f"{kind}: {of_pairs(ratios)}, a step takes {statistics.median(plain) * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
