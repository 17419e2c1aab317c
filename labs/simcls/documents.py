"""Documents, references and candidates: docstrings of this Python's packages, or CNN/DailyMail where it was fetched."""

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labs.shared import docstrings
from labs.shared.extras import imported
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

CANDIDATES = 16  # of each document, as many as the paper samples from its generator
WHOLE, BEGUN = 6, 4  # sentences (or runs of them) that are candidates, and of which truncations are, at most
TRUNCATED = (8, 12, 5, 18, 10, 15, 6, 22)  # words of a truncation, in the order in which they are made
FOLDS = 5
SCHEMA = 1  # of the file that keeps collected docstrings
CNN_DAILYMAIL = "cnn_dailymail"  # its folder in --data
HUB_NAME, HUB_VERSION = "abisee/cnn_dailymail", "3.0.0"
MOST_ARTICLES = 20_000  # of a split of CNN/DailyMail
OFFICIAL = ("train", "validation", "test")


@dataclass(frozen=True)
class Document:
    """group: its package, or its split where the data set has one. candidates: `CANDIDATES` that differ, in the order
    in which the document gives them; the first is what comes first in it."""

    group: str
    text: str
    reference: str
    candidates: tuple[str, ...]

    @property
    def places(self) -> list[int]:
        """Where each candidate begins: 0 at the document's beginning, 1 at the next place at which one begins, …."""
        found = [self.text.find(candidate) for candidate in self.candidates]
        order = sorted(set(found))
        return [order.index(at) for at in found]


@dataclass(frozen=True)
class Corpus:
    """source: "docstrings" or "cnn_dailymail". dropped: documents from which too few candidates can be made."""

    source: str
    documents: tuple[Document, ...]
    dropped: int


@dataclass(frozen=True)
class Split:
    """Documents by what they are for; no group is in two of them."""

    train: list[Document]
    validation: list[Document]
    test: list[Document]


def corpus(data: Path, download: bool = False, folders: Sequence[Path] | None = None) -> Corpus:
    """CNN/DailyMail where `data` holds it, or `download` fetches it; else the docstrings of the packages in `folders`.

    What was collected is kept in `data` for the next program, as long as the same packages are installed. Raises
    InputError for a download that fails, an extra that is missing, and a Python with too few docstrings.
    """
    if download:
        fetch_articles(data)
    if (data / CNN_DAILYMAIL).is_dir():
        return from_articles(data / CNN_DAILYMAIL)
    if data != ROOT / "data" and not data.is_dir():
        raise InputError(f"--data {data} is no folder: leave it out to use the docstrings of the installed packages")
    return from_docstrings(data, folders or docstrings.package_folders())


def from_docstrings(keep: Path, folders: Sequence[Path]) -> Corpus:
    """The corpus of the docstrings of the packages in `folders`, which the folder `keep` keeps. Raises InputError."""
    path = keep / "docstrings.json"
    key = f"{docstrings.installed(folders)} {_code()}"
    texts = _kept(path, key)
    if texts is None:
        print("data: collecting the docstrings of the installed packages, once")
        texts = docstrings.collect(folders)
        with result.writing(keep):
            keep.mkdir(parents=True, exist_ok=True)
        result.write_json(path, {"schema": SCHEMA, "key": key, "docstrings": [asdict(text) for text in texts]})
    documents = [_document(text.package, text.body, text.summary, text.sentences) for text in texts]
    whole = tuple(document for document in documents if document is not None)
    if len({document.group for document in whole}) < FOLDS:
        where = ", ".join(map(str, folders))
        raise InputError(
            f"{len(whole)} docstrings of fewer than {FOLDS} packages in {where}: install more packages, such as those "
            "of requirements.txt"
        )
    return Corpus("docstrings", whole, len(documents) - len(whole))


def candidates_of(sentences: Sequence[str], window: int = 1) -> tuple[str, ...] | None:
    """`CANDIDATES` texts that differ: the first `WHOLE` runs of `window` sentences, then begins of some of them.

    Of the first `BEGUN`, cut after `TRUNCATED` words for every sentence in a run. None where a document is too short.
    """
    runs = [" ".join(sentences[at : at + window]) for at in range(max(1, len(sentences) - window + 1))]
    texts = dict.fromkeys(runs[:WHOLE])
    for length in TRUNCATED:
        begun = [run.split() for run in runs[:BEGUN]]
        texts.update(
            dict.fromkeys(" ".join(words[: length * window]) for words in begun if length * window < len(words))
        )
    return tuple(texts)[:CANDIDATES] if len(texts) >= CANDIDATES else None


