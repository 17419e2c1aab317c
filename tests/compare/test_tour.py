"""The tour over the real steps, and over steps that only write their runs, or fail in every way a step can."""

import gzip
import json
import os
import signal
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import NAMES, ROOT, assert_refused, make_result, start_program, wait_for

from walkthrough.compare import isolated, tour
from walkthrough.compare.isolated import Outcome
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.results.folder import own_folder, publish


@pytest.fixture(scope="module")
def toured(quick_tour):
    """{step: its result} of a quick tour."""
    results, problems = record.read_results(quick_tour.logdir)
    assert not problems
    return {result.step: result for result in results}


def test_a_quick_tour_runs_every_step_and_leaves_nothing_but_its_runs(quick_tour, toured):
    assert quick_tour.finished.returncode == 0, quick_tour.finished.stdout + quick_tour.finished.stderr
    names = sorted(path.name for path in quick_tour.logdir.iterdir() if not path.name.endswith(".lock"))
    assert names == list(toured) == NAMES
    for name, result in toured.items():
        assert len(result.samples_per_second.windows) >= 5
        assert (quick_tour.logdir / name / result.trace).is_file()
        assert len(list((quick_tour.logdir / name).iterdir())) == 3
        assert result.data == "stand-in"
    assert [result.batch_size for result in toured.values()] == [32, 32] + [128] * (len(NAMES) - 2)
    out = quick_tour.finished.stdout
    assert out.count("STAND-IN DATA") == 1
    assert all(f"{name} " in out for name in NAMES)
    assert "not run" not in out


def test_a_result_has_the_bytes_of_its_batch_and_what_the_step_needs(toured):
    needs = [result.needs for step, result in toured.items() if result.needs and step != "01_amp"]  # as the CPU has it
    assert sorted(needs) == ["a GPU"] * 5 + ["a second process"]
    sizes = {step: result.batch_bytes for step, result in toured.items()}
    assert sizes["02_bigger_batch"] == 128 * 3 * 48 * 48 * 4 + 128 * 8
    assert {sizes[name] for name in NAMES[3:7]} == {128 * 3 * 48 * 48 + 128 * 8}
    assert sizes["07_small_images"] == 128 * 3 * 32 * 32 + 128 * 8, "as stored; the device resizes"
    assert {sizes[name] for name in NAMES[8:]} == {0}, "the data is on the device"


def test_compare_reads_what_the_tour_wrote(quick_tour, run_command):
    value = json.loads(run_command("compare", quick_tour.logdir, "--json").stdout)
    assert value["baseline"] == "00_baseline"
    assert [row["step"] for row in value["rows"]] == NAMES


@pytest.fixture
def steps(monkeypatch):
    """In place of the steps 00_a and 01_b: a run writes all that a step's does, at 101, 102 … images/s.

    log: the steps as they ran. words: the last one's options. does: {step: a function of how often it has run}, which
    returns changes of its result, or how it ends instead of writing one.
    """
    state = SimpleNamespace(log=[], words=[], does={}, names=["00_a", "01_b"])

    def run(file, words, on_progress, on_line):
        step, state.words = file.stem, words
        state.log.append(step)
        count = state.log.count(step)
        changes = state.does.get(step, lambda count: {})(count)
        if isinstance(changes, Outcome):
            return changes
        own = {"trace": f"host.{len(state.log)}.pt.trace.json.gz", "started": f"2026-11-22T10:{len(state.log):02}:00"}
        result = make_result(step, windows=[100.0 + count] * 5, device_type="cpu", **own, **changes)
        with own_folder(Path(words[words.index("--logdir") + 1]), step) as (folder, staging):
            (staging / "trace").write_bytes(gzip.compress(b"{}" + b" " * count, mtime=0))
            (staging / "events").write_bytes(b"scalars")
            publish(folder, staging, "trace", "events", result)
        return Outcome(0, "")

    monkeypatch.setattr(isolated, "run", run)
    monkeypatch.setattr(tour, "step_files", lambda: [Path("steps") / f"{name}.py" for name in state.names])
    return state


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def run_tour(run_command, logs):
    """run_tour(*options): the finished tour on the CPU into `logs`."""
    return partial(run_command, "tour", "--logdir", logs, "--device", "cpu")


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (Outcome(1, "ZeroDivisionError: oh"), 1, "failed: ZeroDivisionError: oh"),
        (Outcome(-9, "killed by SIGKILL"), 1, "failed: killed by SIGKILL"),
        (Outcome(2, "no compiler, [/] so"), 2, "not run: no compiler, [/] so"),
    ],
)
def test_a_step_that_ends_early_is_named_and_the_others_still_run(steps, run_tour, logs, outcome, code, line):
    steps.names = ["00_a", "01_b", "02_c"]
    steps.does["01_b"] = lambda count: outcome
    done = run_tour()
    assert (done.returncode, done.stderr) == (code, f"tour: 01_b {line}\n")
    assert steps.log == steps.names
    table = done.stdout[done.stdout.index("vs step") :].splitlines()
    assert {row.split()[0] for row in table if row[:2].isdecimal()} == {
        "00_a",
        "02_c",
        *(["01_b"] if code == 2 else []),
    }
    assert ("01_b was not run: no compiler, [/] so." in table) == (code == 2)
    assert not (logs / "01_b").exists()


