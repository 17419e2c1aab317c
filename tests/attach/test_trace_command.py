"""`trace`: small trainings of every style, unchanged, by the command line; and what it says where there is nothing."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, assert_refused, run_program, start_program, still_there

from walkthrough.advice import report_of
from walkthrough.attach import launch
from walkthrough.attach.launch import Outcome, reports_folder, run_attached, why_nothing
from walkthrough.results.folder import traces_in

pytestmark = pytest.mark.xdist_group("trace")  # the programs of every style run once
PROGRAMS = Path(__file__).parent / "programs"
STYLES = ["plain", "accumulate", "gan", "scaler", "closure", "functional", "compiled", "without_loader"]
STYLES += ["short_epochs", "own_profiler", "late_profiler", "in_thread", "swallows", "raises", "vanishes", "few"]
STYLES += ["abandoned", "compiled_step", "in_backward", "legacy_profiler", "odd_batches", "recreated", "two_trainings"]
STYLES += ["own_handler"]
HARD = ["rollouts", "actor_critic", "evaluates_training_data", "federated", "grid", "images", "validates_often"]
HARD += ["ten_steps", "own_optimizer", "lbfgs", "one_call"]  # to find the steps of, or with few of them
WARMUP, LONG_WARMUP = 4, 10


def trace(*words, cwd=None, **environment):
    return run_program("-m", "walkthrough", "trace", *words, cwd=cwd, PYTHONPATH=ROOT, **environment)


def contents(path):
    with gzip.open(path) as file:
        return json.load(file)


def step_marks(content):
    """{number: whether the mark was closed} of the steps in a trace."""
    marks = [event for event in content["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]
    return {int(event["name"].partition("#")[2]): event["args"].get("finished", True) for event in marks}


def run_programs(folder, names, warmup):
    """{program: (its exit code, its trace or None)}, and the command's finished process as "command"."""
    finished = trace("--warmup", warmup, "--out", folder, "--", sys.executable, PROGRAMS / "several.py", *names)
    by_process = {path.name.split(".")[0].rpartition("_")[2]: path for path in traces_in(folder)}
    rows = [line.split() for line in finished.stdout.splitlines()]
    ended = {row[0]: row[1:] for row in rows if len(row) == 3 and row[0] in names}
    assert set(ended) == set(names), finished.stdout + finished.stderr
    result = {
        name: (int(code), contents(by_process[process]) if process in by_process else None)
        for name, (process, code) in ended.items()
    }
    return result | {"command": finished, "folder": folder}


@pytest.fixture(scope="module")
def styles(tmp_path_factory):
    return run_programs(tmp_path_factory.mktemp("styles"), STYLES, WARMUP)


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    return run_programs(tmp_path_factory.mktemp("hard"), HARD, LONG_WARMUP)


NOT_TRACED = ("own_profiler", "vanishes", "few")
CUT = ("late_profiler", "legacy_profiler", "raises")  # after a step or two
TRACED = [name for name in STYLES if name not in NOT_TRACED + CUT]


@pytest.mark.long
@pytest.mark.parametrize("style", TRACED)
def test_three_whole_steps_of_every_style_are_traced(styles, style):
    _, content = styles[style]
    marks = step_marks(content)
    assert len(marks) == 3
    assert all(marks.values())
    written = content["walkthrough"]
    untraced = written["untraced_step_ms"] + written["untraced_after_ms"]
    assert len(untraced) >= WARMUP - 1
    assert all(ms > 0 for ms in untraced)
    assert written["asked"] == {"warmup": WARMUP, "steps": 3}
    assert written["total_steps"] >= written["warmup"] + 4
    assert written["cores"] >= 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("style", "name", "backwards"),
    [
        ("plain", "SGD", 1),
        ("accumulate", "AdamW", 8),
        ("gan", "RMSprop", 4),
        ("scaler", "SGD", 1),
        ("closure", "Careful", 1),
        ("compiled", "SGD", 1),
        ("compiled_step", "SGD", 1),
        ("abandoned", "SGD", 1),
        ("recreated", "SGD", 1),
        ("two_trainings", "SGD", 1),
    ],
)
def test_the_optimizer_that_steps_least_marks_the_steps(styles, style, name, backwards):
    written = styles[style][1]["walkthrough"]
    assert [optimizer["name"] for optimizer in written["optimizers"] if optimizer["lead"]] == [name]
    assert written["mark"] == "optimizer"
    assert written["backwards_per_step"] == backwards
    assert written["samples_per_step"] == 4 * backwards


