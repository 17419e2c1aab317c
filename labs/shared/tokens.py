"""Text as token ids: a byte-pair encoding that is trained on the spot, or the tokenizer of a model of the hub."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labs.shared.extras import imported
from walkthrough.results import progress
from walkthrough.results.errors import InputError

import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are forked, which its threads would not survive

PAD, FIRST, UNKNOWN = "[PAD]", "[CLS]", "[UNK]"
PADS = ("<pad>", PAD)  # as RoBERTa's tokenizer and BERT's have it
VOCABULARY = 4000
Ids = list[int]


class Tokens:
    """Text as token ids, the first of them the one that a model reads a sequence's meaning from.

    tokenizer: of the package `tokenizers`. pad_id: fills sequences up, and is no token. vocabulary: how many ids.
    """

    def __init__(self, tokenizer: Any, pad: str = PAD) -> None:
        self.tokenizer, self.pad_id = tokenizer, tokenizer.token_to_id(pad)
        self.vocabulary: int = tokenizer.get_vocab_size()

    def __call__(self, texts: Sequence[str], length: int) -> list[Ids]:
        """The ids of each text, at most `length`: the end of a longer one is cut."""
        return [encoding.ids[:length] for encoding in self.tokenizer.encode_batch(list(texts))]


def filled(sequences: Sequence[Sequence[int]], length: int, value: int) -> torch.Tensor:
    """int64 [sequences, length]: each filled up to the length with a value."""
    return torch.tensor([[*sequence, *[value] * (length - len(sequence))] for sequence in sequences])


def trained_tokenizer(texts: Iterable[str], lab: str, vocabulary: int = VOCABULARY, special: Sequence[str] = ()) -> Any:
    """A byte-pair encoding of these texts, lower case, `vocabulary` tokens at most; `FIRST` begins each sequence.

    lab: what needs it. special: tokens besides `PAD`, `FIRST` and `UNKNOWN`. Raises InputError.
    """
    tokenizers = imported("tokenizers", lab, "training a tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokens = [PAD, FIRST, UNKNOWN, *special]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    first = (FIRST, tokenizer.token_to_id(FIRST))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{FIRST} $A", special_tokens=[first])
    return tokenizer


def hub_tokenizer(name: str, lab: str, instead: str) -> tuple[Any, str]:
    """The tokenizer of a model of the Hugging Face hub, and its token that fills up. instead: what can be used here.

    name: on the hub, or a folder that holds its files. Raises InputError where it cannot be had.
    """
    tokenizers = imported("tokenizers", lab, f"--model {name}")
    progress.say(f"model: loading the tokenizer of {name}, kept here or from the Hugging Face hub")
    hub = imported("huggingface_hub", lab, f"--model {name}")
    try:
        with _no_retries_told(hub.logging):
            if (file := Path(name) / "tokenizer.json").is_file():  # a folder in the hub's format
                tokenizer = tokenizers.Tokenizer.from_file(str(file))
            else:
                tokenizer = tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # its own `Exception`, without a class, for a missing file as for a missing network
        raise InputError(
            f"--model {name}: its tokenizer could not be loaded from the Hugging Face hub: use {instead}"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    pad = next((token for token in PADS if tokenizer.token_to_id(token) is not None), None)
    if pad is None:
        raise InputError(f"--model {name}: its tokenizer has no token to fill up with ({' or '.join(PADS)})")
    return tokenizer, pad


@contextmanager
def _no_retries_told(logging: Any) -> Iterator[None]:
    """Nothing is printed of what the hub's client tries again: for half a minute, where there is no network."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
