"""A ladder as a figure, throughput and memory per step; and what all figures share: colours, style, SVG and PNG."""

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import InputError
from common.ladder.compare import Ladder, spread
from common.record import write_whole

if TYPE_CHECKING:  # half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
SPEED, MEMORY = "#0072b2", "#e69f00"  # Okabe and Ito's colours, which the colour-blind can distinguish
GREY = "#767676"  # readable on white and on black; in an SVG it becomes the reader's own text colour
ERROR_BARS = {"ecolor": GREY, "capsize": 3}
THEME = "<style>:root{color:#3c4043}@media(prefers-color-scheme:dark){:root{color:#c4c7cc}}</style>"

_TAG = re.compile(r"(<[^>]*>)")
_DECIMALS = re.compile(r"-?\d+\.\d{4,}")
_NUMBER = re.compile(r"(?<![\w#.-])-?\d+(?:\.\d+)?(?!\w)")
_HASHED_ID = re.compile(r'\bid="([A-Za-z_0-9]*[0-9a-f]{10})"')


def plot(ladder: Ladder, path: str | Path) -> None:
    """Draw a `compare.Ladder` into `path`, in the format of its suffix. Raises InputError for one not in `FORMATS`."""
    path = Path(path)
    check_figure_file(path)
    save(ladder_figure(ladder), path)


def check_figure_file(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise InputError for a file that cannot be drawn: its suffix is none of `formats`, or there is no such folder."""
    if path.suffix.lower() not in formats:
        suffixes = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise InputError(f"--plot {path}: the name must end in {suffixes}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")


def save(figure: "Figure", path: Path) -> None:
    """Write a matplotlib figure to `path`, whole or not at all: as PNG, or with any other suffix as SVG."""
    if path.suffix.lower() == ".png":
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150)
        write_whole(path, image.getvalue())
    else:
        write_whole(path, svg_text(figure))


def svg_text(figure: "Figure") -> str:
    """A matplotlib figure as SVG, its grey in the reader's light or dark theme.

    The same text each time: no date or version, coordinates with at most 3 decimals (the last digits of a float differ
    from CPU to CPU), and numbers in place of matplotlib's ids, which are hashes of coordinates. See also `same_figure`.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "walkthrough", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue().replace(GREY, "currentColor")
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    svg = _TAG.sub(lambda tag: _DECIMALS.sub(_rounded, tag[0]), svg)
    for number, name in enumerate(dict.fromkeys(_HASHED_ID.findall(svg)), start=1):
        svg = re.sub(rf'(?<=[#"]){name}(?=[")])', f"id_{number}", svg)
    return svg.replace("<defs>", f"{THEME}\n <defs>", 1)


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def same_figure(svg: str, other: str, tolerance: float = 0.01) -> bool:
    """True where two SVGs have the same structure and texts, and coordinates at most `tolerance` points apart."""
    parts, others = _TAG.split(svg), _TAG.split(other)
    if len(parts) != len(others) or parts[::2] != others[::2]:  # texts lie between the tags
        return False
    return all(
        tag == another or (_NUMBER.sub("#", tag) == _NUMBER.sub("#", another) and _close(tag, another, tolerance))
        for tag, another in zip(parts[1::2], others[1::2], strict=True)
    )


def _close(tag: str, other: str, tolerance: float) -> bool:
    pairs = zip(_NUMBER.findall(tag), _NUMBER.findall(other), strict=True)
    return all(abs(float(number) - float(another)) <= tolerance for number, another in pairs)


def styled(axes: "Axes", title: str) -> None:
    """Give axes their title, and the look of all figures: no box, grey where it is not data."""
    axes.set_title(title, fontsize=10, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
    for spine in axes.spines.values():
        spine.set_color(GREY)


def ink_on(colour: str | tuple[float, float, float, float]) -> str:
    """Black or white, whichever has the higher contrast (WCAG 2) on a colour: "#rrggbb", or RGBA in 0..1."""
    from matplotlib.colors import to_rgb

    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def step_label(step: str) -> str:
    """A step's name as figures print it: "04 multiprocess loading"."""
    return step.replace("_", " ")


def relative_labels(ladder: Ladder) -> list[str]:
    """What to write at each step's bar: times the baseline, or "no difference"."""
    ratios = [row.relative for row in ladder.rows[1:]]
    return ["1.00x", *(f"{ratio.ratio:.2f}x" if ratio.differs else "no difference" for ratio in ratios)]


def labelled(axes: "Axes", ends: Iterable[float], labels: Iterable[str]) -> None:
    """Write a label behind the end of each horizontal bar."""
    for y, (end, label) in enumerate(zip(ends, labels, strict=True)):
        axes.annotate(label, (end, y), (5, 0), textcoords="offset points", va="center", color=GREY, fontsize=9)


def reach(ranges: Iterable[tuple[float, float, float]]) -> list[list[float]]:
    """How far error bars reach below and above: [below, above], from the (low, middle, high) of each."""
    ranges = list(ranges)
    return [[middle - low for low, middle, _ in ranges], [high - middle for _, middle, high in ranges]]


def ladder_figure(ladder: Ladder) -> "Figure":
    """A matplotlib `Figure` of a `compare.Ladder`: images/s with the range of the windows, and peak memory."""
    from matplotlib.figure import Figure

    results = [row.result for row in ladder.rows]
    names = [step_label(result.step) for result in results]
    at = range(len(results))
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(results)), layout="constrained")
    speed, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])

    medians = [result.samples_per_second.median for result in results]
    low, high = zip(*(spread(result) for result in results), strict=True)
    errors = reach(zip(low, medians, high, strict=True))
    speed.barh(at, medians, color=SPEED, height=0.62, xerr=errors, error_kw=ERROR_BARS)
    labelled(speed, high, relative_labels(ladder))
    styled(speed, "images/s, with the range of the windows")
    speed.set_xlim(0, max(high) * 1.3)
    speed.set_yticks(at, names)
    speed.invert_yaxis()

    sizes = [result.peak_memory_bytes.allocated / 1e6 for result in results]
    memory.barh(at, sizes, color=MEMORY, height=0.62)
    labelled(memory, sizes, [f"{size:,.0f}" for size in sizes])
    styled(memory, "peak memory, MB")
    memory.set_xlim(0, max([*sizes, 1]) * 1.22)
    figure.suptitle(ladder_title(ladder), fontsize=11, color=GREY)
    return figure


def ladder_title(ladder: Ladder) -> str:
    """What a ladder was run with: model, data, image size, device."""
    base = ladder.baseline
    return f"{base.model}, {base.data_label}, {base.image_size} px, on {base.device}"
