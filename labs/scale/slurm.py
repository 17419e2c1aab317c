"""Run a command as jobs of a cluster, through submitit: on one node or many, or many times as an array.

    python labs/scale/slurm.py --cluster slurm --nodes 2 --processes-per-node 4 --gpus 4 -- python labs/scale/train.py
    python labs/scale/slurm.py --cluster slurm --array 8 -- python labs/scale/sweep.py  # 8 jobs; JOB_INDEX is 0 to 7
    python labs/scale/slurm.py --processes-per-node 2 -- python labs/scale/train.py     # on this machine

With --processes-per-node the processes of a job train together: each has its RANK, as under torchrun. This waits for
all jobs and says how each ended; interrupted, it cancels them. "python" means the Python that this runs with. Nodes
have to share the file system. A job that SLURM ends is noticed at once where it keeps accounts (sacct).
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labs.shared.cluster import Failed, add_cluster_options, cluster_of, run
from labs.shared.extras import imported
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, OneLineParser, add_number, folder

LOGDIR = ROOT / "logs" / "labs" / "scale" / "jobs"


@dataclass(frozen=True)
class Launch:
    """A job: a command, its folder, its number in the array; processes: of a node, that train together, or None."""

    command: Sequence[str]
    folder: str
    index: int
    processes: int | None


def on_task(launch: Launch) -> None:
    """Run a job's command in one of its tasks; what it prints goes into the job's log. Raises InputError."""
    command = [sys.executable if launch.command[0] in ("python", "python3") else launch.command[0], *launch.command[1:]]
    os.environ["JOB_INDEX"] = str(launch.index)
    if launch.processes:
        environment = imported("submitit.helpers", "scale", "a job").TorchDistributedEnvironment()
        environment.master_addr = address_of(environment.master_addr)
        environment.export(set_cuda_visible_devices=False, overwrite=True)  # each process takes cuda:LOCAL_RANK
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // launch.processes)))
    code = subprocess.run(command, cwd=launch.folder, check=False).returncode
    if code:
        raise InputError(f"{launch.command[0]} ended with code {code}")


def address_of(node: str) -> str:
    """The address by which SLURM reaches a node: its NodeAddr; the name itself where SLURM does not say."""
    if not shutil.which("scontrol"):
        return node
    done = subprocess.run(["scontrol", "--oneliner", "show", "node", node], capture_output=True, text=True)
    return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word).get("NodeAddr", node)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line; `command` is what follows "--". Raises InputError where nothing does."""
    parser = OneLineParser(description=__doc__, usage="%(prog)s [options] -- COMMAND...")
    add_cluster_options(parser, default="local")
    add_number(parser, "--nodes", "of a job", 1, 1000, 1)
    add_number(parser, "--processes-per-node", "that train together (default: one, alone)", 1, 256)
    add_number(parser, "--array", "jobs of the same command", 1, 1000, 1)
    parser.add_argument("--logdir", type=folder, default=LOGDIR, metavar="DIR", help=f"of logs (default: {LOGDIR})")
    at = list(words).index("--") if "--" in words else len(words)
    args = parser.parse_args(list(words[:at]))
    args.command = list(words[at + 1 :])
    if not args.command:
        raise InputError('no command: put it behind "--", such as -- python labs/scale/train.py')
    if args.nodes > 1 and not args.processes_per_node:
        raise InputError(f"--nodes {args.nodes} needs --processes-per-node, of those that train together")
    return args


def main(words: Sequence[str] | None = None) -> None:
    args = parsed(sys.argv[1:] if words is None else words)
    cluster = cluster_of(args, args.logdir)
    assert cluster  # --cluster has a default
    launches = [Launch(args.command, str(Path.cwd()), index, args.processes_per_node) for index in range(args.array)]
    print(f"{len(launches)} job(s) on {args.nodes} node(s) each, {args.cluster}; logs: {cluster.folder}", flush=True)
    failed = 0
    for index, ended in run(cluster, on_task, launches, args.nodes, args.processes_per_node or 1):
        failed += isinstance(ended, Failed)
        print(f"job {index}: {f'failed: {ended.reason}' if isinstance(ended, Failed) else 'done'}", flush=True)
    if failed:
        raise InputError(f"{failed} of {len(launches)} job(s) failed; logs: {cluster.folder}")


if __name__ == "__main__":
    main()
