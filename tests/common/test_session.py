"""The session: what is measured and when, and that a run is replaced by a whole one or not at all."""

import errno
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from support import ROOT, SmallNet, listen_to_ctrl_c, run_program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.data import DataLoader, Dataset

from common import session, timing, tracing
from common.device import without_gpu
from common.options import StepOptions
from walkthrough.results import environment
from walkthrough.results import result as record
from walkthrough.results.errors import InputError, exit_code


class Images(Dataset):
    """40 random images, `kill_worker`: whose loader worker is killed at the first."""

    source = "stand-in"

    def __init__(self, kill_worker=False):
        self.kill_worker = kill_worker

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.kill_worker:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3, 32, 32), index / 40), index % 10


def options(logdir, **changes):
    values = dict(
        logdir=logdir, device="cpu", data=logdir, download=False, model="small", image_size=32, batch_size=4, workers=0,
        precision="auto", seed=0, quick=True, stacks=False,
    )  # fmt: skip
    return StepOptions(**(values | changes))


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


def run_small(logdir, failing=None, loader=None, **changes):
    if loader is None:
        loader = DataLoader(Images(), batch_size=4, drop_last=True)
    return session.run_step("steps/09_small.py", options(logdir, **changes), loader, small_step(failing))


def test_what_nvidia_smi_did_not_report_is_in_a_runs_notes(tmp_path, monkeypatch):
    monkeypatch.setattr(session.GpuWatch, "notes", ["the GPU's clock and power were not read: there is no nvidia-smi"])
    assert run_small(tmp_path).notes[-1].endswith("there is no nvidia-smi")


def test_new_pages_of_each_of_the_three_traced_steps_are_noted(tmp_path, monkeypatch):
    seen = []

    def new_pages(traced, timed):
        seen.append((list(traced), timed))
        return ["the traced steps touch new pages"]

    count = itertools.count(0, 10).__next__  # 10 from one call to the next
    monkeypatch.setattr(timing, "page_faults", count)
    monkeypatch.setattr(tracing, "faults_so_far", count)
    monkeypatch.setattr(session, "new_pages", new_pages)
    run_small(tmp_path)
    assert record.read_result(tmp_path / "09_small" / "result.json").notes[-1] == "the traced steps touch new pages"
    [(traced, timed)] = seen
    assert traced == [10, 10, 10]
    assert 0 < timed <= 2  # of all steps of five windows


def test_a_run_writes_the_fixed_interface(tmp_path):
    result = run_small(tmp_path)
    folder = tmp_path / "09_small"
    written = json.loads((folder / "result.json").read_text())
    assert list(written) == [
        "schema", "step", "device", "device_type", "model", "data", "image_size", "batch_size", "precision", "workers",
        "pin_memory", "world_size", "samples_per_second", "tokens_per_second", "first_step_seconds", "step_ms",
        "peak_memory_bytes", "batch_bytes", "trace", "notes", "environment", "started",
    ]  # fmt: skip
    assert [written[name] for name in ("schema", "precision", "workers", "pin_memory", "world_size")] == [
        2, "float32", 0, False, 1
    ]  # fmt: skip
    assert written["tokens_per_second"] is None
    assert written["first_step_seconds"] > 0
    assert list(written["environment"]) == ["torch", "cuda", "driver", "python", "platform", "cpu", "cores", "git"]
    assert len(written["samples_per_second"]["windows"]) >= 5
    assert written["samples_per_second"]["median"] == sorted(written["samples_per_second"]["windows"])[2]
    assert written["step_ms"]["p10"] <= written["step_ms"]["median"] <= written["step_ms"]["p90"]
    assert written["batch_bytes"] == 4 * 3 * 32 * 32 * 4 + 4 * 8
    assert written["peak_memory_bytes"]["reserved"] is None
    assert record.read_result(folder / "result.json") == result


