"""A child of TensorBoard that reads traces: `python -m walkthrough.tensorboard.worker [NICE]`.

Each line of its input is a `Job`; it writes the answer to the job's file `into` and says an `Outcome`, a line too. So
a server stays responsive and small while a large trace is read. It ends with its input, or after a trace that took
much memory, which Python would keep.
"""

import gc
import gzip
import json
import logging
import os
import pickle
import sys
import zlib
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from walkthrough.results.errors import InputError, is_out_of_memory, printable

log = logging.getLogger("walkthrough")
LOG_LEVEL = "TORCH_PROFILER_LOG_LEVEL"  # torch-tb-profiler's own variable
MUCH_MEMORY = 2**30  # bytes

Kind = Literal["digest", "lanes", "profile"]


@dataclass(frozen=True)
class Job:
    """A question as a child gets it, a line of JSON. path: of a local file. into: the file for the answer."""

    kind: Kind
    path: str
    size: int
    mtime_ns: int
    options: tuple[Any, ...]
    into: str


@dataclass(frozen=True)
class Outcome:
    """What a child says once it has written an answer, a line of JSON. reason: why it could not, else None."""

    reason: str | None = None
    changed: bool = False  # the trace was written to meanwhile, or has vanished
    temporary: bool = False  # another try may succeed, though the file stays the same
    unwritable: bool = False  # the trace is fine, but its answer cannot be written
    last: bool = False  # the child ends, since it would keep the memory that it has taken


def answer(job: Job) -> Outcome:
    """Write what is asked of a trace to the job's file."""
    if _has_changed(job):
        return Outcome(changed=True)
    try:
        contents = _profile(job) if job.kind == "profile" else _json(job)
    except Exception as error:
        return Outcome(changed=True) if _has_changed(job) else _failure(job, error)
    if _has_changed(job):
        return Outcome(changed=True)
    folder = Path(job.into).parent
    try:
        for path, content in contents.items():
            write_private(path, content)
    except OSError as error:
        reason = f"what was read of it cannot be written to {folder}: {error.strerror or error}"
        return Outcome(printable(reason, 300), unwritable=True)
    return Outcome()


def write_private(path: Path, content: bytes) -> None:
    """Write a file, readable by the user alone, beside its place and rename it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def _json(job: Job) -> dict[Path, bytes]:
    """The numbers of the Walkthrough tab's pages ("digest"), or the events of its timeline ("lanes")."""
    from walkthrough.advice.gains import advise
    from walkthrough.advice.report import tables
    from walkthrough.trace.analysis import analyze
    from walkthrough.trace.chrome_trace import Chunks
    from walkthrough.trace.timeline import lanes

    with closing(Chunks(job.path)) as chunks:
        analysis = analyze(chunks, details=job.kind == "lanes")
    if job.kind == "lanes":
        findings = [(finding.what, finding.when) for finding in advise(analysis).findings]
        content: dict[str, Any] = lanes(analysis, findings, *job.options)
    else:
        content = tables(analysis)
    # a file's name, which warnings hold, need not be UTF-8
    content["warnings"] = [line.encode(errors="replace").decode() for line in content["warnings"]]
    text = msgspec.json.encode(content, enc_hook=lambda value: value.item())  # numpy's numbers
    return {Path(job.into): gzip.compress(text, 5)}


def _profile(job: Job) -> dict[Path, bytes]:
    """What PYTORCH_PROFILER shows: pickled (`RunProfile`, `DistributedRunProfileData`), and a repaired copy or none.

    torch-tb-profiler logs a line per odd event of a trace, thousands, unless its own variable sets the level.
    """
    from torch_tb_profiler import utils

    if LOG_LEVEL not in os.environ:
        utils.get_logger().setLevel(logging.CRITICAL)
    from torch_tb_profiler.profiler.data import DistributedRunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    from walkthrough.tensorboard import profiler_parser  # it patches the two

    worker, span = job.options
    data, copy = profiler_parser.parse(worker, span, job.path)
    contents = {}
    if copy:
        repaired = Path(job.into).with_suffix(".trace.json.gz")
        data.trace_file_path = str(repaired)
        contents[repaired] = copy
    profile = RunGenerator(worker, span, data).generate_run_profile()
    pickled = pickle.dumps((profile, DistributedRunProfileData(data)), protocol=5)
    return contents | {Path(job.into): gzip.compress(pickled, 1)}


def _has_changed(job: Job) -> bool:
    try:
        status = os.lstat(job.path)
    except OSError:
        return True
    return job.mtime_ns >= 0 and (status.st_size, status.st_mtime_ns) != (job.size, job.mtime_ns)


def _failure(job: Job, error: Exception) -> Outcome:
    if isinstance(error, InputError):
        return Outcome(printable(error, 300))
    if job.kind == "profile":
        return Outcome(printable(_why_no_profile(error), 300), temporary=isinstance(error, OSError))
    if isinstance(error, MemoryError):
        return Outcome("out of memory: this machine has too little for it", temporary=True)
    log.error("%s of %s", job.kind, printable(job.path), exc_info=error)
    return Outcome("a defect: see TensorBoard's log", temporary=True)


def _why_no_profile(error: Exception) -> str:
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
    log.warning("torch-tb-profiler", exc_info=error)
    return f"torch-tb-profiler cannot read it: {type(error).__name__}: {error}"


def has_taken_much_memory() -> bool:
    """Whether this process has ever had more than `MUCH_MEMORY` bytes; False where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > MUCH_MEMORY


def serve(lines: TextIO, outcomes: TextIO) -> None:
    """Do the job of each line. Without Python's garbage collector, which takes half the time and finds nothing."""
    gc.disable()
    for line in lines:
        job = json.loads(line)
        outcome = answer(Job(**job | {"options": tuple(job["options"])}))
        outcome = replace(outcome, last=has_taken_much_memory())
        outcomes.write(json.dumps(asdict(outcome)) + "\n")
        outcomes.flush()
        if outcome.last:
            return
        gc.collect()
        gc.freeze()  # what is left, modules above all, stays: it is not looked at again


def main(nice: int = 0) -> None:
    """Serve stdin; the outcomes go to what was stdout, where nothing else may be printed. nice: of the process."""
    if nice and hasattr(os, "nice"):
        os.nice(nice)
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(format="%(name)s: %(message)s")
    with open(0, encoding="utf-8", closefd=False) as lines:
        serve(lines, outcomes)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
