"""The blocks of docs/log.md: the template of an entry, and one step of the recorded ladder as an entry."""

import ast
import re

from tools.docs.recorded import Course, Recorded
from walkthrough.compare.markdown import escaped
from walkthrough.compare.predictions import Prediction
from walkthrough.compare.rounds import Row, half_spread
from walkthrough.compare.runner import step_files
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError

TEMPLATE = ROOT / "docs" / "assets" / "log_template.txt"
LINES = ("Evidence", "Hypothesis", "Bound", "Change", "Before", "After", "Losses equal?", "Keep?")
_PART = r"^{}\s+(.+?)(?=^\S|\Z)"  # of a step's docstring: "Idea       …", with its continuation lines


def log_template(course: Course) -> str:
    """The file to copy, as code."""
    return f"```markdown\n{TEMPLATE.read_text(encoding='utf-8')}```"


def log_entry(course: Course, before: str, step: str, test: str) -> str:
    """One entry: what the trace of `before` predicted of `step`, and what was then measured.

    test: the name of the test that compares losses. Raises InputError for an unknown step.
    """
    shown = course.shown
    prediction = next((row for row in shown.predictions if (row.before, row.step) == (before, step)), None)
    advised = shown.advised.get(before)
    if prediction is None or advised is None:
        return f"*Not recorded on {escaped(shown.ladder.baseline.device)}: `{before}` and `{step}`.*"
    texts = (
        f"`explain` of `{before}`: {escaped(advised.verdict)}. {_evidence(prediction)}",
        docstring_part(step, "Idea"),
        _bound(prediction),
        docstring_part(step, "Change"),
        _speed(shown.row(before)),
        f"{_speed(shown.row(step))}. {_ratio(prediction)}",
        f"up to rounding: `{test}` holds them to it, step by step",
        _keep(prediction),
    )
    return "\n".join(
        [_head(shown, step), "", *(f"- **{name}**: {text}" for name, text in zip(LINES, texts, strict=True))]
    )


def docstring_part(step: str, part: str) -> str:
    """A part of a step's docstring, such as "Idea", in one line. Raises InputError where there is none."""
    files = {file.stem: file for file in step_files()}
    if step not in files:
        raise InputError(f"there is no step {step}")
    text = ast.get_docstring(ast.parse(files[step].read_text(encoding="utf-8"))) or ""
    found = re.search(_PART.format(part), text, re.DOTALL | re.MULTILINE)
    if not found:
        raise InputError(f"the docstring of {step} has no part {part}")
    return escaped(" ".join(found[1].split()))


def _head(shown: Recorded, step: str) -> str:
    result = shown.row(step).result
    return (
        f"**{result.started[:10]}, `{step}`, {escaped(result.device)}, {escaped(result.model)}, {result.size_label}**"
    )


def _evidence(prediction: Prediction) -> str:
    return escaped(prediction.why[0].upper() + prediction.why[1:]) if prediction.why else "No advice."


def _bound(prediction: Prediction) -> str:
    bound, estimate = prediction.predicted_gain, prediction.estimated_gain
    text = "the trace cannot tell" if bound is None else f"at most **{bound:.2f}x** the images/s"
    return text if estimate is None else f"{text}; about {estimate:.2f}x by the replay"


def _speed(row: Row) -> str:
    result = row.result
    speed = result.samples_per_second.median
    return f"{speed:.0f} images/s (median window; ±{half_spread(result):.0%}), {result.step_ms.median:.1f} ms per step"


def _ratio(prediction: Prediction) -> str:
    gain = prediction.gain
    rounds = f"{gain.rounds} rounds" if gain.rounds > 1 else "one round"
    return f"**{gain}** the step before, 95 % interval of {rounds}"


def _keep(prediction: Prediction) -> str:
    gain = prediction.gain
    if not gain.resolved:
        return "not decided: the interval includes 1, so measure more rounds first"
    if gain.ratio < 1:
        return "no: slower"
    outcome = {
        "within": "and the gain is within the bound",
        "miss": "but the gain is above the bound: what else changed?",
        "cannot tell": "although no bound was known",
    }
    return f"yes: the whole interval is above 1, {outcome[prediction.outcome]}"


BLOCKS = (log_template, log_entry)
