"""The command line: `walkthrough COMMAND`, or `python -m walkthrough COMMAND`.

A command is a module with add_options(parser) and run(args) -> exit code, and imports little before it runs.
"""

import argparse
import atexit
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from walkthrough.results.environment import ROOT, in_clone
from walkthrough.results.errors import InputError, OneLineParser, exit_code

COMMANDS = {  # the module of each, and what it does
    "tour": ("walkthrough.compare.tour", "Run every step in order, then compare them."),
    "compare": ("walkthrough.compare.ladder", "Show the runs of a folder side by side."),
    "explain": ("walkthrough.explain.command", "Read a torch.profiler trace: where the time goes, what to do next."),
    "trace": ("walkthrough.attach.trace_command", "Trace the training in any command: trace -- python train.py"),
    "time": ("walkthrough.attach.time_command", "Time two training commands: time -- COMMAND A --versus COMMAND B"),
    "record": ("walkthrough.records.record", "Run the ladder N times, interleaved, into logs/reference/<device>/."),
    "samples": ("walkthrough.records.samples", "Fetch traces of real GPUs that others published (13 MB) into DIR."),
    "limit": ("studies.limit", "Measure how fast the model could train if data cost nothing, and how near its peaks."),
    "ablate": ("studies.ablation", "Measure the ladder without each optimisation, and the baseline with each."),
    "overhead": ("studies.overhead", "Measure what tracing costs a training step: shapes, memory, stacks, modules."),
    "sweep": ("studies.sweep", "Measure training for each number of workers, batch size, and pinned memory or not."),
    "fit": ("walkthrough.memory.fit", "Predict a program's peak GPU memory, by kind, and the largest batch that fits."),
    "doctor": ("walkthrough.doctor", "Check this machine: what it has, and what to do about what it lacks."),
}
NEED_CLONE = ("tour", "record", "limit", "ablate", "overhead", "sweep")  # `common` and the programs next to it


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code: 0 done, 2 the input cannot be used (one line on stderr), 1 a defect."""
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv), ends=argv is None)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is None:
            raise
    raise SystemExit(code)


def _run(words: list[str], ends: bool) -> int:
    """Run the command of a command line: its exit code. ends: the process ends with it."""
    if words and words[0] in NEED_CLONE and not in_clone():
        clone = "run `make setup` in a clone of the project, and its .venv/bin/walkthrough"
        raise InputError(f"{words[0]} runs the course's programs: {clone}")
    if in_clone():
        sys.path.insert(0, str(ROOT))  # the project's own `common`, whatever lies in the current folder
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step in progress is stopped as well
    try:
        parser = _parser(words)
        args, others = parser.parse_known_args(words)
        if hasattr(args, "passed_on"):  # to the programs that the command runs
            args.passed_on = others
        elif others:
            args.error(f"unrecognized arguments: {' '.join(others)}")
        if ends and args.command == "explain":
            atexit.register(gc.freeze)  # a process that ends need not look for garbage, which takes 30 ms with numpy
        code = import_module(COMMANDS[args.command][0]).run(args)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("walkthrough", "common"):
            raise
        ready = ROOT / ".venv" / "bin" / "python"
        fix = f"use {ready}" if ready.exists() else "run `make setup`, or pip install -r requirements.txt"
        fix = fix if in_clone() else f"pip install {error.name}"
        raise InputError(f"{sys.executable} has no {error.name}: {fix}") from error
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOSPC):
            raise
        if error.filename is None:  # it was stdout: what is left in its buffer can go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"{error.filename or 'the output'}: {error.strerror}") from error
    return code


def _parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the command line `words`: of the command that it names, else of all, not imported; None: of any."""
    parser = OneLineParser(prog="walkthrough", description="PyTorch training, faster step by step.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=OneLineParser)
    named = words[0] if words and words[0] in COMMANDS else None
    for name, (module, text) in COMMANDS.items():
        if named not in (None, name):
            continue
        is_here = name not in NEED_CLONE or in_clone()
        shown = text if is_here else "(in a clone of the project)"
        command = commands.add_parser(name, help=shown, description=shown)
        command.set_defaults(error=command.error)
        if is_here and (named or words is None):
            import_module(module).add_options(command)
    return parser
