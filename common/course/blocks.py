"""What stands between `<!-- begin NAME … -->` and `<!-- end -->` in the docs: from recorded runs and steps' files."""

import ast
import difflib
from dataclasses import dataclass

from common.course import figures, screenshots, study_blocks
from common.course.recorded import Recorded
from common.errors import InputError
from common.explain.terminal import size_text, time_text
from common.ladder import markdown, runner
from common.ladder import published as published_figures
from common.ladder.markdown import code, escaped
from common.machine import ROOT

FOOT = "*From `logs/reference/`: tables and figures by `make docs-figures`, screenshots by `make docs-screenshots`.*"
UNSTEADY = 1.5  # times the shortest traced step: a longer one was disturbed
SHOWN = 5  # operators, kernels and holders of memory that a table lists


@dataclass(frozen=True)
class Course:
    """What blocks are made from: all records, the first being the one that the chapters show.

    to_docs, to_logs: the way from the page to `docs/`, with its slash, and to the records: `docs/`'s own pages' first.
    """

    records: list[Recorded]
    to_docs: str = ""
    to_logs: str = "../logs/reference"

    @property
    def shown(self):
        return self.records[0]


def machine(course):
    """Which machine the page's figures are from, and what that means where it is a CPU."""
    base = course.shown.ladder.baseline
    cores = f"{base.environment.cores} CPU cores"
    where = (
        f"{escaped(base.device)}, {cores}, {escaped(base.model)} at {base.image_size} px, {course.shown.run_count} runs"
    )
    if base.device_type == "cuda":
        of_theirs = f"*The original's* are from a {published_figures.DEVICE}: one run, from traced steps."
        return f"> Measured figures on this page: {where}. {of_theirs}"
    return (
        f"> **No GPU has been recorded yet.** Measured figures on this page are a CPU's ({where}) and say what a CPU "
        "can say; what is said of a GPU's trace is what to expect, not what we saw. GPU figures are *the original's*: "
        f"published for a {published_figures.DEVICE}, one run, no spread, from traced steps, not ours. "
        "`python -m common record` on a GPU fills these pages."
    )


def recorded_on(course):
    """Beside the README's figure: what it was recorded on, and that a CPU's ladder shows no more than it can."""
    base = course.shown.ladder.baseline
    record = f"[{escaped(base.device)}]({course.to_logs}/{course.shown.folder.name}/README.md)"
    told = f"Recorded on {record}, {base.environment.cores} CPU cores, {course.shown.run_count} interleaved runs a step"
    told = f"{told}; drawn by `make docs-figures`."
    if base.device_type == "cuda":
        return told
    return (
        f"{told} On a CPU most steps have nothing to act on, and the figure says so. The bars on the right are the "
        "original's: published, one run, not measured by us."
    )


def diff(course, before, after):
    """What changes from one step's code to the next, docstrings aside."""
    files = {file.stem: file for file in runner.step_files()}
    try:
        old, new = (_code(files[step]) for step in (before, after))
    except KeyError as error:
        raise InputError(f"there is no step {error}") from error
    lines = list(difflib.unified_diff(old, new, f"steps/{before}.py", f"steps/{after}.py", lineterm="", n=1))
    lines = [line for line in lines if not line.startswith("@@")] if len(lines) < 12 else lines
    return "\n".join(["```diff", *lines, "```", "", f"[The whole of it](../steps/{after}.py)."])


def number(course, step):
    """What a step gained over the one before: the recorded rows of both, the range, and the original's figures."""
    shown = course.shown
    if step not in shown.steps:
        return f"`{step}` has not been recorded."
    at = shown.steps.index(step)
    rows = shown.ladder.rows[max(0, at - 1) : at + 1]
    cells = [markdown.measured(row, shown.runs.get(row.result.step), shown.limit) for row in rows]
    heads = [*markdown.MEASURED, *([markdown.OF_THE_FLOOR] if shown.limit else [])]
    parts = [markdown.table(heads, cells), _gained(rows), published(course, step)]
    return "\n\n".join(part for part in parts if part)


def _gained(rows):
    """In words: the gain of the last of one or two rows, and what its run noted that the row before did not."""
    said, row = [], rows[-1]
    if gain := row.gain:
        what = "faster" if gain.low > 1 else "slower" if gain.high < 1 else "no difference that the windows can tell"
        said.append(
            f"On {escaped(row.result.device)}: {gain.ratio:.2f} times the images/s of the step before, between "
            f"{gain.low:.2f} and {gain.high:.2f} by the windows' ranges: **{what}**."
        )
    known = rows[0].result.notes if len(rows) > 1 else []
    said += [f"The run noted: {escaped(note)}." for note in row.result.notes if note not in known]
    return " ".join(said)


