"""labs/transformer: its programs as lessons, and that none of them changes what is learned."""

import ast
import difflib
import itertools
import random
import sys
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from support import ROOT, assert_refused
from torch import nn
from torch.nn.attention import flex_attention

from common.device import without_gpu
from common.options import StepOptions
from common.program import captured, words_of
from walkthrough.results.errors import InputError

pytest.importorskip("transformers", reason="labs/transformer/requirements.txt is not installed")

from labs.transformer import data, model
from labs.transformer.batches import FixedPadding, Packing, packed_micro_batches
from labs.transformer.model import SIZES, Size, block_diagonal, classifier, graphs_compiled, max_tokens, packed_logits
from labs.transformer.texts import Example, Texts
from labs.transformer.tricks import NEEDS, TRICKS, alone, assemble, cumulative

FILES = sorted((ROOT / "labs" / "transformer").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in FILES]
OF_PROGRAM = {path.stem: None if path.stem == "00_baseline" else path.stem[3:] for path in FILES}
CLASSES = ("alpha", "beta", "gamma")
BATCH = 20  # texts: parts of 8, 8 and 4
TOLERANCE = 1e-5  # absolute, of losses and gradients near 1: other kernels and sums in another order round otherwise


@pytest.fixture(scope="module")
def texts():
    """Made-up texts of three classes, each with words of its own, with long-tailed lengths."""
    draw = random.Random(0)

    def example(number):
        words = [
            draw.choice("abcdefgh") + CLASSES[number % 3][:2] for _ in range(min(60, 2 + int(draw.expovariate(0.08))))
        ]
        return Example(" ".join(words), number % 3)

    return Texts(*(tuple(example(number) for number in range(size)) for size in (84, 12, 12)), CLASSES, "made up")


@pytest.fixture
def options(tmp_path, texts, monkeypatch):
    """Of a tiny model on the made-up texts, which stand in place of the installed packages'."""
    monkeypatch.setitem(SIZES, "tiny", Size(layers=1, width=32, heads=2, hidden=64, max_tokens=48))
    monkeypatch.setattr(data, "texts", lambda _: texts)
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path, download=False, model="tiny", image_size=0,
        batch_size=BATCH, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_warnings_of_others():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*no accelerator")
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing_enable.*")
        yield


