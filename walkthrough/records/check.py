"""Whether a record is whole: its files and their checksums, the schema, sums, interleaved rounds, no private texts.

What follows from the runs, a step's sum and the page, is computed again. Checksums show what was edited since a record
was made; nothing here proves that a machine is as fast as its owner says. `pack` writes a record as one file.
"""

import gzip
import hashlib
import json
import re
import statistics
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from walkthrough.compare import roofs, study
from walkthrough.compare.rounds import merged
from walkthrough.records import allowed, record
from walkthrough.records.record import LIMIT, Header, read_header
from walkthrough.results import privacy
from walkthrough.results.errors import InputError, printable
from walkthrough.results.events import scalars
from walkthrough.results.files import open_plain
from walkthrough.results.result import FILE as RESULT_FILE
from walkthrough.results.result import (
    NOT_RUN_FILE,
    Result,
    Setup,
    read_not_run,
    read_result,
    run_files,
    write_whole,
)

WINDOWS = 5  # of a run, at least
UNPACKED_LIMIT = 40_000_000  # bytes of a trace's JSON: several times what a trace of `LIMIT` unpacks to
MARKUP = re.compile(r"[<>\[\]`|\\]")  # would be more than text on the pages that show the record
# Left by `record` and by studies: locks, measurements, what was not whole when a call was killed.
LEFT = re.compile(r"\.[a-z_]+\.(lock|json)|\.running(/.*)?|(.*/)?\.[^/]+\.[0-9]+\.partial")
FIX = "leave it as `walkthrough record` wrote it, or record it anew"
OF_ALL_RUNS = (
    "schema", "device_type", "batch_size", "batch_bytes", "precision", "workers", "pin_memory", "world_size", "needs",
    "setup",
)  # fmt: skip


def check(folder: Path) -> int:
    """Verify a record's folder and print what was verified, a line per step; the exit code. Raises InputError."""
    _, lines, _ = verify(folder)
    print(*lines, "ok", sep="\n")
    return 0


def verify(folder: Path, finish: bool = False) -> tuple[Header, list[str], list[str]]:
    """(`record.json`, what was verified: a line per step and study, the names of its files) of a record that is whole.

    finish: of a record that was cut off, bring each step to what its runs give first, and write the page.
    Raises InputError for anything that is not as it should be: the first problem in words, and how many more there are.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name a record's folder; unzip a packed one first")
    if not (folder / record.FILE).exists():
        raise InputError(f"{folder} is not a record: it holds no {record.FILE}")
    try:
        return _verified(folder, finish)
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def refuse(folder: Path, problems: Sequence[str], fix: str = FIX) -> None:
    """Raise InputError where there are problems with the record: the first in words, of the others how many."""
    if problems:
        first = printable(problems[0].replace(f"{folder}/", ""), 300)
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise InputError(f"{folder}: {first}{more}; {fix}")


def _verified(folder: Path, finish: bool) -> tuple[Header, list[str], list[str]]:
    problems, lines, results, names = [], [], [], {record.FILE, record.PAGE}
    shared = _header(folder / record.FILE)
    there = _files(folder)
    refuse(folder, [f"{name} is a link" for name, path in there.items() if path.is_symlink()])
    if finish and shared.files is None:
        record.complete(folder)
        there = _files(folder)
    for step in [path for name, path in there.items() if path.is_dir() and "/" not in name]:
        with _collected(problems):
            if (step / NOT_RUN_FILE).exists():
                names.add(f"{step.name}/{NOT_RUN_FILE}")
                value, not_run = read_json(step / NOT_RUN_FILE), read_not_run(step / NOT_RUN_FILE)
                if value != asdict(not_run):
                    problems.append(f"{step / NOT_RUN_FILE} holds more than a step and a reason")
                lines.append(f"{step.name}: not run: {not_run.reason}")
            else:
                result, runs, line = _of_step(step, shared, names, problems)
                results.append((result, runs))
                lines.append(line)
    if not results:
        problems.append("none of its steps was run" if lines else "it holds no step")
    first = results[0][0].setup if results else None
    problems += [f"{run.step}: {text}" for run, _ in results if first for text in run.setup.differences(first)]
    counts = [runs for result, runs in results if result.acts]  # the others run once
    partial = max(counts, default=0) == min(counts, default=0) + 1  # a call was cut off in the last round
    if len({*counts}) > 1 and not (partial and counts == sorted(counts, reverse=True)):
        problems.insert(0, f"the steps have different numbers of runs ({', '.join(map(str, sorted({*counts})))})")
    for name in sorted(f"{name}.json" for name in study.OF_A_LADDER):
        with _collected(problems):
            if first and name in there:
                names.add(name)
                lines.append(_of_study(folder / name, first))
    files = {name for name, path in there.items() if not path.is_dir()}
    problems += [f"{name} is no file of a record" for name in sorted(files - names)]
    problems += [f"{name} is missing" for name in sorted(names - files - {record.PAGE})]
    for name, checksum in (shared.files or {}).items():
        with _collected(problems):
            if name not in names or sha256(folder / name) != checksum:
                problems.append(f"{name} is not the file that was recorded: its checksum is another")
    if not problems and not record.interleaved(folder):
        problems.append("its runs are not interleaved: some were made after later ones")
    refuse(folder, problems)
    if record.PAGE not in files:
        if not finish:
            fix = f"`python -m walkthrough record --pack {folder}` writes it"
            refuse(folder, [f"{record.PAGE} is missing"], fix)
        record.write_page(folder)
    _check_page(folder)
    return shared, lines, sorted(names)


def _files(folder: Path) -> dict[str, Path]:
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {name: path for name, path in paths.items() if not LEFT.fullmatch(name)}


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems.append(str(error))


def _check_page(folder: Path) -> None:
    text, own = read(folder / record.PAGE), record.page(folder).encode()
    if text != own:
        lines = set(own.splitlines())
        other = next((line for line in text.splitlines() if line not in lines), b"")
        holds = f": it holds {printable(other.decode(errors='replace'), 60)!r}" if other else ""
        refuse(folder, [f"{record.PAGE} is not the page that the figures give{holds}"])


def _header(path: Path) -> Header:
    value, shared = read_json(path), read_header(path)
    if value != shared.as_json():
        raise InputError(f"{path} holds fields that no record has")
    if shared.settings.quick:
        raise InputError(f"{path}: these are smoke runs (--quick)")
    return shared


def _of_study(path: Path, setup: Setup) -> str:
    """What was verified of a study's file. Raises InputError where it is broken, rough or of another setup."""
    read_json(path)
    result = study.read(path)
    if result.quick:
        raise InputError(f"{path} is of a smoke run (--quick)")
    if result.setup is None:
        raise InputError(f"{path} is of no setup")
    if path.name == roofs.FILE:
        roofs.of_study(result, path)
    if differences := result.setup.differences(setup):
        raise InputError(f"{path} is of another setup than the record: {differences[0]}")
    return f"{path.name}: of the same device, model and image size"


