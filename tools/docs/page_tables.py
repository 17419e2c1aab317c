"""The tables of the pages: of labs, the ladder, samples, studies and predicted GPU memory, from what was recorded."""

from collections.abc import Callable, Mapping
from functools import partial

from studies.study import title
from tools.docs import effects, gpu_memory, others, profiler_tab, sample_roofline, strips
from tools.docs.recorded import Course
from walkthrough.compare.figures import ladder_title
from walkthrough.compare.ladder import DEVICE, PUBLISHED, SOURCE, intervals, page_table, summary, warnings_of
from walkthrough.compare.study import Study
from walkthrough.compare.table import Table, code, escaped, markdown_table
from walkthrough.records import samples
from walkthrough.results.errors import InputError


def _ladders(course: Course) -> str:
    """The table of every record."""
    parts = []
    for recorded in course.records:
        parts += [
            f"### {escaped(ladder_title(recorded.ladder))}",
            page_table(recorded.ladder, recorded.limit),
            *map(escaped, warnings_of(recorded.ladder)),
            f"**{escaped(summary(recorded.ladder))}** {intervals(recorded.ladder)}",
            f"[The record]({course.to_logs}/{recorded.folder.name}/README.md).",
        ]
    return "\n\n".join(parts)


def _original(course: Course) -> str:
    """The original's table, as published."""
    rows = [
        [
            f"`{step}`",
            str(row.batch_size),
            f"{row.memory_gb:.2f}",
            f"{row.step_ms:.1f}",
            f"{row.images_per_second:.1f}",
            f"{row.relative:.2f}x",
        ]
        for step, row in PUBLISHED.items()
    ]
    base = next(iter(PUBLISHED.values())).images_per_second
    quotients = {row.relative: row.images_per_second / base for row in PUBLISHED.values()}
    other = [f"{quotient:.2f}" for relative, quotient in quotients.items() if f"{quotient:.2f}" != f"{relative:.2f}"]
    table = markdown_table(["step", ">batch", ">memory GB", ">step ms", ">images/s", ">vs baseline"], rows)
    return (
        f"{table}\n\n*As [published]({SOURCE}): {DEVICE}, 224 px, one run, no spread, from traced steps. Quotients of "
        f"its images/s that are others: {', '.join(other)}.*"
    )


def _samples(course: Course) -> str:
    """The published traces that `samples` fetches: what, whose, and under which licence."""
    every = samples.read_list()
    rows = [
        [
            f"`{sample.name}`",
            sample.gpu,
            escaped(sample.what),
            f"[{escaped(sample.source)}]({sample.address}), [{licence.name}]({licence.address})",
        ]
        for sample in every.samples
        for licence in [every.licences[sample.source]]
    ]
    return markdown_table(["folder", "GPU", "what", "from, licence"], rows)


def _of_samples(values: Mapping[str, Mapping[str, float]], what: str) -> str:
    """ms of a step, a column for each sample, a row for each part that is worth one, the longest first."""
    parts = sorted({part for us in values.values() for part in us}, key=lambda part: -max(_all(values, part)))
    rows = [[part, *(f"{us / 1e3:.1f}" for us in _all(values, part))] for part in parts if max(_all(values, part)) > 50]
    rows.append(["all", *(f"{sum(us.values()) / 1e3:.1f}" for us in values.values())])
    return markdown_table([what, *(f">{name}" for name in values)], rows)


def _all(values: Mapping[str, Mapping[str, float]], part: str) -> list[float]:
    return [us.get(part, 0.0) for us in values.values()]


def _idle(course: Course, *names: str) -> str:
    """Why the GPU runs no kernel in a typical step of samples, by cause."""
    idle = others.read_samples().idle
    return _of_samples({code(name): idle[name] for name in names}, "ms without a kernel, a typical step")


def _kernels(course: Course, *names: str) -> str:
    """The kernels of some of `others.STRETCHES` by group."""
    stretches = others.read_samples().stretches
    values = {
        others.STRETCHES[name].title + (", predicted" if stretches[name].change else ""): {
            group: stretches[name].us_of.get(group, 0.0) for group in stretches[name].lanes[strips.KERNELS]
        }
        for name in names
    }
    return _of_samples(values, "ms of kernels")


def _utilization(course: Course, *names: str) -> str:
    """Of some of `others.STRETCHES` whose images are known: ms per image with and without a kernel, and images/s."""
    stretches, rows = others.read_samples().stretches, []
    for name in names:
        shown, stretch = others.STRETCHES[name], stretches[name]
        ms, busy = stretch.us / 1e3 / shown.images, stretch.busy
        title = f"{shown.title}, predicted" if stretch.change else shown.title
        figures = (f"{ms * busy:.2f}", f"{ms * (1 - busy):.2f}", f"{busy:.0%}", f"{1e3 / ms:.0f}")
        rows.append([code(shown.sample), title, *figures])
    headers = ["sample", "what", ">*k*, ms per image", ">*i*, ms per image", ">utilization", ">images/s"]
    return markdown_table(headers, rows)


def _work(course: Course, of: str, *names: str) -> str:
    """How often samples do some work in a typical step, and how long it takes. of: "layout" or "optimizer"."""
    listed, known = samples.read_list().by_name, others.read_samples().work
    rows = []
    for name in names:
        values = [known[name][part] for part in _PARTS[of]]
        texts = [strips.ms(us) if count == 1 else f"{count:.0f}: {strips.ms(us)}" for count, us in values]
        rows.append(
            [
                code(name),
                escaped(listed[name].gpu),
                *(text if us else "-" for text, (_, us) in zip(texts, values, strict=True)),
            ]
        )
    table = markdown_table(["sample", "GPU", *(f">{part}" for part in _PARTS[of])], rows)
    source = f"traces that others published, see [samples]({course.to_docs}samples.md)"
    return f"{table}\n\n*Per typical step, how many and how long: {source}.*"


