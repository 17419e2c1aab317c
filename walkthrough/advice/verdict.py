"""What is said of a trace: one sentence on what bounds the program, gains, steps, gaps and what was recorded."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from walkthrough.advice.catalogue import Advice
from walkthrough.advice.wait_costs import BESIDES, REMEDIES, cpu_work, doing, long_steps
from walkthrough.results.errors import printable
from walkthrough.terminal import counted, rounded_time, time_text
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import median, quantile
from walkthrough.trace.communication import COMPUTE, EXPOSED, OVERLAPPED
from walkthrough.trace.idle import CAUSES, Idle, longest_stall
from walkthrough.trace.kernel_names import ATTENTION, CONVOLUTION, MATRIX, short_name
from walkthrough.trace.outliers import CUT, NOTICEABLE, LongSteps, Outlier, is_undecided
from walkthrough.trace.reader import NEW_EPOCH, Loader, Recording

STALLED = 0.05  # of the step: where the GPU waits for itself so long, and mostly for itself, that comes first
MENTIONED = 0.01  # of the step: collectives' kernels that take less are counted as other kernels in the verdict
MUCH = 0.1  # of the step: computing does not bound it if another part takes so long, or advice could save so much
BUSY = 0.05  # of the step: a GPU that is idle for less is busy
MOST_CAUSES, MENTIONED_CAUSE = 3, 0.1  # of why a GPU is idle: so many, of so much of that time
WIDE = 2.0  # times as long: where half of the steps differ by more, hardly any is as long as their median
ALIKE, MANY = 1.1, 5  # times as long: steps that differ by less; so many have a range
SURE = 0.1  # the error of an estimate that is said as one number,
NARROW = 1.05  # times: if it is so near to its lower end
LEAST = 1.02  # times faster: a smaller gain is not said
MOST = 100  # times faster: a gain beyond that means that nothing else is in the step
MOST_LOADERS = 3  # that are named
MUCH_WAITING = 0.3  # of the time: on two idle cores, beside two loader workers, it was 0.14 to 0.27
MOSTLY = 0.5  # of the time: far longer steps that take so much longer come first
ROLES = {
    "kernel": "a GPU kernel runs",
    "memcpy": "the GPU only copies",
    "memset": "the GPU only sets memory",
    "communication": "only a marked collective; NCCL's kernels count as kernel",
    "runtime": "the GPU is idle, the CPU in a call of its runtime",
    "dataloader": "the loop waits for its next batch",
    "cpu_exec": "the CPU runs operators",
    "other": "nothing recorded: Python, most likely",
}
ROLES_WITHOUT_GPU = {
    "communication": "a marked collective, and nothing else",
    "runtime": "the CPU is in a call of the runtime",
}
ON_CPU = {  # what a step is without a GPU, other than operators, after a share of it
    "dataloader": "waits for the DataLoader",
    "communication": "is communication",
    "other": "is Python, or nothing recorded",
}
CAUSES_OF_IDLE = {
    "copy": "copying, or inside a call that copies",
    "queued": "work is launched already: the next kernel starts, or waits",
    "dataloader": "the loop waits for its next batch",
    "synchronisation": "the CPU waits for the GPU",
    "setup": "allocating memory, loading code, starting up",
    "launch": "launch-bound: the CPU runs operators and launches",
    "other": "Python, or nothing recorded",
}


WHILE_IDLE = {  # the same, after a share of the time
    "copy": "copying",
    "queued": "with work queued, between kernels",
    "dataloader": "waiting for the DataLoader",
    "synchronisation": "while the CPU waits for it",
    "setup": "allocating memory, loading code or starting up",
    "launch": "launch-bound",
    "work": "while the CPU does other work",
    "other": "in Python, or nothing recorded",
}


def gain_text(advice: Advice) -> str:
    """The gain in words: "about 1.29x", "1.2x to 1.6x", "at most 1.50x" (the bound); "" where it is unknown."""
    bound, estimate = advice.predicted_gain, advice.estimated_gain
    if (estimate or bound or 0) >= MOST:
        return "the step is nothing else"
    if estimate is None:
        return f"at most {bound:.2f}x" if bound else ""
    if estimate < LEAST:
        return "with others"  # alone it gains nothing
    return range_text(estimate, advice.low_gain or estimate, advice.error)


def range_text(estimate: float, low: float, error: float) -> str:
    """An estimate and its lower end in words; see `gain_text`. error: see `Cost`."""
    if estimate / low < NARROW and error <= SURE:
        return f"about {estimate:.2f}x"
    decimals = 2 if low < NARROW or f"{low:.1f}" == f"{estimate:.1f}" else 1
    return f"{low:.{decimals}f}x to {estimate:.{decimals}f}x"


def verdict(a: Analysis, advice: Sequence[Advice], text: str) -> str:
    """The text of `bound`, and what to do first of the (ranked) advice."""
    first = _first(advice)
    return f"{text}; {first}" if first and a.workload.has_steps and not a.trace.partial else text


def bound(a: Analysis, advice: Sequence[Advice] = ()) -> str:
    """One sentence on what bounds the typical steps; where there is little to do, also on what is left to try.

    Also on far longer steps: first, if they recur and are most of the time.
    """
    if a.trace.partial:
        return "the file is cut off or damaged, and what is missing may be what matters: record it again"
    if not a.workload.has_steps:
        return why_no_steps(a)
    long = long_steps(a)
    one_step = "the step" if a.steps.marked else "the trace"
    if a.outliers or long.weight < 1:
        one_step = "a typical step"
    text = _of_gpu(a, advice, one_step) if a.on_gpu else _of_cpu(a, advice, one_step)
    gains = "; gains are of all the time" if advice else ""
    if long.weight == 1.0:
        once = long.share >= NOTICEABLE and not long.traced
        return f"{text}; {_recurring(long)}{'; gains are of the others' * bool(advice)}" if once else text
    if long.share >= MOSTLY:
        unseen = "" if long.traced else ", and none of them is traced"
        if unseen and long.every > len(a.whole.steps.names) and not long.reasons:
            unseen = f" (`walkthrough trace --steps {long.every}` records one)"
        return f"{_recurring(long)}, {long.share:.0%} of the time: see that first{unseen}; {text}{gains}"
    return f"{text}; typical steps are {long.weight:.0%} of the time, as {_recurring(long)}{gains}"


def _recurring(long: LongSteps) -> str:
    """How often far longer steps come, and what they take longer for, in words."""
    take = f"of {long.of} steps take"
    which = f"one step in {long.every} takes" if long.every else counted(long.count, f"{take}s", take)
    besides = " and ".join(BESIDES[reason] for reason in long.reasons)
    return f"{which} {time_text(long.longer_us)} longer{', with ' * bool(besides)}{besides}"


def why_idle(a: Analysis) -> str:
    """One sentence on why the GPUs run no kernel, on average; "" without a GPU, or where they nearly always run one."""
    if not a.idle or not len(a.trace.kernels) or a.trace.partial or not a.workload.has_steps or stalled(a):
        return ""
    count, steps = len(a.idle), a.step_count
    total_us = sum(gpu.total_us for gpu in a.idle) / count
    if total_us <= BUSY * a.total_us:
        return ""
    shares = {name: sum(gpu.causes_us[name] for gpu in a.idle) / count / total_us for name in CAUSES}
    shares["work"] = min(cpu_work(a).total / total_us, shares["launch"])
    shares["launch"] -= shares["work"]
    largest = [name for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] >= MENTIONED_CAUSE]
    named = [f"{shares[name]:.0%} {WHILE_IDLE[name]}" for name in largest[:MOST_CAUSES]]
    named[0] = named[0].replace("% ", "% of it ", 1)
    idle = "The GPU is idle" if count == 1 else f"Each of {count} GPUs is idle"
    of_step = "of a step" if a.steps.marked else "of this trace"
    return f"{idle} for {time_text(total_us / steps)} {of_step}: {', '.join(named)}"


def why_no_steps(a: Analysis) -> str:
    """One sentence on why a trace allows no advice; of one that has no steps."""
    workload = a.workload
    if workload.is_capture:
        return (
            f"a CUDA graph is captured here, for {workload.capturing:.0%} of the time: its kernels run when it is "
            "launched, so trace launches of it instead"
        )
    if workload.accelerator:
        return (
            f"the work runs on an accelerator ({workload.accelerator}) whose events are not read here: all times are "
            "those of the CPU"
        )
    if workload.is_blind:
        return (
            "the program works on a GPU, but no kernel is recorded, so the times are those of the CPU, of launches "
            "and of waits: record with ProfilerActivity.CUDA, and with no other profiler on that GPU"
        )
    if not a.steps.whole:
        return (
            "the trace holds no whole step: what it marks was not over when the profiler stopped. Record again, and "
            "stop the profiler only after profiler.step() has ended each step of its schedule"
        )
    if is_undecided(a.steps):
        first, second = (rounded_time(us) for us in a.steps.duration.tolist())
        return (
            f"two steps of very different length, {first} and {second}, and nothing in the trace tells which is the "
            "usual one: trace more steps"
        )
    if workload.is_startup:
        return (
            f"a start-up, not a step: {workload.setting_up:.0%} of the time goes into allocating GPU memory, loading "
            "code and starting the GPU; trace after a warm-up"
        )
    if workload.is_fragment:
        share = f"{workload.busy:.1%}" if workload.busy >= 0.001 else "less than 0.1%"
        work = f"{workload.count} {workload.work}s fill {share} of the time"
        if workload.count == 1:
            work = f"one {workload.work} fills {share} of the time"
        elif not workload.count:
            work = f"no {workload.work} is recorded"
        return f"{work}: too little to advise on; trace whole steps of a program"
    return (
        f"events are missing: by the numbers of its operators, about one of {1 / workload.recorded:.0f} is in this "
        "trace. Kernels can be compared with one another; waits and gains cannot be told"
    )


def _first(advice: Sequence[Advice]) -> str:
    """What to do first; "" without advice."""
    if not advice:
        return ""
    first, gain = advice[0], gain_text(advice[0])
    if not gain:
        return f"try first: {first.title}. The gain cannot be estimated here; measure it"
    if first.estimated_gain is None:
        return f"biggest possible gain: {first.title}, {gain}"
    return f"try first: {first.title}, {gain}"


def _of_cpu(a: Analysis, advice: Sequence[Advice], one_step: str) -> str:
    total = max(a.steps.mean_us, 1e-9)
    shares = {role: a.steps.mean_breakdown_us[role] / total for role in ("dataloader", "communication", "other")}
    computing = max(0.0, 1 - sum(shares.values()))
    parts = {f"is operators on the CPU{_longest_operator(a)}": computing}
    parts |= {ON_CPU[role]: share for role, share in shares.items()}
    largest = [part for part in sorted(parts, key=lambda part: -parts[part]) if parts[part] >= MUCH]
    bound = ", ".join(f"{parts[part]:.0%}{'' if at else f' of {one_step}'} {part}" for at, part in enumerate(largest))
    if a.trace.properties:
        bound = f"there is a GPU, and nothing of it is recorded; {bound}"
    elif computing > 1 - MUCH and not any(item.predicted_gain and item.share_of_step >= MUCH for item in advice):
        bound = f"compute-bound: {bound}"
    if advice:
        return bound
    if a.trace.properties or computing < 0.5:
        return f"{bound}, and nothing stands out"
    fewer = "fewer or smaller images" if a.workload.images else "smaller inputs"
    return f"{bound}; left to try: a GPU, a smaller model, or {fewer}"


def _longest_operator(a: Analysis) -> str:
    """The operator that takes half of the operators' time on a CPU, with its share of it, in brackets; else ""."""
    total = sum(row.us for row in a.operators)
    longest = max(a.operators, key=lambda row: row.us, default=None)
    if longest is None or longest.us < total / 2:
        return ""
    return f" ({longest.us / total:.0%} of their time {printable(longest.name, 60)})"


