"""Recording a ladder: interleaved, resumable, and only runs that belong together."""

import gzip
import itertools
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, make_result, recorded, write_run

from walkthrough.cli import main
from walkthrough.compare import isolated, tour
from walkthrough.records import record as recording
from walkthrough.results import environment as machine
from walkthrough.results import events
from walkthrough.results import result as record

NAMES = ["00_baseline", "01_amp", "02_bigger_batch"]


@pytest.fixture
def refusing():
    """{step: reason} of those among `fake_runs` that cannot be run here."""
    return {}


@pytest.fixture
def lacking():
    """The numbers of those among `fake_runs` whose trace holds no kernels, counted from 1."""
    return set()


@pytest.fixture
def needing():
    """{step: what its change needs and this device lacks} of those among `fake_runs` that have no effect here."""
    return {}


@pytest.fixture
def differing():
    """{step: fields of its result that are another's} among `fake_runs`."""
    return {}


@pytest.fixture
def fake_runs(monkeypatch, tmp_path, refusing, lacking, needing, differing):
    """In place of real steps: each run writes a hand-made result. Returns the log of runs and the steps to fail."""
    log, failing = [], set()

    def run(file, words, on_progress, on_line):
        log.append(file.stem)
        run.words = words
        if file.stem in failing:
            return isolated.Outcome(1, "it broke")
        if file.stem in refusing:
            return isolated.Outcome(2, refusing[file.stem])
        speed = 100.0 + len(log)
        notes = [record.NO_KERNELS] if len(log) in lacking else []
        trace, needs = f"secret-host.{len(log)}.pt.trace.json.gz", needing.get(file.stem)
        own = {
            "device": machine.cpu_name(),
            "device_type": "cpu",
            "environment": machine.current_environment("2.11.0", None),
        }
        own |= {"trace": trace, "notes": notes, "needs": needs, **differing.get(file.stem, {})}
        result = make_result(file.stem, windows=[speed] * 5, **own)
        folder = write_run(words[words.index("--logdir") + 1], result)
        (folder / f"events.out.tfevents.17.secret-host.{len(log)}").write_bytes(b"scalars")
        args = {"kernel_file": "/tmp/torchinductor_secret/ab/c.py", "stream": 7}
        kernel = {"ph": "X", "cat": "kernel", "name": "triton_poi_fused_0", "args": args}
        kernels = [] if notes else [kernel]
        trace = {"host_name": "secret-host", "traceName": "/home/secret/x.json", "traceEvents": kernels}
        (folder / f"secret-host.{len(log)}.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
        return isolated.Outcome(0, "")

    monkeypatch.setattr(isolated, "run", run)
    monkeypatch.setattr(tour, "step_files", lambda: [ROOT / "steps" / f"{name}.py" for name in NAMES])
    monkeypatch.setattr(isolated, "answer", lambda *_: {"gpu": None, "torch": "2.11.0", "cuda": None})
    monkeypatch.setattr(machine, "git_revision", lambda: "0123456789ab")
    monkeypatch.setattr(machine, "cpu_name", lambda: "Test CPU (R) 2.0")
    monkeypatch.setattr(machine, "cpu_bf16_hardware", lambda: None)
    return log, failing


def record_runs(tmp_path, *options):
    with pytest.raises(SystemExit) as ended:
        main(["record", "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path), *options])
    return ended.value.code


FOLDER = "test-cpu-2-0"


def test_runs_are_interleaved_and_every_window_is_kept(fake_runs, tmp_path):
    log, _ = fake_runs
    assert record_runs(tmp_path, "--runs", "3") == 0
    assert log == NAMES * 3
    folder = tmp_path / FOLDER / "01_amp"
    assert [record.read_result(folder / "runs" / f"{n}.json").samples_per_second.median for n in (1, 2, 3)] == [
        102.0, 105.0, 108.0
    ]  # fmt: skip
    whole = record.read_result(folder / "result.json")
    assert whole.samples_per_second == record.Throughput(105.0, [102.0] * 5 + [105.0] * 5 + [108.0] * 5)
    assert (folder / whole.trace).exists()
    assert not (tmp_path / FOLDER / ".running").exists()


def test_a_step_without_effect_on_this_device_is_recorded_once(fake_runs, needing, tmp_path, capsys):
    log, _ = fake_runs
    needing["01_amp"] = "bf16 units"
    assert record_runs(tmp_path, "--runs", "3") == 0
    assert log == [*NAMES, "00_baseline", "02_bigger_batch", "00_baseline", "02_bigger_batch"]
    folder = tmp_path / FOLDER
    [line] = [line for line in capsys.readouterr().out.splitlines() if "The table: " in line]
    assert "holds 3 run(s) of every step, 1 of 01_amp: without effect on this device. The table:" in line
    assert record.read_result(folder / "01_amp" / "result.json").needs == "bf16 units"
    assert recording.interleaved(folder)
    log.clear()
    assert record_runs(tmp_path, "--runs", "4") == 0
    assert log == ["00_baseline", "02_bigger_batch"]


def test_one_trace_per_step_is_kept_without_host_name_or_path(fake_runs, tmp_path):
    record_runs(tmp_path, "--runs", "2")
    for path in (tmp_path / FOLDER).rglob("*"):
        assert "secret" not in path.name
        if path.suffix == ".gz":
            text = gzip.decompress(path.read_bytes())
            assert b"secret" not in text
            kept = {"ph": "X", "cat": "kernel", "name": "triton_poi_fused_0", "args": {"stream": 7}}
            assert json.loads(text)["traceEvents"] == [kept]
        elif path.is_file():
            assert "secret" not in path.read_text()
    assert len(list((tmp_path / FOLDER).rglob("*.pt.trace.json.gz"))) == len(NAMES)


def test_of_a_note_what_is_not_of_this_project_is_left_out(fake_runs, tmp_path, monkeypatch):
    run = isolated.run

    def with_a_note(file, words, on_progress, on_line):
        outcome = run(file, words, on_progress, on_line)
        path = next(Path(words[words.index("--logdir") + 1]).glob(f"{file.stem}/result.json"))
        record.write_result(path, replace(record.read_result(path), notes=["no device on ada-thinkpad"]))
        return outcome

    monkeypatch.setattr(isolated, "run", with_a_note)
    assert record_runs(tmp_path, "--runs", "1") == 0
    assert record.read_result(tmp_path / FOLDER / "01_amp" / "result.json").notes == ["no device on …"]


def test_a_machine_whose_name_a_record_may_not_hold_is_refused_before_anything_runs(
    fake_runs, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(machine, "cpu_name", lambda: "ada's CPU")
    assert record_runs(tmp_path) == 2
    assert "a record may not hold \"ada's CPU\" as 'device', which is not a device" in capsys.readouterr().err
    assert fake_runs[0] == []


def test_the_first_runs_scalars_are_kept_beside_its_trace(fake_runs, tmp_path):
    record_runs(tmp_path, "--runs", "2")
    folder = tmp_path / FOLDER / "01_amp"
    [events] = folder.glob("events.out.tfevents.*")
    assert (events.name, events.read_bytes()) == ("events.out.tfevents.17.01_amp.2", b"scalars")
    assert (folder / "01_amp.2.pt.trace.json.gz").exists()


def test_a_trace_without_kernels_is_replaced_by_that_of_a_further_round(fake_runs, lacking, tmp_path):
    lacking.update({2, 5, 7})  # rounds 1 and 2 of 01_amp, and round 3 of 00_baseline
    folder = tmp_path / FOLDER / "01_amp"
    for runs, kernels, notes in ((1, 0, [record.NO_KERNELS]), (2, 0, [record.NO_KERNELS]), (3, 1, []), (4, 1, [])):
        assert record_runs(tmp_path, "--runs", str(runs)) == 0
        trace = json.loads(gzip.decompress((folder / "01_amp.2.pt.trace.json.gz").read_bytes()))
        assert (len(trace["traceEvents"]), trace["traceName"]) == (kernels, "01_amp.2.pt.trace.json")
        assert record.read_result(folder / "result.json").notes == notes
        assert {run.trace for run in record.read_runs(folder)} == {"01_amp.2.pt.trace.json.gz"}
        assert len(list(folder.iterdir())) == 4  # with its events, the sum and the runs
    baseline = record.read_result(tmp_path / FOLDER / "00_baseline" / "result.json")
    assert baseline.notes == []  # its trace is the first run's


def test_a_record_stopped_before_the_run_of_its_new_trace_was_kept_goes_on(fake_runs, lacking, tmp_path):
    lacking.add(2)
    assert record_runs(tmp_path, "--runs", "2") == 0
    folder = tmp_path / FOLDER / "01_amp"
    (folder / "runs" / "2.json").unlink()
    (folder / "events.out.tfevents.16.01_amp.2").touch()  # beside the other
    assert record_runs(tmp_path, "--runs", "2") == 0
    assert len(list(folder.glob("events.*"))) == 1
    assert record.read_result(folder / "result.json").notes == []


def test_a_record_has_a_page_with_its_mean_spread_and_number_of_runs(fake_runs, tmp_path, capsys):
    record_runs(tmp_path, "--runs", "3")
    text = (tmp_path / FOLDER / "README.md").read_text()
    assert "on Test CPU (R) 2.0" in text
    [row] = [line for line in text.splitlines() if line.startswith("| `01_amp`")]
    cells = [cell.strip() for cell in row.split("|")]
    assert "105.0" in cells
    assert "102.0 to 108.0" in cells
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / FOLDER)])
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("01_amp")]
    assert "105.0" in row