def published(course, step):
    """The original's figures for a step and the one before."""
    names = list(published_figures.PUBLISHED)
    if step not in names:
        return "The original has no such step."
    now, at = published_figures.PUBLISHED[step], names.index(step)
    told = f"The original ({published_figures.DEVICE}, one run, no spread, traced steps): {now.images_per_second:.1f} images/s"
    if not at:
        return f"{told}, {now.step_ms:.1f} ms a step, {now.memory_gb:.2f} GB."
    was = published_figures.PUBLISHED[names[at - 1]]
    return (
        f"{told} after {was.images_per_second:.1f}, {now.images_per_second / was.images_per_second:.2f} times; "
        f"{now.memory_gb:.2f} GB after {was.memory_gb:.2f}."
    )


def profile(course, step):
    """What a step's trace says: where a mean step's time goes, and the advice."""
    summary = _summary(course, step)
    if summary is None:
        return f"The trace of `{step}` cannot be read."
    parts, total = summary.steps.mean_breakdown_us, summary.steps.mean_us
    rows = [
        [role, time_text(us), f"{us / total:.1%}"]
        for role, us in sorted(parts.items(), key=lambda part: -part[1])
        if us > 0
    ]
    lines = [
        f"`python -m common explain {_path(course, step)}` says of {len(summary.steps.names)} traced steps:",
        "",
        markdown.table(["of a mean step", ">time", ">share"], rows),
        "",
        _beside_the_clock(course, step),
        "",
    ]
    for gpu in summary.gpus:
        shares = {"busy": gpu.utilization, "SMs at work": gpu.sm_efficiency, "Tensor Cores": gpu.tensor_core_share}
        known = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share is not None)
        lines += [f"GPU {gpu.id}: {known}.", ""]
    lines += [f"**{escaped(summary.verdict)}.**", ""]
    for each in summary.advice:
        bound = "gain unknown" if each.predicted_gain is None else f"at most {each.predicted_gain:.2f} times as fast"
        lines.append(
            f"- {each.title} ({f'`{each.step}`' if each.step else 'beyond the steps'}): {bound}; {escaped(each.why)}."
        )
    return "\n".join(lines)


def _beside_the_clock(course, step):
    """What the traced steps took, beside those that were timed without the profiler, and whether they were alike."""
    traced, timed = _summary(course, step).steps, course.shown.row(step).result.step_ms
    shortest, longest = traced.duration.min(), traced.duration.max()
    told = f"Traced, a step took {time_text(traced.mean_us)} ({time_text(shortest)} to {time_text(longest)}); "
    told += f"timed, without the profiler, {time_text(timed.median * 1e3)}."
    if longest > UNSTEADY * shortest:
        told += " The traced steps differ so much that something else was running: read shares here, not lengths."
    return told


def change(course, before, after):
    """Two steps' traces side by side, µs an image: the parts of a mean step."""
    if _summary(course, before) is None or _summary(course, after) is None:
        return "One of the two traces cannot be read."
    parts = figures.per_image_ms(course.shown)
    roles = [role for role in parts[before] if parts[before][role] > 0 or parts[after][role] > 0]
    rows = [[role, f"{parts[before][role]:.3f}", f"{parts[after][role]:.3f}"] for role in roles]
    rows.append(["all", f"{sum(parts[before].values()):.3f}", f"{sum(parts[after].values()):.3f}"])
    return markdown.table(["ms an image, traced", f">`{before}`", f">`{after}`"], rows)


def busiest(course, step):
    """What ran longest in a step's trace: kernels, or on a CPU operators."""
    summary = _summary(course, step)
    if summary is None:
        return f"The trace of `{step}` cannot be read."
    found, what = (summary.kernels, "kernel") if summary.kernels else (summary.operators, "operator on the CPU")
    count = len(summary.steps.names)
    total = sum(each.us for each in found)
    rows = [
        [code(each.name, 70), str(each.count), time_text(each.us), f"{each.us / total:.1%}"] for each in found[:SHOWN]
    ]
    return markdown.table([what, f">count, {count} steps", f">time, {count} steps", ">share"], rows)


def holders(course, step):
    """Who held the memory at the peak of a step's trace."""
    summary = _summary(course, step)
    if summary is None or not summary.memory:
        return f"The trace of `{step}` tells nothing of memory."
    held = summary.memory[0].at_peak
    total = sum(held.values())
    rows = [[code(name, 60), size_text(size), f"{size / total:.1%}"] for name, size in held.items()][:SHOWN]
    return markdown.table(["allocated while tracing, alive at the peak", ">bytes", ">share"], rows)


