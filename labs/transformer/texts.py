"""Texts with labels: which installed package a docstring comes from; or the user's own files; or 20 newsgroups."""

import csv
import hashlib
import io
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from common.options import StepOptions
from labs.shared import docstrings
from labs.shared.extras import imported
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, printable

QUICK_TEXTS = 4000  # of each part at most, by --quick
CLASSES = 20  # packages: those with the most docstrings
MOST_PER_PACKAGE = 3000  # docstrings: from a few hundred a bag of words learns more than a transformer does
FEWEST_PER_CLASS = 20  # texts: with fewer, a split has none of it
KEPT = "package_docstrings.json"  # in --data
SCHEMA = 1  # of that file
HUB_NAME = "SetFit/20_newsgroups"
PARTS = ("train", "validation", "test")
ENDINGS = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True)
class Example:
    """A text and the number of its class."""

    text: str
    label: int


@dataclass(frozen=True)
class Texts:
    """Texts by what they are for; classes: their names, by label. source: "docstrings", or the name of what was read.

    Of docstrings, those of a source file are in one part, all of them.
    """

    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    classes: tuple[str, ...]
    source: str

    @property
    def key(self) -> str:
        """The source, and a hash of all texts and labels: other texts of the same name have another."""
        content = "\n".join(repr((part, *getattr(self, part))) for part in PARTS) + repr(self.classes)
        return f"{self.source} {hashlib.sha256(content.encode()).hexdigest()[:8]}"


def texts(options: StepOptions) -> Texts:
    """The files in `options.data` where it has them, or `--download` fetches them; else docstrings of the packages.

    What was collected is kept in `options.data` for the next program, as long as the same packages are installed.
    A smoke run has `QUICK_TEXTS`. Raises InputError for files that cannot be used, a download that fails, and a Python
    with too few docstrings.
    """
    data = options.data
    if options.download:
        _fetch(data)
    if data != ROOT / "data" and not data.is_dir():
        raise InputError(f"--data {data} is no folder: leave it out to use the docstrings of the installed packages")
    train = _file(data, "train")
    if data != ROOT / "data" and not train:
        raise InputError(
            f"--data {data} has no train.csv, .tsv or .jsonl with columns text and label: leave it out to use the "
            "docstrings of the installed packages"
        )
    every = from_files(data, train) if train else from_docstrings(data, docstrings.package_folders())
    return fewer(every, QUICK_TEXTS) if options.quick else every


def fewer(of: Texts, most: int) -> Texts:
    """At most so many of each part, drawn at random, the same each time."""
    parts = {part: getattr(of, part) for part in PARTS}
    drawn = {
        name: tuple(random.Random(0).sample(part, most)) if len(part) > most else part for name, part in parts.items()
    }
    return replace(of, **drawn)


def from_docstrings(keep: Path, folders: Sequence[Path]) -> Texts:
    """Which of the `CLASSES` packages with the most docstrings in `folders` one comes from; split by source file."""
    path = keep / KEPT
    code = hashlib.sha256(Path(docstrings.__file__).read_bytes()).hexdigest()[:16]
    key = f"{docstrings.installed(folders)} {code} {MOST_PER_PACKAGE}"
    rows = _kept(path, key)
    if rows is None:
        print("data: collecting the docstrings of the installed packages, once: about a minute")
        rows = [(text.package, text.file, text.text) for text in docstrings.collect_texts(folders, MOST_PER_PACKAGE)]
        with result.writing(keep):
            keep.mkdir(parents=True, exist_ok=True)
        result.write_json(path, {"schema": SCHEMA, "key": key, "docstrings": rows})
    counts = Counter(package for package, _, _ in rows)
    largest = sorted(counts, key=lambda name: (-counts[name], name))[:CLASSES]
    classes = tuple(sorted(name for name in largest if counts[name] >= FEWEST_PER_CLASS))
    if len(classes) < 2:
        raise InputError(
            f"{len(rows)} docstrings in {', '.join(map(str, folders))}, fewer than {FEWEST_PER_CLASS} of each of two "
            "packages: install more packages, such as those of requirements.txt"
        )
    parts: dict[str, list[Example]] = {part: [] for part in PARTS}
    for package, file, text in rows:
        if package in classes:
            parts[part_of(file)].append(Example(text, classes.index(package)))
    return Texts(*map(tuple, parts.values()), classes, "docstrings")


