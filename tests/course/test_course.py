"""The course: its tables and figures are those of the recorded runs, its pages hold together, its site builds."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import matplotlib
import pytest
from support import NAMES, ROOT, assert_refused, make_limit, make_result, run_program, write_run

from common import record
from common.course import figures, pages, recorded, screenshots, study_blocks
from common.course.blocks import BLOCKS, FOOT, Course
from common.errors import InputError
from common.ladder import published
from common.ladder.figures import svg_text

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CHAPTERS = [page for page in PAGES if page.name[:2].isdecimal()]
SPECIMEN = DOCS / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
_MARKED = re.compile(r"<!-- begin .*?<!-- end -->", re.DOTALL)


@pytest.fixture(scope="module")
def made():
    return pages.contents()


def test_every_table_figure_and_page_of_a_record_is_up_to_date(made):
    old = pages.stale(made)
    drawn = next(DOCS.glob("figures/**/*.svg")).read_text()
    if f"Matplotlib v{matplotlib.__version__}" not in drawn:  # Python 3.10 has another: other bytes, the same figure,
        old = [path for path in old if path.suffix != ".svg"]  # whose numbers stand in the pages' alternative texts
    assert [path.relative_to(ROOT).as_posix() for path in old] == [], "run `make docs-figures`"


def test_what_is_stale_is_named_and_what_nothing_makes_is_taken_away(tmp_path):
    (tmp_path / "figures").mkdir()
    page, left, fine = tmp_path / "page.md", tmp_path / "figures" / "gone.svg", tmp_path / "fine.md"
    page.write_text("old")
    left.write_text("<svg/>")
    fine.write_text("same")
    made = {page: "new", fine: "same", tmp_path / "figures" / "new.svg": "<svg/>"}
    changed = [page, left, tmp_path / "figures" / "new.svg"]
    assert pages.stale(made, tmp_path) == sorted(changed)
    assert pages.write(made, tmp_path) == sorted(changed)
    assert page.read_text() == "new"
    assert not left.exists()
    assert pages.stale(made, tmp_path) == []


def test_the_text_around_the_marks_is_left_alone():
    course = Course(recorded.records())
    text = "before\n<!-- begin foot -->\nwhatever\n<!-- end -->\nafter\n"
    assert pages.filled(text, course) == f"before\n<!-- begin foot -->\n\n{FOOT}\n\n<!-- end -->\nafter\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!-- begin nonsense -->\n<!-- end -->", "no block 'nonsense'"),
        ("<!-- begin foot -->\n", "mark without its partner"),
        ("<!-- begin Foot! -->\n<!-- end -->", "mark without its partner"),
        ("<!-- begin figure nonsense -->\n<!-- end -->", "cannot be made"),
        ("<!-- begin number -->\n<!-- end -->", "cannot be made"),
        ("<!-- begin diff 00_baseline 99_none -->\n<!-- end -->", "99_none"),
    ],
)
def test_a_mark_that_cannot_be_filled_is_named_with_its_page(text, told):
    with pytest.raises(InputError, match=told):
        pages.filled(text, Course(recorded.records()), "page.md")


def test_the_command_says_what_it_wrote_and_refuses_other_options():
    assert_refused(run_program("-m", "common.course", "--nonsense"), "--nonsense", "--check")


# The pages


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_has_its_beat_its_length_an_exercise_and_says_where_its_figures_are_from(page):
    text = page.read_text()
    own = _MARKED.sub("", text)
    assert 600 <= len(re.findall(r"\b\w[\w'./-]*", own)) <= 1250  # words, of prose and tables that were written
    assert "<!-- begin machine -->" in text
    assert FOOT in text
    assert re.search(r"<summary>Answer</summary>\n\n.+?</details>", text, re.DOTALL)
    if page not in (CHAPTERS[0], *CHAPTERS[-2:]):  # the opening, the limit, what matters
        step = NAMES[int(page.name[:2])]
        heads = ["What the profile shows", "What we suspect", "The change", "The number", "Reading the new trace"]
        heads += ["When it does not help", "Exercise"]
        found = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert [head for head in found if head in heads] == heads
        before = NAMES[int(page.name[:2]) - 1]
        for block in (f"profile {before}", f"diff {before} {step}", f"number {step}", f"change {before} {step}"):
            assert f"<!-- begin {block} -->" in text


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_and_figures_of_a_page_are_there_with_alternative_text(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for image, label, target in re.findall(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target
        assert not image or len(label) > 40, target


MADE = [page for page in PAGES if "<!-- begin" in page.read_text()]


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.stem)
def test_a_page_with_what_was_made_names_the_commands_at_its_foot(page):
    assert page.read_text().endswith(f"<!-- begin foot -->\n\n{FOOT}\n\n<!-- end -->\n")


def test_each_step_has_its_chapter_and_every_page_is_in_the_sites_list():
    assert len(CHAPTERS) == len(NAMES) + 2
    config = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert page.name in config


def test_the_diff_on_a_page_is_that_of_the_files():
    block = BLOCKS["diff"](None, "01_amp", "02_bigger_batch")
    removed = [line[1:] for line in block.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in block.splitlines() if line.startswith("+") and not line.startswith("+++")]
    old, new = ((ROOT / "steps" / f"{name}.py").read_text() for name in ("01_amp", "02_bigger_batch"))
    assert "batch_size=32" in "".join(removed)
    assert all(f"{line}\n" in old and f"{line}\n" not in new for line in removed)
    assert all(f"{line}\n" in new and f"{line}\n" not in old for line in added)
    assert "Idea" not in block  # the docstrings are no part of it


def test_the_originals_figures_are_its_own():
    for row in published.PUBLISHED.values():
        assert row.batch_size / row.step_ms * 1e3 == pytest.approx(row.images_per_second, rel=0.005)
        assert row.images_per_second / published.PUBLISHED["00_baseline"].images_per_second == pytest.approx(
            row.relative, abs=0.01
        )


# When a GPU's record lands


@pytest.fixture
def with_a_gpu(tmp_path):
    """A folder of records: this project's CPU, and a made-up GPU whose traces are the specimen. Nothing is measured."""
    shutil.copytree(recorded.RECORDS / "amd-epyc", tmp_path / "amd-epyc")
    gpu = tmp_path / "made-up-gpu"
    for number, step in enumerate(NAMES):
        speeds = [100.0 * (number + 1) + each for each in range(5)]
        result = make_result(step, windows=speeds, device="made-up GPU", trace=f"{step}.1.pt.trace.json.gz")
        folder = write_run(gpu, result)
        (folder / result.trace).write_bytes(gzip.compress(SPECIMEN.read_bytes()))
        (folder / "runs").mkdir()
        record.write_result(folder / "runs" / "1.json", result)
    header = json.loads((tmp_path / "amd-epyc" / "record.json").read_text())
    (gpu / "record.json").write_text(json.dumps(header))
    return tmp_path


