"""labs/pruning: masks, resets and channels by known answers, the program, and a whole small study."""

import json
from dataclasses import replace

import pytest
import torch
from support import ROOT, assert_refused
from support.labs import lab_options
from torch import nn
from torch.nn.utils import prune as torch_prune
from torchvision.models import MobileNetV2

from labs.pruning import masks, prune, study
from labs.pruning.masks import prunable, without_channels
from labs.pruning.model import network, network_like, small_mobilenet
from labs.pruning.prune import count_rows, data_of, optimizer_at, read_trained, reset, train
from labs.shared.training import CHECKPOINT, packed, unpacked
from walkthrough.compare.statistics import Mean
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError


@pytest.fixture
def options(few_digits, tmp_path, monkeypatch):
    """Those of a network of 4 channels, three epochs of 40 digits."""
    monkeypatch.setitem(prune.RECIPES, "digits", {"epochs": 3, "lr": 0.1, "image_size": 8})
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return lab_options(tmp_path, model="w4", image_size=8)


def linear(*weights):
    """A model of one linear layer for each list of weights."""
    layers = [nn.Linear(len(own), 1) for own in weights]
    with torch.no_grad():
        for layer, own in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.tensor([own]))
    return nn.Sequential(*layers)


def test_the_smallest_weights_go_over_all_layers_or_within_each():
    model = linear([1.0, -2.0, 3.0, 4.0], [0.1, 20.0, -30.0, 0.4])
    both = masks.masks_of(model, 0.5, "global")
    assert both["0"].tolist() == [[False, False, True, True]]
    assert both["1"].tolist() == [[False, True, True, False]]
    each = masks.masks_of(linear([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]), 0.5, "layer-wise")
    assert [int(mask.sum()) for mask in each.values()] == [2, 2]