def _of_gpu(a: Analysis, advice: Sequence[Advice], one_step: str) -> str:
    share, alone = _computing(a)
    matrix = a.share_of_kernels(a.of_kind(MATRIX, CONVOLUTION, ATTENTION))
    if not len(a.trace.kernels):
        copying = sum(a.steps.mean_breakdown_us[role] for role in ("memcpy", "memset")) / max(a.steps.mean_us, 1e-9)
        return f"copies fill {copying:.0%} of {one_step}, and no kernel runs: copies bound it"
    computing = "kernels" if alone is None else "kernels that compute"
    communicating = "" if alone is None else f", communication alone {alone:.0%}"
    if stalled(a):
        return _of_stall(a, share, alone, one_step)
    filled = f"{computing} fill {share:.0%} of {one_step}{communicating}"
    if advice:
        return filled
    if (alone or 0.0) > MUCH:
        return f"{filled}, and nothing else stands out"
    if share < 0.5:
        return f"{filled}, and nothing stands out"
    whose = "their" if alone is None else "all kernels'"
    others = max(us for role, us in a.steps.mean_breakdown_us.items() if role not in ("kernel", "communication"))
    gpu_bound, compute_bound = ("GPU-bound: ", "compute-bound: ") if others < MUCH * a.steps.mean_us else ("", "")
    filled += f", {matrix:.0%} of {whose} time matrix work"
    if (unknown := a.tensor_cores.unknown_kind_share) >= MUCH:
        return f"{gpu_bound}{filled} and {unknown:.0%} of kernels whose names do not tell what they do"
    if matrix > 0.5:
        return f"{compute_bound}{filled}; left to try: a model that computes less, or lower precision still"
    fused = "" if a.workload.compiled else "fused kernels (torch.compile)"
    named = " and ".join(filter(None, [fused, "channels_last" if a.workload.images else ""]))
    return f"{gpu_bound}{filled}; left to try: fewer passes over memory{': ' * bool(named)}{named}"


