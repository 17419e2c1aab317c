"""labs/memory/study.py: a whole small study, its tables by known answers, and what decides the published claims."""

import json
from dataclasses import replace

import pytest
import torch
from support import assert_refused

from common import program as programs
from common.options import StepOptions
from common.timing import Plan
from labs.memory import study
from labs.memory.study import BASELINE, CHECKPOINTED, COMPILED, HALF, RUNS, Study
from walkthrough.compare.study import Measurements, NotMeasured, read

SHORT = Plan(warmup_steps=1, warmup_seconds=0, windows=3, window_steps=1, window_seconds=0)
SMALL = {"model": "resnext11_1x2d", "image_size": 16, "batch_size": 4}


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path, download=False, workers=0, precision="auto", seed=0, quick=True,
        stacks=False, **SMALL,
    )  # fmt: skip


@pytest.fixture
def main(few_digits, tmp_path, run_main):
    """main(*words): the study's program in this process: exit code, stdout and stderr."""
    words = ["--quick", "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path]
    return lambda *more: run_main(study, *words, *more)


@pytest.mark.long
def test_a_small_study_fills_every_table_and_audits_every_claim(main, tmp_path, monkeypatch):
    def here(self, what, **settings):
        return json.loads(json.dumps(getattr(study, what)(self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(programs, "QUICK", SHORT)
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(torch._functorch.config, "activation_memory_budget", 1.0)
    monkeypatch.setattr(study, "PUBLISHED", "resnext11_1x2d")
    monkeypatch.setattr(study, "WINDOW_STEPS", {True: 1})
    monkeypatch.setattr(study, "OPTIMIZER_STEPS", {True: 3})
    monkeypatch.setattr(study, "EPOCHS", {True: 1})
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    assert main(*words).returncode == 0
    result = read(tmp_path / "labs" / "memory" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    assert [row["workers"] for row in result.tables["workers"]] == [0, 2]
    assert {row["variant"] for row in result.tables["curves_by_workers"]} == {"0 workers", "2 workers"}
    assert [row["program"] for row in result.tables["programs"]] == list(study.PROGRAMS)
    assert study.claims(result.tables, result.on_gpu) == result.claims
    ids = [claim.id for claim in result.claims]
    assert len(set(ids)) == len(ids) == 12
    assert all(claim.value is not None for claim in result.claims)
    kinds, checkpointed = (result.tables[f"memory_by_kind_{name}"] for name in (BASELINE, CHECKPOINTED))
    assert max(row["activations"] for row in checkpointed) < max(row["activations"] for row in kinds)
    of = {name: [row[name] for row in kinds] for name in kinds[0]}
    assert of["allocations and releases"] == sorted(of["allocations and releases"])
    assert len(set(of["parameters"])) == 1
    peak = of["activations"].index(max(of["activations"]))
    assert 0 < peak < len(kinds) - 1
    assert max(of["activations"][0], of["activations"][-1]) < 0.2 * of["activations"][peak]
    assert of["gradients"][0] == of["gradients"][-1] > min(of["gradients"])  # freed by zero_grad, and made again


def test_an_unknown_model_or_a_study_without_its_baseline_is_one_line_and_writes_nothing(main, tmp_path, monkeypatch):
    def gone(self, what, **settings):
        raise NotMeasured("the disk is gone")

    monkeypatch.setattr(Measurements, "measure", gone)
    for words, why in (
        (["--model", "resnet18"], "unknown model"),
        ([], "00_baseline was not measured: the disk is gone"),
    ):
        assert_refused(main(*words), why)
    assert not (tmp_path / "labs" / "memory" / "study.json").exists()


class Canned:
    """In place of `Measurements`: the answers of `measure`, by what is measured, and what was asked for, in order."""

    def __init__(self, options, **answers):
        self.options, self.answers, self.asked = options, answers, []

    def measure(self, what, **settings):
        self.asked.append(settings)
        answer = self.answers[what](**settings)
        if isinstance(answer, str):
            raise NotMeasured(answer)
        return answer


def a_step(speed, step_ms, peak_mb):
    windows = [speed * factor for factor in (0.99, 1.0, 1.0, 1.01)]
    return {
        "samples_per_second": windows, "step_ms": step_ms, "peak_bytes": peak_mb * 10**6, "precision": "float32",
    }  # fmt: skip


def test_programs_are_interleaved_compared_by_rounds_and_at_last_in_the_same_memory(options):
    def step(name, precision, batch_size, run):
        if name == COMPILED:
            return "no compiler"
        held, speed = {CHECKPOINTED: (2, 70)}.get(name, (4, 100))
        return a_step(speed + run, batch_size * 1e3 / speed, held * batch_size)

    lab = Canned(options, step=step)
    one = Study(lab)
    steps = one.steps(dict.fromkeys(study.PROGRAMS, 4), rounds=3)
    assert [asked["run"] for asked in lab.asked] == sorted(asked["run"] for asked in lab.asked)
    assert {asked["precision"] for asked in lab.asked if asked["name"] != HALF} == {"fp32"}
    rows = {row["program"]: row for row in study.programs(steps, options)}
    assert list(rows) == list(study.PROGRAMS[:-1])
    assert (rows[BASELINE]["speed"], rows[BASELINE]["batch"], rows[BASELINE]["model"]) == (None, 4, SMALL["model"])
    assert rows[CHECKPOINTED]["speed"].rounds == 3
    assert rows[CHECKPOINTED]["speed"].ratio == pytest.approx(0.706, abs=0.01)
    assert rows[CHECKPOINTED]["of the baseline's"] == 0.5
    assert (rows[CHECKPOINTED]["published step ms"], rows[CHECKPOINTED]["published GB"]) == (152, 5.11)
    assert one.notes == ["05_compiled_budget was not measured: no compiler"]

    same = {row["program"]: row for row in one.same_memory(steps)}
    assert [(row["largest batch"], row["peak MB"]) for row in same.values()] == [(16, 64), (32, 64), (16, 64)]
    assert same[CHECKPOINTED]["images/s"] == pytest.approx(70)
    assert same[CHECKPOINTED]["published batch"] == 896

    total = study.overall(list(rows.values()), list(same.values()))
    assert [row["run"] for row in total] == list(RUNS)
    assert total[0]["epoch s"] == pytest.approx(0.04 * 12_500)
    assert total[0]["200 epochs, h"] == pytest.approx(500 * 200 / 3600)
    assert total[2]["of the base's time"] == pytest.approx(100 / 70)
    assert [round(row["published, of the base's time"], 2) for row in total] == [1, 0.75, 1.42, 0.91, 1.27]
    missing = study.overall(list(rows.values())[:1], [])
    assert [row["batch"] for row in missing] == [4, None, None, None, None]


def test_the_optimizers_clock_waits_where_it_says(options, monkeypatch):
    calls = []
    monkeypatch.setattr(study, "synchronize", lambda device: calls.append("wait"))
    real = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (calls.append("step"), real(self)))
    times = study.optimizer_times(options, 4, run=1)
    assert calls[:5] == ["step", "wait", "wait", "step", "wait"]  # after; both
    assert {len(ms) for ms in times.values()} == {study.OPTIMIZER_STEPS[True]}


def test_the_optimizers_times_are_compared_round_by_round(options):
    def optimizer_times(batch_size, run):
        if batch_size == 4 * options.batch_size:
            return "out of memory"
        return {"after": [batch_size * 3.0 * run], "both": [batch_size * 1.0 * run]}

    small, large = Study(Canned(replace(options, quick=False), optimizer_times=optimizer_times)).optimizer()
    assert (small["times the smallest"], large["times the smallest"].ratio) == (None, pytest.approx(7))
    assert (large["times the smallest"].rounds, large["between the clocks"].ratio) == (3, pytest.approx(3))
    assert (small["published ms"], large["published ms"]) == (28, 560)
    assert small["waits after, ms"] == options.batch_size * 6  # the median round


def test_a_seed_counts_only_where_all_variants_were_trained(options):
    def curves(seed, epochs, workers, **changes):
        if seed == 1 and changes.get("checkpoint"):
            return "killed by SIGKILL"
        return {"data": "digits", "epochs": [{"loss": float(seed), "workers": workers}] * epochs}

    one = Study(Canned(replace(options, quick=False), curves=curves))
    trained = one.trained()
    variants = ["base", "half precision", "checkpointing", "larger batch", "lower learning rate"]
    assert list(trained) == [*variants, "2 workers", "8 workers"]
    assert all([epochs[0]["loss"] for epochs in seeds] == [0.0, 2.0] for seeds in trained.values())
    assert [trained[name][0][0]["workers"] for name in ("base", "2 workers", "8 workers")] == [0, 2, 8]
    assert one.notes == ["the curves are of training on digits", "curves was not measured: killed by SIGKILL"]


def test_pairs_of_one_seed_are_compared_and_accuracies_stay_within_0_and_100():
    def seeds(accuracies, losses=(1.0, 1.1, 0.9)):
        return [
            [{"test_accuracy": accuracy, "train_accuracy": 0.5, "loss": loss}]
            for accuracy, loss in zip(accuracies, losses, strict=True)
        ]

    base = seeds([0.80, 0.82, 0.78])
    curves = {"base": base, "half precision": seeds([0.79, 0.81, 0.77]), "lower learning rate": base}
    curves |= {"larger batch": seeds([0.9, 0.9, 0.9], [2.0, 2.2, 1.8]), "8 workers": base}
    rows = {row["variant"]: row for row in study.compared(curves)}
    assert {name: row["minus"] for name, row in rows.items()} == {
        "half precision": "base", "larger batch": "lower learning rate", "8 workers": "base",
    }  # fmt: skip
    points = rows["half precision"]["test accuracy, points"]
    assert (points.mean, points.low, points.high) == pytest.approx((-1, -1, -1))
    assert rows["larger batch"]["loss, times"].ratio == pytest.approx(2)
    assert study.compared({"base": base[:1]}) == []
    (row,) = study.curve_rows({"base": seeds([0.99, 0.6, 0.9])})
    assert row["test accuracy %"].high == 100.0
    assert row["test accuracy %"].mean == pytest.approx(83.0)
