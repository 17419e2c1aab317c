"""labs/scale/train.py: any number of processes trains the same, and each image is counted once."""

import json
from types import SimpleNamespace

import pytest
import scale_ranks
import torch
from support import assert_refused
from support.labs import assert_goes_on_after_a_kill
from support.ranks import run_ranks
from torch.nn import functional as F

from labs.scale import train
from labs.scale.preprocess import prepared
from labs.shared.training import epochs_in

pytestmark = [
    pytest.mark.xdist_group("scale data"),  # images are drawn and prepared once
    # webdataset leaves files to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def cached(drawn):
    """`drawn` as cached images of 16 px."""
    return prepared(drawn, "cached", scale_ranks.SIZE)


@pytest.fixture(scope="module")
def two(tmp_path_factory, cached):
    """scale_ranks.py in two processes: what each says of its trainings, and their folder."""
    folder = tmp_path_factory.mktemp("two")
    done = run_ranks(scale_ranks.__file__, cached, folder, OMP_NUM_THREADS=1)
    assert done.returncode == 0, done.stderr
    facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return SimpleNamespace(facts=facts, folder=folder)


def close(one, other):
    return one["weights"] == pytest.approx(other["weights"], abs=1e-5) and all(
        epoch == pytest.approx(their, abs=1e-5) for epoch, their in zip(one["epochs"], other["epochs"], strict=True)
    )


def test_two_processes_train_the_same_as_one_with_twice_the_batch_of_each(two, cached):
    one = scale_ranks.trained(cached)
    assert one["epochs"][-1][0] < one["epochs"][0][0]
    assert close(two.facts[0]["one pass"], one)
    assert two.facts[0]["one pass"] == two.facts[1]["one pass"]
    assert close(scale_ranks.trained(cached, passes=4), one)
    assert close(two.facts[0]["two passes"], one)
    assert not close(scale_ranks.trained(cached, batch_size=4), one)


def test_gradients_are_exchanged_in_the_last_pass_in_each_or_never(two):
    once, *more = two.facts[0]["exchanges"]
    assert once > 0 and more == [once, 2 * once, 0]
    out = (two.folder / "out0").read_text()  # of train.py itself
    assert "from cached; batch 8 = 2 processes x 1 passes x 4" in out
    assert len(epochs_in(two.folder / "train")) == 1


def test_each_validation_image_is_counted_once_by_the_statistics_that_are_saved(two, cached):
    run, replica, pipeline, settings = scale_ranks.training(cached, epochs=1)
    train.fit(run, replica, pipeline, settings)
    images, labels = (torch.cat(parts) for parts in zip(*pipeline.validation(), strict=True))
    with torch.no_grad():
        logits = replica.module(images)
    assert len(labels) == 19
    assert run.rows[0]["validation_loss"] == pytest.approx(F.cross_entropy(logits, labels).item())
    assert run.rows[0]["top1_accuracy"] == pytest.approx((logits.argmax(1) == labels).sum().item() / 19)
    assert run.rows[0]["top5_accuracy"] == 1  # of four classes
    assert two.facts[0]["statistics"] == two.facts[1]["statistics"]


@pytest.fixture
def run(drawn, prepared_32px, tmp_path, run_main):
    """run(*words): train.py in this process, on small images: exit code, stdout and stderr."""
    own = ["--data", drawn, "--device", "cpu", "--model", "w8", "--image-size", 32, "--batch-size", 8]
    own += ["--workers", 0, "--epochs", 2, "--logdir", tmp_path / "train"]
    return lambda *words: run_main(train, *own, *words)


def test_a_training_that_was_cut_off_goes_on_as_if_nothing_had_happened(run, tmp_path):
    words = ("--pipeline", "shards")
    assert run(*words, "--logdir", tmp_path / "uncut").returncode == 0
    assert_goes_on_after_a_kill(run, words, tmp_path / "train", tmp_path / "uncut")
    assert "checkpoint.pt is of a training with pipeline shards, not cached" in run("--pipeline", "cached").stderr


def test_what_cannot_be_trained_is_one_line(run):
    assert_refused(run("--batch-size", "9", "--accumulate", "2"), "has to be a multiple of 2")
    assert_refused(run("--batch-size", "97"), "larger than the data")


def test_several_pipelines_are_trained_one_after_the_other_and_compared(run, monkeypatch):
    def one(command, **_):
        args = train.options([str(word) for word in command[2:]])
        seconds = {"jpeg": 20.0, "shards": 5.0}[args.pipeline[0]]
        args.logdir.mkdir(parents=True)
        train.write_json(args.logdir / train.QUICK, {"seconds": seconds, "images_per_second": 96 / seconds})
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(train.subprocess, "run", one)
    table = [line.split() for line in run("--pipeline", "jpeg", "shards", "--quick").stdout.splitlines()[-2:]]
    assert table == [["jpeg", "4.8", "20", "0.00556", "1"], ["shards", "19.2", "5", "0.00139", "4"]]
