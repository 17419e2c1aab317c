"""The command `explain`, in the process of the tests."""

import pytest

from walkthrough.cli import main


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
