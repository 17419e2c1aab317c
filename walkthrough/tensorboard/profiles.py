"""The runs of PYTORCH_PROFILER as torch-tb-profiler's routes want them, from the profiles of their traces."""

import gc
import logging
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_tb_profiler.profiler.loader import RunLoader
from torch_tb_profiler.run import Run

from walkthrough.tensorboard.answers import Kept
from walkthrough.tensorboard.traces import Trace

log = logging.getLogger("walkthrough")
MEMORY_LIMIT = 256 * 2**20  # bytes of pickled profiles, which take several times as much as objects
AT_LEAST = 2  # runs in memory: the Diff view compares two


class Missing(Exception):
    """The profile of a trace is not kept any more, or damaged: it has to be read again."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.path)
        self.trace = trace


class Profiles:
    """The runs that were asked for last, from the profiles in `kept`. Thread-safe.

    dropped: called after a run was replaced or has left the memory.
    """

    def __init__(self, kept: Kept, dropped: Callable[[], None]) -> None:
        self._kept, self._dropped = kept, dropped
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[tuple[Trace, ...], Run, int]] = OrderedDict()

    def run(self, name: str, folder: str, traces: tuple[Trace, ...]) -> Run:
        """The run of that name with the profiles of these traces. Raises Missing."""
        with self._lock:
            if name in self._runs and self._runs[name][0] == traces:
                self._runs.move_to_end(name)
                return self._runs[name][1]
            replaced = self._runs.pop(name, None) is not None
            run, size = self._put_together(name, folder, traces)
            self._runs[name] = traces, run, size
            while len(self._runs) > AT_LEAST and sum(size for _, _, size in self._runs.values()) > MEMORY_LIMIT:
                self._runs.popitem(last=False)
                replaced = True
        if replaced:
            self._dropped()
        return run

    def keep_only(self, names: set[str]) -> None:
        """Drop the other runs from the memory."""
        with self._lock:
            gone = [name for name in self._runs if name not in names]
            for name in gone:
                del self._runs[name]
        if gone:
            self._dropped()

    def _put_together(self, name: str, folder: str, traces: tuple[Trace, ...]) -> tuple[Run, int]:
        """(run, bytes of its pickled profiles)."""
        run, distributed, total = Run(name, folder), Run(name, folder), 0
        for trace in traces:
            profile, of_distributed, size = self._profile(trace)
            run.add_profile(profile)
            distributed.add_profile(of_distributed)
            total += size
        try:
            for profile in _Distributed(name)._process_spans(distributed):
                if profile is not None:
                    run.add_profile(profile)
        except Exception:
            log.warning("run %s: no Distributed view", name, exc_info=True)
        return run, total

    def _profile(self, trace: Trace) -> tuple[Any, Any, int]:
        """(RunProfile, DistributedRunProfileData, bytes of the two pickled)."""
        pickled = self._kept.unpacked(trace.key)
        path = self._kept.path(trace.key)
        if not path:
            raise Missing(trace)
        collecting = gc.isenabled()
        gc.disable()  # it would look again and again at the objects that appear here, and take most of the time
        try:
            profile, distributed = pickle.loads(pickled or b"")  # from a file that only this user can write
        except Exception as error:
            _delete(path)
            raise Missing(trace) from error
        finally:
            if collecting:
                gc.enable()
        if profile.trace_file_path != trace.path and not os.path.exists(profile.trace_file_path):
            _delete(path)
            raise Missing(trace)
        with suppress(OSError):
            os.utime(path)  # the oldest go first
        return profile, distributed, len(pickled or b"")


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


class _Distributed(RunLoader):
    """The plugin's own loader, for what it computes from several traces."""

    def __init__(self, run_name: str) -> None:  # the plugin's opens a queue
        self.run_name = run_name
