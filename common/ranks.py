"""The processes of one training, as torch.distributed numbers them; one process is rank 0 of a world of size 1."""

from typing import TypeVar

import torch.distributed as dist

if dist.is_available():
    # Imported after init_process_group, as an optimizer's first step would, it keeps the group as a default argument,
    # beyond destroy_process_group. Gloo's threads then run on, and may abort the process while it ends.
    import torch.distributed.nn.functional  # noqa: F401

T = TypeVar("T")


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if _several() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _several() else 1


def without_others(optimisation: str) -> list[str]:
    """The note that an optimisation has no effect in a process that trains alone; [] where it has one.

    optimisation: a step's name without its number.
    """
    alone = world_size() == 1 and optimisation == "data_parallel"
    return ["one process trains alone, so this is the step before: torchrun --nproc-per-node 2 starts two"] * alone


def from_rank_0(value: T) -> T:
    """Rank 0's value, in every process: what must not differ between them, such as when to stop."""
    if not _several():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def wait_for_all() -> None:
    """Return once every process has called this."""
    if _several():
        dist.barrier()


def summed(values: list[float]) -> list[float]:
    """The sum over all processes of each value of a list, which is as long in all of them."""
    if not _several():
        return values
    of_ranks: list[list[float]] = [[] for _ in range(world_size())]
    dist.all_gather_object(of_ranks, values)
    return [sum(column) for column in zip(*of_ranks, strict=True)]


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()
