"""Records a few training steps with torch.profiler and writes one trace for this process."""

from __future__ import annotations

import errno
import glob
import gzip
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from typing import Any

from .task import Task, rank, usable_cores, world_size
from .watch import Watch

MOVES = 3  # times that the traced window begins anew because something unusual is in it
OWN_PROFILER = (
    "the program has a profiler of its own running: switch that off for this, or open what it records with explain"
)


class Tracing(Task):
    """Traces `steps` steps of the leading marker, after one in which the profiler itself warms up.

    A step that also evaluates, saves or begins a new epoch is not like the others: the window begins anew, up to
    `MOVES` times; not with several processes, which must all trace the same steps. Then such steps are named.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        self.profiler: Any = None
        self.open_mark: Any = None
        self.foreign: set[int] = set()
        self.moved = self.left = self.traced = 0
        self.happenings: list[dict[str, str]] = []
        self.at_begin = self.at_end = _counts(None)
        self._handler: Any = None
        self._discard = False

    def begin(self, watch: Watch) -> None:
        """Start the profiler, at the end of a step."""
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        if self.foreign or torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
            self.fail(OWN_PROFILER)
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports the missing GPU as an error
        more = {}
        if self.settings["stacks"]:
            from torch._C._profiler import _ExperimentalConfig

            more["experimental_config"] = _ExperimentalConfig(verbose=True)  # operators' stacks need it
        active = self.settings["steps"]
        self.left, self.traced, self.happenings = 1 + active, 0, []
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=active, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            profile_memory=self.settings["memory"],
            with_stack=self.settings["stacks"],
            **more,
        )
        self.report.update(state="measuring")
        self.running = True
        self._catch_sigterm()
        self.profiler.start()

    def step(self, watch: Watch) -> None:
        """A training step has ended."""
        if self.finished:
            self.end_program()
            return
        if self.profiler is None:
            self.begin(watch)
            return
        unusual = watch.unusual()
        self.left -= 1
        if self.left == self.settings["steps"]:  # the profiler has warmed up: from here on it records
            self.at_begin = _counts(watch)
        else:
            self.traced += 1
            self.at_end = _counts(watch)
            self.happenings += [{"step": str(self.profiler.step_num), "what": what} for what in unusual]
        if unusual and self.left < self.settings["steps"] and self.moved < MOVES and world_size() == 1:
            self.moved += 1
            self._stop(discard=True)
            return
        if self.left == 0:
            self._add_metadata(watch)
        self.profiler.step()  # writes the trace, after the last step
        if self.left == 0:
            self._stop()
            self.end_program()

    def end(self, watch: Watch) -> None:
        """The program ends, while it is traced perhaps: at least one whole step is a trace."""
        if self.running and self.traced:
            self._add_metadata(watch)
            self.open_mark = self.profiler.step_rec_fn  # of the step that is cut off: kept open, so no whole step
            self.profiler.step_rec_fn = None
            self._stop()
        elif self.report.state == "measuring":
            self.report.update(state="failed", reason="the program ended before a whole step was traced")
            if self.running:
                self._stop(discard=True)
        elif self.report.state == "stepping":
            self.report.update(steps=watch.lead.count if watch.lead else 0)

    def restart(self) -> None:
        if self.running:
            self._stop(discard=True)

    def foreign_profiler(self, profiler: Any) -> None:
        """The program starts a profiler: both cannot record."""
        if profiler is self.profiler:
            return
        self.foreign.add(id(profiler))
        if self.running:
            self._stop(discard=True)
            self.fail(OWN_PROFILER)

    def foreign_profiler_ends(self, profiler: Any) -> None:
        self.foreign.discard(id(profiler))

    def _stop(self, discard: bool = False) -> None:
        profiler, self.profiler, self.running = self.profiler, None, False
        self._discard = discard
        try:
            profiler.stop()  # writes what there is, unless it is written
        finally:
            self._discard = False
            self._restore_sigterm()

    def _write(self, profiler: Any) -> None:
        """Write the trace: whole, or not at all."""
        if self._discard or self.report.state != "measuring":
            return
        worker = rank()
        host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()) or "host"
        stamp = f"{host}_{os.getpid() if worker is None else worker}.{time.time_ns()}"
        out = self.settings["out"]
        name, plain = f"{stamp}.pt.trace.json.gz", os.path.join(out, f".{stamp}.json")
        packed = os.path.join(out, f".{stamp}.gz")
        try:
            os.makedirs(out, exist_ok=True)
            profiler.export_chrome_trace(plain)
            if not _is_whole(plain):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(plain, "rb") as file, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(file, target, 2**20)
            os.replace(packed, os.path.join(out, name))
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.report.update(state="failed", reason=f"cannot write the trace to {out}: {reason}")
        else:
            self.report.update(state="done", trace=name, traced=max(self.traced, 1), rank=worker)
        finally:
            for path in glob.glob(os.path.join(glob.escape(out), f".{stamp}.*")):  # Kineto's own, too
                os.unlink(path)

    def _add_metadata(self, watch: Watch) -> None:
        """Add to the trace what `_metadata` holds; the profiler takes it only while it records."""
        self.profiler.add_metadata_json("walkthrough", json.dumps(self._metadata(watch)))

    def _metadata(self, watch: Watch) -> dict[str, Any]:
        steps = max(self.traced, 1)
        backwards, skipped, samples = (after - before for before, after in zip(self.at_begin, self.at_end))
        return {
            "untraced_step_ms": [round(ms, 3) for ms in watch.untraced_ms()],
            "steps_per_epoch": watch.steps_per_epoch(),
            "epoch_step_ms": [round(ms, 3) for ms in watch.epoch_step_ms],
            "cores": usable_cores(),
            "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            "mark": "backward" if "backward" in watch.markers else "optimizer",
            "backwards_per_step": backwards / steps,
            "skipped": skipped,
            "samples_per_step": samples / steps if samples > 0 else None,
            "moved": self.moved,
            "optimizers": [
                {"name": marker.name, "steps": marker.count, "lead": marker is watch.lead}
                for key, marker in watch.markers.items()
                if key != "backward"
            ],
            "loaders": watch.loader_settings(),
            "happenings": self.happenings,
        }

    def _catch_sigterm(self) -> None:
        """Let SIGTERM end the program by SystemExit while it is traced, so that what there is is written."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._handler = lambda *_: sys.exit(143)
            signal.signal(signal.SIGTERM, self._handler)

    def _restore_sigterm(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and self._handler is not None and signal.getsignal(signal.SIGTERM) is self._handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handler = None


def _counts(watch: Watch | None) -> tuple[int, int, int]:
    """Backward passes, skipped steps and samples so far; 0 samples where they are not known."""
    return (watch.backwards, watch.skipped, watch.samples() or 0) if watch else (0, 0, 0)


def _is_whole(path: str) -> bool:
    """Whether a JSON object in a file ends: on a full disk the profiler truncates it without an error."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        return file.read().rstrip().endswith(b"}")
