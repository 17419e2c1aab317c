"""labs/transformer: train.py and a kill, predict.py, Trainer's script, and the study by known answers."""

import json
import random

import pytest
import torch
from support import ROOT, assert_refused
from support.labs import assert_goes_on_after_a_kill, equal

from common import program as programs
from walkthrough.compare.study import read

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")

import transformers

from labs.shared.training import epochs_in
from labs.transformer import model, predict, study, train, with_trainer
from labs.transformer.model import Size

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*")  # of transformers

LAB = ROOT / "labs" / "transformer"
WORDS = {"red": "apple cherry rose brick blood".split(), "blue": "sky sea ink jeans whale".split()}
NAMES = tuple(train.PROGRAMS)


@pytest.fixture
def data(tmp_path):
    """A folder with 48 short texts of two classes, 8 words each at most."""
    folder, draw = tmp_path / "data", random.Random(0)
    folder.mkdir()
    for part, count in (("train", 32), ("validation", 8), ("test", 8)):
        labels = [("red", "blue")[number % 2] for number in range(count)]
        rows = [f"{' '.join(draw.choices(WORDS[label], k=draw.randint(1, 8)))},{label}" for label in labels]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *rows]))
    return folder


@pytest.fixture
def run(data, tmp_path, monkeypatch, run_here):
    """run(*words): train.py on the CPU in this process."""
    monkeypatch.setitem(model.SIZES, "nano", Size(layers=1, width=16, heads=2, hidden=32, max_tokens=12))

    base = ["--device", "cpu", "--precision", "fp32", "--model", "nano", "--batch-size", "8", "--workers", "0"]
    base += ["--data", data, "--logdir", tmp_path / "train"]
    return lambda *words: run_here(LAB / "train.py", *base, *words)


def test_it_learns_and_the_best_epoch_predicts_and_is_trained_on(run, run_here, tmp_path):
    run("--epochs", "6", "--lr", "0.03")
    folder, further = tmp_path / "train", tmp_path / "further"
    table = epochs_in(folder)
    assert table[-1]["loss"] < 0.5 * table[0]["loss"]
    result = json.loads((folder / "test.json").read_text())
    assert result["texts"] == 8 and result["accuracy"] >= 0.75
    assert result["epoch"] == max(table, key=lambda row: row["validation_accuracy"])["epoch"]
    saved = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert equal(saved.state_dict(), torch.load(folder / "best.pt", weights_only=True)["model"])
    told = run_here(LAB / "predict.py", folder / "model", "rose cherry", "sea", "--device", "cpu").stdout
    assert [line.split("\t")[::2] for line in told.splitlines()] == [["red", "rose cherry"], ["blue", "sea"]]
    run("--model", folder / "model", "--epochs", "1", "--logdir", further)
    assert epochs_in(further)[0]["loss"] < table[0]["loss"]


def test_a_training_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path):
    words = ("--epochs", "2", "--workers", "1", "--program", "08_uniform_length")
    run(*words, "--logdir", tmp_path / "whole")
    assert_goes_on_after_a_kill(run, words, tmp_path / "train", tmp_path / "whole")


def test_what_cannot_be_used_is_one_line(run, monkeypatch, run_here, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "--batch-size 64 is larger than the training data (32 texts)" in run("--batch-size", "64").stderr
    assert_refused(run("--model", "no-such-model"), "--model no-such-model")
    assert_refused(run_here(LAB / "with_trainer.py", "tiny", tmp_path, "out"), "cannot read")


def test_trainers_script_trains_and_saves_a_model_that_predicts(data, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setitem(model.SIZES, "nano", Size(layers=1, width=16, heads=2, hidden=32, max_tokens=12))
    changed = {"fp16": False, "use_cpu": True, "dataloader_num_workers": 0, "dataloader_persistent_workers": False}
    changed |= {"report_to": "none", "disable_tqdm": True, "learning_rate": 0.03, "gradient_accumulation_steps": 1}
    tested = with_trainer.trained("nano", data, tmp_path / "out", **changed, num_train_epochs=6)
    assert tested["eval_accuracy"] >= 0.75
    assert [label for label, _ in predict.predicted(str(tmp_path / "out"), ["rose cherry", "sea"])] == ["red", "blue"]


# The study


@pytest.fixture
def main(tmp_path, monkeypatch, run_main, measure_here):
    """main(*words): the study's program in this process, measurements included: exit code and stderr."""
    for part, count in (("train", 80), ("validation", 20), ("test", 20)):  # texts of 1 to 20 words
        rows = [f"{' '.join(['ab'[number % 2]] * (1 + number * 7 % 20))},{number % 2}" for number in range(count)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *rows]))
    for name in ("nano", "base", "tiny"):  # "base" is as small, so that predicting takes no time
        monkeypatch.setitem(model.SIZES, name, Size(layers=1, width=16, heads=2, hidden=32, max_tokens=24))
    measure_here(study)
    base = ["--quick", "--device", "cpu", "--model", "nano", "--logdir", tmp_path, "--data", tmp_path]
    return lambda *words: run_main(study, *base, "--batch-size", 16, *words)


