"""Shards: what preprocessing leaves, a few large files in place of many small ones, read from front to back.

A shard is a tar file as WebDataset reads it: KEY.jpg, an image that was made small, and KEY.cls, its label. JPEGs and
not tensors, since a tensor of 224 px takes more bytes than the photograph that it was made of, and a small JPEG decodes
in a tenth of a millisecond. Beside the shards lies index.json: of each shard its samples, bytes and SHA-256.

    python labs/scale/shards.py DIR

checks a folder of shards.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from labs.scale.decoding import pixels
from labs.scale.order import of_reader, whole_batches, within
from labs.scale.packing import is_whole
from walkthrough.results import result
from walkthrough.results.errors import InputError, OneLineParser, folder

import torch
from torch.utils.data import IterableDataset, get_worker_info

INDEX = "index.json"
Sample = dict[str, Any]  # as WebDataset makes it: {"__url__": the shard, "__key__": …, "jpg": bytes, "cls": bytes}


@dataclass(frozen=True)
class Shard:
    """A shard's file. samples: how many. bytes: of the file. sha256: of its bytes. job: what it was made of, hashed."""

    name: str
    samples: int
    bytes: int
    sha256: str
    job: str


@dataclass(frozen=True)
class Index:
    """What index.json holds. size: px of the images. source: of which data. classes: the labels' names, in order.

    made_from: digest of the JPEGs, see `jpegs.Listing`. corrupt: {file: why}, JPEGs that were left out.
    """

    schema: int
    size: int
    source: str
    classes: list[str]
    made_from: str
    corrupt: dict[str, str]
    shards: list[Shard]

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)


def check(folder: Path) -> Index:
    """The index of a folder of shards, all of which were read and are whole.

    Raises InputError where there is no index, or it is broken, and for a shard that is missing, cut short or changed.
    """
    if not (folder / INDEX).exists():
        raise InputError(f"no {INDEX} in {folder}: make shards with python labs/scale/preprocess.py --data DIR")
    index = result.read_as(Index, folder / INDEX, 1)
    again = "python labs/scale/preprocess.py makes it again, and no other"
    for shard in index.shards:
        path = folder / shard.name
        if not path.exists():
            raise InputError(f"shard {path} is missing: {again}")
        if (there := path.stat().st_size) != shard.bytes:
            how = "cut short" if there < shard.bytes else "too long"
            raise InputError(f"shard {path} is {how}: {there} bytes of {shard.bytes}; {again}")
        if not is_whole(path, {"bytes": shard.bytes, "sha256": shard.sha256}):
            raise InputError(f"shard {path} was changed: its SHA-256 is not that of the index; {again}")
    return index


def decoded(sample: Sample) -> tuple[torch.Tensor, int]:
    """(uint8 [3, size, size], label) of a sample as WebDataset reads it from a shard."""
    image = torch.from_numpy(pixels(io.BytesIO(sample["jpg"])))
    return image.permute(2, 0, 1), int(sample["cls"])


class Reading:
    """Two stages of a `webdataset.DataPipeline`: which shards a loader's worker reads, and a shard's samples in order.

    They give the order of `order.ShardOrder`. The next epoch begins each time that the pipeline is iterated over, so a
    loader's workers must be persistent. folder: of the shards. workers: the loader's.
    """

    def __init__(self, folder: Path, index: Index, batch_size: int, workers: int, seed: int) -> None:
        self.paths = [str(folder / shard.name) for shard in index.shards]
        self.counts = whole_batches([shard.samples for shard in index.shards], batch_size, max(1, workers))
        self.batch_size, self.seed, self.epoch = batch_size, seed, -1

    def shards(self) -> Iterator[Sample]:
        """The first stage: {"url": path} of each shard that this worker reads."""
        self.epoch += 1
        for number in of_reader(len(self.paths), self._reader(), len(self.counts), self.seed, self.epoch):
            yield {"url": self.paths[number]}

    def samples(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The stage after `tarfile_to_samples`: each shard's in the epoch's order, whole batches in all."""
        left = self.counts[self._reader()] * self.batch_size
        for path, group in groupby(samples, key=lambda sample: sample["__url__"]):
            own = list(group)
            for place in within(len(own), self.paths.index(path), self.seed, self.epoch)[:left]:
                yield own[place]
            left -= min(left, len(own))

    def _reader(self) -> int:
        worker = get_worker_info()
        return worker.id if worker else 0


class ShardSet(IterableDataset):
    """A `webdataset.DataPipeline` as a data set that says how long it is and where it is from, as `run_step` asks."""

    def __init__(self, pipeline: Iterable[tuple[torch.Tensor, int]], reading: Reading, index: Index) -> None:
        self.pipeline, self.classes, self.source = pipeline, tuple(index.classes), index.source
        self.length = sum(reading.counts) * reading.batch_size

    def __len__(self) -> int:
        """Samples in the whole batches of an epoch."""
        return self.length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter(self.pipeline)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("folder", type=folder, metavar="DIR", help=f"folder that holds {INDEX}")
    args = parser.parse_args()
    index = check(args.folder)
    print(
        f"{args.folder}: {len(index.shards)} shards, {index.samples} images of {index.size} px, "
        f"{index.bytes / 1e6:.1f} MB, all whole"
    )


if __name__ == "__main__":
    main()
