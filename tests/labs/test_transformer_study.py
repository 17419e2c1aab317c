"""labs/transformer/study.py: a whole small study, its tables by known answers, the audit, and the names of the page."""

import dataclasses
import json
import re
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from support import ROOT, exit_code_of
from torch import nn

from common import program as programs
from common.options import StepOptions
from common.timing import Plan
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError

pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/requirements.txt")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install -r tests/requirements.txt")

import transformers

from labs.transformer import audit, measure, model, noise, peaks, quality, study, tables, training
from labs.transformer.model import Size
from labs.transformer.texts import Example, Texts
from labs.transformer.tricks import TRICKS
from labs.transformer.variants import (
    BASELINE,
    HALF_FUSED,
    PROGRAMS,
    VARIANTS,
    alone_name,
    cumulative_name,
    without_name,
)

SHORT = Plan(warmup_steps=0, warmup_seconds=0, windows=2, window_steps=1, window_seconds=0)
PAGE = (ROOT / "docs" / "labs" / "transformer.md").read_text()


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
def options(data, tmp_path, monkeypatch):
    """Options of a tiny model, "nano", on those texts; "base" is as small, so that predicting takes no time."""
    for name in ("nano", "base", "tiny"):
        monkeypatch.setitem(model.SIZES, name, Size(layers=1, width=16, heads=2, hidden=32, max_tokens=24))
    return StepOptions(
        logdir=tmp_path, device="cpu", data=data, download=False, model="nano", image_size=0,
        batch_size=16, workers=0, precision="auto", seed=0, quick=True, stacks=False,
    )  # fmt: skip


@pytest.fixture
def small(options, monkeypatch):
    """Whatever the study measures, as short as it can be, and in this process."""
    monkeypatch.setattr(programs, "LOADED", {True: SHORT})
    monkeypatch.setattr(measure, "LOADED_SECONDS", {True: 0.01})
    monkeypatch.setattr(quality, "TASKS", {True: quality.Task(tokens=200, longer=300, classes=2, length=16)})
    monkeypatch.setattr(noise, "PLANS", {True: noise.Plan(tokens=50, batches=4)})
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(study, "ROUNDS", {True: 2})
    monkeypatch.setattr(study, "WORKERS", {True: (0,)})
    monkeypatch.setattr(study, "SEEDS", {True: 2})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*no accelerator")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing_enable.*")
        yield options


def explained(options, name):
    """In place of `measure.explained`, which runs programs of its own."""
    return {"advice": [{"title": f"do less than {name}", "share_of_step": 0.25}], "findings": []}


def predicted(options):
    """In place of `measure.predicted`, which takes a second for each variant."""
    kinds = dict.fromkeys(tables.KINDS, 1e9)
    return {name: {"by_kind": kinds, "peak_bytes": 6e9, "reserved_bytes": 7e9} for name in (*VARIANTS, HALF_FUSED)}


@pytest.mark.long
def test_a_small_study_fills_every_table_and_audits_every_claim(small, tmp_path, monkeypatch, capsys):
    def here(self, what, **settings):
        return json.loads(json.dumps(getattr(measure, what)(replace(self.options, workers=0), **settings)))

    names = [BASELINE, *map(alone_name, ("mixed_precision", "dynamic_padding", "uniform_length"))]
    names.append(cumulative_name("compile"))
    monkeypatch.setattr(measure, "VARIANTS", {name: VARIANTS[name] for name in names})
    monkeypatch.setattr(measure, "explained", explained)
    monkeypatch.setattr(measure, "predicted", predicted)

    def one_by_one(self, what, settings, processes):
        return [self.measure(what, **own) for own in settings]

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(Measurements, "several", one_by_one)  # the profiler is of one thread
    words = ["--quick", "--device", "cpu", "--model", "nano", "--batch-size", "16", "--data", str(small.data)]
    monkeypatch.setattr(sys, "argv", ["study.py", *words, "--logdir", str(tmp_path)])
    study.main()
    result = read(tmp_path / "labs" / "transformer" / "study.json")
    on_page = set(re.findall(r"<!-- begin (?:table|figure) labs/transformer (\w+)", PAGE)) - {"claims", "notes"}
    assert [name for name in on_page if not result.tables[name]] == []
    assert [row["program"] for row in result.tables["programs"]] == list(PROGRAMS)
    assert [row["trick"] for row in result.tables["alone"]] == list(TRICKS)
    assert not [note for note in result.notes if "was not run" in note]
    for row in (result.tables["programs"][0], result.tables["programs"][-1]):
        assert row["peak GB predicted for a T4"] and row["peak MB here"] and row["tokens/s"]
    ids = [claim.id for claim in result.claims]
    assert len(set(ids)) == len(ids)
    assert {
        "all-together",
        "half-time",
        "mixed-precision-memory",
        "pinned-disk",
        "uniform-accuracy",
        "uniform-noise",
    } <= set(ids)
    assert "claims" in capsys.readouterr().out


