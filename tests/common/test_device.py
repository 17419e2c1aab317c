"""How OpenMP's threads wait and whether glibc keeps freed memory: set unless the user chose, named in a run's notes."""

import os
import platform

import pytest
from support import NAMES, ROOT, STEPS, run_program

from common import SHORT_SPIN, device

SEEN = "import os, sys, common; print(*map(os.environ.get, common.SHORT_SPIN), 'torch' in sys.modules)"


@pytest.fixture
def nothing_chosen(monkeypatch):
    """An environment as a user's is; the tests' own process has imported `common`, which sets it."""
    for name in SHORT_SPIN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("chosen", "seen"), [({}, "PASSIVE 1000"), ({"GOMP_SPINCOUNT": 30000}, "None 30000")])
def test_both_variables_are_set_before_torch_is_imported_unless_the_user_chose(nothing_chosen, chosen, seen):
    assert run_program("-c", SEEN, cwd=ROOT, **chosen).stdout == f"{seen} False\n"


@pytest.mark.parametrize("path", STEPS, ids=NAMES)
def test_a_step_imports_common_before_torch(path):
    text = path.read_text()
    assert text.index("\nfrom common import") < text.index("\nimport torch")


def test_glibc_keeps_freed_memory_unless_the_user_chose(monkeypatch):
    keep_freed_memory = device.keep_freed_memory.__wrapped__  # which remembers nothing
    for name in list(os.environ):
        if name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not keep_freed_memory()
