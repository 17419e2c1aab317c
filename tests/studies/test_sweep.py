"""The sweep: cells that fail and the others that go on, what is made of the numbers, the record, figures, the command.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import json
import os
import re
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from support import ROOT, assert_refused, run_program

from common import record
from common.__main__ import main
from common.errors import InputError
from common.studies.ablation.plan import NAMES
from common.studies.sweep import figure as sweep_plot
from common.studies.sweep import measure as sweep
from common.studies.sweep import view as sweep_view
from common.studies.sweep.record import FILE, Cell, CellRun, ProcessMemory, Sweep, read_sweep

CPU = torch.device("cpu")
MB = 10**6


def run(*windows, cores=1.5, workers=1):
    worker = ProcessMemory(300 * MB, 100 * MB) if workers else None
    return CellRun(list(windows), cores, ProcessMemory(900 * MB, 700 * MB), worker)


def cell(workers, batch_size, speed, pin_memory=False, spread=1.0):
    """A cell of three runs: `speed`, and as much as `spread` above and below."""
    runs = [run(each, each + 0.1, each - 0.1, workers=workers) for each in (speed - spread, speed, speed + spread)]
    return Cell(workers, batch_size, pin_memory, runs, None)


def make_sweep(cells=None, **changes):
    """Workers 0, 1, 2, 4 by batch sizes 32, 64; by default fastest with 2 workers and batch 64."""
    speeds = {32: (50.0, 80.0, 90.0, 70.0), 64: (60.0, 90.0, 120.0, 90.0)}
    made = [cell(workers, size, speed) for size in speeds for workers, speed in zip((0, 1, 2, 4), speeds[size])]  # noqa: B905
    environment = record.Environment("2.11.0", None, None, "3.12.3", "Linux", "CPU", 2, None)
    values = dict(
        schema=1, device="Test <CPU>", device_type="cpu", model="mobilenet_v2", data="stand-in", image_size=64,
        precision="float32", seed=0, workers=[0, 1, 2, 4], batch_sizes=[32, 64], pin_memory=[False],
        cells=cells or made, notes=["a note"], environment=environment, started="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return Sweep(**(values | changes))


def with_failure(why="out of memory on the GPU"):
    """`make_sweep` whose largest cell failed after one run."""
    found = make_sweep()
    broken = replace(found.cells[-1], runs=found.cells[-1].runs[:1], failed=why)
    return replace(found, cells=[*found.cells[:-1], broken])


def pinned_too():
    """`make_sweep` with the same cells again, pinned and faster by one image/s."""
    found = make_sweep()
    pinned = [cell(each.workers, each.batch_size, each.median + 1, True) for each in found.cells]
    return replace(found, cells=[*found.cells, *pinned], pin_memory=[False, True], device_type="cuda")


# What is made of the numbers


def test_a_cell_s_speed_is_the_median_run_s_median_window():
    made = Cell(1, 32, False, [run(10.0, 30.0, 20.0), run(50.0, 40.0, 60.0), run(5.0, 6.0, 7.0)], None)
    assert (made.median, made.low, made.high) == (20.0, 6.0, 50.0)


def test_a_single_run_has_the_range_of_its_windows():
    made = Cell(1, 32, False, [run(10.0, 30.0, 20.0)], None)
    assert (made.median, made.low, made.high) == (20.0, 10.0, 30.0)


def test_memory_of_all_is_the_training_process_s_and_every_worker_s():
    assert cell(0, 32, 10.0).total_pss == 700 * MB
    made = cell(4, 32, 10.0)
    assert (made.worker_pss, made.worker_rss, made.process_rss) == (100 * MB, 300 * MB, 900 * MB)
    assert made.total_pss == 700 * MB + 4 * 100 * MB
    told_once = replace(made, runs=[*made.runs[:2], replace(made.runs[2], worker_bytes=None, cores=None)])
    assert (told_once.total_pss, told_once.worker_pss, told_once.cores) == (None, None, None)


def test_neighbours_differ_in_one_setting_by_one_place():
    found = pinned_too()
    settings = {(n.workers, n.batch_size, n.pin_memory) for n in found.neighbours(found.cell(2, 64, False))}
    assert settings == {(1, 64, False), (4, 64, False), (2, 32, False), (2, 64, True)}
    corner = {(n.workers, n.batch_size) for n in make_sweep().neighbours(make_sweep().cells[0])}
    assert corner == {(1, 32), (0, 64)}


def test_the_verdict_names_the_best_cell_and_what_more_workers_cost():
    told = sweep_view.verdict(make_sweep())
    assert told.startswith("Best: 2 workers, batch 64: 120.0 images/s (119.0 to 121.0); faster than each of its")
    assert told.endswith("With 4 workers instead it is 25% slower, and takes 200 MB more memory in all.")


def test_the_verdict_tells_a_best_that_cannot_be_told_apart():
    found = make_sweep()
    near = [cell(1, 64, 119.5) if (each.workers, each.batch_size) == (1, 64) else each for each in found.cells]
    near = [cell(4, 64, 119.0) if (each.workers, each.batch_size) == (4, 64) else each for each in near]
    told = sweep_view.verdict(make_sweep(near))
    assert "not told apart from 1 worker, batch 64 (119.5); 4 workers, batch 64 (119.0)" in told
    assert "With 4 workers instead it is 0.99x as fast, which is within the ranges" in told


def test_a_best_with_the_most_workers_is_told_to_be_at_the_edge():
    found = make_sweep([each for each in make_sweep().cells if each.workers < 4], workers=[0, 1, 2])
    assert "More than 2 workers were not measured" in sweep_view.verdict(found)


def test_more_workers_that_failed_are_told_to_have():
    made = [replace(each, failed="killed") if each.workers == 4 else each for each in make_sweep().cells]
    assert sweep_view.verdict(make_sweep(made)).endswith("With 4 workers it failed: killed.")


def test_a_cell_that_failed_is_neither_the_best_nor_a_neighbour():
    found = with_failure()
    fast = replace(found, cells=[*found.cells[:-1], replace(cell(4, 64, 999.0), failed="killed")])
    assert fast.best.median == 120.0
    assert (4, 64) not in {(each.workers, each.batch_size) for each in fast.neighbours(fast.best)}


# Cells, each in a process of its own


def apart(code, limit_seconds=60):
    return sweep.measured_apart({}, limit_seconds, command=(sys.executable, "-c", code))


def test_a_cell_comes_from_the_last_line_of_a_process_of_its_own():
    answer = {"windows": [1.5], "cores": None, "process_bytes": {"rss": 2, "pss": 1}, "worker_bytes": None}
    told, why = apart(f"print('STAND-IN DATA'); print({json.dumps({'cell': answer})!r})")
    assert (told, why) == (CellRun([1.5], None, ProcessMemory(2, 1), None), None)


@pytest.mark.parametrize(
    "code, told",
    [
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9, most likely for lack of memory"),
        ("raise SystemExit(3)", "ended with code 3"),
        ('print(\'{"cell": {"error": "out of memory"}}\')', "out of memory"),
    ],
)
def test_why_a_cell_was_not_measured_is_a_line(code, told):
    cell_run, why = apart(code)
    assert cell_run is None
    assert told in why


def test_a_cell_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    os.mkfifo(tmp_path / "told")  # whose end is reached when nobody has it open any more
    told = os.open(tmp_path / "told", os.O_RDONLY | os.O_NONBLOCK)
    child = f"import time; out = open({str(tmp_path / 'told')!r}, 'w'); time.sleep(30); out.write('survived')"
    cell_run, why = apart(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])", limit_seconds=2)
    assert cell_run is None
    assert why == "not done after 2 s"
    os.set_blocking(told, True)
    assert os.read(told, 100) == b""
    os.close(told)


@pytest.mark.parametrize(
    "error, told",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory before the first batch"),
        (MemoryError(), "out of memory"),
        (InputError("the batch is larger than the data"), "the batch is larger than the data"),
        (KeyError("odd"), "KeyError: 'odd'"),
    ],
)
def test_failures_are_told_in_a_line(error, told):
    assert sweep.failure(error).startswith(told) or told in sweep.failure(error)
    assert "\n" not in sweep.failure(error)


def settings_of(*workers):
    return [{"workers": each, "batch_size": 8, "pin_memory": False} for each in workers]


def test_runs_are_interleaved_and_what_failed_is_not_tried_again(monkeypatch, capsys):
    tried = []

    def measured_apart(settings):
        assert settings["model"] == "resnet18"
        tried.append(settings["workers"])
        if settings["workers"] == 2 and tried.count(2) == 2:
            return None, "a worker was killed"
        return run(float(len(tried))), None

    monkeypatch.setattr(sweep, "measured_apart", measured_apart)
    cells = sweep.measured(settings_of(0, 1, 2), {"model": "resnet18"}, runs=3)
    assert tried == [0, 1, 2, 2, 1, 0, 0, 1]
    assert [len(each.runs) for each in cells] == [3, 3, 1]
    assert [each.failed for each in cells] == [None, None, "a worker was killed"]
    assert "2 workers, batch 8: failed: a worker was killed" in capsys.readouterr().out


def test_workers_double_up_to_twice_the_cores():
    assert sweep.default_workers(1) == [0, 1, 2]
    assert sweep.default_workers(2) == [0, 1, 2, 4]
    assert sweep.default_workers(6) == [0, 1, 2, 4, 6, 12]
    assert sweep.default_workers(16) == [0, 1, 2, 4, 8, 16, 32]


def test_cpu_seconds_are_this_process_s_and_the_workers_(tmp_path):
    (tmp_path / "7").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7" / "stat").write_text(f"7 (a) name) S {' '.join(['1'] * 10)} {3 * ticks} {2 * ticks} 99 99 20\n")
    own = sum(os.times()[:2])
    assert own + 5 <= sweep.cpu_seconds([7], tmp_path) <= own + 6
    assert sweep.cpu_seconds([7, 8], tmp_path) is None
    assert sweep.cpu_seconds([], tmp_path) is not None


def test_the_program_is_step_07_s_with_pinned_memory_as_asked(monkeypatch):
    """test_ablation holds the program to the steps."""
    taken = []

    def training(on, args):
        taken.append((on, args))
        raise InputError("enough")

    monkeypatch.setattr(sweep, "training", training)
    for pinned in (False, True):
        with pytest.raises(InputError, match="enough"):
            sweep.measured_here("cpu", "small", 32, "data", 0, True, 3, 16, pinned)
    every = list(NAMES[:7])
    on = [[name for name in NAMES if getattr(each, name)] for each, _ in taken]
    assert on == [[name for name in every if name != "pinned_memory"], every]
    assert (taken[0][1].workers, taken[0][1].batch_size) == (3, 16)


# The record


def write(folder, found):
    (folder / FILE).write_text(json.dumps(asdict(found)))


@pytest.mark.parametrize("made", [make_sweep, pinned_too, with_failure])
def test_a_record_is_read_as_it_was_written(tmp_path, made):
    assert read_sweep(tmp_path) is None
    write(tmp_path, made())
    assert read_sweep(tmp_path) == made()


@pytest.mark.parametrize(
    "broken, told",
    [
        (make_sweep(schema=2), "schema 2"),
        (make_sweep(pin_memory=[1]), "pin_memory is 1, not bool"),
        (make_sweep(seed=True), "seed is True, not int"),
        (make_sweep(make_sweep().cells[1:]), "a cell for every setting"),
        (make_sweep(make_sweep().cells[::-1]), "a cell for every setting"),
        (make_sweep(pin_memory=[True]), "a cell for every setting"),
        (make_sweep([replace(each, failed="killed") for each in make_sweep().cells]), "one at least that was measured"),
        (make_sweep([replace(make_sweep().cells[0], runs=[]), *make_sweep().cells[1:]]), "must hold windows"),
        (make_sweep([replace(make_sweep().cells[0], runs=[run(0.0)]), *make_sweep().cells[1:]]), "must hold windows"),
        (make_sweep([replace(make_sweep().cells[0], runs=[run()]), *make_sweep().cells[1:]]), "must hold windows"),
    ],
)
def test_a_broken_record_is_refused(tmp_path, broken, told):
    write(tmp_path, broken)
    with pytest.raises(InputError, match=told):
        read_sweep(tmp_path)


# The table and the figures


def shown(found, width=200):
    console = Console(width=width, highlight=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    sweep_view.print_sweep(found, console)
    return console.export_text()


def test_the_table_holds_every_cell_and_says_which_failed():
    text = shown(with_failure())
    rows = [line.split() for line in text.splitlines() if re.match(r"\d", line)]
    assert [row[:3] for row in rows] == [[w, b, "no"] for b in ("32", "64") for w in "0124"]
    assert rows[6] == "2 64 no 120.0 119.0 to 121.0 1.00x 1.5 100 300 900 900".split()
    assert rows[0][-4:] == ["-", "-", "900", "700"], "no worker, no worker's memory"
    assert rows[7][3] == "failed"
    assert "Failed: 4 workers, batch 64: out of memory on the GPU." in text
    assert "A note." in text
    assert "the median run" in text


def test_what_a_system_does_not_tell_is_a_dash():
    blind = [replace(each, runs=[CellRun([5.0, 6.0], None, None, None)]) for each in make_sweep().cells]
    rows = [line.split() for line in shown(make_sweep(blind)).splitlines() if re.match(r"\d", line)]
    assert rows[1][-5:] == ["-"] * 5
    assert "median window" in shown(make_sweep(blind))
    assert "memory in all" not in sweep_view.verdict(make_sweep(blind))


def test_the_table_fits_a_narrow_terminal():
    assert max(map(len, shown(with_failure(), width=80).splitlines())) <= 80


def test_the_page_holds_the_data_and_loads_nothing(tmp_path):
    pytest.importorskip("plotly")
    sweep_plot.plot(with_failure(), tmp_path / "s.html")
    page = (tmp_path / "s.html").read_text()
    assert "Plotly.newPlot" in page
    assert len(page) > 10**6, "plotly.js is in the page"
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"https?:", outside)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert '<html lang="en">' in page
    assert "<title>Workers, batch size, pinned memory: mobilenet_v2" in page
    assert 'role="img" aria-label="Heat map of images per second. Best: 2 workers, batch 64' in page
    assert "Test &lt;CPU&gt;" in page
    assert "Test <CPU>" not in outside
    assert "<td>120.0<td>119.0 to 121.0<td>1.50<td>100<td>300<td>900<td>900" in page
    assert "failed: out of memory on the GPU" in outside
    assert "color-scheme: light" in page


def test_the_heat_map_has_a_panel_for_each_pinning_on_one_scale():
    pytest.importorskip("plotly")
    figure = sweep_plot.plotly_figure(pinned_too())
    pageable, pinned = figure.data
    assert list(pageable.x) == ["0", "1", "2", "4"]
    assert list(pageable.y) == ["32", "64"]
    assert list(pageable.z[1]) == [60.0, 90.0, 120.0, 90.0]
    assert list(pinned.z[1]) == [61.0, 91.0, 121.0, 91.0]
    assert pageable.coloraxis == pinned.coloraxis == "coloraxis"
    assert "1.5 cores" in pageable.text[1][2]
    assert "100 MB a worker" in pageable.text[1][2]
    assert "a worker" not in pageable.text[1][0]
    assert [each.text for each in figure.layout.annotations] == ["pageable memory", "pinned memory"]


def test_a_cell_that_failed_is_a_gap_with_its_reason():
    pytest.importorskip("plotly")
    figure = sweep_plot.plotly_figure(with_failure("<killed>"))
    assert figure.data[0].z[1][3] is None
    assert figure.data[0].text[1][3] == ""
    told = next(each for each in figure.layout.annotations if each.text == "failed")
    assert (told.x, told.y) == (3, 1), "places, since a category's axis takes numbers in text for places as well"
    assert "&lt;killed&gt;" in told.hovertext


def test_the_drawn_heat_map_holds_the_same_and_is_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        sweep_plot.plot(with_failure(), tmp_path / name)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    ElementTree.fromstring(svg)
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    for text in ("120", "60.0", "1.5 cores", "100 MB a worker", "failed", "workers", "batch size"):
        assert text in texts
    assert "href" not in re.sub(r'xlink:href="#', "", svg)
    sweep_plot.plot(pinned_too(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_every_cell_the_same_is_drawn_too(tmp_path):
    made = make_sweep([cell(0, 32, 10.0, spread=0.0)], workers=[0], batch_sizes=[32])
    sweep_plot.plot(made, tmp_path / "a.svg")
    assert "10.0" in (tmp_path / "a.svg").read_text()


def test_text_is_readable_on_both_ends_of_the_scale():
    from matplotlib import colormaps

    assert sweep_plot._ink(colormaps[sweep_plot.SCALE](0.0)) == "white"
    assert sweep_plot._ink(colormaps[sweep_plot.SCALE](1.0)) == "black"


# The command


def ended(*words):
    with pytest.raises(SystemExit) as end:
        main(["sweep", "--device", "cpu", "--quick", *map(str, words)])
    return end.value.code


@pytest.fixture
def small(monkeypatch):
    """Cells that are made up, so that nothing is trained."""
    monkeypatch.setattr(sweep, "classifier", lambda *_: None)
    monkeypatch.setattr(sweep, "measured_apart", lambda settings: (run(1.0 + settings["workers"]), None))


def test_the_command_prints_json_alone_and_writes_the_same(small, tmp_path, capsys):
    words = ("--logdir", tmp_path, "--data", tmp_path, "--workers-list", "2,0,2", "--batch-sizes", "4")
    assert ended(*words, "--runs", 2, "--json", "--plot", tmp_path / "s.svg") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / FILE).read_text())
    found = read_sweep(tmp_path)
    assert (found.workers, found.batch_sizes, found.pin_memory) == ([0, 2], [4], [False])
    assert [len(each.runs) for each in found.cells] == [2, 2]
    assert (tmp_path / "s.svg").exists()
    assert ended("--logdir", tmp_path, "--data", tmp_path) == 0
    text = capsys.readouterr().out
    assert "pinned memory cannot act" in text.replace("\n", " ")
    assert "smoke run" in text.lower()
    found = read_sweep(tmp_path)
    assert (found.workers, found.batch_sizes) == (sweep.QUICK_WORKERS, sweep.QUICK_BATCH_SIZES)


def test_a_gpu_is_measured_with_and_without_pinned_memory(small, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sweep, "measured_apart", lambda settings: (asked.append(settings), (run(1.0), None))[1])
    monkeypatch.setattr(sweep, "autocast_dtype", lambda device: (torch.bfloat16, []))
    monkeypatch.setattr(sweep, "device_name", lambda device: "Test GPU")
    args = SimpleNamespace(
        model="m", image_size=32, data=tmp_path, workers_list=[0, 3], batch_sizes=None, runs=1, quick=False,
        device="cuda:1", seed=0,
    )  # fmt: skip
    found = sweep.measure(args, torch.device("cuda:1"))
    assert found.pin_memory == [False, True]
    assert found.batch_sizes == [32, 128, 512]
    assert [each["pin_memory"] for each in asked] == [False] * 6 + [True] * 6
    assert found.precision == "bfloat16"
    assert {each["device"] for each in asked} == {"cuda:1"}


def test_no_cell_at_all_is_one_line_and_writes_nothing(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "measured_apart", lambda settings: (None, "out of memory"))
    assert ended("--logdir", tmp_path, "--data", tmp_path) == 2
    told = "no setting could be measured; 0 workers, batch 8: out of memory"
    assert told in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "words, told",
    [
        (["--model", "mobilenet_v22"], "unknown model"),
        (["--plot", "heat.gif"], ".html, .svg or .png"),
        (["--plot", "not there/heat.svg"], "no folder"),
        (["--workers-list", "0,-1"], "'-1' is not a whole number from 0 to 256"),
        (["--workers-list", ""], "'' is not a whole number"),
        (["--batch-sizes", "32;64"], "'32;64' is not a whole number from 1"),
        (["--batch-sizes", "0"], "whole number from 1"),
        (["--runs", "0"], "whole number"),
        (["--device", "tpu"], "unknown device"),
        (["--data", __file__], "is a file"),
        (["--logdir", "/dev/null/logs"], "cannot write"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert ended("--logdir", tmp_path, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not (tmp_path / FILE).exists()


def test_a_page_without_plotly_is_refused_before_anything_is_measured(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert ended("--logdir", tmp_path, "--plot", tmp_path / "s.html") == 2
    assert "needs plotly, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()
    assert ended("--logdir", tmp_path, "--data", tmp_path, "--plot", tmp_path / "s.svg") == 0


def test_a_real_quick_call_with_a_cell_that_fails(tmp_path):
    words = ("--quick", "--device", "cpu", "--data", tmp_path, "--logdir", tmp_path)
    settings = ("--workers-list", "1", "--batch-sizes", "2,65536")
    finished = run_program("-m", "common", "sweep", *words, *settings, cwd=ROOT, OMP_NUM_THREADS=1)
    assert finished.returncode == 0, finished.stderr
    assert "Failed: 1 worker, batch 65536: the batch is larger than the data (50000 images)." in finished.stdout
    found = read_sweep(tmp_path)
    assert found.model == "mobilenet_v2"
    measured, failed = found.cells
    assert (len(measured.runs), len(failed.runs)) == (1, 0)
    assert len(measured.runs[0].windows) == sweep.QUICK.windows
    if sys.platform == "linux":
        assert 0 < measured.cores < os.cpu_count() + 1
        assert 0 < measured.worker_pss <= measured.worker_rss
        assert measured.total_pss > measured.worker_pss
    assert_refused(run_program("-m", "common", "sweep", "--batch-sizes", "a", cwd=ROOT), "'a' is not a whole number")
