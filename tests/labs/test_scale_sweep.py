"""labs/scale: a sweep whose processes share a study, by objectives with known answers, and a small one as a whole."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.options import StepOptions
from labs.scale import data as jpegs
from labs.scale import sweep
from labs.scale.preprocess import prepared
from labs.scale.sweep import Settings, Subset, opened, optuna
from walkthrough.results.errors import InputError

pytestmark = pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed: pip install optuna")
SETTINGS = Settings("mine", classes=2, image_size=16, epochs=3, seed=0, metric="top1_accuracy")
PARAMETERS = {"lr": 0.02, "weight_decay": 1e-4, "batch_size": 16, "label_smoothing": 0.1, "width": 8}


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path / "data", download=False, model="w8", image_size=16, batch_size=8,
        workers=0, precision="fp32", seed=0, quick=False, stacks=False,
    )  # fmt: skip


@pytest.fixture
def study(tmp_path):
    return opened(tmp_path, SETTINGS)


class Coloured:
    """Dark images and bright ones, of which it is known which were read."""

    def __init__(self, count=160):
        self.labels = (np.arange(count) % 2).tolist()
        noise = np.random.default_rng(0).integers(0, 100, (count, 3, 32, 32))
        self.array, self.read = (noise + 150 * np.array(self.labels)[:, None, None, None]).astype(np.uint8), []
        self.images = self

    def __getitem__(self, which):
        self.read.append(which)
        return self.array[which]


def state_of(trial):
    return trial.state.name.lower()


def states(study):
    return [state_of(trial) for trial in study.get_trials(deepcopy=False)]


# Sharing a study


def work_and_die(folder):
    """What a process of a sweep does, but it is killed in its second trial."""

    def objective(trial):
        sweep.suggested(trial, "cpu")
        if trial.number >= 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.5

    os.environ["JOB_INDEX"] = "1"
    opened(folder, SETTINGS).optimize(objective, n_trials=3)


def test_processes_share_a_study_and_a_killed_one_loses_only_its_own_trial(tmp_path, study):
    dies = multiprocessing.get_context("fork").Process(target=work_and_die, args=(tmp_path,))
    dies.start()
    dies.join(timeout=120)
    assert dies.exitcode == -signal.SIGKILL and states(study) == ["complete", "running"]
    again = opened(tmp_path, SETTINGS)
    again.optimize(lambda trial: sweep.suggested(trial, "cuda:1")["label_smoothing"], n_trials=3)
    assert states(study) == ["complete", "running", "complete", "complete", "complete"]
    tried = [trial.params for trial in study.trials]
    assert len({params["lr"] for params in tried}) == 5  # no parameters tried twice
    assert set(tried[0]) == set(PARAMETERS)
    assert {params["width"] for params in tried[2:]} <= {16, 24, 32, 40, 48}


def test_the_same_seed_tries_the_same_parameters(tmp_path):
    tried = []
    for name in ("a", "b"):
        study = opened(tmp_path / name, SETTINGS)
        study.optimize(lambda trial: sweep.suggested(trial, "cpu")["lr"], n_trials=3)
        tried.append([trial.params for trial in study.trials])
    assert tried[0] == tried[1]


def test_what_is_shared_has_to_be_the_same_and_whole(tmp_path, study):
    with pytest.raises(InputError, match="a sweep with epochs 3, not 4: name another --logdir"):
        opened(tmp_path, replace(SETTINGS, epochs=4))
    with open(tmp_path / sweep.JOURNAL, "a") as journal:
        journal.write("half a line\nand another\n")
    with pytest.raises(InputError, match=r"journal\.log is damaged"):
        opened(tmp_path, SETTINGS)


def test_without_optuna_the_sweep_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="the sweep needs optuna, which is not installed: pip install optuna"):
        optuna()


# How trials end


def run_of(folder, number):
    """What TensorBoard reads of a trial: ({tag: values}, {parameter: value})."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    curves, parameters = {}, {}
    for path in sorted((folder / "trials" / f"{number:04d}").glob("events*")):
        events = EventMultiplexer({"run": str(path)}).Reload()
        for tag in events.Runs()["run"]["scalars"]:
            curves[tag] = [event.value for event in events.Scalars("run", tag)]
        if metadata.SESSION_START_INFO_TAG in events.GetAccumulator("run").summary_metadata:
            content = events.SummaryMetadata("run", metadata.SESSION_START_INFO_TAG).plugin_data.content
            info = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
            parameters = {name: value.number_value for name, value in info.hparams.items()}
    return curves, parameters


def test_bad_trials_are_pruned_counted_and_shown_with_their_curves_and_parameters(
    tmp_path, study, options, monkeypatch
):
    def trained(options, data, settings, parameters):
        accuracy = 0.2 if len(study.trials) > sweep.WARM_UP_TRIALS else 0.8
        for epoch in (1, 2, 3):
            row = {"epoch": epoch, "loss": 1 / epoch, "validation_loss": 2 / epoch}
            yield row | {"top1_accuracy": accuracy, "top5_accuracy": 1.0}

    monkeypatch.setattr(sweep, "trained", trained)
    study.optimize(lambda trial: sweep.objective(trial, options, None, SETTINGS), n_trials=7)
    assert states(study) == ["complete"] * 5 + ["pruned"] * 2
    assert [epoch["epoch"] for epoch in study.trials[5].user_attrs["epochs"]] == [1, 2]
    assert study.trials[5].user_attrs["reason"] == "worse than others after epoch 2"
    for number, epochs in ((0, 3), (5, 2)):
        curves, parameters = run_of(tmp_path, number)
        assert curves["loss"] == pytest.approx([1.0, 0.5, 1 / 3][:epochs])
        assert curves["top1_accuracy"] == pytest.approx([0.8 if number == 0 else 0.2] * epochs)
        assert parameters == pytest.approx(study.trials[number].params)
    result = sweep.summary(study, SETTINGS)
    assert (result["counts"], result["best"]["value"]) == ({"complete": 5, "pruned": 2}, 0.8)
    assert [trial["value"] for trial in result["trials"][4:]] == [0.8, None, None]
    assert result["settings"] == asdict(SETTINGS)


