"""Tables for pages: a ladder, and any other rows, as Markdown."""

from common.compare import spread
from common.errors import printable


def table(headers, rows):
    """Rows of texts as a Markdown table. headers: texts; one that begins with ">" has its column to the right."""
    rules = ["--:" if header.startswith(">") else "---" for header in headers]
    lines = [_row(header.removeprefix(">") for header in headers), f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(_row(cells) for cells in rows)])


def ladder_table(ladder, runs):
    """A `compare.Ladder` as Markdown. runs: {step: `compare.Runs`}; steps without have "-" there."""
    headers = ["step", ">batch", ">images/s", ">windows", ">mean of runs", ">n", ">vs step before"]
    headers += [">vs baseline", ">step ms", ">memory MB"]
    return table(headers, [_cells(row, runs.get(row.result.step)) for row in ladder.rows])


def _cells(row, runs):
    result, (low, high) = row.result, spread(row.result)
    return [
        f"`{result.step}`",
        str(result.batch_size),
        f"{result.samples_per_second.median:.1f}",
        f"{low:.1f} to {high:.1f}",
        str(runs or "-"),
        str(runs.count if runs else "-"),
        str(row.gain or ""),
        "1.00x" if row.gain is None else str(row.relative),
        f"{result.step_ms.median:.1f}",
        f"{result.peak_memory_bytes.allocated / 1e6:.0f}",
    ]


def _row(cells):
    return f"| {' | '.join(printable(cell).replace('|', '/') for cell in cells)} |"
