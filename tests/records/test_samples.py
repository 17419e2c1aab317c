"""`samples`: others' traces by commit and checksum, from a server on this machine, and from files."""

import hashlib
import http.server
import json
import os
import re
import socket
import sys
import threading

import pytest
from msgspec.structs import replace
from support import ROOT, run_program

from tools.docs import others
from walkthrough.cli import main
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
        if fault == "moved":
            self.send_response(302)
            self.send_header("Location", "/one")
            self.end_headers()
            return
        sent = {"cut off": body[:-3], "other": body[::-1], "longer": body + b"x" * 10}.get(fault, body)
        self.send_response(200)
        self.send_header("Content-Length", str(max(len(sent), len(body))))
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
                sample,
                name=name,
                file=f"{name}.pt.trace.json.gz",
                address=f"http://127.0.0.1:{server.server_port}/{name}",
                sha256=hashlib.sha256(CONTENT[name]).hexdigest(),
                bytes=len(CONTENT[name]),
            )
            for name, sample in zip(CONTENT, every.samples, strict=False)
        ]
        monkeypatch.setattr(samples, "read_list", lambda: replace(every, samples=listed))
        yield server
        server.shutdown()


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(["samples", *map(str, words)])
    return ended.value.code


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WHOLE = ["LICENCES.txt", "README.md", "one/one.pt.trace.json.gz", "two/two.pt.trace.json.gz"]


