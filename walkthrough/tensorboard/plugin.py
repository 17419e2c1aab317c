"""The Walkthrough tab: what the server sends to the page in static/, all of it read-only."""

import gzip
import hashlib
import io
import ipaddress
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers
from werkzeug.wsgi import wrap_file

from walkthrough.advice import comparison
from walkthrough.compare import roofs, rounds, statistics
from walkthrough.compare.ladder import DEVICE, MODEL, RELATIVE, intervals, notes_of, summary, warnings_of
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, printable
from walkthrough.results.files import open_plain
from walkthrough.results.result import Result
from walkthrough.tensorboard import profiler_pages
from walkthrough.tensorboard.answers import Answer, Answers, Kept, cache_folder
from walkthrough.tensorboard.log_folders import MOST_RANKS, Run, Runs, roots_of
from walkthrough.tensorboard.worker import Kind, Question
from walkthrough.terminal import micro_sign
from walkthrough.trace.reader import as_number

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


log = logging.getLogger("walkthrough")
PAGE = {  # the tab's own files: {route: content type}
    f"/{file.name}": profiler_pages.CONTENT_TYPES[file.suffix]
    for file in sorted(profiler_pages.STATIC.iterdir())
    if file.name not in profiler_pages.OWN_FILES
}
WORKERS = min(4, usable_cores())  # children that read traces
DISK_LIMIT = 256 * 2**20  # bytes of kept answers
READ_AHEAD = 40  # runs whose traces are read before the page asks for them
RANK_FIELDS = ("gpus", "collectives", "sampled", "typical", "advice", "bound")  # of a trace's numbers: what is compared
RANKS_BYTES = 2**27  # of the numbers of all ranks that are compared, as JSON
A_DAY = 24 * 3600  # s
NOSNIFF = ("X-Content-Type-Options", "nosniff")
HOSTS_VARIABLE = "WALKTHROUGH_HOSTS"  # names that are answered besides, with commas; "*": every name
RESULT_FIELDS = (
    *("step", "device_type", "model", "batch_size", "samples_per_second", "step_ms"),
    *("peak_memory_bytes", "batch_bytes"),
)

ORIGINAL = {"device": DEVICE, "model": MODEL, "relative": RELATIVE}

Route = Callable[[wrappers.Request], "dict[str, Any] | wrappers.Response"]


