"""What the studies of all labs share: their command line, and their measurements; see `walkthrough.compare.study`.

A lab's `study.py` is a program:

    def main():
        options = lab_options(__doc__, "memory", DEFAULTS)
        lab = measurements("memory", options, Path(__file__).with_name("measure.py"))
        speed = lab.measure("step_time", batch_size=128)   # calls step_time(options, batch_size=128) of measure.py
        report(lab.study({"speed": [speed]}, claims, notes), options)

and its `measure.py` ends with `serve(step_time, …)`: each measurement is a process of its own, which may crash, run out
of memory or compile without a trace in the next. What was measured is kept until the file is written, so that after a
cut the same command goes on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from common.options import Defaults, StepOptions, add_step_options, options_from, resolved
from labs.shared.cluster import Cluster, add_cluster_options, answers, cluster_of
from walkthrough.compare import study
from walkthrough.compare.study import LIMIT_SECONDS, Measurements, NotMeasured, Study, keep_whole, show
from walkthrough.results.environment import ROOT, current_environment, now
from walkthrough.results.errors import OneLineParser
from walkthrough.results.result import check_writable
from walkthrough.terminal import console

FILE = "study.json"
K = TypeVar("K")

serve = partial(study.serve, options_from=options_from)


def lab_options(
    description: str | None, lab: str, defaults: Defaults, argv: Sequence[str] | None = None
) -> StepOptions:
    """Parse the command line of a lab's study; its log folder is made. `logdir` is `DIR/labs/LAB` of `--logdir DIR`.

    Raises InputError for what this machine lacks, and where rough figures would replace those of a whole study.
    """
    return _parsed(description, lab, defaults, argv)[0]


def grid_options(
    description: str | None, lab: str, defaults: Defaults, argv: Sequence[str] | None = None
) -> tuple[StepOptions, Cluster | None]:
    """`lab_options`, and the cluster, if any, whose jobs `Measurements.several` is to run as."""
    options, args = _parsed(description, lab, defaults, argv, add_cluster_options)
    return options, cluster_of(args, options.logdir / "jobs", gpus=int(options.device != "cpu"))


def _parsed(
    description: str | None,
    lab: str,
    defaults: Defaults,
    argv: Sequence[str] | None,
    add_more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> tuple[StepOptions, argparse.Namespace]:
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
    program: Path,
    limit_seconds: float = LIMIT_SECONDS,
    jobs: Cluster | None = None,
) -> Measurements:
    """The `Measurements` of a lab. program: its file that ends with `serve`. jobs: the cluster, if any."""
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
    command, on_cluster = (sys.executable, str(program)), partial(answers, jobs) if jobs else None
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
    study.write(path, result)
    show(result, console())
    print(f"written to {path}")
