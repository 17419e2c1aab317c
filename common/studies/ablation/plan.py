"""What `ablate` measures: optimisations by name, variants made of them, and the pairs that may interact.

on_device_data takes the place of the loader, its workers, pinned memory and prefetching, and yields uint8. So "the full
ladder", which the others are left out of, is steps 01 to 09 together; the effect of on_device_data there is the full
ladder with it over the full ladder.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from itertools import combinations

from common.options import StepOptions


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
    """Two optimisations, and why one may change the effect of the other, in a clause."""

    first: str
    second: str
    why: str = ""

    def __str__(self) -> str:
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
        "without workers the main process itself copies each batch into pinned memory; with them a thread does",
    ),
    Pair("channels_last", "compile", "both decide the layout of tensors, and fused kernels need fewer conversions"),
    Pair("pinned_memory", "prefetch_stream", "a copy runs beside kernels only from pinned memory"),
    Pair("no_hidden_syncs", "prefetch_stream", "a loop that waits for every loss asks for its next batch late"),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One training program to be measured: its name in tables and in the record, and the optimisations that are on."""

    name: str
    on: tuple[str, ...]

    @property
    def optimisations(self) -> Optimisations:
        return Optimisations(**dict.fromkeys(self.on, True))


def alone(name: str) -> str:
    """The variant's name: the baseline with one optimisation enabled."""
    return f"{BASELINE} + {name}"


def in_full(name: str) -> tuple[str, str]:
    """Two variants' names, with and without: their ratio is the effect of an optimisation in the full ladder."""
    return (f"{FULL} + {name}", FULL) if name == ON_DEVICE else (FULL, f"{FULL} without {name}")


def together(pair: Pair) -> str:
    """The variant's name: the baseline with both of a `Pair`."""
    return f"{BASELINE} + {pair}"


def variants(no_effect: Collection[str], all_pairs: bool = False) -> list[Variant]:
    """All `Variant`s of an ablation, in the order in which the first run measures them.

    no_effect: names of optimisations that change nothing on this device; no variant is measured for them. The full
    ladder has them nevertheless, as step 09 does, all but `compile`, which would stop it.
    """
    effective = [name for name in NAMES if name not in no_effect]
    full = tuple(name for name in LADDER if name != "compile" or name in effective)
    plan = [Variant(BASELINE, ())]
    plan += [Variant(alone(name), (name,)) for name in effective]
    plan += [Variant(FULL, full), Variant(CONTROL, ())]  # as far from the baseline as others are: it shows drift too
    for name in effective:
        if name == ON_DEVICE:
            plan.append(Variant(in_full(name)[0], (*full, name)))
        else:
            plan.append(Variant(in_full(name)[1], tuple(other for other in full if other != name)))
    return plan + [Variant(together(pair), (pair.first, pair.second)) for pair in pairs(no_effect, all_pairs)]


def pairs(no_effect: Collection[str], all_pairs: bool = False) -> list[Pair]:
    """The `Pair`s to measure: those of `PAIRS`, or with `all_pairs` every two optimisations, that have an effect here.

    Without those of on_device_data and what it replaces: that is on_device_data alone.
    """
    candidates = list(PAIRS)
    if all_pairs:
        declared = {frozenset((pair.first, pair.second)): pair for pair in PAIRS}
        every = [names for names in combinations(NAMES, 2) if not (names[1] == ON_DEVICE and names[0] in REPLACED)]
        candidates = [declared.get(frozenset(names)) or Pair(*names) for names in every]
    return [pair for pair in candidates if not {pair.first, pair.second} & set(no_effect)]


def no_effect(options: StepOptions, autocast_off: str | None) -> dict[str, str]:
    """{optimisation: why} of those that have no effect on this device with these options.

    autocast_off: why autocast is off; None where it is on.
    """
    from common.device import without_gpu  # torch: what reads a record has no need of it

    reasons = {}
    if autocast_off:
        reasons["amp"] = autocast_off
    if options.batch_size == BASELINE_BATCH:
        reasons["bigger_batch"] = f"--batch-size {options.batch_size} is the baseline's"
    if not options.workers:
        reasons["multiprocess_loading"] = "--workers 0 loads in the main process"
    for name in ("pinned_memory", "prefetch_stream"):  # the others are another program without a GPU too
        for reason in without_gpu(name, options.device):
            reasons[name] = reason
    return {name: reasons[name] for name in NAMES if name in reasons}
