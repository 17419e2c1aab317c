"""What all studies share: which there are, what every result begins with, JSON in and out, and what a command prints.

A study is a package of one shape: `measure` (needs torch), `record` (its result as a dataclass, and reading it back),
`view` (its tables, `show(result, console)`; needs rich), `figure` (its plot, `draw(result, path)`; needs matplotlib).
Its `__init__` has the command: add_options(parser) and run(args). View and figure are imported where they are
used: a recording needs no more than torch, torchvision and tensorboard.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from common.options import StepOptions, resolved
from walkthrough.compare.figures import UNRESOLVED, check_figure_file, reach, save
from walkthrough.compare.kept import Kept, path_of
from walkthrough.compare.runner import prepare
from walkthrough.compare.statistics import Ratio
from walkthrough.results import result as record
from walkthrough.results.environment import Environment, current_environment, usable_cores
from walkthrough.results.errors import InputError
from walkthrough.terminal import console

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from rich.console import Console

STUDIES = ("limit", "input", "ablation", "overhead", "sweep")  # the packages, in the order in which pages show them
SCHEMA = 2
MOST_REACH = 2.0  # times: an interval that reaches farther from its point leaves the figure
SMOKE = "smoke run (--quick): few and short windows, so the figures are rough"


@dataclass(frozen=True, kw_only=True)
class Study:
    """What the result of every study begins with, in a file of its own next to the ladder's runs.

    setup: what has to be the same as a ladder's to be shown with it. precision: the dtype that the model computes in.
    quick: a smoke run, whose figures are rough. notes: what this device could not do. started: ISO 8601.
    """

    FILE: ClassVar[str]
    SCHEMA: ClassVar[int] = SCHEMA

    schema: int
    setup: record.Setup
    device_type: str
    precision: str | None
    seed: int
    quick: bool
    notes: list[str]
    environment: Environment
    started: str

    def problem(self) -> str | None:
        """What is wrong with a result that was read from a file, beyond the types and limits of its fields."""
        return None

    def computed(self) -> dict[str, Any]:
        """What follows from the measurements by `compare.statistics`, for who reads the file; {} if nothing does."""
        return {}

    def as_json(self) -> dict[str, Any]:
        """The object that the file holds and `--json` prints: the fields, and what is computed from them."""
        return asdict(self) | self.computed()


S = TypeVar("S", bound=Study)


def header(
    options: StepOptions,
    precision: "torch.dtype | None",
    notes: list[str],
    started: str,
    data: str | None = None,
    schema: int = SCHEMA,
) -> dict[str, Any]:
    """The fields that a `Study` begins with, of one that was measured here. data: None where it trains on noise."""
    import torch

    from common.device import dtype_name

    return {
        "schema": schema,
        "setup": setup(options, data),
        "device_type": torch.device(options.device).type,
        "precision": precision and dtype_name(precision),
        "seed": options.seed,
        "quick": options.quick,
        "notes": [*notes, *([SMOKE] if options.quick else [])],
        "environment": current_environment(torch.__version__, torch.version.cuda),
        "started": started,
    }


def setup(options: StepOptions, data: str | None = None) -> record.Setup:
    """The `Setup` of what is measured here with these options. data: None for what trains on noise."""
    from common.device import device_name

    return record.Setup(
        device=device_name(options.device),
        cores=usable_cores() if options.device == "cpu" else None,
        data=data,
        model=options.model,
        image_size=options.image_size,
    )


def read(kind: type[S], logdir: str | Path) -> S | None:
    """The result of a study in a folder of runs, None where there is none. Raises InputError for a broken one."""
    path = Path(logdir) / kind.FILE
    if not path.exists():
        return None
    result = record.read_as(kind, path, kind.SCHEMA)
    if problem := result.problem():
        raise InputError(f"{path} is broken: {problem}")
    return result


def read_study(name: str, logdir: str | Path) -> Study | None:
    """The result of the study of that name, one of `STUDIES`; see `read`."""
    return module(name).read(logdir)


def module(name: str) -> Any:
    """The module of the study of that name: its `FILE`, read, show and draw."""
    return import_module(f"studies.{name}")


def files() -> dict[str, str]:
    """{file name: the name of its study} of all studies."""
    return {module(name).FILE: name for name in STUDIES}


def ready(args: argparse.Namespace, batch_size: int | None = None) -> StepOptions:
    """The options of a study's command with what follows from this machine; the log folder is made, TF32 is off.

    batch_size: where the command chooses it. Raises InputError for what this machine lacks.
    """
    from common.device import disable_tf32

    options = resolved(args, batch_size=batch_size)
    prepare(options)
    disable_tf32()
    return options


def check_plot(path: Path | None) -> None:
    """Raise InputError, before measuring, where nothing could be drawn into `path`, if one is named."""
    if path is not None:
        check_figure_file(path)


def kept(name: str, options: StepOptions) -> Kept:
    """What an earlier call of the study of that name, with the same options, measured before it was cut off."""
    return Kept.of(name, asdict(options) | {"logdir": None}, options.logdir, options.quick)


def report(name: str, args: argparse.Namespace, measure: Callable[[], Study], more: str = "") -> int:
    """Measure, write the study's file into `args.logdir`, draw `args.plot` if given, print. Returns the exit code.

    name: of the study. measure: returns the result, and may print its progress. more: for the line that names the
    written file.
    """
    with progress_on_stderr(args.json):
        result = measure()
        path = args.logdir / result.FILE
        write(path, result)
        path_of(args.logdir, name, result.quick).unlink(missing_ok=True)
        plot(name, args.plot, result)
    print_result(name, args.json, path, result, more)
    return 0


@contextmanager
def progress_on_stderr(as_json: bool) -> Iterator[None]:
    """Print to stderr what is printed in here, where stdout is for JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def write(path: Path, result: Study) -> None:
    """Write a study's file, whole or not at all."""
    record.write_json(path, result.as_json())


