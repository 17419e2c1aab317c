"""Run a command as jobs of a cluster, through submitit: on one node or many, or many times as an array.

    python labs/scale/slurm.py --cluster slurm --nodes 2 --processes-per-node 4 --gpus 4 -- python labs/scale/train.py
    python labs/scale/slurm.py --cluster slurm --array 8 -- python labs/scale/sweep.py  # 8 jobs; JOB_INDEX is 0 to 7
    python labs/scale/slurm.py --processes-per-node 2 -- python labs/scale/train.py     # on this machine

With --processes-per-node the processes of a job train together: each has its RANK, as under torchrun. This waits for
all jobs and says how each ended; interrupted, it cancels them. "python" means the Python that this runs with. Nodes
have to share the file system. A job that SLURM ends is noticed at once where it keeps accounts (sacct).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from labs.shared.cluster import Failed, add_cluster_options, cluster_of, run
from labs.shared.extras import imported
from walkthrough.results.environment import ROOT, usable_cores
from walkthrough.results.errors import InputError, OneLineParser, add_number, folder

LOGDIR = ROOT / "logs" / "labs" / "scale" / "jobs"


def on_task(command: Sequence[str], folder: str, processes: int | None, index: int) -> None:
    """Run a command in one of a job's tasks; what it prints goes into the job's log. Raises InputError.

    processes: of a node, that train together, or None. index: of the job in its array.
    """
    words = [sys.executable if command[0] in ("python", "python3") else command[0], *command[1:]]
    os.environ["JOB_INDEX"] = str(index)
    if processes:
        environment = imported("submitit.helpers", "scale", "a job").TorchDistributedEnvironment()
        environment.master_addr = address_of(environment.master_addr)
        environment.export(set_cuda_visible_devices=False, overwrite=True)  # each process takes cuda:LOCAL_RANK
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
    if code := subprocess.run(words, cwd=folder, check=False).returncode:
        raise InputError(f"{command[0]} ended with code {code}")


def address_of(node: str) -> str:
    """The address by which SLURM reaches a node: its NodeAddr; the name itself where SLURM does not say."""
    if not shutil.which("scontrol"):
        return node
    done = subprocess.run(["scontrol", "--oneliner", "show", "node", node], capture_output=True, text=True)
    return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word).get("NodeAddr", node)


def main() -> None:
    parser = OneLineParser(description=__doc__)
    add_cluster_options(parser, default="local")
    add_number(parser, "--nodes", "of a job", 1, 1000, 1)
    add_number(parser, "--processes-per-node", "that train together (default: one, alone)", 1, 256)
    add_number(parser, "--array", "jobs of the same command", 1, 1000, 1)
    parser.add_argument("--logdir", type=folder, default=LOGDIR, metavar="DIR", help=f"of logs (default: {LOGDIR})")
    parser.add_argument("command", nargs="+", help='behind "--", such as -- python labs/scale/train.py')
    args = parser.parse_args()
    if args.nodes > 1 and not args.processes_per_node:
        raise InputError(f"--nodes {args.nodes} needs --processes-per-node, of those that train together")
    cluster = cluster_of(args, args.logdir)
    assert cluster  # --cluster has a default
    print(f"{args.array} job(s) on {args.nodes} node(s) each, {args.cluster}; logs: {cluster.folder}", flush=True)
    job, failed = partial(on_task, args.command, str(Path.cwd()), args.processes_per_node), 0
    for index, ended in run(cluster, job, range(args.array), args.nodes, args.processes_per_node or 1):
        failed += isinstance(ended, Failed)
        print(f"job {index}: {f'failed: {ended.reason}' if isinstance(ended, Failed) else 'done'}", flush=True)
    if failed:
        raise InputError(f"{failed} of {args.array} job(s) failed; logs: {cluster.folder}")


if __name__ == "__main__":
    main()
