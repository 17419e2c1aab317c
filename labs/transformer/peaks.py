"""The peak memory of a step of each variant: measured here, and predicted for a GPU on fake tensors, without one.

Both on the batch of an epoch that has the most tokens, padding included, or, packed, the most real ones: it decides how
much memory has to be there.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from common.options import StepOptions
from labs.transformer import tricks as tricks_module
from labs.transformer.batches import packed_micro_batches
from labs.transformer.data import Tokenized, training_set
from labs.transformer.tricks import SMALL_BATCH, assemble
from walkthrough.memory.allocator import reserved_bytes
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.tracker import MemoryTracker

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader

MODEL, PRECISION, BATCH_SIZE = "base", "fp16", 32  # DistilBERT's own size; a T4 has no bf16
VOCABULARY = 30_522  # of distilbert-base-uncased
WITHOUT_EFFECT = frozenset({"workers", "compile"})  # on what is predicted; compiled code may hold less
OF_BATCHES = frozenset({"bigger_batch", "dynamic_padding", "uniform_length", "packing"})

Batch = Sequence[torch.Tensor]
Data = tuple[Tokenized, Sequence[str]]  # what `data.training_set` returns


class HeaviestBatches:
    """The heaviest batch of a loader, by the tricks that make batches: sought once for all variants that share them."""

    def __init__(self) -> None:
        self._known: dict[frozenset[str], Batch] = {}

    def of(self, tricks: frozenset[str], loader: DataLoader) -> Batch:
        """That of an epoch of `loader`, which has these tricks."""
        kind = tricks & OF_BATCHES
        if kind not in self._known:
            texts: Any = loader.dataset
            numbers, size = list(loader.sampler), loader.batch_size or 1
            batches = [numbers[at : at + size] for at in range(0, len(numbers) - size + 1, size)]
            tokens = sum if "packing" in tricks else max  # padded, all are as long as the longest
            heaviest = max(batches, key=lambda batch: tokens(texts.lengths[number] for number in batch))
            self._known[kind] = loader.collate_fn([texts[number] for number in heaviest])
        return self._known[kind]


def options_of_prediction(options: StepOptions) -> StepOptions:
    """The options with the model, precision and larger batch that are predicted, and with texts of any length."""
    predicted = {"model": MODEL, "precision": PRECISION, "batch_size": BATCH_SIZE}
    return replace(options, device="cpu", workers=0, quick=False, **predicted)


def prediction_data(options: StepOptions) -> Data:
    """What the predictions of `options_of_prediction` are made with: real texts, of which only lengths matter."""
    data = training_set(options_of_prediction(options))
    data[0].tokens.vocabulary = VOCABULARY  # no id is looked up in a fake embedding
    return data


def predicted(options: StepOptions, tricks: frozenset[str], data: Data, heaviest: HeaviestBatches) -> dict[str, Any]:
    """{"by_kind": {kind: bytes}, "peak_bytes", "reserved_bytes"} of a GPU with these tricks, for the model `MODEL`.

    In the second of two steps, so that the optimizer's state is there. reserved_bytes: by torch's allocator.
    """
    options = options_of_prediction(options)
    batch = heaviest.of(tricks, assemble(replace(options, model="tiny"), tricks - {"compile"}, data=data).loader)
    tracker = MemoryTracker()
    parts = list(packed_micro_batches(batch, SMALL_BATCH)) if "packing" in tricks else []
    with FakeTensorMode(allow_non_fake_inputs=True), tracker, fake_gpu(tracker, []):
        training = assemble(options, tricks, data=data)
        gc.collect()
        tracker.begin()
        fake, *fake_parts = ([torch.empty(one.shape, dtype=one.dtype) for one in part] for part in (batch, *parts))
        tracker.mark("inputs", fake)
        for _ in range(2):
            gc.collect()  # what only a cycle holds is not memory that a step needs
            tracker.reset_peak()
            # Splitting packed rows reads their values, which fake tensors have not: it is done above.
            with patch.object(tricks_module, "packed_micro_batches", lambda *_: fake_parts):
                training.train_step(*fake)
            tracker.mark_state()
        return {
            "by_kind": tracker.by_kind(),
            "peak_bytes": tracker.peak_bytes,
            "reserved_bytes": reserved_bytes(tracker.events),
        }
