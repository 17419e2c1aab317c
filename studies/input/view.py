"""The result of `limit --input` as a table in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from studies import study
from studies.input.record import InputLimit, compared, over_model
from studies.study import ratio_cell
from walkthrough.results.result import data_label
from walkthrough.terminal import plain_table


def show(result: InputLimit, to: Console) -> None:
    """Print an `InputLimit` on a console."""
    setup, environment = result.setup, result.environment
    to.print(
        f"\n[bold]{escape(data_label(str(setup.data)))}[/], batch {result.batch_size}, {setup.image_size} px, uint8"
        f"{', pinned' if result.pin_memory else ''}, on [bold]{escape(environment.cpu)}[/] "
        f"({environment.cores} CPU cores), torch {escape(environment.torch)}; nothing trains meanwhile\n"
    )
    to.print(delivered_table(result))
    model = result.model_alone
    speed = model.samples_per_second
    to.print(
        f"\nThe model alone, {escape(setup.model)} on {escape(setup.device)}: "
        f"[bold]{speed.median:.1f} images/s[/] (windows {min(speed.windows):.1f} to {max(speed.windows):.1f}; "
        f"{model.kind}, {model.precision}, batch {model.batch_size}; {escape(model.source)})."
    )
    without_workers = next((delivered for delivered in result.delivered if delivered.workers == 0), None)
    if without_workers is not None and result.device_type == "cpu":
        both = 1 / (1 / without_workers.samples_per_second.median + 1 / speed.median)
        to.print(f"Without workers the two take turns: {both:.1f} images/s, by arithmetic.")
    to.print(f"[bold]{escape(result.bottleneck[0].upper() + result.bottleneck[1:])}.[/]")
    rates = [model.samples_per_second, *(delivered.samples_per_second for delivered in result.delivered)]
    study.print_unsteady((rate.windows for rate in rates), to)
    study.print_notes(result.notes, to)
    to.print(
        Text(
            "images/s: median window. of the model: over the images/s of the model alone, and the 95 % interval by the "
            "windows of one run each, which says nothing of how runs differ; ~, grey: no measurable "
            "difference. start-up: until the first batch. RSS: a worker's resident memory; PSS: the same, shared pages "
            "divided among their users.",
            "dim",
        )
    )


def delivered_table(result: InputLimit) -> Table:
    """What the input alone delivers, a row for each number of workers."""
    table = plain_table(
        "workers", ["images/s", "windows", "of the model", "start-up s", "worker RSS MB", "worker PSS MB", "input is"]
    )
    for delivered in result.delivered:
        speed, memory = delivered.samples_per_second, delivered.worker_bytes
        table.add_row(
            str(delivered.workers),
            f"{speed.median:.1f}",
            f"{min(speed.windows):.1f} to {max(speed.windows):.1f}",
            ratio_cell(over_model(delivered, result.model_alone)),
            f"{delivered.start_seconds:.2f}",
            study.mb_text(memory and memory.rss),
            study.mb_text(memory and memory.pss),
            compared(delivered, result.model_alone),
        )
    return table
