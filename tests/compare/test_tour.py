"""The tour over the real steps, and over small scripts that fail in every way a step can."""

import gzip
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from support import NAMES, ROOT, make_result, run_program, start_program

from walkthrough.cli import main
from walkthrough.compare import isolated, tour
from walkthrough.compare.isolated import Outcome
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.results.folder import own_folder


def test_a_quick_tour_runs_every_step_and_prints_the_table(quick_tour):
    assert quick_tour.finished.returncode == 0, quick_tour.finished.stdout + quick_tour.finished.stderr
    results, problems = record.read_results(quick_tour.logdir)
    assert not problems
    assert [result.step for result in results] == NAMES
    for result in results:
        assert len(result.samples_per_second.windows) >= 5
        assert (quick_tour.logdir / result.step / result.trace).is_file()
        assert result.data == "stand-in"
        assert f"{result.step} " in quick_tour.finished.stdout
    assert [result.batch_size for result in results] == [32, 32] + [128] * (len(NAMES) - 2)
    assert quick_tour.finished.stdout.count("STAND-IN DATA") == 1
    assert "has no effect in this step" not in quick_tour.finished.stdout
    assert "not run" not in quick_tour.finished.stdout
    header = next(line for line in quick_tour.finished.stdout.splitlines() if line.startswith("step "))
    assert header.split() == ["step", "images/s", "before", "baseline", "batch", "ms", "±", "MB", "MB"]
    assert "…" not in quick_tour.finished.stdout


def test_a_tour_leaves_nothing_but_its_runs(quick_tour):
    names = sorted(path.name for path in quick_tour.logdir.iterdir() if not path.name.endswith(".lock"))
    assert names == NAMES
    for name in names:
        assert len(list((quick_tour.logdir / name).iterdir())) == 3


def test_uint8_cuts_the_bytes_of_a_batch_to_a_quarter(quick_tour):
    results, _ = record.read_results(quick_tour.logdir)
    sizes = {result.step: result.batch_bytes for result in results}
    assert sizes["02_bigger_batch"] == 128 * 3 * 48 * 48 * 4 + 128 * 8
    assert {sizes[name] for name in NAMES[3:7]} == {128 * 3 * 48 * 48 + 128 * 8}
    assert sizes["07_small_images"] == 128 * 3 * 32 * 32 + 128 * 8, "as stored; the device resizes"
    assert {sizes[name] for name in NAMES[8:]} == {0}, "the data is on the device"


def test_on_a_cpu_the_notes_name_what_has_no_effect(quick_tour):
    results, _ = record.read_results(quick_tour.logdir)
    notes = {result.step: " ".join(result.notes) for result in results}
    for note, step in (
        ("converting and normalising image by image", "03_reduced_h2d_copy"),
        ("pinned memory has no effect", "05_pinned_memory"),
        ("no copy to overlap", "06_prefetch_stream"),
        ("resizing image by image", "07_small_images"),
        ("the loader's work per image", "08_on_device_data"),
        ("no synchronisation to avoid", "10_no_hidden_syncs"),
        ("no cuDNN", "12_cudnn_benchmark"),
        ("no launches to save", "15_cuda_graphs"),
        ("one process trains alone", "16_data_parallel"),
    ):
        assert [name for name in notes if note in notes[name]] == [step]
        needs_a_gpu = next(result.needs == "a GPU" for result in results if result.step == step)
        assert (note in quick_tour.finished.stdout) != needs_a_gpu, "the row says it"
    assert quick_tour.finished.stdout.count("needs a GPU") == 5
    assert "needs a second process" in quick_tour.finished.stdout


