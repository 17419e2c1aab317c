"""The numbered programs in one, each trick a switch: what the study measures.

With the tricks of `cumulative` it is the numbered program of that trick; a test holds it to that. The programs are the
lesson, one change after the other; this is for each trick alone, and for other combinations.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from common.device import autocast_dtype
from common.options import StepOptions
from common.program import Program
from labs.transformer.batches import (
    DynamicPadding,
    FixedPadding,
    Packing,
    UniformLengthBatches,
    packed_micro_batches,
    token_count,
)
from labs.transformer.data import Tokenized, training_set
from labs.transformer.model import classifier, mark_dynamic, packed_logits
from walkthrough.results.errors import InputError

import torch
from torch import nn
from torch.utils.data import DataLoader

TRICKS = (
    "mixed_precision",
    "workers",
    "bigger_batch",
    "gradient_accumulation",
    "gradient_checkpointing",
    "sdpa",
    "dynamic_padding",
    "uniform_length",
    "packing",
    "fused_adamw",
    "compile",
)
# What a trick replaces, from its program on; and without what it has no effect, so that its effect alone is
# measured against a baseline that has that.
REPLACES = {"sdpa": ("gradient_checkpointing",), "packing": ("dynamic_padding", "uniform_length")}
NEEDS = {"gradient_accumulation": "bigger_batch", "uniform_length": "dynamic_padding"}
SMALL_BATCH = 8  # texts, of the baseline; and texts or rows of a part, with gradient accumulation
LR = 5e-5


def cumulative(trick: str | None) -> frozenset[str]:
    """The tricks that are on in a trick's numbered program; none, for None, in the baseline."""
    on: set[str] = set()
    for name in TRICKS[: TRICKS.index(trick) + 1] if trick else ():
        on -= set(REPLACES.get(name, ()))
        on.add(name)
    return frozenset(on)


def alone(trick: str) -> tuple[frozenset[str], frozenset[str]]:
    """(With a trick, without it): two sets of tricks whose ratio is its effect on the baseline."""
    without = frozenset({NEEDS[trick]} if trick in NEEDS else ())
    return without | {trick}, without


def check(tricks: Collection[str]) -> None:
    """Raise InputError for a trick that there is not, and for two of which one replaces the other."""
    if unknown := set(tricks) - set(TRICKS):
        raise InputError(f"unknown trick {min(unknown)!r}: there are {', '.join(TRICKS)}")
    if {"packing"} < set(tricks) & {"packing", *REPLACES["packing"]}:
        raise InputError("packing leaves nothing to pad: use it without dynamic_padding and uniform_length")


def assemble(
    options: StepOptions,
    tricks: Collection[str],
    seed: int | None = None,
    data: tuple[Tokenized, Sequence[str]] | None = None,
    marked: bool = True,
    attention: str | None = None,
) -> Program:
    """The program with these tricks.

    options: batch_size is used with bigger_batch, workers with workers, precision with mixed_precision. seed: in place
    of that of the options. data: what `data.training_set` returns, where it is at hand. marked: False leaves the sizes
    of a compiled program unmarked. attention: one of `model.ATTENTION` in place of what the tricks say, such as
    "flex_attention" for packing on a GPU. Raises InputError as the programs do, and for tricks that exclude each other.
    """
    check(tricks)
    device = torch.device(options.device)
    torch.manual_seed(options.seed if seed is None else seed)
    torch.backends.cuda.matmul.allow_tf32 = False

    train_set, classes = data or training_set(options)
    pad_id = train_set.tokens.pad_id
    loader = _loader(options, tricks, train_set)
    packed = "packing" in tricks
    kernel = attention or ("sdpa" if "sdpa" in tricks else "eager")
    model = classifier(options.model, train_set.tokens.vocabulary, pad_id, len(classes), kernel).to(device)
    if "gradient_checkpointing" in tricks:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, **({"fused": True} if "fused_adamw" in tricks else {}))
    mixed = "mixed_precision" in tricks
    amp_dtype = autocast_dtype(device, options.precision) if mixed else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def padded_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return model(ids, attention_mask=ids != pad_id).logits

    logits_of: Callable[..., torch.Tensor] = packed_logits if packed else padded_logits
    if "compile" in tricks:
        logits_of = torch.compile(logits_of)  # not model.compile(): it would leave the mask out

    def parts(batch: Sequence[torch.Tensor]) -> Any:
        if "gradient_accumulation" not in tricks:
            return [batch]
        if packed:
            return packed_micro_batches(batch, SMALL_BATCH)
        return zip(*(tensor.split(SMALL_BATCH) for tensor in batch), strict=True)

    def train_step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for part in parts(batch):
            labels, *inputs = (tensor.to(device, non_blocking="workers" in tricks) for tensor in part)
            if "compile" in tricks and marked:
                mark_dynamic(*inputs)
            with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
                logits = logits_of(model, *inputs)
                part_loss = nn.functional.cross_entropy(logits, labels, reduction="sum") / len(batch[0])
            scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # waits for the device, as the programs do that keep their losses
        return loss

    return Program(__file__, options, loader, train_step, amp_dtype if mixed else None, token_count(pad_id))


def _loader(options: StepOptions, tricks: Collection[str], train_set: Tokenized) -> DataLoader:
    pad_id = train_set.tokens.pad_id
    batch_size = options.batch_size if "bigger_batch" in tricks else SMALL_BATCH
    collate = FixedPadding(pad_id, train_set.length)
    if "dynamic_padding" in tricks:
        collate = DynamicPadding(pad_id)
    if "packing" in tricks:
        collate = Packing(pad_id)
    uniform = "uniform_length" in tricks
    workers = options.workers if "workers" in tricks else 0
    return DataLoader(
        train_set, batch_size, shuffle=None if uniform else True, drop_last=True, collate_fn=collate,
        sampler=UniformLengthBatches(train_set.lengths, batch_size) if uniform else None,
        num_workers=workers, persistent_workers=workers > 0, pin_memory="workers" in tricks,
    )  # fmt: skip
