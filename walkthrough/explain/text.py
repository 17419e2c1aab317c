"""The text of `explain`: one report, two of them, or those of a training's ranks; see `advice.report.report`.

Names from a trace pass through `printable`: none can control the terminal.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from walkthrough.results.errors import printable
from walkthrough.terminal import bare_table, headed_table, share_text, size_text, time_text

Report = Mapping[str, Any]

MARKS = {  # letter and colour of each role: without colour, the letters keep the bar readable
    "kernel": ("K", "green"),
    "memcpy": ("C", "yellow"),
    "memset": ("S", "bright_yellow"),
    "communication": ("N", "magenta"),
    "runtime": ("R", "cyan"),
    "dataloader": ("D", "red"),
    "cpu_exec": ("E", "blue"),
    "other": (".", "bright_black"),
}
BAR_WIDTH = 64  # columns
TOP_NAMES = 8  # rows of kernels or operators
TOP_ALLOCATIONS = 4  # rows per device
CPU = -1  # the device of a CPU's memory
UNITS: dict[str, Callable[[Any], str]] = {"share": share_text, "count": "{:.0f}".format, "bytes": size_text}
UNDER_THE_PROFILER = "tracing and the machine's load are in these times; `walkthrough time` measures the speed"


def name_width(to: Console) -> int:
    """Letters that a kernel's name may have in the report that is printed there."""
    return max(30, to.width - 46)


def print_report(report: Report, to: Console) -> None:
    """A first look at one trace: the typical step by role, the GPUs, why they wait, and what to do."""
    to.print(Text(printable(PurePath(report["file"]).name, 200), "bold"))
    to.print(f"{report['words']['device']}; {_step_lengths(report)}", markup=False)
    for line in report["recorded"]:
        _indented(line, to, "dim")
    to.print()
    if report["typical"]["undecided"]:
        _print_two_steps(report, to)
    else:
        _print_breakdown(report, to)
    for outlier in report["steps"]["outliers"]:
        _indented(f"{outlier['why']}. The advice leaves it out.", to, "yellow")
    _print_gpus(report, to)
    _print_idle(report, to)
    _print_kernels(report, to)
    _print_kinds(report, to)
    _print_operators(report, to)
    _print_copies(report, to)
    _print_memory(report, to)
    _print_findings(report, to)
    _print_advice(report, to)


def _step_lengths(report: Report) -> str:
    """How many steps there are and how long: their mean, where they are alike; else that of the typical ones."""
    steps, typical, outliers = report["steps"], report["typical"], report["steps"]["outliers"]
    count = f"{steps['count']} step{'s' * (steps['count'] > 1)} ({_first_to_last(steps['names'])})"
    if not steps["marked"]:
        count = "no step marks, so the whole trace counts as one step"
    elif not steps["whole"]:
        count = f"no whole step: step {_first_to_last(steps['names'])} was not over when the profiler stopped"
        return f"{count}; {time_text(steps['mean_us'])} of it recorded"
    if typical["undecided"]:
        lengths = [f"step {printable(step['name'], 20)} takes {time_text(step['us'])}" for step in report["two_steps"]]
        return f"{count}; {' and '.join(lengths)}"
    if not outliers:
        return f"{count}; {time_text(steps['mean_us'])}{' per step' if steps['marked'] else ''}{_range(typical)}"
    left_out = f"{len(outliers)} step{'s' * (len(outliers) > 1)} far longer"
    others = ", ".join(time_text(outlier["us"]) for outlier in outliers)
    return f"{count}; {time_text(typical['mean_us'])} per typical step{_range(typical)}; {left_out}: {others}"


def _first_to_last(names: Sequence[str]) -> str:
    shown = [printable(name, 20) for name in names]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _range(typical: Mapping[str, Any]) -> str:
    """The shortest, the median and the longest step, if they differ by more than 5 %; else ""."""
    low, high = typical["least_us"], typical["most_us"]
    median = f"; median {time_text(typical['median_us'])}" if typical["count"] > 2 else ""
    return f" ({time_text(low)} to {time_text(high)}{median})" if high > 1.05 * low else ""


def _print_breakdown(report: Report, to: Console) -> None:
    """A typical step by role, as a bar and a table."""
    steps, typical = report["steps"], report["typical"]
    title = "Mean step" if steps["whole"] else "What is recorded of a step"
    if steps["outliers"]:
        title = f"Typical step ({typical['count']} of {steps['count']})"
    parts, total = typical["breakdown_us"], max(typical["mean_us"], 1e-9)
    to.print(Text(title, "bold"))
    bar, column = Text("  "), 0.0
    for role, (letter, colour) in MARKS.items():
        begin, column = round(column), column + parts[role] / total * BAR_WIDTH
        bar.append(letter * (round(column) - begin), f"{colour} reverse")
    to.print(bar)
    table = bare_table("left", "left", "right", "right", "left")
    for role, us in _shown(parts):
        table.add_row(_mark(role), role, time_text(us), f"{us / total:.1%}", report["words"]["roles"][role])
    to.print(table)