def _computing(a: Analysis) -> tuple[float, float | None]:
    """The share of the mean step in which kernels compute, and that in which only collectives run.

    Of all kernels, and None, where collectives' kernels take less than `MENTIONED` of the step.
    """
    total, parts = max(a.steps.mean_us, 1e-9), a.parts_us
    if not parts or parts[OVERLAPPED] + parts[EXPOSED] < MENTIONED * total:
        return a.steps.mean_breakdown_us["kernel"] / total, None
    return (parts[COMPUTE] + parts[OVERLAPPED]) / total, parts[EXPOSED] / total


def stalled(a: Analysis) -> float:
    """The share of the steps' time in which the GPUs wait for themselves (`queued`); 0.0 where that is little."""
    count = max(len(a.idle), 1)
    queued = sum(gpu.causes_us["queued"] for gpu in a.idle) / count
    waiting = sum(gpu.total_us for gpu in a.idle) / count
    return queued / a.total_us if queued >= max(waiting / 2, STALLED * a.total_us) else 0.0


def _of_stall(a: Analysis, share: float, alone: float | None, one_step: str) -> str:
    """On a GPU that mostly waits for itself. share, alone: see `_computing`."""
    queued, longest, total_us = stalled(a), longest_stall(a.trace, a.idle), float(a.steps.duration.sum())
    if not longest or not longest.first or longest.us < 0.9 * queued * total_us:
        return (
            f"for {queued:.0%} of {one_step} the GPU runs no kernel although the next one is launched already, and "
            "nothing that the CPU does will change that"
        )
    rest = max(1e-9, 1 - longest.us / total_us)
    computing = "kernels" if alone is None else "kernels that compute"
    of_rest = f"{computing} run {min(1.0, share / rest):.0%} of the time"
    if alone is not None:
        of_rest += f", communication alone {min(1.0, alone / rest):.0%}"
    of_what = "that" if alone is None else "all kernels' time"
    return (
        f"for the first {longest.us / 1e3:.1f} ms the GPU most likely still runs what was launched before the "
        f"trace; in the rest {of_rest}, and {a.tensor_cores.eligible_share or 0.0:.0%} of {of_what} is matrix work"
    )


