"""What every step shares: one data set, one model, one way to measure.

Importing it sets how OpenMP's threads wait for work, which torch reads when it is imported: they spin for some
microseconds, then sleep, where the user did not choose. By default they spin for milliseconds, and alongside any other
busy process (a loader's worker, say) that takes the cores from those that have work; threads that sleep at once have
to be woken for every operator, which on an idle machine takes longer than many operators do.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.machine import SHORT_SPIN
from walkthrough.results.errors import one_line_errors as one_line_errors  # for programs

if TYPE_CHECKING:
    from common.data import CIFAR10_MEAN as CIFAR10_MEAN
    from common.data import CIFAR10_STD as CIFAR10_STD
    from common.data import cifar10 as cifar10
    from common.data import resized_float as resized_float
    from common.data import resized_uint8 as resized_uint8
    from common.data import stored_uint8 as stored_uint8
    from common.device import autocast_dtype as autocast_dtype
    from common.device import start as start
    from common.loaders import DeviceLoader as DeviceLoader
    from common.loaders import Prefetcher as Prefetcher
    from common.model import classifier as classifier
    from common.options import step_options as step_options
    from common.session import run_step as run_step

if not SHORT_SPIN.keys() & os.environ.keys():
    os.environ.update(SHORT_SPIN)

# What programs import, by module: loaded when asked for, so that `common.options` alone, and --help, need no torch.
_MODULES = {
    "CIFAR10_MEAN": "data",
    "CIFAR10_STD": "data",
    "cifar10": "data",
    "resized_float": "data",
    "resized_uint8": "data",
    "stored_uint8": "data",
    "autocast_dtype": "device",
    "start": "device",
    "DeviceLoader": "loaders",
    "Prefetcher": "loaders",
    "classifier": "model",
    "step_options": "options",
    "run_step": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"common.{_MODULES[name]}"), name)
