"""What tracing costs: what each mode really records, statistics by hand, the record, the figure, the command.

The GPU's side is tested by fakes: nothing here was run on one.
"""

import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from support import ROOT, SmallNet

from common.options import StepOptions
from studies import one_batch, overhead
from studies.overhead import (
    FILE,
    LEAD_STEPS,
    MOST_STEPS,
    OFF_AGAIN,
    Mode,
    ModeRun,
    Overhead,
    TraceSizes,
    read,
    tracings,
)
from walkthrough.cli import main
from walkthrough.compare.figures import SPEED, UNRESOLVED, save
from walkthrough.results import result as record
from walkthrough.results.environment import Environment
from walkthrough.results.errors import InputError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BY_NAME = {tracing.name: tracing for tracing in tracings(CPU)}
OPTIONS = StepOptions(
    logdir=Path("/nowhere"), device="cpu", data=ROOT / "data", download=False, model="tiny", image_size=32,
    batch_size=4, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
)  # fmt: skip


def mode(name, *ratios, **changes):
    """A mode of runs in which "off" took 100 ms per step."""
    values = dict(
        name=name,
        switches="no profiler",
        not_measured=None,
        steps=[3] * len(ratios),
        off_ms=[100.0] * len(ratios),
        step_ms=[100 * ratio for ratio in ratios],
        finish_seconds=[],
        json_bytes_per_step=None,
        gzip_bytes_per_step=None,
        events_per_step=None,
    )
    return Mode(**(values | changes))


def traced_mode(name, *ratios):
    sizes = {"json_bytes_per_step": 2_000_000, "gzip_bytes_per_step": 110_000, "events_per_step": 4000.0}
    return mode(name, *ratios, finish_seconds=[0.5] * len(ratios), **sizes)


