"""Results written whole, read back with care, and several runs summed up as one."""

import json
import os

import pytest
from support import make_result, write_run

from walkthrough.results import result as record
from walkthrough.results.environment import current_environment
from walkthrough.results.errors import InputError


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
    "a field of schema 2 missing": (without("precision"), "missing required field `precision`"),
    "wrong type": (with_(batch_size="many"), "Expected `int`, got `str` - at `$.batch_size`"),
    "true is no number": (with_(image_size=True), "Expected `int`, got `bool` - at `$.image_size`"),
    "nested": (with_times(p90=None), "Expected `float`, got `null` - at `$.step_ms.p90`"),
    "no windows": (with_speeds(windows=[]), "windows"),
    "not a number": (with_times(p10=float("nan")), "not JSON"),
    "too large a number": (with_times(p10=1.5).replace("1.5", "1e999"), "not JSON"),
    "median zero": (with_speeds(median=0), ">= 1e-09"),
    "zero": (with_speeds(windows=[0, 1]), ">= 1e-09"),
    "far beyond any machine": (with_speeds(windows=[1e308, 1]), "<= 1e+18"),
    "half a pair of letters": (with_(model="\ud800"), "not JSON"),
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


def test_the_environment_of_this_machine_is_complete():
    environment = current_environment("2.11.0", None)
    assert (environment.torch, environment.cuda) == ("2.11.0", None)
    assert environment.cores >= 1
    for text in (environment.python, environment.platform, environment.cpu):
        assert text


@pytest.mark.parametrize("text", ["{", "[]", '{"step": "01_amp"}', '{"step": "01_amp", "reason": 1}', "[" * 100_000])
def test_a_broken_reason_is_refused_by_name(tmp_path, text):
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "not_run.json").write_text(text)
    with pytest.raises(InputError, match=r"01_amp/not_run\.json is broken"):
        record.steps_not_run(tmp_path)


def test_another_steps_reason_is_refused(tmp_path):
    record.write_not_run(tmp_path / "01_amp", "02_bigger_batch", "because")
    with pytest.raises(InputError, match="it is of 02_bigger_batch"):
        record.steps_not_run(tmp_path)


def test_the_time_of_a_step_fits_its_throughput():
    assert make_result(windows=(50.0, 100.0, 110.0)).ms_per_step == 320  # 32 samples at 100 per second
    assert make_result(windows=(50.0, 100.0, 110.0), world_size=2).ms_per_step == 640
