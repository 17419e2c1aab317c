"""Traces of every age and shape, cut off, damaged, or malicious."""

import gzip
import json
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT
from support.trace_builder import TraceBuilder, two_steps

from walkthrough.advice.report import report
from walkthrough.results.errors import InputError
from walkthrough.trace import chrome_trace, reader
from walkthrough.trace.analysis import analyze
from walkthrough.trace.chrome_trace import MAX_SIZE, PARTIAL, Chunks, _decode_run
from walkthrough.trace.reader import MAX_NAME, rank_of, read

RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"
GOOD = json.dumps(two_steps().json).encode()


@pytest.fixture
def figures(tmp_path):
    """figures(text, name): the JSON object without its file and warnings, and the warnings, of a trace (bytes)."""

    def summarized(text, name="made.json"):
        path = tmp_path / name
        path.write_bytes(text)
        analysis = analyze(path)
        result = report(analysis)
        json.dumps(result, allow_nan=False)
        return result | {"file": None, "warnings": None}, analysis.trace.warnings

    return summarized


@pytest.fixture
def whole(figures):
    """The figures of the good trace."""
    return figures(GOOD)[0]


def changed(change):
    """The good trace's text after `change(trace)`."""
    trace = json.loads(GOOD)
    change(trace)
    return json.dumps(trace).encode()


def as_text(trace):
    for event in trace["traceEvents"]:
        event["ts"], event["dur"] = str(event["ts"]), str(event["dur"])
        event["args"] = {key: str(value) for key, value in event["args"].items()}


EVENTS, HALF = json.loads(GOOD)["traceEvents"], len(GOOD) // 2
HEADER = {key: value for key, value in json.loads(GOOD).items() if key != "traceEvents"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (gzip.compress(GOOD, mtime=0), "made.json"),  # recognised by content, not by name
        (GOOD, "made.json.gz"),
        (gzip.compress(GOOD[:HALF], mtime=0) + gzip.compress(GOOD[HALF:], mtime=0), "made.json"),
        (b"\xef\xbb\xbf\n" + json.dumps(json.loads(GOOD), indent=3).encode(), "made.json"),
        (changed(as_text), "made.json"),
        (json.dumps({"traceEvents": EVENTS} | HEADER).encode(), "made.json"),
        (json.dumps(HEADER | {"other": {"traceEvents": 5}, "traceEvents": EVENTS}).encode(), "made.json"),
    ],
    ids=["gzip", "no gzip", "two parts", "white space", "numbers as text", "events first", "events last"],
)
def test_the_same_trace_in_another_form_has_the_same_numbers(figures, whole, text, name):
    assert figures(text, name)[0] == whole


def test_a_bare_list_of_events_has_no_header(figures, whole):
    bare = figures(json.dumps(EVENTS).encode())[0]
    assert (bare["steps"], bare["gpus"][0]["name"]) == (whole["steps"], None)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.sampled_from([64, 300, 4096]))
