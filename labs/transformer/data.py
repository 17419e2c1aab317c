"""The texts that the programs train on, with labels, and the tokenizer that goes with the model.

Which installed package does a docstring come from? Or the user's own files: train.csv.
"""

import csv
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from common.options import StepOptions
from labs.shared import docstrings
from labs.shared.extras import imported
from labs.shared.text import FIRST, PAD, UNKNOWN, trained_tokenizer
from labs.transformer.batches import Item
from labs.transformer.model import SIZES, from_hub
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, printable

from torch.utils.data import Dataset

QUICK_TEXTS, QUICK_TOKENS = 2000, 128  # by --quick: of each part, and of a text, at most
CLASSES = 20  # packages: those with the most docstrings
MOST_PER_PACKAGE = 3000  # docstrings: from a few hundred a bag of words learns more than a transformer does
FEWEST_PER_CLASS = 20  # texts: with fewer, a split has none of it
KEPT = "package_docstrings.json"  # in --data
PARTS = ("train", "validation", "test")


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


class Tokenized(Dataset):
    """Items are (token ids, label). A text is tokenized whenever it is loaded, as in most training programs.

    tokenizer: of transformers. length: tokens of a text at most.
    """

    unit = "texts"

    def __init__(self, examples: Sequence[Example], tokenizer: Any, length: int, source: str = "docstrings") -> None:
        self.examples, self.tokenizer, self.length, self.source = examples, tokenizer, length, source

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Item:
        example = self.examples[index]
        return self.ids([example.text])[0], example.label

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, each cut at `length`."""
        return self.tokenizer(list(texts), truncation=True, max_length=self.length)["input_ids"]

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text: all are tokenized once, in a few seconds per 10,000."""
        return [len(ids) for ids in self.ids([example.text for example in self.examples])]


def training_set(options: StepOptions) -> tuple[Tokenized, tuple[str, ...]]:
    """What the programs train on, and the names of its classes. Raises InputError."""
    every = texts(options)
    return tokenized(every, options.model, QUICK_TOKENS if options.quick else None)["train"], every.classes


def tokenized(of: Texts, model: str, length: int | None = None) -> dict[str, Tokenized]:
    """The parts of some texts for a model by its name, cut at the tokens that it takes, or at `length` if fewer."""
    tokenizer = tokenizer_for(model, of.train)
    most = min(length or tokenizer.model_max_length, tokenizer.model_max_length)
    return {part: Tokenized(getattr(of, part), tokenizer, most, of.source) for part in PARTS}


@lru_cache(maxsize=2)
def tokenizer_for(model: str, train: tuple[Example, ...]) -> Any:
    """transformers' tokenizer of a model: trained on these texts for one of `SIZES`, else the model's own.

    Its `model_max_length` is what the model takes. Raises InputError.
    """
    if model in SIZES:
        transformers = imported("transformers", "transformer", "a transformer")
        own = trained_tokenizer((example.text for example in train), "transformer")
        special = {"pad_token": PAD, "cls_token": FIRST, "unk_token": UNKNOWN}
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=own, model_max_length=SIZES[model].max_tokens, **special
        )
    tokenizer = from_hub("AutoTokenizer", model)
    if tokenizer.pad_token_id is None:
        raise InputError(f"--model {model}: its tokenizer has no token to fill up with")
    positions = getattr(from_hub("AutoConfig", model), "max_position_embeddings", tokenizer.model_max_length)
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    return tokenizer


def texts(options: StepOptions) -> Texts:
    """The files in `options.data` where it has them, else docstrings of the installed packages.

    What was collected is kept in `options.data` for the next program, as long as the same packages are installed.
    A smoke run has `QUICK_TEXTS`. Raises InputError for files that cannot be used, and a Python with too few
    docstrings.
    """
    data, instead = options.data, "leave it out to use the docstrings of the installed packages"
    own = (data / "train.csv").is_file()
    if data != ROOT / "data" and not own:
        why = "has no train.csv with columns text and label" if data.is_dir() else "is no folder"
        raise InputError(f"--data {data} {why}: {instead}")
    every = from_files(data) if own else from_docstrings(data, docstrings.package_folders())
    return fewer(every, QUICK_TEXTS) if options.quick else every


def fewer(of: Texts, most: int) -> Texts:
    """At most so many of each part, drawn at random, the same each time."""
    more = {part: every for part in PARTS if len(every := getattr(of, part)) > most}
    return replace(of, **{part: tuple(random.Random(0).sample(every, most)) for part, every in more.items()})


def from_docstrings(keep: Path, folders: Sequence[Path]) -> Texts:
    """Which of the `CLASSES` packages with the most docstrings in `folders` one comes from; split by source file."""

    def collected() -> list[tuple[str, str, str]]:
        return [(text.package, text.file, text.text) for text in docstrings.collect_texts(folders, MOST_PER_PACKAGE)]

    rows = docstrings.kept(keep / KEPT, folders, f"{MOST_PER_PACKAGE}", collected)
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
    return Texts(*map(tuple, parts.values()), classes=classes, source="docstrings")


def part_of(name: str) -> str:
    """The part that a file, or a text, is in, by its hash: 70 % "train", 10 % "validation", 20 % "test"."""
    place = hashlib.sha256(name.encode()).digest()[0] / 256
    return "train" if place < 0.7 else "validation" if place < 0.8 else "test"


def from_files(folder: Path) -> Texts:
    """Texts of train.csv, validation.csv and test.csv in a folder, with columns "text" and "label".

    Where there is no validation or no test, texts of train are set apart for it, by their hash. Raises InputError.
    """
    files = {part: folder / f"{part}.csv" for part in PARTS}
    rows = {part: read_rows(path) for part, path in files.items() if part == "train" or path.is_file()}
    parts = {part: rows.get(part, []) if part != "train" else [] for part in PARTS}
    for text, label in rows["train"]:
        part = part_of(text)
        parts["train" if part in rows else part].append((text, label))
    classes = tuple(sorted({label for _, label in rows["train"]}))
    if len(classes) < 2:
        count = len(rows["train"])
        raise InputError(f"{files['train']}: {count} texts of {len(classes)} class: a classifier needs two at least")
    numbers = {label: number for number, label in enumerate(classes)}
    for part, pairs in parts.items():
        if unknown := [label for _, label in pairs if label not in numbers]:
            raise InputError(f"{folder}: the label {printable(unknown[0], 40)!r} is in no text of train.csv")
        if not pairs:
            raise InputError(f"{folder}: no text is left for {part}: bring more texts, or {part}.csv")
    examples = [tuple(Example(text, numbers[label]) for text, label in parts[part]) for part in PARTS]
    return Texts(*examples, classes=classes, source=folder.name)


def read_rows(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each row of a file. Raises InputError that names the file, the row and what is wrong."""
    csv.field_size_limit(2**31 - 1)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else printable(error, 80)
        raise InputError(f"cannot read {path}: {why}") from error
    if columns and (missing := {"text", "label"} - set(columns)):
        names = " and ".join(sorted(missing))
        raise InputError(f"{path} has no column {names}: its first line names the columns, text and label")
    if not rows:
        raise InputError(f"{path} is empty: it needs rows with a text and a label")
    for number, row in enumerate(rows, start=1):
        for column in ("text", "label"):
            if not row[column]:
                raise InputError(f"{path}, row {number}: no {column}: each row needs a text and a label")
    return [(row["text"], row["label"]) for row in rows]
