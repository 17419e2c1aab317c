"""torch-tb-profiler's loader of runs, patched: it reads today's traces and does not wait for a child that has died.

The plugin parses each trace in a new process ("spawn"). The child imports this module to find `RunLoader`, and that
import patches the plugin's parser there too.
"""

import gzip
import logging
import multiprocessing
import os
import re
import tempfile
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import copy
from multiprocessing.context import SpawnContext
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
from torch_tb_profiler import consts, io
from torch_tb_profiler.multiprocessing import get_start_method
from torch_tb_profiler.profiler import data, event_parser, overall_parser, tensor_core, trace
from torch_tb_profiler.profiler import loader as plugin_loader
from torch_tb_profiler.profiler.diffrun import contract
from torch_tb_profiler.profiler.range_utils import get_ranges_sum, intersection_ranges_lists, merge_ranges
from torch_tb_profiler.run import Run, RunProfile

from common.board.translation import COLLECTIVE, translated
from common.trace.recovery import clean
from common.trace.steps import COLLECTIVES, end_of_earlier_work
from common.trace.tensor_cores import ELIGIBLE, ELIGIBLE_SINCE, uses_tensor_cores

log = logging.getLogger("walkthrough")
processes = cast(SpawnContext, multiprocessing.get_context(get_start_method()))  # the plugin's own choice: "spawn"
_loading = threading.Semaphore(max(2, os.cpu_count() or 2))  # children at a time: each takes a core and much memory

Range = tuple[int, int]  # begin and end, µs, typed as in the plugin; today's traces have floats
DEVICE_WORK = (trace.EventTypes.KERNEL, trace.EventTypes.MEMCPY, trace.EventTypes.MEMSET)


