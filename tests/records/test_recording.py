"""Recording a ladder: interleaved, resumable, and only runs that belong together."""

import gzip
import itertools
import json
import os
import random
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from support import ROOT, assert_refused, die_before, make_result, recorded, write_run

from walkthrough.compare import isolated, tour
from walkthrough.records import record as recording
from walkthrough.results import environment as machine
from walkthrough.results import events
from walkthrough.results import result as record
from walkthrough.results.folder import locked

NAMES = ["00_baseline", "01_amp", "02_bigger_batch"]
FOLDER = "test-cpu-2-0"


@pytest.fixture
def runs(monkeypatch):
    """In place of real steps: each run writes a hand-made result, at 101, 102 … images/s.

    log: the steps as they ran. words: the last one's options. failing: {step: (exit code, why)}. lacking: numbers of
    runs, from 1, whose trace holds no kernels. own: {step: fields of its result}.
    """
    state = SimpleNamespace(log=[], words=[], failing={}, lacking=set(), own={})

    def run(file, words, on_progress, on_line):
        state.log.append(file.stem)
        state.words, number = words, len(state.log)
        if file.stem in state.failing:
            return isolated.Outcome(*state.failing[file.stem])
        notes = [record.NO_KERNELS] if number in state.lacking else []
        trace = f"secret-host.{number}.pt.trace.json.gz"
        own = {"device": machine.cpu_name(), "environment": machine.current_environment("2.11.0", None)}
        own |= {"device_type": "cpu", "trace": trace, "notes": notes} | state.own.get(file.stem, {})
        result = make_result(file.stem, windows=[100.0 + number] * 5, **own)
        folder = write_run(words[words.index("--logdir") + 1], result)
        (folder / f"events.out.tfevents.17.secret-host.{number}").write_bytes(b"scalars")
        args = {"kernel_file": "/tmp/torchinductor_secret/ab/c.py", "stream": 7}
        kernels = [] if notes else [{"ph": "X", "cat": "kernel", "name": "triton_poi_fused_0", "args": args}]
        recorded.write_trace(
            folder / trace, {"host_name": "secret-host", "traceName": "/home/secret/x.json", "traceEvents": kernels}
        )
        return isolated.Outcome(0, "")

    monkeypatch.setattr(isolated, "run", run)
    monkeypatch.setattr(tour, "step_files", lambda: [ROOT / "steps" / f"{name}.py" for name in NAMES])
    monkeypatch.setattr(isolated, "answer", lambda *_: {"gpu": None, "torch": "2.11.0", "cuda": None})
    monkeypatch.setattr(machine, "git_revision", lambda: "0123456789ab")
    monkeypatch.setattr(machine, "cpu_name", lambda: "Test CPU (R) 2.0")
    monkeypatch.setattr(machine, "cpu_bf16_hardware", lambda: None)
    return state


@pytest.fixture
def record_runs(run_command, tmp_path):
    """record_runs(*options): record into `tmp_path`; the finished command."""
    return partial(run_command, "record", "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path)


@pytest.fixture
def folder(tmp_path):
    """Where the record of `runs` is."""
    return tmp_path / FOLDER


def result_of(folder, step="01_amp"):
    return record.read_result(folder / step / "result.json")


def trace_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_runs_are_interleaved_and_every_window_is_kept_and_shown(runs, record_runs, folder):
    assert record_runs("--runs", "3").returncode == 0
    assert runs.log == NAMES * 3
    medians = [run.samples_per_second.median for run in record.read_runs(folder / "01_amp")]
    assert medians == [102.0, 105.0, 108.0]
    whole = result_of(folder)
    assert whole.samples_per_second == record.Throughput(105.0, [102.0] * 5 + [105.0] * 5 + [108.0] * 5)
    [row] = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| `01_amp`")]
    assert {"105.0", "102.0 to 108.0"} <= {cell.strip() for cell in row.split("|")}


def test_of_each_step_the_first_run_s_trace_and_scalars_are_kept_without_host_name_or_path(runs, record_runs, folder):
    runs.own["01_amp"] = {"notes": ["no device on ada-thinkpad"]}
    record_runs("--runs", "2")
    assert result_of(folder).notes == ["no device on …"]
    for number, step in enumerate(NAMES, start=1):
        trace, events = f"{step}.{number}.pt.trace.json.gz", f"events.out.tfevents.17.{step}.{number}"
        assert {path.name for path in (folder / step).iterdir()} == {"runs", "result.json", trace, events}
        assert (folder / step / events).read_bytes() == b"scalars"
        event = {"ph": "X", "cat": "kernel", "name": "triton_poi_fused_0", "args": {"stream": 7}}
        assert trace_of(folder / step / trace) == {"traceName": trace.removesuffix(".gz"), "traceEvents": [event]}
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".gz"]
    assert not [path for path in files if "secret" in path.name or "secret" in path.read_text()]


