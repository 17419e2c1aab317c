"""A function for each of many values, as jobs of a cluster: a SLURM job array, or processes of this machine (submitit).

    for index, answer in run(cluster, function, values): ...

The folder for submitit's files, the Python that is running, and the project are read by every node, so they must lie on
a file system that all nodes share.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labs.shared.extras import imported, stderr_into
from walkthrough.compare import isolated
from walkthrough.compare.isolated import REASON_LENGTH
from walkthrough.compare.isolated import why_ended as why_ended  # for labs
from walkthrough.results import progress
from walkthrough.results.environment import ROOT, now, usable_cores
from walkthrough.results.errors import InputError, printable, whole_number
from walkthrough.results.result import writing

KINDS = ("local", "slurm")
ARRAY = 1000  # jobs of one array, at most: SLURM's MaxArraySize is 1001 unless its configuration says more
MORE_MINUTES = 2  # that are asked of the cluster, for a job that ends itself when its time is over
POLL_SECONDS = 0.25
QUEUE_SECONDS = 3.0  # between two looks at SLURM's queue
LATE_SECONDS = 10.0  # that an answer may need to appear on a shared file system, after its job has ended
CANCEL_SECONDS = 10.0
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # of `kill`, and of a terminal that is closed
NO_LOG_STATUS, NO_LOG = 53, "its node cannot write its log into"  # as a wait status of SLURM's own, and in words
ENDED = "COMPLETED FAILED CANCELLED TIMEOUT OUT_OF_MEMORY NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE".split()
NEVER = (  # reasons that SLURM gives for a job that waits, and which do not pass
    "PartitionTimeLimit PartitionNodeLimit BadConstraints DependencyNeverSatisfied InvalidQOS InvalidAccount "
    "AssocMaxWallDurationPerJobLimit QOSMaxWallDurationPerJobLimit"
).split()
USUAL_WAITS = "None Resources Priority JobArrayTaskLimit BeginTime Cleaning Prolog".split()
QUEUE_FORMAT = "JobArrayID:64,State:24,exit_code:16,Reason:200"


@dataclass(frozen=True)
class Cluster:
    """Where jobs run, and what each gets.

    kind: one of `KINDS`. folder: of submitit's files, shared by all nodes. cpus: of a job, on each of its nodes. gpus:
    likewise. minutes: that a job may take. at_a_time: jobs, at most; None for as many as the cluster, or the cores of
    this machine, let run.
    """

    kind: str
    folder: Path
    partition: str | None = None
    cpus: int = 1
    gpus: int = 0
    minutes: int = 60
    at_a_time: int | None = None


@dataclass(frozen=True)
class Failed:
    """A job without an answer. reason: why, in a line. code: the exit code that this means, 1 for a defect."""

    reason: str
    code: int = 2


def add_cluster_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that `cluster_of` reads. default: of --cluster."""
    parser.add_argument(
        "--cluster",
        choices=KINDS,
        default=default,
        help="run jobs through submitit: as processes of this machine, or as a SLURM array "
        f"(default: {default or 'neither'})",
    )
    parser.add_argument("--partition", metavar="NAME", help="of SLURM (default: the cluster's own)")
    parser.add_argument(
        "--cpus", type=whole_number(1, 1024), default=1, metavar="N", help="of a job and node (default: 1)"
    )
    parser.add_argument(
        "--gpus",
        type=whole_number(0, 64),
        default=None,
        metavar="N",
        help="of a job and node (default: one for a study on GPUs, else none)",
    )
    parser.add_argument(
        "--minutes", type=whole_number(1, 10**5), default=60, metavar="N", help="that a job may take (default: 60)"
    )
    parser.add_argument(
        "--at-a-time",
        type=whole_number(1, 10**4),
        default=None,
        metavar="N",
        help="jobs at the same time, at most (default: as many as the cluster, or this machine's cores, allow)",
    )


def cluster_of(args: argparse.Namespace, folder: Path, gpus: int = 0) -> Cluster | None:
    """The `Cluster` that a command line asks for; None where it asks for none.

    folder: for submitit's files. gpus: of a job, unless the command line says. Raises InputError where submitit or
    SLURM is missing.
    """
    if args.cluster is None:
        return None
    imported("submitit", None, "--cluster")
    if args.cluster == "slurm" and not shutil.which("sbatch"):
        raise InputError(
            "--cluster slurm needs SLURM, and sbatch is not on this machine: run this where jobs are submitted, or "
            "take --cluster local (SLURM on one machine: labs/scale/start_slurm.sh)"
        )
    gpus = gpus if args.gpus is None else args.gpus
    return Cluster(args.cluster, folder.resolve(), args.partition, args.cpus, gpus, args.minutes, args.at_a_time)


