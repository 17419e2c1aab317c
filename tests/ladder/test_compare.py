"""Runs side by side: ratios with a range, ladders that do not mix, and what the command prints and refuses."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import assert_refused, make_result, write_run

from common import record
from common.__main__ import main
from common.ladder import compare, markdown, table
from common.run.not_run import NotRun

SLOW, FAST = (98.0, 99.0, 100.0, 101.0, 102.0), (196.0, 198.0, 200.0, 202.0, 204.0)


def printed(ladders, width=140, **more):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    table.print_ladders(ladders, console, **more)
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


def test_a_ratio_is_that_of_the_medians_and_its_range_is_what_the_windows_allow():
    ratio = compare.ratio(make_result(windows=FAST), make_result(windows=SLOW))
    assert ratio == compare.Ratio(2.0, 196 / 102, 204 / 98)
    assert ratio.differs


def test_overlapping_windows_are_no_difference():
    near = (99.0, 102.5, 103.0, 104.0, 105.0)
    ratio = compare.ratio(make_result(windows=near), make_result(windows=SLOW))
    assert ratio.ratio == 1.03
    assert not ratio.differs
    assert str(ratio) == "no difference"


def test_a_slower_step_has_a_ratio_below_1():
    ratio = compare.ratio(make_result(windows=SLOW), make_result(windows=FAST))
    assert str(ratio) == "0.50x (0.48-0.52)"


def test_of_many_windows_a_tenth_at_either_end_is_left_out():
    windows = [1.0, *(float(n) for n in range(50, 68)), 1000.0]
    assert compare.spread(make_result(windows=windows)) == (51.0, 66.0)
    assert compare.spread(make_result(windows=(1.0, 50.0, 1000.0))) == (1.0, 1000.0)


def test_the_table_shows_every_figure_beside_the_original():
    base = make_result(windows=SLOW)
    amp = make_result("01_amp", windows=FAST, notes=["something this device lacks"])
    text = printed(compare.ladders([amp, base]))
    row = " ".join(row_of(text, "01_amp").split())
    assert row == "01_amp [1] 32 19.3 2510 320.0 200.0 ±2% 2.00x (1.92-2.08) 2.00x (1.92-2.08) 1.44x"
    assert row_of(text, "00_baseline").split()[-2:] == ["1.00x", "1.00x"]
    assert "[1] something this device lacks" in text
    assert "Quadro RTX 4000" in text
    assert "CIFAR-10, 224 px, on Test GPU" in text


def test_a_narrow_terminal_gets_the_whole_table_in_two_parts():
    text = printed(compare.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)]), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "2.00x (1.92-2.08)" in text
    assert "200.0 ±2%" in text


def test_parts_that_fit_beside_each_other_share_a_table():
    ladders = compare.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    for width, headers in ((140, 1), (80, 2), (60, 3)):
        lines = printed(ladders, width, limit=a_limit(make_result().setup)).splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("step  ") for line in lines) == headers
        assert any("limit" in line and "baseline" in line for line in lines) == (width > 60)


def test_the_limit_is_shown_with_ladders_of_its_setup_only():
    here, elsewhere = make_result(windows=SLOW), make_result("01_amp", windows=FAST, device="Other GPU")
    text = printed(compare.ladders([here, elsewhere]), limit=a_limit(here.setup))
    assert row_of(text, "00_baseline").split()[-1] == "25%"
    assert "%" not in row_of(text, "01_amp").split()[-1]
    assert text.count("% of limit: images/s over those of the model alone") == 1
    assert "(compiled, batch 128, bfloat16, 2026-01-01: `limit`)" in text


def test_the_terminal_and_the_pages_show_the_same_cells():
    ladders = compare.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    runs = {"00_baseline": compare.RunSpread(100.0, 97.0, 103.0, 3)}
    limit = a_limit(make_result().setup)
    text = " ".join(printed(ladders, 200, runs=runs, limit=limit).split())
    page = markdown.ladder_table(ladders[0], runs, limit).splitlines()
    assert page[0] == (
        "| step | batch | images/s | vs step before | vs baseline | windows | mean of runs | n | step ms | memory MB "
        "| % of limit |"
    )
    base, amp = ([cell.strip() for cell in line.split("|")[1:-1]] for line in page[2:])
    assert base == [
        "`00_baseline`",
        "32",
        "100.0",
        "",
        "1.00x",
        "98.0 to 102.0",
        "100.0 ±3%",
        "3",
        "320.0",
        "2510",
        "25%",
    ]
    gain = "2.00x (1.92-2.08)"
    assert amp == ["`01_amp`", "32", "200.0", gain, gain, "196.0 to 204.0", "-", "-", "320.0", "2510", "50%"]
    assert "00_baseline 32 19.3 2510 320.0 100.0 ±2% 100.0 ±3% 3 1.00x 1.00x 25%" in text
    assert f"01_amp 32 19.3 2510 320.0 200.0 ±2% - - {gain} {gain} 1.44x 50%" in text


def test_a_page_may_show_some_steps_only_and_without_their_gains():
    [ladder] = compare.ladders([make_result(windows=SLOW), make_result("01_amp", windows=FAST)])
    page = markdown.ladder_table(ladder, {}, steps=["01_amp"], gains=False).splitlines()
    assert page[0] == "| step | batch | images/s | windows | mean of runs | n | step ms | memory MB |"
    assert page[2:] == ["| `01_amp` | 32 | 200.0 | 196.0 to 204.0 | - | - | 320.0 | 2510 |"]


def test_a_step_that_was_not_run_is_a_row_in_its_place():
    ladders = compare.ladders([make_result(windows=SLOW), make_result("02_bigger_batch", windows=FAST)])
    text = printed(ladders, missing=[NotRun("01_amp", "no compiler")])
    rows = [line.split() for line in text.splitlines() if line.startswith(("00_", "01_", "02_"))]
    assert [row[0] for row in rows][:3] == ["00_baseline", "01_amp", "02_bigger_batch"]
    assert rows[1] == ["01_amp", "-", "-", "-", "-", "not", "run", "-", "-", "-"]
    assert "01_amp was not run: no compiler." in text


def test_marks_count_up_whatever_the_order_of_a_steps_notes():
    first = make_result(windows=SLOW, notes=["one", "two"])
    second = make_result("01_amp", windows=FAST, notes=["three", "two", "one"])
    assert "01_amp [1]" in printed(compare.ladders([first, second]))  # what all have is no number's
    third = make_result("02_bigger_batch", windows=FAST, notes=["one", "three"])
    assert "01_amp [1,2]" in printed(compare.ladders([first, second, third]))


def test_no_difference_is_printed_in_place_of_a_gain():
    near = make_result("01_amp", windows=(99.0, 102.0, 103.0, 104.0, 105.0))
    text = printed(compare.ladders([make_result(windows=SLOW), near]))
    assert row_of(text, "01_amp").count("no difference") == 2
    assert "1.03x" not in text


def test_stand_in_data_and_notes_of_all_steps_are_printed_once():
    results = [make_result(step, data="stand-in", notes=["rough"]) for step in ("00_baseline", "01_amp")]
    text = printed(compare.ladders(results))
    assert "stand-in data (not CIFAR-10)" in text
    assert "All: rough." in text


@pytest.mark.parametrize(
    "change", [{"device": "Other GPU"}, {"data": "stand-in"}, {"model": "resnet18"}, {"image_size": 64}]
)
def test_runs_that_do_not_compare_make_ladders_of_their_own(change):
    results = [make_result(), make_result("01_amp"), make_result("02_bigger_batch", **change)]
    ladders = compare.ladders(results)
    assert [[row.result.step for row in ladder.rows] for ladder in ladders] == [
        ["00_baseline", "01_amp"],
        ["02_bigger_batch"],
    ]
    assert "2 ladders" in printed(ladders)
    rows = compare.comparison(ladders)["rows"]
    assert [row["relative"] for row in rows] == [1.0, 1.0, None]


@pytest.mark.parametrize("schema", [1, 2])
def test_the_json_is_the_results_and_their_relative_speed(tmp_path, command, schema):
    for step, windows in (("00_baseline", SLOW), ("01_amp", FAST)):
        write_run(tmp_path, make_result(step, windows=windows, schema=schema))
    done = command(tmp_path, "--json")
    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert list(value) == ["baseline", "rows"]
    assert value["baseline"] == "00_baseline"
    row = value["rows"][1]
    assert [row.pop(name) for name in ("relative", "relative_low", "relative_high")] == [2.0, 196 / 102, 204 / 98]
    assert row == json.loads((tmp_path / "01_amp" / "result.json").read_text())
    assert ("precision" in row) == (schema == 2)


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


def test_a_recorded_ladder_compares_like_any_other(two_runs):
    results, problems = record.read_results(two_runs)
    assert not problems
    merged = [record.merged([result, result]) for result in results]
    assert compare.ladders(merged)[0].rows[1].relative.ratio == 2.0


def test_large_numbers_are_never_truncated():
    fast = make_result(
        "04_multiprocess_loading", windows=[12510.2, 12520.1, 12600.3, 12700.5, 12800.9], notes=["a", "b", "c"],
        step_ms=record.StepTime(13200.4, 1.0, 2.0), peak_memory_bytes=record.PeakMemory(123_510_000_000, None),
    )  # fmt: skip
    ladders = compare.ladders([make_result(windows=SLOW), fast])
    for width in (70, 100, 120, 250):
        text = printed(ladders, width)
        assert "…" not in text
        if width >= 100:
            for number in ("12600.3", "13200.4", "123510", "126.00x (122.65-130.62)", "3.20x"):
                assert number in text


def test_a_ladder_without_its_baseline_names_the_step_it_is_relative_to():
    text = printed(compare.ladders([make_result("01_amp", windows=SLOW), make_result("02_bigger_batch", windows=FAST)]))
    assert "No run of 00_baseline is here: everything is relative to 01_amp" in text
    assert "1.44x" not in text


def test_names_with_brackets_are_printed_as_they_are():
    assert "Odd [/GPU]" in printed(compare.ladders([make_result(device="Odd [/GPU]")]))


def test_cpus_of_one_name_and_different_size_do_not_share_a_ladder():
    small, large = (
        make_result(step, device_type="cpu", environment=replace(make_result().environment, cores=cores))
        for step, cores in (("00_baseline", 2), ("01_amp", 64))
    )
    assert len(compare.ladders([small, large])) == 2


def test_a_machine_that_was_busy_is_called_unsteady():
    calm = printed(compare.ladders([make_result(windows=SLOW)]))
    busy = printed(compare.ladders([make_result(windows=(10.0, 60.0, 100.0, 110.0, 120.0))]))
    assert "UNSTEADY" not in calm
    assert "UNSTEADY" in busy


def test_a_table_into_a_closed_pipe_is_not_an_error(two_runs):
    command = f"{sys.executable} -m common compare {two_runs} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0
    assert all(line.startswith("no figures from a trace") for line in done.stderr.splitlines())
