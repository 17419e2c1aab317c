"""What `explain` prints for people. Names out of a trace never reach the terminal as they are: see `printable`."""

import numpy as np
from rich.padding import Padding
from rich.text import Text

from common.errors import printable
from common.explain.terminal import bare_table, headed_table, share_text, size_text, time_text
from common.trace.idle import CAUSES
from common.trace.memory import CPU
from common.trace.steps import ROLES

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
    "communication": "only a collective that the trace marks; NCCL's kernels count as kernel",
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


def print_summary(summary, to):
    """A first look at one trace: what a step is made of, the GPUs, why they wait, and what to do."""
    steps = summary.steps
    names = ", ".join(dict.fromkeys(printable(gpu.name or f"GPU {gpu.id}", 60) for gpu in summary.gpus))
    names = names or ("no event of a GPU" if summary.trace.properties else "CPU only")
    count = f"{len(steps.names)} step{'s' * (len(steps.names) > 1)} ({_first_to_last(steps.names)})"
    if not steps.marked:
        count = "no step marks, so the whole trace counts as one step"
    to.print(Text(printable(summary.trace.file.name, 200), "bold"))
    to.print(f"{names}; {count}; {time_text(steps.mean_us)} a step{_range(steps.duration)}\n", markup=False)
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
    table = bare_table("left", "left", "right", "right", "left")
    for role in ROLES:
        if parts[role] > 0:
            letter, colour = MARKS[role]
            said = MEANING[role] if gpu or role != "runtime" else "the CPU is in a call of the runtime"
            letter = Text(f"  {letter}", f"{colour} bold")
            table.add_row(letter, role, time_text(parts[role]), f"{parts[role] / total:.1%}", said)
    to.print(table)


def _print_gpus(summary, to):
    if not summary.gpus:
        return
    to.print()
    table = headed_table("", "busy", "SMs at work", "occupancy", "Tensor Cores", "name")
    for gpu in summary.gpus:
        unsure = summary.tensor_cores.unknown.get(gpu.id, 0.0)
        tensor = share_text(gpu.tensor_core_share) + (f" (cannot tell: {unsure:.1%})" if unsure >= 0.005 else "")
        occupancy = None if gpu.occupancy_percent is None else gpu.occupancy_percent / 100
        table.add_row(
            f"GPU {gpu.id}",
            share_text(gpu.utilization),
            share_text(gpu.sm_efficiency),
            share_text(occupancy),
            tensor,
            printable(gpu.name or "", 40),
        )
    to.print(table)
    eligible = summary.tensor_cores.eligible_share
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could."
    legend = (
        "busy: some kernel runs. SMs and occupancy are estimates. Tensor Cores: of the time of the operators' kernels."
    )
    to.print(Padding(Text(f"{legend}{could}", "dim"), (0, 0, 0, 2), expand=False))
    if talk := summary.communication:
        count = len(summary.steps.names)
        talking, hidden = time_text(talk.us / count), time_text(talk.hidden_us / count)
        text = f"collectives: {talking} a step, {hidden} of it beside other kernels ({talk.count} in {_steps(summary)})"
        to.print(Padding(Text(f"{text}; TensorBoard counts them as kernels"), (0, 0, 0, 2), expand=False))


def _print_idle(summary, to):
    count = len(summary.steps.names)
    for each in summary.idle:
        if each.total_us <= 0:
            continue
        waits = time_text(each.total_us / count)
        to.print(Text(f"\nGPU {each.device} runs no kernel for {waits} of a step; meanwhile", "bold"))
        table = bare_table("left", "right", "right", "left")
        for cause in CAUSES:
            us = each.causes_us[cause]
            if us > 0.0005 * each.total_us:
                table.add_row(f"  {cause}", time_text(us / count), f"{us / each.total_us:.1%}", CAUSE_MEANING[cause])
        to.print(table)
        longest = int(np.argmax(each.end - each.start))
        cause = CAUSES[int(np.argmax(each.by_gap[:, longest]))]
        length = each.end[longest] - each.start[longest]
        gaps = f"{len(each.start)} gap{'s' * (len(each.start) > 1)} in {_steps(summary)}"
        to.print(Text(f"  {gaps}; the longest is {time_text(length)}, mostly {cause}", "dim"))


