"""Transformer 05: gradient checkpointing.

Idea       Keep only what enters a layer; the backward pass computes the rest of the layer again.
Change     model.gradient_checkpointing_enable({"use_reentrant": False})
Look for   Memory: a lower peak, one layer's activations at a time. Trace: forward kernels within the backward pass.
Caution    About a third more work: it makes room, for longer texts or a bigger batch, and no step is faster for it.
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
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=Padding(pad_id, train_set.length),
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )
    model = classifier(args.model, train_set.tokenizer, classes, attention="eager").to(device)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    criterion = nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(labels, ids):
        labels, ids = labels.to(device, non_blocking=True), ids.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for part_labels, part_ids in zip(labels.split(8), ids.split(8), strict=True):
            with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
                logits = model(part_ids, attention_mask=part_ids != pad_id).logits
                part_loss = criterion(logits, part_labels) / len(labels)
            scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype, count_tokens=token_count(pad_id))


if __name__ == "__main__":
    main()
