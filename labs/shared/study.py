"""What the studies of all labs share: their command line, and their measurements; see `walkthrough.compare.study`.

A lab's `study.py` is a program, in one file: what is measured, the tables, and what follows from them.

    @measurement
    def step_time(options, batch_size): ...   # in a process of its own: it may crash, run out of memory, compile

    def claims(tables, on_gpu): ...           # what was published or expected, from the tables alone

    def main():
        options, _ = lab_options(__doc__, "memory", DEFAULTS)
        lab = measurements("memory", options)
        tables = {"speed": [lab.measure("step_time", batch_size=128)]}
        report(lab.study(tables, claims(as_stored(tables), on_gpu(options)), notes), options)

    if __name__ == "__main__":
        program(main, claims)

What was measured is kept until the file is written, so that after a cut the same command goes on.
`python labs/LAB/study.py --claims FILE` writes the claims of an earlier result anew, from its tables.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from common.options import Defaults, StepOptions, add_step_options, options_from, resolved
from labs.shared.cluster import Cluster, answers
from walkthrough.compare import study
from walkthrough.compare.statistics import Rounds, ratio
from walkthrough.compare.study import (
    LIMIT_SECONDS,
    Claim,
    Measurements,
    NotMeasured,
    Row,
    Study,
    as_json,
    interval,
    keep_whole,
    show,
)
from walkthrough.results.environment import ROOT, current_environment, now
from walkthrough.results.errors import OneLineParser, exit_in_one_line
from walkthrough.results.result import check_writable
from walkthrough.terminal import console

FILE, PROGRAM = "study.json", "study.py"
K = TypeVar("K")
Function = TypeVar("Function", bound=Callable[..., Any])
Claims = Callable[[Mapping[str, Sequence[Row]], bool], list[Claim]]  # claims(tables as stored, on_gpu)
MEASUREMENTS = dict[str, Callable[..., Any]]()  # of this program, by name


def measurement(function: Function) -> Function:
    """Mark a function(options, **settings) of a study as one that `Measurements.measure` calls by its name."""
    MEASUREMENTS[function.__name__] = function
    return function


def program(main: Callable[[], None], claims: Claims) -> None:
    """Be the program of a study: `main`, or one measurement of it, or new claims of an earlier result."""
    match sys.argv[1:]:
        case ["--measure", request]:
            study.serve(*MEASUREMENTS.values(), options_from=options_from, argv=[request])
        case ["--claims", path]:
            exit_in_one_line()
            earlier = study.read(path)
            study.write(Path(path), replace(earlier, claims=claims(earlier.tables, earlier.on_gpu)))
        case _:
            main()


def on_gpu(options: StepOptions) -> bool:
    """Whether a study measures on a GPU: what a CPU cannot show is then a measurement."""
    return options.device != "cpu"


def as_stored(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Tables as a study's file holds them: intervals are objects, see `walkthrough.compare.study.interval`."""
    return {name: [as_json(row) for row in rows] for name, rows in tables.items()}


def cell(tables: Mapping[str, Sequence[Row]], table: str, column: str, **where: Any) -> Any:
    """The value in the first row that has these cells: a number, a `Ratio` or a `Mean`; None where there is none."""
    rows = (row for row in tables.get(table, ()) if all(row.get(name) == value for name, value in where.items()))
    value = next(rows, {}).get(column)
    return interval(value) or value


def ladder_rows(programs: Mapping[str, Rounds], unit: str = "samples/s") -> list[Row]:
    """A row for each program, in their order: its median speed, its `Ratio` to the first, and to the one before.

    programs: {name: {round: its windows in `unit`}}; ratios are of the rounds that both have. A program without rounds,
    which could not be measured, has no row, and nothing is compared with it.
    """
    first, rows = next(iter(programs.values()), {}), []
    for before, (name, rounds) in zip([{}, *programs.values()], programs.items(), strict=False):
        if rounds:
            rows.append(
                {
                    "program": name,
                    unit: statistics.median(statistics.median(windows) for windows in rounds.values()),
                    "times the baseline": ratio(rounds, first) if first and rounds is not first else None,
                    "times the one before": ratio(rounds, before) if before else None,
                }
            )
    return rows


