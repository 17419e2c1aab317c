"""labs/scale: jobs of a cluster, in processes of this machine."""

import signal
import sys
from argparse import ArgumentParser
from importlib.util import find_spec

import pytest
from support import ROOT, assert_refused, run_program, start_program, still_there, wait_for
from support.labs import lab_options

from labs.shared.cluster import Cluster, add_cluster_options, cluster_of
from labs.shared.study import measurements
from walkthrough.compare.study import NotMeasured
from walkthrough.results.errors import InputError

SLURM = ROOT / "labs" / "scale" / "slurm.py"
pytestmark = pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")
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


def test_a_cluster_is_what_the_command_line_asks_for_or_one_line(tmp_path, monkeypatch, run_here):
    def parsed(*words):
        parser = ArgumentParser()
        add_cluster_options(parser)
        return cluster_of(parser.parse_args(words), tmp_path, 1)

    assert parsed() is None
    monkeypatch.setitem(sys.modules, "submitit", sys)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sbatch is not on this machine"):
        parsed("--cluster", "slurm")
    chosen = parsed("--cluster", "local", "--cpus", "2", "--minutes", "5", "--at-a-time", "3")
    assert chosen == Cluster("local", tmp_path, cpus=2, gpus=1, minutes=5, at_a_time=3)
    assert_refused(run_here(SLURM, "--nodes", "2", "--", "python"), "--nodes 2 needs --processes-per-node")


def test_a_studys_grid_runs_as_jobs_and_goes_on_after_a_cut(tmp_path):
    options, program = lab_options(tmp_path), tmp_path / "measure.py"
    program.write_text(MEASURE)

    def of_jobs():
        return measurements("mine", options, program, jobs=Cluster("local", tmp_path / "jobs", minutes=5, at_a_time=3))

    first, numbers = of_jobs(), [{"number": number} for number in (4, 7, 8)]
    assert first.several("squared", numbers, processes=2) == [{"square": 16}, None, None]
    for number, why in ((7, "its folder is gone"), (8, "killed by SIGKILL")):
        with pytest.raises(NotMeasured, match=why):  # says why, and is not run here
            first.measure("squared", number=number)
    numbers = [{"number": number} for number in (4, 5)]
    assert [answer["square"] for answer in of_jobs().several("squared", numbers, processes=2)] == [16, 25]
    assert sorted((tmp_path / "calls").read_text().split()) == ["4", "5", "7", "8"]


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


def test_whoever_waits_is_ended_and_jobs_with_it(tmp_path):
    pid = f"open('{tmp_path}/pid.' + os.environ['JOB_INDEX'], 'w').write(str(os.getpid()))"
    waits = ["python", "-c", f"import os, time; {pid}; time.sleep(600)"]
    own = [sys.executable, SLURM, "--logdir", tmp_path / "jobs", "--cluster", "local", "--array", "2"]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as a script starts what it puts in the background
    program = start_program(*ignoring, *own, "--at-a-time", "2", "--", *waits)
    pids = [int(wait_for(tmp_path / f"pid.{index}")) for index in range(2)]
    program.terminate()
    program.communicate(timeout=240)
    assert program.returncode == 128 + signal.SIGTERM
    assert still_there(pids) == []
