"""The tables of the pages: of labs, the ladder, samples, studies and predicted GPU memory, from what was recorded."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from labs.memory.published import MEMORY
from labs.shared.study import Row, cell_text
from studies import effects, sweep
from studies import input as input_study
from studies import limit as limit_study
from studies import overhead as overhead_study
from studies.ablation import Ablation
from studies.input import InputLimit
from studies.limit import Limit
from studies.overhead import Overhead
from studies.sweep import Sweep
from tools.docs import others, strips
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.figures import ladder_title
from walkthrough.compare.gpu_memory import CONTEXT_BYTES, KINDS, Fit, Prediction
from walkthrough.compare.markdown import code, escaped
from walkthrough.compare.published import PUBLISHED
from walkthrough.compare.summary import intervals, summary
from walkthrough.memory.record import GPUS
from walkthrough.records import samples
from walkthrough.terminal import size_text


def of_rows(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, a column for each key of the first; columns of numbers are right-aligned."""
    texts = {name: any(isinstance(row.get(name), str) for row in rows) for name in rows[0]}
    headers = [("" if is_text else ">") + escaped(name) for name, is_text in texts.items()]
    return markdown.table(headers, ([escaped(cell_text(row.get(name))) for name in rows[0]] for row in rows))


def _ladders(course: Course) -> str:
    """The table of every record."""
    parts = []
    for recorded in course.records:
        parts += [
            f"### {escaped(ladder_title(recorded.ladder))}",
            markdown.ladder_table(recorded.ladder, recorded.limit),
            f"**{escaped(summary(recorded.ladder))}** {intervals(recorded.ladder)}",
            f"[The record]({course.to_logs}/{recorded.folder.name}/README.md).",
        ]
    return "\n\n".join(parts)


def _transfers(course: Course) -> str:
    """What a batch of each step holds, and what its trace shows being copied to the device, if it shows any copy."""
    rows, any_copy = [], False
    for row in course.shown.ladder.rows:
        result, analysis = row.result, course.shown.analyses.get(row.result.step)
        h2d = analysis.tables.copies["h2d"] if analysis else None
        any_copy = any_copy or bool(h2d and h2d.count)
        copied = size_text(analysis.step_bytes) if analysis and h2d and h2d.count else "no copy"
        bandwidth = f"{h2d.gigabytes_per_second:.1f} GB/s" if h2d and h2d.gigabytes_per_second else "-"
        per_batch, per_image = size_text(result.batch_bytes), size_text(result.batch_bytes / result.batch_size)
        rows.append([f"`{result.step}`", str(result.batch_size), per_batch, per_image, copied, bandwidth])
    headers = ["step", ">batch", ">per batch", ">per image", ">copied per step", ">bandwidth"]
    if any_copy:
        return f"{markdown.table(headers, rows)}\n\n{course.measured}"
    table = markdown.table(headers[:4], [cells[:4] for cells in rows])
    return f"{table}\n\n{course.measured} No trace shows a copy to a device."


def _first_steps(course: Course) -> str:
    """The time of each program's first step, in its first run, and the median of later steps."""
    rows = []
    for row in course.shown.ladder.rows:
        seconds = course.shown.first_run(row.result.step).first_step_seconds
        rows.append([f"`{row.result.step}`", f"{seconds:.1f}", f"{row.result.step_ms.median / 1e3:.2f}"])
    return markdown.table(["step", ">first step, s", ">later step, s"], rows) + f"\n\n{course.measured}"


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
    return markdown.table(["step", ">batch", ">memory GB", ">step ms", ">images/s", ">vs baseline"], rows)


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
    return markdown.table(["folder", "GPU", "what", "from, licence"], rows)


def _of_samples(values: Mapping[str, Mapping[str, float]], what: str) -> str:
    """ms of a step, a column for each sample, a row for each part that is worth one, the longest first."""
    parts = sorted({part for us in values.values() for part in us}, key=lambda part: -max(_all(values, part)))
    rows = [[part, *(f"{us / 1e3:.1f}" for us in _all(values, part))] for part in parts if max(_all(values, part)) > 50]
    rows.append(["all", *(f"{sum(us.values()) / 1e3:.1f}" for us in values.values())])
    return markdown.table([what, *(f">{name}" for name in values)], rows)


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


