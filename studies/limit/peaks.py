"""The peaks of this device, measured: FLOP/s by large matrix products, bytes/s by large copies.

Not from a data sheet: those hold at clocks and with data that a training never sees. TF32 is off, as in every step.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from common.device import dtype_name, synchronize
from walkthrough.compare.roofs import Peak
from walkthrough.results.errors import is_out_of_memory

MATRICES = {"cuda": (2048, 4096, 8192, 12288), "cpu": (256, 512, 1024, 2048)}  # rows and columns
COPIES = {"cuda": (512, 2048), "cpu": (256, 512)}  # MiB, well beyond the caches
WINDOWS, WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5, 0.2, 0.02

Call = Callable[[], object]


def peak_flops(device: torch.device, dtype: torch.dtype, quick: bool = False) -> list[Peak]:
    """FLOP/s of C = A @ B, square, in `dtype`, 2 n^3 FLOPs each; the best size first."""

    def prepare(n: int) -> tuple[Call, int]:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, device=device, dtype=dtype)
        return partial(torch.mm, a, b, out=out), 2 * n**3

    sizes = MATRICES[device.type]
    return _best_first(
        device, sizes[:2] if quick else sizes, prepare, lambda n: f"{n} x {n} {dtype_name(dtype)}", quick
    )


def peak_bytes(device: torch.device, quick: bool = False) -> list[Peak]:
    """Bytes/s of a copy within the device's memory; the best size first.

    A byte that is copied counts twice, once read and once written.
    """

    def prepare(mib: int) -> tuple[Call, int]:
        source = torch.ones(mib * 2**20 // 4, device=device)
        target = torch.zeros_like(source)  # written to, so that its pages are there
        return partial(target.copy_, source), 2 * source.nbytes

    sizes = COPIES[device.type]
    return _best_first(device, sizes[:1] if quick else sizes, prepare, lambda mib: f"{mib} MiB copied", quick)


def _best_first(
    device: torch.device,
    sizes: Sequence[int],
    prepare: Callable[[int], tuple[Call, int]],
    name: Callable[[int], str],
    quick: bool,
) -> list[Peak]:
    """A `Peak` for each size that fits into memory. prepare(size): what to call, and the amount of work of a call."""
    seconds, peaks = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS, []
    for size in sizes:
        try:
            call, amount = prepare(size)
            rates = [amount * rate for rate in call_rates(device, call, seconds)]
        except Exception as error:  # the sizes grow: what fits is enough
            if not peaks or not is_out_of_memory(error):
                raise
            break
        peaks.append(Peak(name(size), statistics.median(rates), rates))
    return sorted(peaks, key=lambda peak: peak.median, reverse=True)


def call_rates(device: torch.device, call: Call, seconds: float) -> list[float]:
    """Calls per second of each of `WINDOWS` windows, the device synchronised at a window's edges only."""
    _seconds(device, call, 1)  # the first call: kernels are loaded, pages touched
    calls = 1
    while (elapsed := _seconds(device, call, calls)) < seconds / 4:
        calls *= 2
    calls = max(1, round(calls * seconds / elapsed))
    return [calls / _seconds(device, call, calls) for _ in range(WINDOWS)]


def _seconds(device: torch.device, call: Call, calls: int) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - begin
