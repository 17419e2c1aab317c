"""Which files of a folder are traces, in which order, and which of them are of training."""

import os

import pytest

from walkthrough.results.folder import of_training, traces_in


def test_traces_are_listed_newest_first_by_the_time_in_their_names(tmp_path):
    names = ["host.1790000000002.pt.trace.json", "host.1790000000001000000.pt.trace.json.gz", "mine.pt.trace.json"]
    for name in (*names, "result.json", "notes.json", ".hidden.pt.trace.json"):
        (tmp_path / name).touch()
    (tmp_path / "lost.pt.trace.json").symlink_to(tmp_path / "nowhere")
    os.utime(tmp_path / "mine.pt.trace.json", (1, 1))
    assert [path.name for path in traces_in(tmp_path)] == names


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
    ],
)
def test_traces_of_training_are_chosen_where_names_tell_them_from_others(tmp_path, names, training):
    assert [path.name for path in of_training([tmp_path / name for name in names])] == training
