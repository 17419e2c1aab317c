"""What was published about fine-tuning DistilBERT on one T4, and what it claims. Not measured here.

A write-up with 150,000 training texts on one T4, one run, no spread. Its table has no numbers: it says for each
technique what it is for. Dynamic padding and batches of uniform length are planned in it, and were never done.
"""

from dataclasses import dataclass

MINUTES_BEFORE, MINUTES_AFTER = 35, 10  # of training, about: "~35 -> ~10 minutes"
SPEED_UP = MINUTES_BEFORE / MINUTES_AFTER
WORKERS_PER_GPU = 4  # its rule of thumb


@dataclass(frozen=True)
class Technique:
    """A row of the published table: what the technique is for; None where it was planned and not done."""

    faster: bool | None
    less_memory: bool | None


TABLE = {  # {trick, by our names: what was published}
    "mixed_precision": Technique(faster=True, less_memory=False),
    "workers": Technique(faster=True, less_memory=False),  # with pinned memory, as in our program
    "bigger_batch": Technique(faster=True, less_memory=False),
    "gradient_accumulation": Technique(faster=False, less_memory=True),
    "gradient_checkpointing": Technique(faster=False, less_memory=True),
    "dynamic_padding": Technique(faster=None, less_memory=None),
    "uniform_length": Technique(faster=None, less_memory=None),
}
