"""A ladder as a figure, what each step gains; and what all figures share: colours, style, SVG and PNG."""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from walkthrough.compare.rounds import Comparison, rounds_compared
from walkthrough.compare.statistics import SAME, Ratio
from walkthrough.compare.table import text as cell_text
from walkthrough.results.errors import InputError
from walkthrough.results.result import write_whole

if TYPE_CHECKING:  # half a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

FORMATS = (".svg", ".png")
SPEED, MEMORY, SLOWER = "#0072b2", "#e69f00", "#d55e00"  # Okabe and Ito's: the colour-blind can distinguish them
UNRESOLVED = "#8c8c8c"  # a ratio whose interval includes 1
GREY = "#767676"  # readable on white and on black; in an SVG it becomes the reader's own text colour
ERROR_BARS = {"ecolor": GREY, "capsize": 3}
STYLE: dict[Any, Any] = {  # matplotlib's rcParams of every figure: no box, grey where it is not data
    "figure.constrained_layout.use": True, "figure.titlesize": 11, "figure.labelsize": 9,
    "text.color": GREY, "axes.titlecolor": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY,
    "axes.titlesize": 10, "axes.labelsize": 9, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "legend.fontsize": 9,
}  # fmt: skip
THEME = "<style>:root{color:#3c4043}@media(prefers-color-scheme:dark){:root{color:#c4c7cc}}</style>"

_TAG = re.compile(r"(<[^>]*>)")
_DECIMALS = re.compile(r"-?\d+\.\d{4,}")
_HASHED_ID = re.compile(r'\bid="([A-Za-z_0-9]*[0-9a-f]{10})"')


def plot(ladder: Comparison, path: str | Path) -> None:
    """Draw a ladder into `path`, in the format of its suffix. Raises InputError for one not in `FORMATS`."""
    path = Path(path)
    save(ladder_figure(ladder), path)


