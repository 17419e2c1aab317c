"""The input pipeline alone: what a loader delivers, which side is the bottleneck, record, figure, command."""

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import psutil
import pytest
import torch
from rich.console import Console
from support import SmallNet, make_limit

from studies import input as input_study
from studies import study
from studies.input import (
    FASTER,
    FILE,
    SLOWER,
    UNRESOLVED,
    Consumed,
    Delivered,
    InputLimit,
    ProcessMemory,
    compared,
    over_model,
    read,
)
from walkthrough.cli import main
from walkthrough.compare.figures import save
from walkthrough.results import privacy
from walkthrough.results import result as record
from walkthrough.results.environment import Environment
from walkthrough.results.errors import InputError

MB = 10**6
MEMORY = ProcessMemory(300 * MB, 90 * MB)


def delivered(workers, *windows, memory=None):
    median = sorted(windows)[len(windows) // 2]
    return Delivered(workers, record.Throughput(median, list(windows)), 0.1, memory)


MODEL = Consumed(record.Throughput(100.0, [90.0, 100.0, 110.0]), "compiled", "bfloat16", 4, "limit.json")


def make_input_limit(*rows, **changes):
    rows = list(rows) or [
        delivered(0, 50, 60, 70),
        delivered(2, 120, 130, 140, memory=MEMORY),
    ]
    values = dict(
        schema=2, setup=record.Setup("Test <CPU>", 2, "stand-in", "mobilenet_v2", 64), device_type="cpu",
        precision="bfloat16", seed=0, quick=False, batch_size=128, pin_memory=False, delivered=rows,
        model_alone=MODEL, enough_workers=2, bottleneck="the input is the bottleneck below 2 workers",
        notes=["a note"], started="2026-01-01T00:00:00+00:00",
        environment=Environment("2.11.0", None, None, "3.12.3", "Linux", "CPU", 2, None),
    )  # fmt: skip
    return InputLimit(**(values | changes))


# What is made of the numbers


def test_worker_numbers_double_up_to_the_cores():
    assert input_study.worker_numbers(1) == [0, 1, 2]
    assert input_study.worker_numbers(2) == [0, 1, 2]
    assert input_study.worker_numbers(6) == [0, 1, 2, 4, 6]
    assert input_study.worker_numbers(16) == [0, 1, 2, 4, 8, 16]


def test_the_input_over_the_model_is_the_ratio_of_the_median_windows_with_its_interval():
    ratio = over_model(delivered(0, 190, 200, 210), MODEL)
    assert ratio.ratio == pytest.approx(2.0)
    assert ratio.rounds == 1
    assert 1 < ratio.low < 2 < ratio.high


@pytest.mark.parametrize(
    "windows, words",
    [
        ((190, 200, 210), FASTER),
        ((50, 51, 52), SLOWER),
        ((95, 101, 108), UNRESOLVED),
        ((80, 130, 180), UNRESOLVED),  # 1.3 times the model's, from windows that vary by more
    ],
)
def test_faster_and_slower_are_what_the_interval_resolves(windows, words):
    assert compared(delivered(0, *windows), MODEL) == words


SLOW, EVEN, FAST = (50, 51, 52), (95, 101, 108), (190, 200, 210)


@pytest.mark.parametrize(
    "rows, sentence",
    [
        ({0: FAST}, "the model is the bottleneck with any number of workers, even none"),
        ({0: SLOW, 1: FAST}, "the input is the bottleneck below 1 worker, the model from there on"),
        ({0: SLOW, 2: EVEN}, "below 2 workers; with 2 workers there is no measurable difference between both, and no"),
        ({0: SLOW, 1: EVEN, 2: FAST}, "with 1 worker there is no measurable difference between both, and from 2"),
        ({0: EVEN, 1: FAST}, "with 0 workers there is no measurable difference between both, and from 1 worker on"),
        ({0: (9, 10, 11), 2: (39, 40, 41)}, "about 5 of them, each with a core of its own"),
    ],
)
def test_the_sentence_names_the_slower_side_and_what_changes_it(rows, sentence):
    every = [delivered(workers, *windows) for workers, windows in rows.items()]
    assert sentence in input_study.bottleneck(every, MODEL, cores=2)


# The record


NO_WINDOWS, ZERO = record.Throughput(1.0, []), record.Throughput(1.0, [0.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 3},
        {"delivered": []},
        {"delivered": [replace(delivered(0, 1.0), samples_per_second=NO_WINDOWS)]},
        {"delivered": [replace(delivered(0, 1.0), samples_per_second=ZERO)]},
        {"model_alone": replace(MODEL, samples_per_second=ZERO)},
        {"batch_size": 0},
    ],
)
def test_a_broken_result_is_refused_in_a_line(tmp_path, changes):
    study.write(tmp_path / FILE, make_input_limit(**changes))
    with pytest.raises(InputError, match=r"input_limit\.json (is broken|has schema)"):
        read(tmp_path)


# The table and the figure


def shown(result, width=140):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    input_study.show(result, console)
    return console.export_text()


