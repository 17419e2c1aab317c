"""The trials of a sweep: an Optuna study in one file, that many processes, on many nodes, share.

A process holds a lock on each trial that it runs. The system takes it away with the process, however that ends, so
whoever comes next sees which trials were lost, and marks them as failed.
"""

import fcntl
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from common.device import disable_tf32
from labs.scale.tuning import AfterEpoch, Diverged, subset, trained
from labs.shared.extras import imported
from labs.shared.study import serve
from walkthrough.results.environment import usable_cores
from walkthrough.results.errors import InputError, is_out_of_memory, printable
from walkthrough.results.result import writing

import torch

JOURNAL, NAME = "journal.log", "sweep"
PRUNERS = ("median", "hyperband", "none")
WARM_UP_TRIALS, WARM_UP_EPOCHS = 5, 1  # that the median pruner lets go on, whatever comes of them
LR, WEIGHT_DECAY, SMOOTHING = (1e-3, 1.0), (1e-6, 1e-2), (0.0, 0.2)
BATCH_SIZES, WIDTHS = (16, 32, 64, 128), {"cpu": (8, 24), "cuda": (16, 48)}
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
Objective = Callable[[Mapping[str, Any], AfterEpoch], float]  # (parameters, after each epoch) -> what is maximised


@dataclass(frozen=True)
class Settings:
    """What all trials of a study share. device: "cpu" or "cuda", which parameters differ by."""

    data: str
    classes: int
    image_size: int
    epochs: int
    pruner: str
    seed: int
    device: str


class Pruned(Exception):
    """A trial that is not worth its other epochs."""


def space(device: str) -> dict[str, Any]:
    """{parameter: Optuna's distribution of it}. device: "cpu", "cuda" or "cuda:N"."""
    of = optuna().distributions
    widths = WIDTHS[device.partition(":")[0]]
    return {
        "lr": of.FloatDistribution(*LR, log=True),
        "weight_decay": of.FloatDistribution(*WEIGHT_DECAY, log=True),
        "batch_size": of.CategoricalDistribution(BATCH_SIZES),
        "label_smoothing": of.FloatDistribution(*SMOOTHING),
        "width": of.IntDistribution(*widths, step=8),
    }


def optuna() -> Any:
    """The package, which then prints warnings only. Raises InputError where it is not installed."""
    package = imported("optuna", "scale", "the sweep")
    package.logging.set_verbosity(package.logging.WARNING)
    return package


def opened(folder: Path, settings: Settings) -> Any:
    """The study in a folder, made where there is none. Raises InputError where it is broken or has other settings."""
    package = optuna()
    journal = folder / JOURNAL
    with writing(folder):
        (folder / "running").mkdir(parents=True, exist_ok=True)
    with locked(folder / "study.lock"):
        try:
            storage = package.storages.JournalStorage(package.storages.journal.JournalFileBackend(str(journal)))
            study = package.create_study(
                study_name=NAME, storage=storage, direction="maximize", load_if_exists=True, pruner=_pruner(settings)
            )
            theirs = study.user_attrs.get("settings")
        except (KeyError, TypeError, ValueError) as error:  # of a line that is no JSON, or not Optuna's
            raise InputError(
                f"{journal} is damaged ({printable(error, 80)}): remove {folder}, or name another --logdir"
            ) from error
        if theirs is None:
            study.set_user_attr("settings", asdict(settings))
        for name, value in asdict(settings).items():
            if theirs is not None and theirs.get(name) != value:
                raise InputError(
                    f"{folder} holds a sweep with {name.replace('_', ' ')} {theirs.get(name)}, not {value}: name "
                    "another --logdir, or remove it"
                )
    return study


def _pruner(settings: Settings) -> Any:
    pruners = optuna().pruners
    if settings.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=settings.epochs)
    if settings.pruner == "median":
        return pruners.MedianPruner(WARM_UP_TRIALS, n_warmup_steps=WARM_UP_EPOCHS + 1)
    return pruners.NopPruner()


@contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """Hold the lock of a file, once nobody else does."""
    with writing(path), open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def begun(folder: Path, study: Any, settings: Settings, trials: int) -> tuple[Any, IO[bytes]] | None:
    """The next trial, with its parameters, and the lock that is held while it runs; None where `trials` are enough.

    Those that run in other processes count, those that failed do not. Trials whose process is gone are marked failed.
    """
    with locked(folder / "study.lock"):
        fail_lost(folder, study)
        if sum(state != "failed" for state in states(study)) >= trials:
            return None
        # A sampler of its own for each trial: two processes with one seed would try the same parameters.
        study.sampler = optuna().samplers.TPESampler(seed=settings.seed * 100_003 + len(study.trials))
        trial = study.ask(space(settings.device))
        lock = open(_lock_of(folder, trial.number), "ab")  # noqa: SIM115  # closed by who runs the trial
        fcntl.flock(lock, fcntl.LOCK_EX)
    return trial, lock


