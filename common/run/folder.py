"""A step's folder in the log folder: held by one run at a time, and replaced only by a run that is whole."""

import os
import platform
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from common import record
from common.errors import InputError


@contextmanager
def locked(path, busy):
    """Hold the lock file `path` (its folder is made); InputError(busy) where another process holds it."""
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
def own_folder(logdir, step):
    """Hold `logdir/step` against other runs. Yields it and a hidden folder beside it, for what is not whole yet."""
    folder, beside = logdir / step, logdir / f".{step}.partial"
    busy = f"another run of {step} is writing to {logdir}: wait for it, or use another --logdir"
    with locked(logdir / f".{step}.lock", busy):
        try:
            with record.writing(logdir):
                shutil.rmtree(beside, ignore_errors=True)  # left by a run that was killed
                beside.mkdir()
            if folder.exists():
                record.check_writable(folder)  # better refused now than once all is measured
            yield folder, beside
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def stamp():
    """`<host>.<ms>`, the host's name in letters that the profiler plugin takes in a file name."""
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", platform.node()) or "host"
    return f"{host}.{time.time_ns() // 1_000_000}"


def publish(folder, beside, trace, events, result):
    """Make a run the content of `folder`, from the whole files `trace` (gzipped) and `events` in the folder `beside`.

    `result.json` comes last: until it is replaced, the earlier run stands, its own files untouched.
    """
    name = result.trace.removesuffix(".pt.trace.json.gz")
    events_name = f"events.out.tfevents.{int(time.time())}.{name}"
    with record.writing(folder):
        folder.mkdir(exist_ok=True)
        record.write_result(beside / record.FILE, result)
        os.replace(beside / trace, folder / result.trace)
        os.replace(beside / events, folder / events_name)
        os.replace(beside / record.FILE, folder / record.FILE)
        for old in [*folder.glob("*.pt.trace.json.gz"), *folder.glob("events.out.tfevents.*")]:
            if old.name not in (result.trace, events_name):
                old.unlink()
