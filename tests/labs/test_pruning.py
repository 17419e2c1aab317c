"""labs/pruning: masks, resets and channels by known answers, and a whole small study."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from support import ROOT
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from common.options import StepOptions
from labs.pruning import masks, measure, plans, published, study, tables
from labs.pruning.channels import without_channels
from labs.pruning.model import prunable, small_mobilenet, width_of
from labs.pruning.plans import Plan
from labs.pruning.training import Training, checkpoints, data_of, learning_rate
from labs.shared.study import measurements
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError

PLAN = Plan(epochs=3, lr=0.1, image_size=8, resets=(0, 1, 2), rounds=(0.5, 0.9))
TABLES = "counts quantiles misplaced grid resetting schedule masks channels speed processes pruned"


def density(of):
    """The share of the weights that stay."""
    return torch.cat([mask.flatten() for mask in of.values()]).float().mean().item()


@pytest.fixture
def options(few_digits, tmp_path, monkeypatch):
    """Those of a network of 4 channels, three epochs of 40 digits."""
    monkeypatch.setitem(plans.PLANS, "digits", PLAN)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return StepOptions(
        logdir=tmp_path, device="cpu", data=tmp_path, download=False, model="w4", image_size=8,
        batch_size=8, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


@pytest.fixture
def training(options):
    return Training(options, *data_of(options), seed=0)


def linear(*weights):
    """A model of one linear layer for each list of weights."""
    layers = [nn.Linear(len(own), 1) for own in weights]
    with torch.no_grad():
        for layer, own in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.tensor([own]))
    return nn.Sequential(*layers)


# Masks


def test_the_smallest_weights_go_over_all_layers_or_within_each():
    model = linear([1.0, -2.0, 3.0, 4.0], [0.1, 20.0, -30.0, 0.4])
    both = masks.masks_of(model, 0.5, "global")
    assert both["0"].tolist() == [[False, False, True, True]]
    assert both["1"].tolist() == [[False, True, True, False]]
    uneven = masks.masks_of(linear([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]), 0.5, "global")
    assert uneven["0"].sum() == 0 and uneven["1"].all()
    assert (masks.emptied(uneven), masks.emptied(both)) == (1, 0)
    each = masks.masks_of(linear([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]), 0.5, "layer-wise")
    assert [int(mask.sum()) for mask in each.values()] == [2, 2]
    assert density(each) == 0.5


def test_random_masks_are_of_their_seed_and_leave_torchs_random_numbers_alone():
    model = linear([1.0] * 40, [2.0] * 60)
    state = torch.get_rng_state()
    one, same, other = (masks.masks_of(model, 0.9, "random", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert density(one) == pytest.approx(0.1)


def test_what_is_pruned_stays_pruned_in_the_next_round():
    model = linear([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    first = masks.masks_of(model, 0.5)
    masks.apply(model, first)
    second = masks.masks_of(model, 0.75)
    assert prune.is_pruned(model[0])  # as it was
    assert second["0"].tolist() == [[False] * 6 + [True] * 2]


def test_a_masked_weight_is_zero_gets_no_gradient_and_stays_zero_for_good():
    model = linear([1.0, 2.0, 3.0, 4.0])
    masks.apply(model, masks.masks_of(model, 0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert model[0].weight[0, :2].tolist() == [0, 0]
    assert model[0].weight_orig.grad[0].tolist() == [0, 0, 1, 1]
    before = model(torch.ones(1, 4)).item()
    masks.remove(model)
    assert isinstance(model[0].weight, nn.Parameter) and model(torch.ones(1, 4)).item() == before


def test_of_four_neighbours_the_two_largest_stay():
    weight = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.0, 5.0, -6.0, 1.0]])
    assert masks.two_of_four(weight).int().tolist() == [[0, 1, 1, 0, 0, 1, 1, 0]]


def test_magnitudes_are_of_what_they_say_and_the_published_count_is_two_counts():
    from torchvision.models import mobilenet_v2

    model = mobilenet_v2()
    weights, parameters, pooled = (len(masks.magnitudes(model, of)) for of in ("weights", "parameters", "pooled"))
    assert parameters == published.PARAMETERS == sum(parameter.numel() for parameter in model.parameters())
    assert pooled - parameters == published.STATISTICS
    assert pooled == published.WEIGHTS
    assert weights < parameters


def test_a_threshold_is_the_value_below_which_a_share_lies():
    values = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
    assert masks.threshold(values, 0.6) == 4
    assert (values < masks.threshold(values, 0.6)).float().mean().item() == pytest.approx(0.6)
    assert masks.threshold(values, 1.0) == 5


# Training and resetting


def test_a_training_that_begins_later_goes_on_as_the_whole_one_did(options, training):
    whole = {}
    training.run(after=lambda epoch: whole.setdefault(epoch, training.accuracy()))
    end = [parameter.detach().clone() for parameter in training.model.parameters()]
    again = Training(options, *data_of(options), seed=0)
    kept = checkpoints(options, again, (0, 1, 2))
    for begin in (0, 1, 2):
        own = Training(options, *data_of(options), seed=0)
        own.load(kept[begin])
        everything = {name: torch.ones_like(module.weight).bool() for name, module in prunable(own.model).items()}
        own.mask(everything)  # of everything, so that nothing is left out
        own.run(begin=begin)
        masks.remove(own.model)
        named = dict(own.model.named_parameters())
        expected = dict(zip(dict(training.model.named_parameters()), end, strict=True))
        assert set(named) == set(expected)
        assert all(torch.allclose(named[name], expected[name], atol=1e-6) for name in expected), begin
        assert own.accuracy() == whole[PLAN.epochs]


def test_the_network_of_epoch_0_is_that_of_its_seed_and_weights_may_be_of_another(options, training):
    kept = checkpoints(options, Training(options, *data_of(options), seed=0), (0,))
    first = kept[0]["model"]
    assert all(torch.equal(value, first[name]) for name, value in training.model.state_dict().items())
    other = Training(options, *data_of(options), seed=0, weights_seed=7)
    assert not torch.equal(other.model[0][0].weight, training.model[0][0].weight)


def test_weights_are_trained_once_for_their_settings_and_a_damaged_file_is_one_line(options, training, monkeypatch):
    kept = checkpoints(options, training, (0, 1))
    [file] = (options.logdir / "weights").iterdir()
    assert set(kept) == {0, 1, 3}
    trained = []
    monkeypatch.setattr(Training, "run", lambda self, **_: trained.append(self.plan.lr))
    checkpoints(options, training, (0, 1))
    assert not trained
    training.plan = replace(PLAN, lr=0.2)  # other settings are another file
    with pytest.raises(KeyError):
        checkpoints(options, training, (0, 1))
    assert trained == [0.2]
    training.plan = PLAN
    file.write_bytes(b"no weights")
    with pytest.raises(InputError, match="delete it, and they are trained again") as error:
        checkpoints(options, training, (0, 1))
    assert str(file) in str(error.value)


def test_a_checkpoint_is_the_same_after_a_training_that_began_from_it(options, training):
    kept = checkpoints(options, training, (0, 1))
    ends = []
    for _ in range(2):
        own = Training(options, *data_of(options), seed=0)
        own.load(kept[1])
        own.run(begin=1)
        ends.append([parameter.detach().clone() for parameter in own.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_the_rate_rises_for_an_epoch_and_falls_to_zero():
    plan = Plan(epochs=11, lr=0.4, image_size=8, resets=())
    assert learning_rate(plan, 0.5) == pytest.approx(0.2)
    assert learning_rate(plan, 1) == 0.4
    assert learning_rate(plan, 6) == pytest.approx(0.2)
    assert learning_rate(plan, 11) == pytest.approx(0)


def test_a_loss_that_is_no_number_ends_the_training_in_one_line(options, training):
    training.images = training.images * float("nan")
    with pytest.raises(InputError, match="the loss of epoch 1 is no number"):
        training.run()


def test_a_batch_larger_than_the_data_and_an_unknown_network_are_refused(options):
    with pytest.raises(InputError, match="--batch-size 64 is larger than the data"):
        data_of(replace(options, batch_size=64))
    for name in ("w3", "w999", "mobilenet"):
        with pytest.raises(InputError, match=f"unknown model '{name}'"):
            width_of(name)


def test_a_folder_of_train_and_val_is_what_is_trained_on(options, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "val").mkdir()
    with pytest.raises(InputError, match="cannot read images from"):
        data_of(options)


# Channels


def test_channels_that_are_gone_were_those_that_did_nothing():
    model = small_mobilenet(8, 1, 10).eval()
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    blocks = [block for block in model if hasattr(block, "conv") and len(block.conv) == 4]
    assert len(blocks) == 6
    with torch.no_grad():
        for block in blocks:
            count = len(block.conv[1][0].weight)
            silent = torch.arange(count) % 2 == 0
            block.conv[1][0].weight[silent] = 0
            block.conv[1][1].weight[silent] = 0
            block.conv[1][1].bias[silent] = 0
    smaller = without_channels(model, 0.5).eval()
    assert torch.allclose(smaller(images), model(images), atol=1e-5)
    sizes = [sum(parameter.numel() for parameter in one.parameters()) for one in (smaller, model)]
    assert sizes[0] < 0.7 * sizes[1]
    assert smaller[2].conv[1][0].groups == smaller[2].conv[1][0].in_channels == smaller[2].conv[0][0].out_channels


def test_other_weights_can_decide_which_channels_go_and_one_stays():
    model, judge = small_mobilenet(8, 1, 10), small_mobilenet(8, 1, 10)
    with torch.no_grad():
        judge[2].conv[1][0].weight.zero_()
        judge[2].conv[1][0].weight[3] = 1
    smaller = without_channels(model, 0.999, judge)
    assert torch.equal(smaller[2].conv[0][0].weight[0], model[2].conv[0][0].weight[3])
    assert F.softmax(smaller(torch.zeros(2, 1, 16, 16)), 1).shape == (2, 10)


# The study


def by_seed(*values):
    return dict(enumerate(values))


def measured(**changes):
    values = {
        "unpruned": by_seed(0.98, 0.97), "without_retraining": {0.95: by_seed(0.2, 0.3)},
        "grid": {(0.95, 0): by_seed(0.90, 0.91), (0.95, 2): by_seed(0.94, 0.96)},
        "swapped": {(0.95, 2, 0): by_seed(0.97, 0.99), (0.95, 0, 2): by_seed(0.8, 0.81)},
        "others": {("random", 0.95): by_seed(0.5, 0.6)}, "reinitialised": {0.95: by_seed(0.85, 0.87)},
        "iterated": {(0.6, 2): by_seed(0.97, 0.97), (0.95, 2): by_seed(0.95, 0.95)},
        "channel_pruned": {0.9: by_seed(0.9, 0.92)}, "late": 2,
    }  # fmt: skip
    return tables.Accuracies(**{**values, **changes})


def test_tables_pair_accuracies_by_seed():
    [row] = tables.reset_rows(measured())
    assert row["epoch 2 over initialisation"].mean == pytest.approx(4.5)
    assert row["initialisation over reinitialised"].mean == pytest.approx(4.5)
    assert row["epoch 2 over reinitialised"].mean == pytest.approx(9)
    assert row["epoch 2 over unpruned"].mean == pytest.approx(-2.5)
    [row] = tables.schedule_rows(measured())
    apart = ("epoch 0, from epoch 0", "epoch 2, from epoch 0", "epoch 0, from epoch 2", "epoch 2, from epoch 2")
    assert [row[name].mean for name in apart] == pytest.approx([90.5, 98, 80.5, 95])
    assert row["late weights, points"].mean == pytest.approx(7.5)
    assert row["late beginning, points"].mean == pytest.approx(-10)
    [row] = tables.mask_rows(
        measured(), [{"emptied": [["global", 0.95, count], ["random", 0.95, 0]]} for count in (3, 4)]
    )
    assert row["layer-wise over random, points"].mean == pytest.approx(40)
    assert (row["global"], row["layers emptied, global"], row["layers emptied, random"]) == (None, 3.5, 0)
    [row] = tables.grid_rows(measured())
    assert row["not trained again"].mean == pytest.approx(25)
    assert row["reset to epoch 0"].mean == pytest.approx(90.5)
    [row] = tables.iterated_rows(measured())
    assert row["in rounds over one shot, points"].mean == pytest.approx(0)
    lines = {row["variant"] for row in tables.curve_rows(measured())}
    assert lines == {"unpruned", "reset to epoch 0", "reset to epoch 2", "reinitialised"}


def speeds_of(unpruned, masked, smaller):
    by_name = {"unpruned": unpruned, "masked": masked, "masks removed": unpruned, "channels pruned": smaller}
    return [{name: {"inference": [speed, speed + 1, speed - 1]} for name, speed in by_name.items()}] * 3


def test_claims_hold_only_where_intervals_say_so():
    trained = [{"misplaced": [[0.95, 0.96 + seed / 1000]]} for seed in range(3)]
    of = measured(
        grid={(0.95, 0): by_seed(0.90, 0.91, 0.9), (0.95, 2): by_seed(0.94, 0.951, 0.945)},
        others={("random", 0.95): by_seed(0.94, 0.951, 0.945), ("global", 0.95): by_seed(0.93, 0.941, 0.935)},
        reinitialised={0.95: by_seed(0.85, 0.95, 0.9)},
    )
    jobs = {1: [10.0, 11.0], 2: [6.0, 6.5]}
    found = {claim.id: claim for claim in tables.claims(of, trained, speeds_of(200.0, 202.0, 400.0), jobs)}
    assert found["late-reset"].holds is True
    assert found["initialisation"].holds is None  # its interval holds 0
    assert found["layer-wise-random"].holds is None and found["layer-wise-random"].value == 0
    assert found["global-layer-wise"].holds is None  # one point for each seed: no interval at all
    assert found["rounds"].holds is None  # of two seeds
    assert found["masked"].holds is True and found["channels"].holds is True and found["channels"].value == 2
    assert found["pooled"].holds is True and found["pooled"].value == pytest.approx(1.1)
    assert found["processes"].value == pytest.approx((10 / 6 * 11 / 6.5) ** 0.5)
    slower = {claim.id: claim for claim in tables.claims(of, trained, speeds_of(200.0, 150.0, 190.0), jobs)}
    assert slower["masked"].holds is False and slower["channels"].holds is False


def test_what_was_not_measured_is_in_no_claim_and_breaks_no_table():
    nothing = {name: {} for name in ("swapped", "others", "reinitialised", "iterated")}
    of = measured(grid={(0.95, 0): {}, (0.95, 2): by_seed(0.9)}, **nothing)
    ids = {claim.id for claim in tables.claims(of, [{"misplaced": []}], [], {1: []})}
    assert ids == set()
    assert tables.grid_rows(of)[0]["reset to epoch 0"] is None
    assert tables.iterated_rows(of) == tables.mask_rows(of, []) == tables.job_rows({1: []}, 4) == []
    assert tables.schedule_rows(of) == []


@pytest.mark.long
def test_a_small_study_fills_every_table_and_is_deterministic(options, tmp_path, monkeypatch, capsys):
    def here(self, what, **settings):
        return json.loads(json.dumps(getattr(measure, what)(self.options, **settings)))

    monkeypatch.setattr(Measurements, "measure", here)
    monkeypatch.setattr(
        Measurements, "several", lambda self, what, jobs, count: [self.measure(what, **job) for job in jobs]
    )
    monkeypatch.setattr(measure, "TIMED_SECONDS", {True: 0.01})
    monkeypatch.setattr(measure, "jobs", lambda *_, at_a_time, **__: {"seconds": 2.0 / at_a_time})
    words = ["--quick", "--device", "cpu", "--model", "w4", "--batch-size", "20", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["study.py", *words, "--logdir", str(tmp_path)])
    study.main()
    result = read(tmp_path / "labs" / "pruning" / "study.json")
    assert [name for name in TABLES.split() if not result.tables[name]] == []
    assert [row["pruned %"] for row in result.tables["grid"]] == [100 * share for share in plans.SPARSITIES[True]]
    assert {key for key in result.tables["grid"][0] if key.startswith("reset to")} == {
        f"reset to epoch {reset}" for reset in plans.RESETS[True]
    }
    assert str(ROOT) not in json.dumps(result.tables)
    ids = [claim.id for claim in result.claims]
    assert len(set(ids)) == len(ids)
    assert {"late-reset", "late-reinitialised", "layer-wise-random", "masked", "channels", "pooled"} <= set(ids)
    assert all(claim.holds is None for claim in result.claims if claim.id == "late-reset")  # of two seeds
    assert "2:4 sparsity" in capsys.readouterr().out
    one, same = (measure.retrained(options, 1, 0.9, 1, [0, 1, 2]) for _ in range(2))
    assert one == same


def test_a_training_may_begin_at_another_epoch_than_that_of_its_weights(options, monkeypatch):
    begun = []
    monkeypatch.setattr(measure.Training, "run", lambda self, begin=0, **_: begun.append(begin) or [])
    monkeypatch.setattr(
        measure, "checkpoints", lambda *_: {epoch: measure.begun(options, 0).checkpoint() for epoch in range(17)}
    )
    measure.retrained(options, 0, 0.5, 2, [0, 2])
    measure.retrained(options, 0, 0.5, 2, [0, 2], begin=0)
    assert begun == [2, 0]


def test_an_accuracy_s_interval_ends_where_accuracies_do():
    value = tables.points(by_seed(0.99, 0.5, 0.9))
    assert (value.low > 0, value.high) == (True, 100)
    assert tables.points(by_seed(0.1, 0.9)).low == 0
    assert tables.points(by_seed(0.5)).low is None


def test_a_training_that_fails_is_left_out_with_a_note_and_the_study_goes_on(options, monkeypatch):
    lab = measurements("pruning", options, ROOT / "labs" / "pruning" / "measure.py")

    def failing(self, what, **settings):
        if settings.get("seed", 0) == 0:
            raise NotMeasured("the loss of epoch 1 is no number")
        return {"accuracy": 0.5}

    monkeypatch.setattr(Measurements, "measure", failing)
    monkeypatch.setattr(study, "SEEDS", {True: 2})
    own = study.Study(lab, PLAN)
    assert own.each("retrained", [{"sparsity": 0.9}]) == [{1: {"accuracy": 0.5}}]
    assert own.notes == [
        "retrained was not measured: the loss of epoch 1 is no number",
        "1 of 2 trainings (retrained) failed and are left out",
    ]
    monkeypatch.setattr(study, "SEEDS", {True: 1})
    with pytest.raises(InputError, match=r"no unpruned network was trained: .*is no number"):
        study.Study(lab, PLAN).measured()


def test_other_random_weights_are_not_those_of_the_seed(options):
    training = measure.begun(options, 0)
    other = measure.begun(options, 0, training.seed + measure.OTHER_WEIGHTS)
    assert not torch.equal(training.model[0][0].weight, other.model[0][0].weight)


def test_rounds_of_pruning_reach_the_plans_sparsities(options):
    rows = measure.iterated(options, 0, 1, [0, 1, 2])
    assert [row["sparsity"] for row in rows] == list(PLAN.rounds)
    assert rows[0]["accuracy"] == measure.retrained(options, 0, PLAN.rounds[0], 1, [0, 1, 2])["accuracy"]


def test_a_network_whose_masks_are_removed_keeps_its_zeros_while_it_is_timed(options, monkeypatch):
    monkeypatch.setattr(measure, "TIMED_SECONDS", {True: 0.01})
    timed, variant = {}, measure.variant

    def seen(options, seed, name):
        timed[name] = variant(options, seed, name)
        return timed[name]

    monkeypatch.setattr(measure, "variant", seen)
    rows = measure.speeds(options, 1)
    assert set(rows) == set(timed) == set(measure.VARIANTS)
    counts = {name: (len(row["inference"]), len(row["training"])) for name, row in rows.items()}
    assert counts.pop("masks removed") == (measure.WINDOWS, 0)
    assert set(counts.values()) == {(measure.WINDOWS, measure.WINDOWS)}
    zeros = {name: (masks.magnitudes(one.model, "weights") == 0).float().mean().item() for name, one in timed.items()}
    assert zeros["masks removed"] == zeros["masked"] == pytest.approx(0.9, abs=0.01)
    assert zeros["unpruned"] == 0


def test_a_smoke_run_is_of_few_images_of_all_classes_and_few_epochs(options, monkeypatch):
    monkeypatch.setattr("labs.pruning.training.QUICK_IMAGES", 30)
    monkeypatch.setattr("labs.pruning.training.QUICK_EPOCHS", 2)
    data, plan = data_of(options)
    assert (len(data.train), plan.epochs) == (30, 2)
    assert len(data.train.labels.unique()) == 10
    data, plan = data_of(replace(options, quick=False))
    assert (len(data.train), plan.epochs) == (40, 3)


def test_trainings_side_by_side_are_processes_of_their_own(options, monkeypatch):
    asked = []

    def answer(command, values, limit):
        asked.append(values["settings"])
        return {"value": 1.0}

    monkeypatch.setattr(measure.isolated, "answer", answer)
    assert measure.jobs(options, 2, 4, 1)["seconds"] >= 0
    assert sorted(own["seed"] for own in asked) == [4, 5, 6, 7] and not any(own["alone"] for own in asked)
    monkeypatch.setattr(measure.isolated, "answer", lambda *_: "out of memory")
    with pytest.raises(RuntimeError, match="4 of 4 trainings failed: out of memory"):
        measure.jobs(options, 2, 4, 1)
