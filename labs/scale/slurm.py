"""Run a command as jobs of a cluster, through submitit: on one node or many under torchrun, or many times as an array.

    python labs/scale/slurm.py --processes-per-node 2 -- python labs/scale/train.py     # this machine, torchrun
    python labs/scale/slurm.py --cluster slurm --nodes 2 --processes-per-node 4 --gpus 4 -- python labs/scale/train.py
    python labs/scale/slurm.py --cluster slurm --array 8 -- python labs/scale/sweep.py  # 8 jobs; JOB_INDEX is 0 to 7

With --processes-per-node the command is run by torchrun, without it as it is. This waits for all jobs and says how each
ended; interrupted, it cancels them. "python" means the Python that this runs with. Nodes have to share the file system.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labs.scale.node import Ended, Launch, on_node
from labs.shared.cluster import Failed, add_cluster_options, cluster_of, run, why_ended
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, OneLineParser, folder, whole_number

LOGDIR = ROOT / "logs" / "labs" / "scale" / "jobs"
MOST_NODES, MOST_PROCESSES, MOST_JOBS = 1000, 256, 1000


def main(words: Sequence[str] | None = None) -> None:
    args = parsed(sys.argv[1:] if words is None else words)
    cluster = cluster_of(args, args.logdir)
    assert cluster  # --cluster has a default
    launches = [
        Launch(args.command, str(Path.cwd()), args.nodes, args.processes_per_node, index, 60 * args.minutes)
        for index in range(args.array)
    ]
    print(f"{len(launches)} job(s) on {args.nodes} node(s) each, {args.cluster}; logs: {cluster.folder}", flush=True)
    codes = []
    for index, ended in run(cluster, on_node, launches, args.nodes):
        code, reason = (ended.code, ended.reason) if isinstance(ended, Failed) else of_nodes(ended, args.minutes)
        codes.append(code)
        print(f"job {index}: {'done' if code == 0 else f'failed: {reason}'}", flush=True)
    if failed := [code for code in codes if code]:
        print(f"{len(failed)} of {len(codes)} job(s) failed; logs: {cluster.folder}", file=sys.stderr)
        raise SystemExit(2 if set(failed) == {2} else 1)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line; `command` is what follows "--". Raises InputError where nothing does."""
    parser = OneLineParser(description=__doc__, usage="%(prog)s [options] -- COMMAND...")
    add_cluster_options(parser, default="local")
    parser.add_argument(
        "--nodes", type=whole_number(1, MOST_NODES), default=1, metavar="N", help="of a job (default: 1)"
    )
    parser.add_argument(
        "--processes-per-node",
        type=whole_number(1, MOST_PROCESSES),
        default=None,
        metavar="N",
        help="that torchrun starts on each node (default: the command alone, without torchrun)",
    )
    parser.add_argument(
        "--array", type=whole_number(1, MOST_JOBS), default=1, metavar="K", help="jobs of the same command (default: 1)"
    )
    parser.add_argument(
        "--logdir", type=folder, default=LOGDIR, metavar="DIR", help=f"folder of the jobs' logs (default: {LOGDIR})"
    )
    at = list(words).index("--") if "--" in words else len(words)
    args = parser.parse_args(list(words[:at]))
    args.command = list(words[at + 1 :])
    if not args.command:
        raise InputError('no command: put it behind "--", such as -- python labs/scale/train.py')
    if args.nodes > 1 and not args.processes_per_node:
        raise InputError(f"--nodes {args.nodes} needs --processes-per-node: torchrun joins the nodes")
    return args


def of_nodes(ended: Sequence[Ended], minutes: int) -> tuple[int, str]:
    """(exit code, why) of a job: of the first of its nodes that failed by itself; (0, "") where none failed."""
    failed = [(one.follows, node) for node, one in enumerate(ended) if one.code or one.timed_out]
    if not failed:
        return 0, ""
    _, node = min(failed)
    one = ended[node]
    reason = f"not done after {minutes} minute(s)" if one.timed_out else why_ended(one.code, one.last)
    where = f"node {node}: " if len(ended) > 1 else ""
    return 2 if one.timed_out or one.code < 0 else one.code, where + (reason or f"exit code {one.code}")


if __name__ == "__main__":
    main()
