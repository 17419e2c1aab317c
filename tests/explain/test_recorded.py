"""What `explain` says of what `walkthrough trace` recorded, and of folders of several stages of a training."""

import json

import pytest
from pytest import approx
from support.trace_builder import one_step, two_steps
from test_golden_texts import RECORDING, recorded


@pytest.fixture
def of(run, tmp_path):
    """of(*words, **recording): what `explain` prints, on both outputs, of a trace with that recording."""
    return lambda *words, **recording: run(recorded(**recording).write(tmp_path / "made.json"), *words)


def test_a_recording_is_in_the_json(of, run, tmp_path):
    recording = json.loads(of("--json")[0])["recording"]
    assert recording["loaders"][0]["num_workers"] == 4
    assert recording["untraced_step_ms"] == RECORDING["untraced_step_ms"]
    assert json.loads(run(two_steps().write(tmp_path / "none.json"), "--json")[0])["recording"] is None
    known = {"optimizers": [{"name": "A\x1b[31mdam", "lead": True}], "loaders": [3]}
    assert of("--all", **known)[0].endswith("\n\nSteps\n  Steps: marked by A\ufffd[31mdam.step.\n")
    assert json.loads(of("--json", **known)[0])["recorded"] == ["steps: marked by A\ufffd[31mdam.step"]


BEFORE_AND_AFTER = {"untraced_step_ms": [0.5] * 9, "untraced_after_ms": [0.52] * 10, "warmup": 10, "total_steps": 22}
CUT = {"warmup": 3, "asked": {"warmup": 10, "steps": 3}, "total_steps": 6}


@pytest.mark.parametrize(
    ("recording", "numbers", "text"),
    [
        ({"untraced_step_ms": [2.0]}, {"before_us": 2000, "slower": 0.5}, "untraced: 2.0 ms in the one step before"),
        (BEFORE_AND_AFTER | {"asked": {"warmup": 10, "steps": 2}},
         {"before_us": 500, "after_us": 520, "alike": True, "slower": 1000 / 520}, "traced: 2 of 22 steps; untraced:"),
        (CUT, {}, "2 of 6 steps instead of 3, after 3 steps of warm-up instead of 10, as the program ended after 6"),
        (CUT | {"asked": {"warmup": 10, "steps": 2}, "total_steps": 120}, {}, "after 3 steps of warm-up instead of 10"),
        ({"untraced_step_ms": [1.0] * 5, "untraced_after_ms": [2.0] * 5},
         {"alike": False, "least_us": 1000, "most_us": 2000}, "not alike, half of them 1.0 ms to 2.0 ms"),
        # steps that alternate are compared by their mean: the median is 0.1 ms
        ({"untraced_step_ms": [0.1] * 5 + [1.1] * 4}, {"before_us": 4900 / 9, "slower": 9000 / 4900}, "mean 544.4 us"),
    ],
)  # fmt: skip
def test_how_it_was_traced_is_told_with_the_steps_around(of, recording, numbers, text):
    found = json.loads(of("--json", **recording)[0])["recording_summary"]
    assert {key: found[key] for key in numbers} == {key: approx(value) for key, value in numbers.items()}
    assert text in found["text"]


@pytest.mark.parametrize(
    ("waiting", "known", "who"),
    [
        (0.29, {}, ""),
        (7.0, {}, ""),
        (0.31, {}, ": other processes took it"),
        (0.31, {"loaders": [{"num_workers": 2}]}, ": other processes or its own loader workers took it"),
        (0.31, {"threads": 2}, ": other processes or its own threads took it"),
    ],
)
def test_a_training_that_had_no_cpu_is_said_first(of, tmp_path, waiting, known, who):
    known = known | {"cpu_waiting": waiting}
    of("--html", page := tmp_path / "made.html", **known)
    assert ("<h1>made.json</h1>\n<p><b>For 31% of the time" in page.read_text(encoding="utf-8")) == bool(who)
    warnings = json.loads(of("--json", **known)[0])["warnings"]
    assert [who in line for line in warnings] == [True] * bool(who)


def test_of_a_folder_of_several_stages_the_newest_trace_of_training_is_shown(run, tmp_path):
    for name in ("fit-a.170", "fit-a.171", "validate-a.172", "test-a.173"):
        two_steps().write(tmp_path / f"{name}0000000000.pt.trace.json")
    out, err = run(tmp_path)
    assert out.startswith("fit-a.171")
    assert "2 traces of other stages" in err and "holds 2 traces" in err


def test_ranks_of_training_are_not_mixed_with_those_of_a_test(run, tmp_path):
    for stage, stamp, length in (("fit", 1, 1000), ("test", 2, 5000)):
        for rank in range(2):
            builder = one_step(length, rank=rank)
            builder.launch("k", 0, 1, 100, 300)
            builder.write(tmp_path / f"{stage}-{rank}.170000000000{stamp}.pt.trace.json")
    out, err = run(tmp_path, "--json")
    assert (json.loads(out)["mean_step_us"]["max"], "training" in err) == (1000, True)
