"""The command `tour`, whose steps share one import of torch: python forked_tour.py OPTIONS.

Each step is a process of its own still, forked from this one, in which nothing has been computed.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import torch  # noqa: F401  # that steps find it
import torchvision  # noqa: F401

from walkthrough.cli import main
from walkthrough.compare import isolated


def run(command, environment, writing):
    """A program, in this process: `command` as its command line, its output into a pipe."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(writing, stream)
    os.environ |= environment
    sys.argv = command[1:]
    runpy.run_path(command[1], run_name="__main__")


class Forked(multiprocessing.get_context("fork").Process):
    """What `isolated` needs of a `subprocess.Popen`."""

    def __init__(self, command, env, **_: Any):
        reading, writing = os.pipe()
        super().__init__(target=run, args=(command, env, writing))
        self.start()
        os.close(writing)
        self.stdout = os.fdopen(reading, errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_: object):
        self.stdout.close()

    def wait(self):
        self.join()
        return self.exitcode


isolated.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": Forked})
main(["tour", *sys.argv[1:]])
