"""What joins several traces: before and after a change, and the ranks of one training. From their reports alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from walkthrough.terminal import time_text
from walkthrough.trace import communication
from walkthrough.trace.kernels import mean_of_known

WAITING = 0.05  # of the step: ranks that wait for another so long are worth a line
ALIKE = 0.005  # of the step: step times that differ by less are the same
NEAR = 0.25  # of the way from the least time in collectives to the median: ranks so near are waited for alike
COLLECTIVE_TIMES = ("collectives_us", "exposed_us")

Report = Mapping[str, Any]  # see `report.report`
Rank = Mapping[str, Any]  # see `rank_of`
Sequences = Mapping[str, Mapping[str, Sequence[float]]]  # {step: {collective: µs of each, in order}}


def change(before: Report, after: Report) -> dict[str, Any]:
    """Two traces side by side.

    moved: [{name, before_us, after_us}], the mean typical step by role, the largest change first. figures: [{name,
    unit, before, after}], other numbers; unit: "share", "count" or "bytes". speed: how many times as fast, a text.
    caution: why they should not be compared, "" for no reason.
    """
    old, new = before["typical"]["breakdown_us"], after["typical"]["breakdown_us"]
    moved = [{"name": role, "before_us": us, "after_us": new[role]} for role, us in old.items()]
    caution, speed = _caution(before, after), _speed(before, after)
    if before["partial"] or after["partial"]:
        caution, speed = "a part of a file is missing: what is left cannot be compared", ""
    units = sorted({report["matrix_units"] for report in (before, after) if report["gpus"]}, reverse=True)
    rows = [_figures(report, " / ".join(units)) for report in (before, after)]
    return {
        "moved": sorted(moved, key=lambda row: -abs(row["after_us"] - row["before_us"])),
        "figures": [
            {"name": name, "unit": unit, "before": was, "after": now}
            for (name, unit, was), (_, _, now) in zip(*rows, strict=True)
            if was is not None or now is not None
        ],
        "speed": speed,
        "caution": caution,
    }


def _caution(before: Report, after: Report) -> str:
    if bool(before["gpus"]) != bool(after["gpus"]):
        return "one of them ran on a GPU, the other on a CPU: two machines, not a change"
    names = [{gpu["name"] for gpu in report["gpus"]} for report in (before, after)]
    if names[0] != names[1] and None not in names[0] | names[1]:
        return "two different GPUs: the difference is not only a change of the program"
    return ""


def _speed(before: Report, after: Report) -> str:
    """How many times faster, by the mean typical step: in samples/s if the batch sizes are known, else in steps/s."""
    old, new = before["typical"]["mean_us"], after["typical"]["mean_us"]
    if old <= 0 or new <= 0:
        return "no time to compare"
    old_batch, new_batch = before["samples_per_step"], after["samples_per_step"]
    old_all, new_all = before["steps"]["mean_us"], after["steps"]["mean_us"]
    typical, every = f"{old / new:.2f}x", f"{old_all / new_all:.2f}x"
    every = f" ({every} by the mean of all steps)" if every != typical else ""
    if old_batch and new_batch:
        sizes = f", with {old_batch:.4g} per step before and {new_batch:.4g} after" if old_batch != new_batch else ""
        return f"{old / new * new_batch / old_batch:.2f}x the samples/s{sizes or every}"
    return f"{typical} the steps/s{every}"


def _figures(report: Report, units: str) -> list[tuple[str, str, float | None]]:
    """(name, unit, number or None)."""
    gpus, typical = report["gpus"], report["typical"]
    return [
        ("GPU busy", "share", mean_of_known(gpu["utilization"] for gpu in gpus)),
        ("SMs at work", "share", mean_of_known(gpu["sm_efficiency"] for gpu in gpus)),
        (units, "share", mean_of_known(gpu["tensor_core_share"] for gpu in gpus)),
        ("kernels per step", "count", typical["kernel_count"] or None),
        ("bytes to the GPU per step", "bytes", typical["step_bytes"] or None),
        ("peak memory", "bytes", report["memory"]["peak_allocated_bytes"]),
    ]


def ranks(reports: Mapping[int, Report], complete: bool = True) -> dict[str, Any]:
    """The ranks of one training side by side, by their numbers.

    ranks: `rank_of` each report, and wait_us, µs per step that it waits in collectives for others, None where that is
    not known; no_waits: why not, "" where it is. difference, advice: texts. stragglers: the ranks that the others wait
    for; several where they are alike. first: the first of them, else the slowest; verdict: what bounds it.
    first_advice: what to do first, of which ranks and why. Waits are known from reports with "collectives", as
    `report.tables` has them. complete: False where a trace is a sample of its events, from which nobody can tell who
    waits for whom.
    """
    rows = [rank_of(rank, report) for rank, report in reports.items()]
    wait_us, no_waits = {}, "the reports hold no collectives" if complete else "events are missing in the traces"
    if complete and all("collectives" in report for report in reports.values()):
        wait_us, no_waits = waits({rank: report["collectives"] for rank, report in reports.items()})
    last = stragglers(rows) if complete else []
    first = last[0] if last else max(rows, key=lambda row: row["step_us"])
    return {
        "ranks": [row | {"wait_us": wait_us.get(row["rank"])} for row in rows],
        "difference": difference(rows),
        "advice": advice(rows) if complete else "",
        "stragglers": [row["rank"] for row in last],
        "first": first["rank"],
        "verdict": reports[first["rank"]]["bound"],
        "first_advice": _first_advice(reports),
        "no_waits": no_waits,
    }


def _first_advice(reports: Mapping[int, Report]) -> list[dict[str, Any]]:
    """[{title, ranks, why}]: the first piece of advice of each rank, but to compare it; those of most ranks first."""
    rows = dict[str, dict[str, Any]]()
    for rank, report in reports.items():
        for first in [item for item in report["advice"] if item["id"] != "slowest_rank"][:1]:
            row = rows.setdefault(first["id"], {"title": first["title"], "ranks": [], "why": first["why"]})
            row["ranks"].append(rank)
    return sorted(rows.values(), key=lambda row: -len(row["ranks"]))


def rank_of(rank: int, report: Report) -> dict[str, Any]:
    """What a rank is compared by: µs per typical step."""
    typical = report["typical"]
    collectives = typical["communication"] or {"us": 0.0, "exposed_us": 0.0, "hidden_us": 0.0, "do": ""}
    return {
        "rank": rank,
        "step_us": typical["mean_us"],
        "median_us": typical["median_us"],
        "parts": typical["breakdown_us"],
        "parts_us": typical["parts_us"],
        "has_gpu": bool(report["gpus"]),
        "communicates": typical["communication"] is not None,
        "collectives_us": collectives["us"],
        "exposed_us": collectives["exposed_us"],
        "hidden_us": collectives["hidden_us"],
        "ways": collectives["do"],
    }


def difference(ranks: Iterable[Rank]) -> str:
    """How much longer the slowest rank's median step takes than the fastest one's, in words."""
    times = {rank["rank"]: rank["median_us"] for rank in ranks}
    fastest = min(times, key=lambda rank: times[rank])
    spread = (max(times.values()) - times[fastest]) / max(times[fastest], 1e-9)
    if spread < ALIKE:
        return "their median steps take the same time to within 0.5 %"
    slowest = [rank for rank, us in times.items() if us >= max(times.values()) * (1 - ALIKE)]
    takes = "takes" if len(slowest) == 1 else "take"
    return f"{named(slowest)} {takes} {spread:.1%} longer per median step than rank {fastest}"


def named(ranks: Sequence[int]) -> str:
    """ "rank 0", "ranks 0 and 6", "ranks 0, 3 and 6"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def stragglers(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks that the others wait for in collectives; [] if there is none.

    They are less in collectives than any other, and what others wait longer than they is `WAITING` of a step or more.
    """
    communicating = [rank for rank in ranks if rank["communicates"]]
    if len(communicating) < 2:
        return []
    least = min(communicating, key=lambda rank: rank["collectives_us"])
    medians = {us: float(np.median([rank[us] for rank in communicating])) for us in COLLECTIVE_TIMES}
    most = {us: least[us] + NEAR * (medians[us] - least[us]) for us in COLLECTIVE_TIMES}
    last = [rank for rank in communicating if all(rank[us] <= most[us] for us in COLLECTIVE_TIMES)]
    return last if last and waiting_us(ranks, last) >= WAITING * least["step_us"] else []


def waiting_us(ranks: Iterable[Rank], stragglers: Sequence[Rank]) -> float:
    """µs of a step that the other ranks, on average, spend more in exposed collectives than those."""
    waits = [rank["exposed_us"] for rank in ranks if rank not in stragglers]
    return sum(waits) / len(waits) - stragglers[0]["exposed_us"] if waits else 0.0


def advice(ranks: Sequence[Rank]) -> str:
    """What to do about the ranks' exposed collectives: of the rank that others wait for, then of all; "" if little."""
    sentences, last = [], stragglers(ranks)
    if last:
        waiting = waiting_us(ranks, last)
        share = waiting / max(last[0]["step_us"], 1e-9)
        others, whom = [_work_us(rank) for rank in ranks if rank not in last], named([rank["rank"] for rank in last])
        excess = {
            role: us - sum(other[role] for other in others) / len(others) for role, us in _work_us(last[0]).items()
        }
        role = max(excess, key=lambda name: excess[name])  # that takes longest beyond what it takes on the others
        which = f', which {"has" if len(last) == 1 else "have"} {time_text(excess[role])} more of "{role}"'
        which *= excess[role] > 0
        sentences.append(f"the others wait {time_text(waiting)} of a step ({share:.0%}) for {whom}{which}")
    plain = min(ranks, key=lambda rank: rank["exposed_us"])
    share = plain["exposed_us"] / max(plain["step_us"], 1e-9)
    if share >= WAITING:
        exposed = f"on every rank collectives run at least {time_text(plain['exposed_us'])} of a step ({share:.0%})"
        sentences.append(f"{exposed} with nothing else running: {plain['ways']}")
    return "; ".join(sentences)


def _work_us(rank: Rank) -> dict[str, float]:
    """µs of the mean step by role, without what only communicates, with what runs while collectives do."""
    parts = dict(rank["parts"])
    del parts["communication"]
    if rank["has_gpu"]:
        parts["kernel"] -= rank["exposed_us"]  # NCCL's kernels are of that role
    elif rank["communicates"]:
        parts["cpu_exec"] += rank["hidden_us"]
    return parts


def waits(ranks: Mapping[int, Sequences]) -> tuple[dict[int, float], str]:
    """{rank: µs per step that it waits in collectives for others}, {} where that is not known, and why not.

    A rank's k-th collective lasts longer than on the rank that comes to it last. By durations, since the ranks' clocks
    differ. Of the steps that all have; of collectives that all ranks join.
    """
    if len(ranks) < 2:
        return {}, "there is one rank only"
    if not all(ranks.values()):
        return {}, f"a step has more than {communication.MOST_COLLECTIVES} collectives, too many to compare"
    common = set.intersection(*(set(steps) for steps in ranks.values()))
    if not common:
        return {}, "the traces have no step in common"
    total, compared = dict.fromkeys(ranks, 0.0), 0
    for step in common:
        counts = [{name: len(us) for name, us in steps[step].items()} for steps in ranks.values()]
        if any(count != counts[0] for count in counts[1:]):
            return {}, f"the ranks' collectives do not match: they ran others, or more of them, in step {step}"
        for name in counts[0]:
            us = np.array([steps[step][name] for steps in ranks.values()])
            compared += us.shape[1]
            for rank, wait in zip(ranks, (us - us.min(axis=0)).sum(axis=1).tolist(), strict=True):
                total[rank] += wait
    if not compared:
        return {}, "no collective is in the steps that all ranks have"
    return {rank: us / len(common) for rank, us in total.items()}, ""
