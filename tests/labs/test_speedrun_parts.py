"""labs/speedrun: its data, augmentations, networks, average of weights and clock, by known answers."""

import pytest
import torch
from torch import nn

from labs.shared.images import DataSet, Images
from labs.speedrun import race
from labs.speedrun.data import DeviceBatches, crops, cutouts, views
from labs.speedrun.model import Lookahead, naive_resnet, patch_stem, resnet9, whiten, width_of
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


def padded(image, most):
    return nn.functional.pad(image.unsqueeze(0), (most,) * 4, mode="reflect")[0]


def is_crop(result, image, most):
    outside, size = padded(image, most), image.shape[1]
    places = range(2 * most + 1)
    return any(torch.equal(outside[:, y : y + size, x : x + size], result) for y in places for x in places)


def test_crops_are_shifted_images_each_by_its_own_places():
    torch.manual_seed(0)
    images = torch.randn(20, 2, 8, 8)
    shifted = crops(images, 2)
    assert shifted.shape == images.shape
    assert all(is_crop(result, image, 2) for result, image in zip(shifted, images, strict=True))
    assert 0 < sum(map(torch.equal, shifted, images)) < 10 or not any(map(torch.equal, shifted, images))


def test_cutouts_set_one_square_of_each_image_to_the_mean():
    torch.manual_seed(0)
    images = torch.ones(30, 2, 8, 8)
    for result in cutouts(images, 3):
        ys, xs = (result[0] == 0).nonzero(as_tuple=True)
        assert len(ys) == 9
        assert (ys.max() - ys.min(), xs.max() - xs.min()) == (2, 2)
        assert torch.equal(result[0], result[1])
    places = {tuple((result[0] == 0).nonzero()[0].tolist()) for result in cutouts(images, 3)}
    assert len(places) > 5
    assert images.min() == 1  # the originals stay


def unmoved(data):
    """Batches of 4 that are neither shifted nor cut out."""
    loader = DeviceBatches(data, 4, torch.device("cpu"))
    loader.shift = loader.cutout = 0
    return loader


def in_order(loader):
    """The images of an epoch in the order of their labels, which differ, and these."""
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    return images[labels.argsort()], labels.sort().values


def test_mirroring_alternates_so_that_two_epochs_show_every_image_both_ways():
    torch.manual_seed(0)
    loader = unmoved(small_data(count=8))
    originals, _ = loader.prepared()
    epochs = [in_order(loader)[0] for _ in range(2)]
    one, other = (
        [torch.equal(image, original) for image, original in zip(epoch, originals, strict=True)] for epoch in epochs
    )
    assert one == [not same for same in other]
    assert 0 < sum(one) < len(one)


def test_digits_are_not_mirrored_and_an_epoch_shows_each_image_once():
    loader = unmoved(small_data(mirrors=False, count=8))
    originals, expected = loader.prepared()
    images, labels = in_order(loader)
    assert torch.equal(images, originals)
    assert torch.equal(labels, expected)
    assert len(views(originals, mirrors=False)) == 3


def test_views_are_the_image_its_shifts_and_their_mirror_images():
    image = torch.randn(2, 1, 8, 8)
    seen = views(image, mirrors=True)
    assert len(seen) == 6
    assert torch.equal(seen[0], image)
    assert torch.equal(seen[1][:, :, 1:, 1:], image[:, :, :-1, :-1])
    assert torch.equal(seen[5], seen[2].flip(3))


def test_data_are_moved_when_the_first_batch_is_asked_for():
    loader = DeviceBatches(small_data(), 4, torch.device("cpu"))
    assert loader._prepared is None  # so the clock sees it
    images, _ = next(iter(loader))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert loader._prepared is not None
    loader.reset()
    assert loader._prepared is None


