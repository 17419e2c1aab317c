"""labs/speedrun/study.py: a whole small study, and its tables and claims by known answers."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch
from support import ROOT

from labs.shared.study import MEASUREMENTS, as_stored
from labs.speedrun import data, study
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError

LAST, NAIVE, FASTER = study.LAST, study.NAIVE, study.FASTER_RATE
TABLES = ["setting", "ladder", "ablations", "published", "heat_map", "curves", "momentum", "differences", "calls"]


def race(accuracies=(0.5, 0.99), failure=None, seconds=1.0):
    """What is used of a race.json."""
    reached = {"epochs_to_target": None if failure else 2, "seconds_to_target": None if failure else seconds}
    return {"accuracies": accuracies, "losses": (1.0,) * len(accuracies), "failure": failure, **reached}


def rows_of(**programs):
    """The races {program: their seconds, None for one that failed}, seed after seed; "s" before a program's number."""
    rows = []
    for name, seconds in programs.items():
        program = next(known for known in study.PROGRAMS if known.startswith(name.removeprefix("s")))
        for seed, value in enumerate(seconds):
            done = race((0.5, 0.99), None, value) if value else race((0.5, 0.9), "not reached")
            rows.append(study.race_row(program, seed, done))
    return rows


def tables_of(rows, ablations=(), differences=()):
    ladder = [study.outcome(rows, name) for name in dict.fromkeys(row["program"] for row in rows)]
    tables = {"races": [*rows, *ablations], "ladder": ladder, "setting": [{"data": "digits"}]}
    return as_stored({**tables, "differences": differences})


def claims_of(*tables, on_gpu=False):
    return {claim.id: claim for claim in study.claims(tables_of(*tables), on_gpu)}


