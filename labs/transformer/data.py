"""The data set that the programs train on: texts as token ids, by the tokenizer that goes with the model."""

import os
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

from torch.utils.data import Dataset

from common.errors import InputError
from common.options import StepOptions
from common.studies.extras import imported
from labs.transformer.batches import Item
from labs.transformer.model import SIZES, max_tokens
from labs.transformer.texts import Example, texts

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are forked, which its threads would not survive

PAD, FIRST, UNKNOWN = "[PAD]", "[CLS]", "[UNK]"
VOCABULARY = 4000


class Tokens:
    """Text as token ids, the first of them the one that the head reads. pad_id: fills up, and is no token."""

    def __init__(self, tokenizer: Any, pad_id: int) -> None:
        self.tokenizer, self.pad_id = tokenizer, pad_id
        self.vocabulary: int = tokenizer.get_vocab_size()

    def __call__(self, batch: Sequence[str], length: int) -> list[list[int]]:
        """The ids of each text, at most `length`: the end of a longer one is cut."""
        return [encoding.ids[:length] for encoding in self.tokenizer.encode_batch(list(batch))]


def trained_tokens(batch: Sequence[str], vocabulary: int = VOCABULARY) -> Tokens:
    """A byte-pair encoding of these texts, lower case, `vocabulary` tokens at most. Raises InputError."""
    imported("tokenizers", "transformer", "training a tokenizer")
    tokenizers: Any = import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, FIRST, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(batch, trainer)
    first = (FIRST, tokenizer.token_to_id(FIRST))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{FIRST} $A", special_tokens=[first])
    return Tokens(tokenizer, tokenizer.token_to_id(PAD))


def hub_tokens(name: str) -> Tokens:
    """The tokenizer of a DistilBERT of the Hugging Face hub. Raises InputError."""
    imported("tokenizers", "transformer", f"--model {name}")
    try:
        tokenizer = import_module("tokenizers").Tokenizer.from_pretrained(name)
    except Exception as error:  # its own `Exception`, without a class, for a missing file as for a missing network
        raise InputError(
            f"--model {name}: its tokenizer could not be loaded from the Hugging Face hub: use {', '.join(SIZES)}, or "
            "a DistilBERT such as distilbert-base-uncased where there is a network"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pad_id = tokenizer.token_to_id(PAD)
    if pad_id is None:
        raise InputError(f"--model {name}: its tokenizer has no token {PAD}: distilbert-base-uncased has")
    return Tokens(tokenizer, pad_id)


def tokens_for(model: str, examples: Sequence[Example]) -> Tokens:
    """The `Tokens` that go with a model: trained on these texts for one of `SIZES`. Raises InputError."""
    return trained_tokens([example.text for example in examples]) if model in SIZES else hub_tokens(model)


class Tokenized(Dataset):
    """Items are (token ids, label). A text is tokenized whenever it is loaded, as in most training programs.

    length: tokens of a text at most.
    """

    unit = "texts"

    def __init__(self, examples: Sequence[Example], tokens: Tokens, length: int, source: str = "docstrings") -> None:
        self.examples, self.tokens, self.length, self.source = examples, tokens, length, source

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Item:
        example = self.examples[index]
        return self.tokens([example.text], self.length)[0], example.label

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text: all are tokenized once, in about a second per 10,000."""
        return [len(ids) for ids in self.tokens([example.text for example in self.examples], self.length)]


def training_set(options: StepOptions) -> tuple[Tokenized, tuple[str, ...]]:
    """What the programs train on, and the names of its classes. Raises InputError."""
    every = texts(options)
    tokens = tokens_for(options.model, every.train)
    return Tokenized(every.train, tokens, max_tokens(options.model), every.source), every.classes
