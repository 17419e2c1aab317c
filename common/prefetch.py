"""Batches that cross to the device while the batch before them is trained on."""

import torch


class Prefetched:
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
