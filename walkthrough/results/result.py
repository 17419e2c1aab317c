"""The result of a run: what it holds, written whole or not at all, and read back with care."""

import errno
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

try:
    from msgspec import Meta  # pyright: ignore[reportAssignmentType]  # another of the same use is below
except ImportError:  # a step, which only writes its result, needs no more than torch, torchvision and tensorboard

    def Meta(**limits: float | str) -> tuple:  # the limits of a field, which nobody checks then
        return tuple(limits)


from walkthrough.results import privacy
from walkthrough.results.environment import Environment
from walkthrough.results.errors import InputError, printable
from walkthrough.results.files import open_new, open_plain

SCHEMA = 2
FILE = "result.json"
NOT_RUN_FILE = "not_run.json"  # in the place of a step's runs
NO_KERNELS = (  # in the notes of a run on a GPU
    "the trace holds no kernels: CUPTI, which records them, recorded nothing. A record with it is refused: record a "
    "further round, or run again"
)

MAX_JSON = 2**24  # bytes of a JSON file that is read

T = TypeVar("T")
# Far beyond what any machine does, and near enough that no sum, square or ratio of them overflows.
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-9, le=1e18)]
PositiveInt = Annotated[int, Meta(gt=0, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(pattern=r"^(?!\.\.?$)[^/\\\0]{0,255}$")]  # of a file or folder next to the result


@dataclass(frozen=True)
class Throughput:
    """Samples (images) per second: the median window, and all windows in order."""

    median: Positive
    windows: Annotated[list[Positive], Meta(min_length=1, max_length=100_000)]


@dataclass(frozen=True)
class StepTime:
    """Milliseconds per training step over all timed windows: median, 10th and 90th percentile."""

    median: Amount
    p10: Amount
    p90: Amount


@dataclass(frozen=True)
class PeakMemory:
    """Bytes, of rank 0, over the windows. GPU: `device.gpu_peak_bytes`. CPU: `tracing.cpu_peak_bytes`."""

    allocated: Size
    reserved: Size | None


@dataclass(frozen=True)
class GpuClocks:
    """What a GPU's clock, power and temperature were in the windows, as nvidia-smi says; None for what is not told.

    Medians over the samples, but the lowest clock and the highest temperature. samples: how many. sm_mhz,
    sm_mhz_lowest, sm_mhz_limit: the multiprocessors' clock, and the highest that this GPU has. power_watts,
    power_limit_watts. temperature: degrees Celsius. slowed_by: why the clock was lowered, "power limit" say.
    """

    samples: Size
    sm_mhz: Amount | None
    sm_mhz_lowest: Amount | None
    sm_mhz_limit: Amount | None
    power_watts: Amount | None
    power_limit_watts: Amount | None
    temperature: Amount | None
    slowed_by: list[str]


@dataclass(frozen=True)
class Setup:
    """What two measurements must share to be compared. data: None for one that trains on noise.

    cores: usable CPU cores, None on a GPU: a CPU's name does not say how many of its cores a machine has.
    """

    device: str
    cores: int | None
    data: str | None
    model: str
    image_size: int

    def differences(self, other: "Setup") -> list[str]:
        """What differs, in words: "model 'resnet18', not 'resnet50'"; [] for the same setup."""
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return [
            f"{name.replace('_', ' ')} {own!r}, not {their!r}"
            for name, own, their in pairs
            if own != their and not (name == "data" and None in (own, their))
        ]

    def matches(self, other: "Setup") -> bool:
        return not self.differences(other)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of one step, as `result.json` holds it.

    image_size: px; 0 where the data are no images. batch_size: samples per step and process. precision: the dtype that
    the model computes in, "bfloat16". workers, pin_memory: the loader's. world_size: processes that trained together.
    samples_per_second: of all of them; tokens_per_second: for what trains on tokens, else None. first_step_seconds: of
    the first training step, which compiles, loads kernels and chooses algorithms, and is in no window. step_ms: of
    single steps, whose median is less than `ms_per_step` where a few of them take long. batch_bytes:
    bytes that one batch moves to the device. needs: what the step's change needs and
    this run lacked, "a GPU", so that it is the program of the step before; None where the change has an effect. notes:
    what this device could not do. started: ISO 8601.
    """

    schema: int
    step: Name
    device: str
    device_type: str
    model: str
    data: str
    image_size: Size
    batch_size: PositiveInt
    precision: str
    workers: Size
    pin_memory: bool
    world_size: PositiveInt
    samples_per_second: Throughput
    tokens_per_second: Throughput | None = None
    first_step_seconds: Positive
    step_ms: StepTime
    peak_memory_bytes: PeakMemory
    batch_bytes: Size
    gpu_clocks: GpuClocks | None = None
    trace: Name
    needs: str | None = None
    notes: list[str]
    environment: Environment
    started: str

    @property
    def acts(self) -> bool:
        """Whether the step's change has an effect in this run; else it is noise that its speed differs by."""
        return self.needs is None

    @property
    def ms_per_step(self) -> float:
        """What a step takes in the median window: its samples over `samples_per_second`."""
        return self.batch_size * self.world_size / self.samples_per_second.median * 1e3

    @property
    def data_label(self) -> str:
        """For people: the data that it was trained on."""
        return data_label(self.data)

    @property
    def size_label(self) -> str:
        """For people: the size of the images, if any."""
        return size_label(self.image_size)

    @property
    def setup(self) -> Setup:
        """What runs must share to be compared step by step."""
        cores = self.environment.cores if self.device_type == "cpu" else None
        return Setup(self.device, cores, self.data, self.model, self.image_size)

    @property
    def lacks_kernels(self) -> bool:
        """Whether it ran on a GPU and its trace shows nothing of it."""
        return NO_KERNELS in self.notes

    def as_json(self) -> dict[str, Any]:
        """The object that `result.json` holds."""
        value = asdict(self)
        return {name: value[name] for name in value if value[name] is not None or name not in ("gpu_clocks", "needs")}


@dataclass(frozen=True)
class NotRun:
    """A step that could not be run: it ended with exit code 2. reason: the line it printed, without a full stop."""

    step: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step} was not run: {self.reason}"


