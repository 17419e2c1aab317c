"""What several tests share: programs that are run, small models, hand-made results."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from support.results import around, in_rounds, ladder_of, make_limit, make_result, write_run  # noqa: F401  # for tests
from walkthrough.results.errors import exit_code

ROOT = Path(__file__).resolve().parents[2]
STEPS = sorted((ROOT / "steps").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in STEPS]
PATIENCE = 300  # s: the tests share the machine
CPU_RECORD = min((ROOT / "logs" / "reference").glob("*/record.json")).parent.name  # this project's own


def run_program(*command, cwd=None, **environment):
    """Run a program with this Python; returns the finished process, output as text."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        timeout=1200,
        check=False,
    )


def assert_golden(text, path):
    """The text is that of a file, which `make golden-texts` writes anew."""
    if os.environ.get("REGENERATE") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def exit_code_of(main, *args):
    """The exit code with which a program's `main` would end its process, called in this one; its line is on stderr."""
    try:
        main(*args)
        return 0
    except SystemExit as ended:
        return ended.code or 0
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is None:
            raise
        return code


def start_program(*command, **more):
    """A program in a session of its own, its output and errors pipes of text. more: of `Popen`."""
    return subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def is_running(pid):
    """Whether there is a process of this number that has not ended. Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"  # a zombie
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or between opening and reading
        return False


def still_there(pids, seconds=20):
    """Wait for processes to end, that long at most; those that do not are killed and returned."""
    end = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    remaining = [pid for pid in pids if is_running(pid)]
    for pid in remaining:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return remaining


def die_before(number, counts=lambda path, to: True):
    """Let this process end by SIGKILL before its call of that number of os.replace or Path.unlink that counts."""
    left = iter(range(number))

    def dying(function):
        def call(path, *to, **options):
            if counts(path, *to or [path]) and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(path, *to, **options)

        return call

    os.replace, Path.unlink = dying(os.replace), dying(Path.unlink)


def until(ready, what="it", seconds=PATIENCE):
    """Wait until `ready()` is true, and return that. what: is waited for, and named where it never comes."""
    ends = time.monotonic() + seconds
    while not (answer := ready()):
        assert time.monotonic() < ends, f"{what} never came"
        time.sleep(0.02)
    return answer


def wait_for(path, seconds=240):
    """Wait until there is a file that holds something, and return its text."""
    return until(lambda: path.exists() and path.read_text(encoding="utf-8"), path, seconds)


def assert_refused(finished, *words):
    """Exit code 2, one line on stderr that holds `words`, no traceback."""
    assert finished.returncode == 2, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("[W")]  # torch's own C++ warnings
    assert len(lines) == 1, finished.stderr
    for word in words:
        assert word in lines[0]


class SmallNet(nn.Module):
    """A classifier small enough to train in a test; `seen` keeps the last images it was given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        self.seen = None

    def forward(self, images):
        self.seen = images.detach().clone()
        return self.layers(images)


def some_place(value, chance):
    """(a dict or list somewhere in a JSON value, one of its keys or indices), by a random.Random."""
    inside: Any = None
    key: Any = None
    while isinstance(value, dict | list) and value and (inside is None or chance.random() < 0.9):
        inside, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = inside[key]
    return inside, key
