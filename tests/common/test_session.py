"""The session: what is measured and when, and that a run is replaced by a whole one or not at all."""

import errno
import gzip
import itertools
import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, SmallNet, die_before, make_result
from support.options import small_options
from support.recorded import tree
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader
from torch_tb_profiler.consts import WORKER_PATTERN

from common import session, timing, tracing
from common.device import without_gpu
from common.failures import as_input_error
from walkthrough.results import folder as folders
from walkthrough.results import result as record
from walkthrough.results.errors import InputError


class Images(list):
    """40 images."""

    source = "stand-in"

    def __init__(self):
        super().__init__((torch.full((3, 32, 32), index / 40), index % 10) for index in range(40))


def options(logdir, **changes):
    return small_options(logdir, **{"data": logdir, "model": "small", **changes})


def small_step(failing=None):
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(images, labels):
        if failing:
            raise failing
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train_step


def read_events(trace):
    return json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def run_small(logdir, failing=None, **changes):
    loader = DataLoader(Images(), batch_size=4, drop_last=True)
    return session.run_step("steps/09_small.py", options(logdir, **changes), loader, small_step(failing))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """As many windows as ever, and no longer than a step."""
    monkeypatch.setattr(session, "QUICK", replace(session.QUICK, window_seconds=0.0, warmup_seconds=0.0))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run: its result and its folder. Its first step takes 100 s longer, as if it compiled."""
    logdir, now, trained, step = tmp_path_factory.mktemp("small"), [0.0], [], small_step()

    def clock():
        now[0] += 0.01
        return now[0]

    def train_step(images, labels):
        if not trained:
            now[0] += 100
        trained.append(len(labels))
        return step(images, labels)

    loader = DataLoader(Images(), batch_size=4, drop_last=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "perf_counter", clock)
        result = session.run_step("steps/09_small.py", options(logdir), loader, train_step)
    return SimpleNamespace(result=result, folder=logdir / "09_small")


def test_a_run_writes_the_fixed_interface(small):
    written = json.loads((small.folder / "result.json").read_text())
    assert list(written) == [
        "schema", "step", "device", "device_type", "model", "data", "image_size", "batch_size", "precision", "workers",
        "pin_memory", "world_size", "samples_per_second", "tokens_per_second", "first_step_seconds", "step_ms",
        "peak_memory_bytes", "batch_bytes", "trace", "notes", "environment", "started",
    ]  # fmt: skip
    expected = {
        "schema": 2, "precision": "float32", "workers": 0, "pin_memory": False, "world_size": 1,
        "tokens_per_second": None, "first_step_seconds": pytest.approx(100.01), "batch_bytes": 4 * 3 * 32 * 32 * 4 + 32,
        "step_ms": {"median": pytest.approx(10), "p10": pytest.approx(10), "p90": pytest.approx(10)},
    }  # fmt: skip
    assert {name: written[name] for name in expected} == expected
    assert list(written["environment"]) == ["torch", "cuda", "driver", "python", "platform", "cpu", "cores", "git"]
    windows = written["samples_per_second"]["windows"]
    assert len(windows) >= 5
    assert written["samples_per_second"]["median"] == sorted(windows)[2]
    assert min(windows) > 4  # 4 images took 100 s in the first step, which is in no window
    assert written["peak_memory_bytes"]["reserved"] is None
    assert record.read_result(small.folder / "result.json") == small.result


def test_the_trace_has_three_steps_with_shapes_and_memory_under_a_name_the_plugin_takes(small):
    assert WORKER_PATTERN.match(small.result.trace)
    assert not set(small.result.trace) & set("[] ")
    events = read_events(small.folder / small.result.trace)
    names = [event["name"] for event in events]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    assert any("Input Dims" in event.get("args", {}) for event in events if event["name"] == "aten::convolution")
    assert "[memory]" in names
    assert any(name.startswith("enumerate(DataLoader)") for name in names)
    assert not any("Python" in str(event.get("cat")) for event in events)


def test_stacks_are_recorded_on_request(tmp_path):
    result = run_small(tmp_path, stacks=True)
    events = read_events(tmp_path / "09_small" / result.trace)
    names = {event["name"] for event in events if event.get("cat") == "python_function"}
    assert any(name.startswith("nn.Module: SmallNet") for name in names)


def test_tensorboard_gets_scalars_and_hyper_parameters(small):
    events = EventAccumulator(str(small.folder))
    events.Reload()
    scalars = "loss images_per_second step_ms peak_memory_bytes first_step_seconds median/images_per_second".split()
    assert set(scalars) <= set(events.Tags()["scalars"])
    speeds = [point.value for point in events.Scalars("images_per_second")]
    assert speeds == pytest.approx(small.result.samples_per_second.windows)
    [point] = events.Scalars("first_step_seconds")
    assert (point.step, point.value) == (1, pytest.approx(100.01))
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert all(name in content for name in (b"batch_size", b"precision", b"workers", b"pin_memory", b"transfer"))


def test_what_distorts_a_run_is_noted(tmp_path, monkeypatch):
    """No nvidia-smi, 10 new pages in each of the three traced steps, and a trace that shows nothing of its GPU."""
    gpu, count, seen = torch.device("cuda"), itertools.count(0, 10).__next__, []
    monkeypatch.setattr(timing, "page_faults", count)
    monkeypatch.setattr(tracing, "faults_so_far", count)
    monkeypatch.setattr(session, "new_pages", lambda *faults: seen.extend(faults) or ["new pages"])
    monkeypatch.setattr(session.GpuWatch, "notes", ["there is no nvidia-smi"])
    monkeypatch.setattr(session, "without_kernels", lambda events, device: tracing.without_kernels(events, gpu))
    smi, kernels, pages = run_small(tmp_path).notes[-3:]
    assert (smi, pages) == ("there is no nvidia-smi", "new pages")
    assert "the trace holds no kernels" in kernels
    assert seen[0] == [10, 10, 10]
    assert 0 < seen[1] <= 2  # of all steps of five windows


def of_torch(name, *words):
    """An error of torch's compiler, by name: which takes seconds to import."""
    from torch._dynamo import exc as dynamo
    from torch._inductor import exc as inductor

    return (getattr(dynamo, name, None) or getattr(inductor, name))(*words)


