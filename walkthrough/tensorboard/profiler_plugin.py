"""torch-tb-profiler's plugin, patched in TensorBoard's process: runs as they become ready, pages without the internet.

The plugin reads each trace in one call that blocks; here the children of `answers` do, the run that a page asks for
first, and again what has changed.
"""

import gc
import gzip
import json
import logging
import os
import pickle
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from tensorboard.backend import http_util
from tensorboard.plugins.base_plugin import TBContext
from torch_tb_profiler import consts, io
from torch_tb_profiler import plugin as profiler
from torch_tb_profiler.profiler.loader import RunLoader
from torch_tb_profiler.run import Run, RunProfile
from werkzeug import exceptions, wrappers
from werkzeug.wsgi import wrap_file

import walkthrough.tensorboard.profiler_parser  # noqa: F401  # it patches the parser, for the Diff view
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import printable
from walkthrough.results.files import open_plain
from walkthrough.tensorboard import profiler_pages
from walkthrough.tensorboard.answers import PROGRAM, Answers, Kept, cache_folder, is_being_written
from walkthrough.tensorboard.log_folders import REMOTE, Status, folders_below, natural, roots_of, well_formed
from walkthrough.tensorboard.plugin import guarded, json_app
from walkthrough.tensorboard.worker import COUNTERS, TABLES, Question

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger("walkthrough")
SEARCH_SECONDS = 3.0  # until the log folders are searched again
SEARCH_SECONDS_WRITING = 0.5  # the same, while a trace is being written
DISK_LIMIT = 2**30  # bytes of kept profiles
MEMORY_LIMIT = 2**26  # bytes of the pickled profiles in memory, which take up to ten times as much as objects
COMPARED_RUNS = 2  # on disk beyond the limit: the Diff view compares two
PATIENCE_SECONDS = 5.0  # that a request for a run waits until its traces are read
READERS = min(8, usable_cores())
BEHIND = 15  # how "nice" children are that read what nobody waits for
NOTHING = (AttributeError, LookupError, RecursionError, TypeError, ValueError)  # the plugin checks no argument

Files = Mapping[str, Status | None]  # those of a folder; no status of a remote one
_Folder = tuple[str, Files, tuple[Question, ...], set[str]]  # its path and files, and what `_profiles_of` says of it


@cache
def patch() -> None:
    """Replace the faulty parts of torch-tb-profiler, once per process."""
    io.Cache.__init__ = _cache_init
    _load_in_order(profiler.TorchProfilerPlugin)
    _serve_without_internet(profiler.TorchProfilerPlugin, Path(profiler.__file__).parent / "static")


def _cache_init(self: Any, cache_dir: str | None = None) -> None:
    """As the plugin's own, without the process that would share it with children."""
    self._lock, self._manager = threading.Lock(), nullcontext()
    self._cache_dict, self._cache_dir = {}, cache_dir


def _serve_without_internet(plugin: Any, folder: Path) -> None:
    plugin_apps = plugin.get_plugin_apps

    def get_plugin_apps(self: Any) -> dict[str, "WSGIApplication"]:
        apps = plugin_apps(self) | {f"/{name}": self.static_file_route for name in profiler_pages.OWN_FILES}
        apps["/failures"] = self.failures_route
        return {route: guarded(_answered(app), self.walkthrough_flags) for route, app in apps.items()}

    plugin.static_file_route, plugin.get_plugin_apps = profiler_pages.static_file_route(folder), get_plugin_apps


def _answered(route: Any) -> "WSGIApplication":
    """The route of a plugin, a method, as a WSGI app that reads only, and answers errors as JSON."""

    def answer(request: wrappers.Request) -> wrappers.Response:
        try:
            return route.__wrapped__(route.__self__, request)  # without werkzeug's own answers to errors
        except NotYet:
            return _pending("reading")
        except exceptions.HTTPException as error:
            if isinstance(error.response, wrappers.Response):
                return error.response
            code, text = error.code or 500, error.description or error.name
        except NOTHING as error:
            log.warning("%s: %s", printable(request.full_path, 300), printable(f"{type(error).__name__}: {error}", 300))
            code, text = 404, "there is nothing to show for these arguments: see TensorBoard's log"
        return http_util.Respond(request, {"error": printable(text, 300)}, "application/json", code)

    return json_app(answer)


