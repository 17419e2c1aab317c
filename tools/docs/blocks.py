"""What is between `<!-- begin NAME … -->` and `<!-- end -->` in the docs, from recorded runs and the programs' files.

A block is a function of a `Course` and of the words after its name; it returns Markdown.
"""

import ast
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from tools.docs import figures, mysteries, others, screenshots, strips
from tools.docs.page_tables import COMMANDS, TABLES, sentence_of, stored
from tools.docs.recorded import Course
from walkthrough.compare.ladder import DEVICE, MODEL, PAIRS, PUBLISHED, SOURCE, page_table
from walkthrough.compare.rounds import Comparison, half_spread
from walkthrough.compare.rounds import Row as LadderRow
from walkthrough.compare.statistics import Mean
from walkthrough.compare.study import Claim, claim_rows
from walkthrough.compare.table import Table, escaped, markdown_table
from walkthrough.compare.tour import step_files
from walkthrough.records import samples
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError


def machine(course: Course, of: str = "") -> str:
    """Which machine the course's numbers are from; of: "labs/NAME" or "mysteries", else those of the ladder."""
    if of == "mysteries":
        return mysteries.machine()
    if of:
        return _of_lab(course, of)
    text = f"The measured tables and figures of the course are from one machine, {course.machine}"
    if course.shown.device_type == "cuda":
        return f"{text}; *the original's* are from a {DEVICE}: one run, no spread, from traced steps."
    return (
        f"{text}: a line below each table says so, what the text says about a GPU's trace is cited or marked as "
        "expected, and `walkthrough record` on a GPU adds measured ones."
    )


def _of_lab(course: Course, name: str) -> str:
    study = course.lab(name.removeprefix("labs/"))
    if study is None:
        return _not_recorded(name)
    smoke = " A smoke run (`--quick`): its figures are rough." if study.quick else ""
    gpu = "" if study.environment.driver else " No GPU recorded yet."
    return (
        f"*Measured: {escaped(study.device)}, {study.environment.cores} CPU cores, torch "
        f"{escaped(study.environment.torch)}.{smoke}{gpu} Published: by others, on other machines. "
        f"In brackets: 95 % intervals; `~`: [no measurable difference]({course.to_docs}glossary.md#resolved).*"
    )


def _not_recorded(lab: str) -> str:
    return f"*Not recorded yet: `python {escaped(lab)}/study.py`.*"


def figure(course: Course, name: str, table_name: str = "", form: str = "", column: str = "") -> str:
    """One of `figures.FIGURES` of the record that the chapters show; "fit"; or a table of "labs/NAME" in a form of
    `figures.FORMS`, of which a column may be named, with "-" for its spaces.
    """
    if name == "fit":
        drawing = figures.gpu_memory(course.fit) if course.fit else None
        return course.picture("gpu_memory", drawing[1], drawing[0]) if drawing else "*Not recorded: `fit`.*"
    if not table_name:
        drawing = figures.FIGURES[name](course.shown)
        if drawing is None:
            return f"*No figure: this was not recorded on {escaped(course.shown.ladder.baseline.device)}.*"
        return course.picture(f"{course.shown.folder.name}/{name}", drawing[1], drawing[0])
    study = course.lab(name.removeprefix("labs/"))
    if study is None:
        return _not_recorded(name)
    tables = {key: rows for key, rows in study.tables.items() if key.startswith(table_name) and rows}
    if not tables:
        return "*No figure: this was not measured.*"
    draw, alt = figures.of_tables(tables, table_name, form, column.replace("-", " "))
    return course.picture(f"{name}/{table_name}", alt, draw)


