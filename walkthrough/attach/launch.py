"""Run a command whose Python processes attach to their training, and collect what they report."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from walkthrough.results.errors import InputError
from walkthrough.results.files import open_new
from walkthrough.results.result import writing

SITE = Path(__file__).resolve().parent / "site"
PARTING = 5.0  # s
WAIT = 1800.0  # s for the first training step to end
GRACE = 60.0  # s from the last process's report to the end of the command
ROOM = 2**16  # bytes; a disk with less is full

Report = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a command ended. code: its exit code, negative for a signal. reports: of its Python processes.

    stopped: why it was ended from here, "" where it was not. signalled: the number of the signal, of Ctrl-C or SIGTERM,
    that came meanwhile; 0: none.
    """

    code: int
    reports: list[Report]
    stopped: str = ""
    signalled: int = 0

    @property
    def exit_code(self) -> int:
        """The command's exit code as a shell gives it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        if self.code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"the command was ended by {names.get(-self.code, f'signal {-self.code}')}"
        return f"the command's exit code is {self.code}"

    def in_state(self, *states: str) -> list[Report]:
        """The reports in one of these states, by rank, then in order of process."""
        return [report for report in self.by_rank() if report["state"] in states]

    def by_rank(self) -> list[Report]:
        """All reports, by rank, then in order of process."""
        return sorted(self.reports, key=lambda report: (report.get("rank") or 0, report["pid"]))


def command_words(words: Sequence[str]) -> list[str]:
    """A command as it is run: a Python file by the Python that has torch. Raises InputError where there is none."""
    words = list(words[1:] if words[:1] == ["--"] else words)
    if not words:
        raise InputError("no command given: name one after --, such as -- python train.py")
    if words[0].endswith(".py"):
        if not os.path.isfile(words[0]):
            raise InputError(f"{words[0]}: no such file")
        own = sys.executable if importlib.util.find_spec("torch") else None
        python = own or shutil.which("python") or shutil.which("python3") or sys.executable
        words = [python, *words]
    if shutil.which(words[0]) is None:
        raise InputError(f"{words[0]}: no such command, or it cannot be run: is it spelled right, and on the PATH?")
    return words


@contextmanager
def reports_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder for the reports of processes, removed at the end. parent: where; else the system's temporary folder.

    Its file "lock" is held until then: by that a process knows whether this one is still there. Processes find it by
    PYTHONPATH. Raises InputError.
    """
    with writing(parent or "a temporary folder (TMPDIR)"):
        temporary = tempfile.TemporaryDirectory(prefix=".walkthrough-", dir=parent, ignore_cleanup_errors=True)
    with temporary as name:
        folder = Path(name).resolve()  # the program may change its folder
        for path, fix in ((SITE, "install walkthrough"), (folder, "name" if parent else "let TMPDIR name")):
            if os.pathsep in str(path):
                reason = f"a path with {os.pathsep!r} in it cannot be on PYTHONPATH"
                raise InputError(f"{path.parent}: {reason}; {fix} another folder")
        check_room(folder)
        with open_new(folder / "lock") as lock:
            with suppress(OSError, ImportError):  # a file system without locks, or Windows
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def check_room(reports: Path) -> None:
    """Raise InputError where the disk of the reports' folder is full."""
    with writing(reports.parent):
        with open_new(reports / "room") as file:
            file.write(bytes(ROOM))
        os.unlink(reports / "room")


def run_attached(
    words: Sequence[str], settings: Mapping[str, Any], reports: Path, output: IO[bytes] | None = None
) -> Outcome:
    """Run a command, attached, to its end; one in which no training step has ended after `WAIT` s is ended.

    settings: for the processes, see `site/walkthrough_hook`. reports: their folder. output: where stdout and stderr go,
    else through. Ctrl-C and SIGTERM are passed to the command. Raises InputError where it cannot be started.
    """
    path = os.pathsep.join(filter(None, [str(SITE), str(reports), os.environ.get("PYTHONPATH")]))
    settings = {**settings, "reports": str(reports), "host": socket.gethostname()}
    with writing(reports.parent), open_new(reports / "settings") as file:
        file.write(json.dumps(settings).encode())
    with _Signals() as signals:
        try:
            child = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stdout=output, stderr=output)
        except OSError as error:
            raise InputError(f"{words[0]} cannot be run: {error.strerror}") from error
        signals.pass_to(child)
        stopped = _wait(child, reports, settings["go_on"])
        if stopped or signals.came:
            _end_processes(reports)
    return Outcome(child.returncode, read_reports(reports), stopped, signals.came[0] if signals.came else 0)