def test_the_table_compares_each_number_of_workers_with_the_model():
    result = make_input_limit(delivered(0, 50, 60, 70), delivered(1, *EVEN), delivered(2, 240, 260, 280, memory=MEMORY))
    text = shown(result, width=400)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:1].isdigit()}
    slower, even, faster = (str(over_model(row, MODEL)) for row in result.delivered)
    assert [slower[:5], even[:6], faster[:5]] == ["0.60x", "~1.01x", "2.60x"]
    assert rows["0"] == f"60.0 50.0 to 70.0 {slower} 0.10 - - slower than the model".split()
    assert rows["1"] == f"101.0 95.0 to 108.0 {even} 0.10 - - no measurable difference".split()
    assert rows["2"] == f"260.0 240.0 to 280.0 {faster} 0.10 300 90 faster than the model".split()
    assert "which says nothing of how runs differ" in text
    assert "stand-in data (not CIFAR-10), batch 128, 64 px, uint8, on CPU" in text
    assert "The model alone, mobilenet_v2 on Test <CPU>: 100.0 images/s (windows 90.0 to 110.0; compiled" in text
    assert "Without workers the two take turns: 37.5 images/s" in text  # 1 / (1/60 + 1/100)
    assert "The input is the bottleneck below 2 workers." in text
    assert "A note." in text
    assert "take turns" not in shown(make_input_limit(device_type="cuda")), "on a GPU they run at the same time"


