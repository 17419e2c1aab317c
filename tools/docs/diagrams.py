"""The course's timelines: what the CPU, the copy engine and the GPU do, one above the other, on one axis. Not measured.

The times are made up, in units of no meaning, and each picture says so. What they show is the order: who waits for
whom, and where the GPU is idle. The rules that they are drawn by are CUDA's:
https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html (pageable and pinned copies, streams), and
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs (one launch for a whole graph).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.docs.drawing import Picture

CPU, COPY, GPU = "CPU", "copy engine", "GPU stream"
QUEUE = "launch queue"
COLOURS = {CPU: "#0072b2", COPY: "#e69f00", GPU: "#009e73"}
WAITING = "#56b4e9"  # the CPU is in a call that waits
WIDTH, LEFT, RIGHT = 700.0, 104.0, 8.0  # px: of the picture, of the lanes' names, of the margin
TITLE, NOTE, LANE, GAP, BETWEEN = 24.0, 19.0, 28.0, 5.0, 14.0  # px: heights
NOT_TO_SCALE = "time, not to scale; drawn, not measured"


@dataclass(frozen=True)
class Box:
    """What runs in a lane from `start` to `end`, in the diagram's unit of time. kind: "run", "wait" or "idle"."""

    lane: str
    start: float
    end: float
    label: str = ""
    kind: str = "run"


@dataclass(frozen=True)
class Panel:
    """Some lanes, one above the other. mark: a time with its label, drawn through all lanes; queue: (time, length)."""

    title: str
    note: str
    boxes: Sequence[Box]
    mark: tuple[float, str] | None = None
    queue: Sequence[tuple[float, float]] = ()

    @property
    def lanes(self) -> list[str]:
        used = {box.lane for box in self.boxes} | ({QUEUE} if self.queue else set())
        return [lane for lane in (CPU, QUEUE, COPY, GPU) if lane in used]

    @property
    def height(self) -> float:
        return TITLE + NOTE + len(self.lanes) * (LANE + GAP) + BETWEEN


def drawn(panels: Sequence[Panel], end: float, description: str) -> str:
    """Panels below one another, on one time axis from 0 to `end`, as SVG."""
    height = sum(panel.height for panel in panels) + 30
    longest = max((length for panel in panels for _, length in panel.queue), default=1.0)
    picture = Picture(WIDTH, height, description)
    scale = (WIDTH - LEFT - RIGHT) / end
    top = 0.0
    for panel in panels:
        _draw(picture, panel, top, scale, longest)
        top += panel.height
    picture.arrow((LEFT, top + 2), (WIDTH - RIGHT, top + 2))
    picture.text((LEFT, top + 20), NOT_TO_SCALE, 13)
    return picture.svg()


def _draw(picture: Picture, panel: Panel, top: float, scale: float, longest: float) -> None:
    picture.text((0, top + 17), panel.title, 15, bold=True)
    picture.text((0, top + 17 + NOTE), panel.note, 13)
    first = top + TITLE + NOTE
    tops = {lane: first + row * (LANE + GAP) for row, lane in enumerate(panel.lanes)}
    for lane, y in tops.items():
        picture.text((0, y + LANE / 2 + 5), lane)
    if panel.mark:
        x = LEFT + panel.mark[0] * scale
        picture.line((x, first - 3), (x, first + len(tops) * (LANE + GAP)), width=1.5, dotted=True)
        picture.text((x, top + 17), panel.mark[1], 13, "center")
    for box in panel.boxes:
        place = (LEFT + box.start * scale, tops[box.lane], LEFT + box.end * scale - 1, tops[box.lane] + LANE)
        if box.kind == "idle":
            picture.outline(*place, label=box.label)
        else:
            picture.box(*place, colour=WAITING if box.kind == "wait" else COLOURS[box.lane], label=box.label)
    if panel.queue:
        base = tops[QUEUE] + LANE
        line = [(LEFT + time * scale, base - (LANE - 3) * length / longest) for time, length in panel.queue]
        picture.area([(line[0][0], base), *line, (line[-1][0], base)], "#cc79a7")
        picture.line((LEFT, base), (line[-1][0], base))


