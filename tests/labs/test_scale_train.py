"""labs/scale/train.py: any number of processes trains the same, each image is counted once, and a kill loses little."""

import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import scale_ranks
import torch
import torch.distributed as dist
from PIL import Image
from scale_ranks import STRAGGLER
from support import ROOT, exit_code_of, run_program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.options import StepOptions
from labs.scale import launch, node, one_rank, ranks, scaling, train, training
from labs.shared import checkpoints
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError

RANKS = Path(scale_ranks.__file__)
LAUNCH = """
import sys
from pathlib import Path
from walkthrough.results.errors import exit_in_one_line
from labs.scale.launch import launch
exit_in_one_line()
launch(Path({program!r}), sys.argv[1:], processes=2, restarts=1)
"""


JOINED = """
import time
import torch
from labs.scale.ranks import joined
with joined(torch.device("cpu")):
    print("joined", flush=True)
    time.sleep(30)
    print("went on")
"""


@pytest.fixture
def alone():
    """This process is a group of its own."""
    with ranks.joined(torch.device("cpu")):
        yield


pytestmark = pytest.mark.xdist_group("scale ranks")  # two processes train once


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """A folder of 18 training and 4 validation JPEGs of 3 classes."""
    folder = tmp_path_factory.mktemp("data") / "jpegs"
    for part, count in (("train", 18), ("val", 4)):
        for number in range(count):
            path = folder / part / f"class{number % 3}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 50), (80 * (number % 3), 200, 10 * number)).save(path)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, jpegs):
    """scale_ranks.py in two processes: what each says of its trainings, their folder, and how they ended."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "jpegs").symlink_to(jpegs)
    (folder / "killed").mkdir()
    code = LAUNCH.format(program=str(RANKS))
    finished = run_program("-c", code, folder, OMP_NUM_THREADS=1, PYTHONPATH=ROOT)
    assert finished.returncode == 2, finished.stderr
    facts = [json.loads((folder / f"same{rank}.json").read_text()) for rank in range(2)]
    return SimpleNamespace(facts=facts, folder=folder, finished=finished)


def close(one, other):
    return one["weights"] == pytest.approx(other["weights"], abs=1e-5) and all(
        epoch == pytest.approx(their, abs=1e-5) for epoch, their in zip(one["epochs"], other["epochs"], strict=True)
    )


def test_two_processes_train_the_same_as_one_with_twice_the_batch_of_each(two, alone):
    one = scale_ranks.trained()
    assert len(one["epochs"]) == 3
    assert close(two.facts[0]["one pass"], one)
    assert two.facts[0]["one pass"] == two.facts[1]["one pass"]
    assert not close(scale_ranks.trained(batch_size=4), one)
    assert one["epochs"][2][0] < one["epochs"][0][0]


def test_accumulation_trains_the_same_on_one_process_and_on_two(two, alone):
    one = scale_ranks.trained()
    assert close(scale_ranks.trained(passes=4), one)
    assert close(two.facts[0]["two passes"], one)


def test_gradients_are_exchanged_once_per_step_however_many_passes(two):
    assert two.facts[0]["exchanges"][0] == two.facts[0]["exchanges"][1] > 0


def test_each_validation_image_is_counted_once_also_where_a_process_has_none(two, alone):
    for what, count in (("one pass", 13), ("one validation image", 1)):
        assert close(two.facts[1][what], scale_ranks.trained(validation=count))
    model = scale_ranks.tiny()
    model.epoch()
    pictures, labels = scale_ranks.images(13, 2).tensors
    with torch.no_grad():
        logits = model.module(pictures)
    order = logits.argsort(descending=True)
    epoch = model.epochs[0]
    assert epoch.validation_loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
    assert epoch.top1 == pytest.approx((order[:, 0] == labels).sum().item() / 13)
    assert epoch.top5 == pytest.approx(sum(label in row[:5] for row, label in zip(order, labels, strict=True)) / 13)
    assert epoch.top1 < epoch.top5 < 1


def test_all_processes_validate_with_the_statistics_that_are_saved(two):
    assert two.facts[0]["statistics"] == two.facts[1]["statistics"]


def test_an_epoch_trains_on_each_image_once_in_an_order_of_its_own(alone):
    model = scale_ranks.tiny(train_images=48)
    seen = []
    real = model.step

    def step(batches):
        batch = next(batches)
        seen.append(batch[1].tolist())
        return real(iter([batch]))

    model.step = step
    model.epoch()
    model.epoch()
    labels = scale_ranks.images(48, 1).tensors[1].tolist()
    epochs = [list(chain(*seen[:6])), list(chain(*seen[6:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(labels)
    assert epochs[0] != epochs[1]


def rows(folder):
    with open(folder / checkpoints.TABLE, newline="") as file:
        return list(csv.DictReader(file))


def test_a_killed_worker_costs_no_more_than_its_epoch(two, alone):
    folder = two.folder / "killed"
    told = re.findall(r"epoch \d(?=:)|goes on after epoch \d", two.finished.stdout)
    assert told == [
        "epoch 1",  # of the JPEGs
        "epoch 1", "epoch 2", "goes on after epoch 2", "goes on after epoch 2", "epoch 3",
    ]  # fmt: skip
    assert [row["epoch"] for row in rows(folder)] == ["1", "2", "3"]

    goes_on, never_killed = scale_ranks.tiny(), scale_ranks.tiny()
    train.fit(goes_on, folder)
    for _ in range(4):
        never_killed.epoch()
    assert close(scale_ranks.facts(goes_on), scale_ranks.facts(never_killed))
    assert [(row["epoch"], row["processes"]) for row in rows(folder)] == [
        ("1", "2"), ("2", "2"), ("3", "2"), ("4", "1")
    ]  # fmt: skip
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [point.step for point in events.Scalars("top5")] == [1, 2, 3, 4]


def test_a_rank_that_refuses_ends_all_with_its_reason_in_one_line(two):
    reason = f"nothing to train on in {two.folder / 'killed'}: choose another"
    assert two.finished.stderr == f"-c: rank 1: {reason}; the others were stopped\n"


def test_two_processes_train_on_jpegs_and_one_reports(two):
    assert [row["processes"] for row in rows(two.folder / "train")] == ["2"]
    printed = [line for line in two.finished.stdout.splitlines() if line.startswith("train: ")]
    assert "batch 8 = 2 processes x 1 passes x 4" in printed[0]


def test_a_process_that_is_killed_is_told_in_one_line_and_all_is_as_before(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else signal.pause()\n"
    )
    before = dict(os.environ), signal.getsignal(signal.SIGINT)
    with pytest.raises(InputError) as ended:
        launch.launch(program, [], 2)
    assert str(ended.value) == "rank 1 was ended by SIGKILL, as the system does where memory runs out: " + (
        "the others were stopped"
    )
    assert (dict(os.environ), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_a_rank_ends_when_what_launched_it_is_killed():
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    own = {"TORCHELASTIC_RUN_ID": ranks.LAUNCHED, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", starts, JOINED]
    with subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "joined\n"
        parent.kill()
        assert parent.stdout.read() == ""  # to its end, which is when the rank has ended


def failure(code, message=None):
    data = {"message": {"message": message, "extraInfo": {}} if message else "<NONE>"}
    name = signal.Signals(-code).name if code < 0 else ""
    return SimpleNamespace(exitcode=code, error_file_data=data, signal_name=lambda: name)


def test_of_several_failures_the_one_that_began_it_is_told():
    lost = failure(2, f"InputError: {node.ANOTHER_ENDED}: Connection closed by peer")
    stopped = failure(-signal.SIGTERM)
    assert (
        launch.why({0: lost, 1: failure(-signal.SIGSEGV)})[0] == "rank 1 was ended by SIGSEGV: the others were stopped"
    )
    assert launch.why({0: stopped, 1: failure(2, "InputError: no data")}) == (
        "rank 1: no data; the others were stopped",
        2,
    )
    assert launch.why({0: lost, 1: stopped, 2: failure(1, "ValueError: a\nb")}) == (
        "rank 2: ValueError: a b; the others were stopped", 1
    )  # fmt: skip
    assert launch.why({3: failure(7)}) == ("rank 3: it ended with code 7; the others were stopped", 7)


@pytest.fixture
def taken():
    """A port that another program listens at."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_port_that_is_taken_is_one_line(taken):
    with pytest.raises(InputError, match=f"port {taken} of this machine is taken: choose another --port"):
        launch.launch(RANKS, ["same", "."], 2, port=taken)


