"""What becomes of a study once it is measured: a file, a figure, tables or JSON."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict

from common.explain.terminal import console
from common.record import write_whole


def of(args, file, measure, show, plot=None, more=""):
    """Measure, write `file` into `args.logdir`, draw with `args.plot`, print as `args.json` says. Returns 0.

    measure: returns the study, a dataclass, and may print on its way. show: prints the study on a console; plot: draws
    it into a file. more: for the line that names the written file.
    """
    path = args.logdir / file
    with aside(args):
        found = measure()
        write_whole(path, json.dumps(asdict(found), indent=2) + "\n")
        if plot:
            draw(args, found, plot)
    tell(args, path, found, show, more)
    return 0


def aside(args):
    """A context in which, with `args.json`, what is printed goes to stderr, since stdout is for the JSON."""
    return redirect_stdout(sys.stderr) if args.json else nullcontext()


def draw(args, found, plot):
    """Draw the study into the file `args.plot`, if one is named."""
    if args.plot:
        plot(found, args.plot)
        print(f"drawn: {args.plot}", file=sys.stderr)


def tell(args, path, found, show, more="", as_object=asdict):
    """Print the study: with `args.json` the object that `as_object` makes of it, otherwise its tables and `path`."""
    if args.json:
        print(json.dumps(as_object(found), indent=2))
    else:
        show(found, console())
        print(f"written to {path}{more}")