def pageable_pinned_prefetched() -> str:
    """Three ways of copying a batch: from pageable memory, from pinned memory, and in a stream of its own."""
    chunks = [(1.7, 2.5), (2.7, 3.5), (3.7, 4.5), (4.7, 5.5)]
    pageable = [
        Box(CPU, 0, 1.5, "next"),
        Box(CPU, 1.5, 5.6, ".to(): waits", "wait"),
        Box(CPU, 5.6, 8.2, "launch 1"),
        *(Box(COPY, *chunk) for chunk in chunks),
        Box(GPU, 0, 5.9, "idle", "idle"),
        Box(GPU, 5.9, 10.9, "kernels 1"),
        Box(CPU, 8.2, 9.7, "next"),
        Box(CPU, 9.7, 14.9, ".to(): waits", "wait"),
        *(Box(COPY, start + 9.3, end + 9.3) for start, end in chunks),
        Box(GPU, 10.9, 15.2, "idle", "idle"),
        Box(CPU, 14.9, 17.5, "launch 2"),
        Box(GPU, 15.2, 20.2, "kernels 2"),
    ]
    pinned = [
        Box(CPU, 0, 1.5, "next"),
        Box(CPU, 1.5, 1.8),
        Box(CPU, 1.8, 4.4, "launch 1"),
        Box(COPY, 1.7, 4.1, "copy 1"),
        Box(GPU, 0, 4.1, "idle", "idle"),
        Box(GPU, 4.1, 9.1, "kernels 1"),
        Box(CPU, 4.4, 5.9, "next"),
        Box(CPU, 5.9, 6.2),
        Box(CPU, 6.2, 8.8, "launch 2"),
        Box(COPY, 9.1, 11.5, "copy 2"),
        Box(GPU, 9.1, 11.5, "idle", "idle"),
        Box(GPU, 11.5, 16.5, "kernels 2"),
    ]
    prefetched = [
        Box(CPU, 0, 1.5, "next"),
        Box(CPU, 1.5, 1.8),
        Box(COPY, 1.7, 4.1, "copy 1"),
        Box(CPU, 1.8, 3.3, "next"),
        Box(CPU, 3.3, 3.6),
        Box(COPY, 4.1, 6.5, "copy 2"),
        Box(CPU, 3.6, 6.2, "launch 1"),
        Box(GPU, 0, 4.1, "idle", "idle"),
        Box(GPU, 4.1, 9.1, "kernels 1"),
        Box(CPU, 6.2, 7.7, "next"),
        Box(CPU, 7.7, 8.0),
        Box(CPU, 8.0, 10.6, "launch 2"),
        Box(COPY, 7.9, 10.3, "copy 3"),
        Box(GPU, 9.1, 14.1, "kernels 2"),
    ]
    done = "batch 2 done"
    panels = (
        Panel(
            "Pageable",
            "the CPU waits: for the stream, then for each piece to be staged and copied",
            pageable,
            (20.2, done),
        ),
        Panel(
            "Pinned, non_blocking=True",
            "narrow box: .to() returns at once. No staging; the copy waits for kernels in its stream",
            pinned,
            (16.5, done),
        ),
        Panel(
            "Pinned, prefetched in a stream of its own",
            "the next batch is copied while kernels of this one run",
            prefetched,
            (14.1, done),
        ),
    )
    return drawn(panels, 21.6, ALT["pageable_pinned_prefetched"])


