"""What `make check` finds in links and words."""

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# A b\n[x](#a-b) [y](#c)\n[z](other.md#old)\n", ["page.md:2: #c: no such heading"]),
        ("[x](nowhere.md) `[y](code.md)`\n```\n[z](code.md)\n```\n", ["page.md:1: nowhere.md: no such file"]),
        ("\n![p](other.md)", ["page.md:2: other.md: the alternative text does not say what the picture shows"]),
        ("\n5 images a\x20second", ["page.md:2: images a\x20second -> images/s"]),
    ],
)
def test_a_wrong_link_or_word_is_named_with_its_line(tmp_path, monkeypatch, capsys, text, wrong):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text('<a id="old"></a>')
    (tmp_path / "page.md").write_text(text)
    assert prose.main(["page.md"]) == 1
    assert capsys.readouterr().out.splitlines() == wrong


def test_what_is_right_prints_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("## `a`, *b*\n[x](#a-b) [y](https://example.org/#c)")
    assert prose.main(["page.md"]) == 0
    assert capsys.readouterr().out == ""
