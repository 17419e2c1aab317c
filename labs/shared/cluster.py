"""A function for each of many values, as jobs through submitit: a SLURM array, or processes of this machine.

    for index, answer in run(cluster, function, values): ...

The folder for submitit's files, the Python that is running, and the project are read by every node, so they must lie on
a file system that all nodes share.
"""

import argparse
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labs.shared.extras import imported
from walkthrough.compare import isolated
from walkthrough.results.environment import ROOT, now, usable_cores
from walkthrough.results.errors import InputError, add_number, printable
from walkthrough.results.result import writing

KINDS = ("local", "slurm")
ARRAY = 1000  # jobs of one array, at most: SLURM's MaxArraySize is 1001 unless its configuration says more
POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Cluster:
    """Where jobs run, and what each gets.

    kind: one of `KINDS`. folder: of submitit's files, shared by all nodes. cpus: of a task of a job. gpus: of a job, on
    each of its nodes. minutes: that a job may take. at_a_time: jobs, at most; None for as many as the cluster, or the
    cores of this machine, let run.
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
    """A job without an answer. reason: why, in a line."""

    reason: str


def add_cluster_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that `cluster_of` reads. default: of --cluster."""
    where = f"run jobs through submitit: as processes of this machine, or as a SLURM array (default: {default or 'no'})"
    parser.add_argument("--cluster", choices=KINDS, default=default, help=where)
    parser.add_argument("--partition", metavar="NAME", help="of SLURM (default: the cluster's own)")
    add_number(parser, "--cpus", "of each process of a job", 1, 1024, 1)
    add_number(parser, "--gpus", "of a job and node (default: one for a study on GPUs, else none)", 0, 64)
    add_number(parser, "--minutes", "that a job may take", 1, 10**5, 60)
    add_number(parser, "--at-a-time", "jobs, at most (default: as many as the cluster or the cores allow)", 1, 10**4)


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
    function = partial(_measured, list(command), min(limit_seconds, 60 * cluster.minutes))
    for index, answer in run(cluster, function, values):
        yield index, answer.reason if isinstance(answer, Failed) else answer[0]


def _measured(command: Sequence[str], limit_seconds: float, values: Mapping[str, Any]) -> dict[str, Any] | str:
    return isolated.answer(command, values, limit_seconds)


def run(
    cluster: Cluster, function: Callable[[Any], Any], values: Sequence[Any], nodes: int = 1, tasks: int = 1
) -> Iterator[tuple[int, list[Any] | Failed]]:
    """Call function(value) for each of these values, as jobs: (index, answers) as each ends, in any order.

    nodes: of a job; tasks: of each node: the function is called once in each task, so a job has as many answers. One
    that raises or dies makes its job a `Failed`; the others go on. Where this is left, or SIGTERM ends the program,
    jobs that are not done are cancelled. Raises InputError where jobs cannot be submitted.
    """
    if nodes > 1 and cluster.kind != "slurm":
        raise InputError(f"{nodes} nodes need --cluster slurm: this machine is one node")
    executor, helpers = _executor(cluster, nodes, tasks), imported("submitit.helpers", None, "--cluster")
    # SLURM itself lets no more of an array run than it may; submitit starts all processes of this machine at once.
    most = ARRAY if cluster.kind == "slurm" else cluster.at_a_time or max(1, usable_cores() // cluster.cpus)
    for first in range(0, len(values), most):
        try:
            with _environment():
                jobs = executor.map_array(function, values[first : first + most])
        except Exception as error:  # submitit's own, of whatever sbatch printed
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise InputError(f"jobs could not be submitted: {printable(lines[-1], 200)}") from error
        try:
            for job in helpers.as_completed(jobs, poll_frequency=POLL_SECONDS):
                yield first + jobs.index(job), _result(job)
        finally:
            left = [job for job in jobs if not job.done()]
            for job in left:
                job.cancel(check=False)
            while cluster.kind == "local" and any(job.state == "RUNNING" for job in left):
                time.sleep(POLL_SECONDS)


def _executor(cluster: Cluster, nodes: int, tasks: int) -> Any:
    """submitit's, with a new folder for its files: numbers of earlier jobs may come again."""
    with writing(cluster.folder):
        folder = cluster.folder / f"{now()[:19].replace(':', '')}-{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("submitit").setLevel(logging.ERROR)  # else it warns where SLURM keeps no accounts
    executor = imported("submitit", None, "--cluster").AutoExecutor(folder=folder, cluster=cluster.kind)
    executor.update_parameters(
        name="walkthrough", nodes=nodes, tasks_per_node=tasks, cpus_per_task=cluster.cpus, stderr_to_stdout=True,
        timeout_min=cluster.minutes, slurm_array_parallelism=cluster.at_a_time or ARRAY,
        slurm_srun_args=["--kill-on-bad-exit=1"],  # the other processes of a training would wait for one that failed
        **({"gpus_per_node": cluster.gpus} if cluster.gpus else {}),
        **({"slurm_partition": cluster.partition} if cluster.partition else {}),
    )  # fmt: skip
    return executor


@contextmanager
def _environment() -> Iterator[None]:
    """Jobs, which get this process's environment, import the project; from now on SIGTERM raises SystemExit.

    submitit ends jobs of this machine by SIGINT, so they begin without what ignores it, as after `nohup … &`.
    """
    before = os.environ.get("PYTHONPATH")
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({"PYTHONPATH": before} if before is not None else {})


def _result(job: Any) -> list[Any] | Failed:
    """What the tasks of a job that has ended returned; of a traceback the error alone."""
    try:
        return job.results()
    except Exception as error:  # what a task raised, in submitit's own; or no answer at all
        raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exit|Interrupt): (.+)", str(error), re.MULTILINE)
        reason = raised[-1] if raised else f"it ended without an answer ({type(error).__name__})"
        return Failed(printable(f"{reason}; its log: {job.paths.stdout}", 2 * isolated.REASON_LENGTH))