def test_a_run_whose_trace_shows_nothing_of_its_gpu_is_kept_and_says_so(tmp_path, capsys, monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(session, "without_kernels", lambda events, device: tracing.without_kernels(events, gpu))
    monkeypatch.setenv("WALKTHROUGH_PROGRESS", "json")  # as `record` and `tour` follow it
    assert "holds no kernels" in run_small(tmp_path).notes[-1]
    [line] = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert "the trace holds no kernels" in line
    assert line.endswith("run again")


def test_what_names_no_commit_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "main")
    with pytest.raises(InputError, match="is no commit"):
        run_small(tmp_path, failing=AssertionError("trained"))
    assert not (tmp_path / "09_small").exists()


def test_the_trace_has_three_steps_with_shapes_and_memory_under_a_name_the_plugin_takes(tmp_path):
    from torch_tb_profiler.consts import WORKER_PATTERN

    result = run_small(tmp_path)
    assert WORKER_PATTERN.match(result.trace)
    assert not set(result.trace) & set("[] ")
    events = read_events(tmp_path / "09_small" / result.trace)
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


def test_the_peak_on_a_cpu_is_the_highest_running_total_of_its_allocations():
    def memory(ts, total, size, device_type=0):
        args = {"Total Allocated": total, "Bytes": size, "Device Type": device_type}
        return {"name": "[memory]", "ts": ts, "args": args}

    other = {"name": "aten::mm", "ts": 0, "args": {"Total Allocated": 9_999}}
    events = [memory(2, 700, 600), memory(1, 100, 100), other, memory(3, 999, 1, 1), memory(4, 3, -697)]
    assert tracing.cpu_peak_bytes(events) == 700
    earlier = [memory(2, 5700, 600), memory(1, 5100, 100), memory(4, 5003, -697)]  # an earlier trace left 5000
    assert tracing.cpu_peak_bytes(earlier) == 700
    assert tracing.cpu_peak_bytes([]) == 0


def test_the_peak_is_shown_in_a_unit_that_fits_with_what_it_counts(tmp_path, capsys):
    result = run_small(tmp_path)
    printed = capsys.readouterr().out
    peak = result.peak_memory_bytes.allocated
    assert f"peak memory {peak / 1e6:.1f} MB (what the traced steps allocate, without weights)" in printed
    assert f"{result.ms_per_step:.1f} ms per step" in printed
    assert session._peak_in_words(2_510_000_000, torch.device("cuda")) == "peak memory 2.51 GB (allocated on the GPU)"


def test_tensorboard_gets_scalars_and_hyper_parameters(tmp_path):
    result = run_small(tmp_path)
    events = EventAccumulator(str(tmp_path / "09_small"))
    events.Reload()
    tags = events.Tags()["scalars"]
    for tag in ("loss", "images_per_second", "step_ms", "peak_memory_bytes", "median/images_per_second"):
        assert tag in tags
    speeds = [point.value for point in events.Scalars("images_per_second")]
    assert speeds == pytest.approx(result.samples_per_second.windows)
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for name in (b"batch_size", b"precision", b"workers", b"pin_memory", b"transfer"):
        assert name in content


def test_the_first_step_is_timed_separately_and_is_in_no_window(tmp_path, capsys, monkeypatch):
    now, trained, step = [0.0], [], small_step()

    def clock():
        now[0] += 0.01
        return now[0]

    def train_step(images, labels):
        if not trained:
            now[0] += 100  # as if it compiled
        trained.append(len(labels))
        return step(images, labels)

    monkeypatch.setattr(timing.time, "perf_counter", clock)
    loader = DataLoader(Images(), batch_size=4, drop_last=True)
    result = session.run_step("09_small.py", options(tmp_path), loader, train_step)
    assert "the first step took 100.0 s" in capsys.readouterr().out
    events = EventAccumulator(str(tmp_path / "09_small"))
    events.Reload()
    [point] = events.Scalars("first_step_seconds")
    assert (point.step, point.value) == (1, pytest.approx(100.01))
    assert result.first_step_seconds == pytest.approx(100.01)
    assert result.step_ms.p90 == pytest.approx(10)
    assert min(result.samples_per_second.windows) > 4  # 4 images took 100 s in the first step


