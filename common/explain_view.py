"""What `explain` prints for people. Names out of a trace never reach the terminal as they are: see `printable`."""

import sys

import numpy as np
from rich.table import Table
from rich.text import Text

from common.errors import printable
from common.table import console
from common.trace.idle import CAUSES
from common.trace.memory import CPU
from common.trace.steps import ROLES

__all__ = ["console", "markdown", "print_change", "print_predictions", "print_ranks", "print_summary", "warn"]

MARKS = {  # a letter as well as a colour: the bar must be readable in a pipe, and by everyone
    "kernel": ("K", "green"),
    "memcpy": ("C", "yellow"),
    "memset": ("S", "bright_yellow"),
    "communication": ("N", "magenta"),
    "runtime": ("R", "cyan"),
    "dataloader": ("D", "red"),
    "cpu_exec": ("E", "blue"),
    "other": (".", "bright_black"),
}
MEANING = {
    "kernel": "a GPU kernel runs",
    "memcpy": "the GPU only copies",
    "memset": "the GPU only sets memory",
    "communication": "only a collective runs",
    "runtime": "the GPU is idle, the CPU in a CUDA call",
    "dataloader": "the loop waits for its next batch",
    "cpu_exec": "the CPU runs operators",
    "other": "nothing recorded: Python, most likely",
}
CAUSE_MEANING = {
    "copy": "copying, or inside a call that copies",
    "dataloader": "the loop waits for its next batch",
    "synchronisation": "the CPU waits for the GPU",
    "setup": "allocating memory, loading code, starting up",
    "launch": "launch-bound: the CPU runs operators and launches",
    "other": "Python, or nothing recorded",
}
BAR = 64  # columns
TOP = 8  # kernels, and operators at the memory peak


def warn(line):
    """One line on stderr."""
    print(printable(line), file=sys.stderr)


def print_summary(summary, to):
    """A first look at one trace: what a step is made of, the GPUs, why they wait, and what to do."""
    for line in summary.trace.warnings:
        warn(line)
    steps = summary.steps
    names = ", ".join(dict.fromkeys(printable(gpu.name or f"GPU {gpu.id}", 60) for gpu in summary.gpus)) or "CPU only"
    count = f"{len(steps.names)} step{'s' * (len(steps.names) > 1)} ({_first_to_last(steps.names)})"
    if not steps.marked:
        count = "no step marks, so the whole trace counts as one step"
    to.print(Text(printable(summary.trace.file.name, 200), "bold"))
    to.print(f"{names}; {count}; {_time(steps.mean_us)} a step\n", markup=False)
    _print_breakdown(steps, to, bool(summary.gpus))
    _print_gpus(summary, to)
    _print_idle(summary, to)
    _print_kernels(summary, to)
    _print_operators(summary, to)
    _print_transfers(summary, to)
    _print_memory(summary, to)
    _print_advice(summary, to)


def _print_breakdown(steps, to, gpu):
    parts, total = steps.mean_breakdown_us, max(steps.mean_us, 1e-9)
    to.print(Text("A mean step", "bold"))
    bar, column = Text("  "), 0.0
    for role in ROLES:
        begun, column = round(column), column + parts[role] / total * BAR
        letter, colour = MARKS[role]
        bar.append(letter * (round(column) - begun), f"{colour} reverse")
    to.print(bar)
    table = _grid("left", "left", "right", "right", "left")
    for role in ROLES:
        if parts[role] > 0:
            letter, colour = MARKS[role]
            said = MEANING[role] if gpu or role != "runtime" else "the CPU is in a call of the runtime"
            letter = Text(f"  {letter}", f"{colour} bold")
            table.add_row(letter, role, _time(parts[role]), f"{parts[role] / total:.1%}", said)
    to.print(table)


def _print_gpus(summary, to):
    if not summary.gpus:
        return
    to.print()
    table = _table("", "busy", "SMs at work", "occupancy", "Tensor Cores", "name")
    for gpu in summary.gpus:
        unsure = summary.tensor_cores.unknown.get(gpu.id, 0.0)
        tensor = _share(gpu.tensor_core_share) + (f" (cannot tell: {unsure:.1%})" if unsure >= 0.005 else "")
        occupancy = None if gpu.occupancy_percent is None else gpu.occupancy_percent / 100
        table.add_row(
            f"GPU {gpu.id}",
            _share(gpu.utilization),
            _share(gpu.sm_efficiency),
            _share(occupancy),
            tensor,
            printable(gpu.name or "", 40),
        )
    to.print(table)
    eligible = summary.tensor_cores.eligible_share
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could."
    legend = "busy: some kernel runs. SMs and occupancy are estimates. Tensor Cores: of the kernel time."
    to.print(Text(f"  {legend}{could}", "dim"))
    if talk := summary.communication:
        count = len(summary.steps.names)
        talking, hidden = _time(talk.us / count), _time(talk.hidden_us / count)
        text = f"collectives: {talking} a step, {hidden} of it beside other kernels ({talk.count} in all)"
        to.print(Text(f"  {text}; TensorBoard counts them as kernels"))


