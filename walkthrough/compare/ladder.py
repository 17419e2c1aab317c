"""A ladder as a table in the terminal, understandable without the docs."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walkthrough.compare import published
from walkthrough.compare.columns import (
    COST,
    LIMIT,
    ORIGINAL,
    ROOFS,
    SPEED,
    TRACED,
    Column,
    Limit,
    beside_original,
    columns,
    matrix_units,
    rows_of,
)
from walkthrough.compare.rounds import GpuUse, Ladder, half_spread, is_first_step
from walkthrough.compare.summary import intervals, notes_of, summary
from walkthrough.results.errors import printable
from walkthrough.results.result import NotRun, Result
from walkthrough.terminal import plain_table

UNSTEADY = 0.25  # half the range of a step's windows over their median: beyond it intervals are wide

OF_ROOFS = (
    "% of arithmetic peak, % of memory roof: FLOPs of a step, and bytes that it must move at least, per second, as a "
    "share of the measured peaks (`limit`); -: not measured in the row's precision.\n"
)
OF_TRACES = "GPU busy, {}: of the traced steps and of their kernels' time; `explain` shows more.\n"
NO_GPU = "No GPU, so no columns on how busy it was and its Tensor Cores; `explain` shows where the time went.\n"


def print_ladders(
    ladders: Sequence[Ladder],
    to: Console,
    used: Mapping[str, GpuUse] | None = None,
    limit: Limit | None = None,
    missing: Sequence[NotRun] = (),
) -> None:
    """Print every ladder with its notes to the console `to`.

    used: see `columns.columns`. limit: shown with the ladders of its setup. missing: the steps of the first
    ladder that were not run.
    """
    if len(ladders) > 1:
        to.print(
            f"\nThese runs make {len(ladders)} ladders: they differ in device, data, model or image size. "
            "Each has a table of its own, and no figure compares one with another."
        )
    for number, ladder in enumerate(ladders):
        its_limit = limit if limit and limit.setup.matches(ladder.baseline.setup) else None
        _print_ladder(ladder, to, used or {}, its_limit, () if number else missing)


def _print_ladder(
    ladder: Ladder,
    to: Console,
    used: Mapping[str, GpuUse],
    limit: Limit | None,
    missing: Sequence[NotRun],
) -> None:
    base = ladder.baseline
    steps = {row.result.step for row in ladder.rows}
    cost = (*COST, *(ORIGINAL if beside_original(ladder) else ()))
    groups = [SPEED, *([LIMIT] if limit else []), cost]
    groups += [TRACED] if steps & used.keys() else []
    by_name = columns(ladder, used, limit, missing)
    groups[2:2] = [ROOFS] if ROOFS[0] in by_name else []
    notes = notes_of(ladder)
    everywhere = [note for note in notes if all(note in row.result.notes for row in ladder.rows)]
    numbered = [note for note in notes if note not in everywhere]
    names = [
        Text(printable(row.step, 80)) if isinstance(row, NotRun) else _marked(row.result, numbered)
        for row in rows_of(ladder, missing)
    ]
    to.print(
        f"\n[bold]{escape(printable(base.model))}[/], {escape(printable(base.data_label))}, {base.size_label}, on "
        f"[bold]{escape(printable(base.device))}[/] ({base.environment.cores} CPU cores), "
        f"torch {escape(printable(base.environment.torch))}\n"
    )
    for table in _tables(names, [[by_name[name] for name in group] for group in groups], to):
        to.print(table)
        to.print()
    to.print(Text(summary(ladder), "bold"))
    if max(half_spread(row.result) for row in ladder.rows) > UNSTEADY:
        to.print(
            Text(
                "UNSTEADY: the windows of a step differ widely, so something else kept this machine busy. Run it "
                "again, or more rounds.",
                "red",
            )
        )
    if not is_first_step(base):
        to.print(Text(f"No run of 00_baseline is here: everything is relative to {printable(base.step)}.", "yellow"))
    for note in everywhere:
        to.print(Text(f"All: {printable(note)}.", "yellow"))
    for number, note in enumerate(numbered, start=1):
        to.print(Text(f"[{number}] {printable(note)}", "yellow"))
    for not_run in missing:
        to.print(Text(f"{printable(not_run)}.", "yellow"))
    to.print(Text(_legend(ladder, groups, limit, matrix_units(used)), "dim"))


def _legend(ladder: Ladder, groups: Collection[tuple[str, ...]], limit: Limit | None, units: str) -> str:
    on_cpu = ladder.baseline.device_type == "cpu"
    memory = "the profiler's peak (weights not in it)" if on_cpu else "the GPU allocator's peak"
    traced = OF_TRACES.format(units) if TRACED in groups else NO_GPU if on_cpu else ""
    original = (
        f"original: as published for a {published.DEVICE} at 224 px, against its own baseline; not measured here."
    )
    return (
        f"{intervals(ladder)}\n"
        "images/s: the median timed window, no profiler running; window ±: half the windows' range. "
        f"memory: {memory}. batch MB: what a batch moves to the device.\n"
        f"{_of_limit(limit) if limit else ''}{OF_ROOFS if ROOFS in groups else ''}{traced}"
        f"{original if beside_original(ladder) else ''}"
    ).rstrip()


def _of_limit(limit: Limit) -> str:
    rough = ", a smoke run" if limit.quick else ""
    return (
        f"% of limit: images/s over those of the model alone, without input pipeline ({limit.fastest.kind}, batch "
        f"{limit.batch_size}, {limit.precision}, {limit.started[:10]}{rough}: `limit`); a row's batch and precision "
        "may differ, and near 100% the windows of both overlap.\n"
    )


def _tables(names: Sequence[Text], groups: Iterable[list[Column]], to: Console) -> list[Table]:
    """As few tables as the console's width allows, each of one group of columns or more, in order."""
    tables: list[list[Column]] = []
    for group in groups:
        joined = [*tables[-1], *group] if tables else group
        width = to.measure(_table(names, joined), options=to.options.update(max_width=1000)).maximum
        if tables and width <= to.width:
            tables[-1] = joined
        else:
            tables.append(group)
    return [_table(names, group) for group in tables]


def _table(names: Sequence[Text], group: Iterable[Column]) -> Table:
    headers = [column.header if "\n" in column.header else f"\n{column.header}" for column in group]
    table = plain_table("\nstep", headers)
    for cells in zip(names, *(column.cells for column in group), strict=True):
        table.add_row(
            *(Text(cell, "dim") if isinstance(cell, str) and cell.startswith("~") else cell for cell in cells)
        )
    return table


def _marked(result: Result, numbered: Sequence[str]) -> Text:
    """A step's name with the numbers of its notes."""
    marks = ",".join(str(number) for number, note in enumerate(numbered, start=1) if note in result.notes)
    return Text.assemble(printable(result.step), (f" [{marks}]" if marks else "", "dim"))
