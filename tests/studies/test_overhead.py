"""What tracing costs: what each mode really records, one process, the runs, what follows from them.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import SmallNet
from support.options import small_options

from studies import one_batch, overhead
from studies.overhead import LEAD_STEPS, OFF_AGAIN, cost, is_slower, tracings, us_per_event
from walkthrough.compare.study import NotMeasured
from walkthrough.results.errors import InputError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BY_NAME = {tracing.name: tracing for tracing in tracings(CPU)}
OPTIONS = small_options(precision="fp32")


def mode(name, *ratios, **changes):
    """A mode of runs in which "off" took 100 ms per step, each step of it so many times as long."""
    values = {
        "name": name, "switches": "", "not_measured": None, "steps": [3] * len(ratios),
        "off_ms": [100.0] * len(ratios), "step_ms": [100 * ratio for ratio in ratios],
        "finish_seconds": [0.5] * len(ratios), "json_bytes_per_step": 2_000_000, "gzip_bytes_per_step": 110_000,
        "events_per_step": 4000.0,
    }  # fmt: skip
    return values | changes


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch):
    """To collect that of all tests takes long."""
    monkeypatch.setattr(overhead, "gc", SimpleNamespace(collect=lambda: None))


RECORDS = {  # mode: what it records besides operators
    "operators": set(),
    "+ modules": set(),  # see the table's legend: TorchScript's only
    "+ stacks of operators": {"functions", "modules", "operators' stacks"},
    "as the steps": {"shapes", "memory"},
}


@pytest.mark.filterwarnings("ignore:with_modules is deprecated")
@pytest.mark.parametrize("name", RECORDS)
def test_each_mode_records_its_own_and_nothing_of_the_others(tmp_path, name):
    train_step, batch = one_batch.TrainStep(SmallNet(), CPU, torch.float32), one_batch.batch_on(CPU, 4, 32)
    overhead.mode_steps(BY_NAME[name], train_step, batch, CPU, 1, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {str(event.get("name")).partition(":")[0] for event in events}
    of_operators = {key for event in events if event.get("cat") == "cpu_op" for key in event["args"]}
    contents = {
        "shapes": "Input Dims" in of_operators,
        "memory": "[memory]" in names,
        "functions": any(event.get("cat") == "python_function" for event in events),
        "modules": "nn.Module" in names,
        "operators' stacks": "Call stack" in of_operators,
    }
    assert {key for key, there in contents.items() if there} == RECORDS[name]


def test_only_the_edges_of_the_timed_steps_synchronise_a_gpu(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("sync"))
    overhead.mode_steps(BY_NAME[OFF_AGAIN], lambda *_: happened.append("step"), (), CUDA, 3, Path())
    assert happened == ["step"] * LEAD_STEPS + ["sync", "step", "step", "step", "sync"]


def test_a_process_opens_one_profiler_and_measures_off_before_it(monkeypatch):
    happened, profile, train = [], torch.profiler.profile, one_batch.TrainStep.__call__
    monkeypatch.setattr(torch.profiler, "profile", lambda **more: happened.append("open") or profile(**more))
    monkeypatch.setattr(one_batch.TrainStep, "__call__", lambda *words: happened.append("step") or train(*words))
    monkeypatch.setattr("common.model.classifier", lambda *_: SmallNet())
    result = overhead.mode(OPTIONS, run=1, name="operators", batch_size=4)
    opened = happened.index("open")
    assert happened.count("open") == 1
    assert opened >= result["steps"]
    assert happened[opened + 1 :] == ["step"] * (LEAD_STEPS + result["steps"])
    assert (result["steps"], result["batch_size"], result["notes"]) == (2, 4, [])
    assert min(result["off_ms"], result["step_ms"], result["finish_seconds"]) > 0
    assert result["sizes"]["events_per_step"] > 10


def test_a_trace_s_sizes_are_a_step_s_and_metadata_is_no_event(tmp_path):
    path, events = tmp_path / "trace.json", [{"ph": "M"}, {"ph": "X"}, {"ph": "i"}, {"ph": "X"}]
    path.write_text(json.dumps({"traceEvents": events}) + " " * 1000)
    sizes = overhead.trace_sizes(path, events, 2)
    assert sizes["json_bytes_per_step"] == path.stat().st_size // 2
    assert 0 < sizes["gzip_bytes_per_step"] < sizes["json_bytes_per_step"]
    assert sizes["events_per_step"] == 1.5


def test_a_gpu_s_trace_without_kernels_is_no_measurement():
    operators, kernels = [{"cat": "cpu_op"}] * 9, [{"cat": "kernel"}] * 4
    overhead.check_kernels(operators + kernels, 4, CUDA)
    overhead.check_kernels(operators, 4, CPU)
    for events, steps in ((operators, 4), (operators + kernels, 5)):
        with pytest.raises(InputError, match="CUPTI recorded nothing"):
            overhead.check_kernels(events, steps, CUDA)


@pytest.fixture
def measured():
    """measured(runs, operators): the modes of so many runs, notes and what was asked for; operators(run) may raise.

    A step takes 100 ms in the first run, 200 ms in the second, and twice as long while it is traced.
    """

    def call(runs, operators):
        log = []

        def measure(what, run, name, batch_size):
            log.append((run, name, batch_size))
            if name == "operators":
                operators(run)
            traced = name != OFF_AGAIN
            sizes = {"json_bytes_per_step": 1000, "gzip_bytes_per_step": 1, "events_per_step": 4.0}
            return {
                "off_ms": 100.0 * run, "step_ms": 100.0 * run * (2 if traced else 1), "steps": 3,
                "finish_seconds": 0.5 if traced else None, "sizes": sizes if traced and run == 1 else None,
                "batch_size": batch_size, "notes": [],
            }  # fmt: skip

        few = [BY_NAME[name] for name in (OFF_AGAIN, "kernels only", "operators", "+ shapes")]
        found, notes = overhead.measured_modes(SimpleNamespace(options=OPTIONS, measure=measure), few, runs)
        return {mode["name"]: mode for mode in found["modes"]}, notes, log

    return call


def test_every_mode_is_a_process_in_every_run_and_one_that_fails_is_not_tried_again(measured):
    def fail_from_run_3_on(run):
        if run >= 3:
            raise NotMeasured("its trace holds 0 kernels")

    modes, notes, log = measured(4, fail_from_run_3_on)
    assert log[:3] == [(1, OFF_AGAIN, 4), (1, "operators", 4), (1, "+ shapes", 4)]
    assert [entry[1] for entry in log].count("operators") == 3
    assert (modes["operators"]["not_measured"], modes["operators"]["step_ms"]) == ("its trace holds 0 kernels", [])
    assert "operators was not measured: its trace holds 0 kernels" in notes
    assert (modes["operators"]["json_bytes_per_step"], modes[OFF_AGAIN]["json_bytes_per_step"]) == (None, None)
    shapes = modes["+ shapes"]
    assert (shapes["off_ms"], shapes["step_ms"]) == ([100.0, 200.0, 300.0, 400.0], [200.0, 400.0, 600.0, 800.0])
    assert shapes["json_bytes_per_step"] == 1000  # of the first run
    assert "no GPU" in modes["kernels only"]["not_measured"]
    assert any(note.startswith("kernels only was not measured") for note in notes)


NOISY, DEAR = mode("operators", 0.8, 1.3, 1.25), mode("+ stacks", 1.35, 1.4, 1.45)


def test_a_mode_s_cost_is_the_mean_of_its_runs_ratios_with_its_interval():
    steady = cost(mode("operators", 1.2, 1.2, 1.2))
    assert (steady.ratio, steady.low, steady.high, steady.rounds) == pytest.approx((1.2, 1.2, 1.2, 3))
    doubled_and_halved = cost(mode("operators", 0.5, 2.0))
    assert doubled_and_halved.ratio == pytest.approx(1.0)
    assert not doubled_and_halved.resolved
    drifting = mode("operators", 1.2, 1.2, 1.2, step_ms=[120.0, 240.0, 480.0], off_ms=[100.0, 200.0, 400.0])
    assert cost(drifting) == steady
    assert (is_slower(NOISY), is_slower(DEAR), is_slower(mode("operators", 0.7, 0.7, 0.7))) == (False, True, False)
    assert us_per_event(DEAR) == pytest.approx(40e3 / 4000)  # the median run takes 40 ms longer


def test_of_one_run_a_cost_has_no_interval():
    control = mode(OFF_AGAIN, 1.01, events_per_step=None)
    rows = overhead.tables({"batch_size": 32, "runs": 1, "modes": [control, mode("+ stacks", 3.0)]})["overhead"]
    assert [row["x off"] for row in rows] == [None, pytest.approx(1.01), pytest.approx(3.0)]
    assert rows[2]["us per event"] is None