COMMANDS = {"limit": "limit", "input": "limit --input", "ablation": "ablate", "overhead": "overhead", "sweep": "sweep"}


def _of_study(name: str, paragraphs: Callable[[Any], list[str]], course: Course) -> str:
    result, base = course.shown.study(name), course.shown.ladder.baseline
    if result is None:
        return f"*Not recorded on {escaped(base.device)}: `python -m walkthrough {COMMANDS[name]}`.*"
    text = "\n\n".join(paragraphs(result))
    return f"{text}\n\n{course.measured_again}" if "|--" in text else text


def _limit_speeds(limit: Limit) -> list[str]:
    return [_settings(limit), _table(limit_study.speeds_table(limit)), *_notes(limit.notes)]


def _limit_groups(limit: Limit) -> list[str]:
    return [_table(limit_study.groups_table(limit)), limit_study.without_formula(limit)]


def _input(result: InputLimit) -> list[str]:
    return [_table(input_study.delivered_table(result)), f"**{_sentence(result.bottleneck)}**", *_notes(result.notes)]


def _programs(ablation: Ablation) -> list[str]:
    return [_table(effects.programs_table(ablation)), *_plain(effects.control_lines(ablation))]


def _effects(ablation: Ablation) -> list[str]:
    table, notes = effects.effects_table(ablation)
    programs = {measurement.variant for measurement in ablation.measurements}
    return [
        f"{ablation.run_count} interleaved runs of {len(programs)} programs.",
        _table(table),
        *(f"\\[{number}\\] {escaped(note)}" for number, note in enumerate(notes, start=1)),
        *_plain(effects.place_lines(ablation)),
    ]


def _pairs(ablation: Ablation) -> list[str]:
    pairs = effects.interactions(ablation)
    lines = (*effects.interaction_lines(pairs), *effects.tf32_lines(ablation))
    return [_table(effects.pairs_table(pairs)), *_plain(lines)]


def _overhead(result: Overhead) -> list[str]:
    return [
        _settings(result),
        f"{result.runs} interleaved runs of {result.steps} each.",
        _table(overhead_study.modes_table(result)),
        f"**{escaped(overhead_study.verdict(result))}**",
        *(
            f"*{escaped(mode.name)}* was not measured: {escaped(mode.not_measured)}."
            for mode in result.modes
            if mode.not_measured is not None
        ),
    ]


def _sweep(result: Sweep) -> list[str]:
    return [_table(sweep.cells_table(result)), *_notes(result.notes)]


def _settings(result: Limit | Overhead) -> str:
    setup = result.setup
    return f"{escaped(setup.model)}, batch {result.batch_size}, {setup.image_size} px, {escaped(result.precision)}."


def _notes(notes: Sequence[str]) -> list[str]:
    return [_sentence(note) for note in notes]


def _sentence(text: str) -> str:
    return f"{escaped(text[0].upper() + text[1:])}."


def _plain(lines: Sequence[Text]) -> list[str]:
    return [escaped(line.plain) for line in lines]


def _table(table: Table) -> str:
    """A rich table as Markdown."""
    headers = [(">" if column.justify == "right" else "") + escaped(str(column.header)) for column in table.columns]
    columns = [[escaped(Text.from_markup(str(cell)).plain) for cell in column.cells] for column in table.columns]
    return markdown.table(headers, zip(*columns, strict=True))


def _of_fit(block: Callable[..., str], course: Course, *words: str) -> str:
    if course.fit is None:
        return "*Not recorded: `python -m walkthrough fit --memory --logdir logs/reference`.*"
    return block(course.fit, course, *words)


def _fit_programs(fit: Fit, course: Course, *names: str) -> str:
    """Every program, or those named, with its own settings: what it allocates at the peak, by kind, and reserves."""
    rows = [
        [
            _name(one),
            str(one.batch_size),
            one.precision,
            *(_gb(size) for size in (one.peak_bytes, *one.by_kind.values(), one.reserved_bytes)),
        ]
        for one in fit.predictions
        if not one.words and (not names or one.program in names)
    ]
    headers = ["program", ">batch", "precision", ">peak GB", *(f">{kind}" for kind in KINDS), ">reserved GB"]
    if names:
        return f"{markdown.table(headers, rows)}\n\n*Predicted by `fit` for {fit.predictions[0].model}, not measured.*"
    failed = [f"{code(program)} is not predicted: {escaped(why)}." for program, why in fit.failed.items()]
    return "\n\n".join([markdown.table(headers, rows), *failed, f"*torch {escaped(fit.environment.torch)}.*"])


