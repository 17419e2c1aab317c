"""The ablation: optimisations in combinations that the ladder passes by, and which of them interact."""

import argparse
from difflib import get_close_matches

from common.options import add_step_options
from studies import OPTION_TEXTS
from studies.ablation.plan import NAMES
from walkthrough.results.errors import folder, whole_number

RUNS, QUICK_RUNS = 5, 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ablate`."""
    bigger_batch = {"--batch-size": "images per step where bigger_batch is on (default: %(default)s)"}
    add_step_options(parser, without=("--stacks",), texts=OPTION_TEXTS | bigger_batch)
    parser.add_argument(
        "--runs", type=whole_number(1, 100), metavar="N", help="runs of everything (default: 5; 1 with --quick)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the ablation in --logdir, or add runs to it")
    parser.add_argument(
        "--only",
        type=optimisations,
        default=(),
        metavar="NAMES",
        help="measure the effects of these optimisations alone, commas between (amp,compile), and of their pairs; "
        "--resume without it adds the others",
    )
    parser.add_argument(
        "--all-pairs", action="store_true", help="measure every two together, not only those expected to interact"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="FILE", help="draw the effects: .svg or .png")


def optimisations(text: str) -> tuple[str, ...]:
    """An argparse type: names of optimisations, commas between; in the order of the steps, without repeats."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            close = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"they are {', '.join(NAMES)}"
            raise argparse.ArgumentTypeError(f"there is no optimisation {name!r}: {hint}")
    return tuple(name for name in NAMES if name in names)


def run(args: argparse.Namespace) -> int:
    """Measure what is missing, write `ablation.json` into `args.logdir`, print it, draw it with `args.plot`.

    Returns the exit code: 1 where a measurement failed that --resume can try again. Raises InputError for what the user
    can fix: options, an ablation that is there already or differs, a baseline that cannot be run, --only what has no
    effect here.
    """
    from studies import study
    from studies.ablation.measure import measure

    study.check_plot(args.plot)
    options = study.ready(args)
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    with study.progress_on_stderr(args.json):
        ablation = measure(options, runs, args.all_pairs, args.resume, args.only)
        study.plot("ablation", args.plot, ablation)
    path = options.logdir / ablation.FILE
    study.print_result("ablation", args.json, path, ablation, "; --resume with a larger --runs adds runs")
    return 1 if ablation.to_measure(args.only) else 0
