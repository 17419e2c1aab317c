"""What is computed of traces, once: in processes of their own, kept in memory and in the user's cache folder."""

import atexit
import gzip
import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import common.trace
from common.errors import printable

log = logging.getLogger("walkthrough")
CODE = Path(common.trace.__file__).parent
IN_MEMORY = 64  # answers
ON_DISK = 256 * 2**20  # bytes; the oldest go first
WORKERS = max(1, min(4, os.cpu_count() or 1))


class Store:
    """Answers about traces as gzipped JSON. Thread-safe; the same question is never worked on twice at a time.

    folder: where answers are kept, None for nowhere. A trace is known by its path, size and time of change, and by the
    code that reads it: what has changed is computed anew.
    """

    def __init__(self, folder=None):
        self.folder = _usable(folder or _cache_folder())
        self._lock, self._ready, self._work, self._failed = threading.Lock(), OrderedDict(), {}, {}
        self._pool = ThreadPoolExecutor(WORKERS, "walkthrough")
        self._processes = set()
        atexit.register(self.close)

    def ask(self, kind, path):
        """("ready", gzipped JSON), ("reading", None) or ("failed", why). kind: "digest" or "lanes"."""
        try:
            key = _key(kind, path)
        except OSError as error:
            return "failed", f"cannot read {path.name}: {error.strerror}"
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
                return "ready", self._ready[key]
            if key in self._failed:
                return "failed", self._failed[key]
            if key in self._work:
                return "reading", None
            kept = self._kept(key)
            if kept:
                self._remember(key, kept)
                return "ready", kept
            self._work[key] = self._pool.submit(self._compute, key, kind, path)
            return "reading", None

    @property
    def reading(self):
        """How many answers are being worked on, or wait for that."""
        return len(self._work)

    def close(self):
        """Stop what is going on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.kill()

    def _compute(self, key, kind, path):
        words = [sys.executable, "-m", "common.trace.digest", *(["--lanes"] if kind == "lanes" else []), str(path)]
        answer, reason = None, None
        try:
            with subprocess.Popen(
                words, cwd=CODE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                self._processes.add(process)
                output, errors = process.communicate()
                self._processes.discard(process)
            if process.returncode == 0:
                answer = gzip.compress(output, 5)
            else:
                lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
                reason = printable(lines[-1].partition(": ")[2] or lines[-1], 300)
        except OSError as error:
            reason = f"cannot start {sys.executable}: {error.strerror}"
        if reason:
            log.warning("%s of %s: %s", kind, path, reason)
        with self._lock:
            self._work.pop(key, None)
            if answer is None:
                self._failed[key] = reason
            else:
                self._remember(key, answer)
        if answer is not None:
            self._keep(key, answer)

    def _remember(self, key, answer):
        self._ready[key] = answer
        while len(self._ready) > IN_MEMORY:
            self._ready.popitem(last=False)

    def _kept(self, key):
        try:
            answer = (self.folder / f"{key}.json.gz").read_bytes() if self.folder else None
            return answer if answer and gzip.decompress(answer) else None
        except (OSError, EOFError, ValueError):
            return None

    def _keep(self, key, answer):
        if not self.folder:
            return
        try:
            partial = self.folder / f".{key}.{os.getpid()}"
            partial.write_bytes(answer)
            partial.replace(self.folder / f"{key}.json.gz")
            _prune(self.folder)
        except OSError as error:
            log.warning("no cache in %s: %s", self.folder, error.strerror)
            self.folder = None


def _key(kind, path):
    found = path.stat()
    told = f"{kind} {path.resolve()} {found.st_size} {found.st_mtime_ns} {_code()}"
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _code():
    """A hash of the code that reads traces."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(CODE.glob("*.py")))).hexdigest()


def _cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "pytorch-training-walkthrough"


def _usable(folder):
    """The folder if files can be put there, else None: then everything is computed anew after a restart."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder if os.access(folder, os.W_OK) else None
    except OSError:
        return None


def _prune(folder):
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*.json.gz"))
    total = sum(size for _, size, _ in files)
    for _, size, file in files:
        if total <= ON_DISK:
            break
        file.unlink(missing_ok=True)
        total -= size
