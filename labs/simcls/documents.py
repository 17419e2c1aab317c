"""Documents, their candidates and the ROUGE of these: docstrings of this Python's packages, or files of JSON lines.

A line of such a file is an object with "article" and "highlights", the reference summary, as CNN/DailyMail has them:
`datasets` writes that data set into three files, train.jsonl, validation.jsonl and test.jsonl. "candidates", a list of
texts, is what a generator wrote for the article; without it candidates are cut from the article. "split" names the
line's split where all are in one file; without it every line is a group of its own, and folds are made of them.
"""

import hashlib
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from labs.shared import docstrings
from labs.shared.extras import imported
from walkthrough.results import result
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError

import numpy as np

CANDIDATES = 16  # of each document, as many as the paper samples from its generator
WHOLE, BEGUN = 6, 4  # sentences (or runs of them) that are candidates, and of which truncations are, at most
TRUNCATED = (8, 12, 5, 18, 10, 15, 6, 22)  # words of a truncation, in the order in which they are made
RUN = 3  # sentences of an article that are a candidate: about as many as its highlights have
FOLDS = 5
FEW = 1000  # documents: of fewer, ROUGE is computed before other processes have started
CNN_DAILYMAIL = "cnn_dailymail"  # its folder in --data
OFFICIAL = ("train", "validation", "test")
SENTENCE_END = re.compile(r"\s*\n\s*|(?<=[.!?])\s+(?=[A-Z\"'(])")
KINDS = ("rouge1", "rouge2", "rougeLsum")  # Lsum: over sentences, a line each; what papers print as ROUGE-L
Scores = np.ndarray  # float64 [candidates, kinds], of a document


@dataclass(frozen=True)
class Document:
    """group: its package, or its split where the data set has one. candidates: as many in each document; those that are
    cut from it differ, and are in its order, so the first is what comes first in it."""

    group: str
    text: str
    reference: str
    candidates: tuple[str, ...]

    @property
    def places(self) -> list[int]:
        """Where each candidate begins: 0 at the document's beginning, 1 at the next place at which one begins, ….

        0 for one that is not in the document, such as a generator's.
        """
        begins = [self.text.find(candidate) for candidate in self.candidates]
        order = sorted({at for at in begins if at >= 0})
        return [order.index(at) if at >= 0 else 0 for at in begins]


