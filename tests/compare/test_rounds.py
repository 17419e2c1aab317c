"""Runs side by side: ratios with an interval, and ladders that do not mix."""

from dataclasses import replace

import pytest
from support import around, in_rounds, ladder_of, make_result, write_run
from support.trace_builder import two_steps

from walkthrough.compare import rounds
from walkthrough.compare.rounds import merged, merged_clocks
from walkthrough.compare.statistics import SAME, of_windows
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.results.result import GpuClocks

SLOW, FAST = around(100.0), around(200.0)


def test_a_steady_gain_is_resolved_on_a_machine_that_slows_down_between_rounds(tmp_path):
    base = in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(80.0), 3: around(64.0)})
    gains = {1: around(104.9), 2: around(84.0), 3: around(67.3)}
    ladder = ladder_of(tmp_path, base, in_rounds(tmp_path, "01_amp", gains))
    relative = ladder.rows[1].relative
    assert relative == ladder.rows[1].gain
    assert relative.ratio == pytest.approx((1.049 * 1.05 * 67.3 / 64) ** (1 / 3))
    assert (relative.rounds, relative.resolved) == (3, True)
    assert 1.04 < relative.low < relative.high < 1.06
    merged = rounds.ladders([row.result for row in ladder.rows])[0].rows[1].relative
    assert (merged.rounds, merged.resolved) == (1, False)  # the same windows without their rounds


def test_a_row_without_effect_has_no_gain_and_the_next_one_is_compared_with_the_last_that_acts():
    noise = make_result("01_amp", windows=around(130.0), needs="bf16 units")
    faster = make_result("02_bigger_batch", windows=FAST)
    [ladder] = rounds.ladders([make_result(windows=SLOW), noise, faster])
    assert [row.acts for row in ladder.rows] == [True, False, True]
    assert [row.needs for row in ladder.rows] == ["", "needs bf16 units", ""]
    assert replace(ladder.rows[1], result=replace(noise, needs="x" * 60)).needs == f"needs {'x' * 39}…"
    assert [row.gain for row in ladder.rows[:2]] == [None, None]
    assert ladder.rows[0].relative == SAME
    assert ladder.rows[2].gain == ladder.rows[2].relative == of_windows(FAST, SLOW)  # both against 00_baseline
    [ladder] = rounds.ladders([noise, faster])  # the first is what the others are compared with, whatever it needs
    assert ladder.acting == ladder.rows
    assert ladder.rows[1].gain == of_windows(FAST, around(130.0))


def test_a_step_that_was_run_again_by_itself_is_not_the_rounds_that_its_folder_still_has(tmp_path):
    base = in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(80.0)})
    in_rounds(tmp_path, "01_amp", {1: around(100.0), 2: around(80.0)})
    write_run(tmp_path, make_result("01_amp", windows=around(180.0)))
    row = ladder_of(tmp_path, base, record.read_result(tmp_path / "01_amp" / "result.json")).rows[1]
    assert row.rounds == {0: list(around(180.0))}
    assert (row.gain.ratio, row.gain.rounds) == (pytest.approx(2.0, rel=0.01), 1)


@pytest.mark.parametrize(  # minutes; the longest pause, and a longer one; out of order; what is no time
    ("starts", "apart"), [("00 01 61 61", []), ("00 01 62 63", [2]), ("00 09 02 03", [1]), ("09 01 02 -", [0])]
)
def test_a_run_out_of_order_or_after_a_pause_is_apart_from_the_others(starts, apart):
    hours = [f"0{int(start) // 60}:{int(start) % 60:02}" if start != "-" else "-" for start in starts.split()]
    runs = [make_result(f"0{number}_step", started=f"2026-01-01T{hour}") for number, hour in enumerate(hours)]
    [ladder] = rounds.ladders(runs)
    assert [ladder.rows.index(row) for row in rounds.ran_apart(ladder)] == apart
    ladder = rounds.ladder(runs, {run.step: {1: SLOW, 2: run.samples_per_second.windows} for run in runs})
    assert rounds.ran_apart(ladder) == []  # pairs of each round


def test_of_many_windows_a_tenth_at_either_end_is_left_out():
    windows = [1.0, *(float(n) for n in range(50, 68)), 1000.0]
    assert rounds.spread(make_result(windows=windows)) == (51.0, 66.0)
    assert rounds.spread(make_result(windows=(1.0, 50.0, 1000.0))) == (1.0, 1000.0)


@pytest.mark.parametrize(
    "change",
    [
        {"device": "Other GPU"}, {"data": "stand-in"}, {"model": "resnet18"}, {"image_size": 64},
        {"environment": replace(make_result().environment, cores=64)},
    ],
)  # fmt: skip
def test_runs_that_do_not_compare_make_ladders_of_their_own_the_longest_first(change):
    """On a CPU, whose name does not say how many of its cores a machine has."""
    steps = ("00_baseline", change), ("01_amp", {}), ("02_bigger_batch", {})
    ladders = rounds.ladders(make_result(step, device_type="cpu", **own) for step, own in steps)
    names = [[row.result.step for row in ladder.rows] for ladder in ladders]
    assert names == [["01_amp", "02_bigger_batch"], ["00_baseline"]]