@pytest.fixture
def valid_runs(monkeypatch, tmp_path, valid_record):
    """In place of real steps: each run writes what `--check` accepts. Returns the folder of the record."""
    shared = recording.read_header(valid_record / recording.FILE)
    folder = tmp_path / "R" / "test-gpu"

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
    for path in folder.rglob("*"):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".gz":
            gzip.decompress(path.read_bytes())
        elif path.suffix == ".json":
            json.loads(path.read_text())


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_record_that_is_cut_at_any_moment_is_whole_and_goes_on(valid_runs, command, tmp_path, number):
    def record_cut(calls):
        """Record in a process that gets the signal before its change of that number to files under a final name."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = iter(range(calls))

        def cut(function):
            def called(path, *to, **options):
                final = str(to[0] if to else path)
                if not final.endswith(".partial") and os.path.exists(path) and next(left, None) is None:
                    os.kill(os.getpid(), number)
                return function(path, *to, **options)

            return called

        os.replace, os.unlink = cut(os.replace), cut(os.unlink)
        os._exit(record_runs(tmp_path / "R", "--runs", "2"))

    for calls in itertools.count():
        shutil.rmtree(tmp_path / "R", ignore_errors=True)
        if record_cut(calls) == 0:
            break
        assert_whole(valid_runs)
        assert record_runs(tmp_path / "R", "--runs", "2") == 0
        code, _, err = command("--check", valid_runs)
        assert (code, err) == (0, [])
        assert not (valid_runs / ".running").exists()
    assert calls > 15


def folder_of(device, *words, instructions=None):
    settings = recording.Settings(words=[*words], seed=0, quick=False, device=device, instructions=instructions)
    return recording.folder_name(settings)


def test_another_model_is_recorded_beside_the_courses_own():
    assert folder_of("NVIDIA H200", "--seed", "1") == "nvidia-h200"
    assert folder_of("NVIDIA H200", "--model", "resnet50") == "nvidia-h200-resnet50"
    assert folder_of("AMD EPYC", "--model=mobilenet_v2") == "amd-epyc-mobilenet-v2"


def test_cpus_that_share_a_name_and_differ_in_instructions_have_a_record_each(fake_runs, tmp_path, monkeypatch, capsys):
    assert folder_of("AMD EPYC", instructions="AVX512-BF16") == "amd-epyc-avx512-bf16"
    assert record_runs(tmp_path, "--runs", "1") == 0
    monkeypatch.setattr(machine, "cpu_bf16_hardware", lambda: "AMX")
    assert record_runs(tmp_path, "--runs", "1") == 0
    settings = [
        json.loads((tmp_path / name / "record.json").read_text())["settings"] for name in (FOLDER, FOLDER + "-amx")
    ]
    assert [setting.get("instructions") for setting in settings] == [None, "AMX"]
    assert settings[0] | {"instructions": "AMX"} == settings[1]


def test_the_options_of_a_record_are_those_of_its_runs(fake_runs, tmp_path):
    assert record_runs(tmp_path, "--runs", "1", "--precision", "fp32", "--batch-size", "64") == 0
    words = dict(zip(isolated.run.words[::2], isolated.run.words[1::2], strict=True))
    assert words.pop("--logdir") == str(tmp_path / FOLDER / ".running")
    assert words == {"--device": "cpu", "--data": str(tmp_path), "--precision": "fp32", "--batch-size": "64"}
    settings = recording.read_header(tmp_path / FOLDER / "record.json").settings
    assert settings.words == ["--precision", "fp32", "--batch-size", "64"]  # a folder is nobody else's business
    assert ", --precision fp32. " in (tmp_path / FOLDER / "README.md").read_text()


def test_a_record_with_few_minutes_ends_in_time_and_the_same_command_goes_on(fake_runs, tmp_path, capsys, monkeypatch):
    log, _ = fake_runs
    monkeypatch.setattr(tour, "monotonic", lambda: 60.0 * len(log))  # each run takes a minute
    words = "--runs", "2", "--minutes", "2.5"
    for _ in range(3):
        assert record_runs(tmp_path, *words) == 0
    assert log == NAMES * 2
    out = capsys.readouterr().out
    assert "--minutes 2.5: next is round 1/2  02_bigger_batch" in out
    assert f"{tmp_path / FOLDER} holds 2 run(s) of every step" in out


def test_input_that_no_step_can_use_ends_the_command_with_its_line(fake_runs, refusing, tmp_path, capsys):
    refusing["00_baseline"] = "no torchvision classifier called resnet0: see --help"
    assert record_runs(tmp_path, "--model", "resnet0") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("no torchvision classifier called resnet0: see --help")
    assert fake_runs[0] == ["00_baseline"]
    assert not (tmp_path / FOLDER / "record.json").exists()


def test_stacks_are_not_recorded(fake_runs, tmp_path, capsys):
    assert record_runs(tmp_path, "--stacks") == 2
    assert "--stacks" in capsys.readouterr().err
    assert fake_runs[0] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "Other"}, "device is 'Other', in record.json it is 'Test CPU (R) 2.0'"),
        ({"data": "stand-in"}, "data 'stand-in', not 'cifar10'"),
        ({"image_size": 32}, "image size 32, not 224"),
    ],
)
def test_a_run_of_something_else_is_not_kept(fake_runs, differing, tmp_path, capsys, changes, message):
    differing["01_amp"] = changes
    assert record_runs(tmp_path, "--runs", "1") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / FOLDER / "01_amp").exists()


def test_a_trace_that_was_copied_before_its_run_was_kept_is_replaced(fake_runs, tmp_path):
    folder = tmp_path / FOLDER / "00_baseline"
    folder.mkdir(parents=True)
    for name in ("00_baseline.9.pt.trace.json.gz", "events.out.tfevents.9.00_baseline.9"):
        (folder / name).touch()
    assert record_runs(tmp_path, "--runs", "1") == 0
    names = {"runs", "result.json", "00_baseline.1.pt.trace.json.gz", "events.out.tfevents.17.00_baseline.1"}
    assert {path.name for path in folder.iterdir()} == names


def test_an_interrupted_record_goes_on_where_it_stopped(fake_runs, tmp_path):
    log, _ = fake_runs
    record_runs(tmp_path, "--runs", "2")
    (tmp_path / FOLDER / "01_amp" / "runs" / "2.json").unlink()
    log.clear()
    assert record_runs(tmp_path, "--runs", "3") == 0
    assert log == ["01_amp", *NAMES]
    assert len(record.read_result(tmp_path / FOLDER / "01_amp" / "result.json").samples_per_second.windows) == 15


def test_a_record_stopped_between_a_run_and_its_sum_is_summed_up_next_time(fake_runs, tmp_path):
    record_runs(tmp_path, "--runs", "2")
    folder = tmp_path / FOLDER / "01_amp"
    record.write_result(folder / "result.json", record.read_result(folder / "runs" / "1.json"))
    record_runs(tmp_path, "--runs", "2")
    assert len(record.read_result(folder / "result.json").samples_per_second.windows) == 10


def test_runs_that_were_made_after_later_ones_are_not_interleaved(fake_runs, tmp_path, capsys):
    record_runs(tmp_path, "--runs", "2")
    assert recording.interleaved(tmp_path / FOLDER)
    path = tmp_path / FOLDER / "01_amp" / "runs" / "1.json"
    record.write_result(path, replace(record.read_result(path), started="2027-01-01T00:00:00+00:00"))
    assert not recording.interleaved(tmp_path / FOLDER)
    record_runs(tmp_path, "--runs", "2")
    assert "not interleaved" in capsys.readouterr().out


def test_code_that_changes_while_recording_stops_it(fake_runs, tmp_path, capsys, monkeypatch):
    hashes = iter(letter * 64 for letter in "aab")
    monkeypatch.setattr(machine, "code_hash", lambda *_: next(hashes))
    assert record_runs(tmp_path) == 2
    assert "changed while recording" in capsys.readouterr().err


def test_a_trace_that_is_too_large_keeps_its_first_steps_and_the_work_they_launched():
    def step(number):
        at = number * 100
        return [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 100},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": at + 90, "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": f"kernel {number}", "ts": at + 120, "args": {"correlation": number}},
        ]

    events = [{"ph": "M", "name": "process_name", "ts": 999}, *step(1), *step(2), *step(3)]
    kept = [event["name"] for event in recording.first_steps(events, 2)]
    assert sorted(kept) == sorted(
        ["process_name", "ProfilerStep#1", "launch", "kernel 1", "ProfilerStep#2", "launch", "kernel 2"]
    )


def test_a_trace_over_the_limit_loses_steps(fake_runs, tmp_path, monkeypatch, capsys):
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "ts": n,
            "dur": 1,
            "args": {"Input Dims": [list(os.urandom(900))]},
        }
        for n in range(3)
    ]
    monkeypatch.setattr(recording, "LIMIT", 2_500)
    (tmp_path / "in.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": steps}).encode()))
    recording._write_small(tmp_path / "in.json.gz", tmp_path / "out.json.gz")
    assert (tmp_path / "out.json.gz").stat().st_size <= 2_500
    assert "only its first 2 step(s)" in capsys.readouterr().out


def test_a_step_that_fails_is_named_and_tried_again_next_time(fake_runs, tmp_path, capsys):
    log, failing = fake_runs
    failing.add("01_amp")
    assert record_runs(tmp_path, "--runs", "1") == 1
    assert "01_amp" in capsys.readouterr().err
    assert log == NAMES
    failing.clear()
    log.clear()
    assert record_runs(tmp_path, "--runs", "1") == 0
    assert log == ["01_amp"]


def test_a_step_that_cannot_be_run_is_recorded_with_its_reason_until_it_can(fake_runs, refusing, tmp_path, capsys):
    log, _ = fake_runs
    refusing["01_amp"] = "no compiler in /opt/secret/bin: install one"
    assert record_runs(tmp_path, "--runs", "2") == 2
    printed = capsys.readouterr()
    assert "not run: no compiler in /opt/secret/bin" in printed.err
    assert "holds 2 run(s) of every step but 01_amp" in printed.out
    assert log == [*NAMES, "00_baseline", "02_bigger_batch"]  # not tried again by this call
    folder = tmp_path / FOLDER
    assert [path.name for path in (folder / "01_amp").iterdir()] == ["not_run.json"]
    reason = {"step": "01_amp", "reason": "no compiler in … install one"}  # and no folder of this machine
    assert json.loads((folder / "01_amp" / "not_run.json").read_text()) == reason
    assert "- `01_amp` was not run: no compiler in … install one." in (folder / "README.md").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(folder)])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "01_amp was not run: no compiler in … install one." in out
    assert [line.split()[0] for line in out.splitlines() if line[:3] in ("00_", "01_", "02_")][:3] == NAMES
    refusing.clear()
    log.clear()
    assert record_runs(tmp_path, "--runs", "2") == 0
    assert log == ["01_amp", "01_amp"]
    assert not (folder / "01_amp" / "not_run.json").exists()
    assert "not run" not in (folder / "README.md").read_text()


def test_a_step_that_ran_once_and_then_cannot_keeps_its_runs(fake_runs, refusing, tmp_path, capsys):
    record_runs(tmp_path, "--runs", "1")
    refusing["01_amp"] = "out of memory"
    assert record_runs(tmp_path, "--runs", "2") == 2
    assert "failed: out of memory" in capsys.readouterr().err
    folder = tmp_path / FOLDER / "01_amp"
    assert [path.name for path in (folder / "runs").iterdir()] == ["1.json"]
    assert not (folder / "not_run.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "5"], "seed was 0 and is 5"),
        (["--batch-size", "64"], "words was [] and is ['--batch-size', '64']"),
        (["--precision", "fp32"], "words was []"),
        (["--quick"], "quick"),
    ],
)
def test_other_settings_are_not_mixed_into_a_record(fake_runs, tmp_path, capsys, options, message):
    record_runs(tmp_path, "--runs", "1")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert record_runs(tmp_path, "--runs", "2", *options) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_another_device_environment_or_code_is_not_mixed_into_a_record(fake_runs, tmp_path, capsys, monkeypatch):
    record_runs(tmp_path, "--runs", "1")
    path = tmp_path / FOLDER / "record.json"
    value = json.loads(path.read_text())
    for change, message in (
        ({"settings": value["settings"] | {"device": "Other"}}, "device was 'Other'"),
        ({"environment": value["environment"] | {"torch": "1.0"}}, "torch was '1.0'"),
        ({"code": "0" * 64}, "the code of steps/, common/ or walkthrough/ has changed"),
    ):
        path.write_text(json.dumps(value | change))
        assert record_runs(tmp_path, "--runs", "2") == 2
        assert message in capsys.readouterr().err


def test_uncommitted_code_is_not_recorded(fake_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "git_revision", lambda: "0123456789ab-dirty")
    assert record_runs(tmp_path) == 2
    assert "uncommitted" in capsys.readouterr().err
    assert not (tmp_path / FOLDER).exists()


def test_a_machine_without_git_can_record(fake_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "git_revision", lambda: None)
    assert record_runs(tmp_path, "--runs", "1") == 0
    assert re.fullmatch("[0-9a-f]{64}", json.loads((tmp_path / FOLDER / "record.json").read_text())["code"])


def test_two_records_into_one_folder_at_once_are_refused(fake_runs, tmp_path, capsys):
    from walkthrough.results.folder import locked

    with locked(tmp_path / FOLDER / ".record.lock", "no"):
        assert record_runs(tmp_path) == 2
    assert "another `record`" in capsys.readouterr().err


def test_a_broken_record_is_refused(fake_runs, tmp_path, capsys):
    record_runs(tmp_path, "--runs", "1")
    for text in ("{", "[]", "[" * 100_000, '{"schema": 2, "settings": [], "environment": {}, "code": ""}'):
        (tmp_path / FOLDER / "record.json").write_text(text)
        assert record_runs(tmp_path) == 2
        error = capsys.readouterr().err
        assert "record.json is broken" in error
        assert "move its folder away" in error


def test_a_record_without_runs_binds_nobody(fake_runs, tmp_path):
    _, failing = fake_runs
    failing.update(NAMES)
    assert record_runs(tmp_path, "--runs", "1") == 1
    failing.clear()
    assert record_runs(tmp_path, "--runs", "1", "--seed", "3") == 0
    assert json.loads((tmp_path / FOLDER / "record.json").read_text())["settings"]["seed"] == 3


def test_devices_become_folder_names():
    assert recording.slug("NVIDIA H200") == "nvidia-h200"
    assert recording.slug("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz") == "intel-core-i7-8650u-cpu-1-90ghz"
    assert recording.slug("()") == "unknown"


def test_the_code_of_a_recording_is_what_it_runs():
    names = {path.relative_to(ROOT).as_posix() for path in machine.code_files(*recording.CODE)}
    assert {
        "steps/00_baseline.py",
        "common/session.py",
        "common/tracing.py",
        "walkthrough/compare/isolated.py",
    } <= names
    assert not [name for name in names if re.search("doctor|/(view|figure)s?.py|/(course|board|explain|trace)/", name)]
