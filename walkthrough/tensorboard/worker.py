"""A child of TensorBoard that reads traces for PYTORCH_PROFILER: `python -m walkthrough.tensorboard.worker`.

Each line of its input is a `Job` as JSON; it writes the trace's profile to the job's file `into` and answers with an
`Outcome`, a line of JSON. It ends with its input, or after a trace that took much memory, which Python would keep.
"""

import gc
import gzip
import json
import logging
import os
import pickle
import sys
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from walkthrough.results.errors import is_out_of_memory, printable
from walkthrough.tensorboard.answers import write_private
from walkthrough.trace.digest import has_taken_much_memory

LOG_LEVEL = "TORCH_PROFILER_LOG_LEVEL"  # the plugin's own variable


@dataclass(frozen=True)
class Job:
    """A trace to read. span: its number among the traces of its worker, or None. into: the file for its profile."""

    path: str
    worker: str
    span: int | None
    size: int
    mtime_ns: int
    into: str


@dataclass(frozen=True)
class Outcome:
    """reason: why the trace cannot be read, None where it was. changed: it was written to meanwhile."""

    reason: str | None = None
    changed: bool = False
    temporary: bool = False  # another try may succeed, though the file stays the same
    unwritable: bool = False  # the trace is fine, but its profile cannot be written
    last: bool = False  # the child ends


def read(job: Job) -> Outcome:
    """Write the profile of a trace: gzipped, pickled (`RunProfile`, `DistributedRunProfileData`)."""
    from torch_tb_profiler.profiler.data import DistributedRunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    from walkthrough.tensorboard import profiler_parser  # it patches the two

    if _is_changed(job):
        return Outcome(changed=True)
    try:
        into = Path(job.into)
        data, copy = profiler_parser.parse(job.worker, job.span, job.path)
        if copy:
            data.trace_file_path = str(repaired(into))
        profile = RunGenerator(job.worker, job.span, data).generate_run_profile()
        packed = gzip.compress(pickle.dumps((profile, DistributedRunProfileData(data)), protocol=5), 1)
    except Exception as error:
        if _is_changed(job):
            return Outcome(changed=True)
        return Outcome(printable(_reason(error), 300), temporary=isinstance(error, OSError))
    if _is_changed(job):
        return Outcome(changed=True)
    try:
        if copy:
            write_private(repaired(into), copy)
        write_private(into, packed)
    except OSError as error:
        reason = f"what was read of it cannot be written to {into.parent}: {error.strerror or error}"
        return Outcome(printable(reason, 300), unwritable=True)
    return Outcome()


def repaired(into: Path) -> Path:
    """The file for the copy of a trace that a browser can read, where it could not read the original."""
    return into.with_suffix(".trace.json.gz")


def _is_changed(job: Job) -> bool:
    try:
        status = os.stat(job.path)
    except OSError:
        return True
    return job.mtime_ns >= 0 and (status.st_size, status.st_mtime_ns) != (job.size, job.mtime_ns)


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return "damaged or cut off: it cannot be decompressed"
    if isinstance(error, msgspec.DecodeError):
        return f"damaged or cut off: not valid JSON ({error})"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if is_out_of_memory(error):
        return "there is too little memory to read it"
    if type(error) is ValueError and error.args == ("it holds no list of events",):
        return "it holds no list of events"
    logging.getLogger("walkthrough").warning("torch-tb-profiler", exc_info=error)
    return f"torch-tb-profiler cannot read it: {type(error).__name__}: {error}"


def main(lines: TextIO, answers: TextIO) -> None:
    """Answer each line. Without Python's garbage collector, which takes half the time and finds nothing meanwhile."""
    gc.disable()
    gc.freeze()
    for line in lines:
        outcome = asdict(read(Job(**json.loads(line))))
        outcome["last"] = has_taken_much_memory()
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
        if outcome["last"]:
            return
        gc.collect()


def start(nice: int) -> None:
    """Read jobs from stdin; answer on what was stdout, where nothing else may be printed. nice: added to the process's.

    The plugin logs a line per odd event of a trace, thousands, unless its own variable sets the level.
    """
    if nice and hasattr(os, "nice"):
        os.nice(nice)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(format="%(name)s: %(message)s")
    import torch_tb_profiler.utils

    plugin_log = torch_tb_profiler.utils.get_logger()
    if LOG_LEVEL not in os.environ:
        plugin_log.setLevel(logging.CRITICAL)
    with open(0, encoding="utf-8", closefd=False) as lines:
        main(lines, answers)


if __name__ == "__main__":
    start(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
