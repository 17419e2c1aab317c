"""What to do about a trace: `report_of(path)`, the dictionary that `explain` prints. numpy is imported when asked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walkthrough.trace.analysis import Analysis


def analysis_of(path: str | Path, max_size: int | None = None) -> "Analysis":
    """A trace file, analysed. Raises InputError where it cannot be read, or holds more bytes of JSON than max_size."""
    from walkthrough.trace.chrome_trace import MAX_SIZE, Chunks

    chunks = Chunks(path, max_size or MAX_SIZE)  # decompresses while numpy is imported

    from walkthrough.trace.analysis import analyze

    return analyze(chunks)


def report_of(path: str | Path, max_size: int | None = None) -> dict[str, Any]:
    """The report of a trace file: see `report.report`. Raises InputError where it cannot be read."""
    analysis = analysis_of(path, max_size)

    from walkthrough.advice.report import report

    return report(analysis)


def page_of(path: str | Path, max_size: int | None = None) -> dict[str, Any]:
    """The same with all that a page shows: see `report.page`."""
    analysis = analysis_of(path, max_size)

    from walkthrough.advice.report import page

    return page(analysis)


def ranks_in(folder: str | Path) -> dict[int, Path]:
    """The newest trace of training of each rank in a folder, by rank; {} if the traces name no ranks."""
    from walkthrough.results.folder import of_training, traces_in
    from walkthrough.trace.reader import rank_of

    traces = of_training(traces_in(folder))
    ranks: dict[int, Path] = {}
    for path in traces if len(traces) > 1 else ():
        rank = rank_of(path)
        if rank is not None:
            ranks.setdefault(rank, path)
    return dict(sorted(ranks.items()))
