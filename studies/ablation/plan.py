"""What `ablate` measures: optimisations by name, variants made of them, and the pairs that may interact.

Some optimisations need another (`NEEDS`): compile_loss without compile would be nothing. Alone, it is compared
with the baseline that has what it needs; in the full ladder, an optimisation is compared without what needs it.

Some are no part of "the full ladder", which the others are left out of (`ADDED`); their effect there is the full ladder
with them over the full ladder. on_device_data takes the place of the loader and of all that is done to it; tf32 is no
step, but what cuDNN does unless told not to.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, permutations

from common.options import StepOptions


@dataclass(frozen=True)
class Optimisations:
    """Which optimisations a training program has, one field for each step from 01 to 15; all off is the baseline.

    tf32: convolutions and matrix products of float32 on Tensor Cores, with 10 bits of mantissa.
    """

    amp: bool = False
    bigger_batch: bool = False
    reduced_h2d_copy: bool = False
    multiprocess_loading: bool = False
    pinned_memory: bool = False
    prefetch_stream: bool = False
    small_images: bool = False
    on_device_data: bool = False
    channels_last: bool = False
    no_hidden_syncs: bool = False
    fused_optimizer: bool = False
    cudnn_benchmark: bool = False
    compile: bool = False
    compile_loss: bool = False
    cuda_graphs: bool = False
    tf32: bool = False


NAMES = tuple(field.name for field in fields(Optimisations))
ON_DEVICE, TF32 = "on_device_data", "tf32"
ADDED = (ON_DEVICE, TF32)
LADDER = tuple(name for name in NAMES if name not in ADDED)
REPLACED = (  # by on_device_data
    "reduced_h2d_copy", "multiprocess_loading", "pinned_memory", "prefetch_stream", "small_images",
)  # fmt: skip
NEEDS = {"small_images": "reduced_h2d_copy", "compile_loss": "compile", "cuda_graphs": "compile"}
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
    Pair("pinned_memory", "prefetch_stream", "a copy overlaps kernels only from pinned memory"),
    Pair("no_hidden_syncs", "prefetch_stream", "a loop that waits for every loss asks for its next batch late"),
    Pair("amp", TF32, "both use Tensor Cores: what amp gains over TF32 is what most people get from it"),
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
    """The variant's name: the baseline with one optimisation enabled, and with what it needs."""
    return f"{BASELINE} + {name}"


def before(name: str) -> str:
    """The variant's name that `alone` is compared with: the baseline, with what the optimisation needs."""
    return alone(NEEDS[name]) if name in NEEDS else BASELINE


def in_full(name: str) -> tuple[str, str]:
    """Two variants' names, with and without: their ratio is the effect of an optimisation in the full ladder.

    What needs the optimisation is in neither.
    """
    needing = dependents(name)
    full = f"{FULL} without {' and '.join(needing)}" if needing else FULL
    return (f"{FULL} + {name}", FULL) if name in ADDED else (full, f"{FULL} without {name}")


def together(pair: Pair) -> str:
    """The variant's name: the baseline with both of a `Pair`."""
    return f"{BASELINE} + {pair}"


def variants(no_effect: Collection[str], all_pairs: bool = False, alone_only: Collection[str] = ()) -> list[Variant]:
    """All `Variant`s of an ablation, in the order in which the first run measures them.

    no_effect: names of optimisations that change nothing on this device; no variant is measured for them. The full
    ladder has them nevertheless, as step 15 does, all but `compile` and what needs it, which would stop it. alone_only:
    those that are measured alone, but are not in the full ladder.
    """
    effective = [name for name in NAMES if name not in no_effect]
    left_out = {*alone_only, *(("compile", *dependents("compile")) if "compile" in no_effect else ())}
    full = tuple(name for name in LADDER if name not in left_out)
    plan = [Variant(BASELINE, ())]
    plan += [Variant(alone(name), _with_needs(name)) for name in effective]
    plan += [Variant(FULL, full), Variant(CONTROL, ())]  # as far from the baseline as others are: it shows drift too
    in_ladder: dict[str, Variant] = {}
    for name in effective:
        with_it, without_it = in_full(name)
        if name in ADDED:
            in_ladder[with_it] = Variant(with_it, (*full, name))
        elif name in full:
            rest = tuple(other for other in full if other not in dependents(name))
            in_ladder[without_it] = Variant(without_it, tuple(other for other in rest if other != name))
            if with_it != FULL:
                in_ladder[with_it] = Variant(with_it, rest)
    return [*plan, *in_ladder.values()] + [
        Variant(together(pair), tuple(dict.fromkeys((*_with_needs(pair.first), *_with_needs(pair.second)))))
        for pair in pairs(no_effect, all_pairs)
    ]


def selected(plan: Sequence[Variant], only: Collection[str]) -> list[Variant]:
    """Those of the variants `plan` that the effects of the optimisations `only` need, and their pairs; all without any.

    With the baseline and its control; and, where anything is compiled, with `compile` alone, which decides whether the
    full ladder compiles here.
    """
    if not only:
        return list(plan)
    names = {variant.name for variant in plan}
    sides = [side for name in only for side in ((alone(name), before(name)), in_full(name))]
    wanted = {BASELINE, CONTROL, *(together(Pair(*pair)) for pair in permutations(only, 2))}
    wanted.update(name for side in sides if names.issuperset(side) for name in side)
    if any("compile" in variant.on for variant in plan if variant.name in wanted):
        wanted.add(alone("compile"))
    return [variant for variant in plan if variant.name in wanted]


def _with_needs(name: str) -> tuple[str, ...]:
    return (NEEDS[name], name) if name in NEEDS else (name,)


def dependents(name: str) -> tuple[str, ...]:
    """The optimisations that need that one."""
    return tuple(other for other, needed in NEEDS.items() if needed == name)


def pairs(no_effect: Collection[str], all_pairs: bool = False) -> list[Pair]:
    """The `Pair`s to measure: those of `PAIRS`, or with `all_pairs` every two optimisations, that have an effect here.

    Without those of on_device_data and what it replaces, which is on_device_data alone, and of what needs the other.
    """
    candidates = list(PAIRS)
    if all_pairs:
        declared = {frozenset((pair.first, pair.second)): pair for pair in PAIRS}
        every = [names for names in combinations(NAMES, 2) if _separate(*names)]
        candidates = [declared.get(frozenset(names)) or Pair(*names) for names in every]
    return [pair for pair in candidates if not {pair.first, pair.second} & set(no_effect)]


def _separate(first: str, second: str) -> bool:
    """Whether two optimisations together are another program than each alone, and neither is counted twice."""
    if ON_DEVICE in (first, second):
        return not {first, second} & set(REPLACED)
    return not set(_with_needs(first)) & set(_with_needs(second))


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
    # Those steps whose docstring says that they need a GPU; the others are another program without one too.
    for name in ("pinned_memory", "prefetch_stream", "no_hidden_syncs", "cudnn_benchmark", "cuda_graphs", TF32):
        for reason in without_gpu(name, options.device):
            reasons[name] = reason
    return {name: reasons[name] for name in NAMES if name in reasons}
