"""One training step of a trace as shares of its time, small enough to keep: what the README's picture shows.

Traces that others published are not kept here. `logs/reference/first_trace.json` holds addresses, SHA-256 and strips
of two of them:

    python -m common.course.first_trace FOLDER     compute them anew from the traces in a folder, whatever their names
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from common import record
from common.course.others import traces_in
from common.course.recorded import RECORDS
from common.errors import InputError, one_line_errors
from common.ladder.statistics import Ratio, of_windows
from common.trace.intervals import Cover
from common.trace.steps import ROLES, roles
from common.trace.summary import Summary, summarize

FILE = "first_trace.json"
BINS = 240  # parts of a step: more than a narrow picture can show
ROWS = {  # {row: the roles in any of which its time is spent}; time that waits for the loader is in no other row
    "loader": ["dataloader"],
    "CPU": ["cpu_exec", "runtime"],
    "copies": ["memcpy", "memset"],
    "kernels": ["kernel", "communication"],
}
OF_GPU = ("copies", "kernels")


class Strip(Struct, frozen=True):
    """The typical step of median length in a trace. rows: {row: percent of each of `BINS` equal parts of the step}.

    address, sha256: where it was published, and its file. device: None where the trace does not name it. busy: share of
    the steps' time in which a kernel runs, 0..1; None without a GPU. typical_us: the length of each typical step.
    verdict: of `explain`, and the first piece of its advice: what, why, and how many times as fast it expects.
    """

    address: str
    sha256: str
    device: str | None = None
    step_ms: float = 0.0
    rows: dict[str, list[int]] = {}
    busy: float | None = None
    typical_us: list[float] = []
    verdict: str = ""
    advice: str = ""
    why: str = ""
    expected: float | None = None


class Strips(Struct, frozen=True):
    """Two traces, before and after one change. caption: whose, and of what. path: of `before`, for `explain`."""

    caption: str
    path: str
    change: str
    before: Strip
    after: Strip

    @property
    def gain(self) -> Ratio:
        """The typical steps of `before` over those of `after`, with the 95 % interval over these few steps."""
        return of_windows(*([1 / us for us in strip.typical_us] for strip in (self.after, self.before)))


def read(root: Path = RECORDS) -> Strips | None:
    """What the file in a folder of records holds; None where there is none."""
    path = root / FILE
    return msgspec.json.decode(path.read_bytes(), type=Strips) if path.exists() else None


def strip(summary: Summary, address: str = "", sha256: str = "") -> Strip:
    """The `Strip` of a trace's `Summary`."""
    steps = summary.typical
    at = int(np.argsort(steps.duration, kind="stable")[len(steps.names) // 2])
    begin, end = float(steps.start[at]), float(steps.end[at])
    covers: dict[str, Cover] = dict(zip(ROLES, roles(summary.trace), strict=False))  # the last role, "other", has none
    edges = np.linspace(begin, end, BINS + 1)
    rows = {}
    for row, of_row in ROWS.items():
        if row in OF_GPU and not summary.gpus:
            continue
        taken = covers["dataloader"] if row == "CPU" else Cover()
        union = taken
        for role in of_row:
            union = union | covers[role]
        us = union.within(edges[:-1], edges[1:]) - taken.within(edges[:-1], edges[1:])
        rows[row] = np.rint(us / np.diff(edges) * 100).astype(int).tolist()
    gpu = summary.gpus[0] if summary.gpus else None
    first = summary.advice[0] if summary.advice else None
    return Strip(
        address=address,
        sha256=sha256,
        device=gpu.name if gpu else None,
        step_ms=(end - begin) / 1e3,
        rows=rows,
        busy=gpu.utilization if gpu else None,
        typical_us=steps.duration.tolist(),
        verdict=summary.verdict,
        advice=first.title if first else "",
        why=first.why if first else "",
        expected=(first.estimated_gain or first.predicted_gain) if first else None,
    )


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a trace is missing or cannot be read."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise InputError("name one folder, with the traces of the README's picture")
    traces, kept = traces_in(Path(words[0])), read()
    if kept is None:
        raise InputError(f"{RECORDS / FILE} is missing: it names the traces")
    anew = {}
    for name in ("before", "after"):
        old: Strip = getattr(kept, name)
        if old.sha256 not in traces:
            raise InputError(f"the folder lacks the trace of {old.address}")
        anew[name] = strip(summarize(traces[old.sha256]), old.address, old.sha256)
    record.write_whole(RECORDS / FILE, msgspec.json.encode(replace(kept, **anew)) + b"\n")
    print(f"written: {RECORDS / FILE}")


if __name__ == "__main__":
    main(sys.argv[1:])
