"""What `sweep` found, as a table in the terminal and in sentences, understandable without the docs."""

from rich.markup import escape
from rich.text import Text

from common.explain.terminal import plain_table

HEADERS = [
    "\nbatch", "\npinned", "\nimages/s", "\nrange", "\nof best", "\ncores", "worker\nPSS MB", "worker\nRSS MB",
    "trainer\nRSS MB", "all\nPSS MB",
]  # fmt: skip


def print_sweep(found, to):
    """Print a `sweep_record.Sweep` to the console `to`."""
    to.print(f"\n[bold]{escape(sweep_title(found))}[/] ({found.environment.cores} CPU cores), torch "
             f"{escape(found.environment.torch)}; trained as in step 07\n")  # fmt: skip
    to.print(cells_table(found))
    to.print(f"\n[bold]{escape(verdict(found))}[/]")
    for cell in found.cells:
        if cell.failed is not None:
            to.print(Text(f"Failed: {told_setting(cell)}: {cell.failed}.", "red"))
    for note in found.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    several = len(found.best.runs) > 1
    to.print(
        Text(
            f"images/s: {'the median run; range: over the runs' if several else 'the median window; range: of windows'}"
            ". cores: in use; CPU seconds of the training process and its workers over the time of the windows. PSS: "
            "proportional memory, shared pages divided among their users; RSS: on_device, shared pages counted "
            "in each; trainer: the training process; all: it and every worker.",
            "dim",
        )
    )


def cells_table(found):
    """Every cell's speed, cores and memory, a row each."""
    table = plain_table("\nworkers", HEADERS)
    for cell in found.cells:
        setting = [str(cell.workers), str(cell.batch_size), "yes" if cell.pin_memory else "no"]
        if cell.failed is not None:
            table.add_row(*setting, "failed", *[""] * 6)
            continue
        table.add_row(
            *setting,
            f"{cell.median:.1f}",
            f"{cell.low:.1f} to {cell.high:.1f}",
            f"{cell.median / found.best.median:.2f}x",
            "-" if cell.cores is None else f"{cell.cores:.1f}",
            *(_mb(size) for size in (cell.worker_pss, cell.worker_rss, cell.process_rss, cell.total_pss)),
            style="bold" if cell is found.best else None,
        )
    return table


def sweep_title(found):
    """What was measured: model, data, image size, precision, device."""
    data = "CIFAR-10" if found.data == "cifar10" else "stand-in data (not CIFAR-10)"
    return f"{found.model}, {data}, {found.image_size} px, {found.precision}, on {found.device}"


def told_setting(cell):
    """A cell's setting in words: "2 workers, batch 64, pinned"."""
    return f"{_workers(cell.workers)}, batch {cell.batch_size}{', pinned' if cell.pin_memory else ''}"


def verdict(found):
    """The best cell, whether it can be told from its neighbours, and what more workers than it has cost."""
    best, told = found.best, []
    even = [cell for cell in found.neighbours(best) if not best.faster_than(cell)]
    if even:
        told.append(f"not told apart from {'; '.join(f'{told_setting(cell)} ({cell.median:.1f})' for cell in even)}")
    elif found.neighbours(best):
        told.append("faster than each of its neighbours, beyond the ranges")
    sentence = f"Best: {told_setting(best)}: {best.median:.1f} images/s ({best.low:.1f} to {best.high:.1f})"
    return f"{'; '.join([sentence, *told])}. {_more_workers(found, best)}"


def _more_workers(found, best):
    row = [each for each in found.measured if (each.batch_size, each.pin_memory) == (best.batch_size, best.pin_memory)]
    most = max(row, key=lambda cell: cell.workers)
    if most.workers == best.workers:
        for cell in found.cells:
            if cell.failed and cell.batch_size == best.batch_size and cell.workers > best.workers:
                return f"With {_workers(cell.workers)} it failed: {cell.failed}."
        return f"More than {_workers(best.workers)} were not measured with that batch size: --workers-list does."
    ratio = most.median / best.median
    speed = f"{1 - ratio:.0%} slower" if best.faster_than(most) else f"{ratio:.2f}x as fast, which is within the ranges"
    sentence = f"With {_workers(most.workers)} instead it is {speed}"
    if None in (best.total_pss, most.total_pss):
        return f"{sentence}."
    more = (most.total_pss - best.total_pss) / 1e6
    return f"{sentence}, and takes {abs(more):,.0f} MB {'more' if more >= 0 else 'less'} memory in all."


def _workers(number):
    return f"{number} worker{'' if number == 1 else 's'}"


def _mb(size):
    return "-" if size is None else f"{size / 1e6:.0f}"
