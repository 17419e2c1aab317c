"""The order in which questions about traces are answered, and what becomes of a child that dies."""

import time
from pathlib import Path

import pytest
from support.board import PATIENCE

from walkthrough.tensorboard.answers import Store

WAITING = str(Path(__file__).with_name("waiting_child.py"))


def until(ready):
    """Wait until `ready()` is true; returns it."""
    ends = time.monotonic() + PATIENCE
    while not (answer := ready()):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return answer


@pytest.fixture
def store_of(tmp_path, monkeypatch):
    """store_of(*program): a `Store` with one child."""
    monkeypatch.setattr("walkthrough.tensorboard.answers.SETTLE_SECONDS", 0)
    opened = []

    def start(*program):
        opened.append(Store(tmp_path / "cache", 1, program))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def test_what_was_asked_for_last_is_read_first_and_what_nobody_waits_for_last(tmp_path, store_of):
    paths = {name: tmp_path / name for name in ("first", "a", "b", "c", "ahead1", "ahead2")}
    for path in paths.values():
        path.write_text("{}")
    store = store_of(WAITING, str(tmp_path))
    asked = lambda: [Path(line).name for line in (tmp_path / "asked").read_text().splitlines()]  # noqa: E731
    store.get("digest", paths["first"])
    until((tmp_path / "asked").exists)  # it is being read
    for name in ("ahead1", "a", "b", "ahead2", "c", "first", "a", "a", "ahead1"):
        assert store.get("digest", paths[name], urgent="ahead" not in name) == ("reading", None)
    assert store.reading == 6
    (tmp_path / "go").touch()
    until(lambda: store.reading == 0)
    assert asked() == ["first", "a", "c", "b", "ahead1", "ahead2"]  # each once


def test_a_trace_at_which_a_child_dies_is_tried_twice(tmp_path, store_of, monkeypatch):
    monkeypatch.setattr("walkthrough.tensorboard.answers.RETRY_SECONDS", 0)
    path, log = tmp_path / "trace", tmp_path / "log"
    path.write_text("{}")
    store = store_of("-c", f"input(); open({str(log)!r}, 'a').write('.'); exit(9)")
    state, reason = until(lambda: (answer := store.get("digest", path))[0] == "failed" and answer)
    assert (state, "ended with exit code 9" in reason) == ("failed", True)
    assert log.read_text() == ".."
