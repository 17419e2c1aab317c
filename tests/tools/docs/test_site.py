"""The course as a site: it builds, needs no internet, and a broken link fails the build."""

import re

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from support import CPU_RECORD, ROOT

pytestmark = pytest.mark.xdist_group("course")
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


def test_broken_links_and_missing_figures_fail_the_build(tmp_path, caplog):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# One page\n\n{BROKEN}\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(ONE_PAGE, encoding="utf-8")
    with pytest.raises(Abort):
        build(load_config(str(tmp_path / "mkdocs.yml"), strict=True))
    for name in ("nowhere.md", "none.svg", "none.py", "etc/hosts"):
        assert name in caplog.text
    assert not list((tmp_path / "site").rglob("hosts*"))
