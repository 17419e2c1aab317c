"""A ladder as a table in the terminal, understandable without the docs."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.errors import printable
from common.explain.terminal import plain_table
from common.ladder import published
from common.ladder.columns import COMPARED, LIMIT, MEASURED, RUNS, TRACED, Column, Limit, columns, rows_of
from common.ladder.compare import GpuUse, Ladder, RunSpread, half_spread, is_first_step
from common.record import Result
from common.run.not_run import NotRun

UNSTEADY = 0.25  # half the range of a run's windows over their median: beyond it the figures mean little

OF_RUNS = "mean of runs: of the medians of n runs, interleaved with the other steps', ± half their range.\n"
OF_DRIFT = "How the machine drifts from one run to the next is not in that range: `record` measures it.\n"
NO_EFFECT = (
    "A step whose change has no effect on this device (see its note) differs from the one before by that drift alone.\n"
)
OF_TRACES = "GPU busy, Tensor Cores: of the traced steps and of their kernels' time; `explain` shows more.\n"
NO_GPU = "No GPU, so no columns on how busy it was and its Tensor Cores; `explain` shows where the time went.\n"


def print_ladders(
    ladders: Sequence[Ladder],
    to: Console,
    used: Mapping[str, GpuUse] | None = None,
    runs: Mapping[str, RunSpread] | None = None,
    limit: Limit | None = None,
    missing: Sequence[NotRun] = (),
) -> None:
    """Print every ladder with its notes to the console `to`.

    used, runs: see `columns.columns`. limit: shown with the ladders of its setup. missing: the steps of the first
    ladder that were not run.
    """
    if len(ladders) > 1:
        to.print(
            f"\nThese runs make {len(ladders)} ladders: they differ in device, data, model or image size. "
            "Each has a table of its own, and no figure compares one with another."
        )
    for number, ladder in enumerate(ladders):
        its_limit = limit if limit and limit.setup.matches(ladder.baseline.setup) else None
        _print_ladder(ladder, to, used or {}, runs or {}, its_limit, () if number else missing)


def _print_ladder(
    ladder: Ladder,
    to: Console,
    used: Mapping[str, GpuUse],
    runs: Mapping[str, RunSpread],
    limit: Limit | None,
    missing: Sequence[NotRun],
) -> None:
    base = ladder.baseline
    steps = {row.result.step for row in ladder.rows}
    groups = [MEASURED]
    groups += [RUNS] if steps & runs.keys() else []
    groups += [TRACED] if steps & used.keys() else []
    groups += [COMPARED, *([LIMIT] if limit else [])]
    by_name = columns(ladder, runs, used, limit, missing)
    notes = list(dict.fromkeys(note for row in ladder.rows for note in row.result.notes))
    everywhere = [note for note in notes if all(note in row.result.notes for row in ladder.rows)]
    numbered = [note for note in notes if note not in everywhere]
    names = [
        Text(printable(row.step, 80)) if isinstance(row, NotRun) else _marked(row.result, numbered)
        for row in rows_of(ladder, missing)
    ]
    to.print(
        f"\n[bold]{escape(base.model)}[/], {base.data_label}, {base.image_size} px, on [bold]{escape(base.device)}[/] "
        f"({base.environment.cores} CPU cores), torch {escape(base.environment.torch)}\n"
    )
    for table in _tables(names, [[by_name[name] for name in group] for group in groups], to):
        to.print(table)
        to.print()
    if max(half_spread(row.result) for row in ladder.rows) > UNSTEADY:
        to.print(
            Text(
                "UNSTEADY: windows of one run differ widely, so something else kept this machine busy. Run it again.",
                "red",
            )
        )
    if not is_first_step(base):
        to.print(Text(f"No run of 00_baseline is here: everything is relative to {base.step}.", "yellow"))
    for note in everywhere:
        to.print(Text(f"All: {note}.", "yellow"))
    for number, note in enumerate(numbered, start=1):
        to.print(Text(f"[{number}] {note}", "yellow"))
    for not_run in missing:
        to.print(Text(f"{printable(not_run)}.", "yellow"))
    to.print(Text(_legend(base, groups, limit), "dim"))


def _legend(base: Result, groups: Collection[tuple[str, ...]], limit: Limit | None) -> str:
    on_cpu = base.device_type == "cpu"
    memory = "the profiler's peak (weights not in it)" if on_cpu else "the GPU allocator's peak"
    return (
        "images/s: median timed window, no profiler running, ± half the windows' range. "
        f"batch MB: what a batch moves to the device. memory: {memory}.\n"
        "1.39x (1.31-1.48): times as fast, and the range the windows allow; no difference: that range contains 1.\n"
        f"{OF_RUNS if RUNS in groups else OF_DRIFT}{NO_EFFECT if on_cpu else ''}{_of_limit(limit) if limit else ''}"
        f"{OF_TRACES if TRACED in groups else NO_GPU if on_cpu else ''}"
        f"original: as published for a {published.DEVICE} at 224 px, against its own baseline; not measured here."
    )


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
        table.add_row(*cells)
    return table


def _marked(result: Result, numbered: Sequence[str]) -> Text:
    """A step's name with the numbers of its notes."""
    marks = ",".join(str(number) for number, note in enumerate(numbered, start=1) if note in result.notes)
    return Text.assemble(result.step, (f" [{marks}]" if marks else "", "dim"))
