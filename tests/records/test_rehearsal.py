"""`docs/recording.md` rehearsed: the commands on a machine with few packages, at small size, killed where it hurts."""

import gzip
import json
import os
import re
import shutil
import signal
import zipfile

import pytest
from support import ROOT
from support.few_packages import run_with_few_packages

from walkthrough.cli import main
from walkthrough.records.record import LIMIT
from walkthrough.results import result

STEPS = ["00_baseline", "11_fused_optimizer"]
FULL = re.compile(r"^FULL = Plan\(.*\)$", re.MULTILINE)
SHORT = "FULL = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=2, window_seconds=0.05)"
# `python -c CUT_OFF MODULE.FUNCTION N words…`: the command, killed as it calls that function for the Nth time.
CUT_OFF = """
import os, signal, sys
from importlib import import_module

module, _, name = sys.argv[1].rpartition(".")
module, calls = import_module(module), iter(range(1, int(sys.argv[2])))
function = getattr(module, name)

def cut_off(*words, **options):
    if next(calls, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*words, **options)

setattr(module, name, cut_off)
del sys.argv[1:3]
from walkthrough.cli import main
main()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with two steps, whose full measurement is short: a record of it is no smoke run."""
    folder = tmp_path_factory.mktemp("rehearsal") / "project"
    for package in ("common", "studies", "walkthrough"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "steps").mkdir()
    for step in STEPS:
        shutil.copy(ROOT / "steps" / f"{step}.py", folder / "steps")
    timing = [path for path in (folder / "common").rglob("*.py") if FULL.search(path.read_text(encoding="utf-8"))]
    assert timing  # of the steps, and of studies
    for path in timing:
        path.write_text(FULL.sub(SHORT, path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.fixture
def there(project, tmp_path):
    """there(words…): run Python with these words in the copy, with few packages; the finished process."""

    def run(*words):
        # Nothing is compiled: that takes minutes, and is tested elsewhere.
        return run_with_few_packages(tmp_path, *words, cwd=project, TORCHDYNAMO_DISABLE=1)

    return run


@pytest.fixture
def command_there(there):
    """command_there(words…): run a command there, which has to succeed; what it prints."""

    def run(*words):
        finished = there("-m", "walkthrough", *words)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


@pytest.fixture
def cut_off(there):
    """cut_off(place, calls, words…): run a command there, which is killed at that call; see `CUT_OFF`."""

    def run(*words):
        finished = there("-c", CUT_OFF, *words)
        assert finished.returncode == -signal.SIGKILL, finished.stderr

    return run


@pytest.mark.long
def test_a_ladder_is_recorded_and_packed_with_few_packages_whatever_is_cut_off(
    project, cut_off, command_there, command, tmp_path
):
    logdir = tmp_path / "R"
    words = "record", "--device", "cpu", "--image-size", "48", "--data", tmp_path, "--logdir", logdir
    pack, more = ("record", "--pack"), ("--runs", "2", "--minutes", "60")

    cut_off("walkthrough.compare.isolated.run", 2, *words, "--runs", "1")  # after the first step's run
    [folder] = (path for path in logdir.iterdir() if path.is_dir())
    first, last = (folder / step for step in STEPS)
    run = (first / "runs" / "1.json").read_bytes()
    packed = project / f"{folder.name}.zip"
    cut_off("os.replace", 1, *pack, folder)
    assert not packed.exists()
    command_there(*pack, folder)
    with zipfile.ZipFile(packed) as file:
        assert {name.split("/")[1] for name in file.namelist()} == {"record.json", "README.md", STEPS[0]}

    cut_off("walkthrough.compare.tour.sum_up", 2, *words, "--runs", "1")  # between the last step's run and its sum
    assert (last / "runs" / "1.json").exists()
    assert not (last / result.FILE).exists()
    cut_off("walkthrough.compare.isolated.run", 2, *words, *more)  # in the middle of the second round
    assert sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/runs/*")) == [
        f"{STEPS[0]}/runs/1.json", f"{STEPS[0]}/runs/2.json", f"{STEPS[1]}/runs/1.json"
    ]  # fmt: skip

    out = command_there(*words, *more)
    assert f"{folder} holds 2 run(s) of every step" in out
    assert (first / "runs" / "1.json").read_bytes() == run
    command_there(*pack, folder)

    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "home")
    unzipped = tmp_path / "home" / folder.name
    code, _, err = command("--pack", unzipped)
    assert (code, err) == (0, [])
    code, out, err = command("--check", unzipped)
    assert (code, out[-1], err) == (0, "ok", [])
    assert (unzipped / first.name / "runs" / "1.json").read_bytes() == run
    assert f"| `{STEPS[1]}`" in (unzipped / "README.md").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(unzipped)])
    assert ended.value.code == 0
    for step in STEPS:
        [trace] = (unzipped / step).glob("*.gz")
        assert trace.stat().st_size < LIMIT
        events = json.loads(gzip.decompress(trace.read_bytes()))
        assert sum(event["name"].startswith("ProfilerStep#") for event in events["traceEvents"]) == 3
        assert os.uname().nodename not in {events.get("host_name"), trace.name.split(".")[0]}
