"""labs/memory: its programs learn the same, its models, `train.py` to the end, and its study by known answers."""

from dataclasses import replace

import pytest
import torch
from support import ROOT, assert_refused
from support.labs import assert_goes_on_after_a_kill, equal, lab_options
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import resnext50_32x4d

from common import program as programs
from labs.memory import data, study
from labs.memory.model import PUBLISHED, resnext
from labs.memory.study import BASELINE, CHECKPOINTED, COMPILED, Study
from labs.shared.training import epochs_in
from walkthrough.compare.study import NotMeasured, read

FILES = sorted((ROOT / "labs" / "memory").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in FILES]
EAGER = [path for path in FILES if "compiled" not in path.stem]
SMALL = {"model": "resnext11_1x2d", "image_size": 16, "batch_size": 4}


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return lab_options(tmp_path_factory.mktemp("memory"), model="resnext11_1x4d")


def trained(path, options, steps=3):
    """(losses of some steps on one batch, the model's state afterwards) of a program."""
    program = programs.captured(path, programs.words_of(options))
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(options.batch_size, 3, 16, 16, generator=generator)
    labels = torch.randint(10, (options.batch_size,), generator=generator)
    losses = [program.train_step(images, labels).item() for _ in range(steps)]
    return losses, program.variables["model"].state_dict()


@pytest.fixture(scope="module")
def baseline(options):
    """Of the first program, in float32."""
    return trained(EAGER[0], options)


@pytest.mark.parametrize("path", EAGER[1:], ids=NAMES[1:-1])
def test_every_program_learns_exactly_what_the_baseline_does_and_in_bf16_but_for_rounding(path, options, baseline):
    losses, state = baseline
    own_losses, own_state = trained(path, options)
    assert own_losses == losses and losses[-1] < losses[0]
    assert equal(own_state, state)
    (in_bf16,), _ = trained(path, replace(options, precision="bf16"), steps=1)
    assert in_bf16 == pytest.approx(losses[0], rel=2**-6)  # bf16 has 8 bits: a loss differs by a few roundings
    assert in_bf16 != losses[0]


