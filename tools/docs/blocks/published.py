"""Blocks of figures that others published; none of them measured by us."""

from labs.memory.published import WORKERS
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.published import ARTICLE, ARTICLE_IMAGES_PER_SECOND, ARTICLE_TENSOR_CORES, DEVICE, PUBLISHED


def published(course: Course, step: str) -> str:
    """The original's figures for a step and the one before."""
    steps = list(PUBLISHED)
    if step not in steps:
        return "The original has no such step."
    row, at = PUBLISHED[step], steps.index(step)
    text = f"The original ({DEVICE}, one run, no spread, traced steps): {row.images_per_second:.1f} images/s"
    if not at:
        return f"{text}, {row.step_ms:.1f} ms per step, {row.memory_gb:.2f} GB."
    before = PUBLISHED[steps[at - 1]]
    return (
        f"{text} after {before.images_per_second:.1f}, {row.images_per_second / before.images_per_second:.2f} times; "
        f"{row.memory_gb:.2f} GB after {before.memory_gb:.2f}."
    )


def original_ladder(course: Course) -> str:
    """The original's table, as published."""
    rows = [
        [
            f"`{step}`",
            str(row.batch_size),
            f"{row.memory_gb:.2f}",
            f"{row.step_ms:.1f}",
            f"{row.images_per_second:.1f}",
            f"{row.relative:.2f}x",
        ]
        for step, row in PUBLISHED.items()
    ]
    return markdown.table(["step", ">batch", ">memory GB", ">step ms", ">images/s", ">vs baseline"], rows)


def published_tensor_cores(course: Course) -> str:
    """What another article reports of mixed precision: Tensor Cores' share, and images/s."""
    (share, share_after), (speed, speed_after) = ARTICLE_TENSOR_CORES, ARTICLE_IMAGES_PER_SECOND
    return (
        f"[An article]({ARTICLE}) with steps like the original's (resnet18 on a V100, one run, not measured here) "
        f"reports {share_after:.1%} of the kernels' time after {share:.0%}, at {speed_after} images/s after {speed}."
    )


def published_workers(course: Course) -> str:
    """How loading saturated in another study, as published: see `labs.memory.published.WORKERS`."""
    rows = [[str(workers), *(f"{value:g}" for value in values)] for workers, values in WORKERS.items()]
    table = markdown.table([">workers", ">ms to load", ">ms per step", ">s per epoch"], rows)
    return f"{table}\n\n*ResNeXt on CIFAR-10, batch 128, one A100, as published; not measured here.*"


BLOCKS = (published, original_ladder, published_tensor_cores, published_workers)
