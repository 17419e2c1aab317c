"""The blocks of the pages: from this project's record of a CPU, from a made-up GPU's, and from broken ones."""

import re
import shutil
from dataclasses import asdict, replace

import pytest
from support import CPU_RECORD, ROOT, make_limit

from labs.shared.study import FILE
from tools.docs import figures, gpu_memory, page_tables, pages, recorded
from tools.docs.blocks import BLOCKS
from tools.docs.recorded import Course, Recorded
from walkthrough.compare.ladder import PUBLISHED
from walkthrough.compare.statistics import Ratio, of_pairs
from walkthrough.compare.study import OF_A_LADDER, Claim, Study, write
from walkthrough.memory.fit import CONTEXT_BYTES, GPUS, Prediction
from walkthrough.memory.tracker import KINDS
from walkthrough.results import result
from walkthrough.results.errors import InputError

pytestmark = pytest.mark.xdist_group("course")
DOCS = ROOT / "docs"
GPU = "made-up-gpu"
CAPTIONS = "<!-- begin number 02_bigger_batch -->\n<!-- end -->\n" * 2


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_diff_on_a_page_is_that_of_the_files():
    block = BLOCKS["diff"](None, "01_amp", "02_bigger_batch")
    removed = [line[1:] for line in block.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in block.splitlines() if line.startswith("+") and not line.startswith("+++")]
    old, new = ((ROOT / "steps" / f"{name}.py").read_text(encoding="utf-8") for name in ("01_amp", "02_bigger_batch"))
    assert "batch_size=32" in "".join(removed)
    assert all(f"{line}\n" in old and f"{line}\n" not in new for line in removed)
    assert all(f"{line}\n" in new and f"{line}\n" not in old for line in added)
    assert "Idea" not in block  # the docstrings are not part of it


def test_the_source_on_a_page_is_the_function_of_the_file():
    text = BLOCKS["source"](Course([]), "common/tracing.py", "trace_steps")
    code = re.fullmatch(r"```python\n(.+)\n```\n\n\[The whole file\]\(\.\./common/tracing\.py\)\.", text, re.DOTALL)[1]
    assert code in (ROOT / "common" / "tracing.py").read_text(encoding="utf-8")
    assert code.startswith("def trace_steps(") and "profiler.step()" in code.splitlines()[-1]
    assert len(code.splitlines()) <= 60
    for name, function in (("common/tracing.py", "none"), ("common/none.py", "f"), ("../outside.py", "f")):
        with pytest.raises(InputError):
            BLOCKS["source"](Course([]), name, function)


def test_the_example_of_pairs_in_chapter_00_is_computed():
    text = page("00_measuring.md")
    rows = re.findall(r"^ +\d +(\d+) +(\d+) +([\d.]+)", text, re.MULTILINE)
    assert [f"{int(after) / int(before):.2f}" for before, after, _ in rows] == [ratio for *_, ratio in rows]
    assert text.count(str(of_pairs([int(after) / int(before) for before, after, _ in rows]))) == 2


def test_a_gpus_record_fills_the_pages_with_the_same_commands(gpu_course):
    assert [shown.folder.name for shown in gpu_course.records] == [GPU, CPU_RECORD]
    blocks = "<!-- begin number 03_reduced_h2d_copy -->\n<!-- end -->\n" * 2
    text = pages.filled(f"{page('04_loading.md')}\n{blocks}", gpu_course)
    assert "no GPU recorded" not in text
    assert text.count("*Measured: [made-up GPU](../logs/reference/made-up-gpu/README.md), ") == 1
    assert "*[made-up GPU](../logs/reference/made-up-gpu/README.md).*" in text
    assert "figures/made-up-gpu/breakdown.svg" in BLOCKS["figure"](gpu_course, "breakdown")
    assert "**1.25x (" in text  # 500 images/s after 400
    assert "with the 95 % interval of one round: faster." in text
    assert BLOCKS["table"](gpu_course, "ladder", "all").count("### ") == 2


