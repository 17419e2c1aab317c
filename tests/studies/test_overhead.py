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
from support import ROOT, SmallNet, assert_refused, run_program

from common import record
from common.__main__ import main
from common.errors import InputError
from common.ladder.figures import SPEED, UNRESOLVED
from common.studies import one_batch, overhead, study
from common.studies.overhead import figure, measure, view
from common.studies.overhead.record import FILE, OFF, OFF_AGAIN, Mode, Overhead, read

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BY_NAME = {tracing.name: tracing for tracing in measure.tracings(CPU)}


def mode(name, *ratios, **changes):
    """A mode of runs in which "off" took 100 ms per step."""
    values = dict(
        name=name,
        switches="no profiler",
        not_measured=None,
        step_ms=[100 * ratio for ratio in ratios],
        ratios=list(ratios),
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
    environment = record.Environment("2.11.0", None, None, "3.12.3", "Linux", "CPU", 2, None)
    values = dict(
        schema=2, setup=record.Setup("Test CPU", 2, None, "mobilenet_v2", 64), device_type="cpu", batch_size=32,
        precision="float32", seed=0, quick=False, steps=3, runs=3, before_ms=99.0,
        modes=[mode(OFF, 1.0, 1.0, 1.0), mode(OFF_AGAIN, 0.96, 1.04, 1.0), *modes],
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
            measure.trace_steps(BY_NAME[name], train_step, batch, CPU, 1, path)
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
    if name in (OFF, OFF_AGAIN, "kernels only"):
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
    on_gpu = {tracing.name: tracing for tracing in measure.tracings(CUDA)}
    assert list(on_gpu) == list(BY_NAME)
    assert on_gpu["kernels only"].arguments["activities"] == [torch.profiler.ProfilerActivity.CUDA]
    assert len(on_gpu["+ shapes"].arguments["activities"]) == 2
    assert all(tracing.why_not is None for tracing in on_gpu.values())
    assert BY_NAME["kernels only"].why_not == "no GPU: there are no kernels to record"


def test_a_torch_without_the_deprecated_switch_leaves_that_mode_out(monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", lambda activities=None, with_stack=False: None)
    left_out = {tracing.name: tracing.why_not for tracing in measure.tracings(CUDA) if tracing.why_not}
    assert list(left_out) == ["+ modules"]
    assert "no with_modules" in left_out["+ modules"]


def test_only_the_edges_of_the_timed_steps_synchronise_a_gpu(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("sync"))
    measure.trace_steps(BY_NAME[OFF], lambda *_: happened.append("step"), (), CUDA, 3, None)
    assert happened == ["step"] * measure.LEAD_STEPS + ["sync", "step", "step", "step", "sync"]


# The runs


def test_every_mode_begins_and_ends_some_run_and_none_is_always_after_the_same():
    names = list("abcdef")
    orders = [measure.order_of_run(names, run) for run in range(5)]
    assert all(sorted(order) == names for order in orders)
    assert len({order[0] for order in orders}) >= 3
    assert orders[0].index("b") > orders[0].index("a")
    assert orders[1].index("b") < orders[1].index("a")


def test_ratios_are_to_off_of_the_same_run_and_a_run_s_modes_have_equal_steps(monkeypatch):
    step_ms = {OFF: iter([100.0, 200.0]), OFF_AGAIN: iter([110.0, 190.0]), "operators": iter([150.0, 400.0])}
    warm, sized = [], []

    def trace_steps(tracing, train_step, batch, device, steps, path, **more):
        if tracing.name == "operators" and not warm:
            warm.append(steps)
            return None
        sized.append((tracing.name, more.get("with_sizes")))
        assert steps == 3
        sizes = (10, 1, 4.0) if more.get("with_sizes") else None
        return measure.Traced(next(step_ms[tracing.name]), None if tracing.arguments is None else 0.5, sizes)

    monkeypatch.setattr(measure, "trace_steps", trace_steps)
    tracings = [BY_NAME[name] for name in (OFF, OFF_AGAIN, "kernels only", "operators")]
    modes = measure.measure_modes(tracings, None, None, CPU, runs=2, steps=3)
    assert warm == [1], "the profiler's first use is not counted"
    off, again, kernels, operators = modes
    assert off.ratios == [1.0, 1.0]
    assert again.ratios == [pytest.approx(1.1), pytest.approx(0.95)]
    assert operators.ratios == [1.5, 2.0]
    assert operators.step_ms == [150.0, 400.0]
    assert (operators.json_bytes_per_step, operators.gzip_bytes_per_step, operators.events_per_step) == (10, 1, 4.0)
    assert (kernels.ratios, kernels.step_ms, kernels.finish_seconds) == ([], [], [])
    assert "no GPU" in kernels.not_measured
    assert [was for name, was in sized if name == "operators"] == [True, False], "one run's trace is looked at"


def test_the_steps_of_a_run_fill_its_time_within_bounds(monkeypatch):
    def steps(ms):
        monkeypatch.setattr(measure, "timed_window", lambda *_: SimpleNamespace(step_ms=[ms, 9 * ms]))
        return measure.steps_for(None, (), CPU)

    assert steps(2000.0) == measure.FEWEST_STEPS
    assert steps(0.1) == measure.MOST_STEPS
    assert steps(250.0) == 3


def test_a_trace_s_sizes_are_a_step_s_and_metadata_is_no_event(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "M"}, {"ph": "X"}, {"ph": "i"}, {"ph": "X"}]}) + " " * 1000)
    plain, packed, events = measure.trace_sizes(path, 2)
    assert plain == path.stat().st_size // 2
    assert 0 < packed < plain
    assert events == 1.5
    path.write_text('{"traceEvents": [')
    with pytest.raises(InputError, match="not be written whole"):
        measure.trace_sizes(path, 2)


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
    result = make_overhead(NOISY, DEAR)
    assert result.us_per_event(NOISY) is None
    assert result.us_per_event(DEAR) == pytest.approx(40e3 / 4000)  # the median run takes 40 ms longer
    assert result.traced == [NOISY, DEAR]


