"""Files that others may have put there: links are not followed, pipes not waited for."""

import os
import socket
import sys

import pytest

from walkthrough.results.errors import InputError
from walkthrough.results.files import open_new, open_plain
from walkthrough.results.result import read_json, write_whole


@pytest.fixture
def canary(tmp_path):
    """A file that must stay as it is, whatever is written through a link to it."""
    path = tmp_path / "canary"
    path.write_text("untouched")
    yield path
    assert path.read_text() == "untouched"


def test_a_plain_file_is_opened_and_a_link_only_where_the_user_has_typed_it(canary, tmp_path):
    (tmp_path / "link").symlink_to(canary)
    for name, follow in (("canary", False), ("link", True)):
        with open_plain(tmp_path / name, follow) as file:
            assert file.read() == b"untouched"
    with pytest.raises(OSError, match="not a plain file"):
        open_plain(tmp_path / "link")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say where an open file lies")
def test_a_link_in_the_place_of_a_folder_is_not_followed_where_the_path_is_real(tmp_path):
    for name in ("run", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with open_plain(tmp_path / "run" / "file", no_links=True) as file:
        assert file.read() == b"run"
    (tmp_path / "run").rename(tmp_path / "before")
    (tmp_path / "run").symlink_to(tmp_path / "private")
    with pytest.raises(OSError, match="not a plain file"):
        open_plain(tmp_path / "run" / "file", no_links=True)


@pytest.mark.parametrize("follow", [False, True])
def test_a_pipe_a_socket_and_a_folder_are_refused_at_once(tmp_path, follow):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("pipe", "folder", "socket"):
            with pytest.raises(OSError, match="not a plain file"):
                open_plain(tmp_path / name, follow)


def test_what_is_written_takes_the_place_of_a_planted_link(canary, tmp_path):
    (tmp_path / "new").symlink_to(canary)
    with open_new(tmp_path / "new", 0o600) as file:
        file.write(b"mine")
    assert (tmp_path / "new").read_bytes() == b"mine" and not (tmp_path / "new").is_symlink()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    (tmp_path / f".result.json.{os.getpid()}.partial").symlink_to(canary)
    write_whole(tmp_path / "result.json", "mine")
    assert (tmp_path / "result.json").read_text() == "mine"


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        write_whole(tmp_path / "pipe", "mine")
    assert (tmp_path / "pipe").is_fifo()


def test_json_is_read_from_plain_files_of_a_bounded_size(tmp_path):
    file, link = tmp_path / "file.json", tmp_path / "link.json"
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="not a plain file"):
        read_json(tmp_path / "pipe.json")
    file.write_bytes(b'{"a": 1}'.ljust(2**24))
    link.symlink_to(file)
    assert read_json(link) == {"a": 1}
    with pytest.raises(InputError, match="not a plain file"):
        read_json(link, no_links=True)
    file.write_bytes(b'{"a": 1}'.ljust(2**24 + 1))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_json(file)
