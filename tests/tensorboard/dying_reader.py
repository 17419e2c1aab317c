"""A child that dies without an answer, as under an out-of-memory killer: `python tests/board/dying_reader.py NICE`.

It exits at once for the worker "dies", and in the middle of its answer for the worker "breaks".
"""

import os
import sys

from walkthrough.tensorboard import worker

read = worker.read


def dying(job):
    if job.worker == "dies":
        os._exit(9)
    if job.worker == "breaks":
        os.write(ANSWERS, b'{"reason": nu')
        os._exit(9)
    return read(job)


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    worker.read = dying
    worker.start(int(sys.argv[1]))
