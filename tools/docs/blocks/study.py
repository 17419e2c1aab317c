"""Blocks about studies, where they were recorded: the tables that are stored with them."""

from studies.study import title
from tools.docs.blocks.page import measured_again
from tools.docs.recorded import Course
from walkthrough.compare.table import Table, escaped

COMMANDS = {  # of the studies
    "limit": "limit",
    "input": "limit --input",
    "ablation": "ablate",
    "overhead": "overhead",
    "sweep": "sweep",
}


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
    notes = [f"{escaped(note[0].upper() + note[1:])}." for note in result.notes] if is_first else []
    first = [f"{escaped(title(result))}."] if is_first else []
    return "\n\n".join([*first, table, *notes, measured_again(course)])


BLOCKS = (study,)
