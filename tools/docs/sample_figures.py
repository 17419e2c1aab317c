"""Figures of the chapters 00 to 05 from others' traces of real GPUs (see `tools.docs.traced`).

Where no pair of traces has just the change of a chapter, what comes after it is predicted, and the caption says so.
"""

from collections.abc import Callable

from matplotlib.figure import Figure

from tools.docs import traced
from tools.docs.figures import CAUSE_COLOURS
from tools.docs.figures import COLOURS as ROLE_COLOURS
from tools.docs.gpu_memory import COLOURS as MEMORY_COLOURS
from tools.docs.recorded import Course
from tools.docs.strips import (
    COLOURS,
    Drawn,
    Note,
    Strip,
    bars,
    busy,
    draw_strip,
    idle_notes,
    legend,
    loading_notes,
    longest,
    ms,
    strip_legend,
    strips_figure,
    wait_ms,
)
from tools.docs.traced import COPIES, CPU, Sampled, TracedStep
from walkthrough.compare.figures import GREY
from walkthrough.memory.fit import Prediction
from walkthrough.memory.tracker import KINDS

PAIR = f"{traced.PUBLISHER.replace('trace', 'traces')}, batch 32, fp32"
FETCH = "`python -m walkthrough samples` fetches"
ROLES = ("kernel", "memcpy", "runtime", "dataloader", "cpu_exec")


def measuring(sampled: Sampled, course: Course) -> Drawn:
    """00: how to read a step, and where its time goes before and after."""
    before, after = (sampled.steps[f"resnet50_v100_{count}_workers"] for count in (0, 4))
    figure = Figure(figsize=(9, 5.3), layout="constrained")
    strip_axes, bar_axes = figure.subplots(2, 1, height_ratios=[1.3, 1])
    notes = [*loading_notes(before), *idle_notes(before)]
    for group in (traced.FORWARD, traced.BACKWARD, traced.OPTIMIZER):
        begin, end = longest(before, CPU, group)
        notes.append(Note(group.partition(",")[0], begin, end))
    _, copy_end = longest(before, COPIES, traced.TO_GPU)
    strip = Strip(f"one step of {ms(before.us)}: batches are loaded in the main process", before, notes)
    draw_strip(strip_axes, strip, before.us / 1e3)
    strip_legend(strip_axes, [traced.MATRIX_PLAIN, traced.OTHER_KERNELS, traced.TO_GPU])
    strip_axes.text(
        copy_end + 0.01 * before.us / 1e3, 1.25, "the batch is copied to the GPU", color=GREY, fontsize=9, va="center"
    )
    rows = [
        (label, {role: step.mean[f"role {role}"] / 1e3 for role in ROLES})
        for label, step in (("0 workers", before), ("4 workers", after))
    ]
    for (_, parts), step in zip(rows, (before, after), strict=True):
        parts["other"] = step.mean["step"] / 1e3 - sum(parts.values())
    bars(bar_axes, rows, ROLE_COLOURS, "ms")
    bar_axes.set_title(
        "the mean traced step, by what happens (as in the view Overview)", fontsize=10, color=GREY, loc="left"
    )
    texts = "; ".join(
        f"{label}: {', '.join(f'{role} {value:.1f}' for role, value in parts.items())} ms" for label, parts in rows
    )
    return Drawn(
        figure,
        f"Above, one step of {ms(before.us)} in lanes: the CPU waits {wait_ms(before):.1f} ms for the "
        f"DataLoader, then copies the batch, runs forward, backward and the optimizer; the kernels run meanwhile. "
        f"Below, the mean traced step by role, {texts}.",
        f"{PAIR}. Above: step {before.step} without workers; a lane is as high as the share of the time in which "
        f"something runs; at the right the CPU loads the next batch already. "
        f"Below: the mean of its 6 traced steps, and with 4 workers. {FETCH} the traces.",
    )


