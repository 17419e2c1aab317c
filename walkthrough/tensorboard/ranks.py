"""The ranks of one training side by side, from what has been read of each rank's trace."""

import gzip
from typing import Any

import msgspec

from walkthrough.advice import ranks
from walkthrough.results.errors import printable
from walkthrough.results.folder import of_training
from walkthrough.tensorboard.runs import Run
from walkthrough.tensorboard.store import Store
from walkthrough.trace.units import micro_sign

MOST = 64  # traces that are compared: each is read


class _Digest(msgspec.Struct):
    """What is used of a trace's digest; see walkthrough/advice/digest.py."""

    rank: ranks.Rank | None
    collectives: dict[str, dict[str, list[float]]]
    partial: bool
    sampled: bool
    typical: dict[str, Any]
    verdict: str


_decode = msgspec.json.Decoder(_Digest).decode


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
    newest: dict[int, tuple[str, _Digest]] = {}
    for path, state, answer in answers:
        name = printable(path.name)
        if state != "ready" or not isinstance(answer, bytes):
            problems.append(f"{name} is left out: {answer}")
            continue
        digest = _decode(gzip.decompress(answer))
        if digest.rank is None:
            problems.append(f"{name} is left out: it names no rank")
        elif digest.partial:
            problems.append(f"{name} is left out: a part of it is missing")
        elif digest.rank.rank not in newest:  # the newest first
            newest[digest.rank.rank] = path.name, digest
    return {"state": "ready", "problems": problems} | _compared(dict(sorted(newest.items())))


def _compared(newest: dict[int, tuple[str, _Digest]]) -> dict[str, Any]:
    """newest: {rank: (file, digest)}. Where a trace is a sample of its events, nobody can tell who waits for whom."""
    rows = [digest.rank for _, digest in newest.values() if digest.rank]
    if not rows:
        return {"ranks": [], "difference": "", "advice": "", "straggler": None, "verdict": "", "no_waits": ""}
    sampled = any(digest.sampled for _, digest in newest.values())
    waits = ranks.waits({rank: digest.collectives for rank, (_, digest) in newest.items()})
    if sampled:
        waits = ranks.Waits({}, "events are missing in the traces")
    last = None if sampled else ranks.straggler(rows)
    first = last or max(rows, key=lambda row: row.step_us)
    table = [
        msgspec.structs.asdict(row)
        | {"trace": newest[row.rank][0], "parts_us": newest[row.rank][1].typical["parts_us"]}
        | {"wait_us": waits.us.get(row.rank)}
        for row in rows
    ]
    return {
        "ranks": table,
        "difference": ranks.difference(rows),
        "advice": "" if sampled else micro_sign(ranks.advice(rows)),
        "straggler": last and last.rank,
        "first": first.rank,
        "verdict": newest[first.rank][1].verdict,
        "no_waits": waits.why,
    }
