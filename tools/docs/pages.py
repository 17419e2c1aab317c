"""The pages of the course: what is between their marks is generated from what was recorded.

<!-- begin number 01_amp -->
whatever the block `number` returns for "01_amp"
<!-- end -->
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tools.docs import figures, first_picture, gpu_memory, lab_figures, others, real_gpu
from tools.docs.blocks import BLOCKS
from tools.docs.blocks.fit import FIGURE
from tools.docs.blocks.page import measured, measured_again
from tools.docs.recorded import RECORDS, Course, records
from walkthrough.compare import predictions
from walkthrough.compare.figures import svg_text
from walkthrough.records import page as reference_page
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

DOCS = ROOT / "docs"
DRAWN = "diagrams"  # the folder of figures that were drawn, not measured: files like any other
_BLOCK = re.compile(r"(<!-- begin ([a-z0-9_ -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
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
        raise InputError(
            f"{name}: a mark without its partner: every `begin` needs an `end`, and a name in small letters"
        )
    before, first, after = new.partition(measured(course))
    return before + first + after.replace(measured(course), measured_again(course))


def contents(docs: Path = DOCS, root: Path = RECORDS) -> dict[Path, str]:
    """{path: text} of every file generated from the recorded runs: pages with marks, figures, pages of records."""
    course = Course(records(root))
    of_readme = replace(course, to_docs="docs/", to_logs="logs/reference")
    of_lab = replace(course, to_docs="../", to_logs="../../logs/reference")
    pages = [(path, course) for path in sorted(docs.glob("*.md"))] + [(docs.parent / "README.md", of_readme)]
    pages += [(path, of_lab) for path in sorted(docs.glob("labs/*.md"))]
    files = {path: filled(path.read_text(encoding="utf-8"), shown, path.name) for path, shown in pages}
    by_folder = sorted(course.records, key=lambda recorded: recorded.folder)
    ladders = [(recorded.ladder, recorded.predictions) for recorded in by_folder]
    files[docs / "predicted.md"] = predictions.markdown(ladders, others.section(others.read(root))) + "\n"
    if course.fit:
        files[docs / "figures" / FIGURE] = svg_text(gpu_memory.figure(course.fit))
    files[docs / "figures" / first_picture.FILE] = first_picture.svg(course)
    for recorded in course.records:
        for name, draw in figures.FIGURES.items():
            if drawing := draw(recorded):
                files[docs / "figures" / recorded.folder.name / f"{name}.svg"] = svg_text(drawing[0])
        files[recorded.folder / reference_page.FILE] = reference_page.page(recorded.folder)
    for name, draw in real_gpu.drawings(course).items():
        files[docs / "figures" / real_gpu.FOLDER / f"{name}.svg"] = svg_text(draw().figure)
    for lab, study in course.labs.items():
        for name, (drawing, _) in lab_figures.figures(study).items():
            files[docs / "figures" / "labs" / lab / f"{name}.svg"] = svg_text(drawing)
    return files


def stale(files: Mapping[Path, str], docs: Path = DOCS) -> list[Path]:
    """The files of `contents` that are out of date, and the figures that are missing or no longer generated.

    A figure that is there is not compared: its last digits depend on the CPU, its structure on matplotlib's version.
    """
    changed = [path for path, text in files.items() if not _up_to_date(path, text)]
    return sorted(changed + _not_generated(files, docs))


def _up_to_date(path: Path, text: str) -> bool:
    return path.exists() and (path.suffix == ".svg" or path.read_text(encoding="utf-8") == text)


def _not_generated(files: Mapping[Path, str], docs: Path) -> list[Path]:
    kept = docs / "figures" / DRAWN
    return [path for path in (docs / "figures").glob("**/*.svg") if path not in files and path.parent != kept]


def write(files: Mapping[Path, str], docs: Path = DOCS) -> list[Path]:
    """Write the files of `contents` that differ, remove figures that are no longer generated: their paths."""
    changed = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        result.write_whole(path, files[path])
    gone = _not_generated(files, docs)
    for path in gone:
        path.unlink()
    return sorted(changed + gone)
