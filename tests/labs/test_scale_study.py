"""labs/scale's study: its tables and claims by known answers, the study on measurements that are made up, and what
measures."""

import csv
import gc
import inspect
import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import ROOT

from common import program as programs
from common.options import StepOptions
from common.timing import Plan
from labs.scale import audit, batches, jpegs, measure, order, published, scaling, study, sweep, tables, train, training
from labs.scale.measure import EACH, ENGINES, LAST, NEVER, PIPELINES, SHARDS
from labs.shared import checkpoints
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError
from walkthrough.results.result import write_json

PAGE = (ROOT / "docs" / "labs" / "scale.md").read_text(encoding="utf-8")
NOISE = (0.98, 1.0, 1.02)
WIDE = (0.5, 1.0, 2.0)


@pytest.fixture
def options(drawn, tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=drawn, download=False, model="w8", image_size=32, batch_size=8,
        workers=0, precision="auto", seed=5, quick=True, stacks=False,
    )  # fmt: skip


# Tables


def made(seconds, digest="a", images=100):
    return {"seconds": seconds, "images": images, "shards": 8, "bytes": 2_000_000, "digest": digest, "folder": ""}


def piped(*consumed, trained=2.0, **speeds):
    """Rounds of `measure.pipelines`, one for each number: what the model consumes, and images/s by "p" and number.

    All but those deliver 10; of training a pipeline makes `trained` times as many, by one core a tenth.
    """
    rounds = [
        {
            "consumed": model,
            "pipelines": {
                name: {
                    "delivered": (speed := speeds.get(f"p{name[:2]}", (10.0,) * len(consumed))[number]),
                    "per_cpu_second": speed / 10,
                    "trained": trained and trained * speed,
                    "bytes": 1_500_000 * (1 + int(name[:2])),
                }
                for name in PIPELINES
            },
        }
        for number, model in enumerate(consumed)
    ]
    return dict(enumerate(rounds))


def by_name(rows, key):
    return {row[key]: row for row in rows}


def test_shards_are_the_same_where_every_engine_made_the_same_bytes_of_a_size():
    runs = {
        ("spark", 64): [made(20.0), made(10.0)], ("processes", 64): [made(5.0), made(5.0)],
        ("spark", 224): [made(40.0, "b")], ("processes", 224): [made(10.0, "c")],
    }  # fmt: skip
    rows = tables.offline_rows(runs, 9_000_000)
    assert [(row["by"], row["px"]) for row in rows] == list(runs)
    first = rows[0]
    assert (first["s"].mean, first["images/s"], first["images"], first["shards"]) == (15, 7.5, 100, 8)
    assert (first["MB of JPEGs"], first["MB of shards"]) == (9, 2)
    assert [row["the same bytes each time, by each"] for row in rows] == [True, True, False, False]
    [row, _] = tables.offline_rows({("spark", 64): [made(1.0), made(1.0, "b")], ("processes", 64): [made(1.0)]}, 1)
    assert row["the same bytes each time, by each"] is False


def test_a_pipeline_is_compared_in_pairs_with_decoding_each_and_with_the_one_before():
    rounds = piped(100.0, 50.0, p01=(20.0, 30.0), p02=(40.0, 60.0))
    rounds = {run: {**row, "pipelines": dict(reversed(row["pipelines"].items()))} for run, row in rounds.items()}
    rounds[0]["pipelines"]["04_cached"]["delivered"] = 1.0
    rounds[0]["pipelines"]["07_dali"] = rounds[1]["pipelines"]["07_dali"] = {"delivered": None, "bytes": 1}
    rounds[0]["pipelines"]["06_nvjpeg"] = {"error": "no GPU"}
    rows = tables.pipeline_rows(rounds)
    assert [row["pipeline"] for row in rows] == [*PIPELINES, "07_dali"]
    assert tables.refusals({64: rounds, 224: rounds}) == ["06_nvjpeg was not measured: no GPU"]
    first, workers, batched, *_, shards, last = rows
    assert shards["times the one before"].ratio == pytest.approx(1)  # of 03, whose files they hold
    assert (first["times decoding each"], first["times the one before"]) == (None, None)
    assert first["times what the model consumes"].ratio == pytest.approx((0.1 * 0.2) ** 0.5)
    assert (workers["images/s"], workers["images/s of one core"], workers["MB on disk"]) == (25, 2.5, 3)
    assert workers["times decoding each"].ratio == pytest.approx(6**0.5)
    assert (batched["times the one before"].ratio, batched["times the one before"].low) == pytest.approx((2, 2))
    assert batched["times decoding each"].ratio == pytest.approx(24**0.5)
    assert {last[name] for name in last if name not in ("pipeline", "MB on disk")} == {None}