def answers(
    cluster: Cluster, command: Sequence[str], values: Sequence[Mapping[str, Any]], limit_seconds: float
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """`isolated.answer` for each of these values, as jobs: (index, answer) as each ends, in any order.

    An answer that is a text says why there is none. limit_seconds: of each, and at most the minutes of a job. Raises
    InputError where jobs cannot be submitted.
    """
    limit = min(limit_seconds, 60 * cluster.minutes)
    for index, answer in run(cluster, partial(_measured, list(command), limit), values):
        yield index, answer.reason if isinstance(answer, Failed) else answer[0]


def _measured(command: Sequence[str], limit_seconds: float, values: Mapping[str, Any]) -> dict[str, Any] | str:
    return isolated.answer(command, values, limit_seconds)


def run(
    cluster: Cluster, function: Callable[[Any], Any], values: Sequence[Any], nodes: int = 1
) -> Iterator[tuple[int, list[Any] | Failed]]:
    """Call function(value) for each of these values, as jobs: (index, answers) as each ends, in any order.

    nodes: of a job; the function is called once on each, so a job has as many answers, in their order. One that raises
    or dies makes its job a `Failed`; the others go on. Where this is left, or SIGTERM or SIGHUP ends the program, jobs
    that are not done are cancelled. Raises InputError where jobs cannot be submitted.
    """
    executor = _executor(cluster, nodes)
    waiting, running = deque(range(len(values))), dict[int, Any]()
    queue = _Queue(cluster.kind)
    signals = _exit_on_signals()
    try:
        while waiting or running:
            if batch := [waiting.popleft() for _ in range(min(_free(cluster, len(running)), len(waiting)))]:
                running |= _submitted(executor, partial(_called, function), batch, [values[at] for at in batch])
            for index, job in list(running.items()):
                result = _result(job, nodes, queue)
                if result is not None:
                    del running[index]
                    yield index, result
            time.sleep(POLL_SECONDS)
    finally:
        _cancel(list(running.values()), cluster.kind)
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _exit_on_signals() -> list[signal.Signals]:
    """Let signals raise SystemExit, in the main thread: which. Those that are ignored, as under nohup, still are."""
    main = threading.current_thread() is threading.main_thread()
    numbers = [one for one in ENDING_SIGNALS if main and signal.getsignal(one) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    return numbers


def _executor(cluster: Cluster, nodes: int) -> Any:
    """submitit's, with a new folder for its files: names of earlier jobs may come again."""
    submitit = imported("submitit", None, "--cluster")
    if nodes > 1 and cluster.kind != "slurm":
        raise InputError(f"{nodes} nodes need --cluster slurm: this machine is one node")
    with writing(cluster.folder):
        cluster.folder.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{now()[:19].replace(':', '')}-", dir=cluster.folder)
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster.kind)
    executor.update_parameters(
        name="walkthrough",
        nodes=nodes,
        tasks_per_node=1,
        cpus_per_task=cluster.cpus,
        timeout_min=cluster.minutes + MORE_MINUTES,
        stderr_to_stdout=True,
        **({"gpus_per_node": cluster.gpus} if cluster.gpus else {}),
        **({"slurm_partition": cluster.partition} if cluster.partition else {}),
        slurm_array_parallelism=cluster.at_a_time or ARRAY,
        slurm_signal_delay_s=30,
    )
    return executor


def _free(cluster: Cluster, running: int) -> int:
    """How many jobs can be submitted: SLURM itself lets no more of an array run than it may."""
    if cluster.kind == "slurm":
        return ARRAY - running
    return (cluster.at_a_time or max(1, usable_cores() // cluster.cpus)) - running


def _submitted(executor: Any, function: Callable[..., Any], batch: Sequence[int], values: Sequence[Any]) -> dict:
    """{index: job}."""
    try:
        path = Path(executor.folder) / "messages.log"  # submitit's are tracebacks where they end
        with _project_on_path(), _heeding_ctrl_c(), open(path, "ab") as messages, stderr_into(messages.fileno()):
            return dict(zip(batch, executor.map_array(function, values), strict=True))
    except Exception as error:  # submitit's own, of whatever sbatch printed
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise InputError(f"jobs could not be submitted: {printable(reason, 200)}") from error


@contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Jobs heed SIGINT, by which submitit cancels those of this machine, even where this program ignores it."""
    main = threading.current_thread() is threading.main_thread()
    ignored = main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as a shell's background jobs do
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if ignored else None
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _project_on_path() -> Iterator[None]:
    """Jobs, which get this process's environment, import the project and what it was started with."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({"PYTHONPATH": before} if before is not None else {})


def _called(function: Callable[[Any], Any], value: Any) -> Any:
    """In the job: what the function returns, or why it returned nothing."""
    try:
        return function(value)
    except InputError as error:
        return Failed(printable(error, REASON_LENGTH))
    except Exception as error:  # whatever it raises; the other jobs go on
        return Failed(printable(f"{type(error).__name__}: {error}", REASON_LENGTH), code=1)


def _result(job: Any, nodes: int, queue: "_Queue") -> list[Any] | Failed | None:
    """A job's answers; None while it is not done."""
    why_ended = queue.why_ended(job)
    tasks = [job.task(number) for number in range(nodes)]
    if all(task.paths.result_pickle.exists() for task in tasks):
        if queue.kind == "local" and why_ended is None:
            return None  # its process is about to end
        try:
            answers = [task.result() for task in tasks]
        except Exception as error:  # of reading: a pickle can fail in any way
            return Failed(f"its answer cannot be read: {printable(error, REASON_LENGTH)}")
        return next((answer for answer in answers if isinstance(answer, Failed)), answers)
    if why_ended is None or not queue.is_late(job):
        return None
    if queue.kind == "slurm":
        job.cancel(check=False)  # of one that waits for what never comes; nothing for one that has ended
    log = tasks[0].paths.stdout
    more = f" {log.parent}: use a folder that all nodes share" if why_ended == NO_LOG else f"; its log: {log}"
    return Failed(printable(why_ended + more, 2 * REASON_LENGTH))


class _Queue:
    """Which jobs have ended, and why, as the cluster says.

    SLURM's queue is asked, not its accounting (sacct), which submitit asks and which small clusters do not have.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.ended, self.said, self.asked = kind, dict[str, float](), set[str](), 0.0
        self.states: dict[str, tuple[str, str, str]] = {}  # {job: state, wait status, reason}
        self.seen: set[str] = set()  # jobs that were in the queue

    def why_ended(self, job: Any) -> str | None:
        """In a few words; None for a job that waits or runs."""
        if self.kind == "local":
            why = None if job.state == "RUNNING" else "its process ended without an answer"
        else:
            why = self._in_slurm(job.job_id)
        if why:
            self.ended.setdefault(job.job_id, time.monotonic())
        return why

    def is_late(self, job: Any) -> bool:
        """Whether an answer of a job that has ended would be there by now."""
        return self.kind == "local" or time.monotonic() - self.ended[job.job_id] > LATE_SECONDS

    def _in_slurm(self, job_id: str) -> str | None:
        if time.monotonic() - self.asked > QUEUE_SECONDS:
            self._ask()
        state, status, reason = self.states.get(job_id, ("", "", ""))
        if not state:
            return "SLURM no longer knows it" if job_id in self.seen else None
        if state == "PENDING" and reason in NEVER:
            return f"SLURM would never start it: {reason}"
        if state == "PENDING" and reason not in (*USUAL_WAITS, *self.said):
            self.said.add(reason)
            progress.say(f"  job {job_id} waits: SLURM says {printable(reason, 100)}")
        if state not in ENDED:
            return None
        code = os.waitstatus_to_exitcode(int(status)) if status.isdecimal() else 0
        if code == -NO_LOG_STATUS:
            return NO_LOG
        return f"SLURM says {state}" + (f", {_named(code)}" if code else "")

    def _ask(self) -> None:
        """Read the queue; where SLURM does not answer, what it said last stays."""
        self.asked = time.monotonic()
        command = ["squeue", "--me", "--states=all", "--array", "--noheader", f"--Format={QUEUE_FORMAT}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
            self.states = {row[0]: (row[1], row[2], row[3].strip()) for row in rows if len(row) == 4}
            self.seen |= set(self.states)


def _named(code: int) -> str:
    """An exit code for people; that of a shell whose command was killed is 128 and the signal."""
    number = -code if code < 0 else code - 128
    return f"killed by {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"


def _cancel(jobs: Sequence[Any], kind: str) -> None:
    """Cancel jobs; those of this machine have ended then."""
    for job in jobs:
        job.cancel(check=False)
    end = time.monotonic() + CANCEL_SECONDS
    while kind == "local" and time.monotonic() < end and any(job.state == "RUNNING" for job in jobs):
        time.sleep(POLL_SECONDS)