@pytest.fixture
def small(few_digits, tmp_path, monkeypatch):
    """The study's program with little to do, its measurements in this process."""

    def here(self, what, **settings):
        return json.loads(json.dumps(MEASUREMENTS[what](self.options, **json.loads(json.dumps(settings)))))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    short = data.Setting(0.05, 16, "w4", 8, {NAIVE: data.Plan(2, 0.1)})
    monkeypatch.setitem(data.SETTINGS, "digits", short)
    for name, value in (("ROUNDS", {"cpu": 1}), ("LAST_RACES", 2), ("HEAT_RATES", (1, 4)), ("SEEDS", 1)):
        monkeypatch.setattr(study, name, {True: value})
    monkeypatch.setattr(study, "MOMENTA", (0, 0.9))
    monkeypatch.setattr(study, "usable_cores", lambda: 1)  # one at a time, since they are not processes here
    monkeypatch.setattr(study, "PROGRAMS", (*study.PROGRAMS[:3], "04_one_cycle", "05_momentum", LAST))
    monkeypatch.setattr(study, "CONSTANT", study.PROGRAMS[:3])
    words = ["study.py", "--quick", "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    return study.lab_options("", "speedrun", study.DEFAULTS, words[1:])[0]


def test_a_small_study_fills_every_table_and_its_claims_follow_from_them(small, tmp_path, capsys):
    study.main()
    result = read(tmp_path / "labs" / "speedrun" / "study.json")
    assert [name for name in (*TABLES, "races") if not result.tables[name]] == []
    programs = [row["program"] for row in result.tables["ladder"]]
    assert programs == [NAIVE, FASTER, *study.PROGRAMS[1:]]
    assert all(row["races"] == row["reached it"] > 0 for row in result.tables["ladder"])
    assert result.tables["ladder"][-1]["races"] == study.LAST_RACES[True]
    assert [row["program"] for row in result.tables["ablations"]] == list(study.IDEAS[1:])  # no half precision
    assert {row["batch size"] for row in result.tables["heat_map"]} == {8, 32}
    assert {row["variant"] for row in result.tables["momentum"]} == {"momentum 0", "momentum 0.9"}
    assert str(ROOT) not in json.dumps(asdict(result))  # no folder of this machine
    assert [asdict(claim) for claim in study.claims(result.tables, False)] == [asdict(one) for one in result.claims]
    assert any("digits are not mirrored" in note for note in result.notes)
    assert "written to" in capsys.readouterr().out


def test_without_the_naive_race_there_is_no_study(small, tmp_path, monkeypatch):
    def gone(self, what, **settings):
        raise NotMeasured("the disk is gone")

    monkeypatch.setattr(Measurements, "measure", gone)
    with pytest.raises(InputError, match="00_naive did not race: races was not measured: the disk is gone"):
        study.main()
    assert not (tmp_path / "labs" / "speedrun" / "study.json").exists()


def test_a_program_that_fails_has_its_reason_and_the_others_race(small, monkeypatch):
    def broken(function):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    runs = [["ablations", "--add", "compile"], [study.PLAIN, "--lr", "1000", "--epochs", "4"]]
    runs += [["03_resnet9", "--dataset", "cifar10"], [study.PLAIN, "--target", "1", "--lr", "1e-9"]]
    broken, diverged, no_data, not_reached = study.races(small, runs)
    assert broken == {"error": "RuntimeError: no compiler"}
    assert (diverged["error"], diverged["failure"]) == (None, "diverged")
    assert diverged["seconds_to_target"] is None
    assert "no CIFAR-10" in no_data["error"]
    assert not_reached["failure"] == "not reached"


def test_failures_count_in_the_median_and_there_is_none_where_half_failed():
    medians = [study.median(values) for values in ([1.0, 2.0, None], [1.0, None, None], [1.0, None], [3.0])]
    assert medians == [2.0, None, None, 3.0]


def test_the_ladder_counts_failures_and_compares_pairs_that_both_reached():
    naive, cycle, momentum = tables_of(rows_of(s00=[30, 40, None], s04=[3, 2, 1], s05=[1.5, None, None]))["ladder"]
    assert (naive["races"], naive["reached it"], naive["s to target"]) == (3, 2, 40)
    assert (naive["speed-up over 00_naive"], naive["speed-up"]) == (None, None)
    assert cycle["speed-up over 00_naive"]["ratio"] == pytest.approx((10 * 20) ** 0.5)
    assert cycle["speed-up over 00_naive"]["rounds"] == 2
    assert momentum["speed-up"] == 2.0  # one pair: no interval
    assert cycle["speed-up"] is None  # 03 did not race
    assert momentum["s to target"] is None
    assert naive["accuracy at the end %"]["mean"] == pytest.approx(96)


@pytest.mark.parametrize(
    ("naive", "last", "holds"),
    [
        ([30, 33, 36], [1, 1.1, 1.2], True), ([30, 33, 36], [10, 11, 12], False), ([30, 30, 30], [2, 3, 4], None),
        ([30], [1], None), ([None] * 3, [1, 1, 1], None),
    ],
)  # fmt: skip
def test_ten_times_as_fast_holds_by_its_interval_alone(naive, last, holds):
    assert claims_of(rows_of(s00=naive, s08=last))["all"].holds is holds


@pytest.mark.parametrize(
    ("reached", "races", "low", "holds"),
    [(25, 25, 0.863, None), (47, 47, 0.925, None), (48, 48, 0.926, True), (30, 50, 0.452, False), (0, 5, 0, False)],
)
def test_reliable_is_19_of_20_races_by_the_exact_interval_of_the_share(reached, races, low, holds):
    claim = claims_of(rows_of(s00=[20], s08=[1.0] * reached + [None] * (races - reached)))["reliable"]
    assert (claim.value, claim.holds, claim.undecided) == (reached / races, holds, holds is None)
    assert claim.low == pytest.approx(low, abs=6e-4)


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [([1.0] * 5, None), ([1.0] * 6, True), ([1.0] * 4 + [11.0, None], None), ([11.0] * 3 + [None] * 3, False)],
)
def test_the_record_is_of_most_races_and_one_that_fails_is_not_in_time(seconds, holds):
    rows = rows_of(s00=[20], s08=seconds)
    tables = {**tables_of(rows), "setting": [{"data": "cifar10"}]}
    (claim,) = [claim for claim in study.claims(tables, True) if claim.id == "record"]
    assert (claim.holds, claim.undecided) == (holds, holds is None)


