"""A program as a study measures it: its own train step, reached without its data and without measuring."""

from dataclasses import replace

import pytest
import torch
from support import ROOT

from common import program as programs
from common.options import StepOptions
from common.timing import Plan
from walkthrough.results.errors import InputError

BASELINE = ROOT / "labs" / "memory" / "00_baseline.py"


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path / "none", download=False, model="resnext11_1x2d", image_size=16,
        batch_size=4, workers=3, precision="fp32", seed=5, quick=True, stacks=False,
    )  # fmt: skip


def test_a_programs_own_train_step_is_reached_with_the_options_and_without_data(options, capsys):
    program = programs.program(BASELINE, options)
    assert set(program.variables) == {"device", "model", "optimizer", "criterion", "losses"}
    assert program.precision == "float32"
    loss = program.train_step(*programs.float_batch(options))
    assert loss.item() > 0
    assert program.variables["losses"] == [loss.item()]
    assert capsys.readouterr().out == ""  # where an isolated process answers
    assert list(options.logdir.iterdir()) == []


def test_the_seed_decides_the_weights(options):
    one, other = (programs.program(BASELINE, options).variables["model"].state_dict() for _ in range(2))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_program_has_its_loader_with_the_workers_that_are_asked_for(options):
    for words in ({}, {"workers": 2}):
        loader = programs.program(BASELINE, options, **words).loader
        assert (loader.num_workers, loader.batch_size) == (words.get("workers", 0), 4)


def test_a_precision_is_passed_to_a_program_only_where_one_was_chosen(options, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\nimport common.session\n\n"
        "def main():\n    common.session.run_step(__file__, None, sys.argv[1:], lambda: None)\n"
    )
    chosen, automatic = (
        programs.program(file, replace(options, precision=name), workers=3).loader for name in ("fp32", "auto")
    )
    assert chosen[chosen.index("--precision") + 1] == "fp32"
    assert automatic == [word for word in chosen if word not in ("--precision", "fp32")]
    assert automatic[-2:] == ["--workers", "3"]


def test_input_that_a_program_refuses_is_refused(options):
    with pytest.raises(InputError, match="unknown model 'resnet18'"):
        programs.program(BASELINE, replace(options, model="resnet18"))


def test_a_batch_is_of_the_options_or_of_the_size_that_is_asked_for(options):
    images, labels = programs.float_batch(options)
    assert (images.shape, images.dtype, labels.shape) == ((4, 3, 16, 16), torch.float32, (4,))
    assert len(programs.float_batch(options, 9)[0]) == 9


def test_a_train_step_is_timed_in_windows(options, monkeypatch):
    monkeypatch.setattr(programs, "QUICK", Plan(1, 0, 3, 2, 0))
    steps = []

    def train_step(images, labels):
        steps.append(len(images))
        return torch.zeros(())

    timing = programs.timed(train_step, programs.float_batch(options), options)
    assert len(timing.windows) == 3
    assert set(steps) == {4}


def test_the_peak_is_that_of_the_second_step_and_grows_with_what_a_step_holds():
    calls = []

    def train_step(size):
        calls.append(size)
        held = [torch.empty(size, dtype=torch.uint8) for _ in range(1 if len(calls) % 2 == 0 else 9)]
        return torch.zeros(()) if held else None

    peaks = [programs.peak_bytes(train_step, (size,), torch.device("cpu")) for size in (10**6, 5 * 10**6)]
    assert calls == [10**6, 10**6, 5 * 10**6, 5 * 10**6]
    assert peaks == pytest.approx([10**6, 5 * 10**6], rel=0.01)


def test_on_a_gpu_the_peak_is_the_allocators(monkeypatch):
    calls = []
    monkeypatch.setattr(programs, "empty_cache", lambda device: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(programs, "gpu_peak_bytes", lambda device: (123, 456))
    assert programs.peak_bytes(lambda: calls.append("step"), (), torch.device("cuda")) == 123
    assert calls == ["step", "empty", "reset", "step"]
