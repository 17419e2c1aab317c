"""torch-tb-profiler's parser, patched by the import of this module: it reads today's traces.

A child process does so before it reads traces (see `worker`), and TensorBoard's process for the Diff view. Today's
traces are translated into the format of 2021, which the plugin reads (see `translated`).
"""

import html
import sys
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from torch_tb_profiler.profiler import data, event_parser, overall_parser, run_generator, tensor_core, trace
from torch_tb_profiler.profiler.diffrun import contract
from torch_tb_profiler.profiler.node import OperatorNode
from torch_tb_profiler.profiler.range_utils import get_ranges_sum, intersection_ranges_lists, merge_ranges
from torch_tb_profiler.run import RunProfile

from walkthrough.trace.chrome_trace import Chunks, Header, values_of, whole_events
from walkthrough.trace.columns import MAX_GPUS
from walkthrough.trace.kernel_names import ELIGIBLE, ELIGIBLE_SINCE, uses_tensor_cores
from walkthrough.trace.steps import COLLECTIVES, end_of_earlier_work, is_loading, is_step

COLLECTIVE = "walkthrough collective"  # an argument of a kernel: the External id of the collective that launched it
SIZES = {"byte": 1, "char": 1, "half": 2, "bfloat16": 2, "int": 4, "float": 4, "long": 8, "double": 8}  # bytes a value
HEADER = ("Framework", "schemaVersion", "distributedInfo", "deviceProperties")  # the plugin reads no more of it
OPERATORS = ("cpu_op", "operator")
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")  # categories in a file
DEVICE_TYPES = (trace.EventTypes.KERNEL, trace.EventTypes.MEMCPY, trace.EventTypes.MEMSET)  # the plugin's
_NONE = object()

Event = dict[str, Any]  # one of a trace's "traceEvents"
Range = tuple[int, int]  # begin and end, µs, typed as in the plugin; today's traces have floats


class EventParser(event_parser.EventParser):
    """Gives each collective the kernels that it launched, see `COLLECTIVE`.

    Also lets the first step begin where the work of earlier steps ends, see `steps.end_of_earlier_work`.
    """

    parallel_wrappers: ClassVar[frozenset[str]] = frozenset()  # "….forward" of DP and DDP in the trace read last

    def parse(self, events: Iterable[trace.BaseEvent], fwd_bwd_map: dict[int, int]) -> Any:
        numbers: dict[tuple[Any, Any], int] = {}
        self.streams = [  # a number for the stream of each of `device_node_list`
            numbers.setdefault((event.pid, event.tid), len(numbers)) for event in events if event.type in DEVICE_TYPES
        ]
        nodes = super().parse(events, fwd_bwd_map)
        self.use_dp |= "DataParallel.forward" in self.parallel_wrappers
        self.use_ddp |= "DistributedDataParallel.forward" in self.parallel_wrappers
        kernels = cast("list[trace.KernelEvent]", [event for event in events if event.type == trace.EventTypes.KERNEL])
        by_collective: dict[int, list[Range]] = defaultdict(list)
        for event in kernels:
            if event.args.get(COLLECTIVE) in self.communication_data:
                by_collective[event.args[COLLECTIVE]].append((event.ts, event.ts + event.duration))
        for number, ranges in by_collective.items():
            collective = self.communication_data[number]
            collective.kernel_ranges = sorted(ranges)
            collective.total_time = sum(end - begin for begin, end in ranges)
        OverallParser.communication = merge_ranges([span for ranges in by_collective.values() for span in ranges])
        OverallParser.computation = merge_ranges(
            [(event.ts, event.ts + event.duration) for event in kernels if COLLECTIVE not in event.args]
        )
        return nodes

    def parse_steps(self, events: Iterable[Any], comm_nodes: dict[int, Any]) -> None:
        super().parse_steps(events, comm_nodes)
        if (
            self.steps[0][0] > self.steps[0][1]
        ):  # no step and no operator: the step that stands for all is the recording
            if self.global_start_ts > self.global_end_ts:
                self.global_start_ts, self.global_end_ts = 0, 1
            self.steps[0] = (self.global_start_ts, max(self.global_end_ts, self.global_start_ts + 1))

    def _find_device_steps(self, runtime_node_list: list[Any]) -> tuple[Any, list[Range], list[int]]:
        before, device_steps, launched = super()._find_device_steps(runtime_node_list)
        if before is None or not launched[0]:
            return before, device_steps, launched
        work = self.device_node_list
        step, index = np.full(len(work), -1), {id(node): number for number, node in enumerate(work)}
        begins = [begin for begin, _ in self.steps]
        for call in runtime_node_list:
            at = bisect_right(begins, call.start_time) - 1
            if at >= 0 and call.end_time <= self.steps[at][1]:
                for node in call.device_nodes or ():
                    step[index[id(node)]] = at
        start, end = (np.array([getattr(node, edge) for node in work], float) for edge in ("start_time", "end_time"))
        earlier = end_of_earlier_work(start, end, np.array(self.streams), step)
        return max(before, earlier), device_steps, launched


