"""Blocks that every page may have: what its numbers are from, figures and screenshots."""

from common.course import figures, screenshots
from common.course.recorded import Course
from common.ladder.markdown import escaped
from common.ladder.published import DEVICE

FOOT = "*From `logs/reference/`: tables and figures by `make docs-figures`, screenshots by `make docs-screenshots`.*"


def machine(course: Course) -> str:
    """Which machine the page's numbers are from, and what that means where it is a CPU."""
    base = course.shown.ladder.baseline
    measured_on = (
        f"{escaped(base.device)}, {base.environment.cores} CPU cores, {escaped(base.model)} at {base.image_size} px, "
        f"{course.shown.run_count} runs"
    )
    if base.device_type == "cuda":
        return (
            f"> Measured figures on this page: {measured_on}. *The original's* are from a {DEVICE}: one run, no "
            "spread, from traced steps."
        )
    return (
        f"> **No GPU has been recorded yet.** Measured figures on this page are from a CPU ({measured_on}). What the "
        "text says about a GPU's trace is what to expect; it was not measured here. GPU figures are *the original's*: "
        f"published for a {DEVICE}, one run, no spread, from traced steps. `python -m common record` on a GPU adds "
        "measured ones."
    )


def recorded_on(course: Course) -> str:
    """For the README's figure: what it was recorded on, and what a CPU's ladder cannot show."""
    base = course.shown.ladder.baseline
    record = f"[{escaped(base.device)}]({course.to_logs}/{course.shown.folder.name}/README.md)"
    text = (
        f"Recorded on {record}, {base.environment.cores} CPU cores, {course.shown.run_count} interleaved runs per "
        "step; drawn by `make docs-figures`."
    )
    if base.device_type == "cuda":
        return text
    return f"{text} Without a GPU some steps have no effect: they are among the grey ones."


def figure(course: Course, name: str) -> str:
    """One of `figures.FIGURES`, of the record that the chapters show."""
    drawing = figures.FIGURES[name](course.shown)
    file = f"{course.to_docs}figures/{course.shown.folder.name}/{name}.svg"
    return f"![{escaped(drawing[1])}]({file})" if drawing else f"*{figures.NOT_DRAWN[name]}*"


def screenshot(course: Course, name: str) -> str:
    """One of the pictures of TensorBoard that `screenshots` took, with its caption."""
    return screenshots.markdown(name, course.to_docs)


def foot(course: Course) -> str:
    """Where the page's tables and figures come from."""
    return FOOT


BLOCKS = (machine, recorded_on, figure, screenshot, foot)