def _timers(course: Course, *names: str) -> str:
    """What a timer without a synchronisation shows in samples, and what the GPU does; see `others.Timers`."""
    listed, known, rows = samples.read_list().by_name, others.read_samples(), []
    for name in names:
        timers = known.timers[name]
        of = f"{code(name)}, {escaped(listed[name].gpu)}"
        for what, us in (
            ("timer, first step", timers.first),
            ("timer, last step", timers.last),
            ("GPU's kernels, mean", timers.kernels),
        ):
            *parts, step = us
            rows.append([of, what, *(f"{part / 1e3:.1f}" for part in (*parts, sum(parts), step))])
            of = ""
    *parts, step = others.TIMERS
    table = markdown_table(["sample, GPU", "ms of", *(f">{part}" for part in (*parts, "all three", step))], rows)
    queued = " and ".join(f"{known.timers[name].queued:,}" for name in names)
    return (
        f"{table}\n\n*Timer: what a clock on the CPU shows that does not synchronise. The step: until its last kernel "
        f"has ended. At most {queued} kernels and copies wait in the queue. Traces that others published, see "
        f"[samples]({course.to_docs}samples.md).*"
    )


def _waits(course: Course, *names: str) -> str:
    """How long the CPU waits for the GPU in samples, and how long the GPU is idle because of that."""
    listed, known = samples.read_list().by_name, others.read_samples()
    rows = [
        [
            code(name),
            escaped(listed[name].gpu),
            f"{known.waits[name].step_us / 1e3:,.1f}",
            f"{known.waits[name].waits.count:.0f}",
            f"{known.waits[name].waits.us / 1e3:.1f}",
            f"{known.waits[name].waits.idle_us / 1e3:.1f}",
        ]
        for name in names
    ]
    heads = [">a step, ms", ">waits for the GPU", ">the CPU waits, ms", ">no kernel because of that, ms"]
    return markdown_table(["sample", "GPU", *heads], rows)


def _replayed(course: Course, name: str) -> str:
    """How long a step of a sample takes by a replay without some of its waits."""
    of = others.read_samples().replayed[name]
    rows = [
        [what, f"{us / 1e3:,.0f}", f"{of['none'] / us:.2f}x"]
        for what, us in sorted(of.items(), key=lambda part: -part[1])
    ]
    table = markdown_table(["which waits are removed", ">a step, ms", ">times as fast"], rows)
    return f"{table}\n\n*Predicted by `explain`'s replay of `{name}`, not measured.*"


_PARTS = {
    "layout": (strips.CONVERTING, strips.CORES, strips.PLAIN),
    "optimizer": ("Optimizer.step on the CPU", "kernels of the optimizer"),
}
COMMANDS = {"limit": "limit", "input": "limit --input", "ablation": "ablate", "overhead": "overhead", "sweep": "sweep"}


def stored(course: Course, name: str, of: str, part: str = "") -> str:
    """A table of a study and what follows from it; with its first table what it was measured with, and its notes.

    part: "table" or "text" for one of the two. Raises InputError for an unknown table.
    """
    result = course.shown.study(name)
    if result is None:
        return _not_recorded(course, name)
    if of not in result.tables:
        raise InputError(f"there is no table {of} of {name}")
    sentences = result.conclusions.get(of, ())
    if part == "text":
        return "\n\n".join(map(escaped, sentences))
    parts = [Table(of, result.tables[of], () if part == "table" else sentences).markdown()]
    if of == next(iter(result.tables)):
        parts = [f"{escaped(title(result))}.", *parts, *map(sentence_of, result.notes)]
    return "\n\n".join([*parts, course.measured_again])


def _not_recorded(course: Course, name: str) -> str:
    device = escaped(course.shown.ladder.baseline.device)
    return f"*Not recorded on {device}: `walkthrough {COMMANDS[name]}`.*"


def _of_ablation(block: Callable[[Course, Study], str], course: Course) -> str:
    result = course.shown.study("ablation")
    return _not_recorded(course, "ablation") if result is None else block(course, result)


def sentence_of(note: str) -> str:
    """A note of a study, for a page."""
    return f"{escaped(note[0].upper() + note[1:])}."


TABLES: dict[tuple[str, str], Callable[..., str]] = {
    ("ladder", "all"): _ladders,
    ("ablation", "answer"): partial(_of_ablation, effects.answer),
    ("ablation", "effects"): partial(_of_ablation, effects.table),
    ("predicted", "ladders"): effects.outcomes,
    ("predicted", "others"): lambda course: others.pairs_table(others.read_pairs()),
    ("published", "ladder"): _original,
    ("samples", "list"): _samples,
    ("samples", "idle"): _idle,
    ("samples", "kernels"): _kernels,
    ("samples", "utilization"): _utilization,
    ("samples", "work"): _work,
    ("samples", "timers"): _timers,
    ("samples", "waits"): _waits,
    ("samples", "replayed"): _replayed,
    ("samples", "roofline"): lambda course: sample_roofline.table(others.read_samples().roofline),
    ("profiler", "release"): lambda course: profiler_tab.table(profiler_tab.read()),
    ("fit", "programs"): gpu_memory.programs_table,
    ("fit", "published"): gpu_memory.published_table,
    ("fit", "measured"): gpu_memory.measured_table,
    ("fit", "largest"): gpu_memory.largest_table,
}
