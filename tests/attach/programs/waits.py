"""Trains 60 steps, and waits after so many of them until there is a file "go": `waits.py STEPS`."""

import sys
import time
from pathlib import Path

before = int(sys.argv[1])


def wait():
    Path("begun").write_text("yes")
    while not Path("go").exists():
        time.sleep(0.05)


if not before:  # not even torch is imported
    wait()

from trainings import Training  # noqa: E402

training = Training()
training(before)
if before:
    wait()
training(60 - before)
Path("trained").touch()
sys.exit(7)
