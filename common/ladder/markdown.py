"""Tables for pages: a ladder, and any other rows, as Markdown; and foreign text, so that it stays text."""

import re

from common.errors import printable
from common.ladder.compare import spread


def table(headers, rows):
    """Rows of texts as a Markdown table. headers: texts; one that begins with ">" has its column to the right."""
    rules = ["--:" if header.startswith(">") else "---" for header in headers]
    lines = [_row(header.removeprefix(">") for header in headers), f"|{'|'.join(rules)}|"]
    return "\n".join([*lines, *(_row(cells) for cells in rows)])


MEASURED = ["step", ">batch", ">images/s", ">windows", ">mean of runs", ">n", ">step ms", ">memory MB"]
OF_THE_FLOOR = ">of the floor"


def measured(row, runs, limit=None):
    """A `compare.Row` under the headers `MEASURED`. runs: its `compare.RunSpread`, or None.

    limit: a `limit_record.Limit`; then also under `OF_THE_FLOOR`.
    """
    result, (low, high) = row.result, spread(row.result)
    of_the_floor = [f"{limit.of_the_floor(result):.0%}"] if limit else []
    return [
        code(result.step),
        str(result.batch_size),
        f"{result.samples_per_second.median:.1f}",
        f"{low:.1f} to {high:.1f}",
        str(runs or "-"),
        str(runs.count if runs else "-"),
        f"{result.step_ms.median:.1f}",
        f"{result.peak_memory_bytes.allocated / 1e6:.0f}",
        *of_the_floor,
    ]


def ladder_table(ladder, runs, limit=None):
    """A `compare.Ladder` as Markdown. runs: {step: `compare.RunSpread`}; steps without have "-". limit: see above."""
    gains = [">vs step before", ">vs baseline"]
    first = MEASURED.index(">images/s") + 1  # the gains come next: a narrow page cuts off what is last
    headers, rows = [*MEASURED, *([OF_THE_FLOOR] if limit else [])], []
    for row in ladder.rows:
        cells = measured(row, runs.get(row.result.step), limit)
        gained = [str(row.gain or ""), str(row.relative if row.gain else "1.00x")]
        rows.append([*cells[:first], *gained, *cells[first:]])
    return table([*headers[:first], *gains, *headers[first:]], rows)


def escaped(text):
    """Text out of a file, for a page: nothing in it is taken for HTML, a link or a mark."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", printable(text).replace("&", "&amp;").replace("<", "&lt;"))


def code(text, width=None):
    """A name out of a file, as code."""
    return f"`{printable(text, width).replace('`', chr(39)).replace('<!--', '<! --')}`"


def _row(cells):
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text):
    return re.sub(r"(?<!\\)\|", "/", printable(text))  # one that is not escaped would begin another cell
