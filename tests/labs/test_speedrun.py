"""labs/speedrun: augmentations, networks and the clock by known answers, its programs, and its study."""

import json
import pstats
import re
import sys
from dataclasses import asdict

import pytest
import torch
from support import ROOT
from support.labs import lab_options
from torch import nn

from labs.shared.images import DataSet, Images
from labs.shared.study import as_stored
from labs.speedrun import data, race, study
from labs.speedrun.ablations import IDEAS
from labs.speedrun.data import DeviceBatches, crops, cutouts, views
from labs.speedrun.model import Lookahead, patch_stem, whiten
from labs.speedrun.race import FILE, Race, RaceOptions, run_race
from walkthrough.compare.study import Measurements, NotMeasured, read
from walkthrough.results.errors import InputError


def args_of(tmp_path, **changes):
    race = {"dataset": "digits", "target": 0.05, "epochs": 2, "lr": 0.1, "race_only": True}
    return RaceOptions(**vars(lab_options(tmp_path, model="w4")), **{**race, **changes})


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
    whiten(stem, torch.randn(50, 1, 1, 1).expand(50, 1, 8, 8))  # of one grey each: eight of nine patterns never occur
    assert stem.weight.isfinite().all()  # what does not vary is not blown up


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


def test_the_clock_runs_in_training_alone_and_not_for_what_a_process_pays_once(tmp_path, monkeypatch):
    """Moving the data takes 10 s every time, whitening 20, a step 1, a test 100; what is loaded once costs more."""
    whole, once, whitened = small_data(), {"moving": 1000.0, "whitening": 2000.0, "stepping": 4000.0}, []
    loader = DeviceBatches(whole, 4, torch.device("cpu"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prepared, now = DataSet.prepared, [0.0]
    monkeypatch.setattr(race.time, "perf_counter", lambda: sum(now))  # stands still, but for what follows

    def moved(self, part, device):
        now.append(10.0 + once.pop("moving", 0.0))
        return prepared(self, part, device)

    def predict(images):
        now.append(100.0)
        return model(images)

    def prepare():
        loader.prepared()
        whitened.append(model[1].weight.detach().clone())
        nn.init.ones_(model[1].weight)
        now.append(20.0 + once.pop("whitening", 0.0))

    def train_step(images, labels):
        now.append(1.0 + once.pop("stepping", 0.0))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    monkeypatch.setattr(DataSet, "prepared", moved)
    args = args_of(tmp_path)
    torch.manual_seed(0)
    done = run_race("p.py", args, whole, loader, train_step, [model, optimizer], predict, prepare)
    assert done.start_up_seconds == 7000.0
    assert done.seconds == [10 + 20 + 3, 10 + 20 + 3 + 3]  # the data's move and the preparation are in the first epoch
    assert len(whitened) == 3
    assert all(torch.equal(weight, whitened[0]) for weight in whitened)  # what the start-up prepared is gone


# The programs


FILES = sorted((ROOT / "labs" / "speedrun").glob("[0-9][0-9]_*.py"))
ABLATIONS = ROOT / "labs" / "speedrun" / "ablations.py"
NAMES = [path.stem for path in FILES]
SMALL = ["--model", "w4", "--batch-size", "8", "--epochs", "2", "--device", "cpu", "--race-only"]


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


EVERY = [[name] for name in NAMES] + [["ablations", "--add", idea] for idea in IDEAS]


@pytest.mark.parametrize("words", EVERY, ids=[words[-1] for words in EVERY])
def test_every_program_learns_and_no_step_waits_to_read_a_loss(raced, words, monkeypatch):
    """TF32 is off by names that can be read afterwards: Inductor's max-autotune reads them."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    run_race = race.run_race

    def watched(file, args, data, loader, train_step, *more, **settings):
        def step(*batch):
            with monkeypatch.context() as patched:
                for reads in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
                    patched.setattr(torch.Tensor, reads, lambda *_: pytest.fail(f"{file} reads a value in its step"))
                return train_step(*batch)

        return run_race(file, args, data, loader, step, *more, **settings)

    monkeypatch.setattr(race, "run_race", watched)
    done, made = raced(*words, "--target", "0.05", "--lr", "0.1", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert (made["program"], made["failure"], len(made["seconds"])) == (words[0], None, 3)
    assert made["losses"][-1] < made["losses"][0]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)


def test_programs_that_claim_to_train_the_same_do_and_each_idea_changes_that(raced, monkeypatch):
    same = ["--target", "0.05", "--seed", "3", "--lr", "0.1"]

    def losses(name, *words):
        return raced(name, *same, *words)[1]["losses"]

    assert losses("05", "--momentum", "0") == losses("04") != losses("05")
    last, of_ideas = losses(NAMES[-1]), {idea: losses("ablations", "--add", idea) for idea in IDEAS}
    assert losses("ablations") == last
    acts = {idea for idea, values in of_ideas.items() if values != last}
    assert acts == {*IDEAS} - {"compile", "half_precision"}  # not compiled here; half precision is off on a CPU
    monkeypatch.setattr(race, "_start_up", lambda *_: 0.0)  # the first steps leave nothing behind
    assert losses("ablations", "--add", "whitening") == of_ideas["whitening"]


def test_a_race_is_followed_by_windows_and_a_trace(raced, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SMALL", SMALL[:-1])
    done, _ = raced("02", "--target", "0.01", "--quick")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "logs" / "02_on_device"
    result = json.loads((folder / "result.json").read_text())
    assert (result["step"], result["data"], result["image_size"]) == ("02_on_device", "digits", 16)
    assert len(list(folder.glob("*.pt.trace.json.gz"))) == 1


def test_cprofile_writes_what_snakeviz_reads_and_no_record(raced, tmp_path):
    done, made = raced("00", "--cprofile", str(tmp_path / "naive.prof"))
    assert done.returncode == 0, done.stderr
    assert made is None
    functions = {name for _, _, name in pstats.Stats(str(tmp_path / "naive.prof")).stats}
    assert {"train_step", "__getitem__"} <= functions  # image by image
    assert "accuracy" not in functions  # testing is off the clock


def test_a_race_stops_at_its_target_and_one_that_fails_is_one_line(raced):
    assert len(raced("02", "--target", "0.01", "--stop", "--epochs", "5")[1]["seconds"]) == 1
    done, made = raced("02", "--target", "1", "--lr", "0.0001")
    assert (done.returncode, made["failure"]) == (2, "not reached")
    assert re.fullmatch(r"02_on_device: 100.00% was not reached: at most .*try more --epochs\n", done.stderr)
    done, made = raced("03", "--lr", "1000", "--epochs", "5")
    assert (done.returncode, made["failure"]) == (2, "diverged")
    assert re.fullmatch(r"03_resnet9: diverged in epoch \d: its loss is no number: try a smaller --lr\n", done.stderr)


WRONG = [
    (["--dataset", "cifar10"], r"no CIFAR-10 in .*--download"),
    (["--dataset", "imagenette"], r"cannot read images from .*train.*--data"),
    (["--model", "resnet18"], r"unknown model 'resnet18'.*w16"),
    (["--batch-size", "64"], r"--batch-size 64 is larger than the data \(40 images\)"),
    (["--target", "94"], "argument --target: '94' is not a number above 0, at most 1"),
    (["--lr", "nan"], "'nan' is not a number above 0"),
    (["--lr", "inf"], "'inf' is not a number above 0"),
    (["--momentum", "-0.1"], "'-0.1' is not a number from 0, at most 1"),
    (["--dataset", "mnist"], "invalid choice: 'mnist'"),
    (["--add", "celu"], "unrecognized arguments: --add celu"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_input_that_cannot_be_used_is_one_line(raced, words, message):
    done, made = raced("02", *words)
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert made is None


# The study


LAST, NAIVE, FASTER = study.LAST, study.NAIVE, study.FASTER_RATE
TABLES = ["setting", "ladder", "ablations", "published", "heat_map", "curves", "momentum", "differences", "calls"]


def a_race(accuracies=(0.5, 0.99), failure=None, seconds=1.0):
    """What is used of a race.json."""
    reached = {"epochs_to_target": None if failure else 2, "seconds_to_target": None if failure else seconds}
    return {"accuracies": accuracies, "losses": (1.0,) * len(accuracies), "failure": failure, **reached}


def rows_of(**programs):
    """The races {program: their seconds, None for one that failed}, seed after seed; "s" before a program's number."""
    rows = []
    for name, seconds in programs.items():
        program = next(known for known in study.PROGRAMS if known.startswith(name.removeprefix("s")))
        for seed, value in enumerate(seconds):
            done = a_race((0.5, 0.99), None, value) if value else a_race((0.5, 0.9), "not reached")
            rows.append(study.race_row(program, seed, done))
    return rows


def tables_of(rows, ablations=(), differences=()):
    ladder = [study.outcome(rows, name) for name in dict.fromkeys(row["program"] for row in rows)]
    tables = {"races": [*rows, *ablations], "ladder": ladder, "setting": [{"data": "digits"}]}
    return as_stored({**tables, "differences": differences})


def claims_of(*tables, on_gpu=False):
    return {claim.id: claim for claim in study.claims(tables_of(*tables), on_gpu)}


@pytest.fixture
def small(few_digits, tmp_path, monkeypatch, measure_here):
    """The study's program with little to do, its measurements in this process."""

    measure_here(study)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    short = data.Setting(0.05, 16, "w4", 8, {NAIVE: data.Plan(2, 0.1)})
    monkeypatch.setitem(data.SETTINGS, "digits", short)
    for name, value in (("ROUNDS", {"cpu": 1}), ("LAST_RACES", 2), ("HEAT_RATES", (1, 4)), ("SEEDS", 1)):
        monkeypatch.setattr(study, name, {True: value})
    monkeypatch.setattr(study, "MOMENTA", (0, 0.9))
    monkeypatch.setattr(study, "usable_cores", lambda: 1)  # one at a time, since they are not processes here
    monkeypatch.setattr(study, "PROGRAMS", (*study.PROGRAMS[:3], "04_one_cycle", "05_momentum", LAST))
    monkeypatch.setattr(study, "CONSTANT", study.PROGRAMS[:3])
    words = ["study.py", "--quick", "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    return study.lab_options("", "speedrun", study.DEFAULTS, words[1:])[0]


def test_a_small_study_fills_every_table_and_its_claims_follow_from_them(small, tmp_path, capsys):
    study.main()
    result = read(tmp_path / "labs" / "speedrun" / "study.json")
    assert [name for name in (*TABLES, "races") if not result.tables[name]] == []
    programs = [row["program"] for row in result.tables["ladder"]]
    assert programs == [NAIVE, FASTER, *study.PROGRAMS[1:]]
    assert all(row["races"] == row["reached it"] > 0 for row in result.tables["ladder"])
    assert result.tables["ladder"][-1]["races"] == study.LAST_RACES[True]
    assert [row["program"] for row in result.tables["ablations"]] == list(study.IDEAS[1:])  # no half precision
    assert {row["batch size"] for row in result.tables["heat_map"]} == {8, 32}
    assert {row["variant"] for row in result.tables["momentum"]} == {"momentum 0", "momentum 0.9"}
    assert str(ROOT) not in json.dumps(asdict(result))  # no folder of this machine
    assert [asdict(claim) for claim in study.claims(result.tables, False)] == [asdict(one) for one in result.claims]
    assert any("digits are not mirrored" in note for note in result.notes)
    assert "written to" in capsys.readouterr().out


def test_without_the_naive_race_there_is_no_study(small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Measurements, "measure", lambda *_, **__: (_ for _ in ()).throw(NotMeasured("the disk is gone"))
    )
    with pytest.raises(InputError, match="00_naive did not race: races was not measured: the disk is gone"):
        study.main()
    assert not (tmp_path / "labs" / "speedrun" / "study.json").exists()


def test_a_program_that_fails_has_its_reason_and_the_others_race(small, monkeypatch):
    def broken(function):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    runs = [["ablations", "--add", "compile"], [study.PLAIN, "--lr", "1000", "--epochs", "4"]]
    runs += [["03_resnet9", "--dataset", "cifar10"], [study.PLAIN, "--target", "1", "--lr", "1e-9"]]
    broken, diverged, no_data, not_reached = study.races(small, runs)
    assert broken == {"error": "RuntimeError: no compiler"}
    assert (diverged["error"], diverged["failure"]) == (None, "diverged")
    assert diverged["seconds_to_target"] is None
    assert "no CIFAR-10" in no_data["error"]
    assert not_reached["failure"] == "not reached"


def test_the_ladder_counts_failures_and_compares_pairs_that_both_reached():
    naive, cycle, momentum = tables_of(rows_of(s00=[30, 40, None], s04=[3, 2, 1], s05=[1.5, None, None]))["ladder"]
    assert (naive["races"], naive["reached it"], naive["s to target"]) == (3, 2, 40)  # a failure is the slowest
    assert (naive["speed-up over 00_naive"], naive["speed-up"]) == (None, None)
    assert cycle["speed-up over 00_naive"]["ratio"] == pytest.approx((10 * 20) ** 0.5)
    assert cycle["speed-up over 00_naive"]["rounds"] == 2
    assert momentum["speed-up"] == 2.0  # one pair: no interval
    assert cycle["speed-up"] is None  # 03 did not race
    assert momentum["s to target"] is None
    assert naive["accuracy at the end %"]["mean"] == pytest.approx(96)
    assert study.median([1.0, None]) is None  # as half of them failed


@pytest.mark.parametrize(
    ("naive", "last", "holds"),
    [
        ([30, 33, 36], [1, 1.1, 1.2], True), ([30, 33, 36], [10, 11, 12], False), ([30, 30, 30], [2, 3, 4], None),
        ([30], [1], None), ([None] * 3, [1, 1, 1], None),
    ],
)  # fmt: skip
def test_ten_times_as_fast_holds_by_its_interval_alone(naive, last, holds):
    assert claims_of(rows_of(s00=naive, s08=last))["all"].holds is holds


@pytest.mark.parametrize(
    ("reached", "races", "low", "holds"),
    [(25, 25, 0.863, None), (47, 47, 0.925, None), (48, 48, 0.926, True), (30, 50, 0.452, False), (0, 5, 0, False)],
)
def test_reliable_is_19_of_20_races_by_the_exact_interval_of_the_share(reached, races, low, holds):
    claim = claims_of(rows_of(s00=[20], s08=[1.0] * reached + [None] * (races - reached)))["reliable"]
    assert (claim.value, claim.holds, claim.undecided) == (reached / races, holds, holds is None)
    assert claim.low == pytest.approx(low, abs=6e-4)


def test_differences_are_paired_by_seed_without_races_that_diverged():
    ends = {"momentum 0": [0.9, 0.8, 0.7, 0.6], "momentum 0.9": [0.95, 0.85, 0.75, 0.99]}
    races = {
        name: {seed: a_race(accuracies=(0.1, end), failure="diverged" if end == 0.99 else None) for seed, end in
               enumerate(values)}
        for name, values in ends.items()
    }  # fmt: skip
    row = study.difference_row(races, "momentum 0", "momentum 0.9")
    assert (row["points more at the end"].mean, row["points more at the end"].count) == (pytest.approx(5), 3)
    claims = claims_of(rows_of(s00=[9], s08=[1]), (), [row, {**row, "from": "batch 8", "to": "batch 32"}])
    assert (claims["momentum"].holds, claims["linear-scaling"].holds) == (True, False)
    assert [row["seeds"] for row in study.curve_rows(races)] == [4, 4, 3, 3]


def test_a_run_of_the_heat_map_that_diverged_is_counted_as_nothing_learned():
    gone = a_race(accuracies=(0.0,), failure="diverged")
    cells = {
        (64, 8.0): {0: gone, 1: a_race(accuracies=(0.1,))},
        (32, 0.1): {0: a_race(accuracies=(0.9,))},
        (64, 9.0): {},
    }
    rows = study.heat_rows(cells)
    assert [(row["batch size"], row["learning rate"], row["failures"]) for row in rows] == [
        (32, 0.1, ""), (64, 8.0, "1 of 2 diverged")
    ]  # fmt: skip
    assert [row["accuracy %"].mean for row in rows] == pytest.approx([90, 5])
