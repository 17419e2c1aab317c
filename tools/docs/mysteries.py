"""The mystery traces of `docs/mysteries/`: recording them, and measuring what fixing their programs gains.

    python -m tools.docs.mysteries [--rounds N]     time each program against its fixed one: measured.json
    python -m tools.docs.mysteries --traces [NAME …]    record the traces anew, or those named

A trace stays as `walkthrough trace` wrote it, without what names this machine and without the arguments of events that
no view needs, so that it is small.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from walkthrough.advice.gains import advise
from walkthrough.advice.verdict import gain_text
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.table import code, escaped, markdown_table
from walkthrough.records.samples import sha256
from walkthrough.results import privacy
from walkthrough.results import result as record
from walkthrough.results.environment import ROOT, Environment, current_environment, now
from walkthrough.results.errors import InputError, OneLineParser, whole_number
from walkthrough.terminal import time_text
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.steps import ROLES

FOLDER = ROOT / "docs" / "mysteries"
PROGRAMS = FOLDER / "programs"
MEASURED = PROGRAMS / "measured.json"  # not next to the traces: a viewer would take it for one
NAMES = ("a", "b", "c", "d", "e")
TRACED_STEPS = {"c": 8}  # where the pattern over several steps is the evidence; else 3
TRACE_WARMUP = 40  # steps: beyond the first epochs of the programs with short ones
WARMUP, STEPS, ROUNDS = 20, 100, 8  # of `walkthrough time`; about 6 minutes on 2 idle cores
_HEADER = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "walkthrough",
    "displayTimeUnit",
    "baseTimeNanoseconds",
)
_UNUSED = ("Record function id", "Ev Idx", "Concrete Inputs", "Input Strides")


@dataclass(frozen=True)
class Gain:
    """How many times as fast the fixed program is, and steps/s of both: the geometric means are the ratio's."""

    before: list[float]
    after: list[float]
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def as_ratio(self) -> Ratio:
        return Ratio(self.ratio, self.low, self.high, self.rounds)


@dataclass(frozen=True)
class Measured:
    """What `measure` found. load_average: before it began. steps: timed in each run. gains: by mystery.

    programs: {file name: SHA-256} of what was timed.
    """

    schema: int
    environment: Environment
    started: str
    load_average: float
    steps: int
    programs: dict[str, str]
    gains: dict[str, Gain]


def program(name: str, fixed: bool = False) -> Path:
    """The program of a mystery, or the one in which its cause is fixed."""
    return PROGRAMS / f"{name}{'_fixed' if fixed else ''}.py"


def trace_of(name: str) -> Path:
    """The trace of a mystery."""
    return FOLDER / name / "train.pt.trace.json.gz"


@cache
def analysis(name: str) -> Analysis:
    """What the trace of a mystery shows."""
    return analyze(trace_of(name))


def checksums() -> dict[str, str]:
    """{file name: SHA-256} of all programs."""
    paths = [program(name, fixed) for name in NAMES for fixed in (False, True)]
    return {path.name: sha256(path) for path in paths}


def read_measured(path: Path = MEASURED) -> Measured | None:
    """What was measured; None where there is no such file. Raises InputError for a broken one."""
    return record.read_as(Measured, path, 1) if path.exists() else None


def mystery(course: object, name: str, cost: str, *operators: str) -> str:
    """The evidence in a mystery's trace: counts and own time of these operators; the bound, and the measured gain.

    cost: what the bound leaves out of a step. "loader": the waits for it; "span": from the first to the last of these
    operators; "often": all operators that are called as often as the first, Python between them, and the optimizer.
    """
    shown, known = analysis(name), read_measured()
    steps, recording = shown.steps, shown.trace.recording
    samples_per_step, by_name = recording and recording.samples_per_step, {item.name: item for item in shown.operators}
    count, waits = len(steps.names), steps.breakdown[ROLES.index("dataloader")]
    rows = [("a step, on average", time_text(steps.mean_us))]
    if cost == "loader":
        rows.append(("waits for the loader, ms, step by step", ", ".join(f"{us / 1e3:.0f}" for us in waits)))
        if recording and recording.steps_per_epoch:
            before = f"{recording.steps_per_epoch}; {TRACE_WARMUP}"
            rows.append(("steps per epoch; steps before the trace", before))
    for operator in operators:
        item = by_name[operator]
        each = f", {item.count / count / samples_per_step:.0f} per sample" if samples_per_step else ""
        calls = f"{item.count / count:.0f} per step{each if cost == 'loader' else ''}"
        rows.append((code(operator), f"{calls}; own time {time_text(item.us / item.count)} each"))
    lost = _cost(shown, cost, operators)
    if cost != "loader":
        rows.append(({"span": "from the first to the last of these"}.get(cost, _OFTEN), time_text(lost)))
    gain = known.gains.get(name) if known else None
    rows += [
        (
            "bound: the step without " + ("that wait" if cost == "loader" else "these"),
            f"{steps.mean_us / (steps.mean_us - lost):.2f}x",
        ),
        ("**measured gain**", f"**{gain.as_ratio}**, {gain.rounds} rounds" if gain else "not measured"),
    ]
    listed = [
        f"*{escaped(item.title)}* ({gain_text(item) or 'the gain cannot be estimated here'})"
        for item in advise(shown).advice[:2]
    ]
    table = markdown_table([f"trace {name}", "figure"], rows)
    return f"{table}\n\n`explain` lists first: {'; then '.join(listed)}."


