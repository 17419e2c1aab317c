"""Programs that find torch, torchvision, tensorboard, NumPy, msgspec and what these require: as on a GPU machine."""

import re
from functools import cache
from importlib import metadata

from support import run_program

THERE = ("torch", "torchvision", "tensorboard", "numpy", "msgspec")


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def missing_modules():
    """The modules of all other packages that are installed here."""
    there, waiting = set(), list(THERE)
    while waiting:
        name = _normal(waiting.pop())
        if name in there:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another system
            continue
        there.add(name)
        waiting += [re.match(r"[\w.-]+", line)[0] for line in required if "extra ==" not in line]
    modules = {
        module: {_normal(package) for package in packages}
        for module, packages in metadata.packages_distributions().items()
        if "pytorch-training-walkthrough" not in map(_normal, packages)  # this project, installed
    }
    return sorted(module for module, packages in modules.items() if not packages & there)


def run_with_few_packages(folder, *words, cwd=None, **environment):
    """Run a program with this Python; `folder` gets what hides the other packages, also from all that it starts."""
    blocked = [module for module in missing_modules() if module.isidentifier()]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n")
    return run_program(*words, cwd=cwd, PYTHONPATH=folder, OMP_NUM_THREADS=1, **environment)