def check_figure_file(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise InputError for a file that cannot be drawn: its suffix is none of `formats`, or there is no such folder."""
    if path.suffix.lower() not in formats:
        suffixes = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise InputError(f"--plot {path}: the name must end in {suffixes}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")


def save(figure: "Figure", path: Path) -> None:
    """Write a matplotlib figure to `path`, whole or not at all: as PNG or SVG, by its suffix.

    Raises InputError for a name that `check_figure_file` refuses.
    """
    check_figure_file(path)
    if path.suffix.lower() == ".png":
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150)
        write_whole(path, image.getvalue())
    else:
        write_whole(path, svg_text(figure))


def svg_text(figure: "Figure", title: str | None = None) -> str:
    """A matplotlib figure as SVG, its grey in the reader's light or dark theme. title: what a screen reader says.

    The same text each time: no date or version, coordinates with at most 3 decimals (the last digits of a float differ
    from CPU to CPU), and numbers in place of matplotlib's ids, which are hashes of coordinates.
    """
    from matplotlib import rc_context

    text, metadata = io.StringIO(), {"Date": None, "Creator": None} | ({"Title": title} if title else {})
    with rc_context({"svg.hashsalt": "walkthrough", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=metadata, transparent=True)
    svg = text.getvalue().replace(GREY, "currentColor")
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    svg = _TAG.sub(lambda tag: _DECIMALS.sub(_rounded, tag[0]), svg)
    for number, name in enumerate(dict.fromkeys(_HASHED_ID.findall(svg)), start=1):
        svg = re.sub(rf'(?<=[#"]){name}(?=[")])', f"id_{number}", svg)
    return svg.replace("<defs>", f"{THEME}\n <defs>", 1)


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def in_style(draw: Callable[P, "Figure"]) -> Callable[P, "Figure"]:
    """Let a function draw its figure in the `STYLE` of all."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        from matplotlib import rc_context

        with rc_context(STYLE):
            figure = draw(*args, **kwargs)
        for axes in figure.axes:
            axes.tick_params(colors=GREY)  # matplotlib makes ticks later
        return figure

    return drawn


def ink_on(colour: str | tuple[float, float, float, float]) -> str:
    """Black or white, whichever has the higher contrast (WCAG 2) on a colour: "#rrggbb", or RGBA in 0..1."""
    from matplotlib.colors import to_rgb

    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def step_label(step: str) -> str:
    """A step's name as figures print it: "04 multiprocess loading"."""
    return step.replace("_", " ")


def short(ratio: Ratio) -> str:
    """A ratio without its interval: "1.39x", "~1.02x"."""
    return "1.00x" if ratio == SAME else str(ratio).partition(" ")[0]


def colour_of(ratio: Ratio) -> str:
    """The colour of a ratio's bar: one for the faster, one for the slower, and grey without a measurable difference."""
    if not ratio.resolved and ratio != SAME:
        return UNRESOLVED
    return SLOWER if ratio.ratio < 1 else SPEED


def reach(ranges: Iterable[tuple[float, float, float]]) -> list[list[float]]:
    """How far error bars reach below and above: [below, above], from the (low, middle, high) of each."""
    ranges = list(ranges)
    return [[middle - low for low, middle, _ in ranges], [high - middle for _, middle, high in ranges]]


@in_style
def ladder_figure(ladder: Comparison) -> "Figure":
    """A matplotlib `Figure` of a `rounds.Comparison`: each step against the baseline, and against the step before."""
    from matplotlib.figure import Figure

    rows = ladder.rows
    figure = Figure(figsize=(9, 1.9 + 0.33 * len(rows)))
    relative, gained = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    shown = {y: row.relative for y, row in enumerate(rows) if row in ladder.acting}
    _bars(relative, shown, start=0)
    for y in range(len(rows)):
        if y not in shown:
            offset = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
            relative.annotate(rows[y].needs, (0, y), **offset, color=UNRESOLVED, fontsize=9)
    relative.set_title(f"times the baseline ({ladder.baseline.samples_per_second.median:,.0f} images/s)")
    relative.set_yticks(range(len(rows)), [step_label(row.result.step) for row in rows])
    relative.set_ylim(len(rows) - 0.4, -0.6)
    _bars(gained, {y: row.gain for y, row in enumerate(rows) if row.gain}, start=1)
    gained.axvline(1, color=GREY, linewidth=0.8)
    gained.set_title("gain: times the step before")
    figure.suptitle(ladder_title(ladder))
    figure.supxlabel(f"lines: {interval_label(ladder)}; grey, ~: no measurable difference")
    return figure


def _bars(axes: "Axes", ratios: Mapping[int, Ratio], start: float) -> None:
    """Draw ratios by their place: a bar from `start`, the interval as far as there is room, and a label behind it."""
    if not ratios:
        return
    room = 1.5 * max(1.0, *(ratio.ratio for ratio in ratios.values()))
    right = min(room, max(1.0, *(ratio.high for ratio in ratios.values())))
    left = min(1.0, *(ratio.low for ratio in ratios.values())) if start else 0.0
    axes.barh(
        list(ratios),
        [ratio.ratio - start for ratio in ratios.values()],
        left=start,
        color=[_fill(colour_of(ratio)) for ratio in ratios.values()],
        height=0.62,
        xerr=reach((ratio.low, ratio.ratio, ratio.high) for ratio in ratios.values()),
        error_kw=ERROR_BARS,
    )
    axes.set_xlim(left - 0.05 * (right - left) * start, right + 0.25 * (right - left))
    for y, ratio in ratios.items():
        resolved = colour_of(ratio) != UNRESOLVED
        axes.annotate(
            short(ratio),
            (min(max(ratio.high, start), right), y),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=GREY if resolved else UNRESOLVED,
            weight="bold" if resolved else "normal",
            fontsize=9,
        )


def _fill(colour: str) -> str:
    """Grey half transparent, so that the interval is seen on it."""
    return f"{UNRESOLVED}80" if colour == UNRESOLVED else colour


def interval_label(ladder: Comparison) -> str:
    """What the lines in a figure of ratios are, and of how many rounds."""
    fewest, most = rounds_compared(ladder)
    if most == 1:
        return "95 % interval of one round (no run-to-run variation)"
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"95 % interval of {count} rounds{' (1: no run-to-run variation)' if fewest == 1 else ''}"


def ladder_title(ladder: Comparison) -> str:
    """What a ladder was run with: model, data, image size, device."""
    base = ladder.baseline
    return f"{base.model}, {base.data_label}, {base.size_label}, on {base.device}"


@in_style
def heat_map_figure(rows: Sequence[Mapping[str, Any]], x: str, y: str, value: str, note: str) -> "Figure":
    """A matplotlib `Figure` of one `heat_map`."""
    from matplotlib.figure import Figure

    across, up = (len({row[name] for row in rows}) for name in (x, y))
    figure = Figure(figsize=(max(6, 1.2 + across), 1.2 + 0.6 * up))
    heat_map(figure.subplots(), rows, x, y, value, note, value)
    return figure


def heat_map(
    axes: "Axes", rows: Sequence[Mapping[str, Any]], x: str, y: str, value: str, note: str, title: str
) -> None:
    """Draw rows as cells, placed by the columns `x` and `y`, coloured by the number or mean in column `value`.

    note: the column of texts below the value. Colours differ from the lower quarter on.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    across, up = (sorted({row[name] for row in rows}) for name in (x, y))
    values = [(row, row[value]["mean"] if isinstance(row[value], Mapping) else row[value]) for row in rows]
    known = sorted(middle for _, middle in values if middle is not None)
    low = known[len(known) // 4]
    scale, colours = Normalize(low, max(known[-1], low + 1e-9), clip=True), colormaps["cividis"]
    numbers = [[float("nan")] * len(across) for _ in up]
    for row, middle in values:
        place = across.index(row[x]), up.index(row[y])
        if middle is not None:
            numbers[place[1]][place[0]] = middle
        ink = GREY if middle is None else ink_on(colours(scale(middle)))
        at: dict[str, Any] = {"ha": "center", "va": "center", "color": ink}
        shown = cell_text(middle if middle is None or middle < 100 else float(round(middle)))
        axes.annotate(shown, (place[0] + 0.5, place[1] + 0.7), fontsize=10, **at)
        axes.annotate(row.get(note) or "", (place[0] + 0.5, place[1] + 0.34), fontsize=7, **at)
    axes.pcolormesh(numbers, norm=scale, cmap=colours, edgecolors="white", linewidth=2, zorder=0)
    axes.set_title(title)
    axes.set_xticks([place + 0.5 for place in range(len(across))], [cell_text(value) for value in across])
    axes.set_yticks([place + 0.5 for place in range(len(up))], [cell_text(value) for value in up])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
