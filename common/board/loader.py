"""torch-tb-profiler's loading of runs, with today's traces understood and no child waited for that has died.

The plugin parses each trace in a process of its own, started afresh ("spawn"). Such a child gets this module's
`RunLoader` by name, so it imports this module, and importing it mends the plugin's parser there as well.
"""

import gzip
import logging
import os
import re
import tempfile
import threading
from collections import defaultdict
from copy import copy

import msgspec
from torch_tb_profiler import consts, io
from torch_tb_profiler.multiprocessing import Pipe, Process
from torch_tb_profiler.profiler import data, event_parser, overall_parser, tensor_core, trace
from torch_tb_profiler.profiler import loader as theirs
from torch_tb_profiler.profiler.diffrun import contract
from torch_tb_profiler.profiler.range_utils import get_ranges_sum, intersection_ranges_lists, merge_ranges
from torch_tb_profiler.run import Run, RunProfile

from common.board.translation import COLLECTIVE, translated
from common.trace.recovery import clean
from common.trace.steps import COLLECTIVES
from common.trace.tensor_cores import ELIGIBLE, ELIGIBLE_SINCE, uses_tensor_cores

log = logging.getLogger("walkthrough")
_loading = threading.Semaphore(max(2, os.cpu_count() or 2))  # children at a time: each takes a core and much memory


