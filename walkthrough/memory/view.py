"""Predictions in the terminal, understandable without the docs."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walkthrough.compare.gpu_memory import CONTEXT_BYTES, KINDS, Fit, Prediction
from walkthrough.memory.record import GPUS, NOT_PREDICTED, TOLERANCE
from walkthrough.results.result import size_label
from walkthrough.terminal import plain_table, size_text

LEGEND = (
    "Predicted for a GPU, not measured. peak: allocated, in a training step. activations: what the forward pass keeps; "
    "other: gradients of activations and temporaries. reserved: what torch's allocator takes for it, by its rules. "
    f"A CUDA context, which nvidia-smi counts too, is taken to be {CONTEXT_BYTES / 1e9:.2f} GB (assumed, not "
    "measured by us). The largest batch: reserved and context fit."
)
WITHIN = (
    f"The largest batches of all programs are sought to within {TOLERANCE:.0%}; for one program, to the last sample."
)


def show(fit: Fit, to: Console) -> None:
    """Print the predictions of every program to the console `to`."""
    to.print()
    to.print(programs_table(fit.predictions))
    for program, why in fit.failed.items():
        to.print(Text(f"{program}: {why}.", "yellow"))
    if any(one.largest for one in fit.predictions):
        to.print(Text(WITHIN, "dim"))
    _print_notes(fit.predictions, to)


def show_one(prediction: Prediction, to: Console) -> None:
    """Print the prediction of one program to the console `to`."""
    to.print(f"\n[bold]{escape(title(prediction))}[/]\n")
    table = plain_table("", ["GB"])
    for kind in KINDS:
        table.add_row(kind, gb(prediction.by_kind[kind]))
    table.add_row("peak", gb(prediction.peak_bytes), style="bold")
    table.add_row("reserved", gb(prediction.reserved_bytes))
    table.add_row("with a CUDA context", gb(prediction.with_context))
    to.print(table)
    if prediction.largest:
        to.print()
        to.print(largest_table(prediction))
    _print_notes([prediction], to)


def title(prediction: Prediction) -> str:
    """What is predicted: program, model, image size, batch, precision."""
    program = f"{prediction.program}: " if prediction.program else ""
    return (
        f"{program}{prediction.model}, {size_label(prediction.image_size)}, batch {prediction.batch_size}, "
        f"{prediction.precision}: {size_text(prediction.peak_bytes)} predicted"
    )


def programs_table(predictions: Sequence[Prediction]) -> Table:
    """A row per program: its settings, its peak and what that is made of, GB; the largest batches, if sought."""
    budgets = list(dict.fromkeys(budget for one in predictions for budget in one.largest))
    headers = ["model", "data", "batch", "precision", "peak GB", *(f"{kind} GB" for kind in KINDS), "reserved GB"]
    table = plain_table("program", [*headers, *(f"batch in {size_text(int(budget))}" for budget in budgets)])
    for one in predictions:
        table.add_row(
            " ".join([one.program or "", *one.words]),
            *(one.model, size_label(one.image_size), str(one.batch_size), one.precision),
            *(gb(size) for size in (one.peak_bytes, *one.by_kind.values(), one.reserved_bytes)),
            *(str(one.largest.get(budget, "-")) for budget in budgets),
        )
    return table


def largest_table(prediction: Prediction) -> Table:
    """The largest batch by memory, and which GPUs have that."""
    table = plain_table("memory", ["largest batch", "GPU"])
    for budget, batch_size in prediction.largest.items():
        gpus = [name for name, memory in GPUS.items() if memory == int(budget)]
        table.add_row(size_text(int(budget)), str(batch_size or "none fits"), ", ".join(gpus))
    return table


def gb(size: int) -> str:
    """Bytes in GB, three decimals."""
    return f"{size / 1e9:.3f}"


def _print_notes(predictions: Sequence[Prediction], to: Console) -> None:
    for note in dict.fromkeys(note for one in predictions for note in one.notes):
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    to.print(Text(f"{LEGEND}\n{NOT_PREDICTED}", "dim"))
