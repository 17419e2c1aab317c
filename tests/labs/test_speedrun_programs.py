"""labs/speedrun: its programs as lessons, and what they say of input that they cannot use."""

import ast
import difflib
import itertools
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


def code_lines(path):
    text = path.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def test_the_programs_are_numbered_without_a_gap():
    assert [int(name[:2]) for name in NAMES] == list(range(9))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_program_is_whole_and_opens_as_a_step_does(path):
    assert 20 < len(code_lines(path)) <= 50
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring.startswith(f"Speed run {path.stem[:2]}: ")
    assert re.findall(r"^(\w[\w ]*?)  +\S", docstring, re.MULTILINE) == ["Idea", "Change", "Look for", "Caution"]


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(FILES)), ids=NAMES[1:])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    assert 0 < max(sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- ")) <= 15


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


def test_the_momentum_program_without_momentum_trains_as_the_one_before_it(raced):
    same = ["--target", "0.05", "--seed", "3", "--lr", "0.1"]
    _, before = raced("04", *same)
    losses = [raced("05", *same, "--momentum", momentum)[1]["losses"] for momentum in ("0", "0.9")]
    assert losses[0] == before["losses"] != losses[1]


def test_without_an_idea_ablations_train_exactly_as_the_last_program_and_each_idea_changes_that(raced):
    same = ["--target", "0.05", "--seed", "3", "--lr", "0.1"]
    _, last = raced(NAMES[-1], *same)
    losses = {words: raced("ablations", *same, *words)[1]["losses"] for words in [(), *(("--add", i) for i in IDEAS)]}
    assert losses[()] == last["losses"]
    acts = {words[1] for words, values in losses.items() if values != last["losses"]}
    assert acts == {*IDEAS} - {"compile", "half_precision"}  # not compiled here; half precision is off on a CPU


def test_the_first_steps_leave_nothing_behind(raced, monkeypatch):
    words = ["ablations", "--add", "whitening", "--target", "0.05", "--lr", "0.1"]
    _, race = raced(*words)
    monkeypatch.setattr(race_module, "_start_up", lambda *_: 0.0)
    _, without = raced(*words)
    assert (race["losses"], race["accuracies"]) == (without["losses"], without["accuracies"])


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


def test_a_target_that_is_not_reached_and_a_race_that_diverges_are_one_line_and_a_failure(raced):
    done, race = raced("02", "--target", "1", "--lr", "0.0001")
    assert (done.returncode, race["failure"]) == (2, "not reached")
    assert re.fullmatch(r"02_on_device: 100.00% was not reached: at most .*try more --epochs\n", done.stderr)
    done, race = raced("03", "--lr", "1000", "--epochs", "5")
    assert (done.returncode, race["failure"]) == (2, "diverged")
    assert re.fullmatch(r"03_resnet9: diverged in epoch \d: its loss is no number: try a smaller --lr\n", done.stderr)


def test_a_race_stops_at_the_target_where_it_is_asked_to(raced):
    _, race = raced("02", "--target", "0.01", "--stop", "--epochs", "5")
    assert len(race["seconds"]) == 1


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