# Tables and claims by known answers


def a_round(speeds):
    """A round in which every variant has 100 tokens/s, but for those given."""
    return {
        name: {"tokens": [speed * factor for factor in (0.99, 1.0, 1.01)], "samples": [speed / 10] * 3}
        if (speed := speeds.get(name, 100.0))
        else {"failed": "no compiler"}
        for name in VARIANTS
    }


def rounds_of(count=4, **speeds):
    """Rounds with speeds by trick, alone; jittered, as real ones are."""
    by_variant = {alone_name(trick): speed for trick, speed in speeds.items() if trick in TRICKS}
    by_variant |= {cumulative_name(TRICKS[-1]): speeds.get("last", 100.0)}
    return [
        a_round({name: speed * (1 + 0.01 * (-1) ** number) for name, speed in by_variant.items()})
        for number in range(count)
    ]


def by_id(claims):
    return {claim.id: claim for claim in claims}


def test_a_trick_alone_is_compared_with_what_it_is_added_to():
    assert without_name("uniform_length") == alone_name("dynamic_padding")
    assert without_name("gradient_accumulation") == alone_name("bigger_batch")
    assert without_name("sdpa") == BASELINE
    rows = {row["trick"]: row for row in tables.alone_rows(rounds_of(dynamic_padding=200, uniform_length=300), {}, {})}
    assert rows["dynamic_padding"]["times as fast"].ratio == pytest.approx(2, rel=0.02)
    assert rows["uniform_length"]["times as fast"].ratio == pytest.approx(1.5, rel=0.02)
    assert rows["uniform_length"]["added to"] == "dynamic_padding"
    assert rows["uniform_length"]["tokens/s"] == pytest.approx(300, rel=0.03)


def test_what_could_not_be_run_is_a_gap_and_a_note_and_the_rest_is_there():
    rounds = [row | {alone_name("compile"): {"failed": "no compiler"}} for row in rounds_of()]
    rows = {row["trick"]: row for row in tables.alone_rows(rounds, {}, {})}
    assert rows["compile"]["times as fast"] is None
    assert rows["sdpa"]["times as fast"] is not None
    padding = dict.fromkeys("texts classes mean_tokens median_tokens max_tokens".split(), 1) | {"source": "mine"}
    said = tables.notes(rounds, padding, {"classes": [], "sizes": {"train": 1, "test": 1}})
    assert said[-1] == "alone compile was not run: no compiler"
    assert "compile" not in by_id(audit.speed_claims(rounds))


@pytest.mark.parametrize(("speed", "holds"), [(400.0, True), (300.0, False), (350.0, None)])
def test_together_holds_where_the_whole_interval_is_above_what_was_published(speed, holds):
    claims = by_id(audit.speed_claims(rounds_of(last=speed)))
    assert claims["all-together"].holds is holds
    assert claims["together"].holds is False  # what was published stops before the last program
    assert claims["together-here"].holds is {400.0: True, 300.0: None, 350.0: True}[speed]


@pytest.mark.parametrize(("speed", "holds"), [(200.0, True), (130.0, False), (180.0, None)])
def test_half_the_precision_is_half_the_time_only_if_it_is(speed, holds):
    assert by_id(audit.speed_claims(rounds_of(mixed_precision=speed)))["half-time"].holds is holds


def test_slower_is_what_accumulation_and_checkpointing_were_expected_to_be():
    claims = by_id(audit.speed_claims(rounds_of(gradient_checkpointing=70, gradient_accumulation=120)))
    assert claims["gradient_checkpointing-time"].holds is True
    assert claims["gradient_accumulation-time"].holds is False


