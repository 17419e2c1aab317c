"""`samples`: others' traces by commit and checksum, from a server on this machine, and from files."""

import hashlib
import http.server
import re
import socket
import threading
from functools import partial

import pytest
from msgspec.structs import replace
from support import assert_refused

from tools.docs import others
from walkthrough.records import samples

CONTENT = {"one": b"the first trace", "two": b"the second, a longer trace"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        name, body = self.path[1:], CONTENT.get(self.path[1:], b"")
        fault = self.server.faults.get(name)
        if fault == "missing":
            self.send_error(404)
            return
        sent = {"cut off": body[:-3], "other": body[::-1]}.get(fault, body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server with two samples, which are the list; `faults` says what is wrong with which answer."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,.invalid")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.faults, server.asked = {}, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        every = samples.read_list()
        listed = [
            replace(
                every.samples[0],
                name=name,
                file=f"{name}.pt.trace.json.gz",
                bytes=len(content),
                address=f"http://127.0.0.1:{server.server_port}/{name}",
                sha256=hashlib.sha256(content).hexdigest(),
            )
            for name, content in CONTENT.items()
        ]
        monkeypatch.setattr(samples, "read_list", lambda: replace(every, samples=listed))
        yield server
        server.shutdown()


@pytest.fixture
def run(run_command):
    """run(*words): the finished command `samples`."""
    return partial(run_command, "samples")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = ["LICENCES.txt", "README.md", "one/one.pt.trace.json.gz", "two/two.pt.trace.json.gz"]


def test_each_is_fetched_into_a_run_folder_and_kept(server, run, tmp_path):
    assert run(tmp_path / "s").returncode == 0
    assert files(tmp_path / "s") == WHOLE
    assert (tmp_path / "s" / "two" / "two.pt.trace.json.gz").read_bytes() == CONTENT["two"]
    assert "Redistribution and use" in (tmp_path / "s" / "LICENCES.txt").read_text(encoding="utf-8")
    asked = len(server.asked)
    assert run(tmp_path / "s").stdout.count("there already") == 2
    assert len(server.asked) == asked


@pytest.mark.parametrize("fault", ["missing", "other", "cut off"])
def test_anything_but_the_trace_is_refused_in_one_line_and_the_other_is_kept(server, run, tmp_path, fault):
    server.faults["one"] = fault
    assert_refused(run(tmp_path), "one", "1 of 2 are in")
    assert files(tmp_path) == [*WHOLE[:2], WHOLE[3]]
    server.faults.clear()
    assert run(tmp_path).returncode == 0
    assert files(tmp_path) == WHOLE


def test_without_a_network_one_line_says_so_and_what_is_there_stays(server, run, tmp_path, monkeypatch):
    def no_address(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    server.faults["two"] = "missing"
    run(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    assert_refused(run(tmp_path), "Name or service not known", "1 of 2 are in")
    assert files(tmp_path) == WHOLE[:3]


def test_files_that_are_here_are_found_by_their_checksums(server, run, tmp_path):
    have = tmp_path / "have"
    (have / "below").mkdir(parents=True)
    (have / "below" / "any name.json.gz").write_bytes(CONTENT["one"])
    (have / "same size.json").write_bytes(CONTENT["two"][::-1])
    assert_refused(run(tmp_path / "s", "--from", have), "holds no file with the checksum of two")
    assert files(tmp_path / "s") == WHOLE[:3]
    assert server.asked == []


def test_a_folder_that_cannot_be_used_is_one_line(server, run, tmp_path):
    (tmp_path / "file").touch()
    assert_refused(run(tmp_path / "file"), "is a file")
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
    addresses = {sample.address: sample.sha256 for sample in every.samples}
    first = others.read_pairs().pairs[0]  # of traces that the pages show
    assert {(side.address, side.sha256) for side in (first.before, first.after)} <= addresses.items()