def _print_operators(summary, to):
    if not summary.operators:
        return
    total = sum(operator.us for operator in summary.operators)
    inside = "each without what runs inside it"
    to.print(Text(f"\nOperators on the CPU: {time_text(total)} in {_steps(summary)}, {inside}", "bold"))
    table = headed_table("time", "share", "count", "mean", "name")
    for operator in summary.operators[:TOP]:
        cells = time_text(operator.us), f"{operator.us / max(total, 1e-9):.1%}", str(operator.count)
        table.add_row(*cells, time_text(operator.us / operator.count), printable(operator.name, max(30, to.width - 42)))
    to.print(table)


def _print_kernels(summary, to):
    if not summary.kernels:
        return
    total = sum(kernel.us for kernel in summary.kernels)
    count = sum(kernel.count for kernel in summary.kernels)
    to.print(Text(f"\nKernels: {count} in {_steps(summary)}, {time_text(total)}", "bold"))
    table = headed_table("time", "share", "count", "mean", "TC", "name")
    said = {True: "yes", False: "no", None: "?"}
    width = max(30, to.width - 46)
    for kernel in summary.kernels[:TOP]:
        mean = time_text(kernel.us / kernel.count)
        cells = time_text(kernel.us), f"{kernel.us / max(total, 1e-9):.1%}", str(kernel.count), mean
        table.add_row(*cells, said[kernel.tensor_cores], Text(kernel_text(kernel.name, width), no_wrap=True))
    to.print(table)


def _print_transfers(summary, to):
    lines = []
    for name, label in (("h2d", "to the GPU"), ("d2h", "from it"), ("d2d", "within the GPU")):
        each = summary.copies[name]
        if each.count:
            speed = each.gigabytes_per_second
            kinds = [
                f"{kind} {size / each.bytes:.0%}"
                for kind, size in (("pinned", each.pinned_bytes), ("pageable", each.pageable_bytes))
                if size
            ]
            text = f"  {label}: {each.count} copies in {_steps(summary)}, {size_text(each.bytes)}, {time_text(each.us)}"
            text += f", {speed:.1f} GB/s" if speed else ""
            lines.append(text + (f"; {', '.join(kinds)}" if kinds else ""))
    if lines:
        crossing = f"; {size_text(summary.step_bytes)} a step to the GPU" if summary.step_bytes else ""
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
            to.print(f"  {label}: grew {size_text(each.growth)} while tracing; this trace does not record totals")
            continue
        reserved = f", reserved {size_text(each.peak_reserved)}" if each.peak_reserved else ""
        to.print(
            f"  {label}: peak {size_text(each.peak_allocated)}{reserved}; grew {size_text(each.growth)} while tracing"
        )
        if each.at_peak:
            to.print(Text("  allocated while tracing and alive at the peak, by operator:", "dim"))
        for name, size in list(each.at_peak.items())[:4]:
            to.print(Text(f"    {size_text(size):>9}  {printable(name, 60)}"))


def _print_advice(summary, to):
    to.print(Text(f"\nWhat to do: {summary.verdict}", "bold"))
    for number, each in enumerate(summary.advice, start=1):
        gain = "gain unknown" if each.predicted_gain is None else f"at most {each.predicted_gain:.2f}x as fast"
        gain = gain if (each.predicted_gain or 0) < 100 else "the step is nothing else"
        treats = f"steps/{each.step}.py" if each.step else "beyond the walkthrough's steps"
        line = Text.assemble(f"{number}. ", (each.title, "bold green"), f": {gain}; {treats}")
        to.print(Padding(line, (0, 0, 0, 2), expand=False))
        to.print(Padding(Text(f"{each.why}."), (0, 0, 0, 5), expand=False))


def _first_to_last(names):
    shown = [printable(name, 20) for name in names]
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _range(durations):
    """The shortest and the longest step, where they differ by more than a twentieth."""
    low, high = (min(durations), max(durations)) if len(durations) else (0, 0)
    return f" ({time_text(low)} to {time_text(high)})" if high > 1.05 * low else ""


def _steps(summary):
    count = len(summary.steps.names)
    return f"{count} steps" if count > 1 else "one step" if summary.steps.marked else "the whole trace"


def kernel_text(name, width):
    """A kernel's name on one line, without what all of them share; where it is too long, its middle goes."""
    line = printable(name).removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    keep = (width - 1) // 2
    return line if len(line) <= width else f"{line[: width - 1 - keep]}…{line[len(line) - keep :]}"
