"""The loading of runs: what becomes of children that die, and of runs that differ. In a process of its own each."""

import json
import subprocess
import sys

import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, two_steps

pytest.importorskip("torch_tb_profiler")

LOADED = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from torch_tb_profiler import io
from support.dying_loader import DyingLoader
if __name__ == "__main__":
    run = DyingLoader("run", sys.argv[1], io.Cache(sys.argv[1])).load()
    print(sorted(worker for worker, _ in run.profiles))
"""


def loaded(folder):
    program = folder.parent / "load.py"
    program.write_text(LOADED)
    return subprocess.run(
        [sys.executable, program, folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize("how", ["dies", "breaks"])
def test_a_child_that_dies_is_not_waited_for_and_the_others_show(tmp_path, how):
    folder = tmp_path / "run"
    folder.mkdir()
    two_steps().write(folder / f"{how}.pt.trace.json")
    two_steps().write(folder / "lives.pt.trace.json")
    finished = loaded(folder)
    assert finished.stdout.strip() == "['lives']", finished.stderr
    assert f"reading {how}.pt.trace.json ended with exit code 9" in finished.stderr


def test_a_run_without_one_readable_trace_is_an_error_that_names_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    two_steps().write(folder / "dies.pt.trace.json")
    finished = loaded(folder)
    assert finished.returncode == 1
    assert "no trace of run can be read" in finished.stderr


def test_the_diff_view_pairs_operators_by_their_names(tmp_path):
    other = TraceBuilder()
    other.step(1, 0, 1000)
    other.op("aten::item", 0, 10)
    other.op("aten::only_here", 20, 10)
    paths = [two_steps().write(tmp_path / "a.json"), other.write(tmp_path / "b.json")]
    script = (
        "import sys, json\n"
        "from common.board import loader\n"
        "from torch_tb_profiler.profiler.data import RunProfileData as Data\n"
        "from torch_tb_profiler.profiler.run_generator import RunGenerator\n"
        "data = [Data.parse('w', None, path, '/tmp') for path in sys.argv[1:]]\n"
        "made = [RunGenerator('w', None, each).generate_run_profile() for each in data]\n"
        "diff = made[0].compare_run(made[1]).get_diff_node_summary('0')\n"
        "print(json.dumps([[agg['name'] for agg in diff[side]['aggs']] for side in ('left', 'right')]))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    left, right = json.loads(finished.stdout)
    assert left == right
    assert {"aten::item", "aten::only_here", "aten::cudnn_convolution"} <= set(left)