class WalkthroughPlugin(base_plugin.TBPlugin):
    """Serves the tab's page and its data as JSON; each method documents the answer of its route."""

    plugin_name = "walkthrough"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self.runs, self.flags = Runs(roots_of(context)), context.flags
        self.answers = Answers(Kept(cache_folder(), DISK_LIMIT, ".json.gz"), WORKERS)
        self._comparing = threading.Lock()  # the numbers of a run's ranks are in memory once

    def get_plugin_apps(self) -> dict[str, "WSGIApplication"]:
        """The WSGI app of each route."""
        data = {"/runs": self._runs, "/ladders": self._ladders, "/ratio": self._ratio, "/trace": self._trace}
        data |= {"/digest": self._digest, "/lanes": self._lanes, "/event": self._event, "/ranks": self._ranks}
        apps = {route: json_app(answer) for route, answer in data.items()}
        apps |= {route: json_app(_file(route, content_type)) for route, content_type in PAGE.items()}
        apps |= {"/plotly.min.js": json_app(_plotly)}
        return {route: guarded(app, self.flags) for route, app in apps.items()}

    def is_active(self) -> bool:
        """True where there is a run to show."""
        return bool(self.runs.latest())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Where the tab's page begins, and the tab's name."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Walkthrough", disable_reload=True)

    def _runs(self, request: wrappers.Request) -> dict[str, Any]:
        """{"version", "runs": [{name, key, traces, versions, has_ranks, step, problem}]}. Reads the traces ahead.

        Argument known: the version that the page has; where nothing has changed since, runs is null. versions: see
        `Run`; the page asks for them every few seconds, to notice a change.
        """
        runs = self.runs.latest(newest=True)
        for run in islice((run for run in runs.values() if run.traces), READ_AHEAD):
            with suppress(OSError):  # it vanishes meanwhile
                self.answers.ask(Question.of("digest", run.trace()), urgent=False)
        rows = [
            {
                "name": printable(run.name),
                "key": run.name,
                "traces": list(run.traces),
                "versions": run.versions,
                "has_ranks": bool(run.has_ranks),
                "step": run.result and run.result.step,
                "problem": run.problem and printable(run.problem),
            }
            for run in runs.values()
        ]
        version = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        return {"version": version, "runs": None if version == request.args.get("known") else rows}

    def _ladders(self, request: wrappers.Request) -> dict[str, Any]:
        """{"ladders": [{title, baseline, rows, …}], "original": {device, model, relative}, "problems": [text]}.

        warnings, summary, intervals: texts of a ladder, as `compare` prints them. Each ladder in the log folders,
        as `compare --json` prints it, and the published one. problems: which ladders cannot be shown, and why.
        """
        runs = [run for run in self.runs.latest().values() if run.result]
        run_of = {id(run.result): run for run in runs}
        ladders, problems = [], []
        for folder in dict.fromkeys(run.folder.parent for run in runs):
            measured = _measured(folder)
            for group in rounds.by_setup(run.result for run in runs if run.result and run.folder.parent == folder):
                try:
                    ladder = _ladder(folder.name, group, run_of, measured)
                    json.dumps(ladder, allow_nan=False)  # else one of them would take the others away
                    ladders.append(ladder)
                except Exception as error:
                    log.warning("a ladder of %s", printable(folder), exc_info=error)
                    steps = ", ".join(result.step for result in group)
                    problems.append(printable(f"{folder.name}: {steps} cannot be compared: {error}", 500))
        return {"ladders": ladders, "original": ORIGINAL, "problems": problems}

    def _ratio(self, request: wrappers.Request) -> dict[str, Any]:
        """Arguments before, after: runs. {"ratio", "speeds": images/s, "batch_sizes": [before, after]}.

        The ratio is after over before, as in `_ladders`; null where the two do not compare.
        """
        runs = [self.runs.run(request.args.get(name, "")) for name in ("before", "after")]
        results = [run.result for run in runs if run.result]
        answer = {
            "speeds": [result.samples_per_second.median for result in results],
            "batch_sizes": [result.batch_size for result in results],
        }
        if len(results) < 2 or runs[0] is runs[1] or results[0].setup != results[1].setup:
            return answer | {"ratio": None}
        slower, faster = (rounds.rounds_of(result, run.rounds()) for result, run in zip(results, runs, strict=True))
        return answer | {"ratio": _ratio(statistics.ratio(faster, slower))}

    def _digest(self, request: wrappers.Request) -> "dict[str, Any] | wrappers.Response":
        """Arguments run, trace. {"state": "ready", …}: see `report.tables`; or "reading" or "failed"."""
        return self._answer_of_trace(request, "digest")

    def _ranks(self, request: wrappers.Request) -> dict[str, Any]:
        """Argument run. {"state": "ready", …}: see `compared`; "reading" while a rank's trace is read."""
        run = self.runs.run(request.args.get("run", ""))
        with self._comparing:
            return compared(run, self.answers)

    def _lanes(self, request: wrappers.Request) -> "dict[str, Any] | wrappers.Response":
        """The same for the timeline's lanes, see walkthrough/trace/timeline.py. Arguments first, last: steps."""
        first, last = (_index(request.args.get(name), name) for name in ("first", "last"))
        if last is not None and last < (first or 0):
            raise InputError(f"last: step {last} is before step {first}")
        return self._answer_of_trace(request, "lanes", first, last)

    def _event(self, request: wrappers.Request) -> "dict[str, Any] | wrappers.Response":
        """{"arguments": {name: text or number}} of an event. Arguments name, pid, tid, and its at and duration, µs.

        All as in the answer of `_lanes`, at: file_us + start.
        """
        texts = [_given(request, name) for name in ("name", "pid", "tid")]
        return self._answer_of_trace(request, "event", *texts, *(_us(request, name) for name in ("at", "duration")))

    def _trace(self, request: wrappers.Request) -> wrappers.Response:
        """Arguments run, trace. The file itself."""
        return download(request, self._path(request))

    def _path(self, request: wrappers.Request) -> Path:
        """The trace that a request names. Raises InputError where there is none."""
        return self.runs.run(request.args.get("run", "")).trace(request.args.get("trace"))

    def _answer_of_trace(
        self, request: wrappers.Request, kind: Kind, *options: str | float | None
    ) -> "dict[str, Any] | wrappers.Response":
        path = self._path(request)
        state, answer = _answer(self.answers, kind, path, options)
        if state != "ready":
            return {"state": state, "reason": answer, "reading": self.answers.reading}
        return http_util.Respond(request, answer, "application/json", content_encoding="gzip")


def _answer(answers: Answers, kind: Kind, path: Path, options: tuple[Any, ...] = ()) -> Answer:
    try:
        return answers.get(Question.of(kind, path, options))
    except OSError as error:
        return "failed", f"cannot read {path.name}: {error.strerror}"


