"""What `limit --input` found, as a table in the terminal."""

from rich.markup import escape
from rich.text import Text

from common.explain.terminal import plain_table
from common.studies.input.record import judged


def print_input_limit(found, to):
    """Print an `input_limit.InputLimit` to the console `to`."""
    data = "CIFAR-10" if found.data == "cifar10" else "stand-in data (not CIFAR-10)"
    to.print(
        f"\n[bold]{data}[/], batch {found.batch_size}, {found.image_size} px, uint8"
        f"{', pinned' if found.pin_memory else ''}, on [bold]{escape(found.environment.cpu)}[/] "
        f"({found.environment.cores} CPU cores), torch {escape(found.environment.torch)}; nothing trains meanwhile\n"
    )
    to.print(delivered_table(found))
    model = found.model_alone
    windows = model.samples_per_second.windows
    to.print(
        f"\nThe model alone, {escape(found.model)} on {escape(found.device)}: "
        f"[bold]{model.samples_per_second.median:.1f} images/s[/] (windows {min(windows):.1f} to {max(windows):.1f}; "
        f"{model.kind}, {model.precision}, batch {model.batch_size}; {escape(model.source)})."
    )
    alone = next((each for each in found.delivered if each.workers == 0), None)
    if alone is not None and found.device_type == "cpu":
        both = 1 / (1 / alone.samples_per_second.median + 1 / model.samples_per_second.median)
        to.print(f"Without workers the two take turns: {both:.1f} images/s, by arithmetic.")
    to.print(f"[bold]{escape(found.bottleneck[0].upper() + found.bottleneck[1:])}.[/]")
    for note in found.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    to.print(
        Text(
            "images/s: median window. of the model: over what the model alone consumes. start-up: until the first "
            "batch. RSS: a worker's resident memory; PSS: the same, shared pages divided among their users.\n"
            "faster, slower: the windows' ranges lie apart.",
            "dim",
        )
    )


def delivered_table(found):
    """What the input alone delivers, a row for each number of workers."""
    table = plain_table(
        "workers", ["images/s", "windows", "of the model", "start-up s", "worker RSS MB", "worker PSS MB", "input is"]
    )
    model = found.model_alone
    for each in found.delivered:
        speed, memory = each.samples_per_second, each.worker_bytes
        table.add_row(
            str(each.workers),
            f"{speed.median:.1f}",
            f"{min(speed.windows):.1f} to {max(speed.windows):.1f}",
            f"{speed.median / model.samples_per_second.median:.2f}x",
            f"{each.start_seconds:.2f}",
            "-" if memory is None else f"{memory.rss / 1e6:.0f}",
            "-" if memory is None else f"{memory.pss / 1e6:.0f}",
            judged(each, model),
        )
    return table
