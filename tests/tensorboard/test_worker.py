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
from support.trace_builder import two_steps

from walkthrough.tensorboard import worker
from walkthrough.tensorboard.worker import Question, serve


@pytest.fixture
def served(tmp_path, monkeypatch):
    """served((kind, path, *options)…): [(outcome, answer or None)]."""
    monkeypatch.setattr(worker, "taken_memory", lambda: 0)  # other tests here have

    def ask(*questions):
        jobs, outcomes = [], io.StringIO()
        for number, (kind, path, *options) in enumerate(questions):
            status = os.stat(path)
            into = str(tmp_path / f"answer{number}")
            jobs.append(vars(Question(kind, str(path), status.st_size, status.st_mtime_ns, tuple(options), into)))
        serve(io.StringIO("".join(json.dumps(job) + "\n" for job in jobs)), outcomes)
        lines = [json.loads(line) for line in outcomes.getvalue().splitlines()]
        return [(line, _content(job["into"])) for line, job in zip(lines, jobs, strict=True)]

    return ask


def _content(path):
    return json.loads(gzip.decompress(Path(path).read_bytes())) if os.path.exists(path) else None


def test_a_file_whose_name_is_not_utf8_is_read(tmp_path, served):
    path = tmp_path / os.fsdecode(b"w\xff.pt.trace.json")
    try:
        two_steps().write(path)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")
    damaged = path.with_name(f"half{path.name}")
    damaged.write_bytes(path.read_bytes()[:-50])
    found = served(("digest", path), ("lanes", damaged, None, None), ("digest", damaged))
    assert [outcome["reason"] for outcome, _ in found] == [None] * 3
    assert found[0][1]["file"] == "w?.pt.trace.json"
    for _, answer in found[1:]:
        assert "halfw?.pt.trace.json is cut off" in answer["warnings"][0]


def test_lanes_are_those_of_the_steps_that_are_asked_for(tmp_path, served):
    path = two_steps().write(tmp_path / "made.pt.trace.json")
    (_, both), (_, last) = served(("lanes", path, None, None), ("lanes", path, 1, 1))
    assert (both["loaded"]["first"], both["loaded"]["last"]) == (0, 1)
    assert (last["loaded"]["first"], last["loaded"]["last"]) == (1, 1)


def test_a_trace_that_cannot_be_read_fails_for_good_and_the_next_is_answered(tmp_path, served):
    path, broken = two_steps().write(tmp_path / "made.json"), tmp_path / "broken.json"
    broken.write_text("no trace")
    (failed, nothing), (_, answer) = served(("digest", broken), ("digest", path))
    assert failed["reason"] and not failed["temporary"] and nothing is None
    assert answer["typical"]["kernel_count"] == 1


def test_a_defect_is_logged_and_tried_again_later_and_the_next_is_answered(tmp_path, served, monkeypatch, caplog):
    path = two_steps().write(tmp_path / "made.json")
    (outcome, nothing), (_, answer) = served(("lanes", path, "one", None), ("digest", path))
    assert (outcome["reason"], outcome["temporary"], nothing) == ("a defect: see TensorBoard's log", True, None)
    assert "Traceback" in caplog.text
    assert answer["typical"]["kernel_count"] == 1


def test_a_trace_that_was_written_to_since_it_was_asked_about_is_not_answered(tmp_path):
    path, into = two_steps().write(tmp_path / "made.json"), tmp_path / "answer"
    for size in (path.stat().st_size + 1, path.stat().st_size):
        outcome = worker.answer(Question("digest", str(path), size, path.stat().st_mtime_ns, (), str(into)))
        assert outcome.changed is not into.exists()
    path.unlink()
    assert worker.answer(Question("digest", str(path), 1, 1, (), str(into))).changed


def job_of(kind, path, into, *options):
    status = os.stat(path)
    return Question(kind, str(path), status.st_size, status.st_mtime_ns, options, str(into))


