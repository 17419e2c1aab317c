"""Classifiers of texts: any of transformers', and DistilBERT in sizes that train on a CPU too, from random weights.

And what a program does with them: texts packed into rows, and a start without pretraining.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.options import Defaults, Workload
from labs.shared.extras import imported
from labs.shared.text import word_vectors
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from labs.transformer.data import Tokenized


@dataclass(frozen=True)
class Size:
    """Of a DistilBERT: layers, width, heads of attention, width between the linear layers; tokens of a text at most.

    vocabulary: rows of its embedding at least, as many as the tokenizer has if that has more.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    max_tokens: int
    vocabulary: int = 0


SIZES = {
    "tiny": Size(layers=2, width=128, heads=4, hidden=512, max_tokens=512),
    "small": Size(layers=4, width=256, heads=4, hidden=1024, max_tokens=512),
    # distilbert-base-uncased's own, so that it takes the time and the memory that that takes
    "base": Size(layers=6, width=768, heads=12, hidden=3072, max_tokens=512, vocabulary=30_522),
}
DEFAULTS = Defaults(
    cuda=Workload("base", batch_size=32),  # texts, from 03 on: what a T4 has memory for
    cpu=Workload("tiny", batch_size=32),
    logdir=ROOT / "logs" / "labs" / "transformer",
    models="tiny, small, base; a folder that save_pretrained wrote; or a model of the Hugging Face hub, such as "
    "distilbert-base-uncased",
    without=("--image-size", "--download"),
    texts={
        "--data": "folder of texts with labels: train.csv and, if there are, validation.csv and test.csv; "
        "columns text and label (default: the docstrings of the installed packages, kept in data/ of this project)",
    },
    cifar10=False,
)
INITIALIZER = 0.02  # standard deviation of base's weights; of narrower ones more, as fewer of them are summed up
DROPOUT = ("attention_dropout", "attention_probs_dropout_prob")  # of attention weights, by architecture


def classifier(name: str, tokenizer: Any, classes: Sequence[str], attention: str = "eager") -> Any:
    """A model of transformers that classifies sequences: one of `SIZES` with random weights, a folder, or of the hub.

    tokenizer: from `data.tokenizer_for`. classes: their names. attention: "eager" or "sdpa", which compute the same.
    Attention weights are not dropped out, as on a CPU no fused attention does that. Random weights are those of
    distilbert-base-uncased, larger by the square root of how much narrower a size is, so that what goes through a layer
    keeps its scale.
    Raises InputError where transformers is not installed, the model cannot be loaded, or weights below its head are
    missing, which transformers would begin with random numbers.
    """
    transformers = imported("transformers", "transformer", "a transformer")
    transformers.utils.logging.disable_progress_bar()
    labels = {"id2label": dict(enumerate(classes)), "label2id": {label: at for at, label in enumerate(classes)}}
    if name in SIZES:
        size = SIZES[name]
        config = transformers.DistilBertConfig(
            vocab_size=max(len(tokenizer), size.vocabulary), max_position_embeddings=size.max_tokens,
            n_layers=size.layers, dim=size.width, n_heads=size.heads, hidden_dim=size.hidden,
            pad_token_id=tokenizer.pad_token_id, attention_dropout=0.0, attn_implementation=attention,
            initializer_range=INITIALIZER * (SIZES["base"].width / size.width) ** 0.5, **labels,
        )  # fmt: skip
        return transformers.DistilBertForSequenceClassification(config)
    config = from_hub("AutoConfig", name)
    config.update({**labels, **{key: 0.0 for key in DROPOUT if hasattr(config, key)}})
    same = {"config": config, "attn_implementation": attention, "ignore_mismatched_sizes": True}  # of the head
    model, report = from_hub("AutoModelForSequenceClassification", name, output_loading_info=True, **same)
    encoder = f"{model.base_model_prefix}."
    random = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    if missing := sorted(key for key in random if key.startswith(encoder) and ".pooler." not in key):
        raise InputError(
            f"--model {name}: {len(missing)} weights of a {config.model_type} are missing, such as {missing[0]}: it "
            "would train from random ones; are its weights of another architecture than its config.json?"
        )
    return model.train()


def from_hub(kind: str, name: str, **settings: Any) -> Any:
    """What `from_pretrained` of a class of transformers returns, of a folder or a model of the hub. Raises InputError.

    Nothing is printed: no bars, no retries without a network, no report of a head that begins at random.
    """
    transformers = imported("transformers", "transformer", "a transformer")
    imported("huggingface_hub", "transformer", "a transformer").logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        return getattr(transformers, kind).from_pretrained(name, **settings)
    except Exception as error:  # no such model, no network, a damaged file, another architecture: no common class
        raise InputError(
            f"--model {name}: {kind} could not load it from a folder or the Hugging Face hub ({type(error).__name__}): "
            f"use {', '.join(SIZES)}, a folder that save_pretrained wrote, or a model of the hub with a network"
        ) from error


def packed_logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The logits [texts, classes] of texts that are packed into rows, as the model has them one text per row.

    ids, positions: int64 [rows, tokens]: positions restart at 0 with every text, and are 0 where a row is filled up.
    starts: int64 [texts], each text's first token in the rows laid one after the other: what the head reads. A token
    sees those of its own text alone: the model's own layers, with SDPA and a mask that is block-diagonal. Raises
    InputError for another architecture than DistilBERT, whose head is applied here.
    """
    if model.config.model_type != "distilbert":
        raise InputError(f"packing is for DistilBERT alone; for a {model.config.model_type} sort texts by length")
    hidden = model.distilbert(ids, attention_mask=block_diagonal(positions), position_ids=positions)[0]
    first = hidden.flatten(0, 1)[starts]
    return model.classifier(model.dropout(functional.relu(model.pre_classifier(first))))


def block_diagonal(positions: torch.Tensor) -> torch.Tensor:
    """The mask of packed rows, bool [rows, 1, tokens, tokens]: True where two tokens are of one text.

    A token that fills up a row sees itself alone.
    """
    text = (positions == 0).cumsum(1)  # the number of a token's text in its row
    return text[:, None, :, None] == text[:, None, None, :]


def mark_dynamic(*inputs: torch.Tensor) -> None:
    """Tell torch.compile that the sizes of these tensors change, so that one graph serves all but those of 1.

    torch documents `mark_dynamic` under this name only.
    """
    for tensor in inputs:
        torch._dynamo.mark_dynamic(tensor, [at for at, size in enumerate(tensor.shape) if size > 1])


def begin_with_word_vectors(model: Any, train_set: "Tokenized") -> None:
    """Give the token embedding of a model with random weights the `word_vectors` of the texts that it trains on.

    DistilBERT has read books before it is fine-tuned. A model that has not knows no word, and a classifier's labels say
    too little of most: the neighbourhoods of words in the training texts say more (no labels, no download). The vectors
    are as large as the random ones that they replace, and are trained like all weights. Where there are no more tokens
    than a vector has numbers, random ones stay.
    """
    embedding = model.get_input_embeddings()
    sequences = [ids[1:] for ids in train_set.ids([one.text for one in train_set.examples]) if len(ids) > 2]
    if not sequences or embedding.num_embeddings <= embedding.embedding_dim:
        return
    vectors = word_vectors(sequences, embedding.num_embeddings, embedding.embedding_dim).to(embedding.weight.device)
    with torch.no_grad():
        embedding.weight.copy_(vectors * model.config.initializer_range)
        embedding.weight[train_set.pad_id] = 0
