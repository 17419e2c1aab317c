"""`record`: the whole ladder several times over, kept as a record that others can check.

    logs/reference/<device>/
        record.json                      settings, environment and code of all runs: the same, or the record is refused
        NN_name/runs/1.json …            `result.json` of each run, as it was written
        NN_name/result.json              all runs of the step as one (see `rounds.merged`)
        NN_name/NN_name.<ms>.pt.trace.json.gz  one run's trace (`rounds.traced`), small, this machine not named in it
        NN_name/events.out.tfevents.…    the same run's scalars, for TensorBoard
        NN_name/not_run.json             in the place of all that, where the step could not be run: why not
        README.md                        the table of all that

The runs are interleaved, A B C … A B C …, so that a machine that drifts (heat, other load) affects every step alike.
"""

import argparse
import gzip
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from walkthrough.compare import isolated, rounds, tour
from walkthrough.compare.ladder import intervals, notes_of, page_table, summary, warnings_of
from walkthrough.compare.table import code, escaped
from walkthrough.records import allowed
from walkthrough.results import environment, privacy, result
from walkthrough.results.environment import ROOT, Environment
from walkthrough.results.errors import InputError, OneLineParser, folder, printable
from walkthrough.results.folder import locked
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import (
    NOT_RUN_FILE,
    SCHEMA,
    Result,
    check_writable,
    read_result,
    read_runs,
    run_files,
    write_json,
    write_not_run,
    write_whole,
    writing,
)

FILE, PAGE = "record.json", "README.md"
ROUNDS = 5  # of a record, where nothing else is said
LIMIT = 1_500_000  # bytes of a file: a record is committed, and a repository should stay quick to clone
# besides what every step runs
CODE = (*(f"walkthrough/compare/{name}.py" for name in ("isolated", "tour", "rounds")), "walkthrough/records/record.py")
# What a process says of torch and its device, in which torch is imported.
ABOUT = """
import json, sys, torch
device = json.loads(sys.argv[1])["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None
print(json.dumps({"answer": {"gpu": name, "torch": str(torch.__version__), "cuda": torch.version.cuda}}))
"""
ABOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of all runs. words: the options that the steps got, but for those of folders.

    instructions: of a CPU for bf16, "AVX512-BF16": CPUs of one name differ in them. None without, and on a GPU.
    """

    words: list[str]
    seed: Annotated[int, Meta(ge=0, le=2**32)]
    quick: bool
    device: str
    instructions: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,40}$")] | None = None


@dataclass(frozen=True, kw_only=True)
class Header:
    """What `record.json` holds. environment: the fields of an `Environment` but for git. code: see `code_hash`.

    files: {name: its SHA-256} of all that was recorded; None in a record that is not whole yet.
    """

    schema: int
    settings: Settings
    environment: dict[str, str | int | None]
    code: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    files: dict[str, Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]] | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `record.json` holds."""
        value = asdict(self)
        if self.settings.instructions is None:
            del value["settings"]["instructions"]
        if self.files is None:
            del value["files"]
        return value

    def differences(self, other: "Header") -> list[str]:
        """What `other` has in place of this header's settings, environment and code, a text each."""
        pairs = [(asdict(self.settings), asdict(other.settings)), (self.environment, other.environment)]
        differences = [
            f"{name} was {old.get(name)!r} and is {value!r}"
            for old, new in pairs
            for name, value in new.items()
            if old.get(name) != value
        ]
        changed = "the code of steps/, common/ or walkthrough/ has changed"
        return differences + [changed] * (self.code != other.code)

    def contradicted(self, run: Result) -> list[str]:
        """What a run has in place of this header's device and environment, a text each."""
        here = {"device": self.settings.device} | self.environment
        own = {"device": run.device} | shared(run.environment)
        wrong = [name for name in own if own[name] != here.get(name)]
        return [f"{name} is {own[name]!r}, in {FILE} it is {here.get(name)!r}" for name in wrong]


def shared(environment: Environment) -> dict[str, str | int | None]:
    """The environment without git: a commit of docs between two runs changes nothing, and `code` is exact."""
    values = asdict(environment)
    del values["git"]
    return values