def test_a_gpus_record_fills_the_pages_with_the_same_commands(with_a_gpu, tmp_path):
    course = Course(recorded.records(with_a_gpu))
    assert [each.folder.name for each in course.records] == ["made-up-gpu", "amd-epyc"]
    text = pages.filled((DOCS / "04_loading.md").read_text(), course)
    assert "No GPU has been recorded" not in text
    assert "figures/made-up-gpu/idle.svg" in text
    assert "**faster**" in text  # 500 images/s after 400
    assert "GPU 0: busy 40.0%, SMs at work 35.0%, Tensor Cores 25.0%." in text
    assert "10.5 GB/s" in BLOCKS["transfers"](course)
    assert BLOCKS["ladders"](course).count("### ") == 2
    kernels = BLOCKS["busiest"](course, "00_baseline")
    assert "sgemm" in kernels
    own = recorded.records()[0]
    for name, draw in figures.FIGURES.items():
        of = own if name in ("roofline", "ablation", "sweep") else course.shown
        figure, told = draw(of)
        svg = svg_text(figure)
        assert svg == svg_text(draw(of)[0]), name  # the same bytes each time
        assert len(told) > 40
    # of 1000 us a step with 32 images, the specimen's GPU waits 300 us for the loader
    assert figures.idle_per_image_ms(course.shown)["00_baseline"]["dataloader"] == pytest.approx(0.3 / 32)
    assert figures.per_image_ms(course.shown)["00_baseline"]["kernel"] == pytest.approx(0.4 / 32)


