"""The progress of a running step: a line for a person, or a line of JSON for the program that started it.

And the end of a step that nobody follows any more.
"""

import json
import multiprocessing
import os
import select
import signal
import stat
import sys
import threading

VARIABLE = "WALKTHROUGH_PROGRESS"  # set to "json" by a program that follows the step


def is_followed() -> bool:
    """Whether a program follows this step through a pipe."""
    return os.environ.get(VARIABLE) == "json"


def report(phase: str, done: int, of: int, samples_per_second: float | None = None, unit: str = "images") -> None:
    """Report that `done` of `of` equal parts of the run are over.

    phase: names the part that ended; where `done` is 0, the one that begins. unit: what samples are.
    """
    if is_followed():
        event = {"phase": phase, "done": done, "of": of, "samples_per_second": samples_per_second}
        print(json.dumps({"progress": event}), flush=True)
    else:
        speed = "" if samples_per_second is None else f"{samples_per_second:10.1f} {unit}/s"
        print(f"  {phase:<14}{speed}".rstrip(), flush=True)


def say(text: str) -> None:
    """Print `text` for a person; a program that follows the step shows such things in its own way."""
    if not is_followed():
        print(text, flush=True)


def end_with_reader() -> None:
    """Called in a process that another one reads through a pipe: end it once nobody reads what it prints any more.

    So it ends with the command that started it, even if that is killed, and does not train on alongside the next one. A
    process that leads its group, as `compare.isolated` starts it, ends with all in it; another one, which shares the
    group of its command, with the workers of its loader. Does nothing where stdout is no pipe.
    """
    try:
        output = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
    except (AttributeError, OSError, ValueError):  # closed, or an object of Python's alone
        return
    if is_pipe and hasattr(select, "poll"):
        threading.Thread(target=_wait_and_end, args=(output,), daemon=True).start()


def _wait_and_end(output: int) -> None:
    pipe = select.poll()
    pipe.register(output, 0)  # errors are reported unasked
    pipe.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    for child in multiprocessing.active_children():  # they would notice seconds later, and hold the folder's lock
        child.kill()
    os._exit(1)
