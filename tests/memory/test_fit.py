"""`fit`: programs on fake tensors, and the command."""

import gc
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import NAMES, ROOT, STEPS, assert_golden, assert_refused

from common import failures
from common.model import classifier
from tools.docs.gpu_memory import MEMORY
from walkthrough.memory import predict
from walkthrough.memory.fit import CONTEXT_BYTES, GPUS, Prediction
from walkthrough.memory.predict import Own, predicted, trained
from walkthrough.memory.tracker import KINDS
from walkthrough.results.errors import InputError

SMALL = ("--model", "tiny_convmixer", "--image-size", "48", "--batch-size", "16")
PROGRAM = """
import torch
from torch import nn
from walkthrough.results.errors import InputError
from common.options import step_options
from common.session import run_step

args = step_options(__doc__)
model = nn.Sequential(nn.Linear(256, 256), {layer}, nn.Flatten(), nn.Linear(2048, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def collate(rows):
    return torch.ones(len(rows), 8, 256), torch.tensor(rows) % 4

def train_step(x, labels):
    with {context}:
        loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {more}
    return loss

loader = torch.utils.data.DataLoader({data}, batch_size=32, num_workers=2, collate_fn=collate)
run_step("own.py", args, loader, train_step)
raise RuntimeError("it went on")
"""
SAVE_ON_CPU = "torch.autograd.graph.save_on_cpu(pin_memory=True)"
ITERABLE = "type('Rows', (torch.utils.data.IterableDataset,), {'__iter__': lambda self: iter(range(64))})()"
OFF = "torch.autocast('cpu', enabled=False)"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """own(layer=…, context=…, more=…, data=…): what is predicted of the program above with these parts."""

    @cache
    def predict_it(layer="nn.ReLU()", context=OFF, more="pass", data="range(64)"):
        path = tmp_path_factory.mktemp("own") / "own.py"
        path.write_text(PROGRAM.format(layer=layer, context=context, more=more, data=data))
        return predicted(path)

    return predict_it


@cache
def of_step(number):
    return predicted(STEPS[number], SMALL)


@pytest.mark.parametrize(
    "published",
    [pytest.param(one, marks=[pytest.mark.thorough] * ("128" in one.words)) for one in MEMORY],
    ids=lambda one: " ".join([one.program, *one.words]),
)
def test_what_others_published_is_predicted_within_ten_percent(published):
    program = f"steps/{published.program}" if published.program in NAMES else published.program
    one = predicted(ROOT / f"{program}.py", published.words)
    predicted_bytes = {"allocated": one.peak_bytes, "reserved": one.reserved_bytes}[published.counts]
    assert predicted_bytes / 1e9 == pytest.approx(published.memory_gb, rel=0.1)
    assert sum(one.by_kind.values()) == one.peak_bytes <= one.reserved_bytes


def test_every_step_is_predicted_and_only_those_that_compile_have_a_note():
    for number, path in enumerate(STEPS):
        one = of_step(number)
        assert (one.program, one.model, one.image_size) == (path.stem, "tiny_convmixer", 48)
        assert (one.batch_size, one.precision) == (16 if number > 1 else 32, "bfloat16" if number else "float32")
        compiles = ".compile(" in path.read_text(encoding="utf-8").partition("import torch")[2]
        assert any("uncompiled" in note for note in one.notes) == compiles, path.stem


def test_what_a_step_changes_is_seen():
    inputs = [of_step(number).by_kind["inputs"] for number in (2, 3, 6, 7, 8)]
    batch, stored, labels = 16 * 3 * 48 * 48, 16 * 3 * 32 * 32, 512  # of labels a block
    assert inputs[:4] == [4 * batch + labels, batch + labels, 2 * (batch + labels), 2 * (stored + labels)]
    assert inputs[4] > 50_000 * (3 * 32 * 32 + 8)


def test_the_trainings_own_options_act():
    def own_training(**options):
        return predicted(Own("resnet18", 32, 128, **{"precision": "fp32"} | options))  # mostly activations

    base, bf16 = own_training(), own_training(precision="bf16")
    adam, kept = own_training(optimizer="adamw"), own_training(checkpoint=True)
    fp16 = own_training(precision="fp16")  # a scaler takes the optimizer's step
    assert bf16.by_kind["activations"] < 0.7 * base.by_kind["activations"]
    assert fp16.by_kind["optimizer"] == bf16.by_kind["optimizer"]
    assert adam.by_kind["optimizer"] > 1.9 * base.by_kind["optimizer"]
    assert kept.by_kind["activations"] < 0.7 * base.by_kind["activations"]
    assert base.program is None
    assert sum(kept.by_kind.values()) == kept.peak_bytes


