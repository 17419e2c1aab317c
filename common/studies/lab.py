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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, record
from common.errors import InputError, is_out_of_memory, printable
from common.ladder.runner import prepare
from common.ladder.statistics import Mean, Ratio
from common.ladder.statistics import mean as mean  # for labs: the only intervals that they show
from common.ladder.statistics import of_pairs as of_pairs
from common.ladder.statistics import ratio as ratio
from common.machine import ROOT
from common.options import Defaults, OneLineParser, StepOptions, add_step_options, resolved
from common.run import privacy, progress
from common.run.reader import end_with_reader
from common.studies import isolated
from common.studies.kept import Kept, path_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE = "study.json"
SCHEMA = 1
LIMIT_SECONDS = 1200  # of one measurement: beyond it something hangs
NAME_LENGTH = 110  # of a measurement, at most, where it is told
MOST_ROWS = 40  # of a table that is printed
HOLDS = {True: "holds", False: "does not hold", None: "not resolved"}

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
    """Whether a value is above a limit: None where its interval holds the limit, or where it has none."""
    if value.low is None or value.high is None:
        return None
    return True if value.low > limit else False if value.high < limit else None


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
    environment: record.Environment
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
    args = parser.parse_args(argv)
    args.logdir = args.logdir / "labs" / lab
    options = resolved(args, defaults=defaults)
    if options.quick and _is_whole(args.logdir / FILE):
        raise InputError(f"--quick would replace the whole study in {args.logdir / FILE}: give another --logdir")
    prepare(options if defaults.cifar10 else replace(options, download=False))
    return options


def _is_whole(path: Path) -> bool:
    """Whether a file is of a study that was no smoke run; not if there is none, or if it cannot be read."""
    try:
        return path.exists() and not read(path).quick
    except InputError:
        return False


class Measuring:
    """The measurements of a lab's study, each in a process of its own, kept until the study is written.

    lab: its name, of its folder in `labs` too. program: its file that ends with `serve`.
    """

    def __init__(self, lab: str, options: StepOptions, program: Path, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.lab, self.options, self.limit_seconds = lab, options, limit_seconds
        self.command = (sys.executable, str(program))
        self.started = machine.now()
        self.kept = Kept.of(lab, options, code=f"labs/{lab}/*.py")

    def measure(self, what: str, **settings: Any) -> Any:
        """What the function of that name in the lab's program returns for these settings, from a process of its own.

        JSON, so its tuples are lists. Raises NotMeasured with the reason where the process failed. What is kept of an
        earlier call is not measured again.
        """
        name = " ".join([what, *(f"{key}={value}" for key, value in settings.items())])
        told = name in self.kept.values
        answer = self.kept.measurement(name, _Answer, lambda: self._isolated(what, settings))
        if isinstance(answer, str):
            progress.say(f"  {printable(name, NAME_LENGTH)}: failed: {privacy.reason(answer)}")
            raise NotMeasured(privacy.reason(answer))
        if not told:
            progress.say(f"  {printable(name, NAME_LENGTH)}")
        return answer.value

    def several(self, what: str, settings: Sequence[Mapping[str, Any]], processes: int) -> list[Any]:
        """`measure` for each of these settings, so many at a time, in their order; None where it could not be made.

        For what takes no time that counts: processes that run beside others are slower.
        """

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

    def _isolated(self, what: str, settings: Mapping[str, Any]) -> "_Answer | str":
        values = {"what": what, "options": asdict(self.options), "settings": settings}
        answer = isolated.answer(self.command, values, self.limit_seconds)
        return answer if isinstance(answer, str) else answer.get("error") or _Answer(answer["value"])

    def study(self, tables: Mapping[str, Sequence[Row]], claims: Sequence[Claim], notes: Sequence[str]) -> LabStudy:
        """The `LabStudy` of what was measured."""
        import torch

        from common.device import device_name

        return LabStudy(
            schema=SCHEMA,
            lab=self.lab,
            device=device_name(self.options.device),
            environment=record.environment(torch.__version__, torch.version.cuda),
            started=self.started,
            tables={name: [_as_json(row) for row in rows] for name, rows in tables.items()},
            claims=list(claims),
            quick=self.options.quick,
            notes=list(notes),
        )


class NotMeasured(Exception):
    """A measurement that could not be made; the message says why, in a line."""


@dataclass(frozen=True)
class _Answer:
    value: Any


def serve(*functions: Callable[..., Any], argv: Sequence[str] | None = None) -> None:
    """Be a process of `Measuring.measure`: call the function that the command line names, and print its answer.

    Each is called as function(options, **settings); what it returns is written as JSON. What it raises becomes the
    reason why there is no measurement, in a line.
    """
    end_with_reader()
    values = json.loads((sys.argv[1:] if argv is None else argv)[0])
    by_name = {function.__name__: function for function in functions}
    try:
        value = by_name[values["what"]](isolated.options_from(values["options"]), **values["settings"])
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
    record.write_json(path, asdict(study))
    path_of(options.logdir, study.lab, options.quick).unlink(missing_ok=True)
    try:
        from common.explain.terminal import console
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print(f"no table: rich is not installed; written to {path}")
        return
    show(study, console())
    print(f"written to {path}")


def read(path: str | Path) -> LabStudy:
    """The `LabStudy` in a file. Raises InputError that names the file and what is wrong with it."""
    return record.read_as(LabStudy, path, schemas=(SCHEMA,))


def show(study: LabStudy, to: "Console") -> None:
    """Print a study to the console `to`: its tables (not those for figures), its claims and its notes. Needs rich."""
    from rich.text import Text

    for name, rows in study.tables.items():
        if rows:
            to.print(Text(f"\n{name.replace('_', ' ')}", "bold"))
            to.print(rich_table(rows) if len(rows) <= MOST_ROWS else f"{len(rows)} rows: in the file, for a figure")
    if study.claims:
        to.print(Text("\nclaims", "bold"))
        to.print(rich_table(claim_rows(study.claims)))
    for note in study.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))


def rich_table(rows: Sequence[Row]) -> "Table":
    """Rows as a table, a column for each key of the first row; columns of numbers are right-justified. Needs rich."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in rows[0]:
        texts = any(isinstance(row.get(name), str) for row in rows)
        table.add_column(escape(name), justify="left" if texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell_text(row.get(name))) for name in rows[0]))
    return table


def claim_rows(claims: Sequence[Claim]) -> list[Row]:
    """Claims as the rows of a table."""
    return [
        {
            "claim": claim.text,
            "measured": None if claim.value is None else asdict(Mean(claim.value, claim.low, claim.high, 0)),
            "so it": HOLDS[claim.holds],
        }
        for claim in claims
    ]


def cell_text(value: Any) -> str:
    """A value of a row for people: "-" for None, three digits of a number, an interval in parentheses."""
    if isinstance(value, Mapping):
        kind = Ratio if "ratio" in value else Mean
        return str(kind(**value))
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
