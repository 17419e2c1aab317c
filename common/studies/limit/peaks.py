"""What this device can do at most, measured here: FLOP/s by large matrix products, bytes/s by large copies.

Never from a data sheet: those hold at clocks and with data that a training never sees. TF32 is off, as in every step.
"""

import statistics
import time
from functools import partial

import torch

from common.errors import is_out_of_memory
from common.session import synchronize
from common.studies.limit.record import Peak

MATRICES = {"cuda": (2048, 4096, 8192, 12288), "cpu": (256, 512, 1024, 2048)}  # rows and columns
COPIES = {"cuda": (512, 2048), "cpu": (256, 512)}  # MiB, well beyond the caches
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 0.2, 0.02


def peak_flops(device, dtype, quick=False):
    """FLOP/s of C = A @ B, square, in `dtype`, 2 n^3 FLOPs each: a list of `Peak`, the best size first."""

    def prepared(n):
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, device=device, dtype=dtype)
        return partial(torch.mm, a, b, out=out), 2 * n**3

    name = str(dtype).removeprefix("torch.")
    sizes = MATRICES[device.type]
    return _best_first(device, sizes[:2] if quick else sizes, prepared, lambda n: f"{n} x {n} {name}", quick)


def peak_bytes(device, quick=False):
    """Bytes/s of a copy within the device's memory: a list of `Peak`, the best size first.

    A byte that is copied counts twice, once read and once written.
    """

    def prepared(mib):
        source = torch.ones(mib * 2**20 // 4, device=device)
        target = torch.zeros_like(source)  # written to, so that its pages are there
        return partial(target.copy_, source), 2 * source.nbytes

    sizes = COPIES[device.type]
    return _best_first(device, sizes[:1] if quick else sizes, prepared, lambda mib: f"{mib} MiB copied", quick)


def _best_first(device, sizes, prepared, named, quick):
    seconds, found = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS, []
    for size in sizes:
        try:
            call, amount = prepared(size)
            rates = [amount * rate for rate in call_rates(device, call, seconds)]
        except Exception as error:  # the sizes grow: what fits is enough
            if not found or not is_out_of_memory(error):
                raise
            break
        found.append(Peak(named(size), statistics.median(rates), rates))
    return sorted(found, key=lambda peak: peak.median, reverse=True)


def call_rates(device, call, seconds):
    """Calls per second of each of `WINDOWS` windows, the device synchronised at a window's edges only."""
    took = _seconds(device, call, 1)  # the first call: kernels are loaded, pages touched
    calls = 1
    while (took := _seconds(device, call, calls)) < seconds / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / took))
    return [calls / _seconds(device, call, calls) for _ in range(WINDOWS)]


def _seconds(device, call, calls):
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - begin
