"""A run's folder: replaced by a whole run only; its traces, in which order, and which of them are of training."""

import os

import pytest
from support import make_result

from walkthrough.results.errors import InputError
from walkthrough.results.folder import age, of_training, own_folder, publish, traces_in
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
    (tmp_path / ".01_amp.partial" / "half").mkdir(parents=True)
    with own_folder(tmp_path, "01_amp") as (_, staging):
        assert list(staging.iterdir()) == []
        with pytest.raises(InputError, match="another run of 01_amp"), own_folder(tmp_path, "01_amp"):
            pass


def test_traces_are_listed_newest_first_by_the_time_in_their_names(tmp_path):
    names = ["host.1790000000002.pt.trace.json", "host.1790000000001000000.pt.trace.json.gz", "mine.pt.trace.json"]
    for name in (*names, "result.json", "notes.json", ".hidden.pt.trace.json"):
        (tmp_path / name).touch()
    (tmp_path / "lost.pt.trace.json").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path / "mine.pt.trace.json", (1, 1))
    assert [path.name for path in traces_in(tmp_path)] == names
    assert age("mine.json", 1.5) == (1500, "mine.json")
    assert age("host.1790000000001000000.json", 1.5)[0] == age("host.1790000000001.json", 1.5)[0] == 1790000000001


def test_without_a_name_that_says_so_any_json_may_be_a_trace_but_for_a_run_s_own_files(tmp_path):
    for name in ("result.json", "record.json", "profile.json"):
        (tmp_path / name).touch()
    assert [path.name for path in traces_in(tmp_path)] == ["profile.json"]


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
