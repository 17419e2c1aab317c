"""The tour over the real steps, and over small scripts that fail in every way a step can."""

import gzip
import json
import os
import signal
import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from support import NAMES, ROOT, assert_refused, make_result, run_program, start_program

from walkthrough.compare import tour
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.results.folder import own_folder


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


def test_a_tour_prints_its_banner_once_and_the_table(quick_tour):
    out = quick_tour.finished.stdout
    assert out.count("STAND-IN DATA") == 1
    assert "has no effect in this step" not in out and "not run" not in out and "…" not in out
    [header] = [line.split() for line in out.splitlines() if line.startswith("step ")]
    assert header == ["step", "images/s", "before", "baseline", "batch", "ms", "±", "MB", "MB"]
    assert all(f"{name} " in out for name in NAMES)


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
    assert all(row["relative_low"] <= row["relative"] <= row["relative_high"] for row in value["rows"])


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import replace
from pathlib import Path
from walkthrough.results import result as record
logdir, step = Path(sys.argv[sys.argv.index("--logdir") + 1]), Path(sys.argv[0]).stem
{body}
"""

WHOLE = """
import gzip
from walkthrough.results.folder import own_folder, publish, stamp
order = Path({order!r})
order.write_text((order.read_text() if order.exists() else "") + step + " ")
count, notes, needs = order.read_text().split().count(step), [], None
{body}
speed = 100.0 + count
result = replace(
    record.read_result({result!r}), step=step, trace=stamp() + ".pt.trace.json.gz",
    started=f"2026-11-22T10:00:{{len(order.read_text().split()):02}}+00:00",
    samples_per_second=record.Throughput(speed, [speed] * 5), notes=notes if count == 1 else [], needs=needs,
)
with own_folder(logdir, step) as (folder, staging):
    (staging / "trace").write_bytes(gzip.compress(b"{{}}" + b" " * count, mtime=0))
    (staging / "events").write_bytes(b"scalars")
    publish(folder, staging, "trace", "events", result)