def test_compare_reads_what_the_tour_wrote(quick_tour, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(quick_tour.logdir), "--json"])
    assert ended.value.code == 0
    value = json.loads(capsys.readouterr().out)
    assert value["baseline"] == "00_baseline"
    for row in value["rows"]:
        assert row["relative_low"] <= row["relative"] <= row["relative_high"]


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import replace
from pathlib import Path
from walkthrough.results import result as record
logdir, step = Path(sys.argv[sys.argv.index("--logdir") + 1]), Path(sys.argv[0]).stem
{body}
"""
FINE = """
(logdir / step).mkdir(parents=True, exist_ok=True)
record.write_result(logdir / step / record.FILE, replace(record.read_result({result!r}), step=step))
"""


@pytest.fixture
def fine(tmp_path):
    """The body of a small script that writes a result as a step does; without torch, so that it starts at once."""
    record.write_result(tmp_path / "any.json", make_result())
    return FINE.format(result=str(tmp_path / "any.json"))


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


def run_tour(tmp_path, capsys, *options):
    with pytest.raises(SystemExit) as ended:
        main(["tour", "--logdir", str(tmp_path / "logs"), "--device", "cpu", *options])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_a_step_that_breaks_is_named_and_the_others_still_run(fake_steps, fine, tmp_path, capsys):
    fake_steps(_00_fine=fine, _01_broken="raise ZeroDivisionError('oh')", _02_fine=fine)
    code, out, err = run_tour(tmp_path, capsys)
    assert code == 1
    assert "tour: 01_broken failed: ZeroDivisionError: oh" in err
    assert "00_fine" in out
    assert "02_fine" in out
    assert "Traceback" in out  # a defect is shown whole


def test_a_step_that_refuses_its_input_is_named_and_the_exit_code_is_2(fake_steps, fine, tmp_path, capsys):
    fake_steps(_00_fine=fine, _01_picky="print('01_picky: no, because', file=sys.stderr); sys.exit(2)")
    code, out, err = run_tour(tmp_path, capsys)
    assert code == 2
    assert err.splitlines()[-1] == "tour: 01_picky not run: no, because"
    assert "00_fine" in out


def test_a_step_that_cannot_be_run_here_is_in_the_table_with_its_reason_and_the_next_ones_run(
    fake_steps, fine, tmp_path, capsys
):
    picky = "print('01_picky: no compiler, [/] so', file=sys.stderr); sys.exit(2)"
    fake_steps(_00_fine=fine, _01_picky=picky, _02_fine=fine)
    code, out, _ = run_tour(tmp_path, capsys)
    assert code == 2
    table = out[out.index("vs step") :].splitlines()
    rows = [line.split() for line in table if line.startswith(("00_", "01_", "02_"))]
    assert [row[0] for row in rows][:3] == ["00_fine", "01_picky", "02_fine"]
    cells = " ".join(rows[1][1:]).split("not run")
    assert len(cells) == 2
    assert set("".join(cells).split()) == {"-"}
    assert "01_picky was not run: no compiler, [/] so." in table
    assert not (tmp_path / "logs" / "01_picky").exists()


def test_every_other_option_goes_on_to_the_steps(fake_steps, fine, tmp_path, capsys):
    told = "print(*sys.argv[3:])\n"
    fake_steps(_00_a=told + fine, _01_b=told + fine)
    code, out, _ = run_tour(tmp_path, capsys, "--batch-size", "64", "--quick", "--workers=0")
    assert code == 0
    assert out.splitlines()[0] == "--device cpu --quick --batch-size 64 --workers=0"


def test_a_step_that_refuses_the_options_before_any_has_run_ends_the_tour_with_its_line(fake_steps, tmp_path, capsys):
    refusal = "print('00_a.py: unrecognized arguments: --bacth-size (see --help)', file=sys.stderr); sys.exit(2)"
    fake_steps(_00_a=refusal, _01_b="raise ZeroDivisionError")
    code, _, err = run_tour(tmp_path, capsys, "--bacth-size", "64")
    [line] = err.splitlines()
    assert code == 2
    assert line.endswith(": unrecognized arguments: --bacth-size (see --help)")


def test_a_step_killed_by_the_system_is_explained(fake_steps, fine, tmp_path, capsys):
    fake_steps(_00_fine=fine, _01_killed="import os; os.kill(os.getpid(), 9)")
    code, _, err = run_tour(tmp_path, capsys)
    assert code == 1
    assert "01_killed failed: killed by SIGKILL (most likely for lack of memory)" in err


def test_an_old_result_of_a_step_that_now_fails_is_not_in_the_table(fake_steps, fine, tmp_path, capsys):
    fake_steps(_00_fine=fine, _01_broken="if (logdir / step).exists(): sys.exit('no')\n" + fine)
    assert run_tour(tmp_path, capsys)[0] == 0
    code, out, err = run_tour(tmp_path, capsys)
    assert code == 1
    assert "01_broken" not in out[out.index("vs step") :]
    assert "01_broken failed" in err


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


def test_rounds_are_interleaved_and_every_run_is_kept(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(), _01_b=whole())
    code, out, err = run_tour(tmp_path, capsys, "--rounds", "3")
    assert code == 0, err
    assert order(tmp_path) == ["00_a", "01_b"] * 3
    for step in ("00_a", "01_b"):
        assert_rounds(tmp_path / "logs" / step, [101.0, 102.0, 103.0])
    names = [path.name for path in (tmp_path / "logs").iterdir() if not path.name.endswith(".lock")]
    assert sorted(names) == ["00_a", "01_b"]
    assert f"round 2/3  {'01_b':<26}     102.0 images/s" in out
    assert "~1.00x (1.00-1.00)" in out


def test_a_step_without_effect_on_this_device_runs_in_the_first_round_only(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(), _01_b=whole("needs = 'a GPU'"), _02_c=whole())
    code, out, err = run_tour(tmp_path, capsys, "--rounds", "3")
    assert code == 0, err
    assert order(tmp_path) == ["00_a", "01_b", "02_c", "00_a", "02_c", "00_a", "02_c"]
    assert_rounds(tmp_path / "logs" / "01_b", [101.0])
    assert_rounds(tmp_path / "logs" / "02_c", [101.0, 102.0, 103.0])
    assert "needs a GPU" in out
    assert "over 3 rounds, in each of which both steps ran" in " ".join(out.split())


def test_a_trace_without_kernels_is_replaced_by_that_of_a_further_round(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(f"notes = [{record.NO_KERNELS!r}]"))  # of its first run
    code, _, err = run_tour(tmp_path, capsys, "--rounds", "3")
    assert code == 0, err
    folder = tmp_path / "logs" / "00_a"
    assert_rounds(folder, [101.0, 102.0, 103.0])
    assert record.read_result(folder / "result.json").notes == []
    [trace] = folder.glob("*.pt.trace.json.gz")
    assert gzip.decompress(trace.read_bytes()) == b"{}  "  # the second run's


def test_one_round_keeps_no_runs_and_removes_those_of_an_earlier_tour(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole())
    run_tour(tmp_path, capsys, "--rounds", "2")
    assert run_tour(tmp_path, capsys)[0] == 0
    folder = tmp_path / "logs" / "00_a"
    assert record.read_result(folder / "result.json").samples_per_second.windows == [103.0] * 5
    assert sorted(path.suffix for path in folder.iterdir() if "tfevents" not in path.name) == [".gz", ".json"]


def test_a_tour_of_fewer_rounds_leaves_none_of_an_earlier_one(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole())
    run_tour(tmp_path, capsys, "--rounds", "3")
    run_tour(tmp_path, capsys, "--rounds", "2")
    assert_rounds(tmp_path / "logs" / "00_a", [104.0, 105.0])


def test_earlier_rounds_of_a_step_that_now_fails_are_not_paired_with_new_ones(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(), _01_b=whole("if count > 2: sys.exit('no')"))
    run_tour(tmp_path, capsys, "--rounds", "2")
    code, out, err = run_tour(tmp_path, capsys, "--rounds", "2")
    assert code == 1
    assert err.count("tour: 01_b failed: no") == 1
    assert "01_b" not in out[out.index("vs step") :]
    assert_rounds(tmp_path / "logs" / "00_a", [103.0, 104.0])
    assert not (tmp_path / "logs" / "01_b" / "runs").exists()
    assert (tmp_path / "logs" / "01_b" / "result.json").exists()


def test_a_step_that_fails_in_one_round_is_tried_again_in_the_next(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(), _01_b=whole("if count == 2: print('01_b: not now'); sys.exit(2)"))
    code, out, err = run_tour(tmp_path, capsys, "--rounds", "3")
    assert code == 2
    assert "tour: 01_b failed: not now" in err
    assert medians(tmp_path / "logs" / "01_b") == {1: 101.0, 3: 103.0}
    assert "01_b" in out[out.index("vs step") :]


def test_a_step_that_cannot_be_run_here_is_tried_in_the_first_round_only(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole(), _01_b=whole("print('01_b: no compiler'); sys.exit(2)"))
    code, out, err = run_tour(tmp_path, capsys, "--rounds", "3")
    assert code == 2
    assert order(tmp_path) == ["00_a", "01_b", "00_a", "00_a"]
    assert err.count("tour: 01_b not run: no compiler") == 1
    assert "01_b was not run: no compiler." in out


@pytest.fixture
def hears_ctrl_c():
    """SIGINT raises KeyboardInterrupt, also in tests that a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_tour_stopped_in_round_3_leaves_two_whole_rounds(fake_steps, whole, hears_ctrl_c, tmp_path, capsys):
    stop = "import os, signal, time\nif count == 3: os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    fake_steps(_00_a=whole(), _01_b=whole(stop))
    code, _, err = run_tour(tmp_path, capsys, "--rounds", "5")
    assert code == 130, err
    assert_rounds(tmp_path / "logs" / "00_a", [101.0, 102.0, 103.0])
    assert_rounds(tmp_path / "logs" / "01_b", [101.0, 102.0])
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path / "logs")])
    assert ended.value.code == 0
    assert "2 rounds" in " ".join(capsys.readouterr().out.split())
    assert not list((tmp_path / "logs").glob(".*.partial"))