def fail_lost(folder: Path, study: Any) -> list[int]:
    """Mark the trials that run in no process any more as failed; their numbers. The study has to be locked."""
    lost = []
    for trial in study.get_trials(deepcopy=False, states=[optuna().trial.TrialState.RUNNING]):
        with open(_lock_of(folder, trial.number), "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            study.tell(trial.number, state=optuna().trial.TrialState.FAIL)
            lost.append(trial.number)
    return lost


def _lock_of(folder: Path, number: int) -> Path:
    return folder / "running" / f"{number:04d}.lock"


def states(study: Any) -> list[str]:
    """Of all trials: "complete", "pruned", "failed" or "running"."""
    return [STATES[trial.state.name] for trial in study.get_trials(deepcopy=False)]


def work(folder: Path, study: Any, settings: Settings, trials: int, objective: Objective) -> Counter[str]:
    """Run trials until there are so many in all; how many of this process ended how, by state.

    A training that diverges, or for which there is no memory, counts as pruned. Whatever else an objective raises ends
    this, its trial marked as failed.
    """
    ended = Counter[str]()
    while next_one := begun(folder, study, settings, trials):
        trial, lock = next_one
        with lock:
            ended[ran(folder, study, trial, objective)] += 1
            _lock_of(folder, trial.number).unlink()
    return ended


def ran(folder: Path, study: Any, trial: Any, objective: Objective) -> str:
    """Run a trial and say how it ended. Its curves and parameters become a TensorBoard run, "trials/NUMBER"."""
    from torch.utils.tensorboard import SummaryWriter  # a second to import

    state, begin, epochs = optuna().trial.TrialState, time.perf_counter(), list[dict[str, float]]()

    with SummaryWriter(str(folder / "trials" / f"{trial.number:04d}")) as events:

        def after_epoch(epoch: int, metrics: dict[str, float]) -> None:
            epochs.append({"epoch": epoch, **metrics})
            for name, value in metrics.items():
                events.add_scalar(name, value, epoch)
            trial.report(metrics["accuracy"], epoch)
            if trial.should_prune():
                raise Pruned(f"worse than others after epoch {epoch}")

        value, reason = None, None
        try:
            value = objective(trial.params, after_epoch)
        except (Diverged, Pruned) as error:
            reason = str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                study.tell(trial, state=state.FAIL)
                raise
            reason = "out of memory"
        for name, attribute in (
            ("epochs", epochs),
            ("seconds", time.perf_counter() - begin),
            ("reason", reason),
        ):
            trial.set_user_attr(name, attribute)
        study.tell(trial, value, state.COMPLETE if reason is None else state.PRUNED)
        _write_parameters(events, trial.params, epochs)
    told = f"accuracy {value:.3f}" if value is not None else f"pruned: {reason}"
    print(f"trial {trial.number}: {told}; {json.dumps(trial.params)}", flush=True)
    return "complete" if reason is None else "pruned"


def _write_parameters(events: Any, parameters: Mapping[str, Any], epochs: list[dict[str, float]]) -> None:
    """For the HParams tab: the parameters, and the numbers of the last epoch."""
    from torch.utils.tensorboard.summary import hparams

    metrics = {name: value for name, value in (epochs[-1] if epochs else {}).items() if name != "epoch"}
    for summary in hparams(dict(parameters), metrics):
        events.file_writer.add_summary(summary)


def worker(options: Any, settings: Mapping[str, Any], trials: int, processes: int) -> dict[str, int]:
    """A process of the sweep: trials until there are so many in all. {state: how many of them it ran}."""
    disable_tf32()
    if options.device == "cpu":
        torch.set_num_threads(max(1, usable_cores() // processes))
    own = Settings(**settings)
    data = subset(options, own.classes)

    def objective(parameters: Mapping[str, Any], after_epoch: AfterEpoch) -> float:
        return trained(options, data, parameters, own.epochs, after_epoch)

    study = opened(options.logdir, own)
    return dict(work(options.logdir, study, own, trials, objective))


if __name__ == "__main__":
    serve(worker)
