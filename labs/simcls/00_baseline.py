"""SimCLS 00: re-ranking candidates, a plain training loop.

Idea       Score each candidate summary by how near its vector is to the document's, and train the scores to be in the
           order of ROUGE. The encoder reads batch * (candidates + 2) sequences per step.
Change     None yet: full fp32; ROUGE, ordering and tokenization in the main process, document by document.
Look for   Overview: "DataLoader" in the step time. Memory: a peak far above what the batch size suggests.
Caution    A margin of 0.01 per rank needs scores in float32, whatever the encoder computes in.
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
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, collate_fn=Collate(tokens.pad_id))
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
