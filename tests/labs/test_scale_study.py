"""labs/scale's study: its tables by known answers, the study on measurements that are made up, and what measures."""

from itertools import count

import pytest
import torch
from support.labs import lab_options

from labs.scale import study
from labs.scale.study import EACH, LAST, NEVER, PROGRAMS, SHARDS
from walkthrough.compare.study import Measurements, read

pytestmark = pytest.mark.xdist_group("scale data")  # images are drawn and prepared once


@pytest.fixture
def options(drawn, tmp_path):
    return lab_options(tmp_path, data=drawn, image_size=32, precision="auto", seed=5)


def piped(**speeds):
    """A round of `pipelines`: the model consumes 100 images/s; images/s of each by "p" and number, else 10."""
    delivered = {name: speeds.get(f"p{name[:2]}", 10.0) for name in PROGRAMS}
    of = {
        name: {"delivered": speed, "per_cpu_second": speed / 10, "bytes": 1_500_000 * (1 + int(name[:2]))}
        for name, speed in delivered.items()
    }
    return {"consumed": 100.0, "pipelines": of}


def test_a_pipeline_is_compared_in_pairs_with_decoding_each_and_with_the_one_before():
    rounds = {0: piped(p01=20.0, p02=40.0), 1: piped(p01=30.0, p02=60.0)}
    for answer in rounds.values():
        answer["pipelines"]["03_resized_once"] = {"error": "no space"}
        answer["pipelines"]["06_nvjpeg"] = {"delivered": 80.0, "per_cpu_second": None, "bytes": 1}
    rows = {row["pipeline"]: row for row in study.pipeline_rows(rounds)}
    assert list(rows) == [name for name in (*PROGRAMS, "06_nvjpeg") if name != "03_resized_once"]
    first, workers, batched, cached, _, last = rows.values()
    assert (first["times decoding each"], first["times the one before"]) == (None, None)
    assert cached["times the one before"] is None  # of 03, which failed
    assert last["times the one before"].ratio == pytest.approx((80 / 40 * 80 / 60) ** 0.5)  # of 02
    assert first["times what the model consumes"].ratio == pytest.approx(0.1)
    assert (workers["images/s"], workers["images/s of one core"], workers["MB on disk"]) == (25, 2.5, 3)
    assert workers["times decoding each"].ratio == pytest.approx(6**0.5)
    assert batched["times the one before"].ratio == pytest.approx(2)


def epochs_of(seconds, *top1):
    """The epochs of a training, of which the first is slower."""
    return [
        {"seconds": seconds * (1 + (not at)), "top1_accuracy": share, "top5_accuracy": min(1, 2 * share)}
        for at, share in enumerate(top1)
    ]


TRAININGS = {
    ("jpeg", 224, 2, 1): {0: epochs_of(80.0, 0.1), 1: epochs_of(80.0, 0.1)},
    ("jpeg", 64, 2, 1): {0: epochs_of(10.0, 0.1, 0.2, 0.3), 1: epochs_of(20.0, 0.1, 0.2, 0.5)},
    ("shards", 64, 2, 1): {0: epochs_of(5.0, 0.1, 0.2, 0.31), 1: epochs_of(5.0, 0.1, 0.2, 0.52)},
    ("shards", 64, 1, 2): {1: epochs_of(4.0, 0.1, 0.2, 0.5)},
}


def test_seconds_are_of_the_median_epoch_after_the_first_and_accuracies_of_the_last():
    slow, jpeg, shards, two = rows = study.training_rows(TRAININGS, 1000)
    assert two["trained from"] == "shards, 64 px, 1 worker, 2 processes"
    assert [row["s of an epoch"].mean for row in rows] == [160, 15, 5, 4]
    assert (slow["times the first"], slow["top-1 %"], slow["top-1, points over jpeg"]) == (None, None, None)
    assert (jpeg["times the first"].ratio, shards["times the first"].ratio) == pytest.approx((128**0.5, 32))
    assert (jpeg["top-1 %"].mean, jpeg["top-5 %"].mean, jpeg["top-1, points over jpeg"]) == (40, 80, None)
    assert shards["top-1, points over jpeg"].mean == pytest.approx(1.5)
    assert two["top-1, points over jpeg"].mean == pytest.approx(0)
    assert shards["h of ImageNet"] == pytest.approx(5 * study.IMAGENET / 1000 / 3600)


