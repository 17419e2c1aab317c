"""Blocks about studies, where they were recorded: the tables that the commands print."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar, cast

from rich.table import Table as RichTable
from rich.text import Text

from studies import effects as effects
from studies.ablation import Ablation
from studies.study import Study, title
from tools.docs.blocks.page import measured_again
from tools.docs.recorded import Course
from walkthrough.compare.table import Table, escaped, markdown_table

COMMANDS = {  # of the studies
    "limit": "limit",
    "input": "limit --input",
    "ablation": "ablate",
    "overhead": "overhead",
    "sweep": "sweep",
}
S = TypeVar("S", bound=Study)


def shows(study: str) -> Callable[[Callable[[S], list[str]]], Callable[[Course], str]]:
    """Make a block of a function that writes the paragraphs about a study's result.

    study: its name in `studies.study.STUDIES`. Where it was not recorded, the block names the command that measures it.
    """

    def block_of(paragraphs: Callable[[S], list[str]]) -> Callable[[Course], str]:
        @wraps(paragraphs)
        def block(course: Course) -> str:
            result = course.shown.study(study)
            if result is None:
                device = escaped(course.shown.ladder.baseline.device)
                return f"*Not recorded on {device}: `python -m walkthrough {COMMANDS[study]}`.*"
            text = "\n\n".join(paragraphs(cast("S", result)))
            return f"{text}\n\n{measured_again(course)}" if "|--" in text else text

        return block

    return block_of


@shows("ablation")
def ablation_programs(ablation: Ablation) -> list[str]:
    """The baseline, the same again, and the full ladder."""
    return [_table(effects.programs_table(ablation)), *_plain(effects.control_lines(ablation))]


@shows("ablation")
def ablation_effects(ablation: Ablation) -> list[str]:
    """What each optimisation gains alone and in the full ladder."""
    table, notes = effects.effects_table(ablation)
    programs = {measurement.variant for measurement in ablation.measurements}
    return [
        f"{ablation.run_count} interleaved runs of {len(programs)} programs.",
        _table(table),
        *(f"\\[{number}\\] {escaped(note)}" for number, note in enumerate(notes, start=1)),
        *_plain(effects.place_lines(ablation)),
    ]


@shows("ablation")
def ablation_pairs(ablation: Ablation) -> list[str]:
    """The pairs that were measured, and which of them measurably interact."""
    pairs = effects.interactions(ablation)
    lines = (*effects.interaction_lines(pairs), *effects.tf32_lines(ablation))
    return [_table(effects.pairs_table(pairs)), *_plain(lines)]


def study(course: Course, name: str, of: str, part: str = "all") -> str:
    """A table of a study and what follows from it; with its first table what it was measured with, and its notes.

    part: "table" or "text" for one of the two.
    """
    result = course.shown.study(name)
    if result is None:
        device = escaped(course.shown.ladder.baseline.device)
        return f"*Not recorded on {device}: `python -m walkthrough {COMMANDS[name]}`.*"
    sentences = result.conclusions.get(of, [])
    if part == "text":
        return "\n\n".join(map(escaped, sentences))
    is_first = of == next(iter(result.tables))
    table = Table(of, result.tables[of], [] if part == "table" else sentences).markdown()
    notes = [_sentence(note) for note in result.notes] if is_first else []
    first = [f"{escaped(title(result))}."] if is_first else []
    return "\n\n".join([*first, table, *notes, measured_again(course)])


BLOCKS = (
    study,
    *(ablation_programs, ablation_effects, ablation_pairs),
)


def _notes(result: Study) -> list[str]:
    return [_sentence(note) for note in result.notes]


def _sentence(text: str) -> str:
    return f"{escaped(text[0].upper() + text[1:])}."


def _plain(lines: Sequence[Text]) -> list[str]:
    return [escaped(line.plain) for line in lines]


def _table(table: RichTable) -> str:
    """A rich table as Markdown."""
    headers = [(">" if column.justify == "right" else "") + escaped(str(column.header)) for column in table.columns]
    columns = [[escaped(Text.from_markup(str(cell)).plain) for cell in column.cells] for column in table.columns]
    return markdown_table(headers, zip(*columns, strict=True))
