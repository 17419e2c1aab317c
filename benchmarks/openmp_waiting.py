"""How OpenMP's threads should wait: what a short spin costs on an idle machine, and saves next to a busy process.

    python benchmarks/openmp_waiting.py [--rounds 5] [--steps 00_baseline ...]

Trains steps on the CPU in turn, with each way to wait: asleep at once, the short spin that the steps set (see
`SHORT_SPIN`), and OpenMP's default, GNU OpenMP's 300,000 rounds of a loop. Prints images/s over those of the
default, with the 95 % interval; alone, and alongside a process that computes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.machine import SHORT_SPIN
from walkthrough.compare.statistics import of_pairs
from walkthrough.results import result
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import whole_number

STEPS = ("00_baseline", "03_reduced_h2d_copy", "04_multiprocess_loading", "08_on_device_data")
ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
DEFAULT = {"GOMP_SPINCOUNT": "300000"}  # what libgomp takes where neither variable is set
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole_number(2, 100), default=5, metavar="N")
    parser.add_argument(
        "--steps", nargs="+", choices=[path.stem for path in ROOT.glob("steps/[0-9]*.py")], default=STEPS
    )
    args = parser.parse_args()
    print(f"images/s over those of OpenMP's default, {args.rounds} rounds, {usable_cores()} cores\n")
    print(f"{'beside':<20}{'step':<26}{'asleep at once':<24}a short spin")
    for beside in ("nothing", "one busy process"):
        for step in args.steps:
            busy = subprocess.Popen([sys.executable, "-c", BUSY]) if beside != "nothing" else nullcontext()
            with busy:
                try:
                    rounds = [[speed(step, way) for way in (ASLEEP, SHORT_SPIN, DEFAULT)] for _ in range(args.rounds)]
                finally:
                    if isinstance(busy, subprocess.Popen):
                        busy.kill()
            asleep, briefly = (of_pairs([each[way] / each[-1] for each in rounds]) for way in (0, 1))
            print(f"{beside:<20}{step:<26}{asleep!s:<24}{briefly}", flush=True)


def speed(step: str, waiting: dict[str, str]) -> float:
    """images/s of a run of a step at a CPU's default size, the median window."""
    environment = {name: value for name, value in os.environ.items() if name not in SHORT_SPIN}
    with tempfile.TemporaryDirectory() as logdir:
        words = ["--device", "cpu", "--logdir", logdir]
        program = ROOT / "steps" / f"{step}.py"
        subprocess.run([sys.executable, program, *words], env=environment | waiting, check=True, capture_output=True)
        return result.read_result(Path(logdir) / step / result.FILE).samples_per_second.median


if __name__ == "__main__":
    main()
