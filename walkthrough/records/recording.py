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
Needs nothing but torch, torchvision and tensorboard.
"""

import argparse
import gzip
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from walkthrough.compare import runner, tour
from walkthrough.compare.pace import FILE as SECONDS
from walkthrough.compare.pace import Pace
from walkthrough.records import allowed, page
from walkthrough.records.header import FILE, Header, Settings, read_header, shared
from walkthrough.results import environment, privacy
from walkthrough.results.environment import current_environment
from walkthrough.results.errors import InputError
from walkthrough.results.folder import locked
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import (
    SCHEMA,
    Result,
    read_result,
    read_runs,
    run_files,
    write_json,
    write_not_run,
    write_whole,
    writing,
)

LIMIT = 1_500_000  # bytes of a file: a record is committed, and a repository should stay quick to clone
# besides what every step runs
CODE = (
    *(f"walkthrough/compare/{name}.py" for name in ("runner", "tour", "rounds", "pace")),
    "walkthrough/records/recording.py",
)


def record_ladder(args: argparse.Namespace) -> int:
    """Run every step `args.rounds` times into `args.logdir/<device>/`, continuing where an earlier call stopped.

    Returns the exit code. Raises InputError where the code has uncommitted changes, where the record there was made
    with another device, other settings, versions or code, and where another call is recording into it.
    """
    pace = Pace(args.minutes, say=partial(print, flush=True))
    schedule = tour.Schedule.of(args, runner.step_files(), tour.RECORDED, pace)
    header = _header(args)
    schedule.without_effect = without_effect(args, schedule.scripts)
    folder = args.logdir / folder_name(header)
    with locked(folder / ".record.lock", f"another `record` is writing to {folder}: wait for it"):
        try:
            _same_record(folder / FILE, header)
            pace.go_on_from(folder / SECONDS)
            return _run_all(args, folder, header, schedule)
        finally:
            shutil.rmtree(folder / ".running", ignore_errors=True)


def slug(name: str) -> str:
    """A device's name as a folder: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", " ", name.lower())).strip("-") or "unknown"


def folder_name(header: Header) -> str:
    """The folder of a record: "nvidia-h200"; "nvidia-h200-resnet50" for another model than the course's own.

    Of a CPU with its bf16 instructions, "amd-epyc-avx512-bf16": the name alone does not tell CPUs apart.
    """
    from common.options import COURSE

    settings = header.settings
    own = COURSE.on("cpu" if settings.device == header.environment["cpu"] else "cuda").model
    parts = (settings.device, settings.instructions, None if settings.model == own else settings.model)
    return slug(" ".join(filter(None, parts)))


def _header(args: argparse.Namespace) -> Header:
    """What all runs of a record share."""
    import torch

    from common.data import holds_cifar10
    from common.device import checked_device, device_name
    from common.options import image_size_for, model_for

    if args.stacks:
        raise InputError("record keeps small traces without paths of this machine: run it without --stacks")
    revision = environment.git_revision()
    if revision is None:
        print(f"NOTE: git is not at hand, so the record names no commit: set {environment.COMMIT_VARIABLE}", flush=True)
    elif revision.endswith("-dirty"):
        raise InputError(
            "steps/, common/ or walkthrough/ hold uncommitted changes: commit them first, so that the record names "
            "its code"
        )
    runner.prepare(args)
    runner.check_input(args)
    device = checked_device(args.device)
    settings = Settings(
        device=device_name(device),
        instructions=environment.cpu_bf16_hardware() if device == "cpu" else None,
        data="cifar10" if holds_cifar10(args.data) else "stand-in",
        model=model_for(args, device),
        image_size=image_size_for(args, device),
        batch_size=args.batch_size,
        workers=args.workers,
        precision=args.precision,
        seed=args.seed,
        quick=args.quick,
    )
    own = shared(current_environment(torch.__version__, torch.version.cuda))
    shared_by_all = Header(schema=SCHEMA, settings=settings, environment=own, code=environment.code_hash(*CODE))
    if wrong := next(allowed.wrong_texts(shared_by_all.as_json()), None):
        raise InputError(f"a record may not hold {wrong}: if it is no name of yours, report it as a bug")
    return shared_by_all


def without_effect(args: argparse.Namespace, steps: Sequence[Path]) -> set[str]:
    """Those steps whose change has no effect on this device: they are recorded once."""
    import torch

    from common.device import autocast_dtype, checked_device
    from common.session import unmet_need

    device = torch.device(checked_device(args.device))
    with redirect_stdout(None):  # a step prints it too
        precision = autocast_dtype(device, args.precision)
    return {step.stem for step in steps if unmet_need(str(step), device, precision)}


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
    from common.options import command_line

    codes, show = [], runner.once(partial(print, flush=True))
    running = folder / ".running"
    words = command_line(args, logdir=running, download=False)
    for step in (script.stem for script in schedule.scripts):
        for path in run_files(folder / step):
            schedule.add(int(path.stem), read_result(path))
        tour.sum_up(folder / step)  # again: an earlier call may have been stopped between a run and its sum
    for number, script in schedule:
        step, kept, label = script.stem, folder / script.stem, schedule.label(number, script.stem)
        if environment.code_hash(*CODE) != header.code:
            raise InputError("the code changed while recording: put it back, and run this again")
        outcome = runner.run(script, words, lambda event: None, show)
        codes.append(outcome.code)
        if outcome.code:
            what = schedule.add_failure(step, outcome)
            if step in schedule.not_run:
                write_not_run(kept, step, outcome.reason)
            print(f"{label}{what}: {outcome.reason}", file=sys.stderr, flush=True)
            continue
        result = read_result(running / step / RESULT_FILE)
        result = replace(result, notes=[privacy.reason(note, 300) for note in result.notes])  # nvidia-smi's words too
        if schedule.is_traced(number, result):
            _publish_small(running / step, kept, result)
        (folder / page.FILE).unlink(missing_ok=True)  # it is of fewer runs, if this call is cut off
        tour.keep(kept, number, result)
        schedule.add(number, result)
        print(f"{label}{result.samples_per_second.median:10.1f} images/s", flush=True)
    page.write_page(folder)
    write_json(folder / FILE, replace(header, files=checksums(folder)).as_json())
    if not interleaved(folder):
        print("These runs are not interleaved: some were made after later ones, and --check refuses them. Record anew.")
    which = f"every step but {', '.join(schedule.not_run)}" if schedule.not_run else "every step"
    if single := [step for step, runs in schedule.runs.items() if tour.ran_enough(runs)]:
        which += f", 1 of {', '.join(single)}: without effect on this device"
    table = f"{sys.executable} -m walkthrough compare {folder}"
    print(f"{folder} holds {schedule.whole_rounds} run(s) of {which}. The table: {table}")
    return runner.exit_code(codes)


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
