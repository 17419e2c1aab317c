"""Search for good settings with Optuna: learning rate, weight decay, batch size, label smoothing and width.

    python labs/scale/sweep.py --trials 40                              # goes on where an earlier call ended
    python labs/scale/slurm.py --cluster slurm --array 4 -- python labs/scale/sweep.py --trials 40 --processes 1

The tree-structured Parzen estimator proposes, a pruner ends trials that are worse than others at the same epoch. All
processes share one study, a file in --logdir; a process that is killed loses the trial that it runs. Each trial is a
TensorBoard run with its curves and, in the HParams tab, its parameters; sweep.json in --logdir holds all of them.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.device import device_name
from common.options import StepOptions, add_step_options, resolved
from labs.scale.model import DEFAULTS
from labs.scale.trials import BATCH_SIZES, PRUNERS, Settings, opened, optuna, states
from labs.scale.tuning import HELD_OUT, subset
from walkthrough.compare import isolated
from walkthrough.results import result as record
from walkthrough.results.environment import current_environment, now, usable_cores
from walkthrough.results.errors import InputError, OneLineParser, printable, whole_number

import torch

FILE, SCHEMA = "sweep.json", 1
TRIALS, EPOCHS, CLASSES = 20, 8, 5
PROCESSES = {"cpu": 4, "cuda": 1}  # at most, unless the command line says
LIMIT_SECONDS = 30 * 24 * 3600  # of a process
WORKER = (sys.executable, str(Path(__file__).with_name("trials.py")))
IMPORTANCE_TRIALS = 10  # that ran to their end: with fewer, the importance of parameters says little


def main(words: Sequence[str] | None = None) -> None:
    options, args = options_of(words)
    optuna()
    with record.writing(options.logdir):
        options.logdir.mkdir(parents=True, exist_ok=True)
    data = subset(options, args.classes)
    if (train := int((~data.held_out).sum())) < max(BATCH_SIZES):
        raise InputError(f"{train} training images in {args.classes} classes: at least {max(BATCH_SIZES)} are needed")
    settings = Settings(
        data=data.source, classes=args.classes, image_size=options.image_size, epochs=args.epochs,
        pruner=args.pruner, seed=options.seed, device=options.device.partition(":")[0],
    )  # fmt: skip
    study = opened(options.logdir, settings)
    print(
        f"sweep: {train} images of {args.classes} classes of {data.source}, {len(data.labels) - train} held out, "
        f"{args.epochs} epochs, {args.trials} trials in all, {args.processes} process(es)",
        flush=True,
    )
    if there := Counter(states(study)):
        print(f"goes on with a study of {_counted(there)}", flush=True)
    left = args.trials - there["complete"] - there["pruned"]
    reasons = run_workers(options, settings, args.trials, min(left, args.processes)) if left > 0 else []
    result = summary(study, settings, device_name(options.device))
    record.write_json(options.logdir / FILE, result)
    show(result)
    print(f"written to {options.logdir / FILE}; look at it with: tensorboard --logdir {options.logdir / 'trials'}")
    if reasons:
        raise InputError(
            f"{len(reasons)} of {args.processes} process(es) ended early, the same command goes on: {reasons[0]}"
        )


def options_of(words: Sequence[str] | None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line: (what every program takes, all of it)."""
    parser = OneLineParser(description=__doc__)
    without = ("--model", "--batch-size", "--workers", "--quick", "--stacks")
    add_step_options(
        parser,
        logdir=DEFAULTS.logdir / "sweep",
        batch_size=None,
        without=(*DEFAULTS.without, *without),
        texts={"--logdir": f"folder of this sweep (default: {DEFAULTS.logdir / 'sweep'})"},
        defaults=DEFAULTS,
    )
    for flag, default, low, what in (
        ("--trials", TRIALS, 1, "in all, over all calls"),
        ("--epochs", EPOCHS, 1, "of a trial"),
        ("--classes", CLASSES, 2, "of the data set, the first so many"),
        ("--processes", None, 1, f"that run trials here (default: a core each, at most {PROCESSES['cpu']}; a GPU: 1)"),
    ):
        parser.add_argument(
            flag,
            type=whole_number(low, 10**6),
            default=default,
            metavar="N",
            help=what if default is None else f"{what} (default: {default})",
        )
    parser.add_argument("--pruner", choices=PRUNERS, default="median", help="ends bad trials early (default: median)")
    args = parser.parse_args(words)
    options = resolved(args, defaults=DEFAULTS)
    args.processes = args.processes or min(usable_cores(), PROCESSES[options.device.partition(":")[0]])
    return options, args


