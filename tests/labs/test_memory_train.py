"""labs/memory/train.py: what it writes, that a kill loses nothing, and what its user reads where it cannot train."""

import re
import sys

import pytest
import torch
from support import ROOT, assert_refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labs.memory import data, train
from labs.shared.training import Training, epochs_in
from walkthrough.results.errors import InputError


@pytest.fixture
def run(few_digits, tmp_path, run_here):
    """run(*words): train.py on the CPU in this process: exit code, stdout, stderr, and the folder that it writes to."""

    def started(*words, logdir=tmp_path / "train"):
        small = ["--device", "cpu", "--model", "resnext11_1x2d", "--image-size", "16", "--batch-size", "16"]
        base = [*small, "--workers", "0", "--data", str(tmp_path), "--logdir", str(logdir)]
        done = run_here(ROOT / "labs" / "memory" / "train.py", *base, *words)
        done.folder = logdir
        return done

    return started


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_training_writes_its_epochs_and_one_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path, monkeypatch):
    words = ("--epochs", "2", "--workers", "1")
    whole = run(*words, logdir=tmp_path / "whole")
    assert whole.returncode == 0 and "DIGITS: no CIFAR-10" in whole.stdout
    table = epochs_in(whole.folder)
    assert [row["epoch"] for row in table] == [1, 2]
    assert set(table[0]) == {"epoch", "loss", "train_accuracy", "test_accuracy", "seconds"}
    assert all(0 <= row[name] <= 1 for row in table for name in ("train_accuracy", "test_accuracy"))
    events = EventAccumulator(str(whole.folder)).Reload()
    assert [point.value for point in events.Scalars("loss")] == pytest.approx([row["loss"] for row in table])

    real = Training.done

    def killed_in_the_second(self, **values):
        if len(self.rows) == 1:
            raise KeyboardInterrupt
        real(self, **values)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "done", killed_in_the_second)
        assert run(*words).returncode == 130
    assert len(epochs_in(tmp_path / "train")) == 1
    done = run(*words)
    assert "goes on after epoch 1" in done.stdout
    assert same(weights(done.folder), weights(whole.folder))
    assert [row["loss"] for row in epochs_in(done.folder)] == [row["loss"] for row in table]


def test_checkpointing_trains_the_same_half_precision_nearly_and_settings_are_not_mixed(run, tmp_path, monkeypatch):
    words = ([], ["--checkpoint"], ["--precision", "bf16"])
    folders = [run("--epochs", "1", *more, logdir=tmp_path / str(at)).folder for at, more in enumerate(words)]
    base, checkpointed, half = map(weights, folders)
    assert same(base, checkpointed)  # batch norm's running statistics are among them
    assert not same(base, half)
    losses = [epochs_in(folder)[0]["loss"] for folder in folders]
    assert losses[2] == pytest.approx(losses[0], rel=0.05)
    for more, why in ((["--lr", "0.1"], "lr 0.01, not 0.1"), (["--checkpoint"], "checkpoint False, not True")):
        assert_refused(run("--epochs", "2", "--precision", "bf16", *more, logdir=folders[2]), why)
    monkeypatch.setattr("labs.shared.training.autocast_dtype", lambda device, precision: torch.float16)
    done = run("--epochs", "2", "--precision", "auto", logdir=folders[2])  # which is another on another GPU
    assert_refused(done, "precision bf16, not fp16")


def test_the_commands_that_the_page_shows_are_understood_and_do_not_meet_in_one_folder():
    text = (ROOT / "docs" / "labs" / "memory.md").read_text()
    commands = re.findall(r"^    .*python labs/memory/train\.py ([^#\n]*)", text, re.MULTILINE)
    parsed = [train.parsed([*words.split(), "--device", "cpu"]) for words in commands]
    assert [(options.quick, epochs) for options, epochs, *_ in parsed] == [(False, 200), (True, 2), (False, 2)]
    assert len({options.logdir for options, *_ in parsed}) == 3


WRONG = ["--lr 0", "--batch-size 1000", "--model resnet18", "--epochs 0", "--workers -1", "--download"]


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_trained_is_one_line(run, monkeypatch, words):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    assert_refused(run("--epochs", "1", *words.split()))


@pytest.mark.parametrize(("words", "program"), [((), "01_half_precision"), (("--checkpoint",), "02_checkpointing")])
def test_out_of_memory_is_explained_by_the_program_that_trains_alike(monkeypatch, tmp_path, words, program):
    files = []
    monkeypatch.setattr(train, "real_data", lambda *_: (range(64), range(2)))
    monkeypatch.setattr(train, "train", lambda *_: None)
    real = train.as_input_error
    monkeypatch.setattr(train, "as_input_error", lambda *more: files.append(more[-1]) or real(*more))
    monkeypatch.setattr(sys, "argv", ["train.py", "--device", "cpu", "--logdir", str(tmp_path), *words])
    train.main()
    assert files == [str(ROOT / "labs" / "memory" / f"{program}.py")]


def test_digits_are_split_enlarged_and_never_mirrored(few_digits, tmp_path, monkeypatch):
    train_set, test_set = data.real_data(tmp_path, 16)
    assert (len(train_set), len(test_set)) == (40, 20)
    image, label = data.Digits(data.plain(32))[0]
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
    bright = image[0].mean(0).reshape(8, 4).mean(1).argmax()
    assert bright == label % 8  # its column is still its own
    assert test_set[0][0].shape == (3, 16, 16)
    assert "Flip(p=0.0)" in str(train_set.transform) and "Flip(p=0.5)" in str(data.augmented(32))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(InputError, match=r"scikit-learn.*pip install -r labs/memory/requirements\.txt"):
        data.real_data(tmp_path, 16)
