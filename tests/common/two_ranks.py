"""Step 16 as torchrun starts it, its two processes sharing one import of torch: python two_ranks.py FOLDER OPTIONS.

Each rank has a `SmallNet` of its own weights, until DDP copies rank 0's. Before it measures it trains three steps; what
they gave is in FOLDER/rank0.json and rank1.json.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
from support import ROOT, SmallNet
from support.ranks import fork_two

import common.model
from common import ranks, session

PROGRAM = ROOT / "steps" / "16_data_parallel.py"


def rank(folder, words):
    torch.manual_seed(int(os.environ["RANK"]))
    model, measure = SmallNet(), session.run_step

    def run_step(file, args, loader, train_step, **more):
        batches = [batch for batch, _ in zip(loader, range(3), strict=False)]
        facts = {
            "labels": [batch[1].tolist() for batch in batches],
            "losses": [train_step(*batch).item() for batch in batches],
            "summed": ranks.summed([ranks.rank() + 1.0, 2.0]),
            "first": ranks.from_rank_0(ranks.rank()),
            "weights": [parameter.double().sum().item() for parameter in model.parameters()],
        }
        Path(folder, f"rank{ranks.rank()}.json").write_text(json.dumps(facts))
        return measure(file, args, loader, train_step, **more)

    common.model.classifier, session.run_step = lambda *_: model, run_step
    sys.argv = [str(PROGRAM), *words]
    runpy.run_path(str(PROGRAM), run_name="__main__")
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in threads if "gloo" in name], threads  # they could abort a process that ends


if __name__ == "__main__":
    fork_two(rank, sys.argv[1], sys.argv[2:])
