"""The pages of torch-tb-profiler with nothing fetched from the internet."""

import base64
import hashlib
import logging
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from werkzeug import exceptions, wrappers

log = logging.getLogger("walkthrough")
STATIC = Path(__file__).parent / "static"
GOOGLE_CHARTS = '<script src="https://www.gstatic.com/charts/loader.js"></script>'  # all that index.html fetches
NO_ICON = '<link rel="icon" href="data:,">'  # else the browser asks for one that is not there
PAGE_SCRIPT = '<script src="profiler_page.js"></script>'
OWN_FILES = ("plotly.min.js", "google_charts.js", "custom_elements.js", "profiler_page.js")  # of the patched pages
CONTENT_TYPES = {".html": "text/html", ".js": "application/javascript", ".css": "text/css"}


def static_file_route(folder: Path) -> Any:
    """A method for torch-tb-profiler's plugin: serves the plugin's files from `folder`, patched, and `OWN_FILES`."""

    def route(self: Any, request: wrappers.Request) -> wrappers.Response:
        name = Path(request.path).name
        content = page(folder, name)
        if content is None:
            raise exceptions.NotFound()
        content_type = CONTENT_TYPES[Path(name).suffix]
        hashes = script_hashes(content) if content_type == "text/html" else None
        return http_util.Respond(request, content, content_type, csp_scripts_sha256s=hashes)

    return wrappers.Request.application(route)  # pyright: ignore[reportArgumentType]  # it takes methods as well


@cache
def page(folder: Path, name: str) -> bytes | None:
    """The content of one of the plugin's files, patched, or of one of `OWN_FILES`; None where there is no such file."""
    if name == "index.html":
        return charts_offline((folder / name).read_text(encoding="utf-8")).encode()
    if name == "trace_embedding.html":
        viewer = (folder / "trace_viewer_full.html").read_text(encoding="utf-8")
        return trace_view_offline((folder / name).read_text(encoding="utf-8"), viewer).encode()
    if name == "index.js":
        return (folder / name).read_bytes()
    if name not in OWN_FILES:
        return None
    return plotly_js() if name == "plotly.min.js" else (STATIC / name).read_bytes()


@cache
def plotly_js() -> bytes | None:
    """plotly.js as the plotly wheel contains it; None where plotly is not installed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return file.read_bytes() if file.is_file() else None


def charts_offline(html: str) -> str:
    """The plugin's index.html with plotly and our own Google Charts in place of the remote script.

    With a warning, and the remote script, where plotly is not installed. Raises ValueError where there is none.
    """
    scripts = f'{NO_ICON}{PAGE_SCRIPT}<script src="plotly.min.js"></script><script src="google_charts.js"></script>'
    if plotly_js() is None:
        log.warning("plotly is not installed: the profiler's charts come from the internet (pip install plotly)")
        return html.replace(GOOGLE_CHARTS, f"{PAGE_SCRIPT}{GOOGLE_CHARTS}")
    if GOOGLE_CHARTS not in html:
        raise ValueError("torch-tb-profiler's index.html loads no Google Charts")
    return html.replace(GOOGLE_CHARTS, scripts)


# In trace_embedding.html: the CDN's script and the import of the viewer. In their place: our custom elements, no link
# that looks a name up in Chromium's sources on the internet, and messages only from and to this server.
IMPORT = re.compile(r'<script src="https://cdnjs\..*?<link rel="import"[^>]*>', re.DOTALL)
INSTEAD_OF_IMPORT = """
    <meta http-equiv="Content-Security-Policy" content="connect-src 'none'; frame-src 'none'; form-action 'none'">
    <style>tr-ui-e-chrome-codesearch { display: none; }</style>
    <script src="custom_elements.js"></script>"""
# A message may name a range of time, `from` and `to` in µs of the trace's clock, which the view then shows and marks.
EMBEDDING_FIXES = {
    "console.log(data)": 'if (event.origin !== window.location.origin || data.msg !== "data") return; range = data',
    "let model;\n": """let model;
            let range = {};

            function showRange(tries) {
                const track = viewer.trackView;
                if (!(range.from < range.to) || !track) return;
                if (track.pollIfViewportAttachedInterval_ && tries) {  // it sets its own range once it is laid out
                    setTimeout(showRange, 100, tries - 1);
                    return;
                }
                const inModel = us => model.convertTimestampToModelTime('traceEventClock', us);
                const [from, to] = [range.from, range.to].map(inModel);
                const around = (to - from) * 0.1;
                const transform = track.viewport.currentDisplayTransform.clone();
                transform.xSetWorldBounds(from - around, to + around, track.modelTrackContainer_.canvas.width);
                track.viewport.setDisplayTransformImmediately(transform);
                track.viewport.interestRange.set(tr.b.math.Range.fromExplicitRange(from, to));
            }
""",
    "viewer.viewTitle = name;": "viewer.viewTitle = name; showRange(100);",
    "postMessage({ msg: 'ready' }, '*')": "postMessage({ msg: 'ready' }, window.location.origin)",
}
# In trace_viewer_full.html: the place of an overlay's content, as today's shadow roots name it; a name from the trace
# (of an object, event type "N") that was set as HTML; and the cause of two warnings in the browser's console.
VIEWER_FIXES = {
    "<overlay-content>\n          <content></content>": "<overlay-content>\n          <slot></slot>",
    "instance.typeName+' '+\ninstance.id+'</div>": (
        "`${instance.typeName} ${instance.id}`.replace(/[&<>]/g,c=>`&#${c.charCodeAt(0)};`)+'</div>"
    ),
    "-webkit-appearance: slider-vertical;": "writing-mode: vertical-lr; direction: rtl;",
    "console.warn(POLYFILL_WARNING_MESSAGE);": "",
}


def trace_view_offline(embedding: str, viewer: str) -> str:
    """The plugin's trace_embedding.html with its trace viewer inlined and our custom elements instead of the CDN's.

    Raises ValueError where one of the two pages is not that of version 0.4.3.
    """
    head = re.search(r"<head\b[^>]*>(.*)</head>", viewer, re.DOTALL)
    if not head or not IMPORT.search(embedding):
        raise ValueError("torch-tb-profiler's trace view is not the one known here")
    viewer = replace_once(re.sub(r"<meta\b[^>]*>\s*", "", head[1]), VIEWER_FIXES)  # its metas: an old trial's tokens
    embedding = replace_once(IMPORT.sub(INSTEAD_OF_IMPORT, embedding), EMBEDDING_FIXES)
    return replace_once(embedding, {"<body>\n": f"<body>\n{viewer}"})


def replace_once(text: str, replacements: dict[str, str]) -> str:
    """The text with each key replaced by its value. Raises ValueError unless each key occurs exactly once."""
    for old, new in replacements.items():
        if text.count(old) != 1:
            raise ValueError(f"torch-tb-profiler's trace view does not contain exactly one {old!r}")
        text = text.replace(old, new)
    return text


def script_hashes(html: bytes) -> list[str]:
    """Base64 of the SHA-256 of each inline script of a page: what its Content-Security-Policy allows to run."""
    scripts = re.findall(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", html, re.DOTALL)
    return [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
