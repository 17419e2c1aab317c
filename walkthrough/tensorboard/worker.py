"""A child of TensorBoard that reads traces: `python -m walkthrough.tensorboard.worker [NICE]`.

Each line of its input is a `Question`; it writes the answer to the file `into` and says an `Outcome`, a line too. So
a server stays responsive and small while a large trace is read. A trace may take so much memory and time of the CPU and
no more, see `limits`. The child ends with its input, with its parent, or after a trace that took much memory, or for
which there was not enough: Python would keep it.
"""

import argparse
import gc
import gzip
import hashlib
import io
import json
import logging
import os
import pickle
import select
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

from walkthrough.results.environment import code_hash
from walkthrough.results.errors import InputError, is_out_of_memory, printable, size, whole_number
from walkthrough.results.files import not_plain, open_plain
from walkthrough.results.result import write_whole
from walkthrough.trace.chrome_trace import Chunks, Header, clean, values_of, whole_events

try:
    import resource
except ImportError:  # Windows
    resource = None

log = logging.getLogger("walkthrough")
# What answers depend on: the rooms that compute them, and the texts of times and sizes in them.
CODE = tuple(f"walkthrough/{files}.py" for files in ("trace/*", "advice/*", "tensorboard/*", "terminal"))
LOG_LEVEL = "TORCH_PROFILER_LOG_LEVEL"  # torch-tb-profiler's own variable
MUCH_MEMORY, MOST_MEMORY = 2**30, 4 * 2**30  # bytes
TABLES, COUNTERS = ".tables.gz", ".counters.gz"  # the ends of the names of files next to a kept "profile"
BEGIN, END, FAR_US = b'"Iteration Start:', b'"Record Window End"', 24 * 3600 * 1000  # torch-tb-profiler's, in a trace
RESERVE = 2**26  # bytes of the limit of memory that a run of events may need while it is decoded
# Else pyarrow, where pandas finds it, takes up to 1 GiB at once, and numpy 40 MB for each further core of the machine.
RESERVE_NOTHING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
MOST_SHOWN = 2**28  # bytes of an answer before it is packed
PROFILE_SHARE = 32  # a profile may be this part of the memory's limit: TensorBoard's process unpickles it
MEMORY_VARIABLE, SECONDS_VARIABLE = "WALKTHROUGH_READER_MEMORY", "WALKTHROUGH_READER_SECONDS"

Kind = Literal["digest", "lanes", "event", "profile", "view"]


class Limits(NamedTuple):
    """What a child may take to read a trace: bytes of memory, and seconds of the CPU."""

    memory: int
    seconds: int = 300


@cache
def limits() -> Limits:
    """The limits, as the two variables of the environment change them: WALKTHROUGH_READER_MEMORY=8GB, say."""
    chosen = {"memory": MOST_MEMORY}
    with suppress(AttributeError, OSError, ValueError):  # the system does not say how much memory it has
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        chosen["memory"] = min(MOST_MEMORY, machine // 4)
    for name, variable, convert in (
        ("memory", MEMORY_VARIABLE, size),
        ("seconds", SECONDS_VARIABLE, whole_number(1, 10**6)),
    ):
        try:
            chosen |= {name: convert(os.environ[variable])} if variable in os.environ else {}
        except argparse.ArgumentTypeError as error:
            log.warning("%s is not used: %s", variable, error)
    return Limits(**chosen)


@dataclass(frozen=True)
class Question:
    """What is asked of a trace; after any change of the file it is another question. A child gets it as a line of JSON.

    size: -1 for a remote file, of which nothing else is known. options: the first and the last step of "lanes", each
    None where it is left to the answer; name, pid, tid, at_us and duration_us of an "event", see `reader.event`; of
    "profile" the names of the worker and its span's number or None; of "view" the file of its profile's counters.
    into: the file for the answer, which only the child is told.
    """

    kind: Kind
    path: str
    size: int
    mtime_ns: int
    options: tuple[Any, ...] = ()
    into: str = ""

    @classmethod
    def of(cls, kind: Kind, path: Path, options: tuple[Any, ...] = ()) -> "Question":
        """About a local file as it is now. Raises OSError, also where it is a link or a pipe by now."""
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise not_plain(status.st_mode, path)
        return cls(kind, str(path), status.st_size, status.st_mtime_ns, options)

    @cached_property
    def key(self) -> str:
        """The answer's: another one also for other code, and another Python, which pickles otherwise."""
        parts = (*vars(self).values(), sys.version_info[:2], _code())
        return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether it is about a file that is not on this machine."""
        return self.size < 0

    @property
    def file(self) -> str:
        """The trace's file name."""
        return Path(self.path).name


@cache
def _code() -> str:
    return code_hash(*CODE)


@dataclass(frozen=True)
class Outcome:
    """What a child says once it has written an answer, a line of JSON. reason: why it could not, else None."""

    reason: str | None = None
    changed: bool = False  # the trace was written to meanwhile, or has vanished
    temporary: bool = False  # another try may succeed, though the file stays the same
    unwritable: bool = False  # the trace is fine, but its answer cannot be written
    starved: bool = False  # there was not enough memory, some of which earlier traces may have left in use
    last: bool = False  # the child ends, since it would keep the memory that it has taken


def answer(question: Question) -> Outcome:
    """Write what is asked of a trace to the file `into`."""
    try:
        file = open_plain(question.path, no_links=not question.is_remote)
    except FileNotFoundError:
        return Outcome(changed=True)
    except OSError as error:
        return Outcome(printable(f"cannot be read: {error.strerror or error}", 300), temporary=True)
    failure, contents = None, {}
    with file:
        if not _is_asked_for(os.fstat(file.fileno()), question):
            return Outcome(changed=True)
        try:
            chunks = _Chunks(question.path, limits().memory, file)
            if question.kind == "profile":
                contents = _profile(chunks, question)
            else:
                content = _view(chunks, *question.options) if question.kind == "view" else _json(chunks, question)
                contents = {Path(question.into): content}
        except Exception as error:
            failure = error
    if _has_changed(question):
        return Outcome(changed=True)
    if failure:
        return _failure(question, failure)
    try:
        for path, content in contents.items():
            write_whole(path, content, 0o600)
    except InputError as error:
        return Outcome(printable(f"what was read of it is not kept: {error}", 300), unwritable=True)
    return Outcome()


class _Chunks(Chunks):
    """Those of a trace, while some memory is left: where there is none msgspec crashes instead of a MemoryError."""

    option = MEMORY_VARIABLE

    def __iter__(self) -> Iterator[bytes]:
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0] if resource is not None else -1
        for chunk in super().__iter__():
            if 0 <= limit - RESERVE < _of_process("VmData:"):
                raise MemoryError
            yield chunk


