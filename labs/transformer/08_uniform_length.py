"""Transformer 08: batches of uniform length.

Idea       Texts of about one length in a batch leave hardly anything to fill up.
Change     sampler=UniformLengthBatches(lengths, batch_size) in place of shuffle=True: shuffled, sorted within pools of
           50 batches, and the batches shuffled.
Look for   tokens/s; steps that take very different times: a batch of long texts after one of short ones.
Caution    Batches are less random: where length says something of the class, a batch says less of the whole. The study
           measures what that costs. All texts are tokenized once before, for their lengths.
"""

from common import autocast_dtype, run_step, start, step_options
from labs.transformer.batches import Padding, UniformLengthBatches, token_count
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
    sampler = UniformLengthBatches(train_set.lengths, args.batch_size)
    loader = DataLoader(
        train_set, args.batch_size, sampler=sampler, drop_last=True, collate_fn=Padding(pad_id),
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
