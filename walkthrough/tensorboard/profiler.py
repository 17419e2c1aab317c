"""Patches torch-tb-profiler in TensorBoard's process: pages that need no internet, a loader for today's traces."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.tensorboard import profiler_pages
from walkthrough.tensorboard.log_folders import REMOTE, roots_of
from walkthrough.tensorboard.plugin import guarded

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from tensorboard.plugins.base_plugin import TBContext
    from torch_tb_profiler.run import Run
    from werkzeug import wrappers

    from walkthrough.tensorboard.traces import Folder

VERSION = "0.4.3"  # the last release, and the only one that is patched
SEARCH_SECONDS = 3.0  # until the log folders are searched again
SEARCH_SECONDS_WRITING = 0.5  # the same, while a trace is being written


class NotPatched(Exception):
    """Why torch-tb-profiler is left unpatched."""


def patch() -> None:
    """Replace the faulty parts of torch-tb-profiler.

    Raises NotPatched where it is not installed, or another version is.
    """
    try:
        installed = version("torch-tb-profiler")
    except PackageNotFoundError as error:
        raise NotPatched("it is not installed: no profiler tab") from error
    if installed != VERSION:
        raise NotPatched(f"version {installed} is installed, only {VERSION} can be patched")
    from torch_tb_profiler import io, plugin

    io.Cache.__init__ = _cache_init
    _load_in_order(plugin.TorchProfilerPlugin)
    _serve_without_internet(plugin.TorchProfilerPlugin, Path(plugin.__file__).parent / "static")


def _cache_init(self: Any, cache_dir: str | None = None) -> None:
    """As the plugin's own, without the process that would share it with children."""
    self._lock, self._manager = threading.Lock(), nullcontext()
    self._cache_dict, self._cache_dir = {}, cache_dir


def _serve_without_internet(plugin: Any, folder: Path) -> None:
    plugin_apps = plugin.get_plugin_apps

    def get_plugin_apps(self: Any) -> dict[str, "WSGIApplication"]:
        apps = plugin_apps(self) | {f"/{name}": self.static_file_route for name in profiler_pages.OWN_FILES}
        apps["/failures"] = self.failures_route
        return {route: guarded(_read_only(app), self.walkthrough_flags) for route, app in apps.items()}

    plugin.static_file_route, plugin.get_plugin_apps = profiler_pages.static_file_route(folder), get_plugin_apps


def _read_only(app: "WSGIApplication") -> "WSGIApplication":
    """The same WSGI app, restricted to GET and HEAD."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return []
        return app(environ, start_response)

    return answer


def _load_in_order(plugin: Any) -> None:
    """Let `Loading` read the runs, those of --logdir_spec too: unpatched, the plugin searches its working directory."""
    from werkzeug import exceptions, wrappers

    from walkthrough.tensorboard.profiler_plugin import Loading, NotReadable, NotYet, Unknown

    plugin_init = plugin.__init__

    def __init__(self: Any, context: "TBContext") -> None:
        spec = getattr(context.flags, "logdir_spec", "") if context.flags else ""
        self.walkthrough_roots = [(name, os.path.abspath(path)) for name, path in roots_of(context)] if spec else []
        self.walkthrough_flags = context.flags
        self.walkthrough_loading = Loading(
            search=lambda: _folders(self),
            local=lambda path: self._cache.get_remote_cache(path) if REMOTE.match(path) else path,
            dropped=lambda: _forget(self),
        )
        plugin_init(self, context)

    def _monitor_runs(self: Any) -> None:
        while True:
            begun, writing = time.monotonic(), False
            try:
                writing = self.walkthrough_loading.search()
            except Exception:
                profiler_pages.log.exception("the log folders cannot be searched")
            took = time.monotonic() - begun
            time.sleep(max(SEARCH_SECONDS_WRITING if writing else SEARCH_SECONDS, 5 * took))

    def _get_run(self: Any, name: str) -> "Run":
        try:
            return self.walkthrough_loading.run(name)
        except Unknown as error:
            raise exceptions.NotFound(f"could not find the run {name}") from error
        except (NotYet, NotReadable) as error:  # the page's fetch in static/profiler_page.js knows this answer
            state = {"state": "reading" if isinstance(error, NotYet) else "failed"}
            response = wrappers.Response(json.dumps(state), 202, content_type="application/json")
            raise exceptions.HTTPException(response=response) from error

    def runs_route(self: Any, request: "wrappers.Request") -> "wrappers.Response":
        loading = self.walkthrough_loading
        return self.respond_as_json({"runs": loading.names(), "loading": loading.loading})

    def failures_route(self: Any, request: "wrappers.Request") -> "wrappers.Response":
        """{"failures": [{run, file, reason}]}: the traces that cannot be read."""
        return self.respond_as_json({"failures": self.walkthrough_loading.failures()})

    def is_active(self: Any) -> bool:
        return bool(self.walkthrough_loading.names() or self.walkthrough_loading.failures())

    plugin_trace_route = plugin.trace_route

    def trace_route(self: Any, request: "wrappers.Request") -> Any:
        path = self._get_profile_for_request(request).trace_file_path
        if not REMOTE.match(path) and (os.path.islink(path) or not os.path.isfile(path)):
            raise exceptions.NotFound("the trace is not there any more")
        return partial(plugin_trace_route, self)

    plugin.__init__, plugin._monitor_runs, plugin._receive_runs = __init__, _monitor_runs, lambda self: None
    plugin._get_run, plugin.is_active = _get_run, is_active
    plugin.runs_route = wrappers.Request.application(runs_route)  # pyright: ignore[reportArgumentType]
    plugin.trace_route = wrappers.Request.application(trace_route)  # pyright: ignore[reportArgumentType]
    plugin.failures_route = wrappers.Request.application(failures_route)  # pyright: ignore[reportArgumentType]


def _folders(plugin: Any) -> Iterator[tuple[str, "Folder"]]:
    """(name of the run, its folder) of each run in the log folders."""
    from walkthrough.tensorboard.traces import folders_below

    for prefix, root in plugin.walkthrough_roots:
        for folder in folders_below(root, VERSION):
            below = os.path.relpath(folder.path, root)
            yield prefix if below == "." else f"{prefix}/{below}", folder
    if not plugin.walkthrough_roots:
        for folder in folders_below(plugin.logdir, VERSION):
            yield plugin._get_run_name(folder.path), folder


def _forget(plugin: Any) -> None:
    """Drop what the plugin keeps of runs that were replaced, and would keep for good."""
    plugin.diff_run_cache.clear()
    plugin.diff_run_flatten_cache.clear()
    files, plugin._gpu_metrics_file_dict = list(plugin._gpu_metrics_file_dict.values()), {}
    for file in files:
        with suppress(OSError):
            os.unlink(file)
