"""Runs side by side: ratios with a range, ladders that do not mix, and what the command makes of bad folders."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console
from support import assert_refused, make_limit, make_result, run_program, write_run

from common import record
from common.__main__ import main
from common.ladder import compare, table

SLOW, FAST = (98.0, 99.0, 100.0, 101.0, 102.0), (196.0, 198.0, 200.0, 202.0, 204.0)


def printed(ladders, width=140):
    console = Console(width=width, highlight=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    table.print_ladders(ladders, console)
    return console.export_text()


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


def test_a_slower_step_is_told_too():
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
        console = Console(width=width, highlight=False, record=True, file=io.StringIO())
        table.print_ladders(ladders, console, limit=make_limit())
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("step  ") for line in lines) == headers
        assert any("floor" in line and "baseline" in line for line in lines) == (width > 60)


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


def test_stand_in_data_and_notes_that_hold_for_all_are_said():
    results = [make_result(step, data="stand-in", notes=["rough"]) for step in ("00_baseline", "01_amp")]
    text = printed(compare.ladders(results))
    assert "stand-in data (not CIFAR-10)" in text
    assert "All: rough." in text


@pytest.mark.parametrize(
    "change", [{"device": "Other GPU"}, {"data": "stand-in"}, {"model": "resnet18"}, {"image_size": 64}]
)
def test_runs_that_do_not_compare_make_ladders_of_their_own(change):
    results = [make_result(), make_result("01_amp"), make_result("02_bigger_batch", **change)]
    found = compare.ladders(results)
    assert [[row.result.step for row in ladder.rows] for ladder in found] == [
        ["00_baseline", "01_amp"],
        ["02_bigger_batch"],
    ]
    assert "2 ladders" in printed(found)
    rows = compare.comparison(found)["rows"]
    assert [row["relative"] for row in rows] == [1.0, 1.0, None]


def test_the_json_is_the_results_and_their_relative_speed(tmp_path, capsys):
    base, amp = make_result(windows=SLOW), make_result("01_amp", windows=FAST)
    write_run(tmp_path, base)
    write_run(tmp_path, amp)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["baseline", "rows"]
    assert printed["baseline"] == "00_baseline"
    row = printed["rows"][1]
    assert (row["relative"], row["relative_low"], row["relative_high"]) == (2.0, 196 / 102, 204 / 98)
    ours = {name: row.pop(name) for name in ("relative", "relative_low", "relative_high")}
    assert ours
    assert row == json.loads((tmp_path / "01_amp" / "result.json").read_text())


@pytest.mark.parametrize("kind", ["missing", "empty", "foreign", "file"])
def test_a_folder_without_runs_is_refused(tmp_path, kind):
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    if kind == "foreign":
        (folder / "photos").mkdir()
        (folder / "photos" / "result.txt").write_text("holiday")
    assert_refused(run_program("-m", "common", "compare", folder), str(folder))


def test_a_broken_result_is_named_and_skipped(tmp_path, capsys):
    write_run(tmp_path, make_result())
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "result.json").write_text("torn")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path)])
    captured = capsys.readouterr()
    assert ended.value.code == 0
    assert "00_baseline" in captured.out
    assert captured.err.startswith("skipped: ")
    assert "01_amp" in captured.err


def test_only_broken_results_are_refused(tmp_path):
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "result.json").write_text("torn")
    finished = run_program("-m", "common", "compare", tmp_path)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr


@pytest.fixture
def two_runs(tmp_path):
    write_run(tmp_path / "logs", make_result(windows=SLOW))
    write_run(tmp_path / "logs", make_result("01_amp", windows=FAST))
    return tmp_path / "logs"


def draw(logs, path):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(logs), "--plot", str(path)])
    return ended.value.code


def test_plots_are_what_their_names_say_and_need_nothing_from_the_internet(two_runs, tmp_path):
    for ending in ("svg", "png", "html"):
        assert draw(two_runs, tmp_path / f"ladder.{ending}") == 0
    root = ElementTree.parse(tmp_path / "ladder.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "ladder.html").read_text()
    assert "<svg" in page
    assert "01_amp" in page
    for outside in ("src=", "<link", "@import", "url(http"):
        assert outside not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ladder.html", "ladder.png", "ladder.svg", "logs"]


def test_a_plot_of_another_kind_or_to_nowhere_is_refused(two_runs, tmp_path, capsys):
    assert draw(two_runs, tmp_path / "ladder.gif") == 2
    assert ".svg" in capsys.readouterr().err
    assert draw(two_runs, tmp_path / "not there" / "ladder.svg") == 2
    assert "not there" in capsys.readouterr().err
    assert draw(two_runs, tmp_path / "not there" / "ladder.png") == 2


def test_a_recorded_ladder_compares_like_any_other(two_runs):
    results, problems = record.read_results(two_runs)
    assert not problems
    merged = [record.merged([result, result]) for result in results]
    assert compare.ladders(merged)[0].rows[1].relative.ratio == 2.0


def test_large_numbers_are_never_cut(tmp_path):
    fast = make_result(
        "04_multiprocess_loading", windows=[12510.2, 12520.1, 12600.3, 12700.5, 12800.9], notes=["a", "b", "c"],
        step_ms=record.StepTime(13200.4, 1.0, 2.0), peak_memory_bytes=record.PeakMemory(123_510_000_000, None),
    )  # fmt: skip
    found = compare.ladders([make_result(windows=SLOW), fast])
    for width in (70, 100, 120, 250):
        text = printed(found, width)
        assert "…" not in text
        if width >= 100:
            for number in ("12600.3", "13200.4", "123510", "126.00x (122.65-130.62)", "3.20x"):
                assert number in text


def test_a_ladder_without_its_baseline_says_what_it_is_relative_to():
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


def test_a_page_shows_no_gain_where_there_is_none(tmp_path):
    write_run(tmp_path / "logs", make_result(windows=SLOW))
    write_run(tmp_path / "logs", make_result("01_amp", windows=(99.0, 102.0, 103.0, 104.0, 105.0)))
    draw(tmp_path / "logs", tmp_path / "ladder.html")
    page = (tmp_path / "ladder.html").read_text()
    assert "<td>no difference" in page
    assert "1.03" not in page


def test_a_machine_that_was_busy_is_called_unsteady():
    calm = printed(compare.ladders([make_result(windows=SLOW)]))
    busy = printed(compare.ladders([make_result(windows=(10.0, 60.0, 100.0, 110.0, 120.0))]))
    assert "UNSTEADY" not in calm
    assert "UNSTEADY" in busy


def test_a_table_into_a_closed_pipe_is_not_an_error(two_runs):
    command = f"{sys.executable} -m common compare {two_runs} | true; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0
    assert all(line.startswith("no figures from a trace") for line in finished.stderr.splitlines())