def compile_errors():
    from torch._dynamo.exc import BackendCompilerFailed, Unsupported
    from torch._inductor.exc import InductorError, InvalidCxxCompiler, TritonMissing

    return {
        "no C++ compiler": (InvalidCxxCompiler(), r"no C\+\+ compiler that works: install one"),
        "inside of another": (InductorError(InvalidCxxCompiler(), None), r"no C\+\+ compiler that works"),
        "no C compiler": (
            InductorError(RuntimeError("Failed to find C compiler. Please specify via CC environment variable"), None),
            "no C compiler that works: install one, such as gcc",
        ),
        "a backend that fails": (
            BackendCompilerFailed(min, ValueError("odd. Very odd"), None), r"BackendCompilerFailed: ValueError: odd\)",
        ),
        "what Dynamo cannot trace": (Unsupported("call_method item"), r"\(Unsupported: call_method item"),
        "a broken cache": (
            InductorError(ImportError("/tmp/inductor/kr/ckre.main.so: file too short"), None),
            "cache holds a broken file.*remove the folder /tmp/inductor and run this again, or skip this step",
        ),
        "no Triton": (TritonMissing(None), "needs Triton for a GPU.*pip install triton"),
        "a new Python": (RuntimeError("torch.compile is not supported on Python 3.16+"), r"3.16\+: use a Python"),
        "a newer Python": (RuntimeError("Dynamo is not supported on Python 3.17+"), r"3.17\+: use a Python"),
    }  # fmt: skip


COMPILE_ERRORS = ["no C++ compiler", "inside of another", "no C compiler", "a backend that fails"]
COMPILE_ERRORS += ["what Dynamo cannot trace", "a broken cache", "no Triton", "a new Python", "a newer Python"]


@pytest.mark.parametrize("kind", COMPILE_ERRORS)  # by name: torch's compiler takes seconds to import
def test_what_cannot_be_compiled_is_one_line_that_says_what_to_do(tmp_path, kind):
    error, message = compile_errors()[kind]
    with pytest.raises(InputError, match=message) as refused:
        run_small(tmp_path, failing=error)
    assert str(refused.value).endswith("or skip this step")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "09_small").exists()


def test_memory_that_runs_out_while_compiling_is_reported_as_such(tmp_path):
    from torch._inductor.exc import InductorError

    with pytest.raises(InputError, match="out of memory"):
        run_small(tmp_path, failing=InductorError(RuntimeError("CUDA out of memory"), None))


def test_a_runtime_error_of_another_kind_keeps_its_traceback(tmp_path):
    with pytest.raises(RuntimeError, match=r"oh, torch\.compile"):
        run_small(tmp_path, failing=RuntimeError("oh, torch.compile is not supported by this test"))


COMPILED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}, {tests!r} + "/common"]
import torch
from pathlib import Path
from common import session
from walkthrough.results.errors import exit_in_one_line
from test_session import Images, SmallNet, options
from torch.utils.data import DataLoader

def main():
    exit_in_one_line()
    model = torch.compile(SmallNet())
    loader = DataLoader(Images(), batch_size=4, drop_last=True)
    session.run_step("08_small.py", options(Path({logdir!r})), loader, lambda images, labels: model(images).sum())

