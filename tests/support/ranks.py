"""Two processes as torchrun starts them, but forked from this one, whose imports they share."""

import os

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from support import ROOT, run_program


def run_ranks(program, *words, **environment):
    """The finished process of a program that calls `fork_two`."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return run_program(program, *words, PYTHONPATH=path, **environment)


def fork_two(function, *args):
    """function(*args) in each, with the variables of its rank; raises where one fails. Compute nothing before."""
    standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "two"}
    elastic_launch(LaunchConfig(1, 1, 2, **standalone, start_method="fork", max_restarts=0), function)(*args)
