"""Tables for pages: a ladder, and any other rows, as Markdown."""

from common.compare import spread
from common.errors import printable


def table(headers, rows):
    """Rows of texts as a Markdown table. headers: texts; one that begins with ">" has its column to the right."""
    rules = ["--:" if header.startswith(">") else "---" for header in headers]
    lines = [_row(header.removeprefix(">") for header in headers), f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(_row(cells) for cells in rows)])


MEASURED = ["step", ">batch", ">images/s", ">windows", ">mean of runs", ">n", ">step ms", ">memory MB"]


def measured(row, runs):
    """A `compare.Row` under the headers `MEASURED`. runs: its `compare.Runs`, or None."""
    result, (low, high) = row.result, spread(row.result)
    return [
        f"`{result.step}`",
        str(result.batch_size),
        f"{result.samples_per_second.median:.1f}",
        f"{low:.1f} to {high:.1f}",
        str(runs or "-"),
        str(runs.count if runs else "-"),
        f"{result.step_ms.median:.1f}",
        f"{result.peak_memory_bytes.allocated / 1e6:.0f}",
    ]


def ladder_table(ladder, runs):
    """A `compare.Ladder` as Markdown. runs: {step: `compare.Runs`}; steps without have "-" there."""
    rows = [
        [*measured(row, runs.get(row.result.step)), str(row.gain or ""), str(row.relative if row.gain else "1.00x")]
        for row in ladder.rows
    ]
    return table([*MEASURED, ">vs step before", ">vs baseline"], rows)


def _row(cells):
    return f"| {' | '.join(printable(cell).replace('|', '/') for cell in cells)} |"