def sync_drains_the_queue() -> str:
    """A loss read in every step against one that is left on the device."""
    with_item = [
        Box(CPU, 0, 3, "launch 1"),
        Box(CPU, 3, 7.3, "loss.item(): waits", "wait"),
        Box(CPU, 7.3, 8.5, "next"),
        Box(CPU, 8.5, 11.5, "launch 2"),
        Box(CPU, 11.5, 15.8, "loss.item(): waits", "wait"),
        Box(CPU, 15.8, 17, "next"),
        Box(COPY, 6.9, 7.2),
        Box(COPY, 15.4, 15.7),
        Box(GPU, 0.4, 6.9, "kernels 1"),
        Box(GPU, 6.9, 8.9, "idle", "idle"),
        Box(GPU, 8.9, 15.4, "kernels 2"),
        Box(GPU, 15.4, 17, "idle", "idle"),
    ]
    waiting = [(0, 0), (0.4, 1.2), (3, 6), (6.9, 0), (8.5, 0), (8.9, 1.2), (11.5, 6), (15.4, 0), (17, 0)]
    without = [
        Box(CPU, 0, 3, "launch 1"),
        Box(CPU, 3, 4.2, "next"),
        Box(CPU, 4.2, 7.2, "launch 2"),
        Box(CPU, 7.2, 8.4, "next"),
        Box(CPU, 8.4, 11.4, "launch 3"),
        Box(CPU, 11.4, 12.6, "next"),
        Box(CPU, 12.6, 15.6, "launch 4"),
        Box(CPU, 15.6, 16.8, "next"),
        Box(GPU, 0.4, 6.9, "kernels 1"),
        Box(GPU, 6.9, 13.4, "kernels 2"),
        Box(GPU, 13.4, 17, "kernels 3"),
    ]
    ahead = [
        (0, 0),
        (0.4, 1.2),
        (3, 6),
        (4.2, 4.1),
        (7.2, 9),
        (8.4, 7),
        (11.4, 12),
        (12.6, 10.2),
        (15.6, 15),
        (17, 12.8),
    ]
    panels = (
        Panel(
            "loss.item() in every step",
            "it copies 4 bytes, behind all that was launched: the queue runs empty, then the GPU waits for launches",
            with_item,
            queue=waiting,
        ),
        Panel(
            "The loss stays on the device",
            "the CPU runs ahead: kernels are waiting whenever the GPU is ready for one",
            without,
            queue=ahead,
        ),
    )
    return drawn(panels, 17.2, ALT["sync_drains_the_queue"])


def graph_launch() -> str:
    """A launch for each kernel against one for a captured graph."""
    one_by_one = [Box(CPU, 2 * kernel, 2 * kernel + 1.9, f"launch {kernel + 1}") for kernel in range(8)]
    one_by_one += [Box(GPU, 2 * kernel + 1.9, 2 * kernel + 2.8, str(kernel + 1)) for kernel in range(8)]
    one_by_one += [Box(GPU, 2 * kernel + 2.8, 2 * kernel + 3.9, kind="idle") for kernel in range(7)]
    replayed = [
        Box(CPU, 0, 2.5, "copy input"),
        Box(CPU, 2.5, 5.4, "graph launch"),
        Box(CPU, 5.4, 12.8, "free for the next batch", "idle"),
        Box(GPU, 1.2, 2.1, "in"),
        Box(GPU, 2.1, 5.2, "idle", "idle"),
        *(Box(GPU, 5.2 + 0.95 * kernel, 5.2 + 0.95 * (kernel + 1), str(kernel + 1)) for kernel in range(8)),
    ]
    panels = (
        Panel(
            "A launch per kernel",
            "a launch takes longer than its kernel: the GPU waits for the CPU",
            one_by_one,
            (16.8, "done"),
        ),
        Panel(
            "One launch for the captured graph (cudaGraphLaunch)",
            "the same kernels, one after the other; the input is first copied to where the graph reads it",
            replayed,
            (12.8, "done"),
        ),
    )
    return drawn(panels, 17.2, ALT["graph_launch"])


ALT = {
    "pageable_pinned_prefetched": (
        "Three timelines of the CPU, the copy engine and the GPU, drawn and not to scale. Pageable: the CPU waits in "
        ".to() while a batch is staged and copied piece by piece, and the GPU is idle meanwhile. Pinned and "
        "non-blocking: the CPU goes on, the copy is shorter, and the GPU is idle only during it. Prefetched: the copy "
        "of the next batch overlaps the kernels, which follow one another without a gap."
    ),
    "sync_drains_the_queue": (
        "Two timelines, drawn and not to scale. With loss.item() in every step the CPU waits until all launched "
        "kernels have run, so the queue of launches is empty and the GPU is idle while the CPU launches again. "
        "Without it the CPU runs ahead, the queue never becomes empty, and kernels follow one another."
    ),
    "graph_launch": (
        "Two timelines, drawn and not to scale. With one launch per kernel each short kernel waits for its launch, "
        "and the GPU is idle in between. With one graph launch the same eight kernels run one after the other, and "
        "the CPU is free."
    ),
}  # the pictures' alternative texts, for the pages that show them
DIAGRAMS: dict[str, Callable[[], str]] = {
    diagram.__name__: diagram for diagram in (pageable_pinned_prefetched, sync_drains_the_queue, graph_launch)
}
