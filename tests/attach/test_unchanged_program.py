"""Inside `trace` and `time` a program is what it is outside: environment, output, exit code, losses."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from walkthrough.attach import launch
from walkthrough.results.folder import traces_in

PROGRAMS = Path(__file__).parent / "programs"
KINDS = "closure in_thread raises in_backward vanishes".split()


def test_a_process_that_cannot_be_attached_to_runs_and_only_the_command_says_why(tmp_path, monkeypatch):
    shutil.copytree(launch.SITE, tmp_path / "site")
    (tmp_path / "site" / "walkthrough_hook" / "tasks.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setattr(launch, "SITE", tmp_path / "site")
    with launch.reports_folder(tmp_path) as reports, open(tmp_path / "output", "wb") as output:
        words = [sys.executable, "-c", "print('mine')"]
        outcome = launch.run_attached(words, {"mode": "trace", "go_on": False, "warmup": 1}, reports, output)
    assert (tmp_path / "output").read_bytes() == b"mine\n"
    assert launch.why_nothing(outcome, 1).startswith("cannot attach to a process: ZeroDivisionError")


@pytest.mark.long
def test_programs_of_every_kind_print_and_end_as_without_trace(tmp_path, monkeypatch, run_command):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    results = {}
    for name in ("outside", "inside"):
        (folder := tmp_path / name).mkdir()
        script = 'out=$0; "$@" >$out/output 2>$out/errors; echo $? >$out/code'
        command = ["sh", "-c", script, folder, sys.executable, PROGRAMS / "trainings.py", *KINDS]
        if name == "outside":
            subprocess.run(list(map(str, command)), check=True)
        else:
            run_command("trace", "--warmup", 4, "--go-on", "--out", tmp_path / "out", "--", *command)
        output, errors, code = ((folder / file).read_text(encoding="utf-8") for file in ("output", "errors", "code"))
        errors = re.sub(r"ERROR: External init callback must run in same thread.*\n", "", errors)  # Kineto, in threads
        results[name] = [re.sub(r"^(\w+) \d+ ", r"\1 ", output, flags=re.MULTILINE), errors, code]
    assert results["inside"] == results["outside"]
    ended = dict(line.split() for line in results["outside"][0].splitlines() if " " in line)
    assert ended == dict.fromkeys(KINDS, "0") | {"raises": "1", "vanishes": "5"}
    assert len(traces_in(tmp_path / "out")) == len(KINDS) - 1  # all but what vanishes


@pytest.mark.parametrize("path", sorted((ROOT / "walkthrough" / "attach" / "site").rglob("*.py")), ids=lambda p: p.name)
def test_what_runs_inside_is_python_3_8(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    unions = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    assert not [node.lineno for node in unions if isinstance(node.left, ast.Dict) or isinstance(node.right, ast.Dict)]
