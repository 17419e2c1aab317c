"""Transformer 07: dynamic padding.

Idea       A batch need only be as long as its longest text. Most texts are far shorter than the model's maximum.
Change     collate_fn=Padding(pad_id) in place of Padding(pad_id, train_set.length)
Look for   Nothing in a trace but shorter kernels that vary from step to step: compare tokens/s.
Caution    Among many texts one is nearly always long: the bigger the batch, the less this gains. Shapes change with
           every batch, so cuDNN's search, CUDA graphs and torch.compile work anew for each.
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
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=Padding(pad_id),
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )
    model = classifier(args.model, train_set.tokenizer, classes, attention="sdpa").to(device)
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
