"""Records that people hand on: `record --pack`, `--check` and `--add`.

A record's folder, or the archive made of it, is read file by file into memory: known names only, regular files only,
each no larger than its kind may be, whatever the archive claims. `verification` then looks at a private copy, so that
what is packed or added is what was checked. Starts without torch.
"""

import os
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from common import record
from common.errors import InputError, printable
from common.reference import page as reference_page
from common.reference import recording
from common.reference.checking import unpacked, verify
from common.run import not_run, privacy
from common.studies import study

STEP = "[0-9]{2}_[a-z0-9_]{1,60}"
STEPS, RUNS = 100, 100
LIMITS = {  # what a record may hold, and the bytes of it at most; the step's name stands in its files' as well
    re.escape(recording.FILE): 1_000_000,
    re.escape(reference_page.FILE): 200_000,
    "|".join(map(re.escape, study.READERS)): 1_000_000,
    rf"{STEP}/result\.json": 1_000_000,
    rf"{STEP}/{re.escape(not_run.FILE)}": 10_000,
    rf"{STEP}/runs/([1-9][0-9]?|{RUNS})\.json": 1_000_000,
    rf"({STEP})/\1\.[0-9]{{1,20}}\.pt\.trace\.json\.gz": recording.TRACE_LIMIT,
    rf"({STEP})/events\.out\.tfevents\.[0-9]{{1,20}}\.\1\.[0-9]{{1,20}}": 1_000_000,
}
FOLDERS = re.compile(rf"{STEP}(/runs)?")
FILES, SIZE = (
    2 + len(study.READERS) + STEPS * (3 + RUNS),
    100_000_000,
)  # of all: a bomb is not worth unpacking to its end
LEFT_BEHIND = (".record.lock", ".ablation.lock")
MEND = "leave it as `python -m common record` wrote it, or record it anew"


def pack(folder):
    """Write the record in `folder` as `<its name>.zip` into the current folder. Returns the exit code.

    Same bytes for the same record. Raises InputError for what `check` would refuse, and for a record in which this
    machine, its user or the home folder is named.
    """
    folder, here = Path(folder), Path.cwd()
    files, settings, lines = _checked(folder)
    if here.is_relative_to(folder.resolve()):
        raise InputError(f"the archive would become part of {folder}: run this from another folder")
    named = [
        f"{name} names this machine, its user or a folder of theirs ({own!r})"
        for own in privacy.own_names()
        if own.lower() not in re.split(r"\W+", f"{settings['device']} {settings['model']}".lower())  # host "h200"
        for name, content in files.items()
        if privacy.holds_name(_text(name, content), own)
    ]
    _refuse(folder, named, "take it out, or record on a machine with another name")
    archive = here / f"{folder.resolve().name}.zip"
    record.write_whole(archive, _zipped(files))
    print(*lines, sep="\n")
    print(f"packed: {printable(archive)} ({archive.stat().st_size / 1e6:.1f} MB)")
    print("It names neither this machine nor you. CONTRIBUTING.md tells how to hand it in.")
    return 0


def _text(name, content):
    """A file's bytes as they are read: a trace unpacked, of events their texts."""
    if name.endswith(".gz"):
        return unpacked(content)
    return b"\n".join(privacy.texts_in(content)) if "/events." in name else content


def check(path):
    """Verify a record's folder or archive and say what was verified, a line a step. Returns the exit code.

    Writes nothing but a temporary folder. Raises InputError for anything that is not as it should be.
    """
    _, _, lines = _checked(path)
    print(*lines, "ok", sep="\n")
    return 0


def add(path, logdir):
    """Put a record, folder or archive, into `logdir/<device>/` once it is verified. Returns the exit code.

    Raises InputError as `check` does, and where there is a record of that device already.
    """
    files, settings, lines = _checked(path)
    target = Path(logdir) / recording.folder_name(settings)
    if os.path.lexists(target):
        raise InputError(f"{target} is there already: move it away, or name another --logdir")
    with record.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".", suffix=".partial") as beside:
            _write(files, Path(beside) / "record")
            os.rename(Path(beside) / "record", target)
    print(*lines, sep="\n")
    print(f"added: {printable(target)}. The table: python -m common compare {printable(target)}")
    return 0


def _checked(path):
    """(files {name: bytes}, settings, a line a step) of a record that is as it should be; InputError otherwise."""
    path = Path(path)
    if path.is_symlink():
        raise InputError(f"{path} is a link: name what it leads to")
    try:
        if path.is_dir():
            files, problems = _gathered(_in_folder(path))
        elif path.is_file():
            with open(path, "rb") as file:
                files, problems = _gathered(_in_archive(path, file))
        else:
            raise InputError(f"{path} is not there, or neither a record's folder nor an archive of one")
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror or error}") from error
    _refuse(path, problems or _missing(files))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "record").resolve()
        _write(files, copy)
        settings, lines, problems = verify(copy)
    _refuse(path, problems)
    return files, settings, lines


def _refuse(path, problems, mend=MEND):
    """Raise InputError where there are problems: the first in words, of the others how many."""
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise InputError(f"{path}: {printable(problems[0], 300)}{more}; {mend}")


