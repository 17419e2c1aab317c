"""Runs side by side: ratios with an interval, ladders that do not mix, and what the command prints and refuses."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import assert_refused, make_result, write_run

from walkthrough.cli import main
from walkthrough.compare import figures, markdown, rounds, summary
from walkthrough.compare import ladder as ladder_table
from walkthrough.compare.statistics import SAME
from walkthrough.results import result as record
from walkthrough.results.result import NotRun

SLOW, FAST = (98.0, 99.0, 100.0, 101.0, 102.0), (196.0, 198.0, 200.0, 202.0, 204.0)


def printed(ladders, width=140, **more):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    ladder_table.print_ladders(ladders, console, **more)
    return console.export_text()


def a_limit(setup, images_per_second=400.0):
    """What the table needs of a `studies.limit` result."""
    return SimpleNamespace(
        setup=setup,
        batch_size=128,
        precision="bfloat16",
        started="2026-01-01T00:00:00+00:00",
        quick=False,
        fastest=SimpleNamespace(kind="compiled"),
        share_of_limit=lambda result: result.samples_per_second.median / images_per_second,
        shares=lambda result: {"share_of_arithmetic_peak": None, "share_of_memory_roof": None},
    )


@pytest.fixture
def command(capsys):
    """command(*words): exit code, output and error of `compare`."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, words)])
        captured = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=captured.out, stderr=captured.err)

    return run


def row_of(text, step):
    return next(line for line in text.splitlines() if line.startswith(step))


def in_rounds(tmp_path, step, kept, **changes):
    """A step's folder as a record or a tour of several rounds leaves it: {round: windows}; returns its result."""
    runs = {number: make_result(step, windows=windows, **changes) for number, windows in kept.items()}
    folder = write_run(tmp_path, rounds.merged(list(runs.values())))
    (folder / "runs").mkdir(exist_ok=True)
    for number, run in runs.items():
        record.write_result(folder / "runs" / f"{number}.json", run)
    return record.read_result(folder / "result.json")


def ladder_of(tmp_path, *results):
    [ladder] = rounds.ladders(results, rounds.recorded_rounds(tmp_path, results))
    return ladder


def around(speed):
    """Five windows whose median is `speed`."""
    return tuple(speed * share for share in (0.98, 0.99, 1.0, 1.01, 1.02))


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


def test_rounds_that_only_one_of_two_steps_has_are_left_out(tmp_path):
    base = in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(50.0), 3: around(10.0)})
    amp = in_rounds(tmp_path, "01_amp", {1: around(200.0), 2: around(100.0)})
    gain = ladder_of(tmp_path, base, amp).rows[1].gain
    assert gain.ratio == pytest.approx(2.0)
    assert gain.rounds == 2


def test_runs_by_themselves_are_compared_by_their_windows():
    [ladder] = rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    gain = ladder.rows[1].gain
    assert gain.ratio == pytest.approx(2.0)
    assert gain.low < 2.0 < gain.high
    assert (gain.rounds, gain.resolved) == (1, True)
    assert ladder.rows[0].gain is None
    assert ladder.rows[0].relative == SAME


def test_a_slower_step_has_a_ratio_below_1():
    [ladder] = rounds.ladders([make_result(windows=FAST), make_result("01_amp", windows=SLOW)])
    assert str(ladder.rows[1].gain).startswith("0.50x (0.4")


def test_a_row_without_effect_has_no_gain_and_the_next_one_is_compared_with_the_last_that_acts():
    noise = make_result("01_amp", windows=SLOW, needs="bf16 units")
    [ladder] = rounds.ladders([make_result(windows=SLOW), noise, make_result("02_bigger_batch", windows=FAST)])
    assert [row.acts for row in ladder.rows] == [True, False, True]
    assert ladder.rows[1].gain is None
    assert ladder.rows[2].gain == ladder.rows[2].relative  # both against 00_baseline
    rows = rounds.comparison([ladder])["rows"]
    assert [(row["acts"], row["needs"]) for row in rows] == [(True, None), (False, "bf16 units"), (True, None)]
    assert rows[1]["relative"] == 1.0