def tensor_cores(sampled: Sampled, course: Course) -> Drawn:
    """01: the kernels' time of one training, without Tensor Cores and with them."""
    plain, amp, cores = (sampled.steps[f"resnet50_{name}"] for name in ("v100_ddp", "v100_ddp amp", "a100_ddp"))
    rows = []
    groups = (traced.MATRIX_PLAIN, traced.MATRIX_CORES, traced.OTHER_KERNELS)
    for label, step in (
        ("V100, fp32\ntraced", plain),
        ("V100, 16 bits\npredicted", amp),
        ("A100, TF32\ntraced", cores),
    ):
        parts = {group: step.mean[group] / 1e3 for group in groups}
        if step.what:  # what the replay made faster would run on them
            parts[traced.MATRIX_CORES] += parts[traced.MATRIX_PLAIN]
            parts[traced.MATRIX_PLAIN] = 0.0
        rows.append((label, parts))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    bars(axes, rows, COLOURS, "ms")
    axes.set_title(
        "ms of kernels per step of ResNet-50, batch 32, without collectives", fontsize=10, color=GREY, loc="left"
    )
    names = [_short_kernel(sampled.kernels[f"resnet50_{gpu}_ddp"]) for gpu in ("v100", "a100")]
    texts = "; ".join(f"{label.replace(chr(10), ', ')}: {_listed(parts)}" for label, parts in rows)
    return Drawn(
        figure,
        f"Stacked bars, ms of kernels per step. {texts}.",
        f"Two traces that Meta published (Holistic Trace Analysis): the same ResNet-50 training, the same batch, on "
        f"two GPUs, so not a measurement of this change alone: an A100 is faster in other kernels too. Kernels such as "
        f"`{names[0]}` use no Tensor Cores, `{names[1]}` does. Predicted: `explain`'s replay of the V100's trace for "
        f"mixed precision, not measured. {FETCH} the traces.",
    )


def _listed(parts: dict[str, float]) -> str:
    return ", ".join(f"{value:.1f} ms {part}" for part, value in parts.items() if value)


def _short_kernel(names: list[str]) -> str:
    """The first plain name among those of the longest kernels, without its namespace."""
    name = next((name for name in names if "(" not in name), names[0])
    return name.partition("(")[0].removeprefix("void ").rpartition("<")[2].rstrip(">")


def gpu_memory(sampled: Sampled, course: Course) -> Drawn:
    """02: a step that is bound by launches, twice, against one of twice the batch; and the memory that it needs."""
    before, after = sampled.steps["resnet50_a100_ddp"], sampled.steps["resnet50_a100_ddp twice"]
    strips = [
        Strip(f"before, traced: two steps of batch 32, {ms(before.us)} for 64 images", before, _gaps(before)),
        Strip(
            f"after, predicted: one step of batch 64, {ms(after.us)} for 64 images",
            after,
            missing="as many launches as for one step of batch 32 (not drawn)",
        ),
    ]
    known = [course.fit.find(step) if course.fit else None for step in ("00_baseline", "01_amp", "02_bigger_batch")]
    programs = [program for program in known if program]
    figure = Figure(figsize=(9, 4.9 + 1.9 * bool(programs)), layout="constrained")
    axes = figure.subplots(2 + bool(programs), 1, height_ratios=[1, 1, *([0.95] if programs else [])])
    for panel, strip in zip(axes, strips, strict=False):
        draw_strip(panel, strip, before.us / 1e3)
    legend(axes[1], strips)
    memory, caption = "", ""
    if programs:
        rows = [(_memory_label(one), {kind: one.by_kind[kind] / 1e9 for kind in KINDS}) for one in programs]
        bars(axes[2], rows, dict(MEMORY_COLOURS), "GB")
        axes[2].set_title(
            "GPU memory of the walkthrough's steps, predicted by fit", fontsize=10, color=GREY, loc="left"
        )
        memory = " GPU memory as predicted: " + "; ".join(
            f"{label.replace(chr(10), ', ')} {sum(parts.values()):.2f} GB" for label, parts in rows
        )
        caption = (
            f" Memory: no trace has it; predicted by `fit` for {programs[0].model} at {programs[0].image_size} px, "
            "not measured."
        )
    launch = before.mean["idle launch"]
    return Drawn(
        figure,
        f"Two steps of batch 32 take {ms(before.us)}: the kernels are thin, {ms(launch)} of a step the GPU waits for a "
        f"launch. Predicted, one step of batch 64 takes {ms(after.us)}, with denser kernels.{memory}.",
        "A trace that Meta published (Holistic Trace Analysis), ResNet-50, A100, batch 32. The strip after is "
        f"predicted by `explain`'s replay for twice the batch, not measured.{caption} {FETCH} the trace.",
    )


