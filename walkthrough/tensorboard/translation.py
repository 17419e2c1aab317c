"""Today's traces in the format of 2021, the one that torch-tb-profiler 0.4.3 reads.

Only what the plugin would misread is changed, so a trace of 2021 passes through unchanged. Everything works in place
on the decoded JSON of a trace: a dict with a list "traceEvents" of dicts. Times are in µs.
"""

import html
import zlib
from bisect import bisect_right
from typing import Any

from walkthrough.trace.columns import MAX_GPUS
from walkthrough.trace.steps import COLLECTIVES, is_loading, is_step

COLLECTIVE = "walkthrough collective"  # an argument of a kernel: the External id of the collective that launched it
SIZES = {"byte": 1, "char": 1, "half": 2, "bfloat16": 2, "int": 4, "float": 4, "long": 8, "double": 8}  # bytes a value
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
OPERATORS = ("cpu_op", "operator")
_NONE = object()

Event = dict[str, Any]  # one of a trace's "traceEvents"


def translated(trace: Any) -> dict[str, Any]:
    """The same trace, changed in place. trace: decoded JSON.

    Raises ValueError where it holds no list of events.
    """
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("it holds no list of events")
    if not isinstance(trace.get("deviceProperties"), list):
        trace["deviceProperties"] = None
    for device in trace["deviceProperties"] or []:
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            device["name"] = html.escape(device["name"])  # the Overview puts it on its page as HTML
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and _make_usable(event)]
    device_rows = {
        (event["pid"], event["tid"]) for event in events if event["ph"] == "X" and _kind(event) in DEVICE_WORK
    }
    output = []
    for event in events:
        category = _kind(event)
        if category.endswith(("_runtime", "_driver")):
            event["cat"] = "Runtime"
        elif category in ("fwdbwd", "forward_backward"):
            if event["ph"] not in ("s", "f"):
                continue
            event["cat"] = "forward_backward"
        elif category == "user_annotation" and _was_an_operator(event["name"]):
            event["cat"] = "cpu_op"
        elif category == "gpu_user_annotation" or (
            category == "user_annotation" and (event["pid"], event["tid"]) in device_rows
        ):
            continue  # the device's copy of a mark would count as a second step
        output.append(event)
    _link_lost_calls(output)
    _link_collectives(output)
    trace["traceEvents"] = output
    return trace


def _kind(event: Event) -> str:
    category = event.get("cat")
    return category.lower() if isinstance(category, str) else ""


def _was_an_operator(name: str) -> bool:
    """True for marks that were operators in 2021 and count as such in every definition."""
    return is_loading(name) or name.startswith("Optimizer.")


def _make_usable(event: Event) -> bool:
    """Repair what the plugin would fail on; False for an event that cannot be repaired."""
    if not isinstance(event.get("name"), str):
        event["name"] = ""
    args = event.get("args")
    if not isinstance(args, dict):
        args = event["args"] = {}
    if event.get("ph") not in ("X", "i", "s", "f"):
        return event.get("ph") == "M"
    if "pid" not in event or "tid" not in event:
        return False
    for key in ("ts", "dur") if event["ph"] == "X" else ("ts",):
        if not isinstance(event.get(key), int | float):
            try:
                event[key] = float(event[key])
            except (KeyError, TypeError, ValueError):
                return False
        if not abs(event[key]) < 1e16 or (key == "dur" and event[key] < 0):
            return False
    if event["ph"] == "X":
        if not isinstance(event.get("cat"), str):
            return False
        if _kind(event) in DEVICE_WORK:
            device = args.setdefault("device", event["pid"])
            return isinstance(device, int) and 0 <= device < MAX_GPUS  # the plugin's arrays end there
        if not isinstance(event["tid"], int):
            event["tid"] = _thread_number(event["tid"])
    elif event["name"] == "[memory]":
        if not isinstance(event["tid"], int):
            event["tid"] = _thread_number(event["tid"])
        if args.get("Device Type"):
            args["Device Type"] = 1  # the plugin's number for a GPU of any vendor
        return all(isinstance(args.get(key, 0), int | float) for key in ("Bytes", "Total Allocated", "Total Reserved"))
    elif event["ph"] in ("s", "f"):
        return "id" in event
    return True


def _thread_number(name: Any) -> int:
    """The number of a thread whose id is given as text."""
    try:
        return int(name)
    except (TypeError, ValueError):
        return zlib.crc32(str(name).encode("utf-8", "replace"))


