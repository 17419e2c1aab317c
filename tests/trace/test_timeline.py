"""The events of a trace as lanes: known answers, and what holds in every trace."""

from itertools import pairwise

import numpy as np
import pytest
from support import ROOT
from support.trace_builder import TraceBuilder, analyzed, one_step, repeated, two_steps

from walkthrough.advice.gains import advise
from walkthrough.results.errors import InputError
from walkthrough.trace import timeline as module
from walkthrough.trace.analysis import analyze
from walkthrough.trace.reader import event
from walkthrough.trace.timeline import lanes, levels

TRACES = [
    *sorted((ROOT / "tests" / "data").glob("*.pt.trace.json.gz")),
    ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json",
]


def timeline(builder, *steps):
    """The answer for the trace that a builder holds, of steps first to last, with its findings."""
    analysis = analyzed(builder)
    return lanes(analysis, [(finding.what, finding.when) for finding in advise(analysis).findings], *steps)


def lane(answer, identity):
    return next(row for row in answer["lanes"] if row["id"] == identity)


NO_EVENTS = ("idle", "finding")  # kinds of lanes that are computed


def events(answer):
    """(lane, index in it) of every event, in the order of their numbers."""
    return [(row, at) for row in answer["lanes"] for at in range(len(row["start"]))]


def count_of_events(answer):
    return sum(len(row["start"]) for row in answer["lanes"] if row["kind"] not in NO_EVENTS)


def texts(answer, row):
    return [answer["names"][name] for name in row["name"]]


def test_lanes_stand_by_gpu_and_by_thread_and_device_work_knows_what_launched_it():
    answer = timeline(two_steps())
    rows = [(row["id"], row["label"], row["group"]) for row in answer["lanes"] if row["kind"] != "finding"]
    assert rows == [
        ("idle 0", "GPU 0, idle", "GPU 0"),
        ("kernel 0 7", "stream 7", "GPU 0"),
        ("copy 0 7", "stream 7 (copies)", "GPU 0"),
        ("loader main thread", "main thread, DataLoader", "main thread"),
        ("cpu main thread", "main thread", "main thread"),
        ("runtime main thread", "main thread, calls", "main thread"),
    ]
    assert lane(answer, "kernel 0 7")["thread"] == lane(answer, "copy 0 7")["thread"]
    assert lane(answer, "cpu main thread")["thread"] == lane(answer, "runtime main thread")["thread"] >= 0
    assert lane(answer, "cpu main thread")["title"] == "process 100, thread 1"
    assert lane(answer, "idle 0")["thread"] == -1
    kernels, copies, numbered = lane(answer, "kernel 0 7"), lane(answer, "copy 0 7"), events(answer)
    for key, kind, starts in (("launch", "runtime", [310, 1310]), ("operator", "cpu", [300, 1300])):
        rows = [numbered[number] for number in kernels[key]]
        assert [(row["id"], row["start"][at]) for row, at in rows] == [(f"{kind} main thread", at) for at in starts]
    assert copies["operator"] == [-1, -1]  # called outside of any operator
    assert min(copies["launch"]) >= 0


def test_a_gap_is_named_by_its_main_cause_and_has_facts_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(module, "MAX_FACTS", 2)
    answer = timeline(two_steps())
    idle = lane(answer, "idle 0")
    assert (idle["start"], idle["duration"]) == ([0, 730, 1730], [330, 600, 270])
    assert texts(answer, idle) == ["dataloader", "other", "other"]
    assert len(idle["facts"]) == 2
    assert idle["facts"][0] == {
        "dataloader": "200.0 µs", "other": "50.0 µs", "copy": "50.0 µs", "launch": "30.0 µs",
        "operator": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    }  # fmt: skip
    assert (answer["loaded"]["first"], answer["loaded"]["last"]) == (0, 1)
    assert answer["total"] == {"start": 0, "end": 2000}


def test_a_gap_names_the_python_function_that_ran_longest():
    builder = two_steps()
    builder.add("python_function", "train.py(1): main", 10_000, 2000)
    builder.add("python_function", "data.py(2): decode", 10_020, 150)
    answer = timeline(builder)
    assert [gap["Python"] for gap in lane(answer, "idle 0")["facts"]] == ["train.py(1): main"] * 3  # 180 of 330 µs
    assert lane(answer, "python main thread")["level"] == [0, 1]


