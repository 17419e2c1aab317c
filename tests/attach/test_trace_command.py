"""`trace`: small trainings of every style, unchanged, by the command line; and what it says where there is nothing."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT, assert_refused, run_program, start_program, still_there, wait_for
from support.trace_builder import two_steps

from walkthrough.attach import launch, trace_command
from walkthrough.attach.launch import Outcome, reports_folder, run_attached, why_nothing
from walkthrough.results.folder import traces_in

pytestmark = pytest.mark.xdist_group("trace")  # the trainings of every style run once
PROGRAMS = Path(__file__).parent / "programs"
TRAININGS = PROGRAMS / "trainings.py"
WARMUP = 4
# {training: what its trace says of it, besides "optimizer" marks and one backward pass per step of 4 samples}
TRACED = {
    "plain": {"lead": ["SGD"]},
    "accumulate": {"lead": ["AdamW"], "backwards_per_step": 8, "samples_per_step": 32},
    "scaler": {"lead": ["SGD"], "skipped": 1},  # each third one, of three
    "closure": {"lead": ["Careful"]},
    "functional": {"lead": [], "mark": "backward"},
    "in_backward": {"mark": "backward"},
    "compiled": {"lead": ["SGD"]},
    "in_thread": {"lead": ["SGD"]},
    "workers": {"lead": ["SGD"]},
    "without_loader": {  # the window moves past its evaluations
        "samples_per_step": None, "loaders": [], "moved": 1,
        "traced_happenings": set(), "happened": {"evaluation", "checkpoint"},
    },
}  # fmt: skip
CUT = {"raises": 1, "terminated": 143}  # after a step or two; and their exit codes
NOT_TRACED = {"no_room": 0, "own_profiler": 0, "vanishes": 5}


@pytest.fixture
def trace(run_command, tmp_path, monkeypatch):
    """trace(*words): the command in this process, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_command("trace", *words)


def contents(path):
    with gzip.open(path) as file:
        return json.load(file)


def step_marks(content):
    """{number: whether the mark was closed} of the steps in a trace."""
    marks = [event for event in content["traceEvents"] if str(event.get("name")).startswith("ProfilerStep#")]
    return {int(event["name"].partition("#")[2]): event["args"].get("finished", True) for event in marks}


