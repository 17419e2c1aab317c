"""`record --pack`: a record as one file, to be contributed. Starts without torch."""

import re
import stat
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from walkthrough.compare import rounds
from walkthrough.compare.merging import merged
from walkthrough.records import page
from walkthrough.records.checking import refuse, verify
from walkthrough.records.layout import empty_steps, record_files
from walkthrough.records.recording import folder_name
from walkthrough.records.written import read, unpacked
from walkthrough.results import privacy, result
from walkthrough.results.errors import InputError, printable


def pack(folder: Path) -> int:
    """Write the record in `folder` as `<device>.zip` into the current folder; the exit code.

    The zip holds one folder of that name, and the same record gives the same bytes. A page that is missing is written
    first. A machine without msgspec packs without comparing traces with figures. Raises InputError for what
    `checking.verify` refuses, and for a record that contains a name of this machine, its user or the home folder.
    """
    here = Path.cwd()
    if here.is_relative_to(folder.resolve()):
        raise InputError(f"the zip would become part of {folder}: run this from another folder")
    compares_traces = find_spec("msgspec") is not None
    with whole_rounds(folder) as source:
        shared, lines = verify(source, add_page=True, fully=compares_traces)
        names, _ = record_files(source)
        files = {name: read(source / name) for name in names}
    settings = shared.settings
    public = re.split(r"\W+", f"{settings.device} {settings.model}".lower())  # a host may be called "h200"
    private = [
        f"{name} contains a name of this machine, its user or their home folder ({own!r})"
        for own in privacy.own_names()
        if own.lower() not in public
        for name, content in files.items()
        if privacy.holds_name(_text(name, content), own)
    ]
    refuse(folder, private, "take it out, or record on a machine with another name")
    target = here / f"{folder_name(shared)}.zip"
    result.write_whole(target, _zipped(target.stem, files))
    print(*lines, sep="\n")
    print(f"packed: {printable(target)} ({target.stat().st_size / 1e6:.1f} MB)")
    print("It contains no name of this machine or its user. CONTRIBUTING.md says where to send it.")
    if not compares_traces:
        what = "its traces are not compared with its figures yet"
        print(f"Without msgspec {what}: unzip it where that is installed, and pack that folder again.")
    return 0


@contextmanager
def whole_rounds(folder: Path) -> Iterator[Path]:
    """The folder of a record that has only whole rounds, summed up: itself, or a copy where a call was cut off.

    Without the runs of a round that is not whole; of a step without effect on its device one run is enough. Prints what
    the copy is without.
    """
    names, _ = record_files(folder)
    steps = {name: name.split("/")[0] for name in names if "/" in name}
    counts = Counter(step for name, step in steps.items() if "/runs/" in name)
    acting = [step for step in counts if rounds.acts(result.read_runs(folder / step))]
    whole = min((counts[step] for step in acting or counts), default=0)
    cut = [
        name
        for name, step in steps.items()
        if ("/runs/" in name and int(Path(name).stem) > whole) or not (step in counts or _kept(folder / step, name))
    ]
    behind = [step for step in counts if not _summed_up(folder / step)]
    if not whole or not (cut or behind or empty_steps(folder, names)):
        yield folder
        return
    if cut:
        print(f"packed are {whole} round(s); {folder} keeps {len(cut)} file(s) of one that was cut off", flush=True)
    with tempfile.TemporaryDirectory() as parent:
        copy = Path(parent) / folder.resolve().name
        for name in names:
            if name not in (*cut, page.FILE):  # the page is of all runs
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(read(folder / name))
        for step in sorted({*behind, *({steps[name] for name in cut} & counts.keys())}):
            rounds.sum_up(copy / step)
        yield copy


def _kept(step: Path, name: str) -> bool:
    """Whether a file belongs to a step without runs: to its result, or why it was not run."""
    if (step / result.NOT_RUN_FILE).exists():
        return Path(name).name == result.NOT_RUN_FILE  # not the trace of a run that could be made since
    return (step / result.FILE).exists()


def _summed_up(step: Path) -> bool:
    """False where a call was stopped between a run and the sum of all: there is none, or one without the last run."""
    if (step / result.NOT_RUN_FILE).exists() or not (step / result.FILE).exists():
        return False
    before = result.read_runs(step)[:-1]
    return not before or result.read_result(step / result.FILE) != merged(before)


def _text(name: str, content: bytes) -> bytes:
    """A file's bytes as they are read: of a trace those it unpacks to."""
    return unpacked(content) if name.endswith(".gz") else content


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """A zip's bytes: the same on every system and with every zlib, hence stored, which costs a few kB."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            file.writestr(entry, content)
    return packed.getvalue()