class OverallParser(overall_parser.OverallParser):
    """Computes the overlap of communication and computation from the kernels, where collectives have any.

    communication, computation: merged ranges of the kernels of the trace parsed last (a child parses one).
    """

    communication: ClassVar[list[Range]] = []
    computation: ClassVar[list[Range]] = []

    def aggregate(self, steps: list[Range], role_ranges: list[list[Range]]) -> None:
        super().aggregate(steps, role_ranges)
        if not self.communication:
            return
        overlap = intersection_ranges_lists(list(self.computation), list(self.communication))
        for step, costs in zip(steps, self.communication_overlap, strict=True):
            costs.overlap = _us_within(step, overlap)
            costs.computation = _us_within(step, self.computation)
            costs.communication = _us_within(step, self.communication)
            costs.other = step[1] - step[0] + costs.overlap - costs.computation - costs.communication


def intersection(first: list[Range], second: list[Range]) -> list[Range]:
    """As the plugin's, which for each of many steps goes through all ranges from the first on. Both are merged."""
    if len(first) == 1:
        begin, end = first[0]
        until = bisect_left(second, end, key=itemgetter(0))
        second = second[bisect_right(second, begin, hi=until, key=itemgetter(1)) : until]
    return intersection_ranges_lists(first, second)


def _us_within(step: Range, ranges: list[Range]) -> int:
    return get_ranges_sum(intersection([step], ranges))


def parse(worker: str, span: int | None, path: str | Path | Chunks) -> data.RunProfileData:
    """What the plugin computes from a trace: a path, or its `Chunks`. Raises InputError where it is not whole."""
    chunks = path if isinstance(path, Chunks) else Chunks(path)
    header: Header = {}
    events = [event for run in whole_events(chunks, header, dict) for event in run if _make_usable(event)]
    EventParser.parallel_wrappers = frozenset(
        event["name"] for event in events if event["name"].endswith("Parallel.forward")
    )
    events = translated(events)
    values = values_of(header, HEADER)
    if not isinstance(values.get("deviceProperties"), list):
        values["deviceProperties"] = None
    for device in values["deviceProperties"] or []:
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            device["name"] = html.escape(device["name"])  # the Overview puts it on its page as HTML
    parsed = data.RunProfileData.from_json(worker, span, values | {"traceEvents": _consumed(events)})
    parsed.trace_file_path = str(chunks.path)
    return parsed


def _consumed(events: list[Event]) -> Iterator[Event]:
    """The events, each of which leaves the list, and the memory, before the next."""
    events.reverse()
    while events:
        yield events.pop()


_plugin_generate_op_pie = run_generator.RunGenerator._generate_op_pie
_plugin_generate_run_profile = run_generator.RunGenerator.generate_run_profile


