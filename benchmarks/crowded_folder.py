"""How soon both tabs list a crowded log folder, and how fast TensorBoard's other tabs answer meanwhile.

    python benchmarks/crowded_folder.py [--runs 1000] [--traces 20000] [--seconds 30]

Starts TensorBoard twice on a folder of small traces, hard links to one: without the two tabs, and with them and a page
of each open. Prints the seconds until each tab lists every run, and the ms of the others' answers from the start on.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from board_speed import PROFILER, WALKTHROUGH, WITH, Server

from walkthrough.results.errors import whole_number

WITHOUT = WITH.replace('!= ""', 'not in ("walkthrough", "torch_profiler")')
OTHERS = ("/data/plugins_listing", "/data/runs", "/data/plugin/scalars/tags")
POLLED = {f"{WALKTHROUGH}/runs": 4.0, f"{PROFILER}/runs": 5.0, f"{PROFILER}/failures": 5.0}  # s, as the pages do
MOST_LINKS = 10_000  # to one file; file systems have a limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=whole_number(1, 10**5), default=1000, metavar="N")
    parser.add_argument("--traces", type=whole_number(1, 10**6), default=20_000, metavar="N")
    parser.add_argument("--seconds", type=whole_number(1, 3600), default=30, metavar="N")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fill(folder / "logs", args.runs, args.traces)
        for name, text in (("without", WITHOUT), ("with", WITH)):
            program = folder / f"{name}.py"
            program.write_text(text)
            server = Server(program, folder / "logs", folder / "cache")
            try:
                measure(name, server, args.runs if name == "with" else 0, args.seconds)
            finally:
                server.stop()


def fill(logdir: Path, runs: int, traces: int) -> None:
    """Write so many traces, an hour old, into so many folders, and one run with a scalar."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(logdir / "run0")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 900, "args": {}}
    events = [step | {"name": f"ProfilerStep#{number}", "ts": 1000 * number} for number in range(3)]
    content = json.dumps({"schemaVersion": 1, "traceEvents": events})
    for number in range(traces):
        if number % MOST_LINKS == 0:
            whole = logdir.with_name(f"{number}.json")
            whole.write_text(content)
            an_hour_ago = time.time() - 3600
            os.utime(whole, (an_hour_ago, an_hour_ago))
        path = logdir / f"run{number % runs}" / f"host_{number % runs}.{1_700_000_000_000 + number}.pt.trace.json"
        path.parent.mkdir(exist_ok=True)
        os.link(whole, path)


def measure(name: str, server: Server, runs: int, seconds: int) -> None:
    """runs: how many the tabs are to list; 0 where they are not there."""
    server.seconds("/data/plugins_listing")
    listed, took = {}, {path: [] for path in (*OTHERS, *(POLLED if runs else ()))}
    ends = time.perf_counter() + seconds

    def ask(path: str, pause: float) -> None:
        while (begun := time.perf_counter()) < ends:
            with urllib.request.urlopen(f"http://localhost:{server.port}{path}", timeout=600) as answer:
                content = json.loads(answer.read())
            took[path].append(time.perf_counter() - begun)
            if path in POLLED and len(content.get("runs") or ()) == runs:
                listed.setdefault(path, time.perf_counter() - server.begun)
            time.sleep(pause if path in listed or path not in POLLED else 0.2)

    threads = [threading.Thread(target=ask, args=(path, POLLED.get(path, 0.05))) for path in took]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path, times in took.items():
        middle, high = statistics.median(times), sorted(times)[int(0.95 * len(times))]
        when = f"   lists all {runs} runs after {listed[path]:.1f} s" if path in listed else ""
        print(f"{name:8} {path:36} {1e3 * middle:8.1f} ms, 95th percentile {1e3 * high:8.1f} ms{when}", flush=True)
    print(f"{name:8} TensorBoard's memory at most: {server.peaks()[server.process.pid] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
