"""Vectors of words that know which words are alike, from text alone: no labels, no download, a few seconds.

Positive pointwise mutual information of tokens that stand near each other, reduced by a truncated singular value
decomposition (Levy and Goldberg, "Neural Word Embedding as Implicit Matrix Factorization", NeurIPS 2014).
"""

from collections.abc import Sequence

import numpy as np
import torch

WINDOW = 8  # tokens to either side
FEW = 1000  # tokens: of so many, all singular values are computed at once
SMOOTHING = 0.75  # exponent of the context tokens' frequencies, as word2vec's and Levy's


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