def _index(text: str | None, name: str) -> int | None:
    """The index of a step that a request names, or None where it names none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InputError(f"{name}: {text[:20]} is not a step index")
    return int(text)


def _given(request: wrappers.Request, name: str) -> str:
    """An argument of a request. Raises InputError where it has none."""
    if (text := request.args.get(name)) is None:
        raise InputError(f"{name} is missing")
    return text


def _us(request: wrappers.Request, name: str) -> float:
    """A time that a request names. Raises InputError where it is none."""
    text = _given(request, name)
    if not math.isfinite(us := as_number(text)):
        raise InputError(f"{name}: {text[:20]} is no time in µs")
    return us


def _measured(folder: Path) -> roofs.Limit | None:
    """What `limit` measured, of a folder of runs; None where there is none, or none that can be read."""
    try:
        return roofs.read(folder, no_links=True)
    except (InputError, OSError) as error:
        log.warning("skipped: %s", printable(error))
        return None


def _ladder(folder: str, results: list[Result], run_of: dict[int, Run], measured: roofs.Limit | None) -> dict[str, Any]:
    """One of the `_ladders`, from the results of one setup. run_of: by a result's `id`."""
    ladder = rounds.ladder(results, {result.step: run_of[id(result)].rounds() for result in results})
    base, notes = ladder.baseline, set(notes_of(ladder))
    known = measured if measured and measured.setup.matches(base.setup) else None
    rows = [
        _row(row, run_of[id(row.result)], notes) | (known.shares(row.result) if known else roofs.NO_SHARES)
        for row in ladder.rows
    ]
    return {
        "title": printable(f"{folder}: {base.model}, {base.size_label}, {base.data}, on {base.device}"),
        "baseline": base.step,
        "rows": rows,
        "warnings": warnings_of(ladder),
        "summary": summary(ladder),
        "intervals": intervals(ladder),
    }


def _row(row: rounds.Row, run: Run, notes: Collection[str]) -> dict[str, Any]:
    """A row of `_ladders`. needs: "needs a GPU" where the step's change has no effect, and then no ratio.

    notes: those that `compare` prints; the row has no others.
    """
    result = asdict(row.result)
    low, high = rounds.spread(row.result)
    return {key: result[key] for key in RESULT_FIELDS} | {
        "run": run.name,
        "notes": [note for note in row.result.notes if note in notes],
        "acts": row.acts,
        "needs": row.needs or None,
        "low": low,
        "high": high,
        "windows": sum(map(len, row.rounds.values())),
        "rounds": len(row.rounds),
        "relative": _ratio(row.relative) if row.acts else None,
        "gain": row.gain and _ratio(row.gain),
        "has_trace": bool(run.traces),
    }


def _ratio(ratio: statistics.Ratio) -> dict[str, Any]:
    is_baseline = ratio is statistics.SAME  # which is not grey
    return asdict(ratio) | {"resolved": is_baseline or ratio.resolved, "text": "1.00x" if is_baseline else str(ratio)}


def json_app(answer: Route) -> "WSGIApplication":
    """A WSGI app of `answer(request)`, of both tabs: a dict is sent as JSON. Refuses POST, never sends a traceback."""

    @wrappers.Request.application
    def app(request: wrappers.Request) -> wrappers.Response:
        if request.method not in ("GET", "HEAD"):
            return _json(request, {"error": "this page is read-only"}, 405)
        try:
            content = answer(request)
            return _json(request, content) if isinstance(content, dict) else content
        except InputError as error:
            return _json(request, {"error": printable(error)}, 404)
        except Exception:
            log.exception("no answer to %s", request.path)
            return _json(request, {"error": "a defect of the page: see TensorBoard's log"}, 500)

    return app


def _json(request: wrappers.Request, value: dict[str, Any], code: int = 200) -> wrappers.Response:
    return http_util.Respond(request, json.dumps(value, allow_nan=False), "application/json", code=code)


def _file(route: str, content_type: str) -> Route:
    def answer(request: wrappers.Request) -> wrappers.Response:
        content = (profiler_pages.STATIC / route[1:]).read_bytes()
        return http_util.Respond(request, content, content_type)

    return answer


def _plotly(request: wrappers.Request) -> wrappers.Response:
    script = _gzipped_plotly()
    return http_util.Respond(request, script, "application/javascript", content_encoding="gzip", expires=A_DAY)


@cache
def _gzipped_plotly() -> bytes:
    if script := profiler_pages.plotly_js():
        return gzip.compress(script, 6)
    raise InputError("plotly is not installed: pip install plotly")


def host_of(header: str) -> str:
    """The host in a Host header, without port and brackets, in lower case."""
    header = header.strip().lower()
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return host.removesuffix(".")


