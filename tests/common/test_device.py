"""How OpenMP's threads wait and whether glibc keeps freed memory: set unless the user chose, named in a run's notes."""

import os
import platform

import pytest
import torch
from support import NAMES, ROOT, STEPS, run_program
from test_session import options

from common import SHORT_SPIN, device, session

# What OpenMP's library reads when it is loaded is seen in the environment at the moment at which torch is imported.
AT_IMPORT = """
import builtins, os, runpy, sys
original = builtins.__import__

def watched(name, *args, **more):
    if name.partition(".")[0] == "torch":
        print(*(os.environ.get(variable, "") for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")), sep=",")
        sys.exit()
    return original(name, *args, **more)

builtins.__import__ = watched
runpy.run_path(sys.argv[1])
"""


@pytest.fixture
def nothing_chosen(monkeypatch):
    """An environment as a user's is; the tests' own process has imported `common`, which sets it."""
    for name in SHORT_SPIN:
        monkeypatch.delenv(name, raising=False)


def at_import(program):
    finished = run_program("-c", AT_IMPORT, program)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip().split(",")


@pytest.mark.parametrize("path", STEPS, ids=NAMES)
def test_a_step_sets_both_variables_before_it_imports_torch(nothing_chosen, path):
    assert at_import(path) == ["PASSIVE", "1000"]


@pytest.mark.parametrize("chosen", [("ACTIVE", ""), ("", "30000")])
def test_what_the_user_chose_is_kept(nothing_chosen, monkeypatch, chosen):
    for name, value in zip(SHORT_SPIN, chosen, strict=True):
        if value:
            monkeypatch.setenv(name, value)
    assert at_import(STEPS[0]) == list(chosen)


BRIEFLY = "OpenMP's threads spin only briefly while they wait, then sleep (OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=1000)"
CHOSEN = {
    BRIEFLY: SHORT_SPIN,
    "OpenMP's threads wait as the environment says (OMP_WAIT_POLICY=ACTIVE)": {"OMP_WAIT_POLICY": "ACTIVE"},
    "OpenMP's threads wait as the environment says (GOMP_SPINCOUNT=9)": {"GOMP_SPINCOUNT": "9"},
}


@pytest.mark.parametrize(("note", "environment"), CHOSEN.items())
def test_a_run_on_a_cpu_notes_how_they_wait(nothing_chosen, monkeypatch, tmp_path, note, environment):
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    [first, *_] = session._notes("09_small", options(tmp_path), torch.device("cpu"), None)
    assert first.startswith(note)
    assert first not in session._notes("09_small", options(tmp_path), torch.device("cuda"), None)


def kept(**environment):
    """What `keep_freed_memory` says in a new process."""
    code = "from common.device import keep_freed_memory as keep; print(keep())"
    finished = run_program("-c", code, cwd=ROOT, **environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_glibc_keeps_freed_memory_unless_the_user_chose(monkeypatch):
    for name in list(os.environ):
        if name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    assert kept() == str(platform.libc_ver()[0] == "glibc")
    assert kept(MALLOC_ARENA_MAX=4) == "False"


@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_on_a_cpu_notes_that_it_is_kept(monkeypatch, tmp_path, keeps):
    monkeypatch.setattr(device, "keep_freed_memory", lambda: keeps)
    notes = {kind: session._notes("09_small", options(tmp_path), torch.device(kind), None) for kind in ("cpu", "cuda")}
    assert {kind: any("mallopt" in note for note in of_kind) for kind, of_kind in notes.items()} == {
        "cpu": keeps, "cuda": False
    }  # fmt: skip
