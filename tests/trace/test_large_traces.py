"""Work that grows with a trace as the trace does: twice the steps, threads, streams or devices, twice the work."""

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.gains import advise
from walkthrough.advice.report import tables
from walkthrough.trace import columns, steps, timeline
from walkthrough.trace.analysis import analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.timeline import lanes


def launched(builder, at, tid, device, stream):
    """An operator of 60 µs that launches a kernel."""
    op = builder.op("aten::mm", at, 60, tid=tid)
    builder.launch("k", at + 10, 5, at + 30, 40, op=op, tid=tid, device=device, stream=stream)


def many_steps(builder, count):
    for number in range(count):
        at, length = number * 1000, 900 if number % 3 == 0 else 300
        builder.step(number, at, length)
        builder.loading(at, 20 + length // 2 * (number % 3 == 0))
        builder.add("python_function", "torch/serialization.py(12): save", at + 1, 9)
        builder.add("annotation", "forward", at + 30, 100)
        launched(builder, at + length - 100, 1, 0, 7)


def many_threads_and_streams(builder, count):
    builder.step(0, 0, 10_000)
    for number in range(count):
        launched(builder, number * 100, number + 1, 0, number + 10)
        name = {"name": f"thread {number} (pt_autograd_0)"}
        builder.events.append({"ph": "M", "name": "thread_name", "pid": 100, "tid": number + 1, "args": name})


def many_devices(builder, count):
    for number in range(count):
        launched(builder, number * 100, 1, number, 7)


CASES = [many_steps, many_threads_and_streams, many_devices]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_twice_the_trace_is_twice_the_work(tmp_path, monkeypatch, case):
    work = [0]

    def counted(cls, name, size):
        method = getattr(cls, name)

        def counting(self, *args):
            work[0] += size(self, *args)
            return method(self, *args)

        monkeypatch.setattr(cls, name, counting)

    counted(columns.Spans, "where", lambda self, mask: len(mask))
    counted(timeline.Events, "where", lambda self, mask: len(mask))
    counted(columns.Nesting, "innermost", lambda self, thread, time: len(time))
    counted(Cover, "__init__", lambda self, start=(), end=(): len(start))
    counted(Cover, "within", lambda self, start, end: getattr(start, "size", 1))
    amounts = []
    for count in (400, 800):
        builder = TraceBuilder()
        case(builder, count)
        work[0] = 0
        analysis = analyze(builder.write(tmp_path / "made.json"))
        tables(analysis)
        lanes(analysis, [(finding.what, finding.when) for finding in advise(analysis).findings])
        amounts.append(work[0])
    assert amounts[1] < 2.5 * amounts[0]


def test_marks_of_any_number_of_profilers_take_linear_work(tmp_path, monkeypatch):
    builder, calls, overlap = TraceBuilder(), [], steps._overlap
    for number in range(300):
        builder.step(number, number, 1000)
    monkeypatch.setattr(steps, "_overlap", lambda *rows: calls.append(rows) or overlap(*rows))
    trace = analyze(builder.write(tmp_path / "made.json")).trace
    assert trace.warnings[0].startswith("steps are marked twice")
    assert len(calls) <= 300 * steps.MAX_SERIES