def test_training_from_a_pipeline_is_beside_training_from_memory_and_absent_where_nothing_was_trained():
    rows = tables.trained_rows(piped(100.0, 100.0, p05=(40.0, 40.0)))
    assert [row["trained from"] for row in rows] == list(PIPELINES)
    assert (rows[0]["images/s"], rows[0]["times decoding each"]) == (20, None)
    assert rows[-1]["times decoding each"].ratio == pytest.approx(4)
    assert rows[-1]["of what the model consumes"].ratio == pytest.approx(0.8)
    assert tables.trained_rows(piped(100.0, trained=None)) == []


def test_an_epoch_is_that_of_imagenet_at_the_rates_here():
    an_hour = published.IMAGES / 3600
    rounds = piped(2 * an_hour, p00=(an_hour,), p05=(4 * an_hour,))
    rows = by_name(tables.epoch_rows({64: rounds}, "a CPU"), "what")
    assert rows["one CPU"] == {
        "whose": "published, w32", "what": "one CPU", "h": 20, "images/s": pytest.approx(an_hour / 20),
    }  # fmt: skip
    hours = {what: row["h"] for what, row in rows.items() if row["whose"] == "a CPU"}
    assert hours == pytest.approx({"00_decode_each, 64 px": 1, "05_shards, 64 px": 0.25, "the model, 64 px": 0.5})


def of_processes(count, *speeds, oversubscribed=False):
    """What `scaling.measured` returns, its windows of 100 images."""
    step_ms = {LAST: [1e5 / speed for speed in speeds], NEVER: [1e5 / speed - 5 for speed in speeds]}
    ranks = [{"communication_ms": 3.0 + rank} for rank in range(count)]
    own = {"processes": count, "oversubscribed": oversubscribed, "ranks": ranks, "step_ms": step_ms}
    return {**own, "images_per_second": {LAST: list(speeds)}}


def scaled_rounds(strong=(160.0, 160.0, 160.0), weak=(200.0, 200.0, 200.0), one=(100.0, 90.0, 800.0)):
    first = of_processes(1, *one)
    return [
        {"strong": [first, of_processes(2, fast)], "weak": [first, of_processes(2, slow, oversubscribed=True)]}
        for fast, slow in zip(strong, weak, strict=True)
    ]