@pytest.mark.long
def test_a_step_that_the_scaler_skips_is_a_step(styles):
    written = styles["scaler"][1]["walkthrough"]
    assert written["skipped"] == 1  # each third one, of three


@pytest.mark.long
@pytest.mark.parametrize("style", ["functional", "in_backward"])
def test_without_an_optimizer_or_where_it_steps_inside_of_them_backward_passes_mark_the_steps(styles, style):
    written = styles[style][1]["walkthrough"]
    assert (written["mark"], written["backwards_per_step"]) == ("backward", 1)
    assert written["optimizers"] == [] or style == "in_backward"


@pytest.mark.long
def test_the_window_moves_past_an_evaluation(styles):
    written = styles["without_loader"][1]["walkthrough"]
    assert written["moved"] == 1
    assert written["happenings"] == []
    assert {item["what"] for item in written["untraced_happenings"]} == {"evaluation", "checkpoint"}
    assert written["loaders"] == []
    assert written["samples_per_step"] is None


@pytest.mark.long
def test_epochs_shorter_than_the_window_are_named(styles):
    written = styles["short_epochs"][1]["walkthrough"]
    assert written["moved"] <= 1
    assert {item["what"] for item in written["happenings"]} == {"new epoch"}
    assert {int(item["step"]) for item in written["happenings"]} < {1, 2, 3}
    assert written["samples_per_step"] == 32


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "optimizers", "backwards", "total"),
    [
        ("rollouts", ["Adam"], 1, 30),  # of which more are timed, since they are short
        ("actor_critic", ["Adam", "Adam", "Adam"], 6, 24),  # two of the critic, of the actor, of the temperature
        ("evaluates_training_data", ["AdamW"], 1, 24),
        ("federated", ["SGD"], 1, 24),
        ("images", ["Adam"], 1, 24),
        ("validates_often", ["RMSprop"], 1, 18),
        ("ten_steps", ["SGD"], 1, 10),
        ("own_optimizer", [], 1, 10),
        ("lbfgs", ["LBFGS"], 20, 20),
        ("one_call", [], 1, 25),
    ],
)
def test_steps_are_found_where_that_is_hard(hard, program, optimizers, backwards, total):
    code, content = hard[program]
    written = content["walkthrough"]
    assert code == 0
    assert len(step_marks(content)) == 3
    assert [optimizer["name"] for optimizer in written["optimizers"]] == optimizers
    assert written["backwards_per_step"] == backwards
    assert written["total_steps"] >= total


@pytest.mark.long
def test_each_training_of_a_grid_is_one_of_its_own(hard):
    written = hard["grid"][1]["walkthrough"]
    assert written["warmup"] >= LONG_WARMUP
    assert sum(optimizer["lead"] for optimizer in written["optimizers"]) == 1
    assert max(optimizer["steps"] for optimizer in written["optimizers"]) == 6


@pytest.mark.long
@pytest.mark.parametrize("program", ["ten_steps", "own_optimizer"])
def test_where_the_warm_up_cannot_be_had_steps_before_it_are_traced(hard, program):
    written = hard[program][1]["walkthrough"]
    assert (written["warmup"], written["asked"]["warmup"]) == (3, LONG_WARMUP)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("rollouts", set()),
        ("federated", {"new epoch"}),
        ("evaluates_training_data", {"evaluation"}),
        ("validates_often", {"evaluation", "new epoch"}),
    ],
)
def test_an_evaluation_is_what_runs_after_eval_or_in_a_loader_without_gradients(hard, program, what):
    written = hard[program][1]["walkthrough"]
    assert {item["what"] for item in written["happenings"] + written["untraced_happenings"]} == what
    assert bool(written["epoch_step_ms"]) == ("new epoch" in what)


