"""From texts as token ids to batches: how they are filled up, which texts come together, and what is counted.

A batch is (labels, token ids, …), since the first tensor of a batch has one row per sample: see `loaders.Batch`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from labs.shared.text import filled

import torch
from torch.utils.data import Sampler

Item = tuple[list[int], int]  # (token ids, label)
POOL = 50  # batches whose texts are sorted by length together


class Padding:
    """Items as (labels [texts], ids [texts, tokens]), int64, filled up with pad_id to the batch's longest text.

    length: if given, that of all batches; longer texts are cut.
    """

    def __init__(self, pad_id: int, length: int | None = None) -> None:
        self.pad_id, self.length = pad_id, length

    def __call__(self, items: Sequence[Item]) -> tuple[torch.Tensor, ...]:
        sequences = [ids[: self.length] for ids, _ in items]
        return labels_of(items), filled(sequences, self.length or max(map(len, sequences)), self.pad_id)


class Packing:
    """Items as (labels [texts], ids [rows, tokens], positions [rows, tokens], starts [texts]): several texts in a row.

    Rows are as long as the batch's longest text, up to the next multiple of 8, which suits Tensor Cores; texts are
    placed from the longest to the shortest, each into the first row with room for it. Labels are in the order of the
    rows. With `rows`, the batch is in parts of about equally many rows, at most so many: ids, positions and starts of
    the first part, then those of the next; see `packed_parts`. For `model.packed_logits`.
    """

    def __init__(self, pad_id: int, rows: int | None = None) -> None:
        self.pad_id, self.rows = pad_id, rows

    def __call__(self, items: Sequence[Item]) -> tuple[torch.Tensor, ...]:
        length = math.ceil(max(len(ids) for ids, _ in items) / 8) * 8
        rows: list[list[Item]] = []
        room: list[int] = []
        for item in sorted(items, key=lambda item: -len(item[0])):
            tokens = len(item[0])
            row = next((number for number, left in enumerate(room) if left >= tokens), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(length)
            rows[row].append(item)
            room[row] -= tokens
        parts = math.ceil(len(rows) / (self.rows or len(rows)))
        ends = [number * len(rows) // parts for number in range(parts + 1)]
        packed = [tensor for begin, end in pairwise(ends) for tensor in self._packed(rows[begin:end], length)]
        return labels_of([item for row in rows for item in row]), *packed

    def _packed(self, rows: Sequence[Sequence[Item]], length: int) -> tuple[torch.Tensor, ...]:
        ids = filled([[token for ids, _ in row for token in ids] for row in rows], length, self.pad_id)
        positions = filled([[at for ids, _ in row for at in range(len(ids))] for row in rows], length, 0)
        starts = [
            number * length + sum(len(ids) for ids, _ in row[:place])
            for number, row in enumerate(rows)
            for place in range(len(row))
        ]
        return ids, positions, torch.tensor(starts)


def packed_parts(labels: torch.Tensor, *packed: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The parts of a batch of `Packing`: (labels, ids, positions, starts) of each.

    Parts have unequal numbers of texts, however many rows they have: weight each loss by its share of the labels.
    """
    starts = packed[2::3]
    return zip(labels.split([len(part) for part in starts]), packed[::3], packed[1::3], starts, strict=True)


def labels_of(items: Sequence[Item]) -> torch.Tensor:
    """int64 [items]."""
    return torch.tensor([label for _, label in items])


class UniformLengthBatches(Sampler[int]):
    """The order of an epoch in which each `batch_size` texts in a row are of about one length: a DataLoader's sampler.

    Shuffled by `generator`: all texts are, then those of each pool of `POOL` batches are sorted by length and divided
    into batches, and the batches are shuffled. So every text comes once per epoch, with others each time. The batch
    that is not full, if there is one, comes last, where drop_last drops it.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, generator: torch.Generator | None = None) -> None:
        self.lengths, self.batch_size, self.generator = lengths, batch_size, generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        size, order = self.batch_size, torch.randperm(len(self.lengths), generator=self.generator).tolist()
        whole = len(order) // size * size
        batches = []
        for begin in range(0, whole, POOL * size):
            pool = sorted(order[begin : min(begin + POOL * size, whole)], key=lambda number: self.lengths[number])
            batches += [pool[at : at + size] for at in range(0, len(pool), size)]
        for number in torch.randperm(len(batches), generator=self.generator).tolist():
            yield from batches[number]
        yield from order[whole:]


def token_count(pad_id: int) -> Callable[[Sequence[Any]], torch.Tensor]:
    """count_tokens(batch), for `run_step`: real tokens, without padding, as a tensor of one element."""
    return lambda batch: torch.stack([(ids != pad_id).sum() for ids in batch[1::3]]).sum()


def padding_share(batches: Sequence[Sequence[torch.Tensor]], pad_id: int) -> float:
    """The share (0..1) of padding in all tokens of these batches."""
    every = [ids for batch in batches for ids in batch[1::3]]
    return sum(int((ids == pad_id).sum()) for ids in every) / sum(ids.numel() for ids in every)