def strip(course: Course, before: str, after: str = "", words: str = "") -> str:
    """A stretch of a real trace, or two on one scale: of `others.STRETCHES`, or of steps of the record.

    words: "explained" puts what `explain` says of the first between the two, or below the only one; "apart": they are
    two programs.
    """
    if after == "explained":
        after, words = "", after
    names = [name for name in (before, after) if name]
    shown = [_stretch(course, name) for name in names]
    heads = ["before", "after"] if after and words != "apart" else [""] * len(names)
    titled = [
        (one, f"{head}{', predicted' if one.change else ''}: {title}".removeprefix(": "))
        for head, (one, title, _) in zip(heads, shown, strict=True)
    ]
    says: list[str] = []
    if words == "explained":
        sample = others.STRETCHES[before].sample
        says = [f"$ walkthrough explain logs/samples/{sample}", *others.read_samples().says[sample]]
    draw = (
        partial(strips.before_after, titled[0], titled[-1], says) if after else partial(strips.strip, *titled[0], says)
    )
    parts = [
        f"{title}: {strips.facts(one)}" + (f", {kernels}" if (kernels := strips.kernels_in_words(one)) else "")
        for one, title in titled
    ]
    sentences = [part.rstrip(".") for part in (*parts, *says)]
    alt = f"What CPU, copies and kernels do, in lanes over time. {'. '.join(sentences)}."
    sources = list(dict.fromkeys(source for *_, source in shown))
    if any(one.change for one, *_ in shown):
        first, last = shown[0][0], shown[-1][0]
        sources.append(
            f"Predicted by `explain`'s replay, not measured: {strips.ms(last.step_us)} after "
            f"{strips.ms(first.step_us)}."
        )
    return (
        f"{course.picture('strips/' + '-'.join([*names, *filter(None, [words])]), alt, draw)}\n\n*{' '.join(sources)}*"
    )


def _stretch(course: Course, name: str) -> tuple[strips.Stretch, str, str]:
    """What a strip shows, its title, and the sentence about its source."""
    if name in others.STRETCHES:
        wanted = others.STRETCHES[name]
        every = samples.read_list().samples
        sample = next(sample for sample in every if sample.name == wanted.sample)
        commit = re.search(r"/raw/(\w{7})", sample.address)
        source = (
            f"{escaped(sample.gpu)}: {escaped(sample.what)}; [{sample.name}]({sample.address}) of "
            f"{escaped(sample.source)}{f' at {commit[1]}' if commit else ''}."
        )
        return others.read_samples().stretches[name], wanted.title, source
    analysis = course.shown.analyses.get(name)
    if analysis is None:
        raise InputError(f"there is no trace {name!r}; known: {', '.join(others.STRETCHES)}, and recorded steps")
    result = course.shown.row(name).result
    return (
        strips.stretch(analysis),
        f"{name}, batch {result.batch_size}",
        f"`{name}` as recorded on {course.link}, a traced step.",
    )


def screenshot(course: Course, name: str) -> str:
    """One of the pictures of TensorBoard that `screenshots` took, with its caption."""
    return screenshots.markdown(name, course.to_docs)


def diff(course: Course, before: str, after: str) -> str:
    """What changes from one step's code to the next, docstrings aside; or from one mystery's program to the fixed."""
    files = {file.stem: file for file in (*step_files(), *mysteries.PROGRAMS.glob("*.py"))}
    if missing := [name for name in (before, after) if name not in files]:
        raise InputError(f"there is no program {missing[0]}")
    is_step = files[before].parent.name == "steps"
    old, new = (_code_lines(files[name]) for name in (before, after))
    names = (f"{files[name].parent.name}/{name}.py" for name in (before, after))
    lines = list(difflib.unified_diff(old, new, *names, lineterm="", n=1 if is_step else 0))
    if len(lines) < 12 or not is_step:
        lines = [line for line in lines if not line.startswith("@@")]
    whole = ["", f"[The whole program](../steps/{after}.py)."] if is_step else []
    return "\n".join(["```diff", *lines, "```", *whole])


def _code_lines(file: Path) -> list[str]:
    """A program's lines without its docstring."""
    text = file.read_text(encoding="utf-8")
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def source(course: Course, name: str, function: str) -> str:
    """A function of one of the project's files, as it is there. Raises InputError where there is none."""
    file = (ROOT / name).resolve()
    if not file.is_relative_to(ROOT) or not file.is_file():
        raise InputError(f"there is no file {name}")
    text = file.read_text(encoding="utf-8")
    node = next((part for part in ast.parse(text).body if getattr(part, "name", "") == function), None)
    if node is None:
        raise InputError(f"{name} has no {function}")
    lines = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    return f"```python\n{lines}\n```\n\n[The whole file]({course.to_docs}../{name})."


