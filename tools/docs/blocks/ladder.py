"""Blocks about a whole ladder: a row for each step."""

from tools.docs.blocks.page import measured
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.figures import ladder_title
from walkthrough.compare.ladder import intervals, summary
from walkthrough.compare.markdown import escaped
from walkthrough.terminal import size_text


def ladders(course: Course) -> str:
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


def transfers(course: Course) -> str:
    """What a batch of each step holds, and what its trace shows being copied to the device, if it shows any copy."""
    rows, any_copy = [], False
    for row in course.shown.ladder.rows:
        result, analysis = row.result, course.shown.analyses.get(row.result.step)
        h2d = analysis.tables.copies["h2d"] if analysis else None
        any_copy = any_copy or bool(h2d and h2d.count)
        copied = size_text(analysis.step_bytes) if analysis and h2d and h2d.count else "no copy"
        bandwidth = f"{h2d.gigabytes_per_second:.1f} GB/s" if h2d and h2d.gigabytes_per_second else "-"
        per_image = size_text(result.batch_bytes / result.batch_size)
        per_batch = size_text(result.batch_bytes)
        rows.append([f"`{result.step}`", str(result.batch_size), per_batch, per_image, copied, bandwidth])
    headers = ["step", ">batch", ">per batch", ">per image", ">copied per step", ">bandwidth"]
    if any_copy:
        return f"{markdown.table(headers, rows)}\n\n{measured(course)}"
    table = markdown.table(headers[:4], [cells[:4] for cells in rows])
    return f"{table}\n\n{measured(course)} No trace shows a copy to a device."


def first_steps(course: Course) -> str:
    """The time of each program's first step, in its first run, and the median of later steps."""
    rows = []
    for row in course.shown.ladder.rows:
        seconds = course.shown.first_run(row.result.step).first_step_seconds
        rows.append([f"`{row.result.step}`", f"{seconds:.1f}", f"{row.result.step_ms.median / 1e3:.2f}"])
    return markdown.table(["step", ">first step, s", ">later step, s"], rows) + f"\n\n{measured(course)}"


BLOCKS = (ladders, transfers, first_steps)
