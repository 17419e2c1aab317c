"""What a process measures, by tracing or timing its steps, and its report to the command that started it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import gzip
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from typing import IO, Any

from .watch import CHECKPOINT, EVALUATION, Watch

TRIES = 5  # a program that catches SystemExit so often goes on to its own end
WINDOWS = 5
REPEATS = 20  # windows measured again in one run; more would wait for an end that may not come
MOVES = 3  # times that the traced window begins anew because something unusual is in it
OWN_PROFILER = (
    "the program has a profiler of its own running: switch that off for this, or open what it records with explain"
)


class Report:
    """The report of this process; the folder `reports` is shared by all processes of a command.

    state: "python" (has started), "torch" (has imported torch), "stepping" (a training step has ended), "measuring"
    (being traced, or timed), "done", or "failed" (`reason` says why).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        host, pid = socket.gethostname(), os.getpid()
        self.lock, self.is_same_host = os.path.join(settings["reports"], "lock"), settings["host"] == host
        self.path = os.path.join(settings["reports"], f"{host}.{pid}.json")
        self.values: dict[str, object] = {"host": host, "pid": pid, "state": "python", "python": sys.version.split()[0]}

    def is_orphan(self) -> bool:
        """Whether the command that started this process has ended: its lock is gone, or nobody holds it."""
        try:
            file = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:  # too many files are open, say
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # held, or a file system without locks
            return False
        finally:
            os.close(file)
        return self.is_same_host  # on another host, some file systems do not show that it is held

    def update(self, **values: object) -> None:
        """Add values and write the file; where that fails an empty file, which fits on a full disk, has the errno."""
        self.values.update(values)
        if self.is_orphan():
            return
        beside = f"{self.path}.partial"
        with contextlib.suppress(OSError):
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside)
                with open_new(beside) as file:
                    file.write(json.dumps(self.values).encode())
                os.replace(beside, self.path)
            except OSError as error:
                os.replace(beside, f"{self.path}.{error.errno}")

    @property
    def state(self) -> object:
        return self.values["state"]


