"""Step 16 for real: two processes under torchrun train one model and leave one run; one process alone is step 15."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, run_program
from torch_tb_profiler.consts import WORKER_PATTERN

from walkthrough.results import result as record

PROGRAM = ROOT / "steps" / "16_data_parallel.py"
WORDS = "--quick --device cpu --batch-size 8".split()
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("two processes")]


def torchrun(*command, **environment):
    """Two processes, in an environment with these variables."""
    return run_program("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *command, **environment)


def names(folder, pattern="*"):
    return sorted(path.name for path in folder.glob(pattern))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of two processes: its log folder, the run's own, and what was printed."""
    folder = tmp_path_factory.mktemp("two")
    words = ("--logdir", folder / "logs", "--data", folder)
    finished = torchrun(PROGRAM, *WORDS, *words, TORCHDYNAMO_DISABLE=1)  # to compile would take long
    assert finished.returncode == 0, finished.stderr
    return SimpleNamespace(logdir=folder / "logs", run=folder / "logs" / PROGRAM.stem, printed=finished.stdout)


def test_two_processes_leave_one_result_and_a_trace_each_with_what_they_communicate(two, run_command):
    result = record.read_result(two.run / record.FILE)
    assert (result.world_size, result.batch_size, result.batch_bytes) == (2, 8, 0)
    assert not any("torchrun" in note for note in result.notes)
    traces = names(two.run, "*.pt.trace.json.gz")
    assert [name.split(".")[0].rpartition("_")[2] for name in traces] == ["rank0", "rank1"]
    assert result.trace == traces[0]
    assert all(WORKER_PATTERN.match(name) for name in traces)
    assert len(names(two.run, "events.out.tfevents.*")) == 1
    assert len(names(two.run)) == 4
    assert [name for name in names(two.logdir) if not name.endswith(".lock")] == [PROGRAM.stem]
    assert two.printed.count("is in none of these figures") == 1  # rank 0 reports
    ranks = json.loads(run_command("explain", two.run, "--json").stdout)["ranks"]
    assert [(rank["rank"], rank["steps"]["count"]) for rank in ranks] == [(0, 3), (1, 3)]
    assert all(rank["steps"]["breakdown_us"]["communication"] > 0 for rank in ranks)


def test_one_process_says_so_and_replaces_the_traces_of_two(two, run_here, monkeypatch, tmp_path):
    shutil.copytree(two.logdir, tmp_path / "logs")
    monkeypatch.setattr(torch, "compile", lambda call, mode: call)
    finished = run_here(PROGRAM, *WORDS, "--logdir", tmp_path / "logs", "--data", tmp_path)
    assert finished.returncode == 0, finished.stderr
    run = tmp_path / "logs" / PROGRAM.stem
    result = record.read_result(run / record.FILE)
    assert result.world_size == 1
    assert any(note.startswith("one process trains alone") for note in result.notes)
    assert names(run, "*.pt.trace.json.gz") == [result.trace]
    assert "_rank" not in result.trace
    assert len(names(run)) == 3


TRAINED = """
import json, os, runpy, sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
import common.model, common.session
import torch
from common import ranks
from support import SmallNet

torch.manual_seed(int(os.environ["RANK"]))
model = SmallNet()  # with weights of its own in each rank, until DDP copies rank 0's
common.model.classifier = lambda *_: model

def run_step(file, args, loader, train_step, **more):
    batches = [batch for batch, _ in zip(loader, range(3))]
    losses = [train_step(*batch).item() for batch in batches]
    facts = {{
        "labels": [batch[1].tolist() for batch in batches],
        "losses": losses,
        "summed": ranks.summed([ranks.rank() + 1.0, 2.0]),
        "first": ranks.from_rank_0(ranks.rank()),
        "weights": [parameter.double().sum().item() for parameter in model.parameters()],
    }}
    Path({folder!r}, "rank" + os.environ["RANK"] + ".json").write_text(json.dumps(facts))

common.session.run_step = run_step
sys.argv = [{program!r}, *{words!r}]
runpy.run_path({program!r}, run_name="__main__")
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert not [name for name in threads if "gloo" in name], threads  # they could abort a process that ends
"""


def test_the_ranks_train_on_other_images_and_keep_the_same_weights(tmp_path):
    words = [*WORDS, "--image-size", "32", "--logdir", str(tmp_path / "logs"), "--data", str(tmp_path)]
    paths = {"root": ROOT, "tests": ROOT / "tests", "folder": tmp_path, "program": PROGRAM}
    script = tmp_path / "trained.py"
    script.write_text(TRAINED.format(**{name: str(path) for name, path in paths.items()}, words=words))
    finished = torchrun(script, TORCHDYNAMO_DISABLE=1)
    assert finished.returncode == 0, finished.stderr
    one, other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert one["labels"] != other["labels"]
    assert one["losses"] != other["losses"]
    assert one["weights"] == other["weights"]
    assert [rank["summed"] for rank in (one, other)] == [[3.0, 4.0]] * 2
    assert [rank["first"] for rank in (one, other)] == [0, 0]
