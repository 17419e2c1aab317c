"""Traces made by hand, event by event, in the formats that torch.profiler has written over the years."""

import gzip
import json
import tempfile
from pathlib import Path

from walkthrough.advice.gains import advise
from walkthrough.trace.analysis import analyze
from walkthrough.trace.reader import read

CATEGORIES = {  # kind: (2021, today)
    "op": ("Operator", "cpu_op"),
    "annotation": ("Operator", "user_annotation"),
    "runtime": ("Runtime", "cuda_runtime"),
    "kernel": ("Kernel", "kernel"),
    "copy": ("Memcpy", "gpu_memcpy"),
    "set": ("Memset", "gpu_memset"),
}
V100 = {"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0}


class TraceBuilder:
    """Collects events; times in µs. Each method returns the event, so that a test can spoil it."""

    def __init__(self, era="today", devices=(V100,), rank=None):
        self.era, self.events, self.ids = era, [], 0
        self.header = {"schemaVersion": 1, "deviceProperties": list(devices)}
        if rank is not None:
            self.header["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}

    def add(self, kind, name, ts, dur, tid=1, pid=100, **args):
        category = CATEGORIES[kind][self.era == "today"] if kind in CATEGORIES else kind
        args = {key.replace("_", " "): value for key, value in args.items()}
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        self.events.append(event)
        return event

    def step(self, number, ts, dur):
        return self.add("annotation", f"ProfilerStep#{number}", ts, dur)

    def op(self, name, ts, dur, tid=1, kind="op", sequence=None):
        """An operator; returns the event, whose External id `launch` takes. sequence: its number, see `Spans`."""
        self.ids += 1
        event = self.add(kind, name, ts, dur, tid)
        if sequence is not None:
            event["args"]["Sequence number"] = sequence
        event["args"]["External id"] = self.ids
        return event

    def loading(self, ts, dur, loader="_SingleProcessDataLoaderIter"):
        return self.op(f"enumerate(DataLoader)#{loader}.__next__", ts, dur, kind="annotation")

    def launch(
        self, name, ts, dur, at, length, *,
        op=None, kind="kernel", call="cudaLaunchKernel", device=0, tid=1, stream=7, **args,
    ):  # fmt: skip
        """A runtime call on the CPU at `ts`, and the device work it starts at `at`; returns the two events."""
        self.ids += 1
        external = op["args"]["External id"] if op else 0
        key = "External id" if self.era == "today" else "external id"
        calling = self.add("runtime", call, ts, dur, tid, correlation=self.ids)
        place = {"tid": stream, "pid": device, "device": device, "stream": stream}
        working = self.add(kind, name, at, length, correlation=self.ids, **place)
        calling["args"][key] = working["args"][key] = external
        working["args"].update(args)
        return calling, working

    def copy(self, ts, dur, at, length, size, name="Memcpy HtoD (Pageable -> Device)", **more):
        return self.launch(name, ts, dur, at, length, kind="copy", call="cudaMemcpyAsync", bytes=size, **more)

    def wait(self, ts, until, call="cudaStreamSynchronize", **more):
        """A call that waits for the GPU, from `ts` to `until`."""
        return self.add("runtime", call, ts, until - ts, correlation=-2, **more)

    def memory(self, ts, change, total=None, reserved=None, address=None, device=0, tid=1):
        """An allocator's event; device None is the CPU."""
        args = {"Device Type": int(device is not None), "Device Id": -1 if device is None else device, "Bytes": change}
        args |= {} if total is None else {"Total Allocated": total}
        args |= {} if reserved is None else {"Total Reserved": reserved}
        args |= {} if address is None else {"Addr": address}
        event = {"ph": "i", "s": "t", "name": "[memory]", "pid": 100, "tid": tid, "ts": ts, "args": args}
        if self.era == "today":
            event["cat"] = "cpu_instant_event"
        self.events.append(event)
        return event

    @property
    def json(self):
        return self.header | {"traceEvents": self.events, "traceName": "made by hand"}

    def write(self, path, text=None):
        """Write it to `path`, gzipped where the name says so, as `text` (bytes) if given; returns the path."""
        data = json.dumps(self.json).encode() if text is None else text
        path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
        return path


def one_step(length=1000, **header):
    """A step of so many µs, from 0 on."""
    builder = TraceBuilder(**header)
    builder.step(1, 0, length)
    return builder


def repeated(add, length=1000, steps=4, **header):
    """Steps of so many µs that follow one another, from 0 on, each with what add(builder, begin) adds."""
    builder = TraceBuilder(**header)
    for number in range(steps):
        builder.step(number, number * length, length)
        add(builder, number * length)
    return builder


def read_trace(builder):
    """The `Trace` of what a builder holds."""
    with tempfile.TemporaryDirectory() as folder:
        return read(builder.write(Path(folder) / "made.pt.trace.json"))


def analyzed(builder):
    """The `Analysis` of what a builder holds."""
    with tempfile.TemporaryDirectory() as folder:
        return analyze(builder.write(Path(folder) / "made.pt.trace.json"))


def costs(builder):
    """The `Advice` on every cost of what a builder holds, by the cost's id."""
    return {item.id: item for item in advise(analyzed(builder)).costs}


def two_steps(era="today"):
    """Two steps of 1000 µs on one GPU in which every role and every cause of waiting appears once.

    Each step: 0-200 loading, 200-250 a call that copies (the copy runs 210-240), 300-340 an operator whose launch at
    310-320 starts a kernel that runs 330-730, 740-780 a synchronisation, 800-860 a backward pass that launches nothing.
    """
    builder = TraceBuilder(era)
    for number, begin in ((3, 10_000), (4, 11_000)):
        builder.step(number, begin, 1000)
        builder.loading(begin, 200)
        builder.copy(begin + 200, 50, begin + 210, 30, 1_000_000)
        op = builder.op("aten::cudnn_convolution", begin + 300, 40)
        name = "volta_scudnn_128x64_relu_interior_nn_v1"
        builder.launch(name, begin + 310, 10, begin + 330, 400, op=op, **{
            "blocks per SM": 0.5, "est. achieved occupancy %": 40,
        })  # fmt: skip
        builder.add("runtime", "cudaDeviceSynchronize", begin + 740, 40, correlation=-2)
        builder.op("ConvolutionBackward0", begin + 800, 60)
    return builder


def run_ahead(era="today"):
    """Three steps that the CPU launches in 100 µs each, while the GPU needs 1000 µs for each and is two steps behind.

    Kernels of the two earlier steps, which were launched before the trace, end at 2000; from there on the GPU runs the
    three steps, each a kernel of 600 µs, 10 µs of nothing and a kernel of 390 µs. Each step first copies the next batch
    in a stream of its own, at once, so before the earlier kernels end.
    """
    builder = TraceBuilder(era)
    for at, length in ((5, 995), (1000, 1000)):
        calling, _ = builder.launch("k", 0, 1, at, length)
        builder.events.remove(calling)
    for number in range(3):
        begin, at = number * 100, 2000 + number * 1000
        builder.step(number, begin, 100)
        builder.copy(begin + 10, 5, begin + 20, 50, 1000, name="Memcpy HtoD (Pinned -> Device)", stream=20)
        op = builder.op("aten::mm", begin + 30, 60)
        builder.launch("k", begin + 40, 10, at, 600, op=op)
        builder.launch("k", begin + 60, 10, at + 610, 390, op=op)
    return builder