def test_what_was_not_measured_beside_a_ladder_is_said(with_a_gpu):
    course = Course(recorded.records(with_a_gpu))
    for make in study_blocks.BLOCKS[1:]:  # the first tells of the ladder itself
        command = {"limit_floors": "limit", "input_limit": "limit --input"}.get(make.__name__, "python -m common")
        assert "Not recorded on made-up GPU" in make(course)
        assert command in make(course)
    assert "No roofline" in BLOCKS["figure"](course, "roofline")
    assert "of the floor" not in BLOCKS["number"](course, "01_amp")


def test_a_limit_beside_a_ladder_gives_its_tables_and_each_steps_share_of_the_floor(with_a_gpu):
    limit = make_limit(device="made-up GPU")  # its floor is 400 images/s
    (with_a_gpu / "made-up-gpu" / "limit.json").write_text(json.dumps(asdict(limit)))
    course = Course(recorded.records(with_a_gpu))
    assert "| compiled | 400.0 |" in BLOCKS["limit-floors"](course)
    assert "| convolution | 3 |" in BLOCKS["limit-groups"](course)
    row = next(line for line in BLOCKS["number"](course, "01_amp").splitlines() if line.startswith("| `01_amp`"))
    speed = course.shown.row("01_amp").result.samples_per_second.median
    assert row.endswith(f"| {speed / 400:.0%} |")
    assert "of the floor" in BLOCKS["ladders"](course)
    assert "convolution" in BLOCKS["figure"](course, "roofline")


def test_every_page_and_figure_is_made_with_a_second_record_there(with_a_gpu, tmp_path):
    docs = tmp_path / "clone" / "docs"
    shutil.copytree(DOCS, docs)
    shutil.copy(ROOT / "README.md", docs.parent)
    found = pages.contents(docs, with_a_gpu)
    assert docs / "figures" / "made-up-gpu" / "idle.svg" in found
    assert docs / "figures" / "amd-epyc" / "ladder.svg" in found
    assert "made-up GPU" in found[docs.parent / "README.md"]
    assert "made-up GPU" in found[docs / "predicted.md"]


def test_text_out_of_a_record_stays_text(with_a_gpu):
    for path in (with_a_gpu / "made-up-gpu").glob("*/result.json"):
        notes = ["A <!-- end --> B", "<img src=x>", "[x](../../../etc/hosts)"]
        record.write_result(path, replace(record.read_result(path), notes=notes, device="<b>GPU</b> `x`"))
    course = Course(recorded.records(with_a_gpu))
    text = pages.filled((DOCS / "00_measuring.md").read_text(), course)
    assert pages.filled(text, course) == text
    outside = re.sub(r"`[^`\n]*`", "", text)
    assert "<img" not in outside
    assert "<b>" not in outside
    assert not re.search(r"(?<!\\)\]\(\.\./\.\./\.\./etc", text)


def test_a_cpus_record_says_plainly_that_it_is_one(tmp_path):
    shutil.copytree(recorded.RECORDS / "amd-epyc", tmp_path / "amd-epyc")
    course = Course(recorded.records(tmp_path))
    text = BLOCKS["machine"](course)
    assert "No GPU has been recorded yet" in text
    assert "not ours" in text
    assert "no GPU has been recorded" in BLOCKS["figure"](course, "idle")