def _json(chunks: Chunks, question: Question) -> bytes:
    """The numbers of the Walkthrough tab's pages ("digest"), its timeline's events ("lanes"), or one's arguments."""
    from walkthrough.advice.gains import advise
    from walkthrough.advice.report import tables
    from walkthrough.trace.analysis import analyze
    from walkthrough.trace.reader import event
    from walkthrough.trace.timeline import lanes

    if question.kind == "event":
        name, pid, tid, at_us, duration_us = question.options
        facts = event(chunks, name, (pid, tid), at_us, duration_us)
        return gzip.compress(msgspec.json.encode({"arguments": facts}), 5)
    analysis = analyze(chunks)
    if question.kind == "lanes":
        findings = [(finding.what, finding.when) for finding in advise(analysis).findings]
        content: dict[str, Any] = lanes(analysis, findings, *question.options)
    else:
        content = tables(analysis)
    # a file's name, which warnings hold, need not be UTF-8
    content["warnings"] = [line.encode(errors="replace").decode() for line in content["warnings"]]
    text = msgspec.json.encode(content, enc_hook=lambda value: value.item())  # numpy's numbers
    if len(text) > MOST_SHOWN:
        raise InputError(f"its numbers take {len(text) / 1e6:.0f} MB: more than a page can show")
    return gzip.compress(text, 5)


def _profile(chunks: Chunks, question: Question) -> dict[Path, bytes]:
    """What PYTORCH_PROFILER shows: its views and `DistributedRunProfileData`, its `RunProfile`, counters for `_view`.

    The first two are pickled; the second is large, and is read for the worker that somebody looks at.

    torch-tb-profiler logs a line per odd event of a trace, thousands, unless its own variable sets the level.
    """
    from torch_tb_profiler import utils

    if LOG_LEVEL not in os.environ:
        utils.get_logger().setLevel(logging.CRITICAL)
    from torch_tb_profiler.profiler.data import DistributedRunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    from walkthrough.tensorboard import profiler_parser  # it patches the two

    worker, span = question.options
    data = profiler_parser.parse(worker, span, chunks)
    profile = RunGenerator(worker, span, data).generate_run_profile()
    counters = clean(",".join(profile.gpu_metrics or ()).encode())
    profile.gpu_metrics = None  # many, and the other pages show none
    into = Path(question.into)
    parts = {
        into.with_suffix(COUNTERS): counters,
        into.with_suffix(TABLES): _pickled(profile),
        into: _pickled((profile.views, DistributedRunProfileData(data))),  # last: the others are there once it is
    }
    return {path: gzip.compress(part, 1) for path, part in parts.items()}


def _pickled(part: object) -> bytes:
    """Raises InputError where it is more than TensorBoard's process should unpickle."""
    pickled = pickle.dumps(part, protocol=5)
    if len(pickled) > limits().memory // PROFILE_SHARE:
        taken = f"{len(pickled) / 1e6:.0f} MB"
        raise InputError(f"its operators take {taken}, which is too much: {MEMORY_VARIABLE} sets the limit")
    return pickled


