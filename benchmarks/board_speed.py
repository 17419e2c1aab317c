"""How soon TensorBoard answers: with this project's tab and patches, and without; and how soon many runs are there.

python benchmarks/board_speed.py TRACE [--runs 10] [--rounds 3]     copies of one trace, in folders of their own
python benchmarks/board_speed.py --logdir LOGDIR [--rounds 1]       the runs of a log folder
python benchmarks/board_speed.py --big TRACE                        one big trace: seconds and memory
python benchmarks/board_speed.py TRACE --clients 8 --seconds 30     many readers at once: answers, errors

"without" is the same TensorBoard with torch-tb-profiler alone. Compare within one call: machines are noisy.
"""

import argparse
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median

PROFILER, WALKTHROUGH = "/data/plugin/pytorch_profiler", "/data/plugin/walkthrough"
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

    def json(self, path):
        with urllib.request.urlopen(f"http://localhost:{self.port}{path}", timeout=600) as answer:
            return json.loads(answer.read())

    def peaks(self):
        """Bytes that TensorBoard has had in memory at most, and each process below it that still runs (Linux)."""
        below = {self.process.pid}
        for _ in range(3):
            for status in Path("/proc").glob("[0-9]*/status"):
                with suppress(OSError):
                    parent = re.search(r"PPid:\s*(\d+)", status.read_text())
                    if parent and int(parent[1]) in below:
                        below.add(int(status.parent.name))
        peaks = {}
        for pid in below:
            with suppress(OSError):  # it has ended
                if peak := re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
                    peaks[pid] = int(peak[1]) * 1024
        return peaks

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logdir", type=Path)
    parser.add_argument("--big", type=Path)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    if not (args.trace or args.logdir or args.big):
        parser.error("name a trace, --logdir or --big")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        trace, runs = (args.big, 1) if args.big else (args.trace, args.runs)
        logdir = args.logdir or copies(trace, runs, folder / "logs")
        programs = {"with": folder / "with.py", "without": folder / "without.py"}
        programs["with"].write_text(WITH)
        programs["without"].write_text(WITHOUT)
        if args.big:
            measure_big(Server(programs["with"], logdir, folder / "cache"))
        elif args.clients:
            measure_clients(Server(programs["with"], logdir, folder / "cache"), args.clients, args.seconds)
        else:
            timings = {}
            for number in range(args.rounds):
                measure_round(programs, logdir, folder / f"cache{number}", timings)
            report(timings)


def copies(trace, runs, logdir):
    """A log folder with `runs` copies of a trace."""
    suffix = ".pt.trace.json.gz" if trace.name.endswith(".gz") else ".pt.trace.json"
    for number in range(runs):
        (logdir / f"run{number}").mkdir(parents=True)
        shutil.copy(trace, logdir / f"run{number}" / f"w{suffix}")
    return logdir


def all_loaded(answer):
    """True where the profiler has read every run that it can read."""
    return answer["runs"] and not answer["loading"]


def measure_round(programs, logdir, cache, timings):
    def note(what, seconds):
        timings.setdefault(what, []).append(seconds)

    for name, program in programs.items():
        for again in ("first start", "second start"):
            server = Server(program, logdir, cache)
            note(f"{name}: first answer, {again}", server.seconds("/data/plugins_listing"))
            note(f"{name}: the profiler has every run, {again}", server.seconds(f"{PROFILER}/runs", all_loaded))
            server.stop()
    shutil.rmtree(cache, ignore_errors=True)
    for again in ("first start", "second start"):
        server = Server(programs["with"], logdir, cache)
        begun = server.seconds(f"{WALKTHROUGH}/runs")
        note(f"with: the tab lists the runs, {again}", begun)
        runs = [run["key"] for run in server.json(f"{WALKTHROUGH}/runs")["runs"] if run["traces"]]
        for run in runs:
            path = f"{WALKTHROUGH}/digest?{urllib.parse.urlencode({'run': run})}"
            done = server.seconds(path, lambda answer: answer.get("state") != "reading")
        note(f"with: the tab has every run's numbers, {again}", done)
        for route in ("runs", "ladders", "digest", "lanes"):
            path = f"{WALKTHROUGH}/{route}?{urllib.parse.urlencode({'run': runs[0]})}"
            server.seconds(path, lambda answer: answer.get("state") != "reading")
            for _ in range(5):
                begun = time.perf_counter()
                server.json(path)
                note(f"with: a warm answer, {route}", time.perf_counter() - begun)
        server.stop()