def test_memory_claims_compare_peaks():
    peaks_gb = {
        BASELINE: 2.0, "mixed_precision": 1.96, "sdpa": 1.5, "bigger_batch": 8.0, "gradient_accumulation": 2.2,
        "gradient_checkpointing": 1.0, "dynamic_padding": 2.0,
    }  # fmt: skip
    predicted = {
        name if name == BASELINE else alone_name(name): {"peak_bytes": size * 1e9} for name, size in peaks_gb.items()
    }
    predicted[HALF_FUSED] = {"peak_bytes": 1.0e9}
    claims = by_id(audit.memory_claims(predicted))
    assert claims["mixed-precision-memory"].value == pytest.approx(0.98)
    assert {name: claim.holds for name, claim in claims.items()} == {
        "mixed-precision-memory": True, "mixed-precision-memory-fused": False, "accumulation-memory": True,
        "checkpointing-memory": True, "dynamic-padding-memory": False,
    }  # fmt: skip
    del predicted[BASELINE]
    assert set(by_id(audit.memory_claims(predicted))) == {"mixed-precision-memory-fused", "accumulation-memory"}


def loaded(speed, disk_bytes=0):
    return {"samples": [speed, speed, speed], "loader": 5 * speed, "disk_bytes": disk_bytes, "major_faults": 0}


@pytest.mark.parametrize(("four", "holds"), [(30.0, True), (12.0, False), (20.0, None)])
def test_four_workers_are_right_where_no_other_number_is_as_fast(four, holds):
    runs = {0: [loaded(10.0)] * 3, 2: [loaded(20.0 * factor) for factor in (0.98, 1.0, 1.02)], 4: [loaded(four)] * 3}
    claim = by_id(audit.loading_claims(runs))["workers-four"]
    assert claim.holds is holds
    assert claim.value == pytest.approx(four / 20, rel=0.01)


def test_a_few_reads_in_some_rounds_do_not_say_that_batches_come_from_the_disk():
    assert by_id(audit.loading_claims({0: [loaded(1.0), loaded(1.0, 4096)]}))["pinned-disk"].holds is None


def test_pinned_memory_avoids_no_disk_where_nothing_is_read_from_one():
    assert by_id(audit.loading_claims({0: [loaded(1.0)] * 2}))["pinned-disk"].holds is False
    assert by_id(audit.loading_claims({0: [loaded(1.0, 10**6)] * 2}))["pinned-disk"].holds is True
    unknown = {0: [loaded(1.0, None)]}
    assert audit.loading_claims(unknown) == []
    assert tables.worker_rows(unknown)[0]["read from disk, kB"] is None


@pytest.mark.parametrize(
    ("differences", "holds"), [((0.1, -0.2, 0.3), True), ((-9.0, -9.5, -10.0), False), ((-5.0, 0.0, 4.0), None)]
)
def test_accuracy_is_kept_only_where_the_whole_interval_is_within_two_points(differences, holds):
    trained = {
        quality.RANDOM: [{"accuracy": 0.5, "loss": 1.0, "steps": 10, "tokens": 80}] * 3,
        quality.UNIFORM: [
            {"accuracy": 0.5 + points / 100, "loss": 1.0, "steps": 12, "tokens": 80} for points in differences
        ],
    }
    (claim,) = audit.quality_claims(trained)
    assert claim.holds is holds
    rows = tables.quality_rows(trained, {"accuracy": {"bag of words": 0.9}})
    assert rows[0]["test accuracy %"].mean == pytest.approx(50)
    assert rows[2] == {"trained with": "bag of words, all training texts", "test accuracy %": 90}


def test_a_transformer_beats_a_bag_only_where_all_seeds_surely_do():
    runs = [{"accuracy": share} for share in (0.70, 0.71, 0.72)]
    simpler = {"bag of words": 0.60, "bag of words and punctuation": 0.715, "commonest class": 0.1}
    claims = by_id(audit.bag_claims({quality.LONGER: runs}, simpler))
    assert {name: claim.holds for name, claim in claims.items()} == {"bag": True, "bag-punctuation": None}
    assert claims["bag"].value == pytest.approx(11)
    assert by_id(audit.bag_claims({quality.LONGER: runs}, {"bag of words": 0.8}))["bag"].holds is False
    assert audit.bag_claims({quality.RANDOM: runs}, simpler) == []


