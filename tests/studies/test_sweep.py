"""The sweep: cells that fail and the others that go on, what is made of the numbers, the record, figures, the command.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import io
import json
import multiprocessing
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import psutil
import pytest
import torch
from rich.console import Console
from support import ROOT, SmallNet

from common.options import StepOptions, options_from
from common.timing import Timing, Window
from studies import study, sweep
from studies import switches as training_program
from studies.ablation import NAMES
from studies.sweep import FILE, Cell, CellRun, ProcessMemory, Setting, Sweep, read
from walkthrough.cli import main
from walkthrough.compare import isolated, statistics
from walkthrough.compare.figures import ink_on, save
from walkthrough.results.environment import Environment
from walkthrough.results.errors import InputError
from walkthrough.results.result import Setup, write_json

MB = 10**6
OPTIONS = StepOptions(
    logdir=Path("/nowhere"), device="cpu", data=ROOT / "data", download=False, model="resnet18", image_size=32,
    batch_size=128, workers=2, precision="auto", seed=0, quick=True, stacks=False,
)  # fmt: skip


def run(*windows, cores=1.5, workers=1):
    worker = ProcessMemory(300 * MB, 100 * MB) if workers else None
    return CellRun(list(windows), cores, ProcessMemory(900 * MB, 700 * MB), worker)


def cell(workers, batch_size, speed, pin_memory=False, spread=1.0):
    """A cell of three runs: `speed`, and as much as `spread` above and below."""
    medians = (speed - spread, speed, speed + spread)
    runs = [run(median, median + 0.1, median - 0.1, workers=workers) for median in medians]
    return Cell(workers, batch_size, pin_memory, runs, None)


def make_sweep(cells=None, **changes):
    """Workers 0, 1, 2, 4 by batch sizes 32, 64; by default fastest with 2 workers and batch 64."""
    speeds = {32: (50.0, 80.0, 90.0, 70.0), 64: (60.0, 90.0, 120.0, 90.0)}
    made = [cell(workers, size, speed) for size in speeds for workers, speed in zip((0, 1, 2, 4), speeds[size])]  # noqa: B905
    values = dict(
        schema=2, setup=Setup("Test <CPU>", 2, "stand-in", "mobilenet_v2", 64), device_type="cpu",
        precision="float32", seed=0, quick=False, notes=["a note"],
        environment=Environment("2.11.0", None, None, "3.12.3", "Linux", "CPU", 2, None),
        started="2026-01-01T00:00:00+00:00", workers=[0, 1, 2, 4], batch_sizes=[32, 64], pin_memory=[False],
        cells=cells or made,
    )  # fmt: skip
    return Sweep(**(values | changes))


def with_failure(why="out of memory on the GPU"):
    """`make_sweep` whose largest cell failed after one run."""
    result = make_sweep()
    failed = replace(result.cells[-1], runs=result.cells[-1].runs[:1], failed=why)
    return replace(result, cells=[*result.cells[:-1], failed])


def pinned_too():
    """`make_sweep` with the same cells again, pinned and faster by one image/s."""
    result = make_sweep()
    pinned = [cell(pageable.workers, pageable.batch_size, pageable.median + 1, True) for pageable in result.cells]
    return replace(result, cells=[*result.cells, *pinned], pin_memory=[False, True], device_type="cuda")


# What is made of the numbers


def test_a_cell_s_speed_is_the_median_run_s_median_window():
    three = Cell(1, 32, False, [run(10.0, 30.0, 20.0), run(50.0, 40.0, 60.0), run(5.0, 6.0, 7.0)], None)
    assert (three.median, three.low, three.high) == (20.0, 6.0, 50.0)


def test_a_single_run_has_the_range_of_its_windows():
    one = Cell(1, 32, False, [run(10.0, 30.0, 20.0)], None)
    assert (one.median, one.low, one.high) == (20.0, 10.0, 30.0)


def test_memory_of_all_is_the_training_process_s_and_every_worker_s():
    assert cell(0, 32, 10.0).total_pss == 700 * MB
    four = cell(4, 32, 10.0)
    assert four.total_pss == 700 * MB + 4 * 100 * MB
    unknown_once = replace(four, runs=[*four.runs[:2], replace(four.runs[2], worker_bytes=None, cores=None)])
    assert (unknown_once.total_pss, unknown_once.cores) == (None, None)


def test_a_setting_reads_as_words():
    assert str(Setting(1, 32, False)) == "1 worker, batch 32"
    assert str(cell(2, 64, 10.0, pin_memory=True).setting) == "2 workers, batch 64, pinned"


def of_runs(*speeds, workers=1):
    """A cell of one run for each of `speeds`."""
    return Cell(workers, 32, False, [run(speed * 0.99, speed, speed * 1.01) for speed in speeds], None)


def test_cells_are_compared_run_by_run_with_an_interval():
    over = of_runs(110.0, 120.0, 130.0).over(of_runs(100.0, 100.0, 100.0))
    assert over.ratio == pytest.approx(statistics.of_pairs([1.1, 1.2, 1.3]).ratio)
    assert over.low == pytest.approx(statistics.of_pairs([1.1, 1.2, 1.3]).low)
    assert over.rounds == 3


def test_the_verdict_names_the_best_cell_what_it_is_not_faster_than_and_what_more_workers_cost():
    result = make_sweep()
    fewer = result.of_best(result.cell(4, 64, False))
    assert str(fewer).startswith("0.75x")
    assert sweep.verdict(result) == (
        "Best: 2 workers, batch 64: 120.0 images/s (119.0 to 121.0). "
        f"With 4 workers instead it is {fewer} as fast, and takes 200 MB more memory in all."
    )
    near = make_sweep(
        [cell(4, 64, 119.5, spread=9.0) if own.setting == (4, 64, False) else own for own in result.cells]
    )
    over = near.of_best(near.cell(4, 64, False))
    assert not over.resolved
    assert f"(119.0 to 121.0); no measurable difference to 4 workers, batch 64: {over}. " in sweep.verdict(near)
    killed = replace(cell(4, 64, 999.0), failed="killed")
    assert make_sweep([*result.cells[:-1], killed]).best.median == 120.0, "what failed is not the best"


def test_the_verdict_of_a_best_with_the_most_workers_is_that_it_is_at_the_edge():
    result = make_sweep([cell for cell in make_sweep().cells if cell.workers < 4], workers=[0, 1, 2])
    assert "More than 2 workers were not measured" in sweep.verdict(result)


def test_the_verdict_says_where_more_workers_failed():
    cells = [replace(cell, failed="killed") if cell.workers == 4 else cell for cell in make_sweep().cells]
    assert sweep.verdict(make_sweep(cells)).endswith("With 4 workers it failed: killed.")


# Cells, each in a process of its own


@pytest.fixture
def quick_end(monkeypatch):
    """A process that is ended has no compiler to stop."""
    monkeypatch.setattr(isolated, "TERMINATE_SECONDS", 0.01)


def measured_by(code, limit_seconds=60):
    return sweep.measured_isolated(
        Setting(1, 8, False), OPTIONS, limit_seconds, command=(sys.executable, "-S", "-c", code)
    )


def test_a_cell_comes_from_the_last_line_of_a_process_of_its_own(quick_end):
    answer = {"windows": [1.5], "cores": None, "process_bytes": {"rss": 2, "pss": 1}, "worker_bytes": None}
    result = measured_by(f"print('STAND-IN DATA'); print({json.dumps({'answer': answer})!r})")
    assert result == CellRun([1.5], None, ProcessMemory(2, 1), None)


def test_a_process_gets_the_options_with_its_setting(quick_end, tmp_path):
    file = tmp_path / "settings"
    measured_by(f"import sys; open({str(file)!r}, 'w').write(sys.argv[1])")
    settings = json.loads(file.read_text())
    assert options_from(settings["options"]) == replace(OPTIONS, workers=1, batch_size=8)
    assert settings["pin_memory"] is False


@pytest.mark.parametrize(
    "error, why",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory before the first batch"),
        (MemoryError(), "out of memory"),
        (InputError("the batch is larger than the data"), "the batch is larger than the data"),
        (KeyError("odd"), "KeyError: 'odd'"),
    ],
)
def test_failures_are_one_line(error, why):
    assert sweep.failure(error).startswith(why)
    assert "\n" not in sweep.failure(error)


def test_runs_are_interleaved_and_what_failed_is_not_tried_again(monkeypatch, capsys):
    tried = []

    def measured_isolated(setting, options):
        assert options == OPTIONS
        tried.append(setting.workers)
        if setting.workers == 2 and tried.count(2) == 2:
            return "a worker was killed"
        return run(float(len(tried)))

    monkeypatch.setattr(sweep, "measured_isolated", measured_isolated)
    cells = sweep.measured([Setting(workers, 8, False) for workers in (0, 1, 2)], OPTIONS, runs=3)
    assert tried == [0, 1, 2, 2, 1, 0, 0, 1]
    assert [len(cell.runs) for cell in cells] == [3, 3, 1]
    assert [cell.failed for cell in cells] == [None, None, "a worker was killed"]
    assert "2 workers, batch 8: failed: a worker was killed" in capsys.readouterr().out


def test_workers_double_up_to_twice_the_cores():
    assert sweep.default_workers(1) == [0, 1, 2]
    assert sweep.default_workers(2) == [0, 1, 2, 4]
    assert sweep.default_workers(6) == [0, 1, 2, 4, 6, 12]
    assert sweep.default_workers(16) == [0, 1, 2, 4, 8, 16, 32]


def test_cores_are_the_cpu_seconds_of_the_process_and_its_workers_over_the_time(monkeypatch):
    memory = {(1,): ProcessMemory(20, 10), (7, 8): ProcessMemory(4, 2)}
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [SimpleNamespace(pid=7), SimpleNamespace(pid=8)])
    monkeypatch.setattr(sweep, "os", SimpleNamespace(getpid=lambda: 1))
    monkeypatch.setattr(sweep, "process_memory", lambda pids: memory[tuple(pids)])
    for cpu, cores in (([3.0, 9.0], 1.5), ([None, 9.0], None), ([3.0, None], None)):
        cpu_seconds, clock = iter(cpu), iter([100.0, 104.0])
        monkeypatch.setattr(sweep, "cpu_seconds", lambda pids, left=cpu_seconds: (next(left), pids == [7, 8])[0])
        monkeypatch.setattr(sweep, "time", SimpleNamespace(perf_counter=lambda left=clock: next(left)))
        with sweep.ResourceUse() as use:
            pass
        assert (use.cores, use.process_bytes, use.worker_bytes) == (cores, *memory.values())


class Process:
    """A process of psutil: 99 is gone."""

    def __init__(self, pid):
        if pid == 99:
            raise psutil.NoSuchProcess(pid)
        self.rss = {1: 100, 2: 300, 3: 200}.get(pid, 0)

    def cpu_times(self):
        return SimpleNamespace(user=self.rss / 10, system=1.0)


def test_cpu_seconds_are_of_this_process_and_of_those_named(monkeypatch):
    own = sweep.cpu_seconds([])
    assert own > 0
    monkeypatch.setattr(psutil, "Process", Process)
    monkeypatch.setattr(os, "times", lambda: (3.0, 4.0, 100.0, 100.0, 100.0))
    assert sweep.cpu_seconds([]) == 7.0
    assert sweep.cpu_seconds([1, 2]) == 7.0 + 10.0 + 1.0 + 30.0 + 1.0
    assert sweep.cpu_seconds([1, 99]) is None


def test_the_program_is_step_05_s_with_pinned_memory_as_asked(monkeypatch):
    """test_ablation holds the program to the steps."""
    calls = []

    def timed(on, options, plan, around_windows):
        calls.append((on, options, plan))
        with around_windows:
            windows = [Window(speed, None, [1.0], 0.0) for speed in (3.0, 5.0)]
        return None, Timing(0.1, windows)

    monkeypatch.setattr(training_program, "timed", timed)
    for pinned in (False, True):
        assert sweep.measured_here(OPTIONS, pinned).windows == [3.0, 5.0]
    with_pinned = list(NAMES[:5])
    on = [[name for name in NAMES if getattr(optimisations, name)] for optimisations, *_ in calls]
    assert on == [[name for name in with_pinned if name != "pinned_memory"], with_pinned]
    assert calls[0][1] == OPTIONS


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_process_prints_its_cell_or_why_there_is_none(monkeypatch, capsys, precision):
    monkeypatch.setattr(training_program, "classifier", lambda *_: SmallNet())
    options = replace(OPTIONS, workers=0, batch_size=4, precision=precision)
    sweep.main(json.dumps({"options": asdict(options), "pin_memory": False}, default=str))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"precision: {'float32' if precision == 'fp32' else 'bfloat16'}") for line in lines)
    answer = json.loads(lines[-1])["answer"]
    assert len(answer["windows"]) == 3
    assert min(answer["windows"]) > 0
    options = replace(options, batch_size=65536)
    sweep.main(json.dumps({"options": asdict(options), "pin_memory": False}, default=str))
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])["answer"]
    assert answer == {"error": "batch size 65536 is larger than the data (50000 images)"}


# The record


def write(folder, result):
    write_json(folder / FILE, asdict(result))


def with_first(**changes):
    """`make_sweep` with another first cell."""
    result = make_sweep()
    return replace(result, cells=[replace(result.cells[0], **changes), *result.cells[1:]])


@pytest.mark.parametrize(
    "broken, problem",
    [
        (make_sweep(schema=3), "schema 3"),
        (make_sweep(pin_memory=[1]), r"bool.*pin_memory"),
        (make_sweep(seed=True), r"int.*seed"),
        (make_sweep(make_sweep().cells[1:]), "a cell for every setting"),
        (make_sweep(make_sweep().cells[::-1]), "a cell for every setting"),
        (make_sweep(pin_memory=[True]), "a cell for every setting"),
        (make_sweep([replace(own, failed="killed") for own in make_sweep().cells]), "one at least that was measured"),
        (with_first(runs=[]), "must hold runs, or why it failed"),
        (with_first(runs=[run(0.0)]), r">= 1e-09.*cells.*runs.*windows"),
        (with_first(runs=[run()]), r"length >= 1.*cells.*runs.*windows"),
    ],
)
def test_a_broken_record_is_refused(tmp_path, broken, problem):
    write(tmp_path, broken)
    with pytest.raises(InputError, match=problem):
        read(tmp_path)


# The table and the figures


def shown(result, width=200):
    console = Console(width=width, highlight=False, file=io.StringIO())
    sweep.show(result, console)
    return console.file.getvalue()


def test_the_table_holds_every_cell_and_says_which_failed():
    text = shown(with_failure())
    rows = [line.split() for line in text.splitlines() if re.match(r"\d", line)]
    assert [row[:2] for row in rows] == [[w, b] for b in ("32", "64") for w in "0124"]
    assert rows[6] == "2 64 120.0 best 1.5 900".split()
    result = make_sweep()
    assert rows[5][3:5] == str(result.of_best(result.cell(1, 64, False))).split()
    assert rows[0][-1] == "700"
    assert rows[7][2] == "failed"
    assert "Failed: 4 workers, batch 64: out of memory on the GPU." in text
    assert "A note." in text


def test_the_table_says_what_is_pinned_where_both_were_measured():
    rows = [line.split() for line in shown(pinned_too()).splitlines() if re.match(r"\d+ +(32|64) ", line)]
    assert [row[2] for row in rows] == ["no"] * 8 + ["yes"] * 8
    assert "pinned" not in shown(make_sweep())


def test_of_one_run_the_legend_says_what_the_interval_does_not_hold():
    once = make_sweep([replace(cell, runs=cell.runs[:1]) for cell in make_sweep().cells])
    assert "which says nothing of how runs differ" in " ".join(shown(once).split())
    assert "holds nothing" not in shown(make_sweep())


def test_the_file_holds_each_cell_over_the_best(tmp_path):
    result = with_failure()
    over_best = result.as_json()["of_best"]
    assert len(over_best) == len(result.measured) - 1
    assert over_best[0] == {"workers": 0, "batch_size": 32, "pin_memory": False} | asdict(
        result.of_best(result.cells[0])
    )
    study.write(tmp_path / FILE, result)
    assert json.loads((tmp_path / FILE).read_text())["of_best"] == over_best
    assert read(tmp_path) == result


def test_of_one_window_the_file_can_be_read(tmp_path):
    one_window = make_sweep([replace(cell, runs=[run(cell.median)]) for cell in make_sweep().cells])
    study.write(tmp_path / FILE, one_window)
    assert read(tmp_path) == one_window


def test_what_is_not_known_is_a_dash():
    unknown = CellRun([5.0, 6.0], None, None, None)
    result = make_sweep([replace(cell, runs=[unknown]) for cell in make_sweep().cells])
    rows = [line.split() for line in shown(result).splitlines() if re.match(r"\d", line)]
    assert rows[1][-2:] == ["-"] * 2
    assert "memory in all" not in sweep.verdict(result)


def test_the_drawn_heat_map_holds_the_same_and_is_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        save(sweep.figure(with_failure()), tmp_path / name)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    ElementTree.fromstring(svg)
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    assert str(with_failure().of_best(with_failure().cells[0])) in texts
    for text in ("120", "best", "60.0", "1.5 cores", "900 MB", "failed", "workers", "batch size"):
        assert text in texts
    assert "href" not in re.sub(r'xlink:href="#', "", svg)
    save(sweep.figure(pinned_too()), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"must end in \.svg or \.png"):
        save(sweep.figure(make_sweep()), tmp_path / "a.html")


def test_text_is_readable_on_both_ends_of_the_scale():
    from matplotlib import colormaps

    assert ink_on(colormaps[sweep.SCALE](0.0)) == "white"
    assert ink_on(colormaps[sweep.SCALE](1.0)) == "black"


# The command


def ended(*words):
    with pytest.raises(SystemExit) as end:
        main(["sweep", "--device", "cpu", "--quick", *map(str, words)])
    return end.value.code


@pytest.fixture
def small(monkeypatch):
    """Cells that are made up, so that nothing is trained."""
    monkeypatch.setattr("common.model.classifier", lambda *_: None)
    monkeypatch.setattr(sweep, "measured_isolated", lambda setting, options: run(1.0 + setting.workers))


def test_the_command_prints_json_alone_and_writes_the_same(small, tmp_path, capsys):
    words = ("--logdir", tmp_path, "--data", tmp_path, "--workers-list", "2,0,2", "--batch-sizes", "4")
    assert ended(*words, "--runs", 2, "--json", "--plot", tmp_path / "s.svg") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / FILE).read_text())
    result = read(tmp_path)
    assert (result.workers, result.batch_sizes, result.pin_memory) == ([0, 2], [4], [False])
    assert [len(cell.runs) for cell in result.cells] == [2, 2]
    assert (tmp_path / "s.svg").exists()
    [over_best] = json.loads((tmp_path / FILE).read_text())["of_best"]
    assert (over_best["workers"], over_best["rounds"]) == (0, 2)
    assert ended("--logdir", tmp_path, "--data", tmp_path) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No GPU: nothing is copied to a device, so pinned memory has no effect" in text
    assert "on the same CPU cores as the workers" in text
    assert "Smoke run" in text
    result = read(tmp_path)
    assert (result.workers, result.batch_sizes, result.quick) == (sweep.QUICK_WORKERS, sweep.QUICK_BATCH_SIZES, True)


@pytest.mark.parametrize("precision, dtype", [("fp32", "float32"), ("bf16", "bfloat16")])
def test_the_precision_is_passed_to_the_processes_and_recorded(small, tmp_path, monkeypatch, precision, dtype):
    asked = []
    monkeypatch.setattr(sweep, "measured_isolated", lambda setting, options: asked.append(options) or run(1.0))
    assert ended("--logdir", tmp_path, "--data", tmp_path, "--precision", precision) == 0
    assert {options.precision for options in asked} == {precision}
    assert read(tmp_path).precision == dtype


def test_a_gpu_is_measured_with_and_without_pinned_memory(small, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sweep, "measured_isolated", lambda *call: asked.append(call) or run(1.0))
    monkeypatch.setattr("common.device.autocast_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr("common.device.autocast_notes", lambda *_: [])
    monkeypatch.setattr("common.device.device_name", lambda device: "Test GPU")
    monkeypatch.setattr(study, "ready", lambda args: replace(OPTIONS, device="cuda:1", quick=False, logdir=tmp_path))
    assert ended("--logdir", tmp_path, "--data", tmp_path, "--workers-list", "0,3", "--runs", 1) == 0
    result = read(tmp_path)
    assert result.pin_memory == [False, True]
    assert result.batch_sizes == [32, 128, 512]
    assert [setting.pin_memory for setting, _ in asked] == [False] * 6 + [True] * 6
    assert (result.precision, result.notes) == ("bfloat16", [])
    assert result.setup == Setup("Test GPU", None, "stand-in", "resnet18", 32)
    assert {options.device for _, options in asked} == {"cuda:1"}


def test_no_cell_at_all_is_one_line_and_writes_nothing(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "measured_isolated", lambda setting, options: "out of memory")
    assert ended("--logdir", tmp_path, "--data", tmp_path) == 2
    assert "no setting could be measured; 0 workers, batch 8: out of memory" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--workers-list", "0,-1"], "'-1' is not a whole number from 0 to 256"),
        (["--workers-list", ""], "'' is not a whole number"),
        (["--batch-sizes", "32;64"], "'32;64' is not a whole number from 1"),
        (["--batch-sizes", "0"], "whole number from 1"),
        (["--batch-sizes", "a"], "'a' is not a whole number"),
        (["--runs", "0"], "whole number"),
        (["--precision", "int8"], "invalid choice"),
        (["--data", __file__], "is a file"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert ended("--logdir", tmp_path, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / FILE).exists()


def test_a_real_quick_call_with_a_cell_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ("--model", "shufflenet_v2_x0_5", "--data", tmp_path, "--logdir", tmp_path)
    assert ended(*words, "--workers-list", "1", "--batch-sizes", "2,65536") == 0
    text = capsys.readouterr().out
    assert "Failed: 1 worker, batch 65536: batch size 65536 is larger than the data (50000 images)." in text
    result = read(tmp_path)
    assert result.setup.model == "shufflenet_v2_x0_5"
    measured, failed = result.cells
    assert (len(measured.runs), len(failed.runs)) == (1, 0)
    assert len(measured.runs[0].windows) == 3
    if sys.platform == "linux":
        assert 0 < measured.cores < os.cpu_count() + 1
        assert measured.total_pss > 0