def read_reports(folder: Path) -> list[Report]:
    """The reports in a folder; one that cannot be read is left out. One that could not be written says why."""
    reports = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            reports[path.name] = json.loads(path.read_text(encoding="utf-8"))
    for path in folder.glob("*.json.[0-9]*"):
        report = reports.setdefault(path.stem, {"state": "python", "pid": 0})
        if report["state"] not in ("done", "failed"):
            why = os.strerror(int(path.suffix[1:]))
            report |= {"state": "failed", "reason": f"it cannot write its report to {folder.parent}: {why}"}
    return list(reports.values())


def is_one_training(reports: Sequence[Report]) -> bool:
    """Whether these are of one process, or of the ranks of one training."""
    ranks = [report.get("rank") for report in reports]
    return len(reports) == 1 or (None not in ranks and len(set(ranks)) == len(ranks))


def why_nothing(outcome: Outcome, warmup: int) -> str:
    """Why no process was measured, and what to do, in one line."""
    if failed := outcome.in_state("failed"):
        return str(failed[0].get("reason"))
    if outcome.stopped:
        return outcome.stopped
    if outcome.in_state("measuring"):
        return "it ended while its steps were measured, by a signal or os._exit"
    if stepping := outcome.in_state("stepping"):
        steps = max(report.get("steps") or 0 for report in stepping)  # unknown after a signal or os._exit
        if not steps:
            return "it ended soon, before measuring began: give a smaller --warmup, or train longer"
        fits = f"give --warmup {warmup_for(steps)}, or " if 0 < warmup_for(steps) < warmup else ""
        return f"it ended after {counted(steps, 'training step')}, before measuring began: {fits}train longer"
    if outcome.in_state("torch"):
        return "no training step has ended: no optimizer stepped, and no backward pass was counted"
    if outcome.reports:
        return "no Python process of it imported torch"
    return (
        "no Python process of it could be attached to: is it Python, and does it run here, without the options "
        "-I, -E or -S and with this PYTHONPATH?"
    )


def counted(count: int, noun: str) -> str:
    """A number of things: "1 round", "2 rounds"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def warmup_for(steps: int) -> int:
    """A warm-up that leaves steps to measure of so many in all, with several optimizers too; 0: none does."""
    return max(1, steps // 5) if steps > 2 else 0


def _wait(child: subprocess.Popen, reports: Path, goes_on: bool) -> str:
    """Wait for the command's end. Returns why it was ended from here, or ""."""
    begin, stopped = time.monotonic(), ""
    while not stopped:
        with suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
            return ""
        states = {report["state"] for report in read_reports(reports)}
        if time.monotonic() - begin > WAIT and not states & {"stepping", "measuring", "done", "failed"}:
            stopped = f"no training step has ended in {WAIT / 60:.3g} minutes"
        waiting = states & {"done"} and not states & {"stepping", "measuring"} and not goes_on
        if waiting and time.time() - max(path.stat().st_mtime for path in reports.glob("*.json")) > GRACE:
            stopped = f"the program did not end in {GRACE:.0f} s after its last measured step"
    child.terminate()
    try:
        child.wait(PARTING)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return stopped


def _end_processes(reports: Path) -> None:
    """End the command's Python processes on this machine that outlive it: after `PARTING` s SIGTERM, then SIGKILL."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + PARTING
        for report in read_reports(reports):
            if number and _is_of(report, reports):
                with suppress(ProcessLookupError):
                    os.kill(report["pid"], number)
        while any(_is_of(report, reports) for report in read_reports(reports)) and time.monotonic() < end:
            time.sleep(0.2)


def _is_of(report: Report, reports: Path) -> bool:
    """Whether the process that wrote a report runs on this machine: its PYTHONPATH names the folder. Linux."""
    try:
        variables = Path(f"/proc/{report['pid']}/environ").read_bytes()
    except OSError:
        return False
    return report.get("host") == socket.gethostname() and os.fsencode(reports) in variables


class _Signals:
    """A context that passes SIGTERM on, and Ctrl-C unless the terminal gives it to the command as well.

    It is entered before the command starts, so none is lost meanwhile. came: the numbers of the signals that came.
    """

    def __init__(self) -> None:
        self.came = list[int]()
        self._waiting = list[int]()  # to be passed on
        self._child: subprocess.Popen | None = None

    def __enter__(self) -> "_Signals":
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def pass_to(self, child: subprocess.Popen) -> None:
        self._child = child
        self._pass_on(early=True)  # no terminal gave the command what came before it began

    def _note(self, number: int, _: object) -> None:
        self.came.append(number)
        self._waiting.append(number)
        self._pass_on()

    def _pass_on(self, early: bool = False) -> None:
        while self._child and self._waiting:
            with suppress(IndexError):  # another signal, whose call of this came between, has passed it on
                number = self._waiting.pop(0)
                if self._child.poll() is None and (early or not (number == signal.SIGINT and _in_foreground())):
                    self._child.send_signal(number)


def _in_foreground() -> bool:
    """Whether this process is in the foreground of a terminal, which sends Ctrl-C to the whole group."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
