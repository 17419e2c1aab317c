"""Sentences about a trace that `explain` prints and the board's pages show."""

from collections.abc import Sequence

from walkthrough.advice.summary import Summary
from walkthrough.results.errors import printable
from walkthrough.trace.outliers import Outlier, is_undecided
from walkthrough.trace.recording import NEW_EPOCH, Loader, Recording
from walkthrough.trace.units import fine_time_text

MOST_LOADERS = 3  # that are named


def count(summary: Summary) -> int:
    """Over how many steps times are divided; see `per_step`."""
    return 1 if is_undecided(summary.analysis.typical.steps) else len(summary.analysis.typical.steps.names)


def per_step(summary: Summary) -> str:
    """After a time divided by `count`; nothing where the whole trace counts as one step."""
    if is_undecided(summary.analysis.typical.steps):
        return f" in {steps(summary)}"
    typical = "typical " if summary.analysis.outliers else ""
    return f" per {typical}step" if summary.analysis.steps.marked else ""


def steps(summary: Summary) -> str:
    """Of which steps the numbers are: "3 steps", "5 typical steps", "the whole trace"."""
    number, word = len(summary.analysis.typical.steps.names), "typical step" if summary.analysis.outliers else "step"
    return f"{number} {word}s" if number > 1 else f"one {word}" if summary.analysis.steps.marked else "the whole trace"


def of_which_steps(summary: Summary) -> str:
    """Which steps the numbers and the advice are about, where these are not all; else ""."""
    if not summary.analysis.outliers:
        return ""
    whole = "the GPUs' shares and the memory are" if summary.analysis.gpus else "the memory is"
    return f"Of {steps(summary)}; only {whole} of all {len(summary.analysis.steps.names)}."


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


def recorded(summary: Summary) -> Sequence[str]:
    """What the program itself knew when it was traced, in at most three lines; none for traces from elsewhere."""
    recording = summary.analysis.trace.recording
    if recording is None:
        return []
    lines = (_untraced(summary, recording), _marked(summary, recording), _batches(recording))
    return [line for line in lines if line]


def _untraced(summary: Summary, recording: Recording) -> str:
    untraced_us, before = recording.untraced_us, len(recording.untraced_step_ms)
    if untraced_us is None:
        return ""
    text = f"untraced: median {fine_time_text(untraced_us)} per step over the {before} steps before tracing"
    if before == 1:
        text = f"untraced: {fine_time_text(untraced_us)} in the one step before tracing"
    if untraced_us <= 0 or not summary.analysis.steps.whole or is_undecided(summary.analysis.typical.steps):
        return text
    longer = summary.analysis.typical.steps.median_us / untraced_us
    return f"{text}; a traced step takes {longer:.2f}x as long" if longer >= 1 else text


def _marked(summary: Summary, recording: Recording) -> str:
    lead = next((optimizer.name for optimizer in recording.optimizers if optimizer.lead), "")
    by = f"{printable(lead, 40)}.step" if lead else "the backward pass"
    parts = [f"steps: marked by {by}"]
    backwards = recording.backwards_per_step or 0
    if backwards > 1:
        several = f" of {len(recording.optimizers)} optimizers" if len(recording.optimizers) > 1 else ""
        parts.append(f"{backwards:g} backward passes per step{several or ', as where gradients are accumulated'}")
    if recording.skipped:
        parts.append(f"GradScaler skipped the optimizer in {recording.skipped} of {len(summary.analysis.steps.names)}")
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
