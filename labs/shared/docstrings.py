"""Real text that is on every machine: docstrings of Python's library and the installed packages, from their sources.

A docstring whose first paragraph is one short sentence, and that goes on after it, is a document with a summary that
its author wrote: `collect` gives body and summary line. `collect_texts` gives every docstring with its package, as
something to classify. Nothing is imported or run.
"""

import ast
import hashlib
import inspect
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from walkthrough.results import result

T = TypeVar("T")
SUMMARY_WORDS = (5, 30)  # of a summary line: shorter ones say little, longer ones are no line
BODY_WORDS = (40, 400)
LETTERS = 0.7  # the least share of a body's characters that are letters or spaces: else it is code or a table
SHINGLE = 8  # words: texts that share more than `SHARED` of such sequences are copies of each other
SHARED = 0.3
MOST_PER_PACKAGE = 300  # documents: no package is most of a split
TESTS = ("tests", "test", "testing")  # folders: what tests say of themselves is no prose
MOST_BYTES = 400_000  # of a source file: larger ones are generated

# Where the prose of a docstring ends: a section's heading (Google, NumPy, reStructuredText), a directive, an example.
SECTION = re.compile(
    r"^\s*(?:(?:Args|Arguments|Parameters?|Returns?|Yields?|Raises|Attributes|Examples?|Usage|Notes?|See Also|"
    r"References|Keyword Args|Keyword Arguments|Other Parameters|Warns|Warnings?|Shape|Inputs?|Outputs?|"
    r"Methods)\s*:*\s*$"
    r"|:(?:param|type|returns?|rtype|raises|arg|keyword|ivar|cvar)\b|@(?:param|return)|\.\. |>>> |[-=~^]{3,}\s*$)",
    re.MULTILINE | re.IGNORECASE,
)
MARKUP = re.compile(r":[\w:]+:`([^`]*)`|``([^`]*)``|`([^`]*)`_?|\*\*([^*]*)\*\*")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"'(])|\n\s*\n|\n\s*[-*]\s+")