def _print_two_steps(report: Report, to: Console) -> None:
    """Two steps of very different length, side by side."""
    steps = report["two_steps"]
    to.print(Text("Two steps of very different length: no mean, and no advice", "bold"))
    table = bare_table("left", "left", "right", "right")
    table.add_row("", "step", *(printable(step["name"], 20) for step in steps))
    for role, _ in _shown({role: max(step["breakdown_us"][role] for step in steps) for role in MARKS}):
        table.add_row(_mark(role), role, *(time_text(step["breakdown_us"][role]) for step in steps))
    to.print(table)


def _shown(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """The roles whose time is not "0.0 us"."""
    return [(role, parts[role]) for role in MARKS if time_text(parts[role]) != time_text(0.0)]


def _mark(role: str) -> Text:
    letter, colour = MARKS[role]
    return Text(f"  {letter}", f"{colour} bold")


def _print_gpus(report: Report, to: Console) -> None:
    if not report["gpus"]:
        return
    to.print()
    table = headed_table("", "busy", "SMs at work", "occupancy", report["matrix_units"], "name")
    for gpu in report["gpus"]:
        unsure = f" (unknown: {gpu['unsure']:.1%})" if gpu["unsure"] >= 0.005 else ""
        occupancy = None if gpu["occupancy_percent"] is None else gpu["occupancy_percent"] / 100
        shares = share_text(gpu["utilization"]), share_text(gpu["sm_efficiency"]), share_text(occupancy)
        tensor = share_text(gpu["tensor_core_share"]) + unsure
        table.add_row(f"GPU {gpu['id']}", *shares, tensor, printable(gpu["name"] or "", 40))
    to.print(table)
    eligible = report["eligible_share"]
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could use them."
    legend = "busy: a kernel runs. SMs and occupancy are estimates. "
    legend += f"{report['matrix_units']}: of the time of operators' and CUDA graphs' kernels."
    _indented(f"{legend}{could}", to, "dim")
    if collectives := report["communication"]:
        text = (
            f"collectives: {time_text(collectives['us'])}{_per(report)}, {time_text(collectives['hidden_us'])} of it "
        )
        text += f"overlapped by other kernels ({_total(report, collectives['count']):.0f} in {report['of_steps']}); "
        _indented(f"{text}TensorBoard counts them as kernels", to)


def _print_idle(report: Report, to: Console) -> None:
    for idle, lines in zip(report["idle"], report["words"]["gaps"], strict=True):
        if idle["us"] <= 0:
            continue
        waits = f"GPU {idle['device']} runs no kernel for {time_text(idle['us'])}{_per(report)}; meanwhile"
        to.print(Text(f"\n{waits}", "bold"))
        table = bare_table("left", "right", "right", "left")
        for cause, meaning in report["words"]["causes"].items():
            us = idle["causes_us"][cause]
            if us > 0.0005 * idle["us"]:
                table.add_row(f"  {cause}", time_text(us), f"{us / idle['us']:.1%}", meaning)
        to.print(table)
        for line in lines:
            to.print(Text(f"  {line}", "dim"))


def _print_kernels(report: Report, to: Console) -> None:
    if not report["kernels"]:
        return
    total_us, count = _total(report, report["kernel_us"]), _total(report, report["kernel_count"])
    to.print(Text(f"\nKernels: {count:.0f} in {report['of_steps']}, {time_text(total_us)}", "bold"))
    units = "".join(word[0] for word in report["matrix_units"].upper().split())
    table = headed_table("time", "share", "count", "mean", units, "name")
    for kernel in report["kernels"][:TOP_NAMES]:
        uses_them = {True: "yes", False: "no", None: "?"}[kernel["tensor_cores"]]
        name = Text(kernel["short"], no_wrap=True, overflow="fold")
        table.add_row(*_times(report, kernel, report["kernel_us"]), uses_them, name)
    to.print(table)


def _print_operators(report: Report, to: Console) -> None:
    if report["kernels"] or not report["operators"]:
        return
    total = f"{time_text(_total(report, report['operator_us']))} in {report['of_steps']}"
    to.print(Text(f"\nOperators on the CPU, self time: {total}", "bold"))
    table = headed_table("time", "share", "count", "mean", "name")
    for operator in report["operators"][:TOP_NAMES]:
        name = printable(operator["name"], max(30, to.width - 42))
        table.add_row(*_times(report, operator, report["operator_us"]), name)
    to.print(table)


def _times(report: Report, row: Mapping[str, Any], total_us: float) -> tuple[str, str, str, str]:
    """Time, share, count and mean of what has a name."""
    us, count = _total(report, row["us"]), _total(report, row["count"])
    return time_text(us), f"{row['us'] / max(total_us, 1e-9):.1%}", f"{count:.0f}", time_text(us / count)


def _print_kinds(report: Report, to: Console) -> None:
    total = sum(report["kinds"].values())
    shown = [
        f"{kind} {time_text(us)} ({us / total:.1%})" for kind, us in report["kinds"].items() if us >= 0.0005 * total
    ]
    if shown:
        to.print(Text(f"\nKernels by kind{',' * report['steps']['marked']}{_per(report)}", "bold"))
        _indented(", ".join(shown), to)


def _print_copies(report: Report, to: Console) -> None:
    lines = []
    for name, label in (("h2d", "to the GPU"), ("d2h", "from it"), ("d2d", "within the GPU")):
        copies = report["copies"][name]
        if not copies["count"]:
            continue
        number, size, us = (_total(report, copies[key]) for key in ("count", "bytes", "us"))
        text = f"  {label}: {number:.0f} copies in {report['of_steps']}, {size_text(size)}, {time_text(us)}"
        speed = copies["gigabytes_per_second"]
        shares = {kind: copies[f"{kind}_bytes"] / copies["bytes"] for kind in ("pinned", "pageable") if copies["bytes"]}
        kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share)
        lines.append(text + (f", {speed:.1f} GB/s" if speed else "") + (f"; {kinds}" if kinds else ""))
    if lines:
        size = report["step_bytes"]
        to.print(Text(f"\nCopies{f'; {size_text(size)}{_per(report)} to the GPU' if size else ''}", "bold"))
        for line in lines:
            to.print(line)