def test_efficiency_is_throughput_over_that_of_as_many_single_processes():
    rows = tables.scaling_rows(scaled_rounds())
    assert [(row["scaling"], row["processes"]) for row in rows] == [
        ("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2),
    ]  # fmt: skip
    assert [row["images/s"] for row in rows] == [100, 160, 100, 200]
    assert [row["ms of a step"] for row in rows] == [1000, 625, 1000, 500]
    assert {rows[0][name] for name in ("times one process", "efficiency", "exposed ms", "ms in collectives")} == {None}
    assert [(row["exposed ms"].mean, row["ms in collectives"].mean) for row in rows[1::2]] == [(5, 3.5), (5, 3.5)]
    assert [row["times one process"].ratio for row in rows[1::2]] == pytest.approx([1.6, 2])
    wide = tables.scaling_rows(scaled_rounds((80.0, 160.0, 320.0)))[1]
    assert wide["efficiency"].ratio == pytest.approx(0.8)
    ends = [(wide[name].low, wide[name].high) for name in ("efficiency", "times one process")]
    assert ends[0] == pytest.approx([end / 2 for end in ends[1]]) and ends[0][0] < 0.8 < ends[0][1]
    assert [row["more processes than cores"] for row in rows] == [False, False, False, True]


def exchanged(step_ms, speeds=None, communication=(1.0, 2.0)):
    """What `scaling.measured` returns: step_ms by exchange, three windows of which one is late."""
    return {
        "parts": 2,
        "step_ms": {exchange: [ms, ms - 1, ms + 50] for exchange, ms in step_ms.items()},
        "images_per_second": {exchange: [speed] * 3 for exchange, speed in (speeds or {}).items()},
        "ranks": [
            {"rank": rank, "step_ms": 10.0 + rank, "communication_ms": ms} for rank, ms in enumerate(communication)
        ],
    }


def test_exposed_is_what_a_step_takes_longer_than_without_an_exchange():
    rounds = [
        [exchanged({LAST: 14.0, NEVER: 11.0}), exchanged({LAST: 12.0, NEVER: 11.0}, communication=(3.0, 4.0))],
        [exchanged({LAST: 16.0, NEVER: 11.0}), exchanged({LAST: 12.0, NEVER: 11.0}, communication=(5.0, 4.0))],
    ]
    rows = tables.bucket_rows(rounds, (1.0, None))
    assert [(row["MiB of a part"], row["parts"]) for row in rows] == [("1", 2), ("torch's own", 2)]
    assert [row["ms of a step"].mean for row in rows] == [15, 12]
    assert [row["exposed ms"].mean for row in rows] == [4, 1]
    assert [(row["ms in collectives, rank 0"].mean, row["ms in collectives, rank 1"].mean) for row in rows] == [
        (1, 2), (4, 4),
    ]  # fmt: skip


def accumulated(last=150.0, each=(100.0, 100.0)):
    """Rounds of `measure.accumulation`."""
    return [exchanged({LAST: 14.0, EACH: 20.0, NEVER: 11.0}, {LAST: last, EACH: speed, NEVER: 200.0}) for speed in each]


def test_accumulation_is_compared_with_an_exchange_in_each_pass():
    rows = by_name(tables.accumulation_rows(accumulated(), 4), "gradients exchanged")
    assert list(rows) == [LAST, EACH, NEVER]
    assert {row["passes"] for row in rows.values()} == {4}
    assert [row["ms of a step"].mean for row in rows.values()] == [14, 20, 11]
    assert (rows[LAST]["exposed ms"].mean, rows[EACH]["exposed ms"].mean, rows[NEVER]["exposed ms"]) == (3, 9, None)
    column = "times as fast as in each pass"
    assert rows[EACH][column] is None
    assert (rows[LAST][column].ratio, rows[NEVER][column].ratio) == pytest.approx((1.5, 2))


def straggled(*waiting, sleeper=4.0):
    """Rounds of `measure.straggler`, of three ranks: what the two wait, and the one that sleeps."""
    alike = exchanged({}, communication=(1.0, 2.0, 3.0))
    return [{"alike": alike, "delayed": exchanged({}, communication=(ms, ms, sleeper))} for ms in waiting]


def test_the_last_rank_sleeps_and_the_others_wait():
    rows = tables.straggler_rows(straggled(100.0, 120.0), 100.0)
    assert [(row["rank"], row["sleeps ms"]) for row in rows] == [(0, 0), (1, 0), (2, 100)]
    assert [row["ms in collectives"].mean for row in rows] == [110, 110, 4]
    assert [row["ms in collectives, none asleep"].mean for row in rows] == [1, 2, 3]
    assert [row["ms of a step"].mean for row in rows] == [10, 11, 12]


def epochs_of(*top1):
    return [{"loss": 2.0, "validation_loss": 1.0, "top1": share, "top5": 2 * share} for share in top1]


def test_accuracies_are_means_over_seeds_of_the_last_epoch_and_curves_of_each():
    trainings = {1: [epochs_of(0.1, 0.3), epochs_of(0.2, 0.5)], 4: [epochs_of(0.1, 0.2)]}
    one, four = tables.accuracy_rows(trainings)
    assert (one["training"], one["seeds"], four["training"], four["seeds"]) == ("1 process", 2, "4 processes", 1)
    assert (one["top-1 %"].mean, one["top-5 %"].mean, one["training loss"].mean) == pytest.approx((40, 80, 2))
    assert (one["validation loss"].mean, four["top-1 %"].mean, four["top-1 %"].low) == (1, 20, None)
    curves = tables.curve_rows(trainings)
    assert [(row["variant"], row["epoch"]) for row in curves] == [
        ("1 process", 1), ("1 process", 2), ("4 processes", 1), ("4 processes", 2),
    ]  # fmt: skip
    assert [row["top-1 %"].mean for row in curves] == pytest.approx([15, 40, 10, 20])


SWEEP = {
    "settings": {"epochs": 3},
    "importance": {"width": 0.25, "weight_decay": 0.75},
    "trials": [
        {"number": number, "state": state, "accuracy": accuracy, "parameters": {"lr": 0.1, "weight_decay": number},
         "seconds": 2.0, "epochs": [{}] * epochs}
        for number, (state, accuracy, epochs) in enumerate(
            [("complete", 0.5, 3), ("pruned", None, 2), ("complete", 0.75, 3), ("pruned", None, 1), ("failed", None, 0)]
        )
    ],
}  # fmt: skip


def test_of_a_sweep_the_best_trials_are_shown_and_how_all_of_them_ended():
    best, other = tables.sweep_rows(SWEEP)
    assert best == {"trial": 2, "accuracy %": 75, "lr": 0.1, "weight decay": 2, "s": 2}
    assert other["trial"] == 0
    assert [row["trial"] for row in tables.sweep_rows(SWEEP, most=1)] == [2]
    ended = {tuple(row.values()) for row in tables.trial_rows(SWEEP)}
    assert ended == {("complete", 2, 6, 6), ("pruned", 2, 3, 6), ("failed", 1, 0, 3)}
    assert [tuple(row.values()) for row in tables.importance_rows(SWEEP)] == [("weight decay", 75), ("width", 25)]
    assert tables.importance_rows({"importance": None}) == []


# Claims


def claims_of(by_size, scaled=(), accumulation=(), straggler=()):
    found = audit.claims(by_size, scaled, accumulation, straggler)
    assert len({claim.id for claim in found}) == len(found)
    return {claim.id: claim for claim in found}


def times(factors, speed):
    return tuple(speed * factor for factor in factors)


@pytest.mark.parametrize(("speeds", "holds"), [
    (times(NOISE, 60.0), True), (times(NOISE, 40.0), False), (times(WIDE, 50.0), None),
])  # fmt: skip
def test_shards_are_five_times_as_fast_only_where_the_whole_interval_is_above(speeds, holds):
    claims = claims_of({64: piped(100.0, 100.0, 100.0, p01=(20.0,) * 3, p05=speeds)})
    assert claims["shards"].holds is holds
    assert claims["shards"].value == pytest.approx(speeds[1] / 10, rel=0.01)
    assert "64 px" in claims["shards"].text and "5 times" in claims["shards"].text
    assert claims["shards-workers"].value == pytest.approx(speeds[1] / 20, rel=0.01)
    assert claims["shards-workers"].holds is (None if holds is None else False)


@pytest.mark.parametrize(("factor", "holds"), [(1.2, True), (0.8, False)])
def test_batches_and_feeding_are_claims_against_one(factor, holds):
    speeds = {"p01": times(NOISE, 30.0), "p02": times(NOISE, 30.0 * factor), "p05": times(NOISE, 100.0 * factor)}
    claims = claims_of({64: piped(100.0, 100.0, 100.0, **speeds)})
    assert (claims["batched"].holds, claims["batched"].value) == (holds, pytest.approx(factor))
    assert (claims["fed"].holds, claims["fed"].value) == (holds, pytest.approx(factor, rel=0.01))


def test_one_round_decides_nothing():
    claims = claims_of({64: piped(100.0, p05=(1000.0,))})
    assert set(claims) == {"starved", "shards", "shards-workers", "batched", "fed"}
    assert {claim.holds for claim in claims.values()} == {None}
    assert claims["shards"].value == pytest.approx(100)


def test_a_program_that_does_not_run_here_says_why_and_the_others_are_timed(options, monkeypatch):
    def pipeline(own, name, *_):
        if name == SHARDS:
            raise InputError("reading shards needs webdataset")
        return {"delivered": 1.0}

    one = SimpleNamespace(loader=[0], train_step=None)
    monkeypatch.setattr(measure, "captured", lambda *_: one)
    monkeypatch.setattr(measure, "timed", lambda *_: SimpleNamespace(samples_per_second=SimpleNamespace(median=1)))
    monkeypatch.setattr(measure, "_pipeline", pipeline)
    answer = measure.pipelines(options, 32, 0, "shards", 1, with_training=False)["pipelines"]
    assert answer[SHARDS] == {"error": "reading shards needs webdataset"}
    assert [answer[name] for name in PIPELINES[:-1]] == [{"delivered": 1.0}] * 5


def test_a_gpu_s_utilization_is_that_of_the_trace_of_a_program(options, monkeypatch):
    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(returncode=0, stderr="")
    )
    gpu = {"id": 0, "utilization": 0.5, "occupancy_percent": 40.0}
    monkeypatch.setattr(scaling, "explanation", lambda path: {"gpus": [gpu]})
    assert measure.utilization(options, SHARDS) == {"utilization": 0.5, "occupancy_percent": 40.0}
    assert commands[0][1].endswith("05_shards.py") and "--quick" in commands[0]
    [row] = tables.utilization_rows({SHARDS: {"utilization": 0.5, "occupancy_percent": None}})
    assert (row["utilization %"], row["occupancy %"]) == (50, None)


