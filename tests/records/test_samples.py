"""`samples`: others' traces by commit and checksum, from a server on this machine, and from files."""

import hashlib
import http.server
import re
import threading
from functools import partial

import pytest
from msgspec.structs import replace
from support import assert_refused

from walkthrough.records import samples

CONTENT = {"one": b"the first trace", "two": b"the second, a longer trace"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(monkeypatch, tmp_path_factory):
    """A folder with two samples, which are the list; a server sends what is in it."""
    folder, every = tmp_path_factory.mktemp("served"), samples.read_list()
    monkeypatch.setenv("no_proxy", "127.0.0.1,.invalid")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        listed = []
        for name, content in CONTENT.items():
            (folder / name).write_bytes(content)
            address, digest = f"http://127.0.0.1:{server.server_port}/{name}", hashlib.sha256(content).hexdigest()
            own = {"name": name, "file": f"{name}.pt.trace.json.gz", "bytes": len(content), "sha256": digest}
            listed.append(replace(every.samples[0], address=address, **own))
        monkeypatch.setattr(samples, "read_list", lambda: replace(every, samples=listed))
        yield folder
        server.shutdown()


@pytest.fixture
def run(run_command):
    """run(*words): the finished command `samples`."""
    return partial(run_command, "samples")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = ["LICENCES.txt", "README.md", "one/one.pt.trace.json.gz", "two/two.pt.trace.json.gz"]


def test_a_list_fetches_nothing(served, run, tmp_path):
    listed = run(tmp_path / "new", "--list")
    assert listed.stdout.count("/one\n") == listed.stdout.count("/two\n") == 1
    assert f". {len(CONTENT['one'])} B, " in listed.stdout
    assert not (tmp_path / "new").exists()


def test_each_is_fetched_into_a_run_folder_and_kept(served, run, tmp_path):
    assert run(tmp_path).returncode == 0
    assert files(tmp_path) == WHOLE
    assert (tmp_path / "two" / "two.pt.trace.json.gz").read_bytes() == CONTENT["two"]
    assert "Redistribution and use" in (tmp_path / "LICENCES.txt").read_text(encoding="utf-8")
    (served / "one").unlink()  # is not asked for again
    assert run(tmp_path).returncode == 0


@pytest.mark.parametrize("sent", [None, b"another trace 1", CONTENT["one"][:-3], CONTENT["one"] + b"x"])
def test_anything_but_the_trace_is_refused_in_one_line_and_the_other_is_kept(served, run, tmp_path, sent):
    if sent is None:
        (served / "one").unlink()
    else:
        (served / "one").write_bytes(sent)
    assert_refused(run(tmp_path), "one", "1 of 2 are in")
    assert files(tmp_path) == [*WHOLE[:2], WHOLE[3]]
    (served / "one").write_bytes(CONTENT["one"])
    assert run(tmp_path).returncode == 0
    assert files(tmp_path) == WHOLE


def test_files_that_are_here_are_found_by_their_checksums(served, run, tmp_path):
    have = tmp_path / "have"
    (have / "below").mkdir(parents=True)
    (have / "below" / "any name.json.gz").write_bytes(CONTENT["one"])
    (have / "same size.json").write_bytes(CONTENT["two"][::-1])
    assert_refused(run(tmp_path / "s", "--from", have), "holds no file with the checksum of two")
    assert files(tmp_path / "s") == WHOLE[:3]
    assert_refused(run(tmp_path / "s", "--from", tmp_path / "none"), "there is no such folder")


def test_the_list_names_every_trace_by_commit_and_its_licence():
    every = samples.read_list()
    assert len({sample.name for sample in every.samples}) == len(every.samples) <= 12
    assert sum(sample.bytes for sample in every.samples) < 60e6
    for sample in every.samples:
        assert re.fullmatch(rf"https://github\.com/{sample.source}/raw/[0-9a-f]{{40}}/\S+\.json\.gz", sample.address)
        assert re.fullmatch(r"[0-9a-f]{64}", sample.sha256)
        assert sample.file.endswith(".pt.trace.json.gz")
        assert "Copyright (c)" in every.licences[sample.source].text
