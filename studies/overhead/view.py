"""The result of `overhead` as a table in the terminal, understandable without the docs."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from studies import study
from studies.intervals import ratio_cell
from studies.overhead.record import OFF, OFF_AGAIN, Mode, Overhead
from walkthrough.terminal import plain_table

HEADERS = ["step ms", "x off", "us per event", "export s", "MB per step", "gzip MB", "events per step"]


def show(result: Overhead, to: Console) -> None:
    """Print an `Overhead` on a console."""
    setup, environment = result.setup, result.environment
    to.print(
        f"\n[bold]{escape(setup.model)}[/], batch {result.batch_size}, {setup.image_size} px, {result.precision}, on "
        f"[bold]{escape(setup.device)}[/] ({environment.cores} CPU cores), torch {escape(environment.torch)}; one "
        f"batch on the device, {result.steps} in each of {result.runs} runs\n"
    )
    to.print(modes_table(result))
    to.print(f"\n[bold]{escape(verdict(result))}[/]")
    study.print_unsteady([[*result.control.off_ms, *result.control.step_ms]], to, what="steps without a profiler")
    for mode in result.modes:
        if mode.not_measured is not None:
            to.print(Text(f"Not measured: {mode.name}: {mode.not_measured}.", "yellow"))
    study.print_notes(result.notes, to)
    to.print(Text(_legend(result), "dim"))


def modes_table(result: Overhead) -> Table:
    """What each way of tracing costs, a row each."""
    table = plain_table("tracing", HEADERS)
    table.add_row(OFF, f"{result.off_ms:.1f}", "1.00x", *["-"] * 5)
    for mode in result.modes:
        if mode.not_measured is not None:
            table.add_row(mode.name, "-", "not measured", *[""] * 5)
            continue
        table.add_row(
            mode.name,
            f"{statistics.median(mode.step_ms):.1f}",
            _cost_cell(mode),
            "-" if mode.us_per_event is None else f"{mode.us_per_event:.1f}",
            f"{statistics.median(mode.finish_seconds):.2f}" if mode.finish_seconds else "-",
            study.mb_text(mode.json_bytes_per_step, 2),
            study.mb_text(mode.gzip_bytes_per_step, 2),
            "-" if mode.events_per_step is None else f"{mode.events_per_step:,.0f}",
        )
    return table


def verdict(result: Overhead) -> str:
    """What the control shows, which modes are measurably slower, and by how much, in a few sentences."""
    control = result.control.cost
    if control is None:
        return "One run gives no interval, so no cost is measurable: --runs 5, say."
    text = f"The control, which traces nothing either, took {control} as long"
    text += ": it should include 1, so something else differs between runs." if control.resolved else "."
    slower = sorted((mode for mode in result.traced if mode.slower), key=lambda mode: mode.ratio)
    others = [mode for mode in result.traced if not mode.slower]
    if slower:
        text += f" Slower than without a profiler, cheapest first: {_costs(slower)}."
    if others:
        text += f" Not measurably slower: {_costs(others)}."
    return text


def _costs(modes: Sequence[Mode]) -> str:
    return ", ".join(f"{mode.name} {mode.cost}" for mode in modes)


def _cost_cell(mode: Mode) -> str:
    return f"[dim]~{mode.ratio:.2f}x[/]" if mode.cost is None else ratio_cell(mode.cost)


def _legend(result: Overhead) -> str:
    switches = "\n".join(f"{mode.name}: {mode.switches}" for mode in result.modes[1:])
    return (
        f"{switches}\n"
        "step ms: of the median run, while tracing; x off: over the steps that the same process ran before it traced, "
        "mean over the runs and 95 % interval. ~, grey: no measurable difference.\n"
        f"{OFF}: the median of all processes. {OFF_AGAIN}: the control, in processes that never trace; its interval "
        "should include 1.\n"
        "The timed steps fill a set time; there are fewer where their trace would be too large.\n"
        "us per event: what a step takes longer, over its events. The cost is per operator, not per image: steps of "
        "larger batches have as many events and show a smaller ratio.\n"
        "export: from the end of the last step until the trace is on disk. MB, events: of the trace "
        "as JSON and compressed, its fixed part included.\n"
        "+ modules: with_modules sees TorchScript models only and is deprecated; the modules of others come with the "
        "stacks. as the steps: what every step of the course records; with --stacks also the stacks of operators."
    )
