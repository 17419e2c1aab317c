"""How this machine's threads wait and its memory is kept while a program is measured on a CPU."""

import ctypes
import os
from functools import cache

# OpenMP's own name, and GNU OpenMP's: rounds of a loop before a thread sleeps; see `common`.
SHORT_SPIN = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

# M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX of malloc.h: never trim, map no single tensor, one heap for all threads.
MALLOPT = {-1: -1, -4: 0, -8: 1}
KEEPS_FREED_MEMORY = "memory that is freed is kept for the next step, as torch keeps a GPU's (mallopt)"


def openmp_waiting() -> str:
    """How OpenMP's threads wait for work here, for a run's notes; see `SHORT_SPIN`."""
    chosen = {name: value for name, value in os.environ.items() if name in SHORT_SPIN}
    words = " ".join(f"{name}={value}" for name, value in sorted(chosen.items(), reverse=True))
    if chosen == SHORT_SPIN:
        return f"OpenMP's threads spin only briefly while they wait, then sleep ({words})"
    return f"OpenMP's threads wait as the environment says ({words})"


@cache
def keep_freed_memory() -> bool:
    """Make glibc keep memory that is freed for what is allocated next; True where it does, now and if called again.

    torch keeps it on a GPU, in its caching allocator, but not on a CPU: glibc returns tensors of many megabytes to the
    system, or does not, depending on what else is allocated, and the next step then waits for new pages. Where a
    variable MALLOC_… is set, the user has chosen. False too where there is no glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return False
    return all([mallopt(setting, value) for setting, value in MALLOPT.items()])


def page_faults() -> int:
    """How often this process has touched a page of memory that it did not have yet (minor faults); 0 if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