def test_a_step_that_somebody_else_runs_is_not_overwritten_by_a_tour_of_rounds(fake_steps, whole, tmp_path, capsys):
    fake_steps(_00_a=whole())
    with own_folder(tmp_path / "logs", "00_a"):
        code, _, err = run_tour(tmp_path, capsys, "--rounds", "2")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "another run of 00_a" in err


def test_progress_of_a_step_reaches_the_one_who_started_it(fake_steps):
    body = "from walkthrough.results import progress\n"
    body += "progress.report('warm-up', 1, 3)\nprogress.report('w', 2, 3, 12.5)\nprint('{hi')"
    [file] = fake_steps(_00_talks=body)
    events, lines = [], []
    outcome = isolated.run(file, ["--logdir", "x"], events.append, lines.append)
    assert outcome.code == 0
    assert [(event["phase"], event["done"], event["of"], event["samples_per_second"]) for event in events] == [
        ("warm-up", 1, 3, None), ("w", 2, 3, 12.5)
    ]  # fmt: skip
    assert lines == ["{hi"]


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


def test_the_steps_are_the_folder():
    assert [path.stem for path in tour.step_files()] == NAMES
    code = "from walkthrough.compare.tour import step_files; print(len(step_files()))"
    assert run_program("-c", code, cwd="/").stdout.strip() == str(len(NAMES))


