"""labs/scale: a sweep whose processes share a study, by objectives with known answers, and a small one as a whole."""

import json
import shutil
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from support.labs import lab_options

from labs.scale import sweep
from labs.scale.sweep import Settings, Subset, opened
from walkthrough.results.errors import InputError

pytestmark = [
    pytest.mark.xdist_group("scale data"),  # images are drawn once
    pytest.mark.skipif(find_spec("optuna") is None, reason="optuna is not installed: pip install optuna"),
]
SETTINGS = Settings("mine", classes=2, image_size=16, epochs=3, seed=0, metric="top1_accuracy")
PARAMETERS = {"lr": 0.02, "weight_decay": 1e-4, "batch_size": 16, "label_smoothing": 0.1, "width": 8}


@pytest.fixture
def study(tmp_path):
    return opened(tmp_path, SETTINGS)


class Coloured:
    """Dark images and bright ones, of which it is known which were read."""

    def __init__(self):
        labels, noise = np.arange(160) % 2, np.random.default_rng(0).integers(0, 100, (160, 3, 32, 32))
        self.array = (noise + 150 * labels[:, None, None, None]).astype(np.uint8)
        self.labels, self.images, self.read = labels.tolist(), self, []

    def __getitem__(self, which):
        self.read.append(which)
        return self.array[which]


def test_processes_share_a_study_try_no_parameters_twice_and_propose_by_the_seed(tmp_path):
    tried = []
    for folder in (tmp_path, tmp_path, tmp_path / "a", tmp_path / "b"):
        shared = opened(folder, SETTINGS)
        shared.optimize(lambda trial: sweep.suggested(trial, "cpu")["label_smoothing"], n_trials=2)
        tried.append([trial.params for trial in shared.trials])
    assert len({params["lr"] for params in tried[1]}) == 4 and tried[1][:2] == tried[0]
    assert tried[2] == tried[3]


def test_what_is_shared_has_to_be_the_same(tmp_path, study):
    with pytest.raises(InputError, match="a sweep with epochs 3, not 4: name another --logdir"):
        opened(tmp_path, replace(SETTINGS, epochs=4))


def test_bad_trials_are_pruned_and_counted_and_a_defect_ends_the_process(tmp_path, study, monkeypatch):
    def states():
        return [trial.state.name.lower() for trial in study.trials]

    def trained(options, data, settings, parameters):
        if len(study.trials) > 7:
            raise RuntimeError("CUDA out of memory") if len(study.trials) == 8 else ValueError("a defect")
        accuracy = 0.2 if len(study.trials) > sweep.WARM_UP_TRIALS else 0.8
        for epoch in (1, 2, 3):
            yield {"epoch": epoch, "loss": 1 / epoch, "top1_accuracy": accuracy}

    monkeypatch.setattr(sweep, "trained", trained)
    objective = partial(sweep.objective, options=lab_options(tmp_path), data=None, settings=SETTINGS)
    study.optimize(objective, n_trials=7)
    assert states() == ["complete"] * 5 + ["pruned"] * 2
    assert study.trials[5].user_attrs["reason"] == "worse than others after epoch 2"
    result = sweep.summary(study, SETTINGS)
    assert (result["counts"], result["best"]["value"]) == ({"complete": 5, "pruned": 2}, 0.8)
    assert [trial["value"] for trial in result["trials"][4:]] == [0.8, None, None]
    with pytest.raises(ValueError, match="a defect"):
        study.optimize(objective, n_trials=5)
    assert states()[7:] == ["pruned", "fail"]
    assert study.trials[7].user_attrs["reason"] == "CUDA out of memory"


def test_a_trial_learns_on_its_part_alone_and_the_same_seed_gives_the_same_numbers(tmp_path):
    options = lab_options(tmp_path, quick=False)
    data = Subset(Coloured(), 2)
    settings = replace(SETTINGS, image_size=32, epochs=2)
    rows = list(sweep.trained(options, data, settings, PARAMETERS))
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]  # held-out images need more steps: batch norm's statistics lag
    assert rows[-1]["top5_accuracy"] == 1
    for changed in ({}, {"label_smoothing": 0.0}, {"weight_decay": 0.5}):
        row = next(sweep.trained(options, Subset(Coloured(), 2), settings, PARAMETERS | changed))
        assert (row == rows[0]) == (not changed)
    read, held_out = data.data.read, set(data.held_out)
    assert sum(len(which) for which in read if set(which) <= held_out) == 2 * 32
    assert all(set(which) <= held_out or not set(which) & held_out for which in read)


def test_the_sweep_goes_on_and_writes_its_file(tmp_path, drawn, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "BATCH_SIZES", (16, 32))
    shutil.copytree(drawn, tmp_path / "data", ignore=shutil.ignore_patterns("*px*"))

    def call(trials):
        words = ["--data", tmp_path / "data", "--image-size", 16, "--classes", 3, "--device", "cpu", "--epochs", 1]
        sweep.main([str(word) for word in (*words, "--logdir", tmp_path, "--trials", trials)])
        return capsys.readouterr().out, json.loads((tmp_path / sweep.FILE).read_text())

    told, result = call(2)
    assert "57 images of 3 classes of drawn JPEGs, 15 held out" in told
    assert result["settings"]["metric"] == "top1_accuracy"  # top-5 of so few classes says little
    assert result["best"]["epochs"][-1]["top1_accuracy"] == result["best"]["value"]
    told, result = call(1)
    assert "of which 2 are there" in told and len(result["trials"]) == 2