def test_a_machine_that_drifts_does_it_to_both_sides_of_a_run_s_ratio():
    drifting = mode("operators", 1.2, 1.2, 1.2, step_ms=[120.0, 240.0, 480.0])  # as "off" took 100, 200, 400
    assert drifting.slower


def test_the_control_does_not_widen_what_is_resolved():
    noisy_control = make_overhead(modes=[mode(OFF, 1.0, 1.0, 1.0), mode(OFF_AGAIN, 0.7, 1.6, 1.3), DEAR])
    assert "Slower than without a profiler, cheapest first: + stacks 1.40x" in view.verdict(noisy_control)


def test_one_run_has_no_interval_and_resolves_nothing():
    once = make_overhead(runs=1, modes=[mode(OFF, 1.0), mode(OFF_AGAIN, 1.01), traced_mode("+ stacks", 3.0)])
    assert (once.modes[2].cost, once.modes[2].slower, once.modes[2].ratio) == (None, False, pytest.approx(3.0))
    assert "One run gives no interval" in view.verdict(once)
    assert "~3.00x" in shown(once)
    assert once.as_json()["costs"] == {OFF_AGAIN: None, "+ stacks": None}


def test_the_file_holds_the_costs_with_their_intervals_where_scipy_is_there(monkeypatch):
    costs = make_overhead(DEAR, mode("kernels only", not_measured="no GPU")).as_json()["costs"]
    assert list(costs) == [OFF_AGAIN, "+ stacks"]
    assert costs["+ stacks"] == asdict(DEAR.cost)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert "costs" not in make_overhead(DEAR).as_json()


# The record


def test_a_result_is_read_as_it_was_written(tmp_path):
    assert read(tmp_path) is None
    result = make_overhead(traced_mode("operators", 1.2, 1.3, 1.4), mode("kernels only", not_measured="no GPU"))
    study.write(tmp_path / FILE, result)
    assert read(tmp_path) == result


