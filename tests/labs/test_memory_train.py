"""labs/memory/train.py: what it writes, and that nothing is lost by a kill, a damaged file or other settings."""

import csv
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, exit_code_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labs.memory import data, train
from walkthrough.results.errors import InputError


@pytest.fixture
def run(few_digits, tmp_path, monkeypatch, capsys):
    """run(*words): train.py on the CPU in this process: exit code, stdout, stderr, and the folder that it writes to."""

    def started(*words, logdir=tmp_path / "train"):
        small = ["--device", "cpu", "--model", "resnext11_1x2d", "--image-size", "16", "--batch-size", "16"]
        base = [*small, "--num-workers", "0", "--data", str(tmp_path), "--logdir", str(logdir)]
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
    assert [(point.step, point.value) for point in events.Scalars("loss")] == [
        (int(row["epoch"]), pytest.approx(float(row["loss"]))) for row in table
    ]


def test_a_training_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path, monkeypatch):
    whole = run("--epochs", "3", logdir=tmp_path / "whole")
    real = train.Training.epoch

    def killed_in_the_second(self, test_set):
        if len(self.epochs) == 1:
            next(iter(self.loader))
            raise KeyboardInterrupt
        return real(self, test_set)

    with monkeypatch.context() as patched:
        patched.setattr(train.Training, "epoch", killed_in_the_second)
        assert run("--epochs", "3").code == 130
    assert len(rows(tmp_path / "train")) == 1
    done = run("--epochs", "3")
    assert "goes on after epoch 1" in done.out
    assert same(weights(done.folder), weights(whole.folder))
    losses = [[row["loss"] for row in rows(folder)] for folder in (done.folder, whole.folder)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_a_partial_checkpoint_is_one_line_and_nothing_is_lost(run):
    folder = run("--epochs", "1").folder
    table = (folder / "epochs.csv").read_bytes()
    checkpoint = folder / "checkpoint.pt"
    for content in (checkpoint.read_bytes()[:5000], b"", b"not a checkpoint"):
        checkpoint.write_bytes(content)
        done = run("--epochs", "2")
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "checkpoint.pt is damaged" in done.err
        assert "move it away" in done.err
        assert checkpoint.read_bytes() == content
        assert (folder / "epochs.csv").read_bytes() == table


def test_a_checkpoint_that_lacks_a_part_is_refused(run):
    folder = run("--epochs", "1").folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["optimizer"]
    torch.save(state, folder / "checkpoint.pt")
    assert "optimizer missing" in run("--epochs", "2").err


def without_a_weight(state):
    del state["model"]["stem.0.weight"]


def of_another_optimizer(state):
    state["optimizer"]["param_groups"] = []


def with_an_unknown_column(state):
    state["epochs"][0]["learning_rate"] = 0.1


@pytest.mark.parametrize("damage", [without_a_weight, of_another_optimizer, with_an_unknown_column])
def test_a_checkpoint_that_does_not_fit_the_model_is_one_line(run, damage):
    folder = run("--epochs", "1").folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    damage(state)
    torch.save(state, folder / "checkpoint.pt")
    done = run("--epochs", "2")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "checkpoint.pt is damaged" in done.err


def test_a_kill_before_the_last_row_is_made_good_by_the_next_call(run):
    folder = run("--epochs", "2").folder
    whole = (folder / "epochs.csv").read_bytes()
    (folder / "epochs.csv").write_bytes(whole.splitlines(keepends=True)[0])
    assert run("--epochs", "2").code == 0
    assert (folder / "epochs.csv").read_bytes() == whole


def test_a_precision_is_printed_where_it_was_asked_for_and_once(run):
    assert "precision:" not in run("--epochs", "1").out
    done = run("--epochs", "1", "--half-precision", "--precision", "fp32")
    assert done.out.count("precision:") == 1


def test_half_precision_is_not_mixed_where_auto_means_another_on_the_next_gpu(run, monkeypatch):
    monkeypatch.setattr(train, "autocast_dtype", lambda device, precision: torch.bfloat16)
    folder = run("--epochs", "1", "--half-precision").folder
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["settings"]["precision"] == "bf16"
    monkeypatch.setattr(train, "autocast_dtype", lambda device, precision: torch.float16)
    done = run("--epochs", "2", "--half-precision")
    assert done.code == 2
    assert "training with precision bf16, not fp16" in done.err


def test_the_commands_that_the_page_shows_do_not_meet_in_one_folder():
    text = (ROOT / "docs" / "labs" / "memory.md").read_text()
    commands = re.findall(r"^    .*python labs/memory/train\.py (.*)$", text, re.MULTILINE)
    folders = [train.options(words.split()).logdir for words in commands]
    assert len(folders) == 2
    assert len(set(folders)) == 2
    assert all(words in train.__doc__ for words in commands)


def test_other_settings_do_not_go_on_from_a_checkpoint(run):
    run("--epochs", "1")
    done = run("--epochs", "2", "--lr", "0.1")
    assert done.code == 2
    assert "training with lr 0.01, not 0.1" in done.err
    assert run("--epochs", "2", "--checkpoint").code == 2
    assert run("--epochs", "2").code == 0


def test_checkpointing_trains_the_same_and_half_precision_nearly(run, tmp_path):
    folders = [
        run("--epochs", "1", *words, logdir=tmp_path / str(number)).folder
        for number, words in enumerate(([], ["--checkpoint"], ["--half-precision", "--precision", "bf16"]))
    ]
    base, checkpointed, half = map(weights, folders)
    assert same(base, checkpointed)  # batch norm's running statistics are among them
    assert not same(base, half)
    losses = [float(rows(folder)[0]["loss"]) for folder in folders]
    assert losses[2] == pytest.approx(losses[0], rel=0.05)


def test_parts_of_a_step_are_nvtx_ranges_on_a_gpu(run, monkeypatch):
    named = []
    monkeypatch.setattr(torch.cuda.nvtx, "range", lambda name: named.append(name) or train.nullcontext())
    real = train._range
    monkeypatch.setattr(train, "_range", lambda device, name: real(torch.device("cuda"), name))
    assert run("--epochs", "1").code == 0
    assert named[:5] == ["load", "forward", "backward", "optimizer", "load"]
    monkeypatch.setattr(train, "_range", real)
    named.clear()
    with train._range(torch.device("cpu"), "load"):
        assert named == []


def test_without_cifar10_and_scikit_learn_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(InputError, match=r"scikit-learn.*pip install -r labs/memory/requirements\.txt"):
        data.real_data(tmp_path, 16)


def test_a_dataset_without_network_is_one_line(run, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    done = run("--epochs", "1", "--download")
    assert done.code == 2
    assert "could not be downloaded" in done.err


@pytest.mark.parametrize("words", ["--lr 0", "--batch-size 1000", "--model resnet18", "--epochs 0", "--num-workers -1"])
def test_what_cannot_be_trained_is_one_line(run, words):
    done = run("--epochs", "1", *words.split())
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_out_of_memory_says_what_was_tried(run, monkeypatch):
    def full(self, images, labels):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train.Training, "step", full)
    done = run("--epochs", "1")
    assert done.code == 2
    assert "with batch size 16: try --batch-size 8 or --checkpoint" in done.err
    assert "common fit" not in done.err  # it predicts GPUs


@pytest.mark.parametrize(("checkpoint", "program"), [(False, "01_half_precision"), (True, "02_checkpointing")])
def test_out_of_memory_on_a_gpu_names_the_command_that_says_what_fits(monkeypatch, checkpoint, program):
    def full(test_set):
        raise torch.OutOfMemoryError("CUDA out of memory")

    properties = SimpleNamespace(total_memory=15_843_721_216)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(train, "device_name", lambda device: "Tesla T4")
    settings = train.Settings("resnext11_1x2d", "digits", 48, 64, 0.01, "fp16", checkpoint, 0)
    training = SimpleNamespace(epochs=[], epoch=full, settings=settings, device=torch.device("cuda"))
    with pytest.raises(InputError) as refused:
        train.run(training, None, 1, print)
    assert str(refused.value).endswith(
        f"python -m walkthrough fit --program labs/memory/{program}.py --model resnext11_1x2d --image-size 48 "
        "--precision fp16 --memory 15GB"
    )
    assert ("or --checkpoint" in str(refused.value)) is not checkpoint


def test_digits_are_split_enlarged_and_never_mirrored(few_digits):
    train_set, test_set = data.Digits(data.plain(32)), data.Digits(data.plain(16), train=False)
    assert (len(train_set), len(test_set)) == (48, 12)
    image, label = train_set[0]
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.float32, 1)
    assert test_set[0][0].shape == (3, 16, 16)
    assert "Flip" not in str(data.shifted(32))
    assert "Flip" in str(data.augmented(32))
