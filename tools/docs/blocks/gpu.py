"""Blocks of real GPUs: a figure with what it is drawn from, the list of others' traces, what `explain` says of one."""

from tools.docs import real_gpu, traced
from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.markdown import escaped
from walkthrough.records import samples
from walkthrough.results.errors import InputError


def gpu(course: Course, name: str) -> str:
    """One of `real_gpu.drawings`, with its caption."""
    drawings = real_gpu.drawings(course)
    if name not in (*real_gpu.CHAPTERS, *drawings):
        raise InputError(f"there is no figure of a GPU named {name!r}; known: {', '.join(drawings)}")
    if name not in drawings:
        return "*No figure of a GPU: neither a record nor `logs/reference/samples.json` has one.*"
    drawn = drawings[name]()
    return f"![{escaped(drawn.alt)}]({course.to_docs}figures/{real_gpu.FOLDER}/{name}.svg)\n\n*{drawn.caption}*"


def samples_table(course: Course) -> str:
    """The published traces that `samples` fetches: what, whose, and under which licence."""
    every = samples.read_list()
    rows = []
    for sample in every.samples:
        licence = every.licences[sample.source]
        link = f"[{escaped(sample.source)}]({sample.address})"
        rows.append(
            [f"`{sample.name}`", sample.gpu, escaped(sample.what), f"{link}, [{licence.name}]({licence.address})"]
        )
    return markdown.table(["folder", "GPU", "what", "from, licence"], rows)


def sample_explained(course: Course, name: str) -> str:
    """What `explain` prints of one of the samples, as computed into `samples.json`, without some of its parts."""
    sampled = traced.read()
    if sampled is None or name not in sampled.explain:
        raise InputError(f"what explain says of {name!r} is not in logs/reference/samples.json")
    return f"```text\n{sampled.explain[name]}```"


BLOCKS = (gpu, samples_table, sample_explained)
