"""The tables of a report, as texts: what `explain --all` and `--html` show below the verdict."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from walkthrough.results.errors import printable
from walkthrough.terminal import count_text, share_text, size_text, time_text

Report = Mapping[str, Any]

TOP_NAMES = 8  # rows of kernels or operators
TOP_ALLOCATIONS = 4  # rows per device
NAME_WIDTH = 56  # letters
LEAST_SHARE = 0.0005  # of what a table divides: less has no row
LEAST_BYTES = 1000  # of memory that is worth a row
CPU = -1  # the device of a CPU's memory
DIRECTIONS = {"h2d": "to the GPU", "d2h": "from the GPU", "d2d": "within the GPU"}


class Table(NamedTuple):
    """A table: headers, of numbers where they begin with ">", and rows of as many cells. notes: lines below it."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def tables(report: Report) -> list[Table]:
    """All tables of a report that have a row."""
    parts: tuple[Callable[[Report], list[Table]], ...] = (_roles, _gpus, _idle, _kernels, _operators, _copies, _memory)
    return [table for part in parts for table in part(report) if table.rows]


def is_some(us: float) -> bool:
    """Whether a time is more than "0.0 us"."""
    return time_text(us) != time_text(0.0)


def _roles(report: Report) -> list[Table]:
    typical, meanings = report["typical"], report["meanings"]["roles"]
    rows = [
        [role, time_text(us), share_text(typical["breakdown_shares"][role]), meanings[role]]
        for role, us in typical["breakdown_us"].items()
        if is_some(us)
    ]
    title = "One step by role" if report["steps"]["marked"] else "This trace by role"
    return [Table(title, ["", ">time", ">share", ""], rows)]


def _gpus(report: Report) -> list[Table]:
    units, eligible, collectives = (
        report["matrix_units"], report["eligible_kernel_share"], report["typical"]["communication"]
    )  # fmt: skip
    rows = []
    for gpu in report["gpus"]:
        unsure = f" (unknown: {gpu['unsure']:.1%})" if gpu["unsure"] >= 0.005 else ""
        occupancy = "-" if gpu["occupancy_percent"] is None else f"{gpu['occupancy_percent']:.1f}%"
        shares = share_text(gpu["utilization"]), share_text(gpu["sm_efficiency"]), occupancy
        tensor = share_text(gpu["tensor_core_share"]) + unsure
        rows.append([f"GPU {gpu['id']}", *shares, tensor, printable(gpu["name"] or "", 40)])
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could use them."
    notes = [
        f"busy: a kernel runs. SMs and occupancy are estimates. {units}: of the time of operators' and CUDA graphs' "
        f"kernels.{could}"
    ]
    if collectives:
        notes.append(
            f"collectives: {count_text(collectives['count'])} {report['per']}, {time_text(collectives['us'])}, "
            f"{time_text(collectives['hidden_us'])} of it overlapped by other kernels; TensorBoard counts them as "
            "kernels"
        )
    title = f"GPU{'s' * (len(rows) > 1)}" + f", all {report['steps']['count']} steps" * bool(
        report["steps"]["outliers"]
    )
    return [Table(title, ["", ">busy", ">SMs at work", ">occupancy", f">{units}", "name"], rows, notes)]


def _idle(report: Report) -> list[Table]:
    return [
        Table(
            f"GPU {idle['gpu']} runs no kernel for {time_text(idle['us'])} {report['per']}; meanwhile",
            ["", ">time", ">share", ""],
            [
                [cause, time_text(idle["causes_us"][cause]), share_text(idle["cause_shares"][cause]), meaning]
                for cause, meaning in report["meanings"]["causes"].items()
                if idle["cause_shares"][cause] > LEAST_SHARE and is_some(idle["causes_us"][cause])
            ],
            idle["notes"],
        )
        for idle in report["idle"]
    ]


def _kernels(report: Report) -> list[Table]:
    typical, uses = report["typical"], {True: "yes", False: "no", None: "?"}
    title = f"Kernels: {count_text(typical['kernel_count'])} {report['per']}, {time_text(typical['kernel_us'])}"
    units = "".join(word[0] for word in report["matrix_units"].upper().split())
    rows = [
        [*_times(row), uses[row["tensor_cores"]], printable(row["short"])] for row in typical["kernels"][:TOP_NAMES]
    ]
    kinds = [
        [time_text(typical["kinds"][kind]), share_text(share), kind]
        for kind, share in typical["kind_shares"].items()
        if share >= LEAST_SHARE
    ]
    return [
        Table(title, [">time", ">share", ">count", ">mean", units, "name"], rows),
        Table(f"Kernels by kind, {report['per']}", [">time", ">share", "kind"], kinds),
    ]


def _operators(report: Report) -> list[Table]:
    typical = report["typical"]
    if typical["kernels"]:
        return []
    title = f"Operators on the CPU, self time: {time_text(typical['operator_us'])} {report['per']}"
    rows = [[*_times(row), printable(row["name"], NAME_WIDTH)] for row in typical["operators"][:TOP_NAMES]]
    return [Table(title, [">time", ">share", ">count", ">mean", "name"], rows)]


def _times(row: Mapping[str, Any]) -> list[str]:
    """Time, share, count and mean of what has a name."""
    return [time_text(row["us"]), share_text(row["share"]), count_text(row["count"]), time_text(row["mean_us"])]


def _copies(report: Report) -> list[Table]:
    rows = []
    for name, row in report["typical"]["copies"].items():
        kinds = [f"{kind} {row[f'{kind}_share']:.0%}" for kind in ("pinned", "pageable") if row[f"{kind}_share"]]
        speed = row["gigabytes_per_second"]
        rate = f"{speed:.1f} GB/s" if speed else ""
        size, us = size_text(row["bytes"]), time_text(row["us"])
        if row["count"]:
            rows.append([DIRECTIONS[name], count_text(row["count"]), size, us, rate, ", ".join(kinds)])
    return [Table(f"Copies {report['per']}", ["", ">count", ">size", ">time", ">speed", "host memory"], rows)]


def _memory(report: Report) -> list[Table]:
    """Each device's, and what is allocated at its peak."""
    devices = report["memory"]["devices"]
    # The allocator numbers the GPUs that the process sees, HIP's events those of the machine.
    one = len(report["gpus"]) == 1 == sum(memory["device"] != CPU for memory in devices)
    rows, allocations = [], []
    for memory in devices:
        if max(memory["peak_allocated"] or 0, abs(memory["growth"])) < LEAST_BYTES:
            continue
        label = "CPU" if memory["device"] == CPU else f"GPU {report['gpus'][0]['id'] if one else memory['device']}"
        peaks = ["-" if memory[key] is None else size_text(memory[key]) for key in ("peak_allocated", "peak_reserved")]
        rows.append([label, *peaks, size_text(memory["growth"])])
        top = [[size_text(size), printable(name, 60)] for name, size in memory["at_peak"][:TOP_ALLOCATIONS]]
        allocations.append(Table(f"Allocated while tracing, at the peak of {label}", [">size", "by"], top))
    notes = ["This trace does not record totals."] if all(row["peak_allocated"] is None for row in devices) else []
    return [Table("Memory", ["", ">peak", ">reserved", ">grew while tracing"], rows, notes), *allocations]
