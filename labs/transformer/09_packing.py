"""Transformer 09: sequence packing.

Idea       Lay texts one after the other in a row until it is full. No token is padding but at the ends of rows, and
           batches are as random as at first.
Change     collate_fn=Packing(pad_id, rows=8) and shuffle=True in place of the sampler; packed_logits in place of the
           model: positions restart with each text, a block-diagonal mask keeps texts apart, and the head reads the
           first token of each.
Look for   tokens/s; steps of about equal length again.
Caution    Without the mask texts would see each other, and nothing would fail. Parts of a batch hold equally many rows,
           not texts: their losses are divided by the texts of the whole batch. Scores of two texts are computed and
           then masked; FlexAttention and kernels for texts of variable length would skip them.
"""

from common import autocast_dtype, run_step, start, step_options
from labs.transformer.batches import Packing, packed_parts, token_count
from labs.transformer.data import training_set
from labs.transformer.model import DEFAULTS, classifier, packed_logits

import torch
from torch import nn
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args)

    train_set, classes = training_set(args)
    pad_id = train_set.pad_id
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=Packing(pad_id, rows=8),
        num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=True,
    )
    model = classifier(args.model, train_set.tokenizer, classes, attention="sdpa").to(device)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(*batch):
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for part in packed_parts(*batch):
            labels, *packed = (tensor.to(device, non_blocking=True) for tensor in part)
            with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
                logits = packed_logits(model, *packed)
                part_loss = criterion(logits, labels) / len(batch[0])
            scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype, count_tokens=token_count(pad_id))


if __name__ == "__main__":
    main()
