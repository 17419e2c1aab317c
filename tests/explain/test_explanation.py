"""`walkthrough.read` and the page of `explain --html`."""

import html.parser
import json
import re
import sys

import pytest
from pytest import approx
from support.trace_builder import TraceBuilder, one_step, two_steps

import walkthrough
from walkthrough.results.errors import InputError


@pytest.fixture
def trace(tmp_path):
    return two_steps().write(tmp_path / "made.pt.trace.json.gz")


@pytest.fixture
def page(tmp_path, run):
    """page(builder): the page of a trace, and the line that says where it is."""

    def written(builder):
        path = tmp_path / "page.html"
        out, _ = run(builder.write(tmp_path / "made.json"), "--html", path)
        return path.read_text(encoding="utf-8"), out

    return written


def test_a_trace_is_read_in_python(trace, run):
    explained = walkthrough.read(trace)
    assert (explained.steps["typical_us"], explained.advice[0]["title"]) == (1000, "Use DataLoader workers")
    [kernel] = explained.kernels
    assert (kernel["name"], kernel["us"]) == ("volta_scudnn_128x64_relu_interior_nn_v1", 400)
    assert {"id", "what", "why", "us_per_step", "do"} <= explained.findings[0].keys()
    assert json.loads(json.dumps(explained.to_dict(), allow_nan=False)) == explained.to_dict()
    assert walkthrough.read(trace.parent).steps == explained.steps  # the newest of a folder
    assert str(explained) == run(trace)[0].replace(" us", " µs")
    with pytest.raises(InputError, match="does not exist"):
        walkthrough.read(trace.with_name("none.json"))


def test_what_is_missing_of_a_trace_is_a_warning(trace):
    trace.write_bytes(trace.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="cut off|damaged"):
        assert walkthrough.read(trace).advice == []


def test_tables_become_data_frames(trace, monkeypatch):
    pandas = pytest.importorskip("pandas")
    explained = walkthrough.read(trace)
    for table in ("kernels", "operators", "advice", "findings", "steps"):
        assert isinstance(explained.to_pandas(table), pandas.DataFrame)
    assert explained.to_pandas().us.tolist() == [400]
    assert explained.to_pandas("steps").us.tolist() == [1000, 1000]
    with pytest.raises(InputError, match="name one of kernels"):
        explained.to_pandas("threads")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        explained.to_pandas()


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open += [tag] * (tag not in {"meta", "br"})

    def handle_endtag(self, tag):
        assert tag in {"meta", "br"} or self.open.pop() == tag


def test_the_page_holds_all_it_needs_and_no_script(page, trace):
    text, said = page(two_steps())
    assert re.fullmatch(r"written: \S+page\.html\n", said)
    notebook = walkthrough.read(trace)._repr_html_()
    for shown in (text, notebook):
        tags = Tags()
        tags.feed(shown)
        assert tags.open == []
        assert {"svg", "rect"} <= set(tags.tags)
        assert not {"script", "link", "img", "iframe"} & set(tags.tags)
        assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "href")]
        assert "url(" not in shown and "@import" not in shown
        assert "Use DataLoader workers" in shown and "The GPU is idle for 600.0 µs" in shown
    assert "<table" in text and "<path" in text
    assert "prefers-color-scheme: dark" in text and "Step 3, 1.0 ms" in text and "volta_scudnn" in text


def test_the_strip_shows_when_each_lane_works(trace):
    lanes = walkthrough.read(trace).to_dict()["strip"]["lanes"]
    kernel, loading = lanes["GPU 0"]["convolution"], lanes["CPU"]["DataLoader"]
    assert len(kernel) == len(loading)
    assert sum(loading) / len(loading) == approx(0.2, abs=0.01)
    assert sum(kernel) / len(kernel) == approx(0.4, abs=0.01)
    assert kernel[: len(kernel) * 32 // 100] == [0] * (len(kernel) * 32 // 100)
    assert list(lanes["copies 0"]) == ["to the GPU"]


def test_names_of_a_trace_are_text_in_the_page(page):
    assert "GPU 0" not in page(one_step(devices=()))[0]
    builder = TraceBuilder(devices=[{"id": 0, "name": "<script>alert(1)</script>"}])
    builder.step("<b>1", 0, 100)
    op = builder.op("aten::<img src=x onerror=alert(1)>", 0, 50)
    builder.launch("<svg/onload=alert(1)>&amp;\x1b[31m", 5, 1, 10, 80, op=op)
    text, _ = page(builder)
    assert "<script" not in text and "<img" not in text and "<svg/" not in text and "<b>1" not in text
    assert "&lt;script&gt;" in text and "&amp;amp;" in text and "\x1b" not in text


def test_a_page_is_for_one_trace_and_a_place_that_can_be_written(tmp_path, trace, assert_refuses):
    assert_refuses(trace, trace, "--html", tmp_path / "page.html", message="one trace")
    assert_refuses(trace, "--html", tmp_path / "none" / "page.html", message="none")