@pytest.mark.long
def test_a_rollout_is_told_and_is_no_evaluation(tmp_path):
    words = ("--warmup", 12, "--steps", 16, "--out", tmp_path, "--", sys.executable, PROGRAMS / "rollouts.py")
    trace(*words, OMP_NUM_THREADS="1")
    [path] = traces_in(tmp_path)
    shown = report_of(path)
    reasons = {reason for step in shown["steps"]["outliers"] for reason in step["reasons"]}
    assert (reasons, shown["long_steps"]["reasons"]) == ({"forward passes"}, ["forward passes"])
    assert shown["long_steps"]["count"] >= 2


@pytest.mark.long
def test_batches_of_any_kind_are_counted(styles):
    assert styles["odd_batches"][1]["walkthrough"]["samples_per_step"] == 2


@pytest.mark.long
@pytest.mark.parametrize("style", ["odd_batches", "own_handler", "swallows"])
def test_a_program_goes_on_to_its_own_end(styles, style):
    """Nothing of its batches' own code runs, the signal handler that it sets stays, it may catch everything."""
    assert styles[style][0] == 0


@pytest.mark.long
def test_nothing_of_the_hook_is_inside_the_optimizers_mark(styles):
    events = styles["plain"][1]["traceEvents"]
    steps = [event for event in events if str(event.get("name")).startswith("Optimizer.step#SGD.step")]
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if str(event.get("name")).startswith("ProfilerStep#")
    )
    assert len(steps) == 3
    for event, (begin, end) in zip(sorted(steps, key=lambda event: event["ts"]), marks, strict=True):
        assert begin <= event["ts"]
        assert event["ts"] + event["dur"] <= end


@pytest.mark.long
def test_what_was_whole_before_an_exception_is_a_trace(styles):
    code, content = styles["raises"]
    assert code == 1
    assert step_marks(content) == {1: True, 2: True, 3: False}
    assert content["walkthrough"]["backwards_per_step"] == 1


@pytest.mark.long
@pytest.mark.parametrize(("style", "code"), [("vanishes", 5), ("few", 0), ("own_profiler", 0)])
def test_no_half_trace_is_written(styles, style, code):
    assert styles[style] == (code, None)


@pytest.mark.long
@pytest.mark.parametrize("style", ["late_profiler", "legacy_profiler"])
def test_what_was_whole_before_the_programs_own_profiler_is_a_trace(styles, style):
    code, content = styles[style]
    assert code == 0
    assert 1 <= sum(step_marks(content).values()) < 3
    assert "the program has a profiler of its own running" in styles["command"].stderr.splitlines()[-1]


@pytest.mark.long
def test_nothing_else_is_left_in_the_folder(styles):
    assert all(path.name.endswith(".pt.trace.json.gz") for path in styles["folder"].iterdir())


@pytest.mark.long
def test_the_last_line_says_how_it_ended(styles):
    last = styles["command"].stderr.splitlines()[-1]
    assert styles["command"].returncode == 0
    assert re.search(r"traced \d to 3 of \d+ steps of", last)
    assert f" steps of {len(TRACED) + len(CUT)} processes" in last
    assert "exit code is 0" in last


