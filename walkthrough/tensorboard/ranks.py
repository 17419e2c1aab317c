"""The ranks of one training side by side, from what has been read of each rank's trace."""

import gzip
from typing import Any

import msgspec

from walkthrough.advice import comparison
from walkthrough.results.errors import printable
from walkthrough.results.folder import of_training
from walkthrough.tensorboard.runs import Run
from walkthrough.tensorboard.store import Store
from walkthrough.trace.units import micro_sign

MOST = 64  # traces that are compared: each is read


class _Report(msgspec.Struct):
    """What is used of a trace's numbers; see `report.tables`."""

    rank: dict[str, Any] | None
    collectives: dict[str, dict[str, list[float]]]
    partial: bool
    sampled: bool
    typical: dict[str, Any]
    verdict: str


_decode = msgspec.json.Decoder(_Report).decode


def compared(run: Run, store: Store) -> dict[str, Any]:
    """{"state": "reading", "reading": n} until all traces are read, then the comparison.

    ranks: [{rank, trace, step_us, parts_us, …, wait_us or null}]; difference, advice: texts, as `explain` prints them;
    straggler: its rank or null; verdict: of that rank, else of the slowest; problems: which traces are left out, and
    why; no_waits: why the ranks' waits are not known, "" where they are.
    """
    paths = of_training(list(run.traces.values()))
    answers = [(path, *store.get("digest", path)) for path in paths[:MOST]]
    if any(state == "reading" for _, state, _ in answers):
        return {"state": "reading", "reading": store.reading}
    problems = [f"only the newest {MOST} of {len(paths)} traces are compared"] if len(paths) > MOST else []
    newest: dict[int, tuple[str, _Report]] = {}
    for path, state, answer in answers:
        name = printable(path.name)
        if state != "ready" or not isinstance(answer, bytes):
            problems.append(f"{name} is left out: {answer}")
            continue
        report = _decode(gzip.decompress(answer))
        if report.rank is None:
            problems.append(f"{name} is left out: it names no rank")
        elif report.partial:
            problems.append(f"{name} is left out: a part of it is missing")
        elif report.rank["rank"] not in newest:  # the newest first
            newest[report.rank["rank"]] = path.name, report
    return {"state": "ready", "problems": problems} | _compared(dict(sorted(newest.items())))


def _compared(newest: dict[int, tuple[str, _Report]]) -> dict[str, Any]:
    """newest: {rank: (file, its numbers)}."""
    if not newest:
        return {"ranks": [], "difference": "", "advice": "", "straggler": None, "verdict": "", "no_waits": ""}
    complete = not any(report.sampled for _, report in newest.values())
    both = comparison.ranks({rank: msgspec.structs.asdict(report) for rank, (_, report) in newest.items()}, complete)
    rows = [row | {"trace": newest[row["rank"]][0]} for row in both["ranks"]]
    return both | {"ranks": rows, "advice": micro_sign(both["advice"])}
