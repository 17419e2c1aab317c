"""The result of a run: what it holds, written whole or not at all, and read back with care."""

import errno
import json
import os
import platform
import statistics
import tempfile
import types
import typing
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path

from common import machine
from common.errors import InputError

SCHEMA = 1
FILE = "result.json"


@dataclass(frozen=True)
class Throughput:
    """Images per second: the median window, and all windows in order."""

    median: float
    windows: list[float]


@dataclass(frozen=True)
class StepTime:
    """Milliseconds per training step over all timed windows: median, 10th and 90th percentile."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True)
class PeakMemory:
    """Bytes. GPU: the caching allocator's peaks over the timed windows. CPU: see `session.cpu_peak_bytes`."""

    allocated: int
    reserved: int | None


@dataclass(frozen=True)
class Environment:
    """Versions and hardware a run was made with; None where this machine has no such thing."""

    torch: str
    cuda: str | None
    driver: str | None
    python: str
    platform: str
    cpu: str
    cores: int
    git: str | None


@dataclass(frozen=True)
class Result:
    """One run of one step, as `result.json` holds it."""

    schema: int
    step: str
    device: str
    device_type: str
    model: str
    data: str
    image_size: int
    batch_size: int
    samples_per_second: Throughput
    step_ms: StepTime
    peak_memory_bytes: PeakMemory
    batch_bytes: int
    trace: str
    notes: list[str]
    environment: Environment
    started: str

    @property
    def data_label(self):
        """For people: the data that it was trained on."""
        return "CIFAR-10" if self.data == "cifar10" else "stand-in data (not CIFAR-10)"

    @property
    def ladder(self):
        """What runs must share to be compared step by step."""
        cores = self.environment.cores if self.device_type == "cpu" else None  # a CPU's name does not tell its size
        return self.device, cores, self.data, self.model, self.image_size


def environment(torch, cuda):
    """The `Environment` of this process, given the versions that only torch can tell."""
    return Environment(
        torch=str(torch),
        cuda=cuda,
        driver=machine.driver_version(),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=machine.cpu_name(),
        cores=machine.usable_cores(),
        git=machine.git_revision(),
    )


def merged(results):
    """One result out of several runs of the same step: how a recorded step is summed up.

    All windows of all runs, in order, and their median; of step times, peaks and bytes the median over the runs;
    every note once. The rest is the first run's.
    """

    def median(pick):
        return statistics.median(pick(result) for result in results)

    def whole(pick):
        return None if pick(results[0]) is None else int(median(pick))

    windows = [speed for result in results for speed in result.samples_per_second.windows]
    return replace(
        results[0],
        samples_per_second=Throughput(statistics.median(windows), windows),
        step_ms=StepTime(*(median(lambda r, name=f.name: getattr(r.step_ms, name)) for f in fields(StepTime))),
        peak_memory_bytes=PeakMemory(
            whole(lambda r: r.peak_memory_bytes.allocated), whole(lambda r: r.peak_memory_bytes.reserved)
        ),
        batch_bytes=whole(lambda r: r.batch_bytes),
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
    )


def write_result(path, result):
    """Write a `Result` to `path`: whole, or not at all."""
    write_whole(path, json.dumps(asdict(result), indent=2) + "\n")


def write_whole(path, content):
    """Write text or bytes beside, then rename: nobody ever sees half a file under its name. Raises InputError."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path):
        try:
            with open(beside, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def writing(path):
    """Turn what the system says against writing to `path` (no room, no permission, not a folder) into InputError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space there" if full else "choose another folder"
        raise InputError(f"cannot write {path}: {error.strerror or error}; {mend}") from error


def check_writable(folder):
    """Raise InputError where nothing can be written into the folder."""
    with writing(folder), tempfile.TemporaryFile(dir=folder):
        pass


def read_result(path):
    """Read one `result.json`. Raises InputError that names the file and what is wrong with it."""
    result = read_as(Result, path)
    speeds = result.samples_per_second
    if not speeds.windows or min(speeds.median, *speeds.windows) <= 0:
        raise InputError(f"{path} is broken: samples_per_second must hold windows, and positive numbers")
    return result


def step_time(step_ms):
    """The `StepTime` of steps that took so many ms each."""
    deciles = statistics.quantiles(step_ms, n=10, method="inclusive") if len(step_ms) > 1 else step_ms
    return StepTime(statistics.median(step_ms), deciles[0], deciles[-1])


def read_as(kind, path):
    """Read a JSON file of this schema as a dataclass. Raises InputError that names the file and what is wrong."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: not JSON") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        schema = value.get("schema") if isinstance(value, dict) else None
        raise InputError(f"{path} has schema {schema!r}; this version reads schema {SCHEMA}")
    try:
        return _typed(kind, value, "")
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path} is broken: {error}") from error


def read_results(logdir):
    """All results in the step folders of `logdir`, by name, and the problems met: (results, messages).

    Raises InputError where there is no such folder.
    """
    logdir = Path(logdir)
    if not os.path.isdir(logdir):
        raise InputError(
            f"{logdir} is {'a file' if os.path.isfile(logdir) else 'not there'}: name a folder of runs, such as logs"
        )
    results, problems = [], []
    for path in sorted(logdir.glob(f"*/{FILE}")):
        if path.parent.name.startswith("."):
            continue
        try:
            results.append(read_result(path))
        except InputError as error:
            problems.append(str(error))
    return results, problems


def run_files(folder):
    """The files `runs/1.json`, `runs/2.json` … of a recorded step's folder, in order."""
    files = [path for path in Path(folder).glob("runs/*.json") if path.stem.isdecimal()]
    return sorted(files, key=lambda path: int(path.stem))


def read_runs(folder):
    """The results of a recorded step run by run; [] where the folder holds the run of one call only."""
    return [read_result(path) for path in run_files(folder)]


def _typed(kind, value, where):
    """JSON's `value` as `kind`: a dataclass, a plain type, a list or "or None" of one. ValueError names `where`."""
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'the file'} is not an object")
        hints = typing.get_type_hints(kind)
        prefix = f"{where}." if where else ""
        missing = [name for name in hints if name not in value]
        if missing:
            raise ValueError(f"{prefix}{missing[0]} is missing")
        return kind(**{name: _typed(hint, value[name], prefix + name) for name, hint in hints.items()})
    if typing.get_origin(kind) is list:
        if not isinstance(value, list):
            raise ValueError(f"{where} is not a list")
        return [_typed(typing.get_args(kind)[0], item, where) for item in value]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return None if value is None else _typed(typing.get_args(kind)[0], value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}, not {kind.__name__}")
    if kind is float and not abs(value) < float("inf"):
        raise ValueError(f"{where} is {value!r}")
    return value