def of_steps(a: Analysis) -> str:
    """Of which steps the numbers are: "3 steps", "5 typical steps", "the whole trace"."""
    number, word = len(a.typical.steps.names), "typical step" if a.outliers else "step"
    return f"{number} {word}s" if number > 1 else f"one {word}" if a.steps.marked else "the whole trace"


def of_which_steps(a: Analysis) -> str:
    """Which steps the numbers and the advice are about, where these are not all; else ""."""
    if not a.outliers:
        return ""
    whole = "the GPUs' shares and the memory are" if a.gpus else "the memory is"
    return f"Of {of_steps(a)}; only {whole} of all {len(a.steps.names)}."


def device(a: Analysis) -> str:
    """The GPUs of a trace, or why it has none."""
    workload = a.typical.workload
    if a.gpus:
        return ", ".join(dict.fromkeys(printable(gpu.name or f"GPU {gpu.id}", 60) for gpu in a.gpus))
    if workload.accelerator:
        return f"no event of its accelerator ({workload.accelerator})"
    if a.trace.partial:
        return "no event of a GPU in what is left of the file"
    return "no event of a GPU" if a.trace.properties or workload.is_blind else "CPU only"


def gaps(a: Analysis, idle: Idle) -> list[str]:
    """The stretches in which a GPU runs no kernel: how many, the longest, and the longest wait of launched work."""
    if not len(idle.start):
        return []
    longest = int(np.argmax(idle.end - idle.start))
    cause, us = CAUSES[int(np.argmax(idle.by_gap[:, longest]))], float(idle.end[longest] - idle.start[longest])
    number = f"{counted(len(idle.start), 'gap', 'gaps')} in {of_steps(a)}"
    lines = [f"{number}; the longest is {time_text(us)}, mostly {cause}"]
    stall = longest_stall(a.trace, [idle])
    if stall and idle.causes_us["queued"] > 0.1 * idle.total_us:
        call = printable(stall.call or "a call that the trace lacks", 40)
        before = f"before {short_name(stall.work, 60)}, launched by {call}"
        lines.append(f"queued longest: {time_text(stall.us)} {before}")
    return lines


