"""One process of several that train together: how it joins the others, and how it ends when one of them is gone.

The processes are torchrun's, or SLURM's: what counts is that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
Without them a process is rank 0 of a group of one, in which every collective works and nothing is sent.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from labs.scale.node import ANOTHER_ENDED
from walkthrough.results.errors import InputError, printable

import torch
import torch.distributed as dist

# Before a group is made: imported later, as an optimizer's first step would, it keeps the group beyond its end, and
# gloo's threads may abort the process while it ends.
import torch.distributed.nn.functional
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

T = TypeVar("T")

LAUNCHED = "labs-scale"  # torchrun's id of a run that `launch` started, which tells its user why a rank ended
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
REASON_LENGTH = 120  # of torch's own words, whose end says most


def launched() -> bool:
    """Whether `launch.launch` started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == LAUNCHED


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Be in the group of all processes: gloo on a CPU, NCCL on GPUs. On Linux, one of `launch` ends if that is killed.

    Raises InputError where the port is taken, and in every process that waits for one that ended or is not reached.
    """
    if launched() and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        if "WORLD_SIZE" in os.environ:
            store, rank, world_size = next(dist.rendezvous("env://"))
            dist.init_process_group(backend, store=_of_this_start(store), rank=rank, world_size=world_size)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()
    except Exception as error:
        reason = _network_problem(error)
        if backend == "gloo" and dist.is_initialized():  # NCCL would wait for those that are gone
            dist.destroy_process_group()  # else gloo's threads abort the process while it ends
        if reason is None:
            raise
        raise InputError(reason) from error


def _of_this_start(store: dist.Store) -> dist.Store:
    """The store in which processes find each other, without what those before a restart have left in it.

    torchrun keeps one store over restarts, in which addresses of processes that are gone then stay
    (https://github.com/pytorch/pytorch/issues/135712). On several machines its counts of restarts may differ, so there
    the environment has to be TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    return dist.PrefixStore(f"start_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store) if one_machine else store


def _network_problem(error: Exception) -> str | None:
    """Why processes do not reach each other, in a line; None for any other error."""
    text = printable(error)
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if isinstance(error, dist.DistNetworkError) and "EADDRINUSE" in text:
        return f"{where} is taken, by another training most likely: choose another MASTER_PORT, or --master-port"
    if isinstance(error, dist.DistError) or "gloo/transport" in text:
        return f"{ANOTHER_ENDED}: {text[-REASON_LENGTH:]}"
    return None


@contextmanager
def reported() -> Iterator[None]:
    """Leave the reason why this process ends where torchrun reads it; one that `launch` started prints no line itself.

    For use where `errors.exit_in_one_line` ends the program.
    """
    try:
        yield
    except InputError as error:
        _leave_reason(error)
        if launched():
            raise SystemExit(2) from error
        raise
    except KeyboardInterrupt:
        if launched():
            raise SystemExit(130) from None
        raise
    except Exception as error:
        _leave_reason(error)
        raise


def _leave_reason(error: Exception) -> None:
    """Write the error where torchrun reads it: whole, or not at all where the process is stopped meanwhile."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        os.environ["TORCHELASTIC_ERROR_FILE"] = f"{path}.part"
    get_error_handler().record_exception(error)
    if path:
        os.replace(f"{path}.part", path)
        os.environ["TORCHELASTIC_ERROR_FILE"] = path


def from_rank_0(value: T) -> T:
    """Rank 0's value, in every process; anything that can be pickled."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