def test_a_step_without_effect_on_this_device_is_recorded_once_its_trace_holds_kernels(runs, record_runs, folder):
    runs.own["01_amp"], runs.lacking = {"needs": "bf16 units"}, {2}
    record_runs("--runs", "3")
    assert runs.log == [*NAMES, *NAMES, "00_baseline", "02_bigger_batch"]
    assert result_of(folder).needs == "bf16 units"
    assert recording.interleaved(folder)
    runs.log.clear()
    record_runs("--runs", "4")
    assert runs.log == ["00_baseline", "02_bigger_batch"]


def test_a_trace_without_kernels_is_replaced_by_that_of_a_further_round(runs, record_runs, folder):
    runs.lacking |= {2, 5, 7}  # rounds 1 and 2 of 01_amp, and round 3 of 00_baseline
    step = folder / "01_amp"
    for count, kernels, notes in ((1, 0, [record.NO_KERNELS]), (2, 0, [record.NO_KERNELS]), (3, 1, []), (4, 1, [])):
        assert record_runs("--runs", count).returncode == 0
        trace = trace_of(step / "01_amp.2.pt.trace.json.gz")
        assert (len(trace["traceEvents"]), trace["traceName"]) == (kernels, "01_amp.2.pt.trace.json")
        assert result_of(folder).notes == notes
        assert {run.trace for run in record.read_runs(step)} == {"01_amp.2.pt.trace.json.gz"}
        assert len(list(step.iterdir())) == 4  # with its events, the sum and the runs
    assert result_of(folder, "00_baseline").notes == []  # its trace is the first run's


@pytest.fixture
def valid_runs(monkeypatch, tmp_path, valid_record):
    """In place of real steps: each run writes what `--check` accepts. Returns the folder of the record."""
    shared = recording.read_header(valid_record / recording.FILE)
    folder = tmp_path / "test-gpu"

    def run(file, words, on_progress, on_line):
        number = len(record.run_files(folder / file.stem)) + 1
        result = recorded.a_result(file.stem, number)
        own = write_run(folder / ".running", result)
        recorded.write_trace(own / result.trace, recorded.a_trace(result))
        medians = {"median/step_ms": 1.0, "median/images_per_second": result.samples_per_second.median}
        settings = {"precision": "float32", "workers": 0}
        events.write_events(own / "events.out.tfevents.17.host", recorded.POINTS, settings, medians)
        return isolated.Outcome(0, "")

    monkeypatch.setattr(isolated, "run", run)
    monkeypatch.setattr(tour, "step_files", lambda: [ROOT / "steps" / f"{name}.py" for name in recorded.STEPS])
    monkeypatch.setattr(recording, "_header", lambda args: shared)
    monkeypatch.setattr(machine, "code_hash", lambda *_: shared.code)
    return folder


def assert_whole(folder):
    """Every file under a final name can be read."""
    for path in folder.rglob("[!.]*.gz"):
        gzip.decompress(path.read_bytes())
    for path in folder.rglob("[!.]*.json"):
        json.loads(path.read_text())