SCRIPTS = [Path("steps/00_a.py"), Path("steps/01_b.py")]


def runs_of(schedule, needs=None):
    """Go through a schedule; returns the order of the runs. needs: {step: what its change needs and is not here}."""
    order = []
    for number, script in schedule:
        order.append((number, script.stem))
        schedule.add(number, make_result(script.stem, needs=(needs or {}).get(script.stem)))
    return order


def test_runs_are_interleaved():
    assert runs_of(tour.Schedule(SCRIPTS, rounds=3)) == [
        (1, "00_a"), (1, "01_b"), (2, "00_a"), (2, "01_b"), (3, "00_a"), (3, "01_b")
    ]  # fmt: skip


def test_runs_that_are_there_already_are_not_made_again():
    schedule = tour.Schedule(SCRIPTS, rounds=2)
    schedule.add(1, make_result("00_a"))
    schedule.add(2, make_result("01_b"))
    assert runs_of(schedule) == [(1, "01_b"), (2, "00_a")]


def test_a_step_without_effect_on_this_device_runs_once():
    schedule = tour.Schedule([*SCRIPTS, Path("steps/02_c.py")], rounds=3)
    order = runs_of(schedule, needs={"02_c": "a GPU"})
    assert [step for _, step in order] == ["00_a", "01_b", "02_c", "00_a", "01_b", "00_a", "01_b"]
    assert schedule.whole_rounds == 3


