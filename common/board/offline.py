"""The pages of torch-tb-profiler with nothing fetched from the internet."""

import base64
import hashlib
import logging
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tensorboard.backend import http_util
from werkzeug import exceptions, wrappers

log = logging.getLogger("walkthrough")
STATIC = Path(__file__).parent / "static"
CHARTS = '<script src="https://www.gstatic.com/charts/loader.js"></script>'  # all that the charts' page fetches
NO_ICON = '<link rel="icon" href="data:,">'  # else the browser asks for one that is not there
OURS = ("plotly.min.js", "google_charts.js", "custom_elements.js")  # what the plugin's pages need beside its own files
TYPES = {".html": "text/html", ".js": "application/javascript", ".css": "text/css"}


def static_file_route(folder):
    """A method for torch-tb-profiler's plugin that serves its files in `folder`, mended, and ours that they need."""

    @wrappers.Request.application
    def route(self, request):
        name = Path(request.path).name
        content = page(folder, name)
        if content is None:
            raise exceptions.NotFound()
        kind = TYPES[Path(name).suffix]
        hashes = script_hashes(content) if kind == "text/html" else None
        return http_util.Respond(request, content, kind, csp_scripts_sha256s=hashes)

    return route


@cache
def page(folder, name):
    """One of the plugin's files by its name, mended, or one of ours; None where there is no such file. bytes."""
    if name == "index.html":
        return charts_offline((folder / name).read_text(encoding="utf-8")).encode()
    if name == "trace_embedding.html":
        viewer = (folder / "trace_viewer_full.html").read_text(encoding="utf-8")
        return trace_view_offline((folder / name).read_text(encoding="utf-8"), viewer).encode()
    if name == "index.js":
        return (folder / name).read_bytes()
    if name not in OURS:
        return None
    return plotly_js() if name == "plotly.min.js" else (STATIC / name).read_bytes()


@cache
def plotly_js():
    """plotly.js out of the plotly wheel, bytes; None where that is not installed."""
    spec = find_spec("plotly")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js" if spec else None
    return file.read_bytes() if file and file.is_file() else None


def charts_offline(html):
    """The plugin's index.html with plotly and our own Google Charts in place of the remote script."""
    ours = f'{NO_ICON}<script src="plotly.min.js"></script><script src="google_charts.js"></script>'
    if plotly_js() is None:
        log.warning("plotly is not installed: the profiler's charts come from the internet (pip install plotly)")
        return html
    if CHARTS not in html:
        raise ValueError("torch-tb-profiler's index.html loads no Google Charts")
    return html.replace(CHARTS, ours)


# In trace_embedding.html: the CDN's script and the import of the viewer, for which ours come, with the links that would
# look a name up in Chromium's sources on the internet left out; and whom the page listens and speaks to.
IMPORT = re.compile(r'<script src="https://cdnjs\..*?<link rel="import"[^>]*>', re.DOTALL)
INSTEAD = """
    <meta http-equiv="Content-Security-Policy" content="connect-src 'none'; frame-src 'none'; form-action 'none'">
    <style>tr-ui-e-chrome-codesearch { display: none; }</style>
    <script src="custom_elements.js"></script>"""
EMBEDDING_MENDED = {
    "console.log(data)": 'if (event.origin !== window.location.origin || data.msg !== "data") return',
    "postMessage({ msg: 'ready' }, '*')": "postMessage({ msg: 'ready' }, window.location.origin)",
}
# In trace_viewer_full.html: an overlay's place for what it shows, as shadow roots of today name it; a name out of the
# trace (of an object, event type "N") that was set as HTML; and what makes two warnings in the browser's console.
VIEWER_MENDED = {
    "<overlay-content>\n          <content></content>": "<overlay-content>\n          <slot></slot>",
    "instance.typeName+' '+\ninstance.id+'</div>": (
        "`${instance.typeName} ${instance.id}`.replace(/[&<>]/g,c=>`&#${c.charCodeAt(0)};`)+'</div>"
    ),
    "-webkit-appearance: slider-vertical;": "writing-mode: vertical-lr; direction: rtl;",
    "console.warn(POLYFILL_WARNING_MESSAGE);": "",
}


def trace_view_offline(embedding, viewer):
    """The plugin's trace_embedding.html with its trace viewer inlined, and our custom elements for the CDN's."""
    inlined = re.search(r"<head\b[^>]*>(.*)</head>", viewer, re.DOTALL)
    if not inlined or not IMPORT.search(embedding):
        raise ValueError("torch-tb-profiler's trace view is not the one known here")
    viewer = exchange(re.sub(r"<meta\b[^>]*>\s*", "", inlined[1]), VIEWER_MENDED)  # its metas: an old trial's tokens
    page = exchange(IMPORT.sub(INSTEAD, embedding), EMBEDDING_MENDED)
    return exchange(page, {"<body>\n": f"<body>\n{viewer}"})


def exchange(text, pairs):
    """A text with each key of `pairs`, which must be in it exactly once, put out for its value."""
    for old, new in pairs.items():
        if text.count(old) != 1:
            raise ValueError(f"torch-tb-profiler's trace view has not exactly one {old!r}")
        text = text.replace(old, new)
    return text


def script_hashes(html):
    """Base64 of the SHA-256 of each inline script of a page (bytes): what its Content-Security-Policy allows to run."""
    found = re.findall(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", html, re.DOTALL)
    return [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in found]