def make_overhead(*modes, **changes):
    environment = Environment("2.11.0", None, None, "3.12.3", "Linux", "CPU", 2, None)
    values = dict(
        schema=3, setup=record.Setup("Test CPU", 2, None, "mobilenet_v2", 64), device_type="cpu", batch_size=32,
        precision="float32", seed=0, quick=False, runs=3,
        modes=[mode(OFF_AGAIN, 0.96, 1.04, 1.0), *modes],
        notes=["a note"], environment=environment, started="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return Overhead(**(values | changes))


# The modes


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """events(name): those of a trace of two steps of `SmallNet` in the mode of that name."""
    train_step, path = one_batch.TrainStep(SmallNet(), CPU, torch.float32), tmp_path_factory.mktemp("t") / "trace.json"
    batch, events = one_batch.batch_on(CPU, 4, 32), {}
    train_step(*batch)

    def of(name):
        if name not in events:
            overhead.mode_steps(BY_NAME[name], train_step, batch, CPU, 1, path)
            events[name] = json.loads(path.read_text())["traceEvents"]
        return events[name]

    return of


def args_of(events, category):
    return {key for event in events if event.get("cat") == category for key in event["args"]}


def categories(events):
    return {event.get("cat") for event in events}


def test_operators_alone_have_neither_shapes_nor_memory_nor_stacks(events):
    plain = events("operators")
    assert "cpu_op" in categories(plain)
    assert not {"Input Dims", "Call stack"} & args_of(plain, "cpu_op")
    assert not {"python_function", "cpu_instant_event"} & categories(plain)


@pytest.mark.filterwarnings("ignore:with_modules is deprecated")
@pytest.mark.parametrize("name", BY_NAME)
def test_each_mode_records_its_own_and_nothing_of_the_others(events, name):
    if name in (OFF_AGAIN, "kernels only"):
        assert BY_NAME[name].arguments is None
        return
    recorded = events(name)
    contents = {
        "shapes": "Input Dims" in args_of(recorded, "cpu_op"),
        "memory": any(event.get("name") == "[memory]" for event in recorded),
        "functions": "python_function" in categories(recorded),
        "modules": any(str(event.get("name")).startswith("nn.Module") for event in recorded),
        "operators' stacks": "Call stack" in args_of(recorded, "cpu_op"),
    }
    wanted = {
        "operators": set(),
        "+ shapes": {"shapes"},
        "+ flops": {"shapes"},
        "+ memory": {"memory"},
        "+ modules": set(),  # see the table's legend: TorchScript's only
        "+ stacks": {"functions", "modules"},
        "+ stacks of operators": {"functions", "modules", "operators' stacks"},
        "as the steps": {"shapes", "memory"},
    }
    assert {key for key, there in contents.items() if there} == wanted[name]


def test_kernels_alone_are_the_gpu_s_mode_and_not_measured_on_a_cpu():
    on_gpu = {tracing.name: tracing for tracing in tracings(CUDA)}
    assert list(on_gpu) == list(BY_NAME)
    assert on_gpu["kernels only"].arguments["activities"] == [torch.profiler.ProfilerActivity.CUDA]
    assert len(on_gpu["+ shapes"].arguments["activities"]) == 2
    assert all(tracing.why_not is None for tracing in on_gpu.values())
    assert BY_NAME["kernels only"].why_not == "no GPU: there are no kernels to record"


def test_only_the_edges_of_the_timed_steps_synchronise_a_gpu(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("sync"))
    overhead.mode_steps(BY_NAME[OFF_AGAIN], lambda *_: happened.append("step"), (), CUDA, 3, Path())
    assert happened == ["step"] * LEAD_STEPS + ["sync", "step", "step", "step", "sync"]


# One process


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("common.model.classifier", lambda *_: SmallNet())


@pytest.fixture
def happened(small, monkeypatch):
    """What happens while a mode is measured: "step", and where a profiler is opened and closed."""
    log, profile = [], torch.profiler.profile
    train = one_batch.TrainStep.__call__

    class Logged(profile):
        def __enter__(self):
            log.append("open")
            return super().__enter__()

        def __exit__(self, *error):
            super().__exit__(*error)
            log.append("close")

    monkeypatch.setattr(torch.profiler, "profile", Logged)
    monkeypatch.setattr(one_batch.TrainStep, "__call__", lambda *words: log.append("step") or train(*words))
    return log


def test_a_process_opens_one_profiler_and_measures_off_before_it(happened):
    result = overhead.measured_here(BY_NAME["operators"], OPTIONS, with_sizes=True)
    assert (happened.count("open"), happened.count("close"), happened[-1]) == (1, 1, "close")
    before, traced = happened[: happened.index("open")], happened[happened.index("open") + 1 : -1]
    assert len(before) >= result.steps
    assert len(traced) == LEAD_STEPS + result.steps
    assert (result.steps, result.batch_size, result.notes) == (2, 4, [])
    assert min(result.off_ms, result.step_ms, result.finish_seconds) > 0
    assert result.sizes.events_per_step > 10
    assert overhead.from_json(json.loads(json.dumps(asdict(result)))) == result


def test_the_control_opens_no_profiler_and_trains_as_many_steps(happened):
    result = overhead.measured_here(BY_NAME[OFF_AGAIN], OPTIONS, with_sizes=True)
    assert set(happened) == {"step"}
    assert (result.finish_seconds, result.sizes) == (None, None)
    assert overhead.from_json(asdict(result)) == result
    control = len(happened)
    happened.clear()
    overhead.measured_here(BY_NAME["operators"], OPTIONS, with_sizes=False)
    assert happened.count("step") == control


def test_a_trace_s_sizes_are_a_step_s_and_metadata_is_no_event(tmp_path):
    path, events = tmp_path / "trace.json", [{"ph": "M"}, {"ph": "X"}, {"ph": "i"}, {"ph": "X"}]
    path.write_text(json.dumps({"traceEvents": events}) + " " * 1000)
    sizes = overhead.trace_sizes(path, events, 2)
    assert sizes.json_bytes_per_step == path.stat().st_size // 2
    assert 0 < sizes.gzip_bytes_per_step < sizes.json_bytes_per_step
    assert sizes.events_per_step == 1.5


def test_a_gpu_s_trace_without_kernels_is_no_measurement():
    operators, kernels = [{"cat": "cpu_op"}] * 9, [{"cat": "kernel"}] * 4
    overhead.check_kernels(operators + kernels, 4, CUDA)
    overhead.check_kernels(operators, 4, CPU)
    with pytest.raises(InputError, match="holds 0 kernels in 4 steps: CUPTI recorded nothing"):
        overhead.check_kernels(operators, 4, CUDA)
    with pytest.raises(InputError, match="holds 4 kernels in 5 steps"):
        overhead.check_kernels(operators + kernels, 5, CUDA)


def printed(capsys, mode):
    """What the process of a mode prints: its last line."""
    values = {"mode": mode, "options": asdict(OPTIONS), "with_sizes": False}
    overhead.main(json.dumps(values, default=str))
    return json.loads(capsys.readouterr().out.splitlines()[-1])["answer"]


def test_what_cannot_be_measured_is_one_line(small, capsys, monkeypatch):
    assert printed(capsys, "operators")["step_ms"] > 0
    check = overhead.check_kernels
    with monkeypatch.context() as patch:
        patch.setattr(overhead, "check_kernels", lambda events, steps, device: check(events, steps, CUDA))
        assert printed(capsys, "operators") == {
            "error": "its trace holds 0 kernels in 4 steps: CUPTI recorded nothing, or lost some"
        }
        assert printed(capsys, OFF_AGAIN)["finish_seconds"] is None, "the control has no trace to hold any"
    with monkeypatch.context() as patch:
        patch.setattr(overhead, "mode_steps", lambda *words: words[-1].write_text('{"traceEvents": [') and (1.0, 1.0))
        assert "not be written whole" in printed(capsys, "operators")["error"]
    monkeypatch.setattr(overhead, "mode_steps", lambda *_: 1 / 0)
    assert printed(capsys, "operators") == {"error": "ZeroDivisionError: division by zero"}


def answer_of(code, monkeypatch):
    monkeypatch.setattr("walkthrough.compare.isolated.TERMINATE_SECONDS", 0.01)
    return overhead.measured("operators", OPTIONS, command=(sys.executable, "-S", "-c", code))


def test_a_process_is_told_the_mode_and_answers_with_its_run(monkeypatch):
    run = ModeRun(2.0, 3.0, 5, 0.5, TraceSizes(10, 1, 4.0), 4, [])
    code = f"import json, sys; sent = json.loads(sys.argv[1]); answer = json.loads({json.dumps(asdict(run))!r})\n"
    code += "answer['notes'] = [sent['mode'], sent['options']['model'], sent['with_sizes']]\n"
    code += "print(json.dumps({'answer': answer}))"
    assert answer_of(code, monkeypatch) == replace(run, notes=["operators", "tiny", False])


# The runs


FEW = (OFF_AGAIN, "kernels only", "operators", "+ shapes")


@pytest.fixture
def fake(monkeypatch):
    """In place of processes: `log` of (mode, batch size, with sizes), `answers` {mode: what it answers instead}.

    A step takes 100 ms in a mode's first process, 200 ms in its second, and twice as long while it is traced.
    """
    state = SimpleNamespace(log=[], answers={})

    def measured(name, options, with_sizes=False):
        state.log.append((name, options.batch_size, with_sizes))
        off_ms = 100.0 * [entry[0] for entry in state.log].count(name)
        traced = name != OFF_AGAIN
        sizes = TraceSizes(1000, 1, 4.0) if traced and with_sizes else None
        run = ModeRun(off_ms, off_ms * (2 if traced else 1), 3, 0.5 if traced else None, sizes, options.batch_size, [])
        answer = state.answers.get(name, run)
        return answer(run) if callable(answer) else answer

    monkeypatch.setattr(overhead, "measured", measured)
    return state


def modes_of(names, runs):
    modes, _, _ = overhead.measured_modes([BY_NAME[name] for name in names], OPTIONS, runs)
    return {mode.name: mode for mode in modes}


def test_every_mode_is_a_process_in_every_run_and_the_first_has_the_sizes(fake):
    modes = modes_of(FEW, runs=2)
    assert fake.log[:3] == [(OFF_AGAIN, 4, True), ("operators", 4, True), ("+ shapes", 4, True)]
    assert set(fake.log[3:]) == {(OFF_AGAIN, 4, False), ("operators", 4, False), ("+ shapes", 4, False)}
    assert modes["operators"].off_ms == [100.0, 200.0]
    assert modes["operators"].ratios == [2.0, 2.0], "over off of the same process"
    assert modes["operators"].json_bytes_per_step == 1000
    assert (modes[OFF_AGAIN].ratios, modes[OFF_AGAIN].json_bytes_per_step) == ([1.0, 1.0], None)
    assert "no GPU" in modes["kernels only"].not_measured


def test_the_control_finds_the_batch_size_of_all_others(fake):
    fake.answers[OFF_AGAIN] = lambda run: replace(run, batch_size=2, notes=["halved"])
    _, batch_size, notes = overhead.measured_modes([BY_NAME[name] for name in FEW], OPTIONS, 2)
    assert (batch_size, notes) == (2, ["halved"])
    assert {entry[1] for entry in fake.log[1:]} == {2}
    fake.answers["operators"] = lambda run: replace(run, batch_size=1)
    assert modes_of(FEW, runs=1)["operators"].not_measured == "out of memory with batch size 2, which fitted before"


def test_a_mode_that_fails_is_not_measured_with_its_reason_and_not_tried_again(fake, capsys):
    why = "its trace holds 0 kernels in 4 steps: CUPTI recorded nothing, or lost some"
    fake.answers["operators"] = lambda run: run if run.off_ms < 250 else why
    modes = modes_of(FEW, runs=4)
    assert [entry[0] for entry in fake.log].count("operators") == 3
    assert (modes["operators"].not_measured, modes["operators"].step_ms) == (why, [])
    assert (modes["operators"].json_bytes_per_step, modes["operators"].finish_seconds) == (None, [])
    assert len(modes["+ shapes"].step_ms) == 4
    assert f"operators: not measured: {why}" in capsys.readouterr().out
    assert make_overhead(runs=4, modes=list(modes.values())).problem() is None


@pytest.mark.parametrize("first", [True, False])
def test_without_a_control_nothing_is_measured(fake, first):
    fake.answers[OFF_AGAIN] = lambda run: run if run.off_ms < 150 and not first else "killed by SIGSEGV"
    with pytest.raises(InputError, match="killed by SIGSEGV"):
        modes_of(FEW, runs=2)


def test_a_trace_has_few_steps_however_many_a_window_has(small, monkeypatch):
    monkeypatch.setattr("common.timing.warm_up", lambda *_: 90)
    monkeypatch.setattr(overhead, "timed_steps", lambda train_step, batch, device, steps: 1.0)
    assert overhead.measured_here(BY_NAME[OFF_AGAIN], OPTIONS, False).steps == 90
    assert overhead.measured_here(BY_NAME["operators"], OPTIONS, False).steps == MOST_STEPS


def test_every_mode_begins_and_ends_some_run_and_none_is_always_after_the_same():
    names = list("abcdef")
    orders = [overhead.order_of_run(names, run) for run in range(5)]
    assert all(sorted(order) == names for order in orders)
    assert len({order[0] for order in orders}) >= 3
    assert orders[0].index("b") > orders[0].index("a")
    assert orders[1].index("b") < orders[1].index("a")


# The statistics


NOISY, DEAR = traced_mode("operators", 0.8, 1.3, 1.25), traced_mode("+ stacks", 1.35, 1.4, 1.45)


def test_a_mode_s_cost_is_the_mean_of_its_runs_ratios_with_its_interval():
    steady = mode("operators", 1.2, 1.2, 1.2)
    assert (steady.ratio, steady.cost.ratio, steady.cost.rounds) == (pytest.approx(1.2), pytest.approx(1.2), 3)
    assert (steady.cost.low, steady.cost.high) == (pytest.approx(1.2), pytest.approx(1.2))
    doubled_and_halved = mode("operators", 0.5, 2.0)
    assert doubled_and_halved.cost.ratio == pytest.approx(1.0)
    assert not doubled_and_halved.cost.resolved


def test_slower_is_what_the_interval_resolves():
    assert (NOISY.slower, DEAR.slower) == (False, True)
    assert NOISY.ratio > 1, "though the mean of its runs is above 1"
    assert not mode("operators", 0.7, 0.7, 0.7).slower, "faster is no cost"
    assert NOISY.us_per_event is None
    assert DEAR.us_per_event == pytest.approx(40e3 / 4000)  # the median run takes 40 ms longer
    assert make_overhead(NOISY, DEAR).traced == [NOISY, DEAR]


def test_a_machine_that_drifts_does_it_to_both_sides_of_a_run_s_ratio():
    drifting = mode("operators", 1.2, 1.2, 1.2, step_ms=[120.0, 240.0, 480.0], off_ms=[100.0, 200.0, 400.0])
    assert drifting.slower
    assert drifting.ratios == [1.2, 1.2, 1.2]


def test_the_control_does_not_widen_what_is_resolved():
    noisy_control = make_overhead(modes=[mode(OFF_AGAIN, 0.7, 1.6, 1.3), DEAR])
    assert "Slower than without a profiler, cheapest first: + stacks 1.40x" in overhead.verdict(noisy_control)


def test_one_run_has_no_interval_and_resolves_nothing():
    once = make_overhead(runs=1, modes=[mode(OFF_AGAIN, 1.01), traced_mode("+ stacks", 3.0)])
    assert (once.modes[1].cost, once.modes[1].slower, once.modes[1].ratio) == (None, False, pytest.approx(3.0))
    assert "One run gives no interval" in overhead.verdict(once)
    assert "~3.00x" in shown(once)
    assert once.as_json()["costs"] == {OFF_AGAIN: None, "+ stacks": None}


def test_the_file_holds_the_costs_with_their_intervals():
    costs = make_overhead(DEAR, mode("kernels only", not_measured="no GPU")).as_json()["costs"]
    assert list(costs) == [OFF_AGAIN, "+ stacks"]
    assert costs["+ stacks"] == asdict(DEAR.cost)


# The record


@pytest.mark.parametrize(
    "broken, message",
    [
        (make_overhead(schema=4), "schema 4"),
        (make_overhead(modes=[]), "must begin with 'off again'"),
        (make_overhead(modes=[DEAR, mode(OFF_AGAIN, 1.0, 1.0, 1.0)]), "must begin with 'off again'"),
        (make_overhead(modes=[mode(OFF_AGAIN, not_measured="why")]), "'off again', measured"),
        (make_overhead(runs=2), "'off again' must hold a number for each run"),
        (make_overhead(runs=0), r">= 1 - at `\$\.runs`"),
        (make_overhead(mode("operators", 1.0, -1.0, 1.0)), r">= 1e-09 - at `\$\.modes\[1\]\.step_ms"),
        (make_overhead(mode("operators", 1.0, 1.0, 1.0, off_ms=[1.0, 0.0, 1.0])), ">= 1e-09 - at .*off_ms"),
        (make_overhead(mode("operators", 1.0, 1.0, 1.0, off_ms=[1.0])), "'operators' must hold"),
        (make_overhead(mode("operators", 1.0, 1.0, 1.0, steps=[3, 0, 3])), ">= 1 - at .*steps"),
        (make_overhead(mode("operators")), "'operators' must hold"),
        (make_overhead(mode("kernels only", 1.0, 1.0, 1.0, not_measured="no GPU")), "'kernels only' must hold"),
    ],
)
def test_a_broken_result_is_refused_in_a_line(tmp_path, broken, message):
    record.write_json(tmp_path / FILE, asdict(broken))
    with pytest.raises(InputError, match=message):
        read(tmp_path)


# The table and the figure


def shown(result, width=140):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    overhead.show(result, console)
    return console.export_text()


def test_the_table_shows_ratios_with_intervals_sizes_and_what_is_resolved():
    left_out = mode("kernels only", not_measured="no GPU: there are no kernels to record")
    text = shown(make_overhead(left_out, NOISY, DEAR), width=400)
    rows = {line.partition("  ")[0]: line for line in text.splitlines()}
    assert rows["off"].split()[1:4] == ["100.0", "1.00x", "-"]
    assert rows["+ stacks"].split()[2:] == ["140.0", *str(DEAR.cost).split(), "10.0", "0.50", "2.00", "0.11", "4,000"]
    assert rows["operators"].split()[2].startswith("~1.09x")
    assert rows["operators"].split()[4] == "-", "no cost per event where the cost is not measurable"
    assert "not measured" in rows["kernels only"]
    for words in (
        "took ~1.00x (0.90-1.10) as long.", f"cheapest first: + stacks {DEAR.cost}.",
        f"Not measurably slower: operators {NOISY.cost}.", "Not measured: kernels only: no GPU", "A note.",
        "TorchScript",
    ):  # fmt: skip
        assert words in text


def test_a_control_that_differs_from_off_is_reported():
    assert "should include 1, so" not in overhead.verdict(make_overhead())
    differs = make_overhead(modes=[mode(OFF_AGAIN, 1.1, 1.1, 1.1)])
    assert "took 1.10x (1.10-1.10) as long: it should include 1, so something else differs" in overhead.verdict(differs)


def test_the_figure_shows_the_control_s_and_each_mode_s_cost_with_its_interval(tmp_path):
    left_out = mode("kernels only", not_measured="no GPU: there are no kernels to record")
    result = make_overhead(left_out, NOISY, DEAR)
    axes = overhead.figure(result).axes[0]
    resolved, unresolved = axes.containers
    assert resolved[0].get_xdata().tolist() == [DEAR.cost.ratio]
    assert resolved[0].get_ydata().tolist() == [3]
    assert resolved[0].get_color() == SPEED
    assert unresolved[0].get_xdata().tolist() == [result.control.cost.ratio, NOISY.cost.ratio]
    assert unresolved[0].get_ydata().tolist() == [0, 2]
    assert unresolved[0].get_color() == UNRESOLVED
    intervals = [segment[:, 0].tolist() for segment in resolved[2][0].get_segments()]
    assert intervals == [pytest.approx([DEAR.cost.low, DEAR.cost.high])]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        OFF_AGAIN,
        "kernels only",
        "operators",
        "+ stacks",
    ]
    for name in ("cost.svg", "cost.png"):
        save(overhead.figure(result), tmp_path / name)
    text = (tmp_path / "cost.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "mobilenet_v2, batch 32, 64 px, float32, Test CPU; 3 runs" in text
    assert text.count("not measured") == 1
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    for name in ("cost.html", "not there/cost.svg"):
        with pytest.raises(InputError):
            save(overhead.figure(result), tmp_path / name)


# The command


def ended(*words):
    """The exit code of `overhead`, in fp32, so that no CPU's instructions decide what is computed."""
    with pytest.raises(SystemExit) as end:
        main(["overhead", "--device", "cpu", "--quick", "--precision", "fp32", *map(str, words)])
    return end.value.code


def test_a_real_quick_call(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(overhead, "tracings", lambda device: [BY_NAME[name] for name in (OFF_AGAIN, "operators")])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert ended("--batch-size", 4, "--runs", 2, "--logdir", tmp_path) == 0
    assert capfd.readouterr().err == "", "nothing of the profiler's own warnings"
    result = read(tmp_path)
    assert (result.setup.model, result.quick) == ("tiny_convmixer", True)
    [operators] = result.traced
    assert operators.events_per_step > 100
    assert len(operators.finish_seconds) == len(operators.off_ms) == len(result.control.off_ms) == 2