@pytest.mark.parametrize(("large", "holds"), [(20.0, True), (30.0, False)])
def test_what_small_images_gain_is_what_the_model_consumes(large, holds):
    consumed = times(NOISE, 100.0)
    claims = claims_of({64: piped(*consumed), 224: piped(*times(NOISE, large), trained=None)})
    assert (claims["small-images"].holds, claims["small-images"].value) == (holds, pytest.approx(100 / large))
    assert "small-images" not in claims_of({64: piped(*consumed)})


def test_efficiencies_are_compared_with_the_published_one():
    rounds = piped(100.0, 100.0, 100.0)
    scaled = scaled_rounds(strong=times(NOISE, 190.0), weak=times(NOISE, 160.0))
    claims = claims_of({64: rounds}, scaled=scaled)
    assert published.EFFICIENCY == 0.875
    assert (claims["efficiency-strong"].holds, claims["efficiency-strong"].value) == (
        True,
        pytest.approx(0.95, rel=0.01),
    )
    assert (claims["efficiency-weak"].holds, claims["efficiency-weak"].value) == (False, pytest.approx(0.8, rel=0.01))
    assert claims["efficiency-weak"].text.startswith("2 processes")
    for row in scaled:
        row["strong"][-1]["oversubscribed"] = True
    assert not [name for name in claims_of({64: rounds}, scaled=scaled) if name.startswith("efficiency")]
    alone = [{kind: row[kind][:1] for kind in row} for row in scaled]
    assert not [name for name in claims_of({64: rounds}, scaled=alone) if name.startswith("efficiency")]


