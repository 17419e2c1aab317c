"""The search for the fastest program: greedy, one setting at a time. Starts without torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from studies.limit.record import CHANNELS_LAST, CONTIGUOUS, Program
from walkthrough.results.result import Throughput

LARGEST_BATCH = 65536  # images, as for --batch-size

BATCH_SIZE = "batch_size"  # the key of `greedy`'s settings that has no value of its own
UNCOMPILED: dict[str, dict[str, object]] = {  # by device type: what to change, in this order
    "cpu": {"layout": CHANNELS_LAST, BATCH_SIZE: None},
    "cuda": {BATCH_SIZE: None, "cudnn_benchmark": True, "layout": CONTIGUOUS},
}

TimeProgram = Callable[[Program], Throughput | None]


def first_program(device_type: str, batch_size: int) -> Program:
    """What the search starts from; on a GPU in channels last, which its Tensor Cores need."""
    gpu = device_type == "cuda"
    off = False if gpu else None
    layout = CHANNELS_LAST if gpu else CONTIGUOUS
    return Program(batch_size, layout, cudnn_benchmark=off, compiled=False, cuda_graphs=off)


def compiled_order(device_type: str, best: Program) -> tuple[Program, dict[str, object]]:
    """The first program to compile and what to change of it, in this order; `best`: the fastest uncompiled one.

    On a GPU channels last only, and CUDA graphs before any other batch size: each of these programs may take minutes.
    """
    if device_type == "cuda":
        return replace(best, layout=CHANNELS_LAST, compiled=True), {"cuda_graphs": True, BATCH_SIZE: None}
    other = CONTIGUOUS if best.layout == CHANNELS_LAST else CHANNELS_LAST
    return replace(best, compiled=True), {"layout": other, BATCH_SIZE: None}


def greedy(start: Program, settings: Mapping[str, object], time_program: TimeProgram) -> dict[Program, Throughput]:
    """The speeds of the programs that were tried, in the order in which they were.

    settings: {field of a `Program`: another value}, in the order in which to try them; each is kept where the median is
    higher. `BATCH_SIZE` is doubled while the speed grows, and where that never helps, halved while it does. A growing
    speed is one whose median is above all windows of the fastest program before. This rule only chooses what to try
    next: whether two programs differ is decided in `compare.statistics`.

    time_program: None for a program that cannot be timed (no memory, no time left); the search does not go on there.
    """
    speeds: dict[Program, Throughput] = {}

    def timed(program: Program) -> bool:
        speed = time_program(program)
        if speed is not None:
            speeds[program] = speed
        return speed is not None

    if not timed(start):
        return speeds
    best = start
    for name, value in settings.items():
        if name == BATCH_SIZE:
            best = _resized(best, timed, speeds)
            continue
        changed = replace(best, **{name: value})  # pyright: ignore[reportArgumentType]  # of the field's type
        if timed(changed) and speeds[changed].median > speeds[best].median:
            best = changed
    return speeds


def _resized(start: Program, timed: Callable[[Program], bool], speeds: Mapping[Program, Throughput]) -> Program:
    """The fastest of the batch sizes that `greedy` tries from `start`."""
    best = start
    for resized in (lambda size: size * 2, lambda size: size // 2):
        while 1 <= (size := resized(best.batch_size)) <= LARGEST_BATCH:
            changed = replace(best, batch_size=size)
            if not timed(changed) or speeds[changed].median <= max(speeds[best].windows):
                break
            best = changed
        if best.batch_size != start.batch_size:
            break
    return best
