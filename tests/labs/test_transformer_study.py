"""labs/transformer/study.py: a whole small study, its tables and claims by known answers, and the names of the page."""

import dataclasses
import json
import re
import sys
import warnings

import pytest
import torch
from support import ROOT, exit_code_of

from common import program as programs
from common.timing import Plan
from walkthrough.compare.study import Measurements, read

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")

import transformers

from labs.shared.study import MEASUREMENTS, as_stored
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
def main(data, tmp_path, monkeypatch, capsys):
    """main(*words): the study's program in this process, measurements included: exit code and stderr."""
    for name in ("nano", "base", "tiny"):  # "base" is as small, so that predicting takes no time
        monkeypatch.setitem(model.SIZES, name, Size(layers=1, width=16, heads=2, hidden=32, max_tokens=24))

    def here(self, what, **settings):
        return json.loads(json.dumps(MEASUREMENTS[what](self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)

    def started(*words, data=data):
        base = ["--quick", "--device", "cpu", "--model", "nano", "--logdir", str(tmp_path), "--data", str(data)]
        monkeypatch.setattr(sys, "argv", ["study.py", *base, "--batch-size", "16", *words])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*no accelerator")
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing_enable.*")
            return exit_code_of(study.main), capsys.readouterr().err

    return started


@pytest.mark.long
def test_a_small_study_fills_every_table_and_decides_claims(main, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "LOADED", {True: SHORT})
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(study, "ROUNDS", {True: 1})
    shown = [NAMES[number] for number in (0, 4, 6, 8)]
    monkeypatch.setattr(study, "PROGRAMS", {name: train.PROGRAMS[name] for name in shown})
    monkeypatch.setattr(train, "words_for", lambda options: [*programs.words_of(options), "--quick"])  # no workers
    monkeypatch.setattr(study, "TRAINED", {True: (*study.TRAINED[True], study.UNIFORM)})
    code, error = main()
    assert code == 0, error
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


def test_what_cannot_be_used_is_one_line(main, data, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for words, folder, text in (
        (("--model", "no-such-model"), data, "no-such-model"),
        (("--image-size", "32"), data, "--image-size"),
        ((), tmp_path / "nowhere", "nowhere"),
    ):
        code, error = main(*words, data=folder)
        assert code == 2 and error.count("\n") == 1 and text in error
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, error = main()
    assert code == 2 and "pip install -r labs/transformer/requirements.txt" in error


# Tables and claims by known answers


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


def claims_of(rounds=None, loads=None, peaks=None, on_gpu=False, **tables):
    rows = {"programs": study.program_rows(rounds or {}, loads or {}, peaks or {}), **tables}
    return {claim.id: claim for claim in study.claims(as_stored(rows), on_gpu)}


def test_a_program_is_compared_with_the_one_before_in_speed_and_memory():
    peaks = {NAMES[0]: 8e9, NAMES[1]: 6e9, NAMES[2]: {"failed": "no values"}, NAMES[3]: 12e9}
    rows = study.program_rows(rounds_of(p08=300.0, p09=450.0), {NAMES[0]: {"padding": 0.8, "peak_bytes": 1e6}}, peaks)
    assert rows[8]["times the one before"].ratio == pytest.approx(3, rel=0.02)
    assert rows[9]["times the one before"].ratio == pytest.approx(1.5, rel=0.02)
    assert rows[9]["times the baseline"].ratio == pytest.approx(4.5, rel=0.02)
    assert [row["memory, times the one before"] for row in rows[:4]] == [None, 0.75, None, None]  # not of 01
    assert rows[0]["padding %"] == 80 and rows[0]["peak MB here"] == 1 and rows[1]["peak MB here"] is None


def test_what_could_not_be_run_is_a_gap_and_the_rest_is_there():
    rounds = rounds_of(p10=None)
    rows = study.program_rows(rounds, {}, {})
    assert [row["program"] for row in rows] == list(NAMES[:-1])
    claims = claims_of(rounds)
    assert claims["compile"].holds is None and claims["compile"].needs == "its measurement"


@pytest.mark.parametrize(("speed", "holds"), [(400.0, True), (300.0, False), (351.0, None)])
def test_together_holds_where_the_whole_interval_is_above_what_was_published(speed, holds):
    claims = claims_of(rounds_of(p10=speed, p03=50.0))
    assert claims["all"].holds is holds
    assert claims["published"].holds is None and claims["published"].needs == "a GPU with 16-bit units"
    assert claims_of(rounds_of(p03=50.0), on_gpu=True)["published"].holds is False


def test_what_a_cpu_could_not_contradict_is_for_a_gpu():
    loads = {NAMES[0]: {"padding": 0.8, "peak_bytes": 1e6}, NAMES[1]: {"padding": 0.8, "peak_bytes": 5e5}}
    peaks = {NAMES[0]: 2e9, NAMES[1]: 1.99e9}
    for on_gpu in (False, True):
        claims = claims_of(rounds_of(p01=200.0, p02=300.0), loads, peaks, on_gpu)
        expected = (True, False, True) if on_gpu else (None, None, None)
        assert tuple(claims[name].holds for name in ("half-time", "half-memory", "workers")) == expected
    assert claims_of(rounds_of(), loads, peaks)["half-memory"].value == pytest.approx(0.995)


def test_slower_and_smaller_is_what_accumulation_and_checkpointing_were_expected_to_be():
    loads = {NAMES[number]: {"padding": 0.8, "peak_bytes": size} for number, size in ((3, 8e6), (4, 2e6), (5, 3e6))}
    claims = claims_of(rounds_of(p04=120.0, p05=70.0), loads)
    assert (claims["accumulation-time"].holds, claims["accumulation-memory"].holds) == (False, True)
    assert (claims["checkpointing-time"].holds, claims["checkpointing-memory"].holds) == (True, False)


def runs(*accuracies, seconds=60.0):
    return {
        number: {"accuracy": share, "loss": 1.0, "seconds": seconds, "trained_on": 1000}
        for number, share in enumerate(accuracies)
    }


@pytest.mark.parametrize(
    ("differences", "holds"), [((0.1, -0.2, 0.3), True), ((-9.0, -9.5, -10.0), False), ((-5.0, 0.0, 4.0), None)]
)
def test_accuracy_is_kept_only_where_the_whole_interval_is_within_two_points(differences, holds):
    trainings = {study.RANDOM: runs(0.5, 0.5, 0.5), study.UNIFORM: runs(*(0.5 + one / 100 for one in differences))}
    rows = study.quality_rows(trainings)
    assert rows[0]["test accuracy %"].mean == pytest.approx(50)
    assert claims_of(quality=rows)["uniform-accuracy"].holds is holds


def test_minutes_of_whole_trainings_are_compared_by_pairs_next_to_the_published():
    before, after = runs(0.5, 0.5, seconds=600.0), runs(0.5, 0.5, seconds=120.0)
    rows = study.minutes_rows({study.RANDOM: before, study.ALL: after})
    assert [row["times as fast"] for row in rows[:3]] == [None, 3.5, None]
    assert rows[3]["times as fast"].ratio == pytest.approx(5) and rows[3]["times as fast"].rounds == 2
    assert rows[2]["minutes"].mean == 10 and rows[2]["texts"] == 1000
    assert claims_of(minutes=rows)["whole"].holds is True
    assert len(study.minutes_rows({})) == 2


# The page


def test_every_argument_of_trainer_that_the_page_names_exists():
    section = PAGE.partition("## With Hugging Face's Trainer")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    names |= {"padding", "data_collator", "attn_implementation"}  # of a tokenizer, of Trainer, of from_pretrained
    if int(transformers.__version__.partition(".")[0]) >= 5:
        names.add("group_by_length")  # said to be of older ones
    else:
        names |= {"train_sampling_strategy", "activation_checkpointing"}
    told = [name for line in table for name in re.findall(r"`(\w+)(?:=[^`]*)?`", line) if not name[0].isupper()]
    assert len(told) >= 15
    assert set(told) - {"from_pretrained"} <= names
    collators = {name for line in table for name in re.findall(r"DataCollator\w+", line)}
    assert collators
    assert all(hasattr(transformers, name) for name in collators)
    assert len(table) >= len(NAMES) - 1


def test_the_commands_of_the_page_and_of_train_can_be_parsed():
    lines = [*PAGE.splitlines(), *train.__doc__.splitlines()]
    commands = [line.partition("/train.py ")[2].partition("#")[0].split() for line in lines if "`" not in line]
    commands = [words for words in commands if words]
    assert len(commands) >= 4
    for words in commands:
        train.arguments([*words, "--device", "cpu"])
