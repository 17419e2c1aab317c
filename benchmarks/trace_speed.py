"""How fast `explain` reads a trace, compared with a general decoder, the profiler plugin and Holistic Trace Analysis.

    python benchmarks/trace_speed.py [TRACE] [--rounds N] [--hta PYTHON]     side by side on one file
    python benchmarks/trace_speed.py --scale                                 100 thousand, 1 million, 5 million events

Whole process against whole process, in interleaved pairs: each round runs all of them, in turn forwards and backwards,
after one round that is not counted. Printed are the medians of the times, and the median of the pairs' ratios with the
smallest and the largest. TRACE: any trace (default: one of 76,000 made-up events). PYTHON: one that has
HolisticTraceAnalysis, which this project does not install. The memory is the peak resident set of the process.
"""

import argparse
import gzip
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import big_trace  # noqa: E402
from tool_speed import measured  # noqa: E402

from walkthrough.cli import COMMANDS  # noqa: E402

WALKTHROUGH = [sys.executable, "-m", "walkthrough"]
EXPLAIN = [*WALKTHROUGH, "explain", "--json"]
DECODER = "import gzip, json, sys; json.loads(gzip.open(sys.argv[1]).read())"
PLUGIN = """
import logging, sys, tempfile
logging.disable(logging.CRITICAL)
from torch_tb_profiler.profiler.data import RunProfileData
RunProfileData.parse("worker", "span", sys.argv[1], tempfile.gettempdir())
"""
HTA = """
import shutil, sys, tempfile
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(sys.argv[1], folder)
    TraceAnalysis(trace_dir=folder).get_temporal_breakdown(visualize=False)
"""


def side_by_side(path, rounds, hta):
    contenders = {
        "explain --json": [*EXPLAIN, str(path)],
        "explain": [*WALKTHROUGH, "explain", str(path)],
        "gunzip + json, decode only": [sys.executable, "-c", DECODER, str(path)],
        "torch-tb-profiler 0.4.3": [sys.executable, "-c", PLUGIN, str(path)],
    }
    if hta:
        contenders["Holistic Trace Analysis"] = [hta, "-c", HTA, str(path)]
    runs = interleaved(contenders, rounds)
    size = len(gzip.decompress(path.read_bytes())) / 1e6
    print(f"{path.name}: {size:.1f} MB of JSON, {rounds} pairs; goals: plugin / explain 8, explain / decode 0.6")
    for name, measurements in runs.items():
        seconds, memory = statistics.median(run[0] for run in measurements), max(run[1] for run in measurements)
        pairs = zip(runs["explain --json"], measurements, strict=True)
        print(
            f"{name:28}{seconds:6.2f} s; explain --json / it: {ratio(ours[0] / its[0] for ours, its in pairs)}; "
            f"{memory:4.0f} MB = {memory / size:.2f} x the JSON"
        )
    pairs = zip(runs["torch-tb-profiler 0.4.3"], runs["explain --json"], strict=True)
    print(f"plugin / explain --json: {ratio(its[0] / ours[0] for its, ours in pairs)}")


def helped(rounds):
    """Print the time of `--help`, of the tool and of each command."""
    words = {"walkthrough": [], **{f"walkthrough {name}": [name] for name in COMMANDS}}
    runs = interleaved({name: [*WALKTHROUGH, *command, "--help"] for name, command in words.items()}, rounds)
    medians = {name: statistics.median(run[0] for run in measurements) for name, measurements in runs.items()}
    slowest = max(medians, key=medians.__getitem__)
    print(f"walkthrough --help: {medians['walkthrough']:.3f} s; {slowest} --help (slowest): {medians[slowest]:.3f} s")


def interleaved(contenders, rounds):
    """(seconds, MB) of each command in each round but the first, which compiles modules and reads files."""
    runs = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            runs[name].append(measured(contenders[name], ROOT))
    return {name: measurements[1:] for name, measurements in runs.items()}


def ratio(ratios):
    """The median, the smallest and the largest, as text."""
    ordered = sorted(ratios)
    return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def scale(rounds):
    before = None
    with tempfile.TemporaryDirectory() as folder:
        for events in (100_000, 1_000_000, 5_000_000):
            path = Path(folder) / f"{events}.trace.json"
            size = big_trace.write(path, events) / 1e6
            runs = [measured([*EXPLAIN, str(path)], ROOT) for _ in range(rounds)]
            path.unlink()
            seconds, memory = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
            growth = f" = {seconds / before[1]:.1f} x for {events // before[0]} x the events" if before else ""
            peak = f"{memory:.0f} MB = {memory / size:.2f} x the JSON"
            print(f"{events:9,} events, {size:5.0f} MB: {seconds:6.2f} s{growth}; {peak}")
            before = events, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hta", metavar="PYTHON")
    parser.add_argument("--scale", action="store_true")
    args = parser.parse_args()
    if args.scale:
        scale(args.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = args.trace and args.trace.resolve()
        if path is None:
            path = Path(folder) / "made_up.trace.json.gz"
            big_trace.write(path, 76_000)
        side_by_side(path, args.rounds, args.hta)
    helped(args.rounds)


if __name__ == "__main__":
    main()
