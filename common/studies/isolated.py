"""A measurement in a process of its own: what one compiled, allocated or broke does not reach the next."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

from common.machine import ROOT

GRACE = 0.5  # s, for a compiler that is asked to stop


@contextmanager
def isolated_process(command, words, limit_seconds, stderr=subprocess.DEVNULL):
    """Start a program of ours in a process of its own, with `words` as JSON; its output is a pipe of text.

    Yields the process, the timer that ends it after `limit_seconds`, and an event that is set if that came to pass.
    However this is left, the process and all it started are ended.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    late = threading.Event()
    with subprocess.Popen(
        [*command, json.dumps(words, default=str)], env=environment, text=True, errors="replace",
        start_new_session=True, stdout=subprocess.PIPE, stderr=stderr,
    ) as process:  # fmt: skip

        def too_late():
            late.set()
            end_with_children(process)

        timer = threading.Timer(limit_seconds, too_late)
        timer.start()
        try:
            yield process, timer, late
        finally:
            timer.cancel()
            end_with_children(process)


def end_with_children(process):
    """End a process and all that it started, which share its session.

    Asked first: a C++ compiler then takes away what it had half written, which would break every later compile.
    """
    for ask in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, ask)
        except (ProcessLookupError, PermissionError):
            process.kill()
            return
        if ask == signal.SIGTERM:
            time.sleep(GRACE)
