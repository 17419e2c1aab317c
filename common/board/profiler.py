"""Patches torch-tb-profiler in TensorBoard's process: pages that need no internet, a loader for today's traces."""

import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.board import offline
from common.board.runs import roots_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from tensorboard.plugins.base_plugin import TBContext

VERSION = "0.4.3"  # the last release, and the only one that is patched


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
    from torch_tb_profiler import plugin, utils

    from common.board import loader

    plugin.RunLoader = loader.RunLoader
    _search_every_log_folder(plugin.TorchProfilerPlugin, utils.is_chrome_trace_file)
    _serve_without_internet(plugin.TorchProfilerPlugin, Path(plugin.__file__).parent / "static")


def _serve_without_internet(plugin: Any, folder: Path) -> None:
    plugin_apps = plugin.get_plugin_apps

    def get_plugin_apps(self: Any) -> dict[str, "WSGIApplication"]:
        apps = plugin_apps(self) | {f"/{name}": self.static_file_route for name in offline.OWN_FILES}
        return {route: _read_only(app) for route, app in apps.items()}

    plugin.static_file_route, plugin.get_plugin_apps = offline.static_file_route(folder), get_plugin_apps


def _read_only(app: "WSGIApplication") -> "WSGIApplication":
    """The same WSGI app, restricted to GET and HEAD."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return []
        return app(environ, start_response)

    return answer


def _search_every_log_folder(plugin: Any, is_trace: Callable[[str], object]) -> None:
    """Make the plugin read --logdir_spec; unpatched, it searches TensorBoard's working directory instead."""
    plugin_init, plugin_run_dirs, plugin_run_name = plugin.__init__, plugin._get_run_dirs, plugin._get_run_name

    def __init__(self: Any, context: "TBContext") -> None:
        spec = getattr(context.flags, "logdir_spec", "") if context.flags else ""
        self.walkthrough_roots = [(name, os.path.abspath(path)) for name, path in roots_of(context)] if spec else []
        plugin_init(self, context)

    def _get_run_dirs(self: Any) -> Iterator[str]:
        if not self.walkthrough_roots:
            yield from plugin_run_dirs(self)
        for _, root in self.walkthrough_roots:
            for folder, _, files in os.walk(root):
                if any(is_trace(file) for file in files):
                    yield folder

    def _get_run_name(self: Any, run_dir: str) -> str:
        for prefix, root in self.walkthrough_roots:
            if Path(run_dir).is_relative_to(root):
                below = os.path.relpath(run_dir, root)
                return prefix if below == "." else f"{prefix}/{below}"
        return plugin_run_name(self, run_dir)

    plugin.__init__, plugin._get_run_dirs, plugin._get_run_name = __init__, _get_run_dirs, _get_run_name