def _of_step(step: Path, shared: Header, names: set[str], problems: list[str]) -> tuple[Result, int, str]:
    """Note a step's files and what is wrong with them; (a run's result, how many runs, what was verified)."""
    files = run_files(step)
    if [int(file.stem) for file in files] != list(range(1, len(files) + 1)) or not files:
        raise InputError(f"{step} lacks a run: {step.name}/runs/1.json and those after it")
    results = []
    for file in files:
        value, result = read_json(file), read_result(file)
        results.append(result)
        problems += [f"{file}: {problem}" for problem in _of_run(result, step.name, shared)]
        if value != result.as_json():
            problems.append(f"{file} holds fields that no result has")
    first, prefix = results[0], step.name + "/"
    for name in ("trace", *OF_ALL_RUNS):
        if len({getattr(result, name) for result in results}) > 1:
            problems.append(f"{step.name}: {name} differs from run to run")
    pattern = r"events\.out\.tfevents\.\d{1,20}\." + re.escape(first.trace.removesuffix(".pt.trace.json.gz"))
    events = [path.name for path in step.iterdir() if re.fullmatch(pattern, path.name)]
    if len(events) != 1:
        raise InputError(f"{step} has {len(events) or 'no'} TensorBoard event files of {first.trace}")
    names |= {prefix + name for name in (RESULT_FILE, first.trace, *events, *(f"runs/{file.name}" for file in files))}
    if read_json(step / RESULT_FILE) != merged(results).as_json():
        problems.append(f"{step / RESULT_FILE} is not what its runs give")
    try:
        points = scalars(read(step / events[0]))
    except InputError as error:
        raise InputError(f"{step / events[0]}: {error}") from error
    trace = read_json(step / first.trace, lambda path: unpacked(path, read(path)))
    problems += [f"{step / first.trace} holds {line}" for line in allowed.kept(trace)[1]]
    windows = sum(len(result.samples_per_second.windows) for result in results)
    return (
        first,
        len(results),
        f"{step.name}: {len(results)} runs, {windows} windows, a trace, {len(points)} kinds of scalars",
    )


