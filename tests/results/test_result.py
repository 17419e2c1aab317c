"""Results written whole, read back with care, and several runs summed up as one."""

import json
import os
from dataclasses import replace

import pytest
from support import make_result, write_run

from walkthrough.compare.merging import merged
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from common.run.gpu_clocks import GpuClocks


def test_a_result_reads_back_as_it_was_written(tmp_path):
    result = make_result(notes=["Größe ½"], peak_memory_bytes=record.PeakMemory(5, None))
    assert record.read_result(write_run(tmp_path, result) / "result.json") == result


def broken(change):
    value = make_result().as_json()
    change(value)
    return json.dumps(value)


def without(name):
    return broken(lambda value: value.pop(name))


def with_(**changes):
    return broken(lambda value: value.update(changes))


def with_speeds(**changes):
    return broken(lambda value: value["samples_per_second"].update(changes))


def with_times(**changes):
    return broken(lambda value: value["step_ms"].update(changes))


BROKEN = {
    "not JSON": ('{"schema": 1', "not JSON"),
    "not an object": ("[1]", "not an object"),
    "another schema": (with_(schema=3), "schema 3"),
    "field missing": (without("batch_bytes"), "missing required field `batch_bytes`"),
    "a field of schema 2 missing": (without("precision"), "precision is missing"),
    "wrong type": (with_(batch_size="many"), "Expected `int`, got `str` - at `$.batch_size`"),
    "true is no number": (with_(image_size=True), "Expected `int`, got `bool` - at `$.image_size`"),
    "nested": (with_times(p90=None), "Expected `float`, got `null` - at `$.step_ms.p90`"),
    "no windows": (with_speeds(windows=[]), "windows"),
    "not a number": (with_times(p10=float("nan")), "not JSON"),
    "too large a number": (with_times(p10=1.5).replace("1.5", "1e999"), "not JSON"),
    "median zero": (with_speeds(median=0), "> 0.0"),
    "zero": (with_speeds(windows=[0, 1]), "> 0.0"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_result_is_refused_by_name_and_reason(tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=r"result\.json") as refused:
        record.read_result(tmp_path / "result.json")
    assert message in str(refused.value)


def schema_1():
    """A result as schema 1 had it."""
    value = make_result().as_json()
    return {name: value[name] for name in value if name not in record.SINCE_SCHEMA_2} | {"schema": 1}


def test_a_result_of_schema_1_is_still_read_and_written_as_it_was(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(schema_1()))
    result = record.read_result(tmp_path / "result.json")
    assert (result.precision, result.workers, result.first_step_seconds) == (None, None, None)
    assert result.as_json() == schema_1()
    assert merged([result, result]).as_json()["schema"] == 1


def test_without_msgspec_what_was_written_here_is_read_all_the_same(tmp_path, monkeypatch):
    result = make_result(notes=["a"], peak_memory_bytes=record.PeakMemory(5, None))
    path = write_run(tmp_path, result) / "result.json"
    monkeypatch.setattr(record, "msgspec", None)
    assert record.read_result(path) == result
    path.write_text('{"schema": 2}')
    with pytest.raises(InputError, match="is broken"):
        record.read_result(path)


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
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "result.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".02_bigger_batch.partial").mkdir()
    (tmp_path / ".02_bigger_batch.partial" / "result.json").write_text("{}")
    results, problems = record.read_results(tmp_path)
    assert results == [good]
    assert len(problems) == 1
    assert "01_amp" in problems[0]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    record.write_whole(tmp_path / "file", "old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError, match="No space left on device"):
        record.write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_merged_runs_pool_their_windows_and_take_medians_of_the_rest():
    runs = [
        make_result(windows=(10.0, 20.0, 30.0), step_ms=record.StepTime(5.0, 1.0, 9.0), notes=["a"]),
        make_result(windows=(40.0, 50.0, 60.0), step_ms=record.StepTime(7.0, 2.0, 8.0), notes=["a", "b"]),
        make_result(windows=(70.0, 80.0, 90.0), step_ms=record.StepTime(6.0, 3.0, 10.0), notes=["c"]),
    ]
    whole = merged(runs)
    assert whole.samples_per_second == record.Throughput(50.0, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    assert whole.step_ms == record.StepTime(6.0, 2.0, 9.0)
    assert whole.notes == ["a", "b", "c"]
    assert whole.peak_memory_bytes == runs[0].peak_memory_bytes
    assert whole.started == runs[0].started
    assert whole.gpu_clocks is None
    clocks = [GpuClocks(3, mhz, mhz, 1980.0, 400.0, 700.0, 60.0, []) for mhz in (1980.0, 1410.0)]
    watched = [replace(run, gpu_clocks=seen) for run, seen in zip(runs, clocks, strict=False)]
    assert merged(watched).gpu_clocks == GpuClocks(6, 1695.0, 1410.0, 1980.0, 400.0, 700.0, 60.0, [])
    unreserved = [make_result(peak_memory_bytes=record.PeakMemory(size, None)) for size in (4, 8, 6)]
    assert merged(unreserved).peak_memory_bytes == record.PeakMemory(6, None)


def test_the_environment_of_this_machine_is_complete():
    environment = record.environment("2.11.0", None)
    assert (environment.torch, environment.cuda) == ("2.11.0", None)
    assert environment.cores >= 1
    for text in (environment.python, environment.platform, environment.cpu):
        assert text