def test_a_step_without_effect_runs_again_until_its_trace_holds_kernels():
    schedule = tour.Schedule(SCRIPTS, rounds=4)
    schedule.add(1, make_result("01_b", needs="a second process", notes=[record.NO_KERNELS]))
    assert schedule.missing(2) == SCRIPTS
    schedule.add(2, make_result("01_b", needs="a second process"))
    assert schedule.missing(3) == SCRIPTS[:1]


def test_what_cannot_be_run_here_is_not_tried_again_and_what_fails_otherwise_is():
    schedule, order = tour.Schedule([*SCRIPTS, Path("steps/02_c.py")], rounds=2), []
    for number, script in schedule:
        order.append((number, script.stem))
        if script.stem == "00_a":
            schedule.add(number, make_result("00_a"))
            continue
        words = schedule.add_failure(script.stem, Outcome(2 if script.stem == "01_b" else 1, "because"))
        assert words == ("not run" if script.stem == "01_b" else "failed")
    assert order == [(1, "00_a"), (1, "01_b"), (1, "02_c"), (2, "00_a"), (2, "02_c")]
    assert schedule.not_run == {"01_b": "because"}


def test_input_that_the_first_step_refuses_ends_the_command():
    with pytest.raises(InputError, match="no such model"):
        tour.Schedule(SCRIPTS, rounds=1).add_failure("00_a", Outcome(2, "no such model"))


def test_a_step_that_ran_once_and_then_refuses_has_failed_and_is_tried_again():
    schedule = tour.Schedule(SCRIPTS, rounds=2)
    schedule.add(1, make_result("00_a"))
    assert schedule.add_failure("00_a", Outcome(2, "out of memory")) == "failed"
    assert not schedule.not_run


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
    [(None, 80, 6), (3, 80, 2), (3, 60, 3), (3, 0.1, 6), (1, 80, 1)],
    ids=["no limit", "the third would end late", "just in time", "all fit", "one that is too long is made"],
)
def test_no_run_begins_that_would_end_late_by_the_longest_so_far(clock, minutes, seconds, made, capsys):
    schedule, order = tour.Schedule(SCRIPTS, rounds=3, minutes=minutes), []
    for number, script in schedule:
        order.append((number, script.stem))
        clock(seconds)
        schedule.add(number, make_result(script.stem))
    assert len(order) == made
    assert ("next is" in capsys.readouterr().out) == (made < 6)


def test_the_longest_run_counts_whatever_its_step(clock):
    schedule, order = tour.Schedule(SCRIPTS, rounds=2, minutes=3), []
    for number, script in schedule:
        order.append((number, script.stem))
        clock(100 if len(order) == 1 else 1)
        schedule.add(number, make_result(script.stem))
    assert order == [(1, "00_a")]


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "ten", "", "10081"])
def test_minutes_that_are_none_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        main(["tour", "--minutes", text])
    assert "is not a number of minutes above 0, at most 10080" in capsys.readouterr().err


def test_a_round_is_not_kept_beside_no_trace(tmp_path):
    with pytest.raises(InputError, match="holds no trace"):
        tour.keep(tmp_path, 2, make_result())
