"""Answers about traces: the order in which they are computed, children that die, and what is kept across starts."""

import gzip
import os
import time

import pytest
from support import until

from walkthrough.results import environment
from walkthrough.results.result import write_whole
from walkthrough.tensorboard import answers, worker
from walkthrough.tensorboard.answers import Answers, Kept
from walkthrough.tensorboard.worker import Question

# A child that reads nothing: it adds what it is asked about to FOLDER/asked, and answers once FOLDER/go is there.
WAITING = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    with (folder / "asked").open("a") as asked:
        asked.write(json.loads(line)["path"] + "\\n")
    while not (folder / "go").exists():
        time.sleep(0.01)
    print("{}", flush=True)
"""
WHOLE = gzip.compress(b"{}", mtime=0)


def about(name, mtime_ns=1, options=()):
    return Question("digest", name, 1, mtime_ns, options)


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "kept", 1000, ".json.gz")


@pytest.fixture
def answers_of(kept, monkeypatch):
    """answers_of(*program): `Answers` of one child."""
    monkeypatch.setattr(answers, "SETTLE_SECONDS", 0)
    opened = []

    def start(*program):
        opened.append(Answers(kept, 1, program=program))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def store(tmp_path, answers_of):
    """`Answers` of `WAITING`."""
    return answers_of("-c", WAITING, str(tmp_path))


@pytest.fixture
def begun(tmp_path):
    """begun(): wait until the child has its first question."""
    return lambda: until((tmp_path / "asked").exists)


@pytest.fixture
def answered(tmp_path, store):
    """answered(): let the child answer; returns the names that it was asked about, in order."""

    def go():
        (tmp_path / "go").touch()
        until(lambda: store.reading == 0)
        return (tmp_path / "asked").read_text().split()

    return go


def test_what_was_asked_for_last_is_read_first_and_what_nobody_waits_for_last(store, begun, answered):
    store.get(about("first"))
    begun()
    for name in ("ahead1", "a", "b", "ahead2", "c", "first", "a", "a", "ahead1"):
        if "ahead" in name:
            store.ask(about(name), urgent=False)
        else:
            assert store.get(about(name)) == ("reading", None)
    assert store.reading == 6
    assert answered() == ["first", "a", "c", "b", "ahead1", "ahead2"]  # each once


def test_a_trace_that_is_being_written_waits_until_it_is_complete(store, begun, answered, monkeypatch):
    monkeypatch.setattr(answers, "SETTLE_SECONDS", 1e6)
    store.get(about("late", time.time_ns()))
    store.get(about("early"))
    begun()
    monkeypatch.setattr(answers, "SETTLE_SECONDS", 0)
    assert answered() == ["early", "late"]


def test_a_trace_at_which_a_child_dies_is_tried_twice(tmp_path, answers_of, monkeypatch):
    log, half = tmp_path / "log", '{"reason": nu'
    store = answers_of("-c", f"input(); open({str(log)!r}, 'a').write('.'); print({half!r}, end=''); exit(9)")

    until(lambda: store.get(about("other"))[0] == "failed")
    assert store.get(about("other"))[0] == "failed" and log.read_text() == "."  # for now
    log.unlink()
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0)

    def lasting():
        state, reason = store.get(about("trace"))
        return log.exists() and len(log.read_text()) == 2 and state == "failed" and reason

    assert "ended with exit code 9" in until(lasting)
    assert store.get(about("trace"))[0] == "failed"
    assert log.read_text() == ".."


def test_a_trace_is_unreadable_for_memory_only_where_a_fresh_child_says_so(tmp_path, answers_of):
    log = tmp_path / "log"
    program = f"""
import json, sys
for number, line in enumerate(sys.stdin):
    path = json.loads(line)["path"]
    open({str(log)!r}, "a").write(f"{{path}}{{number}} ")
    starved = number > 0 or path == "bomb"
    print(json.dumps({{"reason": "too large", "starved": True, "last": True}} if starved else {{}}), flush=True)
