"""The child that reads traces, by itself: what it writes, and what it says where it cannot."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest
from support import run_program
from support.trace_builder import two_steps

from walkthrough.tensorboard import worker
from walkthrough.tensorboard.worker import Question, serve


def job_of(kind, path, into, *options):
    status = os.stat(path)
    return Question(kind, str(path), status.st_size, status.st_mtime_ns, options, str(into))


@pytest.fixture
def served(tmp_path, monkeypatch):
    """served((kind, path, options)…): [(outcome, answer or None)]."""
    monkeypatch.setattr(worker, "taken_memory", lambda: 0)  # other tests here have

    def content(job):
        return json.loads(gzip.decompress(Path(job.into).read_bytes())) if os.path.exists(job.into) else None

    def ask(*questions):
        jobs = [job_of(*two, tmp_path / f"{at}.answer", *options) for at, (*two, options) in enumerate(questions)]
        outcomes = io.StringIO()
        serve([json.dumps(asdict(job)) for job in jobs], outcomes)
        lines = map(json.loads, outcomes.getvalue().splitlines())
        return [(line, content(job)) for line, job in zip(lines, jobs, strict=True)]

    return ask


def test_lanes_are_those_of_the_steps_that_are_asked_for(tmp_path, served):
    path = two_steps().write(tmp_path / "made.pt.trace.json")
    (_, both), (_, last) = served(("lanes", path, (None, None)), ("lanes", path, (1, 1)))
    assert (both["loaded"]["first"], both["loaded"]["last"]) == (0, 1)
    assert (last["loaded"]["first"], last["loaded"]["last"]) == (1, 1)


def test_a_trace_that_cannot_be_read_fails_for_good_a_defect_for_now_and_the_next_is_answered(tmp_path, served, caplog):
    path, broken = two_steps().write(tmp_path / "made.json"), tmp_path / "broken.json"
    broken.write_text("no trace")
    failed, defect, (_, answer) = served(("digest", broken, ()), ("lanes", path, ("one", None)), ("digest", path, ()))
    assert failed[0]["reason"] and not failed[0]["temporary"]
    assert (defect[0]["reason"], defect[0]["temporary"]) == ("a defect: see TensorBoard's log", True)
    assert "Traceback" in caplog.text
    assert (failed[1], defect[1], answer["typical"]["kernel_count"]) == (None, None, 1)


def test_a_trace_that_was_written_to_since_it_was_asked_about_is_not_answered(tmp_path):
    path, into = two_steps().write(tmp_path / "made.json"), tmp_path / "answer"
    for size in (path.stat().st_size + 1, path.stat().st_size):
        outcome = worker.answer(Question("digest", str(path), size, path.stat().st_mtime_ns, (), str(into)))
        assert outcome.changed is not into.exists()
    assert worker.answer(job_of("digest", path, tmp_path / "no folder" / "answer")).unwritable
    path.unlink()
    assert worker.answer(Question("digest", str(path), 1, 1, (), str(into))).changed


EVENT = json.dumps(two_steps().events[0]).encode() + b","


BOMBS = {"profile": (b"", EVENT), "digest": (b'{"name":"', b"x")}  # what a list of events begins with, and holds


@pytest.mark.parametrize("kind", BOMBS)
def test_a_trace_that_takes_more_memory_than_the_limit_fails_for_good(tmp_path, kind):
    path, packed, (begin, piece) = tmp_path / "bomb.pt.trace.json.gz", zlib.compressobj(1, wbits=31), BOMBS[kind]
    parts = b'{"traceEvents":[' + begin, *[piece * (2**21 // len(piece))] * 130
    path.write_bytes(b"".join(map(packed.compress, parts)) + packed.flush())
    words = [sys.executable, "-W", "ignore", "-m", "walkthrough.tensorboard.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    variables = os.environ | {"WALKTHROUGH_READER_MEMORY": "250MB"}
    with subprocess.Popen(words, text=True, env=variables, **pipes) as child:
        child.stdin.write(json.dumps(asdict(job_of(kind, path, tmp_path / "answer", "w", None))) + "\n")
        child.stdin.flush()
        outcome = json.loads(child.stdout.readline())
    assert "memory: WALKTHROUGH_READER_MEMORY sets the limit" in outcome["reason"]
    assert (outcome["temporary"], outcome["starved"], outcome["last"]) == (False, True, True)


@pytest.mark.skipif(not hasattr(signal, "SIGXCPU"), reason="the system has no limit of the time")
def test_a_job_that_takes_more_time_than_the_limit_ends_the_child_which_leaves_no_core():
    program = "import resource; from walkthrough.tensorboard import worker; worker._limit_memory()\n"
    program += "print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)\n"
    program += "for line in worker._limited(['', '']):\n  while True: pass"
    child = run_program("-c", program, WALKTHROUGH_READER_SECONDS=1)
    assert (child.returncode, child.stdout) == (-signal.SIGXCPU, "0\n")


def test_a_child_ends_with_its_parent_whatever_it_does(tmp_path):
    busy = "import time; from walkthrough.tensorboard import worker; worker.answer = lambda job: time.sleep(1000)"
    job = json.dumps(asdict(Question("digest", "", 0, 0, (), "")))
    parent = (
        "import subprocess, sys; words = [sys.executable, '-c', sys.argv[1]]; "
        "child = subprocess.Popen(words, stdin=subprocess.PIPE); "
        "child.stdin.write(sys.argv[2].encode() + b'\\n'); "
        "child.stdin.flush(); print(flush=True); input()"
    )
    words = [sys.executable, "-c", parent, f"{busy}; worker.main()", job]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == b""  # ends once the child, which has it too, has ended


@pytest.mark.parametrize("replaced", ["a pipe", "a link"])
def test_what_has_taken_the_place_of_a_trace_is_not_opened(tmp_path, replaced):
    path, canary = two_steps().write(tmp_path / "made.json"), two_steps().write(tmp_path / "canary.json")
    job = job_of("digest", path, tmp_path / "answer")
    path.unlink()
    {"a pipe": os.mkfifo, "a link": lambda path: path.symlink_to(canary)}[replaced](path)
    outcome = worker.answer(job)
    assert outcome.reason == f"cannot be read: not a plain file but {replaced}"
    assert outcome.temporary
