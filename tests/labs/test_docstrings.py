"""Docstrings of the packages in a folder: which of them are collected, and what of them."""

from support.docstrings import made_up, write_module

from labs.shared import docstrings
from labs.shared.docstrings import Docstring

SUMMARY = "Read a ``buffer`` block by block."
PROSE = (
    "The buffer is read in blocks, each as large as a page of memory, until nothing is left in it. A block that was "
    "read once is kept, so that it need not be read again when the cursor moves back. Whoever closes the buffer "
    "drops all of its blocks, and the file below it is left as it was."
)


def test_a_docstring_is_its_summary_line_and_the_prose_below_it_without_sections_and_markup():
    text = docstrings.document_of("mine", f"{SUMMARY}\n\n{PROSE}\n\nArgs:\n    x: one")
    assert (text.package, text.summary) == ("mine", "Read a buffer block by block.")
    assert (text.body, len(text.sentences)) == (PROSE, 3)


def test_collections_hold_no_copies_no_tests_and_depend_on_nothing_but_the_files(tmp_path):
    folder = tmp_path / "site-packages"
    original = Docstring("", "Read a buffer block by block.", (PROSE,))
    write_module(folder / "original" / "sub" / "io.py", original)
    write_module(folder / "original" / "tests" / "test_io.py", made_up("test", 0))
    write_module(folder / "copied" / "sub" / "io.py", original)
    write_module(folder / "copied" / "changed.py", Docstring("", "Read a buffer one block at a time.", (PROSE,)))
    write_module(folder / "single.py", made_up("single", 0))
    (folder / "broken").mkdir()
    (folder / "broken" / "__init__.py").write_bytes(b"def f(:\n\0\xff")
    documents, texts = docstrings.collect([folder]), docstrings.collect_texts([folder])
    assert [text.package for text in documents] == ["copied", "single"]
    assert [(text.package, text.file) for text in texts] == [("copied", "copied/changed.py"), ("single", "single.py")]
    moved = folder.rename(tmp_path / "elsewhere")
    assert (docstrings.collect([moved]), docstrings.collect_texts([moved])) == (documents, texts)
