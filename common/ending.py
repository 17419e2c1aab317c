"""What becomes of a study once it is measured: a file, a figure, tables or JSON."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict

from common.record import write_whole
from common.table import console


def of(args, file, measure, show, plot=None, more=""):
    """Measure, write `file` into `args.logdir`, draw with `args.plot`, print as `args.json` says. Returns 0.

    measure: returns the study, a dataclass, and may print on its way; with `args.json` that goes to stderr, since
    stdout is for the JSON. show: prints the study on a console; plot: draws it into a file. more: for the line that
    names the written file.
    """
    path = args.logdir / file
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        found = measure()
        write_whole(path, json.dumps(asdict(found), indent=2) + "\n")
        if plot and args.plot:
            plot(found, args.plot)
            print(f"drawn: {args.plot}", file=sys.stderr)
    if args.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(found, console())
        print(f"written to {path}{more}")
    return 0