def run_workers(options: StepOptions, settings: Settings, trials: int, processes: int) -> list[str]:
    """Run trials in so many processes until there are `trials` in all; why processes ended early, if some did."""
    values = {"trials": trials, "processes": processes, "settings": asdict(settings)}
    call = {"what": "worker", "options": asdict(options), "settings": values}

    def one(number: int) -> str | None:
        answer = isolated.answer(WORKER, call, LIMIT_SECONDS, on_line=_told)
        return answer if isinstance(answer, str) else answer.get("error")

    with ThreadPoolExecutor(processes) as pool:
        return [reason for reason in pool.map(one, range(processes)) if reason]


def _told(line: str, child: isolated.Isolated) -> None:
    if line.startswith("trial "):
        print(f"  {printable(line)}", flush=True)


def summary(study: Any, settings: Settings, device: str) -> dict[str, Any]:
    """What sweep.json holds: the settings, all trials, the best one, and how much each parameter matters.

    best: None where no trial ran to its end. importance: {parameter: share of the variance of accuracy, all together
    1}, by functional ANOVA over the trials that ran to their end; else `importance_missing` says why there is none.
    With few trials it misleads: those that the sampler proposes vary together, and pruned ones are missing.
    """
    trials = [
        {
            "number": trial.number,
            "state": state,
            "accuracy": trial.value if state == "complete" else None,
            "parameters": trial.params,
            "epochs": trial.user_attrs.get("epochs", []),
            "seconds": trial.user_attrs.get("seconds"),
            "reason": trial.user_attrs.get("reason"),
        }
        for trial, state in zip(study.get_trials(deepcopy=False), states(study), strict=True)
    ]
    complete = [trial for trial in trials if trial["state"] == "complete"]
    importance, why_not = importances(study, len(complete))
    return {
        "schema": SCHEMA,
        "settings": asdict(settings),
        "device": device,
        "environment": asdict(current_environment(torch.__version__, torch.version.cuda)),
        "written": now(),
        "held_out": f"one training image of {HELD_OUT}; accuracies are of those",
        "counts": dict(Counter(trial["state"] for trial in trials)),
        "best": max(complete, key=lambda trial: trial["accuracy"], default=None),
        "importance": importance,
        "importance_missing": why_not,
        "trials": trials,
    }


def importances(study: Any, complete: int) -> tuple[dict[str, float] | None, str | None]:
    """({parameter: share}, None), or (None, why there are none)."""
    if complete < IMPORTANCE_TRIALS:
        return None, f"{complete} trial(s) ran to their end: it needs {IMPORTANCE_TRIALS}"
    package = optuna().importance
    try:
        return package.get_param_importances(study, evaluator=package.FanovaImportanceEvaluator(seed=0)), None
    except ImportError:
        return None, "it needs scikit-learn: pip install scikit-learn"


def show(result: dict[str, Any]) -> None:
    """Print a sweep's result, in a few lines."""
    print(_counted(result["counts"]))
    if best := result["best"]:
        of = ", ".join(f"{name} {value:.3g}" for name, value in best["parameters"].items())
        print(f"best: trial {best['number']}, accuracy {best['accuracy']:.3f}: {of}")
    if result["importance"]:
        print("importance: " + ", ".join(f"{name} {share:.0%}" for name, share in result["importance"].items()))
    else:
        print(f"no importance of parameters: {result['importance_missing']}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) + " trials"


if __name__ == "__main__":
    main()
