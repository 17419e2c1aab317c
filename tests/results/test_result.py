"""Results written whole, and read back with care."""

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
    written = json.loads((tmp_path / "00_baseline" / "result.json").read_text())
    assert written["tokens_per_second"] is None and not {"needs", "gpu_clocks"} & written.keys()
    clocks = record.GpuClocks(0, 1.0, 1.0, None, None, None, 60.0, ["power limit"])
    on_gpu = make_result(needs="a GPU", gpu_clocks=clocks)
    assert record.read_result(write_run(tmp_path, on_gpu) / "result.json") == on_gpu


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
    "image_size": (0, 2**53, -1, 2**53 + 1),
    "batch_bytes": (0, 2**53, -1, 2**53 + 1),
    "workers": (0, 2**53, -1, 2**53 + 1),
    "batch_size": (1, 2**53, 0, 2**53 + 1),
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
    "field missing": (without("batch_bytes"), "missing required field `batch_bytes`"),
    "wrong type": (with_(batch_size="many"), "Expected `int`, got `str` - at `$.batch_size`"),
    "true is no number": (with_(image_size=True), "Expected `int`, got `bool` - at `$.image_size`"),
    "nested": (with_(step_ms={"p90": None}), "Expected `float`, got `null` - at `$.step_ms.p90`"),
    "a time below 0": (with_(step_ms={"p10": -1e-9}), ">= 0.0"),
    "no windows": (with_(samples_per_second={"windows": []}), "length >= 1"),
    "too many windows": (with_(samples_per_second={"windows": [1] * 100_001}), "length <= 100000"),
    "not a number": (with_(step_ms={"p10": float("nan")}), "not JSON"),
    "too large a number": (with_(step_ms={"p10": 1.5}).replace("1.5", "1e999"), "not JSON"),
    "too many digits": (with_(batch_size=12345).replace("12345", "9" * 5000), "not JSON"),
    "median zero": (with_(samples_per_second={"median": 0}), ">= 1e-09"),
    "zero": (with_(samples_per_second={"windows": [0, 1]}), ">= 1e-09"),
    "far beyond any machine": (with_(samples_per_second={"windows": [1e308, 1]}), "<= 1e+18"),
    "half a pair of letters": (with_(model="\ud800"), "not JSON"),
    **{
        f"a file elsewhere, {field} {name[:14]}": (with_(**{field: name}), f"`$.{field}`")
        for field in ("step", "trace")
        for name in ("../00_baseline", "/tmp", ".", "..", "a\\b", "x" * 256)
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


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    record.write_whole(tmp_path / "file", "old")
    for number, fix in ((28, "free some space there"), (13, "choose another folder")):

        def refuse(*_, number=number):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(InputError, match=f"{os.strerror(number)}; {fix}"):
                record.write_whole(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_the_environment_of_this_machine_is_complete():
    environment = current_environment("2.11.0", None)
    assert (environment.torch, environment.cuda) == ("2.11.0", None)
    assert environment.cores >= 1
    assert environment.python and environment.platform and environment.cpu


@pytest.mark.parametrize("text", ["{", "[]", '{"step": "01_amp"}', '{"step": "01_amp", "reason": 1}', "[" * 100_000])
def test_a_broken_reason_is_refused_by_name(tmp_path, text):
    (tmp_path / "01_amp").mkdir()
    (tmp_path / "01_amp" / "not_run.json").write_text(text)
    with pytest.raises(InputError, match=r"01_amp/not_run\.json is broken"):
        record.steps_not_run(tmp_path)


def test_a_step_s_times_and_throughput_are_those_of_its_steps():
    assert record.step_time([float(ms) for ms in range(11)]) == record.StepTime(5.0, 1.0, 9.0)
    assert record.step_time([7.0]) == record.StepTime(7.0, 7.0, 7.0)
    assert make_result(windows=(50.0, 100.0, 110.0)).ms_per_step == 320  # 32 samples at 100 per second
    assert make_result(windows=(50.0, 100.0, 110.0), world_size=2).ms_per_step == 640


def test_a_run_is_labelled_for_people():
    result = make_result(data="stand-in", image_size=0)
    assert (make_result().data_label, make_result().size_label) == ("CIFAR-10", "224 px")
    assert (result.data_label, result.size_label) == ("stand-in data (not CIFAR-10)", "text")