def test_a_file_of_schema_1_reads_with_the_same_numbers():
    folder = ROOT / "tests" / "data" / "schema_1"
    value, result = json.loads((folder / FILE).read_text()), read(folder)
    assert value["schema"] == 1
    assert (result.schema, result.setup) == (2, record.Setup("AMD EPYC", 2, None, "mobilenet_v2", 64))
    assert [asdict(mode) for mode in result.modes] == value["modes"]
    assert all(min(mode.ratios) <= mode.cost.ratio <= max(mode.ratios) for mode in result.traced)
    assert not {mode.name for mode in result.traced if mode.slower} & {
        mode.name for mode in result.traced if min(mode.ratios) < 1
    }
    for name in ("batch_size", "precision", "seed", "steps", "runs", "before_ms", "notes", "started"):
        assert getattr(result, name) == value[name]
    assert not result.quick


@pytest.mark.parametrize(
    "broken, message",
    [
        (make_overhead(schema=3), "schema 3"),
        (make_overhead(modes=[]), "must begin with 'off' and 'off again'"),
        (make_overhead(modes=[mode(OFF_AGAIN, 1.0, 1.0, 1.0), mode(OFF, 1.0, 1.0, 1.0)]), "must begin with 'off'"),
        (make_overhead(modes=[mode(OFF, 1.0, 1.0, 1.0), mode(OFF_AGAIN, not_measured="why")]), "both measured"),
        (make_overhead(runs=2), "'off' must hold a number for each run"),
        (make_overhead(runs=0), r">= 1 - at `\$\.runs`"),
        (make_overhead(before_ms=0.0), r"> 0\.0 - at `\$\.before_ms`"),
        (make_overhead(mode("operators", 1.0, -1.0, 1.0)), r"> 0\.0 - at `\$\.modes\[2\]\.step_ms"),
        (make_overhead(replace(mode("operators", 1.0, 1.0, 1.0), ratios=[1.0, 0.0, 1.0])), "> 0.0 - at .*ratios"),
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
    view.show(result, console)
    return console.export_text()


def test_the_table_shows_ratios_with_intervals_sizes_and_what_is_resolved():
    left_out = mode("kernels only", not_measured="no GPU: there are no kernels to record")
    text = shown(make_overhead(left_out, NOISY, DEAR), width=400)
    rows = {line.partition("  ")[0]: line for line in text.splitlines()}
    assert rows["off"].split()[1:4] == ["100.0", "1.00x", "-"]
    assert rows["+ stacks"].split()[2:] == ["140.0", *str(DEAR.cost).split(), "10.0", "0.50", "2.00", "0.11", "4,000"]
    assert rows["operators"].split()[2].startswith("~1.09x")
    assert rows["operators"].split()[4] == "-", "no cost per event where the cost is not resolved"
    assert "not measured" in rows["kernels only"]
    for words in (
        "took ~1.00x (0.90-1.10) as long.", f"cheapest first: + stacks {DEAR.cost}.",
        f"Not resolved as slower: operators {NOISY.cost}.", "Not measured: kernels only: no GPU", "A note.",
        "TorchScript",
    ):  # fmt: skip
        assert words in text


def test_a_control_that_differs_from_off_is_reported():
    assert "should hold 1, so" not in view.verdict(make_overhead())
    differs = make_overhead(modes=[mode(OFF, 1.0, 1.0, 1.0), mode(OFF_AGAIN, 1.1, 1.1, 1.1)])
    assert "took 1.10x (1.10-1.10) as long: it should hold 1, so something else differs" in view.verdict(differs)


def test_steps_without_a_profiler_that_differ_widely_are_reported():
    assert "UNSTEADY" not in shown(make_overhead())
    assert "UNSTEADY" in shown(make_overhead(modes=[mode(OFF, 1.0, 1.0), mode(OFF_AGAIN, 0.7, 1.3)]))
    drifting = mode(OFF, 1.0, 1.0, step_ms=[100.0, 190.0])
    assert "UNSTEADY: steps without a profiler" in shown(make_overhead(modes=[drifting, mode(OFF_AGAIN, 1.0, 1.0)]))


def test_the_table_fits_a_narrow_terminal():
    assert max(map(len, shown(make_overhead(NOISY, DEAR), width=80).splitlines())) <= 80


def test_the_figure_shows_the_control_s_and_each_mode_s_cost_with_its_interval(tmp_path):
    left_out = mode("kernels only", not_measured="no GPU: there are no kernels to record")
    result = make_overhead(left_out, NOISY, DEAR)
    axes = figure.overhead_figure(result).axes[0]
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
        figure.draw(result, tmp_path / name)
    text = (tmp_path / "cost.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "mobilenet_v2, batch 32, 64 px, float32, Test CPU; 3 runs" in text
    assert text.count("not measured") == 1
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    for name in ("cost.html", "not there/cost.svg"):
        with pytest.raises(InputError):
            figure.draw(result, tmp_path / name)


def test_a_result_without_any_tracing_can_be_drawn(tmp_path):
    figure.draw(make_overhead(), tmp_path / "cost.svg")
    assert OFF_AGAIN in (tmp_path / "cost.svg").read_text()


def test_of_one_run_the_figure_has_no_points(tmp_path):
    result = make_overhead(runs=1, modes=[mode(OFF, 1.0), mode(OFF_AGAIN, 1.01), traced_mode("+ stacks", 3.0)])
    figure.draw(result, tmp_path / "cost.svg")
    assert (tmp_path / "cost.svg").read_text().count("one run: no interval") == 2


# The command


def ended(*words):
    """The exit code of `overhead`, in fp32, so that no CPU's instructions decide what is computed."""
    with pytest.raises(SystemExit) as end:
        main(["overhead", "--device", "cpu", "--quick", "--precision", "fp32", *map(str, words)])
    return end.value.code


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(measure, "classifier", lambda *_: SmallNet())


@pytest.fixture
def few_modes(monkeypatch):
    monkeypatch.setattr(measure, "tracings", lambda device: [BY_NAME[name] for name in (OFF, OFF_AGAIN, "operators")])


def test_the_command_prints_json_alone_and_writes_the_same(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(overhead, "QUICK_RUNS", 1)  # a run of all modes takes seconds
    assert ended("--logdir", tmp_path, "--json", "--batch-size", 4, "--plot", tmp_path / "cost.svg") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / FILE).read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cost.svg", FILE]
    result = read(tmp_path)
    assert (result.runs, result.steps, result.batch_size) == (1, measure.FEWEST_STEPS, 4)
    assert (result.schema, result.setup.image_size, result.precision, result.quick) == (2, 48, "float32", True)
    assert len(result.modes) == len(BY_NAME)
    sizes = {mode.name: mode.json_bytes_per_step for mode in result.modes}
    assert sizes["operators"] < sizes["+ shapes"] < sizes["as the steps"] < sizes["+ stacks of operators"]


def test_the_batch_size_follows_from_the_device(small, few_modes, tmp_path, capsys):
    assert ended("--logdir", tmp_path, "--runs", 1) == 0
    assert "written to" in capsys.readouterr().out
    assert read(tmp_path).batch_size == overhead.BATCH_SIZE["cpu"]
    assert [path.name for path in Path(tmp_path).iterdir()] == [FILE]


def test_a_batch_that_does_not_fit_is_halved_and_reported(small, few_modes, room_for_two, tmp_path, capsys):
    assert ended("--logdir", tmp_path, "--batch-size", 4, "--runs", 1) == 0
    assert "measured with batch 2" in capsys.readouterr().out
    assert read(tmp_path).batch_size == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "mobilenet_v22"], "unknown model"),
        (["--runs", "0"], "whole number"),
        (["--device", "tpu"], "unknown device"),
        (["--logdir", "/dev/null/logs"], "cannot write"),
        (["--plot", "cost.gif"], ".svg or .png"),
        (["--plot", "not there/cost.svg"], "no folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, message):
    assert ended("--logdir", tmp_path, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / FILE).exists()


def test_a_real_quick_call(tmp_path):
    words = ("--quick", "--device", "cpu", "--batch-size", 4, "--runs", 1, "--logdir", tmp_path)
    finished = run_program("-m", "common", "overhead", *words, cwd=ROOT, OMP_NUM_THREADS=1)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == "", "nothing of the profiler's own warnings"
    result = read(tmp_path)
    assert result.setup.model == "tiny_convmixer"
    operators = next(mode for mode in result.modes if mode.name == "operators")
    assert operators.events_per_step > 100
    assert len(operators.finish_seconds) == 1


def test_a_bad_number_of_runs_ends_the_program_in_a_line():
    assert_refused(run_program("-m", "common", "overhead", "--runs", "some", cwd=ROOT), "whole number")