def _link_lost_calls(events: list[Event]) -> None:
    """Give runtime calls whose External id names no operator that of the innermost operator around them.

    The device work that they launched gets the same id. As `walkthrough.trace.columns.launching_operators` does.
    """
    operators = [event for event in events if event.get("ph") == "X" and _kind(event) in OPERATORS]
    known_ids = {_external_id(event) for event in operators}
    calls = [event for event in events if event.get("ph") == "X" and _kind(event) == "runtime"]
    lost = [call for call in calls if _external_id(call) in (None, 0) or _external_id(call) not in known_ids]
    if not lost:
        return
    id_by_correlation: dict[Any, Any] = {}
    last_new_id = -1_000_000  # new ids count down from here, below all others
    nested = _NestedEvents([event for event in operators if not is_step(event["name"])])
    for call in lost:
        operator = nested.innermost(call)
        if operator is None:
            continue
        if _external_id(operator) is None:
            last_new_id -= 1
            _set_external_id(operator, last_new_id)
        _set_external_id(call, _external_id(operator))
        if call["args"].get("correlation") is not None:
            id_by_correlation[call["args"]["correlation"]] = _external_id(operator)
    for event in events:
        correlation = event["args"].get("correlation")
        if event["ph"] == "X" and _kind(event) in DEVICE_WORK and correlation in id_by_correlation:
            _set_external_id(event, id_by_correlation[correlation])


def _link_collectives(events: list[Event]) -> None:
    """Give each NCCL collective its size, and each kernel that it launched its id (as `COLLECTIVE`).

    Today the size stands in `record_param_comms`, an operator around the collective's mark that launches the kernel.
    """
    records = [event for event in events if event["name"] == "record_param_comms" and event.get("ph") == "X"]
    marks = [event for event in events if event["name"] in COLLECTIVES and event.get("ph") == "X"]
    if not records or not marks:
        return
    nested = _NestedEvents(records)
    mark_of_record: dict[int, Any] = {}  # id() of the record's dict: External id of the mark inside
    for mark in marks:
        record = nested.innermost(mark)
        if record is None:
            continue
        if _external_id(mark) is None:
            _set_external_id(mark, -len(mark_of_record) - 1)
        mark_of_record[id(record)] = _external_id(mark)
        values, dtype = record["args"].get("In msg nelems"), str(record["args"].get("dtype")).lower()
        if isinstance(values, int) and dtype in SIZES and "Input Dims" not in mark["args"]:
            mark["args"] |= {"Input Dims": [[values * SIZES[dtype]]], "Input type": ["unsigned char"]}
    mark_of_correlation: dict[Any, Any] = {}
    for event in events:
        if event.get("ph") == "X" and _kind(event) == "runtime" and (record := nested.innermost(event)) is not None:
            mark_of_correlation[event["args"].get("correlation", _NONE)] = mark_of_record.get(id(record))
    mark_of_correlation.pop(_NONE, None)
    for event in events:
        mark_id = mark_of_correlation.get(event["args"].get("correlation", _NONE))
        if _kind(event) == "kernel" and mark_id is not None:
            event["args"][COLLECTIVE] = mark_id


def _external_id(event: Event) -> Any:
    args = event["args"]
    return args.get("external id", args.get("External id"))


def _set_external_id(event: Event, number: Any) -> None:
    event["args"]["external id" if "external id" in event["args"] else "External id"] = number


class _NestedEvents:
    """Events of each thread, nested by their times."""

    def __init__(self, events: list[Event]) -> None:
        self.threads: dict[tuple[Any, Any], list[Event]] = {}
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            self.threads.setdefault((event["pid"], event["tid"]), []).append(event)
        self.starts = {thread: [event["ts"] for event in nested] for thread, nested in self.threads.items()}
        self.parents = {thread: self._parents(nested) for thread, nested in self.threads.items()}

    @staticmethod
    def _parents(events: list[Event]) -> list[int]:
        """For each event the index of the innermost one around it, -1 where there is none."""
        parents: list[int] = []
        open_events: list[int] = []
        for index, event in enumerate(events):
            while open_events and _end(events[open_events[-1]]) <= event["ts"]:
                open_events.pop()
            parents.append(open_events[-1] if open_events else -1)
            open_events.append(index)
        return parents

    def innermost(self, event: Event) -> Event | None:
        """The innermost event on this one's thread that runs when this one begins; None where there is none."""
        thread = (event["pid"], event["tid"])
        events = self.threads.get(thread, [])
        index = bisect_right(self.starts.get(thread, []), event["ts"]) - 1
        while index >= 0 and _end(events[index]) <= event["ts"]:
            index = self.parents[thread][index]
        return events[index] if index >= 0 else None


def _end(event: Event) -> float:
    return event["ts"] + event["dur"]