@pytest.mark.parametrize(("each", "holds"), [
    (times(NOISE, 100.0), True), (times(NOISE, 200.0), False), (times(WIDE, 150.0), None),
])  # fmt: skip
def test_no_sync_pays_only_where_it_surely_does(each, holds):
    claim = claims_of({64: piped(100.0)}, accumulation=accumulated(each=each))["no-sync"]
    assert (claim.holds, claim.value) == (holds, pytest.approx(150 / each[1], rel=0.01))


def test_the_rank_that_sleeps_has_the_short_collectives_and_one_round_is_no_claim():
    rounds = {64: piped(100.0)}
    claim = claims_of(rounds, straggler=straggled(40.0, 44.0, 48.0))["straggler"]
    assert (claim.holds, claim.value) == (True, pytest.approx((10 * 11 * 12) ** (1 / 3)))
    assert claims_of(rounds, straggler=straggled(2.0, 2.1, 2.2))["straggler"].holds is False
    assert "straggler" not in claims_of(rounds, straggler=straggled(40.0))


# The study


ANSWERS = {
    "offline": lambda engine, size, run: made(10.0) | {"folder": f"{engine}-{size}"},
    "pipelines": lambda size, with_training, run, **_: piped(
        *times(NOISE, 100.0), trained=2.0 if with_training else None, p05=times(NOISE, 80.0)
    )[run % 3],
    "scaled": lambda most, run: {
        kind: [of_processes(count, 90.0 * count) for count in scaling.process_counts(most)]
        for kind in ("strong", "weak")
    },
    "buckets": lambda processes, sizes_mb, run: [exchanged({LAST: 14.0, NEVER: 11.0}) for _ in sizes_mb],
    "accumulation": lambda processes, passes, run: accumulated()[0],
    "straggler": lambda processes, delay_ms, run: straggled(100.0)[0],
    "trained": lambda processes, epochs, seed: epochs_of(0.2, 0.3 + seed / 100),
    "swept": lambda trials, epochs: SWEEP,
}


@pytest.fixture
def studied(drawn, tmp_path, monkeypatch, capsys):
    """studied(*words, cores, **failing): the study on two cores, `ANSWERS` in place of what it measures: its result,
    the calls, and what it printed. failing: {function: settings -> why it cannot measure, or None}."""

    def run(*words, cores=2, **failing):
        calls = []

        def answer(self, what, **settings):
            inspect.signature(getattr(measure, what)).bind(self.options, **settings)
            calls.append((what, settings))
            if reason := failing.get(what, lambda **_: None)(**settings):
                raise NotMeasured(reason)
            return json.loads(json.dumps(ANSWERS[what](**settings)))

        monkeypatch.setattr(Measurements, "measure", answer)
        monkeypatch.setattr(study, "usable_cores", lambda: cores)
        base = ["--device", "cpu", "--model", "w8", "--data", str(drawn), "--logdir", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["study.py", *base, *words])
        study.main()
        result = read(tmp_path / "labs" / "scale" / "study.json")
        return SimpleNamespace(result=result, calls=calls, out=capsys.readouterr().out)

    return run


def test_a_whole_study_fills_every_table_and_figure_of_its_page(studied):
    done = studied()
    of_page = set(re.findall(r"begin (?:table|figure) labs/scale (\w+)", PAGE)) - {"claims", "notes"}
    assert of_page == set(done.result.tables)
    assert [name for name, rows in done.result.tables.items() if not rows] == ["utilization"]  # of a GPU
    assert {claim.id for claim in done.result.claims} == {
        "starved", "shards", "shards-workers", "batched", "fed", "small-images", "efficiency-strong", "efficiency-weak",
        "no-sync", "straggler",
    }  # fmt: skip
    assert "96 training and 19 validation images of 4 classes, drawn JPEGs, 0 corrupt" in done.result.notes[0]
    assert not [note for note in done.result.notes if "was not measured" in note]
    assert [note for note in done.result.notes if note.startswith("no GPU: 06_nvjpeg, 07_dali and utilization")]
    assert "claims" in done.out
    assert str(ROOT) not in json.dumps(done.result.tables)
    runs = [
        (settings["engine"], settings["size"], settings["run"]) for what, settings in done.calls if what == "offline"
    ]
    assert runs == [(engine, size, run) for run in (1, 2, 3) for size in (64, 224) for engine in ENGINES]  # interleaved
    of_pipelines = {
        (own["size"], own["shards"], own["with_training"]) for what, own in done.calls if what == "pipelines"
    }
    assert of_pipelines == {(64, "spark-64", True), (224, "spark-224", False)}


