"""The course as a site: it builds, needs no internet, and a broken link fails the build."""

import re
from html.parser import HTMLParser

import pytest
from support import CPU_RECORD, ROOT, build_site

pytestmark = pytest.mark.xdist_group("course")
MOST_WORDS = 1300  # of a page, outside tables and code
MOST_OF_A_CHAPTER = 1450  # of a chapter, tables and code included
PAGES = sorted((ROOT / "docs").glob("*.md"))
BROKEN = "[a](nowhere.md) ![figure](figures/none.svg) [code](../steps/none.py) [out](../../../etc/hosts)"
# The site's own configuration, of one page; relative paths in it are relative to this file.
ONE_PAGE = f"""
INHERIT: {ROOT / "mkdocs.yml"}
docs_dir: docs
site_dir: site
hooks: [{ROOT / "tools" / "docs" / "site.py"}]
nav: [index.md]
"""


def test_the_site_has_every_page_figure_and_linked_program(site):
    assert {f"{page.stem}.html" for page in PAGES} <= {path.name for path in site.iterdir()}
    assert "optimizer.zero_grad" in (site / "source" / "steps" / "01_amp.py.txt").read_text(encoding="utf-8")
    lab = (site / "labs" / "memory.html").read_text(encoding="utf-8")
    assert "../source/labs/memory/00_baseline.py.txt" in lab
    assert (site / "source" / "labs" / "memory" / "00_baseline.py.txt").exists()
    assert (site / "figures" / CPU_RECORD / "ladder.svg").exists()


def test_the_site_requests_nothing_from_the_internet(site):
    pages = sorted(site.rglob("*.html"))
    assert any(page.parent.name == "labs" for page in pages)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^\"]+", text), page.name
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name


def test_each_lab_is_in_the_list_has_its_page_and_is_in_the_site(site):
    labs = {path.parent.name for path in (ROOT / "labs").glob("*/study.py")} - {"shared"}
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for lab in labs:
        assert f"- labs/{lab}.md" in config
        assert (site / "labs" / f"{lab}.html").exists()
    assert labs == {path.stem for path in (ROOT / "docs" / "labs").glob("*.md")}


class Words(HTMLParser):
    """Counts a page's words: all that are shown, and those outside tables and blocks of code."""

    def __init__(self, html):
        super().__init__()
        self.open = dict.fromkeys(("article", "script", "style", "pre", "table"), 0)
        self.shown, self.prose = [], []
        self.feed(html)
        self.all_words, self.prose_words = (
            len(re.findall(r"\b\w[\w'./-]*", " ".join(texts))) for texts in (self.shown, self.prose)
        )

    def handle_starttag(self, tag, attrs):
        if tag in self.open:
            self.open[tag] += 1

    def handle_endtag(self, tag):
        if tag in self.open:
            self.open[tag] -= 1

    def handle_data(self, data):
        if self.open["article"] and not self.open["script"] and not self.open["style"]:
            self.shown.append(data)
            if not self.open["pre"] and not self.open["table"]:
                self.prose.append(data)


def test_words_are_counted_outside_tables_and_code():
    words = Words("<p>no</p><article>one <b>two</b><table><td>three</td></table><pre>four</pre> 5x/s</article>")
    assert (words.all_words, words.prose_words) == (5, 3)


def test_no_page_is_longer_than_the_limit(site):
    pages = {path.relative_to(site).as_posix(): path for path in [*site.glob("*.html"), *site.glob("labs/*.html")]}
    words = {name: Words(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    prose = {name: page.prose_words for name, page in words.items() if page.prose_words > MOST_WORDS}
    chapters = {name: page.all_words for name, page in words.items() if re.match(r"\d\d_", name)}
    assert min(page.prose_words for name, page in words.items() if name in chapters) > 600  # the count finds the text
    assert prose == {}
    assert {name: count for name, count in chapters.items() if count > MOST_OF_A_CHAPTER} == {}


def one_page(folder, text):
    """Build a site of one page with the site's own configuration; the finished process."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# One page\n\n{text}\n", encoding="utf-8")
    (folder / "mkdocs.yml").write_text(ONE_PAGE, encoding="utf-8")
    return build_site(folder, folder / "site")


def test_a_link_to_a_file_of_the_repository_is_built(tmp_path):
    finished = one_page(tmp_path, "[code](../steps/01_amp.py)")
    assert finished.returncode == 0, finished.stderr
    assert "source/steps/01_amp.py.txt" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_broken_links_and_missing_figures_fail_the_build(tmp_path):
    finished = one_page(tmp_path, BROKEN)
    assert finished.returncode != 0
    for name in ("nowhere.md", "none.svg", "none.py", "etc/hosts"):
        assert name in finished.stderr
    assert not list((tmp_path / "site").rglob("hosts*"))
