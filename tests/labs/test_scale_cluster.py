"""labs/scale: jobs of a cluster, in processes of this machine and on a SLURM that is started for the tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, assert_refused, listen_to_ctrl_c, run_program, still_there

from common.options import StepOptions
from labs.scale import node, slurm
from labs.scale.node import Ended, Launch
from labs.shared import cluster
from labs.shared.cluster import Cluster, Failed, add_cluster_options, answers, cluster_of, run
from labs.shared.study import measurements
from walkthrough.compare.study import NotMeasured
from walkthrough.results.errors import InputError

SCRIPT = ROOT / "labs" / "scale" / "start_slurm.sh"
needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed: pip install submitit"
)
needs_slurm = pytest.mark.skipif(
    not (shutil.which("slurmctld") and shutil.which("munged")),
    reason="SLURM is not installed: apt install slurm-wlm munge",
)

MEASURE = """
import os, signal
from walkthrough.results.errors import InputError
from labs.shared.study import serve

def squared(options, number):
    with open(options.logdir / "calls", "a") as file:
        file.write(f"{number} ")
    if number == 7:
        raise InputError("its folder is gone")
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 9:
        os.kill(os.getppid(), signal.SIGKILL)  # the job itself
    return {"square": number ** 2}

if __name__ == "__main__":
    serve(squared)
"""


@pytest.fixture
def options(tmp_path):
    return StepOptions(
        logdir=tmp_path / "log", device="cpu", data=tmp_path, download=False, model="w8", image_size=16, batch_size=8,
        workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


@pytest.fixture
def program(tmp_path, options):
    options.logdir.mkdir()
    path = tmp_path / "measure.py"
    path.write_text(MEASURE)
    return path


def local(tmp_path, **settings):
    return Cluster("local", tmp_path / "jobs", **settings)


def parsed(*words):
    parser = ArgumentParser()
    add_cluster_options(parser)
    return parser.parse_args(words)


# Without any cluster


def test_no_cluster_is_asked_for_unless_the_command_line_does(tmp_path):
    assert cluster_of(parsed(), tmp_path) is None


def test_what_is_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match="--cluster needs submitit, which is not installed: pip install submitit"):
        cluster_of(parsed("--cluster", "local"), tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", sys)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="--cluster slurm needs SLURM, and sbatch is not on this machine"):
        cluster_of(parsed("--cluster", "slurm"), tmp_path)
    chosen = cluster_of(parsed("--cluster", "local", "--cpus", "2", "--minutes", "5", "--at-a-time", "3"), tmp_path, 1)
    assert chosen == Cluster("local", tmp_path, cpus=2, gpus=1, minutes=5, at_a_time=3)


class Job:
    """A job as `_Queue` sees it."""

    def __init__(self, job_id):
        self.job_id = job_id


def tool(folder, name, text):
    """A program that prints a text, found before others of its name."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


QUEUE = """3_0 RUNNING 0 None
3_1 COMPLETED 0 None
3_2 FAILED 768 NonZeroExitCode
3_3 FAILED 35072 NonZeroExitCode
3_4 CANCELLED 15 None
3_5 TIMEOUT 0 TimeLimit
3_6 PENDING 0 PartitionTimeLimit
3_7 PENDING 0 Resources
3_8 FAILED 53 JobLaunchFailure
4 PENDING 0 ReqNodeNotAvail, Reserved for maintenance"""
ENDINGS = {
    "3_0": None,
    "3_1": "SLURM says COMPLETED",
    "3_2": "SLURM says FAILED, exit code 3",
    "3_3": "SLURM says FAILED, killed by SIGKILL",
    "3_4": "SLURM says CANCELLED, killed by SIGTERM",
    "3_5": "SLURM says TIMEOUT",
    "3_6": "SLURM would never start it: PartitionTimeLimit",
    "3_7": None,
    "3_8": "its node cannot write its log into",
    "4": None,
    "5": None,  # which SLURM does not show yet
}