@dataclass(frozen=True)
class Corpus:
    """source: "docstrings", or the name of its file or folder. dropped: documents with too few candidates in them."""

    source: str
    documents: tuple[Document, ...]
    dropped: int

    @cached_property
    def digest(self) -> str:
        """Of all documents and candidates."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(repr(document).encode())
        return digest.hexdigest()[:16]

    @property
    def is_split(self) -> bool:
        """Whether the data set has splits of its own, so that there is one fold only."""
        return {document.group for document in self.documents} <= set(OFFICIAL)


def corpus(data: Path, most: int | None = None) -> Corpus:
    """What `data` holds: a file of JSON lines, or a folder with one for each split; else the installed docstrings.

    These are kept in `data` for the next program, as long as the same packages are installed. most: documents of each
    split that are used. Raises InputError for a line that is not as above, and a Python with too few docstrings.
    """
    if data.is_file():
        return from_lines(data.stem, {"": data}, most)
    for folder in (data, data / CNN_DAILYMAIL):
        files = {name: folder / f"{name}.jsonl" for name in OFFICIAL}
        if files["train"].is_file():
            return from_lines(folder.name, files, most)
    if data != ROOT / "data" and not data.is_dir():
        raise InputError(f"--data {data}: no such file or folder; without it: docstrings of the installed packages")
    return from_docstrings(data, docstrings.package_folders())


def from_docstrings(keep: Path, folders: Sequence[Path]) -> Corpus:
    """The corpus of the docstrings of the packages in `folders`, which the folder `keep` keeps. Raises InputError."""
    rows = docstrings.kept(
        keep / "docstrings.json", folders, "rows",
        lambda: [(text.package, text.summary, text.sentences) for text in docstrings.collect(folders)],
    )  # fmt: skip
    documents = [with_candidates(package, " ".join(body), summary, body) for package, summary, body in rows]
    whole = tuple(document for document in documents if document is not None)
    if len({document.group for document in whole}) < FOLDS:
        where = ", ".join(map(str, folders))
        raise InputError(f"docstrings of fewer than {FOLDS} packages in {where}: install more, or use --data")
    return Corpus("docstrings", whole, len(documents) - len(whole))


def with_candidates(
    group: str, text: str, reference: str, sentences: Sequence[str], window: int = 1
) -> Document | None:
    """A document whose candidates are `candidates_of` its sentences; None where it is too short for them."""
    candidates = candidates_of(sentences, window)
    return Document(group, text, reference, candidates) if candidates else None


def candidates_of(sentences: Sequence[str], window: int = 1) -> tuple[str, ...] | None:
    """`CANDIDATES` texts that differ: the first `WHOLE` runs of `window` sentences, then begins of some of them.

    Of the first `BEGUN`, cut after `TRUNCATED` words for every sentence in a run. A sentence is a line. None where a
    document is too short.
    """
    runs = ["\n".join(sentences[at : at + window]) for at in range(max(1, len(sentences) - window + 1))]
    texts = dict.fromkeys(runs[:WHOLE])
    for length in (words * window for words in TRUNCATED):
        cut = re.compile(rf"(?:\S+\s+){{{length - 1}}}\S+(?=\s)")
        texts.update(dict.fromkeys(begun[0] for run in runs[:BEGUN] if (begun := cut.match(run))))
        if len(texts) >= CANDIDATES:
            return tuple(texts)[:CANDIDATES]
    return None


def from_lines(source: str, files: Mapping[str, Path], most: int | None = None) -> Corpus:
    """The corpus of files of JSON lines, {split: its file}; "": lines name theirs. Raises InputError for a bad line."""
    documents, dropped, lines, count = [], 0, Counter[str](), 0
    for split_name, path in files.items():
        for number, row in json_lines(path):
            name = split_name or str(row.get("split", ""))
            lines[name] += 1
            if most and lines[name] > most:
                continue
            document = document_in(row, f"{path}, line {number}", name or str(number))
            if document is None:
                dropped += 1
                continue
            count = count or max(2, len(document.candidates))
            if len(document.candidates) != count:
                raise InputError(
                    f"{path}, line {number}: {len(document.candidates)} candidates, not {count}: training takes as "
                    "many of each document"
                )
            documents.append(document)
    if set(OFFICIAL) & set(lines) and set(OFFICIAL) != set(lines):
        raise InputError(
            f'{source}: "split" has to be one of {", ".join(OFFICIAL)} in each line, and none without lines'
        )
    return Corpus(source, tuple(documents), dropped)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of each line that is not empty. Raises InputError where a line is no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise InputError(f"{path}, line {number}: no JSON object")
                    yield number, row
    except (OSError, ValueError) as error:  # ValueError: no JSON, or no UTF-8
        raise InputError(f"{path} cannot be read as JSON lines: {error}") from error


def document_in(row: Mapping[str, Any], where: str, group: str = "", reference: bool = True) -> Document | None:
    """The document in an object of a file of JSON lines, each sentence a line; None where it is too short.

    reference: whether it has to have one; "" where it has none. Raises InputError, which begins with `where`.
    """
    names = ("article", *(["highlights"] if reference else []))
    if wrong := [name for name in names if not isinstance(row.get(name), str)]:
        raise InputError(f'{where}: "{wrong[0]}" is no text')
    sentences, summary = sentences_of(row["article"]), "\n".join(sentences_of(str(row.get("highlights", ""))))
    if "candidates" not in row:
        return with_candidates(group, "\n".join(sentences), summary, sentences, RUN)
    own = row["candidates"]
    if not isinstance(own, list) or not own or not all(isinstance(text, str) for text in own):
        raise InputError(f'{where}: "candidates" is no list of texts')
    return Document(group, "\n".join(sentences), summary, tuple("\n".join(sentences_of(text)) for text in own))


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in which a new line begins one, too."""
    return [" ".join(part.split()) for part in SENTENCE_END.split(text) if part.strip()]