def _print_memory(report: Report, to: Console) -> None:
    if not report["memory"]:
        return
    to.print(Text("\nMemory", "bold"))
    # The allocator numbers the GPUs that the process sees, HIP's events those of the machine.
    one = len(report["gpus"]) == 1 == sum(memory["device"] != CPU for memory in report["memory"])
    for memory in report["memory"]:
        device = memory["device"]
        label = "CPU" if device == CPU else f"GPU {report['gpus'][0]['id'] if one else device}"
        growth = f"grew {size_text(memory['growth'])} while tracing"
        if memory["peak_allocated"] is None:
            to.print(f"  {label}: {growth}; this trace does not record totals")
            continue
        reserved = f", reserved {size_text(memory['peak_reserved'])}" if memory["peak_reserved"] else ""
        to.print(f"  {label}: peak {size_text(memory['peak_allocated'])}{reserved}; {growth}")
        if memory["at_peak"]:
            to.print(Text("  top allocations at the peak, of those made while tracing, by operator:", "dim"))
        for name, size in memory["at_peak"][:TOP_ALLOCATIONS]:
            to.print(Text(f"    {size_text(size):>9}  {printable(name, 60)}"))


def _print_findings(report: Report, to: Console) -> None:
    if report["findings"]:
        to.print(Text("\nWhat stands out", "bold"))
    for finding, gain in zip(report["findings"], report["words"]["gains"], strict=True):
        time = f"{time_text(finding['us_per_step'])}{_per(report)}{f'; {gain}' if gain else ''}"
        _indented(Text.assemble((finding["what"], "bold"), f": {time}"), to)
        _indented(f"{printable(finding['why'], 600)}.", to, by=5)
        _indented(f"{finding['do']}.", to, "green", by=5)


def _print_advice(report: Report, to: Console) -> None:
    to.print(Text(f"\nWhat to do: {report['verdict']}", "bold"))
    for number, advice in enumerate(report["advice"], start=1):
        script = f"; steps/{advice['step']}.py" if advice["step"] else ""
        _indented(Text.assemble(f"{number}. ", (advice["title"], "bold green"), f": {advice['gain']}{script}"), to)
        _indented(f"{advice['why']}.", to, by=5)
    if report["of_which_steps"]:
        _indented(report["of_which_steps"], to, "dim")
    numbers = {advice["title"]: str(number) for number, advice in enumerate(report["advice"], start=1)}
    together = [
        f"{' + '.join(numbers[title] for title in combination['titles'])}: {combination['estimated_gain']:.2f}x"
        for combination in report["combined"]
    ]
    if together:
        to.print(Text(f"  Together: {'; '.join(together)}", "bold"))
    if report["advice"]:
        _indented(_legend(report), to, "dim")


