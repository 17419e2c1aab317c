"""Several runs of the same step as one result."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from walkthrough.results.result import NO_KERNELS, GpuClocks, PeakMemory, Result, StepTime, Throughput


def traced(results: Sequence[Result]) -> Result:
    """The one of a step's runs, in order, whose trace and TensorBoard events are kept.

    The first whose trace holds what it should; the first of all where none does.
    """
    return next((result for result in results if not result.lacks_kernels), results[0])


def merged(results: Sequence[Result]) -> Result:
    """One result out of several runs of the same step: how a recorded step is summed up.

    All windows of all runs, in order, and their median; of times, peaks and bytes the median over the runs; a GPU's
    clocks as `merged_clocks` combines them; every note once, of a trace only that of the `traced` run. The rest
    is the first run's.
    """
    first, untrue = results[0], () if traced(results).lacks_kernels else (NO_KERNELS,)

    def median(pick: Callable[[Result], float | None]) -> float | None:
        values = [value for value in map(pick, results) if value is not None]
        return statistics.median(values) if values else None

    def whole(pick: Callable[[Result], int | None]) -> Any:
        value = median(pick)
        return None if value is None else int(value)

    windows = [speed for result in results for speed in result.samples_per_second.windows]
    tokens = [speed for result in results if result.tokens_per_second for speed in result.tokens_per_second.windows]
    return replace(
        first,
        samples_per_second=Throughput(statistics.median(windows), windows),
        tokens_per_second=Throughput(statistics.median(tokens), tokens) if tokens else None,
        first_step_seconds=median(lambda r: r.first_step_seconds),
        step_ms=StepTime(*(statistics.median(getattr(r.step_ms, f.name) for r in results) for f in fields(StepTime))),
        peak_memory_bytes=PeakMemory(
            whole(lambda r: r.peak_memory_bytes.allocated), whole(lambda r: r.peak_memory_bytes.reserved)
        ),
        batch_bytes=whole(lambda r: r.batch_bytes),
        gpu_clocks=merged_clocks([result.gpu_clocks for result in results]),
        notes=list(dict.fromkeys(note for result in results for note in result.notes if note not in untrue)),
    )


def merged_clocks(runs: Sequence[GpuClocks | None]) -> GpuClocks | None:
    """The `GpuClocks` of several runs: medians over the runs, of clocks the lowest and the limit's highest.

    The highest temperature, every reason once, all samples. None where any run lacks them, and so for each value.
    """
    known = [clocks for clocks in runs if clocks]
    if not known or len(known) < len(runs):
        return None

    def over(summary: Callable[[Sequence[float]], float], pick: Callable[[GpuClocks], float | None]) -> float | None:
        values = [value for value in map(pick, known) if value is not None]
        return summary(values) if len(values) == len(known) else None

    return GpuClocks(
        samples=sum(clocks.samples for clocks in known),
        sm_mhz=over(statistics.median, lambda c: c.sm_mhz),
        sm_mhz_lowest=over(min, lambda c: c.sm_mhz_lowest),
        sm_mhz_limit=over(max, lambda c: c.sm_mhz_limit),
        power_watts=over(statistics.median, lambda c: c.power_watts),
        power_limit_watts=over(statistics.median, lambda c: c.power_limit_watts),
        temperature=over(max, lambda c: c.temperature),
        slowed_by=list(dict.fromkeys(reason for clocks in known for reason in clocks.slowed_by)),
    )