REDUCE = "ncclDevKernel_AllReduce"


def test_threads_and_streams_have_names():
    builder = one_step()
    op = builder.op("aten::mm", 10, 20)
    builder.op("autograd::engine::evaluate_function: MmBackward0", 100, 50, tid=2)
    builder.op("autograd::engine::evaluate_function: MmBackward0", 100, 50, tid=3)
    builder.op("aten::_pin_memory", 100, 50, tid=4)
    builder.add("annotation", "gloo:all_reduce", 100, 50, tid=5)
    builder.add("annotation", "## forward ##", 5, 50)
    builder.op("aten::add", 100, 50, tid=6)
    builder.op("aten::add", 100, 50, tid=8)
    for thread, name in ((1, "thread 1 (python3)"), (6, "thread 6 (python3)"), (8, "thread 8 (my_thread)")):
        builder.events.append({"ph": "M", "name": "thread_name", "pid": 100, "tid": thread, "args": {"name": name}})
    for name, kind, stream in (("k", "kernel", 7), (REDUCE, "kernel", 20), ("Memcpy HtoD", "copy", 9)):
        builder.launch(name, 15, 2, 20, 5, op=op, kind=kind, stream=stream)
    answer = timeline(builder)
    assert [row["label"] for row in answer["lanes"] if row["kind"] not in ("finding", "idle")] == [
        *("stream 7", "stream 20 (NCCL)", "stream 9 (copies)", "main thread, marks", "main thread"),
        *("main thread, calls", "autograd", "autograd 2", "thread 6", "my_thread", "gloo, collectives", "pin memory"),
    ]
    assert texts(answer, lane(answer, "mark main thread")) == ["## forward ##"]


@pytest.mark.parametrize(
    ("kernels", "header", "labels"),
    [
        ([("k", 7), (REDUCE, 20)], {"hip_runtime_version": "6"}, ["stream 7", "stream 20 (RCCL)"]),
        ([("oneccl_allreduce_pcie", 5), ("triton_poi_fused_nccl_0", 7)], {}, ["stream 5 (collectives)", "stream 7"]),
        ([("k", 100), ("k", 20), ("k", "default")], {}, ["stream 20", "stream 100", "stream default"]),
    ],
)
def test_streams_are_in_order_of_their_numbers_and_named_after_the_library_that_communicates(kernels, header, labels):
    builder = TraceBuilder()
    builder.header |= header
    for name, stream in kernels:
        builder.launch(name, 0, 2, 20, 50, stream=stream)
    assert [row["label"] for row in timeline(builder)["lanes"] if row["kind"] == "kernel"] == labels


def test_threads_of_two_processes_have_lanes_of_their_own():
    builder = two_steps()
    for thread in (8, 9):
        builder.op("aten::add", 10_000, 50, tid=thread)["pid"] = 300 + thread
    builder.events += [
        dict(event, pid=0, tid=f"stream {event['tid']}") for event in builder.events if event["tid"] == 7
    ]
    ids = [row["id"] for row in timeline(builder)["lanes"] if row["kind"] != "finding"]
    assert {"cpu process 308, thread 8", "cpu process 309, thread 9", "kernel 0 7", "kernel 0 7 2"} <= set(ids)
    assert len(ids) == len(set(ids))


def many_steps(count=10):
    """Steps of 100 µs with an operator of 10 µs and a kernel, which runs 250 µs after its launch.

    An operator that runs through all of them, and a copy in the last one.
    """

    def launching(builder, begin):
        builder.launch("k", begin + 12, 2, begin + 262, 20, op=builder.op("aten::mm", begin + 10, 10))

    builder = repeated(launching, 100, count)
    builder.op("long", 5, 100 * count - 10, tid=2)
    builder.copy(100 * count - 50, 40, 100 * count - 45, 30, 1_000_000)
    return builder


