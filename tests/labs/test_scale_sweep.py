"""labs/scale: a sweep whose processes share a study, by objectives with known answers, and a small one as a whole."""

import json
import math
import multiprocessing
import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from random import Random

import pytest
import torch
from PIL import Image
from torch import nn

from common.options import StepOptions
from labs.scale import sweep, trials, tuning
from labs.scale.trials import Pruned, Settings, begun, fail_lost, opened, states, work
from labs.scale.tuning import Diverged, Subset, subset, trained
from walkthrough.results.errors import InputError

needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed: pip install optuna")
SETTINGS = Settings(data="mine", classes=2, image_size=16, epochs=3, pruner="median", seed=0, device="cpu")


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path / "data", download=False, model="w8", image_size=16, batch_size=8,
        workers=0, precision="fp32", seed=0, quick=False, stacks=False,
    )  # fmt: skip


@pytest.fixture
def study(tmp_path):
    return opened(tmp_path, SETTINGS)


def smooth(parameters, after_epoch):
    after_epoch(1, {"accuracy": 0.5})
    return parameters["label_smoothing"]


def work_and_die(folder):
    """What a process of a sweep does, but it is killed in its third trial."""
    done = []

    def objective(parameters, after_epoch):
        done.append(parameters)
        if len(done) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return smooth(parameters, after_epoch)

    work(folder, opened(folder, SETTINGS), SETTINGS, 8, objective)


# Sharing a study


@needs_optuna
def test_two_processes_make_as_many_trials_as_asked_for_and_a_killed_one_loses_only_its_own(tmp_path, study):
    dies, own = multiprocessing.get_context("fork").Process(target=work_and_die, args=(tmp_path,)), []

    def objective(parameters, after_epoch):
        own.append(parameters)
        if len(own) == 3:  # which runs on while the other one loses its third
            dies.join(timeout=120)
        return smooth(parameters, after_epoch)

    dies.start()
    assert work(tmp_path, study, SETTINGS, 8, objective) == Counter(complete=6)
    assert dies.exitcode == -signal.SIGKILL
    assert Counter(states(study)) == {"complete": 8, "failed": 1}
    assert work(tmp_path, study, SETTINGS, 8, smooth) == Counter()
    assert len({trial.params["lr"] for trial in study.trials}) == 9  # no parameters tried twice
    assert study.best_value == max(trial.params["label_smoothing"] for trial in study.trials if trial.value is not None)


@needs_optuna
def test_a_trial_that_runs_in_a_process_is_counted_and_is_not_lost(tmp_path, study):
    trial, lock = begun(tmp_path, study, SETTINGS, 1)
    assert set(trial.params) == {"lr", "weight_decay", "batch_size", "label_smoothing", "width"}
    other = opened(tmp_path, SETTINGS)
    assert (fail_lost(tmp_path, other), begun(tmp_path, other, SETTINGS, 1)) == ([], None)
    lock.close()  # as the system does where a process ends
    assert fail_lost(tmp_path, other) == [0]
    assert states(study) == ["failed"]
    begun(tmp_path, study, SETTINGS, 1)[1].close()


@needs_optuna
def test_the_same_seed_tries_the_same_parameters(tmp_path):
    tried = []
    for name in ("a", "b"):
        work(tmp_path / name, study := opened(tmp_path / name, SETTINGS), SETTINGS, 3, smooth)
        tried.append([trial.params for trial in study.trials])
    assert tried[0] == tried[1]
    assert {params["width"] for params in tried[0]} <= {8, 16, 24}


@needs_optuna
def test_what_is_shared_has_to_be_the_same_and_whole(tmp_path, study):
    with pytest.raises(InputError, match="a sweep with epochs 3, not 4: name another --logdir"):
        opened(tmp_path, Settings(**{**vars(SETTINGS), "epochs": 4}))
    with open(tmp_path / trials.JOURNAL, "a") as journal:
        journal.write("half a line\nand another\n")
    with pytest.raises(InputError, match=r"journal\.log is damaged"):
        opened(tmp_path, SETTINGS)