def lab_options(
    description: str | None,
    lab: str,
    defaults: Defaults,
    argv: Sequence[str] | None = None,
    add_more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> tuple[StepOptions, argparse.Namespace]:
    """Parse the command line of a lab's study: its options, and all that was parsed. Its log folder is made.

    `logdir` is `DIR/labs/LAB` of `--logdir DIR`. add_more: adds other options, or other names of these. Raises
    InputError for what this machine lacks, and where rough figures would replace those of a whole study.
    """
    parser = OneLineParser(description=description)
    add_step_options(
        parser,
        logdir=ROOT / "logs",
        batch_size=None,
        without=("--stacks", "--workers", *defaults.without),
        texts={
            "--logdir": f"folder of all runs; the result goes into labs/{lab}/{FILE} there (default: {ROOT / 'logs'})",
            "--quick": "smaller and shorter: minutes on a CPU; its figures are rough",
        },
        defaults=defaults,
    )
    add_more(parser)
    args = parser.parse_args(argv)
    args.logdir = args.logdir / "labs" / lab
    options = resolved(args, defaults=defaults)
    keep_whole(args.logdir / FILE, options.quick)
    check_writable(options.logdir)
    if options.download and defaults.cifar10:
        from common.data import fetch_cifar10  # torchvision: seconds to import

        fetch_cifar10(options.data)
    return options, args


def measurements(
    lab: str,
    options: StepOptions,
    file: Path | None = None,
    limit_seconds: float = LIMIT_SECONDS,
    jobs: Cluster | None = None,
) -> Measurements:
    """The `Measurements` of a lab. file: its program, if not `labs/LAB/study.py`. jobs: the cluster, if any."""
    from common.device import device_name

    import torch

    header = {
        "name": lab,
        "lab": lab,
        "device": device_name(options.device),
        "seed": options.seed,
        "environment": current_environment(torch.__version__, torch.version.cuda),
        "started": now(),
    }
    command = (sys.executable, str(file or ROOT / "labs" / lab / PROGRAM), "--measure")
    on_cluster = partial(answers, jobs) if jobs else None
    return Measurements(header, options, command, f"labs/{lab}/*.py", limit_seconds, on_cluster)


class Measured:
    """The measurements of a lab, of which one that cannot be made becomes a note. notes: what could not, and why."""

    def __init__(self, lab: Measurements) -> None:
        self.lab, self.options, self.quick, self.notes = lab, lab.options, lab.options.quick, list[str]()

    def one(self, what: str, **settings: Any) -> Any:
        """A measurement; None, with a note, where it could not be made."""
        try:
            return self.lab.measure(what, **settings)
        except NotMeasured as error:
            self.note(f"{settings.get('name', what.replace('_', ' '))} was not measured: {error}")
            return None

    def note(self, text: str) -> None:
        """Add a note, once."""
        self.notes += [text] if text not in self.notes else []

    def rounds(self, count: int, measurements: Mapping[K, Callable[..., Any]]) -> dict[K, dict[int, Any]]:
        """{what: {round: its measurement}}, round after round, A B C … A B C …: `ratio` compares within a round.

        measurements: called with `run`, the number of the round. Those that could not be made are left out.
        """
        runs: dict[K, dict[int, Any]] = {what: {} for what in measurements}
        for number in range(1, count + 1):
            for what, measure in measurements.items():
                if run := measure(run=number):
                    runs[what][number] = run
        return {what: by_round for what, by_round in runs.items() if by_round}


def report(result: Study, options: StepOptions) -> None:
    """Write a study's file into `options.logdir`, whole or not at all, and print it.

    Raises InputError where it cannot be written; what was measured is then kept.
    """
    path = options.logdir / FILE
    study.write_measured(path, result)
    show(result, console())
    print(f"written to {path}")
