"""`trace`: any training command under torch.profiler, without a change to it; then `explain`."""

import argparse
import gzip
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from walkthrough.attach.launch import Outcome, command_words, is_one_training, reports_folder, run_attached, why_nothing
from walkthrough.results import privacy, result
from walkthrough.results.errors import InputError, add_number, folder, printable
from walkthrough.results.files import open_new, open_plain
from walkthrough.results.folder import traces_in

_TEXT = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")')  # as JSON writes it
_NO_TEXT = set("{}[]:,+-. \t\r\n0123456789eE") | set("true false null NaN Infinity N/A -nan(ind)")
_HOST_NAME = re.compile(r'"host_name"\s*:\s*"[^"]*",')
_FOLDER = re.compile(r"(?:^|(?<=;))/[^;]*/(?=[^/;]+(?:\(\d+\): |:\d+$))")  # of "folder/file.py(12): function"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `trace`."""
    add_number(parser, "--warmup", "steps before the traced ones", 1, 10**6, 5)
    add_number(parser, "--steps", "steps to trace", 1, 1000, 3)
    parser.add_argument("--stacks", action="store_true", help="record Python's functions too (larger, slower)")
    parser.add_argument("--memory", action="store_true", help="record every allocation too (larger, slower)")
    parser.add_argument(
        "--redact", action="store_true", help="leave names of machine and user, and paths, out of the traces"
    )
    parser.add_argument("--go-on", action="store_true", help="let the program go on after the traced steps")
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="where the traces go (default: logs/NAME of the program, or logs/NAME-2 and so on if that exists)",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND…", help="what starts the training")


