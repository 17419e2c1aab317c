"""A study's result, of `studies/` and `labs/` alike, and its measurements: each isolated, kept until that is written.

What a program of the study needs of torch or `common` is passed in: a result is read without them.
"""

import json
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.compare import isolated
from walkthrough.compare.statistics import Mean, Ratio
from walkthrough.compare.statistics import mean as mean_of
from walkthrough.compare.table import Table
from walkthrough.results import privacy, progress, result
from walkthrough.results.environment import Environment, code_hash
from walkthrough.results.errors import InputError, is_out_of_memory, printable
from walkthrough.results.progress import end_with_reader

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
OF_A_LADDER = ("limit", "input", "ablation", "overhead", "sweep")  # the studies next to its runs, as pages show them
LIMIT_SECONDS = 1200  # of one measurement: beyond it something hangs
NAME_LENGTH = 110  # of a measurement, at most, where it is told
MOST_ROWS = 40  # of a table that is printed
VERDICT = {True: "holds", False: "does not hold", None: "not testable here"}
MORE_ROUNDS, SEVERAL = "more rounds or seeds", "several rounds"  # as the interval includes the limit; as it is of one
MEASUREMENT = "its measurement"
SMOKE = "smoke run (--quick): few and short windows, so the figures are rough"

# Of a cluster: jobs(command, requests, seconds of each at most) gives an index and an `isolated.answer`, as they end.
Jobs = Callable[[Sequence[str], Sequence[Mapping[str, Any]], float], Iterable[tuple[int, dict[str, Any] | str]]]
Row = dict[str, Any]  # {header: text, number, None, or an interval as `asdict` makes it of a `Ratio` or a `Mean`}


@dataclass(frozen=True)
class Claim:
    """Something that was published, or that we expected, and what was measured about it.

    text: the claim, a sentence. value: what was measured, with its 95 % interval, where it has one. holds: None where
    this machine cannot test it, or its measurements do not decide it; needs: what would, such as "a GPU". A claim that
    nothing measured here could have contradicted has none either, whatever its value. published: what was, in words;
    None where we expected it. undecided: whether it needs no more than further measurements on this machine.
    """

    id: str
    text: str
    value: float | None
    low: float | None
    high: float | None
    holds: bool | None
    needs: str | None = None
    published: str | None = None
    undecided: bool = False

    @property
    def verdict(self) -> str:
        """For people, in a cell of a table."""
        if self.needs is None:
            return VERDICT[self.holds]
        if self.undecided and self.value is None:
            return "not measured yet"
        return f"{'undecided' if self.undecided else VERDICT[None]}: needs {self.needs}"


def claim(
    id: str,
    text: str,
    value: Ratio | Mean | float | None,
    *,
    above: float | None = None,
    below: float | None = None,
    within: tuple[float, float] | None = None,
    needs: str | None = None,
    more: str | None = None,
    published: str | None = None,
) -> Claim:
    """A `Claim` that a value is above a limit, below one, or within a band; one of the three is given, or `needs`.

    A value without an interval is decided by itself: for what does not vary, such as counts and predictions. Of None,
    of one round, whose interval holds no run-to-run variation, or with `needs` or `more`, nothing is decided. needs:
    what a test takes that this machine or its data has not. more: the further measurements that it takes.
    """
    middle = value.ratio if isinstance(value, Ratio) else value.mean if isinstance(value, Mean) else value
    low, high = (value.low, value.high) if isinstance(value, Ratio | Mean) else (None, None)
    least, most = (low, high) if isinstance(value, Ratio | Mean) else (middle, middle)
    if above is not None:
        holds = _is_above(least, most, above)
    elif below is not None:
        over = _is_above(least, most, below)
        holds = None if over is None else not over
    else:
        holds = None if within is None or least is None or most is None else inside(least, most, within)
    if isinstance(value, Ratio) and value.rounds == 1:
        more = more or SEVERAL
    elif holds is None:
        more = more or (MEASUREMENT if value is None else SEVERAL if least is None or most is None else MORE_ROUNDS)
    needed = needs or more
    return Claim(
        id, text, middle, low, high, None if needed else holds, needed, published, undecided=bool(more and not needs)
    )


def _is_above(low: float | None, high: float | None, limit: float) -> bool | None:
    if low is None or high is None:
        return None
    return True if low > limit else False if high < limit else None


def inside(low: float, high: float, band: tuple[float, float]) -> bool | None:
    """Whether an interval lies within a band: False only if it lies wholly outside, None where it holds a limit."""
    if band[0] < low and high < band[1]:
        return True
    return False if high < band[0] or low > band[1] else None


def percent(shares: Sequence[float]) -> Mean:
    """The mean of shares (0..1) in %; its interval ends at 0 and 100, as they do."""
    mean = mean_of([100 * share for share in shares])
    if mean.low is None or mean.high is None:
        return mean
    return replace(mean, low=max(0.0, mean.low), high=min(100.0, mean.high))