def inside(error):
    return of_torch("InductorError", error, None)


FAILURES = [  # an error, or what makes one, and what the user reads
    (lambda: inside(of_torch("InvalidCxxCompiler")), r"no C\+\+ compiler that works: install one"),
    (lambda: inside(ImportError("/tmp/inductor/kr/ckre.so: file too short")), "remove the folder /tmp/inductor and"),
    (lambda: of_torch("BackendCompilerFailed", min, ValueError("odd. Very"), None), r"Failed: ValueError: odd\)"),
    (lambda: of_torch("TritonMissing", None), "needs Triton for a GPU.*pip install triton"),
    (torch.OutOfMemoryError("CUDA out of memory"), r"out of memory .*size 4: try --batch-size 2"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"), "out of memory"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is"), "--workers 1.*--shm-size"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "a loader worker was .*--workers 1"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "--workers 1"),
]


@pytest.mark.parametrize(("error", "message"), FAILURES)
def test_what_a_user_can_act_on_is_one_line_that_says_what_to_do(tmp_path, error, message):
    loader = DataLoader(Images(), batch_size=4, num_workers=1, drop_last=True)
    with pytest.raises(InputError, match=message), as_input_error(options(tmp_path), loader, torch.device("cpu")):
        raise error if isinstance(error, Exception) else error()


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("oh, torch.compile is not supported by this")])
def test_an_error_of_another_kind_keeps_its_traceback_and_the_earlier_run_is_as_it_was(tmp_path, small, error):
    folder = shutil.copytree(small.folder, tmp_path / "09_small")
    with pytest.raises(type(error)):
        run_small(tmp_path, failing=error)
    assert tree(folder) == tree(small.folder)
    assert not (tmp_path / ".09_small.partial").exists()


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("place", "does", "message"),
    [
        ("common.session.shutil.copyfileobj", full_disk, os.strerror(errno.ENOSPC)),
        # The profiler itself says nothing when it cannot write on.
        ("torch.profiler.profile.export_chrome_trace", lambda self, path: Path(path).write_text('{"traceEvents": [{"n'),
         "could not be written whole"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_explained_and_not_taken_for_a_run(tmp_path, monkeypatch, place, does, message):
    monkeypatch.setattr(place, does)
    with pytest.raises(InputError, match=message):
        run_small(tmp_path)
    assert not (tmp_path / "09_small" / "result.json").exists()


def test_any_batch_is_trained_on_its_tokens_are_counted_and_a_change_without_effect_is_noted(tmp_path):
    Texts = type("Texts", (list,), {})
    texts = Texts((torch.full((7,), index), torch.ones(7), torch.tensor(index % 2)) for index in range(40))
    layer = torch.nn.Linear(7, 2)

    def train_step(tokens, mask, label):
        return torch.nn.functional.cross_entropy(layer(tokens * mask), label)

    loader = DataLoader(texts, batch_size=4, drop_last=True, pin_memory=True)
    result = session.run_step(
        "05_pinned_memory.py", options(tmp_path), loader, train_step, torch.bfloat16, notes=["from the step"],
        count_tokens=lambda batch: batch[1].sum(),
    )  # fmt: skip
    assert (result.data, result.precision, result.pin_memory) == ("Texts", "bfloat16", True)
    assert result.batch_bytes == 4 * (7 * 8 + 7 * 4 + 8)
    tokens, samples = result.tokens_per_second, result.samples_per_second
    assert tokens.windows == pytest.approx([7 * speed for speed in samples.windows])
    assert record.read_result(tmp_path / "05_pinned_memory" / "result.json") == result
    assert result.notes[0] == "from the step"
    assert [note for note in result.notes if "no GPU" in note] == without_gpu("pinned_memory", "cpu")
    assert any("smoke run" in note for note in result.notes)


def publish_and_be_killed(logdir, moment):
    """In a process of its own, which ends by SIGKILL before so many operations that change what others see."""
    with folders.own_folder(logdir, "09_small") as (final, staging):
        (staging / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [1]}'))
        (staging / "events").write_text("events")
        die_before(moment)
        trace = f"{folders.stamp()}.pt.trace.json.gz"
        folders.publish(final, staging, "trace.json.gz", "events", make_result("09_small", trace=trace))


def test_a_run_killed_at_any_moment_leaves_nothing_torn(tmp_path, small):
    """After each death one whole run is there, the earlier one at first."""
    folder = tmp_path / "09_small"
    shutil.copytree(small.folder, folder)
    for moment in itertools.count():
        process = multiprocessing.get_context("fork").Process(target=publish_and_be_killed, args=(tmp_path, moment))
        process.start()
        process.join()
        result = record.read_result(folder / "result.json")
        assert {folder / result.trace} <= set(folder.glob("*.pt.trace.json.gz"))
        assert all(read_events(path) for path in folder.glob("*.pt.trace.json.gz"))
        assert list(folder.glob("events.out.tfevents.*"))
        if process.exitcode == 0:  # it has outlived all its moments
            break
        assert process.exitcode == -signal.SIGKILL
    assert moment > 5  # result in staging, trace, events, result, the old run's two files
    assert {path.name for path in tmp_path.iterdir()} <= {"09_small", ".09_small.lock"}
    assert len(list(folder.iterdir())) == 3


@pytest.mark.usefixtures("stand_in_once")
def test_a_run_ended_by_ctrl_c_while_it_measures_leaves_nothing_and_says_so(tmp_path, run_here, monkeypatch):
    def report(phase, *_, **__):
        if phase.startswith("window 1"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(session.progress, "report", report)
    words = "--quick", "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path
    finished = run_here(ROOT / "steps" / "00_baseline.py", *words)
    assert finished.returncode == 130
    assert finished.stderr.splitlines()[-1].startswith("00_baseline: interrupted")
    assert all(path.suffix == ".lock" for path in tmp_path.iterdir())
