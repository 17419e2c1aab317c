"""What `train.py` reads: one of six input pipelines, for training and for validation, each process its share.

jpeg     photographs, decoded in each epoch by the loader's workers; random parts of them
resized  small JPEGs, made once          } of these a random part is taken
cached   decoded images, in memory       } for the whole batch at once, on the device
shards   small JPEGs in WebDataset's tar }
nvjpeg   photographs, decoded on the GPU by nvJPEG; random parts of them
dali     the same by DALI

Random numbers are torch's, so an epoch's images are a matter of the seed and its number. Loaders start their workers
anew in each epoch for that, and DALI, whose random numbers are its own, is built anew with a seed that torch draws.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from labs.scale.data import (
    Cached,
    Jpegs,
    as_random_crop,
    as_uint8,
    image_folder,
    normalised,
    parquet_files,
    random_crops,
)
from labs.scale.gpu_decode import DaliDecoder, NvjpegDecoder, as_bytes, encoded_batch, needs_cuda
from labs.scale.preprocess import kind_and_size, prepared
from labs.scale.shards import ShardSet
from labs.shared.training import SEEDS
from walkthrough.results.errors import InputError

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, Subset

PIPELINES = ("jpeg", "resized", "cached", "shards", "nvjpeg", "dali")
PREPARED, ON_GPU = PIPELINES[1:4], PIPELINES[4:]
VALIDATION_BATCH = 256  # images, of a process

Batch = tuple[torch.Tensor, torch.Tensor]  # images float32 [N, 3, size, size], normalised; labels int64 [N]


def pipeline_of(data: Path, name: str | None) -> str:
    """The pipeline that is asked for; without a name that of the folder's images: "shards" for Parquet files."""
    return name or kind_and_size(data)[0] or ("shards" if parquet_files(data) else "jpeg")


class Pipeline:
    """Batches of DIR/train and DIR/val on the device, for this process of several.

    data: a folder of JPEGs, or one that is prepared. size: px. share: images of a pass of this process. workers: of the
    loader; no more than there are shards for it. rank, processes: of the group. images: of training. Raises InputError
    for data that cannot be used, and for a pipeline that does not run here.
    """

    def __init__(
        self, data: Path, name: str, size: int, share: int, device: torch.device, workers: int = 0, seed: int = 0,
        rank: int = 0, processes: int = 1,
    ) -> None:  # fmt: skip
        self.name, self.size, self.share, self.device, self.seed = name, size, share, device, seed
        self.rank, self.processes = rank, processes
        if name in ON_GPU:
            needs_cuda(device, f"--pipeline {name}")
        there, _ = kind_and_size(data)
        self.data = data if there else image_folder(data)
        if name in PREPARED:
            self.data = prepared(self.data, name, size)
        elif there:
            raise InputError(f"{data} holds prepared images: --pipeline {there} reads it")
        elif parquet_files(self.data):
            raise InputError(
                f"{data} holds Parquet files: --pipeline resized, cached or shards prepares and reads them"
            )
        train_set, self.validation_set = self._set("train"), self._set("val")
        self.train_set, self.source, self.classes = train_set, train_set.source, train_set.classes
        self.images = len(train_set)
        if name == "shards":
            workers = min(workers, train_set.shards // processes)
            if train_set.shards < processes:
                raise InputError(f"{train_set.shards} shards are too few for {processes} processes: each reads its own")
        self.loading: dict[str, Any] = {"num_workers": workers, "pin_memory": device.type == "cuda"}
        if name in ON_GPU:
            self.loading["collate_fn"] = encoded_batch

    def training(self, epoch: int, batches: int) -> Iterator[Batch]:
        """So many batches of `share` images, this process's of an epoch, in an order that seed and epoch determine."""
        if self.name == "shards":
            # Each worker reads its own shards, and begins them again where others have more.
            readers = max(1, self.loading["num_workers"])
            samples = -(-batches // readers) * self.share
            own = ShardSet(self.data, "train", self.seed * SEEDS + epoch, samples)
            loader = DataLoader(own, self.share, drop_last=True, **self.loading)
        else:
            # Rank r has the positions r, r + processes, … of an order: a batch's images are the same on any number.
            sampler = DistributedSampler(
                self.train_set, self.processes, self.rank, seed=self.seed * SEEDS, drop_last=True
            )
            sampler.set_epoch(epoch)
            loader = DataLoader(self.train_set, self.share, sampler=sampler, **self.loading)
        return islice(self._on_device(loader, crops=True), batches)

    def validation(self) -> Iterator[Batch]:
        """This process's share of the validation images, each of which one process has."""
        own: Any = self.validation_set
        if self.name != "shards":
            own = Subset(own, range(self.rank, len(own), self.processes))
        return self._on_device(DataLoader(own, VALIDATION_BATCH, **self.loading), crops=False)

    def _set(self, part: str) -> Any:
        if self.name == "shards":
            return ShardSet(self.data, part)
        if self.name == "cached":
            return Cached(self.data, part)
        by_name = {"resized": as_uint8(), **dict.fromkeys(ON_GPU, as_bytes)}
        other = as_random_crop(self.size) if part == "train" else as_uint8(self.size)
        return Jpegs(self.data, part, by_name.get(self.name, other))

    def _decoder(self, crops: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        if self.name == "nvjpeg":
            return NvjpegDecoder(self.size, self.device, crops)
        most = self.share if crops else VALIDATION_BATCH
        seed = int(torch.randint(2**31 - 1, ())) if crops else 0
        return DaliDecoder(most, self.size, self.device, self.loading["num_workers"], crops, seed)

    def _on_device(self, batches: Iterable[Any], crops: bool) -> Iterator[Batch]:
        if self.name in ON_GPU:
            decoder = self._decoder(crops)
            for labels, lengths, files in batches:
                yield decoder(lengths, files), labels.to(self.device, non_blocking=True)
            return
        for batch in batches:
            images, labels = (part.to(self.device, non_blocking=True) for part in batch)
            if self.name != "jpeg" and crops:
                images = random_crops(images, self.size)
            elif images.shape[-1] != self.size:  # prepared at another size
                size = (self.size, self.size)
                images = F.interpolate(images.float(), size, mode="bilinear", align_corners=False, antialias=True)
            yield normalised(images), labels
