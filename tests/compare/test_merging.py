"""Several runs of a step as one result."""

from dataclasses import replace

from support import make_result

from walkthrough.compare.rounds import merged, merged_clocks
from walkthrough.results import result as record
from walkthrough.results.result import GpuClocks


def test_merged_runs_pool_their_windows_and_take_medians_of_the_rest():
    runs = [
        make_result(windows=(10.0, 20.0, 30.0), step_ms=record.StepTime(5.0, 1.0, 9.0), notes=["a"]),
        make_result(windows=(40.0, 50.0, 60.0), step_ms=record.StepTime(7.0, 2.0, 8.0), notes=["a", "b"]),
        make_result(windows=(70.0, 80.0, 90.0), step_ms=record.StepTime(6.0, 3.0, 10.0), notes=["c"]),
    ]
    whole = merged(runs)
    assert whole.samples_per_second == record.Throughput(50.0, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    assert whole.step_ms == record.StepTime(6.0, 2.0, 9.0)
    assert whole.notes == ["a", "b", "c"]
    assert whole.peak_memory_bytes == runs[0].peak_memory_bytes
    assert whole.started == runs[0].started
    assert whole.gpu_clocks is None
    clocks = [GpuClocks(3, mhz, mhz, 1980.0, 400.0, 700.0, 60.0, []) for mhz in (1980.0, 1410.0)]
    watched = [replace(run, gpu_clocks=seen) for run, seen in zip(runs, clocks, strict=False)]
    assert merged(watched).gpu_clocks == GpuClocks(6, 1695.0, 1410.0, 1980.0, 400.0, 700.0, 60.0, [])
    unreserved = [make_result(peak_memory_bytes=record.PeakMemory(size, None)) for size in (4, 8, 6)]
    assert merged(unreserved).peak_memory_bytes == record.PeakMemory(6, None)


def test_runs_are_combined_by_medians_the_lowest_clock_and_the_highest_temperature():
    runs = [
        GpuClocks(3, 1980, 1900, 1980, 300, 700, 54, []),
        GpuClocks(4, 1800, 1410, 1980, 690, 700, 83, ["power limit"]),
        GpuClocks(5, 1950, 1930, 1995, 400, 650, 60, ["sync boost", "power limit"]),
    ]
    both = ["power limit", "sync boost"]
    assert merged_clocks(runs) == GpuClocks(12, 1950, 1410, 1995, 400, 700, 83, both)
    assert merged_clocks(runs[:1]) == runs[0]


def test_what_one_run_does_not_tell_nobody_tells_of_all_of_them():
    steady = GpuClocks(1, 1980, 1980, 1980, 345.1, 700, 54, [])
    runs = [steady, GpuClocks(1, 1410, 1410, 1980, None, 700, 83, ["power limit"])]
    together = merged_clocks(runs)
    assert (together.power_watts, together.sm_mhz, together.sm_mhz_lowest) == (None, 1695, 1410)
    assert merged_clocks([*runs, None]) is None
    assert merged_clocks([None]) is None
