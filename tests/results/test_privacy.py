"""Private texts: what is found and taken out, what is left, and that no file of this project holds any."""

import gzip
import json

import pytest
from support import ROOT

from walkthrough.results import privacy

SHIPPED = sorted(
    path
    for folder in ("logs/reference", "tests/data")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)

PRIVATE = [
    "/home/ann", "/Users/ann", "/root", "/tmp/x", "x=/mnt/a", '"/word/word"', "at:/word/word", "a.py(1);/opt/a/b.py",
    "C:\\Users", "D:/data", "\\\\server\\share", "~/x", "~ann/x", "file:///x", "ann@box", "a.b@c.org", "HOME=/x",
    "MY_TOKEN=1", {"host_name": "x"}, {"a": [{"/home/ann": 1}]}, {"LD_LIBRARY_PATH": "x"}, b"\0\1/home/ann/x\0",
    b"\0ann@box.org\0",
]  # fmt: skip
HARMLESS = [
    "Linux-6.18.44-fc-v657-x86_64-with-glibc2.36", "images/s", "32,001 images/s; 1 / 2", "N/A",
    "Intel(R) CPU @ 1.90GHz", "https://pytorch.org/docs/stable", "torch/_ops.py(1160): __call__;<frozen os>(756)",
    "std::vector<int>::~vector()", "void at::native::(anonymous namespace)::f<float, {lambda()#1}>(T*)",
    "Memcpy HtoD (Pageable -> Device)",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", {"path": 1, "name": "user_annotation"}, b"fff@AB",
]  # fmt: skip


@pytest.mark.parametrize("value", PRIVATE, ids=str)
def test_private_texts_are_found(value):
    assert privacy.private_texts(value)


def test_a_long_text_takes_no_quadratic_time():
    assert privacy.private_texts(["a" * 10**5, "/" * 10**5, "~a" * 10**5]) == []
    assert privacy.private_texts(b"a" * 10**5 + b"@" + b"b" * 10**5) == []


@pytest.mark.parametrize("value", [text for text in PRIVATE if isinstance(text, str)])
def test_what_is_private_can_be_taken_out_of_a_text(value):
    assert privacy.private_texts(privacy.redacted(f"see {value} now")) == []


@pytest.mark.parametrize("value", [text for text in HARMLESS if isinstance(text, str)])
def test_nothing_else_is_taken_out(value):
    assert privacy.redacted(value) == value


@pytest.mark.parametrize("value", HARMLESS, ids=str)
def test_names_of_kernels_operators_and_platforms_are_not_private(value):
    assert privacy.private_texts(value) == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x00\x01~C-Fl2\\5\x02", False),
        (b"\x00a@b.c1\x02", False),
        (b"\x00~jo/data\x02", True),
        (b"\x00/home/jo\x02", True),
    ],
)
def test_numbers_in_bytes_are_no_paths_and_no_addresses(content, found):
    assert bool(privacy.private_texts(content)) == found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_no_file_of_this_project_names_the_machine_it_was_made_on(path):
    """The stacks in `cpu_stacks` name files without folders, and those of torch by their place in it."""
    content = path.read_bytes()
    if path.suffix in (".gz", ".json"):
        value = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    else:
        value = content if path.name.startswith("events.") else content.decode()
    assert privacy.private_texts(value) == []


def test_names_count_as_words_of_their_own_and_not_those_that_anybody_has(monkeypatch):
    assert privacy.holds_name(b'{"a": "Ann\'s"}', "ann")
    assert privacy.holds_name(b'{"a": "Jos\\u00e9"}', "José")
    assert not privacy.holds_name(b"annotation user_ann x-ann", "ann")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr("pathlib.Path.home", lambda: "/home/ann")
    monkeypatch.setattr("platform.node", lambda: "box.lab.org")
    assert privacy.own_names() == ["/home/ann", "box", "box.lab.org"]
