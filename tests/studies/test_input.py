"""The input pipeline alone: what a loader delivers, which side is the bottleneck, the command."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from support import assert_refused, make_limit
from torch import nn

from studies import input as input_study
from studies import study
from studies.input import ProcessMemory
from walkthrough.compare import study as results
from walkthrough.compare.roofs import of_study
from walkthrough.results import privacy
from walkthrough.results.errors import InputError


def throughput(*windows):
    return {"median": sorted(windows)[len(windows) // 2], "windows": [*windows]}


def delivered(workers, *windows, memory=None):
    speeds = throughput(*windows)
    return {"workers": workers, "samples_per_second": speeds, "start_seconds": 0.1, "worker_bytes": memory}


MODEL = {
    "samples_per_second": throughput(90.0, 100.0, 110.0), "kind": "compiled", "precision": "bfloat16", "batch_size": 4,
    "source": "limit.json",
}  # fmt: skip


SLOW, EVEN, FAST = (50, 51, 52), (95, 101, 108), (190, 200, 210)


@pytest.mark.parametrize(
    "rows, sentence",
    [
        ({0: FAST}, "the model is the bottleneck with any number of workers, even none"),
        ({0: SLOW, 1: FAST}, "the input is the bottleneck below 1 worker, the model from there on"),
        ({0: SLOW, 2: EVEN}, "below 2 workers; with 2 workers there is no measurable difference between both, and no"),
        ({0: EVEN, 1: FAST}, "with 0 workers there is no measurable difference between both, and from 1 worker on"),
        ({0: (9, 10, 11), 2: (39, 40, 41)}, "about 5 of them, each with a core of its own"),
    ],
)
def test_the_sentence_names_the_slower_side_and_what_changes_it(rows, sentence):
    every = [delivered(workers, *windows) for workers, windows in rows.items()]
    assert sentence in input_study.bottleneck(every, MODEL, cores=2)


def options_of(tmp_path, **changes):
    values = {"device": "cpu", "model": "mobilenet_v2", "image_size": 32, "batch_size": 4, "seed": 0, "quick": True}
    return SimpleNamespace(logdir=tmp_path, **(values | changes))


@pytest.mark.usefixtures("stand_in_once")
@pytest.mark.parametrize(("most", "tried"), [(0, None), (1, [0, 1])])
def test_what_fewer_workers_delivered_is_kept_where_more_fail(run_command, tmp_path, monkeypatch, most, tried):
    def deliver(data, options, workers, window_seconds):
        if workers > most:
            raise RuntimeError("unable to write to file </torch_7>: No space left on device, shared memory")
        return delivered(workers, 50.0 + workers, 60.0 + workers, 70.0 + workers)

    monkeypatch.setattr(input_study, "model_alone", lambda *_: (MODEL, []))
    monkeypatch.setattr(input_study, "deliver", deliver)
    monkeypatch.setattr(input_study, "worker_numbers", lambda cores: [0, 1, 2, 4])
    done = run_command("limit", "--input", "--device", "cpu", "--quick", "--logdir", tmp_path)
    if tried is None:
        assert_refused(done, "failed with 1 worker")
        return
    result = results.read(tmp_path / "input.json")
    assert [row["workers"] for row in result.measured["delivered"]] == tried
    assert any("the input pipeline failed with 2 workers" in note and "<" not in note for note in result.notes)


def write_limit(folder, **changes):
    """A limit of this machine, as `limit` would have written it."""
    own = study.setup(options_of(folder))
    limit = make_limit(**({"precision": "float32"} | vars(own) | changes))
    results.write(folder / "limit.json", limit)
    return of_study(limit).fastest


def test_the_model_s_side_is_taken_from_a_limit_that_matches(tmp_path):
    limit = write_limit(tmp_path)
    consumed, notes = input_study.model_alone(options_of(tmp_path, batch_size=8), torch.float32)
    assert (consumed["samples_per_second"], notes) == (vars(limit.samples_per_second), [])
    assert (consumed["kind"], consumed["batch_size"], consumed["precision"]) == (limit.kind, 4, "float32")
    assert consumed["source"] == "limit.json of 2026-01-01, resizing on the device included"


@pytest.mark.parametrize("case", ["no limit", "another device", "another precision", "broken"])
def test_without_a_limit_that_matches_the_model_s_side_is_measured_resizing_stored_images(tmp_path, monkeypatch, case):
    model, options = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, 10)), options_of(tmp_path, image_size=40)
    monkeypatch.setattr("common.model.classifier", lambda *_: model)  # which takes no images of 32 px
    if case.startswith("another"):
        write_limit(tmp_path, image_size=40, **{"cores": 999} if case == "another device" else {"precision": "float16"})
    elif case == "broken":
        (tmp_path / "limit.json").write_text("torn")
    consumed, _ = input_study.model_alone(options, torch.float32)
    assert (consumed["kind"], consumed["batch_size"]) == ("uncompiled", 4)
    why = {"no limit": "no limit.json here", "broken": "is broken: not JSON"}.get(case, "limit.json is of another")
    assert why in consumed["source"]
    assert privacy.redacted(consumed["source"]) == consumed["source"], "a path is no one else's business"


def test_a_worker_that_died_is_one_line():
    as_input_error = input_study.worker_failures_as_input_error
    with pytest.raises(InputError, match=r"with 4 workers .*killed by signal"), as_input_error(4):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    with pytest.raises(InputError, match="--shm-size"), as_input_error(1):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>")
    with pytest.raises(RuntimeError), as_input_error(4):
        raise RuntimeError("a defect")


def test_memory_is_the_median_of_the_processes_whose_memory_is_known(monkeypatch):
    def process(pid):  # 1, 2 and 3 have memory, 4 has no pss, 99 is gone
        if pid == 99:
            raise psutil.NoSuchProcess(pid)
        rss = {1: 100, 2: 300, 3: 200}.get(pid)
        memory = SimpleNamespace(rss=rss, pss=rss // 2) if rss else SimpleNamespace(rss=5)
        return SimpleNamespace(memory_full_info=lambda: memory)

    monkeypatch.setattr(psutil, "Process", process)
    assert input_study.process_memory([1, 2, 3, 99]) == ProcessMemory(200, 100)
    assert [input_study.process_memory(pids) for pids in ([4], [99], [])] == [None] * 3