_OFTEN = "all operators called as often as the first, Python between them, the optimizer's own time"


def _cost(shown: Analysis, cost: str, operators: Sequence[str]) -> float:
    """µs of a mean step; see `mystery`."""
    steps, count = shown.steps, len(shown.steps.names)
    if cost == "loader":
        return float(steps.breakdown[ROLES.index("dataloader")].mean())
    if cost == "span":
        spans = shown.trace.operators.where(shown.trace.named(shown.trace.operators, lambda name: name in operators))
        inside = [
            (spans.start >= start) & (spans.start < end) for start, end in zip(steps.start, steps.end, strict=True)
        ]
        return float(np.mean([spans.end[own].max() - spans.start[own].min() for own in inside]))
    least = min(item.count for item in shown.operators if item.name == operators[0])
    own = sum(item.us for item in shown.operators if item.count >= least or item.name.startswith("Optimizer."))
    return own / count + float(steps.breakdown[ROLES.index("other")].mean())


def machine() -> str:
    """What the traces and gains were recorded on."""
    known = read_measured()
    if known is None:
        return "*No gain was measured: `python -m tools.docs.mysteries`.*"
    made = known.environment
    return (
        f"*Gains: {escaped(made.cpu)}, {made.cores} CPU cores, torch {escaped(made.torch)}, "
        f"{len(next(iter(known.gains.values())).before)} rounds of {known.steps} steps, 95 % intervals; load of "
        f"other programs at the start: {known.load_average:.1f}. `python -m tools.docs.mysteries` measures anew.*"
    )


def cleaned(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace without names of the machine and its folders, and without arguments that nothing reads."""
    kept = {key: trace[key] for key in _HEADER if key in trace}
    for event in trace["traceEvents"]:
        for key in _UNUSED:
            event.get("args", {}).pop(key, None)
    return privacy.scrubbed(kept | {"traceEvents": trace["traceEvents"]})


def record_trace(name: str) -> Path:
    """Trace a mystery's program with `walkthrough trace` and write its trace: the path. Raises InputError."""
    steps = TRACED_STEPS.get(name, 3)
    with tempfile.TemporaryDirectory() as out:
        _run("trace", "--warmup", str(TRACE_WARMUP), "--steps", str(steps), "--out", out, "--", _named(program(name)))
        (written,) = Path(out).glob("*.pt.trace.json.gz")
        trace = cleaned(json.loads(gzip.decompress(written.read_bytes())))
    text = json.dumps(trace, separators=(",", ":")).encode()
    path = trace_of(name)
    path.parent.mkdir(exist_ok=True)
    record.write_whole(path, gzip.compress(text, 9, mtime=0))
    return path


def measure(rounds: int = ROUNDS, steps: int = STEPS) -> Measured:
    """Time every program against its fixed one with `walkthrough time`. Raises InputError where one fails."""
    made = current_environment(version("torch"), None)
    started, load, programs = now(), round(os.getloadavg()[0], 2), checksums()
    gains: dict[str, Gain] = {}
    for name in NAMES:
        commands = [_named(program(name)), "--versus", _named(program(name, fixed=True))]
        options = ["--warmup", str(WARMUP), "--steps", str(steps), "--rounds", str(rounds), "--json"]
        result = json.loads(_run("time", *options, "--", *commands))
        speeds, ratio = result["steps_per_second"], result["ratio"]
        gains[name] = Gain(speeds["A"], speeds["B"], *(ratio[key] for key in ("ratio", "low", "high", "rounds")))
        print(f"{name}: the fixed program is {gains[name].as_ratio} as fast", flush=True)
    return Measured(1, made, started, load, steps, programs, gains)


def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a program cannot be run."""
    parser = OneLineParser(prog="python -m tools.docs.mysteries", description=__doc__)
    parser.add_argument(
        "--traces",
        nargs="*",
        choices=NAMES,
        metavar="NAME",
        help="record the traces (of all, or of those named: a b c d e) instead of measuring the gains",
    )
    parser.add_argument("--rounds", type=whole_number(2, 1000), default=ROUNDS, metavar="N", help="of each program")
    args = parser.parse_args(words)
    if args.traces is not None:
        for name in args.traces or NAMES:
            path = record_trace(name)
            print(f"written: {path.relative_to(ROOT)} ({path.stat().st_size / 1e3:.0f} kB)", flush=True)
        return
    record.write_json(MEASURED, asdict(measure(args.rounds)))  # at the end: an interrupted run changes nothing
    print(f"written: {MEASURED.relative_to(ROOT)}; run `make docs-figures`")


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _run(command: str, *words: str) -> str:
    """The output of a command of the walkthrough, in the project's folder. Raises InputError where it fails."""
    done = subprocess.run([sys.executable, "-m", "walkthrough", command, *words], cwd=ROOT, capture_output=True)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines() or ["it says nothing"]
        raise InputError(f"walkthrough {command} {words[-1]} failed: {lines[-1]}")
    return done.stdout.decode()


if __name__ == "__main__":
    main(sys.argv[1:])