def _fit_published(fit: Fit, course: Course) -> str:
    """Beside every published figure: what is predicted, the way that figure counts."""
    rows = []
    for one in MEMORY:
        known = fit.find(one.program, one.words)
        predicted = known and {"allocated": known.peak_bytes, "reserved": known.reserved_bytes}[one.counts]
        rows.append(
            [
                code(" ".join([one.program, *one.words])),
                one.counts,
                f"{one.memory_gb:.2f}",
                _gb(predicted) if predicted else "-",
                f"{predicted / 1e9 / one.memory_gb - 1:+.1%}" if predicted else "not predicted",
                _gb(known.peak_bytes) if known else "-",
            ]
        )
    headers = ["program", "counts", ">published GB", ">predicted GB", ">off by", ">allocated GB, predicted"]
    return f"{markdown.table(headers, rows)}\n\nA context is taken to be {CONTEXT_BYTES / 1e9:.2f} GB."


def _fit_measured(fit: Fit, course: Course) -> str:
    """Beside the allocator's peak in every record of a GPU: what was predicted for it."""
    tables = []
    for shown in course.records:
        results = [row.result for row in shown.ladder.rows if shown.device_type == "cuda"]
        rows = [
            [code(result.step), _gb(measured), _gb(predicted), f"{predicted / measured - 1:+.1%}"]
            for result in results
            for measured, predicted in [(result.peak_memory_bytes.allocated, fit.gpu_bytes(result))]
            if predicted
        ]
        if rows:
            table = markdown.table(["step", ">measured GB", ">predicted GB", ">off by"], rows)
            tables.append(f"Allocated at the peak on {escaped(shown.ladder.baseline.device)}:\n\n{table}")
    none = "*No GPU has been recorded yet, so there is no measured peak to compare with.*"
    return "\n\n".join(tables) or none


def _fit_largest(fit: Fit, course: Course) -> str:
    """The largest batch on common GPUs, for every program with which it was sought and that differs from the last."""
    sought = [one for one in fit.predictions if one.largest]
    different = [one for at, one in enumerate(sought) if not at or one.largest != sought[at - 1].largest]
    rows = [[_name(one), *(str(one.largest.get(str(size), "-")) for size in GPUS.values())] for one in different]
    return markdown.table(["program", *(f">{name}" for name in GPUS)], rows)


def _name(one: Prediction) -> str:
    return code(" ".join([one.program or "", *one.words]))


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"


STUDIES: dict[tuple[str, str], Callable[[Any], list[str]]] = {
    ("limit", "speeds"): _limit_speeds,
    ("limit", "facts"): lambda limit: [_table(limit_study.facts_table(limit))],
    ("limit", "groups"): _limit_groups,
    ("input", "delivered"): _input,
    ("ablation", "programs"): _programs,
    ("ablation", "effects"): _effects,
    ("ablation", "pairs"): _pairs,
    ("overhead", "modes"): _overhead,
    ("sweep", "cells"): _sweep,
    ("sweep", "verdict"): lambda result: [f"**{escaped(sweep.verdict(result))}**"],
}
TABLES: dict[tuple[str, str], Callable[..., str]] = {
    ("ladder", "all"): _ladders,
    ("ladder", "transfers"): _transfers,
    ("ladder", "first-steps"): _first_steps,
    ("published", "ladder"): _original,
    ("samples", "list"): _samples,
    ("samples", "idle"): _idle,
    ("samples", "kernels"): _kernels,
    **{key: partial(_of_study, key[0], paragraphs) for key, paragraphs in STUDIES.items()},
    ("fit", "programs"): partial(_of_fit, _fit_programs),
    ("fit", "published"): partial(_of_fit, _fit_published),
    ("fit", "measured"): partial(_of_fit, _fit_measured),
    ("fit", "largest"): partial(_of_fit, _fit_largest),
}
