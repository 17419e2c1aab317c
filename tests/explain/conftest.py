"""The command `explain`, in the process of the tests."""

from types import SimpleNamespace

import pytest
from support import assert_refused

from walkthrough.cli import main


@pytest.fixture(autouse=True)
def no_forced_colours(monkeypatch):
    """Texts as in a pipe, whatever the environment of the tests."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def explained(capsys):
    """explained(*words): exit code, standard output and error of `explain` with these words."""

    def command(*words):
        with pytest.raises(SystemExit) as exited:
            main(["explain", *map(str, words)])
        printed = capsys.readouterr()
        return exited.value.code, printed.out, printed.err

    return command


@pytest.fixture
def run(explained):
    """run(*words): the two outputs of `explain` with these words, which it must be able to use."""

    def command(*words):
        code, out, err = explained(*words)
        assert code == 0, err
        return out, err

    return command


@pytest.fixture
def assert_refuses(explained):
    """assert_refuses(*words, message=...): `explain` refuses these words with one line on stderr only."""

    def command(*words, message):
        code, out, err = explained(*words)
        assert_refused(SimpleNamespace(returncode=code, stderr=err), message)
        assert out == "" and "\x1b" not in err

    return command
