"""The sweep: cells that fail and the others that go on, and what is made of the numbers.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import multiprocessing
import os
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from support.options import small_options

from common.timing import Timing, Window
from studies import sweep
from studies import switches as training_program
from studies.ablation import NAMES
from studies.input import ProcessMemory
from studies.sweep import conclusions, over, speeds, tables, total_pss
from walkthrough.compare import statistics
from walkthrough.compare.study import NotMeasured
from walkthrough.results.errors import InputError

MB = 10**6
OPTIONS = small_options(model="resnet18", batch_size=128, workers=2)


def run(*windows, cores=1.5, workers=1):
    worker = {"rss": 300 * MB, "pss": 100 * MB} if workers else None
    process = {"rss": 900 * MB, "pss": 700 * MB}
    return {"windows": [*windows], "cores": cores, "process_bytes": process, "worker_bytes": worker}


def cell(workers, batch_size, speed, pin_memory=False, spread=1.0, failed=None):
    """A cell of three runs: `speed`, and as much as `spread` above and below."""
    medians = (speed - spread, speed, speed + spread)
    runs = [run(median, median + 0.1, median - 0.1, workers=workers) for median in medians]
    return {
        "workers": workers, "batch_size": batch_size, "pin_memory": pin_memory, "runs": runs, "failed": failed,
    }  # fmt: skip


def test_a_cell_s_speed_is_the_median_run_s_median_window_and_of_one_run_its_windows():
    three = cell(1, 32, 0.0) | {"runs": [run(10.0, 30.0, 20.0), run(50.0, 40.0, 60.0), run(5.0, 6.0, 7.0)]}
    assert speeds(three) == [20.0, 50.0, 6.0]
    assert speeds(three | {"runs": three["runs"][:1]}) == [10.0, 30.0, 20.0]


def test_memory_of_all_is_the_training_process_s_and_every_worker_s():
    assert total_pss(cell(0, 32, 10.0)) == 700 * MB
    four = cell(4, 32, 10.0)
    assert total_pss(four) == 700 * MB + 4 * 100 * MB
    assert total_pss(four | {"runs": [*four["runs"][:2], four["runs"][2] | {"worker_bytes": None}]}) is None


def test_a_cell_that_failed_is_not_the_best_and_says_why():
    """Whatever else the tables and sentences hold is recomputed from what was recorded: see test_study."""
    cells = [cell(0, 64, 60.0), cell(2, 64, 120.0), cell(4, 64, 999.0, failed="killed")]
    found = {"workers": [0, 2, 4], "batch_sizes": [64], "pin_memory": [False, True], "cells": cells}
    assert over(*cells[:2]) == statistics.of_pairs([59 / 119, 60 / 120, 61 / 121])
    rows = tables(found)["sweep"]
    assert rows[1] == {
        "workers": 2, "batch": 64, "pinned": False, "images/s": 120.0, "of best": None, "cores": 1.5, "memory MB": 900.0
    }  # fmt: skip
    assert set(list(rows[2].values())[3:]) == {None}
    assert conclusions(found)["sweep"] == [
        "Best: 2 workers, batch 64: 120.0 images/s (119.0 to 121.0). With 4 workers it failed: killed.",
        "Failed: 4 workers, batch 64: killed.",
    ]


def test_runs_are_interleaved_and_what_failed_is_not_tried_again():
    tried = []

    def measure(what, run, **setting):
        tried.append(setting["workers"])
        if setting["workers"] == 2 and tried.count(2) >= 2:
            raise NotMeasured("a worker was killed")
        return {"windows": [1.0]}

    settings = [{"workers": workers, "batch_size": 8, "pin_memory": False} for workers in (0, 1, 2)]
    cells = sweep.measured_cells(SimpleNamespace(measure=measure), settings, runs=3)
    assert tried == [0, 1, 2, 2, 1, 0, 0, 1]
    assert [len(one["runs"]) for one in cells] == [3, 3, 1]
    assert [one["failed"] for one in cells] == [None, None, "a worker was killed"]
    with pytest.raises(InputError, match="no setting could be measured; 2 workers, batch 8: a worker was killed"):
        sweep.measured_cells(SimpleNamespace(measure=measure), settings[2:], runs=1)


def test_cores_are_the_cpu_seconds_of_the_process_and_its_workers_over_the_time(monkeypatch):
    memory = {(1,): ProcessMemory(20, 10), (7, 8): ProcessMemory(4, 2)}
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [SimpleNamespace(pid=7), SimpleNamespace(pid=8)])
    monkeypatch.setattr(sweep, "os", SimpleNamespace(getpid=lambda: 1))
    monkeypatch.setattr(sweep, "process_memory", lambda pids: memory[tuple(pids)])
    for cpu, cores in (([3.0, 9.0], 1.5), ([None, 9.0], None), ([3.0, None], None)):
        monkeypatch.setattr(sweep, "cpu_seconds", Mock(side_effect=cpu))
        monkeypatch.setattr(sweep, "time", Mock(perf_counter=Mock(side_effect=[100.0, 104.0])))
        with sweep.ResourceUse() as use:
            pass
        assert (use.cores, use.process_bytes, use.worker_bytes) == (cores, *memory.values())


def test_cpu_seconds_are_of_this_process_and_of_those_named(monkeypatch):
    def process(pid):
        if pid == 99:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=10.0 * pid, system=1.0))

    monkeypatch.setattr(psutil, "Process", process)
    monkeypatch.setattr(os, "times", lambda: (3.0, 4.0, 100.0, 100.0, 100.0))
    assert [sweep.cpu_seconds(pids) for pids in ([], [1, 3], [1, 99])] == [7.0, 7.0 + 11.0 + 31.0, None]


def test_the_program_is_step_05_s_with_pinned_memory_as_asked(monkeypatch):
    """test_ablation holds the program to the steps."""
    calls = []

    def timed(on, options, plan, around_windows):
        calls.append((on, options))
        with around_windows:
            windows = [Window(speed, None, [1.0], 0.0) for speed in (3.0, 5.0)]
        return None, Timing(0.1, windows)

    monkeypatch.setattr(training_program, "timed", timed)
    for pinned in (False, True):
        assert sweep.cell(OPTIONS, 1, 3, 8, pinned)["windows"] == [3.0, 5.0]
    with_pinned = list(NAMES[:5])
    on = [[name for name in NAMES if getattr(optimisations, name)] for optimisations, _ in calls]
    assert on == [[name for name in with_pinned if name != "pinned_memory"], with_pinned]
    assert calls[0][1] == replace(OPTIONS, workers=3, batch_size=8)