def read_header(path: str | Path) -> Header:
    """Read a `record.json`. Raises InputError that names the file and what is wrong with it."""
    return result.read_as(Header, path, SCHEMA)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `record`."""
    tour.add_ladder_options(parser, "--runs", ROUNDS, ROOT / "logs" / "reference")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", type=folder, metavar="FOLDER", help="only verify the record in FOLDER; nothing is written"
    )
    instead.add_argument(
        "--pack",
        type=folder,
        metavar="FOLDER",
        help="verify the record in FOLDER and write it as one .zip file here, also where a call was cut off",
    )


def run(args: argparse.Namespace) -> int:
    """Record, or with `args.check` or `args.pack` verify or pack what was recorded; the exit code."""
    from walkthrough.records import check

    if args.check or args.pack:
        if args.passed_on:
            args.error(f"unrecognized arguments: {' '.join(args.passed_on)}")
        return check.check(args.check) if args.check else check.pack(args.pack)
    return record_ladder(args)


def record_ladder(args: argparse.Namespace) -> int:
    """Run every step `args.rounds` times into `args.logdir/<device>/`, continuing where an earlier call stopped.

    Returns the exit code. Raises InputError where the code has uncommitted changes, where the record there was made
    with another device, other options, versions or code, and where another call is recording into it.
    """
    if "--stacks" in args.passed_on:
        raise InputError("record keeps small traces without paths of this machine: run it without --stacks")
    schedule = tour.Schedule(tour.step_files(), args.rounds, args.minutes)
    header = _header(args)
    folder = args.logdir / folder_name(header.settings)
    check_writable(folder)
    with locked(folder / ".record.lock", f"another `record` is writing to {folder}: wait for it"):
        try:
            _same_record(folder / FILE, header)
            return _run_all(args, folder, header, schedule)
        finally:
            shutil.rmtree(folder / ".running", ignore_errors=True)
            if not any(folder.glob("[0-9]*")):  # no step used the options, a mistyped one most likely
                (folder / FILE).unlink(missing_ok=True)


def slug(name: str) -> str:
    """A device's name as a folder: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", " ", name.lower())).strip("-") or "unknown"


def folder_name(settings: Settings) -> str:
    """The folder of a record: "nvidia-h200"; "nvidia-h200-resnet50" where --model names one.

    Of a CPU with its bf16 instructions, "amd-epyc-avx512-bf16": the name alone does not tell CPUs apart.
    """
    model = parsed(settings.words).model
    return slug(" ".join(filter(None, (settings.device, settings.instructions, model))))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """What a record itself needs of the steps' options; `words`: all of them but those of folders."""
    parser = OneLineParser(prog="walkthrough record", add_help=False, allow_abbrev=False)
    parser.add_argument("--data")
    parser.add_argument("--download", action="store_true")
    _, others = parser.parse_known_args(words)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--precision")
    args, _ = parser.parse_known_args(others)
    args.words = others
    return args


def _header(args: argparse.Namespace) -> Header:
    """What all runs of a record share."""
    revision = environment.git_revision()
    if revision is None:
        print(f"NOTE: git is not at hand, so the record names no commit: set {environment.COMMIT_VARIABLE}", flush=True)
    elif revision.endswith("-dirty"):
        raise InputError(
            "steps/, common/ or walkthrough/ hold uncommitted changes: commit them first, so that the record names "
            "its code"
        )
    about = isolated.answer((sys.executable, "-c", ABOUT), {"device": args.device}, ABOUT_SECONDS)
    if isinstance(about, str):
        raise InputError(f"--device {args.device}: {about}" if args.device else f"torch cannot be used: {about}")
    given = parsed(args.passed_on)
    settings = Settings(
        words=given.words,
        seed=given.seed,
        quick=args.quick,
        device=about["gpu"] or environment.cpu_name(),
        instructions=None if about["gpu"] else environment.cpu_bf16_hardware(),
    )
    own = shared(environment.current_environment(about["torch"], about["cuda"]))
    header = Header(schema=SCHEMA, settings=settings, environment=own, code=environment.code_hash(*CODE))
    if wrong := next(allowed.wrong_texts(header.as_json()), None):
        raise InputError(f"a record may not hold {wrong}: if it is no name of yours, report it as a bug")
    return header


