"""The command `explain`, in the process of the tests."""

import pytest
from support import assert_refused


@pytest.fixture(autouse=True)
def no_forced_colours(monkeypatch):
    """Texts as in a pipe, whatever the environment of the tests."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(run_command):
    """run(*words): the two outputs of `explain` with these words, which it must be able to use."""

    def command(*words):
        done = run_command("explain", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return command


@pytest.fixture
def assert_refuses(run_command):
    """assert_refuses(*words, message=...): `explain` refuses these words with one line on stderr only."""

    def command(*words, message):
        done = run_command("explain", *words)
        assert_refused(done, message)
        assert done.stdout == "" and "\x1b" not in done.stderr

    return command
