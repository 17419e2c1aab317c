"""A trace's numbers as JSON for a web page, or its events: `python -m walkthrough.advice.digest [--lanes …] PATH`.

Runs in a process of its own, so a server stays responsive and small while a large trace is read.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from walkthrough.advice.gains import advise
from walkthrough.advice.report import tables
from walkthrough.results.errors import InputError, one_line_errors, printable
from walkthrough.trace.analysis import analyze
from walkthrough.trace.chrome_trace import Chunks
from walkthrough.trace.timeline import lanes

MUCH_MEMORY = 2**30  # bytes


def answer(words: Sequence[str]) -> bytes:
    """The JSON of one trace, asked for as on the command line. Raises InputError where the trace cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m walkthrough.advice.digest")
    parser.add_argument("--lanes", action="store_true", help="the events for the timeline")
    parser.add_argument("--first", type=int, metavar="I", help="with --lanes: the first step, counted from 0")
    parser.add_argument("--last", type=int, metavar="J", help="with --lanes: the last step")
    parser.add_argument("trace", metavar="PATH")
    options = parser.parse_args(words)
    if min(options.first or 0, options.last or 0) < 0 or (
        options.last is not None and options.last < (options.first or 0)
    ):
        raise InputError("the steps are counted from 0, and the last is not before the first")
    with Chunks(options.trace) as chunks:
        analysis = analyze(chunks, details=options.lanes)
    result: dict[str, Any] = (
        lanes(
            analysis,
            [(finding.what, finding.when) for finding in advise(analysis).findings],
            options.first,
            options.last,
        )
        if options.lanes
        else tables(analysis)
    )
    # a file's name, which warnings hold, need not be UTF-8
    result["warnings"] = [line.encode(errors="replace").decode() for line in result["warnings"]]
    return msgspec.json.encode(result, enc_hook=lambda value: value.item())  # numpy's numbers


class Answer(Struct, frozen=True):
    """A line of `serve`. content: the JSON; null where there is none, for `reason`. lasting: it will fail again.

    last: the process ends, since it keeps the memory that it has taken.
    """

    content: msgspec.Raw = msgspec.Raw(b"null")
    reason: str = ""
    lasting: bool = False
    last: bool = False


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer each line of `questions`, the words of a command line as JSON, with an `Answer`, a line of JSON."""
    for line in questions:
        try:
            reply = Answer(msgspec.Raw(answer(json.loads(line))))  # msgspec refuses names that are not UTF-8
        except InputError as error:
            reply = Answer(reason=printable(error), lasting=True)
        except SystemExit:  # argparse's
            reply = Answer(reason="no question about a trace", lasting=True)
        except MemoryError:
            reply = Answer(reason="out of memory: this machine has too little for it")
        except Exception:
            logging.getLogger("walkthrough").exception("%s", printable(line.decode(errors="replace"), 300))
            reply = Answer(reason="a defect: see TensorBoard's log")
        reply = replace(reply, last=has_taken_much_memory())
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()
        if reply.last:
            return


def has_taken_much_memory() -> bool:
    """Whether this process has ever had more than `MUCH_MEMORY` bytes; False where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > MUCH_MEMORY


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Print the JSON of one trace; exit code 2 and one line on stderr if it cannot be read. `--serve`: see `serve`."""
    if list(words) == ["--serve"]:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    else:
        sys.stdout.buffer.write(answer(words))


if __name__ == "__main__":
    main(sys.argv[1:])
