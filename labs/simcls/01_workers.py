"""SimCLS 01: load batches in worker processes.

Idea       ROUGE is pure Python: 16 scores per document, with a longest common subsequence each. Workers compute them
           while the encoder trains.
Change     DataLoader(num_workers=args.workers, persistent_workers=True)
Look for   Overview: "DataLoader" shrinks. With few cores "CPU Exec" grows instead.
Caution    Workers need cores of their own. Work that is the same in every epoch need not be repeated at all: see 04.
"""

from common import run_step, start, step_options
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train_step(documents, references, candidates):
        documents, references, candidates = documents.to(device), references.to(device), candidates.to(device)
        scores, reference_scores = model(documents, references, candidates)
        loss = ranking_loss(scores, reference_scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step, count_tokens=token_count(tokens.pad_id))


if __name__ == "__main__":
    main()
