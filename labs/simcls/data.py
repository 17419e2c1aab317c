"""What a loader yields: token ids of documents, references and candidates, the candidates ordered by ROUGE."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labs.shared.extras import imported
from labs.shared.text import PAD, Ids, Tokens, filled, hub_tokenizer, trained_tokenizer
from labs.simcls import documents
from labs.simcls.documents import Document, Scores, best_first, corpus, kept_rouge, split
from labs.simcls.model import SIZES, size_of

import torch
from torch.utils.data import Dataset

PLACES = tuple(f"[PLACE{number}]" for number in range(8))  # `Document.places`; the last is of all that follow too
SOME = 20_000  # documents of a split that programs and the study use; train.py uses all
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PlacedTokens(Tokens):
    """`Tokens` in which a candidate begins with a token for its place in the document.

    places: those tokens' ids; none in a tokenizer that was trained elsewhere.
    """

    def __init__(self, tokenizer: Any, pad: str = PAD) -> None:
        super().__init__(tokenizer, pad)
        ids = [tokenizer.token_to_id(place) for place in PLACES]
        self.places = [number for number in ids if number is not None]

    def candidates(self, document: Document, numbers: Sequence[int], length: int) -> list[Ids]:
        """The ids of these candidates of a document, each beginning with the token of its place, where there is one."""
        sequences = self([document.candidates[number] for number in numbers], length)
        if not self.places:
            return sequences
        places, last = document.places, len(self.places) - 1
        first = [self.places[min(places[number], last)] for number in numbers]
        return [[token, *ids[1:]] for token, ids in zip(first, sequences, strict=True)]


class Candidates(Dataset):
    """Items are (document, reference, candidates), as token ids; the candidates in the order of their ROUGE.

    lengths: tokens of a document, and of a reference or candidate, at most. scores: the ROUGE of each document's
    candidates (see `documents.rouge_of`); None to compute it whenever an item is loaded. ordered: False leaves the
    candidates in the document's order, as for a test.
    """

    unit = "documents"

    def __init__(
        self, documents: Sequence[Document], tokens: PlacedTokens, lengths: tuple[int, int],
        source: str = "docstrings", scores: Sequence[Scores] | None = None, ordered: bool = True,
    ) -> None:  # fmt: skip
        self.documents, self.tokens, self.lengths, self.source = documents, tokens, lengths, source
        self.scores, self.ordered = scores, ordered

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> tuple[Ids, Ids, list[Ids]]:
        document = self.documents[index]
        numbers = range(len(document.candidates))
        if self.ordered:
            numbers = best_first(self.scores[index] if self.scores else documents.rouge_of(document))
        of_document, of_summary = self.lengths
        text, reference = self.tokens([document.text], of_document)[0], self.tokens([document.reference], of_summary)[0]
        return text, reference, self.tokens.candidates(document, numbers, of_summary)


class Collate:
    """Items of `Candidates` as a batch of int64 tensors, each as long as its longest sequence.

    (documents [batch, tokens], references [batch, tokens], candidates [batch, candidates, tokens]), filled with pad_id.
    """

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, items: Sequence[tuple[Ids, Ids, list[Ids]]]) -> Batch:
        documents, references, candidates = zip(*items, strict=True)
        parts = documents, references, [ids for of_document in candidates for ids in of_document]
        texts, summaries, flat = (filled(part, max(map(len, part)), self.pad_id) for part in parts)
        return texts, summaries, flat.view(len(items), -1, flat.shape[1])


def check_extras(model: str) -> None:
    """Raise InputError where a package that this lab needs is not installed: before texts are collected, a minute."""
    imported("rouge_score", "simcls", "scoring summaries")
    imported("tokenizers", "simcls", "training a tokenizer")
    if model not in SIZES:
        imported("transformers", "simcls", f"--model {model}")


def training_set(data: Path, model: str, seed: int, ordered_once: bool = False) -> Candidates:
    """What the programs train on: the documents of `documents.corpus` that fold `seed` trains on.

    With the tokenizer that goes with the model, trained on these documents alone where it is an own one. ordered_once:
    ROUGE is computed now, and kept in `data`; else whenever a document is loaded. Raises InputError.
    """
    check_extras(model)
    texts = corpus(data, SOME)
    train = split(texts.documents, seed)["train"]
    scores = None
    if ordered_once:
        kept = kept_rouge(data, texts)
        scores = [kept[document] for document in train]
    return Candidates(train, tokens_for(model, train), size_of(model).lengths, texts.source, scores)


def tokens_for(model: str, documents: Sequence[Document]) -> PlacedTokens:
    """The `PlacedTokens` that go with a model: trained on these documents for an own one. Raises InputError."""
    if model not in SIZES:
        return PlacedTokens(*hub_tokenizer(model, "simcls", " or ".join(SIZES)))
    texts = [text for document in documents for text in (document.text, document.reference)]
    return PlacedTokens(trained_tokenizer(texts, "simcls", special=PLACES))


def token_count(pad_id: int) -> Callable[[Sequence[Any]], torch.Tensor]:
    """count_tokens(batch), for `run_step`: the tokens of a batch, filling left out, as a tensor of one element."""
    return lambda batch: sum((part != pad_id).sum() for part in batch)  # pyright: ignore[reportReturnType]
