"""What a job does on each of its nodes: run a command, as it is or as many processes under torchrun.

The nodes of a job meet at the first one, at the address by which SLURM itself reaches it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs.shared.extras import imported
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import printable

INDEX_VARIABLE = "JOB_INDEX"  # in the command's environment: its number in the array, from 0
FIRST_PORT, PORTS = 20_000, 10_000  # of a job's first node, where its others find it
REASON_LENGTH = 200
ANOTHER_ENDED = "another process of this training ended or is not reached"  # a reason that follows from another's
AGENT = re.compile(r"[EWI]\d{4} .*torch/distributed/")  # lines that torchrun logs
REPORTED = re.compile(r" +exitcode +: (-?\d+) \(pid")  # in its report, of each process; the first to fail comes last
STOP_SECONDS = 10  # for a command that is asked to end


@dataclass(frozen=True)
class Launch:
    """A job. command: a program and its words. processes: on each node, under torchrun; None to run it as it is.

    index: of the job in its array. limit_seconds: after which the command is ended. folder: that it runs in.
    """

    command: Sequence[str]
    folder: str
    nodes: int
    processes: int | None
    index: int
    limit_seconds: float


@dataclass(frozen=True)
class Ended:
    """How a command ended on a node. code: its exit code, negative for a signal; under torchrun that of a process.

    last: the last line that it printed, or the last before torchrun's own report of a process that failed. follows:
    whether it ended because one on another node did.
    """

    code: int
    last: str
    timed_out: bool = False
    follows: bool = False


def on_node(launch: Launch) -> Ended:
    """Run a job's command on this node, in a process of its own, and print what it prints."""
    command, environment = list(launch.command), os.environ | {INDEX_VARIABLE: str(launch.index)}
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    if launch.processes:
        job = imported("submitit", "scale", "a job").JobEnvironment()
        names = job.hostnames if launch.nodes > 1 else []
        command = [*torchrun(launch.processes, [address_of(name) for name in names], job.node, job.job_id), *command]
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if launch.nodes > 1 else {}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // launch.processes)))
    return _followed(command, launch.folder, environment, launch.limit_seconds)


def torchrun(processes: int, addresses: Sequence[str], node: int, job_id: str) -> list[str]:
    """The words before a command that make it `processes` on this node. addresses: of all nodes; [] for one alone.

    A node alone finds a free port. Several meet at one that follows from the job's number, as no node can look for a
    free one of another: jobs that share their first node get different ones, unless 10,000 jobs lie between them.
    """
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--no-python"]
    if not addresses:
        return [*words, "--standalone"]
    number = int("".join(filter(str.isdigit, job_id.partition("_")[0])) or 0)
    index = int(job_id.partition("_")[2] or 0)
    return [
        *words,
        f"--nnodes={len(addresses)}",
        f"--rdzv-id={job_id}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={addresses[0]}:{FIRST_PORT + (number + index) % PORTS}",
        f"--rdzv-conf=is_host={int(node == 0)}",
        f"--local-addr={addresses[node]}",
    ]


def address_of(node: str) -> str:
    """The address by which SLURM reaches a node: its NodeAddr; the name itself where SLURM does not say."""
    if not shutil.which("scontrol"):
        return node
    done = subprocess.run(["scontrol", "--oneliner", "show", "node", node], capture_output=True, text=True)
    fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return fields.get("NodeAddr", node)


def _followed(command: Sequence[str], folder: str, environment: Mapping[str, str], limit_seconds: float) -> Ended:
    """Run a command and print its lines as they come; however this is left, it and what it started are ended."""
    last, timed_out, agent, reported, codes = "", threading.Event(), False, False, list[int]()
    try:
        process: subprocess.Popen[Any] = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, errors="replace", start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        return Ended(127, f"cannot run {command[0]}: {error.strerror or error}")
    with process:
        assert process.stdout is not None  # a pipe, as asked for
        timer = threading.Timer(limit_seconds, lambda: (timed_out.set(), _end(process)))
        timer.start()
        try:
            for line in map(str.rstrip, process.stdout):
                print(line, flush=True)
                reported = reported or (agent and line.startswith("Traceback"))
                agent = bool(AGENT.match(line))
                last = last if agent or reported else line.strip() or last
                codes += map(int, REPORTED.findall(line)) if reported else []
            code = process.wait()
        finally:
            timer.cancel()
            _end(process)
    code, follows = _cause(code, codes, last) if reported else (code, False)
    return Ended(code, printable(last, REASON_LENGTH), timed_out.is_set(), follows)


def _cause(code: int, codes: Sequence[int], last: str) -> tuple[int, bool]:
    """`Ended.code` and `follows` of what torchrun reported. code: its own. codes: of processes, the first to fail last.

    A process that was killed comes before one that failed, as that may have lost the other. torchrun stops the rest by
    SIGTERM, and reports nobody's code where it has lost the first node.
    """
    own = [one for one in reversed(codes) if one != -signal.SIGTERM]
    killed = next((one for one in own if one < 0), None)
    if killed is not None or not own:
        return killed or code, killed is None
    return own[0], ANOTHER_ENDED in last


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process that leads its session, and all in it: SIGTERM first, for torchrun to stop its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS if number == signal.SIGTERM else None)
        except (ProcessLookupError, PermissionError):
            return
        except subprocess.TimeoutExpired:
            continue
