"""The command line: `python -m common COMMAND`, or `walkthrough COMMAND`."""

import argparse
import errno
import json
import os
import signal
import sys
import threading
from pathlib import Path

from common.errors import InputError, one_line_errors
from common.machine import ROOT
from common.options import OneLineParser, add_step_options, folder, size, whole_number, whole_numbers
from common.trace.source import MAX_SIZE


@one_line_errors()
def main(argv=None):
    """Run one command and exit with its code: 0 done, 2 the input cannot be used (one line on stderr), 1 a defect."""
    args = _parser().parse_args(argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step in progress is stopped as well
    try:
        code = args.command(args)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "common":
            raise
        ready = ROOT / ".venv" / "bin" / "python"
        mend = f"use {ready}" if ready.exists() else "run `make setup`, or pip install -r requirements.txt"
        raise InputError(f"{sys.executable} has no {error.name}: {mend}") from error
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOSPC):
            raise
        if error.filename is None:  # it was stdout: what is left in its buffer can go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"{error.filename or 'the output'}: {error.strerror}") from error
    raise SystemExit(code)


def _parser():
    parser = OneLineParser(prog="walkthrough", description="PyTorch training, faster step by step.", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=OneLineParser)

    def add(name, command, text):
        added = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        added.set_defaults(command=command)
        return added

    added = add("tour", _tour, "Run every step in order, then compare them.")
    add_step_options(added)

    added = add("compare", _compare, "Show the runs of a folder side by side.")
    added.add_argument(
        "logdir", nargs="?", type=Path, default=ROOT / "logs", metavar="LOGDIR", help="default: logs/ of this project"
    )
    added.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    added.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw throughput and memory per step: .svg, .png or .html"
    )

    added = add("explain", _explain, EXPLAIN)
    added.add_argument(
        "path",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a trace, a run's folder, a folder with one trace a rank, or of all runs; two traces: before and after",
    )
    added.add_argument("--json", action="store_true", help="print one JSON object")
    added.add_argument("--markdown", action="store_true", help="a folder of runs: the page of the docs with its table")
    added.add_argument(
        "--max-size",
        type=size,
        default=MAX_SIZE,
        metavar="SIZE",
        help="refuse a trace of more JSON than this once unpacked, such as 8GB (default: 4GiB)",
    )

    added = add(
        "record", _record, "Run the whole ladder N times, interleaved, into logs/reference/<device>/. Resumable."
    )
    add_step_options(added, logdir=ROOT / "logs" / "reference")
    added.add_argument(
        "--runs", type=whole_number(1, 100), default=5, metavar="N", help="runs of the ladder (default: %(default)s)"
    )

    handed_on = added.add_mutually_exclusive_group()
    for flag, name, text in (
        ("--pack", "FOLDER", "verify the record in FOLDER and make an archive of it here, to be handed in"),
        ("--check", "PATH", "verify a record's folder or archive; nothing is written"),
        ("--add", "PATH", "verify a record's folder or archive and put it into --logdir"),
    ):
        handed_on.add_argument(flag, type=folder, metavar=name, help=text)

    added = add("limit", _limit, LIMIT)
    with_input = {
        "--data": "with --input: folder that holds cifar-10-batches-py (default: data/ of this project)",
        "--download": "with --input: fetch CIFAR-10 into --data first, 170 MB",
    }
    add_step_options(added, without=("--workers", "--stacks"), texts=STUDY | with_input)
    added.add_argument("--input", action="store_true", help="measure the input pipeline alone, per number of workers")
    added.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    added.add_argument("--plot", type=folder, metavar="FILE", help="draw the roofline: .svg or .png")
    added.add_argument(
        "--compile-limit",
        type=whole_number(0, 36000),
        metavar="S",
        help="seconds that torch.compile may take, 0: do not compile (default: 300 on a GPU; on a CPU 30 or more)",
    )

    added = add("ablate", _ablate, ABLATE)
    add_step_options(added, without=("--stacks",), texts=STUDY | {"--batch-size": BIGGER_BATCH})
    added.add_argument(
        "--runs", type=whole_number(1, 100), metavar="N", help="runs of everything (default: 5; 1 with --quick)"
    )
    added.add_argument("--resume", action="store_true", help="go on with the ablation in --logdir, or add runs to it")
    added.add_argument("--all-pairs", action="store_true", help="put in every two, not only those expected to interact")
    added.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    added.add_argument("--plot", type=folder, metavar="FILE", help="draw the effects: .svg or .png")

    added = add("overhead", _overhead, OVERHEAD)
    by_device = {"--batch-size": "images per step (default: 128 on a GPU, 32 on a CPU)"}
    without = ("--data", "--download", "--workers", "--stacks")
    add_step_options(added, without=without, batch_size=None, texts=STUDY | by_device)
    added.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 5; 2 with --quick)")
    added.add_argument("--json", action="store_true", help="print one JSON object instead of a table")

    added = add("sweep", _sweep, SWEEP)
    add_step_options(added, without=("--batch-size", "--workers", "--stacks"), texts=STUDY)
    added.add_argument(
        "--workers-list",
        type=whole_numbers(0, 256),
        metavar="N,N",
        help="numbers of workers (default: 0,1,2,4 … up to twice the usable cores; 0,1 with --quick)",
    )
    added.add_argument(
        "--batch-sizes",
        type=whole_numbers(1, 65536),
        metavar="N,N",
        help="images per step (default: 32,128,512 on a GPU, 32,64,128 on a CPU; 8,16 with --quick)",
    )
    added.add_argument("--runs", type=whole_number(1, 100), metavar="N", help="runs (default: 3; 1 with --quick)")
    added.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    added.add_argument("--plot", type=folder, metavar="FILE", help="draw the heat map: .html, .svg or .png")

    added = add("doctor", _doctor, "Say what this machine has, and what to do about what it lacks.")
    added.add_argument("--logdir", type=Path, default=ROOT / "logs", metavar="DIR", help="where runs would go")
    added.add_argument("--data", type=Path, default=ROOT / "data", metavar="DIR", help="where CIFAR-10 would be")
    return parser