def test_what_a_cpu_cannot_contradict_needs_a_gpu():
    races = rows_of(s00=[9, 9, 9], s08=[1, 1, 1])
    faster = [{**row, "program": "half_precision", "s to target": 0.5 + 0.01 * row["seed"]} for row in races[3:]]
    assert [claims_of(races, faster, on_gpu=gpu)["half_precision"].holds for gpu in (False, True)] == [None, True]
    assert claims_of(races, faster)["record"].needs == "a GPU and CIFAR-10"
    assert study.outcome([*races, *faster], "half_precision")["speed-up"].ratio == pytest.approx(1.96, abs=0.01)


def test_differences_are_paired_by_seed_without_races_that_diverged():
    ends = {"momentum 0": [0.9, 0.8, 0.7, 0.6], "momentum 0.9": [0.95, 0.85, 0.75, 0.99]}
    races = {
        name: {seed: race(accuracies=(0.1, end), failure="diverged" if end == 0.99 else None) for seed, end in
               enumerate(values)}
        for name, values in ends.items()
    }  # fmt: skip
    row = study.difference_row(races, "momentum 0", "momentum 0.9")
    assert (row["points more at the end"].mean, row["points more at the end"].count) == (pytest.approx(5), 3)
    claims = claims_of(rows_of(s00=[9], s08=[1]), (), [row, {**row, "from": "batch 8", "to": "batch 32"}])
    assert (claims["momentum"].holds, claims["linear-scaling"].holds) == (True, False)
    assert [row["seeds"] for row in study.curve_rows(races)] == [4, 4, 3, 3]


def test_a_run_of_the_heat_map_that_diverged_is_counted_as_nothing_learned():
    gone = race(accuracies=(0.0,), failure="diverged")
    cells = {(64, 8.0): {0: gone, 1: race(accuracies=(0.1,))}, (32, 0.1): {0: race(accuracies=(0.9,))}, (64, 9.0): {}}
    rows = study.heat_rows(cells)
    assert [(row["batch size"], row["learning rate"], row["failures"]) for row in rows] == [
        (32, 0.1, ""), (64, 8.0, "1 of 2 diverged")
    ]  # fmt: skip
    assert [row["accuracy %"].mean for row in rows] == pytest.approx([90, 5])


def test_published_rows_are_next_to_ours_and_ours_say_how_many_reached_it(small):
    setting = study.race_options(None, study.HERE / f"{LAST}.py", argv=study.words(small, small.logdir))
    rows = study.published_rows(tables_of(rows_of(s00=[30, None, 40], s08=[1, 1, 1]))["ladder"], setting)
    assert [row["who"] for row in rows][-2:] == [f"ours: {NAIVE}", f"ours: {LAST}"]
    assert "2 of 3 races" in rows[-2]["remark"]
    assert {(row["accuracy %"], row["s"]) for row in rows} >= {(94.2, 9.43), (93.9, 61.0), (79.0, 450.0), (94.01, 2.59)}
    assert {row["data"] for row in rows[:-2]} == {"CIFAR-10"}


def test_settings_of_an_option_reach_the_programs_only_where_they_are_given(small, tmp_path):
    assert "--model" not in study.words(small, tmp_path)
    given = study.words(replace(small, model="w8", batch_size=32), tmp_path, "--seed", 3)
    assert given[-6:] == ["--model", "w8", "--batch-size", "32", "--seed", "3"]
