"""What a step's own imports cost beyond torch and torchvision, and what TensorBoard adds when a run is written.

    python benchmarks/import_time.py [--rounds N]

Each round is a fresh process that imports torch and torchvision first, then what a step imports, and prints both.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
a = time.perf_counter()
import torch, torchvision, torch.utils.data
b = time.perf_counter()
import common.data, common.device, walkthrough.results.errors, common.model, common.options, common.session
c = time.perf_counter()
import walkthrough.results.events
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import hparams
d = time.perf_counter()
print(b - a, c - b, d - c)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes (default: %(default)s)")
    rounds = parser.parse_args().rounds
    program = PROGRAM.format(root=str(ROOT))
    timings = [
        [float(word) for word in subprocess.check_output([sys.executable, "-c", program], text=True).split()]
        for _ in range(rounds)
    ]
    frameworks, ours, tensorboard = (statistics.median(column) * 1e3 for column in zip(*timings, strict=True))
    print(f"torch and torchvision                      {frameworks:8.0f} ms")
    print(f"what a step imports of common              {ours:8.0f} ms = goal: below 150 ms")
    print(f"TensorBoard, when the run is written       {tensorboard:8.0f} ms")


if __name__ == "__main__":
    main()
