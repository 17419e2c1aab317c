"""MkDocs' hooks: marked blocks are generated while the site is built, and files outside `docs/` are copied into it."""

import posixpath
import re
from dataclasses import replace
from functools import cache

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs import pages
from tools.docs.recorded import Course, records
from walkthrough.results.environment import ROOT

_UP = re.compile(r"(?<!\\)\]\((\.\./[^)#\s]+)")  # a link to a folder above the page's own


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's files that pages link to, such as a step's program, under `source/`."""
    linked = {
        name
        for page in files.documentation_pages()
        for link in _UP.findall(page.content_string)
        if (name := _outside(page.src_uri, link))
    }
    for name in sorted(linked):
        path = (ROOT / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):  # others are left to MkDocs, which names the page and fails
            files.append(File.generated(config, _target(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Generate the page's blocks, and point its links to the copies of `on_files`."""
    uri = page.file.src_uri

    def copied(link: re.Match[str]) -> str:
        name = _outside(uri, link[1])
        return f"]({posixpath.relpath(_target(name), posixpath.dirname(uri) or '.')}" if name else link[0]

    course = replace(_course(), to_docs="../" * uri.count("/"))
    return _UP.sub(copied, pages.filled(markdown, course, uri))


def _outside(page: str, link: str) -> str | None:
    """The path in the repository of what a page links to; None for a file of the docs. page: its path in `docs/`."""
    name = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if name.startswith("docs/") else name


@cache
def _course() -> Course:
    return Course(records())


def _target(name: str) -> str:
    """Where a file lies in the site: a page of Markdown as plain text, because it is not one of the site's pages."""
    name = posixpath.join("source", name)
    return f"{name}.txt" if name.endswith((".md", ".py")) else name
