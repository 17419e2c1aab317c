"""What the C library does with freed memory: kept where it is glibc and the user did not choose, and noted."""

import os
import platform

import pytest
import torch
from support import ROOT, run_program
from test_session import options

from common import session
from walkthrough.results import environment as machine

KEPT = "import sys; from walkthrough.results.environment import keep_freed_memory as keep; "
KEPT += "print(keep(), 'torch' in sys.modules)"


def kept(**environment):
    """What `keep_freed_memory` says in a new process, and whether torch is imported there."""
    finished = run_program("-c", KEPT, cwd=ROOT, **environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_glibc_keeps_freed_memory_unless_the_user_chose(monkeypatch):
    for name in list(os.environ):
        if name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    assert kept() == [str(platform.libc_ver()[0] == "glibc"), "False"]
    assert kept(MALLOC_ARENA_MAX=4) == ["False", "False"]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_on_a_cpu_notes_that_it_is_kept(monkeypatch, tmp_path, keeps):
    monkeypatch.setattr(machine, "keep_freed_memory", lambda: keeps)
    notes = {kind: session._notes("09_small", options(tmp_path), torch.device(kind), None) for kind in ("cpu", "cuda")}
    assert (machine.KEEPS_FREED_MEMORY in notes["cpu"]) is keeps
    assert machine.KEEPS_FREED_MEMORY not in notes["cuda"]


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
    assert machine.driver_version() == version