def test_every_page_and_figure_is_generated_with_a_second_record(gpu_records, tmp_path):
    docs = tmp_path / "clone" / "docs"
    docs.mkdir(parents=True)
    for path in DOCS.glob("*.md"):
        shutil.copy(path, docs)
    shutil.copy(ROOT / "README.md", docs.parent)
    files, course = pages.contents(docs, gpu_records)
    assert f"{GPU}/ladder.svg" in course.figures
    assert "made-up GPU" in files[docs.parent / "README.md"]
    assert "made-up GPU" in files[docs / "18_which_steps_matter.md"]


def test_a_cpus_record_is_labelled_as_one(course):
    of_cpu = Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])
    text = BLOCKS["machine"](of_cpu)
    assert "2 CPU cores" in text
    assert "(no GPU recorded yet)" in text
    assert "\n" not in text
    assert "CPU cores, " in BLOCKS["number"](of_cpu, "00_baseline")
    gain = BLOCKS["number"](of_cpu, "02_bigger_batch")  # a line: a CPU's table is on a page of its own
    assert gain.startswith("**1.19x (1.14-1.24)** the images/s of `00_baseline`") and "|" not in gain
    assert f"README.md), a CPU, with the 95 % interval of {of_cpu.shown.run_count} rounds: faster." in gain


def test_every_study_has_tables_that_name_its_command_where_it_was_not_recorded(gpu_course):
    assert set(page_tables.COMMANDS) == set(OF_A_LADDER)
    for of, name in [(study, "any") for study in OF_A_LADDER]:
        text = f"*Not recorded on made-up GPU: `python -m walkthrough {page_tables.COMMANDS[of]}`.*"
        assert BLOCKS["table"](gpu_course, of, name) == text
    assert "No figure" in BLOCKS["figure"](gpu_course, "roofline")
    assert "% of limit" not in BLOCKS["number"](gpu_course, "01_amp")


def test_a_limit_beside_a_ladder_gives_its_tables_and_each_steps_share_of_it(own_gpu_records):
    limit = make_limit(device="made-up GPU")  # 400 images/s
    write(own_gpu_records / GPU / "limit.json", limit)
    course = Course(recorded.records(own_gpu_records))
    assert "| 400 |" in BLOCKS["table"](course, "limit", "programs")
    assert "| convolution | 3 |" in BLOCKS["table"](course, "limit", "operators")
    row = next(line for line in BLOCKS["number"](course, "01_amp").splitlines() if line.startswith("| `01_amp`"))
    speed = course.shown.row("01_amp").result.samples_per_second.median
    assert row.endswith(f"| {speed / 400:.0%} |")
    assert "% of limit" in BLOCKS["table"](course, "ladder", "all")
    assert "convolution" in BLOCKS["figure"](course, "roofline")


def test_a_step_without_effect_has_what_it_needs_on_every_page(own_gpu_records):
    needs = {"05_pinned_memory": "a GPU", "06_prefetch_stream": "a GPU", "16_data_parallel": "a second process"}
    for step, need in needs.items():
        for file in ("result.json", "runs/1.json"):
            path = own_gpu_records / GPU / step / file
            result.write_json(path, result.read_json(path) | {"needs": need})
    course = Course(recorded.records(own_gpu_records))
    assert "needs a GPU" in next(row for row in BLOCKS["chapters"](course, "gains").splitlines() if "05_pinned" in row)
    compiled = next(row for row in BLOCKS["chapters"](course, "gains").splitlines() if "13_compile" in row)
    assert re.search(r"\| 13: ~?[\d.]+x .*, 14: ~?[\d.]+x ", compiled)  # the chapter has two steps
    number = BLOCKS["number"](course, "05_pinned_memory")
    assert number.startswith("**No effect on [made-up GPU](../logs/reference/made-up-gpu/README.md): it needs a GPU.**")
    assert "| `05_pinned_memory` |" not in number
    number = BLOCKS["number"](course, "07_small_images")  # 800 images/s after 500
    assert "| `04_multiprocess_loading` |" in number
    assert "06_prefetch_stream" not in number
    assert "**1.60x (" in number
    assert "the images/s of `04_multiprocess_loading`, the last step before it with an effect here, " in number
    assert "| `15_cuda_graphs` |" in BLOCKS["results"](course)  # the last that acts
    shown = course.shown
    assert len(shown.predictions) == len(shown.ladder.rows) - 1 - len(needs)
    [pair] = [(row.before, row.gain.ratio) for row in shown.predictions if row.step == "07_small_images"]
    assert pair == ("04_multiprocess_loading", pytest.approx(1.6, rel=0.01))
    assert "05 pinned memory needs a GPU;" in figures.ladder(shown)[1]


