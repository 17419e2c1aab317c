"""The driver's version from what nvidia-smi prints, and the commit and the hash of the code."""

import os
import re
import subprocess

import pytest

from walkthrough.results import environment
from walkthrough.results.errors import InputError


@pytest.mark.parametrize(
    ("prints", "version"),
    [
        ("printf '580.65.06\\n580.65.06\\n'", "580.65.06"),  # two GPUs
        ("printf '\\377[N/A]\\n'", None),
        ("echo 'No devices were found'", None),
        ("printf '580.65.06\\n'; exit 9", None),
    ],
)
def test_a_driver_version_is_one_or_none(tmp_path, monkeypatch, prints, version):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{prints}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment.driver_version() == version


def test_git_tells_uncommitted_changes_of_the_code_that_measures_from_others(tmp_path, monkeypatch):
    for folder in ("steps", "common", "logs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("1")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "a" * 40)  # left over from another machine
    assert environment.git_revision() == "a" * 12  # git is not at hand
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)
    commit = environment.git_revision()
    assert re.fullmatch("[0-9a-f]{12}", commit) and commit != "a" * 12
    for file in ("logs/file", "walkthrough/explain/new"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("2")
        assert environment.git_revision() == commit, file
    (tmp_path / "steps" / "file").write_text("2")
    assert environment.git_revision() == f"{commit}-dirty"
    (tmp_path / "steps" / "file").write_text("1")
    (tmp_path / "walkthrough" / "records").mkdir()
    (tmp_path / "walkthrough" / "records" / "new").touch()
    assert environment.git_revision() == f"{commit}-dirty"
    monkeypatch.setattr(environment, "ROOT", tmp_path / "steps")  # an archive, unpacked in somebody's repository
    assert environment.git_revision() == "a" * 12


def test_a_commit_is_named_by_the_environment_where_git_is_not_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.delenv(environment.COMMIT_VARIABLE, raising=False)
    assert environment.git_revision() is None
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "0123456789abcdef-dirty")
    assert environment.git_revision() == "0123456789ab-dirty"
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "main")
    with pytest.raises(InputError, match="WALKTHROUGH_COMMIT='main' is no commit"):
        environment.git_revision()


def test_the_code_hash_follows_the_code(tmp_path, monkeypatch):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "00_a.py").write_text("1")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    first = environment.code_hash()
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "walkthrough").mkdir()
    (tmp_path / "walkthrough" / "doctor.py").write_text("1")
    assert environment.code_hash() == first
    assert environment.code_hash("walkthrough/*.py") != first
    (tmp_path / "steps" / "00_a.py").write_text("2")
    assert environment.code_hash() != first
