"""What `overhead` found, as a table in the terminal, understandable without the docs."""

import statistics

from rich.markup import escape
from rich.text import Text

from common.explain.terminal import plain_table
from common.ladder.table import UNSTEADY
from common.studies.overhead.record import OFF_AGAIN

HEADERS = ["step ms", "x off", "range", "us an event", "stop, write s", "MB a step", "gzip MB", "events a step"]


def print_overhead(found, to):
    """Print an `overhead_record.Overhead` to the console `to`."""
    to.print(
        f"\n[bold]{escape(found.model)}[/], batch {found.batch_size}, {found.image_size} px, {found.precision}, on "
        f"[bold]{escape(found.device)}[/] ({found.environment.cores} CPU cores), torch "
        f"{escape(found.environment.torch)}; one batch on the device, {found.steps} "
        f"step{'' if found.steps == 1 else 's'} in each of {found.runs} runs\n"
    )
    to.print(modes_table(found))
    to.print(f"\n[bold]{escape(verdict(found))}[/]")
    low, high = found.noise
    if (high - low) / 2 > UNSTEADY:
        to.print(Text("UNSTEADY: something else kept this machine busy. Run it again.", "red"))
    to.print(f"Before this process had ever traced, a step took {found.before_ms:.1f} ms.")
    for mode in found.modes:
        if mode.not_measured is not None:
            to.print(Text(f"Not measured: {mode.name}: {mode.not_measured}.", "yellow"))
    for note in found.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    to.print(Text(_legend(found), "dim"))


def modes_table(found):
    """What each way of tracing costs, a row each."""
    table = plain_table("tracing", HEADERS)
    for mode in found.modes:
        if mode.not_measured is not None:
            table.add_row(mode.name, "-", "not measured", *[""] * 6)
            continue
        event_us = found.event_us(mode)
        table.add_row(
            mode.name,
            f"{statistics.median(mode.step_ms):.1f}",
            f"{mode.ratio:.2f}x",
            f"{min(mode.ratios):.2f} to {max(mode.ratios):.2f}",
            "-" if event_us is None else f"{event_us:.1f}",
            f"{statistics.median(mode.finish_seconds):.2f}" if mode.finish_seconds else "-",
            _mb(mode.json_bytes_per_step),
            _mb(mode.gzip_bytes_per_step),
            "-" if mode.events_per_step is None else f"{mode.events_per_step:,.0f}",
        )
    return table


def verdict(found):
    """Which modes were slower than the control in every run, and by how much, in a few sentences."""
    low, high = found.noise
    noise = f"the control, which traces nothing either, took {low:.2f} to {high:.2f}x as long: that much is noise"
    traced = [mode for mode in found.modes[2:] if mode.not_measured is None]
    slower = sorted((mode for mode in traced if found.slower(mode)), key=lambda mode: mode.ratio)
    even = [mode.name for mode in traced if not found.slower(mode)]
    told = [f"{noise[0].upper()}{noise[1:]}."]
    if slower:
        told.append(f"Beyond it, cheapest first: {', '.join(f'{mode.name} {mode.ratio:.2f}x' for mode in slower)}.")
    if even:
        told.append(f"Not told from noise: {', '.join(even)}.")
    return " ".join(told)


def _legend(found):
    switches = "\n".join(f"{mode.name}: {mode.switches}" for mode in found.modes[2:])
    return (
        f"{switches}\n"
        "step ms: of the median run, while tracing; x off: over the same run's steps without tracing, the median run; "
        f"range: over the runs. {OFF_AGAIN}: a second measurement without tracing, the control.\n"
        "us an event: what a step takes longer, over its events. The cost is an operator's, not an image's: steps of "
        "larger batches have as many events and show a smaller ratio.\n"
        "stop, write: until the trace is on disk, after the steps, and not in their times. MB, events: of the trace "
        "as JSON and compressed, its fixed part included.\n"
        "+ modules: with_modules sees TorchScript models only and is deprecated; the modules of others come with the "
        "stacks. as the steps: what every step of the course records; with --stacks also the stacks of operators."
    )


def _mb(size):
    return "-" if size is None else f"{size / 1e6:.2f}"
