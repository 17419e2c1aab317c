"""labs/transformer: train.py, what it writes and a kill, predict.py, Trainer's script, bad input."""

import csv
import json
import random
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from support import exit_code_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")

import transformers

from labs.shared.training import Training
from labs.transformer import model, predict, train, with_trainer
from labs.transformer.data import Example, texts, tokenizer_for
from labs.transformer.model import Size
from walkthrough.results.errors import InputError

WORDS = {"red": "apple cherry rose brick blood".split(), "blue": "sky sea ink jeans whale".split()}


@pytest.fixture(autouse=True)
def no_warnings_of_others():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*no accelerator")
        yield


@pytest.fixture
def data(tmp_path):
    """A folder with 48 short texts of two classes, 8 words each at most."""
    folder, draw = tmp_path / "data", random.Random(0)
    folder.mkdir()
    for part, count in (("train", 32), ("validation", 8), ("test", 8)):
        with open(folder / f"{part}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for number in range(count):
                label = ("red", "blue")[number % 2]
                writer.writerow([" ".join(draw.choices(WORDS[label], k=draw.randint(1, 8))), label])
    return folder


@pytest.fixture
def run(data, tmp_path, monkeypatch, capsys):
    """run(*words): train.py on the CPU in this process: exit code, stdout, stderr, and the folder that it writes to."""
    monkeypatch.setitem(model.SIZES, "nano", Size(layers=1, width=16, heads=2, hidden=32, max_tokens=12))

    def started(*words, logdir=tmp_path / "train"):
        base = ["--device", "cpu", "--model", "nano", "--batch-size", "8", "--workers", "0", "--data", str(data)]
        monkeypatch.setattr(sys, "argv", ["train.py", *base, "--logdir", str(logdir), *words])
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


def test_it_learns_and_the_best_epoch_predicts_and_is_trained_on(run, monkeypatch, capsys):
    done = run("--epochs", "6", "--lr", "0.03")
    assert done.code == 0
    table = rows(done.folder)
    assert [row["epoch"] for row in table] == list("123456")
    assert float(table[-1]["loss"]) < 0.5 * float(table[0]["loss"])
    assert 0 <= float(table[0]["padding"]) < 0.5
    result = json.loads((done.folder / "test.json").read_text())
    assert result["texts"] == 8 and result["accuracy"] >= 0.75
    best = max(table, key=lambda row: float(row["validation_accuracy"]))
    assert result["epoch"] == int(best["epoch"])
    assert result["seconds"] == pytest.approx(sum(float(row["seconds"]) for row in table))
    events = EventAccumulator(str(done.folder))
    events.Reload()
    assert [point.value for point in events.Scalars("validation_accuracy")] == [
        pytest.approx(float(row["validation_accuracy"])) for row in table
    ]
    saved = transformers.AutoModelForSequenceClassification.from_pretrained(done.folder / "model")
    assert same(saved.state_dict(), torch.load(done.folder / "best.pt", weights_only=True)["model"])
    monkeypatch.setattr(
        sys, "argv", ["predict.py", str(done.folder / "model"), "rose cherry", "sea", "--device", "cpu"]
    )
    predict.main()
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("red", "rose cherry"), ("blue", "sea")]
    assert all(50 < float(line[1].rstrip("%")) <= 100 for line in lines)
    further = run("--model", str(done.folder / "model"), "--epochs", "1", logdir=done.folder / "further")
    assert further.code == 0 and "as 09_packing" in further.out
    assert float(rows(further.folder)[0]["loss"]) < float(table[0]["loss"])


@pytest.mark.parametrize("words", [(), ("--workers", "1"), ("--workers", "1", "--program", "08_uniform_length")])
def test_a_training_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path, monkeypatch, words):
    whole = run("--epochs", "3", *words, logdir=tmp_path / "whole")
    real = Training.done

    def killed_in_the_second(self, **values):
        if self.rows:
            raise KeyboardInterrupt
        real(self, **values)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "done", killed_in_the_second)
        assert run("--epochs", "3", *words).code == 130
    assert len(rows(tmp_path / "train")) == 1
    done = run("--epochs", "3", *words)
    assert "goes on after epoch 1" in done.out
    assert same(weights(done.folder), weights(whole.folder))
    assert [row["loss"] for row in rows(done.folder)] == [row["loss"] for row in rows(whole.folder)]


def test_a_training_does_not_go_on_with_other_settings(run):
    run("--epochs", "1")
    for words, message in (
        (("--epochs", "2"), "training with epochs 1, not 2"),
        (("--epochs", "1", "--program", "00_baseline"), "training with program 09_packing, not 00_baseline"),
    ):
        other = run(*words)
        assert other.code == 2 and message in other.err.splitlines()[-1]


