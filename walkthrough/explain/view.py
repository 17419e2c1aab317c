"""The text of `explain` for one trace. Names from a trace pass through `printable`: none can control the terminal."""

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from walkthrough.advice import wording
from walkthrough.advice.summary import Summary
from walkthrough.advice.verdict import MOST, gain_text
from walkthrough.explain.recorded import print_recording
from walkthrough.explain.step_times import print_breakdown, print_outliers, step_lengths
from walkthrough.results.errors import printable
from walkthrough.terminal import bare_table, headed_table, share_text, size_text
from walkthrough.trace.idle import CAUSES, stalls
from walkthrough.trace.kernel_names import short_name
from walkthrough.trace.memory import CPU
from walkthrough.trace.units import fine_time_text

CAUSE_MEANING = {
    "copy": "copying, or inside a call that copies",
    "queued": "work is launched already: the GPU waits for itself",
    "dataloader": "the loop waits for its next batch",
    "synchronisation": "the CPU waits for the GPU",
    "setup": "allocating memory, loading code, starting up",
    "launch": "launch-bound: the CPU runs operators and launches",
    "other": "Python, or nothing recorded",
}
TOP_NAMES = 8  # rows of kernels or operators
TOP_ALLOCATIONS = 4  # rows per device


def print_summary(summary: Summary, to: Console) -> None:
    """A first look at one trace: the typical step by role, the GPUs, why they wait, and what to do."""
    to.print(Text(printable(summary.analysis.trace.file.name, 200), "bold"))
    to.print(f"{device_names(summary)}; {step_lengths(summary)}", markup=False)
    print_recording(summary, to)
    to.print()
    print_breakdown(summary, to)
    print_outliers(summary.analysis.outliers, to)
    _print_gpus(summary, to)
    _print_idle(summary, to)
    _print_kernels(summary, to)
    _print_kinds(summary, to)
    _print_operators(summary, to)
    _print_transfers(summary, to)
    _print_memory(summary, to)
    _print_findings(summary, to)
    _print_advice(summary, to)


def device_names(summary: Summary) -> str:
    """The GPUs of a trace, or why it has none."""
    nature = summary.analysis.typical.workload
    if summary.analysis.gpus:
        return ", ".join(dict.fromkeys(printable(gpu.name or f"GPU {gpu.id}", 60) for gpu in summary.analysis.gpus))
    if nature.accelerator:
        return f"no event of its accelerator ({nature.accelerator})"
    if summary.analysis.trace.partial:
        return "no event of a GPU in what is left of the file"
    return "no event of a GPU" if summary.analysis.trace.properties or nature.is_blind else "CPU only"


def _print_gpus(summary: Summary, to: Console) -> None:
    if not summary.analysis.gpus:
        return
    to.print()
    table = headed_table("", "busy", "SMs at work", "occupancy", summary.matrix_units, "name")
    for gpu in summary.analysis.gpus:
        unknown = summary.analysis.tensor_cores.unknown.get(gpu.id, 0.0)
        tensor = share_text(gpu.tensor_core_share) + (f" (unknown: {unknown:.1%})" if unknown >= 0.005 else "")
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
    eligible = summary.analysis.tensor_cores.eligible_share
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could use them."
    legend = "busy: a kernel runs. SMs and occupancy are estimates. "
    legend += f"{summary.matrix_units}: of the time of operators' and CUDA graphs' kernels."
    to.print(Padding(Text(f"{legend}{could}", "dim"), (0, 0, 0, 2), expand=False))
    if collectives := summary.analysis.typical.communication:
        count = wording.count(summary)
        total, hidden = fine_time_text(collectives.us / count), fine_time_text(collectives.hidden_us / count)
        text = f"collectives: {total}{wording.per_step(summary)}, {hidden} of it overlapped by other kernels"
        text += f" ({collectives.count} in {wording.steps(summary)}); TensorBoard counts them as kernels"
        to.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _print_idle(summary: Summary, to: Console) -> None:
    count = wording.count(summary)
    for idle in summary.analysis.typical.idle:
        if idle.total_us <= 0:
            continue
        waits = fine_time_text(idle.total_us / count)
        to.print(Text(f"\nGPU {idle.device} runs no kernel for {waits}{wording.per_step(summary)}; meanwhile", "bold"))
        table = bare_table("left", "right", "right", "left")
        for cause in CAUSES:
            us = idle.causes_us[cause]
            if us > 0.0005 * idle.total_us:
                table.add_row(
                    f"  {cause}", fine_time_text(us / count), f"{us / idle.total_us:.1%}", CAUSE_MEANING[cause]
                )
        to.print(table)
        longest = int(np.argmax(idle.end - idle.start))
        cause = CAUSES[int(np.argmax(idle.by_gap[:, longest]))]
        length = idle.end[longest] - idle.start[longest]
        gaps = f"{len(idle.start)} gap{'s' * (len(idle.start) > 1)} in {wording.steps(summary)}"
        to.print(Text(f"  {gaps}; the longest is {fine_time_text(length)}, mostly {cause}", "dim"))
        for stall in stalls(summary.analysis.trace, idle, 1) if idle.queued_share > 0.1 else ():
            call = printable(stall.call or "a call that the trace lacks", 40)
            text = (
                f"  queued longest: {fine_time_text(stall.us)} before {short_name(stall.work, 60)}, launched by {call}"
            )
            to.print(Text(text, "dim"))


