"""The result of `overhead` as a table in the terminal, understandable without the docs."""

import statistics

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.explain.terminal import plain_table
from common.ladder.table import UNSTEADY
from common.studies import study
from common.studies.overhead.record import OFF_AGAIN, Overhead

HEADERS = ["step ms", "x off", "range", "us per event", "export s", "MB per step", "gzip MB", "events per step"]


def show(result: Overhead, to: Console) -> None:
    """Print an `Overhead` on a console."""
    setup, environment = result.setup, result.environment
    to.print(
        f"\n[bold]{escape(setup.model)}[/], batch {result.batch_size}, {setup.image_size} px, {result.precision}, on "
        f"[bold]{escape(setup.device)}[/] ({environment.cores} CPU cores), torch {escape(environment.torch)}; one "
        f"batch on the device, {result.steps} step{'' if result.steps == 1 else 's'} in each of {result.runs} runs\n"
    )
    to.print(modes_table(result))
    to.print(f"\n[bold]{escape(verdict(result))}[/]")
    low, high = result.noise
    if (high - low) / 2 > UNSTEADY:
        to.print(Text("UNSTEADY: something else kept this machine busy. Run it again.", "red"))
    to.print(f"Before this process had ever traced, a step took {result.before_ms:.1f} ms.")
    for mode in result.modes:
        if mode.not_measured is not None:
            to.print(Text(f"Not measured: {mode.name}: {mode.not_measured}.", "yellow"))
    study.print_notes(result.notes, to)
    to.print(Text(_legend(result), "dim"))


def modes_table(result: Overhead) -> Table:
    """What each way of tracing costs, a row each."""
    table = plain_table("tracing", HEADERS)
    for mode in result.modes:
        if mode.not_measured is not None:
            table.add_row(mode.name, "-", "not measured", *[""] * 6)
            continue
        us_per_event = result.us_per_event(mode)
        table.add_row(
            mode.name,
            f"{statistics.median(mode.step_ms):.1f}",
            f"{mode.ratio:.2f}x",
            f"{min(mode.ratios):.2f} to {max(mode.ratios):.2f}",
            "-" if us_per_event is None else f"{us_per_event:.1f}",
            f"{statistics.median(mode.finish_seconds):.2f}" if mode.finish_seconds else "-",
            study.mb_text(mode.json_bytes_per_step, 2),
            study.mb_text(mode.gzip_bytes_per_step, 2),
            "-" if mode.events_per_step is None else f"{mode.events_per_step:,.0f}",
        )
    return table


def verdict(result: Overhead) -> str:
    """Which modes were slower than the control in every run, and by how much, in a few sentences."""
    low, high = result.noise
    traced = [mode for mode in result.modes[2:] if mode.not_measured is None]
    slower = sorted((mode for mode in traced if result.slower(mode)), key=lambda mode: mode.ratio)
    unresolved = [mode.name for mode in traced if not result.slower(mode)]
    text = f"The control, which traces nothing either, took {low:.2f} to {high:.2f}x as long: that much is noise."
    if slower:
        text += f" Beyond it, cheapest first: {', '.join(f'{mode.name} {mode.ratio:.2f}x' for mode in slower)}."
    if unresolved:
        text += f" Not resolved from noise: {', '.join(unresolved)}."
    return text


def _legend(result: Overhead) -> str:
    switches = "\n".join(f"{mode.name}: {mode.switches}" for mode in result.modes[2:])
    return (
        f"{switches}\n"
        "step ms: of the median run, while tracing; x off: over the same run's steps without tracing, the median run; "
        f"range: over the runs. {OFF_AGAIN}: a second measurement without tracing, the control.\n"
        "us per event: what a step takes longer, over its events. The cost is per operator, not per image: steps of "
        "larger batches have as many events and show a smaller ratio.\n"
        "export: from the end of the last step until the trace is on disk. MB, events: of the trace "
        "as JSON and compressed, its fixed part included.\n"
        "+ modules: with_modules sees TorchScript models only and is deprecated; the modules of others come with the "
        "stacks. as the steps: what every step of the course records; with --stacks also the stacks of operators."
    )
