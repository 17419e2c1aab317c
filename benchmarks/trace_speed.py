"""How fast `explain` reads a trace, beside a general decoder, the profiler plugin and Holistic Trace Analysis.

    python benchmarks/trace_speed.py [TRACE] [--rounds N] [--hta PYTHON]     side by side on one file
    python benchmarks/trace_speed.py --scale                                 100 thousand, 1 million, 5 million events

Whole process against whole process, in turn, N times; medians, and ratios of medians. TRACE: any trace (default: one
of 76,000 made-up events). PYTHON: one that has HolisticTraceAnalysis, which this project does not install. The memory
is the peak resident set of the process. What findings and replay add is CPU time, within one process.
"""

import argparse
import gzip
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import big_trace  # noqa: E402
from tool_speed import measured  # noqa: E402

from walkthrough.advice import gains  # noqa: E402
from walkthrough.trace.analysis import analyze  # noqa: E402

EXPLAIN = [sys.executable, "-m", "walkthrough", "explain", "--json"]
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
        "gzip + json, decode only": [sys.executable, "-c", DECODER, str(path)],
        "torch-tb-profiler 0.4.3": [sys.executable, "-c", PLUGIN, str(path)],
    }
    if hta:
        contenders["Holistic Trace Analysis"] = [hta, "-c", HTA, str(path)]
    timings = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, command in contenders.items():
            timings[name].append(measured(command, ROOT))
    size = len(gzip.decompress(path.read_bytes())) / 1e6
    ours = statistics.median(seconds for seconds, _ in timings["explain --json"])
    print(f"{path.name}: {size:.1f} MB of JSON, {rounds} rounds")
    for name, runs in timings.items():
        times = sorted(seconds for seconds, _ in runs)
        median, memory = statistics.median(times), max(peak for _, peak in runs)
        print(
            f"{name:26}{median:7.2f} s ({times[0]:.2f}-{times[-1]:.2f}) = {median / ours:5.2f} x explain; "
            f"{memory:6.0f} MB = {memory / size:5.2f} x the JSON"
        )
    print(f"findings and replay: {added_by_findings(path, rounds):+.0%} of the CPU time of reading and summarizing")
    start = statistics.median(measured([*EXPLAIN[:-1], "--help"], ROOT)[0] for _ in range(rounds))
    print(f"explain, start-up without a trace: {start:.3f} s")


def added_by_findings(path, rounds):
    """CPU time of findings and estimates over that of all else: the smallest of several rounds."""
    spent = 0.0

    def timed(function):
        def run(*args):
            nonlocal spent
            begin = time.process_time()
            result = function(*args)
            spent += time.process_time() - begin
            return result

        return run

    gains.findings = timed(gains.findings)
    for name in ("estimated", "of_finding", "worth_following"):
        setattr(gains.Gains, name, timed(getattr(gains.Gains, name)))
    shares = []
    for _ in range(rounds):
        spent, begin = 0.0, time.process_time()
        gains.advise(analyze(path))
        shares.append(spent / (time.process_time() - begin - spent))
    return min(shares)


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


if __name__ == "__main__":
    main()
