"""The child that reads traces, by itself: what it writes, and what it says where it cannot."""

import gzip
import io
import json
import os
from pathlib import Path

import pytest
from support.trace_builder import two_steps

from walkthrough.tensorboard import worker
from walkthrough.tensorboard.worker import Job, serve


@pytest.fixture
def served(tmp_path, monkeypatch):
    """served((kind, path, *options)…): [(outcome, answer or None)]."""
    monkeypatch.setattr(worker, "has_taken_much_memory", lambda: False)  # other tests here have

    def ask(*questions):
        jobs, outcomes = [], io.StringIO()
        for number, (kind, path, *options) in enumerate(questions):
            status = os.stat(path)
            into = str(tmp_path / f"answer{number}")
            jobs.append(vars(Job(kind, str(path), status.st_size, status.st_mtime_ns, tuple(options), into)))
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
    assert answer["kernel_count"] == 1


def test_a_defect_is_logged_and_tried_again_later_and_the_next_is_answered(tmp_path, served, monkeypatch, caplog):
    path = two_steps().write(tmp_path / "made.json")
    (outcome, nothing), (_, answer) = served(("lanes", path, "one", None), ("digest", path))
    assert (outcome["reason"], outcome["temporary"], nothing) == ("a defect: see TensorBoard's log", True, None)
    assert "Traceback" in caplog.text
    assert answer["kernel_count"] == 1


def test_a_trace_that_was_written_to_since_it_was_asked_about_is_not_answered(tmp_path):
    path, into = two_steps().write(tmp_path / "made.json"), tmp_path / "answer"
    for size in (path.stat().st_size + 1, path.stat().st_size):
        outcome = worker.answer(Job("digest", str(path), size, path.stat().st_mtime_ns, (), str(into)))
        assert outcome.changed is not into.exists()
    path.unlink()
    assert worker.answer(Job("digest", str(path), 1, 1, (), str(into))).changed