def test_random_masks_are_of_their_seed_and_leave_torchs_random_numbers_alone():
    model = linear([1.0] * 40, [2.0] * 60)
    state = torch.get_rng_state()
    one, same, other = (masks.masks_of(model, 0.9, "random", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert sum(int(mask.sum()) for mask in one.values()) == 10


def test_a_masked_weight_is_zero_gets_no_gradient_and_stays_pruned():
    model = linear([1.0, 2.0, 3.0, 4.0])
    masks.apply(model, masks.masks_of(model, 0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert model[0].weight[0, :2].tolist() == [0, 0]
    assert model[0].weight_orig.grad[0].tolist() == [0, 0, 1, 1]
    assert masks.masks_of(model, 0.75)["0"].sum() == 1 and torch_prune.is_pruned(model[0])  # the next round
    before = model(torch.ones(1, 4)).item()
    masks.remove(model)
    assert isinstance(model[0].weight, nn.Parameter) and model(torch.ones(1, 4)).item() == before


def test_the_published_count_of_weights_is_of_parameters_and_statistics():
    model = network("mobilenet_v2", 3, 1000)
    weights, parameters, pooled = (len(masks.magnitudes(model, of)) for of in ("weights", "parameters", "pooled"))
    assert parameters == 3_504_872 == sum(parameter.numel() for parameter in model.parameters())
    assert (pooled - parameters, pooled) == (34_112, study.PUBLISHED_WEIGHTS)
    assert weights == 3_469_760


def test_statistics_in_a_threshold_prune_more_than_was_asked_for():
    model = nn.Sequential(nn.Conv2d(1, 10, 1, bias=False), nn.BatchNorm2d(10))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(1.0, 11).view(10, 1, 1, 1) / 10)
        model[1].weight.fill_(0.01)
        model[1].running_mean.fill_(100)
    [row] = count_rows(model, [0.5])
    # 10 weights, 10 factors of 0.01, 10 biases of 0; 10 means of 100 and 10 variances of 1
    assert [*row.values()] == pytest.approx([50, 0.6, 0.6, 250 / 3])  # asked for, two thresholds, what is pruned


def test_a_training_that_begins_later_goes_on_as_the_whole_one_did(options, tmp_path):
    data, settings = data_of(options)
    torch.manual_seed(0)
    model = network("w4", 1, 10)
    train(model, optimizer_at(model, settings), data, settings, tmp_path / "whole", keep=(0, 1, 2))
    states = read_trained(tmp_path / "whole")
    assert sorted(states) == [0, 1, 2, 3]
    for begin in (1, 1):  # a state is as it was after a training that began from it
        own = network("w4", 1, 10)
        optimizer = optimizer_at(own, settings, states[begin])
        masks.apply(own, {name: torch.ones_like(module.weight).bool() for name, module in prunable(own).items()})
        run = train(own, optimizer, data, settings, begin=begin)
        assert [row["epoch"] for row in run.rows] == list(range(begin + 1, 4))
        assert run.rows[-1]["loss"] == pytest.approx(states[3]["epochs"][-1]["loss"])
        masks.remove(own)
        end = states[3]["model"]
        assert all(torch.allclose(value, end[name], atol=1e-6) for name, value in own.state_dict().items()), begin


@pytest.mark.parametrize(("epoch", "how", "weights"), [(0, "layer-wise", [0, 0, 7, 6]), (3, "channels", [1, 2, 3, 4])])
def test_a_reset_keeps_early_values_of_the_weights_that_are_largest_at_the_end_and_the_trainings_optimizer(
    options, epoch, how, weights
):
    _, settings = data_of(options)
    early, ends = linear([9.0, 8.0, 7.0, 6.0]), linear([1.0, 2.0, 3.0, 4.0])
    states = {}
    for at, of, decay in ((0, early, 0.7), (3, ends, 4e-5)):
        theirs = torch.optim.SGD(of.parameters(), 0.5, 0.8, weight_decay=decay)
        states[at] = {"model": of.state_dict(), "optimizer": theirs.state_dict()}
    model, optimizer = reset(linear([0.0] * 4), states, 0.5, epoch, how, settings)
    assert model[0].weight.tolist() == [weights]
    names = ("momentum", "weight_decay", "nesterov", "lr")
    assert [optimizer.param_groups[0][name] for name in names] == [0.8, 4e-5, False, settings.lr]
    assert optimizer_at(model, settings).param_groups[0]["weight_decay"] == prune.WEIGHT_DECAY


@pytest.mark.xdist_group("scale data")  # images are drawn once
def test_a_checkpoint_of_the_scale_lab_is_pruned_from_an_epoch_that_it_kept(tmp_path, run_here, drawn):
    """Its file is what `Training.state` writes of torchvision's MobileNetV2; here a tiny one, after two epochs."""
    model = MobileNetV2(4, width_mult=0.25)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, 0.9)
    settings = {"model": "w8", "data": "drawn", "image_size": 32, "batch_size": 8, "epochs": 2, "lr": 0.02, "seed": 5}
    (tmp_path / "trained").mkdir()
    for epoch, name in ((1, "epoch-1.pt"), (2, CHECKPOINT)):
        model(torch.randn(4, 3, 32, 32)).sum().backward()
        optimizer.step()
        state = {"settings": settings, "epochs": [{}] * epoch, "model": model.state_dict()}
        (tmp_path / "trained" / name).write_bytes(packed({**state, "optimizer": optimizer.state_dict()}))

    def pruned(*words):
        own = ("--device", "cpu", "--data", drawn, "--shares", "0.9", "--trained", tmp_path / "trained")
        return run_here(ROOT / "labs" / "pruning" / "prune.py", *own, "--logdir", tmp_path / "out", *words)

    assert "epochs 2, lr 0.02, seed 5" in pruned().stdout  # its settings, not this lab's
    folder = tmp_path / "out" / "layer-wise-90-reset-1"
    assert [row["epoch"] for row in unpacked((folder / CHECKPOINT).read_bytes())["epochs"]] == [2]
    model.load_state_dict(unpacked((folder / "pruned.pt").read_bytes()))
    assert (masks.magnitudes(model, "weights") == 0).float().mean() == pytest.approx(0.9, abs=0.001)
    assert_refused(pruned("--model", "w16"), "--model w16: --trained is of w8; leave --model out")


def test_weights_of_others_are_read_and_those_of_another_network_refused(tmp_path):
    weights = MobileNetV2(10, width_mult=0.25).state_dict()
    torch.save({"state_dict": {f"module.{name}": value for name, value in weights.items()}}, tmp_path / "theirs.pth")
    [(epoch, state)] = read_trained(tmp_path / "theirs.pth").items()
    assert epoch == 0 and set(state["model"]) == set(weights)
    assert isinstance(network_like(state["model"], "w4", 3, 10), MobileNetV2)
    with pytest.raises(InputError, match="no MobileNetV2 for 2 classes of images with 3 channel"):
        network_like(state["model"], "w4", 3, 2)


def test_channels_that_are_gone_were_those_that_did_nothing():
    model = small_mobilenet(8, 1, 10).eval()
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    blocks = [block for block in model if hasattr(block, "conv") and len(block.conv) == 4]
    assert len(blocks) == 6
    with torch.no_grad():
        for block in blocks:
            silent = torch.arange(len(block.conv[1][0].weight)) % 2 == 0
            for values in (block.conv[1][0].weight, block.conv[1][1].weight, block.conv[1][1].bias):
                values[silent] = 0
    smaller = without_channels(model, 0.5).eval()
    assert torch.allclose(smaller(images), model(images), atol=1e-5)
    few, all_of_them = (sum(parameter.numel() for parameter in one.parameters()) for one in (smaller, model))
    assert few < 0.7 * all_of_them


# The study


def test_differences_are_paired_by_seed():
    cells = {
        study.Cell(0.95): {0: 0.90, 1: 0.91},
        study.Cell(0.95, 2): {0: 0.94, 1: 0.96},
        study.Cell(0.95, 2, "global"): {1: 0.9},
    }
    rows = {row["points"]: row["95 %"] for row in study.difference_rows(cells, 2, [0.95])}
    assert rows["late - initialisation"].mean == pytest.approx(4.5)
    assert rows["late, global masks - late"] == Mean(pytest.approx(-6), None, None, 1)
    assert rows["initialisation - other random weights"] is None
    accuracies = {row["accuracy"]: row["95 %"] for row in study.variant_rows(cells, 2, [0.95])}
    assert accuracies["late"].mean == pytest.approx(95)


def test_a_small_study_fills_every_table(options, tmp_path, monkeypatch, run_main):
    def here(self, what, **settings):
        if settings.get("how") == "random":
            raise NotMeasured("the loss of epoch 1 is no number")
        return json.loads(json.dumps(getattr(study, what)(self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setitem(prune.RECIPES, "digits", {"epochs": 2, "lr": 0.1, "image_size": 8})
    for name, value in (("SHARES", (0.95,)), ("RESETS", (0, 1)), ("SEEDS", 1), ("ROUNDS", 1)):
        monkeypatch.setattr(study, name, {True: value})
    monkeypatch.setattr(study, "QUICK", replace(study.QUICK, window_seconds=0.0))
    monkeypatch.setattr(study, "usable_cores", lambda: 2)
    words = ["--quick", "--device", "cpu", "--model", "w4", "--batch-size", "20", "--data", tmp_path]
    assert run_main(study, *words, "--logdir", tmp_path).returncode == 0
    result = read(tmp_path / "labs" / "pruning" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    assert "1 of 8 trainings (retrained) failed and are left out" in result.notes
    needs = {claim.id: claim.needs for claim in result.claims}
    assert needs["late-reset"] == "three seeds that differ" and needs["layer-wise-random"] == "its measurement"
