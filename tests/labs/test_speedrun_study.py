"""labs/speedrun/study.py: a whole small study, and its tables and claims by known answers."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch
from support import ROOT

from labs.shared.study import measurements
from labs.speedrun import heads, measure, plans, study, tables
from labs.speedrun.race import FILE, Race
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results import result as record
from walkthrough.results.errors import InputError

TABLES = "setting ladder published heat_map ablations curves remembered profiles cprofile torch_profiler races pareto"
LAST, NAIVE = tables.LAST, tables.NAIVE


def race(seconds=1.0, program=NAIVE, seed=0, failure=None, accuracy=0.99, **changes):
    values = {
        "program": program, "data": "digits", "device": "A CPU", "model": "w4", "target": 0.98, "epochs": 2,
        "batch_size": 8, "lr": 0.1, "seed": seed, "start_up_seconds": 0.5, "seconds": [seconds / 2, seconds],
        "accuracies": [0.5, accuracy], "losses": [1.0, 0.5], "failure": failure,
    }  # fmt: skip
    return Race(**{**values, **changes})


def races_of(**programs):
    """{program: {seed: a race of these seconds, None for one that failed}}; "s" before the programs' numbers."""
    found = {}
    for name, seconds in programs.items():
        program = next(known for known in tables.PROGRAMS if known.startswith(name.removeprefix("s")))
        found[program] = {
            seed: race(value or 9.0, program, seed, None if value else "not reached", 0.99 if value else 0.9)
            for seed, value in enumerate(seconds)
        }
    return found