def _print_operators(summary: Summary, to: Console) -> None:
    if len(summary.analysis.trace.kernels):
        return
    operators = summary.analysis.typical.operators
    if not operators:
        return
    total = sum(operator.us for operator in operators)
    to.print(Text(f"\nOperators on the CPU, self time: {fine_time_text(total)} in {wording.steps(summary)}", "bold"))
    table = headed_table("time", "share", "count", "mean", "name")
    for operator in operators[:TOP_NAMES]:
        cells = fine_time_text(operator.us), f"{operator.us / max(total, 1e-9):.1%}", str(operator.count)
        table.add_row(
            *cells, fine_time_text(operator.us / operator.count), printable(operator.name, max(30, to.width - 42))
        )
    to.print(table)


def _print_kernels(summary: Summary, to: Console) -> None:
    if not summary.analysis.typical.tables.kernels:
        return
    total = sum(kernel.us for kernel in summary.analysis.typical.tables.kernels)
    count = sum(kernel.count for kernel in summary.analysis.typical.tables.kernels)
    to.print(Text(f"\nKernels: {count} in {wording.steps(summary)}, {fine_time_text(total)}", "bold"))
    table = headed_table(
        "time", "share", "count", "mean", "".join(word[0] for word in summary.matrix_units.upper().split()), "name"
    )
    answers = {True: "yes", False: "no", None: "?"}
    width = max(30, to.width - 46)
    for kernel in summary.analysis.typical.tables.kernels[:TOP_NAMES]:
        mean = fine_time_text(kernel.us / kernel.count)
        cells = fine_time_text(kernel.us), f"{kernel.us / max(total, 1e-9):.1%}", str(kernel.count), mean
        name = short_name(kernel.name, width)
        table.add_row(*cells, answers[kernel.tensor_cores], Text(name, no_wrap=True, overflow="fold"))
    to.print(table)


def _print_kinds(summary: Summary, to: Console) -> None:
    per_step = summary.analysis.typical.kinds_us
    total, scale = sum(per_step.values()), len(summary.analysis.typical.steps.names) / wording.count(summary)
    shown = [
        f"{kind} {fine_time_text(us * scale)} ({us / total:.1%})"
        for kind, us in per_step.items()
        if us >= 0.0005 * total
    ]
    if shown:
        to.print(Text(f"\nKernels by kind{',' * summary.analysis.steps.marked}{wording.per_step(summary)}", "bold"))
        to.print(Padding(Text(", ".join(shown)), (0, 0, 0, 2), expand=False))


def _print_transfers(summary: Summary, to: Console) -> None:
    lines = []
    for name, label in (("h2d", "to the GPU"), ("d2h", "from it"), ("d2d", "within the GPU")):
        copies = summary.analysis.typical.tables.copies[name]
        if copies.count:
            speed = copies.gigabytes_per_second
            kinds = [
                f"{kind} {size / copies.bytes:.0%}"
                for kind, size in (("pinned", copies.pinned_bytes), ("pageable", copies.pageable_bytes))
                if size
            ]
            text = f"  {label}: {copies.count} copies in {wording.steps(summary)}, "
            text += f"{size_text(copies.bytes)}, {fine_time_text(copies.us)}"
            text += f", {speed:.1f} GB/s" if speed else ""
            lines.append(text + (f"; {', '.join(kinds)}" if kinds else ""))
    if lines:
        size = summary.analysis.typical.step_bytes * len(summary.analysis.typical.steps.names) / wording.count(summary)
        to_gpu = f"; {size_text(size)}{wording.per_step(summary)} to the GPU" if size else ""
        to.print(Text(f"\nCopies{to_gpu}", "bold"))
        for line in lines:
            to.print(line)


