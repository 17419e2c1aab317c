"""labs/transformer/train.py: what it writes, a kill, memory that is too small, texts that are too long, bad input."""

import csv
import json
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, exit_code_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install -r tests/requirements.txt")

from labs.transformer import model, train, training
from labs.transformer.model import Size

WORDS = {"red": "apple cherry rose brick blood".split(), "blue": "sky sea ink jeans whale".split()}


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
    small = Size(layers=1, width=16, heads=2, hidden=32, max_tokens=12)
    for sizes in (model.SIZES,):
        monkeypatch.setitem(sizes, "nano", small)

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


def memory_for(texts, monkeypatch):
    """A device whose memory holds passes of so many texts: to be called before `run`."""
    real = training.Training.loss_of

    def narrow(self, labels, ids):
        loss = real(self, labels, ids)  # random numbers are used up
        if len(labels) > texts:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    monkeypatch.setattr(training.Training, "loss_of", narrow)


def test_it_learns_and_writes_weights_a_table_scalars_and_the_comparison(run):
    done = run("--epochs", "6", "--lr", "0.03")
    assert done.code == 0
    table = rows(done.folder)
    assert [row["epoch"] for row in table] == list("123456")
    assert float(table[-1]["loss"]) < 0.5 * float(table[0]["loss"])
    assert 0 <= float(table[0]["padding"]) < 0.5
    result = json.loads((done.folder / "test.json").read_text())
    assert result["texts"] == 8
    assert set(result["accuracy"]) == {"transformer", "bag of words", "bag of words and punctuation", "commonest class"}
    assert result["accuracy"]["transformer"] >= 0.75 > result["accuracy"]["commonest class"]
    events = EventAccumulator(str(done.folder))
    events.Reload()
    assert [point.value for point in events.Scalars("validation_accuracy")] == [
        pytest.approx(float(row["validation_accuracy"])) for row in table
    ]
    assert events.Scalars("test_accuracy/transformer")[0].value == pytest.approx(result["accuracy"]["transformer"])


def test_a_training_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path, monkeypatch):
    whole = run("--epochs", "3", logdir=tmp_path / "whole")
    real = training.Training.epoch

    def killed_in_the_second(self):
        if len(self.epochs) == 1:
            next(iter(self.loader))
            raise KeyboardInterrupt
        return real(self)

    with monkeypatch.context() as patched:
        patched.setattr(training.Training, "epoch", killed_in_the_second)
        assert run("--epochs", "3").code == 130
    assert len(rows(tmp_path / "train")) == 1
    done = run("--epochs", "3")
    assert "goes on after epoch 1" in done.out
    assert same(weights(done.folder), weights(whole.folder))
    assert [row["loss"] for row in rows(done.folder)] == [row["loss"] for row in rows(whole.folder)]


def test_a_training_does_not_go_on_with_other_texts_of_the_same_name(run, data):
    assert run("--epochs", "1").code == 0
    path = data / "train.csv"
    path.write_text(path.read_text().replace(",red", ",x").replace(",blue", ",red").replace(",x", ",blue"))
    done = run("--epochs", "1")
    assert done.code == 2 and "is of a training with data" in done.err and done.err.count("\n") == 1


def test_a_batch_larger_than_memory_is_trained_in_parts_and_said_in_one_line(run, tmp_path, monkeypatch):
    whole = rows(run("--epochs", "2", logdir=tmp_path / "whole").folder)
    memory_for(3, monkeypatch)
    done = run("--epochs", "2", "--auto-batch")
    assert done.code == 0
    assert [line for line in done.out.splitlines() if "from here on 4 at a time" in line]
    assert done.out.count("out of memory") == 2  # 8 -> 4 -> 2
    assert {row["rows"] for row in rows(done.folder)} == {"2"}
    assert [float(row["loss"]) for row in rows(done.folder)] == pytest.approx(
        [float(row["loss"]) for row in whole], rel=0.1
    )  # dropout's masks differ; without dropout they are equal: test_transformer_auto_batch