def test_slurms_queue_says_which_jobs_have_ended_and_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool(tmp_path, "squeue", QUEUE)
    queue = cluster._Queue("slurm")
    assert {job_id: queue.why_ended(Job(job_id)) for job_id in ENDINGS} == ENDINGS
    assert capsys.readouterr().out.count("job 4 waits: SLURM says ReqNodeNotAvail, Reserved for maintenance") == 1
    tool(tmp_path, "squeue", "3_0 RUNNING 0 None")
    queue.asked = 0.0
    assert queue.why_ended(Job("4")) == "SLURM no longer knows it"
    assert queue.why_ended(Job("5")) is None


def test_nodes_meet_at_the_first_ones_address_and_a_node_alone_needs_none(tmp_path, monkeypatch):
    assert node.torchrun(2, [], 0, "12")[-3:] == ["--nproc-per-node=2", "--no-python", "--standalone"]
    words = node.torchrun(4, ["10.0.0.1", "10.0.0.2"], 1, "10012_3")
    assert {"--nnodes=2", "--rdzv-endpoint=10.0.0.1:20015", "--rdzv-conf=is_host=0", "--local-addr=10.0.0.2"} < {*words}
    assert "--rdzv-conf=is_host=1" in node.torchrun(4, ["10.0.0.1", "10.0.0.2"], 0, "12")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool(tmp_path, "scontrol", "NodeName=gpu07 Arch=x86_64 NodeAddr=10.1.2.3 NodeHostName=gpu07")
    assert node.address_of("gpu07") == "10.1.2.3"
    monkeypatch.setenv("PATH", "")
    assert node.address_of("gpu07") == "gpu07"


def test_a_command_is_followed_to_its_end(tmp_path, capfd):
    def ended(*command, seconds=60.0):
        return node.on_node(Launch(command, str(tmp_path), 1, None, 3, seconds))

    code = "import os, sys; print(os.environ['JOB_INDEX'], os.getcwd()); sys.exit(5)"
    assert ended("python", "-c", code) == Ended(5, f"3 {tmp_path}")
    assert capfd.readouterr().out == f"3 {tmp_path}\n"
    assert ended("python", "-c", "import os; os.kill(os.getpid(), 9)").code == -9
    late = ended("sleep", "60", seconds=0.1)
    assert (late.code, late.timed_out) == (-signal.SIGTERM, True)
    assert ended("no-such-program") == Ended(127, "cannot run no-such-program: No such file or directory")


LOGGED = (
    "E1123 08:00:00 7 torch/distributed/elastic/multiprocessing/api.py:8] failed\nTraceback (most recent call last):\n"
)
LOST = f"train: {node.ANOTHER_ENDED}: Connection closed"


def report(last, *codes):
    """What torchrun prints where processes end with these codes, after the last line of theirs."""
    blocks = (
        f"[{at}]:\n  rank      : {at} (local_rank: 0)\n  exitcode  : {code} (pid: 7)" for at, code in enumerate(codes)
    )
    return "\n".join([last, LOGGED + "  File", *blocks, "======"])


@pytest.mark.parametrize(("printed", "ended"), [
    (report("train: no data", 2, 2), Ended(2, "train: no data")),
    (report(LOST, -15, -9), Ended(-9, LOST)),
    (report(LOST, -9, 2), Ended(-9, LOST)),  # which lost the one that was killed
    (report("train: no data", -15, 1), Ended(1, "train: no data")),
    (report(LOST, -15, 2), Ended(2, LOST, follows=True)),
    (report("epoch 1"), Ended(1, "epoch 1", follows=True)),  # the first node is gone
    ("  exitcode  : 7 (pid: 7)\nno torchrun", Ended(1, "no torchrun")),
])  # fmt: skip
def test_what_ended_under_torchrun_is_told_by_its_cause(tmp_path, printed, ended):
    (tmp_path / "printed").write_text(printed)
    assert node.on_node(Launch(["sh", "-c", "cat printed; exit 1"], str(tmp_path), 1, None, 0, 60)) == ended


