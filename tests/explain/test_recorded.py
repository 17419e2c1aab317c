"""What `explain` says of steps that differ, of what `walkthrough trace` recorded, and of folders of several stages."""

import json

import pytest
from support.trace_builder import TraceBuilder, two_steps


@pytest.fixture
def recorded(tmp_path):
    """recorded(**what): a trace in whose header `walkthrough trace` wrote this."""

    def written(**recording):
        builder = two_steps()
        builder.header["walkthrough"] = recording
        return builder.write(tmp_path / "made.json")

    return written


RECORDING = {
    "schema": 1,
    "untraced_step_ms": [0.5, 0.4, 0.6],
    "cores": 8,
    "mark": "optimizer",
    "backwards_per_step": 8.0,
    "skipped": 1,
    "samples_per_step": 256,
    "moved": 2,
    "optimizers": [{"name": "AdamW", "steps": 2, "lead": True}],
    "loaders": [
        {"batch_size": 32, "num_workers": 4, "persistent_workers": True, "pin_memory": True, "prefetch_factor": 2},
        {"batch_size": None, "num_workers": 0},
    ],
    "happenings": [],
}


def test_what_was_recorded_beside_the_events_stands_after_the_header(run, recorded):
    path = recorded(**RECORDING)
    assert " ".join(run(path, "--all")[0].partition("\n\nSteps\n")[2].split()) == (
        "Untraced: median 500.0 us per step over the 3 steps before tracing; a traced step takes 2.00x as long. "
        "Steps: marked by AdamW.step; 8 backward passes per step: accumulated gradients, or a closure; "
        "GradScaler skipped the optimizer in 1 of 2; tracing began anew 2 times, "
        "because of what a step did besides training; 8 CPU cores. "
        "Data: 256 samples per step; DataLoader(batch_size=32, num_workers=4, persistent_workers=True, "
        "pin_memory=True, prefetch_factor=2); DataLoader(num_workers=0, pin_memory=False)."
    )
    recording = json.loads(run(path, "--json")[0])["recording"]
    assert recording["loaders"][0]["num_workers"] == 4
    assert recording["untraced_step_ms"] == [0.5, 0.4, 0.6]


def test_of_what_is_not_recorded_nothing_is_said(run, recorded, tmp_path):
    path = two_steps().write(tmp_path / "made.json")
    assert "ntraced" not in run(path, "--all")[0]
    assert json.loads(run(path, "--json")[0])["recording"] is None
    out, _ = run(recorded(optimizers=[{"name": "A\x1b[31mdam", "lead": True}], loaders=[3]), "--all")
    assert out.endswith("\n\nSteps\n  Steps: marked by A\ufffd[31mdam.step.\n")


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        ({"untraced_step_ms": [2.0]}, "Untraced: 2.0 ms in the one step before tracing"),
        ({"backwards_per_step": 73 / 3}, "24.3 backward passes per step"),
    ],
)
def test_one_untraced_step_is_no_median_and_backward_passes_are_rounded(run, recorded, recording, said):
    assert said in run(recorded(**recording), "--all")[0]


@pytest.fixture
def summary(run, recorded):
    return lambda **recording: json.loads(run(recorded(**recording), "--json")[0])["recording_summary"]


def test_how_it_was_traced_is_told_with_the_steps_around(summary):
    found = summary(
        untraced_step_ms=[0.5] * 9,
        untraced_after_ms=[0.52] * 10,
        warmup=10,
        asked={"warmup": 10, "steps": 2},
        total_steps=22,
    )
    assert (found["before_us"], found["after_us"], found["alike"]) == (500, 520, True)
    assert found["slower"] == pytest.approx(1000 / 520)
    assert found["text"] == (
        "traced: 2 of 22 steps; untraced: median 500.0 us per step over the 9 steps before tracing, 520.0 us over "
        "the 10 steps after it, alike; a traced step takes 1.92x as long"
    )


def test_less_than_was_asked_for_is_said_with_its_reason(summary):
    asked = {"warmup": 10, "steps": 3}
    cut = summary(warmup=3, asked=asked, total_steps=6)["text"]
    assert cut == (
        "traced: 2 of 6 steps instead of 3, after 3 steps of warm-up instead of 10, as the program ended after 6"
    )
    anew = summary(warmup=3, asked=asked | {"steps": 2}, total_steps=120)["text"]
    assert anew == "traced: 2 of 120 steps, after 3 steps of warm-up instead of 10"


def test_untraced_steps_that_are_not_alike_have_a_range(summary):
    found = summary(untraced_step_ms=[1.0] * 5, untraced_after_ms=[2.0] * 5)
    assert found["alike"] is False and (found["least_us"], found["most_us"]) == (1000, 2000)
    assert "not alike, half of them 1.0 ms to 2.0 ms" in found["text"]


def test_untraced_steps_that_alternate_are_compared_by_their_mean(summary):
    found = summary(untraced_step_ms=[0.1, 0.1, 0.1, 0.1, 0.1, 1.1, 1.1, 1.1, 1.1])  # the median is 0.1 ms
    assert found["before_us"] == pytest.approx(4900 / 9)
    assert found["slower"] == pytest.approx(1000 / (4900 / 9))
    assert "untraced: mean 544.4 us per step" in found["text"]


