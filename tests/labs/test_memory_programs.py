"""labs/memory: its programs as lessons, and that none of them changes what is learned."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support import ROOT
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnext50_32x4d

from common import program as programs
from common.options import StepOptions
from labs.memory.model import PUBLISHED, resnext
from labs.memory.recompute import convolutions_kept, statistics_once
from walkthrough.results.errors import InputError

FILES = sorted((ROOT / "labs" / "memory").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in FILES]
EAGER = [path for path in FILES if "compiled" not in path.stem]
SMALL = "resnext11_1x4d"


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    return StepOptions(
        logdir=folder, device="cpu", data=folder, download=False, model=SMALL, image_size=16,
        batch_size=8, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


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
    """(losses, state) of three steps of the first program, in float32."""
    return trained(EAGER[0], options)


@pytest.mark.parametrize("path", EAGER[1:], ids=NAMES[1:-1])
def test_every_program_learns_exactly_what_the_baseline_does_and_in_bf16_but_for_rounding(path, options, baseline):
    losses, state = baseline
    own_losses, own_state = trained(path, options)
    assert own_losses == losses
    assert losses[-1] < losses[0]
    assert all(torch.equal(own_state[name], value) for name, value in state.items())
    (in_bf16,), _ = trained(path, replace(options, precision="bf16"), steps=1)
    assert in_bf16 == pytest.approx(losses[0], rel=2**-6)  # bf16 has 8 bits: a loss differs by a few roundings
    assert in_bf16 != losses[0]


@pytest.fixture
def compiled_without_inductor(monkeypatch):
    """torch.compile with its partitioner, which the budget is for, but without generating code, which takes minutes."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", partial(real, backend="aot_eager_decomp_partition"))
    monkeypatch.setattr(torch._functorch.config, "activation_memory_budget", 1.0)
    yield
    torch._dynamo.reset()


@pytest.mark.long
def test_the_compiled_program_learns_what_the_baseline_does_and_holds_less(
    options, baseline, compiled_without_inductor
):
    losses, state = baseline
    packed = []

    def keep(tensor):
        packed.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        own_losses, own_state = trained(FILES[-1], options)
        in_budget = sum(packed)
        packed.clear()
        torch._dynamo.reset()
        without = options.logdir / FILES[-1].name
        without.write_text(FILES[-1].read_text().replace("budget = 0.5", "budget = 1.0"))
        trained(without, options, steps=1)
    assert in_budget / 3 < 0.7 * sum(packed)
    assert own_state.keys() == state.keys()  # compiled in place: a checkpoint's names stay
    assert own_losses == pytest.approx(losses, rel=1e-3)  # other kernels round otherwise
    for name, value in state.items():
        if "num_batches" in name:
            assert own_state[name] == value == 3
        elif "running_var" in name:
            torch.testing.assert_close(own_state[name], value, rtol=0.05, atol=1e-3)


class Counted(nn.Sequential):
    """A stage with dropout, that counts its forward passes."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(4, 4, 1)
        )
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


def one_pass(context_fn=None, plain=False):
    """(stage after a forward and a backward pass, its output, its weights' gradients), from one seed."""
    torch.manual_seed(0)
    stage, x = Counted(), torch.randn(8, 4, 6, 6)
    if plain:
        output = stage(x)
    elif context_fn is None:
        output = checkpoint(stage, x, use_reentrant=False)
    else:
        output = checkpoint(stage, x, use_reentrant=False, context_fn=partial(context_fn, stage))
    output.square().mean().backward()
    return stage, output, [parameter.grad for parameter in stage.parameters()]


def test_the_trap_plain_checkpointing_moves_batch_norms_statistics_twice():
    once, twice = one_pass(plain=True)[0], one_pass()[0]
    assert (once.passes, twice.passes) == (1, 2)
    assert (once[1].num_batches_tracked, twice[1].num_batches_tracked) == (1, 2)
    moved = once[1].running_mean
    torch.testing.assert_close(twice[1].running_mean, moved + 0.9 * moved)  # momentum 0.1, from 0: m, then 0.9 m + m
    assert not torch.equal(once[1].running_var, twice[1].running_var)


@pytest.mark.parametrize("context_fn", [statistics_once, convolutions_kept])
def test_recomputation_restores_random_state_and_leaves_statistics_alone(context_fn):
    plain, output, gradients = one_pass(plain=True)
    stage, own_output, own_gradients = one_pass(context_fn)
    assert stage.passes == 2
    assert torch.equal(own_output, output)  # dropout dropped the same
    assert all(map(torch.equal, own_gradients, gradients))
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in stage.state_dict().items())
    assert (stage[1].momentum, stage[1].num_batches_tracked) == (0.1, 1)  # as before, for the next step


class ConvolutionCounter(TorchDispatchMode):
    """Counts the convolutions that are computed."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.convolution.default
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("context_fn", "count"), [(statistics_once, 2 + 1), (convolutions_kept, 2)])
def test_selective_checkpointing_computes_no_convolution_again(context_fn, count):
    """The stage ends with a convolution, whose result the backward pass does not need: it never runs again."""
    with ConvolutionCounter() as counter:
        one_pass(context_fn)
    assert counter.count == count


def test_models_have_the_parameters_of_the_published_ones():
    with torch.device("meta"):
        models = [resnext(PUBLISHED), resnext("resnext50_32x4d"), resnext50_32x4d(num_classes=10)]
        assert [model(torch.empty(2, 3, 32, 32)).shape for model in models] == [(2, 10)] * 3
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert counts[0] == 27_104_586  # resnext29_4x64d by pytorch-cifar's, 27.1 M
    assert counts[2] - counts[1] == (7 * 7 - 1) * 3 * 64  # torchvision's, but for the first layer


BAD = "resnet18 resnext30_4x64d resnext51_4x64d resnext2_4x64d resnext29_0x64d resnext29_4x64".split()


@pytest.mark.parametrize("name", BAD)
def test_a_model_that_there_is_not_is_refused(name):
    with pytest.raises(InputError, match="resnextD_CxWd"):
        resnext(name)