def checksums(folder: Path) -> dict[str, str]:
    """{name: SHA-256} of what was recorded of the steps; the page follows from it, and studies may come later."""
    files = sorted(path for path in folder.glob("[0-9]*/**/*") if path.is_file() and not path.name.startswith("."))
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def interleaved(folder: str | Path) -> bool:
    """Whether every step's run 1 was started before any step's run 2, and so on."""
    rounds: dict[int, list[datetime]] = {}
    for path in Path(folder).glob("*/runs/*.json"):
        rounds.setdefault(int(path.stem), []).append(datetime.fromisoformat(read_result(path).started))
    ordered = [rounds[number] for number in sorted(rounds)]
    return all(max(before) <= min(after) for before, after in pairwise(ordered))


def _same_record(path: Path, header: Header) -> None:
    if not any(path.parent.glob("*/runs/*.json")):  # nothing is recorded yet, so this call may differ from an earlier
        write_json(path, header.as_json())
        return
    try:
        before = read_header(path)
    except InputError as error:
        raise InputError(f"{error}; move its folder away to record anew") from error
    if differences := before.differences(header):
        raise InputError(
            f"{path.parent} holds another record ({'; '.join(differences)}): move it away, or name another --logdir"
        )
    if before.files is not None:  # until this call is over, what it adds has no checksum
        write_json(path, header.as_json())


def _run_all(args: argparse.Namespace, folder: Path, header: Header, schedule: tour.Schedule) -> int:
    codes, show = [], tour.once(partial(print, flush=True))
    running = folder / ".running"
    complete(folder)  # an earlier call may have been stopped between a run and its sum
    for step in (script.stem for script in schedule.scripts):
        for path in run_files(folder / step):
            schedule.add(int(path.stem), read_result(path))
    for number, script in schedule:
        step, kept, label = script.stem, folder / script.stem, schedule.label(number, script.stem)
        if environment.code_hash(*CODE) != header.code:
            raise InputError("the code changed while recording: put it back, and run this again")
        outcome = isolated.run(script, tour.words_of(args, running), lambda event: None, show)
        codes.append(outcome.code)
        if outcome.code:
            what = schedule.add_failure(step, outcome)
            if step in schedule.not_run:
                write_not_run(kept, step, outcome.reason)
            print(f"{label}{what}: {outcome.reason}", file=sys.stderr, flush=True)
            continue
        run = read_result(running / step / RESULT_FILE)
        first = next((other for runs in schedule.runs.values() for other in runs.values()), run)
        if wrong := header.contradicted(run) + run.setup.differences(first.setup):
            raise InputError(f"{folder} is another record ({wrong[0]}): move it away, or name another --logdir")
        run = replace(run, notes=[privacy.reason(note, 300) for note in run.notes])  # nvidia-smi's words too
        if schedule.is_traced(number, run):
            _publish_small(running / step, kept, run)
        (folder / PAGE).unlink(missing_ok=True)  # it is of fewer runs, if this call is cut off
        tour.keep(kept, number, run)
        schedule.add(number, run)
        print(f"{label}{run.samples_per_second.median:10.1f} images/s", flush=True)
    write_page(folder)
    write_json(folder / FILE, replace(header, files=checksums(folder)).as_json())
    if not interleaved(folder):
        print("These runs are not interleaved: some were made after later ones, and --check refuses them. Record anew.")
    which = f"every step but {', '.join(schedule.not_run)}" if schedule.not_run else "every step"
    if single := [step for step, runs in schedule.runs.items() if tour.ran_enough(runs)]:
        which += f", 1 of {', '.join(single)}: without effect on this device"
    table = f"{sys.executable} -m walkthrough compare {folder}"
    print(f"{folder} holds {schedule.whole_rounds} run(s) of {which}. The table: {table}")
    return tour.exit_code(codes)


def complete(folder: Path) -> None:
    """Make each step of a record that was cut off what its runs give: their sum, a trace, its events; nothing else."""
    for step in sorted(folder.glob("[0-9][0-9]_*")):
        runs = read_runs(step)
        if not runs and not (step / NOT_RUN_FILE).exists():
            with writing(step):
                shutil.rmtree(step)  # a trace, of a run that was not kept
        for old in sorted(step.glob("events.out.tfevents.*"))[:-1]:
            old.unlink()
        tour.sum_up(step)


def write_page(folder: str | Path) -> None:
    """Write the page into a record's folder, once there is a result in it."""
    if text := page(folder):
        write_whole(Path(folder) / PAGE, text)