def said(content):
    """What a trace says of its training, in short."""
    written = content["walkthrough"]
    traced, others = ({item["what"] for item in written[name]} for name in ("happenings", "untraced_happenings"))
    return written | {
        "lead": [optimizer["name"] for optimizer in written["optimizers"] if optimizer["lead"]],
        "traced_happenings": traced,
        "happened": traced | others,
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of all trainings: `codes`, their exit codes, and `traces`, None where there is none; those of the `ranks`."""
    folder, names = tmp_path_factory.mktemp("traces"), [*TRACED, *CUT, *NOT_TRACED, "ranks"]
    words = ("--warmup", WARMUP, "--out", folder, "--", sys.executable, TRAININGS, *names)
    command = run_program("-m", "walkthrough", "trace", *words, PYTHONPATH=ROOT)
    by_process = {path.name.split(".")[0].rpartition("_")[2]: contents(path) for path in traces_in(folder)}
    assert len(by_process) == len(list(folder.iterdir()))  # nothing else is left there
    rows = [line.split() for line in command.stdout.splitlines()]
    ended = {name: (process, int(code)) for name, process, code in (row for row in rows if len(row) == 3)}
    return SimpleNamespace(
        codes={name: ended[name][1] for name in names},
        traces={name: by_process.pop(ended[name][0], None) for name in names},
        ranks=by_process,
        command=command,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", TRACED)
def test_three_whole_steps_are_traced_and_the_program_goes_on_to_its_own_end(runs, name):
    content = runs.traces[name]
    assert list(step_marks(content).values()) == [True] * 3
    usual = {"mark": "optimizer", "backwards_per_step": 1, "samples_per_step": 4}
    expected = usual | {"asked": {"warmup": WARMUP, "steps": 3}} | TRACED[name]
    found = said(content)
    assert {key: found[key] for key in expected} == expected
    assert found["total_steps"] >= found["warmup"] + 4
    assert found["cores"] >= 1
    untraced = found["untraced_step_ms"] + found["untraced_after_ms"]
    assert len(untraced) >= WARMUP - 1
    assert min(untraced) > 0
    assert runs.codes[name] == 0 or name == "in_thread"  # which torch may abort at its end


@pytest.mark.long
def test_ranks_are_traced_and_ended_after_the_same_steps(runs):
    assert sorted(runs.ranks) == ["0", "1"]
    assert [runs.ranks[rank]["distributedInfo"]["rank"] for rank in "01"] == [0, 1]
    assert [list(step_marks(content).values()) for content in runs.ranks.values()] == [[True] * 3] * 2
    totals = [said(content)["total_steps"] for content in runs.ranks.values()]
    assert totals == [WARMUP + 1 + 3 + 3] * 2  # one in which the profiler warms up; three more after the traced ones


@pytest.mark.long
def test_nothing_of_the_hook_is_inside_the_optimizers_mark(runs):
    events = sorted(runs.traces["plain"]["traceEvents"], key=lambda event: event.get("ts", 0))
    steps, marks = (
        [(event["ts"], event["ts"] + event["dur"]) for event in events if str(event.get("name")).startswith(name)]
        for name in ("Optimizer.step#SGD.step", "ProfilerStep#")
    )
    assert len(steps) == 3
    for step, mark in zip(steps, marks, strict=True):
        assert mark[0] <= step[0] <= step[1] <= mark[1]


@pytest.mark.long
def test_what_was_whole_before_the_program_ends_is_a_trace_and_no_less(runs):
    assert step_marks(runs.traces["raises"]) == step_marks(runs.traces["terminated"]) == {1: True, 2: True, 3: False}
    assert [runs.traces[name] for name in (*NOT_TRACED, "ranks")] == [None] * 4
    assert {name: runs.codes[name] for name in (*CUT, *NOT_TRACED)} == CUT | NOT_TRACED
    last = runs.command.stderr.splitlines()[-1]
    assert runs.command.returncode == 0
    assert re.search(rf"traced 2 to 3 of \d+ steps of {len(TRACED) + len(CUT) + 2} processes", last)
    assert "the program was ended after them, the command's exit code is 0" in last
    assert re.search("; 3 more not: cannot write the trace to [^;:]+: No space left on device; ", last)


def test_one_program_is_traced_before_a_warm_up_that_it_has_not_and_explained(trace):
    finished = trace("--warmup", 10, "--steps", 2, "--memory", "--", PROGRAMS / "find_spec_first.py")
    assert finished.returncode == 0, finished.stderr
    [path] = traces_in(Path("logs/find_spec_first"))
    trace = contents(path)
    assert (said(trace)["warmup"], list(step_marks(trace).values())) == (3, [True, True])
    assert "[memory]" in {event["name"] for event in trace["traceEvents"]}
    assert "Traced: 2 of 10 steps" in finished.stdout
    assert "--redact leaves them out" in finished.stderr  # the names of this machine and of its folders
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("walkthrough trace: traced 2 of 10 steps into logs/find_spec_first; the program ran to its ")


@pytest.mark.parametrize(
    ("options", "by_us", "code", "signalled", "exit_code", "words"),
    [
        # where it profiled another thread than the main one, torch sometimes aborts when all of Python has ended
        ([], True, -signal.SIGABRT, 0, 0, "the program was ended after them, the command was ended by SIGABRT"),
        ([], False, 1, 0, 1, "the program failed, the command's exit code is 1"),
        ([], False, 130, signal.SIGINT, 0, "the program was interrupted, the command's exit code is 130"),
        (["--go-on"], False, 3, signal.SIGINT, 3, "the program was interrupted, the command's exit code is 3"),
    ],
)
def test_the_exit_code_is_0_unless_the_program_failed_by_itself(
    trace, monkeypatch, options, by_us, code, signalled, exit_code, words
):
    def run_attached(words, settings, reports):
        two_steps().write(reports / "made.trace")
        report = {"state": "done", "pid": 1, "trace": "made.trace", "name": "host_1.2.pt.trace.json.gz", "traced": 2}
        report |= {"recording": {"total_steps": None}, "ended_by_us": by_us}
        return Outcome(code, [report], signalled=signalled)

    monkeypatch.setattr(trace_command, "run_attached", run_attached)
    finished = trace(*options, "--out", "out", "--", "true")
    assert (finished.returncode, len(traces_in(Path("out")))) == (exit_code, 1)
    assert finished.stderr.splitlines()[-1] == f"walkthrough trace: traced 2 steps into out; {words}"


def test_ctrl_c_ends_the_program_and_keeps_what_is_whole(tmp_path):
    command = [sys.executable, "-m", "walkthrough", "trace", "--warmup", "4", "--out", "out", "--"]
    command += [sys.executable, PROGRAMS / "waits.py", 7]
    process = start_program(*command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_for(tmp_path / "begun")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "traced 2 of 7 steps" in errors.splitlines()[-1]  # 4 of warm-up, 1 of the profiler's, 2 whole ones
    assert (process.returncode, len(traces_in(tmp_path / "out"))) == (0, 1), errors


def test_sigterm_is_passed_on_even_if_it_comes_while_the_command_is_started(tmp_path, monkeypatch):
    def start(*words, **more):
        child = popen(*words, **more)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    popen, before = subprocess.Popen, signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launch.subprocess, "Popen", start)
    outcome = attached(["sleep", "600"], tmp_path)
    assert (outcome.code, outcome.signalled) == (-signal.SIGTERM, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sh", "-c", "exit 3"], 3, "no Python process of it could be attached to"),
        ([sys.executable, "-c", "print('mine')"], 2, "imported torch"),
    ],
)
def test_what_cannot_be_traced_is_one_line_with_the_commands_exit_code(trace, tmp_path, words, code, message):
    finished = trace("--out", "new/out", "--", *words)
    assert finished.returncode == code
    assert finished.stderr.count("\n") == 1
    assert message in finished.stderr
    assert "the command's exit code is" in finished.stderr
    assert list(tmp_path.iterdir()) == []  # a folder made for nothing is removed with those above


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--"], "no command given"),
        (["--", "nowhere.py"], "nowhere.py: no such file"),
        (["--out", "/proc/nowhere", "--", "true"], "cannot write /proc/nowhere"),
        (["--out", "a:b", "--", "true"], "cannot be on PYTHONPATH; name another folder"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused_in_one_line(trace, tmp_path, words, message):
    assert_refused(trace(*words), message)
    assert list(tmp_path.iterdir()) == []


def attached(words, folder):
    with reports_folder(folder) as reports:
        return run_attached(words, {"mode": "trace", "go_on": False, "warmup": 1}, reports)


def test_a_command_that_is_ended_is_killed_if_need_be_and_leaves_no_process_behind(tmp_path, monkeypatch):
    child = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    parent = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    parent += f"subprocess.run([sys.executable, '-c', {child!r}, {str(tmp_path / 'pid')!r}])"

    class OnceTheChildRuns(float):
        def __lt__(self, seconds):
            return (tmp_path / "pid").exists()

    monkeypatch.setattr(launch, "WAIT", OnceTheChildRuns(60))
    monkeypatch.setattr(launch, "PARTING", 0.5)
    outcome = attached([sys.executable, "-c", parent], tmp_path)
    assert (outcome.code, outcome.ended) == (-signal.SIGKILL, "the command was ended by SIGKILL")
    assert why_nothing(outcome, 1).startswith("no training step has ended in 1 minutes")
    assert not still_there([int((tmp_path / "pid").read_text())])


def test_sitecustomize_and_environment_are_as_they_were_and_nothing_of_the_command_can_be_imported(
    trace, tmp_path, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text("open('other', 'w')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    code = "import json, os, sys; json.dump([sys.path, dict(os.environ)], open('seen', 'w'))"
    trace("--out", "out", "--", sys.executable, "-c", code)
    assert (tmp_path / "other").exists()
    paths, environment = json.loads((tmp_path / "seen").read_text())
    assert not [path for path in paths if "walkthrough/attach" in path or ".walkthrough-" in path]
    assert environment.pop("PYTHONPATH").endswith(f"{os.pathsep}{os.environ['PYTHONPATH']}")
    assert environment == {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([{"state": "failed", "pid": 1, "reason": "no space"}, {"state": "torch", "pid": 2}], "no space"),
        ([{"state": "torch", "pid": 1}], "no optimizer stepped"),
        ([{"state": "measuring", "pid": 1}], "by a signal or os._exit"),
        ([{"state": "stepping", "pid": 1, "steps": 7}], "7 training steps, before measuring began: give --warmup 1"),
        ([{"state": "stepping", "pid": 1, "steps": 2}], "2 training steps, before measuring began: train longer"),
    ],
)
def test_every_way_not_to_be_traced_has_its_words(reports, words):
    assert words in why_nothing(Outcome(0, reports), 10)
