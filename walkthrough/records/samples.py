"""`samples`: traces of real GPUs that others published, by commit and checksum, for `explain` and TensorBoard.

The traces are not kept here. `samples.json`, next to this file, says for each where it is (an address with the commit),
its SHA-256 and size, what it shows, whose it is, and under which licence.
"""

import argparse
import hashlib
import http.client
import shlex
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from walkthrough.results.environment import project_folder
from walkthrough.results.errors import InputError, folder, printable
from walkthrough.results.result import write_whole, writing
from walkthrough.terminal import size_text

LIST = Path(__file__).with_name("samples.json")
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

    @property
    def by_name(self) -> dict[str, Sample]:
        """{name: sample}."""
        return {sample.name: sample for sample in self.samples}


class WrongContentError(InputError):
    """What came is not the trace: another checksum, or an answer such as "404 Not Found"; others may still come."""


def read_list(path: Path = LIST) -> Samples:
    """The list of all samples."""
    return msgspec.json.decode(path.read_bytes(), type=Samples)


def sha256(path: Path) -> str:
    """Of a file, as hexadecimal digits. Raises InputError where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def is_there(sample: Sample, folder: Path) -> bool:
    """Whether a folder of samples holds this one, whole."""
    path = sample.path(folder)
    return path.is_file() and path.stat().st_size == sample.bytes and sha256(path) == sample.sha256


def fetched(sample: Sample, timeout: float = TIMEOUT) -> bytes:
    """What a sample's address sends. Raises InputError where there is no network."""
    request = urllib.request.Request(sample.address, headers={"User-Agent": "pytorch-training-walkthrough"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read(sample.bytes + 1)
    except urllib.error.HTTPError as error:
        raise WrongContentError(f"{sample.name}: {sample.address} answers {printable(error, 80)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{sample.name} cannot be fetched from {sample.address}: {printable(error, 120)}") from error


def files_in(folder: Path) -> dict[int, list[Path]]:
    """{size in bytes: the files} of what may be traces in a folder and below it."""
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(SUFFIXES) and path.is_file():
            files.setdefault(path.stat().st_size, []).append(path)
    return files


def keep(sample: Sample, folder: Path, content: bytes) -> None:
    """Write a sample into a folder, whole or not at all. Raises WrongContentError for anything else than the trace."""
    digest, more = hashlib.sha256(content).hexdigest(), "more than " if len(content) > sample.bytes else ""
    if digest != sample.sha256:
        raise WrongContentError(
            f"{sample.name}: what {sample.address} sends is not the trace: {more}{min(len(content), sample.bytes)} "
            f"bytes of {sample.bytes}, SHA-256 {digest[:12]}… instead of {sample.sha256[:12]}…"
        )
    path = sample.path(folder)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


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
    write_licences(every, args.dir)
    failures = fetch_all(every, args.dir, _from_files(args.source) if args.source else fetched)
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


def fetch_all(every: Samples, into: Path, content: Callable[[Sample], bytes]) -> list[str]:
    """Keep each sample that is not there, and say so; returns why some could not be. Raises InputError: no network."""
    failures = []
    for sample in every.samples:
        text = description(sample, every)
        if is_there(sample, into):
            print(f"{text}\n  there already: {sample.path(into)}", flush=True)
            continue
        try:
            keep(sample, into, content(sample))
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
        f"{sample.name}  {sample.gpu}: {sample.what}. {size_text(sample.bytes)}, {sample.source}, {licence.holder}; "
        f"{licence.name}"
    )


def _from_files(source: Path) -> Callable[[Sample], bytes]:
    files = files_in(source)

    def content(sample: Sample) -> bytes:
        path = next((path for path in files.get(sample.bytes, []) if sha256(path) == sample.sha256), None)
        if path is None:
            raise WrongContentError(f"{source} holds no file with the checksum of {sample.name}")
        return path.read_bytes()

    return content


def _state(every: Samples, into: Path, copied: bool = False) -> str:
    count = sum(is_there(sample, into) for sample in every.samples)
    command = shlex.join([*_program("walkthrough"), "samples", str(into)])
    again = f"the same command goes on; without a network, {command} --from FOLDER takes files that you have"
    more = f"{command} fetches the others" if copied else again
    return f"{count} of {len(every.samples)} are in {into}; {more}"
