"""A run's folder: held by one run at a time, replaced only by a run that is whole, and the traces that lie in it."""

import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from walkthrough.results.errors import InputError
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import Result, check_writable, write_result, writing

TRACES = (".json", ".json.gz")  # ends of their names
TRAINING = {"fit", "train", "training"}  # words in a trace's name
NOT_TRAINING = {"validate", "validation", "val", "test", "predict", "eval", "evaluate", "evaluation", "inference"}


@contextmanager
def locked(path: str | Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` (its folder is made); InputError(busy) where another process holds it."""
    from filelock import FileLock, Timeout  # torch installs it; who only reads runs does not need it

    path = Path(path)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(busy) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def own_folder(logdir: Path, step: str) -> Iterator[tuple[Path, Path]]:
    """Hold `logdir/step` against other runs. Yields it and a hidden staging folder for what is not whole yet."""
    folder, staging = logdir / step, logdir / f".{step}.partial"
    busy = f"another run of {step} is writing to {logdir}: wait for it, or use another --logdir"
    with locked(logdir / f".{step}.lock", busy):
        try:
            with writing(logdir):
                shutil.rmtree(staging, ignore_errors=True)  # left by a run that was killed
                staging.mkdir()
            if folder.exists():
                check_writable(folder)  # better refused now than once all is measured
            yield folder, staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def host_name() -> str:
    """This machine's name, in characters that the profiler plugin accepts in a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", platform.node()) or "host"


def stamp(suffix: str = "") -> str:
    """`<host><suffix>.<ms>`, the begin of a trace's file name."""
    return f"{host_name()}{suffix}.{time.time_ns() // 1_000_000}"


def add_trace(folder: Path, packed: Path, name: str) -> None:
    """Move a whole trace into a run that is published: another rank's, which has no result of its own."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
        os.replace(packed, folder / name)


def publish(folder: Path, staging: Path, trace: str, events: str, result: Result) -> None:
    """Make a run the content of `folder`, from the whole files `trace` (gzipped) and `events` in the staging folder.

    `result.json` comes last: until it is replaced, the earlier run stands, its own files untouched; of several rounds
    (see `compare.rounds`) their sum.
    """
    name = result.trace.removesuffix(".pt.trace.json.gz")
    events_name = f"events.out.tfevents.{int(time.time())}.{name}"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        write_result(staging / RESULT_FILE, result)
        os.replace(staging / trace, folder / result.trace)
        os.replace(staging / events, folder / events_name)
        drop_runs(folder)  # no round of an earlier tour next to a newer result
        os.replace(staging / RESULT_FILE, folder / RESULT_FILE)
        for old in [*folder.glob("*.pt.trace.json.gz"), *folder.glob("events.out.tfevents.*")]:
            if old.name not in (result.trace, events_name):
                old.unlink()


def drop_runs(folder: Path) -> None:
    """Remove the single runs of a step that was run in rounds, which no run from now on is interleaved with.

    Their sum, `result.json`, stays.
    """
    with writing(folder):
        if (folder / "runs").exists():
            shutil.rmtree(folder / "runs")


def traces_in(folder: str | Path) -> list[Path]:
    """The trace files of a folder, newest first: by the time in their names, else by modification time.

    Those named *.trace.json or *.trace.json.gz; without any, all other JSON files that may be traces.
    """

    ages = {}
    for path in Path(folder).iterdir():
        if path.name.endswith(TRACES) and not path.name.startswith("."):
            with suppress(OSError):  # it vanishes meanwhile, or is a link that leads nowhere
                ages[path] = age(path.name, path.stat().st_mtime)
    named = [path for path in ages if path.name.endswith(tuple(f".trace{suffix}" for suffix in TRACES))]
    others = [path for path in ages if path.name not in ("result.json", "record.json")]  # a run's own files
    return sorted(named or others, key=ages.__getitem__, reverse=True)


def age(name: str, modified: float) -> tuple[int, str]:
    """A key that sorts traces by age: the time in a file's name, else `modified`, in ms; then the name."""
    stamp = re.search(r"\.(\d{10,})\.", name)
    digits = int(stamp[1]) if stamp else 0
    while digits > 10**13:  # torch names some traces in ms and some in ns
        digits //= 1000
    return digits or int(modified * 1000), name


def of_training(traces: Sequence[Path]) -> list[Path]:
    """Those whose names say that they are of training, where others are of a validation, a test or a prediction.

    Lightning's profiler writes `fit-….pt.trace.json`, `test-….pt.trace.json` and so on into one folder. All traces
    where no name says either.
    """
    words = {path: set(re.split(r"[^a-z]+", path.name.lower())) for path in traces}
    training = [path for path in traces if words[path] & TRAINING]
    others = any(words[path] & NOT_TRAINING and not words[path] & TRAINING for path in traces)
    return training if training and others else list(traces)
