"""The glossary's anchors and their first uses in the chapters; the log's template, its entry and its commands."""

import re
import shlex

import pytest
from support import CPU_RECORD, NAMES, ROOT

from tools.docs.blocks import BLOCKS
from tools.docs.blocks.log import LINES, TEMPLATE, docstring_part
from tools.docs.recorded import Course
from walkthrough.advice.catalogue import COSTS
from walkthrough.cli import _parser
from walkthrough.results.errors import InputError

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
DOCS = ROOT / "docs"
CHAPTERS = sorted(DOCS.glob("[01][0-9]_*.md"))
LOG = (DOCS / "log.md").read_text(encoding="utf-8")
TERM = re.compile(r'^- <a id="([^"]*)"></a>\*\*(.+?)\*\*', re.MULTILINE)
GLOSSARY_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)?glossary\.md#([\w-]+)\)")

NOT_LINKED = {  # terms whose first use in the chapters need not be a link
    "batch": "a word of PyTorch's own, which everybody who trains knows",
    "block": "first a group of windows, of a file or of memory",
    "control": "also a verb",
    "cudnn-benchmark": "always a piece of code",
    "device": "a word of PyTorch's own, which everybody who trains knows",
    "epoch": "a word that everybody who trains knows",
    "flop": "stands within the name of MFU",
    "flow": "also a verb",
    "foreach-fused": "its words stand in the names of options and chapters",
    "guard": "first the guard of a main module",
    "lane": "first one of PCIe's lanes",
    "limit": "also a verb, and first an ordinary noun",
    "median": "a word of statistics that everybody knows",
    "non-blocking": "always a piece of code",
    "overlap": "also a verb",
    "rank": "also a verb",
    "resolved": "stands in generated sentences",
    "spread": "an ordinary word",
}


def slug(term):
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def glossary():
    """{anchor: the term's names}."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return {anchor: term.split(", ") for anchor, term in TERM.findall(text)}


def prose(text):
    """What a chapter's author wrote: no generated part, code, heading or image, and no other link's text."""
    for pattern in (r"<!-- begin .*?<!-- end -->", r"^```.*?^```", r"<[^>]+>"):
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:#|    ).*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", " ` ", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[[^\]]*\]\((?!(?:\.\./)?glossary\.md#)[^)]*\)", " ", text)
    return re.sub(r"\s+", " ", text)


def pattern_of(name):
    """A term as it stands in a text: with any case and spaces, and a plural."""
    words = r"[\s-]".join(re.escape(word) for word in re.split(r"[\s-]", name))
    return re.compile(rf"(?<![\w-]){words}(?:s|es)?(?![\w-])", re.IGNORECASE)


def uses(text, terms):
    """[(where, anchor, linked)] of every use of a term in a chapter's prose; a longer term hides those within it."""
    found, taken = [], bytearray(len(text) + 1)
    for link in GLOSSARY_LINK.finditer(text):
        found.append((link.start(), link[2], True))
        taken[link.start() : link.end()] = b"x" * (link.end() - link.start())
    names = [(name, anchor) for anchor, every in terms.items() for name in every]
    for name, anchor in sorted(names, key=lambda item: -len(item[0])):
        for use in pattern_of(name).finditer(text):
            if not any(taken[use.start() : use.end()]):
                found.append((use.start(), anchor, False))
                taken[use.start() : use.end()] = b"x" * (use.end() - use.start())
    return sorted(found)


def first_uses_without_a_link(chapters, terms):
    """A line for each term that the first of these chapters to use it does not link there, at its first use.

    chapters: {name: text}, in the order of reading.
    """
    seen, missing = set(), []
    for name, text in chapters.items():
        text = prose(text)
        for at, anchor, linked in uses(text, terms):
            if anchor not in seen and not linked and anchor not in NOT_LINKED:
                context = text[max(0, at - 30) : at + 40]
                missing.append(f"{name}: glossary.md#{anchor} at “…{context}…”")
            seen.add(anchor)
    return missing


def test_every_term_has_its_anchor_and_stands_in_the_order_of_the_alphabet():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = TERM.findall(text)
    assert len(terms) == len(re.findall(r"^- ", text, re.MULTILINE)) > 80
    assert [anchor for anchor, _ in terms] == [slug(term) for _, term in terms]
    assert len({anchor for anchor, _ in terms}) == len(terms)
    names = [re.sub(r"[^a-z0-9]", "", term.partition(",")[0].lower()) for _, term in terms]
    assert names == sorted(names)
    assert set(NOT_LINKED) <= {anchor for anchor, _ in terms}


