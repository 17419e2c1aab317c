"""Runs programs of this folder, each in a fork of this process, which has imported torch: `several.py NAME…`.

Prints a line for each: its name, process and exit code.
"""

import multiprocessing
import runpy
import sys
from pathlib import Path

import torch  # once for all
import torch.utils.data


def run(name):
    sys.argv = [name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for name in sys.argv[1:]:
        process = context.Process(target=run, args=(name,))
        process.start()
        process.join()
        print(name, process.pid, process.exitcode, flush=True)
