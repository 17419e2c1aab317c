"""How soon TensorBoard answers: with this project's tab and patches, and without; and how soon ten runs are there.

python benchmarks/board_speed.py TRACE [--runs 10] [--rounds 3]     copies of one trace, in folders of their own

"without" is the same TensorBoard with torch-tb-profiler alone. Compare within one call: machines are noisy.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

WITHOUT = """
import sys
from tensorboard import default
from tensorboard.main import run_main
find = default._iter_entry_points
default._iter_entry_points = lambda group: [plugin for plugin in find(group) if plugin.name != "walkthrough"]
if __name__ == "__main__":
    sys.exit(run_main())
"""
WITH = WITHOUT.replace('!= "walkthrough"', '!= ""')


class Server:
    """TensorBoard in a process of its own, from its start."""

    def __init__(self, program, logdir, cache):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, program, "--logdir", logdir, "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        )

    def seconds(self, path, ready=lambda answer: True):
        """Seconds from the start until `path` answers so that `ready` is content."""
        while True:
            try:
                with urllib.request.urlopen(f"http://localhost:{self.port}{path}", timeout=60) as answer:
                    if ready(json.loads(answer.read())):
                        return time.perf_counter() - self.begun
            except OSError:
                pass
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    timings = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        suffix = ".pt.trace.json.gz" if args.trace.name.endswith(".gz") else ".pt.trace.json"
        for number in range(args.runs):
            (folder / "logs" / f"run{number}").mkdir(parents=True)
            shutil.copy(args.trace, folder / "logs" / f"run{number}" / f"w{suffix}")
        programs = {"with": folder / "with.py", "without": folder / "without.py"}
        programs["with"].write_text(WITH)
        programs["without"].write_text(WITHOUT)
        for number in range(args.rounds):
            for name, program in programs.items():
                server = Server(program, folder / "logs", folder / f"cache{number}")
                timings.setdefault(f"{name}: first answer", []).append(server.seconds("/data/plugins_listing"))
                if name == "with":
                    for again in ("first time", "second time"):
                        measure_tab(server, args.runs, again, timings)
                        server.stop()
                        server = Server(program, folder / "logs", folder / f"cache{number}")
                        server.seconds("/data/plugins_listing")
                listed = server.seconds(
                    "/data/plugin/pytorch_profiler/runs", lambda answer: len(answer["runs"]) == args.runs
                )
                timings.setdefault(f"{name}: the profiler lists {args.runs} runs", []).append(listed)
                server.stop()
    for name, seconds in timings.items():
        print(f"{name:55} {median(seconds):6.2f} s ({min(seconds):.2f}-{max(seconds):.2f})")
    tab = median(timings["with: the tab has every run's numbers, first time"])
    listed = median(timings[f"with: the profiler lists {args.runs} runs"])
    print(f"the profiler's list / the tab, first time: {listed / tab:.1f}")


def measure_tab(server, runs, again, timings):
    begun = server.seconds("/data/plugin/walkthrough/runs")
    timings.setdefault(f"with: the tab lists them, {again}", []).append(begun)
    done = server.seconds("/data/plugin/walkthrough/runs", lambda answer: answer["reading"] == 0)
    for run in range(runs):
        done = server.seconds(f"/data/plugin/walkthrough/digest?run=run{run}", lambda answer: "steps" in answer)
    timings.setdefault(f"with: the tab has every run's numbers, {again}", []).append(done)
    timings.setdefault(f"with: … since its first answer, {again}", []).append(done - begun)


if __name__ == "__main__":
    main()
