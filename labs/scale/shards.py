"""Shards, with WebDataset: a few large tar files in place of many small ones, read from front to back.

A sample is KEY.jpg, an image that was made small, and KEY.cls, its label. JPEGs and not tensors, since a tensor of
224 px takes more bytes than the photograph that it was made of, and a small JPEG decodes in a tenth of a millisecond.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labs.scale.data import INDEX, UNREADABLE, as_uint8, small_jpeg, write_beside
from labs.shared.extras import imported
from walkthrough.results import result
from walkthrough.results.errors import printable

import numpy as np
import torch
from torch.utils.data import IterableDataset

PER_SHARD = 1024  # images, at most
FEWEST = 8  # shards, where there are that many images, so that as many readers have one each
DEALT = 2026  # the seed of dealing images into shards, which is done once
SHUFFLED = 1000  # samples that wait to be picked at random

Job = tuple[str, int, list[tuple[str, str, int]]]  # a shard's file, px, and of each sample the key, JPEG and label


def wds() -> Any:
    """The package. Raises InputError where it is not installed."""
    return imported("webdataset", "scale", "reading and writing shards")


def dealt(count: int) -> list[np.ndarray]:
    """Which images each shard holds: int64 [images] each, as even as can be. count: of all images."""
    shards = min(count, max(FEWEST, -(-count // PER_SHARD)))
    return np.array_split(np.random.default_rng(DEALT).permutation(count), shards)


def write_shard(job: Job) -> dict[str, Any]:
    """Write one shard, unless it is there, whole or not at all; {"url": name, "nsamples", "corrupt": {file: why}}.

    The same bytes whoever writes it. JPEGs that cannot be decoded are left out.
    """
    name, size, samples = job
    path, tar_file, corrupt = Path(name), io.BytesIO(), {}
    if path.exists():
        return result.read_json(path.with_suffix(".json"))
    with wds().TarWriter(tar_file, encoder=False, mtime=0) as tar:
        for key, jpeg, label in samples:
            try:
                tar.write({"__key__": key, "jpg": small_jpeg(jpeg, size), "cls": str(label).encode()})
            except UNREADABLE as error:
                corrupt[jpeg] = printable(error, 120)
    answer = {"url": path.name, "nsamples": len(samples) - len(corrupt), "corrupt": corrupt}
    result.write_json(path.with_suffix(".json"), answer)
    write_beside(path, tar_file.getvalue())
    return answer


class ShardSet(IterableDataset):
    """The shards of DIR/train or DIR/val, read by WebDataset: items (uint8 [3, size, size], label).

    Each process, and each worker of its loader, reads shards of its own. seed: of the order of shards, and of samples
    among `SHUFFLED`; None reads as they lie. shards: how many. samples: of a reader, which begins again where it has
    fewer; None: all that it has, once. Its length is that of all shards; source: what results call the data.
    """

    def __init__(self, data: Path, part: str, seed: int | None = None, samples: int | None = None) -> None:
        index, web = result.read_json(data / INDEX), wds()
        shards = index["parts"][part]["shardlist"]
        shuffle = [] if seed is None else [web.detshuffle(SHUFFLED, seed=seed)]
        self.pipeline = web.DataPipeline(
            web.SimpleShardList([str(data / part / shard["url"]) for shard in shards], seed=seed),
            web.split_by_node,
            web.split_by_worker,
            web.tarfile_to_samples(),
            *shuffle,
            web.map(decoded),
        )
        if samples:
            self.pipeline = self.pipeline.with_epoch(samples)
        self.source, self.classes, self.shards = index["source"], index["classes"], len(shards)
        self.length = sum(shard["nsamples"] for shard in shards)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter(self.pipeline)


def decoded(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """(uint8 [3, size, size], label) of a sample as WebDataset reads it from a shard."""
    return as_uint8()(io.BytesIO(sample["jpg"])), int(sample["cls"])