def test_a_smoke_run_is_of_one_size_one_seed_and_few_rounds(studied):
    done = studied("--quick")
    assert [name for name, rows in done.result.tables.items() if not rows] == ["utilization"]
    assert {row["px"] for row in done.result.tables["offline"]} == {64}
    assert "pipelines_large" not in done.result.tables
    counts = {name: [what for what, _ in done.calls].count(name) for name in ANSWERS}
    assert counts == {
        "offline": 2, "pipelines": 2, "scaled": 2, "buckets": 1, "accumulation": 1, "straggler": 1, "trained": 2,
        "swept": 1,
    }  # fmt: skip


def test_without_spark_there_is_a_note_and_the_rest_goes_on(studied):
    done = studied(offline=lambda engine, **_: "Spark needs Java" if engine == "spark" else None)
    assert [row["by"] for row in done.result.tables["offline"]] == ["processes"] * 2
    assert done.result.notes.count("offline was not measured: Spark needs Java") == 1
    assert {own["shards"] for what, own in done.calls if what == "pipelines"} == {
        "processes-64", "processes-224",
    }  # fmt: skip
    assert [name for name, rows in done.result.tables.items() if not rows] == ["utilization"]


def test_without_any_shards_their_pipeline_makes_its_own(studied, drawn):
    done = studied("--quick", offline=lambda **_: "the disk is full")
    assert done.result.tables["offline"] == []
    assert {own["shards"] for what, own in done.calls if what == "pipelines"} == {str(drawn)}


def test_what_fails_in_one_round_or_for_one_seed_is_left_out_of_its_figures(studied):
    done = studied(
        trained=lambda processes, seed, **_: "diverged" if (processes, seed) == (2, 1) else None,
        straggler=lambda run, **_: "a rank died" if run == 1 else None,
        swept=lambda **_: "no optuna",
    )
    assert [row["seeds"] for row in done.result.tables["accuracy"]] == [3, 2]
    assert done.result.tables["straggler"][0]["ms of a step"]["count"] == 2
    assert done.result.tables["sweep"] == done.result.tables["trials"] == done.result.tables["importance"] == []
    told = [note for note in done.result.notes if "was not measured" in note]
    assert told == [
        "straggler was not measured: a rank died", "trained was not measured: diverged",
        "swept was not measured: no optuna",
    ]  # fmt: skip


def test_one_process_exchanges_nothing(studied, monkeypatch):
    monkeypatch.setattr(study, "most_processes", lambda device: 1)
    done = studied("--quick")
    assert not {"buckets", "accumulation", "straggler"} & {what for what, _ in done.calls}
    empty = {name for name, rows in done.result.tables.items() if not rows}
    assert empty == {"buckets", "accumulation", "straggler", "utilization"}
    assert [row["training"] for row in done.result.tables["accuracy"]] == ["1 process"]
    assert {row["processes"] for row in done.result.tables["scaling"]} == {1}
    assert {claim.id for claim in done.result.claims} == {"starved", "shards", "shards-workers", "batched", "fed"}


def test_a_study_without_pipelines_is_none(studied):
    with pytest.raises(InputError, match=r"no pipeline could be measured: .*: out of memory"):
        studied("--quick", pipelines=lambda **_: "out of memory")


def test_as_many_processes_train_as_can_share_a_batch(monkeypatch):
    for cores, processes in ((1, 2), (2, 2), (3, 2), (6, 4), (64, 8)):
        monkeypatch.setattr(study, "usable_cores", lambda cores=cores: cores)
        assert study.most_processes("cpu") == processes
    for gpus, processes in ((1, 1), (3, 2), (8, 8)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert study.most_processes("cuda") == processes
    for batch_size in (study.DEFAULTS.cuda.batch_size, study.DEFAULTS.cpu.batch_size):
        assert training.share(batch_size, study.MOST_PROCESSES, study.PASSES) >= 1


# What is measured


@pytest.fixture
def one_core(monkeypatch):
    """No processes for a few small pictures."""
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 1)


def test_shards_are_made_anew_each_time_and_their_digest_is_of_their_bytes(options, one_core):
    first, again = (measure.offline(options, "processes", 16, run) for run in (1, 2))
    counts = [len(order.shards_of(count)) for count in (96, 19)]
    assert (first["images"], first["shards"], first["seconds"] > 0) == (115, sum(counts), True)
    folders = [options.logdir / "shards" / f"processes-16px-{run}" for run in (1, 2)]
    assert [first["folder"], again["folder"]] == [str(folders[0]), None]
    assert not folders[1].exists()
    assert first["bytes"] == sum(path.stat().st_size for path in folders[0].rglob("*.tar"))
    assert first["digest"] == again["digest"] != measure.offline(options, "processes", 24, 1)["digest"]
    (folders[0] / "rubbish").write_text("")
    assert measure.offline(options, "processes", 16, 1)["digest"] == first["digest"]
    assert not (folders[0] / "rubbish").exists()


