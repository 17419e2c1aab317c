"""labs/transformer: its programs as lessons, that none of them changes what is learned, and the models they train."""

import json
import random
from functools import partial

import pytest
import torch
from support import assert_refused
from torch import nn

from common.program import captured
from walkthrough.results.errors import InputError

pytest.importorskip("transformers", reason="labs/transformer/requirements.txt is not installed")

import transformers

from labs.transformer import data
from labs.transformer.batches import Packing
from labs.transformer.data import Example, Texts, tokenizer_for
from labs.transformer.model import SIZES, Size, classifier, packed_logits
from labs.transformer.train import PROGRAMS, program_for

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*")  # of transformers

NAMES = list(PROGRAMS)
CLASSES = ("alpha", "beta", "gamma")
BATCH = 20  # texts: parts of 8, 8 and 4
TOLERANCE = 1e-5  # absolute, of losses and gradients near 1: other kernels and sums in another order round otherwise


@pytest.fixture(scope="module")
def texts():
    """Made-up texts of three classes, each with words of its own, with long-tailed lengths."""
    draw = random.Random(0)

    def example(number):
        length = min(60, 2 + int(draw.expovariate(0.08)))
        words = [draw.choice("abcdefgh") + CLASSES[number % 3][:2] for _ in range(length)]
        return Example(" ".join(words), number % 3)

    return Texts(*(tuple(example(number) for number in range(size)) for size in (84, 12, 12)), CLASSES, "made up")


@pytest.fixture(scope="module")
def program(texts):
    """program(name, *words): a numbered program, captured, on the made-up texts, with a tiny model on a CPU."""
    words = ("--device", "cpu", "--batch-size", str(BATCH), "--workers", "0", "--precision", "fp32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", Size(layers=1, width=32, heads=2, hidden=64, max_tokens=48))
        patch.setattr(data, "texts", lambda _: texts)
        yield lambda name, *more: captured(PROGRAMS[name], [*words, *more])


@pytest.fixture(scope="module")
def baseline(program):
    """(loss, {weight: gradient}) of the first program."""
    return loss_and_gradients(program("00_baseline"))


@pytest.fixture
def compiled_without_code(monkeypatch):
    """torch.compile with its tracing, but without generating code, which takes a minute."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    torch._dynamo.reset()


def loss_and_gradients(of):
    """Of one step of a program on the first texts, without dropout: (loss, {weight: gradient})."""
    net = of.variables["model"]
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    loss = of.train_step(*of.loader.collate_fn([of.loader.dataset[number] for number in range(BATCH)])).item()
    return loss, {name: weight.grad.clone() for name, weight in net.named_parameters()}


@pytest.mark.parametrize("name", NAMES[1:-1])
def test_no_program_changes_the_loss_or_the_gradients_of_a_batch(name, program, baseline):
    assert_learns_as(baseline, program(name))


def assert_learns_as(baseline, of):
    loss, gradients = baseline
    own_loss, own_gradients = loss_and_gradients(of)
    assert own_loss == pytest.approx(loss, abs=TOLERANCE)
    for weight, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[weight], gradient, rtol=0, atol=TOLERANCE)
    assert max(gradient.abs().max() for gradient in gradients.values()) > 100 * TOLERANCE


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_16_bits_the_loss_is_that_of_float32_but_for_rounding(precision, program, baseline):
    """fp16 is what a T4 computes in, with a GradScaler."""
    loss, gradients = baseline
    own_loss, own_gradients = loss_and_gradients(program("01_mixed_precision", "--precision", precision))
    assert own_loss == pytest.approx(loss, rel=2**-6)  # bf16 has 8 bits, fp16 11: a loss differs by a few roundings
    assert own_loss != loss
    name = "classifier.bias"
    scale = own_gradients[name].norm() / gradients[name].norm()  # fp16's were scaled, and unscaled before the step
    torch.testing.assert_close(own_gradients[name] / scale, gradients[name], rtol=0.05, atol=0.02)


def tokenizer_of():
    return tokenizer_for("tiny", (Example("ab ac", 0),))


def test_packed_texts_do_not_see_each_other(monkeypatch):
    """Another token in one text changes that text's logits alone, bit by bit."""
    monkeypatch.setitem(SIZES, "tiny", Size(layers=1, width=32, heads=2, hidden=64, max_tokens=48, vocabulary=100))
    net = classifier("tiny", tokenizer_of(), CLASSES, "sdpa").eval()
    ids, positions, starts = Packing(0)([([1, *range(10, 10 + length)], 0) for length in (20, 9, 7, 3, 30)])[1:]
    changed = ids.clone()
    changed[0, 1] = 99
    before, after = packed_logits(net, ids, positions, starts), packed_logits(net, changed, positions, starts)
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [False, *[True] * 4]


def test_the_compiled_program_learns_as_the_baseline_with_one_graph_for_all_sizes(
    program, baseline, compiled_without_code
):
    of, sizes = program("10_compile"), set()
    assert_learns_as(baseline, of)
    for number in range(3):
        items = [([1, *[4 + at % 5] * (5 + (number + 2) * (at % 4))], at % 3) for at in range(14 + 3 * number)]
        batch = of.loader.collate_fn(items)
        sizes.add(tuple(batch[1].shape))
        of.train_step(*batch)
    assert len(sizes) == 3
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_base_has_the_parameters_of_distilbert_base_uncased():
    with torch.device("meta"):
        of = classifier("base", tokenizer_of(), ("a", "b"))
    assert sum(weight.numel() for weight in of.parameters()) == 66_955_010  # by its model card: 67 M, with two classes


def test_another_architecture_is_loaded_with_all_its_weights_and_is_not_packed(tmp_path):
    bert = str(tmp_path)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=40,
    )  # fmt: skip
    saved = transformers.BertForSequenceClassification(config)
    saved.save_pretrained(bert)
    tokenizer_of().save_pretrained(bert)
    tokenizer = tokenizer_for(bert, ())
    assert tokenizer.model_max_length == 40
    of = classifier(bert, tokenizer, CLASSES, "sdpa")
    assert torch.equal(of.base_model.embeddings.word_embeddings.weight, saved.bert.embeddings.word_embeddings.weight)
    assert of.config.id2label == dict(enumerate(CLASSES)) and of.classifier.out_features == 3 and of.training
    assert program_for(bert) == "08_uniform_length" and program_for("tiny") == "09_packing"
    transformers.DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, hidden_dim=32).save_pretrained(bert)
    with pytest.raises(InputError, match=r"\d+ weights of a distilbert are missing, such as distilbert\."):
        classifier(bert, tokenizer, CLASSES)  # instead of random ones


def test_a_program_runs_and_leaves_its_result(run_here, program, tmp_path, monkeypatch):
    path = PROGRAMS["09_packing"]
    words = ("--quick", "--device", "cpu", "--logdir", tmp_path, "--workers", 0, "--batch-size", 8)
    run_here(path, *words)
    result = json.loads((tmp_path / "09_packing" / "result.json").read_text())
    assert (result["data"], result["image_size"]) == ("made up", 0) and result["tokens_per_second"]["median"] > 0
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(run_here(path, *words, "--model", "no-such/model"), "--model no-such/model: AutoTokenizer")
