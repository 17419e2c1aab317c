"""`samples`: traces of real GPUs that others published, by commit and checksum, for `explain` and TensorBoard.

The traces are not kept here. `samples.json`, next to this file, says for each where it is (an address with the commit),
its SHA-256 and size, what it shows, whose it is, and under which licence.
"""

import argparse
import hashlib
import http.client
import os
import shlex
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from walkthrough.results.environment import project_folder
from walkthrough.results.errors import InputError, folder, printable
from walkthrough.results.files import open_new
from walkthrough.results.result import write_whole, writing

LIST = Path(__file__).with_name("samples.json")
CHUNK = 1 << 16
TIMEOUT = 30.0  # s without an answer
README, LICENCES = "README.md", "LICENCES.txt"
FOLDER = project_folder("logs") / "samples"
SUFFIXES = (".json", ".json.gz")


class Licence(Struct, frozen=True):
    """name: its SPDX name. holder: of the rights. address: of its text in the repository. text: the whole of it."""

    name: str
    holder: str
    address: str
    text: str


class Sample(Struct, frozen=True):
    """A published trace. name: of its folder. file: its name there. source: owner/name of the repository."""

    name: str
    file: str
    address: str
    sha256: str
    bytes: int
    what: str
    gpu: str
    source: str

    def path(self, folder: Path) -> Path:
        """Where it lies in a folder of samples."""
        return folder / self.name / self.file


class Samples(Struct, frozen=True):
    """licences: {owner/name: the licence}."""

    licences: dict[str, Licence]
    samples: list[Sample]


class WrongContentError(InputError):
    """What came is not the trace: another checksum, or an answer such as "404 Not Found"."""


def read_list(path: Path = LIST) -> Samples:
    """The list of all samples."""
    return msgspec.json.decode(path.read_bytes(), type=Samples)


def sha256(path: Path) -> str:
    """Of a file, as hexadecimal digits. Raises InputError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def is_there(sample: Sample, folder: Path) -> bool:
    """Whether a folder of samples holds this one, whole."""
    path = sample.path(folder)
    return path.is_file() and path.stat().st_size == sample.bytes and sha256(path) == sample.sha256


def fetch(sample: Sample, folder: Path, timeout: float = TIMEOUT) -> None:
    """Fetch a sample into a folder, whole or not at all.

    Raises InputError where there is no network; WrongContentError where something else than the trace comes.
    """
    request = urllib.request.Request(sample.address, headers={"User-Agent": "pytorch-training-walkthrough"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            _keep(sample, folder, answer)
    except urllib.error.HTTPError as error:
        raise WrongContentError(
            f"{sample.name}: {sample.address} answers {error.code} {printable(error.reason, 60)}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{_reason(error)}: {sample.name} cannot be fetched from {sample.address}") from error


def _keep(sample: Sample, folder: Path, answer: IO[bytes]) -> None:
    """Write what is read next to the trace's name, and rename it once its checksum is right."""
    path = sample.path(folder)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    digest, size = hashlib.sha256(), 0
    try:
        with writing(path), open_new(partial) as file:
            while size <= sample.bytes and (chunk := _read(answer)):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sample.sha256:
            more = "more than " if size > sample.bytes else ""
            raise WrongContentError(
                f"{sample.name}: what {sample.address} sends is not the trace: "
                f"{more}{min(size, sample.bytes)} bytes of {sample.bytes}, SHA-256 {digest.hexdigest()[:12]}… "
                f"instead of {sample.sha256[:12]}…"
            )
        with writing(path):
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def _read(answer: IO[bytes]) -> bytes:
    """The next part of an answer. Raises HTTPException, so that a broken connection is no error of writing."""
    try:
        return answer.read(CHUNK)
    except OSError as error:
        raise http.client.HTTPException(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """Why the network failed, in a few words."""
    cause = getattr(error, "reason", None) or error
    if isinstance(cause, socket.gaierror):
        return "the host's name cannot be resolved (no network, or a proxy is needed: set https_proxy)"
    return printable(cause, 120) or type(cause).__name__


def files_in(folder: Path) -> dict[int, list[Path]]:
    """{size in bytes: the files} of what may be traces in a folder and below it."""
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(SUFFIXES) and path.is_file():
            files.setdefault(path.stat().st_size, []).append(path)
    return files


def copy(sample: Sample, folder: Path, files: dict[int, list[Path]]) -> bool:
    """Copy a sample from files that are here, whatever their names; False where it is not among them."""
    for path in files.get(sample.bytes, []):
        if sha256(path) == sample.sha256:
            with writing(sample.path(folder)):
                sample.path(folder).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "rb") as file:
                _keep(sample, folder, file)
            return True
    return False