def test_the_figure_shows_a_point_per_number_of_workers_and_the_model(tmp_path):
    result = make_input_limit()
    axes = input_study.figure(result).axes[0]
    points = axes.containers[0]
    assert points[0].get_ydata().tolist() == [60.0, 130.0]
    ranges = [segment[:, 1].tolist() for segment in points[2][0].get_segments()]
    assert ranges == [[50.0, 70.0], [120.0, 140.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2"]
    line = next(line for line in axes.lines if line.get_label() == "model alone, compiled")
    assert list(line.get_ydata()) == [100.0, 100.0]
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.y0, band.y1) == (pytest.approx(90.0), pytest.approx(110.0))
    for name in ("input.svg", "input.png"):
        save(input_study.figure(result), tmp_path / name)
    text = (tmp_path / "input.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "stand-in data (not CIFAR-10), batch 128, 64 px; mobilenet_v2 on Test &lt;CPU&gt;" in text
    assert (tmp_path / "input.png").read_bytes().startswith(b"\x89PNG")
    for name in ("input.html", "not there/input.svg"):
        with pytest.raises(InputError):
            save(input_study.figure(result), tmp_path / name)


# The loader and the model


class Few(torch.utils.data.Dataset):
    """Eight small images."""

    source = "stand-in"

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(3, 4, 4, dtype=torch.uint8), index


def options_of(tmp_path, **changes):
    values = {"device": "cpu", "model": "mobilenet_v2", "image_size": 32, "batch_size": 4, "seed": 0, "quick": True}
    return SimpleNamespace(logdir=tmp_path, **(values | changes))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_delivers_in_windows(tmp_path, workers):
    result = input_study.deliver(Few(), options_of(tmp_path), workers, window_seconds=1e-4)
    assert result.workers == workers
    assert len(result.samples_per_second.windows) == input_study.WINDOWS
    assert all(math.isfinite(speed) and speed > 0 for speed in result.samples_per_second.windows)
    assert workers or result.worker_bytes is None


@pytest.fixture
def small(monkeypatch):
    """`limit --input` on `SmallNet` and a few images, without worker processes."""
    monkeypatch.setattr("common.model.classifier", lambda *_: SmallNet())
    monkeypatch.setattr("common.data.cifar10", lambda *_, **__: Few())
    monkeypatch.setattr(input_study, "worker_numbers", lambda cores: [0])


@pytest.mark.parametrize(("most", "tried"), [(0, None), (1, [0, 1])])
def test_what_fewer_workers_delivered_is_kept_where_more_fail(small, tmp_path, monkeypatch, capsys, most, tried):
    def deliver(data, options, workers, window_seconds):
        if workers > most:
            raise RuntimeError("unable to write to file </torch_7>: No space left on device, shared memory")
        return delivered(workers, 50.0 + workers, 60.0 + workers, 70.0 + workers)

    monkeypatch.setattr(input_study, "deliver", deliver)
    monkeypatch.setattr(input_study, "worker_numbers", lambda cores: [0, 1, 2, 4])
    assert ended("--logdir", tmp_path) == (0 if tried else 2)
    printed = capsys.readouterr()
    if tried is None:
        assert "failed with 1 worker" in printed.err
        return
    result = read(tmp_path)
    assert [row.workers for row in result.delivered] == tried
    assert any("the input pipeline failed with 2 workers" in note and "<" not in note for note in result.notes)


def write_limit(folder, **changes):
    """A limit of this machine, as `limit` would have written it."""
    own = study.setup(options_of(folder))
    limit = make_limit(device_type="cpu", precision="float32", **(vars(own) | changes))
    study.write(folder / "limit.json", limit)
    return limit


def test_the_model_s_side_is_taken_from_a_limit_that_matches(small, tmp_path):
    limit = write_limit(tmp_path)
    consumed, notes = input_study.model_alone(options_of(tmp_path, batch_size=8), torch.float32)
    assert (consumed.samples_per_second, notes) == (limit.fastest.samples_per_second, [])
    assert (consumed.kind, consumed.batch_size, consumed.precision) == (limit.fastest.kind, 4, "float32")
    assert consumed.source == "limit.json of 2026-01-01, resizing on the device included"


@pytest.mark.parametrize("change", [{"device": "Other"}, {"cores": 999}, {"model": "resnet18"}, {"image_size": 40}])
def test_a_limit_of_something_else_is_not_taken(small, tmp_path, change):
    write_limit(tmp_path, **change)
    consumed, _ = input_study.model_alone(options_of(tmp_path), torch.float32)
    assert "limit.json is of another device" in consumed.source
    assert (consumed.kind, consumed.batch_size) == ("uncompiled", 4)


def test_the_model_s_side_resizes_stored_images_with_a_limit_and_without(small, tmp_path, monkeypatch):
    model, options = SmallNet(), options_of(tmp_path, image_size=40)
    monkeypatch.setattr("common.model.classifier", lambda *_: model)
    assert input_study.model_alone(options, torch.float32)[0].kind == "uncompiled"
    assert model.seen.shape[-1] == 40
    write_limit(tmp_path, image_size=40)
    assert "limit.json of 2026-01-01" in input_study.model_alone(options, torch.float32)[0].source


def test_a_limit_of_another_precision_or_a_broken_one_is_not_taken(small, tmp_path):
    write_limit(tmp_path)
    assert "precision" in input_study.model_alone(options_of(tmp_path), torch.bfloat16)[0].source
    (tmp_path / "limit.json").write_text("torn")
    source = input_study.model_alone(options_of(tmp_path), torch.float32)[0].source
    assert "is broken: not JSON" in source
    assert str(tmp_path) not in source, "a path is no one else's business"
    assert privacy.redacted(source) == source


def test_a_worker_that_died_is_one_line():
    as_input_error = input_study.worker_failures_as_input_error
    with pytest.raises(InputError, match=r"with 4 workers .*killed by signal"), as_input_error(4):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    with pytest.raises(InputError, match="--shm-size"), as_input_error(1):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>")
    with pytest.raises(RuntimeError), as_input_error(4):
        raise RuntimeError("a defect")


# The command


def ended(*words):
    """The exit code of `limit --input`, in fp32, so that no CPU's instructions decide what is computed."""
    words = ["--input", "--device", "cpu", "--quick", "--batch-size", "4", "--precision", "fp32", *map(str, words)]
    with pytest.raises(SystemExit) as end:
        main(["limit", *words])
    return end.value.code


def test_the_command_prints_both_sides(small, tmp_path, capsys):
    assert ended("--logdir", tmp_path) == 0
    text = capsys.readouterr().out
    assert "measured briefly, resizing on the device included: no limit.json here" in " ".join(text.split())
    assert "-" in next(line for line in text.splitlines() if line.startswith("0 ")).split()
    assert "Smoke run" in text
    assert "The workers had all cores to themselves" in text


def test_the_command_prints_json_alone_writes_the_same_and_draws_it(small, tmp_path, capsys):
    assert ended("--logdir", tmp_path, "--json", "--plot", tmp_path / "input.svg") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / FILE).read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input.svg", FILE]
    assert [row["workers"] for row in printed["delivered"]] == [0]
    assert printed["model_alone"]["kind"] == "uncompiled"
    result = read(tmp_path)
    assert (result.schema, result.setup.data, result.precision, result.quick) == (2, "stand-in", "float32", True)
    assert result.notes[0] == "autocast is off: --precision fp32"


def test_a_model_that_memory_does_not_hold_is_halved_and_reported(small, room_for_two, tmp_path, capsys):
    assert ended("--logdir", tmp_path) == 0
    assert "The model alone: out of memory with batch size 4: measured with batch 2." in capsys.readouterr().out
    result = read(tmp_path)
    assert (result.batch_size, result.model_alone.batch_size) == (4, 2)


def test_a_batch_larger_than_the_data_is_one_line(small, tmp_path, capsys):
    assert ended("--logdir", tmp_path, "--batch-size", "9") == 2
    assert "--batch-size 9 is larger than the data (8 images)" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()


# Memory of processes


class Process:
    """A process of psutil: 1, 2 and 3 have memory, 4 has no pss, 99 is gone."""

    def __init__(self, pid):
        if pid == 99:
            raise psutil.NoSuchProcess(pid)
        self.rss = {1: 100, 2: 300, 3: 200}.get(pid, 0)

    def memory_full_info(self):
        return SimpleNamespace(rss=self.rss, pss=self.rss // 2) if self.rss else SimpleNamespace(rss=5)


def test_memory_is_the_median_of_the_processes_whose_memory_is_known(monkeypatch):
    monkeypatch.setattr(psutil, "Process", Process)
    assert input_study.process_memory([1, 2, 3, 99]) == ProcessMemory(200, 100)
    assert input_study.process_memory([4]) is None
    assert input_study.process_memory([99]) is None
    assert input_study.process_memory([]) is None