def _print_memory(summary: Summary, to: Console) -> None:
    if not summary.analysis.memory:
        return
    to.print(Text("\nMemory", "bold"))
    # The allocator numbers the GPUs that the process sees, HIP's events those of the machine.
    one = len(summary.analysis.gpus) == 1 == sum(memory.device != CPU for memory in summary.analysis.memory)
    for memory in summary.analysis.memory:
        label = "CPU" if memory.device == CPU else f"GPU {summary.analysis.gpus[0].id if one else memory.device}"
        growth = f"grew {size_text(memory.growth)} while tracing"
        if memory.peak_allocated is None:
            to.print(f"  {label}: {growth}; this trace does not record totals")
            continue
        reserved = f", reserved {size_text(memory.peak_reserved)}" if memory.peak_reserved else ""
        to.print(f"  {label}: peak {size_text(memory.peak_allocated)}{reserved}; {growth}")
        if memory.at_peak:
            to.print(Text("  top allocations at the peak, of those made while tracing, by operator:", "dim"))
        for name, size in list(memory.at_peak.items())[:TOP_ALLOCATIONS]:
            to.print(Text(f"    {size_text(size):>9}  {printable(name, 60)}"))


def _print_advice(summary: Summary, to: Console) -> None:
    to.print(Text(f"\nWhat to do: {summary.verdict}", "bold"))
    for number, advice in enumerate(summary.advice, start=1):
        script = f"; steps/{advice.step}.py" if advice.step else ""
        line = Text.assemble(f"{number}. ", (advice.title, "bold green"), f": {gain_text(advice)}{script}")
        to.print(Padding(line, (0, 0, 0, 2), expand=False))
        to.print(Padding(Text(f"{advice.why}."), (0, 0, 0, 5), expand=False))
    if text := wording.of_which_steps(summary):
        to.print(Padding(Text(text, "dim"), (0, 0, 0, 2), expand=False))
    numbers = {advice.title: str(number) for number, advice in enumerate(summary.advice, start=1)}
    together = [
        f"{' + '.join(numbers[title] for title in combination.titles)}: {combination.estimated_gain:.2f}x"
        for combination in summary.combined
    ]
    if together:
        to.print(Text(f"  Together: {'; '.join(together)}", "bold"))
    if summary.analysis.gpus and summary.advice:
        to.print(Padding(Text(_advice_legend(summary), "dim"), (0, 0, 0, 2), expand=False))
    elif summary.advice:
        text = "at most: with that cost gone, and all else as it is; what replaces it costs too, and may cost more. "
        text += "`walkthrough time -- COMMAND --versus COMMAND` measures what a change gains."
        to.print(Padding(Text(text, "dim"), (0, 0, 0, 2), expand=False))


def _advice_legend(summary: Summary) -> str:
    bound = "at most: with that cost gone, and all else as it is."
    gains = [advice.estimated_gain for advice in summary.advice if advice.estimated_gain]
    if not gains:
        return f"{bound} No estimates: the GPU waits for something that the trace does not explain."
    legend = (
        f"about: the trace replayed without that cost. {bound} Recording takes time on the CPU too, which is not taken "
        "out: without the profiler, fewer launches and less Python gain less."
    )
    if summary.combined:
        legend += " Together: once one cost is gone another bounds the step, and gains then."
    if gains != sorted(gains, reverse=True):
        legend += (
            " Estimates within 5 % of each other are in the walkthrough's order; a bigger batch, which changes what is "
            "trained, is ranked by the time that it is about."
        )
    return legend


def _print_findings(summary: Summary, to: Console) -> None:
    if not summary.findings:
        return
    to.print(Text("\nWhat stands out", "bold"))
    for finding in summary.findings:
        gain = finding.estimated_gain or 0.0
        as_it_is = "" if finding.advice else ", the CPU as it is"
        without = f"; about {gain:.2f}x as fast without{as_it_is}" if 1.01 <= gain < MOST else ""
        line = Text.assemble(
            (finding.what, "bold"), f": {fine_time_text(finding.us_per_step)}{wording.per_step(summary)}{without}"
        )
        to.print(Padding(line, (0, 0, 0, 2), expand=False))
        to.print(Padding(Text(f"{printable(finding.why, 600)}."), (0, 0, 0, 5), expand=False))
        to.print(Padding(Text(f"{finding.do}.", "green"), (0, 0, 0, 5), expand=False))