class RunLoader(plugin_loader.RunLoader):
    """Loads one run: the plugin's own profiles, but the wait for a child ends when the child does."""

    def load(self) -> Run:
        """Parse every trace of the run, each in a child.

        A trace that cannot be read is left out, with a warning; raises ValueError where none can be read.
        """
        run, distributed = Run(self.run_name, self.run_dir), Run(self.run_name, self.run_dir)
        traces, failed = self._traces(), []
        profiles: dict[str, tuple[Any, Any]] = {}

        def parse(worker: str, span: int | None, path: str) -> None:
            profiles[path] = self._parse_in_child(worker, span, path)

        threads = [threading.Thread(target=parse, args=trace, daemon=True) for trace in traces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, _, path in traces:
            profile, distributed_profile = profiles.get(path, (None, None))
            if profile is None:
                failed.append(path)
                continue
            run.add_profile(profile)
            if distributed_profile is not None:
                distributed.add_profile(distributed_profile)
        if failed:
            log.warning("run %s: %s cannot be read and is left out", self.run_name, ", ".join(sorted(failed)))
        if not run.profiles:
            raise ValueError(f"no trace of {self.run_name} can be read")
        for profile in self._process_spans(distributed) if distributed.profiles else []:
            if profile is not None:
                run.add_profile(profile)
        return run

    def _process_data(self, worker: str, span: int | None, path: str) -> None:
        if hasattr(os, "nice"):
            os.nice(10)  # in the child: the server, which answers a waiting reader, goes first
        super()._process_data(worker, span, path)

    def _traces(self) -> list[tuple[str, int | None, str]]:
        """(worker, number of the span or None, file name) of each trace in the run's folder."""
        names, spans = [], defaultdict(list)
        for path in io.listdir(self.run_dir):
            match = consts.WORKER_PATTERN.match(path)
            if match and not io.isdir(io.join(self.run_dir, path)):
                worker, span = match.group(1), match.group(2) and match.group(2)[1:]
                names.append((worker, span, path))
                if span is not None:
                    spans[worker].append(span)
        numbers = {
            (worker, span): number for worker in spans for number, span in enumerate(sorted(spans[worker]), start=1)
        }
        return [(worker, numbers.get((worker, span)), path) for worker, span, path in names]

    def _parse_in_child(self, worker: str, span: int | None, path: str) -> tuple[Any, Any]:
        """(RunProfile, DistributedRunProfileData) of one trace, parsed by a child; (None, None) where that fails."""
        with _loading:
            if not _running():
                return None, None
            receiver, sender = processes.Pipe(duplex=False)
            in_child = copy(self)
            in_child.queue = _Queue(sender.send)
            child = processes.Process(target=in_child._process_data, args=(worker, span, path), daemon=True)
            child.start()
            sender.close()  # so that the pipe ends when the child does, even in the middle of an answer
            try:
                while not receiver.poll(0.5):
                    if not _running():
                        child.terminate()
                        return None, None
                return receiver.recv()
            except (EOFError, OSError):  # the child ended before its answer, or in the middle of it
                child.join(5)
                log.warning("run %s: reading %s ended with exit code %s", self.run_name, path, child.exitcode)
                return None, None


class _Queue:
    """The queue into which a child puts its answer: one end of a pipe."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.put = send


def _running() -> bool:
    """False while TensorBoard shuts down: then no child is started or waited for."""
    return threading.main_thread().is_alive()


class EventParser(event_parser.EventParser):
    """Gives each collective the kernels that it launched, see `translation.COLLECTIVE`.

    Also lets the first step begin where the work of earlier steps ends, see `steps.end_of_earlier_work`.
    """

    parallel_wrappers: ClassVar[frozenset[str]] = frozenset()  # "….forward" of DP and DDP in the trace read last

    def parse(self, events: Iterable[trace.BaseEvent], fwd_bwd_map: dict[int, int]) -> Any:
        numbers: dict[tuple[Any, Any], int] = {}
        self.streams = [  # a number for the stream of each of `device_node_list`
            numbers.setdefault((event.pid, event.tid), len(numbers)) for event in events if event.type in DEVICE_WORK
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


def _us_within(step: Range, ranges: list[Range]) -> int:
    return get_ranges_sum(intersection_ranges_lists([step], list(ranges)))


def preprocess_file(trace_path: str, cache_dir: str) -> tuple[str, dict[str, Any]]:
    """The path of the file that the Trace view sends to the browser, and the trace's JSON in the format of 2021.

    The path is `trace_path`, or a repaired copy in `cache_dir` where a browser could not read the original.
    """
    text = io.read(trace_path)
    if text[:2] == b"\x1f\x8b":
        text = gzip.decompress(text)
    repaired = None
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = clean(text)  # literals such as N/A, which browsers refuse as well
        decoded = msgspec.json.decode(repaired)
    if _drop_far_end(decoded):
        repaired = msgspec.json.encode(decoded)
    if repaired:
        with tempfile.NamedTemporaryFile(suffix=".json.gz", dir=cache_dir, delete=False) as file:
            file.write(gzip.compress(repaired, 1))
        trace_path = file.name
    decoded = translated(decoded)
    EventParser.parallel_wrappers = frozenset(
        event["name"] for event in decoded["traceEvents"] if event["name"].endswith("Parallel.forward")
    )
    return trace_path, decoded


def _drop_far_end(decoded: Any) -> bool:
    """Remove the mark of the recording's end where it lies days after its begin, as the plugin does; True if so."""
    events = decoded.get("traceEvents") if isinstance(decoded, dict) else None
    if not isinstance(events, list):
        return False
    marks = [event for event in events if isinstance(event, dict) and isinstance(event.get("name"), str)]
    ends = [event for event in marks if event["name"] == "Record Window End"]
    begins = [event for event in marks if event["name"].startswith("Iteration Start:")]
    try:
        far = bool(ends and begins) and ends[-1]["ts"] - begins[-1]["ts"] > 24 * 3600 * 1000
    except (KeyError, TypeError):
        return False
    if far:
        events.remove(ends[-1])
    return far


def append_gpu_metrics(run: RunProfile, raw_data: bytes) -> bytes:
    """The Trace view's JSON, gzipped, with the GPU's counters before the first event.

    The plugin puts them before the last "]", which may stand in a name.
    """
    opening = re.search(rb'"traceEvents"\s*:\s*\[', raw_data) or re.search(rb"\[", raw_data)
    if opening is None:
        raise ValueError("it holds no list of events")
    counters = "".join(f"{counter}, " for counter in run.gpu_metrics or ()).encode()
    return gzip.compress(raw_data[: opening.end()] + counters + raw_data[opening.end() :], 1)


_plugin_to_dict = contract.DiffStats.to_dict


def diff_to_dict(diff: contract.DiffStats) -> dict[str, Any]:
    """A node of the Diff view. Both sides list the same operators: the page pairs them by their places in the lists."""
    node = _plugin_to_dict(diff)
    sides = [{agg["name"]: agg for agg in node[side]["aggs"]} for side in ("left", "right")]
    for side, aggs in zip(("left", "right"), sides, strict=True):
        node[side]["aggs"] = [aggs.get(name) or _no_calls(name) for name in sides[0] | sides[1]]
    return node


def _no_calls(name: str) -> dict[str, Any]:
    return contract.OpAgg(name, 0, 0, 0, 0, 0)._asdict()


def patch_parser() -> None:
    """Replace the parts of the plugin's parser that this module and `common.trace` do better."""
    uses = classmethod(lambda _, name: uses_tensor_cores(name) is True)
    eligible = classmethod(lambda _, name: name in ELIGIBLE or name in ELIGIBLE_SINCE)
    patches: list[tuple[object, str, object]] = [
        (data.RunProfileData, "_preprocess_file", staticmethod(preprocess_file)),
        (data, "EventParser", EventParser),
        (data, "OverallParser", OverallParser),
        (contract.DiffStats, "to_dict", diff_to_dict),
        (RunProfile, "append_gpu_metrics", append_gpu_metrics),
        (tensor_core.TC_Allowlist, "__contains__", uses),
        (tensor_core.TC_OP_Allowlist, "__contains__", eligible),
    ]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    for library, names in (("nccl:", trace.NcclOpNameSet), ("gloo:", trace.GlooOpNameSet)):
        names += sorted(name for name in COLLECTIVES if name.startswith(library) and name not in names)


patch_parser()
