"""A child that dies without an answer, as under an out-of-memory killer: `python dying_worker.py NICE`.

It exits at once for the worker "dies", and in the middle of its answer for the worker "breaks".
"""

import os
import sys

from walkthrough.tensorboard import worker

answer = worker.answer


def dying(job):
    if job.options[0] == "dies":
        os._exit(9)
    if job.options[0] == "breaks":
        os.write(OUTCOMES, b'{"reason": nu')
        os._exit(9)
    return answer(job)


if __name__ == "__main__":
    OUTCOMES = os.dup(1)
    worker.answer = dying
    worker.main(*map(int, sys.argv[1:]))
