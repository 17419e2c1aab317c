"""The tool by itself, as `pip install .` leaves it: a wheel that is unpacked, few packages, somebody's own `common`."""

import configparser
import json
import shutil
import sys
import zipfile

import pytest
from support import CPU_RECORD, ROOT, assert_refused, run_program

from walkthrough.cli import COMMANDS, NEED_CLONE

HIDDEN = "torch torchvision tensorboard torch_tb_profiler scipy pandas matplotlib plotly filelock psutil".split()
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
TRACE = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel's path."""
    pytest.importorskip("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in ("walkthrough", "common"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    finished = run_program("-c", BUILD, out, cwd=source)
    assert finished.returncode == 0, finished.stderr
    return next(out.glob("*.whl"))


@pytest.fixture
def alone(wheel, tmp_path):
    """alone(words…): run the installed tool in a folder whose `common` raises when it is imported."""
    site, folder = tmp_path / "site", tmp_path / "project"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (site / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({HIDDEN}))\n")
    (folder / "common").mkdir(parents=True)
    (folder / "common" / "__init__.py").write_text("raise RuntimeError('not the tool')\n")

    def run(*words):
        return run_program("-m", "walkthrough", *words, cwd=folder, PYTHONPATH=site)

    return run


def test_the_wheel_holds_the_tool_with_its_files_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        [entry_points] = [file.read(name).decode() for name in file.namelist() if name.endswith("/entry_points.txt")]
    files = [path for path in (ROOT / "walkthrough").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names == {str(path.relative_to(ROOT)) for path in files}
    points = configparser.ConfigParser()
    points.read_string(entry_points)
    assert dict(points["console_scripts"]) == {"walkthrough": "walkthrough.cli:main"}
    assert dict(points["tensorboard_plugins"]) == {"walkthrough": "walkthrough.tensorboard:Loader"}


def test_a_trace_is_explained(alone):
    finished = alone("explain", TRACE, "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["steps"]["count"] == 3
    assert alone("explain", TRACE).stdout


def test_a_record_is_compared_and_explained_with_its_limit(alone):
    record = ROOT / "logs" / "reference" / CPU_RECORD
    finished = alone("compare", record, "--json")
    assert (finished.returncode, finished.stderr) == (0, "")
    rows = json.loads(finished.stdout)["rows"]
    assert len(rows) > 10
    assert rows[0]["share_of_memory_roof"] > 0
    assert alone("explain", record).returncode == 0


def test_a_command_that_runs_the_programs_says_that_it_needs_a_clone(alone):
    assert_refused(alone(NEED_CLONE[0], "--quick"), NEED_CLONE[0], "a clone of the project")


def test_the_commands_are_listed_and_the_machine_is_checked(alone):
    listed = alone("--help")
    assert listed.returncode == 0, listed.stderr
    assert all(f"    {command} " in listed.stdout for command in COMMANDS)
    checked = alone("doctor")
    assert checked.returncode == 2  # there is no torch
    assert f"({sys.executable})" in checked.stdout
    assert checked.stderr == ""


def test_what_is_not_installed_is_named(alone, tmp_path):
    site = tmp_path / "site" / "sitecustomize.py"
    site.write_text(site.read_text() + "sys.modules['msgspec'] = None\n")
    assert_refused(alone("explain", TRACE), "msgspec", "pip install msgspec")