def _gaps(step: TracedStep) -> tuple[Note, ...]:
    text = f"of {ms(step.us)}, kernels run {busy(step):.0%}: the GPU waits for launches"
    return (Note(text, 0, step.us / 1e3, below=True),)


def _memory_label(one: Prediction) -> str:
    return f"{(one.program or '')[:2]}: {'16 bits' if '16' in one.precision else 'fp32'}\nbatch {one.batch_size}"


def host_to_device_copy(sampled: Sampled, course: Course) -> Drawn:
    """03: the copy of a batch, as float32 and as bytes."""
    before, after = sampled.steps["resnet50_v100_4_workers copy"], sampled.steps["resnet50_v100_4_workers uint8"]
    size = before.mean["h2d bytes"] / 1e6
    copied, quarter = before.in_stretch[traced.TO_GPU], after.in_stretch[traced.TO_GPU]
    strips = [
        Strip(
            f"before, traced: a batch in float32, {size:.1f} MB",
            before,
            (_over_copy(before, f"{ms(copied)}: {size * 1e3 / copied:.1f} GB/s, and no kernel runs"),),
        ),
        Strip(
            f"after, predicted: the same batch in uint8, {size / 4:.1f} MB",
            after,
            (_over_copy(after, f"{ms(quarter)}: the kernels begin {ms(copied - quarter)} earlier"),),
            missing="(the replay moves the GPU's work only)",
        ),
    ]
    return Drawn(
        strips_figure(strips, "ms, around the copy of one batch"),
        f"Two strips around the copy of a batch. Traced, in float32: {size:.1f} MB in {ms(copied)}, while no kernel "
        f"runs. Predicted, in uint8: {size / 4:.1f} MB in {ms(quarter)}.",
        f"{PAIR.replace('traces', 'trace')}, 4 workers. The strip after is predicted by `explain`'s replay for a "
        f"quarter of the bytes at the same bandwidth, not measured: the step goes from {ms(before.step_us)} to "
        f"{ms(after.step_us)}. {FETCH} the trace.",
    )


def _over_copy(step: TracedStep, text: str) -> Note:
    begin, end = longest(step, COPIES, traced.TO_GPU)
    return Note(text, begin, end, below=True)


def loading(sampled: Sampled, course: Course) -> Drawn:
    """04: the published pair, 0 and 4 workers."""
    before, after = (sampled.steps[f"resnet50_v100_{count}_workers"] for count in (0, 4))
    strips = [
        Strip(f"before: 0 workers, a step of {ms(before.us)}", before, (*loading_notes(before), *idle_notes(before))),
        Strip(
            f"after: 4 workers, a step of {ms(after.us)}",
            after,
            (_small_wait(after), Note(f"kernels run {busy(after):.0%} of the time", 0, after.us / 1e3, below=True)),
        ),
    ]
    was, now = before.mean, after.mean
    numbers = (
        f"DataLoader {ms(was['role dataloader'])} before, {ms(now['role dataloader'])} after; GPU busy "
        f"{was['utilization']:.1%} and {now['utilization']:.1%}; {ms(was['step'])} and {ms(now['step'])} per step"
    )
    return Drawn(
        strips_figure(strips),
        f"Two steps on one scale. Before, {wait_ms(before):.1f} of {ms(before.us)} the loop waits for its "
        f"next batch, and the GPU is idle. After, a step takes {ms(after.us)}. Means of 6 traced steps: {numbers}.",
        f"{PAIR}: step {before.step} without workers, at the end of which the CPU loads the next batch already, and "
        f"step {after.step} with 4. Means of all 6 traced steps: "
        f"{numbers}; two of the 6 with workers are far longer than the others, which take {ms(now['typical step'])}. "
        f"{FETCH} both.",
    )