def test_after_a_kill_it_goes_on_with_the_parts_that_fit(run, tmp_path, monkeypatch):
    memory_for(3, monkeypatch)
    whole = run("--epochs", "2", "--auto-batch", logdir=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(train, "test", None)  # fails once training is over
        real = train.write

        def killed(*of):
            real(*of)
            raise KeyboardInterrupt

        patched.setattr(train, "write", killed)
        assert run("--epochs", "2", "--auto-batch").code == 130
    done = run("--epochs", "2", "--auto-batch")
    assert "out of memory" not in done.out
    assert same(weights(done.folder), weights(whole.folder))


def test_one_text_that_does_not_fit_is_one_line(run, monkeypatch):
    memory_for(0, monkeypatch)
    done = run("--auto-batch")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "batch of one text" in done.err and "--checkpoint" in done.err


def test_without_auto_batch_the_option_is_named(run, monkeypatch):
    memory_for(4, monkeypatch)
    done = run()
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "--auto-batch" in done.err


def test_checkpointing_trains_the_same_and_other_batches_do_not(run, tmp_path):
    folders = [
        run("--epochs", "1", "--batches", batches, *words, logdir=tmp_path / str(number)).folder
        for number, (batches, *words) in enumerate((["dynamic"], ["dynamic", "--checkpoint"], ["fixed"], ["uniform"]))
    ]
    base, checkpointed, fixed, uniform = map(weights, folders)
    assert same(base, checkpointed)
    assert not same(base, uniform)
    assert float(rows(folders[2])[0]["padding"]) > float(rows(folders[0])[0]["padding"])
    del fixed  # as the dynamic one's but for rounding and dropout, which draws for what fills up, too


def test_texts_that_are_too_long_are_counted_and_cut_or_refused(run, data):
    with open(data / "train.csv", "a") as file:
        file.write(f"{' '.join(WORDS['red'] * 4)},red\n")
    done = run("--epochs", "1")
    assert done.code == 0
    assert "cut at 12 tokens, the most that nano takes: 1 of 33 in train" in done.out
    refused = run("--epochs", "1", "--refuse-long")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "texts of more than 12 tokens" in refused.err


def no_labels(data):
    (data / "train.csv").write_text("text\nan apple\n")


def empty(data):
    (data / "train.csv").write_text("")


def header_alone(data):
    (data / "train.csv").write_text("text,label\n")


def another_label(data):
    (data / "test.csv").write_text("text,label\ngrass,green\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(no_labels, "no column label"), (empty, "is empty"), (header_alone, "is empty"), (another_label, "'green'")],
)
def test_data_that_cannot_be_used_is_one_line(run, data, damage, message):
    damage(data)
    done = run()
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert message in done.err


@pytest.mark.parametrize("words", [("--lr", "0"), ("--batches", "packed"), ("--epochs", "0"), ("--image-size", "32")])
def test_options_that_cannot_be_used_are_one_line(run, words):
    done = run(*words)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert words[0] in done.err


def test_other_settings_and_damaged_checkpoints_do_not_go_on(run):
    folder = run("--epochs", "2").folder
    for words, message in (
        (("--epochs", "3"), "training with epochs 2, not 3"),
        (("--epochs", "2", "--batches", "fixed"), "training with batches uniform, not fixed"),
    ):
        done = run(*words)
        assert done.code == 2
        assert message in done.err
    for content in ((folder / "checkpoint.pt").read_bytes()[:2000], b""):
        (folder / "checkpoint.pt").write_bytes(content)
        done = run("--epochs", "2")
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "is damaged" in done.err
        assert (folder / "checkpoint.pt").read_bytes() == content


def test_an_extra_that_is_missing_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = run()
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "pip install -r labs/transformer/requirements.txt" in done.err


def test_an_unknown_model_or_no_network_is_one_line(run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = run("--model", "distilbert-base-nonsense")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "--model distilbert-base-nonsense" in done.err


def test_the_commands_of_its_docstring_can_be_parsed():
    lines = [line.split()[2:] for line in train.__doc__.splitlines() if line.strip().startswith("python labs")]
    assert [train.options([*words, "--device", "cpu"])[1].epochs for words in lines] == [8, 3]
    assert (ROOT / "labs" / "transformer" / "train.py").exists()