def size_label(image_size: int) -> str:
    """For people: "96 px"; "text" where the data are no images."""
    return f"{image_size} px" if image_size else "text"


def data_label(source: str) -> str:
    """For people: the name of a data set, from a result's `data`."""
    return {"cifar10": "CIFAR-10", "stand-in": "stand-in data (not CIFAR-10)"}.get(source, source)


def write_result(path: str | Path, result: Result) -> None:
    """Write a `Result` to `path`: whole, or not at all."""
    write_json(path, result.as_json())


def write_json(path: str | Path, value: object) -> None:
    """Write a value as JSON to `path`: whole, or not at all. Raises InputError."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: str | Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write text or bytes to a file next to `path`, then rename it: nobody ever sees half a file.

    mode: who may read it. Raises InputError, also where something else than a file is there: a device would be gone.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a file; choose another name")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path):
        try:
            with open_new(partial, mode) as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn the system's errors about writing to `path` (no space, no permission, not a folder) into InputError."""
    try:
        yield
    except FileExistsError as error:  # of mkdir
        raise InputError(f"{error.filename or path} is a file: name a folder") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free some space there" if full else "choose another folder"
        raise InputError(f"cannot write {path}: {error.strerror or error}; {fix}") from error


def check_writable(folder: str | Path) -> None:
    """Make a folder, if it is not there. Raises InputError where nothing can be written into it."""
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    with writing(folder), tempfile.TemporaryFile(dir=folder):
        pass


def read_result(path: str | Path, no_links: bool = False) -> Result:
    """Read one `result.json`; no_links: see `read_json`. Raises InputError that names it and what is wrong with it."""
    return read_as(Result, path, SCHEMA, no_links)


def step_time(step_ms: Sequence[float]) -> StepTime:
    """The `StepTime` of steps that took so many ms each."""
    deciles = statistics.quantiles(step_ms, n=10, method="inclusive") if len(step_ms) > 1 else step_ms
    return StepTime(statistics.median(step_ms), deciles[0], deciles[-1])


def read_json(path: str | Path, no_links: bool = False) -> dict[str, Any]:
    """The JSON object in a file, its numbers finite. Raises InputError that names the file and what is wrong.

    no_links: as of a file that others may have put there, see `open_plain`; else it may be a link.
    """

    def finite(text: str) -> float:
        number = float(text)
        if not abs(number) < float("inf"):
            raise ValueError(f"{text} is not a finite number")
        return number

    try:
        with open_plain(path, follow=not no_links, no_links=no_links) as file:
            text = file.read(MAX_JSON + 1)
        if len(text) > MAX_JSON:
            raise InputError(f"{path} is larger than {MAX_JSON >> 20} MiB: nothing that this project writes is")
        value = json.loads(text.decode(), parse_float=finite, parse_constant=finite)
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a pair of letters can be neither printed nor sent
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: not JSON") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is broken: not an object")
    return value


def read_as(kind: type[T], path: str | Path, schema: int, no_links: bool = False) -> T:
    """Read a JSON file of this schema as a dataclass; see `typed`. Raises InputError that names the file.

    no_links: see `read_json`.
    """
    value = read_json(path, no_links)
    if value.get("schema") != schema:
        raise InputError(
            f"{path} has schema {printable(repr(value.get('schema')), 40)}; this version reads schema {schema}: "
            "move it away and measure again"
        )
    return typed(kind, value, path)


def typed(kind: type[T], value: dict[str, Any], path: str | Path) -> T:
    """JSON's objects and lists as a dataclass, checked by its annotations (types, and limits by msgspec's `Meta`).

    path: the file that the value is from. Raises InputError that names it and what is wrong.
    """
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except ValueError as error:  # msgspec's ValidationError is one
        raise InputError(f"{path} is broken: {error}") from error


def read_results(logdir: str | Path) -> tuple[list[Result], list[str]]:
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


def run_files(folder: str | Path) -> list[Path]:
    """The files `runs/1.json`, `runs/2.json` … of a recorded step's folder, in order."""
    files = [path for path in Path(folder).glob("runs/*.json") if path.stem.isdecimal()]
    return sorted(files, key=lambda path: int(path.stem))


def read_runs(folder: str | Path) -> list[Result]:
    """The results of a recorded step run by run; [] where the folder holds the run of one call only."""
    return [read_result(path) for path in run_files(folder)]


def write_not_run(folder: str | Path, step: str, reason: str) -> None:
    """Write `not_run.json` into a step's folder, which is made; names of this machine's folders are left out."""
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / NOT_RUN_FILE, asdict(NotRun(step, privacy.reason(reason))))


def read_not_run(path: str | Path) -> NotRun:
    """The `NotRun` in a file. Raises InputError that names it where it is broken."""
    not_run = typed(NotRun, read_json(path), path)
    if not_run.step != Path(path).parent.name:
        raise InputError(f"{path} is broken: it is of {printable(not_run.step, 80)}")
    return not_run


def steps_not_run(folder: str | Path) -> list[NotRun]:
    """The steps of a record that were not run, in order."""
    return [read_not_run(path) for path in sorted(Path(folder).glob(f"[!.]*/{NOT_RUN_FILE}"))]
