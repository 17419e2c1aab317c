"""What a run is made with: versions, the machine, the code. What is slow to import is imported where it is used."""

import os
import platform
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from walkthrough.results.errors import InputError

ROOT = Path(__file__).resolve().parents[2]  # the clone; where the tool alone is installed, the folder that it is in

# Linux names of the instructions that multiply bf16 numbers in hardware on x86; AMX, the fastest, first.
BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}


@dataclass(frozen=True)
class Environment:
    """Versions and hardware a run was made with; None where this machine has no such thing."""

    torch: str
    cuda: str | None
    driver: str | None
    python: str
    platform: str
    cpu: str
    cores: int
    git: str | None


def current_environment(torch: str, cuda: str | None) -> Environment:
    """The `Environment` of this process, given the versions that only torch knows."""
    return Environment(
        torch=str(torch),
        cuda=cuda,
        driver=driver_version(),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        cores=usable_cores(),
        git=git_revision(),
    )


def in_clone() -> bool:
    """Whether the tool runs from a clone of the project, with its programs next to it; False where it was installed."""
    return any((ROOT / "steps").glob("[0-9][0-9]_*.py"))


def project_folder(name: str) -> Path:
    """A folder of the project, such as "logs"; where the tool was installed without the project, of the current one."""
    return ROOT / name if in_clone() else Path(name)


def now() -> str:
    """This machine's time, ISO 8601 in UTC, in seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def usable_cores() -> int:
    """CPU cores this process may use: its affinity mask, and its cgroup's CPU quota rounded up where there is one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        pass
    return max(1, cores)


def cpu_name() -> str:
    """The processor's marketing name, as far as the system reports it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown CPU"


def cpu_bf16_hardware() -> str | None:
    """Name of the best bf16 instructions this CPU has, "AMX" or "AVX512-BF16"; None where there are none."""
    flags = (_cpuinfo("flags") or "").split()
    return next((name for flag, name in BF16_FLAGS.items() if flag in flags), None)


def _cpuinfo(field: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == field), None)


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None."""
    printed = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    version = re.match(r"[\d.]+$", printed or "", re.MULTILINE)  # a line for each GPU, all the same
    return version[0] if version else None


# The code that measures: all but the rooms that only read what was recorded.
ONLY_READ = ("tools/docs", "walkthrough/tensorboard", "walkthrough/explain")
MEASURES = ("steps", "labs", "common", "walkthrough", *(f":(exclude){folder}" for folder in ONLY_READ))

COMMIT_VARIABLE = "WALKTHROUGH_COMMIT"


def git_revision() -> str | None:
    """The commit that the code is at, "-dirty" added where the code that measures has uncommitted changes.

    Where git does not say, as on a machine without it or with an archive of the code, the one that `COMMIT_VARIABLE`
    names; None where that is not set either. Changes elsewhere (a note, a recorded run) do not affect what is measured.
    Raises InputError for a variable that holds no commit.
    """
    if (ROOT / ".git").exists():  # not the repository of a folder above, in which an archive was unpacked
        commit = _run("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
        changes = _run("git", "-C", ROOT, "status", "--porcelain", "--", *MEASURES)
        if commit and changes is not None:
            return commit.strip() + ("-dirty" if changes.strip() else "")
    named = os.environ.get(COMMIT_VARIABLE)
    if not named:
        return None
    if not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", named):
        raise InputError(f"{COMMIT_VARIABLE}={named!r} is no commit: give it as `git rev-parse HEAD` prints it")
    commit, dash, dirty = named.partition("-")
    return commit[:12] + dash + dirty


def _run(*command: str | Path) -> str | None:
    import subprocess

    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def code_files(*patterns: str) -> list[Path]:
    """The Python files that a recording runs: the steps, the modules that they import, and those of `patterns`.

    patterns: glob patterns relative to the project. What only reads recordings (tables, figures, pages) is not in it.
    """
    patterns = ("steps/*.py", "common/*.py", "walkthrough/results/*.py", *patterns)
    files = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(files)


def code_hash(*patterns: str) -> str:
    """SHA-256 over the names and bytes of `code_files`."""
    import hashlib

    digest = hashlib.sha256()
    for path in code_files(*patterns):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
