"""The driver's version, from what nvidia-smi prints."""

import os

import pytest

from walkthrough.results import environment


@pytest.mark.parametrize(
    ("prints", "version"),
    [
        ("printf '580.65.06\\n580.65.06\\n'", "580.65.06"),  # two GPUs
        ("printf '\\n'", None),
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