def _view(chunks: Chunks, counters: str) -> bytes:
    """The trace for the Trace view of PYTORCH_PROFILER: JSON that every browser reads, gzipped.

    counters: the file of those of its GPUs, which become its first events. A mark of the recording's end that lies far
    behind its begin is left out, as torch-tb-profiler does: nothing else could be seen.
    """
    from walkthrough.trace.reader import as_number

    def write(events: list[bytes]) -> None:
        file.write((b"," if file.tell() > len(opening) and events else b"") + b",".join(events))

    def us(event: bytes) -> float:
        return as_number(values_of(msgspec.json.decode(event, type=Header), ["ts"]).get("ts"))

    output, header, begin, ends = io.BytesIO(), Header(), b"{}", []
    opening = b'{"traceEvents":['
    with gzip.open(open_plain(counters)) as first, gzip.open(output, "wb", 1) as file:
        file.write(opening + first.read())
        for run in whole_events(chunks, header, msgspec.Raw):
            events = list(map(bytes, run))
            begin = next((event for event in reversed(events) if BEGIN in event), begin)
            ends += [event for event in events if END in event]
            write([event for event in events if END not in event])
        write(ends[:-1] if ends and us(ends[-1]) - us(begin) > FAR_US else ends)
        fields = [b"," + msgspec.json.encode(name) + b":" + clean(bytes(value)) for name, value in header.items()]
        file.write(b"]" + b"".join(fields) + b"}")
    return output.getvalue()


def _has_changed(question: Question) -> bool:
    with suppress(OSError):
        return not _is_asked_for(os.lstat(question.path), question)
    return True


def _is_asked_for(status: os.stat_result, question: Question) -> bool:
    return question.is_remote or (status.st_size, status.st_mtime_ns) == (question.size, question.mtime_ns)


def _failure(question: Question, error: Exception) -> Outcome:
    if isinstance(error, InputError):
        reason = str(error)
        if question.kind == "profile":  # its page and its log name the file
            for begin in (f"{question.path} ", f"{Path(question.path).name} ", "is "):
                reason = reason.removeprefix(begin)
        return Outcome(printable(reason, 300))
    if is_out_of_memory(error):
        taken = f"{limits().memory / 2**30:.3g} GiB of memory"
        return Outcome(f"reading it takes more than {taken}: {MEMORY_VARIABLE} sets the limit", starved=True)
    if question.kind == "profile":
        log.warning("torch-tb-profiler", exc_info=error)
        reason = f"torch-tb-profiler cannot read it: {type(error).__name__}: {error}"
        return Outcome(printable(reason, 300), temporary=isinstance(error, OSError))
    log.error("%s of %s", question.kind, printable(question.path), exc_info=error)
    return Outcome("a defect: see TensorBoard's log", temporary=True)


def taken_memory() -> int:
    """The most bytes that this process has ever had in memory; 0 where the system does not say."""
    if peak := _of_process("VmHWM:"):  # the other number begins with what the parent had
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if resource else 0


def _of_process(field: str) -> int:
    """Bytes that Linux says of this process; 0 elsewhere."""
    with suppress(OSError, IndexError):  # it need not have the field
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition(field)[2].split()[0]) * 1024
    return 0


def _limit_memory() -> None:
    """Let what goes beyond the limit be a MemoryError. Of data, on Linux: a library's code and a file are none.

    What libraries reserve and do not use would count, too.
    """
    os.environ |= RESERVE_NOTHING
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no file of it
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        with suppress(OSError, ValueError):  # it may be lower already
            resource.setrlimit(kind, (limits().memory, resource.getrlimit(kind)[1]))


def _limited(lines: Iterable[str]) -> Iterator[str]:
    """The same; the system ends this process once what is done with a line takes its time of the CPU."""
    for line in lines:
        if resource is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            until = int(used.ru_utime + used.ru_stime) + 1 + limits().seconds
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_CPU, (until, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        yield line


def _end_with_input() -> None:
    """End this process, whatever it does, once its parent is gone, or has taken what a system does not limit."""
    poll = select.poll() if hasattr(select, "poll") else None  # not on Windows
    if poll:
        poll.register(0, 0)  # nothing but the end of the other side
    while not (poll and poll.poll(0)) and taken_memory() < limits().memory + MUCH_MEMORY:
        time.sleep(0.5)
    os._exit(1)


def serve(lines: Iterable[str], outcomes: TextIO) -> None:
    """Answer each line. Without Python's garbage collector, which takes half the time and finds nothing."""
    gc.disable()
    for line in lines:
        fields = json.loads(line)
        outcome = answer(Question(**fields | {"options": tuple(fields["options"])}))
        outcome = replace(outcome, last=outcome.starved or taken_memory() > MUCH_MEMORY)
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
    _limit_memory()
    threading.Thread(target=_end_with_input, daemon=True).start()
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(format="%(name)s: %(message)s")
    with open(0, encoding="utf-8", closefd=False) as lines:
        serve(_limited(lines), outcomes)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