@dataclass(frozen=True)
class Docstring:
    """A summary line and the prose below it. package: the top-level name that it was found in."""

    package: str
    summary: str
    sentences: tuple[str, ...]

    @property
    def body(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Text:
    """A whole docstring, without its indentation. file: its source, below the folder of all packages, with "/"."""

    package: str
    text: str
    file: str


def package_folders() -> list[Path]:
    """The folders into which packages are installed here, and that of Python's own library, which comes last.

    Each top-level module or package of the library is a package of its own here: `asyncio` and `email` have other
    authors and other subjects.
    """
    installed_into = sorted({Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")})
    return [*installed_into, Path(sysconfig.get_path("stdlib"))]


def installed(folders: Sequence[Path]) -> str:
    """A hash of this Python's version, and of which packages, in which versions, are installed in these folders."""
    names = sorted(path.name for folder in folders for path in folder.glob("*.dist-info"))
    names.append(platform.python_version())
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def kept(path: Path, folders: Sequence[Path], what: str, collected: Callable[[], list[Any]]) -> list[Any]:
    """Rows that were collected from the packages in `folders`, kept in the file `path` for the next program.

    what: else they depend on. They are collected anew where other packages, or other versions, are installed, and by
    another version of this file. Raises InputError where they cannot be written.
    """
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    key = f"{installed(folders)} {code} {what}"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))  # tens of MB, which `result.read_json` refuses
        if value["key"] == key:
            return value["docstrings"]
    except (OSError, KeyError, TypeError, ValueError):  # none yet, or not ours
        pass
    print("data: collecting the docstrings of the installed packages, once: about a minute")
    rows = collected()
    with result.writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    result.write_json(path, {"key": key, "docstrings": rows})
    return rows


def collect(folders: Sequence[Path], most_per_package: int = MOST_PER_PACKAGE) -> list[Docstring]:
    """The docstrings with a summary line and prose below it, in an order that depends on nothing but their content.

    Packages in the order of their names, at most `most_per_package` of each (files in the order of their paths' hashes,
    so that no corner of a large package is all that is read). What another docstring has said before is left out: the
    same summary, or more than `SHARED` of its sequences of `SHINGLE` words, in the same package or in another.
    """
    seen = _Seen()

    def documents(package: str, files: Sequence[Path]) -> Iterator[Docstring]:
        for _, docstring in _docstrings_in(files):
            document = document_of(package, docstring)
            if document is not None and seen.adds(document.body, document.summary):
                yield document

    return _of_each_package(folders, documents, most_per_package)


def collect_texts(folders: Sequence[Path], most_per_package: int = MOST_PER_PACKAGE) -> list[Text]:
    """All docstrings, prose or not, with or without a summary line: for a classifier, say, of packages.

    In the order of `collect`, and as many of each package. What another docstring has said before is left out: more
    than `SHARED` of its sequences of `SHINGLE` words, or all of its words where it has fewer.
    """
    seen = _Seen()

    def texts(package: str, files: Sequence[Path]) -> Iterator[Text]:
        for file, docstring in _docstrings_in(files):
            text = inspect.cleandoc(docstring)
            if _normal(text) and seen.adds(text):
                folder = next(folder for folder in folders if file.is_relative_to(folder))
                yield Text(package, text, file.relative_to(folder).as_posix())

    return _of_each_package(folders, texts, most_per_package)


def _of_each_package(
    folders: Sequence[Path], found: Callable[[str, Sequence[Path]], Iterator[T]], most: int
) -> list[T]:
    """The first `most` of what found(package, its files) yields, packages in the order of their names."""
    packages = sorted(_packages(folders).items())
    return [one for package, files in packages for one in islice(found(package, files), most)]


class _Seen:
    """What was collected so far, so that copies of it can be left out."""

    def __init__(self) -> None:
        self.shingles: set[int] = set()
        self.summaries: set[str] = set()

    def adds(self, text: str, summary: str | None = None) -> bool:
        """Whether neither this text nor its summary is a copy; it then counts as collected."""
        shingles, key = _shingles(text), None if summary is None else _normal(summary)
        if key in self.summaries or len(shingles & self.shingles) > SHARED * len(shingles):
            return False
        self.shingles |= shingles
        if key is not None:
            self.summaries.add(key)
        return True


def document_of(package: str, docstring: str) -> Docstring | None:
    """The document in a docstring; None where it is no prose with a summary line above it."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring), maxsplit=1)
    if len(paragraphs) < 2:
        return None
    summary, body = _plain(" ".join(paragraphs[0].split())), paragraphs[1]
    end = SECTION.search(body)
    body = body[: end.start()] if end else body
    sentences = tuple(
        plain for part in SENTENCE_END.split(_plain(body)) if len((plain := " ".join(part.split())).split()) >= 3
    )
    words = sum(len(sentence.split()) for sentence in sentences)
    text = " ".join(sentences)
    if not SUMMARY_WORDS[0] <= len(summary.split()) <= SUMMARY_WORDS[1] or SECTION.match(summary):
        return None
    if not BODY_WORDS[0] <= words <= BODY_WORDS[1]:
        return None
    if sum(letter.isalpha() or letter.isspace() for letter in text + summary) < LETTERS * len(text + summary):
        return None
    return Docstring(package, summary, sentences)


def _packages(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """{name of a package: its source files}, without tests and without what belongs to no package."""
    packages: dict[str, list[Path]] = {}
    for folder in folders:
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if entry.stem in TESTS:
                continue
            if entry.is_dir() and entry.name.isidentifier() and entry.name not in packages:
                packages[entry.name] = sorted(_sources(entry), key=lambda path: _path_hash(path, entry))
            elif entry.suffix == ".py" and entry.stem not in packages:
                packages[entry.stem] = [entry]
    return packages


def _sources(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in (*TESTS, "_vendor", "__pycache__")]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def _path_hash(path: Path, package: Path) -> bytes:
    return hashlib.sha256(path.relative_to(package).as_posix().encode()).digest()


def _docstrings_in(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each file that can be read, with each docstring of its modules, classes and functions."""
    for file in files:
        try:
            if file.stat().st_size > MOST_BYTES:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SyntaxWarning: of escapes in others' strings
                tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):  # ValueError: not UTF-8, null bytes
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = list[ast.AST]([tree])
        for node in nodes:  # in the order of ast.walk, but without expressions, which are most of a tree
            nodes += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
            if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
                yield file, text


def _plain(text: str) -> str:
    """Text without the marks of reStructuredText."""
    return MARKUP.sub(lambda match: next(filter(None, match.groups()), ""), text).replace("::", ":")


def _normal(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def _shingles(text: str) -> set[int]:
    """Hashes of all sequences of `SHINGLE` words; of the whole text where it is shorter."""
    words = _normal(text).split()
    return {hash(tuple(words[at : at + SHINGLE])) for at in range(max(1, len(words) - SHINGLE + 1))}
