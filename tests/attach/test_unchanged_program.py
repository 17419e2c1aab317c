"""Inside `trace` and `time` a program is what it is outside: environment, output, exit code, losses."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import pytest
from support import ROOT, assert_refused, run_program
from torch.utils.data import DataLoader, dataloader

from walkthrough.attach import launch
from walkthrough.results.folder import traces_in

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))

from walkthrough_hook import Attached, _attach_to_loaders

PROGRAMS = Path(__file__).parent / "programs"
TRAININGS = PROGRAMS / "trainings.py"
KINDS = "plain accumulate gan scaler closure functional compiled in_thread raises recreated in_backward warns".split()
KINDS += "swallows odd_classes epochs_in_threads forks_meanwhile vanishes".split()


def walkthrough(*words, cwd=None, **environment):
    return run_program("-m", "walkthrough", *words, cwd=cwd, PYTHONPATH=ROOT, **environment)


def environments(path):
    """Those that `environment.py` has written, and the PYTHONPATHs that were in them."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return found, {variables.pop("PYTHONPATH") for variables in found}


@pytest.mark.long
def test_the_environment_is_the_same_but_for_pythonpath(tmp_path):
    program = PROGRAMS / "environment.py"
    files = [tmp_path / name for name in ("outside", "traced", "a", "b")]
    outside, traced, *timed = ([sys.executable, program, file] for file in files)
    assert run_program(*outside[1:], PYTHONPATH=ROOT).returncode == 0
    options = ("--warmup", 1, "--steps")
    assert walkthrough("trace", *options, 1, "--go-on", "--out", tmp_path / "out", "--", *traced).returncode == 0
    assert walkthrough("time", *options, 3, "--rounds", 1, "--", *timed[0], "--versus", *timed[1]).returncode == 0
    expected, paths = environments(files[0])
    assert paths == {str(ROOT)}
    assert len(expected) == 12
    for file in files[1:]:
        found, paths = environments(file)
        assert len(found) >= 3 and all(variables == expected[0] for variables in found)
        assert len(paths) == 1 and paths.pop().endswith(f"{os.pathsep}{ROOT}")