def _load_in_order(plugin: Any) -> None:
    """Let `Loading` read the runs, those of --logdir_spec too: unpatched, the plugin searches its working directory."""
    plugin_init = plugin.__init__

    def __init__(self: Any, context: TBContext) -> None:
        self.walkthrough_roots = roots_of(context)
        self.walkthrough_flags = context.flags
        self.walkthrough_loading = Loading(
            search=lambda: _folders(self),
            local=lambda path: self._cache.get_remote_cache(path) if REMOTE.match(path) else path,
            dropped=lambda: [kept.clear() for kept in (self.diff_run_cache, self.diff_run_flatten_cache)],
        )
        plugin_init(self, context)

    def _monitor_runs(self: Any) -> None:
        while True:
            begun, writing = time.monotonic(), False
            try:
                writing = self.walkthrough_loading.search()
            except Exception:
                log.exception("the log folders cannot be searched")
            took = time.monotonic() - begun
            time.sleep(max(SEARCH_SECONDS_WRITING if writing else SEARCH_SECONDS, 5 * took))

    def _get_run(self: Any, name: str) -> Run:
        try:
            return self.walkthrough_loading.run(name)
        except Unknown as error:
            raise exceptions.NotFound(f"could not find the run {name}") from error
        except NotReadable as error:
            raise exceptions.HTTPException(response=_pending("failed")) from error

    def runs_route(self: Any, request: wrappers.Request) -> wrappers.Response:
        loading = self.walkthrough_loading
        return self.respond_as_json({"runs": loading.names(), "loading": loading.loading})

    def failures_route(self: Any, request: wrappers.Request) -> wrappers.Response:
        """{"failures": [{run, file, reason}]}: the traces that cannot be read."""
        return self.respond_as_json({"failures": self.walkthrough_loading.failures()})

    def is_active(self: Any) -> bool:
        return self.walkthrough_loading.has_runs

    def trace_route(self: Any, request: wrappers.Request) -> wrappers.Response:
        """The trace as the Trace view shows it: JSON, gzipped, chunk by chunk."""
        name, *of_worker = (request.args.get(argument) for argument in ("run", "worker", "span"))
        found = self._get_run(name).profiles.get(tuple(of_worker))
        if not isinstance(found, _Unread):
            raise exceptions.NotFound(f"could not find the trace of {name}/{'/'.join(map(str, of_worker))}")
        trace = found.trace
        try:
            file = self.walkthrough_loading.view(trace)
        except NotReadable as error:
            raise exceptions.NotFound(f"{trace.file}: {error}") from error
        headers = {"Content-Encoding": "gzip", "Content-Length": str(os.fstat(file.fileno()).st_size)}
        content = wrap_file(request.environ, file)  # the server closes it
        return wrappers.Response(content, 200, headers, content_type="application/json", direct_passthrough=True)

    plugin.__init__, plugin._monitor_runs, plugin._receive_runs = __init__, _monitor_runs, lambda self: None
    plugin._get_run, plugin.is_active = _get_run, is_active
    plugin.runs_route = wrappers.Request.application(runs_route)  # pyright: ignore[reportArgumentType]
    plugin.trace_route = wrappers.Request.application(trace_route)  # pyright: ignore[reportArgumentType]
    plugin.failures_route = wrappers.Request.application(failures_route)  # pyright: ignore[reportArgumentType]


def _pending(state: str) -> wrappers.Response:
    """An answer that the page's fetch in static/profiler_page.js knows."""
    return wrappers.Response(json.dumps({"state": state}), 202, content_type="application/json")


def _folders(plugin: Any) -> Iterator[tuple[str, str, Files]]:
    """(name of the run, path, files) of each folder in the log folders."""
    if REMOTE.match(plugin.logdir):
        for folder, _, files in io.walk(plugin.logdir):
            yield plugin._get_run_name(folder), folder, dict.fromkeys(files)
        return
    for folder in folders_below(plugin.walkthrough_roots):
        yield folder.name, str(folder.path), folder.traces


class Unknown(Exception):
    """There is no such run."""


class NotYet(Exception):
    """The traces of a run are still being read."""


class NotReadable(Exception):
    """No trace of a run can be read, or this one cannot be shown."""