class ConvolutionCounter(TorchDispatchMode):
    """Counts the convolutions that are computed."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **kwargs or {})


def test_selective_checkpointing_computes_no_convolution_again(options):
    counts = []
    for path in (FILES[0], FILES[2], FILES[3]):
        program = programs.captured(path, programs.words_of(options))
        with ConvolutionCounter() as counter:
            program.train_step(*programs.float_batch(options))
        counts.append(counter.count)
    assert counts[0] == counts[2] < counts[1]


def test_models_have_the_parameters_of_the_published_ones():
    with torch.device("meta"):
        models = [resnext(PUBLISHED), resnext("resnext50_32x4d"), resnext50_32x4d(num_classes=10)]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert counts[0] == 27_104_586  # resnext29_4x64d by pytorch-cifar's, 27.1 M
    assert counts[2] - counts[1] == (7 * 7 - 1) * 3 * 64  # torchvision's, but for the first layer


@pytest.fixture
def run(few_digits, tmp_path, run_here):
    """run(*words): train.py on the CPU in this process."""
    small = ["--device", "cpu", "--model", "resnext11_1x2d", "--image-size", "16", "--batch-size", "16"]
    base = [*small, "--workers", "0", "--data", tmp_path, "--logdir", tmp_path / "train"]
    return lambda *words: run_here(ROOT / "labs" / "memory" / "train.py", *base, *words)


def test_a_training_writes_its_epochs_and_one_that_is_killed_goes_on_as_if_it_were_not(run, tmp_path):
    words, whole = ("--epochs", "2", "--workers", "1"), tmp_path / "whole"
    assert "DIGITS: no CIFAR-10" in run(*words, "--logdir", whole).stdout
    table = epochs_in(whole)
    assert set(table[0]) == {"epoch", "loss", "train_accuracy", "test_accuracy", "seconds"}
    events = EventAccumulator(str(whole)).Reload()
    assert [point.value for point in events.Scalars("loss")] == pytest.approx([row["loss"] for row in table])
    assert_goes_on_after_a_kill(run, words, tmp_path / "train", whole)
    assert_refused(run("--batch-size", "1000"), "--batch-size 1000 is larger than the data")


def test_digits_are_enlarged_and_never_mirrored(few_digits, tmp_path):
    image, label = data.Digits(data.plain(32))[0]
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
    assert image[0].mean(0).reshape(8, 4).mean(1).argmax() == label % 8  # its bright column is still its own
    train_set, _ = data.real_data(tmp_path, 16)
    assert "Flip(p=0.0)" in str(train_set.transform) and "Flip(p=0.5)" in str(data.augmented(32))


# The study


@pytest.fixture
def study_options(tmp_path):
    return lab_options(tmp_path, precision="auto", quick=False, **SMALL)


@pytest.fixture
def main(few_digits, tmp_path, run_main):
    """main(*words): the study's program in this process: exit code, stdout and stderr."""
    words = ["--quick", "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path]
    return lambda *more: run_main(study, *words, *more)


@pytest.mark.long
def test_a_small_study_fills_every_table_and_audits_every_claim(main, tmp_path, monkeypatch, measure_here):
    measure_here(study)
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute
    monkeypatch.setattr(torch._functorch.config, "activation_memory_budget", 1.0)
    monkeypatch.setattr(study, "PUBLISHED", "resnext11_1x2d")
    for name, value in (("WINDOW_STEPS", 1), ("OPTIMIZER_STEPS", 3), ("EPOCHS", 1)):
        monkeypatch.setattr(study, name, {True: value})
    assert main("--model", SMALL["model"], "--image-size", 16, "--batch-size", 8).returncode == 0
    result = read(tmp_path / "labs" / "memory" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    assert all(claim.value is not None for claim in result.claims)
    kinds, checkpointed = (result.tables[f"memory_by_kind_{name}"] for name in (BASELINE, CHECKPOINTED))
    assert max(row["activations"] for row in checkpointed) < max(row["activations"] for row in kinds)


def test_an_unknown_model_is_one_line(main):
    assert_refused(main("--model", "resnet18"), "unknown model")


class Canned:
    """In place of `Measurements`: answers by what is measured, a text where it fails; what was asked for, in order."""

    def __init__(self, options, **answers):
        self.options, self.answers, self.asked = options, answers, []

    def measure(self, what, **settings):
        self.asked.append(settings)
        answer = self.answers[what](**settings)
        if isinstance(answer, str):
            raise NotMeasured(answer)
        return answer


def test_programs_are_interleaved_compared_by_rounds_and_at_last_in_the_same_memory(study_options):
    def step(name, precision, batch_size, run):
        if name == COMPILED:
            return "no compiler"
        held, speed = {CHECKPOINTED: (2, 70)}.get(name, (4, 100))
        measured = {"samples_per_second": [speed + run] * 4, "step_ms": batch_size * 1e3 / speed}
        return measured | {"peak_bytes": held * batch_size * 10**6, "precision": "float32"}

    one = Study(lab := Canned(study_options, step=step))
    steps = one.steps(dict.fromkeys(study.PROGRAMS, 4), rounds=3)
    assert [asked["run"] for asked in lab.asked] == sorted(asked["run"] for asked in lab.asked)
    rows = {row["program"]: row for row in study.programs(steps, study_options)}
    assert (rows[BASELINE]["speed"], rows[BASELINE]["batch"]) == (None, 4)
    checkpointed = rows[CHECKPOINTED]
    assert (checkpointed["speed"].ratio, checkpointed["speed"].rounds) == (pytest.approx(0.706, abs=0.01), 3)
    assert (checkpointed["of the baseline's"], checkpointed["published step ms"]) == (0.5, 152)
    assert one.notes == ["05_compiled_budget was not measured: no compiler"]
    same = {row["program"]: row for row in one.same_memory(steps)}
    assert [(row["largest batch"], row["peak MB"]) for row in same.values()] == [(16, 64), (32, 64), (16, 64)]
    assert (same[CHECKPOINTED]["images/s"], same[CHECKPOINTED]["published batch"]) == (pytest.approx(70), 896)
    total = study.overall(list(rows.values()), list(same.values()))
    assert (total[0]["epoch s"], total[0]["200 epochs, h"]) == pytest.approx((0.04 * 12_500, 500 * 200 / 3600))
    assert total[2]["of the base's time"] == pytest.approx(100 / 70)
    assert [round(row["published, of the base's time"], 2) for row in total] == [1, 0.75, 1.42, 0.91, 1.27]


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
    minus = [(name, row["minus"]) for name, row in rows.items()]
    assert minus == [("half precision", "base"), ("larger batch", "lower learning rate"), ("8 workers", "base")]
    points = rows["half precision"]["test accuracy, points"]
    assert (points.mean, points.low, points.high) == pytest.approx((-1, -1, -1))
    assert rows["larger batch"]["loss, times"].ratio == pytest.approx(2)
    (row,) = study.curve_rows({"base": seeds([0.99, 0.6, 0.9])})
    assert (row["test accuracy %"].high, row["test accuracy %"].mean) == pytest.approx((100, 83))