def is_local(host: str) -> bool:
    """True for "localhost", 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_allowed(header: str, served: str | None, bind_all: bool, allowed: Iterable[str] = ()) -> bool:
    """True where a request with this Host header is answered.

    served: the value of --host, None without it. bind_all: whether --bind_all was given. allowed: names besides.
    Whoever has TensorBoard serve other machines has opened it deliberately: then every name is answered.
    """
    serves_others = bind_all or (bool(served) and not is_local(host_of(str(served))) and served != "::1")
    host, names = host_of(header), {name.strip().lower() for name in allowed}
    return serves_others or not host or is_local(host) or host in names or "*" in names


def guarded(app: "WSGIApplication", flags: Any) -> "WSGIApplication":
    """The same WSGI app, without guessing of types; 403 and one line for what other sites ask.

    Those are Host headers that are not `is_allowed`, and requests by another site's page, but for a link to a page.
    flags: TensorBoard's, or None.
    """
    served, bind_all = getattr(flags, "host", None), bool(getattr(flags, "bind_all", False))

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            others = [(name, value) for name, value in headers if name.lower() != NOSNIFF[0].lower()]
            return start_response(status, [*others, NOSNIFF], *exc_info)

        header = environ.get("HTTP_HOST", "")
        if not is_allowed(header, served, bind_all, os.environ.get(HOSTS_VARIABLE, "").split(",")):
            return _refused(_other_name(host_of(header)), start)
        is_link = environ.get("HTTP_SEC_FETCH_DEST") == "document" and environ.get("PATH_INFO", "").endswith(".html")
        if environ.get("HTTP_SEC_FETCH_SITE") == "cross-site" and not is_link:
            return _refused("another site's page asks for this: only TensorBoard's own pages are answered", start)
        return app(environ, start)

    return answer


def _other_name(host: str) -> str:
    name = "".join(letter for letter in host if letter.isascii() and (letter.isalnum() or letter in ".-_"))[:100]
    return (
        f"TensorBoard serves this machine alone and was asked as {name!r}: open it as localhost, or, where that name "
        f"is yours (a proxy of Jupyter or Colab), set {HOSTS_VARIABLE}={name} before you start TensorBoard."
    )


def _refused(reason: str, start_response: Callable[..., Any]) -> list[bytes]:
    text = json.dumps({"error": reason}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
    start_response("403 Forbidden", headers)
    return [text]


def download(request: wrappers.Request, path: Path) -> wrappers.Response:
    """The file, chunk by chunk. Raises InputError where it cannot be read, or is a link by now."""
    try:
        file = open_plain(path, no_links=True)  # the server closes it
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror}") from error
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return wrappers.Response(
        wrap_file(request.environ, file),
        content_type="application/gzip" if gzipped else "application/json",
        headers={
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.name, errors='replace')}",
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Cache-Control": "no-cache, must-revalidate",
        },
        direct_passthrough=True,
    )


def compared(run: Run, answers: Answers) -> dict[str, Any]:
    """{"state": "reading", "reading": n} until all traces are read, then the comparison.

    ranks: [{rank, trace, step_us, parts_us, …, wait_us or null}]; difference, advice: texts, as `explain` prints them;
    stragglers: the ranks that others wait for; verdict: of the first of them, else of the slowest; problems: which
    traces are left out, and why; no_waits: why the ranks' waits are not known, "" where they are.
    """
    paths = run.training
    digests = [(path, *_answer(answers, "digest", path)) for path in paths[:MOST_RANKS]]
    if any(state == "reading" for _, state, _ in digests):
        return {"state": "reading", "reading": answers.reading}
    problems = [f"only the newest {MOST_RANKS} of {len(paths)} traces are compared"] if len(paths) > MOST_RANKS else []
    newest: dict[int, dict[str, Any]] = {}
    left = RANKS_BYTES
    for path, state, answer in digests:
        name = printable(path.name)
        if state != "ready" or not isinstance(answer, bytes):
            problems.append(f"{name} is left out: {answer}")
            continue
        text = gzip.GzipFile(fileobj=io.BytesIO(answer)).read(left + 1)
        if len(text) > left:
            problems.append(f"{name} is left out: the ranks have too many numbers to compare")
            continue
        left -= len(text)
        report = msgspec.json.decode(text)
        if report["rank"] is None:
            problems.append(f"{name} is left out: it names no rank")
        elif report["partial"]:
            problems.append(f"{name} is left out: a part of it is missing")
        elif report["rank"] not in newest:  # the newest first
            newest[report["rank"]] = {field: report[field] for field in RANK_FIELDS} | {"trace": path.name}
    return {"state": "ready", "problems": problems} | _compared(dict(sorted(newest.items())))


def _compared(newest: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """newest: {rank: its numbers}."""
    if not newest:
        return {"ranks": []}
    both = comparison.ranks(newest, not any(report["sampled"] for report in newest.values()))
    rows = [row | {"trace": newest[row["rank"]]["trace"]} for row in both["ranks"]]
    return both | {"ranks": rows, "advice": micro_sign(both["advice"])}