def of_processes(processes, *speeds):
    """What `study.together` returns, its windows of 100 images."""
    step_ms = {LAST: [1e5 / speed for speed in speeds], NEVER: [1e5 / speed - 5 for speed in speeds]}
    return {"processes": processes, "step_ms": step_ms, "images_per_second": {LAST: list(speeds)}}


def scaled_rounds(*strong):
    """A round of `scaled` for each speed of two processes in strong scaling."""
    one = of_processes(1, 100.0, 90.0, 800.0)
    return [{"strong": [one, of_processes(2, of)], "weak": [one, of_processes(2, 200.0)]} for of in strong]


def test_efficiency_is_throughput_over_that_of_as_many_single_processes():
    rows = study.scaling_rows(scaled_rounds(160.0, 160.0), cores=1)
    assert [row["images/s"] for row in rows] == [100, 160, 100, 200]
    assert [row["ms of a step"] for row in rows] == [1000, 625, 1000, 500]
    assert {rows[0][name] for name in ("times one process", "efficiency", "exposed ms")} == {None}
    assert [row["exposed ms"].mean for row in rows[1::2]] == [5, 5]
    assert [row["times one process"].ratio for row in rows[1::2]] == pytest.approx([1.6, 2])
    assert [row["more processes than cores"] for row in rows] == [False, True, False, True]
    wide = study.scaling_rows(scaled_rounds(80.0, 160.0, 320.0), cores=None)[1]
    efficiency, faster = wide["efficiency"], wide["times one process"]
    assert efficiency.ratio == pytest.approx(0.8) and not wide["more processes than cores"]
    assert (efficiency.low, efficiency.high) == pytest.approx((faster.low / 2, faster.high / 2))


def accumulated():
    """Rounds of `accumulation`: three windows of which one is late."""
    ms, speeds = {LAST: 14.0, EACH: 20.0, NEVER: 11.0}, {LAST: 150.0, NEVER: 200.0, EACH: 100.0}
    return [
        {
            "step_ms": {exchange: [of, of - 1, of + 50] for exchange, of in ms.items()},
            "images_per_second": {exchange: [of] * 3 for exchange, of in speeds.items()},
        }
        for _ in range(2)
    ]


def test_accumulation_is_compared_with_an_exchange_in_each_pass():
    rows = {row["gradients exchanged"]: row for row in study.accumulation_rows(accumulated())}
    assert list(rows) == [LAST, EACH, NEVER]
    assert [row["ms of a step"].mean for row in rows.values()] == [14, 20, 11]
    assert (rows[LAST]["exposed ms"].mean, rows[EACH]["exposed ms"].mean, rows[NEVER]["exposed ms"]) == (3, 9, None)
    column = "times as fast as in each pass"
    assert rows[EACH][column] is None
    assert (rows[LAST][column].ratio, rows[NEVER][column].ratio) == pytest.approx((1.5, 2))


SWEEP = {
    "trials": [
        {"number": number, "state": state, "value": value, "seconds": 2.0,
         "parameters": {"lr": 0.1, "batch_size": 16, "width": 8 + 8 * (number % 2)},
         "epochs": [
             {"top1_accuracy": 0.5, "top5_accuracy": 0.9, "validation_loss": float(epoch)} for epoch in range(epochs)
         ]}
        for number, (state, value, epochs) in enumerate(
            [("complete", 0.5, 3), ("pruned", None, 2), ("complete", 0.75, 3), ("failed", None, 0)]
        )
    ],
}  # fmt: skip


