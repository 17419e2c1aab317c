"""What `explain` prints of several traces: before and after, and the ranks of one training."""

from rich.text import Text

from common.errors import printable
from common.explain.view import headed_table, share_text, size_text, time_text
from common.ladder.compare import mean_of_known


def print_change(before, after, moved, to, batches=(None, None)):
    """Two traces side by side: first what moved, then the figures of both. batches: images in a step, if known."""
    for label, summary in (("before", before), ("after", after)):
        to.print(Text.assemble((f"{label:7}", "bold"), printable(str(summary.trace.file), 200)), soft_wrap=True)
    if bool(before.gpus) != bool(after.gpus):
        to.print(Text("one of them ran on a GPU, the other on a CPU: two machines, not a change", "yellow"))
    old, new = before.steps.mean_us, after.steps.mean_us
    to.print(f"\na step: {time_text(old)} before, {time_text(new)} after: {_speed(old, new, *batches)}\n")
    shown = headed_table("", "before", "after", "change")
    for name, was, now in moved:
        if was or now:
            shown.add_row(name, time_text(was), time_text(now), _change(now - was))
    for name, pick, show in _FIGURES:
        was, now = pick(before), pick(after)
        if was is not None or now is not None:
            shown.add_row(name, _or_dash(was, show), _or_dash(now, show), "")
    to.print(shown)
    to.print(Text(f"\nNow: {after.verdict}", "bold"))


def _speed(old, new, batch, new_batch):
    """How many times faster, in images where the batches are known, else in steps."""
    if old <= 0 or new <= 0:
        return "no time to compare"
    if batch and new_batch:
        images = f", of {batch} images before and {new_batch} after" if batch != new_batch else ""
        return f"{old / new * new_batch / batch:.2f}x the images a second{images}, under the profiler"
    return f"{old / new:.2f}x the steps a second, under the profiler"


_FIGURES = [
    ("GPU busy", lambda s: mean_of_known(gpu.utilization for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("SMs at work", lambda s: mean_of_known(gpu.sm_efficiency for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("Tensor Cores", lambda s: mean_of_known(gpu.tensor_core_share for gpu in s.gpus), lambda v: f"{v:.1%}"),
    ("kernels a step", lambda s: sum(k.count for k in s.kernels) / len(s.steps.names) or None, lambda v: f"{v:.0f}"),
    ("bytes to the GPU", lambda s: s.step_bytes or None, lambda v: size_text(v)),
    ("peak memory", lambda s: s.memory[0].peak_allocated if s.memory else None, lambda v: size_text(v)),
]


def print_ranks(summaries, to):
    """A row for each rank of one training, and how far they lie apart."""
    shown = headed_table("rank", "GPU", "step", "kernel", "busy", "collectives", "exposed", "dataloader", "no kernel")
    for rank, summary in summaries.items():
        steps, talk, count = summary.steps, summary.communication, len(summary.steps.names)
        parts = steps.mean_breakdown_us
        waits = mean_of_known(each.total_us / count for each in summary.idle)
        shown.add_row(
            str(rank),
            printable(", ".join(str(gpu.id) for gpu in summary.gpus) or "-"),
            time_text(steps.mean_us),
            time_text(parts["kernel"]),
            share_text(mean_of_known(gpu.utilization for gpu in summary.gpus)),
            time_text(talk.us / count) if talk else "-",
            time_text(talk.exposed_us / count) if talk else "-",
            time_text(parts["dataloader"]),
            "-" if waits is None else time_text(waits),
        )
    to.print(shown)
    times = {rank: summary.steps.mean_us for rank, summary in summaries.items()}
    slowest, fastest = max(times, key=times.get), min(times, key=times.get)
    spread = (times[slowest] - times[fastest]) / max(times[fastest], 1e-9)
    apart = (
        f"rank {slowest} takes {spread:.1%} longer a step than rank {fastest}" if spread >= 0.005 else "no difference"
    )
    to.print(f"\n{len(times)} ranks; {apart}")
    to.print(f"rank {slowest}: {summaries[slowest].verdict}; `explain` its trace to see more", markup=False)
    to.print(Text("A rank that others wait for shows little time in collectives; those that wait show much.", "dim"))


def _or_dash(value, show):
    return "-" if value is None else show(value)


def _change(us):
    return ("+" if us >= 0 else "-") + time_text(abs(us))
