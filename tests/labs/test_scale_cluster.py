"""labs/scale: jobs of a cluster, in processes of this machine and on a SLURM that is started for the tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from importlib.util import find_spec

import pytest
from support import ROOT, assert_refused, run_program, still_there
from support.labs import lab_options

from labs.scale import slurm
from labs.shared.cluster import Cluster, add_cluster_options, answers, cluster_of, run
from labs.shared.study import measurements
from walkthrough.compare.study import NotMeasured
from walkthrough.results.errors import InputError

SCRIPT = ROOT / "labs" / "scale" / "start_slurm.sh"
SLURM = ROOT / "labs" / "scale" / "slurm.py"
needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed: pip install submitit"
)


def of_slurm(test):
    """Mark a test that submits jobs to SLURM."""
    for mark in needs_slurm:
        test = mark(test)
    return test


needs_slurm = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        not (shutil.which("slurmctld") and shutil.which("munged")),
        reason="SLURM is not installed: apt install slurm-wlm munge",
    ),
    pytest.mark.xdist_group("slurm"),
    needs_submitit,
]


MEASURE = """
import os, signal
from walkthrough.results.errors import InputError
from labs.shared.study import measurement, program

@measurement
def squared(options, number):
    with open(options.logdir / "calls", "a") as file:
        file.write(f"{number} ")
    if number == 7:
        raise InputError("its folder is gone")
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": number ** 2}

if __name__ == "__main__":
    program(None, None)
"""


@pytest.fixture
def options(tmp_path):
    return lab_options(tmp_path / "log", data=tmp_path)


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


# The command line


def test_a_cluster_is_what_the_command_line_asks_for_and_what_is_missing_is_one_line(tmp_path, monkeypatch):
    assert cluster_of(parsed(), tmp_path) is None
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match="--cluster needs submitit, which is not installed: pip install submitit"):
        cluster_of(parsed("--cluster", "local"), tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", sys)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="--cluster slurm needs SLURM, and sbatch is not on this machine"):
        cluster_of(parsed("--cluster", "slurm"), tmp_path)
    chosen = cluster_of(parsed("--cluster", "local", "--cpus", "2", "--minutes", "5", "--at-a-time", "3"), tmp_path, 1)
    assert chosen == Cluster("local", tmp_path, cpus=2, gpus=1, minutes=5, at_a_time=3)
    with pytest.raises(InputError, match="2 nodes need --cluster slurm"):
        next(run(local(tmp_path), slurm.on_task, [None], nodes=2))


def test_a_command_line_that_makes_no_sense_is_refused(run_here):
    assert_refused(run_here(SLURM, "--array", "2"), "the following arguments are required: command")
    assert_refused(run_here(SLURM, "--nodes", "2", "--", "python"), "--nodes 2 needs --processes-per-node")


# Processes of this machine


def grid(options, program, jobs):
    """A study's grid: numbers of which two fail, and again, as after a cut, with another one."""
    first = measurements("mine", options, program, jobs=jobs)
    numbers = [{"number": number} for number in (4, 7, 2, 8)]
    assert first.several("squared", numbers, processes=2) == [{"square": 16}, None, {"square": 4}, None]
    with pytest.raises(NotMeasured, match="its folder is gone"):
        first.measure("squared", number=7)  # says why, and is not run here
    with pytest.raises(NotMeasured, match="killed by SIGKILL"):
        first.measure("squared", number=8)
    assert sorted((options.logdir / "calls").read_text().split()) == ["2", "4", "7", "8"]
    again = measurements("mine", options, program, jobs=jobs)
    assert again.several("squared", [*numbers[:3:2], {"number": 5}], processes=2) == [
        {"square": 16}, {"square": 4}, {"square": 25},
    ]  # fmt: skip
    assert sorted((options.logdir / "calls").read_text().split()) == ["2", "4", "5", "7", "8"]


@needs_submitit
def test_a_studys_grid_runs_as_jobs_and_goes_on_after_a_cut(tmp_path, options, program):
    grid(options, program, local(tmp_path, at_a_time=3))


@needs_submitit
def test_the_command_reports_each_job_and_processes_that_train_together_have_ranks(tmp_path):
    code = (
        "import os, sys; rank = os.environ['RANK'] + os.environ['WORLD_SIZE'] + os.environ['LOCAL_RANK'];"
        f"open('{tmp_path}/' + os.environ['JOB_INDEX'] + rank + os.environ['MASTER_PORT'], 'w');"
        "sys.exit(3 if os.environ['JOB_INDEX'] == '1' else sys.argv[1:] != ['--array', '3', '--', 'x'])"
    )
    words = ["--array", "2", "--processes-per-node", "2", "--logdir", tmp_path / "jobs", "--", "python", "-c", code]
    words += ["--array", "3", "--", "x"]  # of the command
    done = run_program(SLURM, *words)
    assert "job 0: done" in done.stdout and "job 1: failed: python ended with code 3; its log: " in done.stdout
    assert_refused(done, "1 of 2 job(s) failed")
    files = sorted(path.name for path in tmp_path.glob("[01]*"))
    assert [name[:4] for name in files] == ["0020", "0121", "1020", "1121"]
    assert files[0][4:] == files[1][4:] != files[2][4:]


@needs_submitit
def test_whoever_waits_is_ended_and_jobs_with_it(tmp_path):
    pid = f"open('{tmp_path}/pid.' + os.environ['JOB_INDEX'], 'w').write(str(os.getpid()))"
    waits = ["python", "-c", f"import os, time; {pid}; time.sleep(600)"]
    own = [sys.executable, SLURM, "--logdir", tmp_path / "jobs", "--cluster", "local", "--array", "2"]
    program = subprocess.Popen([*own, "--at-a-time", "2", "--", *waits])
    while len(pids := [path.read_text() for path in tmp_path.glob("pid.?")]) < 2 or not all(pids):
        assert program.poll() is None
        time.sleep(0.05)
    program.terminate()
    assert program.wait(60) == 128 + signal.SIGTERM
    assert still_there([*map(int, pids)]) == []


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
def on_slurm(slurm_of_two_nodes, tmp_path):
    return Cluster("slurm", tmp_path / "jobs", minutes=5)


@of_slurm
def test_a_studys_grid_is_a_slurm_array_and_a_partition_that_is_not_there_is_told(on_slurm, options, program):
    grid(options, program, on_slurm)
    with pytest.raises(InputError, match=r"jobs could not be submitted: sbatch: error: .*[Ii]nvalid partition"):
        next(answers(Cluster("slurm", on_slurm.folder, partition="none"), ("python",), [{}], 60))