@pytest.mark.long
def test_a_small_study_fills_every_table_and_decides_claims(main, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(study, "ROUNDS", {True: 1})
    shown = [NAMES[number] for number in (0, 6, 8)]
    monkeypatch.setattr(study, "PROGRAMS", {name: train.PROGRAMS[name] for name in shown})
    monkeypatch.setattr(train, "words_for", lambda options: [*programs.words_of(options), "--quick"])  # no workers
    monkeypatch.setattr(study, "TRAINED", {True: (*study.TRAINED[True], study.UNIFORM)})
    main()
    result = read(tmp_path / "labs" / "transformer" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    rows = {row["program"]: row for row in result.tables["programs"]}
    assert list(rows) == shown
    baseline, fused, uniform = rows.values()
    mean = sum(1 + 1 + number * 7 % 20 for number in range(80)) / 80  # the first token, and a token per word
    assert baseline["padding %"] == pytest.approx(100 * (1 - mean / 24))
    assert uniform["padding %"] < baseline["padding %"] / 2
    assert fused["peak MB here"] < baseline["peak MB here"]


def test_a_study_that_cannot_be_made_is_one_line(main, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(main("--model", "no-such-model"), "--model")


def rounds_of(count=4, **speeds):
    """Rounds in which every program has 100 tokens/s but for those given, by number, which are jittered."""
    speed = {name: speeds.get(f"p{name[:2]}", 100.0) for name in NAMES}
    return {
        number: {
            name: {"failed": "no compiler"} if value is None else [value * (1 + 0.01 * (-1) ** number * (value != 100))]
            for name, value in speed.items()
        }
        for number in range(count)
    }


def test_a_program_is_compared_with_the_one_before_in_speed_and_memory_and_what_failed_is_a_gap():
    peaks = {NAMES[0]: 8e9, NAMES[1]: 6e9, NAMES[2]: {"failed": "no values"}, NAMES[3]: 12e9}
    loads = {NAMES[0]: {"padding": 0.8, "peak_bytes": 1e6}}
    rows = study.program_rows(rounds_of(p08=300.0, p09=450.0, p10=None), loads, peaks)
    assert [row["program"] for row in rows] == list(NAMES[:-1])
    assert rows[8]["times the one before"].ratio == pytest.approx(3, rel=0.02)
    assert rows[9]["times the one before"].ratio == pytest.approx(1.5, rel=0.02)
    assert rows[9]["times the baseline"].ratio == pytest.approx(4.5, rel=0.02)
    assert [row["memory, times the one before"] for row in rows[:4]] == [None, 0.75, None, None]  # not of 01
    assert rows[0]["padding %"] == 80 and rows[0]["peak MB here"] == 1 and rows[1]["peak MB here"] is None


def runs(*accuracies, seconds=60.0):
    return {
        number: {"accuracy": share, "loss": 1.0, "seconds": seconds, "trained_on": 1000}
        for number, share in enumerate(accuracies)
    }


def test_accuracies_and_minutes_of_whole_trainings_are_compared_by_pairs_next_to_the_published():
    rows = study.quality_rows({study.RANDOM: runs(0.5, 0.5, 0.5), study.UNIFORM: runs(0.51, 0.49, 0.53)})
    assert [row["test accuracy %"].mean for row in rows] == pytest.approx([50, 51])
    assert rows[1]["points more than random batches"].mean == pytest.approx(1)
    before, after = runs(0.5, 0.5, seconds=600.0), runs(0.5, 0.5, seconds=120.0)
    rows = study.minutes_rows({study.RANDOM: before, study.ALL: after})
    assert [row["times as fast"] for row in rows[:3]] == [None, 3.5, None]
    assert rows[3]["times as fast"].ratio == pytest.approx(5) and rows[3]["times as fast"].rounds == 2
    assert rows[2]["minutes"].mean == 10 and rows[2]["texts"] == 1000