EXPLAIN = "Read any torch.profiler trace: where a step's time goes, why the GPU waits, what to do next."
LIMIT = "Measure how fast the model could train on this device if data cost nothing, and how near its peaks that is."
ABLATE = "Measure the full ladder with each optimisation left out, the baseline with each put in, and which interact."
OVERHEAD = "Measure what tracing itself costs a training step: operators, shapes, memory, stacks, modules."
SWEEP = "Measure training throughput, cores and memory for each number of workers, batch size and pinned memory or not."

STUDY = {
    "--logdir": "folder of all runs; the result goes there as a JSON file (default: logs/ of this project)",
    "--batch-size": "images per step (default: %(default)s)",
    "--quick": "smoke run: fewer and shorter measurements",
}
BIGGER_BATCH = "images per step where bigger_batch is on (default: %(default)s)"

# Each command imports what it needs, so that none waits for another's libraries.


def _tour(args):
    from common.ladder.tour import tour

    return tour(args)


def _compare(args):
    from common import record
    from common.ladder import compare
    from common.run import not_run

    results, problems = record.read_results(args.logdir)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    if not results:
        below = sorted({file.parent.parent.name for file in args.logdir.glob(f"*/*/{record.FILE}")})
        mend = f"its folders do: {', '.join(below[:6])}" if below else "run `make tour`"
        raise InputError(
            f"no results in {args.logdir}: it should hold a folder per step with {record.FILE} in it; {mend}"
        )
    found = compare.ladders(results)
    if len(found) > 1:
        print(f"{len(found)} ladders: the runs differ in device, data, model or image size", file=sys.stderr)
        if args.plot:
            print(f"only the first is drawn, from {found[0].baseline.device}", file=sys.stderr)
    if args.plot:
        from common.ladder.figures import plot

        plot(found[0], args.plot)
        print(f"drawn: {args.plot}", file=sys.stderr)
    if args.json:
        print(json.dumps(compare.comparison(found), indent=2))
    else:
        from common.explain.terminal import console
        from common.ladder.table import print_ladders
        from common.studies.limit.record import read_limit

        used, problems = compare.gpu_use(args.logdir, results)
        for problem in problems:
            print(f"no figures from a trace: {problem}", file=sys.stderr)
        limit = _unless_broken(read_limit, args.logdir)
        missing = _unless_broken(not_run.read_all, args.logdir) or []
        runs = compare.recorded_runs(args.logdir, results)
        print_ladders(found, console(), used, runs, limit, missing)
    return 0


def _unless_broken(read, logdir):
    """What `read` finds in a folder; None, and a line on stderr, where that is broken."""
    try:
        return read(logdir)
    except InputError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return None


def _explain(args):
    from common.explain.command import explain
    from common.ladder.predictions import explain_runs

    return explain(args, explain_runs)


def _record(args):
    if args.pack or args.check or args.add:
        from common.reference import packing as contribution

        if args.pack:
            return contribution.pack(args.pack)
        return contribution.check(args.check) if args.check else contribution.add(args.add, args.logdir)
    from common.reference.recording import record_ladder

    return record_ladder(args)


def _limit(args):
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    from common.studies.limit.measure import limit

    return limit(args)


def _ablate(args):
    from common.studies.ablation.measure import ablate

    return ablate(args)


def _overhead(args):
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as in `_limit`
    from common.studies.overhead.measure import overhead

    return overhead(args)


def _sweep(args):
    from common.studies.sweep.measure import sweep

    return sweep(args)


def _doctor(args):
    from common.doctor import doctor

    return doctor(args)


if __name__ == "__main__":
    main()