def test_a_training_does_not_go_on_with_other_texts_of_the_same_name(run, data):
    assert run("--epochs", "1").code == 0
    path = data / "train.csv"
    path.write_text(path.read_text().replace(",red", ",x").replace(",blue", ",red").replace(",x", ",blue"))
    done = run("--epochs", "1")
    assert done.code == 2 and "is of a training with data" in done.err.splitlines()[-1]


def test_the_baseline_and_the_last_program_are_trained_as_they_are(run, tmp_path):
    names = "00_baseline", "09_packing"
    folders = [run("--epochs", "1", "--program", name, logdir=tmp_path / name).folder for name in names]
    baseline, last = (rows(folder)[0] for folder in folders)
    assert float(baseline["padding"]) > 2 * float(last["padding"])
    assert float(baseline["loss"]) == pytest.approx(float(last["loss"]), rel=0.2)  # another dropout, the same texts


def test_an_epoch_may_be_of_fewer_texts(run, data):
    words = ["--device", "cpu", "--model", "nano", "--batch-size", "8", "--workers", "1", "--data", str(data)]
    options, _ = train.arguments(words)
    tested = train.train(options, texts(options), train.LAST, epochs=2, most=20)
    assert tested["trained_on"] == 16 and 0 <= tested["accuracy"] <= 1


def test_a_batch_that_does_not_fit_is_one_line(run, monkeypatch):
    def narrow(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(train, "evaluated", narrow)
    done = run()
    assert done.code == 2
    assert "out of memory on" in (line := done.err.splitlines()[-1]) and "try --batch-size 4" in line


def bad_data(content, part="train"):
    return lambda data: (data / f"{part}.csv").write_text(content)


@pytest.mark.parametrize(
    ("damage", "words", "message"),
    [
        (bad_data("text\nan apple\n"), (), "no column label"),
        (bad_data("text,label\n"), (), "is empty"),
        (bad_data("text,label\ngrass,green\n", "test"), (), "'green'"),
        (None, ("--lr", "0"), "--lr"),
        (None, ("--batch-size", "64"), "--batch-size 64 is larger than the training data (32 texts)"),
        (None, ("--epochs", "0"), "--epochs"),
        (None, ("--program", "12_none"), "--program"),
        (None, ("--image-size", "32"), "--image-size"),
        (None, ("--model", "distilbert-base-nonsense"), "--model distilbert-base-nonsense"),
    ],
)
def test_what_cannot_be_used_is_one_line(run, data, damage, words, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if damage:
        damage(data)
    done = run(*words)
    assert done.code == 2
    assert done.err.splitlines()[-1].count(message) == 1


def test_a_model_without_a_trained_head_does_not_predict(tmp_path):
    config = transformers.DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, hidden_dim=32)
    transformers.DistilBertModel(config).save_pretrained(tmp_path)
    tokenizer_for("tiny", (Example("a text", 0),)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has no trained head"):
        predict.predicted(str(tmp_path), ["a"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "required: MODEL, FOLDER, OUTPUT"),
        (("tiny", "FOLDER", "out", "more"), "unrecognized arguments: more"),
        (("tiny", "FOLDER", "out"), "cannot read"),
        (("nonsense/nonsense", "DATA", "out"), "nonsense/nonsense"),
    ],
)
def test_what_trainers_script_cannot_use_is_one_line(data, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folders = {"FOLDER": str(tmp_path), "DATA": str(data)}
    monkeypatch.setattr(sys, "argv", ["with_trainer.py", *(folders.get(word, word) for word in words)])
    assert exit_code_of(with_trainer.main) == 2
    line = capsys.readouterr().err
    assert message in line and line.count("\n") == 1


def test_trainers_script_trains_and_saves_a_model_that_predicts(data, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setitem(model.SIZES, "nano", Size(layers=1, width=16, heads=2, hidden=32, max_tokens=12))
    on_cpu = {"fp16": False, "use_cpu": True, "dataloader_num_workers": 0, "dataloader_persistent_workers": False}
    quiet = {"report_to": "none", "disable_tqdm": True, "learning_rate": 0.03}
    quiet |= {"gradient_accumulation_steps": 1, "num_train_epochs": 6}
    tested = with_trainer.trained("nano", data, tmp_path / "out", **on_cpu, **quiet)
    assert tested["eval_accuracy"] >= 0.75
    assert [label for label, _ in predict.predicted(str(tmp_path / "out"), ["rose cherry", "sea"])] == ["red", "blue"]