def plot(name: str, path: Path | None, result: Study) -> None:
    """Draw the result of the study of that name into the file `path`, if one is named; see `check_plot`."""
    if path:
        save(module(name).figure(result), path)
        print(f"drawn: {path}", file=sys.stderr)


def print_result(name: str, as_json: bool, path: Path, result: Study, more: str = "") -> None:
    """Print the JSON object, or the tables and where they were written."""
    if as_json:
        print(json.dumps(result.as_json(), indent=2))
        return
    module(name).show(result, console())
    print(f"written to {path}{more}")


def print_notes(notes: Iterable[str], to: "Console") -> None:
    """Print notes to the console `to`, each a sentence on a line of its own."""
    from rich.text import Text

    for note in notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))


def print_unsteady(runs: Iterable[Sequence[float]], to: "Console", what: str = "windows of one run") -> None:
    """Print a warning to the console `to` where the numbers of any of `runs` differ widely; `what` they are."""
    from rich.text import Text

    from walkthrough.compare.ladder import UNSTEADY

    if any((max(numbers) - min(numbers)) / 2 > UNSTEADY * statistics.median(numbers) for numbers in runs):
        to.print(
            Text(f"UNSTEADY: {what} differ widely, so something else kept this machine busy. Run it again.", "red")
        )


def workers_text(number: int) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number} worker{'' if number == 1 else 's'}"


def mb_text(size: float | None, decimals: int = 0) -> str:
    """Bytes in MB, or "-" for None."""
    return "-" if size is None else f"{size / 1e6:.{decimals}f}"


def ratio_cell(ratio: Ratio | None) -> str:
    """A table's cell, in rich's markup: "1.39x (1.31-1.48)", dim without a measurable difference, "-" for None."""
    if ratio is None:
        return "-"
    return str(ratio) if ratio.resolved else f"[dim]{ratio}[/]"


def draw_ratios(
    axes: "Axes", rows: Sequence[tuple[float, Ratio]], *, colour: str, marker: str = "o", label: str
) -> None:
    """Draw points with their intervals, each at its height: in `colour`, in grey without a measurable one."""
    for measurable in (True, False):
        drawn = [(height, ratio) for height, ratio in rows if ratio.resolved == measurable]
        if not drawn:
            continue
        shown = colour if measurable else UNRESOLVED
        axes.errorbar(
            [ratio.ratio for _, ratio in drawn], [height for height, _ in drawn],
            xerr=reach((ratio.low, ratio.ratio, ratio.high) for _, ratio in drawn),
            fmt=marker, color=shown, ecolor=shown, capsize=3, markersize=7,
            label=label if measurable else f"{label}, no measurable difference",
        )  # fmt: skip


def shown_range(ratios: Iterable[Ratio]) -> tuple[float, float]:
    """(low, high) of an axis for ratios and 1: their intervals, cut off at `MOST_REACH` times."""
    ratios = list(ratios)
    low = min([0.9, *(max(ratio.low, ratio.ratio / MOST_REACH) for ratio in ratios)])
    return low, max([1.2, *(min(ratio.high, ratio.ratio * MOST_REACH) for ratio in ratios)])