def test_every_link_to_the_glossary_has_a_target():
    anchors = set(glossary())
    pages = [*DOCS.glob("*.md"), *DOCS.glob("labs/*.md"), ROOT / "README.md"]
    wrong = {
        f"{page.name}: #{anchor}"
        for page in pages
        for anchor in re.findall(r"glossary\.md#([^)\s]*)\)", page.read_text(encoding="utf-8"))
        if anchor not in anchors
    }
    assert wrong == set()


def test_a_term_is_linked_where_the_course_uses_it_first():
    chapters = {page.stem: page.read_text(encoding="utf-8") for page in CHAPTERS}
    missing = first_uses_without_a_link(chapters, glossary())
    assert not missing, "link these words to the glossary:\n" + "\n".join(missing)


def test_a_first_use_is_found_in_prose_only_and_longer_terms_hide_shorter_ones():
    terms = {"cuda": ["CUDA"], "cuda-graph": ["CUDA graph"], "kernel": ["Kernel"], "all-reduce": ["All-reduce"]}
    text = "# Kernel\n`kernel` [GPU Kernel view](x.md) <!-- begin x -->\nkernel\n<!-- end -->\n\n    kernel\n\n"
    assert first_uses_without_a_link({"00": text}, terms) == []
    text += "[CUDA graphs](glossary.md#cuda-graph) and [kernels](glossary.md#kernel); CUDA\ngraphs. All-reduces"
    assert [line.split(" at ")[0] for line in first_uses_without_a_link({"00": text, "01": "kernel, CUDA"}, terms)] == [
        "00: glossary.md#all-reduce", "01: glossary.md#cuda",
    ]  # fmt: skip


def test_the_template_has_the_lines_of_an_entry_and_is_on_the_page(course):
    assert tuple(re.findall(r"^- \*\*(.+?)\*\*:", TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)) == LINES
    assert "(assets/log_template.txt)" in LOG
    assert TEMPLATE.read_text(encoding="utf-8") in BLOCKS["log-template"](course)


def test_the_entry_of_our_machine_is_from_its_record(course, gpu_course):
    cpu = Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])
    words = ("13_compile", "14_compile_loss", "test_a")
    entry = BLOCKS["log-entry"](cpu, *words)
    assert tuple(re.findall(r"^- \*\*(.+?)\*\*:", entry, re.MULTILINE)) == LINES
    [prediction] = [row for row in cpu.shown.predictions if row.step == "14_compile_loss"]
    assert f"at most **{prediction.predicted_gain:.2f}x**" in entry
    assert f"**{prediction.gain}** the step before" in entry
    outcomes = {"within": "the gain is within the bound", "miss": "the gain is above the bound"}
    assert "yes: the whole interval is above 1" in entry
    assert outcomes[prediction.outcome] in entry
    not_resolved = next(row for row in cpu.shown.predictions if not row.gain.resolved)
    assert "not decided" in BLOCKS["log-entry"](cpu, not_resolved.before, not_resolved.step, "test_a")
    assert "made-up GPU" in BLOCKS["log-entry"](gpu_course, *words)
    assert "Not recorded" in BLOCKS["log-entry"](cpu, "13_compile", "99_none", "test_a")


@pytest.mark.parametrize("step", NAMES)
def test_every_step_says_its_idea_and_its_change(step):
    assert docstring_part(step, "Idea")
    assert "Look for" not in docstring_part(step, "Change")
    with pytest.raises(InputError, match="no part Nothing"):
        docstring_part(step, "Nothing")


def test_the_commands_of_the_log_are_commands():
    lines = re.findall(r"^    (?:python -m walkthrough|walkthrough) (.+?)(?: {2,}#.*)?$", LOG, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"explain", "compare", "time"}
    for line in lines:
        assert _parser().parse_args(shlex.split(line))
    for file in re.findall(r"(?<!\S)((?:steps|docs)/\w[\w/]*\.\w+)", LOG):
        assert (ROOT / file).exists()


def test_every_finding_is_defined_on_the_page_of_definitions():
    page = (DOCS / "explain_definitions.md").read_text(encoding="utf-8")
    section = page.partition("## What stands out")[2]
    defined = {
        name for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert defined == {cost.finding for cost in COSTS if cost.finding}
