"""What `ablate` measures: optimisations by name, variants made of them, and the pairs that may interact.

on_device_data takes the place of the loader, its workers, pinned memory and prefetching, and hands out uint8. So "the
full ladder", which the others are left out of, is steps 01 to 09 together; what on_device_data does there is told by
the full ladder with it over the full ladder.
"""

from dataclasses import dataclass, fields
from itertools import combinations


@dataclass(frozen=True)
class Optimisations:
    """Which optimisations a training program has, one field for each step from 01 on; all off is the baseline."""

    amp: bool = False
    bigger_batch: bool = False
    reduced_h2d_copy: bool = False
    multiprocess_loading: bool = False
    pinned_memory: bool = False
    channels_last: bool = False
    no_hidden_syncs: bool = False
    compile: bool = False
    prefetch_stream: bool = False
    on_device_data: bool = False


NAMES = tuple(field.name for field in fields(Optimisations))
ON_DEVICE = "on_device_data"
LADDER = tuple(name for name in NAMES if name != ON_DEVICE)
REPLACED = ("reduced_h2d_copy", "multiprocess_loading", "pinned_memory", "prefetch_stream")  # by on_device_data
BASELINE, CONTROL, FULL = "baseline", "control", "full"
BASELINE_BATCH = 32  # images: that of steps 00 and 01


@dataclass(frozen=True)
class Pair:
    """Two optimisations, and why one may change what the other brings, in a clause."""

    first: str
    second: str
    why: str = ""

    def __str__(self):
        return f"{self.first} + {self.second}"


PAIRS = (
    Pair("amp", "multiprocess_loading", "while the loader is the bottleneck, a faster model only waits longer for it"),
    Pair("amp", "channels_last", "Tensor Cores want the channels of a pixel side by side; fp32 profits less"),
    Pair(
        "bigger_batch", "multiprocess_loading",
        "an image costs the loader the same in any batch: a bigger one helps only where nothing waits for it",
    ),
    Pair("bigger_batch", "compile", "fewer launches matter most where small batches make launching the limit"),
    Pair(
        "reduced_h2d_copy", "multiprocess_loading",
        "both take work from the main process, and what workers do costs it nothing any more",
    ),
    Pair("reduced_h2d_copy", "pinned_memory", "a quarter of the bytes leaves less for a faster copy to save"),
    Pair(
        "multiprocess_loading", "pinned_memory",
        "without workers the main process itself puts each batch into pinned memory; with them a thread does",
    ),
    Pair("channels_last", "compile", "both decide how tensors lie in memory, and fused kernels need fewer turned over"),
    Pair("pinned_memory", "prefetch_stream", "a copy runs beside kernels only from pinned memory"),
    Pair(
        "no_hidden_syncs", "prefetch_stream",
        "a loop that waits for every loss asks for its next batch late",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One training program to be measured: its name in tables and in the record, and the optimisations that are on."""

    name: str
    on: tuple[str, ...]

    @property
    def optimisations(self):
        return Optimisations(**dict.fromkeys(self.on, True))


def alone(name):
    """The variant's name: the baseline with one optimisation put in."""
    return f"{BASELINE} + {name}"


def in_full(name):
    """Two variants' names, with and without: they tell what an optimisation does in the full ladder."""
    return (f"{FULL} + {name}", FULL) if name == ON_DEVICE else (FULL, f"{FULL} without {name}")


def together(pair):
    """The variant's name: the baseline with both of a `Pair`."""
    return f"{BASELINE} + {pair}"


def variants(cannot_act, all_pairs=False):
    """All `Variant`s of an ablation, in the order in which the first run measures them, and every other run after it.

    cannot_act: names of optimisations that make no other program here; no variant is measured for them. The full ladder
    has them nevertheless, as step 09 does, all but `compile`, which would stop it.
    """
    acting = [name for name in NAMES if name not in cannot_act]
    full = tuple(name for name in LADDER if name != "compile" or name in acting)
    found = [Variant(BASELINE, ())]
    found += [Variant(alone(name), (name,)) for name in acting]
    found += [Variant(FULL, full), Variant(CONTROL, ())]  # as far from the baseline as others are: it shows drift too
    for name in acting:
        if name == ON_DEVICE:
            found.append(Variant(in_full(name)[0], (*full, name)))
        else:
            found.append(Variant(in_full(name)[1], tuple(other for other in full if other != name)))
    return found + [
        Variant(together(pair), (pair.first, pair.second)) for pair in pairs(cannot_act, all_pairs)
    ]  # fmt: skip


def pairs(cannot_act, all_pairs=False):
    """The `Pair`s to measure: those of `PAIRS` that can act here, or every two optimisations that can.

    Without those of on_device_data and what it replaces: that is on_device_data alone.
    """
    candidates = PAIRS
    if all_pairs:
        declared = {frozenset((pair.first, pair.second)): pair for pair in PAIRS}
        every = [names for names in combinations(NAMES, 2) if not (names[1] == ON_DEVICE and names[0] in REPLACED)]
        candidates = [declared.get(frozenset(names)) or Pair(*names) for names in every]
    return [pair for pair in candidates if not {pair.first, pair.second} & set(cannot_act)]


def cannot_act(device_type, amp_acts, batch_size, workers):
    """{optimisation: why, a clause} of those that make no other program on this device with these options.

    amp_acts: whether autocast has a smaller dtype here.
    """
    found = {}
    if not amp_acts:
        found["amp"] = "this CPU has no bf16 hardware, so autocast stays off"
    if batch_size == BASELINE_BATCH:
        found["bigger_batch"] = f"--batch-size {batch_size} is the baseline's"
    if not workers:
        found["multiprocess_loading"] = "--workers 0 loads in the main process"
    if device_type != "cuda":
        found["pinned_memory"] = "no GPU: without a copy to a device there is nothing to pin for"
        found["prefetch_stream"] = "no GPU: there is no copy to overlap"
    return {name: found[name] for name in NAMES if name in found}