def epochs(builder):
    """Three steps of 1 ms; before the second one the DataLoader ends, and its workers start for 100 ms."""
    loader, begin = "_MultiProcessingDataLoaderIter", 0
    for number in range(3):
        at = begin
        if number == 1:
            builder.loading(at, 50, loader)
            at += 100_000
        builder.loading(at, 100, loader)
        builder.op("aten::mm", at + 100, 900)
        builder.step(number, begin, at + 1000 - begin)
        begin = at + 1000
    return builder


def test_a_new_epoch_is_named_with_its_wait_beside_the_usual_one(run, tmp_path):
    out = " ".join(run(epochs(TraceBuilder(devices=())).write(tmp_path / "made.json"), "--all")[0].split())
    assert "2 typical of 3 steps, 1.0 ms; all: 34.3 ms" in out
    assert (
        "Step 1 begins a new epoch and waits 100.1 ms for its first batch; the other steps' median wait is 100.0 us: "
        "the worker processes start anew in each epoch, unless persistent_workers=True keeps them"
    ) in out
    assert "90% of a typical step is operators on the CPU" in out


def test_two_steps_of_very_different_length_get_no_advice(run, tmp_path):
    builder = TraceBuilder()
    for number, begin, length in ((1, 0, 1000), (2, 1000, 9000)):
        builder.step(number, begin, length)
        builder.launch("k", begin + 5, 5, begin + 15, 300)
    out = run(builder.write(tmp_path / "made.json"))[0]
    assert "2 steps of 5.0 ms (1.0 to 9.0 ms)" in out
    assert "Two steps of very different length, 1.0 ms and 9.0 ms" in out
    assert "at most" not in out and "about" not in out
    assert "trace more steps" in out


def test_a_trace_without_a_whole_step_says_so_and_advises_nothing(run, tmp_path):
    builder = TraceBuilder(devices=())
    builder.op("aten::mm", 0, 900)
    builder.step(3, 0, 1000)["args"]["finished"] = False
    out = run(builder.write(tmp_path / "made.json"))[0]
    assert "· no whole step: 1.0 ms recorded" in out
    assert "The trace holds no whole step" in out
    assert "at most" not in out


def test_of_a_folder_of_several_stages_the_newest_trace_of_training_is_shown(run, tmp_path):
    names = ("fit-a.1700000000000", "fit-a.1700000000001", "validate-a.1700000000002", "test-a.1700000000003")
    for name in names:
        two_steps().write(tmp_path / f"{name}.pt.trace.json")
    out, err = run(tmp_path)
    assert out.startswith("fit-a.1700000000001.pt.trace.json")
    left_out, newest = err.splitlines()
    assert "traces of training" in left_out and "2 traces of other stages" in left_out
    assert "2 traces" in newest and "newest" in newest


def test_ranks_of_training_are_not_mixed_with_those_of_a_test(run, tmp_path):
    for stage, stamp, length in (("fit", 1, 1000), ("test", 2, 5000)):
        for rank in range(2):
            builder = TraceBuilder(rank=rank)
            builder.step(1, 0, length)
            builder.launch("k", 0, 1, 100, 300)
            builder.write(tmp_path / f"{stage}-{rank}.170000000000{stamp}.pt.trace.json")
    out, err = run(tmp_path)
    assert "2 ranks" in out
    assert "5.0 ms" not in out
    assert "training" in err
    result = json.loads(run(tmp_path, "--json")[0])
    assert result["mean_step_us"]["max"] == 1000


def test_names_of_one_stage_alone_choose_nothing(run, tmp_path):
    for name in ("test-a.1700000000000", "predict-a.1700000000001"):
        two_steps().write(tmp_path / f"{name}.pt.trace.json")
    assert run(tmp_path)[0].startswith("predict-a")
    (tmp_path / "other").mkdir()
    for name in ("outfit.1700000000001", "latest.1700000000000"):
        two_steps().write(tmp_path / "other" / f"{name}.pt.trace.json")
    assert run(tmp_path / "other")[0].startswith("outfit")  # the newest: neither name holds such a word


@pytest.mark.parametrize(("waiting", "said"), [(0.2, False), (0.45, True), (7.0, False), (None, False)])
def test_a_training_that_had_no_cpu_is_said_first(run, recorded, tmp_path, waiting, said):
    path = recorded(cpu_waiting=waiting)
    assert ("45% of the time" in run(path)[1]) is said
    run(path, "--html", page := tmp_path / "made.html")
    assert ("<h1>made.json</h1>\n<p><b>For 45% of the time" in page.read_text(encoding="utf-8")) is said
    assert len(json.loads(run(path, "--json")[0])["warnings"]) == said


@pytest.mark.parametrize(
    ("known", "others"),
    [
        ({}, "other processes took it"),
        ({"loaders": [{"num_workers": 2}]}, "other processes or its own loader workers took it"),
        ({"threads": 4}, "other processes or its own threads took it"),
    ],
)
def test_only_what_the_program_has_can_have_taken_its_cpu(run, recorded, known, others):
    assert f"lengthens any operator: {others}; " in run(recorded(cpu_waiting=0.45, **known))[1]
