"""What `make check` finds in links and words."""

import pytest

from tools import prose


@pytest.fixture
def wrong(tmp_path, monkeypatch, capsys):
    """wrong(text, name): the lines that are printed of a page with this text."""
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text("- 05_a.md")
    (tmp_path / "other.md").write_text('<a id="old"></a>')
    prose._text.cache_clear()

    def lines(text, name="page.md"):
        (tmp_path / name).write_text(text)
        code = prose.main([name])
        printed = capsys.readouterr().out.splitlines()
        assert code == bool(printed)
        return printed

    return lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# A b\n[x](#a-b) [y](#c)\n[z](other.md#old)\n", ["page.md:2: #c: no such heading"]),
        ("[x](nowhere.md) `[y](code.md)`\n```\n[z](code.md)\n```\n", ["page.md:1: nowhere.md: no such file"]),
        ("\n![p](other.md)", ["page.md:2: other.md: the alternative text does not say what the picture shows"]),
        ("\n5 images a\x20second", ["page.md:2: images a\x20second -> images/s"]),
        ("## `a`, *b*\n[x](#a-b) [y](https://example.org/#c)", []),
    ],
)
def test_a_wrong_link_or_word_is_named_with_its_line(wrong, text, lines):
    assert wrong(text) == lines


def test_what_a_chapter_lacks_is_named(wrong):
    end = "<summary>Answer</summary>\n\n## Remember\n1. a\n2. b\n3. c\n"
    assert wrong(f"# Why?\n{'word ' * 989}\n| not | counted |\n{end}", "docs/05_a.md") == []
    lines = wrong(f"# Because\n<!-- begin table a -->\n<!-- end -->\n{'word ' * 1001}", "docs/06_b.md")
    parts = ("1002 words", "mkdocs.yml", "its last line", "no question", "no exercise", "not three lines")
    assert [part in line for part, line in zip(parts, lines, strict=True)] == [True] * 6
