"""Text as token ids, by a tokenizer trained on the spot or a hub model's; and vectors of tokens, from text alone.

Vectors know which words are alike, without labels or a download, in a few seconds: positive pointwise mutual
information of tokens that stand near each other, reduced by a truncated singular value decomposition (Levy and
Goldberg, "Neural Word Embedding as Implicit Matrix Factorization", NeurIPS 2014).
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from labs.shared.extras import imported
from walkthrough.results import progress
from walkthrough.results.errors import InputError

import numpy as np
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # workers are forked, which its threads would not survive

PAD, FIRST, UNKNOWN = "[PAD]", "[CLS]", "[UNK]"
PADS = ("<pad>", PAD)  # as RoBERTa's tokenizer and BERT's have it
VOCABULARY = 4000
WINDOW = 8  # tokens to either side
FEW = 1000  # tokens: of so many, all singular values are computed at once
SMOOTHING = 0.75  # exponent of the context tokens' frequencies, as word2vec's and Levy's
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
    hub.logging.set_verbosity_error()  # of what it tries again: for half a minute, where there is no network
    try:
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


def word_vectors(texts: Sequence[Sequence[int]], vocabulary: int, width: int) -> torch.Tensor:
    """float32 [vocabulary, width], each row of length sqrt(width), as torch's initialisation has it on average.

    texts: token ids. A pair of tokens that are `n` apart counts 1/n. A token without neighbours keeps a random row.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import svds

    pairs = [
        (ids[:-apart], ids[apart:], np.full(len(ids) - apart, 1 / apart))
        for ids in map(np.asarray, texts)
        for apart in range(1, min(WINDOW + 1, len(ids)))
    ]
    rows, columns, weights = (np.concatenate(part) for part in zip(*pairs, strict=True))
    both = np.concatenate([weights, weights]), (np.concatenate([rows, columns]), np.concatenate([columns, rows]))
    counts = coo_array(both, shape=(vocabulary, vocabulary)).tocsr().tocoo()
    row, column = counts.coords
    frequency = np.bincount(row, counts.data, vocabulary)
    context = frequency**SMOOTHING / (frequency**SMOOTHING).sum()
    information = np.log(counts.data / (frequency[row] * context[column])).clip(min=0)
    matrix = coo_array((information, (row, column)), shape=(vocabulary, vocabulary)).tocsr()
    if vocabulary <= FEW:  # where values are equal, ARPACK goes on from random vectors, other ones in each call
        left, values = (part[..., :width] for part in np.linalg.svd(matrix.toarray())[:2])
    else:
        left, values, _ = svds(matrix, k=width, v0=np.ones(vocabulary))  # from there, not from a random vector
    vectors = torch.from_numpy((left * np.sqrt(values)).astype(np.float32))
    length = vectors.norm(dim=1, keepdim=True)
    known = length > 1e-3 * length.max()
    return torch.where(known, vectors / length.clamp(min=1e-12) * width**0.5, torch.randn(vocabulary, width))
