"""Whether a record is what `python -m common record` writes, down to the byte, and its traces of what was measured.

Every figure is computed again from the runs, and the page from the figures. The runs themselves are held against the
trace: its GPU, its shapes, its copies, its memory and, roughly, its time. Nothing here proves that a machine is as fast
as its owner says; it finds what was edited, mixed up, broken, or would give somebody away.
"""

import json
import re
import statistics
import typing
import zlib
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from common import record
from common.errors import InputError, printable
from common.reference import page as reference_page
from common.reference import recording
from common.reference.plausibility import differences
from common.run import not_run, privacy
from common.run.events import scalars
from common.studies import study

UNPACKED_LIMIT = 40_000_000  # bytes of a trace's JSON: several times what a trace of `TRACE_LIMIT` unpacks to
WINDOWS = 5  # of a run, at least
SETTINGS = {
    "device": str, "data": str, "model": str, "image_size": int, "batch_size": int, "workers": int, "seed": int,
    "quick": bool,
}  # fmt: skip
MARKUP = re.compile(r"[<>\[\]`|\\]")  # would be more than text on the pages that show the record


def verify(folder):
    """Look at a record's folder, in which all files are there that should be.

    Returns (settings or None, what was verified: a line a step, what is wrong: a line each).
    """
    folder, problems, lines = Path(folder), [], []
    steps = sorted(path for path in folder.iterdir() if path.is_dir())
    with _collected(problems):
        header = _json(folder / recording.FILE)
        problems += _of_header(header)
    if not problems:
        without = [step for step in steps if (step / not_run.FILE).exists()]
        numbers = sorted({len(record.run_files(step)) for step in steps if step not in without})
        if len(numbers) > 1:
            problems.append(f"the steps have different numbers of runs ({', '.join(map(str, numbers))})")
        for step in steps:
            with _collected(problems):
                lines.append(_of_missing(step) if step in without else _of_step(step, header, problems))
        for path in sorted(folder / name for name in study.READERS):
            with _collected(problems):
                if path.exists():
                    _json(path)
                    study.read_study(path, header["settings"])
                    lines.append(f"{path.name}: of the same device, model and image size")
        if not problems and not recording.interleaved(folder):
            problems.append("its runs are not interleaved: some were made after later ones")
    with _collected(problems):
        _check_page(folder, bool(problems))
    plain = [problem.replace(f"{folder}/", "") for problem in problems]
    return (None if problems else header["settings"]), lines, plain


def unpacked(packed):
    """The one gzip member's bytes, all in all at most `UNPACKED_LIMIT`, with no name or date of its own beside them."""
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(packed, UNPACKED_LIMIT)
    except zlib.error as error:
        raise InputError(f"it is no gzip file, or damaged ({error})") from error
    if inflate.unconsumed_tail:
        raise InputError(f"it unpacks to more than {UNPACKED_LIMIT / 1e6:.0f} MB")
    if not inflate.eof or inflate.unused_data or packed[3:8] != bytes(5):
        raise InputError("it is cut off, or packed otherwise than `record` does")
    return text


@contextmanager
def _collected(problems):
    try:
        yield
    except InputError as error:
        problems.append(str(error))


def _check_page(folder, figures_are_wrong):
    path = folder / reference_page.FILE
    text = path.read_bytes()
    if private := privacy.private_texts(text.decode(errors="replace")):
        raise InputError(f"{path} holds {private[0]}")
    if not figures_are_wrong and text != reference_page.page(folder).encode():
        raise InputError(f"{path} is not the page that the figures give")


def _json(path):
    """The object in a JSON file that is written as `record` does: so nothing hides in a key that is there twice."""
    value = _parsed(path, path.read_bytes(), _indented)
    if private := privacy.private_texts(value):
        raise InputError(f"{path} holds {private[0]}")
    if odd := sorted(filter(_is_odd, set.union(*privacy.texts(value)))):
        raise InputError(f"{path} holds an odd text ({printable(odd[0], 40)})")
    return value


def _is_odd(text):
    """Whether a text could do more than be read, in a terminal or on a page."""
    return printable(text, 300) != text or MARKUP.search(text) is not None


def _indented(value):
    """JSON's text as `record` writes results."""
    return json.dumps(value, indent=2) + "\n"


def _compact(value):
    """JSON's text as `record` writes traces."""
    return json.dumps(value, separators=(",", ":"))


def _parsed(path, text, written):
    """The object that JSON text (bytes) holds; InputError unless `written(object)` is that very text."""

    def refuse(literal):
        raise ValueError(f"{literal} is no number")

    try:
        value = json.loads(text.decode(), parse_constant=refuse)
        same = written(value).encode() == text
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else printable(error, 80)
        raise InputError(f"{path} is broken: not JSON ({why})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is broken: not an object")
    if not same:
        raise InputError(f"{path} is not as `record` writes it")
    return value


def _of_header(header):
    environment = typing.get_type_hints(record.Environment)
    del environment["git"]
    problems = _fields(
        header, {"schema": int, "settings": dict, "environment": dict, "code": str}, f"{recording.FILE}: "
    )
    if problems:
        return problems
    problems += _fields(header["settings"], SETTINGS, f"{recording.FILE}: settings.")
    problems += _fields(header["environment"], environment, f"{recording.FILE}: environment.")
    if header["schema"] != record.SCHEMA:
        problems.append(f"{recording.FILE} has schema {header['schema']}; this version reads schema {record.SCHEMA}")
    if not re.fullmatch("[0-9a-f]{64}", header["code"]):
        problems.append(f"{recording.FILE}: code is no SHA-256")
    if not problems:
        settings = header["settings"]
        problems += [
            f"{recording.FILE}: {name} is not from {low} to {2**32}"
            for name, low in (("image_size", 1), ("batch_size", 1), ("workers", 0), ("seed", 0))
            if not low <= settings[name] <= 2**32
        ]
        if settings["quick"]:
            problems.append(f"{recording.FILE}: these are smoke runs (--quick)")
        if settings["data"] not in ("cifar10", "stand-in"):
            problems.append(f"{recording.FILE}: data is {settings['data']!r}")
    return problems


