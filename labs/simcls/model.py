"""The model, which scores candidates by the cosine similarity of their vectors and the document's, and its loss."""

from dataclasses import dataclass

from common.options import Defaults, Workload
from labs.shared.extras import imported
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """Of an encoder: layers, width, heads of attention; lengths: tokens of a document and of a summary, at most."""

    layers: int
    width: int
    heads: int
    lengths: tuple[int, int]


# base: of roberta-base, so that it takes the memory and time that that takes. small: ranks as well as anything that can
# be trained here in minutes, but a single layer leaves nothing for checkpointing to drop: medium is for the programs.
SIZES = {
    "small": Size(layers=1, width=64, heads=4, lengths=(64, 24)),
    "medium": Size(layers=4, width=64, heads=4, lengths=(64, 24)),
    "base": Size(layers=12, width=768, heads=12, lengths=(512, 128)),
}
DEFAULTS = Defaults(
    cuda=Workload("base", batch_size=8),  # documents, each with its candidates and its reference
    cpu=Workload("medium", batch_size=8),
    logdir=ROOT / "logs" / "labs" / "simcls",
    models="small, medium, base, or an encoder of the Hugging Face hub, such as roberta-base, by its name or folder",
    without=("--image-size", "--download"),
    texts={
        "--data": "folder of train.jsonl, validation.jsonl and test.jsonl, as of CNN/DailyMail, or one such file, see "
        "documents.py; without any: docstrings of the installed packages (default: data/ of this project)",
        "--seed": "of weights and shuffling, and of which packages are left out for the test (default: 0)",
    },
    cifar10=False,
)
DROPOUT = 0.1
MARGIN = 0.01  # per rank; the paper's


def ranking_loss(scores: torch.Tensor, reference_scores: torch.Tensor, margin: float = MARGIN) -> torch.Tensor:
    """The mean over documents of the loss of SimCLS (Liu and Liu 2021), a tensor of one element.

    scores: [batch, candidates], cosine similarities, the candidate of the highest ROUGE first. reference_scores:
    [batch]. For every two candidates, of which the one is `gap` ranks below the other, max(0, its score - the other's
    + gap * margin); and for every candidate max(0, its score - the reference's), the gold term.
    """
    rank = torch.arange(scores.shape[1], device=scores.device)
    gap = rank[None, :] - rank[:, None]  # how many ranks column j is below row i
    excess = scores[:, None, :] - scores[:, :, None] + margin * gap
    pairs = (excess.clamp(min=0) * (gap > 0)).sum(dim=(1, 2))
    gold = (scores - reference_scores[:, None]).clamp(min=0).sum(dim=1)
    return (pairs + gold).mean()


def size_of(name: str) -> Size:
    """The `Size` of an own encoder; the lengths of "base" for one of the hub."""
    return SIZES.get(name, SIZES["base"])


def re_ranker(name: str, vocabulary: int, pad_id: int, pretrained: bool = True) -> "ReRanker":
    """A model by the name of its encoder: one of `SIZES`, randomly initialised, or one of the Hugging Face hub.

    pretrained: False leaves that one's weights random, too, and needs its config.json only. Raises InputError where it
    cannot be had, or transformers is not installed.
    """
    if name in SIZES:
        return ReRanker(Encoder(SIZES[name], vocabulary, pad_id), pad_id)
    return ReRanker(HubEncoder(name, pretrained), pad_id)


class ReRanker(nn.Module):
    """Scores candidates: how near their vectors are to the document's. encoder: ids [n, tokens] -> vectors [n, width].

    It reads batch * (candidates + 2) sequences per step: that is where the memory goes.
    """

    encoder: "Encoder | HubEncoder"

    def __init__(self, encoder: "Encoder | HubEncoder", pad_id: int) -> None:
        super().__init__()
        self.encoder, self.pad_id = encoder, pad_id

    def forward(
        self, documents: torch.Tensor, references: torch.Tensor, candidates: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scores [batch, candidates], the references' scores [batch]), float32, of token ids as `Collate` has them."""
        batch, count, length = candidates.shape
        padding = max(0, length - references.shape[1]), max(0, references.shape[1] - length)
        references = functional.pad(references, (0, padding[0]), value=self.pad_id)
        candidates = functional.pad(candidates, (0, padding[1]), value=self.pad_id)
        summaries = torch.cat([references[:, None], candidates], dim=1).flatten(0, 1)
        of_documents = self.encoder(documents).float()  # 16 bits are too coarse for cosines that differ by a margin
        of_summaries = self.encoder(summaries).float().view(batch, count + 1, -1)
        scores = functional.cosine_similarity(of_summaries, of_documents[:, None], dim=-1)
        return scores[:, 1:], scores[:, 0]


class Encoder(nn.Module):
    """A transformer encoder of `size`, randomly initialised: pre-norm layers, a weighted mean of tokens as vector.

    checkpointed: True keeps each layer's input alone for backward, and computes the rest again.
    """

    def __init__(self, size: Size, vocabulary: int, pad_id: int) -> None:
        super().__init__()
        self.pad_id, self.checkpointed = pad_id, False
        self.tokens = nn.Embedding(vocabulary, size.width, padding_idx=pad_id)
        self.positions = nn.Embedding(max(size.lengths), size.width)
        self.token_dropout, self.dropout = nn.Dropout1d(DROPOUT), nn.Dropout(DROPOUT)  # of whole tokens; of numbers
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm, self.weight = nn.LayerNorm(size.width), nn.Linear(size.width, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        is_token = ids != self.pad_id
        x = self.dropout(self.token_dropout(self.tokens(ids)) + self.positions.weight[: ids.shape[1]])
        for layer in self.layers:
            if self.checkpointed and self.training:
                x = checkpoint(layer, x, is_token, use_reentrant=False)
            else:
                x = layer(x, is_token)
        x = self.norm(x)
        weights = self.weight(x).masked_fill(~is_token[..., None], -torch.inf).softmax(dim=1)
        return (x * weights).sum(dim=1)


class Layer(nn.Module):
    """Attention and two linear layers, each on the normalised input and added to it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm, self.linear_norm = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.linear = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        """x: [n, tokens, width]; is_token: [n, tokens], False where a sequence is filled up."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=is_token[:, None, None, :])
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.linear(self.linear_norm(x)))


class HubEncoder(nn.Module):
    """An encoder of the Hugging Face hub, such as roberta-base: the first token's last hidden state is the vector."""

    def __init__(self, name: str, pretrained: bool = True) -> None:
        super().__init__()
        transformers = imported("transformers", "simcls", f"--model {name}")
        try:
            if pretrained:
                self.model = transformers.AutoModel.from_pretrained(name)
            else:
                self.model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(name))
        except (OSError, ValueError) as error:  # no such model, no network; a model of a kind it does not know
            own = " or ".join(SIZES)
            raise InputError(f"--model {name} could not be fetched from the Hugging Face hub: use {own}") from error
        self.pad_id = self.model.config.pad_token_id

    def _set_checkpointed(self, wanted: bool) -> None:
        kind = "activation" if hasattr(self.model, "activation_checkpointing_enable") else "gradient"  # its older name
        set_it = getattr(self.model, f"{kind}_checkpointing_{'enable' if wanted else 'disable'}")
        set_it(*([{"use_reentrant": False}] if wanted else []))

    checkpointed = property(fset=_set_checkpointed)  # as of `Encoder`

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        is_token = (ids != self.pad_id).long()
        return self.model(input_ids=ids, attention_mask=is_token).last_hidden_state[:, 0]