def a_cpus_ladder():
    """Steps of which one gains and four have no effect, although two of those happen to be fastest."""
    waits, pins, unpinned = "threads sleep", "no GPU: pinning has no effect", "no GPU: there is no cuDNN"
    results = [
        make_result(windows=SLOW, notes=[waits]),
        make_result("01_amp", windows=SLOW, needs="bf16 units", notes=[waits, "autocast is off"]),
        make_result("04_multiprocess_loading", windows=FAST, notes=[waits]),
        make_result("05_pinned_memory", windows=around(300.0), needs="a GPU", notes=[waits, pins]),
        make_result("12_cudnn_benchmark", windows=around(300.0), needs="a GPU", notes=[waits, unpinned]),
        make_result("16_data_parallel", windows=around(400.0), needs="a second process", notes=[waits, "one trains"]),
    ]
    [ladder] = rounds.ladders([replace(result, device_type="cpu") for result in results])
    return ladder


def test_rows_without_effect_say_what_they_need_in_the_table_and_are_not_counted():
    text = printed([a_cpus_ladder()])
    assert row_of(text, "05_pinned_memory").split()[1:6] == ["300.0", "needs", "a", "GPU", "32"]
    assert row_of(text, "01_amp").split()[2:7] == ["100.0", "needs", "bf16", "units", "32"]
    assert "2.00x" in row_of(text, "04_multiprocess_loading")
    assert "Top of the ladder: 04_multiprocess_loading, 2.00x" in text
    words = " ".join(text.split())
    assert "step before: 1 of 1 (faster: 04 2.00x). 4 steps have no effect on this device (01, 05, 12, 16)." in words
    assert words.count("Where a row says what the step needs, its change has no effect on this device") == 1
    page = markdown.ladder_table(a_cpus_ladder())
    assert row_of(page, "| `16_data_parallel`").split(" | ")[2:5] == ["400.0", "needs a second process", ""]


def test_what_several_steps_without_effect_note_is_not_repeated():
    assert summary.notes_of(a_cpus_ladder()) == ["threads sleep", "autocast is off", "one trains"]
    text = printed([a_cpus_ladder()])
    assert "no GPU: " not in text
    assert "All: threads sleep." in text
    assert "[2] one trains" in text


def test_where_every_step_acts_nothing_is_said_of_those_that_do_not():
    [ladder] = rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    assert summary.NO_EFFECT not in summary.intervals(ladder)
    assert "no effect" not in summary.summary(ladder)


def test_a_step_that_was_run_again_by_itself_is_not_the_rounds_that_its_folder_still_has(tmp_path):
    base = in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(80.0)})
    in_rounds(tmp_path, "01_amp", {1: around(100.0), 2: around(80.0)})
    write_run(tmp_path, make_result("01_amp", windows=around(180.0)))
    row = ladder_of(tmp_path, base, record.read_result(tmp_path / "01_amp" / "result.json")).rows[1]
    assert row.rounds == {0: list(around(180.0))}
    assert (row.gain.ratio, row.gain.rounds) == (pytest.approx(2.0, rel=0.01), 1)


