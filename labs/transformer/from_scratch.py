"""What a model with random weights needs to learn more than a bag of words from some 10,000 texts.

DistilBERT has read books before it is fine-tuned. A model that has not knows no word, and a classifier's labels say too
little of most: it begins from word vectors that the training texts' own neighbourhoods give (no labels, no download),
and it never sees a whole text, so that it cannot learn texts by heart.
"""

from typing import Any

from labs.shared.tokens import UNKNOWN
from labs.shared.words import word_vectors
from labs.transformer.data import Tokenized

import torch

DROPPED = 0.3  # of a training text's tokens, others each time


def begin_with_word_vectors(model: Any, train_set: Tokenized) -> None:
    """Give the token embedding of a model from `model.classifier` the `word_vectors` of the texts that it trains on.

    They are as large as the random ones that they replace, and are trained like all weights. Where there are no more
    tokens than a vector has numbers, random ones stay.
    """
    embedding = model.distilbert.embeddings.word_embeddings
    sequences = train_set.tokens([example.text for example in train_set.examples], train_set.length)
    sequences = [ids[1:] for ids in sequences if len(ids) > 2]  # of two tokens at least
    if not sequences or embedding.num_embeddings <= embedding.embedding_dim:
        return
    vectors = word_vectors(sequences, embedding.num_embeddings, embedding.embedding_dim).to(embedding.weight.device)
    with torch.no_grad():
        embedding.weight.copy_(vectors * model.config.initializer_range)
        embedding.weight[train_set.tokens.pad_id] = 0


def dropped(ids: torch.Tensor, train_set: Tokenized, share: float = DROPPED) -> torch.Tensor:
    """Token ids [texts, tokens], some of them unknown: each with probability `share`, but not a text's first.

    What fills up stays as it is.
    """
    unknown = train_set.tokens.tokenizer.token_to_id(UNKNOWN)
    drop = (torch.rand(ids.shape, device=ids.device) < share) & (ids != train_set.tokens.pad_id)
    drop[:, 0] = False
    return ids.masked_fill(drop, unknown)