def test_one_program_is_traced_explained_and_ended(tmp_path):
    finished = trace("--warmup", 3, "--", PROGRAMS / "find_spec_first.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / "logs" / "find_spec_first"
    assert len(traces_in(folder)) == 1
    assert "3 steps" in finished.stdout
    assert re.search(r"Traced: 3 of \d+ steps; untraced: median ", finished.stdout)
    assert "More: walkthrough explain logs/find_spec_first --all" in finished.stdout
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("walkthrough trace: traced 3 of ")
    assert " steps into logs/find_spec_first; the program " in last


@pytest.mark.long
def test_each_rank_that_torchrun_starts_writes_its_trace(tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    finished = trace("--warmup", 3, "--out", tmp_path / "out", "--", *torchrun, PROGRAMS / "ddp.py")
    assert finished.returncode == 0, finished.stderr
    found = [contents(path) for path in traces_in(tmp_path / "out")]
    assert sorted(content["distributedInfo"]["rank"] for content in found) == [0, 1]
    assert [sorted(step_marks(content)) for content in found] == [[1, 2, 3]] * 2
    assert "2 ranks;" in finished.stdout


@pytest.mark.long
def test_processes_that_the_program_spawns_are_traced_with_workers_of_each_kind(tmp_path):
    both = f"{sys.executable} {PROGRAMS / 'spawned.py'} {tmp_path} && {sys.executable} {PROGRAMS / 'workers.py'}"
    script = tmp_path / "train.sh"
    script.write_text(both, encoding="utf-8")
    finished = trace("--warmup", 3, "--go-on", "--out", tmp_path / "out", "--", "sh", script)
    assert finished.returncode == 0, finished.stderr
    assert "all have ended" in finished.stdout
    assert len(traces_in(tmp_path / "out")) == 3
    last = finished.stderr.splitlines()[-1]
    assert "traced 3 steps of 3 processes" in last
    assert "the program ran to its end" in last


FOREVER = """
import sys
sys.path.insert(0, {programs!r})
import parts, torch
network, batches = parts.model(), parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
number = 0
while True:
    parts.loss(network, *next(batches)).backward()
    optimizer.step()
    number += 1
    if number == {at}:
        print("there", flush=True)
        torch.randn(10).sum()
        import time
        while True:  # a signal that comes just before a long sleep is noticed only after it
            time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("at", "number", "code", "words"),
    [
        (2, signal.SIGINT, 130, "not traced: it ended"),
        (7, signal.SIGINT, 0, "traced 2 of 7 steps"),  # 4 of warm-up, 1 of the profiler's, 2 whole ones
        (7, signal.SIGTERM, 0, "traced 2 of 7 steps"),
    ],
)
def test_a_signal_ends_the_program_and_keeps_what_is_whole(tmp_path, at, number, code, words):
    script = tmp_path / "forever.py"
    script.write_text(FOREVER.format(programs=str(PROGRAMS), at=at), encoding="utf-8")
    command = [sys.executable, "-m", "walkthrough", "trace", "--warmup", "4", "--out", "out"]
    command += ["--", sys.executable, script]
    process = start_program(*command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert not still_there([process.pid])
    last = errors.splitlines()[-1]
    assert words in last, errors
    assert process.returncode == code, errors
    assert bool(traces_in(tmp_path / "out") if (tmp_path / "out").exists() else []) == (at == 7)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["true"], 2, "no Python process of it could be attached to"),
        (["sh", "-c", "exit 3"], 3, "no Python process of it could be attached to"),
        ([sys.executable, "-I", "-c", "pass"], 2, "without the options -I, -E or -S"),
        ([sys.executable, "-c", "print('mine')"], 2, "imported torch"),
        ([sys.executable, "-c", "import torch, sys; sys.exit(7)"], 7, "no optimizer stepped"),
        ([sys.executable, PROGRAMS / "few.py"], 2, "after 3 training steps"),
    ],
)
def test_what_cannot_be_traced_is_one_line_with_the_commands_exit_code(tmp_path, words, code, message):
    finished = trace("--out", "out", "--", *words, cwd=tmp_path)
    assert finished.returncode == code
    assert finished.stderr.count("\n") == 1
    assert message in finished.stderr
    assert "the command's exit code is" in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--"], "no command given"),
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["--", "nowhere.py"], "nowhere.py: no such file"),
        (["--out", "/proc/nowhere", "--", "true"], "cannot write /proc/nowhere"),
        (["--out", __file__, "--", "true"], "File exists; choose another folder"),
        (["--out", f"new/{'n' * 300}", "--", "true"], "File name too long"),
        (["--steps", "0", "--", "true"], "not a whole number from 1"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused_in_one_line(tmp_path, words, message):
    assert_refused(trace(*words, cwd=tmp_path), message)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_for_nothing_is_removed_with_those_above(tmp_path):
    assert trace("--", "true", cwd=tmp_path).returncode == 2
    assert list(tmp_path.iterdir()) == []


def attached(words, folder):
    with reports_folder(folder) as reports:
        return run_attached(words, {"mode": "trace", "go_on": False, "warmup": 1}, reports)


def test_a_command_without_a_training_step_is_ended_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "WAIT", 1.5)
    outcome = attached(["sleep", "600"], tmp_path)
    assert outcome.code == -signal.SIGTERM
    assert outcome.exit_code == 143
    assert why_nothing(outcome, 1).startswith("no training step has ended in 0.025 minutes")


def test_a_command_that_is_ended_leaves_no_process_behind(tmp_path, monkeypatch):
    child = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, {str(tmp_path / 'pid')!r}])"
    monkeypatch.setattr(launch, "WAIT", 8)
    outcome = attached([sys.executable, "-c", parent], tmp_path)
    assert outcome.stopped
    assert not still_there([int((tmp_path / "pid").read_text())])


@pytest.mark.parametrize(
    ("size", "message"), [(20000, "cannot write the trace to"), (10, "it cannot write its report to")]
)
def test_what_does_not_fit_is_said_and_not_left_behind(tmp_path, size, message):
    """RLIMIT_FSIZE refuses larger files, as a full disk would."""
    script = tmp_path / "limited.py"
    text = "import resource, signal, sys, runpy\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    text += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    text += f"sys.path.insert(0, {str(PROGRAMS)!r})\nrunpy.run_path({str(PROGRAMS / 'plain.py')!r})\n"
    script.write_text(text, encoding="utf-8")
    finished = trace("--warmup", 3, "--out", "out", "--", sys.executable, script, cwd=tmp_path)
    assert finished.returncode == 2
    last = finished.stderr.splitlines()[-1]
    assert f"not traced: {message} {tmp_path / 'out'}: " in last
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("command", ["trace", "time"])
def test_a_disk_that_is_full_from_the_start_is_one_line(tmp_path, command, blocks):
    words = {"trace": ["--", "true"], "time": ["--", "true", "--versus", "true"]}[command]
    script = tmp_path / "full.sh"
    script.write_text(f'ulimit -f {blocks}; exec "$@"', encoding="utf-8")
    call = ["sh", script, sys.executable, "-m", "walkthrough", command, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        list(map(str, call)), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert_refused(finished, "cannot write ")
    assert list(tmp_path.iterdir()) == [script]


def test_the_sitecustomize_that_was_there_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other one')", encoding="utf-8")
    code = "import sys; print('walkthrough_hook' in str(sys.path))"
    finished = run_program(
        "-m",
        "walkthrough",
        "trace",
        "--out",
        tmp_path / "out",
        "--",
        sys.executable,
        "-c",
        code,
        PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}",
    )
    assert "the other one" in finished.stdout
    assert "False" in finished.stdout


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([{"state": "failed", "pid": 1, "reason": "no space"}, {"state": "torch", "pid": 2}], "no space"),
        ([{"state": "measuring", "pid": 1}], "by a signal or os._exit"),
        (
            [{"state": "stepping", "pid": 1, "steps": 7}],
            "7 training steps, before measuring began: give --warmup 1",
        ),
        (
            [{"state": "stepping", "pid": 1, "steps": 60}],
            "60 training steps, before measuring began: train longer",
        ),
        ([{"state": "stepping", "pid": 1, "steps": 2}], "after 2 training steps, before measuring began: train longer"),
        ([{"state": "stepping", "pid": 1}], "give a smaller --warmup"),
        ([{"state": "torch", "pid": 1}, {"state": "python", "pid": 2}], "no optimizer stepped"),
        ([{"state": "python", "pid": 1}], "imported torch"),
        ([], "without the options -I, -E or -S"),
    ],
)
def test_every_way_not_to_be_traced_has_its_words(reports, words):
    assert words in why_nothing(Outcome(0, reports), 10)


def test_every_end_has_its_words():
    assert Outcome(3, []).ended == "the command's exit code is 3"
    assert Outcome(-9, []).ended == "the command was ended by SIGKILL"
    assert Outcome(-40, []).ended == "the command was ended by signal 40"
    assert Outcome(-9, []).exit_code == 137


def test_a_command_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    monkeypatch.setattr(launch, "WAIT", 2)
    outcome = attached([sys.executable, "-c", code], tmp_path)
    assert outcome.code in (-signal.SIGKILL, -signal.SIGTERM)  # the latter where it came before the program heeded