def why_outlier(step: Outlier) -> str:
    """Why a step is far longer than the others."""
    name = f"step {printable(step.name, 20)}"
    longer = f"takes {time_text(step.us)}, {time_text(step.excess_us)} more than the median"
    if step.reasons == (NEW_EPOCH,) and step.wait_us > 0:
        text = f"{name} {doing(step)} and waits {time_text(step.wait_us)} for its first batch; the other steps' "
        text += f"median wait is {time_text(step.usual_wait_us)}"
        return f"{text}: {REMEDIES[step.workers]}" if step.workers else text
    if CUT in step.reasons:
        return f"{name} {doing(step)}: it takes {time_text(step.us)}, {time_text(-step.excess_us)} less than the median"
    if step.reasons:
        return f"{name} {doing(step)}: it {longer}"
    text = f"{name} {longer}, the largest part of it {step.role}"
    if step.gap_us > 0:
        text += f"; its longest time without a kernel is {time_text(step.gap_us)}, mostly {step.cause}"
    return text


def busy_machine(a: Analysis) -> str:
    """That the training had no CPU for much of the time, where a program's own times are those of a CPU; else ""."""
    waiting = (a.trace.recording and a.trace.recording.cpu_waiting) or 0.0
    if not a.trace.recording or not MUCH_WAITING <= waiting <= 1:
        return ""
    workers, threads = a.trace.recording.workers, (a.trace.recording.threads or 1) > 1
    others = ["other processes", *["its own loader workers"] * bool(workers), *["its own threads"] * threads]
    return (
        f"for {waiting:.0%} of the time the training was ready to run and had no CPU, which lengthens any operator: "
        f"{' or '.join(others)} took it; trace again on a quiet machine"
    )


def recorded(a: Analysis) -> list[str]:
    """What the program itself knew when it was traced, in at most three lines; none for traces from elsewhere."""
    recording, summary = a.trace.recording, traced(a)
    if recording is None or summary is None:
        return []
    return [line for line in (summary["text"], _marked(a, recording), _batches(recording)) if line]


def traced(a: Analysis) -> dict[str, Any] | None:
    """How a program was traced, and how fast it is without the profiler; None for one not of `walkthrough trace`.

    before_us, after_us: the median untraced step before and after the traced ones, or the mean where steps alternate
    between short and long; alike: whether they are. least_us, most_us: half of both lie between these. slower: how many
    times as long a typical traced step takes. None where that is unknown. text: one line.
    """
    recording = a.trace.recording
    if recording is None:
        return None
    before, after = (np.array(ms) * 1e3 for ms in (recording.untraced_step_ms, recording.untraced_after_ms))
    untraced, parts = np.concatenate([before, after]), [_as_asked(recording, len(a.steps.names))]
    least, most = (quantile(untraced, share) if len(untraced) else None for share in (0.25, 0.75))
    wide = bool(least and most and most > WIDE * least)
    middle = np.mean if wide else median
    before_us, after_us = (float(middle(us)) if len(us) else None for us in (before, after))
    alike = 1 / ALIKE <= after_us / before_us <= ALIKE if before_us and after_us else None
    usual, slower = float(middle(untraced)) if len(untraced) else 0.0, None
    if usual > 0 and a.steps.whole and not is_undecided(a.typical.steps):
        slower = (a.typical.steps.mean_us if wide else a.typical.steps.median_us) / usual
    found = {"before_us": before_us, "after_us": after_us, "alike": alike, "least_us": least, "most_us": most}
    if len(untraced):
        parts.append(_untraced(found, len(before), len(after), "mean" if wide else "median"))
        parts.append(f"a traced step takes {slower:.2f}x as long" if (slower or 0) >= 1 else "")
    return found | {"slower": slower, "text": "; ".join(filter(None, parts))}


