"""Transformer 10: torch.compile, with shapes marked as dynamic.

Idea       Compiled, a layer's small operators become few fused kernels. But rows and tokens change with every batch,
           and a graph for fixed sizes is compiled again for others.
Change     torch.compile(packed_logits), with mark_dynamic(rows, tokens, texts) before each call. It is a function, as
           its graph holds the mask of packed texts too, which model.compile() would leave out.
Look for   Trace: fused kernels (triton on a GPU, cpp on a CPU). TORCH_LOGS=recompiles prints nothing.
Caution    The first step compiles, which costs more than it saves in a short training. A size of 1 is a case of its
           own. dynamic=True compiles twice where sizes of the first batch are equal, such as rows and texts.
"""

from common import autocast_dtype, run_step, start, step_options
from labs.transformer.batches import Packing, packed_parts, token_count
from labs.transformer.data import training_set
from labs.transformer.model import DEFAULTS, classifier, mark_dynamic, packed_logits

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
    compiled = torch.compile(packed_logits)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(*batch):
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for part in packed_parts(*batch):
            labels, *packed = (tensor.to(device, non_blocking=True) for tensor in part)
            mark_dynamic(*packed)
            with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
                logits = compiled(model, *packed)
                part_loss = criterion(logits, labels) / len(batch[0])
            scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype, count_tokens=token_count(pad_id))


if __name__ == "__main__":
    main()
