"""What `ablate` measured, as `ablation.json` holds it. Needs the standard library only."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from studies import study
from studies.ablation.plan import BASELINE, NAMES, Variant, selected, variants
from studies.study import Study
from walkthrough.results.result import PositiveInt, StepTime, Throughput

FILE = "ablation.json"


@dataclass(frozen=True)
class Measurement:
    """One variant in one run, counted from 1, with the optimisations that were on."""

    variant: str
    on: list[str]
    run: PositiveInt
    samples_per_second: Throughput
    step_ms: StepTime
    first_step_seconds: float
    batch_size: int
    started: str


@dataclass(frozen=True)
class NotMeasured:
    """An optimisation without effect on this device, or a variant that could not be run: why, without full stop."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ablation(Study):
    """What `ablate` measured.

    precision: that of autocast where amp is on. batch_size: with bigger_batch; workers: with multiprocess_loading.
    code: hash of what was run. runs: as many as were asked for. no_effect: optimisations; not_run: variants.
    """

    FILE: ClassVar[str] = FILE

    batch_size: int
    workers: int
    all_pairs: bool
    code: str
    runs: PositiveInt
    no_effect: list[NotMeasured]
    not_run: list[NotMeasured]
    measurements: list[Measurement]

    @property
    def variants(self) -> list[Variant]:
        """The `Variant`s that are to be measured in every run."""
        skipped = {variant.name for variant in self.not_run}
        plan = variants([optimisation.name for optimisation in self.no_effect], self.all_pairs, self.alone_only)
        return [variant for variant in plan if variant.name not in skipped]

    @property
    def alone_only(self) -> list[str]:
        """amp where autocast is off by itself, though the CPU has bf16 instructions: measured, but in no ladder."""
        effective = "amp" not in {optimisation.name for optimisation in self.no_effect}
        return ["amp"] if self.precision == "float32" and effective else []

    @property
    def missing(self) -> list[tuple[int, Variant]]:
        """What is still to be measured, in order: (run, `Variant`). Every other run goes backwards."""
        done = {(measurement.run, measurement.variant) for measurement in self.measurements}
        forth, back = self.variants, self.variants[::-1]
        plan = ((run, variant) for run in range(1, self.runs + 1) for variant in (forth if run % 2 else back))
        return [(run, variant) for run, variant in plan if (run, variant.name) not in done]

    def to_measure(self, only: Collection[str] = ()) -> list[tuple[int, Variant]]:
        """What is `missing`, or as much of it as the effects of the optimisations `only` need; see `plan.selected`."""
        names = {variant.name for variant in selected(self.variants, only)}
        return [(run, variant) for run, variant in self.missing if variant.name in names]

    @property
    def whole_runs(self) -> int:
        """How many runs have every variant."""
        return len(self.runs_with(variant.name for variant in self.variants))

    @property
    def run_count(self) -> int:
        """How many runs have the baseline, which others are compared with."""
        return len(self.by_run(BASELINE))

    def by_run(self, variant: str) -> dict[int, Measurement]:
        """{run: its `Measurement`} of the variant of that name, in order."""
        measured = {measurement.run: measurement for measurement in self.measurements if measurement.variant == variant}
        return dict(sorted(measured.items()))

    def runs_with(self, names: Iterable[str]) -> list[int]:
        """The runs that have all variants of these names."""
        return sorted(set.intersection(*(set(self.by_run(name)) for name in names)))

    def problem(self) -> str | None:
        named = {name for measurement in self.measurements for name in measurement.on}
        named |= {optimisation.name for optimisation in self.no_effect}
        return None if named <= set(NAMES) else f"there is no optimisation {', '.join(sorted(named - set(NAMES)))}"

    def computed(self) -> dict[str, Any]:
        from studies.ablation import effects  # which is computed from this

        return effects.as_json(self)


def read(logdir: str | Path) -> Ablation | None:
    """The `Ablation` in a folder, None where there is none. Raises InputError for one that is broken."""
    return study.read(Ablation, logdir)
