"""The course's pages: what is generated is up to date, marks are filled, chapters and links are whole."""

import re
from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from support import NAMES, ROOT

from tools.docs import pages
from tools.docs.recorded import Course
from walkthrough.results.errors import InputError

pytestmark = pytest.mark.xdist_group("course")  # the records are read once
DOCS = ROOT / "docs"
LABS = sorted(DOCS.glob("labs/*.md"))
PAGES = sorted(DOCS.glob("*.md")) + LABS
CHAPTERS = [page for page in PAGES if page.name[:2].isdecimal()]


def read(path):
    return path.read_text(encoding="utf-8")


def test_every_table_figure_and_page_of_a_record_is_up_to_date(generated):
    assert [path.relative_to(ROOT).as_posix() for path in pages.stale(*generated)] == [], "run `make docs-figures`"


def test_a_stale_page_a_missing_figure_and_one_that_no_page_shows_are_named_and_written(tmp_path):
    (tmp_path / "figures").mkdir()
    page, current, gone = tmp_path / "page.md", tmp_path / "current.md", tmp_path / "figures" / "gone.svg"
    there, missing = tmp_path / "figures" / "there.svg", tmp_path / "figures" / "missing.svg"
    for path, text in ((page, "old"), (current, "same"), (gone, "<svg/>"), (there, "drawn elsewhere")):
        path.write_text(text)
    course = Course([], figures={"there.svg": Figure, "missing.svg": Figure})
    files = {page: "new", current: "same"}
    assert pages.stale(files, course, tmp_path) == sorted(
        [page, missing, gone]
    )  # a figure that is there is not compared
    assert pages.write(files, course, tmp_path) == sorted([page, there, missing, gone])
    assert page.read_text() == "new" and "<svg" in there.read_text()
    assert not gone.exists()
    assert pages.stale(files, course, tmp_path) == []


def test_the_text_around_the_marks_is_left_alone(course):
    before, after = "before\n<!-- begin number none -->\n", "<!-- end -->\nafter\n"
    assert pages.filled(f"{before}whatever\n{after}", course) == f"{before}\n`none` has not been recorded.\n\n{after}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- begin nonsense -->\n<!-- end -->", "no block 'nonsense'"),
        ("<!-- begin machine -->\n", "mark without its partner"),
        ("<!-- begin machine -- >\n<!-- end -->", "mark without its partner"),
        ("<!-- begin table limit nonsense -->\n<!-- end -->", "no table nonsense of limit"),
        ("<!-- begin figure nonsense -->\n<!-- end -->", "cannot be made"),
        ("<!-- begin number -->\n<!-- end -->", "cannot be made"),
        ("<!-- begin diff 00_baseline 99_none -->\n<!-- end -->", "99_none"),
    ],
)
def test_a_mark_that_cannot_be_filled_is_named_with_its_page(course, text, message):
    with pytest.raises(InputError, match=message):
        pages.filled(text, course, "page.md")


def test_the_command_refuses_other_options():
    with pytest.raises(InputError, match="--nonsense: the only option is --check"):
        pages.main(["--nonsense"])


FOLD = r"<summary>{}</summary>\n\n.+?</details>"


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_asks_shows_a_trace_then_its_change_and_ends_with_an_exercise_and_three_lines(page):
    text = read(page)
    assert text.splitlines()[0].endswith("?")
    assert len(re.findall(r"^\d\. ", text.partition("\n## Remember\n")[2], re.MULTILINE)) == 3
    assert "*Made from `logs/reference/` by `make docs-figures`" in text
    assert re.search(FOLD.format("Answer"), text, re.DOTALL)
    if page not in (CHAPTERS[0], CHAPTERS[-1]):  # the opening, what matters
        assert re.search(FOLD.format("What an expert sees"), text, re.DOTALL)
        picture, first = (re.search(f"<!-- begin (?:{block}) ", text) for block in ("strip|screenshot", "diff|table"))
        assert picture and first and picture.start() < first.start()


@pytest.mark.parametrize("page", CHAPTERS[:-2], ids=lambda page: page.stem)
def test_a_page_names_the_whole_machine_at_its_first_measured_table_only(course, page):
    whole, short = course.measured, course.measured_again
    text = pages.filled(read(page), course)
    assert text.count(whole) <= 1
    assert short not in text.partition(whole)[0]


def words_by_hand(text):
    """Those outside generated blocks, code, tables and addresses."""
    not_by_hand = r"<!-- begin .*?<!-- end -->|```.*?```|^    .*?$|^\|.*?$|<[^>]+>|\]\([^)]*\)"
    text = re.sub(not_by_hand, " ", text, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"\S*\w\S*", text))


def test_words_outside_code_and_tables_are_counted():
    text = "# One two\n<!-- begin a -->\nnot\n<!-- end -->\n\n    not\n| not | not |\n[three four](not) - **five**\n"
    assert words_by_hand(f"{text}```\nnot\n```\n") == 5


def test_no_chapter_is_above_1000_words_by_hand_no_lab_above_900_and_all_pages_not_above_30000():
    words = {page: words_by_hand(read(page)) for page in [*PAGES, ROOT / "README.md"]}
    assert [page.stem for page in CHAPTERS if words[page] > 1000] == []
    assert [page.stem for page in LABS if words[page] > 900] == []
    assert sum(words.values()) <= 30_000
    assert words[ROOT / "README.md"] <= 900


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- begin" in read(page)], ids=lambda page: page.stem)
def test_a_page_with_generated_parts_names_the_commands_at_its_foot(page):
    assert re.match(r"\*Made .*`make docs-figures`.*\*$", read(page).splitlines()[-1])


def test_each_step_has_its_chapter_and_every_page_is_in_the_sites_list():
    text = "".join(map(read, CHAPTERS))
    for before, step in pairwise(NAMES):
        assert f"<!-- begin diff {before} {step} -->" in text and f"<!-- begin number {step} -->" in text
    config = read(ROOT / "mkdocs.yml")
    for page in PAGES:
        assert page.relative_to(DOCS).as_posix() in config


def test_every_test_that_a_page_names_exists():
    names = {name for page in [*PAGES, ROOT / "README.md"] for name in re.findall(r"`(test_\w+)`", read(page))}
    tests = "".join(read(path) for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name in names if f"def {name}(" not in tests} == set()
