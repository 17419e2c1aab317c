"""A step's folder in the log folder: held by one run at a time, and replaced only by a run that is whole."""

import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walkthrough.results import result as record
from walkthrough.results.errors import InputError


@contextmanager
def locked(path: str | Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` (its folder is made); InputError(busy) where another process holds it."""
    from filelock import FileLock, Timeout  # torch installs it; who only reads runs does not need it

    path = Path(path)
    with record.writing(path.parent):
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
            with record.writing(logdir):
                shutil.rmtree(staging, ignore_errors=True)  # left by a run that was killed
                staging.mkdir()
            if folder.exists():
                record.check_writable(folder)  # better refused now than once all is measured
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
    with record.writing(folder):
        folder.mkdir(exist_ok=True)
        os.replace(packed, folder / name)


def publish(folder: Path, staging: Path, trace: str, events: str, result: record.Result) -> None:
    """Make a run the content of `folder`, from the whole files `trace` (gzipped) and `events` in the staging folder.

    `result.json` comes last: until it is replaced, the earlier run stands, its own files untouched; of several rounds
    (see `ladder.rounds`) their sum.
    """
    name = result.trace.removesuffix(".pt.trace.json.gz")
    events_name = f"events.out.tfevents.{int(time.time())}.{name}"
    with record.writing(folder):
        folder.mkdir(exist_ok=True)
        record.write_result(staging / record.FILE, result)
        os.replace(staging / trace, folder / result.trace)
        os.replace(staging / events, folder / events_name)
        drop_runs(folder)  # no round of an earlier tour beside a newer result
        os.replace(staging / record.FILE, folder / record.FILE)
        for old in [*folder.glob("*.pt.trace.json.gz"), *folder.glob("events.out.tfevents.*")]:
            if old.name not in (result.trace, events_name):
                old.unlink()


def drop_runs(folder: Path) -> None:
    """Remove the single runs of a step that was run in rounds, which no run from now on is interleaved with.

    Their sum, `result.json`, stays.
    """
    with record.writing(folder):
        if (folder / "runs").exists():
            shutil.rmtree(folder / "runs")
