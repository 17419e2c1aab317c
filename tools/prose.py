"""Checks links, words and form of the project: `python -m tools.prose [FILE ...]`, without files all that git knows.

Links: of Markdown pages, to files and to headings or `<a id>` as GitHub names them; pictures have alternative text.
Words: those that a reader would have to decode stay out of code and pages. Form: a page of the course is in the site's
list and is short; a chapter asks, lets the reader answer and ends in three lines. Exit code 1 where a line is printed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNWRITTEN = ("tests/data/", "logs/")  # as they came
# Each with what is written instead; in two parts, so that this file does not hold them itself.
REPLACED = {
    r"\bm" r"end(?:ed|s|ing)?\b": "fix, patch",
    r"\bcannot " r"act\b": "has no effect on this device",
    r"\bof the " r"floor\b": "% of limit",
    r"\bno " r"difference\b": "no measurable difference",
    r"\b(?:cannot be )?told " r"apart\b": "no measurable difference",
    r"\bnot " r"resolved\b": "no measurable difference; of a claim: inconclusive",
    r"\b(?:interval|it|that|should|which) hold" r"s? 1\b": "the interval includes 1",
    r"\btaken " r"in\b": "imported",
    r"\bturned " r"over\b": "converted (a layout)",
    r"\bhanded " r"(?:on|out)\b": "passed, yielded, allocated",
    r"\bms an " r"image\b": "ms per image",
    r"\bimages a " r"second\b": "images/s",
    r"\bpromis" r"(?:ed|es)\b": "predicted (upper bound)",
    r"\bsal" r"vage": "recovery",
    r"\blev" r"ers\b": "bottlenecks",
    r"\bload(?:s|ing)? in " r"(?:more )?processes\b": "use DataLoader workers",
    r"\bfind the " r"Python\b": "reduce Python overhead",
    r"\bgive each " r"launch\b": "use a bigger batch",
    r"\bdo not " r"synchroni[sz]e\b": "remove synchronisations",
    r"\bcopy the next " r"batch early\b": "prefetch on a side stream",
    r"\bgain " r"unknown\b": "the gain cannot be estimated here; measure it",
    r"\bmost " r"to gain\b": "biggest possible gain",
    r"\bto try " r"first\b": "try first",
    r"\bGPU that " r"waits for itself\b": "GPU stalls between launched kernels",
    r"\bsuch an? " r"one\b|\bsays " r"whose\b|\bbegins? " r"so\b": "subject, verb, object",
    r"\b\d+ (?:us|µs|ms|s) an? (?:image|" r"launch|step)\b": "per image, per launch",
}
WORDS = re.compile("|".join(f"(?:{pattern})" for pattern in REPLACED), re.IGNORECASE)
FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
SHORTEST_ALTERNATIVE = 40  # characters that say what a picture shows
NOT_BY_HAND = r"<!-- begin .*?<!-- end -->|```.*?```|^    .*?$|^\|.*?$|<[^>]+>|\]\([^)]*\)"
MOST_WORDS, MOST_OF_A_CHAPTER = 900, 1000  # by hand: of the README, of a lab's page; of a chapter


def written(text: str) -> str:
    """A page without its code, which may look like links; lines keep their numbers."""
    text = FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)
    return re.sub(r"`[^`\n]*`", "``", text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to this page may name after `#`."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    names: list[str] = []
    for heading in re.findall(r"^#+ +(.+?)\s*#*$", text, re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|<[^>]+>", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.replace("*", "").lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return frozenset(names) | frozenset(re.findall(r"\bid=\"([^\"]+)\"", text))


def wrong_links(page: Path) -> Iterator[str]:
    """A line for each link of a page that leads nowhere, and for each picture that a screen reader cannot tell."""
    text = written(page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        image, label, target = match.groups()
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        if image and len(label) <= SHORTEST_ALTERNATIVE and not target.startswith("http"):
            yield f"{where}: {target}: the alternative text does not say what the picture shows"
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            yield f"{where}: {target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.resolve()):
            yield f"{where}: {target}: no such heading"


def wrong_words(file: Path, text: str) -> Iterator[str]:
    """A line for each word of a file that has a plainer one."""
    for match in WORDS.finditer(text):
        instead = next(new for old, new in REPLACED.items() if re.fullmatch(old, match[0], re.IGNORECASE))
        yield f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]} -> {instead}"


def wrong_form(page: Path, text: str) -> Iterator[str]:
    """A line for each thing that a page of the course should have, and has not."""
    name = page.relative_to(ROOT).as_posix()
    is_chapter = re.fullmatch(r"docs/\d\d_\w+\.md", name)
    by_hand = re.sub(NOT_BY_HAND, " ", text, flags=re.DOTALL | re.MULTILINE)
    count, most = len(re.findall(r"\S*\w\S*", by_hand)), MOST_OF_A_CHAPTER if is_chapter else MOST_WORDS
    if count > most and (is_chapter or name == "README.md" or name.startswith("docs/labs/")):
        yield f"{name}:1: {count} words by hand, more than {most}"
    if name.startswith("docs/") and name.removeprefix("docs/") not in _text("mkdocs.yml"):
        yield f"{name}:1: not in the list of mkdocs.yml"
    if name.startswith("docs/") and "<!-- begin" in text and "`make docs-figures`" not in text.splitlines()[-1]:
        yield f"{name}:1: its last line does not name the command that writes its tables"
    for test in re.findall(r"`(test_\w+)`", text):
        if f"def {test}(" not in _tests():
            yield f"{name}:1: there is no {test}"
    if is_chapter and not text.splitlines()[0].endswith("?"):
        yield f"{name}:1: the heading asks no question"
    if is_chapter and "<summary>Answer</summary>" not in text:
        yield f"{name}:1: no exercise with a folded answer"
    if is_chapter and len(re.findall(r"^\d\. ", text.partition("\n## Remember\n")[2], re.MULTILINE)) != 3:
        yield f"{name}:1: not three lines to remember at its end"


@cache
def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def _tests() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def main(names: list[str]) -> int:
    """Prints what is wrong with these files; 1 if anything is."""
    if not names:
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    wrong: list[str] = []
    for file in (ROOT / name for name in names):
        if not file.is_file() or str(file.relative_to(ROOT)).startswith(UNWRITTEN):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if file.name != "CHANGELOG.md":
            wrong += wrong_words(file, text)
        if file.suffix == ".md":
            wrong += [*wrong_links(file), *wrong_form(file, text)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