@pytest.mark.parametrize(
    ("model", "px"), [("vit_b_16", 32), pytest.param("inception_v3", 75, marks=pytest.mark.thorough)]
)
def test_models_that_ask_for_more_than_their_name_are_predicted(model, px):
    weights = [*classifier(model, px).parameters()]
    gradients = predicted(Own(model, 2, px)).by_kind["gradients"]
    assert gradients == sum(-(-4 * weight.numel() // 512) * 512 for weight in weights)  # the allocator's blocks


def test_no_batch_fits_where_the_weights_do_not_or_batch_norm_needs_more_samples():
    one = predicted(STEPS[2], (*SMALL[:3], "16", "--batch-size", "2"), [10**6, CONTEXT_BYTES + 1])
    assert list(one.largest.values()) == [0, 0]


def test_offloading_keeps_activations_off_the_device(own):
    layers = "*[nn.Linear(256, 256) for _ in range(8)]"
    keeping, offloading = (own(layer=layers, context=context) for context in (OFF, SAVE_ON_CPU))
    kept_bytes = 32 * 8 * 256 * 4  # of what each layer keeps
    assert keeping.by_kind["activations"] >= 8 * kept_bytes
    assert offloading.by_kind["activations"] <= 3 * kept_bytes


def test_a_gpu_keeps_a_layer_norm_in_float32_and_dropout_as_bools(own):
    autocast, elements = "torch.autocast(args.device, torch.bfloat16)", 32 * 8 * 256
    relu, norm = (own(layer=layer, context=autocast) for layer in ("nn.ReLU()", "nn.LayerNorm(256)"))
    assert norm.by_kind["activations"] >= relu.by_kind["activations"] + 4 * elements
    relu, dropout = own(), own(layer="nn.Dropout(0.5)")
    assert dropout.by_kind["activations"] - relu.by_kind["activations"] == elements


@pytest.mark.parametrize(
    ("more", "reason"),
    [("loss.tolist() or x.numpy()", "cannot be predicted"), ("raise InputError('no such thing')", "no such thing")],
)
def test_a_program_that_cannot_be_predicted_says_why_in_a_line(own, more, reason):
    with pytest.raises(InputError) as refused:
        own(more=more)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_batches_that_are_not_images_have_the_batch_size_asked_for_and_a_second_call_of_the_model_needs_more(own):
    assert own().batch_size == own(data=ITERABLE).batch_size == 32
    assert own(data=ITERABLE).peak_bytes == own().peak_bytes
    assert own().by_kind["inputs"] == 32 * 8 * 256 * 4 + 512
    assert own(more="model(x)").peak_bytes > own().peak_bytes


def test_a_program_without_a_run_and_an_option_that_it_does_not_take_are_refused(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("print('done')")
    with pytest.raises(InputError, match="ended without a call of run_step"):
        predicted(path)
    with pytest.raises(InputError, match="'zero' is not a whole number"):
        predicted(STEPS[2], ("--batch-size", "zero"))


def test_nothing_is_left_replaced_by_a_prediction():
    before = torch.compile, torch.nn.Module._apply, torch.autograd.graph.save_on_cpu
    predicted(STEPS[13], SMALL)
    assert (torch.compile, torch.nn.Module._apply, torch.autograd.graph.save_on_cpu) == before
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.layer_norm(torch.ones(2, 8, dtype=torch.bfloat16), (8,)).dtype == torch.bfloat16


def test_the_command_prints_the_fixed_fields_and_the_largest_batch_fits_but_the_next_does_not(run_command):
    budget = 6 * 10**6
    finished = run_command("fit", "--step", "02", *SMALL, "--memory", f"{CONTEXT_BYTES + budget}", "--json")
    assert finished.returncode == 0, finished.stderr
    value, one = json.loads(finished.stdout), of_step(2)
    fixed = {name: value[name] for name in ("peak_bytes", "by_kind", "context_bytes")}
    assert fixed == {"peak_bytes": one.peak_bytes, "by_kind": one.by_kind, "context_bytes": CONTEXT_BYTES}
    assert list(value["by_kind"]) == list(KINDS)
    size = value["largest_batch_size"]
    assert size == value["largest"][f"{CONTEXT_BYTES + budget}"] > 16
    for asked, fits in ((size, True), (size + 1, False)):
        batch = trained(STEPS[2], (*SMALL[:-1], str(asked)))
        assert batch.batch_size == asked
        assert (batch.needed_bytes(budget) <= budget) == fits


@pytest.fixture
def command(monkeypatch, run_command):
    """command(words…): the finished `fit`, with the made-up answer `command.answer`; `command.asked`: for what."""

    def run(*words):
        return run_command("fit", *words)

    def answer(what, words, budgets):
        run.asked = what, words, budgets
        values = dict(
            program="02_bigger_batch", words=words, model="mobilenet_v2", image_size=224, batch_size=128,
            precision="bfloat16", peak_bytes=5_137_000_000, reserved_bytes=5_761_000_000,
            by_kind=dict.fromkeys(KINDS, 0) | {"activations": 5_137_000_000},
            largest={str(memory): memory // 10**8 for memory in budgets},
        )  # fmt: skip
        return Prediction(**(values | run.answer))

    run.answer = {}
    monkeypatch.setattr(predict, "predicted", answer)
    return run


def test_the_printed_prediction_is_the_golden_one(command):
    of_a_step = command("--step", "02", "--memory")
    assert (of_a_step.returncode, command.asked) == (0, (STEPS[2], [], sorted(set(GPUS.values()))))
    command.answer = dict(program=None, model="small", image_size=0, batch_size=4, notes=["compiled"], largest={"1": 0})
    of_a_model = command("--model", "small", "--memory", "1GB")
    assert_golden(f"{of_a_step.stdout}\n{of_a_model.stdout}", Path(__file__).parent / "golden" / "fit.txt")


def test_the_options_reach_the_program_or_the_training_of_its_own(command):
    words = ["--model", "resnet50", "--batch-size", "64", "--precision", "bf16"]
    assert command("--program", STEPS[1], *words).returncode == 0
    assert command.asked == (STEPS[1], words, [])
    assert command(*words, "--optimizer", "adamw", "--memory", "16GB", "--json").returncode == 0
    assert command.asked == (Own("resnet50", 64, 224, "bf16", "adamw"), words, [16 * 10**9])


@pytest.mark.parametrize(("option", "least", "most"), [("--batch-size", 1, 65536), ("--image-size", 16, 1024)])
def test_options_have_limits(command, option, least, most):
    assert [command(option, value).returncode for value in (least - 1, least, most, most + 1)] == [2, 0, 0, 2]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--step", "99"], "--step 99: there is no such step; they are 00_baseline"),
        (["--program", "nowhere.py"], "--program nowhere.py: there is no such file"),
        (["--program", ROOT / "labs/memory/study.py"], "study.py: it does not call run_step"),
        (["--step", "02", "--optimizer", "adam"], "--optimizer: a program has its own"),
        (["--model", "vgg11", "--image-size", "32", "--checkpoint"], "vgg11 has no blocks"),
        (["--model", "resnet5"], "unknown model 'resnet5': did you mean"),
        (["--model", "alexnet", "--image-size", "16"], "it cannot be predicted (RuntimeError: "),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(command, monkeypatch, words, reason):
    monkeypatch.setattr(predict, "predicted", predicted)
    frozen = gc.get_freeze_count()
    assert_refused(command(*words), reason)
    assert gc.get_freeze_count() <= frozen  # else the process would end with complaints of what is left


def test_a_torch_whose_tools_count_something_else_is_named_in_one_line(command, monkeypatch):
    monkeypatch.setattr(predict.MemoryTracker, "mark_state", lambda self: None)
    missing = f"torch {torch.__version__} lacks what a prediction needs, or has moved it"
    assert_refused(command(), missing, "RuntimeError: a linear layer is predicted with")


def test_a_gpu_that_is_out_of_memory_names_the_command_that_says_what_fits(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=15_843_721_216))
    monkeypatch.setattr(failures, "device_name", lambda device: "Tesla T4")
    args = SimpleNamespace(model="small", image_size=224, precision="auto", batch_size=512)
    loader, device = SimpleNamespace(batch_size=512, num_workers=0), torch.device("cuda")
    command = "fit --program steps/02_bigger_batch.py --model small --image-size 224 --precision auto --memory 15GB"
    with pytest.raises(InputError, match=f"{command}$"), failures.as_input_error(args, loader, device, str(STEPS[2])):
        raise torch.OutOfMemoryError("CUDA out of memory")
