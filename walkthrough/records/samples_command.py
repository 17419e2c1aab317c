"""`samples`: fetch traces of real GPUs that others published, to look at them with `explain` and TensorBoard."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from walkthrough.records import samples
from walkthrough.records.samples import Sample, Samples
from walkthrough.results.environment import project_folder
from walkthrough.results.errors import InputError, folder

FOLDER = project_folder("logs") / "samples"


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
    every = samples.read_list()
    if args.list:
        for sample in every.samples:
            print(f"{description(sample, every)}\n  {sample.address}")
        return 0
    if args.source and not args.source.is_dir():
        what = "is a file: name the folder that holds it" if args.source.exists() else "there is no such folder"
        raise InputError(f"--from {args.source}: {what}")
    if args.dir.exists() and not args.dir.is_dir():
        raise InputError(f"{args.dir} is a file: name a folder")
    samples.write_licences(every, args.dir)
    failures = fetch_all(every, args.dir, _taking_from(args.source) if args.source else samples.fetch)
    if failures:
        more = f"; and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise InputError(f"{failures[0]}{more}; {_state(every, args.dir, bool(args.source))}")
    print(f"\nThey belong to those who published them: see {args.dir / samples.LICENCES}. To look at them:")
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
        if samples.is_there(sample, into):
            print(f"{text}\n  there already: {sample.path(into)}", flush=True)
            continue
        try:
            take(sample, into)
        except samples.WrongContentError as error:
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
    files = samples.files_in(source)

    def take(sample: Sample, into: Path) -> None:
        if not samples.copy(sample, into, files):
            raise samples.WrongContentError(f"{source} holds no file with the checksum of {sample.name}")

    return take


def _state(every: Samples, into: Path, copied: bool = False) -> str:
    count = sum(samples.is_there(sample, into) for sample in every.samples)
    command = shlex.join([*_program("walkthrough"), "samples", str(into)])
    again = f"the same command goes on; without a network, {command} --from FOLDER takes files that you have"
    more = f"{command} fetches the others" if copied else again
    return f"{count} of {len(every.samples)} are in {into}; {more}"
