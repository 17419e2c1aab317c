"""Blocks of the GPU memory that `fit` predicts, next to what others published and what was measured."""

from collections.abc import Callable, Iterable
from functools import wraps

from labs.memory.published import MEMORY
from tools.docs.gpu_memory import Fit
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.markdown import code, escaped
from walkthrough.memory.fit import CONTEXT_BYTES, GPUS, Prediction
from walkthrough.memory.tracker import KINDS

COMMAND = "`python -m tools.docs.gpu_memory`"
FIGURE = "gpu_memory.svg"


def shows_fit(block: Callable[[Fit, Course], str]) -> Callable[[Course], str]:
    """Make a block of a function of what is predicted; it names the command where nothing was."""

    @wraps(block)
    def of_course(course: Course) -> str:
        return block(course.fit, course) if course.fit else f"*Not recorded: {COMMAND}.*"

    return of_course


@shows_fit
def gpu_memory(fit: Fit, course: Course) -> str:
    """Every program with its own settings: what it allocates at the peak, by kind, and reserves."""
    rows = [
        [
            _name(one),
            str(one.batch_size),
            one.precision,
            *(_gb(size) for size in (one.peak_bytes, *one.by_kind.values(), one.reserved_bytes)),
        ]
        for one in fit.predictions
        if not one.words
    ]
    headers = ["program", ">batch", "precision", ">peak GB", *(f">{kind}" for kind in KINDS), ">reserved GB"]
    failed = [f"{code(program)} is not predicted: {escaped(why)}." for program, why in fit.failed.items()]
    return "\n\n".join([markdown.table(headers, rows), *failed, f"*torch {escaped(fit.environment.torch)}.*"])


@shows_fit
def gpu_memory_published(fit: Fit, course: Course) -> str:
    """Beside every published figure: what is predicted, the way that figure counts."""
    rows = []
    for one in MEMORY:
        known = fit.find(one.program, one.words)
        predicted = known and {"allocated": known.peak_bytes, "reserved": known.reserved_bytes}[one.counts]
        rows.append(
            [
                code(" ".join([one.program, *one.words])),
                one.counts,
                f"{one.memory_gb:.2f}",
                _gb(predicted) if predicted else "-",
                f"{predicted / 1e9 / one.memory_gb - 1:+.1%}" if predicted else "not predicted",
                _gb(known.peak_bytes) if known else "-",
            ]
        )
    headers = ["program", "counts", ">published GB", ">predicted GB", ">off by", ">allocated GB, predicted"]
    return markdown.table(headers, rows)


@shows_fit
def gpu_memory_measured(fit: Fit, course: Course) -> str:
    """Beside the allocator's peak in every record of a GPU: what was predicted for it."""
    tables = []
    for shown in course.records:
        pairs = [
            (row.result, predicted) for row in shown.ladder.rows
            if shown.device_type == "cuda" and (predicted := fit.gpu_bytes(row.result))
        ]  # fmt: skip
        if pairs:
            rows = [
                [code(result.step), _gb(measured), _gb(predicted), f"{predicted / measured - 1:+.1%}"]
                for result, predicted in pairs
                for measured in [result.peak_memory_bytes.allocated]
            ]
            device = escaped(shown.ladder.baseline.device)
            table = markdown.table(["step", ">measured GB", ">predicted GB", ">off by"], rows)
            tables.append(f"Allocated at the peak on {device}:\n\n{table}")
    if not tables:
        return "*No GPU has been recorded yet, so there is no measured peak to compare with.*"
    return "\n\n".join(tables)


@shows_fit
def gpu_memory_largest(fit: Fit, course: Course) -> str:
    """The largest batch on common GPUs, for every program with which it was sought."""
    sought = [one for one in fit.predictions if one.largest]
    if not sought:
        return f"*Not recorded: {COMMAND}.*"
    rows = [
        [_name(one), *(str(one.largest.get(str(memory), "-")) for memory in GPUS.values())]
        for one in _different(sought)
    ]
    return markdown.table(["program", *(f">{name}" for name in GPUS)], rows)


@shows_fit
def gpu_memory_figure(fit: Fit, course: Course) -> str:
    """The figure of `gpu_memory`."""
    parts = "; ".join(
        f"{one.program} {one.peak_bytes / 1e9:.2f} GB, activations {one.by_kind['activations'] / 1e9:.2f}"
        for one in fit.predictions
        if not one.words
    )
    return f"![{escaped(f'Bars: GB predicted on a GPU, by what holds it. {parts}.')}]({course.to_docs}figures/{FIGURE})"


def gpu_context(course: Course) -> str:
    """What is added for a CUDA context."""
    return f"A context is taken to be {CONTEXT_BYTES / 1e9:.2f} GB."


BLOCKS = (gpu_memory, gpu_memory_published, gpu_memory_measured, gpu_memory_largest, gpu_memory_figure, gpu_context)


def _different(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those whose largest batches differ from those of the program before."""
    kept: list[Prediction] = []
    for one in predictions:
        if not kept or one.largest != kept[-1].largest:
            kept.append(one)
    return kept


def _name(one: Prediction) -> str:
    return code(" ".join([one.program or "", *one.words]))


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
