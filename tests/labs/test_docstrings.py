"""Docstrings of the packages in a folder: which of them are collected, and what of them."""

import pytest
from support.docstrings import made_up, write_module

from labs.shared import docstrings
from labs.shared.docstrings import Text


def docstring(summary, body, rest=""):
    return f"{summary}\n\n    {body}\n{rest}    "


PROSE = (
    "The buffer is read in blocks, each as large as a page of memory, until nothing is left in it. A block that was "
    "read once is kept, so that it need not be read again when the cursor moves back. Whoever closes the buffer "
    "drops all of its blocks, and the file below it is left as it was."
)


def test_a_docstring_is_a_document_with_its_summary_line_as_reference():
    text = docstrings.document_of("mine", docstring("Read a ``buffer`` block by block.", PROSE))
    assert text.summary == "Read a buffer block by block."
    assert text.sentences[0].startswith("The buffer is read in blocks") and len(text.sentences) == 3
    assert text.summary not in text.body


def test_sections_code_and_markup_are_no_prose():
    for rest in (
        "    Args:\n        x: an argument\n",
        "    >>> read(x)\n",
        "    :param x: an argument\n",
        "    Notes\n    -----\n",
    ):
        text = docstrings.document_of("mine", docstring("Read a buffer block by block.", PROSE, rest))
        assert text.body.endswith("left as it was.")


@pytest.mark.parametrize(
    ("summary", "body"),
    [("Read.", PROSE), ("Read a buffer block by block.", "Too short."), ("Args: one two three four", PROSE[:50]),
     ("Read a buffer block by block.", "x = [1, 2, 3]; y[0] += 17 ** 4; z = {9: 8}; " * 12)],
)  # fmt: skip
def test_what_is_no_prose_with_a_summary_line_is_left_out(summary, body):
    assert docstrings.document_of("mine", docstring(summary, body)) is None


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages: two that are alike, one that cannot be read, a module."""
    folder = tmp_path / "site-packages"
    code = f'def read():\n    """{docstring("Read a buffer block by block.", PROSE)}"""\n'
    for name in ("original", "copied"):
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub" / "io.py").write_text(code)
    changed = code.replace("block by block", "one block at a time")
    (folder / "copied" / "changed.py").write_text(changed)
    (folder / "original" / "tests").mkdir()
    (folder / "original" / "tests" / "test_io.py").write_text(code.replace("buffer", "test"))
    (folder / "broken").mkdir()
    (folder / "broken" / "__init__.py").write_bytes(b"def f(:\n\0\xff")
    sort = PROSE.replace("buffer", "graph").replace("block", "node").replace("read", "sorted").replace("file", "edge")
    (folder / "single.py").write_text(f'"""{docstring("Sort a graph node by node.", sort)}"""\n')
    return folder


def test_a_copy_in_another_package_is_left_out_even_with_another_summary(site):
    texts = docstrings.collect([site])
    assert [text.package for text in texts] == ["copied", "single"]


def test_the_collection_depends_on_nothing_but_the_files(site, tmp_path):
    moved = tmp_path / "elsewhere"
    site.rename(moved)
    again = docstrings.collect([moved])
    moved.rename(site)
    assert again == docstrings.collect([site]) != []


def test_pythons_own_library_is_read_module_by_module_and_without_its_tests(tmp_path):
    *_, library = docstrings.package_folders()
    assert (library / "asyncio" / "__init__.py").exists() and (library / "argparse.py").exists()
    folder = tmp_path / "library"
    for file in ("one.py", "two/core.py", "test/core.py", "two/test/core.py"):
        write_module(folder / file, made_up(file, 0))
    assert [text.package for text in docstrings.collect([folder])] == ["one", "two"]


def test_no_package_gives_more_than_its_share(tmp_path):
    for number in range(6):
        write_module(tmp_path / "large" / f"module{number}.py", made_up("large", number))
    write_module(tmp_path / "small" / "module.py", made_up("small", 0))
    for collected in (docstrings.collect, docstrings.collect_texts):
        packages = [text.package for text in collected([tmp_path])]
        assert packages == ["large"] * 6 + ["small"]
        assert [text.package for text in collected([tmp_path], most_per_package=4)] == ["large"] * 4 + ["small"]


# Texts to classify


def test_texts_are_whole_docstrings_with_their_package_and_file_without_copies(site):
    texts = docstrings.collect_texts([site])
    assert [(text.package, text.file) for text in texts] == [("copied", "copied/changed.py"), ("single", "single.py")]
    assert texts[1].text.startswith("Sort a graph node by node.\n\nThe graph is sorted in nodes")


def test_texts_need_no_summary_line_and_no_prose(tmp_path):
    (tmp_path / "short.py").write_text(
        'def one():\n    """Close it."""\n\n\n'
        'def same():\n    """close it"""\n\n\n'
        'def code():\n    """x = [1, 2]; y = 3\n\n        z = 4"""\n\n\n'
        'def empty():\n    """ --- """\n\n\n'
        'class Part:\n    """Close it, too."""\n'
    )
    texts = docstrings.collect_texts([tmp_path])
    assert texts == [
        Text("short", text, "short.py") for text in ("Close it.", "x = [1, 2]; y = 3\n\nz = 4", "Close it, too.")
    ]
    assert docstrings.collect([tmp_path]) == []


def test_texts_of_several_folders_are_named_below_their_own(tmp_path):
    below = tmp_path / "library" / "site-packages"
    write_module(below / "installed" / "core.py", made_up("installed", 0))
    write_module(tmp_path / "library" / "own.py", made_up("own", 0))
    texts = docstrings.collect_texts([below, tmp_path / "library"])
    assert [(text.package, text.file) for text in texts] == [("installed", "installed/core.py"), ("own", "own.py")]