"""


@pytest.fixture
def whole(tmp_path):
    """whole(body): that of a small script that writes all that a step does, at 101, 102 … images/s.

    body: what it does first; `count` says how often it has run.
    """
    record.write_result(tmp_path / "any.json", make_result())
    return lambda body="": WHOLE.format(order=str(tmp_path / "order"), result=str(tmp_path / "any.json"), body=body)


@pytest.fixture
def fake_steps(tmp_path, monkeypatch):
    """fake_steps(name=body, …): a folder of small scripts in place of `steps/`."""

    def make(**bodies):
        folder = tmp_path / "steps"
        folder.mkdir()
        for name, body in bodies.items():
            (folder / f"{name.lstrip('_')}.py").write_text(SCRIPT.format(root=str(ROOT), body=body))
        files = tour.step_files(folder)
        monkeypatch.setattr(tour, "step_files", lambda: files)
        return files

    return make


@pytest.fixture
def run_tour(run_command, tmp_path):
    """run_tour(*options): a tour on the CPU into `tmp_path / "logs"`."""
    return partial(run_command, "tour", "--logdir", tmp_path / "logs", "--device", "cpu")


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("raise ZeroDivisionError('oh')", 1, "failed: ZeroDivisionError: oh"),
        ("print('01_bad: no, because', file=sys.stderr); sys.exit(2)", 2, "not run: no, because"),
        ("import os; os.kill(os.getpid(), 9)", 1, "failed: killed by SIGKILL (most likely for lack of memory)"),
    ],
    ids=["a defect", "its input", "killed"],
)
def test_a_step_that_ends_early_is_named_and_the_others_still_run(fake_steps, whole, run_tour, body, code, line):
    fake_steps(_00_fine=whole(), _01_bad=body, _02_fine=whole())
    done = run_tour()
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"tour: 01_bad {line}"
    assert "00_fine" in done.stdout and "02_fine" in done.stdout
    assert ("Traceback" in done.stdout) == ("ZeroDivisionError" in body)  # a defect is shown whole


def test_a_step_that_cannot_be_run_here_is_in_the_table_with_its_reason(fake_steps, whole, run_tour, tmp_path):
    picky = "print('01_picky: no compiler, [/] so', file=sys.stderr); sys.exit(2)"
    fake_steps(_00_fine=whole(), _01_picky=picky, _02_fine=whole())
    out = run_tour().stdout
    table = out[out.index("vs step") :].splitlines()
    rows = [line.split() for line in table if line.startswith(("00_", "01_", "02_"))]
    assert [row[0] for row in rows][:3] == ["00_fine", "01_picky", "02_fine"]
    assert "not run" in " ".join(rows[1])
    assert {*rows[1][1:]} == {"-", "not", "run"}
    assert "01_picky was not run: no compiler, [/] so." in table
    assert not (tmp_path / "logs" / "01_picky").exists()


def test_every_other_option_goes_on_to_the_steps(fake_steps, whole, run_tour):
    told = whole("print(*sys.argv[3:])")
    fake_steps(_00_a=told, _01_b=told)
    done = run_tour("--batch-size", "64", "--quick", "--workers=0")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "--device cpu --quick --batch-size 64 --workers=0"


def test_a_step_that_refuses_the_options_before_any_has_run_ends_the_tour_with_its_line(fake_steps, run_tour):
    refusal = "print('00_a.py: unrecognized arguments: --bacth-size (see --help)', file=sys.stderr); sys.exit(2)"
    fake_steps(_00_a=refusal, _01_b="raise ZeroDivisionError")
    assert_refused(run_tour("--bacth-size", "64"), "unrecognized arguments: --bacth-size (see --help)")


def order(tmp_path):
    """The steps of `whole` scripts as they ran."""
    return (tmp_path / "order").read_text().split()


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


def test_rounds_are_interleaved_and_every_run_is_kept(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(), _01_b=whole())
    done = run_tour("--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert order(tmp_path) == ["00_a", "01_b"] * 3
    for step in ("00_a", "01_b"):
        assert_rounds(tmp_path / "logs" / step, [101.0, 102.0, 103.0])
    names = [path.name for path in (tmp_path / "logs").iterdir() if not path.name.endswith(".lock")]
    assert sorted(names) == ["00_a", "01_b"]
    assert f"round 2/3  {'01_b':<26}     102.0 images/s" in done.stdout
    assert "~1.00x (1.00-1.00)" in done.stdout


def test_a_step_without_effect_on_this_device_runs_in_the_first_round_only(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(), _01_b=whole("needs = 'a GPU'"), _02_c=whole())
    done = run_tour("--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert order(tmp_path) == ["00_a", "01_b", "02_c", "00_a", "02_c", "00_a", "02_c"]
    assert_rounds(tmp_path / "logs" / "01_b", [101.0])
    assert_rounds(tmp_path / "logs" / "02_c", [101.0, 102.0, 103.0])
    assert "needs a GPU" in done.stdout
    assert "over 3 rounds, in each of which both steps ran" in " ".join(done.stdout.split())


def test_a_trace_without_kernels_is_replaced_by_that_of_a_further_round(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(f"notes = [{record.NO_KERNELS!r}]"))  # of its first run
    done = run_tour("--rounds", "3")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "logs" / "00_a"
    assert_rounds(folder, [101.0, 102.0, 103.0])
    assert record.read_result(folder / "result.json").notes == []
    [trace] = folder.glob("*.pt.trace.json.gz")
    assert gzip.decompress(trace.read_bytes()) == b"{}  "  # the second run's


def test_a_tour_of_fewer_rounds_leaves_none_of_an_earlier_one_and_one_round_keeps_no_runs(
    fake_steps, whole, tmp_path, run_tour
):
    fake_steps(_00_a=whole())
    run_tour("--rounds", "3")
    run_tour("--rounds", "2")
    folder = tmp_path / "logs" / "00_a"
    assert_rounds(folder, [104.0, 105.0])
    assert run_tour().returncode == 0
    assert record.read_result(folder / "result.json").samples_per_second.windows == [106.0] * 5
    assert sorted(path.suffix for path in folder.iterdir() if "tfevents" not in path.name) == [".gz", ".json"]


def test_earlier_rounds_of_a_step_that_now_fails_are_not_paired_with_new_ones(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(), _01_b=whole("if count > 2: sys.exit('no')"))
    run_tour("--rounds", "2")
    done = run_tour("--rounds", "2")
    assert done.returncode == 1
    assert done.stderr.count("tour: 01_b failed: no") == 1
    assert "01_b" not in done.stdout[done.stdout.index("vs step") :]
    assert_rounds(tmp_path / "logs" / "00_a", [103.0, 104.0])
    assert not (tmp_path / "logs" / "01_b" / "runs").exists()
    assert (tmp_path / "logs" / "01_b" / "result.json").exists()


def test_a_step_that_fails_in_one_round_is_tried_again_in_the_next(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(), _01_b=whole("if count == 2: print('01_b: not now'); sys.exit(2)"))
    done = run_tour("--rounds", "3")
    assert done.returncode == 2
    assert "tour: 01_b failed: not now" in done.stderr
    assert medians(tmp_path / "logs" / "01_b") == {1: 101.0, 3: 103.0}
    assert "01_b" in done.stdout[done.stdout.index("vs step") :]


def test_a_step_that_cannot_be_run_here_is_tried_in_the_first_round_only(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole(), _01_b=whole("print('01_b: no compiler'); sys.exit(2)"))
    done = run_tour("--rounds", "3")
    assert done.returncode == 2
    assert order(tmp_path) == ["00_a", "01_b", "00_a", "00_a"]
    assert done.stderr.count("tour: 01_b not run: no compiler") == 1
    assert "01_b was not run: no compiler." in done.stdout


@pytest.fixture
def hears_ctrl_c():
    """SIGINT raises KeyboardInterrupt, also in tests that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_tour_stopped_in_round_3_leaves_two_whole_rounds(
    fake_steps, whole, hears_ctrl_c, tmp_path, run_tour, run_command
):
    stop = "import os, signal, time\nif count == 3: os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    fake_steps(_00_a=whole(), _01_b=whole(stop))
    done = run_tour("--rounds", "5")
    assert done.returncode == 130, done.stderr
    assert_rounds(tmp_path / "logs" / "00_a", [101.0, 102.0, 103.0])
    assert_rounds(tmp_path / "logs" / "01_b", [101.0, 102.0])
    assert "2 rounds" in " ".join(run_command("compare", tmp_path / "logs").stdout.split())
    assert not list((tmp_path / "logs").glob(".*.partial"))


