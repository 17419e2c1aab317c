"""MkDocs' hooks: marked blocks are generated while the site is built, and files outside `docs/` are copied into it."""

import posixpath
import re
from functools import cache

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from common.course import pages
from common.course.recorded import Course, records
from common.machine import ROOT

_OUTSIDE = re.compile(r"(?<!\\)\]\(\.\./([^)#\s]+)")  # a link to a file of the repository


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's files that pages link to, such as a step's program, under `source/`."""
    linked = set()
    for page in files.documentation_pages():
        linked |= set(_OUTSIDE.findall(page.content_string))
    for name in sorted(linked):
        path = (ROOT / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):  # others are left to MkDocs, which names the page and fails
            files.append(File.generated(config, _target(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Generate the page's blocks, and point its links to the copies of `on_files`."""
    return _OUTSIDE.sub(lambda link: f"]({_target(link[1])}", pages.filled(markdown, _course(), page.file.src_uri))


@cache
def _course() -> Course:
    return Course(records())


def _target(name: str) -> str:
    """Where a file lies in the site: a page of Markdown as plain text, because it is not one of the site's pages."""
    name = posixpath.join("source", name)
    return f"{name}.txt" if name.endswith((".md", ".py")) else name
