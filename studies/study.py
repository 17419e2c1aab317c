"""What all studies share: their options, their `Measurements`, what a command writes and prints, and parts of figures.

A study is a module with add_options(parser) and run(args), the command; measure(…) -> Study; tables(measured) and
conclusions(measured), which are computed from the raw values when it is measured, and stored with them; and
figure(study). What it measures is a function of the same module, or of another, that ends with `serve`.

Where a definition has changed, `python -m studies.study FILE…` computes the tables of stored studies anew.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.options import BATCH_SIZE, StepOptions, add_step_options, options_from, resolved
from walkthrough.compare import isolated
from walkthrough.compare import study as results
from walkthrough.compare.figures import UNRESOLVED, check_figure_file, reach, save
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import LIMIT_SECONDS, Measurements
from walkthrough.results.environment import current_environment, now, usable_cores
from walkthrough.results.errors import folder, whole_number
from walkthrough.results.result import Setup, check_writable, data_label
from walkthrough.terminal import console

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPTION_TEXTS = {  # of the options that every study takes
    "--logdir": "folder of all runs; the result goes there as a JSON file (default: logs/ of this project)",
    "--batch-size": "images per step (default: %(default)s)",
    "--precision": "of autocast: auto, fp32, bf16 or fp16 (default: auto: 16 bits where that is faster)",
    "--quick": "smoke run: fewer and shorter measurements",
}
MOST_REACH = 2.0  # times: an interval that reaches farther from its point leaves the figure


def recomputed(result: results.Study) -> results.Study:
    """A study with the tables and sentences that follow from what it measured by today's definitions."""
    module = import_module(f"studies.{result.name}")
    tables = {name: [results.as_json(row) for row in rows] for name, rows in module.tables(result.measured).items()}
    return replace(result, tables=tables, conclusions=module.conclusions(result.measured))


def finished(do: Measurements, measured: Mapping[str, Any], notes: Sequence[str]) -> results.Study:
    """The study of what was measured. notes: what this device could not do."""
    return recomputed(do.study({}, notes=notes, measured=measured))


def add_options(
    parser: argparse.ArgumentParser,
    without: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
    batch_size: int | None = BATCH_SIZE,
    runs: str | None = None,
) -> None:
    """Add the options of a study's command: those of the steps, --json, --plot, and --runs with its help text, if any.

    without, texts, batch_size: see `add_step_options`.
    """
    add_step_options(
        parser, without=("--stacks", *without), texts={**OPTION_TEXTS, **(texts or {})}, batch_size=batch_size
    )
    if runs:
        parser.add_argument("--runs", type=whole_number(1, 100), metavar="N", help=runs)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the result: .svg or .png")


def ready(args: argparse.Namespace, batch_size: int | None = None) -> StepOptions:
    """The options of a study's command with what follows from this machine; the log folder is made, TF32 is off.

    batch_size: where the command chooses it. Raises InputError for what this machine lacks, and where nothing could be
    drawn into `args.plot`.
    """
    from common.data import fetch_cifar10
    from common.device import disable_tf32

    if args.plot:
        check_figure_file(args.plot)
        import matplotlib.figure  # noqa: F401  # the same for matplotlib
    options = resolved(args, batch_size=batch_size)
    check_writable(options.logdir)
    if options.download:
        fetch_cifar10(options.data)
    disable_tf32()
    return options


def setup(options: StepOptions, data: str | None = None) -> Setup:
    """The `Setup` of what is measured here with these options. data: None for what trains on noise."""
    from common.device import device_name

    return Setup(
        device=device_name(options.device),
        cores=usable_cores() if options.device == "cpu" else None,
        data=data,
        model=options.model,
        image_size=options.image_size,
    )


def measurements(
    name: str,
    options: StepOptions,
    precision: "torch.dtype | None",
    data: str | None = None,
    program: str | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Measurements:
    """The `Measurements` of a study. data: None where it trains on noise. program: the module that ends with `serve`,
    by default the study's own. Raises InputError where a smoke run would replace a whole study.
    """
    import torch

    from common.device import dtype_name

    results.keep_whole(options.logdir / f"{name}.json", options.quick)
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
    to = None if args.json else console()  # rich, if it is missing, is asked for before hours of measuring
    with progress_on_stderr(args.json):
        result = measure()
        path = args.logdir / f"{result.name}.json"
        results.write_measured(path, result)
        if args.plot:
            save(figure(result), args.plot)
            print(f"drawn: {args.plot}", file=sys.stderr)
    if to is None:
        print(json.dumps(result.as_json(), indent=2))
    else:
        to.print(
            f"\n{title(result)} ({result.environment.cores} CPU cores), torch {result.environment.torch}", markup=False
        )
        results.show(result, to)
        print(f"written to {path}{more}")
    return 0


@contextmanager
def progress_on_stderr(as_json: bool) -> Iterator[None]:
    """Print to stderr what is printed in here, where stdout is for JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


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
    from walkthrough.compare.ladder import UNSTEADY

    if any((max(numbers) - min(numbers)) / 2 > UNSTEADY * statistics.median(numbers) for numbers in runs if numbers):
        return [f"UNSTEADY: {what} differ widely, so something else kept this machine busy: run it again"]
    return []


def workers_text(number: int) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number} worker{'' if number == 1 else 's'}"


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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        results.write(Path(name), recomputed(results.read(name)))