@pytest.mark.parametrize(
    ("ratios", "holds"), [((1.0, 1.02, 0.98), True), ((1.5, 1.6, 1.55), False), ((1.1, 1.4, 1.2), None)]
)
def test_batches_are_as_random_only_where_the_whole_interval_is_near_one(ratios, holds):
    measured = [{"random": 2.0, "uniform": 2.0 * ratio, "squared_norm": 4.0} for ratio in ratios]
    (claim,) = audit.noise_claims(measured)
    assert claim.holds is holds
    (row,) = tables.noise_rows([*measured, {"random": 2.0, "uniform": 2.0 * ratios[0], "squared_norm": None}])
    assert row["variance over squared norm, random batches"].mean == pytest.approx(0.5)
    assert isinstance(row["variance, uniform over random"], Ratio)


def test_the_figure_of_memory_has_each_different_memory_once():
    kinds = dict.fromkeys(tables.KINDS, 1e9)
    predicted = {name: {"by_kind": kinds} for name in VARIANTS}
    predicted[alone_name("sdpa")] = {"by_kind": kinds | {"activations": 5e8}}
    predicted[alone_name("packing")] = {"failed": "it has values"}
    assert [row["trick"] for row in tables.memory_rows(predicted)] == [BASELINE, "sdpa"]
    assert tables.memory_rows(predicted)[1]["activations"] == 0.5


def test_padding_of_a_variant_is_that_of_its_batches():
    padding = {"share": {kind: number for number, kind in enumerate(
        f"{kind}{suffix}" for suffix in ("", " bigger") for kind in ("fixed", "dynamic", "uniform", "packed")
    )}}  # fmt: skip
    names = BASELINE, alone_name("dynamic_padding"), alone_name("uniform_length"), cumulative_name("packing")
    assert [tables.padding_of(name, padding) / 100 for name in names] == [0, 1, 2, 7]


# What is measured


def test_padding_is_what_the_lengths_say(small):
    result = measure.padding(small)
    lengths = [1 + 1 + number * 7 % 20 for number in range(80)]  # the first token, and a token per word
    assert result["mean_tokens"] == pytest.approx(sum(lengths) / 80)
    assert sum(count for _, count in result["lengths"]) == 80
    assert result["share"]["fixed bigger"] == pytest.approx(1 - sum(lengths) / 80 / 24)
    shares = [result["share"][f"{kind} bigger"] for kind in ("packed", "uniform", "dynamic", "fixed")]
    assert shares[1] < shares[2] < shares[3]
    assert shares[0] < shares[2]


def test_the_variance_of_gradients_is_that_of_the_batches_means():
    weight = nn.Parameter(torch.zeros(()))
    values = [1.0, 3.0, 5.0, 11.0]

    class Known:
        device, optimizer, model = torch.device("cpu"), torch.optim.SGD([weight], lr=1.0), nn.Module()
        sets = {"train": values}  # noqa: RUF012
        padded = staticmethod(lambda items: (torch.tensor(items),))
        loss_of = staticmethod(lambda items: (weight * items).mean())

    Known.model.weight = weight
    variance, mean = noise.variance(Known, [[0, 1], [2, 3]])  # means 2 and 8
    assert mean.item() == pytest.approx(5)
    assert variance == pytest.approx(18)


def test_an_easier_task_has_the_classes_with_most_texts_and_new_numbers():
    of = Texts(
        *([Example(f"{label}", label) for label in labels] for labels in ([0, 1, 1, 2, 2, 2], [0, 2], [1, 2])),
        ("a", "b", "c"), "mine",
    )  # fmt: skip
    easier = quality.easier(of, 2)
    assert easier.classes == ("c", "b")
    assert [one.label for one in easier.train] == [1, 1, 0, 0, 0]
    assert [one.text for one in easier.validation] == ["2"]
    assert quality.easier(of, None) is of