def test_text_out_of_a_record_stays_text(own_gpu_records):
    for path in (own_gpu_records / GPU).glob("*/result.json"):
        notes = ["A <!-- end --> B", "<img src=x>", "[x](../../../etc/hosts)"]
        notes = [f"{path.parent.name} {note}" for note in notes]  # what a run alone notes is on the chapters' pages
        result.write_result(path, replace(result.read_result(path), notes=notes, device="<b>GPU</b> `x`"))
    course = Course(recorded.records(own_gpu_records))
    text = pages.filled(page("00_measuring.md") + CAPTIONS, course)
    assert "The run noted: 02_bigger_batch A &lt;!-- end" in text
    assert pages.filled(text, course) == text
    outside_code = re.sub(r"`[^`\n]*`", "", text)
    assert "<img" not in outside_code
    assert "<b>" not in outside_code
    assert not re.search(r"(?<!\\)\]\(\.\./\.\./\.\./etc", text)


def test_a_folder_without_records_and_a_broken_one_are_refused(tmp_path, own_cpu_record):
    with pytest.raises(InputError, match="no recorded ladder"):
        recorded.records(tmp_path / "none")
    (own_cpu_record / "01_amp" / "result.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        recorded.records(own_cpu_record.parent)


def test_predicted_memory_stands_beside_what_was_published_and_measured(own_gpu_records):
    names = [name for of, name in page_tables.TABLES if of == "fit"]
    without = Course(recorded.records(own_gpu_records))
    texts = [BLOCKS["table"](without, "fit", name) for name in names]
    assert all(text.startswith("*Not recorded: `python -m tools.docs.gpu_memory`") for text in texts)
    environment = without.shown.ladder.baseline.environment
    sizes = dict.fromkeys(KINDS, 0) | {"activations": 2_259_000_000}
    settings = ("mobilenet_v2", 224, 32, "float32", 2_259_000_000, sizes, 2_400_000_000)
    one = Prediction("00_baseline", [], *settings, largest={str(GPUS["T4"]): 199})
    own = replace(one, program=None, words=["--model", "resnet50"], largest={str(GPUS["T4"]): 7})
    fit = gpu_memory.Fit(1, CONTEXT_BYTES, [one, own], {"01_amp": "why <b>"}, environment, "")
    result.write_json(own_gpu_records / gpu_memory.FILE, asdict(fit))
    course = Course(recorded.records(own_gpu_records))
    assert "| `00_baseline` | allocated | 2.51 | 2.26 | -10.0% | 2.26 |" in BLOCKS["table"](course, "fit", "published")
    assert "| `01_amp` | allocated | 1.32 | - | not predicted | - |" in BLOCKS["table"](course, "fit", "published")
    assert "Allocated at the peak on made-up GPU" in BLOCKS["table"](course, "fit", "measured")
    assert "| `00_baseline` | 2.51 | 2.26 | -10.0% |" in BLOCKS["table"](course, "fit", "measured")
    assert "| `00_baseline` | 32 | float32 | 2.26 |" in BLOCKS["table"](course, "fit", "programs")
    assert "`01_amp` is not predicted: why &lt;b>." in BLOCKS["table"](course, "fit", "programs")
    assert "| `00_baseline` | 199 |" in BLOCKS["table"](course, "fit", "largest")
    for name, row, batch in (("00_baseline", "00_baseline", 199), ("fit", "fit --model resnet50", 7)):
        largest = BLOCKS["table"](course, "fit", "largest", name)
        assert f"| `{row}` | float32 | 32 | 2.95 | {batch} |" in largest
        assert largest.count("\n") == 2
    of_cpu = Course([shown for shown in course.records if shown.folder.name == CPU_RECORD])
    assert "No GPU has been recorded yet" in BLOCKS["table"](of_cpu, "fit", "measured")


def test_a_missing_trace_is_reported(own_cpu_record, capsys):
    next((own_cpu_record / "01_amp").glob("*.gz")).unlink()
    course = Course(recorded.records(own_cpu_record.parent))
    assert "01_amp" not in course.shown.analyses
    assert "01_amp" in capsys.readouterr().err


def test_a_figure_that_a_record_cannot_give_has_a_sentence_in_its_place(course, gpu_course):
    for name, draw in figures.FIGURES.items():
        for shown in (course, gpu_course):
            text = BLOCKS["figure"](shown, name)
            assert text.startswith("![" if draw(shown.shown) else "*No ")


def test_a_row_for_each_machine_and_one_marked_as_others(gpu_course):
    rows = BLOCKS["results"](replace(gpu_course, to_logs="logs/reference")).splitlines()[2:]
    assert len(rows) == len(gpu_course.records) + 1
    assert rows[0].startswith("| made-up GPU |")
    assert "(logs/reference/made-up-gpu/README.md)" in rows[0]
    for shown, row in zip(gpu_course.records, rows, strict=False):
        gained = [one for one in shown.ladder.rows if one.gain and one.gain.low > 1]
        assert f"`{gained[-1].result.step}` | {gained[-1].relative}" in row
    assert "others'" in rows[-1]
    assert f"{PUBLISHED['05_pinned_memory'].relative:.2f}x" in rows[-1]


@pytest.fixture
def of_lab(tmp_path):
    """What the pages show of a lab with a small study."""
    environment = result.read_results(ROOT / "logs" / "reference" / CPU_RECORD)[0][0].environment
    rows = [{"workers": 0, "speed": None}, {"workers": 2, "speed": asdict(Ratio(1.5, 1.2, 1.8, 3))}]
    claims = [
        Claim("faster", "It is <b>faster</b>", 1.5, 1.2, 1.8, True, published="2x"),
        Claim("other", "Another", None, None, None, None, "a GPU"),
    ]
    study = Study(
        name="mine", lab="mine", device="A CPU", environment=environment, started="2026-01-01",
        tables={"workers": rows}, claims=claims, quick=True, notes=["no GPU: nothing waits"],
    )  # fmt: skip
    (tmp_path / "labs" / "mine").mkdir(parents=True)
    result.write_json(tmp_path / "labs" / "mine" / FILE, asdict(study))
    return Course([Recorded(tmp_path / "a-cpu", None)], to_docs="../")


def test_a_labs_tables_claims_notes_machine_and_figures_come_from_its_study(of_lab):
    assert BLOCKS["table"](of_lab, "labs/mine", "workers").splitlines() == [
        "| workers | speed |", "|--:|--:|", "| 0 | - |", "| 2 | 1.50x (1.20-1.80) |",
    ]  # fmt: skip
    assert BLOCKS["table"](of_lab, "labs/mine", "snapshots") == "*Not measured on this device.*"
    claims = BLOCKS["table"](of_lab, "labs/mine", "claims")
    assert "<b>" not in claims
    assert "| 2x | 1.5 (1.2 to 1.8) | holds |" in claims
    assert "| - | - | not testable here: needs a GPU |" in claims
    two = BLOCKS["table"](of_lab, "labs/mine", "claims", "faster", "other")
    assert two.splitlines()[0].endswith(" (published: 2x): **1.5 (1.2 to 1.8)**; holds.")
    assert two.splitlines()[1] == "- Another: not testable here: needs a GPU."
    assert BLOCKS["table"](of_lab, "labs/mine", "notes") == "- No GPU: nothing waits."
    assert "A CPU, 2 CPU cores, torch 2.15.0+cu132. A smoke run" in BLOCKS["machine"](of_lab, "labs/mine")
    assert BLOCKS["figure"](of_lab, "labs/mine", "curves", "lines") == "*No figure: this was not measured.*"


@pytest.mark.parametrize("lab", sorted(path.stem for path in (DOCS / "labs").glob("*.md")))
def test_every_figure_of_a_labs_page_is_drawn_from_its_recorded_tables(lab):
    marks = re.findall(r"<!-- begin figure labs/(.+?) -->", page(f"labs/{lab}.md"))
    course = Course(recorded.records())
    shown = [BLOCKS["figure"](course, *f"labs/{mark}".split()) for mark in marks]
    drawn = [text for text in shown if text != "*No figure: this was not measured.*"]  # as where a record is older
    assert all(text.startswith("![") for text in drawn)
    assert [len(draw().axes) > 0 for draw in course.figures.values()] == [True] * len(drawn)