def test_without_optuna_the_sweep_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="the sweep needs optuna, which is not installed: pip install optuna"):
        trials.optuna()


# How trials end


def run_of(folder, number):
    """What TensorBoard reads of a trial: ({tag: values}, {parameter: value})."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    events = EventAccumulator(str(folder / "trials" / f"{number:04d}"))
    events.Reload()
    curves = {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    content = events.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    info = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    return curves, {name: value.number_value for name, value in info.hparams.items()}


@needs_optuna
def test_bad_trials_are_pruned_counted_and_shown_with_their_curves_and_parameters(tmp_path, study):
    def objective(parameters, after_epoch):
        worse = len(study.trials) > trials.WARM_UP_TRIALS
        for epoch in (1, 2, 3):
            after_epoch(epoch, {"loss": 1 / epoch, "accuracy": 0.2 if worse else 0.8})
        return 0.2 if worse else 0.8

    assert work(tmp_path, study, SETTINGS, 7, objective) == Counter(complete=5, pruned=2)
    assert states(study)[-2:] == ["pruned", "pruned"]
    assert [epoch["epoch"] for epoch in study.trials[5].user_attrs["epochs"]] == [1, 2]
    assert study.trials[5].user_attrs["reason"] == "worse than others after epoch 2"
    for number, epochs in ((0, 3), (5, 2)):
        curves, parameters = run_of(tmp_path, number)
        assert curves["loss"] == pytest.approx([1.0, 0.5, 1 / 3][:epochs])
        assert curves["accuracy"] == pytest.approx([0.8 if number == 0 else 0.2] * epochs)
        assert parameters == pytest.approx(study.trials[number].params)
    result = sweep.summary(study, SETTINGS, "a machine")
    assert (result["counts"], result["best"]["accuracy"]) == ({"complete": 5, "pruned": 2}, 0.8)
    assert [trial["accuracy"] for trial in result["trials"][4:]] == [0.8, None, None]
    assert result["importance"] is None and result["importance_missing"].startswith("5 trial(s) ran to their end")


@needs_optuna
def test_hyperband_and_no_pruner_can_be_chosen(tmp_path):
    package = trials.optuna()
    for name, kind in (("hyperband", package.pruners.HyperbandPruner), ("none", package.pruners.NopPruner)):
        own = Settings(**{**vars(SETTINGS), "pruner": name})
        assert isinstance(opened(tmp_path / name, own).pruner, kind)


@needs_optuna
def test_a_training_that_diverges_counts_and_a_defect_ends_the_process(tmp_path, study):
    def objective(parameters, after_epoch):
        number = len(study.trials)
        if number < 3:
            raise Diverged("no number") if number == 1 else RuntimeError("CUDA out of memory")
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        work(tmp_path, study, SETTINGS, 5, objective)
    assert states(study) == ["pruned", "pruned", "failed"]
    assert [trial.user_attrs.get("reason") for trial in study.trials] == ["no number", "out of memory", None]


@needs_optuna
@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_the_parameter_that_decides_is_the_important_one():
    package, random = trials.optuna(), Random(0)
    study = package.create_study(direction="maximize")
    for _ in range(40):
        params = {
            "lr": 10 ** random.uniform(-3, 0),
            "width": random.choice([8, 24]),
            "batch_size": random.choice([16, 64]),
        }
        space = {name: trials.space("cpu")[name] for name in params}
        value = -abs(math.log10(params["lr"]) + 1.5)
        study.add_trial(package.create_trial(params=params, distributions=space, value=value))
    importance, _ = sweep.importances(study, 40)
    assert max(importance, key=importance.get) == "lr"
    assert sum(importance.values()) == pytest.approx(1)


# What a trial trains


def coloured(count=160):
    """Dark images and bright ones."""
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 100, (count, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    images = (noise + 150 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return Subset(images, labels, torch.arange(count) % 5 == 0, 2, "made up")


PARAMETERS = {"lr": 0.02, "weight_decay": 1e-4, "batch_size": 16, "label_smoothing": 0.1, "width": 8}


def test_a_trial_learns_and_the_same_seed_gives_the_same_numbers(options):
    def first_epoch(epoch, metrics):
        assert metrics == rows[0]
        raise Pruned("enough")

    rows = []
    accuracy = trained(options, coloured(), PARAMETERS, 3, lambda epoch, metrics: rows.append(metrics))
    assert len(rows) == 3 and rows[-1]["accuracy"] == accuracy
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]  # held-out images need more steps: batch norm's statistics lag
    with pytest.raises(Pruned, match="enough"):
        trained(options, coloured(), PARAMETERS, 3, first_epoch)


def test_accuracy_and_loss_are_of_all_images_whatever_the_batches(monkeypatch):
    class Bright(nn.Module):
        """Says 1 with probability 3/4 of an image that is brighter than ImageNet's mean, 0 of another."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images):
            bright = (images.mean(dim=(1, 2, 3)) > 0).float()
            return self.weight * torch.stack([1 - bright, bright], 1) * math.log(3)

    monkeypatch.setattr(tuning, "EVALUATION_BATCH", 3)
    images = torch.tensor([0, 255, 255, 0], dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    loss, accuracy = tuning.evaluated(Bright(), images, torch.tensor([0, 1, 1, 1]))
    assert accuracy == 0.75
    assert loss == pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4)


