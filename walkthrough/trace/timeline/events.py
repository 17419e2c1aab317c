"""A trace's events by the kinds of lanes that show them."""

import re
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from walkthrough.trace.columns import Spans, Trace, launching_operators
from walkthrough.trace.kernel_names import is_collective_mark
from walkthrough.trace.steps import is_loading, is_step

TABLES = ("operators", "annotations", "python", "runtime", "kernels", "copies", "sets")
_MARK = re.compile(r"Optimizer\.")
_IN_OPERATORS = ("enumerate(DataLoader)", "enumerate(DataPipe)", "Optimizer.")


class Events(Struct, frozen=True):
    """Events of one kind of lane, in columns, sorted by start, outer events first.

    start, end: µs since `Trace.origin`, float64. name, thread, detail, correlation, sequence: int64, see
    `columns.Spans`. device: of kernels and copies, float64. source, row: from which of the trace's tables each event
    is, an index into `TABLES`, and its index there.
    call, operator: rows of `Trace.runtime` and `Trace.operators` that launched each kernel or copy, -1 for none.
    """

    kind: str
    source: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    name: np.ndarray
    thread: np.ndarray
    detail: np.ndarray
    correlation: np.ndarray
    sequence: np.ndarray
    device: np.ndarray
    call: np.ndarray
    operator: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: np.ndarray) -> "Events":
        """The events that a boolean mask or an index array selects."""
        return Events(**{name: _selected(column, mask) for name, column in asdict(self).items()})

    def within(self, begin: float, end: float) -> "Events":
        """The events that overlap [begin, end)."""
        return self.where((self.start < end) & ((self.end > begin) | (self.start >= begin)))


def events(trace: Trace) -> list[Events]:
    """All events of a trace that have a lane, by kind. The marks of steps have none."""
    operators, annotations = trace.operators, trace.annotations
    everything = slice(None)
    kept = ~trace.named(operators, is_step)
    loading = trace.named(operators, is_loading)
    collective = trace.named(operators, is_collective_mark)
    marks = trace.named(operators, _MARK.match)
    on_device = np.isin(annotations.thread, np.concatenate([trace.kernels.thread, trace.copies.thread]))
    shown = ~on_device & ~trace.named(annotations, lambda name: is_step(name) or name.startswith(_IN_OPERATORS))
    with_collective = trace.named(annotations, is_collective_mark)
    return [
        _of(trace, "mark", "operators", kept & marks),
        _of(trace, "mark", "annotations", shown & ~with_collective),
        _of(trace, "loader", "operators", kept & loading),
        _of(trace, "collective", "operators", kept & collective),
        _of(trace, "collective", "annotations", shown & with_collective),
        _of(trace, "cpu", "operators", kept & ~loading & ~collective & ~marks),
        _of(trace, "python", "python", everything),
        _of(trace, "runtime", "runtime", everything),
        _of(trace, "kernel", "kernels", everything),
        _of(trace, "copy", "copies", everything),
        _of(trace, "copy", "sets", everything),
    ]


def _of(trace: Trace, kind: str, table: str, mask: np.ndarray | slice) -> Events:
    spans: Spans = getattr(trace, table)
    row = np.arange(len(spans))[mask]
    chosen = spans.where(row)
    nothing = np.full(len(row), -1)
    call = chosen.call if kind in ("kernel", "copy") else nothing
    return Events(
        kind=kind,
        source=np.full(len(row), TABLES.index(table)),
        row=row,
        start=chosen.start,
        end=chosen.end,
        name=chosen.name,
        thread=chosen.thread,
        detail=chosen.detail if len(chosen.detail) else nothing,
        correlation=chosen.correlation,
        sequence=chosen.sequence if len(chosen.sequence) else nothing,
        device=chosen.device if len(chosen.device) else nothing.astype(np.float64),
        call=call,
        operator=launching_operators(trace, call) if kind in ("kernel", "copy") else nothing,
    )


def joined(parts: list[Events]) -> Events:
    """The events of several tables of one kind, sorted."""
    if len(parts) == 1:
        return parts[0]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Events.__struct_fields__
        if name != "kind"
    }
    both = Events(kind=parts[0].kind, **columns)
    return both.where(np.lexsort([-both.end, both.start]))


def _selected(column: Any, mask: np.ndarray) -> Any:
    return column if isinstance(column, str) else column[mask]
