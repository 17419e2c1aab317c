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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from common.options import BATCH_SIZE, StepOptions, add_step_options, options_from, resolved
from studies import OPTION_TEXTS
from walkthrough.compare import isolated
from walkthrough.compare import study as results
from walkthrough.compare.figures import UNRESOLVED, check_figure_file, reach, save
from walkthrough.compare.kept import Kept, path_of
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import LIMIT_SECONDS, Measurements
from walkthrough.results import result as record
from walkthrough.results.environment import Environment, current_environment, now, usable_cores
from walkthrough.results.errors import InputError, folder, whole_number
from walkthrough.results.result import data_label
from walkthrough.terminal import console

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
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


def read_study(name: str, logdir: str | Path) -> Any:
    """The result of the study of that name, one of `STUDIES`; None where there is none. Raises InputError."""
    of = module(name)
    if hasattr(of, "FILE"):
        return of.read(logdir)
    path = Path(logdir) / f"{name}.json"
    return results.read(path) if path.exists() else None


def module(name: str) -> Any:
    """The module of the study of that name: its `FILE`, read, show and draw."""
    return import_module(f"studies.{name}")


def files() -> dict[str, str]:
    """{file name: the name of its study} of all studies."""
    return {getattr(module(name), "FILE", f"{name}.json"): name for name in STUDIES}


def ready(args: argparse.Namespace, batch_size: int | None = None) -> StepOptions:
    """The options of a study's command with what follows from this machine; the log folder is made, TF32 is off.

    batch_size: where the command chooses it. Raises InputError for what this machine lacks.
    """
    from common.data import fetch_cifar10
    from common.device import disable_tf32

    check_plot(args.plot)
    options = resolved(args, batch_size=batch_size)
    record.check_writable(options.logdir)
    if options.download:
        fetch_cifar10(options.data)
    disable_tf32()
    return options


def check_plot(path: Path | None) -> None:
    """Raise InputError, before measuring, where nothing could be drawn into `path`, if one is named."""
    if path is not None:
        check_figure_file(path)


def add_options(
    parser: argparse.ArgumentParser,
    without: Collection[str],
    texts: Mapping[str, str],
    batch_size: int | None = BATCH_SIZE,
    runs: str | None = None,
) -> None:
    """Add the options of a study's command: those of the steps, --json, --plot, and --runs with its help text, if any.

    without, texts, batch_size: see `add_step_options`.
    """
    add_step_options(parser, without=("--stacks", *without), texts={**OPTION_TEXTS, **texts}, batch_size=batch_size)
    if runs:
        parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help=runs)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the result: .svg or .png")


def measurements(
    name: str,
    options: StepOptions,
    precision: "torch.dtype | None",
    data: str | None = None,
    program: str | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Measurements:
    """The `Measurements` of a study. data: None where it trains on noise. program: the module that ends with `serve`,
    by default the study's own.
    """
    import torch

    from common.device import dtype_name

    shared = setup(options, data)
    begins = {
        "name": name,
        "device": shared.device,
        "setup": shared,
        "precision": precision and dtype_name(precision),
        "seed": options.seed,
        "environment": current_environment(torch.__version__, torch.version.cuda),
        "started": now(),
    }
    command = isolated.module(f"studies.{program or name}")
    return Measurements(begins, options, command, "studies/*.py", limit_seconds)


serve = partial(results.serve, options_from=options_from)


def run(
    args: argparse.Namespace,
    measure: Callable[[], results.Study],
    figure: Callable[[results.Study], "Figure"],
    more: str = "",
) -> int:
    """Measure, write the study's file into `args.logdir`, draw `args.plot` if given, print. Returns the exit code.

    measure: may print its progress. more: for the line that names the written file.
    """
    with progress_on_stderr(args.json):
        result = measure()
        path = args.logdir / f"{result.name}.json"
        results.write(path, result)
        if args.plot:
            save(figure(result), args.plot)
            print(f"drawn: {args.plot}", file=sys.stderr)
    if args.json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        to = console()
        to.print(
            f"\n{title(result)} ({result.environment.cores} CPU cores), torch {result.environment.torch}", markup=False
        )
        results.show(result, to)
        print(f"written to {path}{more}")
    return 0


def title(result: results.Study) -> str:
    """What a study was measured with: model, data, batch, image size, precision, device."""
    own = result.setup
    if own is None:
        return result.device
    data = [data_label(own.data)] if own.data else []
    batch = [f"batch {result.measured['batch_size']}"] if "batch_size" in result.measured else []
    return ", ".join(
        [
            own.model,
            *data,
            *batch,
            f"{own.image_size} px",
            *([result.precision] if result.precision else []),
            own.device,
        ]
    )


def unsteady(runs: Iterable[Sequence[float]], what: str = "windows of one run") -> list[str]:
    """A note where the numbers of any of `runs` differ widely; `what` they are."""
    from walkthrough.compare.ladder import UNSTEADY  # needs rich

    if any((max(numbers) - min(numbers)) / 2 > UNSTEADY * statistics.median(numbers) for numbers in runs if numbers):
        return [f"UNSTEADY: {what} differ widely, so something else kept this machine busy: run it again"]
    return []


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