def test_a_step_with_a_broken_round_is_named_and_compared_by_all_its_windows(tmp_path, command):
    kept = {1: SLOW, 2: SLOW}
    base, amp, larger = (
        in_rounds(tmp_path, step, kept, device_type="cpu") for step in ("00_baseline", "01_amp", "02_bigger_batch")
    )
    (tmp_path / "02_bigger_batch" / "runs" / "2.json").write_text("torn")
    done = command(tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert done.stderr.startswith("skipped: the rounds of 02_bigger_batch, so it is compared by the windows of its")
    assert "runs/2.json is broken" in done.stderr
    runs, _ = rounds.readable_rounds(tmp_path, [base, amp, larger])
    assert [row.gain.rounds for row in rounds.ladders([base, amp, larger], runs)[0].rows[1:]] == [2, 1]


def test_steps_of_another_version_are_named_where_they_share_a_number(tmp_path, command):
    write_run(tmp_path, make_result(device_type="cpu"))
    write_run(tmp_path, make_result("06_channels_last", device_type="cpu"))
    assert command(tmp_path).stderr == ""
    write_run(tmp_path, make_result("06_prefetch_stream", device_type="cpu"))
    done = command(tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert done.stderr.startswith("06_channels_last: of another version of the steps")


def ladder_with_gains(*gains):
    """A ladder whose steps have these ratios to the step before: 1.2 resolved, None for one that is not."""
    steps, speed = [make_result(windows=around(100.0))], 100.0
    for number, gain in enumerate(gains, start=1):
        speed *= gain or 1.0
        steps.append(make_result(f"{number:02}_step", windows=around(speed)))
    return rounds.ladders(steps)[0]


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ((), "Only 00_baseline is here: there is nothing to compare it with."),
        ((1.5,), r"Top of the ladder: 01_step, 1.50x \(.*\) the baseline. "
                 r"Measurably different from the step before: 1 of 1 \(faster: 01 1.50x\)."),
        ((None,), "No step is faster than the baseline. Measurably different from the step before: none of 1."),
        ((1.5, None, 2.0), r"Top of the ladder: 03_step, 3.00x \(.*\) the baseline. "
                           r"Measurably different from the step before: 2 of 3 \(faster: 01 1.50x, 03 2.00x\)."),
        ((2.0, 0.5), r"Top of the ladder: 01_step, 2.00x \(.*\) the baseline. "
                     r"Measurably different from the step before: 2 of 2 \(faster: 01 2.00x; slower: 02 0.50x\)."),
        ((0.5,), r"No step is faster than the baseline. "
                 r"Measurably different from the step before: 1 of 1 \(slower: 01 0.50x\)."),
        ((1.5, None, 1.002), r"Top of the ladder: 01_step, 1.50x \(.*\) the baseline; "
                             r"03_step, with the largest ratio, is ~1.00x \(.*\) that, no measurable difference. "
                             r"Measurably different from the step before: 1 of 3 \(faster: 01 1.50x\)."),
        ((1.002,), r"Top of the ladder: 01_step, ~1.00x \(.*\) the baseline, no measurable difference. "
                   r"Measurably different from the step before: none of 1."),
    ],
)  # fmt: skip
def test_a_sentence_sums_a_ladder_up(gains, text):
    assert re.fullmatch(text, summary.summary(ladder_with_gains(*gains)))


def test_the_legend_says_how_many_rounds_the_intervals_are_from(tmp_path):
    assert "so it has no run-to-run variation: `tour --rounds N`" in summary.intervals(ladder_with_gains(2.0))
    base = in_rounds(tmp_path, "00_baseline", {1: SLOW, 2: SLOW, 3: SLOW})
    three = in_rounds(tmp_path, "01_amp", {1: FAST, 2: FAST, 3: FAST})
    assert "over 3 rounds" in summary.intervals(ladder_of(tmp_path, base, three))
    two = in_rounds(tmp_path, "02_bigger_batch", {1: FAST, 2: FAST})
    ladder = ladder_of(tmp_path, base, three, two)
    assert "over the 2 to 3 rounds in which both steps ran" in summary.intervals(ladder)
    assert figures.interval_label(ladder) == "95 % interval of 2 to 3 rounds"


@pytest.mark.parametrize("alone", ["01_amp", "02_bigger_batch"])
def test_the_legend_says_which_intervals_are_without_run_to_run_variation(tmp_path, alone):
    results = [in_rounds(tmp_path, "00_baseline", {1: SLOW, 2: SLOW, 3: SLOW})]
    for step in ("01_amp", "02_bigger_batch"):
        folder = tmp_path / ("again" if step == alone else "")
        results.append(in_rounds(folder, step, {1: FAST, 2: FAST, 3: FAST}))
    ladder = ladder_of(tmp_path, *results)
    text = summary.intervals(ladder)
    assert "over the up to 3 rounds in which both steps ran; where there are none, as for a step that was run" in text
    assert "no run-to-run variation" in text
    assert figures.interval_label(ladder) == "95 % interval of 1 to 3 rounds (1: no run-to-run variation)"


