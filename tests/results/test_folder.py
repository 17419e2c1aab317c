"""A run's folder: replaced by a whole run only; its traces, in which order, and which of them are of training."""

import os

import pytest
from support import make_result

from walkthrough.results.errors import InputError
from walkthrough.results.folder import add_trace, age, of_training, own_folder, publish, stamp, traces_in
from walkthrough.results.result import read_result


def test_a_published_run_replaces_the_earlier_one_and_its_rounds(tmp_path):
    for number in (1, 2):
        with own_folder(tmp_path, "00_baseline") as (folder, staging):
            (staging / "trace").write_text(f"trace {number}")
            (staging / "events").write_text(f"events {number}")
            result = make_result(trace=f"host.{number}.pt.trace.json.gz")
            publish(folder, staging, "trace", "events", result)
            [events] = folder.glob("events.out.tfevents.*")
            assert events.name.endswith(f".host.{number}") and events.read_text() == f"events {number}"
            assert (folder / result.trace).read_text() == f"trace {number}"
            assert read_result(folder / "result.json") == result
            assert len(list(folder.iterdir())) == 3
            (folder / "runs").mkdir()
    assert not staging.exists()


def test_a_folder_is_one_run_s_at_a_time_and_what_a_killed_one_left_is_removed(tmp_path):
    logdir = tmp_path / "new" / "logs"
    (logdir / ".01_amp.partial" / "half").mkdir(parents=True)
    with own_folder(logdir, "01_amp") as (folder, staging):
        assert list(staging.iterdir()) == []
        assert not folder.exists()
        with pytest.raises(InputError, match="another run of 01_amp"), own_folder(logdir, "01_amp"):
            pass
    folder.touch()
    with pytest.raises(InputError, match="is a file: name a folder"), own_folder(logdir, "01_amp"):
        pass


def test_a_trace_is_named_after_its_machine_and_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1_790_000_000_123_456_789)
    for node, name in (("box.lab 1", "box-lab-1-rank1.1790000000123"), ("", "host-rank1.1790000000123")):
        monkeypatch.setattr("platform.node", lambda node=node: node)
        assert stamp("-rank1") == name
    for number in range(2):
        (tmp_path / f"trace {number}").write_text("whole")
        add_trace(tmp_path / "run", tmp_path / f"trace {number}", f"{number}.pt.trace.json.gz")
    assert len(traces_in(tmp_path / "run")) == 2


def test_traces_are_listed_newest_first_by_the_time_in_their_names(tmp_path):
    names = ["host.1790000000002.pt.trace.json", "host.1790000000001000000.pt.trace.json.gz", "mine.pt.trace.json"]
    for name in (*names, "result.json", "notes.json", ".hidden.pt.trace.json"):
        (tmp_path / name).touch()
    (tmp_path / "lost.pt.trace.json").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path / "mine.pt.trace.json", (1, 1))
    assert [path.name for path in traces_in(tmp_path)] == names
    assert age("mine.json", 1.5) == (1500, "mine.json")
    assert age("host.1790000000001000000.json", 1.5)[0] == age("host.1790000000001.json", 1.5)[0] == 1790000000001
    assert [age(f"host.{time}.json", 1.5)[0] for time in (10**13, 10**13 + 1)] == [10**13, 10**10]  # ms until 2286
    (tmp_path / "other").mkdir()  # without a name that says so any may be one, but for a run's own files
    for name in ("result.json", "record.json", "profile.json"):
        (tmp_path / "other" / name).touch()
    assert [path.name for path in traces_in(tmp_path / "other")] == ["profile.json"]


@pytest.mark.parametrize(
    ("names", "training"),
    [
        (("fit-a.pt.trace.json", "test-a.pt.trace.json"), ["fit-a.pt.trace.json"]),
        (("train.pt.trace.json", "mine.pt.trace.json"), ["train.pt.trace.json", "mine.pt.trace.json"]),
        (("a.pt.trace.json", "val.pt.trace.json"), ["a.pt.trace.json", "val.pt.trace.json"]),
        (("train-test.json", "mine.json"), ["train-test.json", "mine.json"]),
    ],
)
def test_traces_of_training_are_chosen_where_names_tell_them_from_others(tmp_path, names, training):
    assert [path.name for path in of_training([tmp_path / name for name in names])] == training
