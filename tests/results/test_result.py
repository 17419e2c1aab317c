"""Results written whole, and read back with care."""

import json
import os

import pytest
from support import make_result, write_run

from walkthrough.results import result as record
from walkthrough.results.errors import InputError


def test_a_result_reads_back_as_it_was_written(tmp_path):
    result = make_result(notes=["Größe ½"], peak_memory_bytes=record.PeakMemory(5, None))
    assert record.read_result(write_run(tmp_path, result) / "result.json") == result
    written = json.loads((tmp_path / "00_baseline" / "result.json").read_text())
    assert written["tokens_per_second"] is None and not {"needs", "gpu_clocks"} & written.keys()
    clocks = record.GpuClocks(0, 1.0, 0.0, None, None, None, 60.0, ["power limit"])
    on_gpu = make_result(needs="a GPU", gpu_clocks=clocks, windows=[1.0])
    (tmp_path / "link").symlink_to(write_run(tmp_path, on_gpu) / "result.json")  # as people make them
    assert record.read_result(tmp_path / "link") == on_gpu


def without(name):
    value = make_result().as_json()
    del value[name]
    return json.dumps(value)


def with_(**changes):
    """A result's text, with these changes of its fields and of the objects in them."""
    value = make_result().as_json()
    for name, change in changes.items():
        value[name] = value[name] | change if isinstance(change, dict) else change
    return json.dumps(value)


LIMITS = {  # field: what it may be at least and at most, and what is just beyond
    "batch_bytes": (0, 2**53, -1, 2**53 + 1),
    "world_size": (1, 2**53, 0, 2**53 + 1),
    "first_step_seconds": (1e-9, 1e18, 0.99e-9, 1.01e18),
}


@pytest.mark.parametrize("field", LIMITS)
def test_a_number_is_read_within_its_limits_only(tmp_path, field):
    path = tmp_path / "result.json"
    *inside, below, above = LIMITS[field]
    for value in inside:
        path.write_text(with_(**{field: value}))
        assert getattr(record.read_result(path), field) == value
    for value in (below, above):
        path.write_text(with_(**{field: value}))
        with pytest.raises(InputError, match=rf"at `\$\.{field}`"):
            record.read_result(path)


BROKEN = {
    "not JSON": ('{"schema": 1', "not JSON"),
    "not an object": ("[1]", "not an object"),
    "another schema": (with_(schema=3), "schema 3"),
    "a schema of many letters": (with_(schema="x" * 50), f"has schema '{'x' * 38}…; this"),
    "field missing": (without("batch_bytes"), "missing required field `batch_bytes`"),
    "true is no number": (with_(image_size=True), "Expected `int`, got `bool` - at `$.image_size`"),
    "nested": (with_(step_ms={"p90": None}), "Expected `float`, got `null` - at `$.step_ms.p90`"),
    "a time below 0": (with_(step_ms={"p10": -1e-9}), ">= 0.0"),
    "no windows": (with_(samples_per_second={"windows": []}), "length >= 1"),
    "too many windows": (with_(samples_per_second={"windows": [1] * 100_001}), "length <= 100000"),
    "not a number": (with_(step_ms={"p10": float("nan")}), "not JSON"),
    "too many digits": (with_(batch_size=12345).replace("12345", "9" * 5000), "not JSON"),
    "infinite": (with_(batch_size=12345).replace("12345", "1e999"), "not JSON"),
    "zero": (with_(samples_per_second={"windows": [0, 1]}), ">= 1e-09"),
    "far beyond any machine": (with_(samples_per_second={"windows": [1e308, 1]}), "<= 1e+18"),
    "half a pair of letters": (with_(model="\ud800"), "not JSON"),
    **{
        f"a file elsewhere, {field} {name[:14]}": (with_(**{field: name}), f"`$.{field}`")
        for field in ("step", "trace")
        for name in ("../00_baseline", "..", "a\\b", "x" * 256)
    },
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_result_is_refused_by_name_and_reason(tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=r"result\.json") as refused:
        record.read_result(tmp_path / "result.json")
    assert message in str(refused.value)


def test_runs_are_compared_only_where_their_setup_is_the_same():
    setup = make_result().setup
    assert setup.matches(make_result(batch_size=7).setup)
    assert setup.differences(make_result(model="resnet18", image_size=64).setup) == [
        "model 'mobilenet_v2', not 'resnet18'",
        "image size 224, not 64",
    ]
    assert setup.matches(record.Setup(setup.device, None, None, setup.model, 224))  # a study that trains on noise
    cpu = make_result(device_type="cpu").setup
    assert cpu.cores == 16
    assert not cpu.matches(setup)


def test_broken_results_are_skipped_and_named_and_the_others_read(tmp_path):
    good = make_result()
    write_run(tmp_path, good)
    for name in ("01_amp", ".02_bigger_batch.partial", "empty"):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "result.json").write_text("{}")
    results, [problem] = record.read_results(tmp_path)
    assert results == [good]
    assert "01_amp" in problem


@pytest.mark.parametrize(("number", "fix"), [(28, "free some space there"), (13, "choose another folder")])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, number, fix):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "new" / "logs" / "file"
    record.check_writable(path.parent)
    record.write_whole(path, "old")
    assert not path.stat().st_mode & 0o111
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError) as refused:
        record.write_whole(path, "new")
    assert str(refused.value) == f"cannot write {path}: {os.strerror(number)}; {fix}"
    assert [other.name for other in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "old"
    with pytest.raises(InputError, match="cannot write"):
        record.check_writable(path / "below")


def test_the_runs_of_a_step_are_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("10.json", "9.json", "notes.json"):
        (tmp_path / "runs" / name).touch()
    assert [path.name for path in record.run_files(tmp_path)] == ["9.json", "10.json"]


def test_why_a_step_was_not_run_is_read_back_and_a_broken_reason_is_refused_by_name(tmp_path):
    record.write_not_run(tmp_path / "logs" / "01_amp", "01_amp", "no compiler in /home/ann")
    assert record.steps_not_run(tmp_path / "logs") == [record.NotRun("01_amp", "no compiler in …")]
    for text in ("{", "[]", '{"step": "01_amp"}', '{"step": "00", "reason": "x"}', "[" * 100_000):
        (tmp_path / "logs" / "01_amp" / "not_run.json").write_text(text)
        with pytest.raises(InputError, match=r"01_amp/not_run\.json is broken"):
            record.steps_not_run(tmp_path / "logs")


def test_a_step_s_times_and_throughput_are_those_of_its_steps():
    assert record.step_time([float(ms) for ms in range(11)]) == record.StepTime(5.0, 1.0, 9.0)
    assert record.step_time([7.0]) == record.StepTime(7.0, 7.0, 7.0)
    assert make_result(windows=(50.0, 100.0, 110.0)).ms_per_step == 320  # 32 samples at 100 per second
    assert make_result(windows=(50.0, 100.0, 110.0), world_size=2).ms_per_step == 640


def test_what_a_run_trained_on_is_labelled():
    assert make_result(data="stand-in").data_label == "stand-in data (not CIFAR-10)"
    assert make_result(image_size=0).size_label == "text"