def test_of_many_windows_a_tenth_at_either_end_is_left_out():
    windows = [1.0, *(float(n) for n in range(50, 68)), 1000.0]
    assert rounds.spread(make_result(windows=windows)) == (51.0, 66.0)
    assert rounds.spread(make_result(windows=(1.0, 50.0, 1000.0))) == (1.0, 1000.0)


def test_the_table_shows_every_figure_beside_the_original():
    base = make_result(windows=SLOW)
    amp = make_result("01_amp", windows=FAST, notes=["something this device lacks"])
    ladders = rounds.ladders([amp, base])
    text, gain = printed(ladders, 160), str(ladders[0].rows[1].gain)
    row = " ".join(row_of(text, "01_amp").split())
    assert row == f"01_amp [1] 200.0 {gain} {gain} 32 320.0 2% 2510 19.3 1.44x"
    assert row_of(text, "00_baseline").split()[:3] == ["00_baseline", "100.0", "1.00x"]
    assert "[1] something this device lacks" in text
    assert "Quadro RTX 4000" in text
    assert "CIFAR-10, 224 px, on Test GPU" in text


def test_the_original_stands_only_beside_its_own_model():
    results = [make_result(step, model="tiny_convmixer") for step in ("00_baseline", "01_amp")]
    text = printed(rounds.ladders(results))
    assert "1.44x" not in text
    assert "Quadro RTX 4000" not in text


def test_a_narrow_terminal_gets_the_whole_table_in_two_parts():
    text = printed(rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)]), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert row_of(text, "01_amp").count("2.00x (") == 2
    assert "1.44x" in text


def test_parts_that_fit_beside_each_other_share_a_table():
    ladders = rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    for width, headers in ((140, 1), (80, 2), (60, 3)):
        lines = printed(ladders, width, limit=a_limit(make_result().setup)).splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("step  ") for line in lines) == headers
        assert any("limit" in line and "baseline" in line for line in lines) == (width > 60)


def test_the_limit_is_shown_with_ladders_of_its_setup_only():
    here, elsewhere = make_result(windows=SLOW), make_result("01_amp", windows=FAST, device="Other GPU")
    text = printed(rounds.ladders([here, elsewhere]), limit=a_limit(here.setup))
    assert row_of(text, "00_baseline").split()[3] == "25%"
    assert "50%" not in row_of(text, "01_amp")
    assert text.count("% of limit: images/s over those of the model alone") == 1
    assert "(compiled, batch 128, bfloat16, 2026-01-01: `limit`)" in text


def test_the_terminal_and_the_pages_show_the_same_cells():
    ladders = rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    limit, gain = a_limit(make_result().setup), str(ladders[0].rows[1].gain)
    text = " ".join(printed(ladders, 200, limit=limit).split())
    page = markdown.ladder_table(ladders[0], limit).splitlines()
    assert page[0] == (
        "| step | batch | images/s | vs step before | vs baseline | windows | rounds | step ms | memory MB "
        "| % of limit |"
    )
    base, amp = ([cell.strip() for cell in line.split("|")[1:-1]] for line in page[2:])
    assert base == ["`00_baseline`", "32", "100.0", "", "1.00x", "98.0 to 102.0", "1", "320.0", "2510", "25%"]
    assert amp == ["`01_amp`", "32", "200.0", gain, gain, "196.0 to 204.0", "1", "320.0", "2510", "50%"]
    assert "00_baseline 100.0 1.00x 25% 32 320.0 2% 2510 19.3 1.00x" in text
    assert f"01_amp 200.0 {gain} {gain} 50% 32 320.0 2% 2510 19.3 1.44x" in text


def test_a_page_may_show_some_steps_only_and_without_their_gains():
    [ladder] = rounds.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    page = markdown.ladder_table(ladder, steps=["01_amp"], gains=False).splitlines()
    assert page[0] == "| step | batch | images/s | windows | rounds | step ms | memory MB |"
    assert page[2:] == ["| `01_amp` | 32 | 200.0 | 196.0 to 204.0 | 1 | 320.0 | 2510 |"]


