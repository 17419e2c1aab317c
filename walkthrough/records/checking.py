"""Whether a record is what `walkthrough record` writes, down to the byte, and its traces of what was measured.

Every figure is computed again from the runs, and the page from the figures. The runs themselves are compared with the
trace: its GPU, its shapes, its copies, its memory and, roughly, its time. Nothing here proves that a machine is as fast
as its owner says; it finds what was edited, mixed up or broken, and texts that reveal whose machine it was.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from walkthrough.compare.merging import merged, traced
from walkthrough.records import allowed, header, page, recording
from walkthrough.records.header import Header, read_header
from walkthrough.records.layout import NO_PAGE, record_files
from walkthrough.records.written import compact, indented, parsed, read, read_json, unpacked
from walkthrough.results.errors import InputError, printable
from walkthrough.results.events import scalars
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import NOT_RUN_FILE, Result, Setup, read_not_run, read_result, run_files

WINDOWS = 5  # of a run, at least
FIX = "leave it as `walkthrough record` wrote it, or record it anew"
OF_ALL_RUNS = (
    "schema", "device_type", "batch_size", "batch_bytes", "precision", "workers", "pin_memory", "world_size", "needs"
)  # fmt: skip


def check(folder: Path) -> int:
    """Verify a record's folder and print what was verified, a line per step; the exit code. Raises InputError."""
    _, lines = verify(folder)
    print(*lines, "ok", sep="\n")
    return 0


def verify(folder: Path, add_page: bool = False, fully: bool = True) -> tuple[Header, list[str]]:
    """(`record.json`, what was verified: a line per step and study) of a record that is as it should be.

    add_page: write the page where it is missing and all else is well, as of a record that was cut off.
    Not fully: without what needs msgspec, the comparison of traces with figures.
    Raises InputError for anything that is not as it should be: the first problem in words, and how many more there are.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name a record's folder; unzip a packed one first")
    if not (folder / header.FILE).exists():
        raise InputError(f"{folder} is not a record: it holds no {header.FILE}")
    try:
        _, problems = record_files(folder)
        if problems != [NO_PAGE]:
            refuse(folder, problems)
        elif not add_page:
            refuse(folder, problems, f"`python -m walkthrough record --pack {folder}` writes it")
        if fully:
            import_module("msgspec")  # checks the types of what is read
        return _verified(folder, fully)
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def refuse(folder: Path, problems: Sequence[str], fix: str = FIX) -> None:
    """Raise InputError where there are problems with the record: the first in words, of the others how many."""
    if problems:
        first = printable(problems[0].replace(f"{folder}/", ""), 300)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise InputError(f"{folder}: {first}{more}; {fix}")


def _verified(folder: Path, fully: bool) -> tuple[Header, list[str]]:
    from studies import study

    problems, lines, results = [], [], []
    shared = _header(folder / header.FILE)
    steps = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    counts: set[int] = set()  # of runs, of steps whose change has an effect: the others run once
    for step in steps:
        with _collected(problems):
            if (step / NOT_RUN_FILE).exists():
                lines.append(_of_missing(step))
            else:
                result, line = _of_step(step, shared, problems, fully)
                results.append(result)
                lines.append(line)
                if result.acts:
                    counts.add(len(run_files(step)))
    if len(counts) > 1:
        problems.insert(0, f"the steps have different numbers of runs ({', '.join(map(str, sorted(counts)))})")
    if results:
        for path, name in sorted((folder / file, name) for file, name in study.files().items()):
            with _collected(problems):
                if path.exists():
                    lines.append(_of_study(path, name, results[0].setup))
    if not problems and not recording.interleaved(folder):
        problems.append("its runs are not interleaved: some were made after later ones")
    refuse(folder, problems)
    if not (folder / page.FILE).exists():
        page.write_page(folder)
    _check_page(folder)
    return shared, lines


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems.append(str(error))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check_page(folder: Path) -> None:
    text, own = read(folder / page.FILE), page.page(folder).encode()
    if text != own:
        lines = set(own.splitlines())
        other = next((line for line in text.splitlines() if line not in lines), b"")
        holds = f": it holds {printable(other.decode(errors='replace'), 60)!r}" if other else ""
        refuse(folder, [f"{page.FILE} is not the page that the figures give{holds}"])


def _header(path: Path) -> Header:
    value, shared = read_json(path), read_header(path)
    if value != shared.as_json():
        raise InputError(f"{path} holds fields that no record has")
    if shared.settings.quick:
        raise InputError(f"{path}: these are smoke runs (--quick)")
    return shared


def _of_study(path: Path, name: str, setup: Setup) -> str:
    """What was verified of a study's file. Raises InputError where it is broken, rough or of another setup."""
    from studies import study

    read_json(path)
    result = study.read_study(name, path.parent)
    if result and result.quick:
        raise InputError(f"{path} is of a smoke run (--quick)")
    if differences := result.setup.differences(setup) if result else []:
        raise InputError(f"{path} is of another setup than the record: {differences[0]}")
    return f"{path.name}: of the same device, model and image size"


