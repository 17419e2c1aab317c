"""What a process measures, by tracing or timing its steps, and its report to the command that started it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from .watch import CHECKPOINT, EVALUATION, CpuTimes, Step, Watch

TRIES = 5  # a program that catches SystemExit so often goes on to its own end
WINDOWS = 5
REPEATS = 20  # windows measured again in one run; more would wait for an end that may not come
MOVES = 3  # times that tracing begins anew because something unusual happens
EARLY = 3  # steps, after which some are traced in case that the program ends before a long warm-up is over
AFTER, AFTER_TOGETHER = 10, 3  # untraced steps after the traced ones: of one process, of each of several
MOST_BEFORE = 1000  # untraced steps that are reported
AFTER_SECONDS = 1.0, 20.0  # of the former: more steps that are short, fewer that are long;
MOST_AFTER = 100  # but so many at most
PARTING = 5.0  # s, for a step of a daemon thread as the program ends
OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")  # how its threads wait for work
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
    """Called by a `Watch` at the end of each training step.

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
            if self._tries > TRIES:
                self.report.update(ended_by_us=False)
            return
        self.report.update(ended_by_us=True)
        with contextlib.suppress(Exception):  # it may be closed, or None
            sys.stdout.flush()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        self.done = True
        heeds = callable(signal.getsignal(signal.SIGINT))
        sys.excepthook = _ending_quietly(sys.excepthook)
        os.kill(os.getpid(), signal.SIGINT if heeds else signal.SIGTERM)
        raise SystemExit(0)  # ends this thread

    def fail(self, reason: str) -> None:
        """Measure no more, for a reason that the user is told, and end the program."""
        self.running = False
        self.report.update(state="failed", reason=reason)
        self.end_program()

    def happens(self, watch: Watch, what: str) -> None:
        """Something that not every step does begins."""

    def restart(self, watch: Watch) -> None:
        """Another marker marks the steps from now on."""

    def abandon(self) -> None:
        """Something of ours failed: nothing is measured any more."""
        self.running = False

    def foreign_profiler(self, watch: Watch, profiler: Any) -> None:
        """The program starts a profiler of its own."""

    def foreign_profiler_ends(self, profiler: Any) -> None:
        """That profiler ends."""