def run_child(*jobs, **variables):
    """The outcomes of a child of its own."""
    words = [sys.executable, "-W", "ignore", "-m", "walkthrough.tensorboard.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, env=os.environ | variables, **pipes) as child:
        assert child.stdin and child.stdout
        child.stdin.write("".join(json.dumps(asdict(job)) + "\n" for job in jobs))
        child.stdin.flush()
        return [json.loads(child.stdout.readline()) for _ in jobs]


EVENT = json.dumps(two_steps().events[0]).encode()
BOMBS = {  # the begin of a JSON text, a piece that is there again and again, the end
    "events": (b'{"traceEvents":[', EVENT + b",", EVENT + b"]}"),
    "text": (b'{"traceEvents":[{"name":"', b"x", b'"}]}'),
}


@pytest.mark.parametrize(("kind", "bomb"), [("profile", "events"), *(("digest", bomb) for bomb in BOMBS)])
def test_a_trace_that_takes_more_memory_than_the_limit_fails_for_good(tmp_path, kind, bomb):
    path, packed, (begin, piece, end) = tmp_path / "bomb.pt.trace.json.gz", zlib.compressobj(1, wbits=31), BOMBS[bomb]
    parts = (begin, *[piece * (2**21 // len(piece))] * 200, end)
    path.write_bytes(b"".join(map(packed.compress, parts)) + packed.flush())
    job = job_of(kind, path, tmp_path / "answer", *(("w", None) if kind == "profile" else ()))
    [outcome] = run_child(job, WALKTHROUGH_READER_MEMORY="250MB")
    assert "memory: WALKTHROUGH_READER_MEMORY sets the limit" in outcome["reason"]
    assert (outcome["temporary"], outcome["starved"], outcome["last"]) == (False, True, True)
    assert not (tmp_path / "answer").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has reserved")
def test_what_libraries_could_reserve_is_left_to_the_next_trace(tmp_path):
    path = two_steps().write(tmp_path / "w.pt.trace.json.gz")
    jobs = [job_of("profile", path, tmp_path / f"answer{number}.profile", "w", None) for number in range(2)]
    outcomes = run_child(*jobs, WALKTHROUGH_READER_MEMORY="320MB")
    assert [outcome["reason"] for outcome in outcomes] == [None, None]


def test_a_limit_that_is_no_limit_is_not_used(monkeypatch, caplog):
    monkeypatch.setenv("WALKTHROUGH_READER_MEMORY", "much")
    monkeypatch.setenv("WALKTHROUGH_READER_SECONDS", "7")
    assert worker.limits.__wrapped__().seconds == 7
    assert 0 < worker.limits.__wrapped__().memory <= 4 * 2**30
    assert "WALKTHROUGH_READER_MEMORY is not used" in caplog.text


@pytest.mark.skipif(not hasattr(signal, "SIGXCPU"), reason="the system has no limit of the time")
def test_a_job_that_takes_more_time_than_the_limit_ends_the_child():
    program = "from walkthrough.tensorboard import worker\nfor line in worker._limited(['', '']):\n  while True: pass"
    child = subprocess.run([sys.executable, "-c", program], env=os.environ | {"WALKTHROUGH_READER_SECONDS": "1"})
    assert child.returncode == -signal.SIGXCPU


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


@pytest.mark.parametrize("kind", ["digest", "lanes", "event", "profile", "view"])
@pytest.mark.parametrize("replaced", ["a pipe", "a link", "a folder"])
def test_what_has_taken_the_place_of_a_trace_is_not_opened(tmp_path, kind, replaced):
    path, canary = two_steps().write(tmp_path / "made.json"), two_steps().write(tmp_path / "canary.json")
    job = job_of(kind, path, tmp_path / "answer")
    path.unlink()
    {"a pipe": os.mkfifo, "a folder": os.mkdir, "a link": lambda path: path.symlink_to(canary)}[replaced](path)
    outcome = worker.answer(job)
    assert outcome.reason == f"cannot be read: not a plain file but {replaced}"
    assert outcome.temporary


def test_a_child_leaves_no_core(tmp_path):
    program = "import resource as r; from walkthrough.tensorboard.worker import _limit_memory as limit; limit(); "
    words = [sys.executable, "-c", program + "print(r.getrlimit(r.RLIMIT_CORE)[0])"]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "0\n"