main()
"""


def test_without_a_compiler_a_step_ends_with_one_line_and_exit_code_2(tmp_path):
    """For real: nothing is cached, and there is no such compiler."""
    program = COMPILED.format(root=str(ROOT), tests=str(ROOT / "tests"), logdir=str(tmp_path / "logs"))
    (tmp_path / "08_small.py").write_text(program)
    cache = tmp_path / "cache"
    finished = run_program(tmp_path / "08_small.py", cwd=tmp_path, CXX="/nonexistent", TORCHINDUCTOR_CACHE_DIR=cache)
    assert finished.returncode == 2, finished.stderr
    assert "Traceback" not in finished.stderr
    message = "08_small: torch.compile found no C++ compiler that works: install one, such as g++, or skip this step"
    assert finished.stderr.splitlines()[-1] == message
    assert not list((tmp_path / "logs").glob("08_small/*"))


def test_a_python_that_compile_does_not_support_is_refused_before_training(capsys):
    assert exit_code(RuntimeError("torch.compile is not supported on Python 3.16+")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_second_run_replaces_the_first_and_leaves_other_files_alone(tmp_path):
    first = run_small(tmp_path)
    folder = tmp_path / "09_small"
    (folder / "my notes.txt").write_text("kept")
    time.sleep(0.002)  # traces are named by the millisecond
    second = run_small(tmp_path)
    assert first.trace != second.trace
    assert [path.name for path in folder.glob("*.pt.trace.json.gz")] == [second.trace]
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert (folder / "my notes.txt").read_text() == "kept"


def test_a_run_that_fails_leaves_the_earlier_one_as_it_was(tmp_path):
    run_small(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "09_small").iterdir()}
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path, failing=ZeroDivisionError())
    assert {path.name: path.read_bytes() for path in (tmp_path / "09_small").iterdir()} == before
    assert not (tmp_path / ".09_small.partial").exists()


def test_a_second_run_of_the_same_step_at_the_same_time_is_refused(tmp_path):
    with FileLock(tmp_path / ".09_small.lock"), pytest.raises(InputError, match="another run of 09_small"):
        run_small(tmp_path)
    run_small(tmp_path)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "python", "cpu", "driver", "cublas"])
def test_out_of_memory_names_the_batch_size_and_the_next_to_try(tmp_path, error):
    with pytest.raises(InputError, match=r"out of memory .*batch size 4: try --batch-size 2"):
        run_small(tmp_path, failing=error)
    assert not (tmp_path / "09_small").exists()


def test_out_of_memory_does_not_suggest_an_option_that_has_no_effect_in_the_step(tmp_path):
    with pytest.raises(InputError, match="batch size 4: try a smaller --model or --image-size"):
        run_small(tmp_path, failing=MemoryError(), batch_size=8)


def test_a_worker_killed_by_the_system_is_explained(tmp_path):
    loader = DataLoader(Images(kill_worker=True), batch_size=4, num_workers=1, drop_last=True)
    with pytest.raises(InputError, match=r"a loader worker was .*--workers 1"):
        run_small(tmp_path, loader=loader)
    assert not (tmp_path / "09_small").exists()


REFUSED = {
    "small /dev/shm": RuntimeError(
        "unable to allocate shared memory(shm) for file </torch_1>: No space left on device"
    ),
    "bus error": RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ..."),
    "open files": RuntimeError("Too many open files. Communication with the workers is no longer possible."),
    "no more processes": BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
}


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
def test_workers_that_the_system_refuses_are_explained(tmp_path, error):
    loader = DataLoader(Images(), batch_size=4, num_workers=1, drop_last=True)
    with pytest.raises(InputError, match="--workers 1"):
        run_small(tmp_path, failing=error, loader=loader)


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--batch-size 41 is larger than the data \(40 images\)"):
        run_small(tmp_path, loader=DataLoader(Images(), batch_size=41, drop_last=True))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES], ids=["full disk", "no permission"])
def test_a_folder_that_cannot_be_written_is_explained(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("walkthrough.results.folder.os.replace", refuse)
    with pytest.raises(InputError, match=os.strerror(code)):
        run_small(tmp_path)
    assert not (tmp_path / "09_small" / "result.json").exists()


def test_a_disk_that_fills_up_while_the_trace_is_written_is_explained(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session.shutil, "copyfileobj", full)
    with pytest.raises(InputError, match="No space left"):
        run_small(tmp_path)


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"name": "a"}', '{"traceEvents": [{"name": "a"}, {"args": {}}'])
def test_a_trace_cut_short_by_a_full_disk_is_not_taken_for_a_run(tmp_path, monkeypatch, text):
    """The profiler itself says nothing when it cannot write on."""
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda self, path: Path(path).write_text(text))
    with pytest.raises(InputError, match="could not be written whole"):
        run_small(tmp_path)
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda self, path: None)
    with pytest.raises(InputError, match="could not be written whole"):
        run_small(tmp_path)
    assert not (tmp_path / "09_small").exists()


def test_a_log_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        run_small(tmp_path / "file" / "logs")


def test_what_a_cpu_cannot_show_is_noted(tmp_path):
    class Bytes(Images):
        def __getitem__(self, index):
            return torch.zeros(3, 32, 32, dtype=torch.uint8), 0

    model = SmallNet()
    loader = DataLoader(Bytes(), batch_size=4, drop_last=True, pin_memory=True)

    def train_step(images, labels):
        return model(images.float()).sum()

    result = session.run_step("05_pinned_memory.py", options(tmp_path), loader, train_step, notes=["from the step"])
    assert result.notes[0] == "from the step"
    assert [note for note in result.notes if "no GPU" in note] == without_gpu("pinned_memory", "cpu")
    assert any("smoke run" in note for note in result.notes)
    assert result.pin_memory
    other = session.run_step("09_small.py", options(tmp_path), loader, train_step)
    assert not any("no GPU" in note for note in other.notes)  # only the step whose change has no effect says so


def test_precision_and_what_the_device_cannot_do_of_it_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("common.device.cpu_bf16_hardware", lambda: None)
    loader = DataLoader(Images(), batch_size=4, drop_last=True)
    result = session.run_step("01_small.py", options(tmp_path), loader, small_step(), precision=torch.float32)
    assert result.precision == "float32"
    assert any("autocast is off" in note for note in result.notes)
    forced = options(tmp_path, precision="bf16")
    result = session.run_step("01_small.py", forced, loader, small_step(), precision=torch.bfloat16)
    assert result.precision == "bfloat16"
    assert any("emulated" in note for note in result.notes)


def test_any_batch_is_trained_on_and_its_tokens_are_counted(tmp_path):
    class Texts(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.full((7,), index), torch.ones(7), torch.tensor(index % 2)

    layer = torch.nn.Linear(7, 2)

    def train_step(tokens, mask, label):
        return torch.nn.functional.cross_entropy(layer(tokens * mask), label)

    loader = DataLoader(Texts(), batch_size=4, drop_last=True)
    result = session.run_step(
        "00_texts.py", options(tmp_path), loader, train_step, count_tokens=lambda batch: batch[1].sum()
    )
    assert result.data == "Texts"
    assert result.batch_bytes == 4 * (7 * 8 + 7 * 4 + 8)
    tokens, samples = result.tokens_per_second, result.samples_per_second
    assert tokens.windows == pytest.approx([7 * speed for speed in samples.windows])
    assert record.read_result(tmp_path / "00_texts" / "result.json") == result


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}, {tests!r} + "/common"]
from walkthrough.results import folder
from results import make_result

def dying(operation, calls):
    def call(*arguments, **options):
        calls.append(1)
        if len(calls) == {moment}:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*arguments, **options)
    return call

logdir = Path({logdir!r})
with folder.own_folder(logdir, "09_small") as (final, staging):
    (staging / "trace.json.gz").write_bytes(Path({trace!r}).read_bytes())
    (staging / "events").write_bytes(Path({events!r}).read_bytes())
    calls = []
    os.replace = dying(os.replace, calls)
    Path.unlink = dying(Path.unlink, calls)
    result = make_result("09_small", trace=folder.stamp() + ".pt.trace.json.gz")
    folder.publish(final, staging, "trace.json.gz", "events", result)
assert "torch" not in sys.modules
os.kill(os.getpid(), signal.SIGTERM)  # it has outlived all its moments
"""