def code_lines(path):
    text = path.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_program_is_whole_and_opens_as_a_step_does(path):
    assert 20 < len(code_lines(path)) <= 80
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring.startswith(f"Transformer {path.stem[:2]}: ")
    for part in ("\nIdea ", "\nChange ", "\nLook for ", "\nCaution "):
        assert docstring.count(part) == 1
    assert docstring.count("\nNo GPU ") == bool(without_gpu(path.stem[3:], "cpu"))
    assert max(map(len, docstring.splitlines())) <= 120


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(FILES)), ids=NAMES[1:])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    assert 0 < max(sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- ")) <= 15


def test_there_is_a_program_for_each_trick_in_their_order():
    assert [name[3:] for name in NAMES[1:]] == list(TRICKS)


def test_packing_takes_the_place_of_padding_and_a_fused_kernel_that_of_checkpointing():
    assert "gradient_checkpointing" in cumulative("gradient_checkpointing") - cumulative("sdpa")
    assert cumulative("uniform_length") - cumulative("packing") == {"dynamic_padding", "uniform_length"}
    assert cumulative(None) == frozenset()
    assert alone("uniform_length") == ({"dynamic_padding", "uniform_length"}, {"dynamic_padding"})
    assert alone("sdpa") == ({"sdpa"}, frozenset())
    assert set(NEEDS) < set(TRICKS)


def losses_of(training, steps=3):
    batches = iter(training.loader)
    return [training.train_step(*next(batches)).item() for _ in range(steps)]


@pytest.fixture
def compiled_without_code(monkeypatch):
    """torch.compile with its tracing, but without generating code, which takes a minute."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_the_study_measures_is_what_the_program_does(path, options, compiled_without_code):
    program = captured(path, words_of(options))
    losses = losses_of(program)
    training = assemble(options, cumulative(OF_PROGRAM[path.stem]))
    assert losses_of(training) == losses  # dropout included: the same numbers are drawn in the same order
    assert training.precision == program.precision
    assert training.loader.batch_size == program.loader.batch_size
    assert training.loader.pin_memory == program.loader.pin_memory
    batch = next(iter(program.loader))
    assert training.count_tokens(batch) == program.count_tokens(batch)


def without_dropout(of):
    for module in of.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return of


def loss_and_gradients(options, on, items):
    """Of one step on these items, without dropout, with the tricks `on`: (loss, {weight: gradient})."""
    training = assemble(options, on)
    without_dropout(training.variables["model"])
    loss = training.train_step(*training.loader.collate_fn(items)).item()
    return loss, {name: weight.grad.clone() for name, weight in training.variables["model"].named_parameters()}


@pytest.fixture
def items(options):
    train_set, _ = data.training_set(options)
    return [train_set[number] for number in range(BATCH)]


@pytest.mark.parametrize("trick", [*TRICKS[:-1], "all"])
def test_no_trick_changes_the_loss_or_the_gradients_of_a_batch(trick, options, items):
    """Fixed padding, whole batches and eager attention against dynamic padding, parts, SDPA, packing and the others."""
    on = cumulative("fused_adamw") if trick == "all" else alone(trick)[0]
    loss, gradients = loss_and_gradients(options, (), items)
    own_loss, own_gradients = loss_and_gradients(options, on, items)
    assert own_loss == pytest.approx(loss, abs=TOLERANCE)
    for name, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[name], gradient, rtol=0, atol=TOLERANCE)
    assert max(gradient.abs().max() for gradient in gradients.values()) > 100 * TOLERANCE


def test_a_compiled_program_has_the_loss_and_the_gradients_of_the_baseline(options, items, compiled_without_code):
    loss, gradients = loss_and_gradients(options, (), items)
    own_loss, own_gradients = loss_and_gradients(options, cumulative("compile"), items)
    assert graphs_compiled() == 1
    assert own_loss == pytest.approx(loss, abs=TOLERANCE)
    for name, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[name], gradient, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_16_bits_the_loss_is_that_of_float32_but_for_rounding(precision, options, items):
    """fp16 is what a T4 computes in, with a GradScaler."""
    loss, gradients = loss_and_gradients(options, (), items)
    own_loss, own_gradients = loss_and_gradients(replace(options, precision=precision), {"mixed_precision"}, items)
    assert own_loss == pytest.approx(loss, rel=2**-6)  # bf16 has 8 bits, fp16 11: a loss differs by a few roundings
    assert own_loss != loss
    name = "classifier.bias"
    scale = own_gradients[name].norm() / gradients[name].norm()  # fp16's were scaled, and unscaled before the step
    torch.testing.assert_close(own_gradients[name] / scale, gradients[name], rtol=0.05, atol=0.02)


def test_the_trap_the_mean_of_the_parts_means_counts_a_smaller_last_part_too_much(options, items):
    """Parts of 8, 8 and 4 of 20 texts: the last would count as much as the others."""
    of = without_dropout(assemble(options, ()).variables["model"])
    of.classifier.bias.data = torch.tensor([2.0, 0.0, 0.0])  # so that losses differ by class
    labels, ids = FixedPadding(0, 48)(sorted(items, key=lambda item: item[1]))
    logits = of(ids, attention_mask=ids != 0).logits
    loss = nn.functional.cross_entropy(logits, labels).item()
    losses = nn.functional.cross_entropy(logits, labels, reduction="none").split(8)
    weighted = sum(part.mean() * len(part) / len(labels) for part in losses)
    assert weighted.item() == pytest.approx(loss, abs=TOLERANCE)
    assert torch.stack([part.mean() for part in losses]).mean().item() > loss + 0.05


def test_packed_parts_hold_unequal_numbers_of_texts_and_lose_none(items):
    batch = Packing(0)(items)
    parts = list(packed_micro_batches(batch, rows=2))
    assert len(parts) == -(-len(batch[1]) // 2) > 2
    assert torch.equal(torch.cat([part[0] for part in parts]), batch[0])
    assert torch.equal(torch.cat([part[1] for part in parts]), batch[1])
    assert len({len(part[0]) for part in parts}) > 1
    assert max(len(part[1]) for part in parts) <= 2
    for labels, ids, positions, starts in parts:
        assert len(labels) == len(starts)
        assert positions.flatten()[starts].eq(0).all() and ids.flatten()[starts].eq(1).all()  # 1: [CLS]


# Packing


@pytest.fixture
def net(options):
    torch.manual_seed(1)
    of = without_dropout(classifier("tiny", 100, 0, 3, "sdpa")).eval()
    for name, weight in of.named_parameters():
        if name.endswith("lin.weight"):
            nn.init.normal_(weight, std=0.2)  # attention that tells tokens apart, as a trained one does
    return of


def test_packed_texts_do_not_see_each_other(net):
    """Another token in one text changes that text's logits alone, bit by bit."""
    items = [([1, *range(10, 10 + length)], 0) for length in (20, 9, 7, 3, 30)]
    _, ids, positions, starts = Packing(0)(items)
    changed = ids.clone()
    changed[0, 1] = 99
    before, after = packed_logits(net, ids, positions, starts), packed_logits(net, changed, positions, starts)
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_the_trap_without_a_mask_packed_texts_see_each_other(net, monkeypatch):
    items = [([1, *range(10, 10 + length)], 0) for length in (20, 9, 7)]
    _, ids, positions, starts = Packing(0)(items)
    masked = packed_logits(net, ids, positions, starts)
    monkeypatch.setattr(model, "block_diagonal", lambda *_: None)
    assert not torch.allclose(packed_logits(net, ids, positions, starts)[1:], masked[1:], atol=1e-3)


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
@pytest.mark.filterwarnings("ignore:.*_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
def test_each_attention_keeps_packed_texts_apart_as_sdpa_does(net, attention, options, monkeypatch):
    """FlexAttention as it is written in Python: compiled, it is a GPU's."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    items = [([1, *range(10, 10 + length)], 0) for length in (40, 20, 9, 7, 3, 30)]
    _, ids, positions, starts = Packing(0)(items)
    expected = packed_logits(net, ids, positions, starts)
    other = classifier("tiny", 100, 0, 3, attention).eval()
    other.load_state_dict(net.state_dict())
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(packed_logits(other, ids, positions, starts), expected, rtol=0, atol=TOLERANCE)


def test_the_mask_is_block_diagonal_and_what_fills_up_sees_itself():
    mask = block_diagonal(torch.tensor([[0, 1, 2, 0, 1, 0, 0]]))
    blocks = torch.block_diag(*(torch.ones(size, size) for size in (3, 2, 1, 1))).bool()
    assert torch.equal(mask[0, 0], blocks)
    assert torch.equal(block_diagonal(torch.tensor([[0, 1, 2, 0, 1, 0, 0]]), "eager")[0, 0] == 0, blocks)


# torch.compile


def graphs(options, marked):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    training = assemble(options, cumulative("compile"), marked=marked)
    collate, sizes = training.loader.collate_fn, set()
    for number in range(4):
        items = [([1, *[10 + at % 5] * (5 + (number + 2) * (at % 4))], at % 3) for at in range(14 + 3 * number)]
        batch = collate(items)
        sizes.add(tuple(batch[1].shape))
        training.train_step(*batch)
    assert len(sizes) == 4
    return graphs_compiled()


def test_marked_sizes_need_one_graph_and_unmarked_ones_more(options, compiled_without_code):
    assert graphs(options, marked=True) == 1
    assert graphs(options, marked=False) > 1


# The model


def test_base_has_the_parameters_of_distilbert_base_uncased():
    with torch.device("meta"):
        of = classifier("base", 30522, 0, 2)
    assert sum(weight.numel() for weight in of.parameters()) == 66_955_010  # by its model card: 67 M, with two classes
    assert (max_tokens("base"), max_tokens("distilbert-base-uncased"), max_tokens("tiny")) == (512, 512, 512)


def test_attention_weights_are_not_dropped_out():
    of = classifier("tiny", 100, 0, 3)
    assert {layer.attention.dropout.p for layer in of.distilbert.transformer.layer} == {0.0}
    assert of.dropout.p > 0


def test_a_model_that_the_hub_does_not_give_is_refused_in_one_line(monkeypatch):
    from transformers import DistilBertForSequenceClassification

    def from_pretrained(name, **_):
        raise OSError(f"We couldn't connect to the Hub to load {name}\n and so on")

    monkeypatch.setattr(DistilBertForSequenceClassification, "from_pretrained", from_pretrained)
    with pytest.raises(
        InputError, match=r"--model bert-huge could not be loaded .*: use tiny, small, base, or"
    ) as error:
        classifier("bert-huge", 10, 0, 2)
    assert "\n" not in str(error.value)


def test_a_machine_without_transformers_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install -r labs/transformer/requirements\.txt"):
        classifier("tiny", 10, 0, 2)


@pytest.mark.parametrize(
    "on", [("packing", "dynamic_padding"), ("packing", "uniform_length"), ("packing", "quantisation")]
)
def test_tricks_that_exclude_each_other_or_are_unknown_are_refused(on, options):
    with pytest.raises(InputError):
        assemble(options, on)


def test_a_program_runs_and_leaves_its_result(run_here, options, capsys, monkeypatch):
    path = ROOT / "labs" / "transformer" / "10_fused_adamw.py"
    words = ("--quick", "--device", "cpu", "--logdir", options.logdir, "--batch-size", 8, "--workers", 0)
    done = run_here(path, *words)
    assert done.returncode == 0
    assert "tokens/s" in done.stdout and "loss:" in done.stdout
    assert (options.logdir / "10_fused_adamw" / "result.json").exists()
    assert_refused(run_here(path, *words[:-3], 4096), "--batch-size 4096 is larger than the data (84 texts)")
    monkeypatch.setattr("labs.transformer.data.hub_tokenizer", not_on_the_hub)  # which asks for half a minute
    assert_refused(run_here(path, *words, "--model", "no-such/model"), "--model no-such/model: no such tokenizer")


def not_on_the_hub(name, lab, instead):
    raise InputError(f"--model {name}: no such tokenizer")