@dataclass(frozen=True, kw_only=True)
class Study:
    """The result of a study, as its file holds it.

    name: of the study; lab: the same where it is a lab's. setup: what has to be the same as a ladder's to be shown with
    it; labs have none. precision: the dtype that the model computes in. quick: a smoke run, whose figures are rough.
    started: ISO 8601. notes: what this device could not do or show. measured: the raw values that the tables are
    computed from. tables: {name: rows}, whose keys are the table's headers. conclusions: {name of a table: sentences
    that follow from it}.
    """

    schema: int = SCHEMA
    name: str
    lab: str | None = None
    device: str
    setup: result.Setup | None = None
    precision: str | None = None
    seed: int | None = None
    quick: bool = False
    environment: Environment
    started: str
    notes: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[Row]]
    conclusions: dict[str, list[str]] = field(default_factory=dict)
    claims: list[Claim]

    @property
    def on_gpu(self) -> bool:
        """Whether it was measured on a GPU: only a CPU's cores are part of a setup; a lab has none, and its device."""
        return self.setup.cores is None if self.setup else self.device != self.environment.cpu

    def as_json(self) -> dict[str, Any]:
        """The object that the file holds and `--json` prints."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name == "precision"}


def read(path: str | Path, no_links: bool = False) -> Study:
    """The `Study` in a file; no_links: see `result.read_json`. Raises InputError that names it and what is wrong."""
    return result.read_as(Study, path, SCHEMA, no_links)


def write(path: Path, study: Study) -> None:
    """Write a study's file, whole or not at all. Raises InputError."""
    result.write_json(path, study.as_json())


def write_measured(path: Path, study: Study) -> None:
    """`write` a study that was just measured; what was kept of its measurements goes then."""
    write(path, study)
    kept_path(path.parent, study.name, study.quick).unlink(missing_ok=True)


def keep_whole(path: Path, quick: bool) -> None:
    """Raise InputError where a smoke run would replace the file of a whole study."""
    try:
        is_whole = quick and path.exists() and not read(path).quick
    except InputError:  # not a study that can be read
        return
    if is_whole:
        raise InputError(f"--quick would replace the whole study in {path}: give another --logdir")


def kept_path(folder: Path, name: str, quick: bool) -> Path:
    """The file of what is kept of the study of that name; a smoke run has its own."""
    return folder / f".{name}{'.quick' if quick else ''}.json"


def interval(cell: Any) -> Ratio | Mean | None:
    """The `Ratio` or `Mean` in a cell of a stored table; None for any other cell."""
    if not isinstance(cell, Mapping):
        return None
    return Ratio(**cell) if "ratio" in cell else Mean(**cell)


def show(study: Study, to: "Console") -> None:
    """Print a study to the console `to`: tables (not those for figures), what follows, claims, notes. Needs rich."""
    from rich.text import Text

    for name, rows in study.tables.items():
        if rows:
            to.print(Text(f"\n{name.replace('_', ' ')}", "bold"))
            to.print(
                Table(name, rows).rich() if len(rows) <= MOST_ROWS else f"{len(rows)} rows: in the file, for a figure"
            )
        for sentence in study.conclusions.get(name, ()):
            to.print(Text(printable(sentence)))
    if any(interval(cell) for rows in study.tables.values() for row in rows for cell in row.values()):
        to.print(Text("(low-high), (low to high): the 95 % interval; ~: no measurable difference.", "dim"))
    if study.claims:
        to.print(Text("\nclaims", "bold"))
        to.print(Table("claims", claim_rows(study.claims)).rich())
    for note in study.notes:
        to.print(Text(printable(f"{note[0].upper()}{note[1:]}."), "yellow"))


def claim_rows(claims: Sequence[Claim]) -> list[Row]:
    """Claims as the rows of a table."""
    return [
        {
            "claim": claim.text,
            "published": claim.published or "-",
            "ours": None if claim.value is None else asdict(Mean(claim.value, claim.low, claim.high, 0)),
            "verdict": claim.verdict,
        }
        for claim in claims
    ]


class NotMeasured(Exception):
    """A measurement that could not be made; the message says why, in a line."""