def _small_wait(step: TracedStep) -> Note:
    begin, end = longest(step, CPU, traced.LOADING)
    return Note(f"{ms(step.in_stretch[traced.LOADING])}: the batch is ready", begin, max(end, begin + 1.0))


def pinned_memory(sampled: Sampled, course: Course) -> Drawn:
    """05: a copy from pageable memory, for which the CPU waits; from pinned memory, as predicted."""
    before, after = sampled.steps["resnet50_v100_4_workers copy"], sampled.steps["resnet50_v100_4_workers pinned"]
    wait_begin, wait_end = longest(before, CPU, traced.WAITING)
    waited = before.in_stretch[traced.WAITING]
    strips = [
        Strip(
            "before, traced: from pageable memory",
            before,
            (Note(f"{ms(waited)}: the CPU waits inside the copy's call", wait_begin, wait_end), _pageable(before)),
        ),
        Strip(
            "after, predicted: from pinned memory, non_blocking=True",
            after,
            (_over_copy(after, "the kernels of this batch still wait for their copy"),),
            missing="the call returns at once, and the CPU goes on launching (not drawn)",
        ),
    ]
    return Drawn(
        strips_figure(strips, "ms, around the copy of one batch"),
        f"Two strips around the copy of a batch. Traced: the CPU waits {ms(waited)} in the call, no kernel runs. "
        "Predicted with pinned memory: the call returns at once, the copy and the kernels stay where they are.",
        f"{PAIR.replace('traces', 'trace')}, 4 workers. The strip after is predicted by `explain`'s replay, not "
        f"measured; it keeps the copy's length: a step takes {ms(before.step_us)} before and {ms(after.step_us)} "
        "after, since the kernels need this batch. Expect a shorter copy too; to hide it takes the next chapter. "
        f"{FETCH} the trace.",
    )


def _pageable(step: TracedStep) -> Note:
    return _over_copy(step, f"{ms(step.in_stretch[traced.TO_GPU])}: the copy; no kernel runs")


def idle(sampled: Sampled, course: Course) -> Drawn:
    """Why the GPU waits, by cause, before and after."""
    steps = {f"{count} workers": sampled.steps[f"resnet50_v100_{count}_workers"] for count in (0, 4)}
    rows = [
        (
            label,
            {
                cause: step.mean[f"usual idle {cause}"] / 1e3
                for cause in CAUSE_COLOURS
                if any(other.mean[f"usual idle {cause}"] > 50 for other in steps.values())
            },
        )
        for label, step in steps.items()
    ]
    figure = Figure(figsize=(9, 2.5), layout="constrained")
    axes = figure.subplots()
    bars(axes, rows, dict(CAUSE_COLOURS), "ms")
    axes.set_title("why the GPU runs no kernel: ms of a typical traced step", fontsize=10, color=GREY, loc="left")
    texts = "; ".join(
        f"{label}: {', '.join(f'{cause} {value:.1f}' for cause, value in parts.items())} ms" for label, parts in rows
    )
    return Drawn(
        figure,
        f"Stacked bars: ms per step without a kernel, by cause. {texts}.",
        f"{PAIR}: means of the typical steps, without two long ones of the second trace. Causes as `explain` "
        f"names them. {FETCH} both.",
    )


OF_SAMPLES: dict[str, Callable[[Sampled, Course], Drawn]] = {
    "00_measuring": measuring,
    "01_tensor_cores": tensor_cores,
    "02_gpu_memory": gpu_memory,
    "03_host_to_device_copy": host_to_device_copy,
    "04_loading": loading,
    "05_pinned_memory": pinned_memory,
    "idle": idle,
}
