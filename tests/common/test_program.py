"""A program as a study measures it: its own train step, reached without its data and without measuring."""

from dataclasses import replace

import pytest
import torch
from support import ROOT
from support.options import small_options

from common import program as programs
from common.program import captured, words_of
from common.timing import Plan
from walkthrough.results import capture
from walkthrough.results.capture import Program
from walkthrough.results.errors import InputError

BASELINE = ROOT / "labs" / "memory" / "00_baseline.py"


@pytest.fixture
def options(tmp_path):
    changes = {"model": "resnext11_1x2d", "image_size": 16, "workers": 3, "precision": "fp32", "seed": 5}
    return small_options(tmp_path, data=tmp_path / "none", **changes)


def test_a_programs_own_train_step_is_reached_with_the_options_and_without_data(options, capsys):
    program = captured(BASELINE, words_of(options))
    assert set(program.variables) == {"device", "model", "optimizer", "criterion"}
    assert (program.file, program.dtype, program.args.seed) == (str(BASELINE), "float32", 5)
    assert not any(program.loader.dataset.data[0].flat)  # black
    assert program.train_step(*programs.float_batch(options)).item() > 0
    assert capsys.readouterr().out == ""  # where an isolated process answers
    assert list(options.logdir.iterdir()) == []
    assert capture.current.get() is None


def test_the_seed_decides_the_weights_and_the_loader_has_the_workers_that_are_asked_for(options):
    one, other = (captured(BASELINE, words_of(options, workers)) for workers in (0, 2))
    assert [(of.loader.num_workers, of.loader.batch_size) for of in (one, other)] == [(0, 4), (2, 4)]
    weights, others = (of.variables["model"].state_dict() for of in (one, other))
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_a_precision_is_passed_to_a_program_only_where_one_was_chosen(options):
    chosen, automatic = (words_of(replace(options, precision=name), 3) for name in ("fp32", "auto"))
    assert chosen == [*automatic, "--precision", "fp32"]
    assert automatic[-2:] == ["--workers", "3"]


def test_what_a_program_raises_is_raised(options, tmp_path):
    with pytest.raises(InputError, match="unknown model 'resnet18'"):
        captured(BASELINE, words_of(replace(options, model="resnet18")))
    with pytest.raises(SystemExit):  # of its parser
        captured(BASELINE, ["--batch-size", "zero"])
    other = tmp_path / "other.py"
    other.write_text("print('done')")
    with pytest.raises(RuntimeError, match=r"other.py ended without a call of run_step"):
        captured(other, [])
    assert capture.current.get() is None


@pytest.mark.parametrize("loaded", [False, True])
def test_a_train_step_is_timed_in_windows_on_a_batch_or_its_loader(options, monkeypatch, loaded):
    monkeypatch.setattr(programs, "QUICK", Plan(1, 0, 3, 2, 0))
    monkeypatch.setitem(programs.LOADED, True, Plan(1, 0, 3, 2, 0))
    steps = []

    def train_step(images):
        steps.append(images.sum().item())
        return torch.zeros(())

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(40.0)), batch_size=1)
    program = Program("own.py", options, loader, train_step, None, len)
    timing = programs.timed(program, None if loaded else (torch.ones(4),), quick=True)
    assert len(timing.windows) == 3
    assert (timing.tokens_per_second is not None) == loaded
    assert steps == (list(range(len(steps))) if loaded else [4] * len(steps))


def test_the_peak_is_that_of_the_second_step_and_grows_with_what_a_step_holds(options):
    calls = []

    def train_step(size):
        calls.append(size)
        held = [torch.empty(size, dtype=torch.uint8) for _ in range(1 if len(calls) % 2 == 0 else 9)]
        return torch.zeros(()) if held else None

    program = Program("own.py", options, None, train_step)
    peaks = [programs.peak_bytes(program, (size,)) for size in (10**6, 5 * 10**6)]
    assert calls == [10**6, 10**6, 5 * 10**6, 5 * 10**6]
    assert peaks == pytest.approx([10**6, 5 * 10**6], rel=0.01)


def test_on_a_gpu_the_peak_is_the_allocators(options, monkeypatch):
    calls = []
    monkeypatch.setattr(programs, "empty_cache", lambda device: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(programs, "gpu_peak_bytes", lambda device: (123, 456))
    program = Program("own.py", replace(options, device="cuda"), None, lambda: calls.append("step"))
    assert programs.peak_bytes(program, ()) == 123
    assert calls == ["step", "empty", "reset", "step"]