@pytest.mark.long
def test_a_record_that_is_killed_at_any_moment_is_whole_and_goes_on(valid_runs, record_runs, command):
    def record_cut(calls):
        """Record in a process that is killed before its change of that number to files under a final name."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        die_before(calls, lambda path, to: not str(to).endswith(".partial") and os.path.exists(path))
        os._exit(record_runs("--runs", "2").returncode)

    for calls in itertools.count():
        shutil.rmtree(valid_runs, ignore_errors=True)
        if record_cut(calls) == 0:
            break
        assert_whole(valid_runs)
        assert record_runs("--runs", "2").returncode == 0
        code, _, err = command("--check", valid_runs)
        assert (code, err) == (0, [])
        assert not (valid_runs / ".running").exists()
    assert calls > 15


def test_the_options_of_a_record_are_those_of_its_runs(runs, record_runs, folder, tmp_path):
    assert record_runs("--runs", "1", "--precision", "fp32", "--batch-size", "64", "--download").returncode == 0
    runs.words.remove("--download")
    words = dict(zip(runs.words[::2], runs.words[1::2], strict=True))
    assert words == {
        "--logdir": str(folder / ".running"), "--device": "cpu", "--data": str(tmp_path), "--precision": "fp32",
        "--batch-size": "64",
    }  # fmt: skip
    settings = recording.read_header(folder / "record.json").settings
    assert settings.words == ["--precision", "fp32", "--batch-size", "64"]  # a folder is nobody else's business
    assert ", --precision fp32. " in (folder / "README.md").read_text()


def test_a_record_with_few_minutes_ends_in_time_and_the_same_command_goes_on(runs, record_runs, monkeypatch):
    monkeypatch.setattr(tour, "monotonic", lambda: 60.0 * len(runs.log))  # each run takes a minute
    outputs = [record_runs("--runs", "2", "--minutes", "2.5").stdout for _ in range(3)]
    assert runs.log == NAMES * 2
    assert "next is round 1/2  02_bigger_batch" in outputs[0]


@pytest.mark.parametrize(
    ("name", "value", "words", "message"),
    [
        ("cpu_name", "ada's CPU", [], "a record may not hold \"ada's CPU\" as 'device', which is not a device"),
        ("git_revision", "0123456789ab-dirty", [], "uncommitted"),
        ("git_revision", "0123456789ab", ["--stacks"], "--stacks"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_anything_runs(
    runs, record_runs, folder, monkeypatch, name, value, words, message
):
    monkeypatch.setattr(machine, name, lambda: value)
    assert_refused(record_runs(*words), message)
    assert runs.log == []
    assert not folder.exists()


@pytest.mark.parametrize("changes", [{"device": "Other"}, {"data": "stand-in"}])
def test_a_run_of_something_else_is_not_kept(runs, record_runs, folder, changes):
    runs.own["01_amp"] = changes
    done = record_runs("--runs", "1")
    assert done.returncode == 2
    assert all(value in done.stderr for value in changes.values())
    assert not (folder / "01_amp").exists()


def test_code_that_changes_while_recording_stops_it(runs, record_runs, monkeypatch):
    hashes = iter(letter * 64 for letter in "aab")
    monkeypatch.setattr(machine, "code_hash", lambda *_: next(hashes))
    assert_refused(record_runs(), "changed while recording")


def test_of_a_trace_over_the_limit_the_first_steps_are_kept_with_the_work_they_launched(tmp_path, monkeypatch):
    def step(number):
        at, large = number * 100, list(random.Random(number).randbytes(900))
        return [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 100},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 90, "args": {"correlation": at}},
            {"ph": "X", "cat": "kernel", "name": "k()", "ts": at + 120, "args": {"correlation": at, "grid": large}},
        ]

    monkeypatch.setattr(recording, "LIMIT", 3_200)  # a step takes 1,400 bytes
    recorded.write_trace(tmp_path / "in.json.gz", {"traceEvents": [*step(1), *step(2), *step(3)]})
    recording._write_small(tmp_path / "in.json.gz", tmp_path / "out.json.gz")
    assert (tmp_path / "out.json.gz").stat().st_size <= 3_200
    kept = trace_of(tmp_path / "out.json.gz")["traceEvents"]
    assert sorted(kept, key=str) == sorted([*step(1), *step(2)], key=str)


def test_a_step_that_cannot_be_run_is_recorded_with_its_reason_until_it_can(runs, record_runs, folder):
    runs.failing["01_amp"] = 2, "no compiler in /opt/secret/bin: install one"
    assert record_runs("--runs", "2").returncode == 2
    assert runs.log == [*NAMES, "00_baseline", "02_bigger_batch"]  # not tried again by this call
    kept = record.NotRun("01_amp", "no compiler in … install one")  # and no folder of this machine
    assert record.steps_not_run(folder) == [kept]
    assert [path.name for path in (folder / "01_amp").iterdir()] == ["not_run.json"]
    assert "`01_amp` was not run: no compiler in … install one." in (folder / "README.md").read_text()
    runs.failing.clear()
    runs.log.clear()
    assert record_runs("--runs", "2").returncode == 0
    assert runs.log == ["01_amp", "01_amp"]
    assert record.steps_not_run(folder) == []
    assert "not run" not in (folder / "README.md").read_text()


def test_a_step_that_ran_once_and_then_cannot_keeps_its_runs(runs, record_runs, folder):
    record_runs("--runs", "1")
    runs.failing["01_amp"] = 2, "out of memory"
    done = record_runs("--runs", "2")
    assert (done.returncode, "failed: out of memory" in done.stderr) == (2, True)
    assert [path.name for path in (folder / "01_amp" / "runs").iterdir()] == ["1.json"]
    assert record.steps_not_run(folder) == []


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        (["--seed", "5"], {}, "seed was 0 and is 5"),
        ([], {"environment": {"torch": "1.0"}}, "torch was '1.0'"),
        ([], {"code": "0" * 64}, "the code of steps/, common/ or walkthrough/ has changed"),
    ],
)
def test_other_settings_versions_or_code_are_not_mixed_into_a_record(
    runs, record_runs, folder, words, changes, message
):
    record_runs("--runs", "1")
    value = record.read_json(folder / "record.json")
    value["environment"] |= changes.pop("environment", {})
    record.write_json(folder / "record.json", value | changes)
    before = recorded.tree(folder)
    assert_refused(record_runs("--runs", "2", *words), message)
    assert recorded.tree(folder) == before


def test_two_records_into_one_folder_at_once_are_refused(runs, record_runs, folder):
    with locked(folder / ".record.lock", "no"):
        assert_refused(record_runs(), "another `record`")
