"""What is kept across starts: readable by the user alone, damaged answers ignored, the oldest deleted."""

import gzip
import os

import pytest

from walkthrough.tensorboard.answers import Kept, key_of


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "kept", 1000, ".json.gz")


def test_an_answer_comes_back_packed_and_unpacked(kept):
    packed = gzip.compress(b"{}")
    kept.write("key", packed)
    assert (kept.read("key"), kept.unpacked("key")) == (packed, b"{}")
    assert kept.read("another") is kept.unpacked("another") is None
    assert kept.path("key").stat().st_mode & 0o077 == 0
    assert kept.folder.stat().st_mode & 0o077 == 0
    assert [file.name for file in kept.folder.iterdir()] == ["key.json.gz"]


def test_a_damaged_answer_is_none(kept):
    whole = gzip.compress(b"{}")
    for damaged in (b"", b"text", whole[:-3], whole[:-8] + bytes(8)):
        kept.write("key", damaged)
        assert not kept.read("key")
        assert not kept.unpacked("key")


def test_the_oldest_answers_are_deleted(kept):
    (kept.folder / "another").mkdir()  # of somebody else
    for number in range(4):
        kept.write(f"key{number}", bytes(400))
        os.utime(kept.path(f"key{number}"), (number, number))
    kept.prune()
    assert sorted(file.name for file in kept.folder.iterdir()) == ["another", "key2.json.gz", "key3.json.gz"]


def test_what_is_spared_and_what_is_being_written_are_not_deleted(kept):
    for number in range(4):
        kept.write(f"key{number}", bytes(250))
        os.utime(kept.path(f"key{number}"), (number, number))
    kept.limit = 300
    (kept.folder / ".key4.json.gz.1").write_bytes(bytes(250))
    kept.prune({"key0", "key1"})
    assert sorted(file.name for file in kept.folder.iterdir()) == [".key4.json.gz.1", "key0.json.gz", "key1.json.gz"]


def test_an_answer_that_others_could_have_written_is_not_unpacked(kept):
    kept.write("key", gzip.compress(b"{}"))
    kept.path("key").chmod(0o620)
    assert kept.unpacked("key") is None


def test_nothing_is_kept_where_others_can_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    open_to_all = Kept(tmp_path / "open", 1000, ".json.gz")
    open_to_all.write("key", gzip.compress(b"{}"))
    assert open_to_all.read("key") is None
    assert list((tmp_path / "open").iterdir()) == []


def test_a_key_changes_with_the_file(tmp_path):
    path = tmp_path / "trace"
    keys = set()
    for when, content in ((1, "a"), (2, "a"), (2, "ab")):
        path.write_text(content)
        os.utime(path, (when, when))
        keys |= {key_of(path), key_of(path, "lanes")}
    assert len(keys) == 6
