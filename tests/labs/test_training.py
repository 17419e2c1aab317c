"""The epochs of a training: what a cut leaves, what it goes on from, which weights are the best; the schedule."""

import re
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch
from support import ROOT
from support.labs import assert_same_training, equal
from torch import nn

from labs.shared.training import BEST, CHECKPOINT, Training, epochs_in, rising_then_falling, unpacked
from walkthrough.results.errors import InputError


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    seed: int = 3


class Cut(Exception):
    """In place of a kill."""


def train(folder, epochs, cut_in=None, settings=Settings(), accuracies=(0.5, 0.9, 0.7, 0.9)):
    torch.manual_seed(settings.seed)
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.9)
    schedule = rising_then_falling(optimizer, 4, 0.25)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    generator = torch.Generator()
    run = Training(folder, settings, parts, [generator], best="test_accuracy")
    for epoch in run.epochs(epochs):
        if epoch == cut_in:
            raise Cut
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.done(loss=loss.item(), test_accuracy=accuracies[epoch - 1])
    return run, model


PARSERS = ["memory.train.parsed", "simcls.train.options", "transformer.train.arguments", "pruning.prune.parsed"]


@pytest.mark.parametrize("name", PARSERS)
def test_a_smoke_run_has_a_folder_of_its_own_and_the_commands_of_the_page_are_understood(name, tmp_path, monkeypatch):
    lab, program, function = name.split(".")
    trainer = import_module(f"labs.{lab}.{program}")
    parsed = getattr(trainer, function)
    smoke = parsed(["--device", "cpu", "--quick"])[0].logdir
    assert smoke == trainer.FOLDER.with_name(f"{trainer.FOLDER.name}-quick")  # a whole training's stays
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "DIR", tmp_path / "logs" / "labs" / "scale" / "train"):
        path.mkdir(parents=True, exist_ok=True)
    (tmp_path / "bart.jsonl").touch()
    page = (ROOT / "docs" / "labs" / f"{lab}.md").read_text()
    commands = re.findall(rf"^ .*python labs/{lab}/{program}\.py([^#\n]*)", page, re.MULTILINE)
    for words in commands:
        parsed([*words.split(), "--device", "cpu"])
    assert len(commands) >= 2


def test_a_training_that_was_cut_off_goes_on_bit_by_bit(tmp_path, capsys):
    train(tmp_path / "whole", 4)
    with pytest.raises(Cut):
        train(tmp_path / "cut", 4, cut_in=4)
    train(tmp_path / "cut", 4)
    assert "goes on after epoch 3" in capsys.readouterr().out
    assert_same_training(tmp_path / "whole", tmp_path / "cut")
    assert [row["epoch"] for row in epochs_in(tmp_path / "cut")] == [1, 2, 3, 4]


def test_the_weights_of_the_best_epoch_are_kept_and_found_again(tmp_path):
    for _ in range(2):  # the second time nothing is left to train
        run, model = train(tmp_path, 4)
        last = {name: value.clone() for name, value in model.state_dict().items()}
        assert run.load_best()["epoch"] == 2  # the first of two that are equal
        assert equal(model.state_dict(), unpacked((tmp_path / BEST).read_bytes())["model"])
        assert not equal(model.state_dict(), last)


def test_files_that_cannot_be_used_are_refused_by_their_own_name_and_left(tmp_path):
    train(tmp_path, 3)
    half = (tmp_path / CHECKPOINT).read_bytes()[:999]
    with pytest.raises(InputError, match=r"of a training with lr 0\.1, not 0\.2"):
        train(tmp_path, 4, settings=Settings(lr=0.2))
    (tmp_path / CHECKPOINT).write_bytes(half)
    with pytest.raises(InputError, match=r"checkpoint\.pt is damaged or no checkpoint"):
        train(tmp_path, 4)
    assert (tmp_path / CHECKPOINT).read_bytes() == half


def test_a_loss_that_is_no_number_ends_the_training_before_it_is_kept(tmp_path):
    run = Training(tmp_path, Settings(), {"model": nn.Linear(1, 1)})
    with pytest.raises(InputError, match="diverged"):
        for _ in run.epochs(2):
            run.done(loss=float("nan"))
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize("cosine", [False, True])
def test_the_learning_rate_rises_to_its_own_and_falls_to_0(cosine):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = rising_then_falling(optimizer, 10, 0.2, cosine)
    rates = []
    for _ in range(11):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == [1.0, 2.0, 2.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[6] == pytest.approx(1.0)  # half of the way down, on either curve
    assert rates[10] == pytest.approx(0.0)