def report(timings):
    for name, seconds in timings.items():
        print(f"{name:55} {median(seconds):8.3f} s ({min(seconds):.3f}-{max(seconds):.3f})")
    every, start = "the profiler has every run", "first start"
    first, second, without = (
        median(timings[name])
        for name in (f"with: {every}, {start}", f"with: {every}, second start", f"without: {every}, {start}")
    )
    tab = median(timings[f"with: the tab has every run's numbers, {start}"])
    answer = median(timings[f"with: first answer, {start}"]) / median(timings[f"without: first answer, {start}"])
    print(f"first answer, with / without: {answer:.2f}")
    print(f"{every}, with / without: {first / without:.2f}; second start: {second / without:.2f}")
    print(f"{every} / the tab has every run's numbers, {start}: {first / tab:.1f} (without: {without / tab:.1f})")


def measure_big(server):
    server.seconds(f"{WALKTHROUGH}/runs", lambda answer: answer["runs"])
    peaks, begun = {}, time.perf_counter()
    waited = {"the tab's numbers": f"{WALKTHROUGH}/digest?run=run0", "the timeline": f"{WALKTHROUGH}/lanes?run=run0"}
    waited["the profiler's run"] = f"{PROFILER}/runs"
    for what, path in waited.items():
        while True:
            answer = server.json(path)
            for pid, peak in server.peaks().items():
                peaks[pid] = max(peak, peaks.get(pid, 0))
            if answer.get("state") == "failed":
                print(f"{what}: {answer['reason']}")
            if answer.get("state", "ready") != "reading" and not answer.get("loading"):
                break
            time.sleep(0.1)
        print(f"{what:30} after {time.perf_counter() - begun:7.1f} s")
    own = peaks.pop(server.process.pid)
    children = ", ".join(f"{peak / 1e9:.2f}" for peak in sorted(peaks.values(), reverse=True))
    print(f"peak memory: TensorBoard {own / 1e9:.2f} GB; its children {children} GB")
    server.stop()


def measure_clients(server, clients, seconds):
    server.seconds(f"{WALKTHROUGH}/runs", lambda answer: answer["runs"])
    runs = [run["key"] for run in server.json(f"{WALKTHROUGH}/runs")["runs"] if run["traces"]]
    routes = [
        "runs",
        "ladders",
        *(f"{route}?run={urllib.parse.quote(run)}" for run in runs for route in ("digest", "lanes")),
    ]
    answers, errors, ends = [], [], time.perf_counter() + seconds

    def ask(seed):
        chosen = random.Random(seed)
        while time.perf_counter() < ends:
            route, begun = chosen.choice(routes), time.perf_counter()
            try:
                answer = server.json(f"{WALKTHROUGH}/{route}")
                if answer.get("state") == "failed":
                    raise ValueError(answer["reason"])
                answers.append(time.perf_counter() - begun)
            except (OSError, ValueError) as error:
                errors.append(f"{route}: {error}")

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.sort()
    print(f"{clients} clients, {seconds:.0f} s: {len(answers)} answers, {len(errors)} errors")
    print(f"median {median(answers):.3f} s, 99th percentile {answers[int(0.99 * len(answers))]:.3f} s")
    for error in sorted(set(errors))[:10]:
        print(error)
    server.stop()


if __name__ == "__main__":
    main()