def _print_idle(summary, to):
    count = len(summary.steps.names)
    for each in summary.idle:
        if each.total_us <= 0:
            continue
        waits = _time(each.total_us / count)
        to.print(Text(f"\nGPU {each.device} runs no kernel for {waits} of a step; meanwhile", "bold"))
        table = _grid("left", "right", "right", "left")
        for cause in CAUSES:
            us = each.causes_us[cause]
            if us > 0.0005 * each.total_us:
                table.add_row(f"  {cause}", _time(us / count), f"{us / each.total_us:.1%}", CAUSE_MEANING[cause])
        to.print(table)
        longest = int(np.argmax(each.end - each.start))
        cause = CAUSES[int(np.argmax(each.by_gap[:, longest]))]
        length = each.end[longest] - each.start[longest]
        to.print(Text(f"  {len(each.start)} gaps; the longest is {_time(length)}, mostly {cause}", "dim"))


def _print_operators(summary, to):
    if not summary.operators:
        return
    total = sum(operator.us for operator in summary.operators)
    to.print(Text(f"\nOperators on the CPU: {_time(total)} in all, each without what runs inside it", "bold"))
    table = _table("time", "share", "count", "mean", "name")
    for operator in summary.operators[:TOP]:
        cells = _time(operator.us), f"{operator.us / max(total, 1e-9):.1%}", str(operator.count)
        table.add_row(*cells, _time(operator.us / operator.count), printable(operator.name, max(30, to.width - 42)))
    to.print(table)


def _print_kernels(summary, to):
    if not summary.kernels:
        return
    total = sum(kernel.us for kernel in summary.kernels)
    count = sum(kernel.count for kernel in summary.kernels)
    to.print(Text(f"\nKernels: {count}, {_time(total)} in all", "bold"))
    table = _table("time", "share", "count", "mean", "TC", "name")
    said = {True: "yes", False: "no", None: "?"}
    width = max(30, to.width - 46)
    for kernel in summary.kernels[:TOP]:
        mean = _time(kernel.us / kernel.count)
        cells = _time(kernel.us), f"{kernel.us / max(total, 1e-9):.1%}", str(kernel.count), mean
        table.add_row(*cells, said[kernel.tensor_cores], Text(printable(kernel.name, width), no_wrap=True))
    to.print(table)


def _print_transfers(summary, to):
    lines = []
    for name, label in (("h2d", "to the GPU"), ("d2h", "from it"), ("d2d", "on it")):
        each = summary.copies[name]
        if each.count:
            speed = each.gigabytes_per_second
            kinds = [
                f"{kind} {size / each.bytes:.0%}"
                for kind, size in (("pinned", each.pinned_bytes), ("pageable", each.pageable_bytes))
                if size
            ]
            text = f"  {label}: {each.count} copies, {_size(each.bytes)}, {_time(each.us)}"
            text += f", {speed:.1f} GB/s" if speed else ""
            lines.append(text + (f"; {', '.join(kinds)}" if kinds else ""))
    if lines:
        crossing = f"; {_size(summary.step_bytes)} a step to the GPU" if summary.step_bytes else ""
        to.print(Text(f"\nCopies{crossing}", "bold"))
        for line in lines:
            to.print(line)


def _print_memory(summary, to):
    if not summary.memory:
        return
    to.print(Text("\nMemory", "bold"))
    for each in summary.memory:
        label = "CPU" if each.device == CPU else f"GPU {each.device}"
        if each.peak_allocated is None:
            to.print(f"  {label}: grew by {_size(each.growth)} while tracing; this trace does not record totals")
            continue
        reserved = f", reserved {_size(each.peak_reserved)}" if each.peak_reserved else ""
        to.print(f"  {label}: peak {_size(each.peak_allocated)}{reserved}; grew by {_size(each.growth)} while tracing")
        for name, size in list(each.at_peak.items())[:4]:
            to.print(Text(f"    {_size(size):>9}  {printable(name, 60)}"))


def _print_advice(summary, to):
    to.print(Text(f"\nWhat to do: {summary.verdict}", "bold"))
    for number, each in enumerate(summary.advice, start=1):
        gain = "gain unknown" if each.predicted_gain is None else f"at most {each.predicted_gain:.2f}x as fast"
        treats = f"steps/{each.step}.py" if each.step else "beyond the walkthrough's steps"
        to.print(Text.assemble(f"  {number}. ", (each.title, "bold green"), f": {gain}; {treats}"))
        to.print(Text(f"     {each.why}."))


