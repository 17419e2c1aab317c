"""DistilBERT with a head that classifies texts: transformers' own, in sizes that train on a CPU too, and packed."""

from dataclasses import dataclass
from typing import Any

from common.options import Defaults, Workload
from labs.shared.extras import imported
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Of a DistilBERT: layers, width, heads of attention, width between the linear layers; tokens of a text at most."""

    layers: int
    width: int
    heads: int
    hidden: int
    max_tokens: int


# base: of distilbert-base-uncased, so that it takes the time that that takes, and the memory but for its vocabulary.
SIZES = {
    "tiny": Size(layers=2, width=128, heads=4, hidden=512, max_tokens=512),
    "small": Size(layers=4, width=256, heads=4, hidden=1024, max_tokens=512),
    "base": Size(layers=6, width=768, heads=12, hidden=3072, max_tokens=512),
}
DEFAULTS = Defaults(
    cuda=Workload("base", batch_size=64),  # texts, from 03 on
    cpu=Workload("tiny", batch_size=32),
    logdir=ROOT / "logs" / "labs" / "transformer",
    models="tiny, small, base, or a DistilBERT of the Hugging Face hub, such as distilbert-base-uncased",
    without=("--image-size",),
    texts={
        "--data": "folder of texts with labels: train.csv, .tsv or .jsonl and, if there are, validation and test; "
        "columns text and label (default: the docstrings of the installed packages, kept in data/ of this project)",
        "--download": "fetch the 20 newsgroups into --data first, tens of MB (needs the package datasets)",
        "--seed": "of weights and shuffling (default: 0)",
    },
    cifar10=False,
)
INITIALIZER = 0.02  # standard deviation of base's weights; of narrower ones more, as fewer of them are summed up
ATTENTION = ("eager", "sdpa", "flex_attention")


def max_tokens(name: str) -> int:
    """Tokens of a text at most, for a model by its name; longer texts are cut there."""
    return SIZES.get(name, SIZES["base"]).max_tokens


def classifier(name: str, vocabulary: int, pad_id: int, classes: int, attention: str = "eager") -> Any:
    """transformers' DistilBertForSequenceClassification: one of `SIZES` with random weights, or one of the hub.

    vocabulary: token ids. classes: of its head. attention: one of `ATTENTION`, transformers' names; all compute the
    same. Attention weights are not dropped out: on a CPU no fused attention does that, and FlexAttention nowhere.
    Random weights are those of distilbert-base-uncased, larger by the square root of how much narrower a size is, so
    that what goes through a layer keeps its scale.
    Raises InputError where transformers is not installed, or the hub has no such model or cannot be reached.
    """
    imported("transformers", "transformer", "a DistilBERT")
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    same = {"attention_dropout": 0.0, "attn_implementation": attention, "num_labels": classes}
    if name in SIZES:
        size = SIZES[name]
        config = DistilBertConfig(
            vocab_size=vocabulary, max_position_embeddings=size.max_tokens, n_layers=size.layers, dim=size.width,
            n_heads=size.heads, hidden_dim=size.hidden, pad_token_id=pad_id,
            initializer_range=INITIALIZER * (SIZES["base"].width / size.width) ** 0.5, **same,
        )  # fmt: skip
        return DistilBertForSequenceClassification(config)
    try:
        return DistilBertForSequenceClassification.from_pretrained(name, **same).train()
    except Exception as error:  # no such model, no network, a model of another kind, a damaged file: no common class
        raise InputError(
            f"--model {name} could not be loaded from the Hugging Face hub ({type(error).__name__}): use "
            f"{', '.join(SIZES)}, or a DistilBERT such as distilbert-base-uncased where there is a network"
        ) from error


def packed_logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The logits [texts, classes] of texts that are packed into rows, as the model has them one text per row.

    ids, positions: int64 [rows, tokens]: positions restart at 0 with every text, and are 0 where a row is filled up.
    starts: int64 [texts], each text's first token in the rows laid one after the other: what the head reads. A token
    sees those of its own text alone: the model's own layers, with a mask that is block-diagonal.
    """
    mask = block_diagonal(positions, model.config._attn_implementation)
    hidden = model.distilbert(ids, attention_mask=mask, position_ids=positions)[0]
    first = hidden.flatten(0, 1)[starts]
    return model.classifier(model.dropout(functional.relu(model.pre_classifier(first))))


def block_diagonal(positions: torch.Tensor, attention: str = "sdpa") -> Any:
    """The mask of packed rows for an attention of `ATTENTION`: True where two tokens are of one text.

    "sdpa": bool [rows, 1, tokens, tokens]. "eager": float, which is added. "flex_attention": a BlockMask, whose blocks
    of 128 x 128 tokens are skipped where no two are of one text. A token that fills up a row sees itself alone.
    """
    text = (positions == 0).cumsum(1)  # the number of a token's text in its row
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        rows, tokens = positions.shape
        return create_block_mask(
            lambda row, _, query, key: text[row, query] == text[row, key], rows, None, tokens, tokens, positions.device
        )
    same = text[:, None, :, None] == text[:, None, None, :]
    return same if attention == "sdpa" else torch.where(same, 0.0, torch.finfo(torch.float32).min)


def mark_dynamic(*inputs: torch.Tensor) -> None:
    """Tell torch.compile that all sizes of these tensors change from batch to batch, so that one graph serves all.

    A size of 1 is left out: torch.compile makes a case of its own of it.
    """
    for tensor in inputs:
        for dimension in range(tensor.dim()):
            if tensor.shape[dimension] > 1:
                torch._dynamo.mark_dynamic(tensor, dimension)


def graphs_compiled() -> int:
    """Graphs that torch.compile has made in this process, recompilations included."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
