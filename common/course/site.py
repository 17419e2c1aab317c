"""MkDocs' hooks: marked blocks are made anew while the site is built, and files outside `docs/` come along."""

import posixpath
import re
from functools import cache

from mkdocs.structure.files import File

from common.course import pages
from common.course.blocks import Course
from common.course.recorded import records
from common.machine import ROOT

_OUTSIDE = re.compile(r"(?<!\\)\]\(\.\./([^)#\s]+)")  # a link to a file of the repository


def on_files(files, config):
    """Add the repository's files that pages link to, such as a step's program, under `source/`."""
    linked = set()
    for page in files.documentation_pages():
        linked |= set(_OUTSIDE.findall(page.content_string))
    for name in sorted(linked):
        path = (ROOT / name).resolve()
        if path.is_file() and path.is_relative_to(ROOT):  # others are left to MkDocs, which names the page and fails
            files.append(File.generated(config, _target(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Make the page's blocks anew, and lead its links to the copies of `on_files`."""
    return _OUTSIDE.sub(lambda link: f"]({_target(link[1])}", pages.filled(markdown, _course(), page.file.src_uri))


@cache
def _course():
    return Course(records())


def _target(name):
    """Where a file lies in the site; a page of Markdown as plain text, for it is none of the course's."""
    name = posixpath.join("source", name)
    return f"{name}.txt" if name.endswith((".md", ".py")) else name