def test_every_other_option_goes_on_to_the_steps(steps, run_tour, logs):
    assert run_tour("--batch-size", "64", "--quick", "--workers=0").returncode == 0
    assert steps.words == [*("--logdir", str(logs), "--device", "cpu", "--quick", "--batch-size", "64", "--workers=0")]


def test_a_step_that_refuses_the_options_before_any_has_run_ends_the_tour_with_its_line(steps, run_tour):
    steps.does["00_a"] = lambda count: Outcome(2, "unrecognized arguments: --bacth-size (see --help)")
    assert_refused(run_tour("--bacth-size", "64"), "unrecognized arguments: --bacth-size (see --help)")
    assert steps.log == ["00_a"]


def medians(folder):
    """The runs of a step's folder: {round: images/s}; {} for a folder of one run."""
    return {int(path.stem): record.read_result(path).samples_per_second.median for path in record.run_files(folder)}


def assert_rounds(folder, speeds):
    """A step's folder holds runs of these speeds and their sum, one trace and one event file, nothing else."""
    result = record.read_result(folder / "result.json")
    assert medians(folder) == dict(enumerate(speeds, start=1))
    assert result.samples_per_second.windows == [speed for speed in speeds for _ in range(5)]
    [trace] = folder.glob("*.pt.trace.json.gz")
    [events] = folder.glob("events.out.tfevents.*")
    assert {run.trace for run in [result, *record.read_runs(folder)]} == {trace.name}
    assert {path.name for path in folder.iterdir()} == {"runs", "result.json", trace.name, events.name}


