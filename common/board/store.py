"""What is computed of traces, once: in processes of their own, kept in memory and in the user's cache folder."""

import atexit
import gzip
import hashlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

import common.trace
from common.errors import printable

log = logging.getLogger("walkthrough")
CODE = Path(common.trace.__file__).parent
IN_MEMORY = 64 * 2**20  # bytes
ON_DISK = 256 * 2**20  # bytes; the oldest go first
SETTLED = 1.0  # s since a trace was last written to: until then it may not be whole
RETRY = 30.0  # s until what failed for a reason that may pass is tried again
WORKERS = max(1, min(4, os.cpu_count() or 1))


class Store:
    """Answers about traces as gzipped JSON. Thread-safe; the same question is never worked on twice at a time.

    folder: where answers are kept, None for the user's cache folder. A trace is known by its path, size and time of
    change, and by the code that reads it: what has changed is computed anew.
    """

    def __init__(self, folder=None):
        self.folder = _usable(folder or _cache_folder())
        self._lock, self._closed = threading.Lock(), False
        self._ready, self._failed = OrderedDict(), OrderedDict()
        self._jobs, self._number, self._waiting, self._working = queue.PriorityQueue(), count(), {}, set()
        self._processes = set()
        for _ in range(WORKERS):
            threading.Thread(target=self._work, name="walkthrough", daemon=True).start()
        atexit.register(self.close)

    def ask(self, kind, path, soon=True):
        """("ready", gzipped JSON), ("reading", None) or ("failed", why). kind: "digest" or "lanes".

        soon: somebody waits for it, so it goes before what is read ahead.
        """
        try:
            key = _key(kind, path)
        except OSError as error:
            return "failed", f"cannot read {path.name}: {error.strerror}"
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
                return "ready", self._ready[key]
            reason, until = self._failed.get(key, (None, 0))
            if time.monotonic() < until:
                return "failed", reason
            if (kind, path) in self._working:
                return "reading", None
        kept = self._kept(key)
        with self._lock:
            if kept:
                self._remember(key, kept)
                return "ready", kept
            if (kind, path) not in self._waiting or (soon and not self._waiting[kind, path]):
                self._waiting[kind, path] = soon
                self._jobs.put((not soon, next(self._number), kind, path))
        return "reading", None

    @property
    def reading(self):
        """How many answers are being worked on, or wait for that."""
        return len(self._waiting)

    def close(self):
        """Stop what is going on."""
        self._closed = True
        for process in list(self._processes):
            process.kill()

    def _work(self):
        while not self._closed:
            _, _, kind, path = self._jobs.get()
            with self._lock:
                if (kind, path) not in self._waiting or (kind, path) in self._working:
                    continue  # it was asked for twice
                self._working.add((kind, path))
            key = answer = None
            reason, lasting = "a defect: TensorBoard's log says more", False
            try:
                for _ in range(100):  # it may still be written
                    if self._closed or time.time() - path.stat().st_mtime >= SETTLED:
                        break
                    time.sleep(0.1)
                key = _key(kind, path)
                answer, reason, lasting = self._compute(kind, path)
            except OSError as error:
                reason = f"cannot read {path.name}: {error.strerror}"
            except Exception:
                log.exception("%s of %s", kind, path)
            if reason and not self._closed:
                log.warning("%s of %s: %s", kind, path, reason)
            with self._lock:
                self._waiting.pop((kind, path), None)
                self._working.discard((kind, path))
                if answer is not None:
                    self._remember(key, answer)
                elif key is not None:
                    self._failed[key] = reason, time.monotonic() + (1e9 if lasting else RETRY)
                    while len(self._failed) > 1000:
                        self._failed.popitem(last=False)
            if answer is not None:
                self._keep(key, answer)

    def _compute(self, kind, path):
        """(gzipped JSON or None, why not, whether it would be the same another time)."""
        words = [sys.executable, "-m", "common.trace.digest", *(["--lanes"] if kind == "lanes" else []), str(path)]
        with subprocess.Popen(words, cwd=CODE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self._processes.add(process)
            output, errors = process.communicate()
            self._processes.discard(process)
        if process.returncode == 0:
            return gzip.compress(output, 5), None, True
        lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return None, printable(lines[-1].partition(": ")[2] or lines[-1], 300), process.returncode == 2

    def _remember(self, key, answer):
        self._ready[key] = answer
        while len(self._ready) > 1 and sum(map(len, self._ready.values())) > IN_MEMORY:
            self._ready.popitem(last=False)

    def _kept(self, key):
        try:
            answer = (self.folder / f"{key}.json.gz").read_bytes() if self.folder else b""
            return answer if answer and gzip.decompress(answer) else None
        except (OSError, EOFError, ValueError, zlib.error):
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
            log.warning("not kept in %s: %s", self.folder, error.strerror)


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
    """The folder if it is the user's own and files can be put there; else None: nothing is kept."""
    try:
        if not folder.is_absolute():
            return None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
        return folder if own and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def _prune(folder):
    """Take the oldest answers away until the rest is no more than `ON_DISK`."""
    files = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process may have taken it
            found = file.stat()
            files.append((found.st_mtime, found.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= ON_DISK:
            break
        file.unlink(missing_ok=True)
        total -= size
