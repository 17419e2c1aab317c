"""torch-tb-profiler, mended in TensorBoard's own process: pages without internet, a loader of today's traces."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common.board import offline
from common.board.runs import roots_of

VERSION = "0.4.3"  # the last there is; another one is left alone


class NotMended(Exception):
    """Why torch-tb-profiler is left as it is."""


def mend():
    """Replace what is wrong in torch-tb-profiler. Raises NotMended where it is missing or of another version."""
    try:
        found = version("torch-tb-profiler")
    except PackageNotFoundError as error:
        raise NotMended("it is not installed: no profiler tab") from error
    if found != VERSION:
        raise NotMended(f"version {found} is installed, and only {VERSION} is known here")
    from torch_tb_profiler import plugin, utils

    from common.board import loader

    plugin.RunLoader = loader.RunLoader
    _look_in_every_log_folder(plugin.TorchProfilerPlugin, utils.is_chrome_trace_file)
    _serve_without_internet(plugin.TorchProfilerPlugin, Path(plugin.__file__).parent / "static")


def _serve_without_internet(plugin, folder):
    apps = plugin.get_plugin_apps

    def get_plugin_apps(self):
        found = apps(self) | {f"/{name}": self.static_file_route for name in offline.OURS}
        return {path: _only_reading(app) for path, app in found.items()}

    plugin.static_file_route, plugin.get_plugin_apps = offline.static_file_route(folder), get_plugin_apps


def _only_reading(app):
    """The WSGI app for GET and HEAD alone."""

    def answer(environ, start_response):
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return []
        return app(environ, start_response)

    return answer


def _look_in_every_log_folder(plugin, is_trace):
    """With --logdir_spec the plugin would look through the folder that TensorBoard was started in."""
    begin, look, name = plugin.__init__, plugin._get_run_dirs, plugin._get_run_name

    def __init__(self, context):
        spec = getattr(context.flags, "logdir_spec", "") if context.flags else ""
        self.walkthrough_roots = [(name, os.path.abspath(path)) for name, path in roots_of(context)] if spec else []
        begin(self, context)

    def _get_run_dirs(self):
        if not self.walkthrough_roots:
            yield from look(self)
        for _, root in self.walkthrough_roots:
            for folder, _, files in os.walk(root):
                if any(is_trace(file) for file in files):
                    yield folder

    def _get_run_name(self, run_dir):
        for prefix, root in self.walkthrough_roots:
            if Path(run_dir).is_relative_to(root):
                below = os.path.relpath(run_dir, root)
                return prefix if below == "." else f"{prefix}/{below}"
        return name(self, run_dir)

    plugin.__init__, plugin._get_run_dirs, plugin._get_run_name = __init__, _get_run_dirs, _get_run_name