def part_of(name: str) -> str:
    """The part that a file, or a text, is in, by its hash: 70 % "train", 10 % "validation", 20 % "test"."""
    place = hashlib.sha256(name.encode()).digest()[0] / 256
    return "train" if place < 0.7 else "validation" if place < 0.8 else "test"


def from_files(folder: Path, train: Path) -> Texts:
    """Texts of train, validation and test in a folder, .csv, .tsv or .jsonl, with columns "text" and "label".

    Where there is no validation or no test, texts of train are set apart for it, by their hash. Raises InputError.
    """
    rows = {"train": read_rows(train)}
    for part in PARTS[1:]:
        if path := _file(folder, part):
            rows[part] = read_rows(path)
    missing = set(PARTS) - set(rows)
    parts: dict[str, list[tuple[str, str]]] = {part: list(rows.get(part, ())) for part in PARTS}
    parts["train"] = []
    for text, label in rows["train"]:
        part = part_of(text)
        parts[part if part in missing else "train"].append((text, label))
    classes = tuple(sorted({label for _, label in rows["train"]}))
    if len(classes) < 2:
        raise InputError(
            f"{train}: {len(rows['train'])} texts of {len(classes)} class: a classifier needs two at least"
        )
    unknown = sorted({label for part in PARTS for _, label in parts[part]} - set(classes))
    if unknown:
        raise InputError(f"{folder}: the label {printable(unknown[0], 40)!r} is in no text of {train.name}")
    if empty := [part for part in PARTS if not parts[part]]:
        raise InputError(f"{folder}: no text is left for {' and '.join(empty)}: bring more texts, or {empty[0]}.csv")
    numbers = {label: number for number, label in enumerate(classes)}
    return Texts(
        *(tuple(Example(text, numbers[label]) for text, label in parts[part]) for part in PARTS), classes, folder.name
    )


def read_rows(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each row of a file. Raises InputError that names the file, the row and what is wrong."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error
    rows = _jsonl(path, content) if path.suffix == ".jsonl" else _table(path, content)
    pairs = []
    for number, row in rows:
        for column in ("text", "label"):
            if row.get(column) in (None, ""):
                raise InputError(f"{path}, row {number}: no {column}: each row needs a text and a label")
        pairs.append((str(row["text"]), str(row["label"])))
    if not pairs:
        raise InputError(f"{path} is empty: it needs rows with a text and a label")
    return pairs


def _table(path: Path, content: str) -> Iterable[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        missing = {"text", "label"} - set(reader.fieldnames or ())
        if content.strip() and missing:
            names = " and ".join(sorted(missing))
            raise InputError(f"{path} has no column {names}: its first line names the columns, text and label")
        return list(enumerate(reader, start=1))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _jsonl(path: Path, content: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, row {number} is not JSON") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number} is not an object with a text and a label")
        yield number, row


def _file(folder: Path, part: str) -> Path | None:
    return next((path for ending in ENDINGS if (path := folder / f"{part}{ending}").is_file()), None)


def _fetch(data: Path) -> None:
    """Download 20 newsgroups into `data` as train.jsonl and test.jsonl, unless it has a train file. InputError."""
    if _file(data, "train"):
        return
    imported("datasets", "transformer", "--download")
    datasets: Any = import_module("datasets")
    try:
        with tempfile.TemporaryDirectory() as cache:
            splits = datasets.load_dataset(HUB_NAME, cache_dir=cache)
            files = {part: [(row["text"], row["label_text"]) for row in splits[part]] for part in ("test", "train")}
    except Exception as error:  # of `datasets`, `huggingface_hub` or the client below them: no common base class
        raise InputError(
            f"{HUB_NAME} could not be downloaded ({type(error).__name__}): run without --download for the docstrings, "
            "or bring train.csv with columns text and label to --data"
        ) from error
    with result.writing(data):
        data.mkdir(parents=True, exist_ok=True)
    for part, rows in files.items():  # train last: it is what says that all is there
        lines = (json.dumps({"text": text, "label": label}) for text, label in rows if text.strip())
        result.write_whole(data / f"{part}.jsonl", "\n".join(lines).encode())


def _kept(path: Path, key: str) -> list[tuple[str, str, str]] | None:
    try:
        value = result.read_json(path)
        if value["schema"] != SCHEMA or value["key"] != key:
            return None
        return [(str(package), str(file), str(text)) for package, file, text in value["docstrings"]]
    except (InputError, KeyError, TypeError, ValueError):  # none yet, or not ours: collected anew
        return None
