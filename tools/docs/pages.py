"""The pages of the course: what is between their marks is generated from what was recorded.

<!-- begin number 01_amp -->
whatever the block `number` returns for "01_amp"
<!-- end -->
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tools.docs.blocks import BLOCKS
from tools.docs.recorded import RECORDS, Course, records
from walkthrough.compare.figures import svg_text
from walkthrough.records import record
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, exit_in_one_line

DOCS = ROOT / "docs"
DRAWN = "diagrams"  # the folder of figures that were drawn, not measured: files like any other
_BLOCK = re.compile(r"(<!-- begin ([^\n]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_BEGIN, _END = re.compile(r"<!-- begin "), re.compile(r"<!-- end -->")


def filled(text: str, course: Course, name: str = "the page") -> str:
    """A page's text with every marked block generated anew; only the first measured table names the whole machine.

    Raises InputError for an unknown block, and for one that cannot be made of its words.
    """

    def block(mark: re.Match[str]) -> str:
        kind, *words = mark[2].split()
        if kind not in BLOCKS:
            raise InputError(f"{name}: there is no block {kind!r}; known: {', '.join(BLOCKS)}")
        try:
            return f"{mark[1]}\n{BLOCKS[kind](course, *words)}\n\n{mark[3]}"
        except (KeyError, TypeError) as error:
            raise InputError(f"{name}: block {mark[2]!r} cannot be made: {error}") from error

    new, count = _BLOCK.subn(block, text)
    if len(_BEGIN.findall(text)) != count or len(_END.findall(text)) != count:
        raise InputError(f"{name}: a mark without its partner: every `begin` needs an `end`")
    before, first, after = new.partition(course.measured)
    return before + first + after.replace(course.measured, course.measured_again)


def contents(docs: Path = DOCS, root: Path = RECORDS) -> tuple[dict[Path, str], Course]:
    """{path: text} of every page generated from the recorded runs, and what they were made of, with their figures."""
    course = Course(records(root))
    of_readme = replace(course, to_docs="docs/", to_logs="logs/reference")
    of_lab = replace(course, to_docs="../", to_logs="../../logs/reference")
    pages = [(path, course) for path in sorted(docs.glob("*.md"))] + [(docs.parent / "README.md", of_readme)]
    pages += [(path, of_lab) for path in sorted(docs.glob("labs/*.md"))]
    files = {path: filled(path.read_text(encoding="utf-8"), shown, path.name) for path, shown in pages}
    files |= {one.folder / record.PAGE: record.page(one.folder) for one in course.records}
    return files, course


def stale(files: Mapping[Path, str], course: Course, docs: Path = DOCS) -> list[Path]:
    """Of `contents`: pages that are out of date, and figures that are missing or that no page shows any more.

    A figure that is there is not compared: its last digits depend on the CPU, its structure on matplotlib's version.
    """
    missing = [path for path in _figures(course, docs) if not path.exists()]
    return sorted({*_changed(files), *missing, *_gone(course, docs)})


def write(files: Mapping[Path, str], course: Course, docs: Path = DOCS) -> list[Path]:
    """Write what differs of `contents`, and remove figures that no page shows any more: their paths."""
    drawn = {path: svg_text(course.figures[name]()) for path, name in _figures(course, docs).items()}
    files, gone = {**files, **drawn}, _gone(course, docs)
    changed = _changed(files)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        result.write_whole(path, files[path])
    for path in gone:
        path.unlink()
    return sorted([*changed, *gone])


def _changed(files: Mapping[Path, str]) -> list[Path]:
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def _figures(course: Course, docs: Path) -> dict[Path, str]:
    return {docs / "figures" / name: name for name in course.figures}


def _gone(course: Course, docs: Path) -> list[Path]:
    known, kept = _figures(course, docs), docs / "figures" / DRAWN
    return [path for path in (docs / "figures").glob("**/*.svg") if path not in known and path.parent != kept]


def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where `--check` finds files out of date, or where a page or a record is broken."""
    exit_in_one_line()
    if words not in ([], ["--check"]):
        raise InputError(f"{' '.join(words)}: the only option is --check")
    changed = (stale if words else write)(*contents())
    names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
    if words and changed:
        raise InputError(f"out of date: {names}; run `make docs-figures`")
    print(f"written: {names}" if changed else "all tables and figures are up to date")