class RunLoader(theirs.RunLoader):
    """Loads one run: the same profiles, but the wait ends when a child does."""

    def load(self):
        run, distributed = Run(self.run_name, self.run_dir), Run(self.run_name, self.run_dir)
        traces, failed, parsed = self._traces(), [], {}

        def parse(worker, span, path):
            parsed[path] = self._parsed(worker, span, path)

        threads = [threading.Thread(target=parse, args=trace, daemon=True) for trace in traces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, _, path in traces:
            profile, shared = parsed.get(path, (None, None))
            if profile is None:
                failed.append(path)
                continue
            run.add_profile(profile)
            if shared is not None:
                distributed.add_profile(shared)
        if failed:
            log.warning("run %s: %s cannot be read and is left out", self.run_name, ", ".join(sorted(failed)))
        if not run.profiles:
            raise ValueError(f"no trace of {self.run_name} can be read")
        for profile in self._process_spans(distributed) if distributed.profiles else []:
            if profile is not None:
                run.add_profile(profile)
        return run

    def _process_data(self, worker, span, path):
        if hasattr(os, "nice"):
            os.nice(10)  # in the child: whoever looks at a page goes first
        super()._process_data(worker, span, path)

    def _traces(self):
        """(worker, number of the span or None, file name) of each trace in the run's folder."""
        found, spans = [], defaultdict(list)
        for path in io.listdir(self.run_dir):
            match = consts.WORKER_PATTERN.match(path)
            if match and not io.isdir(io.join(self.run_dir, path)):
                worker, span = match.group(1), match.group(2) and match.group(2)[1:]
                found.append((worker, span, path))
                if span is not None:
                    spans[worker].append(span)
        numbers = {(worker, span): at for worker in spans for at, span in enumerate(sorted(spans[worker]), 1)}
        return [(worker, numbers.get((worker, span)), path) for worker, span, path in found]

    def _parsed(self, worker, span, path):
        """What a child makes of one trace: (profile, its part for the distributed view), or (None, None)."""
        with _loading:
            if not _running():
                return None, None
            receiver, sender = Pipe(duplex=False)
            mine = copy(self)
            mine.queue = _Sender(sender)
            child = Process(target=mine._process_data, args=(worker, span, path), daemon=True)
            child.start()
            sender.close()  # so that the pipe ends when the child does, even in the middle of an answer
            try:
                while not receiver.poll(0.5):
                    if not _running():
                        child.terminate()
                        return None, None
                return receiver.recv()
            except (EOFError, OSError):  # before its answer, or in the middle of it
                child.join(5)
                log.warning("run %s: reading %s ended with exit code %s", self.run_name, path, child.exitcode)
                return None, None


class _Sender:
    """What a child puts its answer into."""

    def __init__(self, connection):
        self.put = connection.send


def _running():
    """False when TensorBoard is about to end: then no child is started or waited for."""
    return threading.main_thread().is_alive()


class EventParser(event_parser.EventParser):
    """Also gives each collective the kernels that it launched, see `today.COLLECTIVE`."""

    wrapped = frozenset()  # names of the wrappers of parallel training in the trace that was read last

    def parse(self, events, fwd_bwd_map):
        found = super().parse(events, fwd_bwd_map)
        self.use_dp |= "DataParallel.forward" in self.wrapped
        self.use_ddp |= "DistributedDataParallel.forward" in self.wrapped
        kernels = [event for event in events if event.type == trace.EventTypes.KERNEL]
        linked = [event for event in kernels if event.args.get(COLLECTIVE) in self.communication_data]
        ranges = defaultdict(list)
        for event in linked:
            ranges[event.args[COLLECTIVE]].append((event.ts, event.ts + event.duration))
        for number, kernel_ranges in ranges.items():
            collective = self.communication_data[number]
            collective.kernel_ranges = sorted(kernel_ranges)
            collective.total_time = sum(end - begin for begin, end in kernel_ranges)
        OverallParser.communicating = merge_ranges([each for some in ranges.values() for each in some])
        OverallParser.computing = merge_ranges(
            [(event.ts, event.ts + event.duration) for event in kernels if COLLECTIVE not in event.args]
        )
        return found


class OverallParser(overall_parser.OverallParser):
    """Its overlap of communication and computation is that of the kernels, where collectives have any.

    communicating, computing: merged ranges of the kernels of the trace that was parsed last (a child parses one).
    """

    communicating = computing = ()

    def aggregate(self, steps, role_ranges):
        super().aggregate(steps, role_ranges)
        if not self.communicating:
            return
        both = intersection_ranges_lists(list(self.computing), list(self.communicating))
        for step, costs in zip(steps, self.communication_overlap, strict=True):
            costs.overlap = _within(step, both)
            costs.computation = _within(step, self.computing)
            costs.communication = _within(step, self.communicating)
            costs.other = step[1] - step[0] + costs.overlap - costs.computation - costs.communication


def _within(step, ranges):
    return get_ranges_sum(intersection_ranges_lists([step], list(ranges)))


def read(path, cache_dir):
    """A trace file's path, or that of a mended copy for the Trace view, and its JSON in the dialect of 2021."""
    text = io.read(path)
    if text[:2] == b"\x1f\x8b":
        text = gzip.decompress(text)
    mended = None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = clean(text)  # literals such as N/A: browsers refuse them as well
        found = msgspec.json.decode(mended)
    if _without_far_end(found):
        mended = msgspec.json.encode(found)
    if mended:
        with tempfile.NamedTemporaryFile(suffix=".json.gz", dir=cache_dir, delete=False) as file:
            file.write(gzip.compress(mended, 1))
        path = file.name
    found = translated(found)
    EventParser.wrapped = {
        event["name"] for event in found["traceEvents"] if event["name"].endswith("Parallel.forward")
    }
    return path, found


def _without_far_end(found):
    """Take out the mark of the recording's end where it lies days after its begin, as the plugin does; if it did."""
    events = found.get("traceEvents") if isinstance(found, dict) else None
    marks = [event for event in events or () if isinstance(event, dict) and isinstance(event.get("name"), str)]
    ends = [event for event in marks if event["name"] == "Record Window End"]
    begins = [event for event in marks if event["name"].startswith("Iteration Start:")]
    try:
        far = bool(ends and begins) and ends[-1]["ts"] - begins[-1]["ts"] > 24 * 3600 * 1000
    except (KeyError, TypeError):
        return False
    if far:
        events.remove(ends[-1])
    return far


def append_gpu_metrics(run, text):
    """The Trace view's JSON, gzipped, with the counters of the GPU in front of the events: no name can end the list."""
    opening = re.search(rb'"traceEvents"\s*:\s*\[', text) or re.search(rb"\[", text)
    counters = "".join(f"{counter}, " for counter in run.gpu_metrics).encode()
    return gzip.compress(text[: opening.end()] + counters + text[opening.end() :], 1)


def to_dict(diff):
    """A node of the Diff view for its page, which pairs the operators of both sides by their places in the lists."""
    found = _to_dict(diff)
    sides = [{agg["name"]: agg for agg in found[side]["aggs"]} for side in ("left", "right")]
    for side, aggs in zip(("left", "right"), sides, strict=True):
        found[side]["aggs"] = [aggs.get(name) or _no_calls(name) for name in sides[0] | sides[1]]
    return found


def _no_calls(name):
    return contract.OpAgg(name, 0, 0, 0, 0, 0)._asdict()


_to_dict = contract.DiffStats.to_dict


def mend_parser():
    """Put what is above, and what common.trace knows, in the place of what the plugin's parser has."""
    data.RunProfileData._preprocess_file = staticmethod(read)
    data.EventParser = EventParser
    data.OverallParser = OverallParser
    contract.DiffStats.to_dict = to_dict
    RunProfile.append_gpu_metrics = append_gpu_metrics
    for library, names in (("nccl:", trace.NcclOpNameSet), ("gloo:", trace.GlooOpNameSet)):
        names += sorted(name for name in COLLECTIVES if name.startswith(library) and name not in names)
    uses = classmethod(lambda _, name: uses_tensor_cores(name) is True)
    able = classmethod(lambda _, name: name in ELIGIBLE or name in ELIGIBLE_SINCE)
    tensor_core.TC_Allowlist.__contains__, tensor_core.TC_OP_Allowlist.__contains__ = uses, able


mend_parser()
