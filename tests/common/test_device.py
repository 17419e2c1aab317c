"""How OpenMP's threads wait and whether glibc keeps freed memory: set unless the user chose, named in a run's notes."""

import os
import platform

import pytest
import torch
from support import NAMES, ROOT, STEPS, run_program
from test_session import options

from common import SHORT_SPIN, device, session

AT_IMPORT = """
import builtins, os, sys
original = builtins.__import__

def watched(name, *args, **more):
    if name.partition(".")[0] == "torch":
        sys.exit(f"{os.environ.get('OMP_WAIT_POLICY')} {os.environ.get('GOMP_SPINCOUNT')}")
    return original(name, *args, **more)

builtins.__import__ = watched
import common.device
"""


@pytest.fixture
def nothing_chosen(monkeypatch):
    """An environment as a user's is; the tests' own process has imported `common`, which sets it."""
    for name in SHORT_SPIN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("chosen", "seen"), [({}, "PASSIVE 1000"), ({"GOMP_SPINCOUNT": 30000}, "None 30000")])
def test_both_variables_are_set_when_openmp_is_loaded_unless_the_user_chose(nothing_chosen, chosen, seen):
    assert run_program("-c", AT_IMPORT, cwd=ROOT, **chosen).stderr == f"{seen}\n"


@pytest.mark.parametrize("path", STEPS, ids=NAMES)
def test_a_step_imports_common_before_torch(path):
    text = path.read_text()
    assert text.index("\nfrom common import") < text.index("\nimport torch")


BRIEFLY = "OpenMP's threads spin only briefly while they wait, then sleep (OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=1000)"
CHOSEN = {
    BRIEFLY: SHORT_SPIN,
    "OpenMP's threads wait as the environment says (OMP_WAIT_POLICY=ACTIVE)": {"OMP_WAIT_POLICY": "ACTIVE"},
}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("note", "environment"), CHOSEN.items())
def test_a_run_on_a_cpu_notes_both(nothing_chosen, monkeypatch, tmp_path, note, environment, keeps):
    monkeypatch.setattr(device, "keep_freed_memory", lambda: keeps)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    [first, *others] = session._notes("09_small", options(tmp_path), torch.device("cpu"), None)
    assert first == note
    assert any("mallopt" in other for other in others) == keeps
    on_a_gpu = session._notes("09_small", options(tmp_path), torch.device("cuda"), None)
    assert not any(word in other for other in on_a_gpu for word in ("OpenMP", "mallopt"))


def test_glibc_keeps_freed_memory_unless_the_user_chose(monkeypatch):
    keep_freed_memory = device.keep_freed_memory.__wrapped__  # which remembers nothing
    for name in list(os.environ):
        if name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not keep_freed_memory()
