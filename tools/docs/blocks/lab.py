"""Blocks about labs, where their studies were recorded: `logs/reference/labs/LAB/study.json`."""

from collections.abc import Callable
from functools import wraps

from tools.docs import lab_figures
from tools.docs.recorded import Course
from walkthrough.compare.study import Study, claim_rows
from walkthrough.compare.table import Table, escaped


def shows(block: Callable[..., str]) -> Callable[..., str]:
    """Make a block of a function of a `Course`, a study and words; without a study the block names the command."""

    @wraps(block)
    def of_lab(course: Course, lab: str, *words: str) -> str:
        study = course.lab(lab)
        return block(course, study, *words) if study else f"*Not recorded yet: `python labs/{escaped(lab)}/study.py`.*"

    return of_lab


@shows
def lab_machine(course: Course, study: Study) -> str:
    """What a lab's figures were measured on."""
    smoke = " A smoke run (`--quick`): its figures are rough." if study.quick else ""
    environment = study.environment
    gpu = "" if environment.driver else " No GPU recorded yet."
    return (
        f"*Measured: {escaped(study.device)}, {environment.cores} CPU cores, torch {escaped(environment.torch)}."
        f"{smoke}{gpu} Published: by others, on other machines.*"
    )


@shows
def lab_table(course: Course, study: Study, name: str) -> str:
    """One of a study's tables."""
    rows = study.tables.get(name)
    return Table(name, rows).markdown() if rows else "*Not measured on this device.*"


@shows
def lab_claims(course: Course, study: Study) -> str:
    """Every claim, what was measured of it, and whether it holds."""
    return Table("claims", claim_rows(study.claims)).markdown()


@shows
def lab_notes(course: Course, study: Study) -> str:
    """What the device could not show."""
    return "\n".join(f"- {escaped(note[0].upper() + note[1:])}." for note in study.notes)


@shows
def lab_figure(course: Course, study: Study, name: str) -> str:
    """One of `lab_figures.figures`."""
    drawing = lab_figures.figures(study).get(name)
    file = f"{course.to_docs}figures/labs/{study.lab}/{name}.svg"
    return f"![{escaped(drawing[1])}]({file})" if drawing else "*No figure: this was not measured.*"


BLOCKS = (lab_machine, lab_table, lab_claims, lab_notes, lab_figure)