@dataclass(frozen=True)
class _Entry:
    """A file of a folder or an archive. size: as it claims. odd: what it is, if no plain file. read: (bytes) -> up to
    so many of its bytes."""

    name: str
    size: int
    odd: str | None
    read: Callable[[int], bytes]


def _in_folder(folder):
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for each in entries:
                name, status = Path(each.path).relative_to(folder).as_posix(), each.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and FOLDERS.fullmatch(name):
                    waiting.append(each.path)
                elif name not in LEFT_BEHIND:
                    linked = status.st_nlink > 1 and stat.S_ISREG(status.st_mode)
                    odd = "a file with a second name (a hard link)" if linked else _odd(status.st_mode)
                    yield _Entry(name, status.st_size, odd, partial(_head, each.path))


def _head(path, size):
    with open(path, "rb") as file:
        return file.read(size)


def _in_archive(path, file):
    with _damaged(f"{path} is no zip archive, or damaged"):
        _check_directory(path, file)
        archive = zipfile.ZipFile(file)
    for info in archive.infolist():
        odd = _odd(info.external_attr >> 16)
        if info.flag_bits & 0x2041:
            odd = "encrypted"
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a bound
            odd = "packed in an unusual way: make the archive with `record --pack`"
        yield _Entry(info.orig_filename, info.file_size, odd, partial(_member, path, archive, info))


def _member(path, archive, info, size):
    with _damaged(f"{info.filename} in {path} is damaged"), archive.open(info) as file:
        return file.read(size)


@contextmanager
def _damaged(what):
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError) as error:
        raise InputError(f"{what} ({printable(error, 100)}): pack it anew") from error


def _check_directory(path, file):
    """Look at a zip archive's last bytes before zipfile makes objects of all that its directory lists."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 42))
    locator, ending = file.read(20 if size >= 42 else 0), file.read(22)
    if size > SIZE:
        raise InputError(f"{path} is larger than {SIZE / 1e6:.0f} MB: no record is")
    if ending[:4] != b"PK\5\6" or ending[20:] != b"\0\0" or locator[:4] == b"PK\6\7":
        raise zipfile.BadZipFile("it does not end as `record --pack` ends one")
    if int.from_bytes(ending[12:16], "little") > 300 * FILES:
        raise InputError(f"{path} lists more than {FILES} files: no record does")


def _odd(mode):
    """What a file of that mode is, if it is no plain one; a mode without a type counts as plain."""
    kind = stat.S_IFMT(mode)
    return {0: None, stat.S_IFREG: None, stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder that no record has"}.get(
        kind, "no regular file"
    )


def _gathered(entries):
    """(files {name: bytes}, problems) of the entries; none is read past its limit, nor all past theirs."""
    files, problems, total = {}, [], 0
    for number, entry in enumerate(entries):
        shown, limit = printable(entry.name, 80), _limit(entry.name)
        if number == FILES:
            problems.append(f"it holds more than {FILES} files")
            break
        if entry.odd or limit is None:
            problems.append(f"{shown} is {entry.odd or 'no file of a record'}")
        elif entry.name in files:
            problems.append(f"{shown} is there twice")
        elif entry.size > limit or len(content := entry.read(limit + 1)) > limit:
            problems.append(f"{shown} is larger than {limit / 1e6} MB")
        else:
            files[entry.name] = content
            total += len(content)
        if total > SIZE:
            problems.append(f"it holds more than {SIZE / 1e6:.0f} MB")
            break
    return dict(sorted(files.items())), sorted(problems)


def _limit(name):
    return next((limit for pattern, limit in LIMITS.items() if re.fullmatch(pattern, name)), None)


def _missing(files):
    """What a whole record would hold beside these, and what it holds once only."""
    steps = sorted({name.split("/")[0] for name in files if "/" in name})
    problems = [f"{name} is missing" for name in (recording.FILE, reference_page.FILE) if name not in files]
    without = [step for step in steps if f"{step}/{not_run.FILE}" in files]
    if not 1 <= len(steps) <= STEPS:
        problems.append(f"it holds {len(steps)} steps, not 1 to {STEPS}")
    elif without == steps:
        problems.append("none of its steps was run")
    for step in without:
        more = [name for name in files if name.startswith(f"{step}/") and name != f"{step}/{not_run.FILE}"]
        problems += [f"{name} is there although {step} was not run" for name in more]
    for step in sorted(set(steps) - set(without)):
        for what, pattern in (
            (record.FILE, r"result\.json"),
            ("trace", r".*\.pt\.trace\.json\.gz"),
            ("TensorBoard event file", r"events\..*"),
        ):
            found = sum(re.fullmatch(f"{step}/{pattern}", name) is not None for name in files)
            if found != 1:
                problems.append(f"{step} has {found or 'no'} {what}{'s, not one' if found else ''}")
        runs = {int(Path(name).stem) for name in files if name.startswith(f"{step}/runs/")}
        lacking = sorted(set(range(1, max(runs, default=1) + 1)) - runs)
        problems += [f"{step}/runs/{number}.json is missing" for number in lacking]
    return problems


def _write(files, folder):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _zipped(files):
    """A zip archive's bytes: the same on every system and with every zlib, hence stored, which costs a few kB."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, content)
    return made.getvalue()
