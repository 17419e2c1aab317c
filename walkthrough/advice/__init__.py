"""What to do about a trace: `report_of(path)`, the dictionary that `explain` prints. numpy is imported when asked."""

from pathlib import Path
from typing import Any


def report_of(path: str | Path, max_size: int | None = None, name_width: int | None = None) -> dict[str, Any]:
    """The report of a trace file: see `report.report`. Raises InputError where it cannot be read.

    max_size: refuse a trace of more bytes of JSON. name_width: letters of the kernels' short names.
    """
    from walkthrough.trace.chrome_trace import MAX_SIZE, Chunks

    chunks = Chunks(path, max_size or MAX_SIZE)  # decompresses while numpy is imported

    from walkthrough.advice.report import NAME_WIDTH, report
    from walkthrough.trace.analysis import analyze

    return report(analyze(chunks), name_width or NAME_WIDTH)


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