def test_training_until_so_many_tokens_stops_there_and_is_the_same_again(small):
    runs = [quality.trained(small, quality.RANDOM, seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert 0 <= runs[0]["accuracy"] <= 1
    training_of = quality.training_for(small, quality.VARIANTS[quality.BIGGER], 0)
    assert training_of.settings.batch_size == 16
    assert training_of.until(100) < runs[0]["steps"]


def test_a_variant_that_fails_is_a_reason_and_not_the_end():
    def out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    device = torch.device("cpu")
    assert measure.attempted(out_of_memory, device) == {"failed": "out of memory"}
    assert measure.attempted(lambda: {"peak_bytes": 1}, device) == {"peak_bytes": 1}


def test_a_lighter_variant_is_predicted_to_need_less(small, monkeypatch):
    names = [BASELINE, *map(alone_name, ("workers", "sdpa")), cumulative_name("packing")]
    monkeypatch.setattr(measure, "VARIANTS", {name: VARIANTS[name] for name in names})
    monkeypatch.setattr(measure, "PREDICTED", {})
    monkeypatch.setattr(peaks, "VOCABULARY", 60)
    result = measure.predicted(small)
    assert set(result) == set(names[:-1])  # a smoke run leaves programs out
    assert not [row for row in result.values() if "failed" in row]
    peak = {name: row["peak_bytes"] for name, row in result.items()}
    assert peak[alone_name("sdpa")] < peak[BASELINE] == peak[alone_name("workers")]
    monkeypatch.setattr(peaks, "predicted", lambda *_: {"peak_bytes": 1})
    assert set(measure.predicted(replace(small, quick=False))) == set(names)


def test_the_heaviest_batch_of_an_epoch_has_the_longest_text(small):
    loader = quality.training_for(small, quality.VARIANTS[quality.RANDOM], 0).loader
    heaviest = peaks.HeaviestBatches()
    batch = heaviest.of(frozenset({"dynamic_padding"}), loader)
    assert batch[1].shape == (8, 16)
    assert heaviest.of(frozenset({"dynamic_padding", "sdpa"}), None) is batch  # is sought once


# Bad input, and the page


@pytest.fixture
def main(options, tmp_path, monkeypatch, capsys):
    """main(*words): the study's program in this process, which ends before it measures: exit code and stderr."""

    def started(*words, data=options.data):
        monkeypatch.setattr(study, "measured", None)
        base = ["--quick", "--device", "cpu", "--model", "nano", "--logdir", str(tmp_path), "--data", str(data)]
        monkeypatch.setattr(sys, "argv", ["study.py", *base, *words])
        return exit_code_of(study.main), capsys.readouterr().err

    return started


def assert_one_line(result, text):
    code, error = result
    assert code == 2
    assert error.count("\n") == 1
    assert text in error


def test_missing_extras_and_models_and_data_that_are_none_are_one_line(main, data, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_one_line(main("--model", "no-such-model"), "no-such-model")
    assert_one_line(main("--image-size", "32"), "--image-size")
    assert_one_line(main(data=tmp_path / "nowhere"), "nowhere")
    (data / "train.csv").write_text("text,label\n")
    assert_one_line(main(), "is empty")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert_one_line(main(), "pip install -r labs/transformer/requirements.txt")


def test_what_was_measured_is_kept_where_the_rest_cannot_be(options, tmp_path, monkeypatch):
    def gone(self, what, **settings):
        raise NotMeasured("the disk is gone")

    monkeypatch.setattr(Measurements, "measure", gone)
    words = ["--quick", "--device", "cpu", "--model", "nano", "--logdir", str(tmp_path), "--data", str(options.data)]
    monkeypatch.setattr(sys, "argv", ["study.py", *words])
    with pytest.raises(InputError, match=r"the disk is gone \(what was measured is kept"):
        study.main()
    assert not (tmp_path / "labs" / "transformer" / "study.json").exists()


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
    assert len(table) >= len(TRICKS)


def test_the_commands_of_the_page_can_be_parsed_and_its_tests_exist():
    commands = re.findall(r"^    python labs/transformer/train\.py (.*)$", PAGE, re.MULTILINE)
    assert commands
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "labs").glob("test_transformer_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in tests
    assert training.BATCHES == ("fixed", "dynamic", "uniform")