def test_figures_follow_the_readers_theme_and_hold_no_date_or_path(made):
    drawn = {path: text for path, text in made.items() if path.suffix == ".svg"}
    for each in recorded.records():
        of_a_gpu = {"idle"} if each.device_type == "cuda" else set()
        stems = {path.stem for path in drawn if path.parent.name == each.folder.name}
        more = {"roofline": each.limit, "ablation": each.ablation, "sweep": each.sweep}
        further = {name for name, found in more.items() if found}
        assert stems == {"ladder", "beside_original", "breakdown", "memory", "predicted"} | of_a_gpu | further
    for path, text in drawn.items():
        assert "prefers-color-scheme:dark" in text, path
        assert "currentColor" in text
        assert "dc:date" not in text
        assert len(text) < 150_000


def test_an_image_of_a_step_takes_what_the_step_takes_over_its_batch():
    [each] = [each for each in recorded.records() if each.folder.name == "amd-epyc"]
    parts = figures.per_image_ms(each)
    for step, summary in each.summaries.items():
        batch = each.row(step).result.batch_size
        assert sum(parts[step].values()) == pytest.approx(summary.steps.mean_us / 1e3 / batch)


def test_the_screenshots_show_the_recorded_traces():
    listed = json.loads(screenshots.LIST.read_text())
    assert listed == screenshots.shown(recorded.records()[0]), "run `make docs-screenshots`"
    used = set(re.findall(r"begin screenshot (\w+) -->", "".join(page.read_text() for page in PAGES)))
    assert used == set(listed) == {path.stem for path in screenshots.FOLDER.glob("*.png")}


def test_a_folder_without_records_and_a_broken_one_are_refused(tmp_path):
    with pytest.raises(InputError, match="no recorded ladder"):
        recorded.records(tmp_path)
    shutil.copytree(recorded.RECORDS / "amd-epyc", tmp_path / "x")
    (tmp_path / "x" / "01_amp" / "result.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        recorded.records(tmp_path)


def test_a_trace_that_is_missing_is_said_and_its_tables_say_so(tmp_path, capsys):
    shutil.copytree(recorded.RECORDS / "amd-epyc", tmp_path / "x")
    next((tmp_path / "x" / "01_amp").glob("*.gz")).unlink()
    course = Course(recorded.records(tmp_path))
    assert "cannot be read" in BLOCKS["profile"](course, "01_amp")
    assert "cannot be read" in BLOCKS["change"](course, "00_baseline", "01_amp")
    assert "01_amp" in capsys.readouterr().err


# The site


def build(folder, tmp_path):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_site_builds_and_asks_for_nothing_from_the_internet(tmp_path):
    finished = build(ROOT, tmp_path)
    assert finished.returncode == 0, finished.stderr
    site = tmp_path / "site"
    assert {f"{page.stem}.html" for page in PAGES} <= {path.name for path in site.iterdir()}
    for page in site.glob("*.html"):
        text = page.read_text()
        assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", text), page.name
    assert "optimizer.zero_grad" in (site / "source" / "steps" / "01_amp.py.txt").read_text()
    assert (site / "figures" / "amd-epyc" / "ladder.svg").exists()


BROKEN = "[a](nowhere.md) ![figure](figures/none.svg) [code](../steps/none.py) [out](../../../etc/hosts)"


def test_a_broken_link_or_a_missing_figure_fails_the_build(tmp_path):
    for name in ("mkdocs.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "common", "steps"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "logs" / "reference", tmp_path / "logs" / "reference")
    with open(tmp_path / "docs" / "index.md", "a") as page:
        page.write(f"\n{BROKEN}\n")
    finished = build(tmp_path, tmp_path)
    assert finished.returncode != 0
    for name in ("nowhere.md", "none.svg", "none.py", "etc/hosts"):
        assert name in finished.stderr
    assert not list((tmp_path / "site").rglob("hosts*"))