def test_a_run_killed_at_any_moment_leaves_nothing_torn(tmp_path):
    """SIGKILL just before each operation that changes what others see: after each, one whole run is there."""
    earlier = run_small(tmp_path / "made")
    trace, [events] = tmp_path / "made" / "09_small" / earlier.trace, (tmp_path / "made" / "09_small").glob("events.*")
    logdir = tmp_path / "logs"
    (logdir / "09_small").mkdir(parents=True)
    for file in (tmp_path / "made" / "09_small").iterdir():
        (logdir / "09_small" / file.name).write_bytes(file.read_bytes())
    folder = logdir / "09_small"
    paths = {"root": ROOT, "tests": ROOT / "tests" / "support", "logdir": logdir, "trace": trace, "events": events}
    paths = {name: str(path) for name, path in paths.items()}
    for moment in itertools.count(1):
        finished = run_program("-c", KILLED.format(**paths, moment=moment))
        result = record.read_result(folder / "result.json")
        assert read_events(folder / result.trace)
        for path in folder.glob("*.pt.trace.json.gz"):
            assert read_events(path)
        for path in folder.glob("events.out.tfevents.*"):
            assert list(EventFileLoader(str(path)).Load())
        if finished.returncode == -signal.SIGTERM:
            break
        assert finished.returncode == -signal.SIGKILL, finished.stderr
    assert moment > 6  # result in staging, trace, events, result, the old run's two files
    assert {path.name for path in logdir.iterdir()} <= {"09_small", ".09_small.lock"}
    assert len(list(folder.iterdir())) == 3