def _ending_quietly(plain: Callable[..., object]) -> Callable[..., object]:
    """An excepthook by which KeyboardInterrupt, which is ours, ends the program as `sys.exit()` does, silently."""

    def excepthook(kind: type[BaseException], *more: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            raise SystemExit(0)
        plain(kind, *more)

    return excepthook


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
    and how often something else happened in them: a new epoch, an evaluation, a checkpoint. Of a program that ends
    before: the windows until then, from two on, and `total`, the steps that it made; of fewer windows `steps`, which it
    made, and `left`, those after the warm-up.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        steps, windows = settings["steps"], min(WINDOWS, settings["steps"])
        edges = [steps * number // windows for number in range(windows + 1)]
        self.lengths = [b - a for a, b in zip(edges, edges[1:])]  # of the windows, in steps
        self.repeated = 0
        self._forget()

    def restart(self, watch: Watch) -> None:
        self._forget()

    def _forget(self) -> None:
        self.windows: list[tuple[int, float, int | None]] = []  # steps, seconds, samples (None where not known)
        self.happenings: dict[str, int] = {}
        self.begun: tuple[float, int | None] | None = None  # of the current window: s, samples
        self.count, self.in_window = 0, []  # steps of it, and what happened in them

    def step(self, watch: Watch) -> None:
        if self.finished:
            self.end_program()
            return
        if self.begun is None:
            if watch.warm and not watch.recovering:
                self.running, self.warmup, self.rank = True, watch.total, rank()  # while there is a process group
                self.report.update(state="measuring")
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
        self._write()
        self.end_program()

    def end(self, watch: Watch) -> None:
        """The program ends."""
        if not self.finished and len(self.windows) > 1:
            self._write(total=watch.total)
        elif not self.finished:
            self.report.update(steps=watch.total, left=watch.total - self.warmup if self.running else 0)

    def _write(self, **more: object) -> None:
        self.running = False
        steps, seconds, samples = map(list, zip(*self.windows))
        samples = samples if all(samples) else None
        more = {"rank": self.rank, "happenings": self.happenings, "repeated": self.repeated, **more}
        self.report.update(state="done", steps=steps, seconds=seconds, samples=samples, **more)

    def _begin_window(self, watch: Watch) -> None:
        self.begun, self.count, self.in_window = _now(watch), 0, []


def _now(watch: Watch) -> tuple[float, int | None]:
    """The time, s, once the GPU has done what was launched; and the samples that were trained on."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter(), watch.samples()


class AtThreadEnd:
    """Calls a function when the thread ends in whose `threading.local` it is, in that thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


class Tracing(Task):
    """Traces `steps` steps after the warm-up, and before them one in which the profiler itself warms up.

    Then the program goes on for `AFTER` steps without the profiler, or more that are short: what comes once in many of
    them shows. Tracing stops where the program evaluates, saves or begins a new epoch, unless it does that all the
    time, and begins anew after that step, up to `MOVES` times; not with several processes, which must all trace the
    same steps. Where the warm-up is long, some steps are traced early, in case that the program ends before it is over.
    What has the most steps is reported: a file of JSON among the reports, and what else is known of it
    (`trace.reader.Recording`), which the command adds to it.
    """

    def __init__(self, settings: dict[str, Any], report: Any) -> None:
        super().__init__(settings, report)
        self.profiler: Any = None
        self.open_marks: list[Any] = []
        self.foreign: set[int] = set()
        self.moved = self.left = self.traced = self.begun = 0
        self.is_early, self.thread, self.exported = False, 0, ""
        self.best: tuple[int, bool] | None = None  # of what is reported: its steps, and whether after the warm-up
        self.values: dict[str, Any] = {}  # of the report
        self.known: dict[str, Any] = {}  # of the `Recording`
        self.steps: list[Step] = []  # of `Watch`, around those that are reported,
        self.first = self.last = 0  # which are [first, last)
        self.happenings: list[dict[str, str]] = []
        self.at_begin = self.at_end = (0, 0, 0)  # `_counts`, before the first traced step and after the last
        self.cpu_times = CpuTimes()
        self.ended: float | None = None  # s; from when on the program goes on untraced
        self._handler: Any = None
        self._local, self._stopped = threading.local(), threading.Event()
        self._must_stop = self._ending = False  # after the step that runs; for good

    def step(self, watch: Watch) -> None:
        """A training step has ended."""
        if self.finished:
            self.end_program()
        elif self.profiler is not None:
            if threading.get_ident() == self.thread:  # the profiler records its own thread
                (self._stop if self._must_stop else self._traced_step)(watch)
        elif self._ending:
            return
        elif self.ended is not None:
            self._untraced_step(watch, time.perf_counter() - self.ended)
        elif (watch.warm and not watch.recovering) or (not self.best and self._may_be_short(watch)):
            self._start(watch)
        if self.profiler is None and not watch.recovering and not self.cpu_times.begun:
            self.cpu_times.begin(watch.workers())

    def happens(self, watch: Watch, what: str) -> None:
        """Something happens in the step that is running: what is recorded ends before it, if that can be avoided."""
        recording = self.profiler is not None and self.left <= self.settings["steps"]
        if not recording or watch.is_usual(what) or self.moved >= MOVES or world_size() > 1:
            return
        quiet = watch.longest_quiet()
        avoidable = quiet is None or quiet > self.settings["steps"]
        if avoidable and threading.get_ident() == self.thread:  # the profiler records its own thread
            self.moved += 1
            self._stop(watch)

    def _thread_ends(self, watch: Watch) -> None:
        with contextlib.suppress(Exception):
            if self.profiler is not None and threading.get_ident() == self.thread:
                self._stop(watch)

    def restart(self, watch: Watch) -> None:
        if self.profiler is not None:
            self._stop(watch)

    def abandon(self) -> None:
        super().abandon()
        profiler, self.profiler = self.profiler, None
        if profiler is not None and threading.get_ident() == self.thread:
            profiler.on_trace_ready = None
            with contextlib.suppress(Exception):
                profiler.stop()
        self._restore_sigterm()

    def end(self, watch: Watch) -> None:
        """The program ends, while it is traced perhaps: at least one whole step is a trace."""
        self._ending = True
        if self.profiler is not None:
            self._stop(watch)
            self._stopped.wait(PARTING)  # for a daemon's step
        self.cpu_times.end()
        if self.best and self.report.state != "failed":
            self._report(watch, "done", ended=True)
        elif self.report.state in ("stepping", "measuring"):
            self.report.update(state="stepping", steps=watch.total)

    def foreign_profiler(self, watch: Watch, profiler: Any) -> None:
        """The program starts a profiler: both cannot record."""
        if profiler is self.profiler:
            return
        self.foreign.add(id(profiler))
        if self.profiler is not None:
            self._stop(watch)
            self.fail(OWN_PROFILER)

    def foreign_profiler_ends(self, profiler: Any) -> None:
        self.foreign.discard(id(profiler))

    def _start(self, watch: Watch) -> None:
        """Start the profiler, at the end of a step."""
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        if self.foreign or torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
            self.fail(OWN_PROFILER)
            return
        self.cpu_times.end()
        more = {}
        if self.settings["stacks"]:
            with contextlib.suppress(ImportError):  # torch 1.12, which needs none
                from torch._C._profiler import _ExperimentalConfig

                more["experimental_config"] = _ExperimentalConfig(verbose=True)  # operators' stacks need it
        active, has_gpu = self.settings["steps"], torch.cuda.is_available()
        self.left, self.traced, self.happenings, self.exported = 1 + active, 0, [], ""
        self.begun, self.is_early, self.thread = len(watch.steps), not watch.warm, threading.get_ident()
        self._must_stop = False
        self._stopped.clear()
        self.profiler = profile(
            activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * has_gpu,
            schedule=schedule(wait=0, warmup=1, active=active, repeat=1),
            on_trace_ready=self._export,
            record_shapes=True,
            profile_memory=self.settings["memory"],
            with_stack=self.settings["stacks"],
            **more,
        )
        self.report.update(state="measuring")
        self.running = True
        self._catch_sigterm()
        self._local.end = AtThreadEnd(lambda: self._thread_ends(watch))  # else the process crashes
        with contextlib.nullcontext() if has_gpu else _without_an_error_for_a_missing_gpu():
            self.profiler.start()

    def _may_be_short(self, watch: Watch) -> bool:
        """Whether it is time to trace some steps early, in case that the program ends before the warm-up is over."""
        count = len(watch.steps)
        if count < EARLY or watch.left() <= 1 + self.settings["steps"]:
            return False
        return count >= watch.warmup or not watch.waits_for_others()

    def _traced_step(self, watch: Watch) -> None:
        self.left -= 1
        if self.left == self.settings["steps"]:  # the profiler has warmed up: from here on it records
            self.at_begin = _counts(watch)
        else:
            self.traced += 1
            self.at_end = _counts(watch)
            self.happenings += [{"step": str(self.profiler.step_num), "what": what} for what in watch.unusual()]
        self.profiler.step()  # exports, after the last step
        if self.left == 0:
            self._stop(watch)

    def _untraced_step(self, watch: Watch, seconds: float) -> None:
        """A step after the traced ones has ended, so long ago: the last of them ends the program."""
        alone = world_size() == 1  # several processes must all end after the same step
        count = sum(step.ms is not None for step in self.steps[self.last :])
        enough = count >= MOST_AFTER or seconds > AFTER_SECONDS[count < AFTER]
        if (enough if alone else count >= AFTER_TOGETHER) or watch.steps is not self.steps:
            self.cpu_times.end()
            self._report(watch, "done")
            self.end_program()

    def _stop(self, watch: Watch) -> None:
        """Stop the profiler; report what it has recorded, unless what was before has more steps."""
        if threading.get_ident() != self.thread:  # to stop it here crashes the process: its own thread does
            self._must_stop = True
            return
        profiler, self.profiler, cut = self.profiler, None, self.left > 0
        self._local.end = None
        if cut:  # the step that is cut off is kept open, so that it is no whole one
            self.open_marks.append(profiler.step_rec_fn)
            profiler.step_rec_fn = None
        try:
            profiler.stop()  # exports what there is, unless that is done
        finally:
            self.running = False
            self._restore_sigterm()
        watch.disturbed, watch.recovering = cut, watch.queued()
        if self.exported:
            self._keep(watch)
            self._report(watch, "measuring")
        if not cut and not self.is_early:
            self.ended = time.perf_counter()
        if self.report.state == "failed":
            self.finished = True
        self._stopped.set()

    def _export(self, profiler: Any) -> None:
        """Write the trace as JSON, whole or not at all."""
        if (self.traced, not self.is_early) <= (self.best or (0, True)) or self.report.is_orphan():
            return
        plain = os.path.join(self.settings["reports"], f"{secrets.token_hex(8)}.trace")  # nobody can plant a link there
        try:
            profiler.export_chrome_trace(plain)
            if not _is_whole(plain):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.exported = plain
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.report.update(state="failed", reason=f"cannot write the trace to {self.settings['out']}: {reason}")
        finally:
            for path in glob.glob(f"{glob.escape(plain)}*"):  # Kineto's own, too
                if path != self.exported:
                    _remove(path)

    def _keep(self, watch: Watch) -> None:
        """What is exported is the best so far."""
        if self.values:
            _remove(os.path.join(self.settings["reports"], self.values["trace"]))
        worker = rank()
        host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()) or "host"
        who = ("process" if worker is None else "rank") if self.settings["redact"] else host
        name = f"{who}_{os.getpid() if worker is None else worker}.{time.time_ns()}.pt.trace.json.gz"
        self.values = {"trace": os.path.basename(self.exported), "name": name, "traced": self.traced, "rank": worker}
        self.best = self.traced, not self.is_early
        self.steps, self.first, self.last = watch.steps, self.begun, len(watch.steps)
        backwards, skipped, samples = (after - before for before, after in zip(self.at_begin, self.at_end))
        self.known = {
            "warmup": self.begun,
            "backwards_per_step": backwards / self.traced,
            "skipped": skipped,
            "samples_per_step": samples / self.traced if samples > 0 else None,
            "happenings": self.happenings,
            "mark": "backward" if watch.lead and not watch.lead.kind else "optimizer",
            "optimizers": [
                {"name": marker.name, "steps": marker.count, "lead": marker is watch.lead}
                for marker in watch.markers
                if marker.kind
            ],
            "loaders": watch.loader_settings(),
        }

    def _report(self, watch: Watch, state: str, ended: bool = False) -> None:
        """Report the best trace, with what is known of it by now. ended: whether the program ends."""
        import torch

        around = self.steps[max(0, self.first - MOST_BEFORE) : self.first], self.steps[self.last :]
        before, after = ([step for step in steps if step.ms is not None] for steps in around)
        happened = [(str(at), what) for at, step in enumerate(before + after) for what in step.happened]
        recording = {
            **self.known,
            **self.cpu_times.shares(),
            "asked": {"warmup": watch.warmup, "steps": self.settings["steps"]},
            "total_steps": None if self.settings["go_on"] and state == "done" and not ended else len(self.steps),
            "untraced_step_ms": [round(step.ms or 0.0, 3) for step in before],
            "untraced_after_ms": [round(step.ms or 0.0, 3) for step in after],
            "untraced_happenings": [{"step": at, "what": what} for at, what in happened if not watch.is_usual(what)],
            "steps_per_epoch": watch.steps_per_epoch(),
            "epoch_step_ms": [round(ms, 3) for ms in watch.epoch_step_ms],
            "cores": usable_cores(),
            "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            "threads": torch.get_num_threads(),
            "openmp": {name: os.environ[name] for name in OPENMP if name in os.environ},
            "moved": self.moved,
        }
        self.report.update(state=state, recording=recording, **self.values)

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


@contextlib.contextmanager
def _without_an_error_for_a_missing_gpu() -> Iterator[None]:
    """Kineto reports it where there is none; the program's environment is as it was afterwards."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the command has removed the folder
        os.unlink(path)


def _is_whole(path: str) -> bool:
    """Whether a JSON object in a file ends: on a full disk the profiler truncates or removes it without an error."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        return file.read().rstrip().endswith(b"}")
    return False
