"""What programs share: one data set, one model, one way to measure; the names that a step or a lab's program imports.

Importing it sets how OpenMP's threads wait for work, which torch reads when it is imported: they spin for some
microseconds, then sleep, where the user did not choose. By default they spin for milliseconds, and alongside any other
busy process (a loader's worker, say) that takes the cores from those that have work; threads that sleep at once have
to be woken for every operator, which on an idle machine takes longer than many operators do.
"""

import os
from importlib import import_module
from typing import Any

NAMES = {  # by module: loaded when asked for, so that `common.options` alone, and --help, need no torch
    "data": ("CIFAR10_MEAN", "CIFAR10_STD", "cifar10", "resized_float", "resized_uint8", "stored_uint8"),
    "device": ("autocast_dtype", "start"),
    "loaders": ("DeviceLoader", "Prefetcher"),
    "model": ("classifier",),
    "options": ("step_options",),
    "session": ("run_step",),
}
# OpenMP's own name, and GNU OpenMP's: rounds of a loop before a thread sleeps.
SHORT_SPIN = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

if not SHORT_SPIN.keys() & os.environ.keys():
    os.environ.update(SHORT_SPIN)


def __getattr__(name: str) -> Any:
    for module, names in NAMES.items():
        if name in names:
            return getattr(import_module(f"common.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
