"""What a study that is cut off has measured is kept until its file is written."""

from dataclasses import dataclass, replace

import pytest

from common.options import StepOptions
from studies.study import kept as kept_of
from walkthrough.compare import kept
from walkthrough.compare.kept import path_of


@dataclass(frozen=True)
class Part:
    of: str | None


@dataclass(frozen=True)
class Speed:
    windows: list[float]
    part: Part | None = None


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path, download=False, model="tiny", image_size=32,
        batch_size=4, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


def never():
    raise AssertionError("measured again")


def test_what_was_measured_is_not_measured_again_by_the_next_call(options, capsys):
    speed = Speed([1.0, 2.5], Part("it"))
    first = kept_of("sweep", options)
    assert first.measurement("run 1, a", Speed, lambda: speed) == speed
    assert first.measurement("run 1, a", Speed, never) == speed
    assert capsys.readouterr().out == ""
    assert kept_of("sweep", options).measurement("run 1, a", Speed, never) == speed
    assert "kept of an earlier call that was cut off: 1 measurement(s)" in capsys.readouterr().out
    assert kept_of("overhead", options).values == {}


def test_a_smoke_run_leaves_what_is_kept_of_a_whole_study(options):
    kept_of("sweep", replace(options, quick=False)).measurement("run 1, a", Speed, lambda: Speed([1.0]))
    kept_of("sweep", options).measurement("run 1, a", Speed, lambda: Speed([2.0]))
    assert len(kept_of("sweep", replace(options, quick=False)).values) == 1


def test_what_failed_is_tried_again_by_the_next_call(options):
    assert kept_of("sweep", options).measurement("run 1, a", Speed, lambda: "out of memory") == "out of memory"
    assert not path_of(options.logdir, "sweep", options.quick).exists()
    assert kept_of("sweep", options).measurement("run 1, a", Speed, lambda: Speed([1.0])) == Speed([1.0])


def test_other_options_or_other_code_begin_anew(options, monkeypatch):
    kept_of("sweep", options).measurement("run 1, a", Speed, lambda: Speed([1.0]))
    assert len(kept_of("sweep", options).values) == 1
    assert kept_of("sweep", replace(options, precision="bf16")).values == {}
    monkeypatch.setattr(kept, "code_hash", lambda *patterns: "other")
    assert kept_of("sweep", options).values == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"setup": {}, "values": 3}'])
def test_a_file_that_cannot_be_read_begins_anew(options, text):
    path_of(options.logdir, "sweep", options.quick).write_text(text)
    assert kept_of("sweep", options).values == {}
