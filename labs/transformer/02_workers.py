"""Transformer 02: worker processes and pinned memory.

Idea       Workers tokenize and collate while the model trains; from pinned memory the copy to the GPU overlaps it.
Change     DataLoader(num_workers=args.workers, persistent_workers=True, pin_memory=True), .to(…, non_blocking=True)
Look for   Overview: "DataLoader" almost vanishes. Trace: copies overlap kernels.
Caution    Pinned memory is main memory that the system may not page out: it makes the copy faster, and has nothing to
           do with the disk. More workers than cores only compete; a batch of token ids is a few kB.
"""

from common import autocast_dtype, run_step, start, step_options
from labs.transformer.batches import Padding, token_count
from labs.transformer.data import training_set
from labs.transformer.model import DEFAULTS, classifier

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args)

    train_set, classes = training_set(args)
    pad_id = train_set.pad_id
    loader = DataLoader(
        train_set, batch_size=8, shuffle=True, drop_last=True, collate_fn=Padding(pad_id, train_set.length),
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )
    model = classifier(args.model, train_set.tokenizer, classes, attention="eager").to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(labels, ids):
        labels, ids = labels.to(device, non_blocking=True), ids.to(device, non_blocking=True)
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            logits = model(ids, attention_mask=ids != pad_id).logits
            loss = criterion(logits, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype, count_tokens=token_count(pad_id))


if __name__ == "__main__":
    main()
