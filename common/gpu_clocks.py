"""What a GPU's clock, power and temperature were while windows were timed, as nvidia-smi reports them.

A GPU that is hot, or that reached its power limit, lowers its clock: then a run is slower, and not by its program.
"""

import math
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import or_

import torch

from walkthrough.results.errors import printable
from walkthrough.results.result import GpuClocks

FIELDS = ("clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")
# What slows the GPU down, by the name of today's drivers, and of those before 535. A query with a name that the driver
# does not know fails as a whole.
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
EVERY_MS = 500
END_SECONDS = 5.0  # for nvidia-smi to end; a driver that is stuck may hold it up
ASK_SECONDS = 10
# Bits of nvmlClocksThrottleReasons in NVML's nvml.h that slow a GPU down; not: idle, clocks that someone has set.
REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


class GpuWatch:
    """A context in which nvidia-smi samples an NVIDIA GPU, in a process of its own. clocks: what it saw, afterwards.

    clocks is None on a CPU, and where nvidia-smi is missing, fails, hangs, or reports nothing in the time or of the GPU
    (a part of one, by MIG). Then `notes` says why: nothing that nvidia-smi does raises, or fails a run.
    """

    def __init__(self, device: torch.device) -> None:
        self.clocks: GpuClocks | None = None
        self._process: subprocess.Popen[str] | None = None
        self._command: list[str] | None = None  # known before it is entered: a loader's queue would fill meanwhile
        self._unread = ""  # why `clocks` is None, or what it lacks
        if device.type == "cuda":
            try:
                uuid = _uuid(device)
                self._command = [*_query(uuid, (*FIELDS, _reason_field(uuid))), f"--loop-ms={EVERY_MS}"]
            except (OSError, subprocess.TimeoutExpired) as error:
                self._unread = _reason(error)

    def __enter__(self) -> "GpuWatch":
        if self._command:
            try:
                self._process = subprocess.Popen(
                    self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
                )
            except OSError as error:
                self._unread = _reason(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()
            try:
                printed, _stderr = self._process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired as error:  # not worth a run that is measured
                self._process.kill()
                if self._process.stdout:
                    self._process.stdout.close()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
                self._unread = _reason(error)
                return
            self.clocks, self._unread = clocks(printed), _not_reported(printed)

    @property
    def notes(self) -> list[str]:
        """For a run's notes: what nvidia-smi did not report of the GPU, and why; whether the GPU was slowed down."""
        lacks = "nvidia-smi does not report for this GPU" if self.clocks else "the GPU's clock and power were not read"
        return [*([f"{lacks}: {self._unread}"] if self._unread else []), *slowed_down(self.clocks)]


def _query(uuid: str, fields: Sequence[str]) -> list[str]:
    return ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def _reason_field(uuid: str) -> str:
    """The one of `REASON_FIELDS` that this driver knows. Raises OSError with nvidia-smi's own words if it has none."""
    for field in REASON_FIELDS:
        asked = subprocess.run(
            _query(uuid, [field]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            text=True, errors="replace", timeout=ASK_SECONDS,
        )  # fmt: skip
        if asked.returncode == 0:
            return field
    said = printable(" ".join(asked.stdout.split()), 120) or f"nothing, and ends with code {asked.returncode}"
    raise OSError(None, f"says {said}")


def _reason(error: OSError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no nvidia-smi"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nvidia-smi did not end within {error.timeout:g} s"
    return f"nvidia-smi {error.strerror or error}"


def _uuid(device: torch.device) -> str:
    """The GPU's own number, which nvidia-smi knows, too; CUDA's index may be another than nvidia-smi's.

    Raises OSError where there is none that nvidia-smi could know.
    """
    if torch.version.hip:
        raise OSError(None, "knows NVIDIA's GPUs only")
    return str(torch.cuda.get_device_properties(device).uuid)


def _columns(printed: str) -> tuple[int, list[list[float]]]:
    """How many whole lines nvidia-smi printed, as the last may not be, and the values of `FIELDS` and of the reasons.

    A value that it does not report is left out.
    """
    lines = [line.split(",") for line in printed.splitlines(keepends=True) if line.endswith("\n")]
    lines = [cells for cells in lines if len(cells) == len(FIELDS) + 1]
    columns = [
        [number for cell in column if (number := _number(cell)) is not None] for column in zip(*lines, strict=True)
    ]
    return len(lines), columns


def _number(cell: str) -> float | None:
    text = cell.strip()
    try:
        number = int(text, 16) if text.startswith("0x") else float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None
    return number if math.isfinite(number) else None


def _not_reported(printed: str) -> str:
    """Names of the fields that no line has a value of, or why there is no line; "" where nothing is missing."""
    lines, columns = _columns(printed)
    if not lines:
        return "nvidia-smi printed no values while the windows were timed"
    names = (*FIELDS, "reasons of a lower clock")
    return ", ".join(name for name, column in zip(names, columns, strict=True) if not column)


def clocks(printed: str) -> GpuClocks | None:
    """The `GpuClocks` of nvidia-smi's lines of `FIELDS` and reasons; None without a whole line."""
    lines, columns = _columns(printed)
    if not lines:
        return None
    sm, sm_limit, power, power_limit, temperature, reasons = columns
    bits = reduce(or_, map(int, reasons), 0)
    return GpuClocks(
        samples=lines,
        sm_mhz=statistics.median(sm) if sm else None,
        sm_mhz_lowest=min(sm, default=None),
        sm_mhz_limit=max(sm_limit, default=None),
        power_watts=statistics.median(power) if power else None,
        power_limit_watts=statistics.median(power_limit) if power_limit else None,
        temperature=max(temperature, default=None),
        slowed_by=[reason for bit, reason in REASONS.items() if bits & bit],
    )


def slowed_down(clocks: GpuClocks | None) -> list[str]:
    """The note that a GPU lowered its clock in the windows, and why; [] where it did not, or where nobody looked."""
    if not clocks or not clocks.slowed_by:
        return []
    known = clocks.sm_mhz is not None and clocks.sm_mhz_limit is not None
    to = f": {clocks.sm_mhz:.0f} of {clocks.sm_mhz_limit:.0f} MHz" if known else ""
    return [f"the GPU lowered its clock while it was timed ({', '.join(clocks.slowed_by)}){to}"]
