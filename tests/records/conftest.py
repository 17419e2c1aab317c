"""Records made by hand, and the command that verifies and packs them."""

import shutil

import pytest
from support.recorded import make_record, tree


@pytest.fixture(scope="session")
def valid_record(tmp_path_factory):
    """A valid record, not to be changed."""
    return make_record(tmp_path_factory.mktemp("valid") / "test-gpu")


@pytest.fixture
def folder(valid_record, tmp_path):
    """A valid record, to be spoiled."""
    return shutil.copytree(valid_record, tmp_path / "test-gpu")


@pytest.fixture
def command(run_command, tmp_path, monkeypatch):
    """command("--check", path): exit code, output and error lines of `record`, run in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        done = run_command("record", *words)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    return run


@pytest.fixture
def assert_refused(command, tmp_path):
    """assert_refused(path, *words): `--check` refuses it in one line with these words, and changes nothing."""

    def refuse(path, *words):
        before = tree(tmp_path)
        code, out, err = command("--check", path)
        assert (code, out, len(err)) == (2, [], 1), err
        for word in words:
            assert word in err[0]
        assert tree(tmp_path) == before

    return refuse