def number(course: Course, step: str) -> str:
    """What a step gained over the last one with an effect: the recorded rows of both, the interval, the original's.

    Of a step without an effect on the device, only what it needs; on a CPU, only the gain.
    """
    shown = course.shown
    if step not in shown.steps:
        return f"`{step}` has not been recorded."
    row, at = shown.row(step), shown.steps.index(step)
    if not row.acts:
        return f"**No effect on {course.link}: it {escaped(row.needs)}.** {_published(step)}"
    rows = [*filter(None, [shown.ladder.before(row)]), row]
    steps = [row.result.step for row in rows]
    skipped = steps[0] if steps[0] != shown.steps[max(0, at - 1)] else ""
    if at and shown.device_type != "cuda":
        return "\n\n".join((_gain(rows, skipped, f" on {course.link}, a CPU"), _published(step)))
    table = page_table(shown.ladder, shown.limit, steps, gains=False)
    return "\n\n".join(filter(None, (table, course.measured, _gain(rows, skipped), _published(step))))


def _gain(rows: Sequence[LadderRow], skipped_to: str, on: str = "") -> str:
    """In words: the gain of the last of one or two rows, and what its run noted that the row before did not.

    skipped_to: the row before, where others lie between them that have no effect on this device; else "". on: " on …",
    the machine, in place of a table that says it.
    """
    sentences, row = [], rows[-1]
    if gain := row.gain:
        verdict = ("faster" if gain.ratio > 1 else "slower") if gain.resolved else "no measurable difference"
        rounds = f"{gain.rounds} rounds" if gain.rounds > 1 else "one round"
        before = f"`{skipped_to}`, the last step before it with an effect here" if skipped_to else "the step before"
        sentences.append(f"**{gain}** the images/s of {before}{on}, with the 95 % interval of {rounds}: {verdict}.")
        sentences += [PAIRS] if gain.rounds > 1 and not on else []
    notes = [note for note in row.result.notes if note not in rows[0].result.notes]  # a single row's are the machine's
    sentences += [f"The run noted: {escaped(note)}." for note in notes]
    return " ".join(sentences)


def _published(step: str) -> str:
    """The original's figures for a step and the one before."""
    steps = list(PUBLISHED)
    if step not in steps:
        return "The original has no such step."
    row, at = PUBLISHED[step], steps.index(step)
    where = f"[{DEVICE}]({SOURCE}), one run, no spread, traced steps"
    text = f"The original ({where}): {row.images_per_second:.1f} images/s"
    if not at:
        return f"{text}, {row.step_ms:.1f} ms per step, {row.memory_gb:.2f} GB."
    before = PUBLISHED[steps[at - 1]]
    return (
        f"{text} after {before.images_per_second:.1f}, {row.images_per_second / before.images_per_second:.2f} times; "
        f"{row.memory_gb:.2f} GB after {before.memory_gb:.2f}."
    )


def explain(course: Course, *names: str) -> str:
    """What `explain` prints of a sample, or of two, as computed into `samples.json`, without some of its parts."""
    known, name = others.read_samples().explain, " ".join(names)
    if name not in known:
        raise InputError(f"what explain says of {name!r} is not in logs/reference/samples.json")
    return f"```text\n{known[name]}```"


CHAPTERS = {  # {chapter: its title in the table; the question is its heading}
    "00_measuring": "Measuring",
    "01_tensor_cores": "Tensor Cores",
    "02_gpu_memory": "GPU memory",
    "03_host_to_device_copy": "Copy less",
    "04_loading": "Workers",
    "05_pinned_memory": "Pinned memory and overlap",
    "08_on_device_data": "No loader at all",
    "09_channels_last": "Memory layout and cuDNN's choice",
    "10_no_hidden_syncs": "No hidden synchronisation",
    "11_fused_optimizer": "Fused optimizer",
    "13_compile": "torch.compile",
    "15_cuda_graphs": "CUDA graphs",
    "16_data_parallel": "Several GPUs",
    "17_the_limit": "The limit",
    "18_which_steps_matter": "Which steps matter",
}


