"""`docs/recording.md` rehearsed: its commands on a machine with few packages, at small size."""

import gzip
import json
import os
import re
import shutil
import zipfile

import pytest
from support import ROOT, run_program

from walkthrough.records.record import LIMIT

STEP = "00_baseline"
FULL = re.compile(r"^FULL = Plan\(.*\)$", re.MULTILINE)
SHORT = "FULL = Plan(warmup_steps=1, warmup_seconds=0.0, windows=5, window_steps=2, window_seconds=0.05)"
# Of what requirements.txt installs, all that a GPU machine's image with torch, torchvision and TensorBoard lacks.
LACKING = "isal jupyter matplotlib mkdocs nbformat pandas plotly psutil rich scipy sklearn torch_tb_profiler"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with one step, whose full measurement is short: a record of it is no smoke run."""
    folder = tmp_path_factory.mktemp("rehearsal") / "project"
    for package in ("common", "walkthrough"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "steps").mkdir()
    shutil.copy(ROOT / "steps" / f"{STEP}.py", folder / "steps")
    timing = [path for path in (folder / "common").rglob("*.py") if FULL.search(path.read_text(encoding="utf-8"))]
    assert timing
    for path in timing:
        path.write_text(FULL.sub(SHORT, path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.mark.long
def test_a_ladder_is_recorded_and_packed_with_few_packages(project, command, tmp_path):
    """What is left where a record is cut off, and that the same command goes on: see test_recording."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({LACKING.split()}))\n")

    def there(*words):
        """Run a command in the copy, with few packages, which has to succeed; nothing is compiled."""
        words = "-m", "walkthrough", "record", *words
        finished = run_program(*words, cwd=project, PYTHONPATH=tmp_path, TORCHDYNAMO_DISABLE=1)
        assert finished.returncode == 0, finished.stderr

    logdir = tmp_path / "R"
    options = "--device", "cpu", "--image-size", "32", "--data", tmp_path, "--logdir", logdir
    there(*options, "--runs", "1", "--minutes", "60")
    [folder] = (path for path in logdir.iterdir() if path.is_dir())
    there("--pack", folder)
    with zipfile.ZipFile(project / f"{folder.name}.zip") as file:
        file.extractall(tmp_path / "home")
    unzipped = tmp_path / "home" / folder.name
    code, out, err = command("--check", unzipped)
    assert (code, out[-1], err) == (0, "ok", [])
    assert f"| `{STEP}`" in (unzipped / "README.md").read_text()
    [trace] = (unzipped / STEP).glob("*.gz")
    assert trace.stat().st_size < LIMIT
    events = json.loads(gzip.decompress(trace.read_bytes()))
    assert sum(event["name"].startswith("ProfilerStep#") for event in events["traceEvents"]) == 3
    assert os.uname().nodename not in {events.get("host_name"), trace.name.split(".")[0]}