def test_some_steps_are_asked_for():
    whole, some = timeline(many_steps()), timeline(many_steps(), 4, 5)
    assert (whole["loaded"]["first"], whole["loaded"]["last"], whole["left_out"]) == (0, 9, 0)
    assert [step["start"] for step in some["steps"]] == [step["start"] for step in whole["steps"]]
    assert (some["loaded"]["first"], some["loaded"]["last"]) == (4, 5)
    assert timeline(two_steps(), 0, 99)["loaded"]["last"] == 1
    with pytest.raises(InputError, match="has 2 steps, so none with the index 2"):
        timeline(two_steps(), 2)
    start, end = some["loaded"]["start"], some["loaded"]["end"]
    assert start <= 400
    assert 782 <= end < 800  # where the kernel of the last one ends
    of_whole, of_some = (
        {(row["id"], row["start"][at], row["duration"][at]) for row, at in events(answer)} for answer in (whole, some)
    )
    assert of_some == {event for event in of_whole if event[1] < end and event[1] + event[2] > start}
    assert all(row["start"] for row in some["lanes"])  # so there is no lane for the copy
    kernels = lane(some, "kernel 0 7")
    launched = [events(some)[number][0]["kind"] if number >= 0 else None for number in kernels["launch"]]
    assert launched == [None if start > 14 + begin - 262 else "runtime" for begin in kernels["start"]]
    assert None in launched
    assert some["left_out"] == count_of_events(whole) - count_of_events(some)


def test_as_many_of_the_first_steps_are_loaded_as_fit(monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 20)
    answer = timeline(many_steps())
    assert 10 < len(events(answer)) <= 20
    assert (answer["loaded"]["first"], 0 < answer["loaded"]["last"] < 9) == (0, True)
    assert timeline(many_steps(), 6)["loaded"]["first"] == 6
    assert timeline(many_steps(), 3, 3)["loaded"]["last"] == 3


def test_a_step_with_too_many_events_is_cut_and_loaded_says_where(monkeypatch):
    builder = one_step()
    for at in range(50):
        builder.op("aten::mm", 10 * at, 5)
    monkeypatch.setattr(module, "MAX_EVENTS", 30)
    for _ in range(2):
        answer = timeline(builder)
        assert lane(answer, "cpu main thread")["start"] == [10 * at for at in range(30)]
        assert (answer["loaded"]["end"], answer["left_out"]) == (300, 20)
        builder.events.pop(0)  # the same without a mark


def test_the_clock_the_rank_and_the_warnings_are_there():
    builder = one_step(rank=3)
    builder.op("aten::mm", 10, 10)
    builder.header["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
    answer = timeline(builder)
    assert [answer[key] for key in ("clock_us", "rank", "warnings", "partial")] == [17 * 10**14, 3, [], False]


def test_a_trace_of_collectives_alone_and_one_of_memory_alone_are_shown():
    builder = TraceBuilder()
    for at in (100, 300):
        builder.add("annotation", "gloo:all_reduce", at, 50, tid=5)
    [row] = timeline(builder)["lanes"]
    assert (row["kind"], row["start"]) == ("collective", [0, 200])
    builder = TraceBuilder()
    builder.memory(100, 512, 512, 2048)
    builder.memory(200, 512, 1024, 2048)
    builder.memory(200, 64, 64, device=None)
    answer = timeline(builder)
    assert answer["lanes"] == []
    assert [(row["label"], row["time"], row["value"]) for row in answer["counters"]] == [
        ("GPU 0 memory, allocated", [0, 100], [512, 1024]),
        ("GPU 0 memory, reserved", [0, 100], [2048, 2048]),
        ("CPU memory, allocated", [100], [64]),
    ]


@pytest.mark.parametrize(("devices", "groups"), [((5,), ["GPU 5"]), ((5, 6), ["GPU 0"])])
def test_the_memory_of_one_gpu_belongs_to_it_whatever_number_it_has_there(devices, groups):
    """ROCm numbers a GPU among all processors in its kernels, and among the GPUs in its memory events."""
    builder = TraceBuilder(devices=[])
    for device in devices:
        builder.launch("k", 0, 2, 20, 50, device=device)
    builder.op("aten::mm", 0, 100)
    builder.memory(10, 512, 512)
    assert [counter["group"] for counter in timeline(builder)["counters"]] == groups


def test_the_rows_of_a_lane_do_not_overlap():
    start, end = np.array([0.0, 0, 10, 20, 25]), np.array([30.0, 10, 20.001, 25, 25])
    assert levels(start, end).tolist() == [0, 1, 1, 1, 1]  # an ns too long is rounding
    assert levels(np.array([0.0, 5, 12]), np.array([10.0, 15, 14])).tolist() == [0, 1, 2]
    chain = np.array([0.0, 5, 12, 18]), np.array([10.0, 15, 20, 25])
    assert levels(*chain).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:30])
