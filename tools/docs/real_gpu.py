"""Figures of real GPUs for the chapters 00 to 05: a step before and after a change, from traces.

The traces are others' (`tools.docs.traced`), until a GPU is recorded: then both steps of a chapter are drawn from
that record instead.
"""

from collections.abc import Callable
from functools import partial

from tools.docs import traced
from tools.docs.recorded import Course, Recorded
from tools.docs.sample_figures import OF_SAMPLES
from tools.docs.strips import Drawn, Strip, busy, idle_notes, loading_notes, ms, strips_figure
from tools.docs.traced import traced_step
from walkthrough.compare.figures import step_label
from walkthrough.compare.markdown import escaped
from walkthrough.terminal import size_text

FOLDER = "gpu"  # below docs/figures
CHAPTERS = {  # {the page: the step before, the step after}
    "00_measuring": ("00_baseline", "04_multiprocess_loading"),
    "01_tensor_cores": ("00_baseline", "01_amp"),
    "02_gpu_memory": ("01_amp", "02_bigger_batch"),
    "03_host_to_device_copy": ("02_bigger_batch", "03_reduced_h2d_copy"),
    "04_loading": ("03_reduced_h2d_copy", "04_multiprocess_loading"),
    "05_pinned_memory": ("04_multiprocess_loading", "05_pinned_memory"),
}


def drawings(course: Course) -> dict[str, Callable[[], Drawn]]:
    """{name: draws it} of every figure that can be drawn: of a recorded GPU where there is one, else of samples."""
    sampled = traced.read()
    result: dict[str, Callable[[], Drawn]] = {}
    if sampled:
        result = {name: partial(draw, sampled, course) for name, draw in OF_SAMPLES.items()}
    if recorded := next((one for one in course.records if one.device_type == "cuda"), None):
        for chapter, (before, after) in CHAPTERS.items():
            if has_traced_gpu(recorded, before) and has_traced_gpu(recorded, after):
                result[chapter] = partial(of_record, recorded, before, after)
    return result


def has_traced_gpu(recorded: Recorded, step: str) -> bool:
    """Whether a step's trace was recorded, can be read, and holds a GPU's work."""
    analysis = recorded.analyses.get(step)
    return analysis is not None and len(analysis.trace.kernels) > 0


def of_record(recorded: Recorded, before: str, after: str) -> Drawn:
    """Two steps of a ladder recorded here."""
    strips = []
    for when, step in (("before", before), ("after", after)):
        shown, batch = traced_step(recorded.analyses[step]), recorded.row(step).result.batch_size
        title = (
            f"{when}: {step_label(step)}, batch {batch}, {ms(shown.us)} per step, {shown.us / batch:.0f} us per image"
        )
        strips.append(Strip(title, shown, (*loading_notes(shown), *idle_notes(shown))))
    device = recorded.ladder.baseline.device
    folder = f"`logs/reference/{recorded.folder.name}/`"
    peaks = [size_text(recorded.row(step).result.peak_memory_bytes.allocated) for step in (before, after)]
    numbers = "; ".join(f"{strip.title}, kernels {busy(strip.step):.0%} of the time" for strip in strips)
    return Drawn(
        strips_figure(strips),
        f"Two steps as recorded on {device}: what CPU, copies and kernels do. {numbers}.",
        f"Recorded on {escaped(device)}, in {folder}: one traced step of `{before}` and one of `{after}`. Memory "
        f"allocated at the peak, measured: {peaks[0]} before, {peaks[1]} after.",
    )