def test_a_port_that_is_taken_is_one_line_without_torchrun_too(taken, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": taken}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(InputError, match=f"localhost:{taken} is taken"), ranks.joined(torch.device("cpu")):
        pass
    assert not dist.is_initialized()


@pytest.fixture
def run(jpegs, tmp_path, monkeypatch, capsys):
    """run(*words): train.py in this process: exit code, stdout and stderr."""

    def with_words(*words):
        base = ["--data", str(jpegs), "--logdir", str(tmp_path / "train"), *scale_ranks.JPEG_WORDS]
        monkeypatch.setattr(sys, "argv", ["train.py", *base, *words])
        capsys.readouterr()
        code = exit_code_of(train.main)
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return with_words


def test_it_writes_a_table_scalars_and_weights_and_goes_on(run, tmp_path):
    folder = tmp_path / "train"
    assert run().code == 0
    state = train.unpacked((folder / train.CHECKPOINT).read_bytes())
    assert state["epochs"] == [
        pytest.approx({name: float(value) for name, value in row.items()}) for row in rows(folder)
    ]
    (folder / checkpoints.TABLE).unlink()
    done = run()
    assert "goes on after epoch 1" in done.out
    assert len(rows(folder)) == 1
    assert "checkpoint.pt is of a training with lr 0.05, not 0.1" in run("--lr", "0.1").err
    for content in (b"", (folder / train.CHECKPOINT).read_bytes()[:2000]):
        (folder / train.CHECKPOINT).write_bytes(content)
        broken = run()
        assert (broken.code, broken.err.count("\n")) == (2, 1)
        assert "checkpoint.pt is damaged" in broken.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--batch-size 9 --accumulate 2", "has to be a multiple of 2, for 1 processes with --accumulate 2"),
        ("--batch-size 19", "larger than the data"),
        ("--lr nan", "--lr nan is not a number above 0"),
        ("--model w9", "unknown model 'w9'"),
        ("--processes 0", "not a whole number"),
        ("--data nowhere", "has no folder train/"),
        ("--lr 1e30 --epochs 3", "is no number: the training diverged"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run, words, reason):
    done = run(*words.split())
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert reason in done.err


def test_out_of_memory_says_to_accumulate(run, monkeypatch):
    def full(self, batches):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(training.Training, "step", full)
    assert "with 8 images per pass: try --accumulate 2" in run().err


def test_several_processes_are_launched_with_the_same_words_unless_torchrun_did(run, monkeypatch):
    calls = []
    monkeypatch.setattr(train, "launch", lambda *words: calls.append(words))
    assert run("--processes", "2", "--max-restarts", "3", "--port", "4000").code == 0
    ((program, words, *more),) = calls
    assert (program, words, more) == (ROOT / "labs" / "scale" / "train.py", sys.argv[1:], [2, 3, 4000])


def test_the_rate_rises_in_the_first_epoch_and_ends_at_0():
    of = scale_ranks.settings(epochs=5, lr=2.0)
    rates = [training.learning_rate(of, epochs) for epochs in (0.5, 1, 3, 5)]
    assert rates == [pytest.approx(value) for value in (1.0, 2.0, 1.0, 0.0)]


def test_process_counts_and_what_is_too_many(monkeypatch):
    assert [scaling.process_counts(most) for most in (1, 2, 6)] == [[1], [1, 2], [1, 2, 4, 6]]
    assert not scaling.is_oversubscribed("cpu", usable_cores())
    assert scaling.is_oversubscribed("cpu", usable_cores() + 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="2 processes need a GPU each, this machine has 1"):
        scaling.is_oversubscribed("cuda", 2)


@pytest.fixture
def small(tmp_path):
    """Options of a small measurement."""
    own = {"model": "w8", "image_size": 32, "batch_size": 4, "workers": 0, "precision": "fp32", "seed": 0}
    return StepOptions(tmp_path, "cpu", tmp_path, download=False, quick=True, stacks=False, **own)


def test_a_straggler_shows_in_the_time_that_the_others_communicate(two, small, monkeypatch):
    def launched(program, words, processes):
        """The processes of `two` have measured it."""
        own = json.loads(words[0])
        assert (program, processes) == (Path(one_rank.__file__), 2)
        assert {**own, "folder": ""} == json.loads(json.dumps(asdict(STRAGGLER)))
        for rank in range(processes):
            shutil.copy(two.folder / f"rank{rank}.json", own["folder"])

    monkeypatch.setattr(scaling, "launch", launched)
    monkeypatch.setattr(scaling, "WINDOWS", {True: 1})
    monkeypatch.setattr(scaling, "STEPS", {True: 1})
    of, delay_ms = ("last pass", "never"), STRAGGLER.delay_ms
    run = scaling.measured(small, 2, 2, passes=2, exchanges=of, slow_rank=1, delay_ms=delay_ms, traced=True)
    assert tuple(run["step_ms"]) == of
    assert run["images_per_second"]["never"] == [pytest.approx(8 * 1000 / run["step_ms"]["never"][0])]
    waiting, slow = (rank["communication_ms"] for rank in run["ranks"])
    assert waiting > slow > 0
    assert all(rank["step_ms"] > delay_ms for rank in run["ranks"])  # the sleep is in it


def test_a_process_measures_what_its_command_line_says(tmp_path, monkeypatch):
    own = replace(STRAGGLER, folder=str(tmp_path), slow_rank=None, traced=False, windows=3)
    monkeypatch.setattr(one_rank, "WARMUP_STEPS", 1)
    monkeypatch.setattr(sys, "argv", ["one_rank.py", *one_rank.words(own)])
    one_rank.main()
    written = json.loads((tmp_path / "rank0.json").read_text())
    assert (written["rank"], written["trace"]) == (0, None)
    assert {exchange: len(ms) for exchange, ms in written["step_ms"].items()} == {"last pass": 3, "never": 3}


@pytest.mark.parametrize(("exchange", "times"), [("last pass", 1), ("each pass", 3)])
def test_what_is_measured_exchanges_gradients_in_the_last_pass_or_in_each(exchange, times, alone, monkeypatch):
    monkeypatch.setattr(scale_ranks, "Training", one_rank.Measured)
    model = scale_ranks.tiny(passes=3, batch_size=6)
    model.exchange = exchange
    contexts = []
    monkeypatch.setattr(training.Training, "without_exchange", lambda self: contexts.append(1) or nullcontext())
    model.step(iter([scale_ranks.images(2, 0).tensors] * 3))
    assert 3 - len(contexts) == times
