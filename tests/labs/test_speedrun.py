"""labs/speedrun: augmentations, networks and the clock by known answers, its programs, and its study."""

import json
from dataclasses import asdict

import pytest
import torch
from support import ROOT, assert_refused
from support.labs import lab_options
from torch import nn

from labs.shared.images import DataSet, Images
from labs.speedrun import data, race, study
from labs.speedrun.ablations import IDEAS
from labs.speedrun.data import DeviceBatches, crops, cutouts
from labs.speedrun.model import Lookahead, patch_stem, whiten
from labs.speedrun.race import FILE, Race, RaceOptions, run_race
from walkthrough.compare.study import read


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


def test_lookahead_averages_and_gives_its_average_back():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    lookahead = Lookahead(model, steps=2, every=2, decay=0.5)
    for value in (1.0, 3.0):
        nn.init.constant_(model.weight, value)
        lookahead.step()
    # after the last step of both, the memory is 0.5 ** 2: 0.25 of the slow 0 and 0.75 of the fast 3
    assert model.weight.item() == pytest.approx(2.25)


@pytest.mark.parametrize(("failure", "epochs"), [(None, 2), ("diverged", None), ("not reached", None)])
def test_the_clock_stops_at_the_first_test_that_reaches_the_target_and_a_failure_has_no_time(failure, epochs):
    one = Race(
        program="p", data="digits", device="A CPU", model="w4", target=0.9, epochs=4, batch_size=8, lr=0.1, seed=0,
        start_up_seconds=1.0, seconds=[1.0, 2.0, 3.0, 4.0], accuracies=[0.5, 0.9, 0.95, 0.8], losses=[1.0] * 4,
        failure=failure,
    )  # fmt: skip
    assert (one.epochs_to_target, one.seconds_to_target) == (epochs, epochs)  # a second each


def test_the_clock_runs_in_training_alone_and_not_for_what_a_process_pays_once(tmp_path, monkeypatch):
    """Moving the data takes 10 s every time, whitening 20, a step 1, a test 100; what is loaded once costs more."""
    once, now = {10.0: 1000.0, 20.0: 2000.0, 1.0: 4000.0}, [0.0]
    monkeypatch.setattr(race.time, "perf_counter", lambda: sum(now))  # stands still, but for what follows

    def taking(seconds, function):
        def timed(*args):
            now.append(seconds + once.pop(seconds, 0.0))
            return function(*args)

        return timed

    monkeypatch.setattr(DataSet, "prepared", taking(10.0, DataSet.prepared))
    whole = small_data()
    loader = DeviceBatches(whole, 4, torch.device("cpu"))
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(images, labels):
        loss = nn.functional.cross_entropy(model(images.flatten(1)), labels)
        loss.backward()
        optimizer.step()
        return loss

    predict = taking(100.0, lambda images: model(images.flatten(1)))
    work = taking(1.0, train_step), [model, optimizer], predict, taking(20.0, loader.prepared)
    options = {"dataset": "digits", "target": 0.05, "epochs": 2, "lr": 0.1, "race_only": True}
    args = RaceOptions(**vars(lab_options(tmp_path, model="w4")), **options)
    done = run_race("p.py", args, whole, loader, *work)
    assert done.start_up_seconds == 7000.0
    assert done.seconds == [10 + 20 + 3, 10 + 20 + 3 + 3]  # the data's move and the preparation are in the first epoch


FILES = sorted((ROOT / "labs" / "speedrun").glob("[0-9][0-9]_*.py"))
ABLATIONS = ROOT / "labs" / "speedrun" / "ablations.py"
NAMES = [path.stem for path in FILES]
SMALL = "--model w4 --batch-size 8 --epochs 2 --device cpu --precision fp32 --race-only".split()


@pytest.fixture
def raced(few_digits, run_here, tmp_path, monkeypatch):
    """raced(program, *words): its exit code and output, and its race.json, on 40 made-up digits."""
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute

    def run(name, *words):
        file = next(path for path in (*FILES, ABLATIONS) if path.stem.startswith(name))
        done = run_here(file, *SMALL, "--logdir", tmp_path / "logs", "--data", tmp_path, *words)
        result = tmp_path / "logs" / file.stem / FILE
        return done, json.loads(result.read_text()) if result.exists() else None

    return run


def test_every_program_learns_and_those_that_claim_to_train_the_same_do(raced, monkeypatch):
    """And each idea changes what is learned."""

    def losses(name, *words):
        done, made = raced(name, "--target", "0.05", "--seed", "3", "--lr", "0.1", "--epochs", "3", *words)
        assert made and (made["failure"], len(made["seconds"])) == (None, 3), done.stderr
        assert made["losses"][-1] < made["losses"][0], name
        return made["losses"]

    of = {name: losses(name) for name in NAMES} | {idea: losses("ablations", "--add", idea) for idea in IDEAS}
    assert losses("05", "--momentum", "0") == of["04_one_cycle"] != of["05_momentum"]
    assert losses("ablations") == of[NAMES[-1]]
    acts = {idea for idea in IDEAS if of[idea] != of[NAMES[-1]]}
    assert acts == {*IDEAS} - {"compile", "half_precision"}  # neither is on here
    monkeypatch.setattr(race, "_start_up", lambda *_: 0.0)  # the first steps leave nothing behind
    assert losses("ablations", "--add", "whitening") == of["whitening"]