def test_a_process_that_cannot_be_attached_to_runs_and_only_the_command_says_why(tmp_path, monkeypatch):
    shutil.copytree(launch.SITE, tmp_path / "site")
    (tmp_path / "site" / "walkthrough_hook" / "tasks.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setattr(launch, "SITE", tmp_path / "site")
    with launch.reports_folder(tmp_path) as reports, open(tmp_path / "output", "wb") as output:
        words = [sys.executable, "-c", "print('mine')"]
        outcome = launch.run_attached(words, {"mode": "trace", "go_on": False, "warmup": 1}, reports, output)
    assert (tmp_path / "output").read_bytes() == b"mine\n"
    assert launch.why_nothing(outcome, 1).startswith("cannot attach to a process: ZeroDivisionError")


@pytest.mark.parametrize("workers", [0, 1])
def test_each_iteration_of_a_loader_is_seen_once_and_each_batch(monkeypatch, workers):
    seen = []
    watch = SimpleNamespace(
        began=lambda loader: seen.append(("began", loader)),
        entry=id,
        batch=lambda entry, batch, iterator: seen.append((entry, batch.tolist())),
    )
    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "_num_yielded", None, raising=False)  # restored at the end
    _attach_to_loaders(dataloader, SimpleNamespace(watch=watch, guarded=lambda call, *words: call(*words)))
    loader = DataLoader([1, 2, 3], batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    assert seen == [("began", loader), (id(loader), [1, 2]), (id(loader), [3])] * 2


@pytest.mark.parametrize("words", [["trace", "--", "true"], ["time", "--", "true", "--versus", "true"]])
def test_a_folder_that_pythonpath_cannot_name_is_refused(tmp_path, words):
    (folder := tmp_path / "a:b").mkdir()
    assert_refused(walkthrough(*words, cwd=folder, TMPDIR=folder), str(folder), "PYTHONPATH", "another folder")
    assert list(folder.iterdir()) == []


def both(tmp_path, *words):
    """(output, errors, exit code) of a command outside of `trace` and inside."""
    results = []
    trace = [sys.executable, "-m", "walkthrough", "trace", "--warmup", 4, "--go-on", "--out", tmp_path / "out", "--"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name, before in {"outside": [], "inside": trace}.items():
        (folder := tmp_path / name).mkdir()
        script = 'out=$0; "$@" >$out/output 2>$out/errors; code=$?; echo $code >$out/code; exit $code'
        command = [*before, "sh", "-c", script, folder, sys.executable, *words]
        subprocess.run(list(map(str, command)), env=variables, check=False)
        output, errors, code = ((folder / file).read_text(encoding="utf-8") for file in ("output", "errors", "code"))
        errors = re.sub(r"ERROR: External init callback must run in same thread.*\n", "", errors)  # Kineto, in threads
        results.append([re.sub(r"^(\w+) \d+ ", r"\1 ", output, flags=re.MULTILINE), errors, code])
    return results


@pytest.mark.long
def test_programs_of_every_kind_print_and_end_as_without_trace(tmp_path):
    outside, inside = both(tmp_path, TRAININGS, *KINDS)
    assert inside == outside
    ended = dict(line.split() for line in outside[0].splitlines() if " " in line)
    assert ended == dict.fromkeys(KINDS, "0") | {"raises": "1", "vanishes": "5"}
    assert outside[1].count("Length of IterableDataset a stream was reported to be 6") == 2
    assert "2 worker processes in total" in outside[1]
    assert len(traces_in(tmp_path / "out")) == len(KINDS) - 1  # all but what vanishes


@pytest.mark.long
def test_a_training_in_a_daemon_thread_is_traced_and_ends_as_without_trace(tmp_path):
    outside, inside = both(tmp_path, TRAININGS, "daemon")
    assert inside == outside
    assert len(traces_in(tmp_path / "out")) == 1


@pytest.mark.long
def test_ranks_of_torchrun_are_traced_and_print_and_end_as_without_trace(tmp_path):
    outside, inside = both(
        tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, TRAININGS, "ddp"
    )
    assert [sorted(text.splitlines()) for text in inside] == [sorted(text.splitlines()) for text in outside]
    finished = run_program("-m", "walkthrough", "explain", tmp_path / "out", "--json")
    assert [rank["rank"] for rank in json.loads(finished.stdout)["ranks"]] == [0, 1]


@pytest.mark.thorough
def test_workers_of_every_start_method_print_and_end_as_without_trace(tmp_path):
    outside, inside = both(tmp_path, TRAININGS, "workers")
    assert inside == outside


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "warmup", "code", "words"),
    [
        ("in_thread", 3, 0, "the program was ended after them, the command's exit code is 0"),
        ("swallows", 3, 0, "; the program ran to its end, the command's exit code is 0"),
        ("raises", 4, 1, "; the program failed, the command's exit code is 1"),
    ],
)
def test_the_last_line_says_how_the_program_ended(tmp_path, name, warmup, code, words):
    finished = walkthrough("trace", "--warmup", warmup, "--", TRAININGS, name, cwd=tmp_path)
    assert finished.returncode == code
    assert words in finished.stderr.splitlines()[-1]
    assert "KeyboardInterrupt" not in finished.stderr and ("Traceback" in finished.stderr) == (name == "raises")


def test_no_profiler_goes_on_recording_where_something_of_ours_fails(tmp_path):
    settings = {"mode": "trace", "warmup": 3, "steps": 3, "reports": str(tmp_path), "host": "", "go_on": True}
    attached, stopped = Attached(settings), []
    task = attached.watch.task
    task.profiler, task.thread, task.running = SimpleNamespace(stop=lambda: stopped.append(True)), get_ident(), True
    attached.guarded(lambda: 1 // 0)
    assert (stopped, task.done, task.running, task.profiler) == ([True], True, False, None)


@pytest.mark.parametrize("path", sorted((ROOT / "walkthrough" / "attach" / "site").rglob("*.py")), ids=lambda p: p.name)
def test_what_runs_inside_is_python_3_8(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    assert not [node.lineno for node in unions if isinstance(node.left, ast.Dict) or isinstance(node.right, ast.Dict)]
