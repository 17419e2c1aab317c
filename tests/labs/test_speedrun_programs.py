"""labs/speedrun: its programs as lessons, their claims, and that the study varies what the programs train."""

import ast
import difflib
import itertools
import json
import pstats
import re
from dataclasses import replace

import pytest
import torch
from support import ROOT

from labs.speedrun import heads, recipe
from labs.speedrun import race as race_module
from labs.speedrun.race import FILE, race_options
from labs.speedrun.tables import PROGRAMS
from walkthrough.compare.study import read

FILES = heads.programs()
NAMES = [path.stem for path in FILES]
SMALL = ["--model", "w4", "--batch-size", "8", "--epochs", "2", "--device", "cpu"]


def code_lines(path):
    text = path.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def test_the_ladder_is_the_folder():
    assert tuple(NAMES) == PROGRAMS
    assert [int(name[:2]) for name in PROGRAMS] == list(range(16))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_program_is_whole_and_opens_as_a_step_does(path):
    assert 20 < len(code_lines(path)) <= 80
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring.startswith(f"Speed run {path.stem[:2]}: ")
    parts = ["Reaches", "Idea", "Change", "Look for", "Caution"]
    assert re.findall(r"^(\w[\w ]*?)  +\S", docstring, re.MULTILINE) == parts
    assert max(map(len, docstring.splitlines())) <= 120


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(FILES)), ids=NAMES[1:])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    assert 0 < max(sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- ")) <= 15


def test_what_a_head_claims_is_what_was_recorded():
    study = heads.recorded()
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text == heads.with_head(text, heads.claim(path.stem, study)), "run `python labs/speedrun/heads.py`"


@pytest.fixture
def raced(few_digits, run_here, tmp_path, monkeypatch):
    """raced(program, *words): its exit code and output, and its race.json, on 40 made-up digits."""
    monkeypatch.setattr(torch, "compile", lambda function: function)  # compiling takes most of a minute

    def run(name, *words):
        file = next(path for path in FILES if path.stem.startswith(name))
        folder = ["--logdir", tmp_path / "logs", "--data", tmp_path]
        done = run_here(file, *SMALL, *folder, *words)
        result = tmp_path / "logs" / file.stem / FILE
        return done, json.loads(result.read_text()) if result.exists() else None

    return run


@pytest.mark.parametrize("name", NAMES)
def test_every_program_races_and_learns(raced, name):
    done, race = raced(name, "--target", "0.05", "--lr", "0.1", "--race-only", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert race["program"] == name
    assert race["failure"] is None
    assert len(race["seconds"]) == len(race["accuracies"]) == 3
    assert race["losses"][-1] < race["losses"][0]
    assert "5.00% in" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_program_turns_tf32_off_by_names_that_can_be_read_afterwards(raced, name, monkeypatch):
    """Inductor's max-autotune reads them, and torch raises where newer and older names are mixed."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    monkeypatch.setattr(race_module, "run_race", lambda *_, **__: None)
    done, _ = raced(name)
    assert done.returncode == 0, done.stderr
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("name", NAMES)
def test_no_step_waits_for_the_device_to_read_a_loss(raced, name, monkeypatch):
    losses = []

    def one_step(file, args, data, loader, train_step, *_, **__):
        batch = next(iter(loader))
        with monkeypatch.context() as patched:
            for reads in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
                patched.setattr(torch.Tensor, reads, lambda *_: pytest.fail(f"{file} reads a value in its step"))
            losses.append(train_step(*batch))

    monkeypatch.setattr(race_module, "run_race", one_step)
    done, _ = raced(name)
    assert done.returncode == 0, done.stderr
    assert losses[0].requires_grad


RECIPES = recipe.recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_exactly_as_its_program_does(raced, name, tmp_path):
    words = ["--target", "0.05", "--race-only", "--seed", "3", "--lr", "0.1"]
    _, race = raced(name, *words)
    args = race_options("", ROOT / "labs" / "speedrun" / f"{name}.py", [*SMALL, *words, "--data", str(tmp_path)])
    own = recipe.raced(RECIPES[name], args, name)
    assert own.losses == race["losses"]
    assert own.accuracies == race["accuracies"]


def test_each_recipe_differs_from_the_one_before():
    assert list(RECIPES) == NAMES[4:15][::-1]
    for one, other in itertools.pairwise(RECIPES.values()):
        assert one != other
    assert RECIPES["14_muon"] == recipe.Recipe()


def test_a_race_is_followed_by_windows_and_a_trace(raced, tmp_path):
    done, _ = raced("02", "--target", "0.01", "--quick")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "logs" / "02_on_device"
    result = json.loads((folder / "result.json").read_text())
    assert (result["step"], result["data"], result["image_size"]) == ("02_on_device", "digits", 16)
    assert len(list(folder.glob("*.pt.trace.json.gz"))) == 1
    assert (folder / FILE).exists()


@pytest.mark.parametrize("name", ["00", "14"])
def test_cprofile_writes_what_snakeviz_reads_and_no_record(raced, name, tmp_path):
    done, race = raced(name, "--cprofile", str(tmp_path / "naive.prof"))
    assert done.returncode == 0, done.stderr
    assert race is None
    functions = {name for _, _, name in pstats.Stats(str(tmp_path / "naive.prof")).stats}
    assert "train_step" in functions
    assert ("__getitem__" in functions) == (name == "00")  # image by image
    assert "accuracy" not in functions  # testing is off the clock


def test_a_target_that_is_not_reached_is_one_line_and_a_failure(raced):
    done, race = raced("02", "--target", "1", "--lr", "0.0001", "--epochs", "2")
    assert (done.returncode, race["failure"]) == (2, "not reached")
    assert re.fullmatch(r"02_on_device: 100.00% was not reached: at most .*try more --epochs\n", done.stderr)


def test_a_race_that_diverges_is_one_line_and_a_failure(raced):
    done, race = raced("03", "--lr", "1000", "--epochs", "5")
    assert (done.returncode, race["failure"]) == (2, "diverged")
    assert re.fullmatch(r"03_resnet9: diverged in epoch \d: its loss is no number: try a smaller --lr\n", done.stderr)


def test_a_race_stops_at_the_target_where_it_is_asked_to(raced):
    _, race = raced("02", "--target", "0.01", "--stop", "--race-only", "--epochs", "5")
    assert len(race["seconds"]) == 1


WRONG = [
    (["--dataset", "cifar10"], r"no CIFAR-10 in .*--download"),
    (["--dataset", "cifar100"], r"CIFAR-100 in .* is missing or broken.*--download"),
    (["--dataset", "imagenette"], r"cannot read images from .*train.*--data"),
    (["--dataset", "imagenette", "--download"], "does not fetch Imagenette"),
    (["--model", "resnet18"], r"unknown model 'resnet18'.*w16"),
    (["--batch-size", "64"], r"--batch-size 64 is larger than the data \(40 images\)"),
    (["--target", "94"], "argument --target: '94' is not a number above 0, at most 1"),
    (["--lr", "nan"], "'nan' is not a number above 0"),
    (["--dataset", "mnist"], "invalid choice: 'mnist'"),
    (["--data", "/nowhere/at/all"], r"--data /nowhere/at/all does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_input_that_cannot_be_used_is_one_line(raced, words, message):
    done, race = raced("02", *words)
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert race is None


def test_a_broken_cifar10_is_one_line(raced, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    done, _ = raced("02")
    assert done.returncode == 2
    assert re.search(r"CIFAR-10 in .* is partial", done.stderr)
    assert done.stderr.count("\n") == 1


LINE = "Speed run.\n\nReaches    nothing\n           yet\nIdea       One.\n"


def test_a_head_is_replaced_as_a_whole_and_wrapped():
    text = heads.with_head(LINE, "98 % " + "very " * 30 + "soon")
    assert text.startswith("Speed run.\n\nReaches    98 % very ")
    assert text.endswith("soon\nIdea       One.\n")
    assert "nothing" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_options_are_those_of_the_data_set_and_can_be_given(tmp_path):
    file = ROOT / "labs" / "speedrun" / "04_one_cycle.py"
    args = race_options("", file, ["--dataset", "cifar10", "--data", str(tmp_path), "--device", "cpu"])
    assert (args.model, args.batch_size, args.image_size, args.target) == ("w64", 512, 32, 0.94)
    own = race_options("", file, [*SMALL, "--dataset", "digits", "--lr", "3", "--fold", "2", "--data", str(tmp_path)])
    assert (own.model, own.batch_size, own.epochs, own.lr, own.fold) == ("w4", 8, 2, 3.0, 2)
    assert replace(own, fold=None).dataset == "digits"


def test_a_recorded_study_can_be_read():
    assert not heads.RECORDED.exists() or read(heads.RECORDED).lab == "speedrun"