def test_a_step_that_was_not_run_is_a_row_in_its_place():
    ladders = rounds.ladders([make_result(windows=SLOW), make_result("02_bigger_batch", windows=FAST)])
    text = printed(ladders, missing=[NotRun("01_amp", "no compiler")])
    rows = [line.split() for line in text.splitlines() if line.startswith(("00_", "01_", "02_"))]
    assert [row[0] for row in rows][:3] == ["00_baseline", "01_amp", "02_bigger_batch"]
    assert rows[1] == ["01_amp", "not", "run", *"--------"]
    assert "01_amp was not run: no compiler." in text


def test_marks_count_up_whatever_the_order_of_a_steps_notes():
    first = make_result(windows=SLOW, notes=["one", "two"])
    second = make_result("01_amp", windows=FAST, notes=["three", "two", "one"])
    assert "01_amp [1]" in printed(rounds.ladders([first, second]))  # what all have is no number's
    third = make_result("02_bigger_batch", windows=FAST, notes=["one", "three"])
    assert "01_amp [1,2]" in printed(rounds.ladders([first, second, third]))


def test_a_ratio_that_is_not_resolved_is_shown_with_a_mark_and_in_grey():
    near = make_result("01_amp", windows=(99.0, 102.0, 100.1, 104.0, 97.0))
    ladders = rounds.ladders([make_result(windows=SLOW), near, make_result("02_bigger_batch", windows=FAST)])
    console = Console(width=140, force_terminal=True, color_system="standard", record=True, file=io.StringIO())
    ladder_table.print_ladders(ladders, console)
    text = console.export_text(styles=True)
    gain = str(ladders[0].rows[1].gain)
    assert gain.startswith("~1.00x (0.9")
    assert text.count(f"\x1b[2m{gain}") == 2
    assert f"\x1b[2m{ladders[0].rows[2].gain}" not in text
    assert f"| {gain} |" in markdown.ladder_table(ladders[0])


def test_stand_in_data_and_notes_of_all_steps_are_printed_once():
    results = [make_result(step, data="stand-in", notes=["rough"]) for step in ("00_baseline", "01_amp")]
    text = printed(rounds.ladders(results))
    assert "stand-in data (not CIFAR-10)" in text
    assert "All: rough." in text


@pytest.mark.parametrize(
    "change", [{"device": "Other GPU"}, {"data": "stand-in"}, {"model": "resnet18"}, {"image_size": 64}]
)
def test_runs_that_do_not_compare_make_ladders_of_their_own(change):
    results = [make_result(), make_result("01_amp"), make_result("02_bigger_batch", **change)]
    ladders = rounds.ladders(results)
    assert [[row.result.step for row in ladder.rows] for ladder in ladders] == [
        ["00_baseline", "01_amp"],
        ["02_bigger_batch"],
    ]
    assert "2 ladders" in printed(ladders)
    rows = rounds.comparison(ladders)["rows"]
    assert [row["relative"] for row in rows] == [1.0, 1.0, None]
    assert [row["resolved"] for row in rows] == [False, False, None]


def test_the_json_is_the_results_and_their_relative_speed(tmp_path, command):
    for step, windows in (("00_baseline", SLOW), ("01_amp", FAST)):
        write_run(tmp_path, make_result(step, windows=windows))
    done = command(tmp_path, "--json")
    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert list(value) == ["baseline", "rows"]
    assert value["baseline"] == "00_baseline"
    row = value["rows"][1]
    ratio, low, high, resolved = (row.pop(name) for name in ("relative", "relative_low", "relative_high", "resolved"))
    assert (ratio, resolved) == (pytest.approx(2.0), True)
    assert 1 < low < ratio < high
    assert [value["rows"][0][name] for name in ("relative", "resolved")] == [1.0, False]
    assert (row.pop("acts"), row.pop("needs")) == (True, None)
    assert [row.pop(name) for name in ("share_of_arithmetic_peak", "share_of_memory_roof")] == [None, None]  # no limit
    assert row == json.loads((tmp_path / "01_amp" / "result.json").read_text())


@pytest.mark.parametrize("kind", ["missing", "empty", "foreign", "file"])
def test_a_folder_without_runs_is_refused(tmp_path, command, kind):
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    if kind == "foreign":
        (folder / "photos").mkdir()
        (folder / "photos" / "result.txt").write_text("holiday")
    assert_refused(command(folder), str(folder))