def test_a_race_stops_at_its_target_and_one_that_fails_is_one_line(raced):
    assert len(raced("02", "--target", "0.01", "--stop", "--epochs", "5")[1]["seconds"]) == 1
    done, made = raced("02", "--target", "1", "--lr", "0.0001")
    assert_refused(done, "100.00% was not reached: at most", "try more --epochs")
    assert made["failure"] == "not reached"
    assert_refused(raced("03", "--lr", "1000", "--epochs", "5")[0], "diverged in epoch", "try a smaller --lr")


# The study


LAST, NAIVE, FASTER = study.LAST, study.NAIVE, study.FASTER_RATE


def a_race(accuracies=(0.5, 0.99), failure=None, seconds=1.0):
    """What is used of a race.json."""
    reached = {"epochs_to_target": None if failure else 2, "seconds_to_target": None if failure else seconds}
    return {"accuracies": accuracies, "losses": (1.0,) * len(accuracies), "failure": failure, **reached}


def test_a_small_study_fills_every_table(few_digits, tmp_path, monkeypatch, measure_here, run_main):
    measure_here(study)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    short = data.Setting(0.05, 16, "w4", 8, {NAIVE: data.Plan(2, 0.1)})
    monkeypatch.setitem(data.SETTINGS, "digits", short)
    for name, value in (("ROUNDS", {"cpu": 1}), ("LAST_RACES", 2), ("HEAT_RATES", (1, 4)), ("SEEDS", 1)):
        monkeypatch.setattr(study, name, {True: value})
    monkeypatch.setattr(study, "MOMENTA", (0, 0.9))
    monkeypatch.setattr(study, "usable_cores", lambda: 1)  # one at a time, since they are not processes here
    monkeypatch.setattr(study, "PROGRAMS", (NAIVE, "04_one_cycle", "05_momentum", LAST))
    monkeypatch.setattr(study, "CONSTANT", (NAIVE,))
    monkeypatch.setattr(study, "IDEAS", ("half_precision", "celu"))
    words = ["--quick", "--device", "cpu", "--precision", "fp32", "--logdir", tmp_path, "--data", tmp_path]
    assert run_main(study, *words).returncode == 0
    result = read(tmp_path / "labs" / "speedrun" / "study.json")
    assert [name for name, rows in result.tables.items() if not rows] == []
    assert [row["program"] for row in result.tables["ladder"]] == [NAIVE, FASTER, *study.PROGRAMS[1:]]
    assert [row["program"] for row in result.tables["ablations"]] == ["celu"]  # half precision would be the same
    assert str(ROOT) not in json.dumps(asdict(result))  # no folder of this machine


def test_the_ladder_counts_failures_and_compares_pairs_that_both_reached():
    raced = {NAIVE: [30, 40, None], "04_one_cycle": [3, 2, 1], "05_momentum": [1.5, None, None]}  # s, seed after seed
    rows = [
        study.race_row(name, seed, a_race(seconds=of) if of else a_race((0.5, 0.9), "not reached"))
        for name, seconds in raced.items()
        for seed, of in enumerate(seconds)
    ]
    naive, cycle, momentum = (study.outcome(rows, name) for name in (NAIVE, "04_one_cycle", "05_momentum"))
    assert (naive["races"], naive["reached it"], naive["s to target"]) == (3, 2, 40)  # a failure is the slowest
    assert (naive["speed-up over 00_naive"], naive["speed-up"]) == (None, None)
    ratio = cycle["speed-up over 00_naive"]
    assert (ratio.ratio, ratio.rounds) == (pytest.approx((10 * 20) ** 0.5), 2)
    assert momentum["speed-up"] == 2.0  # one pair: no interval
    assert cycle["speed-up"] is None  # 03 did not race
    assert momentum["s to target"] is None
    assert naive["accuracy at the end %"].mean == pytest.approx(96)


def test_the_share_of_races_that_reach_the_target_has_its_exact_interval():
    for reached, races, low, high in ((48, 48, 0.926, 1), (30, 50, 0.452, 0.736)):
        share = study.share(reached, races)
        assert (share.mean, share.low, share.high) == pytest.approx((reached / races, low, high), abs=6e-4)


def test_differences_are_paired_by_seed_without_races_that_diverged():
    races = {
        "slow": {seed: a_race((0.1, end)) for seed, end in enumerate([0.9, 0.8, 0.7, 0.6])},
        "fast": {seed: a_race((0.1, end)) for seed, end in enumerate([0.95, 0.85, 0.75])},
    }
    races["fast"][3] = a_race((0.1, 0.99), "diverged")
    points = study.difference_row(races, "slow", "fast")["points more at the end"]
    assert (points.mean, points.count) == (pytest.approx(5), 3)
    assert [row["seeds"] for row in study.curve_rows(races)] == [4, 4, 3, 3]
