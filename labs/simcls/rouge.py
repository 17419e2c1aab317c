"""How good a candidate is: ROUGE against the reference, by the package rouge-score.

rouge-score 0.1.2 (2022) is the last release of Google Research's port of ROUGE-1.5.5, and what papers report; it brings
absl-py, six and nltk, of which only the Porter stemmer is used: nothing is downloaded.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from labs.shared.extras import imported
from labs.simcls.documents import Corpus, Document
from walkthrough.results import result
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

KINDS = ("rouge1", "rouge2", "rougeL")
Scores = Sequence[Sequence[float]]  # of a document: for each candidate one of each kind


@cache
def _scorer() -> Any:
    rouge_scorer = imported("rouge_score.rouge_scorer", "simcls", "scoring summaries")
    return rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)


def rouge(reference: str, candidate: str) -> tuple[float, float, float]:
    """(ROUGE-1, ROUGE-2, ROUGE-L), the F measure of each, 0 to 1, words stemmed."""
    scores = _scorer().score(reference, candidate)
    return tuple(scores[kind].fmeasure for kind in KINDS)  # pyright: ignore[reportReturnType]  # three


def rouge_of(document: Document) -> list[tuple[float, float, float]]:
    """`rouge` of each candidate of a document."""
    return [rouge(document.reference, candidate) for candidate in document.candidates]


def kept_rouge(keep: Path, texts: Corpus) -> dict[Document, Scores]:
    """`rouge_of` each document of a corpus, which the folder `keep` keeps for the next program. Raises InputError."""
    path = keep / f"rouge_{texts.source}.json"
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for document in texts.documents:
        digest.update(repr(document).encode())
    try:
        value = result.read_json(path)
        scores = value["rouge"] if value["key"] == digest.hexdigest() else None
    except (InputError, KeyError):  # none yet, or not ours: computed anew
        scores = None
    if scores is None:
        _scorer()  # refused here rather than in every process
        print(f"data: ROUGE of the candidates of {len(texts.documents)} documents, once")
        with ProcessPoolExecutor(usable_cores(), mp_context=get_context("spawn")) as processes:
            scores = list(processes.map(rouge_of, texts.documents, chunksize=64))
        result.write_json(path, {"key": digest.hexdigest(), "rouge": scores})
    return dict(zip(texts.documents, scores, strict=True))


def mean(scores: Sequence[float]) -> float:
    """What candidates are ordered by: the mean of the three kinds, as in the paper."""
    return sum(scores) / len(scores)


def best_first(scores: Sequence[Sequence[float]]) -> list[int]:
    """The candidates' numbers, that of the highest mean first; equal ones in the document's order."""
    return sorted(range(len(scores)), key=lambda number: -mean(scores[number]))
