"""A ladder as a table in the terminal, understandable without the docs."""

from rich.markup import escape
from rich.text import Text

from common.errors import printable
from common.explain.terminal import plain_table
from common.ladder import published
from common.ladder.compare import is_first_step, spread

UNSTEADY = 0.25  # half the range of a run's windows over their median: beyond it the figures mean little


def print_ladders(ladders, to, used=None, runs=None, limit=None, missing=()):
    """Print every ladder with its notes to the console `to`.

    used: what traces tell, from `compare.gpu_use`. runs: of a record, from `compare.recorded_runs`. limit: what
    `python -m common limit` found, a `limit_record.Limit`; shown beside the ladders that it speaks of. missing: the
    steps of the first ladder that were not run, as `NotRun`s.
    """
    if len(ladders) > 1:
        to.print(
            f"\nThese runs make {len(ladders)} ladders: they differ in device, data, model or image size. "
            "Each has a table of its own, and no figure compares one with another."
        )
    for number, ladder in enumerate(ladders):
        its_limit = limit if limit and limit.matches(ladder.baseline) else None
        _print_ladder(ladder, to, used or {}, runs or {}, its_limit, () if number else missing)


def _print_ladder(ladder, to, used, runs, limit, missing):
    base = ladder.baseline
    notes = list(dict.fromkeys(note for row in ladder.rows for note in row.result.notes))
    everywhere = [note for note in notes if all(note in row.result.notes for row in ladder.rows)]
    numbered = [note for note in notes if note not in everywhere]
    names = [_marked(row.result, numbered) for row in ladder.rows]
    measured = [_measured(row.result) for row in ladder.rows]
    compared = [_compared(row, base) for row in ladder.rows]
    to.print(
        f"\n[bold]{escape(base.model)}[/], {base.data_label}, {base.image_size} px, on [bold]{escape(base.device)}[/] "
        f"({base.environment.cores} CPU cores), torch {escape(base.environment.torch)}\n"
    )
    parts = [(MEASURED, measured), (COMPARED, compared)]
    if limit:
        parts.append((LIMITED, [[f"{limit.of_the_floor(row.result):.0%}"] for row in ladder.rows]))
    if any(row.result.step in used for row in ladder.rows):
        parts.insert(1, (TRACED, [_traced(used.get(row.result.step)) for row in ladder.rows]))
    if any(row.result.step in runs for row in ladder.rows):
        parts.insert(1, (RUNS, [_runs(runs.get(row.result.step)) for row in ladder.rows]))
    names, parts = _with_missing(ladder, names, parts, missing)
    for table in _tables(names, parts, to):
        to.print(table)
        to.print()
    if max(_half_spread(row.result) for row in ladder.rows) > UNSTEADY:
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
    for each in missing:
        to.print(Text(f"{printable(each)}.", "yellow"))
    memory = "the GPU allocator's peak" if base.device_type == "cuda" else "the profiler's peak (weights not in it)"
    to.print(
        Text(
            "images/s: median timed window, no profiler running, ± half the windows' range. "
            f"batch MB: what a batch moves to the device. memory: {memory}.\n"
            "1.39x (1.31-1.48): times as fast, and the range the windows allow; no difference: that range holds 1.\n"
            f"{OF_RUNS if any(header is RUNS for header, _ in parts) else OF_DRIFT}"
            f"{IDLE if base.device_type == 'cpu' else ''}"
            f"{_of_limit(limit) if limit else ''}"
            f"{_of_traces(base, any(header is TRACED for header, _ in parts))}"
            f"original: as published for a {published.DEVICE} at 224 px, against its own baseline; not measured here.",
            "dim",
        )
    )


MEASURED = ["\nbatch", "batch\nMB", "memory\nMB", "step\nms", "\nimages/s"]
RUNS = ["mean of\nruns", "\nn"]
TRACED = ["GPU\nbusy", "Tensor\nCores"]
COMPARED = ["vs step\nbefore", "vs\nbaseline", "\noriginal"]
LIMITED = ["of the\nfloor"]


OF_RUNS = "mean of runs: of the medians of n runs, interleaved with the other steps', ± half their range.\n"
OF_DRIFT = "How the machine drifts from one run to the next is not in that range: `record` measures it.\n"
IDLE = "A step whose change cannot act here (see its note) differs from the one before by that drift alone.\n"


def _tables(names, parts, to):
    """As few tables as the console's width allows, each of one part or more, in order."""
    tables = []
    for header, rows in parts:
        if tables:
            headers, cells = tables[-1]
            joined = [*headers, *header], [[*before, *row] for before, row in zip(cells, rows, strict=True)]
            if to.measure(_table(*joined), options=to.options.update(max_width=1000)).maximum <= to.width:
                tables[-1] = joined
                continue
        tables.append((header, [[name, *row] for name, row in zip(names, rows, strict=True)]))
    return [_table(*each) for each in tables]


def _table(headers, rows):
    table = plain_table("\nstep", headers)
    for cells in rows:
        table.add_row(*cells)
    return table


def _with_missing(ladder, names, parts, missing):
    """Names and parts of a table with a row for each step that was not run, in its place among the others."""
    steps = [row.result.step for row in ladder.rows] + [each.step for each in missing]
    order = sorted(range(len(steps)), key=steps.__getitem__)
    names = [*names, *(Text(printable(each.step, 80)) for each in missing)]
    made = []
    for header, rows in parts:
        empty = ["-"] * (len(header) - 1) + ["not run" if header is MEASURED else "-"]
        rows = [*rows, *([empty] * len(missing))]
        made.append((header, [rows[at] for at in order]))
    return [names[at] for at in order], made


def _marked(result, numbered):
    marks = ",".join(str(number) for number, note in enumerate(numbered, start=1) if note in result.notes)
    return Text.assemble(result.step, (f" [{marks}]" if marks else "", "dim"))


def _measured(result):
    return [
        str(result.batch_size),
        f"{result.batch_bytes / 1e6:.1f}",
        f"{result.peak_memory_bytes.allocated / 1e6:.0f}",
        f"{result.step_ms.median:.1f}",
        f"{result.samples_per_second.median:.1f} ±{_half_spread(result):.0%}",
    ]


def _runs(runs):
    return [str(runs), str(runs.count)] if runs else ["-", "-"]


def _traced(used):
    shares = (used.utilization, used.tensor_cores) if used else (None, None)
    return ["-" if share is None else f"{share:.0%}" for share in shares]


def _of_traces(base, shown):
    if shown:
        return "GPU busy, Tensor Cores: of the traced steps and of their kernels' time; `explain` tells more.\n"
    if base.device_type == "cpu":
        return "No GPU, so no columns on how busy it was and its Tensor Cores; `explain` says where the time went.\n"
    return ""


def _of_limit(limit):
    floor = limit.floor
    rough = ", a smoke run" if limit.smoke else ""
    return (
        f"of the floor: images/s over those of the model alone, without input pipeline ({floor.kind}, batch "
        f"{limit.batch_size}, {limit.precision}, {limit.started[:10]}{rough}: `limit`); a row's batch and precision "
        "may differ, and near 100% the windows of both overlap.\n"
    )


def _compared(row, base):
    return [
        "" if row.gain is None else str(row.gain),
        "1.00x" if row.result is base else str(row.relative),
        f"{published.RELATIVE[row.result.step]:.2f}x"
        if row.result.step in published.RELATIVE and is_first_step(base)
        else "",
    ]


def _half_spread(result):
    low, high = spread(result)
    return (high - low) / 2 / result.samples_per_second.median
