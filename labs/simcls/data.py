"""What a loader yields: token ids of documents, references and candidates, the candidates ordered by ROUGE."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from common.errors import InputError
from common.studies.extras import imported
from labs.simcls import rouge
from labs.simcls.documents import Document, corpus, split
from labs.simcls.model import SIZES, size_of
from labs.simcls.rouge import Scores, kept_rouge

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are forked, which its threads would not survive

PAD, FIRST, UNKNOWN = "[PAD]", "[CLS]", "[UNK]"
VOCABULARY = 4000
PLACES = tuple(f"[PLACE{number}]" for number in range(8))  # `Document.places`; the last is of all that follow too
Ids = list[int]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Tokens:
    """Text as token ids, the first of them the one that the encoder reads a sequence's meaning from.

    tokenizer: of the package `tokenizers`. pad_id: fills sequences up, and is no token. places: the first tokens of
    candidates, by where they begin in the document; none in a tokenizer that was trained elsewhere.
    """

    def __init__(self, tokenizer: Any, pad: str) -> None:
        self.tokenizer, self.pad_id = tokenizer, tokenizer.token_to_id(pad)
        self.vocabulary = tokenizer.get_vocab_size()
        ids = [tokenizer.token_to_id(place) for place in PLACES]
        self.places = [number for number in ids if number is not None]

    def __call__(self, texts: Sequence[str], length: int) -> list[Ids]:
        """The ids of each text, at most `length`."""
        return [encoding.ids[:length] for encoding in self.tokenizer.encode_batch(list(texts))]

    def candidates(self, document: Document, numbers: Sequence[int], length: int) -> list[Ids]:
        """The ids of these candidates of a document, each beginning with the token of its place, where there is one."""
        sequences = self([document.candidates[number] for number in numbers], length)
        if not self.places:
            return sequences
        places, last = document.places, len(self.places) - 1
        first = [self.places[min(places[number], last)] for number in numbers]
        return [[token, *ids[1:]] for token, ids in zip(first, sequences, strict=True)]


def trained_tokens(texts: Sequence[str], vocabulary: int = VOCABULARY) -> Tokens:
    """A byte-pair encoding of these texts, lower case, `vocabulary` tokens at most. Raises InputError."""
    tokenizers = imported("tokenizers", "simcls", "training a tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [PAD, FIRST, UNKNOWN, *PLACES]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    first = (FIRST, tokenizer.token_to_id(FIRST))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{FIRST} $A", special_tokens=[first])
    return Tokens(tokenizer, PAD)


def hub_tokens(name: str) -> Tokens:
    """The tokenizer of an encoder of the Hugging Face hub, such as roberta-base. Raises InputError."""
    tokenizers = imported("tokenizers", "simcls", f"--model {name}")
    try:
        tokenizer = tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # its own `Exception`, without a class, for a missing file as for a missing network
        raise InputError(f"--model {name}: its tokenizer could not be fetched from the Hugging Face hub") from error
    pad = next((token for token in ("<pad>", PAD) if tokenizer.token_to_id(token) is not None), None)
    if pad is None:
        raise InputError(f"--model {name}: its tokenizer has no token to pad with; roberta-base has")
    return Tokens(tokenizer, pad)


class Candidates(Dataset):
    """Items are (document, reference, candidates), as token ids; the candidates in the order of their ROUGE.

    lengths: tokens of a document, and of a reference or candidate, at most. scores: the ROUGE of each document's
    candidates (see `rouge.rouge_of`); None to compute it whenever an item is loaded. ordered: False leaves the
    candidates in the document's order, as for a test.
    """

    unit = "documents"

    def __init__(
        self,
        documents: Sequence[Document],
        tokens: Tokens,
        lengths: tuple[int, int],
        source: str = "docstrings",
        scores: Sequence[Scores] | None = None,
        ordered: bool = True,
    ) -> None:
        self.documents, self.tokens, self.lengths, self.source = documents, tokens, lengths, source
        self.scores, self.ordered = scores, ordered

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> tuple[Ids, Ids, list[Ids]]:
        document = self.documents[index]
        numbers = range(len(document.candidates))
        if self.ordered:
            numbers = rouge.best_first(self.scores[index] if self.scores else rouge.rouge_of(document))
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
        flat = self.filled([ids for of_document in candidates for ids in of_document])
        return self.filled(documents), self.filled(references), flat.view(len(items), -1, flat.shape[1])

    def filled(self, sequences: Sequence[Ids]) -> torch.Tensor:
        """int64 [sequences, tokens of the longest]."""
        longest = max(map(len, sequences))
        return torch.tensor([[*ids, *[self.pad_id] * (longest - len(ids))] for ids in sequences])


def check_extras(model: str) -> None:
    """Raise InputError where a package that this lab needs is not installed: before texts are collected, a minute."""
    imported("rouge_score", "simcls", "scoring summaries")
    imported("tokenizers", "simcls", "training a tokenizer")
    if model not in SIZES:
        imported("transformers", "simcls", f"--model {model}")


def training_set(data: Path, model: str, seed: int, download: bool = False, ordered_once: bool = False) -> Candidates:
    """What the programs train on: the documents of `documents.corpus` that fold `seed` trains on.

    With the tokenizer that goes with the model, trained on these documents alone where it is an own one. ordered_once:
    ROUGE is computed now, and kept in `data`; else whenever a document is loaded. Raises InputError.
    """
    check_extras(model)
    texts = corpus(data, download)
    train = split(texts.documents, seed).train
    scores = None
    if ordered_once:
        kept = kept_rouge(data, texts)
        scores = [kept[document] for document in train]
    return Candidates(train, tokens_for(model, train), size_of(model).lengths, texts.source, scores)


def tokens_for(model: str, documents: Sequence[Document]) -> Tokens:
    """The `Tokens` that go with a model: trained on these documents for an own one. Raises InputError."""
    if model not in SIZES:
        return hub_tokens(model)
    return trained_tokens([text for document in documents for text in (document.text, document.reference)])


def token_count(pad_id: int) -> Callable[[Sequence[Any]], torch.Tensor]:
    """count_tokens(batch), for `run_step`: the tokens of a batch, filling left out, as a tensor of one element."""
    return lambda batch: sum((part != pad_id).sum() for part in batch)  # pyright: ignore[reportReturnType]