def test_a_job_ended_as_the_first_of_its_nodes_that_failed_by_itself():
    assert slurm.of_nodes([Ended(0, "a"), Ended(0, "b")], 5) == (0, "")
    assert slurm.of_nodes([Ended(0, "a"), Ended(3, "no data"), Ended(-15, "")], 5) == (3, "node 1: no data")
    assert slurm.of_nodes([Ended(1, "lost", follows=True), Ended(2, "no data")], 5) == (2, "node 1: no data")
    assert slurm.of_nodes([Ended(1, "lost", follows=True)] * 2, 5) == (1, "node 0: lost")
    code, why = slurm.of_nodes([Ended(-9, "a")], 5)
    assert code == 2 and why.startswith("killed by SIGKILL")
    assert slurm.of_nodes([Ended(0, "a", timed_out=True)], 5) == (2, "not done after 5 minute(s)")


@pytest.mark.parametrize(("words", "why"), [
    (["--array", "2"], "no command"), (["--nodes", "2", "--", "python"], "--processes-per-node"),
])  # fmt: skip
def test_a_command_line_that_makes_no_sense_is_refused(words, why):
    with pytest.raises(InputError, match=why):
        slurm.parsed(words)


def test_everything_behind_the_dashes_is_the_command():
    args = slurm.parsed(
        ["--nodes", "2", "--processes-per-node", "4", "--", "python", "a.py", "--nodes", "3", "--", "x"]
    )
    assert (args.nodes, args.command) == (2, ["python", "a.py", "--nodes", "3", "--", "x"])


