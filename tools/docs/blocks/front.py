"""Blocks of the README's first screen."""

import re

from tools.docs import first_picture
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.markdown import escaped
from walkthrough.compare.published import DEVICE, MODEL, PUBLISHED
from walkthrough.compare.rounds import Comparison, Row
from walkthrough.results.environment import ROOT

NOTEBOOK = "colab.ipynb"
COLAB = "https://colab.research.google.com"
BADGE = f"{COLAB}/assets/colab-badge.svg"
_ADDRESS = re.compile(r'^Repository = "https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?"', re.MULTILINE)


def picture(course: Course) -> str:
    """A real trace, what `explain` says of it, and the ladder."""
    shown = first_picture.example(course)
    image = f"![{escaped(first_picture.alternative_text(course))}]({course.to_docs}figures/{first_picture.FILE})"
    if shown is None:
        return image
    left = "a trace recorded with this project" if shown.is_own else "a trace that others published"
    later = "" if shown.is_own else " Once a GPU is recorded here, its trace replaces theirs."
    return f"{image}\n\n*Left: {left}, as `explain` reads it. Right: our ladder.{later}*"


def results(course: Course) -> str:
    """A row for each recorded machine, and one for the figures that the original walkthrough published."""
    rows = []
    for recorded in course.records:
        base, last = recorded.ladder.baseline, last_that_gained(recorded.ladder)
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
    others = [f"{DEVICE} *(others')*", f"{MODEL}, 224 px", f"{first.images_per_second:,.0f}", f"`{step}`"]
    rows.append([*others, f"{published.relative:.2f}x", "1", "published; no spread, from traced steps"])
    headers = [
        "machine",
        "model",
        ">baseline, images/s",
        "last step that gained",
        ">times the baseline",
        ">rounds",
        "recorded",
    ]
    return markdown.table(headers, rows)


def last_that_gained(ladder: Comparison) -> Row:
    """The last step that is faster than the step before by more than the interval; without any, the last that acts."""
    gained = [row for row in ladder.rows if row.gain and row.gain.resolved and row.gain.ratio > 1]
    return (gained or ladder.acting)[-1]


def colab(course: Course) -> str:
    """How to run the ladder on a rented T4: one click, once pyproject.toml says where the project is on GitHub."""
    file = f"{course.to_docs}{NOTEBOOK}"
    name = repository()
    if name:
        badge = (
            f"[![Open the notebook in Colab, on a free T4]({BADGE})]({COLAB}/github/{name}/blob/HEAD/docs/{NOTEBOOK})"
        )
        return f"{badge} [runs the ladder]({file}) on a T4; expect a quarter of an hour."
    return (
        f"No GPU at hand? [This notebook]({file}) runs the ladder on a T4; expect a quarter of an hour. Upload it to "
        f"[Colab]({COLAB}), choose a T4, *Run all*."
    )


def repository() -> str | None:
    """owner/name of the project on GitHub, as pyproject.toml's [project.urls] has it; None where it has none."""
    address = _ADDRESS.search((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return address[1] if address else None


BLOCKS = (picture, results, colab)
