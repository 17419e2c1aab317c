"""Start a program as several processes of this machine, by torchrun's own agent, and say in one line why they ended.

`torchrun --nproc-per-node 2 labs/scale/train.py` does the same, but for the end: it prints its own report of a rank
that failed, of many lines, and a traceback where a port is taken. On many machines it has to be torchrun, or SLURM.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from labs.scale.node import ANOTHER_ENDED
from labs.scale.ranks import LAUNCHED
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, printable

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

REASON_LENGTH = 300
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # the agent's
STOP_SECONDS = 5  # for a process that is asked to stop


def launch(program: Path, words: Sequence[str], processes: int, restarts: int = 0, port: int | None = None) -> None:
    """Run `python program words…` in so many processes, and return when all of them have ended well.

    restarts: how often all are started again after one has failed. port: where they find each other, a free one if
    None. On a CPU the cores are shared out, where OMP_NUM_THREADS is not set.

    Raises InputError with the reason, in a line, where the port is taken, where a process was killed, and where one
    ended with an InputError. For a defect, whose traceback is printed then, it ends this program with code 1.
    """
    _silence_agent()
    with _as_before(), tempfile.TemporaryDirectory() as reasons:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=LAUNCHED, rdzv_backend="c10d",
            rdzv_endpoint=f"localhost:{port or 0}", rdzv_configs={"is_host": "1"}, max_restarts=restarts,
            logs_specs=DefaultLogsSpecs(log_dir=reasons), shutdown_timeout=STOP_SECONDS,
        )  # fmt: skip
        try:
            elastic_launch(config, sys.executable)(str(program), *words)
        except RendezvousConnectionError as error:
            raise InputError(f"port {port} of this machine is taken: choose another --port, or none") from error
        except ChildFailedError as error:
            reason, code = why(error.failures)
            if code == 1:
                sys.exit(f"{program.stem}: {reason}")
            raise InputError(reason) from error
        except SignalException as error:
            raise KeyboardInterrupt from error


def why(failures: Mapping[int, ProcessFailure]) -> tuple[str, int]:
    """(why the processes ended, in a line; the exit code that this means) of failures by rank.

    A rank that was killed comes before one that says why it failed, and both before one that only lost another, or that
    was stopped with it.
    """

    def order(rank: int) -> tuple[bool, bool, int]:
        failure = failures[rank]
        follows = failure.exitcode == -signal.SIGTERM or ANOTHER_ENDED in _message(failure)
        return follows, failure.exitcode >= 0, rank

    rank = min(failures, key=order)
    failure, stopped = failures[rank], "the others were stopped"
    if failure.exitcode < 0:
        memory = ", as the system does where memory runs out" if failure.signal_name() == "SIGKILL" else ""
        return f"rank {rank} was ended by {failure.signal_name()}{memory}: {stopped}", 2
    message = _message(failure) or f"it ended with code {failure.exitcode}"
    return f"rank {rank}: {printable(message.removeprefix('InputError: '), REASON_LENGTH)}; {stopped}", failure.exitcode


def _message(failure: ProcessFailure) -> str:
    """What a process left as its reason, "" if nothing: torch then has a text of its own, or an object."""
    data = failure.error_file_data["message"]
    return data["message"] if isinstance(data, dict) else ""


@contextmanager
def _as_before() -> Iterator[None]:
    """Leave the environment, which the processes get, and what signals do as they were: the agent changes both."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _silence_agent() -> None:
    """Keep torchrun's agent from logging what `launch` says in a line."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic") or name == "torch.distributed.launcher.api":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
