"""labs/speedrun: its data, augmentations, networks, average of weights and clock, by known answers."""

import pytest
import torch
from torch import nn

from labs.shared.images import DataSet, Images
from labs.speedrun import race
from labs.speedrun.data import DeviceBatches, crops, cutouts, views
from labs.speedrun.model import Lookahead, naive_resnet, patch_stem, resnet9, whiten
from labs.speedrun.race import Race, RaceOptions, run_race
from walkthrough.results.errors import InputError
from walkthrough.results.result import read_json


def args_of(tmp_path, **changes):
    values = {
        "logdir": tmp_path, "device": "cpu", "data": tmp_path, "download": False, "model": "w4", "image_size": 16,
        "batch_size": 8, "workers": 0, "precision": "fp32", "seed": 0, "quick": True, "stacks": False,
        "dataset": "digits", "target": 0.05, "epochs": 2, "lr": 0.1, "race_only": True,
    }  # fmt: skip
    return RaceOptions(**{**values, **changes})


def small_data(mirrors=True, count=12, channels=1, size=8):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, channels, size, size), generator=generator, dtype=torch.uint8)
    part = Images(images, torch.arange(count) % 10)
    source = "cifar10" if mirrors else "digits"
    return DataSet(source, part, part, size, 10, torch.full((channels,), 0.5), torch.full((channels,), 0.25))


def test_crops_are_shifted_images_each_by_its_own_places():
    torch.manual_seed(0)
    images = torch.randn(20, 2, 8, 8)
    outside, places = nn.functional.pad(images, (2,) * 4, mode="reflect"), []
    for result, image in zip(crops(images, 2), outside, strict=True):
        shifts = [(y, x) for y in range(5) for x in range(5) if torch.equal(image[:, y : y + 8, x : x + 8], result)]
        assert len(shifts) == 1
        places += shifts
    assert len(set(places)) > 5


def test_cutouts_set_one_square_of_each_image_to_the_mean():
    torch.manual_seed(0)
    images, places = torch.ones(30, 2, 8, 8), set()
    for result in cutouts(images, 3):
        ys, xs = (result[0] == 0).nonzero(as_tuple=True)
        assert (len(ys), ys.max() - ys.min(), xs.max() - xs.min()) == (9, 2, 2)
        assert torch.equal(result[0], result[1])
        places.add((ys[0].item(), xs[0].item()))
    assert len(places) > 5
    assert images.min() == 1  # the originals stay


@pytest.mark.parametrize("mirrors", [True, False])
def test_an_epoch_shows_each_image_once_and_two_epochs_both_ways_where_it_may_be_mirrored(mirrors):
    torch.manual_seed(0)
    loader = DeviceBatches(small_data(mirrors, count=8), 4, torch.device("cpu"))
    loader.shift = loader.cutout = 0
    originals, expected = loader.prepared()
    as_they_are = []
    for _ in range(2):
        images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert torch.equal(labels.sort().values, expected)
        as_they_are.append([*map(torch.equal, images[labels.argsort()], originals)])
    assert as_they_are[1] == ([not same for same in as_they_are[0]] if mirrors else [True] * 8)
    assert (0 < sum(as_they_are[0]) < 8) == mirrors


def test_views_are_the_image_its_shifts_and_their_mirror_images():
    image = torch.randn(2, 1, 8, 8)
    seen = views(image, mirrors=True)
    assert (len(seen), len(views(image, mirrors=False))) == (6, 3)
    assert torch.equal(seen[0], image)
    assert torch.equal(seen[1][:, :, 1:, 1:], image[:, :, :-1, :-1])
    assert torch.equal(seen[5], seen[2].flip(3))


@pytest.mark.parametrize("make", [naive_resnet, resnet9])
def test_networks_map_images_to_scores(make):
    model = make(4, channels=1, classes=7)
    assert [model(torch.randn(3, 1, size, size)).shape for size in (16, 32)] == [(3, 7)] * 2


def test_whitened_patches_are_uncorrelated_and_vary_alike_and_stay_frozen():
    torch.manual_seed(0)
    images = nn.functional.avg_pool2d(torch.randn(200, 1, 12, 12), 3, 1, 1)  # neighbours are alike
    stem = patch_stem(1)
    whiten(stem, images, relative_eps=0.0)
    inside = nn.functional.conv2d(images, stem.weight)  # no padding: patches are whole
    outputs = inside[:, :9].transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.cov(outputs, correction=0), torch.eye(9), rtol=0, atol=0.02)
    assert torch.equal(inside[:, :9], -inside[:, 9:])
    assert not stem.weight.requires_grad


