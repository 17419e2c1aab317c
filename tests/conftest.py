"""Fixtures that several tests share, and how every test process is set up."""

import gc
import importlib.util
import json
import os
import random
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings
from support import ROOT, SmallNet, exit_code_of, run_program

from common import data, model
from common.program import captured
from studies import one_batch
from walkthrough.cli import main

pytest_plugins = ["support.browser"]
TESTS = Path(__file__).parent
# What `-m quick` runs: what decides the numbers, from traces and results, and golden texts; it starts no program.
QUICK = ("advice/*", "compare/test_rounds.py", "compare/test_statistics.py", "results/test_result.py", "trace/*")
GOLDEN = ("*/test_golden_texts.py", "*/test_ladder.py", "*/test_fit.py", "*/test_study.py", "*/test_time_command.py")
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("any machine")


def is_quick(path, patterns=(*QUICK, *GOLDEN)):
    return any(path.relative_to(TESTS).match(pattern) for pattern in patterns)


def pytest_ignore_collect(collection_path, config):
    """With `-m quick`, no other file is imported."""
    return (config.option.markexpr == "quick" and collection_path.is_file() and not is_quick(collection_path)) or None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Long tests first, so that none runs alone at the end; those that need the tour in one process, which makes it."""
    for item in items:
        if "quick_tour" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("quick tour"))
            item.add_marker(pytest.mark.long)
        marks = {mark.name for mark in item.iter_markers()}
        if is_quick(item.path, GOLDEN if "golden" in item.name else QUICK) and not {"long", "thorough"} & marks:
            item.add_marker(pytest.mark.quick)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)  # before fixtures train
def pytest_runtest_setup():
    """The same random numbers in every test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_process():
    """What a program changes in its process is put back, where a test runs it in this one."""
    environment, folder, on_sigterm = dict(os.environ), Path.cwd(), signal.getsignal(signal.SIGTERM)
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(folder)
    if signal.getsignal(signal.SIGTERM) != on_sigterm:  # as the command line sets it
        signal.signal(signal.SIGTERM, on_sigterm)
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    gc.enable()
    gc.unfreeze()  # what stays frozen is never freed: at exit triton, which torch imports, complains of all it has


torch.set_num_threads(1)  # small models gain nothing from more, and tests share the machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # so also in programs that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)  # theirs as well: shells start background jobs deaf to Ctrl-C


@pytest.fixture
def finished(capsys):
    """finished(main, *args): a program's `main`, called in this process: its exit code, stdout and stderr."""

    def call(main, *args):
        capsys.readouterr()
        code = exit_code_of(main, *args)
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return call


@pytest.fixture
def run_main(monkeypatch, finished):
    """run_main(module, *words): the `main` of an imported program, with these words as its command line."""

    def run(module, *words):
        monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, words)])
        return finished(module.main)

    return run


@pytest.fixture
def run_here(run_main):
    """run_here(file, *words): a step as a program, but in this process."""

    def run(file, *words):
        spec = importlib.util.spec_from_file_location(f"step_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return run_main(module, *words)

    return run


@pytest.fixture
def run_command(finished):
    """run_command(*words): a command of the tool, but in this process."""
    return lambda *words: finished(main, [str(word) for word in words])


@pytest.fixture
def capture_step(monkeypatch):
    """capture_step(name, *options): what a step's `main` passes to `run_step`, with `SmallNet` as the model.

    A namespace of args, loader, train_step, precision, variables and model. Nothing is measured or written.
    """

    def capture(name, *options):
        models = []
        monkeypatch.setattr(model, "classifier", lambda *_: models.append(SmallNet()) or models[-1])
        words = ["--device", "cpu", "--image-size", "32", *options]
        step = captured(ROOT / "steps" / f"{name}.py", words, blank_data=False)
        return SimpleNamespace(**vars(step), variables=step.variables, model=models[0])

    return capture


@pytest.fixture(scope="session")
def images_by_number():
    """The stand-in's images that this process has made, by their number."""
    return {}


@pytest.fixture
def stand_in_once(monkeypatch, images_by_number):
    """The stand-in's images, made by the program's own function, once in a process."""
    make = data._striped_images

    def once(labels, generator):
        if len(labels) not in images_by_number:
            images_by_number[len(labels)] = make(labels, generator)
        return images_by_number[len(labels)]

    monkeypatch.setattr(data, "_striped_images", once)


@pytest.fixture
def room_for_two(monkeypatch):
    """A device whose memory holds batches of two images, no more: for `one_batch.TrainStep`."""
    real = one_batch.TrainStep.__call__

    def narrow(self, images, labels):
        if len(labels) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, images, labels)

    monkeypatch.setattr(one_batch.TrainStep, "__call__", narrow)


@pytest.fixture(scope="session")
def quick_tour(tmp_path_factory, worker_id):
    """One real `tour --quick`, made once for all processes of the tests: the finished process and its log folder.

    torch.compile does nothing in it, else it would take minutes; `test_step_13_compiles_for_real` is for that.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    logdir, kept = shared / "quick tour", shared / "quick_tour.json"  # with a space, as folders of people have
    with FileLock(shared / "quick_tour.lock"):
        if not kept.exists():
            words = ("--quick", "--device", "cpu", "--logdir", logdir, "--data", shared)
            done = run_program(TESTS / "support" / "forked_tour.py", *words, TORCHDYNAMO_DISABLE=1)
            kept.write_text(json.dumps({"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}))
    return SimpleNamespace(finished=SimpleNamespace(**json.loads(kept.read_text())), logdir=logdir)


@pytest.fixture
def few_digits(monkeypatch):
    """In place of scikit-learn: 60 made-up greys of 8x8, a bright column for each label."""
    labels = np.arange(60) % 10
    images = np.random.default_rng(0).integers(0, 4, (60, 8, 8)).astype(float)
    images[np.arange(60), :, labels % 8] = 16
    module, package = ModuleType("sklearn.datasets"), ModuleType("sklearn")
    package.__spec__ = ModuleSpec("sklearn", None)
    module.load_digits = lambda return_X_y: (images.reshape(60, 64), labels)
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
