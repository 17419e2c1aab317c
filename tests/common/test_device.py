"""How OpenMP's threads wait and whether glibc keeps freed memory: set unless the user chose, named in a run's notes."""

import os
import platform

import pytest
import torch
from support import STEPS, run_program
from test_session import options

from common import SHORT_SPIN, device, session

# What OpenMP's library reads when it is loaded is seen in the environment at the moment at which torch is imported.
AT_IMPORT = """
import builtins, os, runpy, sys
original, before = builtins.__import__, dict(os.environ)

def watched(name, *args, **more):
    if name.partition(".")[0] == "torch":
        print(*(os.environ.get(variable, "") for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")), sep=",")
        sys.exit()
    return original(name, *args, **more)

builtins.__import__ = watched
for program in sys.argv[1:]:
    try:
        runpy.run_path(program)
    except SystemExit:
        for name in [name for name in sys.modules if name.partition(".")[0] == "common"]:
            del sys.modules[name]
        os.environ.clear()
        os.environ.update(before)
"""


@pytest.fixture
def nothing_chosen(monkeypatch):
    """An environment as a user's is; the tests' own process has imported `common`, which sets it."""
    for name in SHORT_SPIN:
        monkeypatch.delenv(name, raising=False)


def at_import(*programs):
    finished = run_program("-c", AT_IMPORT, *programs)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_every_step_sets_both_variables_before_it_imports_torch(nothing_chosen):
    assert at_import(*STEPS) == ["PASSIVE,1000"] * len(STEPS)


def test_what_the_user_chose_is_kept(nothing_chosen, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "30000")
    assert at_import(STEPS[0]) == [",30000"]


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
