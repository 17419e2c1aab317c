"""labs/speedrun: its programs as lessons, and what they say of input that they cannot use."""

import json
import pstats
import re

import pytest
import torch
from support import ROOT

from labs.speedrun import race as race_module
from labs.speedrun.ablations import IDEAS
from labs.speedrun.race import FILE, race_options

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
    run_race = race_module.run_race

    def watched(file, args, data, loader, train_step, *more, **settings):
        def step(*batch):
            with monkeypatch.context() as patched:
                for reads in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
                    patched.setattr(torch.Tensor, reads, lambda *_: pytest.fail(f"{file} reads a value in its step"))
                return train_step(*batch)

        return run_race(file, args, data, loader, step, *more, **settings)

    monkeypatch.setattr(race_module, "run_race", watched)
    done, race = raced(*words, "--target", "0.05", "--lr", "0.1", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert (race["program"], race["failure"], len(race["seconds"])) == (words[0], None, 3)
    assert race["losses"][-1] < race["losses"][0]
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
    monkeypatch.setattr(race_module, "_start_up", lambda *_: 0.0)  # the first steps leave nothing behind
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
    done, race = raced("00", "--cprofile", str(tmp_path / "naive.prof"))
    assert done.returncode == 0, done.stderr
    assert race is None
    functions = {name for _, _, name in pstats.Stats(str(tmp_path / "naive.prof")).stats}
    assert {"train_step", "__getitem__"} <= functions  # image by image
    assert "accuracy" not in functions  # testing is off the clock


def test_a_race_stops_at_its_target_and_one_that_fails_is_one_line(raced):
    assert len(raced("02", "--target", "0.01", "--stop", "--epochs", "5")[1]["seconds"]) == 1
    done, race = raced("02", "--target", "1", "--lr", "0.0001")
    assert (done.returncode, race["failure"]) == (2, "not reached")
    assert re.fullmatch(r"02_on_device: 100.00% was not reached: at most .*try more --epochs\n", done.stderr)
    done, race = raced("03", "--lr", "1000", "--epochs", "5")
    assert (done.returncode, race["failure"]) == (2, "diverged")
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
    done, race = raced("02", *words)
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert race is None


def test_options_are_those_of_the_data_set_and_can_be_given(tmp_path):
    words = ["--device", "cpu", "--data", str(tmp_path)]
    args = race_options("", FILES[4], argv=[*words, "--dataset", "cifar10"])
    assert (args.model, args.batch_size, args.image_size, args.target) == ("w64", 512, 32, 0.94)
    own = race_options("", FILES[5], argv=[*words, *SMALL, "--lr", "3", "--fold", "2", "--momentum", "0.5"])
    assert (own.model, own.batch_size, own.epochs, own.lr, own.fold, own.momentum) == ("w4", 8, 2, 3.0, 2, 0.5)
    added = race_options("", ABLATIONS, IDEAS, [*words, "--add", "celu", "whitening"])
    assert (added.epochs, added.lr, added.add) == (5, 0.4, ["celu", "whitening"])