def test_a_step_that_somebody_else_runs_is_not_overwritten_by_a_tour_of_rounds(fake_steps, whole, tmp_path, run_tour):
    fake_steps(_00_a=whole())
    with own_folder(tmp_path / "logs", "00_a"):
        done = run_tour("--rounds", "2")
    assert_refused(done, "another run of 00_a")


WAITING = """
import time
from walkthrough.results.errors import exit_in_one_line
from walkthrough.results.folder import own_folder
exit_in_one_line()
with own_folder(logdir, step) as (folder, staging):
    (staging / "trace.json").write_text("half of it")
    (logdir / "ready").touch()
    time.sleep(600)
"""
TOUR = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from walkthrough.compare import isolated, tour
from walkthrough.compare.isolated import Outcome
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
def test_a_stopped_tour_stops_its_step_which_leaves_nothing_half_written(fake_steps, tmp_path, stop, code, message):
    [step] = fake_steps(_00_waiting=WAITING)
    logdir = tmp_path / "logs"
    program = TOUR.format(root=str(ROOT), step=str(step), logdir=str(logdir))
    process = start_program(sys.executable, "-c", program)
    deadline = time.monotonic() + 600
    while not (logdir / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    stop(process.pid)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    assert message in errors
    assert "Traceback" not in errors
    assert [path.name for path in logdir.iterdir() if not path.name.endswith(".lock")] == ["ready"]


def test_a_folder_without_steps_is_refused(tmp_path):
    with pytest.raises(InputError, match="no steps"):
        tour.step_files(tmp_path)


def test_the_steps_are_those_of_the_clone_whatever_the_current_folder():
    code = "from walkthrough.compare.tour import step_files; print(len(step_files()))"
    assert run_program("-c", code, cwd="/").stdout.strip() == str(len(NAMES))


SCRIPTS = [Path("steps/00_a.py"), Path("steps/01_b.py")]


def test_runs_that_are_there_already_are_not_made_again():
    schedule = tour.Schedule(SCRIPTS, rounds=2)
    schedule.add(1, make_result("00_a"))
    schedule.add(2, make_result("01_b"))
    assert [(number, script.stem) for number, script in schedule] == [(1, "01_b"), (2, "00_a")]
    assert schedule.whole_rounds == 1


def test_a_step_without_effect_runs_again_until_its_trace_holds_kernels():
    schedule = tour.Schedule(SCRIPTS, rounds=4)
    schedule.add(1, make_result("01_b", needs="a second process", notes=[record.NO_KERNELS]))
    assert schedule.missing(2) == SCRIPTS
    schedule.add(2, make_result("01_b", needs="a second process"))
    assert schedule.missing(3) == SCRIPTS[:1]


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds): that much time passes for a schedule."""
    now = [0.0]
    monkeypatch.setattr(tour, "monotonic", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


@pytest.mark.parametrize(
    ("minutes", "seconds", "made"),
    [(None, [80], 6), (3, [80], 2), (3, [60], 3), (3, [0.1], 6), (1, [80], 1), (3, [20, 100, 1], 2)],
    ids=["no limit", "the third is late", "just in time", "all fit", "one that is too long", "the longest counts"],
)
def test_no_run_begins_that_would_end_late_by_the_longest_so_far(clock, minutes, seconds, made, capsys):
    schedule, done = tour.Schedule(SCRIPTS, rounds=3, minutes=minutes), 0
    for (number, script), took in zip(schedule, cycle(seconds), strict=False):
        clock(took)
        schedule.add(number, make_result(script.stem))
        done += 1
    assert done == made
    assert ("next is" in capsys.readouterr().out) == (made < 6)


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "ten", "", "10081"])
def test_minutes_that_are_none_are_refused(text, run_command):
    assert_refused(run_command("tour", "--minutes", text), "is not a number of minutes above 0, at most 10080")


def test_a_round_is_not_kept_beside_no_trace(tmp_path):
    with pytest.raises(InputError, match="holds no trace"):
        tour.keep(tmp_path, 2, make_result())
