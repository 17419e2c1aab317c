"""The pages of the course: what is between their marks is written anew from what was recorded.

<!-- begin number 01_amp -->
whatever `blocks.number(course, "01_amp")` returns
<!-- end -->
"""

import re
from dataclasses import replace

from common import record
from common.course import figures
from common.course.blocks import BLOCKS, Course
from common.course.recorded import RECORDS, records
from common.errors import InputError
from common.ladder import predictions
from common.ladder.figures import svg_text
from common.machine import ROOT
from common.reference import page as reference_page

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- begin ([a-z0-9_ -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_BEGIN, _END = re.compile(r"<!-- begin "), re.compile(r"<!-- end -->")


def filled(text, course, name="the page"):
    """A page's text with every marked block made anew. Raises InputError for a block that nobody knows."""

    def make(found):
        kind, *words = found[2].split()
        if kind not in BLOCKS:
            raise InputError(f"{name}: there is no block {kind!r}; known: {', '.join(BLOCKS)}")
        try:
            return f"{found[1]}\n{BLOCKS[kind](course, *words)}\n\n{found[3]}"
        except (KeyError, TypeError) as error:
            raise InputError(f"{name}: block {found[2]!r} cannot be made: {error}") from error

    made, count = _BLOCK.subn(make, text)
    if len(_BEGIN.findall(text)) != count or len(_END.findall(text)) != count:
        raise InputError(
            f"{name}: a mark without its partner: every `begin` needs an `end`, and a name in small letters"
        )
    return made


def contents(docs=DOCS, root=RECORDS):
    """{path: text} of every file that is made from the recorded runs: pages with marks, figures, pages of records."""
    course = Course(records(root))
    readme, texts = docs.parent / "README.md", sorted(docs.glob("*.md"))
    made = {path: filled(path.read_text(encoding="utf-8"), course, path.name) for path in texts}
    made[readme] = filled(
        readme.read_text(encoding="utf-8"), replace(course, to_docs="docs/", to_logs="logs/reference"), readme.name
    )
    found = [(each.ladder, each.predictions) for each in sorted(course.records, key=lambda each: each.folder)]
    made[docs / "predicted.md"] = predictions.markdown(found) + "\n"
    for each in course.records:
        for name, draw in figures.FIGURES.items():
            if drawn := draw(each):
                made[docs / "figures" / each.folder.name / f"{name}.svg"] = svg_text(drawn[0])
        made[each.folder / reference_page.FILE] = reference_page.page(each.folder)
    return made


def stale(made, docs=DOCS):
    """The files of `contents` that differ from what stands there, and the figures that nothing makes any more."""
    old = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return sorted(old + [path for path in (docs / "figures").glob("**/*.svg") if path not in made])


def write(made, docs=DOCS):
    """Write the files of `contents` that are stale, take away figures that nothing makes; return their paths."""
    changed = stale(made, docs)
    for path in changed:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            record.write_whole(path, made[path])
        else:
            path.unlink()
    return changed
