"""The data set on the device: shuffled there, resized there, and never copied again."""

import torch
from torchvision.transforms.v2.functional import resize

NO_GPU = "no GPU: no copy is saved, the data was in main memory already; images are resized a batch at a time"


class OnDevice:
    """Batches of a CIFAR-10 that lives on `device` as a whole: images uint8 [batch, 3, size, size], labels int64.

    train_set: from `data.cifar10`; its uint8 images [N, 32, 32, 3] and labels are copied once, which takes
    N * (3 * 32 * 32 + 8) bytes there: 154 MB for 50,000. Each epoch is shuffled by torch.randperm from `seed`; a last,
    smaller batch is dropped. Images are resized as PIL's bilinear filter does, to within 1 of 255: both filter at
    every scale alike, but round at other places.

    Offers what `run_step` reads from a loader. `resident`: a batch moves no bytes to the device.
    """

    num_workers, prefetch_factor, pin_memory, resident = 0, None, False, True

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