def generate_op_pie(self: run_generator.RunGenerator, group_by_input_shape: bool = False) -> dict[str, Any]:
    """The charts of the Operator view. Those of the host are there without operators too: the page needs them."""
    charts = _plugin_generate_op_pie(self, group_by_input_shape)
    columns = [{"type": "string", "name": "name"}, {"type": "number", "name": "value"}]
    for key, title in (("host_self_time", "Host Self Time (us)"), ("host_total_time", "Host Total Time (us)")):
        charts[key] = charts[key] or {"title": title, "columns": columns, "rows": []}
    return charts


def generate_run_profile(self: run_generator.RunGenerator) -> RunProfile:
    """The profile of a trace. Without operators their tree is a root alone, which the Diff view can compare."""
    profile = _plugin_generate_run_profile(self)
    if not profile.tid2tree:
        kind, limits = trace.EventTypes.PYTHON, (-sys.maxsize - 1, sys.maxsize)
        root = OperatorNode(name="CallTreeRoot", type=kind, tid=0, start_time=limits[0], end_time=limits[1])
        profile.tid2tree = {0: root}
    return profile


_plugin_to_dict = contract.DiffStats.to_dict


def diff_to_dict(diff: contract.DiffStats) -> dict[str, Any]:
    """A node of the Diff view. Both sides list the same operators: the page pairs them by their places in the lists."""
    node = _plugin_to_dict(diff)
    sides = [{agg["name"]: agg for agg in node[side]["aggs"]} for side in ("left", "right")]
    for side, aggs in zip(("left", "right"), sides, strict=True):
        no_calls = (contract.OpAgg(name, 0, 0, 0, 0, 0)._asdict() for name in sides[0] | sides[1])
        node[side]["aggs"] = [aggs.get(agg["name"]) or agg for agg in no_calls]
    return node


def translated(events: list[Event]) -> list[Event]:
    """The events of a trace in the format of 2021, changed in place; times in µs. events: as `_make_usable` left them.

    Only what the plugin would misread is changed, so those of 2021 pass through unchanged.
    """
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
        elif category == "user_annotation" and (is_loading(event["name"]) or event["name"].startswith("Optimizer.")):
            event["cat"] = "cpu_op"  # as it was in 2021, and counts in every definition
        elif category == "gpu_user_annotation" or (
            category == "user_annotation" and (event["pid"], event["tid"]) in device_rows
        ):
            continue  # the device's copy of a mark would count as a second step
        output.append(event)
    _link_lost_calls(output)
    _link_collectives(output)
    return output


def _kind(event: Event) -> str:
    category = event.get("cat")
    return category.lower() if isinstance(category, str) else ""


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

    The device work that they launched gets the same id. As `walkthrough.trace.operators.launching_operators` does.
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

    Today the size is in `record_param_comms`, an operator around the collective's mark that launches the kernel.
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


def patch_parser() -> None:
    """Replace the parts of the plugin's parser that this module and `walkthrough.trace` do better."""
    uses = classmethod(lambda _, name: uses_tensor_cores(name) is True)
    eligible = classmethod(lambda _, name: name in ELIGIBLE or name in ELIGIBLE_SINCE)
    patches: list[tuple[object, str, object]] = [
        (data.RunProfileData, "parse", staticmethod(lambda worker, span, path, _: parse(worker, span, path))),
        (data, "EventParser", EventParser),
        (data, "OverallParser", OverallParser),
        (overall_parser, "intersection_ranges_lists", intersection),
        (run_generator.RunGenerator, "_generate_op_pie", generate_op_pie),
        (run_generator.RunGenerator, "generate_run_profile", generate_run_profile),
        (contract.DiffStats, "to_dict", diff_to_dict),
        (tensor_core.TC_Allowlist, "__contains__", uses),
        (tensor_core.TC_OP_Allowlist, "__contains__", eligible),
    ]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    for library, names in (("nccl:", trace.NcclOpNameSet), ("gloo:", trace.GlooOpNameSet)):
        names += sorted(name for name in COLLECTIVES if name.startswith(library) and name not in names)


patch_parser()
