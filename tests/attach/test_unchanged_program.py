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
KINDS = "plain accumulate gan scaler closure functional compiled in_thread raises recreated".split()
KINDS += ["in_backward", "warns", "vanishes", "swallows"]


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


def test_nothing_of_the_command_can_be_imported_by_the_program(tmp_path):
    code = "import sys; print([path for path in sys.path if 'attach' in path or '.walkthrough-' in path])"
    finished = walkthrough("trace", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert finished.stdout == "[]\n"


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


@pytest.mark.parametrize("command", ["trace", "time"])
def test_a_folder_that_pythonpath_cannot_name_is_refused(tmp_path, command):
    (folder := tmp_path / "a:b").mkdir()
    words = {"trace": ["--", "true"], "time": ["--", "true", "--versus", "true"]}[command]
    assert_refused(walkthrough(command, *words, cwd=folder, TMPDIR=folder), str(folder), "PYTHONPATH", "another folder")
    assert list(folder.iterdir()) == []


def both(tmp_path, *words, **environment):
    """(output, errors, exit code) of a command outside of `trace` and inside."""
    results = []
    for name, before in {
        "outside": [],
        "inside": ["trace", "--warmup", 4, "--go-on", "--out", tmp_path / "out", "--"],
    }.items():
        (folder := tmp_path / name).mkdir()
        script = 'out=$0; "$@" >$out/output 2>$out/errors; code=$?; echo $code >$out/code; exit $code'
        command = ["sh", "-c", script, folder, sys.executable, *words]
        if before:
            finished = walkthrough(*before, *command, **environment)
            assert "traced" in finished.stderr.splitlines()[-1], finished.stderr
        else:
            variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
            subprocess.run(list(map(str, command)), env=variables, check=False)
        results.append([(folder / file).read_text(encoding="utf-8") for file in ("output", "errors", "code")])
    return results


@pytest.mark.long
def test_programs_of_every_kind_print_and_end_as_without_trace(tmp_path):
    outside, inside = both(tmp_path, PROGRAMS / "printed.py", *KINDS)
    inside[1] = re.sub(r"ERROR: External init callback must run in same thread.*\n", "", inside[1])  # Kineto, in_thread
    assert inside == outside
    ended = dict(line.split() for line in outside[0].splitlines() if " " in line)
    assert list(ended) == KINDS
    assert outside[1].count("Length of IterableDataset a stream was reported to be 6") == 2
    assert "2 worker processes in total" in outside[1]


@pytest.mark.long
def test_ranks_of_torchrun_print_and_end_as_without_trace(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    outside, inside = both(tmp_path, *torchrun, PROGRAMS / "ddp.py", OMP_NUM_THREADS="1")
    assert [sorted(text.splitlines()) for text in inside] == [sorted(text.splitlines()) for text in outside]


@pytest.mark.thorough
def test_workers_of_every_start_method_print_and_end_as_without_trace(tmp_path):
    outside, inside = both(tmp_path, PROGRAMS / "printed.py", "workers")
    assert inside == outside


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "warmup", "code", "words"),
    [
        ("in_thread", 3, 0, "the program was ended after them, the command's exit code is 0"),
        ("swallows", 3, 0, "; the program ran to its end, the command's exit code is 0"),
        ("raises", 4, 1, "; the program failed, the command's exit code is 1"),
    ],
)
def test_the_last_line_says_how_the_program_ended(tmp_path, program, warmup, code, words):
    finished = walkthrough("trace", "--warmup", warmup, "--", PROGRAMS / f"{program}.py", cwd=tmp_path)
    assert finished.returncode == code
    assert words in finished.stderr.splitlines()[-1]
    assert "KeyboardInterrupt" not in finished.stderr and ("Traceback" in finished.stderr) == (program == "raises")


@pytest.mark.long
@pytest.mark.parametrize("program", ["odd_classes", "epochs_in_threads", "daemon", "forks_meanwhile"])
def test_a_program_of_an_odd_kind_is_traced_and_ends_as_without_trace(tmp_path, program):
    outside, inside = both(tmp_path, PROGRAMS / f"{program}.py", OMP_NUM_THREADS="1")
    inside[1] = re.sub(r"ERROR: External init callback must run in same thread.*\n", "", inside[1])  # Kineto
    assert inside == outside
    assert len(traces_in(tmp_path / "out")) == 1


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
