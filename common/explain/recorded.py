"""The texts of `explain` on what `walkthrough trace` wrote beside the events."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from common.errors import printable
from common.explain.terminal import time_text
from common.trace.recording import Loader, Recording
from common.trace.summary import Summary
from common.trace.typical import is_undecided

MOST_LOADERS = 3  # that are named


def print_recording(summary: Summary, to: Console) -> None:
    """What the program itself knew when it was traced, in at most three lines; nothing for traces from elsewhere."""
    recording = summary.trace.recording
    if recording is None:
        return
    for line in (_untraced(summary, recording), _steps(summary, recording), _batches(recording)):
        if line:
            to.print(Padding(Text(line, "dim"), (0, 0, 0, 2), expand=False))


def _untraced(summary: Summary, recording: Recording) -> str:
    untraced_us, count = recording.untraced_us, len(recording.untraced_step_ms)
    if untraced_us is None:
        return ""
    text = f"untraced: median {time_text(untraced_us)} per step over the {count} steps before tracing"
    if count == 1:
        text = f"untraced: {time_text(untraced_us)} in the one step before tracing"
    if untraced_us <= 0 or not summary.steps.whole or is_undecided(summary.typical):
        return text
    longer = summary.typical.median_us / untraced_us
    return f"{text}; a traced step takes {longer:.2f}x as long" if longer >= 1 else text


def _steps(summary: Summary, recording: Recording) -> str:
    lead = next((optimizer.name for optimizer in recording.optimizers if optimizer.lead), "")
    by = f"{printable(lead, 40)}.step" if lead else "the backward pass"
    parts = [f"steps: marked by {by}"]
    backwards = recording.backwards_per_step or 0
    if backwards > 1:
        several = f" of {len(recording.optimizers)} optimizers" if len(recording.optimizers) > 1 else ""
        parts.append(f"{backwards:g} backward passes per step{several or ', as where gradients are accumulated'}")
    if recording.skipped:
        count = len(summary.steps.names)
        parts.append(f"GradScaler skipped the optimizer in {recording.skipped} of {count}")
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
        begin = time_text(recording.epoch_begin_us)
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
