"""The checks of pages, which `make check` makes of all that git knows, find what is wrong."""

from tools import prose


def test_what_is_wrong_with_a_page_is_found_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    word = " ".join(["images", "a second"])
    links = "[a](gone.md) [b](#nothing) [c](#a-heading) [d](page.md) ![short](page.md) `[e](in_code.md)`"
    (tmp_path / "page.md").write_text(f"# A heading\n{links}\nTen {word}.\n")
    assert prose.main(["page.md"]) == 1
    found = [line.split(":")[1:3] for line in capsys.readouterr().out.splitlines()]
    wrong = [f"{word} -> images/s", "gone.md", "#nothing", "page.md"]
    assert [[line, what.strip()] for line, what in found] == list(map(list, zip("3222", wrong, strict=True)))
    (tmp_path / "page.md").write_text("# A heading\n[d](page.md#a-heading)\n")
    assert prose.main(["page.md"]) == 0
