"""Whether a change makes the tool slower or larger: two checkouts of this project, A and B, in interleaved pairs.

    python benchmarks/tool_speed.py A B [--traces TRACE …] [--logdir LOGDIR] [--rounds 5]

Whole processes, in turn, after one of each that is not counted: `explain` on each trace, as text and as JSON; `trace`
on a small training, to the end of its explanation; TensorBoard on a log folder, from its start until each of its two
tabs lists the runs and has read all of them. Printed is B/A of the times, as geometric mean over the pairs with its
95 % interval, and the peak memory: of the largest process; of TensorBoard, of its processes together (Linux).
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import big_trace  # noqa: E402
from board_speed import PROFILER, WALKTHROUGH, Server  # noqa: E402

from walkthrough.compare.statistics import of_pairs  # noqa: E402

Measured = tuple[float, float]  # seconds, MB
TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TENSORBOARD = """
import os, sys
from importlib.metadata import EntryPoint
os.environ["PYTHONPATH"] = {tree!r}  # of the processes that it starts
sys.path.insert(0, {tree!r})
from tensorboard import default
from tensorboard.main import run_main
find = default._iter_entry_points
default._iter_entry_points = lambda group: [
    EntryPoint("walkthrough", {loader!r}, group) if point.name == "walkthrough" else point for point in find(group)
]
if __name__ == "__main__":
    sys.exit(run_main())
"""


def measured(command: list[str], tree: Path) -> Measured:
    """Run a command in an empty folder, with a tree on Python's path; ends this program where it fails."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as for any user
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{tree}: {' '.join(command)[:80]} failed:\n{errors.read().decode()[-2000:]}")
    return seconds, usage.ru_maxrss / 1e3


@dataclass
class Checkout:
    """A tree of this project. package: which holds its command; loader: what TensorBoard loads of it."""

    tree: Path
    package: str
    loader: str

    @classmethod
    def at(cls, text: str) -> "Checkout":
        """The checkout in a folder, from its pyproject.toml."""
        tree = Path(text).resolve()
        entries = re.findall(r'^walkthrough = "(([\w.]+):\w+)"', (tree / "pyproject.toml").read_text(), re.MULTILINE)
        (_, command), (loader, _) = entries  # [project.scripts], then the entry points of TensorBoard
        return cls(tree, command.split(".")[0], loader)

    def run(self, *words: str | Path) -> Measured:
        """Run one of the tool's commands."""
        return measured([sys.executable, "-m", self.package, *map(str, words)], self.tree)

    def tensorboard(self, logdir: Path) -> dict[str, Measured]:
        """Start TensorBoard with nothing kept of an earlier start."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(TENSORBOARD.format(tree=str(self.tree), loader=self.loader))
            server = Server(program, logdir, Path(folder) / "cache")
            try:
                seconds, peak = _until_all_is_read(server)
            finally:
                server.stop()
        return {f"TensorBoard, {what}": (value, peak) for what, value in seconds.items()}


def _until_all_is_read(server: Server) -> tuple[dict[str, float], float]:
    """Seconds from the start until each tab is so far, and the peak memory, MB."""
    seconds = {"WALKTHROUGH lists the runs": server.seconds(f"{WALKTHROUGH}/runs", lambda answer: answer["runs"])}
    waiting = [run["key"] for run in server.json(f"{WALKTHROUGH}/runs")["runs"] if run["traces"]]
    peak = 0
    while len(seconds) < 4:
        peak = max(peak, sum(server.peaks().values()))
        answer, now = server.json(f"{PROFILER}/runs"), time.perf_counter() - server.begun
        if answer["runs"]:
            seconds.setdefault("PROFILER lists the runs", now)
            if not answer["loading"]:
                seconds.setdefault("PROFILER has read all", now)
        digests = [f"{WALKTHROUGH}/digest?{urllib.parse.urlencode({'run': run})}" for run in waiting]
        states = [server.json(digest).get("state") for digest in digests]
        waiting = [run for run, state in zip(waiting, states, strict=True) if state == "reading"]
        if not waiting:
            seconds.setdefault("WALKTHROUGH has read all", time.perf_counter() - server.begun)
        time.sleep(0.1)
    return seconds, peak / 1e6


def table(a: dict[str, list[Measured]], b: dict[str, list[Measured]]) -> None:
    """Print a line for each measurement; a and b hold those of each round."""
    print(f"{'':50} {'A, s':>8} {'B, s':>8}  {'B/A (95 % interval)':24} {'A, MB':>8} {'B, MB':>8}")
    for name in a:
        (before, old_peaks), (after, new_peaks) = zip(*a[name], strict=True), zip(*b[name], strict=True)
        ratio = of_pairs([new / old for old, new in zip(before, after, strict=True)])
        seconds = f"{statistics.median(before):8.3f} {statistics.median(after):8.3f}"
        interval = f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        print(f"{name:50} {seconds}  {interval:24} {max(old_peaks):8.0f} {max(new_peaks):8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Checkout.at, metavar="A", help="a checkout, such as that of a commit before")
    parser.add_argument("b", type=Checkout.at, metavar="B", help="another")
    parser.add_argument("--traces", type=Path, nargs="+", help="for explain (default: one of 76,000 made-up events)")
    parser.add_argument("--logdir", type=Path, help="a log folder for TensorBoard (default: no TensorBoard)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs, at least 2 (default: %(default)s)")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: at least 2")
    results: dict[str, dict[str, list[Measured]]] = {"a": {}, "b": {}}
    with tempfile.TemporaryDirectory() as folder:
        training = Path(folder) / "small_training.py"
        training.write_text(TRAINING)
        traces = [path.resolve() for path in args.traces or [Path(folder) / "made_up.trace.json.gz"]]
        if not args.traces:
            big_trace.write(traces[0], 76_000)
        commands = {}
        for trace in traces:
            commands[f"explain {trace.name[:32]}"] = ("explain", trace)
            commands[f"explain --json {trace.name[:32]}"] = ("explain", "--json", trace)
        commands["trace -- python small_training.py"] = ("trace", "--", sys.executable, training)
        for number in range(args.rounds + 1):
            labels = ("a", "b") if number % 2 else ("b", "a")  # neither is always the one that comes first
            for name, words in commands.items():
                for label in labels:
                    results[label].setdefault(name, []).append(getattr(args, label).run(*words))
            for label in labels if args.logdir else ():
                for name, value in getattr(args, label).tensorboard(args.logdir).items():
                    results[label].setdefault(name, []).append(value)
            if number == 0:  # not counted: files were not in memory yet, modules not compiled
                results = {"a": {}, "b": {}}
            print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
    table(results["a"], results["b"])
    print(f"{args.rounds} pairs; seconds are medians; load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
