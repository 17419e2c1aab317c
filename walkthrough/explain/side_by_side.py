"""The texts of `explain` for several traces: before and after, and the ranks of one training."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from walkthrough.advice import ranks
from walkthrough.advice.summary import Summary
from walkthrough.explain.view import device_names
from walkthrough.results.errors import printable
from walkthrough.terminal import headed_table, share_text, size_text
from walkthrough.trace.kernels import mean_of_known
from walkthrough.trace.units import fine_time_text

_UNDER_THE_PROFILER = "tracing and the machine's load are in these times; `walkthrough time` measures the speed"


def print_change(
    before: Summary,
    after: Summary,
    changes: Sequence[tuple[str, float, float]],
    to: Console,
    batch_sizes: tuple[float | None, float | None] = (None, None),
) -> None:
    """Two traces side by side: first the step times by role, then the numbers of both.

    changes: (role, before, after) in µs. batch_sizes: samples per step, where known.
    """
    for label, summary in (("before", before), ("after", after)):
        text = f"{printable(str(summary.analysis.trace.file), 200)} ({device_names(summary)})"
        to.print(Text.assemble((f"{label:7}", "bold"), text), soft_wrap=True)
    names = [{gpu.name for gpu in summary.analysis.gpus} for summary in (before, after)]
    partial = before.trace.partial or after.trace.partial
    if partial:
        to.print(Text("a part of a file is missing: what is left cannot be compared", "yellow"))
    elif bool(before.gpus) != bool(after.gpus):
        to.print(Text("one of them ran on a GPU, the other on a CPU: two machines, not a change", "yellow"))
    elif names[0] != names[1] and None not in names[0] | names[1]:
        to.print(Text("two different GPUs: the difference is not only a change of the program", "yellow"))
    old, new = before.typical.mean_us, after.typical.mean_us
    speed = "" if partial else f": {_speed(old, new, *batch_sizes)}, under the profiler"
    to.print(f"\ntypical step: {fine_time_text(old)} before, {fine_time_text(new)} after{speed}")
    to.print(f"{_UNDER_THE_PROFILER}\n")
    table = headed_table("", "before", "after", "change")
    for name, was, now in changes:
        if was or now:
            table.add_row(name, fine_time_text(was), fine_time_text(now), _change_text(now - was))
    units = sorted({summary.matrix_units for summary in (before, after) if summary.analysis.gpus}, reverse=True)
    for name, figure, text in _FIGURES:
        name = " / ".join(units) if name == "Tensor Cores" else name
        was, now = figure(before), figure(after)
        if was is not None or now is not None:
            table.add_row(name, _or_dash(was, text), _or_dash(now, text), "")
    to.print(table)
    to.print(Text(f"\nNow: {after.verdict}", "bold"))


def _speed(old: float, new: float, old_batch: float | None, new_batch: float | None) -> str:
    """How many times faster: in samples/s if the batch sizes are known, else in steps/s."""
    if old <= 0 or new <= 0:
        return "no time to compare"
    if old_batch and new_batch:
        sizes = f", with {old_batch:.4g} per step before and {new_batch:.4g} after" if old_batch != new_batch else ""
        return f"{old / new * new_batch / old_batch:.2f}x the samples/s{sizes}"
    return f"{old / new:.2f}x the steps/s"


def _kernels_per_step(summary: Summary) -> float:
    return sum(kernel.count for kernel in summary.analysis.tables.kernels) / len(summary.analysis.steps.names)


_FIGURES: list[tuple[str, Callable[[Summary], Any], Callable[[Any], str]]] = [  # name, number or None, its text
    ("GPU busy", lambda s: mean_of_known(gpu.utilization for gpu in s.gpus), share_text),
    ("SMs at work", lambda s: mean_of_known(gpu.sm_efficiency for gpu in s.gpus), share_text),
    ("Tensor Cores", lambda s: mean_of_known(gpu.tensor_core_share for gpu in s.gpus), share_text),
    ("kernels per step", lambda s: _kernels_per_step(s) or None, "{:.0f}".format),
    ("bytes to the GPU", lambda s: s.step_bytes or None, size_text),
    ("peak memory", lambda s: s.memory[0].peak_allocated if s.memory else None, size_text),
]


def print_ranks(summaries: dict[int, Summary], to: Console) -> None:
    """A row for each rank of one training, and the difference between the slowest and the fastest."""
    table = headed_table("rank", "GPU", "step", "kernel", "busy", "collectives", "exposed", "dataloader", "no kernel")
    for rank, summary in summaries.items():
        steps, communication, count = (
            summary.analysis.typical.steps,
            summary.analysis.typical.communication,
            len(summary.analysis.typical.steps.names),
        )
        parts = steps.mean_breakdown_us
        waits = mean_of_known(idle.total_us / count for idle in summary.analysis.typical.idle)
        table.add_row(
            str(rank),
            printable(", ".join(str(gpu.id) for gpu in summary.analysis.gpus) or "-"),
            fine_time_text(steps.mean_us),
            fine_time_text(parts["kernel"]),
            share_text(mean_of_known(gpu.utilization for gpu in summary.analysis.gpus)),
            fine_time_text(communication.us / count) if communication else "-",
            fine_time_text(communication.exposed_us / count) if communication else "-",
            fine_time_text(parts["dataloader"]),
            "-" if waits is None else fine_time_text(waits),
        )
    to.print(table)
    compared = [ranks.of(summary, rank) for rank, summary in summaries.items()]
    straggler = ranks.straggler(compared)
    to.print(f"\n{len(compared)} ranks; {ranks.difference(compared)}")
    for rank, summary in summaries.items():
        for step in summary.analysis.outliers:
            doing = f", {step.doing}" if step.doing else ""
            text = (
                f"rank {rank}, step {printable(step.name, 20)}{doing}: {fine_time_text(step.us)}, and not in the table"
            )
            to.print(Text(text, "yellow"))
    first = (straggler or max(compared, key=lambda rank: rank.step_us)).rank
    to.print(f"rank {first}: {printable(summaries[first].verdict)}; `explain` its trace to see more", markup=False)
    if advice := ranks.advice(compared):
        to.print(Text.assemble("\n", ("overlap communication", "bold green"), f": {advice}"))
    to.print(Text("A rank that others wait for shows little time in collectives; those that wait show much.", "dim"))


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)


def _change_text(us: float) -> str:
    return ("+" if us >= 0 else "-") + fine_time_text(abs(us))