def chapters(course: Course, gains: str = "") -> str:
    """Every chapter with its question and the gain of its step over the step before that was published.

    gains: "gains" adds that of the record.
    """
    published = {
        step[:2]: f"{row.images_per_second / before.images_per_second:.2f}x"
        for (_, before), (step, row) in pairwise(PUBLISHED.items())
    }
    measured = {row.result.step[:2]: str(row.gain) if row.gain else row.needs for row in course.shown.ladder.rows[1:]}
    rows, elsewhere, own = [], list[str](), {name[:2] for name in CHAPTERS}
    for name, title in CHAPTERS.items():
        page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        elsewhere += [f"{step} in {name[:2]}" for step in _steps_on(page) if step not in own]
        question = page.partition("\n")[0].removeprefix(f"# {name[:2]} ")
        gained = [_of_steps(texts, name, page) for texts in ([measured, published] if gains else [published])]
        rows.append([f"[{name[:2]} {title}]({course.to_docs}{name}.md)", question, *gained])
    base = course.shown.ladder.baseline
    here = [f">gain here, {escaped(base.device)}"] if gains else []
    text = (
        f" Here: {escaped(base.model)} at {base.image_size} px, 95 % interval of {course.shown.run_count} runs; `~`: "
        "no measurable difference."
    )
    return (
        f"{markdown_table(['chapter', 'the question', *here, f'>published, {DEVICE}'], rows)}\n\n*Gain over the step "
        f"before.{text if gains else ''} Published: MobileNetV2 at 224 px, one run, no spread, from traced steps "
        f"([source]({SOURCE})). Steps without a chapter of their own: {', '.join(sorted(set(elsewhere)))}.*"
    )


def _steps_on(page: str) -> list[str]:
    """The first two digits of the steps whose numbers a page shows."""
    return re.findall(r"<!-- begin number (\d\d)_", page)


def _of_steps(texts: Mapping[str, str], chapter: str, page: str) -> str:
    """The texts of the steps whose numbers a chapter's page shows, by the steps' first two digits; of several, with
    those.
    """
    steps = _steps_on(page)
    if len(steps) < 2:
        return texts.get(chapter[:2], "")
    return ", ".join(f"{step}: {texts[step]}" for step in steps if step in texts)


def results(course: Course) -> str:
    """A row for each recorded machine, and one for the figures that the original walkthrough published."""
    rows = []
    for recorded in course.records:
        base, last = recorded.ladder.baseline, _last_that_gained(recorded.ladder)
        cores = "" if base.device_type == "cuda" else f", {base.environment.cores} CPU cores"
        rows.append(
            [
                f"{escaped(base.device)}{cores}",
                escaped(f"{base.model}, {base.size_label}"),
                f"{base.samples_per_second.median:,.0f}",
                f"`{last.result.step}`",
                str(last.relative),
                str(recorded.run_count),
                f"[{base.started[:10]}]({course.to_logs}/{recorded.folder.name}/README.md)",
            ]
        )
    step, published = list(PUBLISHED.items())[-1]
    first = next(iter(PUBLISHED.values()))
    original = [f"{DEVICE} *(others')*", f"{MODEL}, 224 px", f"{first.images_per_second:,.0f}", f"`{step}`"]
    rows.append([*original, f"{published.relative:.2f}x", "1", f"[published]({SOURCE}); no spread, from traced steps"])
    speed, gained = ">baseline, images/s", "last step that gained"
    return markdown_table(["machine", "model", speed, gained, ">times the baseline", ">rounds", "recorded"], rows)


def _last_that_gained(ladder: Comparison) -> LadderRow:
    """The last step that is faster than the step before by more than the interval; without any, the last that acts."""
    gained = [row for row in ladder.rows if row.gain and row.gain.resolved and row.gain.ratio > 1]
    return (gained or ladder.acting)[-1]


_PART = r"^{}\s+(.+?)(?=^\S|\Z)"  # of a step's docstring: "Idea       …", with its continuation lines
_OUTCOMES = {
    "within": "and the gain is within the bound",
    "miss": "but the gain is above the bound: what else changed?",
    "cannot tell": "although no bound was known",
}