"""
    store = answers_of("-c", program)
    questions = [about(name) for name in ("good", "next", "bomb", "last")]
    for question in questions:
        store.ask(question)
        until(lambda question=question: store.is_settled(question))
    assert [store.failure(question) for question in questions] == [None, None, "too large", None]
    assert log.read_text().split() == ["good0", "next1", "next0", "bomb1", "bomb0", "last0"]


def test_where_no_answer_can_be_written_a_temporary_folder_is_tried_and_then_the_reason_is_said(
    tmp_path, kept, answers_of, caplog
):
    full = '{"reason": "the disk is full", "unwritable": true}'
    store = answers_of("-c", f"while input(): print({full!r}, flush=True)")
    assert until(lambda: store.get(about("trace"))[1]) == "the disk is full"
    assert kept.folder != tmp_path / "kept"
    assert caplog.text.count("a temporary folder is used") == 1
    assert store._outcomes[about("trace").key][1] == float("inf")  # not read again


@pytest.mark.parametrize("end", ["time.sleep(1000)", "os.kill(os.getpid(), signal.SIGXCPU)"])
def test_a_child_that_takes_too_long_is_ended_and_the_trace_is_not_tried_again(tmp_path, answers_of, monkeypatch, end):
    monkeypatch.setattr(answers, "RETRY_SECONDS", 0)
    monkeypatch.setattr(answers, "PATIENCE", 1 if "kill" in end else 0.001)
    log = tmp_path / "log"
    store = answers_of("-c", f"import os, signal, time; input(); open({str(log)!r}, 'a').write('.'); {end}")
    reason = until(lambda: store.get(about("trace"))[1])
    assert "300 s of the CPU: WALKTHROUGH_READER_SECONDS sets the limit" in reason
    assert store.get(about("trace")) == ("failed", reason)
    assert not log.exists() or log.read_text() == "."


def test_an_answer_comes_back_packed_and_only_its_user_can_read_it(kept):
    write_whole(kept.path("key"), WHOLE, 0o600)
    assert (kept.read("key"), kept.read("another")) == (WHOLE, None)
    assert not (kept.path("key").stat().st_mode | kept.folder.stat().st_mode) & 0o077


@pytest.mark.parametrize(
    ("content", "mode"),
    [(b"", 0o600), (b"text", 0o600), (WHOLE[:-3], 0o600), (WHOLE[:-8] + bytes(8), 0o600), (WHOLE, 0o620)],
)
def test_an_answer_that_is_damaged_or_that_others_could_have_written_is_deleted(kept, content, mode):
    write_whole(kept.path("key"), content, 0o600)
    kept.path("key").chmod(mode)
    assert not kept.read("key")
    assert not kept.path("key").exists()


def test_nothing_is_kept_where_others_can_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    elsewhere = Kept(tmp_path / "open", 1000, ".json.gz").folder
    assert elsewhere != tmp_path / "open" and elsewhere.stat().st_mode & 0o077 == 0


def test_the_oldest_answers_are_deleted_but_what_is_spared_and_what_is_being_written_are_not(kept):
    (kept.folder / "another").mkdir()  # of somebody else
    for number in range(4):
        write_whole(kept.path(f"key{number}"), bytes(250), 0o600)
        os.utime(kept.path(f"key{number}"), (number, number))
    kept.prune()
    assert len(list(kept.folder.iterdir())) == 5  # 1000 bytes are the limit
    (kept.folder / ".key4.json.gz.1").write_bytes(bytes(250))
    write_whole(kept.path("key4"), bytes(1), 0o600)
    kept.prune(lambda: {"key0"})
    left = sorted(file.name.split(".json")[0] for file in kept.folder.iterdir())
    assert left == [".key4", "another", "key0", "key2", "key3", "key4"]  # down to 7/8 of it


def test_a_key_changes_with_the_file_the_question_and_all_code_that_reads_traces(tmp_path, monkeypatch):
    path, keys, hashes = tmp_path / "trace", set(), set()
    for when, content in ((1, "a"), (2, "a"), (2, "ab")):
        path.write_text(content)
        os.utime(path, (when, when))
        keys |= {Question.of(kind, path, options).key for kind, options in (("digest", ()), ("lanes", (0, None)))}
    assert len(keys) == 6
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for room in ("trace", "advice", "tensorboard"):
        (tmp_path / "walkthrough" / room).mkdir(parents=True)
        (tmp_path / "walkthrough" / room / "rule.py").write_text("code")
        hashes.add(worker._code.__wrapped__())
    assert len(hashes) == 3


def test_what_is_read_ahead_is_what_was_named_last(store, begun, answered):
    store.read_ahead([about("a"), about("b")])
    begun()
    store.ask(about("c"))
    store.read_ahead([about("d"), about("e")])
    assert answered() == ["a", "c", "d", "e"]


def test_questions_that_wait_are_no_more_than_a_page_can_ask(store, begun, answered, monkeypatch):
    monkeypatch.setattr(answers, "MOST_WAITING", 5)
    store.ask(about("ahead"), urgent=False)
    begun()
    for number in range(100):
        assert store.get(about("trace", options=(number, None))) == ("reading", None)
    assert store.reading == 6
    assert answered() == ["ahead", *["trace"] * 5]
