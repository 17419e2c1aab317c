"""Step 16 for real: two processes train one model and leave one run; one process alone is step 15."""

import json
from types import SimpleNamespace

import pytest
import two_ranks
from support.ranks import run_ranks
from torch_tb_profiler.consts import WORKER_PATTERN
from two_ranks import PROGRAM

from walkthrough.results import result as record

WORDS = "--quick --device cpu --batch-size 8 --image-size 32".split()
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("two processes")]


def names(folder, pattern="*"):
    return sorted(path.name for path in folder.glob(pattern))


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """A run of two processes: its log folder, the run's own, what was printed and what each rank trained."""
    folder = tmp_path_factory.mktemp("two")
    words = (folder, *WORDS, "--logdir", folder / "logs", "--data", folder)
    finished = run_ranks(two_ranks.__file__, *words, TORCHDYNAMO_DISABLE=1)  # to compile would take long
    assert finished.returncode == 0, finished.stderr
    logdir, ranks = folder / "logs", [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return SimpleNamespace(logdir=logdir, run=logdir / PROGRAM.stem, printed=finished.stdout, ranks=ranks)


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


def test_the_ranks_train_on_other_images_and_keep_the_same_weights(two):
    one, other = two.ranks
    assert one["labels"] != other["labels"]
    assert one["losses"] != other["losses"]
    assert one["weights"] == other["weights"]
    assert [(rank["summed"], rank["first"]) for rank in two.ranks] == [([3.0, 4.0], 0)] * 2