def _as_asked(recording: Recording, steps: int) -> str:
    """How many steps were traced of how many, and why less than asked for; "" for an older recording."""
    total, asked = recording.total_steps, recording.asked
    if total is None:
        return ""
    text = f"traced: {steps} of {counted(total, 'step', 'steps')}"
    if steps < asked.get("steps", 0):
        text += f" instead of {asked['steps']}"
    if recording.warmup is not None and recording.warmup < asked.get("warmup", 0):
        text += f", after {counted(recording.warmup, 'step', 'steps')} of warm-up instead of {asked['warmup']}"
    cut = "instead" in text and total <= sum(asked.values()) + 1  # the profiler warms up for one step
    return f"{text}, as the program ended after {total}" if cut else text


def _untraced(found: dict[str, Any], before: int, after: int, middle: str) -> str:
    """How long steps take without the profiler: so many before and after the traced ones. middle: "mean", "median"."""
    texts = []
    for us, count, when in ((found["before_us"], before, "before tracing"), (found["after_us"], after, "after it")):
        if us is not None:
            several = f"{time_text(us)} over the" if texts else f"{middle} {time_text(us)} per step over the"
            texts.append(f"{several} {count} steps {when}" if count > 1 else f"{time_text(us)} in the one step {when}")
    if found["alike"] is not None:
        texts.append("alike" if found["alike"] else "not alike")
    least, most = found["least_us"], found["most_us"]
    if before + after >= MANY and most > ALIKE * least:
        texts.append(f"half of them {time_text(least)} to {time_text(most)}")
    return f"untraced: {', '.join(texts)}"


def _marked(a: Analysis, recording: Recording) -> str:
    lead = next((optimizer.name for optimizer in recording.optimizers if optimizer.lead), "")
    by = f"{printable(lead, 40)}.step" if lead else "the backward pass"
    parts = [f"steps: marked by {by}"]
    backwards = recording.backwards_per_step or 0
    if backwards > 1:
        several = f" of {len(recording.optimizers)} optimizers" if len(recording.optimizers) > 1 else ""
        parts.append(f"{backwards:.3g} backward passes per step{several or ': accumulated gradients, or a closure'}")
    if recording.skipped:
        parts.append(f"GradScaler skipped the optimizer in {recording.skipped} of {len(a.steps.names)}")
    if recording.moved:
        times = "once" if recording.moved == 1 else f"{recording.moved} times"
        parts.append(f"tracing began anew {times}, because of what a step did besides training")
    if recording.cores:
        parts.append(counted(recording.cores, "CPU core", "CPU cores"))
    return "; ".join(parts)


def _batches(recording: Recording) -> str:
    samples = recording.samples_per_step
    parts = [f"{samples:g} samples per step"] if samples else []
    if recording.epoch_steps and recording.epoch_begin_us > 0:
        begin = time_text(recording.epoch_begin_us)
        parts.append(f"{recording.epoch_steps:.0f} steps per epoch, the first of which takes {begin} longer")
    parts += map(_loader, recording.loaders[:MOST_LOADERS])
    if len(recording.loaders) > MOST_LOADERS:
        parts.append(f"{len(recording.loaders) - MOST_LOADERS} more")
    return f"data: {'; '.join(parts)}" if parts else ""


def _loader(loader: Loader) -> str:
    words = [f"batch_size={loader.batch_size}" if loader.batch_size is not None else ""]
    words.append(f"num_workers={loader.num_workers}")
    if loader.num_workers:
        words.append(f"persistent_workers={loader.persistent_workers}")
    words.append(f"pin_memory={loader.pin_memory}")
    if loader.num_workers and loader.prefetch_factor is not None:
        words.append(f"prefetch_factor={loader.prefetch_factor}")
    return f"DataLoader({', '.join(filter(None, words))})"
