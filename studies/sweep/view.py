"""A sweep as a table in the terminal and in sentences, understandable without the docs."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from studies import study
from studies.study import ratio_cell, workers_text
from studies.sweep.record import Cell, Sweep
from walkthrough.results.result import data_label
from walkthrough.terminal import plain_table

HEADERS = ["images/s", "of best", "cores", "worker\nPSS MB", "worker\nRSS MB", "trainer\nRSS MB", "all\nPSS MB"]


def show(sweep: Sweep, to: Console) -> None:
    """Print a `Sweep` to the console `to`."""
    to.print(f"\n[bold]{escape(sweep_title(sweep))}[/] ({sweep.environment.cores} CPU cores), torch "
             f"{escape(sweep.environment.torch)}; trained as in step 05\n")  # fmt: skip
    to.print(cells_table(sweep))
    to.print(f"\n[bold]{escape(verdict(sweep))}[/]")
    for cell in sweep.cells:
        if cell.failed is not None:
            to.print(Text(f"Failed: {cell.setting}: {cell.failed}.", "red"))
    study.print_unsteady((run.windows for cell in sweep.measured for run in cell.runs), to)
    study.print_notes(sweep.notes, to)
    runs = len(sweep.best.runs)
    interval = (
        f"mean over {runs} runs and 95 % interval"
        if runs > 1
        else "and the 95 % interval by the windows of one run, which says nothing of how runs differ"
    )
    to.print(
        Text(
            f"images/s: the median {'run' if runs > 1 else 'window'}. of best: over the fastest cell, {interval}; ~, "
            "grey: no measurable difference. cores: in use; CPU seconds of the training process and its workers over "
            "the time of the windows. PSS: proportional memory, shared pages divided among their users; "
            "RSS: resident, shared pages counted in each; trainer: the training process; all: it and every worker.",
            "dim",
        )
    )


def cells_table(sweep: Sweep) -> Table:
    """Every cell's speed, cores and memory, a row each; whether memory is pinned only where both were measured."""
    both = len(sweep.pin_memory) > 1
    headers = ["batch", *(["pinned"] if both else []), *HEADERS]
    table = plain_table("\nworkers", [header if "\n" in header else f"\n{header}" for header in headers])
    table.columns[headers.index("of best") + 1].min_width = len("(0.00-0.00)")
    for cell in sweep.cells:
        setting = [str(cell.workers), str(cell.batch_size), *(["yes" if cell.pin_memory else "no"] if both else [])]
        if cell.failed is not None:
            table.add_row(*setting, "failed", *[""] * 6)
            continue
        table.add_row(
            *setting,
            f"{cell.median:.1f}",
            "best" if cell is sweep.best else ratio_cell(sweep.of_best(cell)),
            "-" if cell.cores is None else f"{cell.cores:.1f}",
            *(study.mb_text(size) for size in (cell.worker_pss, cell.worker_rss, cell.process_rss, cell.total_pss)),
            style="bold" if cell is sweep.best else None,
        )
    return table


def sweep_title(sweep: Sweep) -> str:
    """What was measured: model, data, image size, precision, device."""
    setup = sweep.setup
    return f"{setup.model}, {data_label(setup.data or '')}, {setup.image_size} px, {sweep.precision}, on {setup.device}"


def verdict(sweep: Sweep) -> str:
    """The best cell, whether it is measurably faster than its neighbours, and what more workers than it has cost."""
    best = sweep.best
    sentence = f"Best: {best.setting}: {best.median:.1f} images/s ({best.low:.1f} to {best.high:.1f})"
    neighbours = sweep.neighbours(best)
    even = [cell for cell in neighbours if not best.faster_than(cell)]
    if even:
        sentence += f"; no measurable difference to {', '.join(f'{cell.setting}: {best.over(cell)}' for cell in even)}"
    elif neighbours:
        least = min((best.over(cell) for cell in neighbours), key=lambda ratio: ratio.ratio)
        sentence += f"; faster than each of its neighbours, by {least} at least"
    return f"{sentence}. {_more_workers(sweep, best)}"


def _more_workers(sweep: Sweep, best: Cell) -> str:
    row = [cell for cell in sweep.measured if cell.setting[1:] == best.setting[1:]]
    most = max(row, key=lambda cell: cell.workers)
    if most.workers == best.workers:
        for cell in sweep.cells:
            if cell.failed and cell.batch_size == best.batch_size and cell.workers > best.workers:
                return f"With {workers_text(cell.workers)} it failed: {cell.failed}."
        return f"More than {workers_text(best.workers)} were not measured with that batch size: --workers-list does."
    sentence = f"With {workers_text(most.workers)} instead it is {most.over(best)} as fast"
    if best.total_pss is None or most.total_pss is None:
        return f"{sentence}."
    more = (most.total_pss - best.total_pss) / 1e6
    return f"{sentence}, and takes {abs(more):,.0f} MB {'more' if more >= 0 else 'less'} memory in all."
