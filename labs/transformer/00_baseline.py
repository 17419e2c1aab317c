"""Transformer 00: DistilBERT classifies texts, a plain training loop.

Idea       Every text is filled up to the most tokens that the model takes, so that all batches look alike. The model
           computes what fills up as it computes tokens; the attention mask hides it, and nothing else.
Change     None yet: full fp32, batches of 8, eager attention; tokenization in the main process, text by text.
Look for   Overview: "DataLoader" in the step time. Memory: scores of attention, [texts, heads, tokens, tokens].
Caution    Padding cannot be seen in a trace: its kernels are like all others. Compare tokens/s, which counts real ones.
"""

from common import run_step, start, step_options
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

    def train_step(labels, ids):
        labels, ids = labels.to(device), ids.to(device)
        logits = model(ids, attention_mask=ids != pad_id).logits
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run_step(__file__, args, loader, train_step, count_tokens=token_count(pad_id))


if __name__ == "__main__":
    main()
