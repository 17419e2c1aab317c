"""Memory by kind over one training step, operator by operator: predicted on fake tensors, so no GPU is needed.

See `walkthrough.memory.tracker` for the kinds and for what is counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from common.options import StepOptions
from common.program import captured, float_batch, words_of
from walkthrough.memory.allocator import reserved_bytes
from walkthrough.memory.fake_gpu import fake_gpu
from walkthrough.memory.tracker import Block, MemoryTracker

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

POINTS = 300  # of a timeline, at most: the figure is no wider


class Timeline(MemoryTracker):
    """A tracker that also keeps when each block is allocated and freed, counted in operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.changes: list[tuple[int, int, Block]] = []  # (operator, +1 or -1, block)

    def begin_step(self) -> None:
        """Count from here on; what is there is allocated at operator 0."""
        self.operators, self.changes = 0, [(0, 1, block) for block in self._blocks.values()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _block(self, tensor: torch.Tensor) -> Block:
        known = len(self._blocks)
        block = super()._block(tensor)
        if len(self._blocks) > known:
            self.changes.append((self.operators, 1, block))
        return block

    def _free(self, key: int) -> None:
        self.changes.append((self.operators, -1, self._blocks[key]))
        super()._free(key)

    def rows(self) -> list[dict[str, Any]]:
        """{"operator": its number, kind: MB held after it, …}, at most `POINTS`: of neighbours, the highest.

        After `mark_state`, since kinds are known late.
        """
        sizes, after = dict.fromkeys(self.by_kind(), 0), dict[int, dict[str, int]]()
        for operator, sign, block in self.changes:
            sizes[block.kind] += sign * block.allocated_bytes
            if operator not in after or sum(after[operator].values()) < sum(sizes.values()):
                after[operator] = dict(sizes)
        every = -(-len(after) // POINTS) if after else 1
        numbers = sorted(after)
        shown = [
            max(numbers[begin : begin + every], key=lambda number: sum(after[number].values()))
            for begin in range(0, len(numbers), every)
        ]
        return [
            {"operator": number} | {kind: round(size / 1e6, 2) for kind, size in after[number].items()}
            for number in shown
        ]


def step_timeline(file: Path, options: StepOptions) -> dict[str, Any]:
    """{"rows": those of a program's second step on a GPU, "reserved_bytes": by torch's allocator after it}.

    The first step makes the optimizer's state.
    """
    options = replace(options, device="cpu")  # of the fake tensors
    with FakeTensorMode(allow_non_fake_inputs=True), Timeline() as timeline, fake_gpu(timeline, []):
        one = captured(file, words_of(options))
        timeline.begin()
        batch = float_batch(options)
        timeline.mark("inputs", batch)
        one.train_step(*batch)
        timeline.mark_state()
        timeline.begin_step()
        one.train_step(*batch)
        timeline.mark_state()
        return {"rows": timeline.rows(), "reserved_bytes": reserved_bytes(timeline.events)}
