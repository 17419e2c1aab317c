"""Blocks that every page may have: what its numbers are from, figures and screenshots."""

from tools.docs import figures, screenshots
from tools.docs.blocks.gpu import gpu
from tools.docs.recorded import Course
from walkthrough.compare.markdown import escaped
from walkthrough.compare.published import DEVICE


def machine(course: Course) -> str:
    """For the index: which machine the course's numbers are from, and what that means where it is a CPU."""
    text = f"The measured tables and figures of the course are from one machine, {_machine(course)}"
    if course.shown.device_type == "cuda":
        return f"{text}; *the original's* are from a {DEVICE}: one run, no spread, from traced steps."
    return (
        f"{text}: a line below each table says so, what the text says about a GPU's trace is cited or marked as "
        "expected, and `python -m walkthrough record` on a GPU adds measured ones."
    )


def measured(course: Course) -> str:
    """The line below a measured table: where it was measured. A page has it once; see `measured_again`."""
    return f"*Measured: {_machine(course)}.*"


def measured_again(course: Course) -> str:
    """The line below a page's further tables, in place of `measured`."""
    return f"*{_record(course)}{'' if course.shown.device_type == 'cuda' else ', CPU'}.*"


def _machine(course: Course) -> str:
    base, shown = course.shown.ladder.baseline, course.shown
    rounds = "1 round" if shown.run_count == 1 else f"{shown.run_count} rounds"
    cores = "" if shown.device_type == "cuda" else f", {base.environment.cores} CPU cores"
    none = "" if shown.device_type == "cuda" else " (no GPU recorded yet)"
    return f"{_record(course)}{cores}, {escaped(base.model)} at {base.image_size} px, {rounds}{none}"


def _record(course: Course) -> str:
    """The device, linked to the page of its record."""
    device = escaped(course.shown.ladder.baseline.device)
    return f"[{device}]({course.to_logs}/{course.shown.folder.name}/README.md)"


def figure(course: Course, name: str) -> str:
    """One of `figures.FIGURES`, of the record that the chapters show."""
    drawing = figures.FIGURES[name](course.shown)
    file = f"{course.to_docs}figures/{course.shown.folder.name}/{name}.svg"
    if name == "idle" and not drawing:
        return gpu(course, name)  # others' traces show why theirs waited
    return f"![{escaped(drawing[1])}]({file})" if drawing else f"*{figures.NOT_DRAWN[name]}*"


def screenshot(course: Course, name: str) -> str:
    """One of the pictures of TensorBoard that `screenshots` took, with its caption."""
    return screenshots.markdown(name, course.to_docs)


BLOCKS = (machine, figure, screenshot)
