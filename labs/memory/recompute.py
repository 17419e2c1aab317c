"""Recomputing a stage in the backward pass as if it had run once: `context_fn` for `torch.utils.checkpoint.checkpoint`.

checkpoint runs a stage twice: in the forward pass, and again in the backward pass to get back what it did not keep. It
restores the random state, so that dropout drops the same. What it cannot undo is a side effect: in training, batch norm
moves its running statistics in every forward pass, so they move twice, and are not those of a training without
checkpointing; the losses are the same, the accuracy in evaluation need not be.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

Contexts = tuple[AbstractContextManager, AbstractContextManager]  # of the forward pass and of the recomputation
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def statistics_once(stage: nn.Module) -> Contexts:
    """For context_fn, as `partial(statistics_once, stage)`: the recomputation leaves batch norm's statistics alone."""
    return nullcontext(), frozen_statistics(stage)


def convolutions_kept(stage: nn.Module) -> Contexts:
    """As `statistics_once`; moreover what convolutions return is kept, so that only the cheap rest is recomputed."""
    forward, recomputation = create_selective_checkpoint_contexts([torch.ops.aten.convolution.default])

    @contextmanager
    def both() -> Iterator[None]:
        with recomputation, frozen_statistics(stage):
            yield

    return forward, both()


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norm in `module` normalises by the batch, as in training, but neither its statistics nor its count move.

    With a momentum of 0 the new batch has no weight in them, and without a counter there is nothing to count.
    """
    norms = [part for part in module.modules() if isinstance(part, BATCH_NORMS) and part.training]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:  # also where checkpoint stops early: once it has recomputed what the backward pass needs
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