def test_a_folder_of_folders_of_runs_names_those(tmp_path, command):
    write_run(tmp_path / "mine", make_result())
    assert_refused(command(tmp_path), "its folders have: mine")


def test_a_broken_result_is_named_and_skipped(tmp_path, command):
    write_run(tmp_path, make_result())
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "result.json").write_text("torn")
    done = command(tmp_path)
    assert done.returncode == 0
    assert "00_baseline" in done.stdout
    assert done.stderr.startswith("skipped: ")
    assert "01_amp" in done.stderr


def test_a_broken_limit_or_reason_is_named_and_skipped(tmp_path, command):
    write_run(tmp_path, make_result(device_type="cpu"))
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "not_run.json").write_text("torn")
    (tmp_path / "limit.json").write_text("torn")
    done = command(tmp_path)
    assert done.returncode == 0
    assert "00_baseline" in done.stdout
    assert [line.split(" is broken")[0] for line in done.stderr.splitlines()] == [
        f"skipped: {tmp_path / 'limit.json'}", f"skipped: {tmp_path / '01_amp' / 'not_run.json'}"
    ]  # fmt: skip


def test_only_broken_results_are_refused(tmp_path, command):
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "result.json").write_text("torn")
    done = command(tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "01_amp/result.json is broken: not JSON" in line


@pytest.fixture
def two_runs(tmp_path):
    write_run(tmp_path / "logs", make_result(windows=SLOW))
    write_run(tmp_path / "logs", make_result("01_amp", windows=FAST))
    return tmp_path / "logs"


def test_the_json_of_rounds_has_their_interval(tmp_path, command):
    in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(50.0)})
    in_rounds(tmp_path, "01_amp", {1: around(104.0), 2: around(49.0)})
    row = json.loads(command(tmp_path, "--json").stdout)["rows"][1]
    assert row["relative"] == pytest.approx((1.04 * 0.98) ** 0.5)
    assert row["relative_low"] < 1 < row["relative_high"]
    assert row["resolved"] is False


def test_large_numbers_are_never_truncated():
    fast = make_result(
        "04_multiprocess_loading", windows=[12510.2, 12520.1, 12600.3, 12700.5, 12800.9], notes=["a", "b", "c"],
        step_ms=record.StepTime(13200.4, 1.0, 2.0), peak_memory_bytes=record.PeakMemory(123_510_000_000, None),
    )  # fmt: skip
    ladders = rounds.ladders([make_result(windows=SLOW), fast])
    for width in (70, 100, 120, 250):
        text = printed(ladders, width)
        assert "…" not in text
        if width >= 100:
            for number in ("12600.3", "13200.4", "123510", "126.00x (", "3.20x"):
                assert number in text


def test_a_ladder_without_its_baseline_names_the_step_it_is_relative_to():
    text = printed(rounds.ladders([make_result("01_amp", windows=SLOW), make_result("02_bigger_batch", windows=FAST)]))
    assert "No run of 00_baseline is here: everything is relative to 01_amp" in text
    assert "1.44x" not in text


def test_names_with_brackets_are_printed_as_they_are():
    assert "Odd [/GPU]" in printed(rounds.ladders([make_result(device="Odd [/GPU]")]))


def test_cpus_of_one_name_and_different_size_do_not_share_a_ladder():
    small, large = (
        make_result(step, device_type="cpu", environment=replace(make_result().environment, cores=cores))
        for step, cores in (("00_baseline", 2), ("01_amp", 64))
    )
    assert len(rounds.ladders([small, large])) == 2


def test_a_machine_that_was_busy_is_called_unsteady():
    calm = printed(rounds.ladders([make_result(windows=SLOW)]))
    busy = printed(rounds.ladders([make_result(windows=(10.0, 60.0, 100.0, 110.0, 120.0))]))
    assert "UNSTEADY" not in calm
    assert "UNSTEADY" in busy


def test_a_table_into_a_closed_pipe_is_not_an_error(two_runs):
    command = f"{sys.executable} -m walkthrough compare {two_runs} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0
    assert all(line.startswith("no figures from a trace") for line in done.stderr.splitlines())
