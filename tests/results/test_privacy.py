"""Private texts: what is taken out, what is left, and that no file of this project holds any."""

import gzip
import json

import pytest
from support import ROOT

from walkthrough.records.allowed import texts
from walkthrough.results import privacy
from walkthrough.results.result import NO_KERNELS

PRIVATE = [
    "/home/ann", "/Users/ann", "/root", "/tmp/x", "x=/mnt/a", '"/word/word"', "at:/word/word", "a.py(1);/opt/a/b.py",
    "C:\\Users", "D:/data", "\\\\server\\share", "~/x", "~ann/x", "file:///x", "ann@box", "a.b@c.org", "HOME=/x",
    "MY_TOKEN=1",
]  # fmt: skip
HARMLESS = [
    "Linux-6.18.44-fc-v657-x86_64-with-glibc2.36", "images/s", "32,001 images/s; 1 / 2", "N/A",
    "Intel(R) CPU @ 1.90GHz", "https://pytorch.org/docs/stable", "torch/_ops.py(1160): __call__;<frozen os>(756)",
    "std::vector<int>::~vector()", "void at::native::(anonymous namespace)::f<float, {lambda()#1}>(T*)",
    "Memcpy HtoD (Pageable -> Device)", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "a" * 10**5, "/" * 10**5, "~a" * 10**5,  # in no quadratic time
]  # fmt: skip


def test_what_is_private_is_taken_out_of_a_text_and_nothing_else():
    assert [value for value in PRIVATE if "…" not in privacy.redacted(f"see {value} now")] == []
    assert [value for value in HARMLESS if privacy.redacted(value) != value] == []


def test_no_trace_of_these_tests_names_the_machine_it_was_made_on():
    """Records are checked by `record --check`: see tests/records. Stacks name files by their place in a package."""
    for path in sorted((ROOT / "tests" / "data").rglob("*.json*")):
        content = path.read_bytes()
        value = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        assert "host_name" not in value, path.name
        assert {text for text in texts(value) if privacy.redacted(text) != text} == set(), path.name


@pytest.mark.parametrize(
    "text",
    [
        "torch.compile found no C++ compiler that works",
        "the GPU lowered its clock while it was timed (power limit): 1410 of 1980 MHz",
        "256 x 256 float32; aten::_fused_sgd_: 1.39x (1.31-1.48), 8242 images/s",
        NO_KERNELS,
    ],
)
def test_a_reason_of_this_projects_words_is_kept(text):
    assert privacy.foreign_words(text) == []
    assert privacy.reason(text, 300) == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("no file /home/ada/x.cu: run again", "no file … run again"),
        ("user ada, DB_PASS=hunter2", "user …, …=…"),
        ("`nvcc` failed with <class 'int'> [2, 3].", "'…' failed with (class 'int') (2, 3)"),
        ("so " * 200, "so " * 83 + "…"),
    ],
)
def test_of_a_reason_the_words_of_this_project_are_kept(text, kept):
    assert privacy.reason(text) == kept
    assert privacy.foreign_words(privacy.reason(text)) == []


def test_names_count_as_words_of_their_own_and_not_those_that_anybody_has(monkeypatch):
    assert privacy.holds_name(b'{"a": "Ann\'s"}', "ann")
    assert privacy.holds_name(b'{"a": "Jos\\u00e9"}', "José")
    assert not privacy.holds_name(b"annotation user_ann x-ann", "ann")
    monkeypatch.setattr("pathlib.Path.home", lambda: "/home/ann")
    monkeypatch.setattr("platform.node", lambda: "box.lab.org")
    for user, names in (("root", []), ("a", []), ("1000", []), ("jo", ["jo"])):
        monkeypatch.setattr("getpass.getuser", lambda user=user: user)
        assert privacy.own_names() == ["/home/ann", "box", "box.lab.org", *names]