def test_whitening_does_not_blow_up_what_does_not_vary():
    stem = patch_stem(1)
    whiten(stem, torch.randn(50, 1, 1, 1).expand(50, 1, 8, 8))  # of one grey each: eight of nine patterns never occur
    assert stem.weight.isfinite().all()


def test_lookahead_averages_and_gives_its_average_back():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    lookahead = Lookahead(model, steps=2, every=2, decay=0.5)
    for value in (1.0, 3.0):
        nn.init.constant_(model.weight, value)
        lookahead.step()
    # after the last step of both, the memory is 0.5 ** 2: 0.25 of the slow 0 and 0.75 of the fast 3
    assert model.weight.item() == pytest.approx(2.25)
    nn.init.constant_(model.weight, 7.0)
    lookahead.step()  # beyond the race
    assert model.weight.item() == 7.0
    norm = nn.BatchNorm1d(2)  # its statistics are averaged too, and can be set back
    lookahead = Lookahead(norm, steps=2, every=1)
    saved = lookahead.state_dict()
    norm.running_mean.fill_(5)
    lookahead.step()
    assert 0 < norm.running_mean[0] < 5
    lookahead.load_state_dict(saved)
    assert (lookahead.done, lookahead.slow[2].tolist(), norm.num_batches_tracked) == (0, [0, 0], 0)


@pytest.mark.parametrize(
    ("failure", "epochs", "words"),
    [
        (None, 2, "90.00% in 2.00 s, 2 epochs (80.00% at the end, after 4 epochs"),
        ("diverged", None, "diverged in epoch 4"),
        ("not reached", None, "at most 95.00%"),
    ],
)
def test_the_clock_stops_at_the_first_test_that_reaches_the_target_and_a_failure_has_no_time(failure, epochs, words):
    one = Race(
        program="p", data="digits", device="A CPU", model="w4", target=0.9, epochs=4, batch_size=8, lr=0.1, seed=0,
        start_up_seconds=1.0, seconds=[1.0, 2.0, 3.0, 4.0], accuracies=[0.5, 0.9, 0.95, 0.8], losses=[1.0] * 4,
        failure=failure,
    )  # fmt: skip
    assert (one.epochs_to_target, one.seconds_to_target) == (epochs, epochs)  # a second each
    assert words in str(one)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless `clock.pass_by(seconds)` moves it on."""

    class Clock:
        now = 0.0

        def pass_by(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(race.time, "perf_counter", lambda: clock.now)
    return clock


def test_the_clock_runs_in_training_alone_and_not_for_what_a_process_pays_once(tmp_path, clock, monkeypatch):
    """Moving the data takes 10 s every time, whitening 20, a step 1, a test 100; what is loaded once costs more."""
    whole, once, whitened = small_data(), {"moving": 1000.0, "whitening": 2000.0, "stepping": 4000.0}, []
    loader = DeviceBatches(whole, 4, torch.device("cpu"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prepared = DataSet.prepared

    def moved(self, part, device):
        clock.pass_by(10.0 + once.pop("moving", 0.0))
        return prepared(self, part, device)

    def predict(images):
        clock.pass_by(100.0)
        return model(images)

    def prepare():
        loader.prepared()
        whitened.append(model[1].weight.detach().clone())
        nn.init.ones_(model[1].weight)
        clock.pass_by(20.0 + once.pop("whitening", 0.0))

    def train_step(images, labels):
        clock.pass_by(1.0 + once.pop("stepping", 0.0))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    monkeypatch.setattr(DataSet, "prepared", moved)
    args = args_of(tmp_path, batch_size=4)
    torch.manual_seed(0)
    done = run_race("p.py", args, whole, loader, train_step, [model, optimizer], predict, prepare)
    assert done.start_up_seconds == 7000.0
    assert done.seconds == [10 + 20 + 3, 10 + 20 + 3 + 3]  # the data's move and the preparation are in the first epoch
    assert len(whitened) == 3
    assert all(torch.equal(weight, whitened[0]) for weight in whitened)  # what the start-up prepared is gone


def test_a_loss_that_is_no_number_ends_the_race(tmp_path):
    model, steps = nn.Linear(1, 1), []
    whole = small_data()

    def train_step(images, labels):
        steps.append(1)
        return torch.tensor(float("nan")) if len(steps) > 16 else torch.tensor(1.0)  # the start-up: 10

    loader = DeviceBatches(whole, 4, torch.device("cpu"))
    args = args_of(tmp_path, epochs=9, batch_size=4)
    with pytest.raises(InputError, match="diverged in epoch 3"):  # although it had reached the target before
        run_race("p.py", args, whole, loader, train_step, [model], lambda images: torch.eye(12)[: len(images)])
    assert read_json(tmp_path / "p" / race.FILE)["failure"] == "diverged"
