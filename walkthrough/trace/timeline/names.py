"""What threads and streams are called in the timeline, and in which order their groups stand."""

import re

import numpy as np

from walkthrough.trace.columns import Trace, distinct
from walkthrough.trace.kernel_names import is_collective
from walkthrough.trace.operators import stepping_thread

MAIN, AUTOGRAD = "main thread", "autograd"
_GENERIC = re.compile(r"python[\d.]*|pt_main_thread")
_GIVEN = {"pt_autograd": AUTOGRAD, "pt_data_pin": "pin memory", "pt_data_worker": "DataLoader", "pt_gloo": "gloo"}
# What a thread runs that is not the main one: the first that it runs names it.
_OPERATORS = {
    AUTOGRAD: re.compile(r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$"),
    "gloo": re.compile("gloo:"),
    "pin memory": re.compile("aten::_?pin_memory"),
}
_FUNCTIONS = {
    "pin memory": re.compile(r"_utils/pin_memory\.py"),
    "DataLoader": re.compile(r"_utils/(worker|fetch)\.py|utils/data/dataloader\.py"),
}
ORDER = (MAIN, AUTOGRAD, "", "gloo", "DataLoader", "pin memory")  # "": threads that have no name


def thread_names(trace: Trace) -> dict[int, str]:
    """The name of each thread of the CPU (an index into `Trace.threads`), each once, in the order of `ORDER`."""
    spans = (trace.operators, trace.annotations, trace.python, trace.runtime)
    devices = np.concatenate([table.thread for table in (trace.kernels, trace.copies, trace.sets)])
    used = np.concatenate([table.thread for table in spans])
    threads = distinct(used[~np.isin(used, devices)] if len(devices) else used).tolist()
    main = _main_thread(trace)
    roles = {thread: "" for thread in threads} | _named_by(trace, _FUNCTIONS, "python")
    roles |= _named_by(trace, _OPERATORS, "operators") | _named_by(trace, _OPERATORS, "annotations")
    roles |= _given(trace, main)
    roles[main] = MAIN
    shown = sorted(threads, key=lambda thread: (_place(roles[thread]), thread))
    processes = {trace.threads[thread][0] for thread in threads}
    names, count = {}, {}
    for thread in shown:
        process, number = trace.threads[thread]
        name = roles[thread] or (f"thread {number}" if len(processes) == 1 else f"process {process}, thread {number}")
        count[name] = count.get(name, 0) + 1
        names[thread] = name if count[name] == 1 else f"{name} {count[name]}"
    return names


def stream_names(trace: Trace) -> dict[int, str]:
    """The name of each stream (an index into `Trace.threads`), such as "stream 20 (NCCL)", in order of its number."""
    collective = trace.named(trace.kernels, is_collective)
    by_nccl = trace.named(trace.kernels, lambda name: "nccl" in name.lower())
    library = ("RCCL" if trace.hip else "NCCL") if (collective & by_nccl).any() else "collectives"
    names = {}
    tables = (trace.kernels, trace.copies, trace.sets)
    threads = distinct(np.concatenate([table.thread for table in tables])).tolist()
    for thread in sorted(threads, key=lambda thread: (_number(trace.threads[thread][1]), thread)):
        of_stream = trace.kernels.thread == thread
        name = f"stream {trace.threads[thread][1].removeprefix('stream ').strip()}"
        if not of_stream.any():
            name += " (copies)"
        elif trace.kernels.duration[of_stream & collective].sum() > trace.kernels.duration[of_stream].sum() / 2:
            name += f" ({library})"
        names[thread] = name
    return names


def _main_thread(trace: Trace) -> int:
    if len(trace.operators) or trace.named(trace.annotations, lambda name: name.startswith("ProfilerStep#")).any():
        return stepping_thread(trace)
    for spans in (trace.annotations, trace.runtime, trace.python):
        if len(spans):
            return int(np.bincount(spans.thread).argmax())
    return -1


def _named_by(trace: Trace, patterns: dict[str, re.Pattern[str]], table: str) -> dict[int, str]:
    """{thread: name} of the threads that run what one of the patterns finds."""
    spans, names = getattr(trace, table), {}
    for name, pattern in patterns.items():
        for thread in distinct(spans.thread[trace.named(spans, pattern.search)]).tolist():
            names.setdefault(thread, name)
    return names


def _given(trace: Trace, main: int) -> dict[int, str]:
    """{thread: name} of the threads to which the trace gives a name that is not the whole process's."""
    if trace.details is None:
        return {}
    given = {}
    for thread, key in enumerate(trace.threads):
        text = trace.details.thread_names.get(key, "")
        in_brackets = re.search(r"\((.+)\)\s*$", text)  # "thread 425 (pt_autograd_0)"
        given[thread] = in_brackets[1] if in_brackets else text
    return {
        thread: next((name for start, name in _GIVEN.items() if text.startswith(start)), text)
        for thread, text in given.items()
        if text and not _GENERIC.fullmatch(text) and text != given.get(main)
    }


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else ORDER.index("")


def _number(text: str) -> float:
    digits = re.search(r"\d+", text)
    return float(digits[0]) if digits else np.inf