def log_entry(course: Course, before: str, step: str, test: str) -> str:
    """One entry of the log: what the trace of `before` predicted of `step`, and what was then measured.

    test: the name of the test that compares losses. Raises InputError for an unknown step.
    """
    shown = course.shown
    prediction = next((row for row in shown.predictions if (row.before, row.step) == (before, step)), None)
    advised = shown.advised.get(before)
    if prediction is None or advised is None:
        return f"*Not recorded on {escaped(shown.ladder.baseline.device)}: `{before}` and `{step}`.*"
    result, gain, why = shown.row(step).result, prediction.gain, prediction.why
    evidence = escaped(why[0].upper() + why[1:]) if why else "No advice."
    most, estimate = prediction.predicted_gain, prediction.estimated_gain
    bound = f"at most **{most:.2f}x** the images/s" if most else "the trace cannot tell"
    rounds = f"{gain.rounds} rounds" if gain.rounds > 1 else "one round"
    keep = f"yes: the whole interval is above 1, {_OUTCOMES[prediction.outcome]}" if gain.ratio > 1 else "no: slower"
    if not gain.resolved:
        keep = "not decided: the interval includes 1, so measure more rounds first"
    texts = {
        "Evidence": f"`explain` of `{before}`: {escaped(advised.verdict)}. {evidence}",
        "Hypothesis": docstring_part(step, "Idea"),
        "Bound": bound + (f"; about {estimate:.2f}x by the replay" if estimate else ""),
        "Change": docstring_part(step, "Change"),
        "Before": _speed(shown.row(before)),
        "After": f"{_speed(shown.row(step))}. **{gain}** the step before, 95 % interval of {rounds}",
        "Losses equal?": f"up to rounding: `{test}` holds them to it, step by step",
        "Keep?": keep,
    }
    device, model = escaped(result.device), escaped(result.model)
    head = f"**{result.started[:10]}, `{step}`, {device}, {model}, {result.size_label}**"
    return "\n".join([head, "", *(f"- **{name}**: {text}" for name, text in texts.items())])


def docstring_part(step: str, part: str) -> str:
    """A part of a step's docstring, such as "Idea", in one line. Raises InputError where there is none."""
    files = {file.stem: file for file in step_files()}
    text = ast.get_docstring(ast.parse(files[step].read_text(encoding="utf-8"))) if step in files else ""
    found = re.search(_PART.format(part), text or "", re.DOTALL | re.MULTILINE)
    if not found:
        raise InputError(f"there is no step {step}, or its docstring has no part {part}")
    return escaped(" ".join(found[1].split()))


def _speed(row: LadderRow) -> str:
    result = row.result
    speed = result.samples_per_second.median
    return f"{speed:.0f} images/s (median window; ±{half_spread(result):.0%}), {result.ms_per_step:.1f} ms per step"


def table(course: Course, of: str, name: str, *words: str) -> str:
    """A table: of a lab's study ("labs/NAME"; "claims" are one, "notes" a list), of another study, or of `TABLES`.

    words: of "claims" the ids of some, which are then a list of sentences.
    """
    if (of, name) in TABLES:
        return TABLES[of, name](course, *words)
    if of in COMMANDS:
        return stored(course, of, name, *words)
    if not of.startswith("labs/"):
        raise InputError(f"there is no table {name} of {of}")
    study = course.lab(of.removeprefix("labs/"))
    if study is None:
        return _not_recorded(of)
    if name == "notes":
        return "\n".join(f"- {sentence_of(note)}" for note in study.notes)
    if name == "claims" and words:
        return "\n".join(f"- {said(claim)}" for claim in study.claims if claim.id in words) or "*Not recorded.*"
    rows = claim_rows(study.claims) if name == "claims" else study.tables.get(name)
    return Table(name, rows).markdown() if rows else "*Not measured on this device.*"


def said(claim: Claim) -> str:
    """A claim as a sentence: its text, what was measured, and the verdict."""
    value = "" if claim.value is None else f"**{Mean(claim.value, claim.low, claim.high, 0)}**; "
    published = f" (published: {escaped(claim.published)})" if claim.published else ""
    return f"{escaped(claim.text)}{published}: {value}{escaped(claim.verdict)}."


BLOCKS: dict[str, Callable[..., str]] = {
    block.__name__.replace("_", "-"): block
    for block in (
        *(machine, figure, strip, screenshot, diff, source, number),
        *(mysteries.mystery, explain, chapters, results, log_entry, table),
    )
}
