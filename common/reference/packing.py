"""`record --pack`: a record as one file, to be contributed. Starts without torch."""

import re
import stat
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from common import record
from common.errors import InputError, printable
from common.reference.checking import refuse, verify
from common.reference.layout import record_files
from common.reference.recording import folder_name
from common.reference.written import unpacked
from common.run import privacy


def pack(folder: Path) -> int:
    """Write the record in `folder` as `<device>.zip` into the current folder; the exit code.

    The zip holds one folder of that name, and the same record gives the same bytes. A page that is missing is written
    first. Raises InputError for what
    `checking.verify` refuses, and for a record that contains a name of this machine, its user or the home folder.
    """
    here = Path.cwd()
    if here.is_relative_to(folder.resolve()):
        raise InputError(f"the zip would become part of {folder}: run this from another folder")
    shared, lines = verify(folder, add_page=True)
    names, _ = record_files(folder)
    files = {name: (folder / name).read_bytes() for name in names}
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
    record.write_whole(target, _zipped(target.stem, files))
    print(*lines, sep="\n")
    print(f"packed: {printable(target)} ({target.stat().st_size / 1e6:.1f} MB)")
    print("It contains no name of this machine or its user. CONTRIBUTING.md says where to send it.")
    return 0


def _text(name: str, content: bytes) -> bytes:
    """A file's bytes as they are read: of a trace those it unpacks to, of events the texts in them."""
    if name.endswith(".gz"):
        return unpacked(content)
    return b"\n".join(privacy.texts_in(content)) if "/events." in name else content


def _zipped(folder: str, files: Mapping[str, bytes]) -> bytes:
    """A zip's bytes: the same on every system and with every zlib, hence stored, which costs a few kB."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            file.writestr(entry, content)
    return packed.getvalue()