def test_bytes_are_of_the_files_that_an_epoch_reads(options, one_core, drawn):
    originals = sum(path.stat().st_size for path in (drawn / "train").rglob("*.jpg"))
    assert {measure.read_bytes(options, name) for name in PIPELINES[:3]} == {originals}
    own = sum(path.stat().st_size for path in (measure.train_shards(drawn, 32)[0]).iterdir())
    assert measure.read_bytes(options, SHARDS) == own  # of shards that the program itself made
    made_offline = measure.offline(options, "processes", 32, 1)["folder"]
    assert measure.read_bytes(replace(options, data=Path(made_offline)), SHARDS) == own


@pytest.mark.skipif(find_spec("webdataset") is None, reason="webdataset is not installed")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves files to the GC
def test_every_pipeline_is_timed_by_itself_and_under_training(options, one_core, monkeypatch):
    monkeypatch.setattr(measure, "LOAD_SECONDS", {True: 0.01})
    monkeypatch.setattr(programs, "QUICK", Plan(0, 0.0, 1, 1, 0.0))
    monkeypatch.setitem(programs.LOADED, True, Plan(0, 0.0, 1, 1, 0.0))
    shards = measure.offline(options, "processes", 32, 1)["folder"]
    found = measure.pipelines(options, 32, 0, shards, run=2, with_training=True)
    gc.collect()
    assert list(found["pipelines"]) == [*PIPELINES[2:], *PIPELINES[:2]]  # begins with another in each round
    assert found["consumed"] > 0
    numbers = [[row[name] > 0 for name in ("delivered", "per_cpu_second", "trained", "bytes")]
               for row in found["pipelines"].values()]  # fmt: skip
    assert numbers == [[True] * 4] * len(PIPELINES)
    assert found["pipelines"]["03_resized_once"]["bytes"] < found["pipelines"]["00_decode_each"]["bytes"]
    assert found["pipelines"][SHARDS]["bytes"] == measure.read_bytes(replace(options, data=Path(shards)), SHARDS)


def test_all_have_the_workers_but_one_core_has_none_and_a_gpus_own_loaders_yield_no_images(options, monkeypatch):
    begun, batch = [], (torch.zeros(8, 3, 2, 2), torch.zeros(8))

    def captured(file, words):
        given = dict(zip(words[::2], words[1::2], strict=True))
        begun.append((file.stem, int(given["--workers"]), given["--data"], int(given["--image-size"])))
        return SimpleNamespace(file=file.stem, loader=[batch], variables={"decoder": len})

    def timed(program, *_):
        return SimpleNamespace(samples_per_second=SimpleNamespace(median=len(program.file)))

    monkeypatch.setattr(measure, "captured", captured)
    monkeypatch.setattr(measure, "timed", timed)
    monkeypatch.setattr(measure, "delivered", lambda loader, seconds, finish=None: 9.0 if finish else 7.0)
    monkeypatch.setattr(measure, "per_cpu_second", lambda loader, seconds: 3.0)
    monkeypatch.setattr(measure, "read_bytes", lambda own, name: 5)
    on_gpu = replace(options, device="cuda")
    found = measure.pipelines(on_gpu, 24, 3, "made", run=len(PIPELINES), with_training=False)
    assert list(found["pipelines"]) == [*measure.GPU_PIPELINES, *PIPELINES]
    assert found["pipelines"]["00_decode_each"] == {
        "delivered": 7.0, "per_cpu_second": 3.0, "trained": None, "bytes": 5,
    }  # fmt: skip
    assert {found["pipelines"]["06_nvjpeg"][name] for name in ("per_cpu_second", "trained")} == {None}
    assert found["pipelines"]["06_nvjpeg"]["delivered"] == 9.0  # decoded, and not its files alone
    workers = {name: [count for stem, count, *_ in begun if stem == name] for name in found["pipelines"]}
    assert workers["00_decode_each"] == [0, 0, 0]  # the first is the model's, by itself
    assert [workers[name] for name in PIPELINES[1:]] == [[0, 3]] * 5
    assert [workers[name] for name in measure.GPU_PIPELINES] == [[3]] * 2
    assert {data for stem, _, data, _ in begun if stem == SHARDS} == {"made"}
    assert {data for stem, _, data, _ in begun if stem != SHARDS} == {str(options.data)}
    assert {size for *_, size in begun} == {24}
    trained = measure._pipeline(on_gpu, "06_nvjpeg", 3, True)["trained"]
    assert trained == len("06_nvjpeg")