RANKS = """
import sys
sys.path[:0] = [{root!r}, {tests!r}, {tests!r} + "/common"]
from pathlib import Path
import torch.distributed as dist
from torch.utils.data import DataLoader
from common import session
from common import ranks
from test_session import Images, options, small_step

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=2)
result = session.run_step(
    "11_small.py", options(Path({logdir!r})), DataLoader(Images(), batch_size=4, drop_last=True), small_step()
)
assert (result is None) == (rank == 1)
assert ranks.summed([rank + 1.0, 2.0]) == [3.0, 4.0]
assert ranks.from_rank_0(rank) == 0
dist.destroy_process_group()
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert not [name for name in threads if "gloo" in name], threads  # they could abort a process that ends
"""


def test_processes_that_train_together_count_together_and_rank_0_writes(tmp_path):
    program = RANKS.format(
        root=str(ROOT), tests=str(ROOT / "tests"), store=tmp_path / "store", logdir=str(tmp_path / "logs")
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    result = record.read_result(tmp_path / "logs" / "11_small" / "result.json")
    assert (result.world_size, result.batch_size) == (2, 4)
    assert {path.name for path in (tmp_path / "logs").iterdir() if not path.name.startswith(".")} == {"11_small"}


def test_a_run_killed_while_it_measures_leaves_nothing(tmp_path):
    program = ROOT / "steps" / "00_baseline.py"
    process = subprocess.Popen(
        [sys.executable, str(program), "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.strip().startswith("window 1"):
            process.kill()
            break
    process.communicate(timeout=600)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_ctrl_c_says_so_and_leaves_nothing(tmp_path):
    program = ROOT / "steps" / "00_baseline.py"
    process = subprocess.Popen(
        [sys.executable, str(program), "--device", "cpu", "--logdir", str(tmp_path), "--data", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen_to_ctrl_c,
    )  # fmt: skip
    for line in process.stdout:
        if line.strip().startswith("window 1"):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("00_baseline: interrupted")
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def test_a_step_runs_with_nothing_but_torch_torchvision_and_tensorboard(tmp_path):
    """As on somebody's GPU machine: the clone on Python's path, and none of the other packages there."""
    blocked = ["rich", "matplotlib", "pandas", "torch_tb_profiler", "IPython", "jupyter", "msgspec", "pytest"]
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
    )
    finished = run_program(
        ROOT / "steps" / "00_baseline.py", "--quick", "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path,
        cwd=tmp_path, PYTHONPATH=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "00_baseline" / "result.json").exists()