def test_of_ladders_of_one_length_the_newest_is_first():
    runs = [("00", "a", 1), ("01", "a", 2), ("00", "b", 1), ("01", "b", 5), ("00", "c", 3), ("01", "c", 4)]
    results = [make_result(f"{step}_s", device=device, started=f"2026-01-0{day}") for step, device, day in runs]
    assert [ladder.baseline.device for ladder in rounds.ladders(results)] == ["b", "c", "a"]


def test_a_whole_comparison_is_the_longest_ladder_and_nothing_in_its_folder_is_broken(tmp_path):
    for step, device in (("00_baseline", "a"), ("01_amp", "a"), ("02_bigger_batch", "b")):
        write_run(tmp_path, make_result(step, device=device))
    assert [row.result.step for row in rounds.whole_comparison(tmp_path).rows] == ["00_baseline", "01_amp"]
    (tmp_path / "01_amp" / "result.json").write_text("torn")
    with pytest.raises(InputError, match=r"01_amp/result\.json is broken"):
        rounds.whole_comparison(tmp_path)


def test_merged_runs_pool_their_windows_and_take_medians_of_the_rest():
    clocks = GpuClocks(3, 1980.0, 1410.0, 1980.0, 400.0, 700.0, 60.0, [])
    runs = [
        make_result(windows=(10.0, 20.0, 30.0), step_ms=record.StepTime(5.0, 1.0, 9.0), notes=["a"]),
        make_result(windows=(40.0, 50.0, 60.0), step_ms=record.StepTime(7.0, 2.0, 8.0), notes=["a", "b"]),
        make_result(windows=(70.0, 80.0, 90.0), step_ms=record.StepTime(6.0, 3.0, 10.0), notes=["c"]),
    ]
    sizes = [(4, None, 4), (8, 6, 9), (6, 10, 8)]  # peaks allocated and reserved, bytes of a batch
    runs = [
        replace(run, peak_memory_bytes=record.PeakMemory(allocated, reserved), batch_bytes=batch, gpu_clocks=clocks,
                tokens_per_second=record.Throughput(speed, [speed]), first_step_seconds=speed)
        for run, (allocated, reserved, batch), speed in zip(runs, sizes, (5.0, 7.0, 9.0), strict=True)
    ]  # fmt: skip
    whole = merged(runs)
    assert whole.samples_per_second == record.Throughput(50.0, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    assert whole.tokens_per_second == record.Throughput(7.0, [5.0, 7.0, 9.0])
    assert whole.step_ms == record.StepTime(6.0, 2.0, 9.0)
    assert (whole.peak_memory_bytes, whole.batch_bytes) == (record.PeakMemory(6, 8), 8)
    assert (whole.first_step_seconds, whole.gpu_clocks.samples) == (7.0, 9)
    assert (whole.notes, whole.started) == (["a", "b", "c"], runs[0].started)
    plain = merged([make_result(), make_result()])
    assert (plain.tokens_per_second, plain.gpu_clocks) == (None, None)


def test_runs_are_combined_by_medians_the_lowest_clock_and_the_highest_temperature():
    runs = [
        GpuClocks(3, 1980, 1900, 1980, 300, 700, 54, []),
        GpuClocks(4, 1800, 1410, 1980, 690, 700, 83, ["power limit"]),
        GpuClocks(5, 1950, 1930, 1995, 400, 650, 60, ["sync boost", "power limit"]),
    ]
    both = ["power limit", "sync boost"]
    assert merged_clocks(runs) == GpuClocks(12, 1950, 1410, 1995, 400, 700, 83, both)
    one_untold = [replace(runs[0], power_watts=None), *runs[1:]]
    assert merged_clocks(one_untold) == replace(merged_clocks(runs), power_watts=None)
    assert merged_clocks([*runs, None]) is None
    assert merged_clocks([None]) is None


def test_how_busy_a_gpu_was_is_from_the_trace_of_its_run(tmp_path):
    gpu, without, cpu = make_result(), make_result("01_amp"), make_result(device="CPU", device_type="cpu")
    for result in (gpu, without):
        write_run(tmp_path, result)
    two_steps().write(tmp_path / gpu.step / gpu.trace)
    used, [problem] = rounds.gpu_use(tmp_path, rounds.ladders([gpu, without]))
    assert used == {gpu.step: rounds.GpuUse(0.4, 0.0)}
    assert without.trace in problem
    assert rounds.gpu_use(tmp_path, rounds.ladders([cpu])) == ({}, [])
