"""A process that ends with the one that reads what it prints."""

import multiprocessing
import os
import select
import signal
import stat
import sys
import threading


def end_with_reader() -> None:
    """Called in a process that another one reads through a pipe: end it once nobody reads what it prints any more.

    So it ends with the command that started it, even if that is killed, and does not train on alongside the next one. A
    process that leads its group, as `studies.isolated` starts it, ends with all in it; another one, which shares the
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
