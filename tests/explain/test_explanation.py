"""`walkthrough.read` and the page of `explain --html`."""

import html.parser
import json
import re
import subprocess
import sys

import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, two_steps

import walkthrough
from walkthrough.cli import main
from walkthrough.results.errors import InputError


@pytest.fixture
def trace(tmp_path):
    return two_steps().write(tmp_path / "made.pt.trace.json.gz")


@pytest.fixture
def page(tmp_path, capsys):
    """page(builder): the page of a trace, and the line that says where it is."""

    def written(builder, *words):
        path = tmp_path / "page.html"
        with pytest.raises(SystemExit) as exited:
            main(["explain", str(builder.write(tmp_path / "made.json")), "--html", str(path), *words])
        assert exited.value.code == 0
        return path.read_text(encoding="utf-8"), capsys.readouterr().out

    return written


def test_a_trace_is_read_in_python(trace):
    explained = walkthrough.read(trace)
    assert explained.steps["typical_us"] == 1000
    assert explained.advice[0]["title"] == "Use DataLoader workers"
    assert explained.kernels[0]["name"] == "volta_scudnn_128x64_relu_interior_nn_v1"
    assert explained.kernels[0]["us"] == 400
    assert [row["id"] for row in explained.findings] == [row["id"] for row in explained.to_dict()["findings"]]
    assert json.loads(json.dumps(explained.to_dict(), allow_nan=False)) == explained.to_dict()
    assert walkthrough.read(trace.parent).steps == explained.steps  # the newest of a folder
    with pytest.raises(InputError, match="does not exist"):
        walkthrough.read(trace.with_name("none.json"))


def test_printed_it_is_the_text_of_explain(trace, capsys):
    with pytest.raises(SystemExit):
        main(["explain", str(trace)])
    assert str(walkthrough.read(trace)) == capsys.readouterr().out.replace(" us", " µs")


def test_what_is_missing_of_a_trace_is_a_warning(trace):
    trace.write_bytes(trace.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="cut off|damaged"):
        assert walkthrough.read(trace).advice == []


def test_tables_become_data_frames(trace):
    pandas = pytest.importorskip("pandas")
    explained = walkthrough.read(trace)
    for table in ("kernels", "operators", "advice", "findings", "steps"):
        assert isinstance(explained.to_pandas(table), pandas.DataFrame)
    assert explained.to_pandas().us.tolist() == [400]
    assert explained.to_pandas("steps").us.tolist() == [1000, 1000]
    with pytest.raises(InputError, match="name one of kernels"):
        explained.to_pandas("threads")


def test_without_pandas_that_is_said(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        walkthrough.read(trace).to_pandas()


def test_a_notebook_shows_the_verdict_and_the_bar(trace):
    shown = walkthrough.read(trace)._repr_html_()
    assert "Use DataLoader workers" in shown and "about 1.25x" in shown
    assert "<svg" in shown and "<script" not in shown


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys, walkthrough; print([name for name in sys.modules if name.split('.')[0] in {'numpy', 'msgspec'}])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_holds_all_it_needs_and_no_script(page):
    text, said = page(two_steps())
    assert re.fullmatch(r"written: \S+page\.html\n", said)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert {"svg", "path", "rect", "table"} <= set(tags.tags)
    assert not {"script", "link", "img", "iframe"} & set(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "href")]
    assert "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text
    for shown in ("Use DataLoader workers", "The GPU is idle for 600.0 µs", "Step 3, 1.0 ms", "volta_scudnn", "33"):
        assert shown in text


def test_the_strip_shows_when_each_lane_works(trace):
    lanes = walkthrough.read(trace).to_dict()["strip"]["lanes"]
    kernel, loading = lanes["GPU 0"]["convolution"], lanes["CPU"]["DataLoader"]
    assert len(kernel) == len(loading)
    assert sum(loading) / len(loading) == pytest.approx(0.2, abs=0.01)
    assert sum(kernel) / len(kernel) == pytest.approx(0.4, abs=0.01)
    assert kernel[: len(kernel) * 32 // 100] == [0] * (len(kernel) * 32 // 100)
    assert list(lanes["copies 0"]) == ["to the GPU"]


def test_names_of_a_trace_are_text_in_the_page(page):
    builder = TraceBuilder(devices=[{"id": 0, "name": "<script>alert(1)</script>"}])
    builder.step("<b>1", 0, 100)
    op = builder.op("aten::<img src=x onerror=alert(1)>", 0, 50)
    builder.launch("<svg/onload=alert(1)>&amp;\x1b[31m", 5, 1, 10, 80, op=op)
    text, _ = page(builder)
    assert "<script" not in text and "<img" not in text and "<svg/" not in text and "<b>1" not in text
    assert "&lt;script&gt;" in text and "&amp;amp;" in text and "\x1b" not in text


def test_a_trace_without_a_gpu_and_one_without_steps_have_pages_too(page):
    builder = TraceBuilder(devices=())
    builder.op("aten::mm", 0, 500)
    text, _ = page(builder)
    assert "GPU 0" not in text and "aten::mm" in text


def test_a_page_is_for_one_trace_and_a_place_that_can_be_written(tmp_path, trace, capsys):
    for words, message in (
        ([trace, trace, "--html", tmp_path / "page.html"], "one trace"),
        ([trace, "--html", tmp_path / "none" / "page.html"], "none"),
    ):
        with pytest.raises(SystemExit) as exited:
            main(["explain", *map(str, words)])
        assert exited.value.code == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