def _fields(value, kinds, where):
    """What speaks against an object's having just these fields, of these types."""
    problems = [f"{where}{name} is missing" for name in kinds if name not in value]
    problems += [f"{where}{name} is unknown" for name in value if name not in kinds]
    for name, kind in kinds.items():
        if name in value and (not isinstance(value[name], kind) or isinstance(value[name], bool) != (kind is bool)):
            problems.append(f"{where}{name} has a wrong type")
    return problems


def _of_step(step, header, problems):
    """Note what is wrong with a step's runs, their sum, their trace and their events; say what was looked at."""
    [path], [events] = step.glob("*.pt.trace.json.gz"), step.glob("events.*")
    results, wrong = [], []
    for file in record.run_files(step):
        value, result = _json(file), record.read_result(file)
        results.append(result)
        wrong += [f"{file}: {each}" for each in _of_run(result, step.name, path.name, header)]
        if value != asdict(result):
            wrong.append(f"{file} holds fields that no result has")
    for name in ("device_type", "batch_size", "batch_bytes"):
        if len({getattr(result, name) for result in results}) > 1:
            wrong.append(f"{step.name}: {name} differs from run to run")
    if wrong:
        problems += wrong
        return ""
    merged = record.merged(results)
    if (step / record.FILE).read_bytes() != _indented(asdict(merged)).encode():
        problems.append(f"{step / record.FILE} is not what its runs give")
    if not events.name.endswith(f".{path.name.removesuffix('.pt.trace.json.gz')}"):
        problems.append(f"{events} is not of the run that {path.name} is of")
    content = events.read_bytes()
    problems += [f"{events} holds {private}" for private in privacy.private_texts(content)]
    with _named(events):
        found = scalars(content)
    measured = {"images_per_second": results[0].samples_per_second.median, "step_ms": results[0].step_ms.median}
    for name, value in measured.items():
        if abs(found.get(f"median/{name}", 0.0) - value) > 1e-5 * value:  # events hold float32
            problems.append(f"{events} does not hold the first run's {name}")
    windows = sum(len(result.samples_per_second.windows) for result in results)
    traced = _traced(path, merged, problems)
    return f"{step.name}: {len(results)} runs, {windows} windows, {traced}, {len(found)} kinds of scalars"


def _of_missing(step):
    """Say why a step was not run. Raises InputError where its file is not as `record` writes it."""
    path = step / not_run.FILE
    _json(path)
    made = not_run.read(path)
    return f"{made.step}: not run: {made.reason}"


@contextmanager
def _named(path):
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _of_run(result, step, trace, header):
    """What is wrong with one run."""
    settings, speeds, times = header["settings"], result.samples_per_second, result.step_ms
    expected = {"step": step, "trace": trace} | {k: settings[k] for k in ("device", "data", "model", "image_size")}
    for name, value in expected.items():
        if getattr(result, name) != value:
            yield f"{name} is {getattr(result, name)!r}, not {value!r}"
    for name, value in header["environment"].items():
        if getattr(result.environment, name) != value:
            yield f"{name} is {getattr(result.environment, name)!r}, in {recording.FILE} it is {value!r}"
    if result.device_type not in ("cuda", "cpu"):
        yield f"device_type is {result.device_type!r}"
    if not re.fullmatch("[0-9a-f]{12,40}", result.environment.git or "0" * 12):
        yield "git is no commit"
    try:
        datetime.fromisoformat(result.started)
    except ValueError:
        yield "started is no time"
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
    median = statistics.median(speeds.windows)
    if abs(speeds.median - median) > 1e-9 * median:
        yield f"its median, {speeds.median:.6g} images/s, is not that of its windows, {median:.6g}"
    if not 0 < times.p10 <= times.median <= times.p90:
        yield "step_ms is not positive, or not in order"
    elif not times.median / 3 < 1e3 * result.batch_size / speeds.median < 3 * times.p90:
        # A window's mean is no step's median: batches that workers load come in bursts, most at once, then a long wait.
        yield f"{speeds.median:.6g} images/s and {times.median:.6g} ms a step of {result.batch_size} do not fit"


def _traced(path, result, problems):
    """Hold a step's trace against its figures; note what does not fit, and say what was looked at."""
    from common.trace.summary import summarize  # msgspec and numpy

    with _named(path):
        text = unpacked(path.read_bytes())
    trace = _parsed(path, text, _compact)
    problems += [f"{path} holds {private}" for private in privacy.private_texts(trace)]
    if trace.get("traceName") != path.stem:
        problems.append(f"{path} is named otherwise inside")
    if b'"Call stack"' in text:
        problems.append(f"{path} holds call stacks: no record does")
    summary = summarize(path)
    problems += [f"{path}: {wrong}" for wrong in differences(trace, summary, result)]
    where = " and ".join(sorted({gpu.name or "?" for gpu in summary.gpus})) or "CPU"
    return f"a trace of {len(summary.steps.names)} steps on {printable(where, 80)}"
