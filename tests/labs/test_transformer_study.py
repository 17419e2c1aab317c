"""labs/transformer/study.py: a whole small study, its tables and claims by known answers, and the names of the page."""

import dataclasses
import json
import re
import sys
import warnings

import pytest
import torch
from support import ROOT, assert_refused

from common import program as programs
from common.timing import Plan
from walkthrough.compare.study import Measurements, read

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")

import transformers

from labs.shared.study import MEASUREMENTS
from labs.transformer import model, study, train
from labs.transformer.model import Size

SHORT = Plan(warmup_steps=0, warmup_seconds=0, windows=2, window_steps=1, window_seconds=0)
PAGE = (ROOT / "docs" / "labs" / "transformer.md").read_text()
NAMES = tuple(train.PROGRAMS)


@pytest.fixture
def data(tmp_path):
    """A folder with 120 texts of two classes, of 1 to 20 words."""
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in (("train", 80), ("validation", 20), ("test", 20)):
        rows = [f"{' '.join(['ab'[number % 2]] * (1 + number * 7 % 20))},{number % 2}" for number in range(count)]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *rows]))
    return folder


@pytest.fixture
def main(data, tmp_path, monkeypatch, run_main):
    """main(*words): the study's program in this process, measurements included: exit code and stderr."""
    for name in ("nano", "base", "tiny"):  # "base" is as small, so that predicting takes no time
        monkeypatch.setitem(model.SIZES, name, Size(layers=1, width=16, heads=2, hidden=32, max_tokens=24))

    def here(self, what, **settings):
        return json.loads(json.dumps(MEASUREMENTS[what](self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    base = ["--quick", "--device", "cpu", "--model", "nano", "--logdir", tmp_path, "--data", data, "--batch-size", "16"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*no accelerator")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing_enable.*")
        yield lambda *words: run_main(study, *base, *words)


@pytest.mark.long
def test_a_small_study_fills_every_table_and_decides_claims(main, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "LOADED", {True: SHORT})
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(study, "ROUNDS", {True: 1})
    shown = [NAMES[number] for number in (0, 4, 6, 8)]
    monkeypatch.setattr(study, "PROGRAMS", {name: train.PROGRAMS[name] for name in shown})
    monkeypatch.setattr(train, "words_for", lambda options: [*programs.words_of(options), "--quick"])  # no workers
    monkeypatch.setattr(study, "TRAINED", {True: (*study.TRAINED[True], study.UNIFORM)})
    done = main()
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "labs" / "transformer" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    rows = {row["program"]: row for row in result.tables["programs"]}
    assert list(rows) == shown
    assert not [note for note in result.notes if "was not" in note]
    baseline, parts, fused, uniform = rows.values()
    mean = sum(1 + 1 + number * 7 % 20 for number in range(80)) / 80  # the first token, and a token per word
    assert baseline["padding %"] == pytest.approx(100 * (1 - mean / 24))
    assert uniform["padding %"] < baseline["padding %"] / 2
    assert fused["peak GB predicted for a T4"] < parts["peak GB predicted for a T4"]
    assert fused["peak MB here"] < parts["peak MB here"]
    assert uniform["tokens/s"] > 0 and uniform["times the one before"]
    minutes = result.tables["minutes"]
    assert [row["minutes"] for row in minutes[:2]] == [35, 10] and minutes[3]["times as fast"]["rounds"] == 2
    assert [row["texts"] for row in minutes] == [150_000] * 2 + [80] * 2
    quality = {row["trained with"]: row for row in result.tables["quality"]}
    assert quality[study.UNIFORM]["points more than random batches"]["count"] == 2
    decided = {claim.id for claim in result.claims if claim.needs != "its measurement"}
    assert {"padding", "sorted", "whole", "uniform-accuracy"} <= decided


def test_what_cannot_be_used_is_one_line(main, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for words in (("--model", "no-such-model"), ("--image-size", "32"), ("--data", "/nowhere")):
        assert_refused(main(*words), words[-1] if words[-1] != "32" else "--image-size")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert_refused(main(), "pip install -r labs/transformer/requirements.txt")


# Tables by known answers


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


# The page


def test_every_argument_of_trainer_that_the_page_names_exists_and_its_commands_can_be_parsed():
    section = PAGE.partition("## With Hugging Face's Trainer")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    names |= {"padding", "data_collator", "attn_implementation"}  # of a tokenizer, of Trainer, of from_pretrained
    names |= {"from_pretrained", "group_by_length", "train_sampling_strategy", "activation_checkpointing"}  # by version
    told = [name for line in table for name in re.findall(r"`(\w+)(?:=[^`]*)?`", line) if not name[0].isupper()]
    assert len(told) >= 15 and set(told) <= names
    collators = {name for line in table for name in re.findall(r"DataCollator\w+", line)}
    assert collators and all(hasattr(transformers, name) for name in collators)
    lines = [*PAGE.splitlines(), *train.__doc__.splitlines()]
    commands = [line.partition("/train.py ")[2].partition("#")[0].split() for line in lines if "`" not in line]
    parsed = [train.arguments([*words, "--device", "cpu"]) for words in commands if words]
    assert len(parsed) >= 4
