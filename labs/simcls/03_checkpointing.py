"""SimCLS 03: activation checkpointing.

Idea       Of the encoder's activations keep each layer's input alone, and compute the rest again in backward.
Change     model.encoder.checkpointed = True
Look for   Memory: a much lower peak. Overview: a longer step, by about the time of a forward.
Caution    It is memory that this buys, not speed: use it where it makes room for more candidates or a bigger batch.
           Dropout must draw the same numbers again: torch.utils.checkpoint restores the random state.
"""

from common import autocast_dtype, run_step, start, step_options
from labs.simcls.data import Collate, token_count, training_set
from labs.simcls.model import DEFAULTS, ranking_loss, re_ranker

import torch
from torch.utils.data import DataLoader


def main():
    args = step_options(__doc__, defaults=DEFAULTS)
    device = start(args)

    train_set = training_set(args.data, args.model, args.seed)
    tokens = train_set.tokens
    loader = DataLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=Collate(tokens.pad_id),
        num_workers=args.workers, persistent_workers=args.workers > 0,
    )
    model = re_ranker(args.model, tokens.vocabulary, tokens.pad_id).to(device)
    model.encoder.checkpointed = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    amp_dtype = autocast_dtype(device, args.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)

    def train_step(documents, references, candidates):
        documents, references, candidates = documents.to(device), references.to(device), candidates.to(device)
        with torch.autocast(device.type, amp_dtype, enabled=amp_dtype != torch.float32):
            scores, reference_scores = model(documents, references, candidates)
            loss = ranking_loss(scores, reference_scores)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    run_step(__file__, args, loader, train_step, precision=amp_dtype, count_tokens=token_count(tokens.pad_id))


if __name__ == "__main__":
    main()