class Measurements:
    """The measurements of a study, each in a process of its own, kept on disk until the study is written.

    header: what its `Study` begins with: name, device, environment, started … . options: of the study, a dataclass with
    `logdir` and `quick`; the process gets them too. command: of the program that ends with `serve`. code: a glob
    pattern of the files that measure, in the project. jobs: of the cluster that `several` runs on, if any.
    """

    def __init__(
        self,
        header: Mapping[str, Any],
        options: Any,
        command: Sequence[str],
        code: str,
        limit_seconds: float = LIMIT_SECONDS,
        jobs: Jobs | None = None,
    ) -> None:
        self.header, self.options, self.command, self.limit_seconds = header, options, tuple(command), limit_seconds
        self.jobs, self.failed_jobs = jobs, dict[str, str]()  # {measurement: why}
        self.path = kept_path(options.logdir, header["name"], options.quick)
        setup = {
            "options": asdict(options) | {"logdir": None},
            "environment": asdict(header["environment"]) | {"git": None},
            "code": code_hash("studies/*.py", "walkthrough/compare/study.py", code),
        }
        self.setup = json.loads(json.dumps(setup, default=str))
        self.values, self.lock = self._left(), threading.Lock()
        if self.values:
            progress.say(f"  kept of an earlier call that was cut off: {len(self.values)} measurement(s)")

    def _left(self) -> dict[str, Any]:
        """What an earlier call left, if it measured the same: same options, versions and code."""
        try:
            left = result.read_json(self.path)
            return dict(left["values"]) if left["setup"] == self.setup else {}
        except (InputError, KeyError, TypeError, ValueError):  # none, or not ours: then all is measured anew
            return {}

    def name(self, function: str, settings: Mapping[str, Any]) -> str:
        """What a measurement is kept as in `values`."""
        return " ".join([function, *(f"{key}={value}" for key, value in settings.items())])

    def measure(self, function: str, **settings: Any) -> Any:
        """What the program's function of that name returns for these settings, from a process of its own.

        JSON, so its tuples are lists. Raises NotMeasured with the reason where the process failed. What is kept of an
        earlier call is not measured again.
        """
        name = self.name(function, settings)
        if name in self.values:
            return self.values[name]
        if name in self.failed_jobs:
            return self._keep(name, {"error": self.failed_jobs[name]})
        return self._keep(name, isolated.answer(self.command, self._request(function, settings), self.limit_seconds))

    def several(self, function: str, settings: Sequence[Mapping[str, Any]], processes: int) -> list[Any]:
        """`measure` for each of these settings, so many at a time, in their order; None where it could not be made.

        For what takes no time that counts: processes that run alongside others are slower. Where the study was given a
        cluster, they are jobs there, as many at a time as it lets run; what failed as a job is not tried again here.
        """
        if self.jobs:
            missing = [own for own in settings if self.name(function, own) not in self.values]
            requests = [self._request(function, own) for own in missing]
            for index, answer in self.jobs(self.command, requests, self.limit_seconds):
                name, reason = self.name(function, missing[index]), _why_not(answer)
                if reason:
                    self.failed_jobs[name] = reason
                else:
                    self._keep(name, answer)

        def one(own: Mapping[str, Any]) -> Any:
            try:
                return self.measure(function, **own)
            except NotMeasured:
                return None

        with ThreadPoolExecutor(processes) as pool:
            waiting = [pool.submit(one, own) for own in settings]
            try:
                return [measured.result() for measured in waiting]
            except BaseException:  # Ctrl-C: what was not begun is left out
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _request(self, function: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"what": function, "options": asdict(self.options), "settings": settings}

    def _keep(self, name: str, answer: Mapping[str, Any] | str) -> Any:
        if reason := _why_not(answer):
            progress.say(f"  {printable(name, NAME_LENGTH)}: failed: {privacy.reason(reason)}")
            raise NotMeasured(privacy.reason(reason))
        value = answer["value"]  # pyright: ignore[reportArgumentType]  # an answer without a reason is an object
        with self.lock:
            self.values[name] = value
            result.write_json(self.path, {"setup": self.setup, "values": self.values})
        progress.say(f"  {printable(name, NAME_LENGTH)}{_speed(value)}")
        return value

    def study(
        self,
        tables: Mapping[str, Sequence[Row]],
        claims: Sequence[Claim] = (),
        notes: Sequence[str] = (),
        *,
        measured: Mapping[str, Any] | None = None,
    ) -> Study:
        """The `Study` of what was measured."""
        return Study(
            **self.header,
            quick=self.options.quick,
            notes=[*notes, *([SMOKE] if self.options.quick and measured else [])],
            measured=dict(measured or {}),
            tables={name: [as_json(row) for row in rows] for name, rows in tables.items()},
            claims=list(claims),
        )


def _speed(value: Any) -> str:
    """The samples/s of a measurement that has them, for people."""
    speed = value.get("samples_per_second", value) if isinstance(value, Mapping) else None
    windows = speed.get("windows") if isinstance(speed, Mapping) else speed
    return f": {statistics.median(windows):.1f} samples/s" if windows and isinstance(windows, list) else ""


def _why_not(answer: Mapping[str, Any] | str) -> str | None:
    """Of what `isolated.answer` returned: why there is no measurement; None where there is one."""
    return answer if isinstance(answer, str) else answer.get("error")


def as_json(row: Mapping[str, Any]) -> Row:
    """A row whose intervals are JSON objects."""
    return {name: asdict(value) if isinstance(value, Ratio | Mean) else value for name, value in row.items()}


def serve(
    *functions: Callable[..., Any], options_from: Callable[[Any], Any], argv: Sequence[str] | None = None
) -> None:
    """Be a process of `Measurements.measure`: call the function that the command line names, and print its answer.

    Each is called as function(options, **settings); what it returns is written as JSON. What it raises becomes the
    reason why there is no measurement, in a line. options_from: makes the study's options of their JSON.
    """
    end_with_reader()
    request = json.loads((sys.argv[1:] if argv is None else argv)[0])
    by_name = {function.__name__: function for function in functions}
    try:
        value = by_name[request["what"]](options_from(request["options"]), **request["settings"])
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
