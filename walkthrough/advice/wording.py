"""Sentences about a trace that `explain` prints and the pages of the Walkthrough tab show."""

import numpy as np

from walkthrough.advice.evidence import Finding
from walkthrough.advice.verdict import MOST
from walkthrough.results.errors import printable
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.idle import CAUSES, Idle, stalls
from walkthrough.trace.kernel_names import short_name
from walkthrough.trace.outliers import Outlier, is_undecided
from walkthrough.trace.recording import NEW_EPOCH, Loader, Recording
from walkthrough.trace.units import fine_time_text

MOST_LOADERS = 3  # that are named
ROLES = {
    "kernel": "a GPU kernel runs",
    "memcpy": "the GPU only copies",
    "memset": "the GPU only sets memory",
    "communication": "only a marked collective; NCCL's kernels count as kernel",
    "runtime": "the GPU is idle, the CPU in a CUDA or HIP call",
    "dataloader": "the loop waits for its next batch",
    "cpu_exec": "the CPU runs operators",
    "other": "nothing recorded: Python, most likely",
}
ROLES_WITHOUT_GPU = {
    "communication": "a marked collective, and nothing else",
    "runtime": "the CPU is in a call of the runtime",
}
CAUSES_OF_IDLE = {
    "copy": "copying, or inside a call that copies",
    "queued": "work is launched already: the GPU waits for itself",
    "dataloader": "the loop waits for its next batch",
    "synchronisation": "the CPU waits for the GPU",
    "setup": "allocating memory, loading code, starting up",
    "launch": "launch-bound: the CPU runs operators and launches",
    "other": "Python, or nothing recorded",
}


def count(a: Analysis) -> int:
    """Over how many steps times are divided; see `per_step`."""
    return 1 if is_undecided(a.typical.steps) else len(a.typical.steps.names)


def per_step(a: Analysis) -> str:
    """What is said of a time divided by `count`; "" where the whole trace counts as one step."""
    if is_undecided(a.typical.steps):
        return f"in {steps(a)}"
    return f"per {'typical ' if a.outliers else ''}step" if a.steps.marked else ""


def steps(a: Analysis) -> str:
    """Of which steps the numbers are: "3 steps", "5 typical steps", "the whole trace"."""
    number, word = len(a.typical.steps.names), "typical step" if a.outliers else "step"
    return f"{number} {word}s" if number > 1 else f"one {word}" if a.steps.marked else "the whole trace"


def of_which_steps(a: Analysis) -> str:
    """Which steps the numbers and the advice are about, where these are not all; else ""."""
    if not a.outliers:
        return ""
    whole = "the GPUs' shares and the memory are" if a.gpus else "the memory is"
    return f"Of {steps(a)}; only {whole} of all {len(a.steps.names)}."


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
    number = f"{len(idle.start)} gap{'s' * (len(idle.start) > 1)} in {steps(a)}"
    lines = [f"{number}; the longest is {fine_time_text(us)}, mostly {cause}"]
    for stall in stalls(a.trace, idle, 1) if idle.queued_share > 0.1 else ():
        call = printable(stall.call or "a call that the trace lacks", 40)
        before = f"before {short_name(stall.work, 60)}, launched by {call}"
        lines.append(f"queued longest: {fine_time_text(stall.us)} {before}")
    return lines


def why_outlier(step: Outlier) -> str:
    """Why a step is far longer than the others."""
    name = f"step {printable(step.name, 20)}"
    longer = f"takes {fine_time_text(step.us)}, {fine_time_text(step.excess_us)} more than the median"
    if step.reasons == (NEW_EPOCH,) and step.wait_us > 0:
        text = f"{name} {step.doing} and waits {fine_time_text(step.wait_us)} for its first batch; the other steps' "
        text += f"median wait is {fine_time_text(step.usual_wait_us)}"
        return f"{text}: {step.remedy}" if step.remedy else text
    if step.doing:
        return f"{name} {step.doing}: it {longer}"
    text = f"{name} {longer}, the largest part of it {step.role}"
    if step.gap_us > 0:
        text += f"; its longest time without a kernel is {fine_time_text(step.gap_us)}, mostly {step.cause}"
    return text


def recorded(a: Analysis) -> list[str]:
    """What the program itself knew when it was traced, in at most three lines; none for traces from elsewhere."""
    recording = a.trace.recording
    if recording is None:
        return []
    lines = (_untraced(a, recording), _marked(a, recording), _batches(recording))
    return [line for line in lines if line]


def _untraced(a: Analysis, recording: Recording) -> str:
    untraced_us, before = recording.untraced_us, len(recording.untraced_step_ms)
    if untraced_us is None:
        return ""
    text = f"untraced: median {fine_time_text(untraced_us)} per step over the {before} steps before tracing"
    if before == 1:
        text = f"untraced: {fine_time_text(untraced_us)} in the one step before tracing"
    if untraced_us <= 0 or not a.steps.whole or is_undecided(a.typical.steps):
        return text
    longer = a.typical.steps.median_us / untraced_us
    return f"{text}; a traced step takes {longer:.2f}x as long" if longer >= 1 else text


def _marked(a: Analysis, recording: Recording) -> str:
    lead = next((optimizer.name for optimizer in recording.optimizers if optimizer.lead), "")
    by = f"{printable(lead, 40)}.step" if lead else "the backward pass"
    parts = [f"steps: marked by {by}"]
    backwards = recording.backwards_per_step or 0
    if backwards > 1:
        several = f" of {len(recording.optimizers)} optimizers" if len(recording.optimizers) > 1 else ""
        parts.append(f"{backwards:g} backward passes per step{several or ', as where gradients are accumulated'}")
    if recording.skipped:
        parts.append(f"GradScaler skipped the optimizer in {recording.skipped} of {len(a.steps.names)}")
    if recording.moved:
        times = "once" if recording.moved == 1 else f"{recording.moved} times"
        parts.append(f"tracing began anew {times}, because of what a step did besides training")
    if recording.cores:
        parts.append(f"{recording.cores} CPU core{'s' * (recording.cores > 1)}")
    return "; ".join(parts)


def _batches(recording: Recording) -> str:
    samples = recording.samples_per_step
    parts = [f"{samples:g} samples per step"] if samples else []
    if recording.steps_per_epoch and recording.epoch_begin_us > 0:
        begin = fine_time_text(recording.epoch_begin_us)
        parts.append(f"{recording.steps_per_epoch} steps per epoch, the first of which takes {begin} longer")
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


def gain_without(finding: Finding) -> str:
    """How many times as fast the steps would be without what stands out; "" where that is unknown or little."""
    gain = finding.estimated_gain or 0.0
    as_it_is = "" if finding.advice else ", the CPU as it is"
    return f"about {gain:.2f}x as fast without{as_it_is}" if 1.01 <= gain < MOST else ""