def open_new(path: str) -> IO[bytes]:
    """A new file, opened to be written: no planted link is followed."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


class Task:
    """Called by a `Watch` at the end of each training step after the warm-up.

    running: whether steps are being measured. done: whether no further step matters.
    """

    def __init__(self, settings: dict[str, Any], report: Report) -> None:
        self.settings, self.report = settings, report
        self.running = self.done = self.finished = False
        self._tries = 0

    def end_program(self) -> None:
        """End the program as `sys.exit()` in its own code would: `finally` blocks and exit handlers run.

        Never by `os._exit`, which leaves loader workers and fork servers behind. From another thread than the main one
        as Ctrl-C would, or SIGTERM where Ctrl-C is ignored.
        """
        self.finished = True
        self._tries += 1
        if self.settings["go_on"] or self._tries > TRIES or self.report.is_orphan():
            self.done = True
            return
        self.report.update(ended_by_us=True)
        with contextlib.suppress(Exception):  # it may be closed, or None
            sys.stdout.flush()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        self.done = True
        heeds = callable(signal.getsignal(signal.SIGINT))
        os.kill(os.getpid(), signal.SIGINT if heeds else signal.SIGTERM)
        raise SystemExit(0)  # ends this thread

    def fail(self, reason: str) -> None:
        """Measure no more, for a reason that the user is told, and end the program."""
        self.running = False
        self.report.update(state="failed", reason=reason)
        self.end_program()

    def restart(self) -> None:
        """Another marker marks the steps from now on."""

    def foreign_profiler(self, profiler: Any) -> None:
        """The program starts a profiler of its own."""

    def foreign_profiler_ends(self, profiler: Any) -> None:
        """That profiler ends."""


def rank() -> int | None:
    """The rank of this process: torch.distributed's, else what a launcher has set; None for a single process."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def world_size() -> int:
    """How many processes train together, as far as torch.distributed knows."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity mask, and its cgroup's quota rounded up where it has one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="utf-8") as file:
            quota, period = file.read().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)


class Timing(Task):
    """Times `steps` steps of the leading marker after the warm-up, in `WINDOWS` windows that are as long as can be.

    A window in which the program evaluates or saves is measured again, from there; not with several processes, which
    must all end after the same step. An epoch that begins is part of the time, unless the program evaluates before it.

    Reports `seconds` and `samples` of each window (samples None where batches have no known size), the `steps` of each,
    and how often something else happened in them: a new epoch, an evaluation, a checkpoint.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        steps, windows = settings["steps"], min(WINDOWS, settings["steps"])
        edges = [steps * number // windows for number in range(windows + 1)]
        self.lengths = [b - a for a, b in zip(edges, edges[1:])]  # of the windows, in steps
        self.repeated = 0
        self.restart()

    def restart(self) -> None:
        self.windows: list[tuple[int, float, int | None]] = []  # steps, seconds, samples (None where not known)
        self.happenings: dict[str, int] = {}
        self.begun: tuple[float, int | None] | None = None  # of the current window: s, samples
        self.count, self.in_window = 0, []  # steps of it, and what happened in them

    def begin(self, watch: Watch) -> None:
        self.running = True
        self.report.update(state="measuring")
        self._begin_window(watch)

    def step(self, watch: Watch) -> None:
        if self.finished:
            self.end_program()
            return
        if self.begun is None:  # after a restart
            self._begin_window(watch)
            return
        self.count += 1
        unusual = watch.unusual()
        if {EVALUATION, CHECKPOINT} & set(unusual) and self.repeated < REPEATS and world_size() == 1:
            self.repeated += 1
            self._begin_window(watch)
            return
        self.in_window += unusual
        if self.count < self.lengths[len(self.windows)]:
            return
        now, samples = _now(watch)
        begun, samples_before = self.begun
        known = samples is not None and samples_before is not None and samples > samples_before
        self.windows.append((self.count, now - begun, samples - samples_before if known else None))  # type: ignore
        for what in self.in_window:
            self.happenings[what] = self.happenings.get(what, 0) + 1
        if len(self.windows) < len(self.lengths):
            self._begin_window(watch)
            return
        self.running = False
        steps, seconds, counts = map(list, zip(*self.windows))
        self.report.update(
            state="done",
            rank=rank(),
            steps=steps,
            seconds=seconds,
            samples=counts if all(counts) else None,
            happenings=self.happenings,
        )
        self.end_program()

    def end(self, watch: Watch) -> None:
        if not self.finished:
            self.report.update(steps=watch.lead.count if watch.lead else 0)

    def _begin_window(self, watch: Watch) -> None:
        self.begun, self.count, self.in_window = _now(watch), 0, []


def _now(watch: Watch) -> tuple[float, int | None]:
    """The time, s, once the GPU has done what was launched; and the samples that were trained on."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter(), watch.samples()


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
        self.at_begin = self.at_end = (0, 0, 0)  # `_counts`, before the first traced step and after the last
        self._handler: Any = None

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
        profiler, self.profiler, self.running = self.profiler, None, not discard
        try:
            profiler.stop()  # writes what there is, unless it is written
        finally:
            self.running = False
            self._restore_sigterm()

    def _write(self, profiler: Any) -> None:
        """Write the trace, whole or not at all; one to be redacted stays among the reports."""
        if not self.running or self.report.state != "measuring" or self.report.is_orphan():
            return
        worker, redact = rank(), self.settings["redact"]
        host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()) or "host"
        who = ("process" if worker is None else "rank") if redact else host
        name = f"{who}_{os.getpid() if worker is None else worker}.{time.time_ns()}.pt.trace.json.gz"
        reports, out = self.settings["reports"], self.settings["out"]
        plain = os.path.join(reports, f"{secrets.token_hex(8)}.trace")  # a name that nobody can plant a link under
        packed = f"{plain}.gz"
        try:
            profiler.export_chrome_trace(plain)
            if not _is_whole(plain):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(plain, "rb") as file, open_new(packed) as new, gzip.GzipFile("", "wb", 3, new) as target:
                shutil.copyfileobj(file, target, 2**20)
            if self.report.is_orphan():
                return
            os.replace(packed, os.path.join(reports if redact else out, name))
            values = {"state": "done", "trace": name, "traced": max(self.traced, 1), "rank": worker}
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            values = {"state": "failed", "reason": f"cannot write the trace to {out}: {reason}"}
        finally:
            for path in glob.glob(f"{glob.escape(plain)}*"):  # Kineto's own, too
                with contextlib.suppress(FileNotFoundError):  # the command has removed the folder
                    os.unlink(path)
        self.report.update(**values)

    def _add_metadata(self, watch: Watch) -> None:
        """Add to the trace what its file does not hold otherwise; the profiler takes it only while it records."""
        steps = max(self.traced, 1)
        backwards, skipped, samples = (after - before for before, after in zip(self.at_begin, self.at_end))
        metadata = {
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
        self.profiler.add_metadata_json("walkthrough", json.dumps(metadata))

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


def _counts(watch: Watch) -> tuple[int, int, int]:
    """Backward passes, skipped steps and samples so far; 0 samples where they are not known."""
    return watch.backwards, watch.skipped, watch.samples() or 0


def _is_whole(path: str) -> bool:
    """Whether a JSON object in a file ends: on a full disk the profiler truncates it without an error."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        return file.read().rstrip().endswith(b"}")