def test_a_training_without_memory_is_pruned_and_a_defect_ends_the_process(study, options, monkeypatch):
    def trained(*_):
        raise RuntimeError("CUDA out of memory") if len(study.trials) == 1 else ValueError("a defect")

    monkeypatch.setattr(sweep, "trained", trained)
    with pytest.raises(ValueError, match="a defect"):
        study.optimize(lambda trial: sweep.objective(trial, options, None, SETTINGS), n_trials=5)
    assert states(study) == ["pruned", "fail"]
    assert [trial.user_attrs.get("reason") for trial in study.trials] == ["CUDA out of memory", None]


# What a trial trains


def test_some_classes_are_read_from_the_file_batch_by_batch_and_a_fifth_of_each_is_held_out(drawn, monkeypatch):
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 1)
    data = Subset(jpegs.Cached(prepared(drawn, "cached", 16), "train"), 2)
    assert isinstance(data.data.images, np.memmap)
    assert [int((data.labels[data.held_out] == label).sum()) for label in (0, 1)] == [5, 5]
    assert len(data.train) == 48 - 10 and not set(data.train) & set(data.held_out)
    assert set(data.labels[data.train].tolist()) == {0, 1}
    images, labels = data.batch(data.train[[3, 20]], torch.device("cpu"))
    assert np.array_equal(images.numpy(), np.asarray(data.data.images)[data.train[[3, 20]]])
    assert labels.tolist() == [0, 1]


def test_a_trial_learns_on_its_part_alone_and_the_same_seed_gives_the_same_numbers(options):
    data = Subset(Coloured(), 2)
    settings = replace(SETTINGS, image_size=32)
    rows = list(sweep.trained(options, data, settings, PARAMETERS))
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]  # held-out images need more steps: batch norm's statistics lag
    assert rows[-1]["top5_accuracy"] == 1
    assert next(sweep.trained(options, Subset(Coloured(), 2), settings, PARAMETERS)) == rows[0]
    for name, other in (("label_smoothing", 0.0), ("weight_decay", 0.5)):
        assert next(sweep.trained(options, Subset(Coloured(), 2), settings, {**PARAMETERS, name: other})) != rows[0]
    read, held_out = data.data.read, set(data.held_out)
    assert max(map(len, read)) <= 32  # and never all of them
    assert sum(len(which) for which in read if set(which) <= held_out) == 3 * 32
    assert all(set(which) <= held_out or not set(which) & held_out for which in read)


def test_a_trial_whose_loss_is_no_number_ends(options):
    with pytest.raises(optuna().TrialPruned, match="the loss of epoch 1 is no number"):
        list(sweep.trained(options, Subset(Coloured(), 2), SETTINGS, {**PARAMETERS, "lr": 1e30}))


# As a whole


def test_the_sweep_goes_on_and_writes_its_file(tmp_path, drawn, monkeypatch, capsys):
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 1)
    monkeypatch.setattr(sweep, "BATCH_SIZES", (16, 32))

    shutil.copytree(drawn, tmp_path / "data", ignore=shutil.ignore_patterns("*px*"))

    def call(*words):
        small = [
            "--data",
            tmp_path / "data",
            "--image-size",
            16,
            "--classes",
            3,
            "--device",
            "cpu",
            "--logdir",
            tmp_path,
        ]
        sweep.main(list(map(str, [*small, *words])))
        return capsys.readouterr().out

    assert "57 images of 3 classes of drawn JPEGs, 15 held out" in call("--trials", 2, "--epochs", 1)
    [made] = (tmp_path / "data").glob("*px*")  # of three classes, and nothing of the way there
    assert made.name == "cached-16px-3-classes" and not list(made.rglob("*.jpg"))
    assert np.load(made / "train.npy", mmap_mode="r").shape == (72, 3, 16, 16)
    result = json.loads((tmp_path / sweep.FILE).read_text())
    assert sum(result["counts"].values()) == 2 == len(result["trials"])
    assert result["settings"]["metric"] == "top1_accuracy"  # top-5 of so few classes says little
    told = call("--trials", 1, "--epochs", 1)
    assert "of which 2 are there" in told and "top-5 100.0%" in told
    assert len(json.loads((tmp_path / sweep.FILE).read_text())["trials"]) == 2
    with pytest.raises(InputError, match="a sweep with epochs 1, not 2"):
        call("--epochs", 2)
    monkeypatch.setattr(sweep, "FEW_CLASSES", 2)
    with pytest.raises(InputError, match="with metric top1_accuracy, not top5_accuracy"):
        call("--trials", 3, "--epochs", 1)
    assert SimpleNamespace(**result).best["epochs"][-1]["top1_accuracy"] == result["best"]["value"]