def run(args: argparse.Namespace) -> int:
    """Run the command with its parsed options; returns the exit code. Raises InputError.

    Traced: 0, or with --go-on the command's own. Else the command's own, 2 where that is 0.
    """
    words = command_words(args.words)
    out = Path(args.out) if args.out else _new_folder(words)
    with _made(out), reports_folder(out) as reports:
        with result.writing(out):
            earlier = len(traces_in(out))
        names = ("warmup", "steps", "stacks", "memory", "redact", "go_on")
        settings = {"mode": "trace", "out": str(out.resolve()), **{name: getattr(args, name) for name in names}}
        outcome = run_attached(words, settings, reports)
        traced = [report for report in outcome.by_rank() if "trace" in report]
        for report in traced:
            _pack(reports / report["trace"], out / report["name"], report["recording"], args.redact)
    if not traced:
        _last_line(f"not traced: {why_nothing(outcome, args.warmup)}; {outcome.ended}")
        return outcome.exit_code or 2
    _explain(out, traced)
    if not args.redact:
        _last_line("a trace names this machine and folders on it: --redact leaves them out")
    _last_line(_result(out, outcome, traced, earlier, args.warmup))
    own = args.go_on or not (
        outcome.stopped or outcome.signalled or any(report.get("ended_by_us") for report in traced)
    )
    return outcome.exit_code if own else 0


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; those that are new and still empty at the end are removed."""
    new: list[Path] = []
    try:
        with result.writing(folder):
            new += [path for path in (folder, *folder.parents) if not os.path.exists(path)]
            folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in new:
            with suppress(OSError):  # not empty
                path.rmdir()


def _pack(source: Path, target: Path, recording: dict[str, Any], redact: bool) -> None:
    """Compress a trace, with what the program knew of it; without names of this machine, its user and folders if asked.

    Raises InputError.
    """
    own = {*privacy.own_names(), str(Path.cwd()), str(target.parent.resolve())} - {"/"} if redact else set()
    redacted = _redaction(own)
    hidden = source.with_suffix(".gz")
    with result.writing(target.parent):
        with open_plain(source) as file, open_new(hidden) as new, gzip.GzipFile("", "wb", 3, new) as packed:
            space, brace, _ = file.read(64).partition(b"{")
            if space.strip() or not brace:
                raise InputError(f"{target.name} is not a JSON object: trace again")
            file.seek(len(space) + 1)
            packed.write(f'{{"walkthrough": {json.dumps(recording)},'.encode())
            while block := b"".join(file.readlines(2**20)):
                try:
                    packed.write(redacted(block) if redact else block)
                except ValueError as error:
                    reason = f"{target.name} is not JSON, so it cannot be redacted: trace without --redact"
                    raise InputError(reason) from error
        os.replace(hidden, target)


def _redaction(names: set[str]) -> Callable[[bytes], bytes]:
    """A function that leaves these names, and folders, out of lines of JSON; it raises ValueError for what is none."""
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    own = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])(?:/[^\s'\"]*)?")

    @lru_cache(100_000)
    def redacted(written: str) -> str:
        text = json.loads(written, strict=False)
        kept = privacy.redacted(own.sub("…", _FOLDER.sub("", text)))
        return written if kept == text else json.dumps(kept)

    def lines(block: bytes) -> bytes:
        parts = _TEXT.split(_HOST_NAME.sub("", block.decode(errors="surrogateescape")))
        if set().union(*parts[::2]) - _NO_TEXT:
            raise ValueError("a text outside of quotes")
        parts[1::2] = map(redacted, parts[1::2])
        return "".join(parts).encode(errors="surrogateescape")

    return lines


def _new_folder(words: list[str]) -> Path:
    """logs/<name of the program>, with a number where that holds something."""
    programs = [word for word in words if word.endswith((".py", ".sh"))]
    modules = [after for before, after in pairwise(words) if before == "-m"]
    name = Path(programs[0]).stem if programs else modules[-1] if modules else Path(words[0]).name
    candidates = [Path("logs") / name, *(Path("logs") / f"{name}-{number}" for number in range(2, 1000))]
    return next((path for path in candidates if not os.path.exists(path)), candidates[0])


def _explain(out: Path, traced: list[dict[str, Any]]) -> None:
    """Print what `explain` says about these traces; what it cannot read is one line."""
    from walkthrough.explain.command import Output, print_traces

    sys.stderr.flush()
    print(flush=True)
    try:
        shown = traced if is_one_training(traced) else traced[:1]
        path = out if len(traces_in(out)) == 1 else out / shown[0]["name"]
        more = Output(more=f"walkthrough explain {shlex.quote(printable(path))} --all")
        print_traces({report.get("rank"): out / report["name"] for report in shown}, more)
        sys.stdout.flush()
    except InputError as error:
        print(printable(error), file=sys.stderr)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _result(out: Path, outcome: Outcome, traced: list[dict[str, Any]], earlier: int, warmup: int) -> str:
    counts = sorted({report["traced"] for report in traced})
    totals = [report["recording"]["total_steps"] for report in traced]
    of = f" of {max(filter(None, totals))}" if all(totals) else ""
    steps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    processes = f" of {len(traced)} processes" if len(traced) > 1 else ""
    if any(report.get("ended_by_us") for report in traced):
        how = "the program was ended after them"
    else:
        by_itself = "the program failed" if outcome.code else "the program ran to its end"
        how = "the program was interrupted" if outcome.signalled else by_itself
    word = "step" if (steps, of) == ("1", "") else "steps"
    text = f"traced {steps}{of} {word}{processes} into {out}; {how}, {outcome.ended}"
    if outcome.stopped:
        text += f" ({outcome.stopped})"
    text += "".join(f"; {report['reason']}" for report in traced if "reason" in report)
    if others := [report for report in outcome.in_state("failed", "measuring", "stepping") if report not in traced]:
        rest = replace(outcome, reports=others)
        text += f"; {len(others)} more not: {why_nothing(rest, warmup)}"
    if earlier:
        text += f"; that folder holds {earlier} earlier trace{'s' * (earlier != 1)} too"
    if not is_one_training(traced):
        text += f"; explained is {traced[0]['name']}, of the first of several trainings"
    return text


def _last_line(text: str) -> None:
    print(f"walkthrough trace: {printable(text)}", file=sys.stderr)