def test_each_is_fetched_into_a_run_folder_and_kept(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert run(tmp_path / "s") == 0
    assert files(tmp_path / "s") == WHOLE
    assert (tmp_path / "s" / "two" / "two.pt.trace.json.gz").read_bytes() == CONTENT["two"]
    out = capsys.readouterr().out
    assert "BSD-3-Clause" in out
    assert f"  {sys.executable} -m walkthrough explain {tmp_path / 's' / 'one'}\n" in out
    assert f"  {sys.executable} -m tensorboard.main --logdir {tmp_path / 's'}\n" in out
    assert "Redistribution and use" in (tmp_path / "s" / "LICENCES.txt").read_text(encoding="utf-8")
    asked = len(server.asked)
    assert run(tmp_path / "s") == 0
    assert len(server.asked) == asked
    assert capsys.readouterr().out.count("there already") == 2


def test_what_to_run_next_is_named_as_it_can_be_typed(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("walkthrough.records.samples.find_spec", lambda name: None)  # no TensorBoard
    assert run(tmp_path / "two words", "--from", tmp_path) == 2
    assert f"; walkthrough samples '{tmp_path / 'two words'}' fetches the others" in capsys.readouterr().err
    assert run(tmp_path / "two words") == 0
    out = capsys.readouterr().out
    assert out.endswith(f"To look at them:\n  walkthrough explain '{tmp_path / 'two words' / 'one'}'\n")


def test_a_file_that_was_changed_is_fetched_anew(server, tmp_path):
    run(tmp_path)
    (tmp_path / "one" / "one.pt.trace.json.gz").write_bytes(CONTENT["one"].upper())
    assert run(tmp_path) == 0
    assert (tmp_path / "one" / "one.pt.trace.json.gz").read_bytes() == CONTENT["one"]


@pytest.mark.parametrize("fault", ["missing", "other", "longer", "cut off", "moved"])
def test_anything_but_the_trace_is_refused_in_one_line_and_leaves_nothing(server, tmp_path, capsys, fault):
    server.faults["two"] = fault
    assert run(tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "two" in error
    assert "1 of 2 are in" in error
    assert files(tmp_path) == WHOLE[:3]
    assert not (tmp_path / "two").exists()
    server.faults.clear()
    assert run(tmp_path) == 0
    assert files(tmp_path) == WHOLE


def test_one_that_is_gone_does_not_keep_the_others_away(server, tmp_path, capsys):
    server.faults["one"] = "missing"
    assert run(tmp_path) == 2
    assert "404" in capsys.readouterr().err
    assert files(tmp_path) == [*WHOLE[:2], WHOLE[3]]


def test_without_a_network_one_line_says_so_and_what_is_there_stays(server, tmp_path, capsys, monkeypatch):
    server.faults["two"] = "missing"
    run(tmp_path)
    capsys.readouterr()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listed = samples.read_list()
    gone = [replace(sample, address=f"http://127.0.0.1:{port}/{sample.name}") for sample in listed.samples]
    monkeypatch.setattr(samples, "read_list", lambda: replace(listed, samples=gone))
    assert run(tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "onnection refused" in error
    assert "1 of 2 are in" in error
    assert files(tmp_path) == WHOLE[:3]


def no_address(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_host_that_has_no_address_and_one_that_says_nothing(server, monkeypatch):
    sample = samples.read_list().samples[0]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", no_address)
        with pytest.raises(samples.InputError, match="Name or service not known"):
            samples.fetched(replace(sample, address="http://no-such-host.invalid/x"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(samples.InputError, match="timed out"):
            samples.fetched(replace(sample, address=address), timeout=0.2)


def test_files_that_are_here_are_found_by_their_checksums(server, tmp_path, capsys):
    have = tmp_path / "have"
    (have / "below").mkdir(parents=True)
    (have / "below" / "any name.json.gz").write_bytes(CONTENT["one"])
    (have / "same size.json").write_bytes(CONTENT["two"][::-1])
    assert run(tmp_path / "s", "--from", have) == 2
    assert "holds no file with the checksum of two" in capsys.readouterr().err
    assert files(tmp_path / "s") == WHOLE[:3]
    assert server.asked == []


def test_a_folder_that_cannot_be_used_is_one_line(server, tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run(tmp_path / "file") == 2
    assert run(tmp_path / "s", "--from", tmp_path / "none") == 2
    assert run(tmp_path / "s", "--from", tmp_path / "file") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "there is no such folder" in lines[1]
    assert "is a file: name the folder that holds it" in lines[2]


def test_the_list_names_every_trace_by_commit_and_its_licence():
    every = samples.read_list()
    assert len({sample.name for sample in every.samples}) == len(every.samples) <= 12
    assert sum(sample.bytes for sample in every.samples) < 60e6
    for sample in every.samples:
        assert re.fullmatch(rf"https://github\.com/{sample.source}/raw/[0-9a-f]{{40}}/\S+\.json\.gz", sample.address)
        assert re.fullmatch(r"[0-9a-f]{64}", sample.sha256)
        assert sample.file.endswith(".pt.trace.json.gz")
        assert "Copyright (c)" in every.licences[sample.source].text


def test_the_first_pair_of_the_predictions_is_among_them():
    addresses = {sample.address: sample.sha256 for sample in samples.read_list().samples}
    first, *rest = others.read_pairs().pairs
    assert {first.before.address, first.after.address} <= set(addresses)
    for traced in (traced for pair in (first, *rest) for traced in (pair.before, pair.after)):
        assert addresses.get(traced.address, traced.sha256) == traced.sha256


def test_the_list_is_part_of_the_installed_package_and_fetching_needs_no_torch():
    assert '"walkthrough.records" = ["*.json"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    blocked = "torch numpy tensorboard matplotlib".split()
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\nimport walkthrough.records.samples"
    assert run_program("-c", code).returncode == 0
    assert json.loads(samples.LIST.read_text(encoding="utf-8"))["samples"]
    assert samples.FOLDER == ROOT / "logs" / "samples"


def test_a_sample_is_not_written_through_a_link_that_lies_in_its_way(server, tmp_path):
    (tmp_path / "canary").write_bytes(b"x")
    (tmp_path / "samples" / "one").mkdir(parents=True)
    (tmp_path / "samples" / "one" / f".one.pt.trace.json.gz.{os.getpid()}.partial").symlink_to(tmp_path / "canary")
    assert run(tmp_path / "samples") == 0
    assert (tmp_path / "canary").read_bytes() == b"x"
    assert files(tmp_path / "samples") == WHOLE