def test_the_order_of_events_the_size_of_runs_and_nested_arguments_change_nothing(figures, whole, shuffler, run):
    def nest_and_shuffle(trace):
        for event in trace["traceEvents"]:
            event["args"]["list"] = [{"a": {"b": [{"c": 1}, {"d": 2}]}}, {"text": 'no end here: "}, {" \\"'}]
        shuffler.shuffle(trace["traceEvents"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_trace, "_RUN", run)
        patch.setattr(chrome_trace, "CHUNK_SIZE", run)
        text = changed(nest_and_shuffle)
        assert figures(text) == figures(gzip.compress(text)) == (whole, [])


INDENTED = json.dumps(two_steps().json, indent=1).encode()
CUT = [INDENTED[: int(len(INDENTED) * share)] for share in (0.3, 0.7, 0.99)]
CUT.append(RECORDED.read_bytes()[: RECORDED.stat().st_size // 2])


@pytest.mark.parametrize("text", CUT, ids=["a third", "most", "nearly all", "gzip"])
def test_a_cut_off_trace_is_used_up_to_there_with_a_warning(figures, text):
    result, warnings = figures(text)
    assert result["steps"]["count"] >= 1
    assert "cut off" in " ".join(warnings)


@pytest.mark.parametrize("place", [0.1, 0.9])
def test_a_damaged_gzip_is_used_up_to_the_damage(figures, place, monkeypatch):
    monkeypatch.setattr(chrome_trace, "CHUNK_SIZE", 4096)  # so that the damage is met in a later chunk
    packed = bytearray(gzip.compress(gzip.decompress(RECORDED.read_bytes()), mtime=0))
    packed[int(len(packed) * place)] ^= 0xFF
    result, warnings = figures(bytes(packed))
    assert result["steps"]["count"] >= 1
    assert [warning.endswith(PARTIAL) for warning in warnings].count(True) == 1


@pytest.mark.parametrize("run", [300, 2**20])  # bytes: the damage is in a later run, or in the only one
def test_damage_ends_the_trace_with_a_warning(figures, whole, run, monkeypatch):
    monkeypatch.setattr(chrome_trace, "_RUN", run)
    monkeypatch.setattr(chrome_trace, "_MAX_RUN", 4 * run)
    monkeypatch.setattr(chrome_trace, "CHUNK_SIZE", run)
    name = b'"name": "ConvolutionBackward0"'
    result, warnings = figures(GOOD.replace(name, b"!!" + name))
    before = GOOD[: GOOD.index(name)]
    assert result["kernels"]["count"] == before.count(b'"cat": "kernel"')
    assert 0 < result["kernels"]["count"] < whole["kernels"]["count"]
    assert [warning.endswith(PARTIAL) for warning in warnings] == [True]


@pytest.mark.parametrize("literal", [b"N/A", b"NaN", b"-Infinity", b"inf", b"-nan(ind)"])
def test_literals_that_are_not_json_count_as_missing_and_stay_inside_a_name(figures, whole, literal, tmp_path):
    text = GOOD.replace(b'"blocks per SM": 0.5', b'"blocks per SM": ' + literal)
    result, _ = figures(text.replace(b"ConvolutionBackward0", b"a: NaN, [N/A] \x01"))
    assert result["gpus"][0]["sm_efficiency"] is None
    assert result["steps"]["breakdown_us"] == whole["steps"]["breakdown_us"]
    assert "a: NaN, [N/A]  " in read(tmp_path / "made.json").names


@pytest.mark.parametrize(
    ("key", "value"),
    [("ts", None), ("ts", "N/A"), ("ts", -1e300), ("dur", -5), ("dur", 1e200)],
)
def test_an_event_without_a_usable_time_is_left_out_with_a_warning(figures, whole, key, value):
    def spoil(trace):
        trace["traceEvents"].append(dict(trace["traceEvents"][0], cat="cpu_op", name="odd") | {key: value})

    result, warnings = figures(changed(spoil))
    assert result == whole
    assert any("1 event" in warning for warning in warnings)


def test_invalid_utf8_control_characters_half_pairs_and_odd_ids_do_not_matter(figures, whole, tmp_path):
    def spoil(trace):
        for number, event in enumerate(trace["traceEvents"]):
            event["tid"] = [2**70, "main", -1.5][number % 3]
            event["args"].setdefault("External id", "id 18446744073709551615")

    text = changed(spoil).replace(b"ConvolutionBackward0", b"caf\xe9 \x00\x1b[31m\n \\ud800\\u0041 \\udfff")
    assert figures(text)[0]["steps"]["count"] == whole["steps"]["count"]
    assert any(name.startswith("caf�") for name in read(tmp_path / "made.json").names)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "empty"),
        (b"not JSON", "not JSON"),
        (b'"text"', "traceEvents"),
        (b'{"a": {"traceEvents": [{"ph": "X"}]}}', "traceEvents"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [1, 2, 3]}', "Expected `object`"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "nothing"),
        (b"[" * 200_000, "Expected `object`"),
        (b'{"traceEvents": [{"args": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}]}", ""),
        (b"\x1f\x8b not really gzip", "damaged"),
        (json.dumps([{"ph": "X", "cat": "python_function", "ts": 1, "dur": 1}]).encode(), "Python functions alone"),
        (changed(lambda trace: trace["traceEvents"][1].update(ts={})), "[1].ts"),
        (b"PK\x03\x04" + GOOD, "is a zip archive: unpack it"),
        (gzip.compress(257 * b"\0" + b"ustar", mtime=0), "is a tar archive: unpack it"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_anything_but_a_trace_is_refused_in_one_line(figures, text, word):
    with pytest.raises(InputError) as error:
        figures(text)
    assert "made.json" in str(error.value) and word in str(error.value)


def test_a_gzip_bomb_is_stopped_at_the_limit(tmp_path):
    path, squeeze = tmp_path / "bomb.json.gz", zlib.compressobj(9, zlib.DEFLATED, 31)
    begin = squeeze.compress(b'{"traceEvents": [{"ph": "X", "name": "')
    path.write_bytes(begin + b"".join(squeeze.compress(b"a" * 10**6) for _ in range(50)) + squeeze.flush())
    with pytest.raises(InputError, match="--max-size"):
        read(Chunks(path, max_size=20_000_000))


@pytest.mark.parametrize(
    ("rank", "known"),
    [(0, 0), (2**31 - 1, 2**31 - 1)] + [(rank, None) for rank in (-1, 2**31, 10**4000, 1.0, True, "1")],
    ids=lambda rank: str(rank)[:12],
)
def test_a_rank_is_a_whole_number_of_a_usual_size(tmp_path, rank, known):
    builder = two_steps()
    builder.header["distributedInfo"] = {"rank": rank}
    path = builder.write(tmp_path / "made.json")
    assert read(path).rank == rank_of(path) == known


def test_a_field_of_the_header_that_cannot_be_read_is_missing(figures, whole, tmp_path):
    value = b'"' + b"x" * chrome_trace.MAX_FIELD + b'"'
    for field in (b'"schemaVersion": 1', b'"traceName": "made by hand"'):  # before the events, and after them
        text = GOOD.replace(field, b'"distributedInfo": {"rank": ' + value + b"}")
        assert figures(text) == (whole, [])
        assert rank_of(tmp_path / "made.json") is None


def test_more_events_or_names_than_any_trace_has_are_refused(tmp_path, monkeypatch):
    path = two_steps().write(tmp_path / "made.json")
    monkeypatch.setattr(reader, "MAX_DISTINCT", 5)
    with pytest.raises(InputError, match="more names or threads"):
        read(path)
    monkeypatch.setattr(reader, "MAX_DISTINCT", 100)
    monkeypatch.setattr(reader, "EVENT_BYTES", 10**9)
    with pytest.raises(InputError, match="more than 4 events; --max-size raises the limit"):
        read(path)
    assert read(Chunks(path, 100 * MAX_SIZE))


def test_long_texts_are_not_kept_whole(tmp_path):
    builder, long = TraceBuilder(), "a" * 10**7
    one = builder.op(long, 0, 10)
    one["pid"] = one["args"]["Input Dims"] = long
    builder.events.append({"ph": "M", "name": "thread_name", "pid": 100, "tid": 1, "args": {"name": long}})
    trace = read(builder.write(tmp_path / "made.json"))
    assert max(map(len, [*trace.names, *trace.threads[0], *trace.thread_names.values()])) <= MAX_NAME


def test_a_trace_that_changes_while_it_is_read_is_partial(tmp_path, monkeypatch):
    path = two_steps().write(tmp_path / "made.json")
    monkeypatch.setattr(chrome_trace, "CHUNK_SIZE", 100)  # so the file is open, and not at its end, after the first
    chunks = Chunks(path)
    next(iter(chunks))
    with open(path, "ab") as file:
        file.write(b" " * 10)
    assert b"".join(chunks).endswith(b" " * 10)
    assert chunks.warnings == [f"made.json changed while it was read: {PARTIAL}"]


def test_one_endless_name_takes_no_more_memory_than_one_run_may(tmp_path, monkeypatch):
    lengths, decode = [], _decode_run
    monkeypatch.setattr(chrome_trace, "_decode_run", lambda text, *of: lengths.append(len(text)) or decode(text, *of))
    for name, size in (("_RUN", 1000), ("_MAX_RUN", 8000), ("CHUNK_SIZE", 500)):
        monkeypatch.setattr(chrome_trace, name, size)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "' + b"a" * 200_000))
    with pytest.raises(InputError, match="no events"):
        read(path)
    assert max(lengths) < 2 * 8000
    assert sum(lengths) < 10 * 200_000