def split(documents: Sequence[Document], fold: int) -> dict[str, list[Document]]:
    """{name of `OFFICIAL`: documents}: to test on those of fold `fold` of `FOLDS`, to choose by those of the next.

    A package is in one fold, and the folds are about equally large: packages are dealt out from the largest to the
    smallest, each to the fold that is smallest so far. A data set that has splits of its own keeps them.
    """
    groups = Counter(document.group for document in documents)
    part_of = {name: name for name in OFFICIAL}
    if not set(groups) <= set(OFFICIAL):
        sizes, names = [0] * FOLDS, {fold % FOLDS: "test", (fold + 1) % FOLDS: "validation"}
        for group, size in sorted(groups.items(), key=lambda item: (-item[1], item[0])):
            smallest = sizes.index(min(sizes))
            sizes[smallest] += size
            part_of[group] = names.get(smallest, "train")
    parts: dict[str, list[Document]] = {name: [] for name in OFFICIAL}
    for document in documents:
        parts[part_of[document.group]].append(document)
    return parts


@cache
def _scorer() -> Any:
    """Of the package rouge-score, Google Research's port of ROUGE-1.5.5, which is what papers report."""
    rouge_scorer = imported("rouge_score.rouge_scorer", "simcls", "scoring summaries")
    return rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)


def rouge(reference: str, candidate: str) -> tuple[float, float, float]:
    """(ROUGE-1, ROUGE-2, ROUGE-L), the F measure of each, 0 to 1, words stemmed, a sentence on each line."""
    scores = _scorer().score(reference, candidate)
    return tuple(scores[kind].fmeasure for kind in KINDS)  # pyright: ignore[reportReturnType]  # three


def rouge_of(document: Document) -> Scores:
    """`rouge` of each candidate of a document."""
    return np.array([rouge(document.reference, candidate) for candidate in document.candidates])


def kept_rouge(keep: Path, texts: Corpus) -> dict[Document, Scores]:
    """`rouge_of` each document of a corpus, which `keep`, or its folder, keeps for the next program.

    Raises InputError where rouge-score is missing, and where nothing can be written.
    """
    path = (keep.parent if keep.is_file() else keep) / f"rouge_{texts.source}_{len(texts.documents)}.npz"
    key = hashlib.sha256(Path(__file__).read_bytes() + texts.digest.encode()).hexdigest()
    try:
        with np.load(path) as kept:
            scores = kept["rouge"] if str(kept["key"]) == key else None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # none yet, or not ours: computed anew
        scores = None
    if scores is None:
        _scorer()  # refused here rather than in every process
        print(f"data: ROUGE of the candidates of {len(texts.documents)} documents, once", flush=True)
        if len(texts.documents) < FEW:
            scores = np.stack([*map(rouge_of, texts.documents)])
        else:
            with ProcessPoolExecutor(usable_cores(), mp_context=get_context("spawn")) as processes:
                scores = np.stack([*processes.map(rouge_of, texts.documents, chunksize=64)])
        content = io.BytesIO()
        np.savez(content, key=key, rouge=scores)
        result.write_whole(path, content.getvalue())
    return dict(zip(texts.documents, scores, strict=True))


def best_first(scores: Scores) -> list[int]:
    """The candidates' numbers, the highest mean of the three kinds first, as in the paper; equal ones in order."""
    return np.argsort(-scores.mean(1), kind="stable").tolist()