class Missing(Exception):
    """The profile of a trace is not kept any more, or damaged: it has to be read again."""


@dataclass
class _Run:
    """shown: the traces whose profiles are shown; None before those of `wanted` have been read for the first time."""

    wanted: tuple[Question, ...] = ()
    shown: tuple[Question, ...] | None = None


class Loading:
    """The runs of some log folders, read by child processes, and read again when their files change. Thread-safe.

    search: yields (name, path, files) of each folder. local: gives the path of a remote file's copy. dropped: see
    `Profiles`. cache: the folder for profiles, None for the user's.
    """

    def __init__(
        self,
        search: Callable[[], Iterable[tuple[str, str, Files]]],
        local: Callable[[str], str] = str,
        dropped: Callable[[], object] = lambda: None,
        cache: Path | None = None,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self._search, self._searched = search, False
        self._seen: dict[str, _Folder] = {}
        self._runs: dict[str, _Run] = {}  # in natural order
        self._asked: list[str] = []  # the runs that were asked for, the last first
        self._views: deque[Question] = deque(maxlen=COMPARED_RUNS)  # that were asked for last
        kept = Kept(cache or cache_folder() / "profiles", DISK_LIMIT, ".profile.gz")
        self.answers = Answers(kept, READERS, BEHIND, local, self._spare, program)
        self._changed, self._profiles = self.answers.changed, Profiles(kept, dropped, self._profile)

    def search(self) -> bool:
        """Look which traces there are now, and have those read that are new or have changed.

        True where one is being written: it is left out until that has ended.
        """
        seen: dict[str, _Folder] = {}
        for name, path, files in self._search():
            before = self._seen.get(name)
            if before and before[:2] == (path, files) and not before[3]:  # nothing has changed
                seen[name] = before
            else:
                seen[name] = path, files, *_profiles_of(path, files, before[2] if before else ())
        self._seen = seen
        found = {name: (wanted, writing) for name, (*_, wanted, writing) in seen.items() if wanted or writing}
        with self._changed:
            self._settle()
            for name in self._runs.keys() - found.keys():
                del self._runs[name]
            for name, (wanted, writing) in found.items():
                run = self._runs.get(name, _Run())
                before = [question for question in run.wanted if question.file in writing] if writing else []
                run.wanted = (*wanted, *before)
                if run.wanted:
                    self._runs[name] = run
            self._runs = dict(sorted(self._runs.items(), key=lambda named: natural(named[0])))
            self.answers.read_ahead(question for run in self._runs.values() for question in run.wanted)
            self._searched = True
            self._changed.notify_all()
            names = set(self._runs)
        self._profiles.keep_only(names)
        return any(writing for _, writing in found.values())

    def names(self) -> list[str]:
        """The runs that can be asked for, numbers in order: not those of which no trace can be read."""
        with self._changed:
            self._settle()
            return [name for name, run in self._runs.items() if run.shown or not self._is_settled(run)]

    @property
    def has_runs(self) -> bool:
        """Whether there is a run, or a trace that cannot be read."""
        return bool(self._runs)

    @property
    def loading(self) -> bool:
        """True while a trace is being read, or waits for that."""
        with self._changed:
            return not self._searched or not all(map(self._is_settled, self._runs.values()))

    def failures(self) -> list[dict[str, str]]:
        """[{run, file, reason}] of the traces that cannot be read."""
        with self._changed:
            return [
                {"run": printable(name), "file": printable(question.file), "reason": reason}
                for name, run in self._runs.items()
                for question in run.wanted
                if (reason := self.answers.failure(question))
            ]

    def run(self, name: str, patience: float = PATIENCE_SECONDS) -> Run:
        """A run, which is read before the others if it is not there yet.

        Raises Unknown, NotReadable, or NotYet after `patience` seconds.
        """
        until = time.monotonic() + patience
        while True:
            run, shown = self._wait_for(name, until)
            try:
                return self._profiles.run(name, shown)
            except Missing:
                with self._changed:
                    self.answers.forget_missing((*run.wanted, *shown))
                    run.shown = None

    def view(self, trace: Question, patience: float = PATIENCE_SECONDS) -> BinaryIO:
        """A trace that has a profile as the Trace view shows it: a file of gzipped JSON.

        Raises NotReadable with the reason, or NotYet after `patience` seconds.
        """
        try:
            if not trace.is_remote and Question.of(trace.kind, Path(trace.path), trace.options) != trace:
                raise NotReadable("it has changed and is read again")
        except OSError as error:
            raise NotReadable("the trace is not there any more") from error
        counters = self.answers.kept.path(trace.key, COUNTERS)
        if not counters.exists():
            self._lost(trace)
        question = replace(trace, kind="view", options=(str(counters),))
        with self._changed:
            if question not in self._views:
                self._views.append(question)
            self.answers.forget_missing([question])
            self.answers.ask(question)
            if not self._changed.wait_for(lambda: self.answers.is_settled(question), patience):
                raise NotYet
            if reason := self.answers.failure(question):
                raise NotReadable(reason)
        try:
            return open_plain(self.answers.kept.path(question.key))
        except OSError as error:  # deleted by another TensorBoard, say
            raise NotYet from error

    def _profile(self, trace: Question) -> RunProfile:
        """What the pages show of a trace; raises NotYet where it has to be read again."""
        try:
            return self._profiles.profile(trace)
        except Missing:
            return self._lost(trace)

    def _lost(self, trace: Question) -> NoReturn:
        """Have a trace read again of which a part is not kept any more."""
        self.answers.kept.delete(trace.key)
        self._profiles.keep_only(set())
        with self._changed:
            self.answers.forget_missing([trace])
            for run in self._runs.values():
                run.shown = None if trace in (run.shown or ()) else run.shown
        raise NotYet

    def _wait_for(self, name: str, until: float) -> tuple[_Run, tuple[Question, ...]]:
        """The run and what is shown of it."""

        def is_there() -> bool:
            self._settle()
            run = self._runs.get(name)
            return self._searched if run is None else bool(run.shown) or self._is_settled(run)

        with self._changed:
            self._changed.wait_for(lambda: self._searched, until - time.monotonic())
            if run := self._runs.get(name):
                self._asked = [name, *(other for other in self._asked if other != name)]
                for question in reversed(run.wanted):  # the last one asked for is read first
                    self.answers.ask(question)
            if not self._changed.wait_for(is_there, until - time.monotonic()):
                raise NotYet(name)
            if (run := self._runs.get(name)) is None:
                raise Unknown(name)
            if not run.shown:
                raise NotReadable(name)
            return run, run.shown

    def _is_settled(self, run: _Run) -> bool:
        return all(map(self.answers.is_settled, run.wanted))

    def _settle(self) -> None:
        """Show the runs whose traces have all been read; the caller holds the lock."""
        for run in self._runs.values():
            if self._is_settled(run):
                run.shown = tuple(question for question in run.wanted if not self.answers.failure(question))

    def _spare(self) -> set[str]:
        """The keys of the runs that were asked for last."""
        with self._changed:
            runs = [self._runs[name] for name in self._asked if name in self._runs][:COMPARED_RUNS]
            shown = {question.key for run in runs for question in (*run.wanted, *(run.shown or ()))}
            return shown | {question.key for question in self._views}


def _profiles_of(folder: str, files: Files, before: Iterable[Question] = ()) -> tuple[tuple[Question, ...], set[str]]:
    """(a question about each trace in a folder, the names of those that are being written).

    Of a worker with several traces each has a number, in the order of their names: torch-tb-profiler's spans. before:
    earlier questions, whose keys need not be computed again.
    """
    known = {question: question for question in before}
    matches = {file: match.groups() for file in sorted(files) if (match := consts.WORKER_PATTERN.match(file))}
    writing = {file for file in matches if (status := files[file]) and is_being_written(status[1])}
    settled = {file: parts for file, parts in matches.items() if file not in writing}
    spans: defaultdict[str, list[str]] = defaultdict(list)
    for worker, span in settled.values():
        if span is not None:
            spans[worker].append(span)
    numbers = {worker: {span: at for at, span in enumerate(sorted(set(of)), start=1)} for worker, of in spans.items()}
    questions = []
    for file, (worker, span) in settled.items():
        options = (well_formed(worker), None if span is None else numbers[worker][span])
        question = Question("profile", io.join(folder, file), *(files[file] or (-1, -1)), options)
        questions.append(known.get(question, question))
    return tuple(questions), writing


class _OnDemand(Run):
    """A run that reads the profile of one of its workers when somebody asks for it."""

    def __init__(self, name: str, profile_of: Callable[[Question], RunProfile]) -> None:
        super().__init__(name, "")  # only the plugin's own loader reads the folder
        self._profile_of = profile_of

    def get_profile(self, worker: Any, span: Any) -> Any:
        profile = super().get_profile(worker, span)
        return self._profile_of(profile.trace) if isinstance(profile, _Unread) else profile


@dataclass
class _Unread:
    """In the place of a `RunProfile`. span: its number. views: of the plugin's, that it has."""

    worker: str
    span: int | None
    views: list[Any]
    trace: Question


class Profiles:
    """The runs and profiles that were asked for last, from those in `kept`. Thread-safe.

    dropped: called after one was replaced or has left the memory. profile_of: by which a run gets the profile of a
    trace.
    """

    def __init__(self, kept: Kept, dropped: Callable[[], object], profile_of: Callable[[Question], RunProfile]) -> None:
        self._kept, self._dropped, self._profile_of = kept, dropped, profile_of
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[tuple[Question, ...], Run]] = {}  # without their profiles
        self._profiles: OrderedDict[Question, tuple[RunProfile, int]] = OrderedDict()

    def run(self, name: str, traces: tuple[Question, ...]) -> Run:
        """The run of that name with the profiles of these traces. Raises Missing."""
        with self._lock:
            if name not in self._runs or self._runs[name][0] != traces:
                self._runs[name] = traces, self._put_together(_OnDemand(name, self._profile_of), traces)
            return self._runs[name][1]

    def profile(self, trace: Question) -> RunProfile:
        """What the pages show of a trace. Raises Missing."""
        with self._lock:
            if trace not in self._profiles:
                self._profiles[trace] = self._read(trace, TABLES)
            self._profiles.move_to_end(trace)
            while len(self._profiles) > 1 and sum(size for _, size in self._profiles.values()) > MEMORY_LIMIT:
                self._profiles.popitem(last=False)
                self._dropped()
            return self._profiles[trace][0]

    def keep_only(self, names: set[str]) -> None:
        """Drop the other runs from the memory, and the profiles that are in none."""
        with self._lock:
            for name in self._runs.keys() - names:
                del self._runs[name]
            gone = self._profiles.keys() - {trace for traces, _ in self._runs.values() for trace in traces}
            for trace in gone:
                del self._profiles[trace]
        if gone:
            self._dropped()

    def _put_together(self, run: Run, traces: tuple[Question, ...]) -> Run:
        distributed, total = Run(run.name, ""), 0
        for trace in traces:
            (views, of_distributed), size = self._read(trace)
            worker, span = trace.options
            run.add_profile(cast(Any, _Unread(worker, span, views, trace)))
            distributed.add_profile(of_distributed)
            total += size
            if total > MEMORY_LIMIT:
                log.warning("run %s: no Distributed view, its collectives are too many", printable(run.name))
                distributed = Run(run.name, "")
        try:
            loader = RunLoader.__new__(RunLoader)  # the plugin's own, but it opens a queue
            loader.run_name = run.name
            for profile in loader._process_spans(distributed) if distributed.profiles else ():
                if profile is not None:
                    run.add_profile(profile)
        except Exception:
            log.warning("run %s: no Distributed view", printable(run.name), exc_info=True)
        return run

    def _read(self, trace: Question, part: str = "") -> tuple[Any, int]:
        """(what is kept of a trace, its bytes while it is pickled). part: see `Kept.path`."""
        packed = self._kept.read(trace.key, part)
        if not packed:
            raise Missing
        collecting = gc.isenabled()
        gc.disable()  # it would look again and again at the objects that appear here, and take most of the time
        try:
            with BufferedReader(gzip.GzipFile(fileobj=BytesIO(packed))) as file:
                content = pickle.load(file)  # from a file that only this user can write
        except Exception as error:
            self._kept.delete(trace.key)
            raise Missing from error
        finally:
            if collecting:
                gc.enable()
        with suppress(OSError):
            os.utime(self._kept.path(trace.key, part))  # the oldest go first
        return content, int.from_bytes(packed[-4:], "little")  # as gzip writes it