@pytest.fixture
def launched(monkeypatch):
    """The calls of `scaling.measured`, in place of it: each returns its number."""
    calls = []

    def measured(options, processes, images, passes=1, **settings):
        calls.append((processes, images, passes, settings))
        return len(calls)

    monkeypatch.setattr(scaling, "measured", measured)
    return calls


def test_strong_scaling_shares_the_batch_and_weak_gives_each_one(options, launched):
    assert measure.scaled(options, 4, run=0) == {"strong": [1, 2, 3], "weak": [1, 4, 5]}
    assert [call[:3] for call in launched] == [(1, 8, 1), (2, 4, 1), (4, 2, 1), (2, 8, 1), (4, 8, 1)]
    launched.clear()
    assert measure.scaled(options, 4, run=4) == {"strong": [2, 3, 4], "weak": [2, 5, 1]}
    assert launched[0][:2] == (4, 8)
    launched.clear()
    assert measure.scaled(options, 1, run=3) == {"strong": [1], "weak": [1]}


def test_parts_accumulation_and_the_straggler_are_measured_with_what_they_need(options, launched):
    assert measure.buckets(options, 2, [1.0, 5.0, 25.0], run=1) == [3, 1, 2]
    of = [(processes, images, settings["bucket_mb"]) for processes, images, _, settings in launched]
    assert of == [(2, 4, 5.0), (2, 4, 25.0), (2, 4, 1.0)]
    assert all(own["exchanges"] == (LAST, NEVER) and own["traced"] for *_, own in launched)
    launched.clear()
    measure.accumulation(options, 2, 4, run=1)
    assert launched == [(2, 1, 4, {"exchanges": (LAST, EACH, NEVER)})]
    launched.clear()
    assert measure.straggler(options, 4, 100.0, run=1) == {"alike": 1, "delayed": 2}
    assert launched == [
        (4, 2, 1, {"traced": True}), (4, 2, 1, {"traced": True, "slow_rank": 3, "delay_ms": 100.0}),
    ]  # fmt: skip


def test_a_training_is_that_of_the_program_and_its_reason_is_the_programs(options, monkeypatch):
    ended = SimpleNamespace(returncode=0, stderr="")

    def run(command, **_):
        args = train.options(command[2:])
        assert command[1].endswith("train.py")
        assert (args.processes, args.epochs, args.seed, args.batch_size, args.image_size) == (2, 3, 5 + 7, 8, 32)
        assert (args.model, args.data, args.device) == ("w8", options.data, "cpu")
        assert not args.logdir.exists()
        if not ended.returncode:
            args.logdir.mkdir(parents=True)
            with open(args.logdir / checkpoints.TABLE, "w", newline="") as table:
                csv.writer(table).writerows([["epoch", "top1"], ["1", "0.25"], ["2", "0.5"]])
        return ended

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):  # always from the beginning
        assert measure.trained(options, 2, 3, 7) == [{"epoch": 1.0, "top1": 0.25}, {"epoch": 2.0, "top1": 0.5}]
    ended.returncode, ended.stderr = 2, "a warning\ntrain: rank 1: no data\n"
    with pytest.raises(InputError, match=r"^train: rank 1: no data$"):
        measure.trained(options, 2, 3, 7)
    ended.stderr = ""
    with pytest.raises(InputError, match=r"train\.py ended with code 2"):
        measure.trained(options, 2, 3, 7)


def test_a_sweep_begins_anew_and_prints_nothing_where_the_answer_goes(options, monkeypatch, capsys):
    def main(words):
        own, args = sweep.options_of(words)
        assert (args.trials, args.epochs, own.seed, own.image_size, own.data) == (4, 2, 5, 32, options.data)
        assert not own.logdir.exists()
        own.logdir.mkdir()
        write_json(own.logdir / sweep.FILE, {"trials": args.trials})
        print("trial 0: accuracy")

    monkeypatch.setattr(sweep, "main", main)
    for _ in range(2):
        assert measure.swept(options, 4, 2) == {"trials": 4}
    assert capsys.readouterr().out == ""


def test_images_of_one_core_are_counted_in_cpu_time_after_the_first_batch(monkeypatch):
    clocks = {"perf_counter": itertools.count(100, 2), "process_time": iter([50.0, 53.0])}
    for name, ticks in clocks.items():
        monkeypatch.setattr(batches.time, name, lambda ticks=ticks: next(ticks))
    loader = [(torch.zeros(count, 3), torch.zeros(count)) for count in (7, 10)]  # its epochs follow each other
    assert batches.per_cpu_second(loader, 7.0) == (10 + 7 + 10) / 3  # batches asked for at 2, 4 and 6 s of 7


def test_the_programs_of_measurements_are_there_and_named_in_order():
    files = sorted(path.stem for path in (ROOT / "labs" / "scale").glob("[0-9][0-9]_*.py"))
    assert files == [*PIPELINES, *measure.GPU_PIPELINES]