def test_a_trial_whose_loss_is_no_number_ends(options):
    with pytest.raises(Diverged, match="epoch 1"):
        trained(options, coloured(), {**PARAMETERS, "lr": 1e30}, 6, lambda epoch, metrics: None)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 110 JPEGs of one grey for each of three classes."""
    folder = tmp_path_factory.mktemp("pictures")
    for label in range(3):
        (folder / "train" / f"class_{label}").mkdir(parents=True)
        for number in range(110):
            Image.new("RGB", (20, 20), (80 * label,) * 3).save(
                folder / "train" / f"class_{label}" / f"{number:03d}.jpg"
            )
    return folder


def test_some_classes_are_decoded_once_and_a_fifth_of_each_is_held_out(options, pictures, monkeypatch):
    own = replace(options, data=pictures)
    data = subset(own, 2)
    assert (data.images.shape, data.images.dtype, data.classes) == ((220, 3, 16, 16), torch.uint8, 2)
    assert [int((data.labels[data.held_out] == label).sum()) for label in (0, 1)] == [22, 22]
    monkeypatch.setattr(tuning, "as_uint8", None)  # nothing is decoded again
    assert torch.equal(subset(own, 2).images, data.images)
    next(options.logdir.glob("images-*.pt")).write_bytes(b"half")
    with pytest.raises(InputError, match="delete it, and the images are decoded again"):
        subset(own, 2)


# As a whole


@needs_optuna
def test_the_sweep_runs_in_a_process_goes_on_and_writes_its_file(tmp_path, pictures, capsys):
    def call(*words):
        small = ["--data", pictures, "--image-size", 16, "--classes", 2, "--device", "cpu", "--processes", 1]
        sweep.main(list(map(str, [*small, "--logdir", tmp_path, *words])))
        return capsys.readouterr().out

    assert "176 images of 2 classes of pictures0, 44 held out" in call("--trials", 2, "--epochs", 1)
    result = json.loads((tmp_path / "sweep.json").read_text())
    assert sum(result["counts"].values()) == 2 == len(result["trials"])
    assert all(len(trial["epochs"]) == 1 or trial["reason"] for trial in result["trials"])
    assert len(list((tmp_path / "trials").glob("*/events.*"))) == 2
    assert "goes on with a study of" in call("--trials", 1, "--epochs", 1)
    assert len(json.loads((tmp_path / "sweep.json").read_text())["trials"]) == 2
    with pytest.raises(InputError, match="a sweep with epochs 1, not 2"):
        call("--epochs", 2)
