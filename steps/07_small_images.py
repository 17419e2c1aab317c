"""Step 07: small images cross, the device resizes them.

Idea       A CIFAR-10 image is 32 x 32. Enlarged before it crosses, it is work for the loader and many times the bytes,
           and nothing in them is new. Send it as it is stored; the device enlarges a whole batch at once.
Change     The loader yields the stored 32 x 32 uint8 images; resize(images, [args.image_size] * 2) in the train step.
Look for   Overview: "DataLoader" shrinks again; Trace: a much shorter "Memcpy HtoD", and a kernel that resizes.
Caution    Nothing is lost where images are enlarged. Images that are stored large have to be made smaller before they
           cross, with antialiasing. The device's bilinear filter rounds in other places than PIL's, by 1 of 255.
No GPU     Nothing is copied to a device; what is saved is resizing image by image.
"""

from common import CIFAR10_MEAN, CIFAR10_STD, Prefetcher, autocast_dtype, cifar10, classifier, run_step, start, step_options, stored_uint8

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import resize


def main():
    args = step_options(__doc__)
    device = start(args)

    train_set = cifar10(args.data, transform=stored_uint8(), download=args.download)
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True)
    loader = Prefetcher(loader, device)
    model = classifier(args.model, args.image_size).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp_dtype = autocast_dtype(device, args.precision)
    mean = torch.tensor(CIFAR10_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(CIFAR10_STD, device=device).view(3, 1, 1)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
    losses = []

    def train_step(images, labels):
        images = resize(images, [args.image_size] * 2, antialias=False)
        images = (images.float() / 255 - mean) / std
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype)
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")


if __name__ == "__main__":
    main()