def test_of_a_sweep_the_best_trials_are_shown_and_the_loss_of_each_configuration():
    best, other = study.sweep_rows(SWEEP)
    assert (best["trial"], best["top-1 %"], best["top-5 %"], best["held-out loss"]) == (2, 50, 90, 2)
    assert other["trial"] == 0 and best["batch size"] == 16
    wide, narrow = "w16, batch 16", "w8, batch 16"
    expected = [(wide, 1, "pruned"), (wide, None, "failed"), (narrow, 2, "complete"), (narrow, 2, "complete")]
    assert [tuple(row.values()) for row in study.loss_rows(SWEEP)] == expected


ANSWERS = {
    "offline": {"seconds": 2.0, "images": 115, "bytes": 1000},
    "pipelines": piped(),
    "trained": epochs_of(5.0, 0.2, 0.4),
    "scaled": scaled_rounds(160.0)[0],
    "accumulation": accumulated()[0],
    "swept": SWEEP,
}


def test_a_whole_study_fills_every_table(drawn, tmp_path, monkeypatch, run_main):
    monkeypatch.setattr(Measurements, "measure", lambda self, what, **of: ANSWERS[what])
    monkeypatch.setattr(study, "usable_cores", lambda: 2)
    assert run_main(study, "--device", "cpu", "--data", drawn, "--logdir", tmp_path).returncode == 0
    result = read(tmp_path / "labs" / "scale" / "study.json")
    assert all(result.tables.values())
    assert "96 training and 19 validation images of 4 classes, drawn JPEGs" in result.notes[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_every_pipeline_is_timed_by_itself(options, prepared_32px, monkeypatch):
    monkeypatch.setattr(study, "LOAD_SECONDS", {True: 0.01})
    found = study.pipelines(options, 32, 0, run=2)
    assert list(found["pipelines"]) == [*PROGRAMS[2:], *PROGRAMS[:2]]  # begins with another in each round
    sizes = {name: of["bytes"] for name, of in found["pipelines"].items()}
    originals = sum(path.stat().st_size for path in (options.data / "train").rglob("*.jpg"))
    assert {sizes[name] for name in PROGRAMS[:3]} == {originals}
    assert sizes["04_cached"] == 96 * 3 * 32 * 32 + 128
    assert sizes["03_resized_once"] < sizes[SHARDS] < originals


class Loader(list):
    num_workers, prefetch_factor = 2, 3


def test_images_per_second_are_those_after_the_workers_queue_and_of_one_core_in_cpu_time(monkeypatch):
    clocks = {"perf_counter": count(100, 2), "process_time": count(50, 3)}
    for name, ticks in clocks.items():
        monkeypatch.setattr(study.time, name, lambda ticks=ticks: next(ticks))
    asked, loader = [], Loader([(torch.zeros(10, 3), torch.zeros(10))] * 4)
    speeds = study.delivered(loader, 7.0, lambda *_: asked.append(1))
    assert speeds == (30 / 8, 30 / 3)  # asked for at 2, 4 and 6 s, then 8 s
    assert len(asked) == 7 + 3


def test_strong_scaling_shares_the_batch_and_weak_gives_each_one(options, monkeypatch):
    monkeypatch.setattr(study, "together", lambda _, processes, images, exchanges: (processes, images, len(exchanges)))
    for run in (0, 4):  # the order turns
        scaled = study.scaled(options, 4, run)
        assert scaled == {"strong": [(1, 8, 1), (2, 4, 2), (4, 2, 2)], "weak": [(1, 8, 1), (2, 8, 2), (4, 8, 2)]}


def test_steps_are_timed_with_and_without_an_exchange_by_processes_that_train_together(options, monkeypatch):
    def answer(command, request, limit_seconds):
        assert command == [*study.TORCHRUN, "2", study.__file__, "--measure"]
        return {"value": study.rank(options, **request["settings"])}  # here, alone

    monkeypatch.setattr(study, "WINDOWS", {True: 2})
    monkeypatch.setattr(study, "STEPS", {True: 1})
    monkeypatch.setattr(study.isolated, "answer", answer)
    found = study.together(options, 2, 2, 2, ("last pass", "never"))
    assert {exchange: len(windows) for exchange, windows in found["step_ms"].items()} == {"last pass": 2, "never": 2}
    assert found["images_per_second"]["never"] == [pytest.approx(8000 / ms) for ms in found["step_ms"]["never"]]