@pytest.mark.parametrize("make", [naive_resnet, resnet9])
def test_networks_map_images_to_scores(make):
    model = make(4, channels=1, classes=7)
    assert model(torch.randn(3, 1, 16, 16)).shape == (3, 7)
    assert model(torch.randn(3, 1, 32, 32)).shape == (3, 7)


@pytest.mark.parametrize("name", ["16", "w", "w2", "w9999", "resnet"])
def test_a_width_that_there_is_not_is_refused(name):
    with pytest.raises(InputError, match="wN"):
        width_of(name)


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
    whiten(
        stem, torch.randn(50, 1, 1, 1).expand(50, 1, 8, 8)
    )  # each image of one grey: eight of nine patterns never occur
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


def test_lookahead_averages_batch_norms_statistics_too_and_can_be_set_back():
    model = nn.BatchNorm1d(2)
    lookahead = Lookahead(model, steps=2, every=1)
    saved = lookahead.state_dict()
    model.running_mean.fill_(5)
    lookahead.step()
    assert 0 < model.running_mean[0] < 5
    lookahead.load_state_dict(saved)
    assert (lookahead.done, lookahead.slow[2].tolist()) == (0, [0, 0])
    assert model.num_batches_tracked == 0


def a_race(accuracies=(0.5, 0.9, 0.95, 0.8), failure=None, **changes):
    values = {
        "program": "p", "data": "digits", "device": "A CPU", "model": "w4", "target": 0.9, "epochs": 4, "batch_size": 8,
        "lr": 0.1, "seed": 0, "start_up_seconds": 1.0, "seconds": [1.0, 2.0, 3.0, 4.0][: len(accuracies)],
        "accuracies": list(accuracies), "losses": [1.0] * len(accuracies), "failure": failure,
    }  # fmt: skip
    return Race(**{**values, **changes})


def test_the_clock_stops_at_the_first_test_that_reaches_the_target():
    assert (a_race().epochs_to_target, a_race().seconds_to_target) == (2, 2.0)
    assert "90.00% in 2.00 s, 2 epochs (80.00% at the end, after 4 epochs" in str(a_race())


@pytest.mark.parametrize(("failure", "words"), [("diverged", "diverged in epoch 4"), ("not reached", "at most 95.00%")])
def test_a_failure_has_no_time(failure, words):
    race = a_race(failure=failure)
    assert (race.epochs_to_target, race.seconds_to_target) == (None, None)
    assert words in str(race)


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


def test_the_clock_runs_in_training_alone(tmp_path, clock):
    model = nn.Linear(4, 10)

    class Loader:
        def __len__(self):
            return 3

        def __iter__(self):
            clock.pass_by(0.5)  # loading is on it
            return iter([(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))] * 3)

    def train_step(images, labels):
        clock.pass_by(1.0)
        return model(images).sum() * 0

    def predict(images):
        clock.pass_by(100.0)  # testing is not
        return torch.eye(10)[: len(images)]

    part = Images(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10))
    whole = DataSet("digits", part, part, 2, 10, torch.zeros(1), torch.ones(1))
    args = args_of(tmp_path)
    done = run_race("p.py", args, whole, Loader(), train_step, [model], predict, lambda: clock.pass_by(10.0))
    assert done.seconds == [13.5, 17.0]
    assert done.accuracies == [1.0, 1.0]


def test_what_a_process_pays_once_is_off_the_clock_and_the_preparation_is_on_it_again(tmp_path, clock, monkeypatch):
    """Moving the data takes 10 s every time, whitening 20, a step 1; the first time a library costs much more."""
    whole, once, whitened = small_data(), {"moving": 1000.0, "whitening": 2000.0, "stepping": 4000.0}, []
    loader = DeviceBatches(whole, 4, torch.device("cpu"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prepared = DataSet.prepared

    def moved(self, part, device):
        clock.pass_by(10.0 + once.pop("moving", 0.0))
        return prepared(self, part, device)

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
    done = run_race("p.py", args, whole, loader, train_step, [model, optimizer], None, prepare)
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
