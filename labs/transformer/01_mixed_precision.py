"""Transformer 01: mixed precision.

Idea       Matrix products in 16 bits run on Tensor Cores, and what the backward pass needs takes half the bytes.
Change     torch.autocast around forward and loss: bf16 where the GPU has it, otherwise fp16 with a GradScaler.
Look for   GPU Kernel: Tensor Cores in use. Memory: a lower peak, of activations alone.
Caution    Weights, gradients and AdamW's moments stay fp32, and autocast keeps a copy of the weights in 16 bits. A T4
           has no bf16: it computes in fp16, where small gradients underflow without scaling. On a CPU without AMX
           autocast stays off.
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
    )
    model = classifier(args.model, train_set.tokenizer, classes, attention="eager").to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(labels, ids):
        labels, ids = labels.to(device), ids.to(device)
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