def print_change(before, after, moved, to):
    """Two traces side by side: first what moved, then the figures of both."""
    for label, summary in (("before", before), ("after", after)):
        for line in summary.trace.warnings:
            warn(line)
        to.print(Text.assemble((f"{label:7}", "bold"), printable(str(summary.trace.file), 200)))
    old, new = before.steps.mean_us, after.steps.mean_us
    speed = f"{old / new:.2f}x" if new > 0 else "?"
    to.print(f"\na step: {_time(old)} before, {_time(new)} after: {speed} the steps a second, under the profiler\n")
    table = _table("", "before", "after", "change")
    for name, was, now in moved:
        if was or now:
            table.add_row(name, _time(was), _time(now), _change(now - was))
    for name, pick, show in _FIGURES:
        was, now = pick(before), pick(after)
        if was is not None or now is not None:
            table.add_row(name, _or_dash(was, show), _or_dash(now, show), "")
    to.print(table)
    to.print(Text(f"\nNow: {after.verdict}", "bold"))


def _mean(values):
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


_FIGURES = [
    ("GPU busy", lambda s: _mean(gpu.utilization for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("SMs at work", lambda s: _mean(gpu.sm_efficiency for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("Tensor Cores", lambda s: _mean(gpu.tensor_core_share for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("kernels a step", lambda s: sum(k.count for k in s.kernels) / len(s.steps.names) or None, lambda v: f"{v:.0f}"),
    ("bytes to the GPU", lambda s: s.step_bytes or None, lambda v: _size(v)),
    ("peak memory", lambda s: s.memory[0].peak_allocated if s.memory else None, lambda v: _size(v)),
]


def print_ranks(summaries, to):
    """A row for each rank of one training, and how far they lie apart."""
    table = _table("rank", "GPU", "step", "kernel", "busy", "collectives", "exposed", "dataloader", "waits for the CPU")
    for rank, summary in summaries.items():
        for line in summary.trace.warnings:
            warn(line)
        steps, talk, count = summary.steps, summary.communication, len(summary.steps.names)
        parts = steps.mean_breakdown_us
        waits = _mean(each.total_us / count for each in summary.idle)
        table.add_row(
            str(rank),
            printable(", ".join(str(gpu.id) for gpu in summary.gpus) or "-"),
            _time(steps.mean_us),
            _time(parts["kernel"]),
            _share(_mean(gpu.utilization for gpu in summary.gpus)),
            _time(talk.us / count) if talk else "-",
            _time(talk.exposed_us / count) if talk else "-",
            _time(parts["dataloader"]),
            "-" if waits is None else _time(waits),
        )
    to.print(table)
    times = {rank: summary.steps.mean_us for rank, summary in summaries.items()}
    slowest, fastest = max(times, key=times.get), min(times, key=times.get)
    spread = (times[slowest] - times[fastest]) / max(times[fastest], 1e-9)
    to.print(f"\n{len(times)} ranks; rank {slowest} takes {spread:.1%} longer a step than rank {fastest}")
    to.print(f"rank {slowest}: {summaries[slowest].verdict}", markup=False)
    to.print(Text("A rank that others wait for shows little time in collectives; those that wait show much.", "dim"))


def print_predictions(found, to):
    """For each ladder: what each step was promised by the trace before it, beside what it gained."""
    for ladder, rows in found:
        base = ladder.baseline
        to.print(f"\n{printable(base.model)} on {printable(base.device)}, {base.image_size} px\n", markup=False)
        table = _table("step", "predicted", "measured", "")
        for row in rows:
            table.add_row(*_prediction(row))
        to.print(table)
        for row in rows:
            if row.advice:
                to.print(Text(f"  {row.step}: {row.advice.why}", "dim"))
    to.print(
        Text(
            "\npredicted: at most, from the trace of the step before (the cost that the step treats, gone). "
            "measured: from the timed windows, which no profiler slowed; no difference: they cannot be told apart.",
            "dim",
        )
    )


def markdown(found):
    """The same as Markdown tables."""
    lines = []
    for ladder, rows in found:
        base = ladder.baseline
        windows = len(base.samples_per_second.windows)
        lines += [f"### {base.model}, {base.image_size} px, on {base.device}", ""]
        machine = f"{base.environment.cores} CPU cores, torch {base.environment.torch}"
        lines += [f"{machine}, {windows} timed windows a step.", ""]
        lines += ["| step | predicted, at most | measured | | why |", "|---|--:|--:|---|---|"]
        for row in rows:
            cells = [*_prediction(row), row.advice.why if row.advice else ""]
            lines.append(f"| {' | '.join(printable(cell).replace('|', '/') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _prediction(row):
    promised = row.advice and row.advice.predicted_gain
    return row.step, "cannot tell" if promised is None else f"{promised:.2f}x", str(row.gain), row.outcome


def _first_to_last(names):
    shown = [printable(name, 20) for name in names]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _grid(*aligned):
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in aligned:
        table.add_column(justify=justify)
    return table


def _table(*headers):
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number in (0, len(headers) - 1) and header != "time" else "right")
    return table


def _share(value):
    return "-" if value is None else f"{value:.1%}"


def _or_dash(value, show):
    return "-" if value is None else show(value)


def _time(us):
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.1f} us"


def _change(us):
    return ("+" if us >= 0 else "-") + _time(abs(us))


def _size(size):
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}" if scale == 1e9 else f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"