def page(folder: str | Path) -> str:
    """The page's text; "" for a folder without results. Raises InputError for a broken `record.json`."""
    folder = Path(folder)
    if not any(folder.glob(f"[!.]*/{RESULT_FILE}")):
        return ""
    ladder = rounds.whole_comparison(folder)
    settings = read_header(folder / FILE).settings
    base, environment = ladder.baseline, ladder.baseline.environment
    windows = len(base.samples_per_second.windows)
    given = parsed(settings.words).precision
    precision = "" if given in (None, "auto") else f", --precision {given}"
    workers = max(row.result.workers for row in ladder.rows)
    notes = notes_of(ladder)
    lines = [
        f"# {escaped(base.model)}, {base.image_size} px, on {escaped(base.device)}",
        "",
        f"Trained on {base.data_label}, {workers} workers from step 04 on, seed {settings.seed}{precision}. "
        f"{environment.cores} CPU cores ({escaped(environment.cpu)}), "
        f"torch {environment.torch}, Python {environment.python}"
        + (f", driver {environment.driver}" if environment.driver else "")
        + f". Started {base.started[:10]}, code at {environment.git or 'no known commit'}.",
        "",
        page_table(ladder),
        "",
        *(line for warning in warnings_of(ladder) for line in (escaped(warning), "")),
        f"**{escaped(summary(ladder))}**",
        "",
        intervals(ladder),
        "",
        f"images/s: the median of all {windows} timed windows of a step, no profiler running; windows: their range,",
        "without a tenth of them at either end; rounds: runs of the step, interleaved with the other steps'. Trace,",
        "events: round 1.",
        *(["", *(f"- {escaped(note)}." for note in notes)] if notes else []),
        *([""] if ladder.missing else []),
        *(f"- {code(step.step)} was not run: {escaped(step.reason)}." for step in ladder.missing),
        "",
        "Written by `walkthrough record`; `walkthrough compare` prints it, `walkthrough record --check` verifies it.",
    ]
    return "\n".join(line if line.startswith("|") or "\n" in line else printable(line) for line in lines) + "\n"


def _publish_small(source: Path, kept: Path, result: Result) -> None:
    """Copy a run's trace and events into the record, under its step's name in place of the host's.

    In place of those of an earlier run under their trace's name, which the runs there hold.
    """
    runs = read_runs(kept)
    name = runs[0].trace if runs else result.step + result.trace[result.trace.index(".") :]
    with writing(kept):
        kept.mkdir(parents=True, exist_ok=True)
        written = {name}
        for events in source.glob("events.out.tfevents.*"):
            target = ".".join(events.name.split(".")[:4]) + f".{name.removesuffix('.pt.trace.json.gz')}"
            write_whole(kept / target, events.read_bytes())
            written.add(target)
        _write_small(source / result.trace, kept / name)
        for old in [*kept.glob("*.pt.trace.json.gz"), *kept.glob("events.out.tfevents.*")]:
            if old.name not in written:
                old.unlink()  # also of a call that was stopped before it had kept the run


def _write_small(source: Path, target: Path) -> None:
    """Copy what a record keeps of a trace, without white space; with fewer steps if it is too large."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    trace, _ = allowed.kept(trace | {"traceName": target.name.removesuffix(".gz")})
    packed = _packed(trace)
    for steps in (2, 1):
        if len(packed) > LIMIT:
            print(f"{target.name} is over {LIMIT / 1e6} MB: only its first {steps} step(s) are kept", flush=True)
            packed = _packed(trace | {"traceEvents": first_steps(trace["traceEvents"], steps)})
    if len(packed) > LIMIT:
        print(f"{target.name} is over {LIMIT / 1e6} MB with one step only: `--check` will refuse it", flush=True)
    write_whole(target, packed)


def _packed(trace: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), compresslevel=9, mtime=0)


def first_steps(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The events of a trace's first `count` profiler steps, with the device's work that was launched in them."""
    steps = [e for e in events if e.get("name", "").startswith("ProfilerStep#") and e.get("cat") == "user_annotation"]
    end = max(e["ts"] + e["dur"] for e in sorted(steps, key=lambda e: e["ts"])[:count])
    kept = [e for e in events if e.get("ph") == "M" or ("ts" in e and e["ts"] < end)]
    launched = {e["args"]["correlation"] for e in kept if "correlation" in e.get("args", {})}
    late = (e for e in events if e.get("ph") != "M" and e.get("ts", 0) >= end)
    return kept + [e for e in late if e.get("args", {}).get("correlation") in launched]
