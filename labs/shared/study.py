"""What the studies of all labs share: options, kept measurements, tables, claims, and the file that holds them.

A lab's `study.py` is a program:

    @one_line_errors()
    def main():
        options = lab_options(__doc__, "memory", DEFAULTS)
        lab = Measuring("memory", options, Path(__file__).with_name("measure.py"))
        speed = lab.measure("step_time", batch_size=128)   # calls step_time(options, batch_size=128) of measure.py
        report(lab.study({"speed": [speed]}, claims, notes), options)

and its `measure.py` ends with `serve(step_time, …)`: each measurement is a process of its own, which may crash, run out
of memory or compile without a trace in the next. What was measured is kept until the file is written, so that after a
cut the same command goes on.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.options import Defaults, StepOptions, add_step_options, options_from, resolved
from labs.shared import cluster
from labs.shared.cluster import Cluster, add_cluster_options, cluster_of
from labs.shared.tables import cell_text as cell_text
from labs.shared.tables import claim_rows as claim_rows
from labs.shared.tables import rich_table as rich_table
from labs.shared.tables import show as show
from walkthrough.compare import isolated
from walkthrough.compare.kept import Kept, path_of
from walkthrough.compare.statistics import Mean, Ratio
from walkthrough.compare.statistics import mean as mean  # for labs: the only intervals that they show
from walkthrough.compare.statistics import of_pairs as of_pairs
from walkthrough.compare.statistics import ratio as ratio
from walkthrough.results import environment as machine
from walkthrough.results import privacy, progress, result
from walkthrough.results.environment import ROOT, Environment, current_environment
from walkthrough.results.errors import InputError, OneLineParser, is_out_of_memory, printable
from walkthrough.results.progress import end_with_reader
from walkthrough.terminal import console

FILE = "study.json"
SCHEMA = 1
LIMIT_SECONDS = 1200  # of one measurement: beyond it something hangs
NAME_LENGTH = 110  # of a measurement, at most, where it is told

Row = dict[str, Any]  # {header: text, number, None, or an interval as `asdict` makes it of a `Ratio` or a `Mean`}


@dataclass(frozen=True)
class Claim:
    """Something that was published, or that we expected, and what was measured about it.

    text: the claim, a sentence. value: what was measured, with its 95 % interval, where it has one. holds: None where
    the measurement does not decide it.
    """

    id: str
    text: str
    value: float | None
    low: float | None
    high: float | None
    holds: bool | None


def above(value: Ratio | Mean, limit: float) -> bool | None:
    """Whether a value is above a limit: None where its interval includes the limit, or where it has none."""
    if value.low is None or value.high is None:
        return None
    return True if value.low > limit else False if value.high < limit else None


def percent(shares: Sequence[float]) -> Mean:
    """The mean of shares (0..1) in %; its interval ends at 0 and 100, as they do."""
    found = mean([100 * share for share in shares])
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(100.0, found.high))


def inside(low: float, high: float, band: tuple[float, float]) -> bool | None:
    """Whether an interval lies within a band: False only if it lies wholly outside, None where it holds a limit."""
    if band[0] < low and high < band[1]:
        return True
    return False if high < band[0] or low > band[1] else None


@dataclass(frozen=True, kw_only=True)
class LabStudy:
    """The result of a lab's study, as `study.json` holds it.

    tables: {name: rows}, whose keys are the table's headers. quick: a smoke run, whose figures are rough. notes: what
    this device could not show. started: ISO 8601.
    """

    schema: int
    lab: str
    device: str
    environment: Environment
    started: str
    tables: dict[str, list[Row]]
    claims: list[Claim]
    quick: bool = False
    notes: list[str] = field(default_factory=list)


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
    """`lab_options`, and the cluster, if any, whose jobs `Measuring.several` is to run as."""
    options, args = _parsed(description, lab, defaults, argv, add_cluster_options)
    return options, cluster_of(args, options.logdir / "jobs", gpus=int(options.device != "cpu"))


def _parsed(
    description: str | None,
    lab: str,
    defaults: Defaults,
    argv: Sequence[str] | None,
    add_more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> tuple[StepOptions, argparse.Namespace]:
    parser = OneLineParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
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
    if options.quick and _is_whole(args.logdir / FILE):
        raise InputError(f"--quick would replace the whole study in {args.logdir / FILE}: give another --logdir")
    result.check_writable(options.logdir)
    if options.download and defaults.cifar10:
        from common.data import fetch_cifar10  # torchvision: seconds to import

        fetch_cifar10(options.data)
    return options, args


def _is_whole(path: Path) -> bool:
    """Whether a file is of a study that was no smoke run; not if there is none, or if it cannot be read."""
    try:
        return path.exists() and not read(path).quick
    except InputError:
        return False


class Measuring:
    """The measurements of a lab's study, each in a process of its own, kept until the study is written.

    lab: its name, of its folder in `labs` too. program: its file that ends with `serve`. jobs: the cluster that
    `several` runs on, if any.
    """

    def __init__(
        self,
        lab: str,
        options: StepOptions,
        program: Path,
        limit_seconds: float = LIMIT_SECONDS,
        jobs: Cluster | None = None,
    ) -> None:
        self.lab, self.options, self.limit_seconds, self.jobs = lab, options, limit_seconds, jobs
        self.failed_jobs: dict[str, str] = {}  # {measurement: why}
        self.command = (sys.executable, str(program))
        self.started = machine.now()
        self.kept = Kept.of(
            lab, asdict(options) | {"logdir": None}, options.logdir, options.quick, code=f"labs/{lab}/*.py"
        )

    def measure(self, what: str, **settings: Any) -> Any:
        """What the function of that name in the lab's program returns for these settings, from a process of its own.

        JSON, so its tuples are lists. Raises NotMeasured with the reason where the process failed. What is kept of an
        earlier call is not measured again.
        """
        name = _name(what, settings)
        measure = partial(self._isolated, what, settings)
        return self._kept(name, lambda: self.failed_jobs[name] if name in self.failed_jobs else measure())

    def _kept(self, name: str, measure: "Callable[[], _Answer | str]") -> Any:
        told = name in self.kept.values
        answer = self.kept.measurement(name, _Answer, measure)
        if isinstance(answer, str):
            progress.say(f"  {printable(name, NAME_LENGTH)}: failed: {privacy.reason(answer)}")
            raise NotMeasured(privacy.reason(answer))
        if not told:
            progress.say(f"  {printable(name, NAME_LENGTH)}")
        return answer.value

    def several(self, what: str, settings: Sequence[Mapping[str, Any]], processes: int) -> list[Any]:
        """`measure` for each of these settings, so many at a time, in their order; None where it could not be made.

        For what takes no time that counts: processes that run alongside others are slower. Where the study was given a
        cluster, they are jobs there, as many at a time as it lets run; what failed as a job is not tried again here.
        """
        if self.jobs:
            self._as_jobs(self.jobs, what, settings)

        def one(own: Mapping[str, Any]) -> Any:
            try:
                return self.measure(what, **own)
            except NotMeasured:
                return None

        with ThreadPoolExecutor(processes) as pool:
            waiting = [pool.submit(one, own) for own in settings]
            try:
                return [measured.result() for measured in waiting]
            except BaseException:  # Ctrl-C: what was not begun is left out
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _as_jobs(self, jobs: Cluster, what: str, settings: Sequence[Mapping[str, Any]]) -> None:
        """Measure as jobs what is not kept, and keep each as soon as it is there. Raises InputError."""
        missing = [own for own in settings if _name(what, own) not in self.kept.values]
        values = [self._values(what, own) for own in missing]
        for index, answer in cluster.answers(jobs, self.command, values, self.limit_seconds):
            name, own = _name(what, missing[index]), _as_answer(answer)
            if isinstance(own, str):
                self.failed_jobs[name] = own
            else:
                self._kept(name, lambda own=own: own)

    def _isolated(self, what: str, settings: Mapping[str, Any]) -> "_Answer | str":
        return _as_answer(isolated.answer(self.command, self._values(what, settings), self.limit_seconds))

    def _values(self, what: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"what": what, "options": asdict(self.options), "settings": settings}

    def study(self, tables: Mapping[str, Sequence[Row]], claims: Sequence[Claim], notes: Sequence[str]) -> LabStudy:
        """The `LabStudy` of what was measured."""
        from common.device import device_name

        import torch

        return LabStudy(
            schema=SCHEMA,
            lab=self.lab,
            device=device_name(self.options.device),
            environment=current_environment(torch.__version__, torch.version.cuda),
            started=self.started,
            tables={name: [_as_json(row) for row in rows] for name, rows in tables.items()},
            claims=list(claims),
            quick=self.options.quick,
            notes=list(notes),
        )


def _name(what: str, settings: Mapping[str, Any]) -> str:
    return " ".join([what, *(f"{key}={value}" for key, value in settings.items())])


class NotMeasured(Exception):
    """A measurement that could not be made; the message says why, in a line."""


@dataclass(frozen=True)
class _Answer:
    value: Any


def _as_answer(answer: Mapping[str, Any] | str) -> _Answer | str:
    """Of what `isolated.answer` returned: the measurement that `serve` printed, or why there is none."""
    return answer if isinstance(answer, str) else answer.get("error") or _Answer(answer["value"])


def serve(*functions: Callable[..., Any], argv: Sequence[str] | None = None) -> None:
    """Be a process of `Measuring.measure`: call the function that the command line names, and print its answer.

    Each is called as function(options, **settings); what it returns is written as JSON. What it raises becomes the
    reason why there is no measurement, in a line.
    """
    end_with_reader()
    values = json.loads((sys.argv[1:] if argv is None else argv)[0])
    by_name = {function.__name__: function for function in functions}
    try:
        value = by_name[values["what"]](options_from(values["options"]), **values["settings"])
        answer = {"value": asdict(value) if is_dataclass(value) and not isinstance(value, type) else value}
    except Exception as error:  # models, loaders and allocators fail in any way; the study goes on
        answer = {"error": _reason(error)}
    isolated.print_answer(answer)


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return printable(error, isolated.REASON_LENGTH)
    if is_out_of_memory(error):
        return "out of memory"
    return printable(f"{type(error).__name__}: {error}", isolated.REASON_LENGTH)


def _as_json(row: Mapping[str, Any]) -> Row:
    """A row whose intervals are JSON objects."""
    return {name: asdict(value) if isinstance(value, Ratio | Mean) else value for name, value in row.items()}


def report(study: LabStudy, options: StepOptions) -> None:
    """Write a study's file into `options.logdir`, whole or not at all, drop what was kept for it, and print it.

    Raises InputError where it cannot be written; what was measured is then kept.
    """
    path = options.logdir / FILE
    result.write_json(path, asdict(study))
    path_of(options.logdir, study.lab, options.quick).unlink(missing_ok=True)
    try:
        out = console()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print(f"no table: rich is not installed; written to {path}")
        return
    show(study, out)
    print(f"written to {path}")


def read(path: str | Path) -> LabStudy:
    """The `LabStudy` in a file. Raises InputError that names the file and what is wrong with it."""
    return result.read_as(LabStudy, path, SCHEMA)