def write_licences(samples: Samples, folder: Path) -> None:
    """Write what the samples are, whose, and the text of each licence into their folder."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Traces of real GPUs, published by others", ""]
    lines += [
        "Fetched by `python -m walkthrough samples`; they belong to those who published them. The texts of the licences"
    ]
    lines += [f"are in {LICENCES}.", "", "| folder | what | GPU | whose, licence | from |", "|---|---|---|---|---|"]
    for sample in samples.samples:
        licence = samples.licences[sample.source]
        lines.append(
            f"| {sample.name} | {sample.what} | {sample.gpu} | {licence.holder}; {licence.name} | "
            f"[{sample.source}]({sample.address}) |"
        )
    write_whole(folder / README, "\n".join(lines) + "\n")
    texts = [
        f"{'=' * 80}\n{source}: {licence.holder}\n{licence.name}, {licence.address}\n{'=' * 80}\n\n{licence.text}"
        for source, licence in samples.licences.items()
    ]
    write_whole(folder / LICENCES, "\n".join(texts))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `samples`."""
    parser.add_argument("dir", nargs="?", type=folder, default=FOLDER, metavar="DIR", help="default: logs/samples")
    parser.add_argument(
        "--from",
        dest="source",
        type=folder,
        metavar="FOLDER",
        help="copy them from files in FOLDER, found by their checksums, where there is no network",
    )
    parser.add_argument("--list", action="store_true", help="only print what they are; nothing is fetched")


def run(args: argparse.Namespace) -> int:
    """Fetch what is not there yet; returns 0. Raises InputError: one line for all that could not be fetched."""
    every = read_list()
    if args.list:
        for sample in every.samples:
            print(f"{description(sample, every)}\n  {sample.address}")
        return 0
    if args.source and not args.source.is_dir():
        what = "is a file: name the folder that holds it" if args.source.exists() else "there is no such folder"
        raise InputError(f"--from {args.source}: {what}")
    if args.dir.exists() and not args.dir.is_dir():
        raise InputError(f"{args.dir} is a file: name a folder")
    write_licences(every, args.dir)
    failures = fetch_all(every, args.dir, _taking_from(args.source) if args.source else fetch)
    if failures:
        more = f"; and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise InputError(f"{failures[0]}{more}; {_state(every, args.dir, bool(args.source))}")
    print(f"\nThey belong to those who published them: see {args.dir / LICENCES}. To look at them:")
    print(f"  {shlex.join([*_program('walkthrough'), 'explain', str(args.dir / every.samples[0].name)])}")
    if find_spec("tensorboard"):
        print(f"  {shlex.join([*_program('tensorboard', 'tensorboard.main'), '--logdir', str(args.dir)])}")
    return 0


def _program(name: str, module: str | None = None) -> list[str]:
    """How a program of this environment is called here: by its name, or where that is not on the PATH as a module."""
    return [name] if shutil.which(name) else [sys.executable, "-m", module or name]


def fetch_all(every: Samples, into: Path, take: Callable[[Sample, Path], None]) -> list[str]:
    """Take each sample that is not there, and say so; returns why some could not be. Raises InputError: no network."""
    failures = []
    for sample in every.samples:
        text = description(sample, every)
        if is_there(sample, into):
            print(f"{text}\n  there already: {sample.path(into)}", flush=True)
            continue
        try:
            take(sample, into)
        except WrongContentError as error:
            failures.append(str(error))
            print(f"{text}\n  not fetched", flush=True)
        except InputError as error:
            raise InputError(f"{error}; {_state(every, into)}") from error
        else:
            print(f"{text}\n  {sample.path(into)}", flush=True)
    return failures


def description(sample: Sample, every: Samples) -> str:
    """What a sample is, whose, and its licence, in a line."""
    licence = every.licences[sample.source]
    return (
        f"{sample.name}  {sample.gpu}: {sample.what}. {sample.bytes / 1e6:.1f} MB, {sample.source}, {licence.holder}; "
        f"{licence.name}"
    )


def _taking_from(source: Path) -> Callable[[Sample, Path], None]:
    files = files_in(source)

    def take(sample: Sample, into: Path) -> None:
        if not copy(sample, into, files):
            raise WrongContentError(f"{source} holds no file with the checksum of {sample.name}")

    return take


def _state(every: Samples, into: Path, copied: bool = False) -> str:
    count = sum(is_there(sample, into) for sample in every.samples)
    command = shlex.join([*_program("walkthrough"), "samples", str(into)])
    again = f"the same command goes on; without a network, {command} --from FOLDER takes files that you have"
    more = f"{command} fetches the others" if copied else again
    return f"{count} of {len(every.samples)} are in {into}; {more}"
