"""What is between `<!-- begin NAME … -->` and `<!-- end -->` in the docs, from recorded runs and steps' files.

A block is a function of a `Course` and of the words after its name; it returns Markdown.
"""

from collections.abc import Callable

from tools.docs.blocks import (
    chapters,
    fit,
    front,
    gpu,
    lab,
    ladder,
    log,
    mysteries,
    page,
    published,
    step,
    study,
)

BLOCKS: dict[str, Callable[..., str]] = {
    block.__name__.replace("_", "-"): block
    for module in (page, step, ladder, published, study, fit, lab, log, chapters, front, gpu, mysteries)
    for block in module.BLOCKS
}