def split(documents: Sequence[Document], fold: int) -> Split:
    """The documents of fold `fold` of `FOLDS` to test on, those of the next to choose by, and all others to train on.

    A package is in one fold, and the folds are about equally large: packages are dealt out from the largest to the
    smallest, each to the fold that is smallest so far. A data set that has splits of its own keeps them.
    """
    groups = Counter(document.group for document in documents)
    if set(groups) <= set(OFFICIAL):
        return Split(*([document for document in documents if document.group == name] for name in OFFICIAL))
    sizes, fold_of = [0] * FOLDS, {}
    for group, size in sorted(groups.items(), key=lambda item: (-item[1], item[0])):
        fold_of[group] = sizes.index(min(sizes))
        sizes[fold_of[group]] += size
    test, validation = fold % FOLDS, (fold + 1) % FOLDS
    parts = {"train": [], "validation": [], "test": []}
    for document in documents:
        name = {test: "test", validation: "validation"}.get(fold_of[document.group], "train")
        parts[name].append(document)
    return Split(**parts)


def fetch_articles(data: Path) -> None:
    """Download CNN/DailyMail into `data` unless it is there: whole, or not at all. Raises InputError."""
    final = data / CNN_DAILYMAIL
    if final.is_dir():
        return
    datasets = imported("datasets", "simcls", "CNN/DailyMail (--download)")
    with result.writing(data):
        data.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".download-", dir=data))
    try:
        fetched = datasets.load_dataset(HUB_NAME, HUB_VERSION, cache_dir=str(staging / "cache"))
        with result.writing(final):
            fetched.save_to_disk(str(staging / "whole"))
            (staging / "whole").rename(final)
    except InputError:
        raise
    except Exception as error:  # of `datasets`, `huggingface_hub` or the client below them: no common base class
        raise InputError(
            f"CNN/DailyMail could not be downloaded into {data} ({type(error).__name__}: {error}): run without "
            "--download for the docstrings, or bring that folder from a machine with network"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def from_articles(folder: Path) -> Corpus:
    """The corpus of CNN/DailyMail in a folder that `fetch_articles` wrote. Raises InputError for a broken one."""
    datasets = imported("datasets", "simcls", f"reading {folder}")
    try:
        splits = datasets.load_from_disk(str(folder))
        rows = [
            (name, row)
            for name in OFFICIAL
            for row in splits[name].select(range(min(MOST_ARTICLES, len(splits[name]))))
        ]
        texts = [(name, str(row["article"]), str(row["highlights"])) for name, row in rows]
    except Exception as error:  # see above
        raise InputError(
            f"{folder} is broken ({type(error).__name__}): remove it and run with --download again"
        ) from error
    documents = []
    for name, article, highlights in texts:
        sentences = [" ".join(part.split()) for part in docstrings.SENTENCE_END.split(article) if part.strip()]
        documents.append(_document(name, " ".join(sentences), " ".join(highlights.split()), sentences, window=3))
    whole = tuple(document for document in documents if document is not None)
    return Corpus("cnn_dailymail", whole, len(documents) - len(whole))


def _document(group: str, text: str, reference: str, sentences: Sequence[str], window: int = 1) -> Document | None:
    candidates = candidates_of(sentences, window)
    return Document(group, text, reference, candidates) if candidates else None


def _kept(path: Path, key: str) -> list[docstrings.Docstring] | None:
    try:
        value = result.read_json(path)
        if value["schema"] != SCHEMA or value["key"] != key:
            return None
        return [
            docstrings.Docstring(text["package"], text["summary"], tuple(text["sentences"]))
            for text in value["docstrings"]
        ]
    except (InputError, KeyError, TypeError):  # none yet, or not ours: collected anew
        return None


def _code() -> str:
    """A hash of the code that collects, so that what another version kept is not used."""
    return hashlib.sha256(Path(docstrings.__file__).read_bytes()).hexdigest()[:16]