def _of_run(run: Result, step: str, shared: Header) -> Iterator[str]:
    """What is wrong with one run."""
    speeds = run.samples_per_second
    for name, value in (("schema", shared.schema), ("step", step)):
        if getattr(run, name) != value:
            yield f"{name} is {getattr(run, name)!r}, not {value!r}"
    yield from shared.contradicted(run)
    if len(speeds.windows) < WINDOWS:
        yield f"it has {len(speeds.windows)} windows, fewer than {WINDOWS}"
    for unit, timed in (("images/s", speeds), ("tokens/s", run.tokens_per_second)):
        median = statistics.median(timed.windows) if timed and timed.windows else 0.0
        if timed and abs(timed.median - median) > 1e-9 * median:
            yield f"its median, {timed.median:.6g} {unit}, is not that of its windows, {median:.6g}"
    if not 0 < run.step_ms.p10 <= run.step_ms.median <= run.step_ms.p90:
        yield "step_ms is not positive, or not in order"


def read(path: Path) -> bytes:
    """A file's bytes. Raises InputError where there are more than `LIMIT`, OSError for a link or a pipe, say."""
    with open_plain(path) as file:
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise InputError(f"{path} is larger than {LIMIT / 1e6} MB")
    return content


def sha256(path: Path) -> str:
    """Of a record's file, as hexadecimal digits."""
    return hashlib.sha256(read(path)).hexdigest()


def read_json(path: Path, content: Callable[[Path], bytes] = read) -> dict[str, Any]:
    """The object in a JSON file, in which no key is there twice; of texts only those a record may hold, but in traces.

    Raises InputError.
    """

    def not_finite(literal: str) -> None:
        raise ValueError(f"{literal} is not a finite number")

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        value = json.loads(content(path).decode(), parse_constant=not_finite, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else printable(error, 80)
        raise InputError(f"{path} is broken: not JSON ({why})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is broken: not an object")
    if content is not read:
        return value
    said = {key: item for key, item in value.items() if (path.name, key) != (record.FILE, "files")}
    for text in allowed.texts(said):
        if printable(text, 600) != text or MARKUP.search(text):  # does more than be read, in a terminal or on a page
            raise InputError(f"{path} holds an odd text ({printable(text, 40)})")
    if wrong := next(allowed.wrong_texts(said), None):
        raise InputError(f"{path} holds {wrong}")
    return value


def unpacked(path: Path, packed: bytes) -> bytes:
    """The bytes in one gzip member without a name or date, at most `UNPACKED_LIMIT`. Raises InputError."""
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(packed, UNPACKED_LIMIT)
    except zlib.error as error:
        raise InputError(f"{path}: it is no gzip file, or damaged ({error})") from error
    if inflate.unconsumed_tail:
        raise InputError(f"{path}: it unpacks to more than {UNPACKED_LIMIT / 1e6:.0f} MB")
    if not inflate.eof or inflate.unused_data or packed[3:8] != bytes(5):  # a name or more would hold a text
        raise InputError(f"{path}: it is cut off, or packed otherwise than `record` does")
    return text


def pack(folder: Path) -> int:
    """Write the record in `folder` as `<device>.zip` into the current folder; the exit code.

    The zip holds one folder of that name, whose `record.json` has the checksum of each of its files. A page that is
    missing is written first. Raises InputError for what `verify` refuses, and for a record that contains a name of this
    machine, its user or the home folder.
    """
    here = Path.cwd()
    if here.is_relative_to(folder.resolve()):
        raise InputError(f"the zip would become part of {folder}: run this from another folder")
    shared, lines, names = verify(folder, finish=True)
    files = {name: read(folder / name) for name in names}
    settings = shared.settings
    public = re.split(r"\W+", " ".join([settings.device, *settings.words]).lower())  # a host may be called "h200"
    private = [
        f"{name} contains a name of this machine, its user or their home folder ({own!r})"
        for own in privacy.own_names()
        if own.lower() not in public
        for name, content in files.items()
        if privacy.holds_name(gzip.decompress(content) if name.endswith(".gz") else content, own)
    ]
    refuse(folder, private, "take it out, or record on a machine with another name")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != record.FILE}
    whole = replace(shared, files=sums)
    files[record.FILE] = (json.dumps(whole.as_json(), indent=2) + "\n").encode()
    target = here / f"{record.folder_name(shared.settings)}.zip"
    write_whole(target, _zipped(target.stem, files))
    print(*lines, sep="\n")
    print(f"packed: {printable(target)} ({target.stat().st_size / 1e6:.1f} MB)")
    print("It contains no name of this machine or its user. CONTRIBUTING.md says where to send it.")
    return 0


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """A zip's bytes, without the dates of the files."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()
