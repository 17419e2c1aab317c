"""labs/memory/study.py: a whole small study, its tables by known answers, and the audit of the published claims."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, exit_code_of

from common import program as programs
from common.options import StepOptions
from common.timing import Plan
from labs.memory import audit, data, measure, published, study, timeline
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import Measurements, NotMeasured, read

SHORT = Plan(warmup_steps=1, warmup_seconds=0, windows=3, window_steps=1, window_seconds=0)
TABLES = "workers half_precision checkpointing same_memory memory_at_peak optimizer curves curves_last_epoch"


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path, download=False, model="resnext11_1x2d", image_size=16,
        batch_size=4, workers=0, precision="auto", seed=0, quick=True, stacks=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_small_study_fills_every_table_and_audits_every_claim(few_digits, tmp_path, monkeypatch, capsys):
    def here(self, what, **settings):
        return json.loads(json.dumps(getattr(measure, what)(self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(programs, "QUICK", SHORT)
    monkeypatch.setattr(torch, "compile", lambda model: model)  # compiling takes most of a minute
    monkeypatch.setattr(torch._functorch.config, "activation_memory_budget", 1.0)
    monkeypatch.setattr(measure, "PUBLISHED", "resnext11_1x2d")
    monkeypatch.setattr(measure, "cifar10", lambda root, transform: data.Digits(transform))
    monkeypatch.setattr(measure, "LOADED_STEPS", {True: 1})
    monkeypatch.setattr(measure, "OPTIMIZER_STEPS", {True: 3})
    monkeypatch.setattr(study, "WORKERS", (0, 2))
    monkeypatch.setattr(study, "EPOCHS", {True: 1})
    monkeypatch.setattr(study, "ROUNDS", {True: 2})
    words = ["--quick", "--device", "cpu", "--model", "resnext11_1x2d", "--image-size", "16", "--batch-size", "4"]
    monkeypatch.setattr(sys, "argv", ["study.py", *words, "--logdir", str(tmp_path), "--data", str(tmp_path)])
    study.main()
    result = read(tmp_path / "labs" / "memory" / "study.json")
    assert [name for name in TABLES.split() if not result.tables[name]] == []
    assert [row["workers"] for row in result.tables["workers"]] == [0, 2]
    programs_shown = [row["program"] for row in result.tables["checkpointing"]]
    assert programs_shown == ["00_baseline", *study.IN_FLOAT32]
    memory = {row["program"]: row["allocated GB"] for row in result.tables["memory_at_peak"]}
    assert memory["02_checkpointing"] < memory["00_baseline"]
    ids = {claim.id for claim in result.claims}
    assert len(ids) == len(result.claims) == 11
    assert {"optimizer-grows", "optimizer-clock"} <= ids
    assert any(note.startswith("no GPU: nothing runs behind the host's back") for note in result.notes)
    assert "claims" in capsys.readouterr().out


def test_without_cifar10_and_scikit_learn_there_are_no_curves_and_a_note_says_why(options, monkeypatch):
    made = study.Study(SimpleNamespace(options=options, measure=None))
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace())
    assert made.has_images() and not made.notes
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert not made.has_images()
    [note] = made.notes
    assert "no curves: training without CIFAR-10, on images of digits, needs scikit-learn" in note


@pytest.fixture
def main(few_digits, tmp_path, monkeypatch, capsys):
    """main(*words): the study's program in this process: exit code and stderr."""

    def started(*words):
        base = ["study.py", "--quick", "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [*base, *words])
        return exit_code_of(study.main), capsys.readouterr().err

    return started


def test_an_unknown_model_is_refused_before_anything_is_measured(main, monkeypatch):
    monkeypatch.setattr(study, "Study", None)
    code, error = main("--model", "resnet18")
    assert code == 2
    assert error.count("\n") == 1
    assert "unknown model 'resnet18'" in error


def test_half_precision_cannot_be_float32(main, monkeypatch):
    monkeypatch.setattr(study, "Study", None)
    code, error = main("--precision", "fp32")
    assert code == 2
    assert "choose auto, bf16 or fp16" in error


def test_an_even_number_of_times_has_its_median_in_the_middle(options):
    times = [1.0, 2.0, 4.0, 10.0]
    rows, _ = study.Study(
        Canned(options, optimizer_times=lambda batch_size: dict.fromkeys(("nowhere", "after", "both"), times))
    ).optimizer()
    assert {row["waits nowhere, ms"] for row in rows} == {3.0}


def test_without_the_baseline_there_is_no_study_and_the_last_one_stays(main, tmp_path, monkeypatch):
    def gone(self, what, **settings):
        raise NotMeasured("the disk is gone")

    monkeypatch.setattr(Measurements, "measure", gone)
    code, error = main()
    assert code == 2
    assert "00_baseline was not measured: the disk is gone" in error
    assert not (tmp_path / "labs" / "memory" / "study.json").exists()


class Canned:
    """In place of `Measurements`: the answers of `measure`, by what is measured."""

    def __init__(self, options, **answers):
        self.options, self.answers = options, answers

    def measure(self, what, **settings):
        answer = self.answers[what](**settings)
        if isinstance(answer, str):
            raise NotMeasured(answer)
        return answer


def a_step(speed, step_ms, peak_mb, precision="float32"):
    windows = [speed * factor for factor in (0.99, 1.0, 1.0, 1.01)]
    return {
        "samples_per_second": windows, "step_ms": step_ms, "peak_bytes": peak_mb * 10**6, "precision": precision,
    }  # fmt: skip


def test_epochs_and_speeds_by_workers_are_those_of_the_measurements(options):
    times = {0: (60.0, 100.0), 1: (2.0, 98.0), 2: (2.0, 98.0), 4: (2.0, 98.0), 8: "no memory"}

    def loading(workers, run):
        if isinstance(times[workers], str):
            return times[workers]
        load, step = times[workers]
        return {"load_ms": load, "step_ms": step, "samples_per_second": [4000 / (load + step)] * 3, "data": "stand-in"}

    one = study.Study(Canned(options, loading=loading))
    rows = one.workers()
    assert [row["workers"] for row in rows] == [0, 1, 2, 4]
    assert rows[0]["epoch s"] == pytest.approx(0.160 * 12_500)
    assert rows[1]["speed"].ratio == pytest.approx(1.6)
    assert [row["published epoch s"] for row in rows] == [67.7, 44.6, 44.5, 44.7]
    assert one.notes == ["loading was not measured: no memory", "workers load stand-in data (not CIFAR-10)"]


def test_programs_are_interleaved_and_compared_by_rounds(options):
    order = []

    def step(name, precision, batch_size, run):
        order.append((run, name, precision))
        return {"02_checkpointing": a_step(70 + run, 140, 50), "05_compiled_budget": "no compiler"}.get(
            name, a_step(100 + run, 100, 100)
        )

    one = study.Study(Canned(options, step=step))
    steps = one.same_batch()
    assert [run for run, _, _ in order] == sorted(run for run, _, _ in order)
    assert {precision for _, name, precision in order if name != study.HALF} == {"fp32"}
    rows = {row["program"]: row for row in one.checkpointing(steps)}
    assert list(rows) == ["00_baseline", "02_checkpointing", "03_selective_checkpointing", "04_offload"]
    assert rows["00_baseline"]["speed"] is None
    assert rows["02_checkpointing"]["speed"].rounds == 3
    assert rows["02_checkpointing"]["speed"].ratio == pytest.approx(0.706, abs=0.01)
    assert rows["02_checkpointing"]["of the baseline's"] == 0.5
    assert (rows["02_checkpointing"]["published step ms"], rows["02_checkpointing"]["published GB"]) == (152, 5.11)
    assert one.notes == ["05_compiled_budget was not measured: no compiler"]


def test_the_budget_is_the_baselines_peak_with_four_times_the_batch(options):
    asked = []

    def step(name, precision, batch_size, run):
        return a_step(10.0 * batch_size, 100, 3 * batch_size)

    def largest(name, precision, budget_bytes):
        asked.append((name, budget_bytes))
        size = {"00_baseline": 16, "02_checkpointing": 28}.get(name, 0)
        return {"batch_size": size, "peak_bytes": 47_000_000}

    rows = study.Study(Canned(options, step=step, largest=largest)).same_memory()
    assert {budget for _, budget in asked} == {48_000_000}
    assert [(row["program"], row["largest batch"], row["published batch"]) for row in rows] == [
        ("00_baseline", 16, 512), ("02_checkpointing", 28, 896),
    ]  # fmt: skip
    assert rows[1]["images/s"] == pytest.approx(280)


def test_workers_and_batches_of_the_same_memory_are_measured_round_by_round(options):
    """`ratio` compares within a round, so what a machine does to a whole round must reach all of them."""
    order = []

    def loading(workers, run):
        order.append((run, workers))
        return {"load_ms": 1, "step_ms": 1, "samples_per_second": [1.0, 1.0], "data": "stand-in"}

    def step(name, precision, batch_size, run):
        order.append((run, name))
        return a_step(10.0 * run, 100, 3)

    def largest(name, precision, budget_bytes):
        return {"batch_size": 16, "peak_bytes": 1}

    full = study.Study(Canned(replace(options, quick=False), loading=loading, step=step, largest=largest))
    full.workers()
    assert order == [(run, workers) for run in range(1, 6) for workers in study.WORKERS]
    order.clear()
    rows = full.same_memory()
    assert [run for run, _ in order[1:]] == [run for run in range(1, 6) for _ in range(3)]
    assert rows[1]["speed"].rounds == 5


def test_a_peak_is_found_by_bisection_and_out_of_memory_counts_as_too_large(options, monkeypatch):
    def peak_bytes(program, batch):
        if len(batch[0]) > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1000 * len(batch[0])

    monkeypatch.setattr(measure, "peak_bytes", peak_bytes)
    assert measure.largest(options, "00_baseline", "fp32", 37_500)["batch_size"] == 37
    assert measure.largest(options, "00_baseline", "fp32", 10**6)["batch_size"] == 50


def test_the_optimizers_clock_waits_where_it_says(options, monkeypatch):
    calls = []
    monkeypatch.setattr(measure, "synchronize", lambda device: calls.append("wait"))
    real = torch.optim.Adam.step

    def step(self, *args):
        calls.append("step")
        return real(self, *args)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    times = measure.optimizer_times(options, 4)
    assert calls[:7] == [
        "step",
        "wait",
        "step",
        "wait",
        "wait",
        "wait",
        "step",
    ]  # nowhere; after; both; each then waits
    assert {len(ms) for ms in times.values()} == {measure.OPTIMIZER_STEPS[True]}


def test_the_snapshot_records_three_steps_and_stops_recording(options, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **settings: calls.append(settings))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", calls.append)
    assert measure.snapshot(options, "00_baseline") == "00_baseline.snapshot.pickle"
    assert calls == [
        {"max_entries": 200_000}, str(options.logdir / "00_baseline.snapshot.pickle"), {"enabled": None},
    ]  # fmt: skip


def test_memory_by_kind_over_a_step_rises_and_falls_with_the_activations(options):
    result = timeline.step_timeline(ROOT / "labs" / "memory" / "00_baseline.py", options)
    rows = result["rows"]
    held = max(sum(row.values()) - row["operator"] for row in rows)
    assert held * 1e6 < result["reserved_bytes"] < held * 1e6 + 40 * 2**20  # segments of 2 and of 20 MiB
    kinds = SimpleNamespace(**{name: [row[name] for row in rows] for name in rows[0]})
    assert kinds.operator == sorted(kinds.operator)
    assert len(set(kinds.parameters)) == 1
    assert kinds.optimizer[0] == pytest.approx(2 * kinds.parameters[0], rel=0.5)  # two moments; parameters with buffers
    peak = kinds.activations.index(max(kinds.activations))
    assert 0 < peak < len(rows) - 1
    assert max(kinds.activations[0], kinds.activations[-1]) < 0.1 * kinds.activations[peak]
    assert kinds.gradients[0] == kinds.gradients[-1] > min(kinds.gradients)  # freed by zero_grad, and made again


def test_what_was_published_stands_beside_what_is_reserved():
    rows = [
        {"operator": 0, "parameters": 100.0, "activations": 400.0},
        {"operator": 9, "parameters": 100.0, "activations": 50.0},
    ]
    (row,) = study.at_peak({"00_baseline": {"rows": rows, "reserved_bytes": 600_000_000}})
    assert list(row)[-3:] == ["allocated GB", "reserved GB", "published GB"]
    assert (row["allocated GB"], row["reserved GB"], row["published GB"]) == (0.5, 0.6, 7.82)


def test_curves_of_half_precision_are_of_what_auto_means_on_the_device(few_digits, options, monkeypatch):
    chosen = []

    def autocast_dtype(device, precision):
        chosen.append(precision)
        return torch.bfloat16 if precision == "auto" else torch.float32

    monkeypatch.setattr(measure, "autocast_dtype", autocast_dtype)
    done = measure.curves(options, 0, {"base": {}, "half precision": {"precision": "auto"}}, epochs=1)["epochs"]
    assert chosen == ["fp32", "auto"]
    assert done["base"][0]["loss"] != done["half precision"][0]["loss"]


def test_a_seed_counts_only_where_all_variants_were_trained(options):
    asked = []

    def curves(seed, variants, epochs):
        asked.append((seed, *variants))
        if seed == 1 and "checkpointing" in variants:
            return "killed by SIGKILL"
        return {"data": "digits", "epochs": dict.fromkeys(variants, [{"loss": float(seed)}] * epochs)}

    quick = study.Study(Canned(options, curves=curves)).curves()
    assert len(asked) == 3
    assert list(quick) == ["base", "half precision", "checkpointing", "larger batch", "lower learning rate"]
    assert all([epochs[0]["loss"] for epochs in seeds] == [0.0, 2.0] for seeds in quick.values())
    full = study.Study(Canned(replace(options, quick=False), curves=curves))
    assert full.curves().keys() == quick.keys()
    assert len(asked) == 3 + 15  # a process for each: hours of training on a GPU
    assert full.notes == ["the curves are of training on digits", "curves was not measured: killed by SIGKILL"]


RATIOS = [(Ratio(1.5, 1.2, 1.8, 3), True), (Ratio(0.8, 0.7, 0.9, 3), False), (Ratio(1.1, 0.9, 1.3, 3), None)]


@pytest.mark.parametrize(("speed", "holds"), RATIOS)
def test_a_claim_holds_by_its_interval_alone(speed, holds):
    workers = [{"workers": 0, "speed": None}, {"workers": 2, "speed": speed}]
    (claim,) = audit._about_workers(workers)
    assert (claim.value, claim.low, claim.high, claim.holds) == (speed.ratio, speed.low, speed.high, holds)
    rows = [{"program": "00_baseline"}, {"program": "02_checkpointing", "of the baseline's": 0.65, "speed": speed}]
    memory, time = audit._about_checkpointing(rows)
    assert memory.holds is True
    assert time.holds is (None if holds is None else not holds)  # the claim is that it is slower


ONCE, TWENTY = [1.0, 1.1, 0.9, 1.0], [20.0, 21.0, 19.0, 20.0]
CLOCKS = [  # after and both with the larger batch, device; whether the optimizer grows, and whether only its clock does
    (TWENTY, ONCE, "cuda", False, True),
    (TWENTY, TWENTY, "cuda", True, False),
    (ONCE, ONCE, "cuda", False, False),
    (TWENTY, [1.0, 9.0, 2.0, 3.0], "cuda", None, None),
    (TWENTY, ONCE, "cpu", False, None),
]


@pytest.mark.parametrize(("after", "both", "device", "grows", "clock"), CLOCKS)
def test_a_clock_that_does_not_wait_before_the_optimizer_is_told_from_an_optimizer_that_grows(
    after, both, device, grows, clock
):
    times = {128: {"after": ONCE, "both": ONCE}, 896: {"after": after, "both": both}}
    claims = {claim.id: claim for claim in audit._about_optimizer(times, device)}
    assert claims["optimizer-grows"].holds is grows
    assert "over 2 times as long" in claims["optimizer-grows"].text
    assert claims["optimizer-clock"].holds is clock
    assert claims["optimizer-clock"].value == pytest.approx(after[0], rel=0.1)


def test_by_arithmetic_there_is_a_lower_bound_which_is_a_note_and_no_claim():
    note = audit.least_optimizer_ms()
    assert f"{27_104_586 * 28 / 1.555e12 * 1e3:.2f} ms" in note
    assert "lower bound" in note


def seeds(accuracies, losses=(1.0, 1.1, 0.9)):
    return [
        [{"test_accuracy": accuracy, "train_accuracy": 0.5, "loss": loss}]
        for accuracy, loss in zip(accuracies, losses, strict=True)
    ]


def test_an_accuracys_interval_stays_within_0_and_100_percent():
    (row,) = study.curve_rows({"base": seeds([0.99, 0.6, 0.9])})
    assert row["test accuracy %"].high == 100.0
    assert row["test accuracy %"].mean == pytest.approx(83.0)
    (row,) = study.curve_rows({"base": seeds([0.01, 0.4, 0.1])})
    assert row["test accuracy %"].low == 0.0
    (row,) = study.curve_rows({"base": seeds([0.9, 0.9, 0.9])[:1]})
    assert row["test accuracy %"].low is None


def test_accuracy_is_kept_lost_or_not_resolved_over_seeds():
    base = seeds([0.80, 0.82, 0.78])
    curves = dict.fromkeys(("base", "checkpointing", "larger batch", "lower learning rate"), base)
    for accuracies, holds in (
        ([0.801, 0.821, 0.779], True), ([0.60, 0.62, 0.58], False), ([0.90, 0.70, 0.80], None),
        ([0.78, 0.81, 0.764], None),  # lost something, perhaps less than two points
    ):  # fmt: skip
        claims = {claim.id: claim for claim in audit._about_curves(curves | {"half precision": seeds(accuracies)})}
        assert claims["half-precision-accuracy"].holds is holds
        assert claims["checkpoint-accuracy"].holds is True


def test_a_larger_batch_is_like_a_lower_rate_only_where_losses_surely_agree():
    base = seeds([0.8, 0.8, 0.8])
    common = dict.fromkeys(("base", "half precision", "checkpointing", "lower learning rate"), base)
    for losses, holds in (
        ((1.0, 1.1, 0.91), True),
        ((2.0, 2.2, 1.9), False),
        ((1.0, 2.2, 0.5), None),
        ((1.19, 1.276, 1.107), None),  # 1.19 (1.11 to 1.28)
    ):
        claim = audit._about_curves(common | {"larger batch": seeds([0.8] * 3, losses)})[-1]
        assert (claim.id, claim.holds) == ("batch-like-learning-rate", holds)


def test_published_figures_agree_with_each_other():
    for run in (published.BASE, published.HALF, published.CHECKPOINT, published.BASE_LARGE, published.CHECKPOINT_LARGE):
        assert run.total_seconds == pytest.approx(200 * run.epoch_seconds, rel=0.02)
    assert published.WORKERS[2][1:] == (published.BASE.step_ms, published.BASE.epoch_seconds)