def transfers(course):
    """What a batch of each step is made of, and what its trace saw crossing to the device."""
    rows = []
    for row in course.shown.ladder.rows:
        result, summary = row.result, course.shown.summaries.get(row.result.step)
        h2d = summary.copies["h2d"] if summary else None
        crossing = "no copy" if not h2d or not h2d.count else size_text(summary.step_bytes)
        speed = f"{h2d.gigabytes_per_second:.1f} GB/s" if h2d and h2d.gigabytes_per_second else "-"
        each = size_text(result.batch_bytes / result.batch_size)
        rows.append([f"`{result.step}`", str(result.batch_size), size_text(result.batch_bytes), each, crossing, speed])
    return markdown.table(["step", ">batch", ">a batch holds", ">an image", ">a step copies", ">bandwidth"], rows)


def figure(course, name):
    """One of `figures.FIGURES`, of the record that the chapters show."""
    made = figures.FIGURES[name](course.shown)
    file = f"{course.to_docs}figures/{course.shown.folder.name}/{name}.svg"
    return f"![{escaped(made[1])}]({file})" if made else f"*{NOTHING[name]}*"


def screenshot(course, name):
    """One of the pictures of TensorBoard that `screenshots` took."""
    return f"![{escaped(screenshots.told(name))}]({course.to_docs}screenshots/{name}.png)"


NOTHING = {  # what stands in a figure's place where the record cannot tell it
    "idle": "No figure of why the GPU waits: no GPU has been recorded.",
    "memory": "No figure of memory: the traces do not tell.",
    "roofline": "No roofline: `python -m common limit` has not been recorded.",
    "ablation": "No figure of effects: `python -m common ablate` has not been recorded.",
    "sweep": "No heat map: `python -m common sweep` has not been recorded.",
}


def ladders(course):
    """The table of every record."""
    lines = []
    for each in course.records:
        lines += [f"### {escaped(figures.ladder_title(each.ladder))}", ""]
        lines += [
            markdown.ladder_table(each.ladder, each.runs, each.limit),
            "",
            f"[The record]({course.to_logs}/{each.folder.name}/README.md).",
            "",
        ]
    return "\n".join(lines).rstrip()


def original_ladder(course):
    """The original's table, as published."""
    rows = [
        [
            f"`{step}`",
            str(p.batch_size),
            f"{p.memory_gb:.2f}",
            f"{p.step_ms:.1f}",
            f"{p.images_per_second:.1f}",
            f"{p.relative:.2f}x",
        ]
        for step, p in published_figures.PUBLISHED.items()
    ]
    return markdown.table(["step", ">batch", ">memory GB", ">step ms", ">images/s", ">vs baseline"], rows)


def published_tensor_cores(course):
    """What the original saw of Tensor Cores."""
    before, after = published_figures.TENSOR_CORES.values()
    return f"The original saw their share of the kernels' time go from {before:.0%} to {after:.1%} ({published_figures.DEVICE})."


def published_workers(course):
    """How loading saturated in another study, as published: see `published_figures.WORKERS`."""
    rows = [
        [str(workers), *(f"{value:g}" for value in values)] for workers, values in published_figures.WORKERS.items()
    ]
    table = markdown.table([">workers", ">ms to load", ">ms a step", ">s an epoch"], rows)
    return f"{table}\n\n*ResNeXt on CIFAR-10, batch 128, one A100, as published; not measured here.*"


def limit(course):
    """The part of each traced step in which the device computes, and the most that hiding all the rest could give."""
    rows = []
    for step, parts in figures.per_image_ms(course.shown).items():
        whole = sum(parts.values())
        computing = parts["kernel"] or parts["cpu_exec"]
        most = f"{whole / computing:.2f}x" if computing else "-"
        rows.append([f"`{step}`", f"{whole:.3f}", f"{computing:.3f}", most])
    what = "kernels run" if course.shown.device_type == "cuda" else "operators run on the CPU"
    return markdown.table(["step", ">ms an image, traced", f">of it {what}", ">at most, all else hidden"], rows)


def foot(course):
    """Where the page's tables and figures come from."""
    return FOOT


BLOCKS = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(machine, recorded_on, diff, number, published, profile, change, busiest, holders, transfers, limit),
        *(figure, screenshot, ladders, original_ladder, published_workers, published_tensor_cores, foot),
        *study_blocks.BLOCKS,
    )
}  # fmt: skip


def _summary(course, step):
    return course.shown.summaries.get(step)


def _path(course, step):
    folder = course.shown.folder / step
    return folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else f"{folder.parent.name}/{step}"


def _code(file):
    """A program's lines without its docstring."""
    text = file.read_text(encoding="utf-8")
    end = ast.parse(text).body[0].end_lineno
    return text.splitlines()[end:]
