"""labs/memory/train.py: what it writes, that a kill loses nothing, and what its user reads where it cannot train."""

import csv
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, exit_code_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labs.memory import data, train
from labs.shared.training import Training
from walkthrough.results.errors import InputError


@pytest.fixture
def run(few_digits, tmp_path, monkeypatch, capsys):
    """run(*words): train.py on the CPU in this process: exit code, stdout, stderr, and the folder that it writes to."""

    def started(*words, logdir=tmp_path / "train"):
        small = ["--device", "cpu", "--model", "resnext11_1x2d", "--image-size", "16", "--batch-size", "16"]
        base = [*small, "--workers", "0", "--data", str(tmp_path), "--logdir", str(logdir)]
        monkeypatch.setattr(sys, "argv", ["train.py", *base, *words])
        capsys.readouterr()
        code = exit_code_of(train.main)
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err, folder=logdir)

    return started


def rows(folder):
    with open(folder / "epochs.csv", newline="") as file:
        return list(csv.DictReader(file))


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_it_writes_weights_a_table_and_scalars(run):
    done = run("--epochs", "2")
    assert done.code == 0
    assert "DIGITS: no CIFAR-10" in done.out
    table = rows(done.folder)
    assert [row["epoch"] for row in table] == ["1", "2"]
    assert set(table[0]) == {"epoch", "loss", "train_accuracy", "test_accuracy", "seconds"}
    assert all(0 <= float(row[name]) <= 1 for row in table for name in ("train_accuracy", "test_accuracy"))
    events = EventAccumulator(str(done.folder))
    events.Reload()
    assert [point.value for point in events.Scalars("loss")] == pytest.approx([float(row["loss"]) for row in table])


def test_a_training_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path, monkeypatch):
    words = ("--epochs", "3", "--workers", "1")
    whole = run(*words, logdir=tmp_path / "whole")
    real = Training.done

    def killed_in_the_second(self, **values):
        if len(self.rows) == 1:
            raise KeyboardInterrupt
        real(self, **values)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "done", killed_in_the_second)
        assert run(*words).code == 130
    assert len(rows(tmp_path / "train")) == 1
    done = run(*words)
    assert "goes on after epoch 1" in done.out
    assert same(weights(done.folder), weights(whole.folder))
    assert [row["loss"] for row in rows(done.folder)] == [row["loss"] for row in rows(whole.folder)]


def test_other_settings_do_not_go_on_from_a_checkpoint(run, monkeypatch):
    run("--epochs", "1", "--precision", "bf16")
    for words, why in ((["--lr", "0.1"], "lr 0.01, not 0.1"), (["--checkpoint"], "checkpoint False, not True")):
        done = run("--epochs", "2", "--precision", "bf16", *words)
        assert (done.code, why in done.err) == (2, True)
    monkeypatch.setattr("labs.shared.training.autocast_dtype", lambda device, precision: torch.float16)
    done = run("--epochs", "2", "--precision", "auto")  # which is another on another GPU
    assert "precision bf16, not fp16" in done.err


def test_checkpointing_trains_the_same_and_half_precision_nearly(run, tmp_path):
    words = ([], ["--checkpoint"], ["--precision", "bf16"])
    folders = [run("--epochs", "1", *each, logdir=tmp_path / str(at)).folder for at, each in enumerate(words)]
    base, checkpointed, half = map(weights, folders)
    assert same(base, checkpointed)  # batch norm's running statistics are among them
    assert not same(base, half)
    losses = [float(rows(folder)[0]["loss"]) for folder in folders]
    assert losses[2] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("name", ["resnext29_1x2d", "resnext50_1x2d"])
def test_the_depths_of_the_write_up_are_one_command_each(run, name):
    done = run("--epochs", "1", "--checkpoint", "--model", name)
    assert done.code == 0
    layers = [key for key, value in weights(done.folder).items() if value.ndim == 4 and "shortcut" not in key]
    assert len(layers) + 1 == int(name[7:9])  # and the classifier
    assert len(rows(done.folder)) == 1


def test_a_smoke_run_is_the_same_command_and_two_epochs(run):
    assert len(rows(run("--quick").folder)) == train.QUICK_EPOCHS


def test_the_commands_that_the_page_shows_are_understood_and_do_not_meet_in_one_folder():
    text = (ROOT / "docs" / "labs" / "memory.md").read_text()
    commands = re.findall(r"^    .*python labs/memory/train\.py ([^#\n]*)", text, re.MULTILINE)
    parsed = [train.parsed([*words.split(), "--device", "cpu"]) for words in commands]
    assert [(options.quick, epochs) for options, epochs, *_ in parsed] == [(False, 200), (True, 2), (False, 2)]
    assert len({options.logdir for options, *_ in parsed}) == 3


def test_parts_of_a_step_are_nvtx_ranges_on_a_gpu(few_digits, tmp_path, monkeypatch):
    """On a device that is called a GPU, and is the CPU."""
    named = []
    monkeypatch.setattr(torch.cuda.nvtx, "range", lambda name: named.append(name) or nullcontext())
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
    monkeypatch.setattr("labs.shared.training.synchronize", lambda device: None)
    train_set, test_set = data.real_data(tmp_path, 16)
    settings = train.Settings("resnext11_1x2d", "digits", 16, 16, 0.01, "fp32", False, 0)
    loader = train.batches(settings, train_set, torch.device("cpu"), 0)
    train.train(settings, loader, test_set, 1, torch.device("cuda"), None)
    assert named[:4] == ["forward", "backward", "optimizer", "forward"]


WRONG = ["--lr 0", "--batch-size 1000", "--model resnet18", "--epochs 0", "--workers -1", "--download"]


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_trained_is_one_line(run, monkeypatch, words):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    done = run("--epochs", "1", *words.split())
    assert done.code == 2
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("words", "program"), [((), "01_half_precision"), (("--checkpoint",), "02_checkpointing")])
def test_out_of_memory_says_what_to_try_and_on_a_gpu_which_command_says_what_fits(run, monkeypatch, words, program):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train, "forward", full)
    done = run("--epochs", "1", *words)
    assert done.code == 2
    assert "with batch size 16: try --batch-size 8" in done.err
    real = train.as_input_error
    monkeypatch.setattr(train, "as_input_error", lambda options, loader, _, file: real(options, loader, GPU, file))
    monkeypatch.setattr("common.failures.device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=15_843_721_216))
    assert run("--epochs", "1", *words).err.endswith(
        f"python -m walkthrough fit --program labs/memory/{program}.py --model resnext11_1x2d --image-size 16 "
        "--precision fp32 --memory 15GB\n"
    )


GPU = torch.device("cuda")


def test_digits_are_split_enlarged_and_never_mirrored(few_digits, tmp_path, monkeypatch):
    train_set, test_set = data.real_data(tmp_path, 16)
    assert (len(train_set), len(test_set)) == (40, 20)
    image, label = data.Digits(data.plain(32))[0]
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
    bright = image[0].mean(0).reshape(8, 4).mean(1).argmax()
    assert bright == label % 8  # its column is still its own
    assert test_set[0][0].shape == (3, 16, 16)
    assert "Flip(p=0.0)" in str(train_set.transform)
    assert "Flip(p=0.5)" in str(data.augmented(32))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(InputError, match=r"scikit-learn.*pip install -r labs/memory/requirements\.txt"):
        data.real_data(tmp_path, 16)