def test_lanes_of_every_trace_are_in_order_linked_and_found_in_the_file(path):
    analysis = analyze(path)
    answer = lanes(analysis)
    numbered = events(answer)
    assert len({row["id"] for row in answer["lanes"]}) == len(answer["lanes"])
    for row in answer["lanes"]:
        assert row["start"] == sorted(row["start"])
        assert len(row["start"]) == len(row["duration"]) == len(row["name"]) == len(row["level"]) > 0
        assert max(row["level"]) + 1 == row["levels"]
        for one, other in pairwise(sorted(zip(row["level"], row["start"], row["duration"], strict=True))):
            assert one[0] != other[0] or one[1] + one[2] <= other[1] + 2 * module.EPSILON  # rows do not overlap
        for call, correlation in zip(row.get("launch", []), row.get("correlation", []), strict=bool(row.get("launch"))):
            if call >= 0:
                launching, at = numbered[call]
                assert launching["kind"] == "runtime"
                assert launching["correlation"][at] == correlation
        for operator in row.get("operator", []):
            assert operator < 0 or numbered[operator][0]["kind"] in ("cpu", "mark", "loader", "collective")
        if row["thread"] >= 0:
            name, at = answer["names"][row["name"][-1]], answer["file_us"] + row["start"][-1]
            assert isinstance(event(path, name, (row["pid"], row["tid"]), at, row["duration"][-1]), dict)
    shown = sum(len(row["start"]) for row in answer["lanes"] if row["kind"] == "kernel")
    assert shown == len(analysis.trace.kernels)
    assert [step["name"] for step in answer["steps"]] == analysis.steps.names


ARGUMENTS = {
    "Input Dims": [[32, 64], [64, 8], []], "Input type": ["float", "float", ""], "Concrete Inputs": ["", "", "1"],
    "Ev Idx": 7, "Fwd thread id": 0, "Call stack": f"train.py(1): main;{'x' * 10_000}",
}  # fmt: skip


def test_the_arguments_of_an_event_are_found_by_time_thread_and_name(tmp_path):
    builder = one_step()
    operator = builder.op("aten::mm", 100, 50)
    operator["args"] |= ARGUMENTS
    builder.op("aten::mm", 100, 30)["args"]["Input Dims"] = [[1] * 1000]
    builder.op("autograd::engine::evaluate_function: MmBackward0", 100, 50, tid=2)["args"]["Fwd thread id"] = 1
    _, kernel = builder.launch("k", 110, 5, 120, 10, op=operator, grid=[128, 1, 1], **{"warps per SM": 2.5})
    path = builder.write(tmp_path / "made.json")
    main = str(operator["pid"]), str(operator["tid"])
    found = event(path, "aten::mm", main, 100.2, 50)
    stack = found.pop("stack")
    assert (stack[:18], len(stack)) == ("train.py(1): main;", 4000)
    assert found == {"shapes": "[[32, 64], [64, 8], []]", "types": "[float, float, ]", "values": "[, , 1]"}
    assert len(event(path, "aten::mm", main, 100, 30)["shapes"]) == 400
    backward = "autograd::engine::evaluate_function: MmBackward0"
    assert event(path, backward, (main[0], "2"), 100, 50) == {"forward thread": 1}
    stream = str(kernel["pid"]), str(kernel["tid"])
    assert event(path, "k", stream, 120, 10).items() >= {"grid": "[128, 1, 1]", "warps per SM": 2.5}.items()
    for wrong in (("k", stream, 123, 10), ("k", main, 120, 10), ("m", stream, 120, 10)):
        with pytest.raises(InputError, match="no event"):
            event(path, *wrong)