def _legend(report: Report) -> str:
    bound = "at most: with that cost gone, and all else as it is"
    if not report["gpus"]:
        return (
            f"{bound}; what replaces it costs too, and may cost more. `walkthrough time -- COMMAND --versus COMMAND` "
            "measures what a change gains."
        )
    gains = [advice["estimated_gain"] for advice in report["advice"] if advice["estimated_gain"]]
    if not gains:
        return f"{bound}. No estimates: the GPU waits for something that the trace does not explain."
    legend = (
        f"about: the trace replayed without that cost. {bound}. Recording takes time on the CPU too, which is not "
        "taken out: without the profiler, fewer launches and less Python gain less."
    )
    if report["combined"]:
        legend += " Together: once one cost is gone another bounds the step, and gains then."
    if gains != sorted(gains, reverse=True):
        legend += (
            " Estimates within 5 % of each other are in the walkthrough's order; a bigger batch, which changes what is "
            "trained, is ranked by the time that it is about."
        )
    return legend


def print_change(before: Report, after: Report, change: Mapping[str, Any], to: Console) -> None:
    """Two traces side by side: first the step times by role, then the numbers of both. change: `comparison.change`."""
    for label, report in (("before", before), ("after", after)):
        text = f"{printable(report['file'], 200)} ({report['words']['device']})"
        to.print(Text.assemble((f"{label:7}", "bold"), text), soft_wrap=True)
    if change["caution"]:
        to.print(Text(change["caution"], "yellow"))
    old, new = (time_text(report["typical"]["mean_us"]) for report in (before, after))
    speed = f": {change['speed']}, under the profiler" if change["speed"] else ""
    to.print(f"\ntypical step: {old} before, {new} after{speed}")
    to.print(f"{UNDER_THE_PROFILER}\n")
    table = headed_table("", "before", "after", "change")
    for row in change["moved"]:
        was, now = row["before_us"], row["after_us"]
        if was or now:
            moved = ("+" if now >= was else "-") + time_text(abs(now - was))
            table.add_row(row["name"], time_text(was), time_text(now), moved)
    for row in change["figures"]:
        texts = ("-" if row[side] is None else UNITS[row["unit"]](row[side]) for side in ("before", "after"))
        table.add_row(row["name"], *texts, "")
    to.print(table)
    to.print(Text(f"\nNow: {after['verdict']}", "bold"))


def print_ranks(reports: Mapping[int, Report], ranks: Mapping[str, Any], to: Console) -> None:
    """A row for each rank of one training, and what their comparison says. ranks: `comparison.ranks`."""
    table = headed_table("rank", "GPU", "step", "kernel", "busy", "collectives", "exposed", "dataloader", "no kernel")
    for row in ranks["ranks"]:
        _add_rank(table, row, reports[row["rank"]])
    to.print(table)
    to.print(f"\n{len(reports)} ranks; {ranks['difference']}")
    for rank, report in reports.items():
        for step in report["steps"]["outliers"]:
            doing = f", {step['doing']}" if step["doing"] else ""
            text = f"rank {rank}, step {printable(step['name'], 20)}{doing}: {time_text(step['us'])}"
            to.print(Text(f"{text}, and not in the table", "yellow"))
    verdict = printable(ranks["verdict"])
    to.print(f"rank {ranks['first']}: {verdict}; `explain` its trace to see more", markup=False)
    if ranks["advice"]:
        to.print(Text.assemble("\n", ("overlap communication", "bold green"), f": {ranks['advice']}"))
    to.print(Text("A rank that others wait for shows little time in collectives; those that wait show much.", "dim"))


def _add_rank(table: Table, row: Mapping[str, Any], report: Report) -> None:
    gpus, waits = report["gpus"], [_total(report, idle["us"]) / report["typical"]["count"] for idle in report["idle"]]
    table.add_row(
        str(row["rank"]),
        ", ".join(str(gpu["id"]) for gpu in gpus) or "-",
        time_text(row["step_us"]),
        time_text(row["parts"]["kernel"]),
        share_text(sum(gpu["utilization"] for gpu in gpus) / len(gpus) if gpus else None),
        time_text(row["collectives_us"]) if row["communicates"] else "-",
        time_text(row["exposed_us"]) if row["communicates"] else "-",
        time_text(row["parts"]["dataloader"]),
        time_text(sum(waits) / len(waits)) if waits else "-",
    )


def _total(report: Report, value: float) -> float:
    """Of all typical steps, where the report has it of one; see "per" there."""
    return value if report["typical"]["undecided"] else value * report["typical"]["count"]


def _per(report: Report) -> str:
    """What follows a time of the report: " per step"; "" where the whole trace counts as one."""
    return f" {report['per']}" if report["per"] else ""


def _indented(text: str | Text, to: Console, style: str = "", by: int = 2) -> None:
    text = Text(text, style) if isinstance(text, str) else text
    to.print(Padding(text, (0, 0, 0, by), expand=False))