def _of_step(step: Path, shared: Header, problems: list[str], fully: bool) -> tuple[Result, str]:
    """Note what is wrong with a step's runs, their sum, trace and events; (a result of the step, what was verified)."""
    [path], [events] = step.glob("*.pt.trace.json.gz"), step.glob("events.*")
    results, wrong = [], []
    for file in run_files(step):
        value, result = read_json(file), read_result(file)
        results.append(result)
        wrong += [f"{file}: {problem}" for problem in _of_run(result, step.name, path.name, shared)]
        if value != result.as_json():
            wrong.append(f"{file} holds fields that no result has")
    for name in OF_ALL_RUNS:
        if len({getattr(result, name) for result in results}) > 1:
            wrong.append(f"{step.name}: {name} differs from run to run")
    first = results[0]
    if wrong:
        problems += wrong
        return first, ""
    whole = merged(results)
    if read(step / RESULT_FILE) != indented(whole.as_json()).encode():
        problems.append(f"{step / RESULT_FILE} is not what its runs give")
    if not events.name.endswith(f".{path.name.removesuffix('.pt.trace.json.gz')}"):
        problems.append(f"{events} is not of the run that {path.name} is of")
    content = read(events)
    with _named(events):
        points = scalars(content)
    own = traced(results)
    measured = {
        "median/images_per_second": own.samples_per_second.median,
        "median/step_ms": own.step_ms.median,
        "first_step_seconds": own.first_step_seconds,
    }
    for name, value in measured.items():
        if abs(points.get(name, 0.0) - value) > 1e-5 * value:  # events hold float32
            problems.append(f"{events} does not hold run {results.index(own) + 1}'s {name.removeprefix('median/')}")
    windows = sum(len(result.samples_per_second.windows) for result in results)
    of_trace = _traced(path, whole, problems, fully)
    return first, f"{step.name}: {len(results)} runs, {windows} windows, {of_trace}, {len(points)} kinds of scalars"


def _of_missing(step: Path) -> str:
    """Why a step was not run. Raises InputError where its file is not as `record` writes it."""
    read_json(step / NOT_RUN_FILE)
    missing = read_not_run(step / NOT_RUN_FILE)
    return f"{missing.step}: not run: {missing.reason}"


def _of_run(result: Result, step: str, trace: str, shared: Header) -> Iterator[str]:
    """What is wrong with one run."""
    settings, speeds, times = shared.settings, result.samples_per_second, result.step_ms
    samples = result.batch_size * result.world_size
    for name, value in (("schema", shared.schema), ("step", step), ("trace", trace)):
        if getattr(result, name) != value:
            yield f"{name} is {getattr(result, name)!r}, not {value!r}"
    setup = Setup(settings.device, result.setup.cores, settings.data, settings.model, settings.image_size)
    yield from result.setup.differences(setup)
    own = header.shared(result.environment)
    for name in own | shared.environment:
        if own.get(name) != shared.environment.get(name):
            yield f"{name} is {own.get(name)!r}, in {header.FILE} it is {shared.environment.get(name)!r}"
    if result.device_type not in ("cuda", "cpu"):
        yield f"device_type is {result.device_type!r}"
    memory = result.peak_memory_bytes
    reserved = memory.allocated if memory.reserved is None else memory.reserved
    moved = result.batch_bytes or result.batch_size  # 0: the data is on the device already
    if not (0 < result.batch_size <= moved < 2**53 and 0 < memory.allocated <= reserved < 2**53):
        yield "a batch or the memory has an impossible size"
        return
    if (memory.reserved is None) != (result.device_type == "cpu"):
        yield "memory is reserved on a GPU, and only there"
    if len(speeds.windows) < WINDOWS:
        yield f"it has {len(speeds.windows)} windows, fewer than {WINDOWS}"
    for unit, timed in (("images/s", speeds), ("tokens/s", result.tokens_per_second)):
        median = statistics.median(timed.windows) if timed else 0.0
        if timed and abs(timed.median - median) > 1e-9 * median:
            yield f"its median, {timed.median:.6g} {unit}, is not that of its windows, {median:.6g}"
    if not 0 < times.p10 <= times.median <= times.p90:
        yield "step_ms is not positive, or not in order"
    elif not times.median / 3 < 1e3 * samples / speeds.median < 3 * times.p90:
        # A window's mean is no step's median: batches that workers load come in bursts, most at once, then a long wait.
        yield f"{speeds.median:.6g} images/s and {times.median:.6g} ms per step of {samples} do not fit"


def _traced(path: Path, result: Result, problems: list[str], fully: bool) -> str:
    """Compare a step's trace with its figures; note what does not fit, and return what was verified."""
    with _named(path):
        text = unpacked(read(path))
    trace = parsed(path, text, compact)
    problems += [f"{path} holds {line}" for line in allowed.kept(trace)[1]]
    if trace.get("traceName") != path.stem:
        problems.append(f"{path} is named otherwise inside")
    if not fully:
        return "a trace that was not compared with them"
    from walkthrough.records.plausibility import contradictions  # msgspec and numpy
    from walkthrough.trace.analysis import analyze

    analysis = analyze(path)
    problems += [f"{path}: {problem}" for problem in contradictions(trace, analysis, result)]
    where = " and ".join(sorted({gpu.name or "?" for gpu in analysis.gpus})) or "CPU"
    return f"a trace of {len(analysis.steps.names)} steps on {printable(where, 80)}"
