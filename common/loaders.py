"""Loaders beyond the DataLoader: one that copies the next batch early, one whose data is on the device already."""

import torch
from torchvision.transforms.v2.functional import resize

NO_GPU = "no GPU: no copy is saved, the data was in main memory already; images are resized a batch at a time"


class DeviceLoader:
    """Batches of a CIFAR-10 that lives on `device` as a whole: images uint8 [batch, 3, size, size], labels int64.

    train_set: from `data.cifar10`; its uint8 images [N, 32, 32, 3] and labels are copied once, which takes
    N * (3 * 32 * 32 + 8) bytes there: 154 MB for 50,000. Each epoch is shuffled by torch.randperm from `seed`; a last,
    smaller batch is dropped. Images are resized as PIL's bilinear filter does, to within 1 of 255: both filter at
    every scale alike, but round at other places.

    Offers what `run_step` reads from a loader. `on_device`: a batch moves no bytes to the device.
    """

    num_workers, prefetch_factor, pin_memory, on_device = 0, None, False, True

    def __init__(self, train_set, batch_size, image_size, device, seed=0):
        self.dataset, self.batch_size, self.image_size = train_set, batch_size, image_size
        images = torch.from_numpy(train_set.data).permute(0, 3, 1, 2).contiguous()
        self.images, self.labels = images.to(device), torch.tensor(train_set.targets, device=device)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.notes = []
        if torch.device(device).type != "cuda":
            self.notes.append(NO_GPU)

    def __len__(self):
        return len(self.images) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.images), device=self.images.device, generator=self.generator)
        for batch in order.split(self.batch_size)[: len(self)]:
            yield resize(self.images[batch], [self.image_size, self.image_size], antialias=True), self.labels[batch]


class Prefetcher:
    """A DataLoader whose batches, (images, labels), are handed out on the device, each copied one batch ahead.

    On a GPU the copies are made in a stream of their own, so they run beside the kernels of the stream that trains;
    they overlap only from pinned memory. On a CPU batches are handed through as they are.

    loader: a DataLoader of (images, labels), with pin_memory=True. device: where batches go. Of the loader it offers
    `dataset`, `batch_size`, `num_workers`, `prefetch_factor`, `pin_memory` and its length. `notes`: what this device
    cannot do.
    """

    def __init__(self, loader, device):
        self.loader, self.device = loader, torch.device(device)
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.num_workers, self.prefetch_factor = loader.num_workers, loader.prefetch_factor
        self.pin_memory = loader.pin_memory
        self.copying = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.notes = [] if self.copying else ["no GPU: there is no copy to overlap, so batches are handed through"]

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        if self.copying is None:
            yield from self.loader
            return
        batches = iter(self.loader)
        upcoming = self._copied(batches)
        while upcoming is not None:
            training = torch.cuda.current_stream(self.device)
            training.wait_stream(self.copying)  # now, while this batch's copy is the last thing in there
            for tensor in upcoming:
                tensor.record_stream(training)  # else its memory is free for the next copy once Python drops it
            batch, upcoming = upcoming, self._copied(batches)
            yield batch

    def _copied(self, batches):
        """Begin to copy the next batch; returns its tensors on the device, None where the epoch is over."""
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self.copying):
            return [tensor.to(self.device, non_blocking=True) for tensor in batch]
