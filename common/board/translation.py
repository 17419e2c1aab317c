"""Today's traces in the dialect of 2021, the one that torch-tb-profiler 0.4.3 understands.

Only what the plugin would misread is changed, so that a trace of 2021 passes through as it is. Everything works in
place on the decoded JSON of a trace: a dict with a list "traceEvents" of dicts.
"""

import html
import zlib
from bisect import bisect_right

from common.trace.gpus import MAX_GPUS
from common.trace.steps import COLLECTIVES, is_loading, is_step

COLLECTIVE = "walkthrough collective"  # an argument of a kernel: the External id of the collective that launched it
SIZES = {"byte": 1, "char": 1, "half": 2, "bfloat16": 2, "int": 4, "float": 4, "long": 8, "double": 8}  # bytes a value
_NONE = object()
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
OPERATORS = ("cpu_op", "operator")


def translated(trace):
    """The same trace (changed in place). Raises ValueError where there is no list of events in it."""
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("it holds no list of events")
    if not isinstance(trace.get("deviceProperties"), list):
        trace["deviceProperties"] = None
    for device in trace["deviceProperties"] or []:
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            device["name"] = html.escape(device["name"])  # the Overview puts it on its page as HTML
    events = [event for event in trace["traceEvents"] if isinstance(event, dict) and _usable(event)]
    rows = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X" and _kind(event) in DEVICE_WORK}
    kept = []
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
            category == "user_annotation" and (event["pid"], event["tid"]) in rows
        ):
            continue  # the device's copy of a mark would count as a second step
        kept.append(event)
    _link_lost_calls(kept)
    _link_collectives(kept)
    trace["traceEvents"] = kept
    return trace


def _kind(event):
    category = event.get("cat")
    return category.lower() if isinstance(category, str) else ""


def _was_an_operator(name):
    """True for marks that were operators in 2021 and count as such in every definition."""
    return is_loading(name) or name.startswith("Optimizer.")


def _usable(event):
    """True for an event that the plugin can take; what it would stumble over is mended."""
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
                event[key] = float(event.get(key))
            except (TypeError, ValueError):
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
            event["tid"] = _number(event["tid"])
    elif event["name"] == "[memory]":
        if not isinstance(event["tid"], int):
            event["tid"] = _number(event["tid"])
        if args.get("Device Type"):
            args["Device Type"] = 1  # every GPU, whoever made it
        return all(isinstance(args.get(key, 0), int | float) for key in ("Bytes", "Total Allocated", "Total Reserved"))
    elif event["ph"] in ("s", "f"):
        return "id" in event
    return True


def _number(name):
    """A thread's id where it is given as text."""
    try:
        return int(name)
    except (TypeError, ValueError):
        return zlib.crc32(str(name).encode("utf-8", "replace"))


def _link_lost_calls(events):
    """Give runtime calls whose External id names no operator that of the innermost operator around them.

    The same for the device work that they launched. As `common.trace.operators.launching_operators` does.
    """
    operators = [event for event in events if event.get("ph") == "X" and _kind(event) in OPERATORS]
    known = {_external(event) for event in operators}
    calls = [event for event in events if event.get("ph") == "X" and _kind(event) == "runtime"]
    lost = [event for event in calls if _external(event) in (None, 0) or _external(event) not in known]
    if not lost:
        return
    found, made = {}, -1_000_000  # ids of our own: below all others
    around = _Threads([event for event in operators if not is_step(event["name"])])
    for call in lost:
        operator = around.innermost(call)
        if operator is None:
            continue
        if _external(operator) is None:
            made -= 1
            _set_external(operator, made)
        _set_external(call, _external(operator))
        if call["args"].get("correlation") is not None:
            found[call["args"]["correlation"]] = _external(operator)
    for event in events:
        if event["ph"] == "X" and _kind(event) in DEVICE_WORK and event["args"].get("correlation") in found:
            _set_external(event, found[event["args"]["correlation"]])


def _link_collectives(events):
    """Give each NCCL collective its size, and each kernel that it launched its id (as `COLLECTIVE`).

    Today the size stands in `record_param_comms`, an operator around the collective's mark that launches the kernel.
    """
    records = [event for event in events if event["name"] == "record_param_comms" and event.get("ph") == "X"]
    marks = [event for event in events if event["name"] in COLLECTIVES and event.get("ph") == "X"]
    if not records or not marks:
        return
    around = _Threads(records)
    owner = {}
    for mark in marks:
        record = around.innermost(mark)
        if record is None:
            continue
        if _external(mark) is None:
            _set_external(mark, -len(owner) - 1)
        owner[id(record)] = _external(mark)
        values, kind = record["args"].get("In msg nelems"), str(record["args"].get("dtype")).lower()
        if isinstance(values, int) and kind in SIZES and "Input Dims" not in mark["args"]:
            mark["args"] |= {"Input Dims": [[values * SIZES[kind]]], "Input type": ["unsigned char"]}
    launched = {}
    for event in events:
        if event.get("ph") == "X" and _kind(event) == "runtime" and (record := around.innermost(event)) is not None:
            launched[event["args"].get("correlation", _NONE)] = owner.get(id(record))
    launched.pop(_NONE, None)
    for event in events:
        mark = launched.get(event["args"].get("correlation", _NONE))
        if _kind(event) == "kernel" and mark is not None:
            event["args"][COLLECTIVE] = mark


def _external(event):
    args = event["args"]
    return args.get("external id", args.get("External id"))


def _set_external(event, number):
    event["args"]["external id" if "external id" in event["args"] else "External id"] = number


class _Threads:
    """Events of each thread, nested by their times."""

    def __init__(self, events):
        self.threads = {}
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            self.threads.setdefault((event["pid"], event["tid"]), []).append(event)
        self.starts = {thread: [event["ts"] for event in found] for thread, found in self.threads.items()}
        self.parents = {thread: self._parents(found) for thread, found in self.threads.items()}

    @staticmethod
    def _parents(events):
        parents, open_ones = [], []
        for index, event in enumerate(events):
            while open_ones and _end(events[open_ones[-1]]) <= event["ts"]:
                open_ones.pop()
            parents.append(open_ones[-1] if open_ones else -1)
            open_ones.append(index)
        return parents

    def innermost(self, event):
        """The innermost event on this one's thread that runs when this one begins; None where there is none."""
        thread = (event["pid"], event["tid"])
        events = self.threads.get(thread, [])
        index = bisect_right(self.starts.get(thread, []), event["ts"]) - 1
        while index >= 0 and _end(events[index]) <= event["ts"]:
            index = self.parents[thread][index]
        return events[index] if index >= 0 else None


def _end(event):
    return event["ts"] + event["dur"]
