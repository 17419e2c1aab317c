"""What the pages say beside the ladder: of first steps, and of `limit`, `ablate`, `overhead` and `sweep` if recorded.

The tables are those that the commands print.
"""

from rich.text import Text

from common.ladder import markdown
from common.ladder.markdown import escaped
from common.run.events import scalars
from common.studies.ablation import view as ablation_view
from common.studies.ablation.record import effects, interactions
from common.studies.input import view as input_limit_view
from common.studies.limit import view as limit_view
from common.studies.overhead import view as overhead_view
from common.studies.sweep import view as sweep_view


def first_steps(course):
    """The first step of every program in its first run, from its events, beside a later step's time."""
    rows = []
    for row in course.shown.ladder.rows:
        events = sorted((course.shown.folder / row.result.step).glob("events.out.tfevents.*"))
        seconds = scalars(events[0].read_bytes()).get("first_step_seconds") if events else None
        told = "-" if seconds is None else f"{seconds:.1f}"
        rows.append([f"`{row.result.step}`", told, f"{row.result.step_ms.median / 1e3:.2f}"])
    return markdown.table(["step", ">its first step, s", ">a later step, s"], rows)


def limit_floors(course):
    """How fast the model trains on one batch that lies on the device."""
    return _told(
        course, "limit", lambda found: [_settings(found), _table(limit_view.floors_table(found)), *_notes(found)]
    )


def limit_facts(course):
    """The measured peaks, and what a step computes and moves."""
    return _told(course, "limit", lambda found: [_table(limit_view.facts_table(found))])


def limit_groups(course):
    """Where the time of a step goes by kind of operator, and how near its roof each is."""
    return _told(
        course, "limit", lambda found: [_table(limit_view.groups_table(found)), limit_view.without_formula(found)]
    )


def input_limit(course):
    """What the input alone delivers, beside what the model alone consumes."""

    def lines(found):
        table = input_limit_view.delivered_table(found)
        return [_table(table), f"**{_sentence(found.bottleneck)}**", *_notes(found)]

    return _told(course, "input_limit", lines, "limit --input")


def ablation_programs(course):
    """The baseline, the same again, and the full ladder."""
    return _told(course, "ablation", lambda found: [_table(ablation_view.programs_table(found))], "ablate")


def ablation_effects(course):
    """What each optimisation brings alone and in the full ladder."""

    def lines(found):
        notes = []
        table = ablation_view.effects_table(found, effects(found), notes)
        told = f"{found.whole_runs} interleaved runs of {len(found.variants)} programs."
        numbered = [f"\\[{number}] {escaped(note)}" for number, note in enumerate(notes, start=1)]
        return [told, _table(table), *numbered, *_plain(ablation_view.of_place(found))]

    return _told(course, "ablation", lines, "ablate")


def ablation_pairs(course):
    """The pairs that were measured, and those that interact."""

    def lines(found):
        paired = interactions(found)
        return [_table(ablation_view.pairs_table(paired)), *_plain(ablation_view.named(paired))]

    return _told(course, "ablation", lines, "ablate")


def overhead(course):
    """What each way of tracing costs."""

    def lines(found):
        missing = [
            f"*{escaped(mode.name)}* was not measured: {escaped(mode.not_measured)}."
            for mode in found.modes
            if mode.not_measured is not None
        ]
        told = f"{found.runs} interleaved runs of {found.steps} steps each."
        table = _table(overhead_view.modes_table(found))
        return [_settings(found), told, table, f"**{escaped(overhead_view.verdict(found))}**", *missing]

    return _told(course, "overhead", lines)


def sweep(course):
    """Every cell of the sweep."""
    return _told(course, "sweep", lambda found: [_table(sweep_view.cells_table(found)), *_notes(found)])


def sweep_verdict(course):
    """The best cell, and what more workers than it has cost."""
    return _told(course, "sweep", lambda found: [f"**{escaped(sweep_view.verdict(found))}**"])


BLOCKS = (
    *(first_steps, limit_floors, limit_facts, limit_groups, input_limit, overhead, sweep, sweep_verdict),
    *(ablation_programs, ablation_effects, ablation_pairs),
)


def _told(course, name, lines, command=None):
    """The paragraphs that `lines` makes of a record's measurement, or that it holds none."""
    found = getattr(course.shown, name)
    if found is None:
        return (
            f"*Not recorded on {escaped(course.shown.ladder.baseline.device)}: `python -m common {command or name}`.*"
        )
    return "\n\n".join(lines(found))


def _settings(found):
    return f"{escaped(found.model)}, batch {found.batch_size}, {found.image_size} px, {escaped(found.precision)}."


def _notes(found):
    return [_sentence(note) for note in found.notes]


def _sentence(text):
    return f"{escaped(text[0].upper() + text[1:])}."


def _plain(texts):
    return [escaped(text.plain) for text in texts]


def _table(table):
    """A rich table as Markdown."""
    heads = [(">" if column.justify == "right" else "") + escaped(str(column.header)) for column in table.columns]
    columns = [[escaped(Text.from_markup(cell).plain) for cell in column.cells] for column in table.columns]
    return markdown.table(heads, list(zip(*columns, strict=True)))