def test_rounds_are_interleaved_and_every_run_is_kept_of_a_step_without_effect_one(steps, run_tour, logs):
    steps.names.append("02_c")
    steps.does["01_b"] = lambda count: {"needs": "a GPU"}
    done = run_tour("--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert steps.log == [*steps.names, "00_a", "02_c", "00_a", "02_c"]
    assert_rounds(logs / "01_b", [101.0])
    for step in ("00_a", "02_c"):
        assert_rounds(logs / step, [101.0, 102.0, 103.0])
    assert sorted(path.name for path in logs.iterdir() if not path.name.endswith(".lock")) == steps.names
    assert f"round 2/3  {'02_c':<26}     102.0 images/s" in done.stdout
    assert "~1.00x (1.00-1.00)" in done.stdout and "needs a GPU" in done.stdout


def test_a_trace_without_kernels_is_replaced_by_that_of_a_further_round(steps, run_tour, logs):
    steps.does["00_a"] = lambda count: {"notes": [record.NO_KERNELS] if count == 1 else []}
    assert run_tour("--rounds", "3").returncode == 0
    assert_rounds(logs / "00_a", [101.0, 102.0, 103.0])
    assert record.read_result(logs / "00_a" / "result.json").notes == []
    [trace] = (logs / "00_a").glob("*.pt.trace.json.gz")
    assert gzip.decompress(trace.read_bytes()) == b"{}  "  # the second run's


def test_a_tour_of_fewer_rounds_leaves_none_of_an_earlier_one_and_one_round_keeps_no_runs(steps, run_tour, logs):
    run_tour("--rounds", "3")
    run_tour("--rounds", "2")
    assert_rounds(logs / "00_a", [104.0, 105.0])
    assert run_tour().returncode == 0
    assert record.read_result(logs / "00_a" / "result.json").samples_per_second.windows == [106.0] * 5
    suffixes = [path.suffix for path in (logs / "00_a").iterdir() if "tfevents" not in path.name]
    assert sorted(suffixes) == [".gz", ".json"]


def test_earlier_rounds_of_a_step_that_now_fails_are_not_paired_with_new_ones(steps, run_tour, logs):
    steps.does["01_b"] = lambda count: Outcome(1, "no") if count > 2 else {}
    run_tour("--rounds", "2")
    done = run_tour("--rounds", "2")
    assert (done.returncode, done.stderr) == (1, "tour: 01_b failed: no\n")  # once
    assert "01_b" not in done.stdout[done.stdout.index("vs step") :]
    assert_rounds(logs / "00_a", [103.0, 104.0])
    assert not (logs / "01_b" / "runs").exists()
    assert (logs / "01_b" / "result.json").exists()


def test_a_step_that_ran_is_tried_again_in_the_next_round_and_one_that_cannot_be_run_here_is_not(steps, run_tour, logs):
    steps.names.append("02_c")
    steps.does["01_b"] = lambda count: Outcome(2, "not now") if count == 2 else {}
    steps.does["02_c"] = lambda count: Outcome(2, "no compiler")
    done = run_tour("--rounds", "3")
    assert done.returncode == 2
    assert steps.log == [*steps.names, "00_a", "01_b", "00_a", "01_b"]
    assert sorted(done.stderr.splitlines()) == ["tour: 01_b failed: not now", "tour: 02_c not run: no compiler"]
    assert medians(logs / "01_b") == {1: 101.0, 3: 103.0}
    assert "02_c was not run: no compiler." in done.stdout


def test_a_tour_stopped_in_round_3_leaves_two_whole_rounds(steps, run_tour, run_command, logs):
    def stop(count):
        if count == 3:
            raise KeyboardInterrupt
        return {}

    steps.does["01_b"] = stop
    assert run_tour("--rounds", "5").returncode == 130
    assert_rounds(logs / "00_a", [101.0, 102.0, 103.0])
    assert_rounds(logs / "01_b", [101.0, 102.0])
    assert "2 rounds" in " ".join(run_command("compare", logs).stdout.split())
    assert not list(logs.glob(".*.partial"))


def test_a_step_that_somebody_else_runs_is_not_overwritten_by_a_tour_of_rounds(steps, run_tour, logs):
    with own_folder(logs, "00_a"):
        assert_refused(run_tour("--rounds", "2"), "another run of 00_a")


WAITING = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from walkthrough.results.errors import exit_in_one_line
from walkthrough.results.folder import own_folder
exit_in_one_line()
logdir = Path(sys.argv[sys.argv.index("--logdir") + 1])
with own_folder(logdir, "00_waiting") as (folder, staging):
    (staging / "trace.json").write_text("half of it")
    (logdir / "ready").write_text("yes")
    time.sleep(600)
"""
TOUR = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from walkthrough.compare import tour
tour.step_files = lambda: [Path({step!r})]
from walkthrough.cli import main
main(["tour", "--device", "cpu", "--logdir", {logdir!r}])
"""


@pytest.mark.parametrize(
    ("stop", "code", "message"),
    [
        (lambda pid: os.killpg(pid, signal.SIGINT), 130, "interrupted"),  # as a terminal does: tour and step alike
        (lambda pid: os.kill(pid, signal.SIGINT), 130, "interrupted"),
        (lambda pid: os.kill(pid, signal.SIGTERM), 143, ""),
    ],
    ids=["Ctrl-C", "SIGINT to the tour", "SIGTERM to the tour"],
)
def test_a_stopped_tour_stops_its_step_which_leaves_nothing_half_written(tmp_path, logs, stop, code, message):
    step = tmp_path / "00_waiting.py"
    step.write_text(WAITING.format(root=str(ROOT)))
    process = start_program(sys.executable, "-c", TOUR.format(root=str(ROOT), step=str(step), logdir=str(logs)))
    wait_for(logs / "ready")
    stop(process.pid)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    assert message in errors and "Traceback" not in errors
    assert [path.name for path in logs.iterdir() if not path.name.endswith(".lock")] == ["ready"]


SCRIPTS = [Path("steps/00_a.py"), Path("steps/01_b.py")]


@pytest.mark.parametrize(
    ("minutes", "seconds", "made"),
    [(None, [80], 6), (3, [80], 2), (3, [60], 3), (3, [0.1], 6), (1, [80], 1), (3, [20, 100, 1], 2)],
    ids=["no limit", "the third is late", "just in time", "all fit", "one that is too long", "the longest counts"],
)
def test_no_run_begins_that_would_end_late_by_the_longest_so_far(monkeypatch, minutes, seconds, made, capsys):
    schedule, now, done = tour.Schedule(SCRIPTS, rounds=3, minutes=minutes), [0.0], 0
    monkeypatch.setattr(tour, "monotonic", lambda: now[0])
    for (number, script), took in zip(schedule, cycle(seconds), strict=False):
        now[0] += took
        schedule.add(number, make_result(script.stem))
        done += 1
    assert done == made
    assert ("next is" in capsys.readouterr().out) == (made < 6)


@pytest.mark.parametrize("text", ["0", "nan", "ten", "10081"])
def test_minutes_that_are_none_are_refused(text, run_command):
    assert_refused(run_command("tour", "--minutes", text), "is not a number of minutes above 0, at most 10080")


def test_a_folder_without_steps_and_a_round_without_a_trace_are_refused(tmp_path):
    with pytest.raises(InputError, match="no steps"):
        tour.step_files(tmp_path)
    with pytest.raises(InputError, match="holds no trace"):
        tour.keep(tmp_path, 2, make_result())
