"""The Walkthrough tab: what it serves to the page in static/, all of it read-only."""

import gzip
import json
import logging
from dataclasses import asdict
from functools import cache
from pathlib import Path

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from common.board import offline
from common.board.runs import Runs, roots_of
from common.board.store import Store
from common.errors import InputError, printable
from common.ladder import compare, published

log = logging.getLogger("walkthrough")
PAGE = {
    "/index.js": "application/javascript",
    "/page.html": "text/html",
    "/page.css": "text/css",
    "/page.js": "application/javascript",
    "/views.js": "application/javascript",
    "/timeline.js": "application/javascript",
}
AHEAD = 40  # runs whose traces are read before anybody asks
A_DAY = 24 * 3600  # s


class WalkthroughPlugin(base_plugin.TBPlugin):
    """Serves the tab's page and its data as JSON; see the methods for what each route answers."""

    plugin_name = "walkthrough"

    def __init__(self, context):
        self.runs, self.store = Runs(roots_of(context)), Store()

    def get_plugin_apps(self):
        data = {"/runs": self._runs, "/ladders": self._ladders, "/digest": self._digest, "/lanes": self._lanes}
        apps = {route: _answering(answer) for route, answer in data.items()}
        apps |= {route: _answering(_file(route, kind)) for route, kind in PAGE.items()}
        return apps | {"/plotly.min.js": _answering(_plotly)}

    def is_active(self):
        return bool(self.runs.found())

    def frontend_metadata(self):
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Walkthrough", disable_reload=True)

    def _runs(self, request):
        """{"runs": [{name, traces, step, problem}], "reading": n}: what is there; begins to read the traces."""
        found = self.runs.found()
        for name in [name for name, run in found.items() if run.traces][:AHEAD]:
            self.store.ask("digest", self.runs.trace(name), soon=False)
        runs = [
            {
                "name": printable(run.name),
                "key": run.name,
                "traces": list(run.traces),
                "step": run.result and run.result.step,
                "problem": run.problem and printable(run.problem),
            }
            for run in found.values()
        ]
        return {"runs": runs, "reading": self.store.reading}

    def _ladders(self, request):
        """[{name, baseline, original, rows}]: each ladder in the log folders, as `compare --json` has it."""
        folders, found = {}, []
        for run in self.runs.found().values():
            if run.result:
                folders.setdefault(run.folder.parent, {})[id(run.result)] = run
        for folder, runs in folders.items():
            for ladder in compare.ladders([run.result for run in runs.values()]):
                rows = [_row(row, runs[id(row.result)]) for row in ladder.rows]
                base = ladder.baseline
                title = f"{folder.name}: {base.model}, {base.image_size} px, {base.data}, on {base.device}"
                found.append({"title": printable(title), "baseline": base.step, "rows": rows})
        return {"ladders": found, "original": {"device": published.DEVICE, "relative": published.RELATIVE}}

    def _digest(self, request):
        """run, trace: a digest (see common/trace/digest.py) as {"state": "ready", …}, or "reading" or "failed"."""
        return self._answer(request, "digest")

    def _lanes(self, request):
        """run, trace: the lanes of the timeline (see common/trace/lanes.py), in the same way."""
        return self._answer(request, "lanes")

    def _answer(self, request, kind):
        path = self.runs.trace(request.args.get("run", ""), request.args.get("trace"))
        state, answer = self.store.ask(kind, path)
        if state != "ready":
            return {"state": state, "reason": answer, "reading": self.store.reading}
        return http_util.Respond(request, answer, "application/json", content_encoding="gzip")


def _row(row, run):
    result = asdict(row.result)
    kept = ("step", "model", "batch_size", "samples_per_second", "step_ms", "peak_memory_bytes", "batch_bytes", "notes")
    low, high = compare.spread(row.result)
    return {key: result[key] for key in kept} | {
        "run": run.name,
        "low": low,
        "high": high,
        "relative": asdict(row.relative),
        "gain": row.gain and asdict(row.gain) | {"text": str(row.gain)},
        "has_trace": bool(run.traces),
    }


def _answering(answer):
    """A WSGI app of `answer(request)`: a dict to be sent as JSON, or a response. Never a traceback, never a POST."""

    @wrappers.Request.application
    def app(request):
        if request.method not in ("GET", "HEAD"):
            return _json(request, {"error": "this page only reads"}, 405)
        try:
            found = answer(request)
        except InputError as error:
            return _json(request, {"error": printable(error)}, 404)
        except Exception:
            log.exception("the Walkthrough tab failed to answer %s", request.path)
            return _json(request, {"error": "a defect of the page: TensorBoard's log says more"}, 500)
        return _json(request, found) if isinstance(found, dict) else found

    return app


def _json(request, value, code=200):
    return http_util.Respond(request, json.dumps(value, allow_nan=False), "application/json", code=code)


def _file(route, kind):
    def answer(request):
        content = (Path(__file__).parent / "static" / route[1:]).read_bytes()
        return http_util.Respond(request, content, kind)

    return answer


def _plotly(request):
    content = _packed_plotly()
    if content is None:
        raise InputError("plotly is not installed: pip install plotly")
    return http_util.Respond(request, content, "application/javascript", content_encoding="gzip", expires=A_DAY)


@cache
def _packed_plotly():
    script = offline.plotly_js()
    return script and gzip.compress(script, 6)
