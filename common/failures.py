"""Failures of a training that the user can do something about, as one line."""

import errno
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from common.device import device_name
from common.loaders import Loader
from common.options import StepOptions
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, compile_failure, is_out_of_memory

NOT_PINNED = ".*pin_memory.*no accelerator"  # torch's warning on a machine without a GPU
CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
CANNOT_START_PROCESS = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE}


@contextmanager
def as_input_error(
    args: StepOptions,
    loader: Loader,
    device: torch.device,
    program: str | None = None,
    out_of_memory: str | None = None,
) -> Iterator[None]:
    """Turn the failures of a training that the user can do something about into InputError.

    program: its file, where it is one that `fit` can predict. out_of_memory: what to do where memory runs out, by
    default to try a smaller batch or model.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NOT_PINNED)  # said in the notes instead
        warnings.filterwarnings("ignore", message=".*Profiler clears events")  # there is one cycle only
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # on a CPU it misses CUDA, to compile
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            message = _input_problem(error, args, loader, device, program, out_of_memory)
            if message is None:
                raise
            raise InputError(message) from error


def _input_problem(
    error: Exception,
    args: StepOptions,
    loader: Loader,
    device: torch.device,
    program: str | None,
    out_of_memory: str | None,
) -> str | None:
    """What the user can do about an error, in a line; None where it is a defect of the program."""
    batch_size, workers, text = loader.batch_size or 1, loader.num_workers, str(error)
    fewer = f"try fewer than --workers {workers}; 0 loads in the main process"
    if "shared memory" in text or "Bus error" in text:
        return f"the loader's workers ran out of shared memory: {fewer}, and in a container give it a larger --shm-size"
    if killed := re.search(r"DataLoader worker .*?(killed by signal: [\w ]+|exited unexpectedly)", text):
        return f"a loader worker was {killed[1].strip()}, most likely for lack of memory: {fewer}"
    if "Too many open files" in text or (
        isinstance(error, OSError) and error.errno in CANNOT_START_PROCESS and workers
    ):
        return f"the system refuses to start the loader's workers ({text}): {fewer}"
    if is_out_of_memory(error):
        fixed = batch_size == 1 or batch_size != args.batch_size
        of_images = " or --image-size" if args.image_size else ""
        smaller = f"try a smaller --model{of_images}" if fixed else f"try --batch-size {batch_size // 2}"
        fits = ""
        if program and not fixed and device.type == "cuda":
            fits = what_fits(program, device, args.model, args.image_size, args.precision)
        return f"out of memory on {device_name(device)} with batch size {batch_size}: {out_of_memory or smaller}{fits}"
    if message := compile_failure(error):
        return message
    if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
        where = error.filename or args.logdir
        return f"cannot write {where}: {error.strerror}; free space there or choose another --logdir"
    return batch_norm_problem(error, batch_size, args.image_size)


def what_fits(program: str | Path, device: torch.device, model: str, image_size: int, precision: str) -> str:
    """The end of a sentence: the command that predicts the largest batch on this GPU."""
    path = Path(program).resolve()
    file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    memory = torch.cuda.get_device_properties(device).total_memory // 10**9
    size = f"--image-size {image_size} " if image_size else ""  # 0: not of images
    options = f"--model {model} {size}--precision {precision}"
    return f"; what fits: python -m walkthrough fit --program {file} {options} --memory {memory}GB"


def batch_norm_problem(error: Exception, batch_size: int, image_size: int) -> str | None:
    """What to do where a batch is too small for batch norm, in a line; None for any other error."""
    if "Expected more than 1 value per channel" not in str(error):
        return None
    return (
        f"batch norm needs more than one value per channel: a batch of {batch_size} at {image_size} px is too small, "
        "try a larger --batch-size or --image-size"
    )
