"""What sleeping OpenMP threads cost on an idle machine, and what they save beside another busy process.

    python benchmarks/openmp_waiting.py [--rounds 5]

Trains `steps/00_baseline.py` and `steps/08_on_device_data.py` on the CPU in turn with sleeping threads (what the steps
set, see `common.PASSIVE_WAITING`) and with OpenMP's default, which spins: GNU OpenMP's 300,000 rounds of a loop. Prints
the ratio of their images/s, sleeping over spinning, and its 95 % interval; alone, and beside a process that computes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import PASSIVE_WAITING, record
from common.ladder.statistics import of_pairs
from common.machine import ROOT, usable_cores
from common.options import whole_number

SPINNING = {"GOMP_SPINCOUNT": "300000"}  # libgomp's default where neither variable is set
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole_number(2, 100), default=5, metavar="N")
    rounds = parser.parse_args().rounds
    print(f"images/s with sleeping threads over spinning ones, {rounds} rounds, {usable_cores()} cores\n")
    for beside in ("nothing", "one busy process"):
        for step in ("00_baseline", "08_on_device_data"):
            busy = subprocess.Popen([sys.executable, "-c", BUSY]) if beside != "nothing" else nullcontext()
            with busy:
                try:
                    pairs = [(speed(step, PASSIVE_WAITING), speed(step, SPINNING)) for _ in range(rounds)]
                finally:
                    if isinstance(busy, subprocess.Popen):
                        busy.kill()
            ratio = of_pairs([sleeping / spinning for sleeping, spinning in pairs])
            print(f"beside {beside:<18}{step:<20}{ratio}", flush=True)


def speed(step: str, waiting: dict[str, str]) -> float:
    """images/s of a quick run of a step, the median window."""
    environment = {name: value for name, value in os.environ.items() if name not in PASSIVE_WAITING}
    with tempfile.TemporaryDirectory() as logdir:
        words = ["--device", "cpu", "--logdir", logdir, "--quick", "--image-size", "128"]
        program = ROOT / "steps" / f"{step}.py"
        subprocess.run([sys.executable, program, *words], env=environment | waiting, check=True, capture_output=True)
        return record.read_result(Path(logdir) / step / record.FILE).samples_per_second.median


if __name__ == "__main__":
    main()
