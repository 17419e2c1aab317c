"""As `several.py`, and prints each loss: `printed.py NAME…`."""

import multiprocessing
import sys

import parts
import several

plain = parts.loss


def loss(*words):
    value = plain(*words)
    print(value.item(), flush=True)
    return value


if __name__ == "__main__":
    parts.loss = loss
    for name in sys.argv[1:]:
        process = multiprocessing.get_context("fork").Process(target=several.run, args=(name,), name=name)
        process.start()
        process.join()
        print(name, process.exitcode, flush=True)