@pytest.fixture
def small(few_digits, tmp_path, monkeypatch):
    """The study's program with little to do, its measurements in this process; its words."""

    def here(self, what, **settings):
        return json.loads(json.dumps(getattr(measure, what)(self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    short = plans.Setting(0.05, 16, "w4", 8, {NAIVE: plans.Plan(2, 0.1)})
    monkeypatch.setitem(plans.SETTINGS, "digits", short)
    monkeypatch.setattr(study, "CURVE_EPOCHS", {True: 2})
    words = ["study.py", "--quick", "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    return words


@pytest.mark.long
def test_a_small_study_fills_every_table_and_decides_every_claim(small, tmp_path, capsys):
    study.main()
    folder = tmp_path / "labs" / "speedrun"
    result = read(folder / "study.json")
    assert [name for name in TABLES.split() if not result.tables[name]] == []
    programs = [row["program"] for row in result.tables["ladder"]]
    assert programs == [
        NAIVE,
        tables.FASTER_RATE,
        *(name for name in tables.PROGRAMS[1:] if name not in study.LEFT_OUT),
    ]
    assert all(row["races"] == row["reached it"] > 0 for row in result.tables["ladder"])
    assert result.tables["ladder"][-1]["races"] == study.LAST_RACES[True]["cpu"]
    assert {row["batch size"] for row in result.tables["heat_map"]} == {8, 32}
    assert [row["variant"] for row in result.tables["ablations"]] == list(study.VARIANTS)
    functions = " ".join(row["function"] for row in result.tables["cprofile"])
    assert "run_backward" in functions or "conv2d" in functions
    assert str(ROOT) not in json.dumps(asdict(result))  # no folder of this machine
    ids = [claim.id for claim in result.claims]
    assert len(set(ids)) == len(ids) == 12
    assert {"sooner", "reliable", "remembers", "linear-scaling", "no Lookahead"} <= set(ids)
    assert any("digits are not mirrored" in note for note in result.notes)
    assert (folder / "heat_map.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert "written to" in capsys.readouterr().out
    assert heads.claim(LAST, result).startswith("5 % of digits in ")


def test_without_the_naive_race_there_is_no_study(small, tmp_path, monkeypatch):
    def gone(self, what, **settings):
        raise NotMeasured("the disk is gone")

    monkeypatch.setattr(Measurements, "measure", gone)
    with pytest.raises(InputError, match="00_naive did not race: 00_naive did not race: the disk is gone"):
        study.main()
    assert not (tmp_path / "labs" / "speedrun" / "study.json").exists()


def test_a_program_that_ends_otherwise_has_its_reason_and_the_others_race(small, tmp_path, monkeypatch):
    def broken(function):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    options = study.lab_options("", "speedrun", study.DEFAULTS)
    answers = measure.races(options, ["04_one_cycle", LAST], [0, 1])
    assert [answer["program"] for answer in answers] == ["04_one_cycle", LAST] * 2
    assert [answer["error"] for answer in answers] == [None, "RuntimeError: no compiler"] * 2


def test_a_race_that_fails_is_measured_as_a_failure(small, tmp_path):
    options = study.lab_options("", "speedrun", study.DEFAULTS)
    [answer] = measure.races(options, ["05_decoupled_decay"], [4], ["--lr", "1000", "--epochs", "4"])
    assert (answer["error"], answer["failure"], answer["seed"]) == (None, "diverged", 4)
    assert tables.race_of(answer).seconds_to_target is None
    [answer] = measure.races(options, ["03_resnet9"], [0], ["--target", "1", "--epochs", "1", "--lr", "1e-9"])
    assert answer["failure"] == "not reached"
    [answer] = measure.races(options, ["03_resnet9"], [0], ["--dataset", "cifar10"])
    assert "no CIFAR-10" in answer["error"]
    assert not (options.logdir / "03_resnet9" / FILE).exists()


def test_failures_count_in_the_median_and_there_is_none_where_half_failed():
    assert tables.median([1.0, 2.0, None]) == 2.0
    assert tables.median([1.0, None, None]) is None
    assert tables.median([1.0, None]) is None
    assert tables.median([3.0]) == 3.0


def test_the_ladder_counts_failures_and_compares_pairs_that_both_reached():
    rows = tables.ladder_rows(races_of(s00=[30, 40, None], s04=[3, 2, 1], s05=[1.5, None, None]))
    naive, cycle, decay = rows
    assert (naive["races"], naive["reached it"], naive["s to target"], naive["slowest"]) == (3, 2, 40, None)
    assert (cycle["fastest"], cycle["s to target"], cycle["slowest"]) == (1, 2, 3)
    assert cycle["as the naive one"].ratio == pytest.approx((10 * 20) ** 0.5)
    assert cycle["as the naive one"].rounds == 2
    assert decay["times as soon as the one before"] == 2.0  # one pair: no interval
    assert decay["s to target"] is None
    assert (naive["as the naive one"], naive["times as soon as the one before"]) == (None, None)
    assert cycle["s with them"] == 2.5
    assert naive["accuracy at the end %"].mean == pytest.approx(96)


def claim_of(claims, name):
    return next(claim for claim in claims if claim.id == name)


CLAIMS = [
    ([30, 33, 36], [1, 1.1, 1.2], True), ([30, 33, 36], [10, 11, 12], False), ([30, 30, 30], [2, 3, 4], None),
    ([30], [1], None), ([None] * 3, [1, 1, 1], None),
]  # fmt: skip


@pytest.mark.parametrize(("naive", "last", "holds"), CLAIMS)
def test_ten_times_as_soon_holds_by_its_interval_alone(naive, last, holds):
    claims = tables.claims(races_of(s00=naive, s15=last), [], [], [])
    assert claim_of(claims, "sooner").holds is holds


@pytest.mark.parametrize(("reached", "races", "holds"), [(20, 20, True), (19, 20, True), (18, 20, False), (5, 5, None)])
def test_reliable_is_19_of_20_races(reached, races, holds):
    last = [1.0] * reached + [None] * (races - reached)
    claim = claim_of(tables.claims(races_of(s00=[20], s15=last), [], [], []), "reliable")
    assert (claim.value, claim.holds) == (reached / races, holds)


def ablation(base, other):
    return {
        "as it is": {"accuracy": base, "reached": True, "seconds": 2.0},
        "no Lookahead": {"accuracy": other, "reached": False, "seconds": 1.0},
        "one view": {"accuracy": base, "reached": True, "seconds": 2.0},
    }


def test_ablations_are_paired_by_seed_and_divergence_counts_as_nothing_learned():
    seeds = [ablation(0.99, 0.98), ablation(0.95, 0.94), ablation(0.97, 0.96)]
    base, other, _ = tables.ablation_rows(seeds)
    assert base["points more"] is None
    assert (other["points more"].mean, other["points more"].high) == (pytest.approx(-1), pytest.approx(-1))
    assert (other["reached the target"], other["times its seconds"].ratio) == (0, 0.5)
    diverged = tables.ablation_rows([ablation(0.99, None), ablation(0.99, None)])[1]
    assert diverged["points more"].mean == pytest.approx(-99)
    claim = claim_of(tables.claims({}, seeds, [], []), "no Lookahead")
    assert (claim.value, claim.holds) == (pytest.approx(1), True)
    assert claim_of(tables.claims({}, seeds, [], []), "one view").holds is None


def test_a_run_of_the_heat_map_that_diverged_is_counted():
    rows = tables.heat_rows({(64, 0.1): [0.9, 0.8], (64, 8.0): [None, 0.1], (32, 0.1): [None, None]})
    assert [(row["batch size"], row["learning rate"]) for row in rows] == [(32, 0.1), (64, 0.1), (64, 8.0)]
    assert [row["accuracy %"].mean for row in rows] == pytest.approx([0, 85, 5])
    assert [row["failures"] for row in rows] == ["2 of 2 diverged", "", "1 of 2 diverged"]


def test_what_is_remembered_is_compared_within_a_seed():
    def seed(last, first):
        losses = [last, last, last, last, first]
        fifths = [{"loss": loss, "accuracy": 0.9} for loss in losses]
        return [{"fifths": fifths, "unseen": {"loss": first + 1, "accuracy": 0.8}}]

    seeds = [seed(0.5, 0.6), seed(1.5, 1.6), seed(1.0, 1.1)]
    rows = tables.remembered_rows(seeds)
    assert [row["last seen"] for row in rows][::5] == ["fifth 1 from the end", "never: test images"]
    assert rows[4]["loss more than of the last"].low == pytest.approx(0.1)
    claim = claim_of(tables.claims({}, [], [], seeds), "remembers")
    assert (claim.value, claim.holds) == (pytest.approx(0.1), True)


@pytest.mark.parametrize(
    ("ends", "holds"), [([0.9, 0.9, 0.9], True), ([0.7, 0.7, 0.71], False), ([0.8, 0.9, 0.99], None)]
)
def test_linear_scaling_holds_where_the_accuracies_are_surely_close(ends, holds):
    seeds = [
        {name: {"losses": [1.0], "accuracies": [end if name == "d" else 0.9]} for name in "abcd"} for end in ends
    ]  # fmt: skip
    assert claim_of(tables.claims({}, [], seeds, []), "linear-scaling").holds is holds


def test_the_published_rows_stand_beside_ours_and_ours_say_how_many_reached_it():
    ladder = tables.ladder_rows(races_of(s00=[30, None, 40], s15=[1, 1, 1]))
    rows = tables.published_rows(ladder, 0.98, "A CPU", "digits")
    assert [row["who"] for row in rows][-2:] == [f"ours: {NAIVE}", f"ours: {LAST}"]
    assert "2 of 3 races" in rows[-2]["remark"]
    assert {(row["accuracy %"], row["s"]) for row in rows} >= {(94.0, 10.0), (93.9, 61.0), (79.0, 498.0), (94.01, 2.59)}
    assert rows[-1]["data"] == "digits"
    assert {row["data"] for row in rows[:-2]} == {"CIFAR-10"}


@pytest.fixture
def a_study(tmp_path):
    options = replace(measure_options(tmp_path), quick=False)
    ladder = tables.ladder_rows(races_of(s00=[30, 32, None], s15=[None, None, 1]))
    setting = [{"data": "digits", "target %": 98.0}]
    return measurements("speedrun", options, ROOT / "none.py").study({"setting": setting, "ladder": ladder}, [], [])


def measure_options(tmp_path):
    words = ["--quick", "--device", "cpu", "--logdir", str(tmp_path)]
    return study.lab_options("", "speedrun", study.DEFAULTS, words)


def test_a_head_claims_the_median_the_count_and_the_hardware(a_study):
    known = replace(a_study, device="A CPU", environment=replace(a_study.environment, cpu="A CPU", cores=2))
    assert heads.claim(NAIVE, known) == (
        "98 % of digits in 32 s (median of 3 races, 2 reached it), 96.0 % at the end, on A CPU, 2 CPU cores"
    )
    assert "98 % of digits not in half of its races (median of 3 races, 1 reached it)" in heads.claim(LAST, known)
    assert heads.claim("09_whitening", known) == heads.claim(NAIVE, None) == heads.UNKNOWN
    assert heads.claim(NAIVE, replace(known, quick=True)).endswith("(smoke run)")


def test_heads_are_written_from_a_study_and_checked(a_study, tmp_path, monkeypatch, capsys):
    for path in heads.programs():
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(heads, "HERE", tmp_path)
    record.write_json(tmp_path / "study.json", asdict(a_study))
    with pytest.raises(InputError, match="out of date: 00_naive"):
        heads.main(["--check", str(tmp_path / "study.json")])
    heads.main([str(tmp_path / "study.json")])
    assert "(median of 3 races, 2 reached it)" in (tmp_path / "00_naive.py").read_text(encoding="utf-8")
    heads.main(["--check", str(tmp_path / "study.json")])
    with pytest.raises(InputError, match="no `Reaches`"):
        heads.with_head('"""No head."""', "x")


def test_settings_of_an_option_reach_the_programs_only_where_they_are_given(tmp_path):
    options = measure_options(tmp_path)
    assert "--model" not in measure.words(options)
    given = measure.words(replace(options, model="w8", batch_size=32), "--seed", 3)
    assert given[-6:] == ["--model", "w8", "--batch-size", "32", "--seed", "3"]


def test_a_functions_name_has_no_folder_of_this_machine():
    assert measure.function_name("/home/someone/labs/speedrun/augment.py", 52, "__call__") == "augment.py:52(__call__)"
    assert measure.function_name("~", 0, "<built-in method conv2d>") == "<built-in method conv2d>"