def test_starting_slurm_says_what_is_missing(tmp_path):
    bash = shutil.which("bash")
    for name in ("id", "hostname", "realpath"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run([bash, SCRIPT, "start", tmp_path / "s"], env={"PATH": str(tmp_path)}, capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"munged is missing: on Debian and Ubuntu, apt install slurm-wlm munge\n" in done.stderr
    done = subprocess.run([bash, SCRIPT, "stop", tmp_path / "s"], capture_output=True)
    assert done.returncode == 2 and b"no SLURM in" in done.stderr


# Processes of this machine


@needs_submitit
def test_jobs_answer_as_they_end_and_one_that_dies_leaves_the_others_alone(tmp_path, options, program):
    measuring = measurements("mine", options, program)
    values = [measuring._request("squared", {"number": number}) for number in (3, 8, 9, 4)]
    told = dict(answers(local(tmp_path, at_a_time=2), (sys.executable, str(program)), values, 60))
    assert (told[0], told[3]) == ({"value": {"square": 9}}, {"value": {"square": 16}})
    assert told[1].startswith("killed by SIGKILL")
    assert told[2].startswith("its process ended without an answer; its log: ")
    assert Path(told[2].partition("log: ")[2]).exists()


@needs_submitit
def test_a_function_that_raises_makes_its_job_a_failed_one(tmp_path):
    assert dict(run(local(tmp_path), node.on_node, [None])) == {
        0: Failed("AttributeError: 'NoneType' object has no attribute 'command'", code=1)
    }


@needs_submitit
def test_two_nodes_are_no_matter_of_one_machine(tmp_path):
    with pytest.raises(InputError, match="2 nodes need --cluster slurm"):
        next(run(local(tmp_path), node.on_node, [None], nodes=2))


@needs_submitit
def test_jobs_are_cancelled_where_nobody_waits_for_them(tmp_path):
    waits = tmp_path / "waits.py"
    waits.write_text(
        "import json, os, sys, time\n"
        "if json.loads(sys.argv[1])['n']:\n"
        "    open(f'{sys.argv[0]}.pid', 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "print(json.dumps({'answer': {'n': 0}}))\n"
    )
    jobs = answers(local(tmp_path, at_a_time=2), (sys.executable, str(waits)), [{"n": 0}, {"n": 1}], 600)
    assert next(jobs) == (0, {"n": 0})
    while not (pid := waits.with_suffix(".py.pid")).exists() or not pid.read_text():
        time.sleep(0.01)
    jobs.close()
    assert still_there([int(pid.read_text())]) == []


def grid(options, program, jobs):
    """A study's grid: three numbers of which one fails, and again, as after a cut, with a fourth."""
    first = measurements("mine", options, program, jobs=jobs)
    numbers = [{"number": number} for number in (4, 7, 2)]
    assert first.several("squared", numbers, processes=2) == [{"square": 16}, None, {"square": 4}]
    with pytest.raises(NotMeasured, match="its folder is gone"):
        first.measure("squared", number=7)  # says why, and is not run here
    assert sorted((options.logdir / "calls").read_text().split()) == ["2", "4", "7"]
    again = measurements("mine", options, program, jobs=jobs)
    assert again.several("squared", [*numbers[::2], {"number": 5}], processes=2) == [
        {"square": 16}, {"square": 4}, {"square": 25},
    ]  # fmt: skip
    assert sorted((options.logdir / "calls").read_text().split()) == ["2", "4", "5", "7"]


@needs_submitit
def test_a_studys_grid_runs_as_jobs_and_goes_on_after_a_cut(tmp_path, options, program):
    grid(options, program, local(tmp_path, at_a_time=3))


@needs_submitit
def test_the_command_reports_each_job_and_its_reason(tmp_path):
    code = "import os, sys; sys.exit('mine: no data' if os.environ['JOB_INDEX'] == '1' else 0)"
    finished = run_program(
        ROOT / "labs" / "scale" / "slurm.py", "--array", "2", "--logdir", tmp_path, "--", "python", "-c", code
    )
    assert finished.returncode == 1, finished.stderr
    assert {"job 0: done", "job 1: failed: mine: no data"} < set(finished.stdout.splitlines())
    assert_refused(run_program(ROOT / "labs" / "scale" / "slurm.py"), "no command")


@needs_submitit
def test_a_process_that_is_killed_under_torchrun_is_the_reason(tmp_path):
    code = "import os, time; time.sleep(60) if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)"
    launch = Launch(["python", "-c", code], str(tmp_path), 1, 2, 0, 120)
    ((_, [ended]),) = run(local(tmp_path), node.on_node, [launch])
    assert (ended.code, ended.follows) == (-9, False)


def ended_by(number, tmp_path, kind):
    """Run jobs that wait, end the program by a signal as soon as they run: (exit code, pids of the jobs)."""
    pid = f"open('{tmp_path}/pid.' + os.environ['JOB_INDEX'], 'w').write(str(os.getpid()))"
    waits = ["python", "-c", f"import os, time; {pid}; time.sleep(600)"]
    own = [sys.executable, ROOT / "labs" / "scale" / "slurm.py", "--logdir", tmp_path / "jobs"]
    command = [*own, "--cluster", kind, "--array", "2", "--at-a-time", "2", "--", *waits]
    program = subprocess.Popen(command, preexec_fn=listen_to_ctrl_c)
    while len(pids := [path.read_text() for path in tmp_path.glob("pid.?")]) < 2 or not all(pids):
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(number)
    return program.wait(60), [int(pid) for pid in pids]


@needs_submitit
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_waits_is_ended_and_jobs_with_it(tmp_path, number, code):
    ended, pids = ended_by(number, tmp_path, "local")
    assert ended == code
    assert still_there(pids) == []


@needs_submitit
def test_signals_that_are_ignored_stay_so(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        jobs = run(local(tmp_path), node.on_node, [None])
        next(jobs)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        jobs.close()
    finally:
        signal.signal(signal.SIGHUP, before)


# A SLURM of this machine


@pytest.fixture(scope="module")
def slurm_of_two_nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm") / "s"
    started = subprocess.run(
        [SCRIPT, "start", folder], env=os.environ | {"NODES": "2"}, capture_output=True, text=True, timeout=120
    )
    assert started.returncode == 0, started.stderr
    assert started.stdout == f"export SLURM_CONF={folder}/slurm.conf\n"
    pids = [int(path.read_text()) for path in folder.glob("*.pid")]
    assert len(pids) == 4  # munged, slurmctld, two slurmd
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = f"{folder}/slurm.conf"
    yield
    del os.environ["SLURM_CONF"]
    os.environ.update({"SLURM_CONF": before} if before else {})
    subprocess.run([SCRIPT, "stop", folder], check=True, timeout=120)
    assert still_there(pids) == [] and not folder.exists()


@pytest.fixture
def on_slurm(slurm_of_two_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "QUEUE_SECONDS", 0.5)
    monkeypatch.setattr(cluster, "LATE_SECONDS", 1.0)
    return Cluster("slurm", tmp_path / "jobs", minutes=5)


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_a_slurm_array_answers_and_says_why_jobs_have_none(on_slurm, options, program):
    measuring = measurements("mine", options, program)
    values = [measuring._request("squared", {"number": number}) for number in (3, 8, 9, 4)]
    told = dict(answers(on_slurm, (sys.executable, str(program)), values, 60))
    assert (told[0], told[3]) == ({"value": {"square": 9}}, {"value": {"square": 16}})
    assert told[1].startswith("killed by SIGKILL")
    assert told[2].startswith("SLURM says FAILED, killed by SIGKILL; its log: ")
    with pytest.raises(InputError, match=r"jobs could not be submitted: sbatch: error: .*[Ii]nvalid partition"):
        next(answers(Cluster("slurm", on_slurm.folder, partition="none"), ("python",), values, 60))


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_a_studys_grid_is_a_slurm_array_and_goes_on_after_a_cut(on_slurm, options, program):
    grid(options, program, on_slurm)


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_a_job_that_slurm_would_never_start_is_told_and_cancelled(on_slurm):
    subprocess.run(["scontrol", "update", "PartitionName=test", "MaxTime=1"], check=True)
    try:
        ((_, ended),) = run(on_slurm, node.on_node, [None])
    finally:
        subprocess.run(["scontrol", "update", "PartitionName=test", "MaxTime=600"], check=True)
    assert isinstance(ended, Failed) and ended.reason.startswith("SLURM would never start it: PartitionTimeLimit")
    assert subprocess.run(["squeue", "--me", "--noheader"], capture_output=True).stdout == b""


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_torchrun_joins_the_processes_of_two_nodes(on_slurm, tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "ranks = [None] * dist.get_world_size()\n"
        "dist.all_gather_object(ranks, (dist.get_rank(), os.environ['SLURMD_NODENAME']))\n"
        f"open('{tmp_path}/ranks.{{}}'.format(dist.get_rank()), 'w').write(repr(ranks))\n"
        "dist.destroy_process_group()\n"
    )
    launch = Launch(["python", str(program)], str(tmp_path), 2, 1, 0, 120)
    ((_, ended),) = run(on_slurm, node.on_node, [launch], nodes=2)
    assert [one.code for one in ended] == [0, 0], ended
    ranks = [eval((tmp_path / f"ranks.{rank}").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    assert {name for _, name in ranks[0]} == {"node1", "node2"}


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_an_interrupted_program_leaves_no_job_in_slurms_queue(on_slurm, tmp_path):
    code, pids = ended_by(signal.SIGINT, tmp_path, "slurm")
    assert code == 130
    while subprocess.run(["squeue", "--me", "--noheader"], capture_output=True).stdout:  # SLURM ends them by itself
        time.sleep(0.1)
    assert still_there(pids) == []


@pytest.mark.slurm
@needs_slurm
@needs_submitit
@pytest.mark.xdist_group("slurm")
def test_a_folder_that_the_nodes_do_not_have_is_told(on_slurm, monkeypatch):
    submit = cluster._submitted

    def submitted(executor, *args):
        subprocess.run(["scontrol", "update", "PartitionName=test", "State=DOWN"], check=True)
        try:
            jobs = submit(executor, *args)
            shutil.rmtree(executor.folder)
        finally:
            subprocess.run(["scontrol", "update", "PartitionName=test", "State=UP"], check=True)
        return jobs

    monkeypatch.setattr(cluster, "_submitted", submitted)
    ((_, ended),) = run(on_slurm, node.on_node, [None])
    assert ended.code == 2 and ended.reason.startswith(f"its node cannot write its log into {on_slurm.folder}/")
