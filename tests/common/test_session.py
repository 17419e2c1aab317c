"""The session: what is measured and when, and that a run is replaced by a whole one or not at all."""

import errno
import gzip
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from support import ROOT, SmallNet, run_program, start_program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.data import DataLoader, Dataset
from torch_tb_profiler.consts import WORKER_PATTERN

from common import session, timing, tracing
from common.device import without_gpu
from common.options import StepOptions
from walkthrough.results import environment
from walkthrough.results import result as record
from walkthrough.results.errors import InputError


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


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run: its result, its folder, and what was printed. Its first step takes 100 s longer, as if it compiled."""
    logdir, now, trained, step, printed = tmp_path_factory.mktemp("small"), [0.0], [], small_step(), []

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
        patch.setattr(session.progress, "say", printed.append)
        result = session.run_step("steps/09_small.py", options(logdir), loader, train_step)
    return SimpleNamespace(result=result, folder=logdir / "09_small", printed="\n".join(printed))


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


def test_what_is_printed_has_units_that_fit_and_says_what_it_counts(small):
    peak = small.result.peak_memory_bytes.allocated
    assert f"peak memory {peak / 1e6:.1f} MB (what the traced steps allocate, without weights)" in small.printed
    assert f"{small.result.ms_per_step:.1f} ms per step" in small.printed
    assert "the first step took 100.0 s" in small.printed
    assert session._peak_in_words(2_510_000_000, torch.device("cuda")) == "peak memory 2.51 GB (allocated on the GPU)"


def test_what_distorts_a_run_is_noted(tmp_path, capsys, monkeypatch):
    """No nvidia-smi, new pages of each of the three traced steps, and a trace that shows nothing of its GPU."""
    gpu, seen = torch.device("cuda"), []

    def new_pages(traced, timed):
        seen.append((list(traced), timed))
        return ["the traced steps touch new pages"]

    count = itertools.count(0, 10).__next__  # 10 from one call to the next
    monkeypatch.setattr(timing, "page_faults", count)
    monkeypatch.setattr(tracing, "faults_so_far", count)
    monkeypatch.setattr(session, "new_pages", new_pages)
    monkeypatch.setattr(session.GpuWatch, "notes", ["there is no nvidia-smi"])
    monkeypatch.setattr(session, "without_kernels", lambda events, device: tracing.without_kernels(events, gpu))
    monkeypatch.setenv("WALKTHROUGH_PROGRESS", "json")  # as `record` and `tour` follow it
    smi, kernels, pages = run_small(tmp_path).notes[-3:]
    assert (smi, pages) == ("there is no nvidia-smi", "the traced steps touch new pages")
    [line] = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert line == kernels
    assert "the trace holds no kernels" in line
    assert line.endswith("run again")
    [(traced, timed)] = seen
    assert traced == [10, 10, 10]
    assert 0 < timed <= 2  # of all steps of five windows


def test_what_names_no_commit_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv(environment.COMMIT_VARIABLE, "main")
    with pytest.raises(InputError, match="is no commit"):
        run_small(tmp_path, failing=AssertionError("trained"))
    assert not (tmp_path / "09_small").exists()


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


def of_torch(name, *words):
    """An error of torch's compiler, by name: which takes seconds to import."""
    from torch._dynamo import exc as dynamo
    from torch._inductor import exc as inductor

    return (getattr(dynamo, name, None) or getattr(inductor, name))(*words)


def inside(error):
    return of_torch("InductorError", error, None)


NO_C = "Failed to find C compiler. Please specify via CC environment variable"
TORN = "/tmp/inductor/kr/ckre.main.so: file too short"
NOT_COMPILED = [
    (lambda: of_torch("InvalidCxxCompiler"), r"no C\+\+ compiler that works: install one"),
    (lambda: inside(of_torch("InvalidCxxCompiler")), r"no C\+\+ compiler that works"),
    (lambda: inside(RuntimeError(NO_C)), "no C compiler that works: install one, such as gcc"),
    (lambda: of_torch("BackendCompilerFailed", min, ValueError("odd. Very"), None), r"Failed: ValueError: odd\)"),
    (lambda: of_torch("Unsupported", "call_method item"), r"\(Unsupported: call_method item"),
    (lambda: inside(ImportError(TORN)), "cache holds a broken file.*remove the folder /tmp/inductor and run"),
    (lambda: of_torch("TritonMissing", None), "needs Triton for a GPU.*pip install triton"),
    (lambda: RuntimeError("torch.compile is not supported on Python 3.16+"), r"3.16\+: use a Python"),
    (lambda: RuntimeError("Dynamo is not supported on Python 3.17+"), r"3.17\+: use a Python"),
]


@pytest.mark.parametrize(("error", "message"), NOT_COMPILED)
def test_what_cannot_be_compiled_is_one_line_that_says_what_to_do(tmp_path, error, message):
    with pytest.raises(InputError, match=message) as refused:
        run_small(tmp_path, failing=error())
    assert str(refused.value).endswith("or skip this step")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "09_small").exists()


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("oh, torch.compile is not supported by this")])
def test_an_error_of_another_kind_keeps_its_traceback_and_the_earlier_run_is_as_it_was(tmp_path, small, error):
    (folder := tmp_path / "09_small").mkdir()
    before = {path.name: path.read_bytes() for path in small.folder.iterdir()}
    for name, content in before.items():
        (folder / name).write_bytes(content)
    with pytest.raises(type(error)):
        run_small(tmp_path, failing=error)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / ".09_small.partial").exists()


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
    assert finished.stderr.splitlines()[-1].startswith("08_small: torch.compile found no C++ compiler that works")
    assert not list((tmp_path / "logs").glob("08_small/*"))


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


def test_a_second_run_of_the_same_step_at_the_same_time_is_refused(tmp_path):
    with FileLock(tmp_path / ".09_small.lock"), pytest.raises(InputError, match="another run of 09_small"):
        run_small(tmp_path, failing=AssertionError("trained"))


REFUSED = {
    "GPU memory": (torch.OutOfMemoryError("CUDA out of memory"), r"out of memory .*size 4: try --batch-size 2"),
    "Python's memory": (MemoryError(), r"out of memory .*batch size 4: try --batch-size 2"),
    "CPU memory": (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
                   r"out of memory .*batch size 4: try --batch-size 2"),
    "driver": (RuntimeError("CUDA error: out of memory"), r"out of memory .*batch size 4: try --batch-size 2"),
    "cuBLAS": (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
               r"out of memory .*batch size 4: try --batch-size 2"),
    "memory while compiling": (lambda: inside(RuntimeError("CUDA out of memory")), "out of memory"),
    "small /dev/shm": (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left"),
                       "--workers 1.*--shm-size"),
    "bus error": (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is"), "--workers 1"),
    "open files": (RuntimeError("Too many open files. Communication with the workers is no longer possible."),
                   "--workers 1"),
    "no more processes": (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "--workers 1"),
}  # fmt: skip


@pytest.mark.parametrize(("error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_system_refuses_is_explained_with_what_to_try(tmp_path, error, message):
    loader = DataLoader(Images(), batch_size=4, num_workers=1, drop_last=True)
    with pytest.raises(InputError, match=message):
        run_small(tmp_path, failing=error if isinstance(error, Exception) else error(), loader=loader)
    assert not (tmp_path / "09_small").exists()


def test_out_of_memory_does_not_suggest_an_option_that_has_no_effect_in_the_step(tmp_path):
    with pytest.raises(InputError, match="batch size 4: try a smaller --model or --image-size"):
        run_small(tmp_path, failing=MemoryError(), batch_size=8)


def test_a_worker_killed_by_the_system_is_explained(tmp_path):
    loader = DataLoader(Images(kill_worker=True), batch_size=4, num_workers=1, drop_last=True)
    with pytest.raises(InputError, match=r"a loader worker was .*--workers 1"):
        run_small(tmp_path, loader=loader)
    assert not (tmp_path / "09_small").exists()


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--batch-size 41 is larger than the data \(40 images\)"):
        run_small(tmp_path, loader=DataLoader(Images(), batch_size=41, drop_last=True))


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("walkthrough.results.folder.os.replace", errno.ENOSPC),
        ("walkthrough.results.folder.os.replace", errno.EACCES),
        ("common.session.shutil.copyfileobj", errno.ENOSPC),
    ],
)
def test_what_cannot_be_written_is_explained(tmp_path, monkeypatch, place, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(place, refuse)
    with pytest.raises(InputError, match=os.strerror(code)):
        run_small(tmp_path)
    assert not (tmp_path / "09_small" / "result.json").exists()


@pytest.mark.parametrize(
    "text", [None, "", '{"traceEvents": [{"name": "a"}', '{"traceEvents": [{"name": "a"}, {"args": {}}']
)
def test_a_trace_cut_short_by_a_full_disk_is_not_taken_for_a_run(tmp_path, monkeypatch, text):
    """The profiler itself says nothing when it cannot write on. None: not even a file."""

    def export(self, path):
        if text is not None:
            Path(path).write_text(text)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    with pytest.raises(InputError, match="could not be written whole"):
        run_small(tmp_path)
    assert not (tmp_path / "09_small").exists()


def test_a_log_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        run_small(tmp_path / "file" / "logs")


def test_what_a_cpu_cannot_show_is_noted_by_the_step_whose_change_has_no_effect(tmp_path):
    loader, args = DataLoader(Images(), batch_size=4, drop_last=True, pin_memory=True), options(tmp_path)
    result = session.run_step("05_pinned_memory.py", args, loader, small_step(), notes=["from the step"])
    assert result.notes[0] == "from the step"
    assert [note for note in result.notes if "no GPU" in note] == without_gpu("pinned_memory", "cpu")
    assert any("smoke run" in note for note in result.notes)
    assert result.pin_memory


@pytest.mark.parametrize(
    ("precision", "dtype", "note"),
    [("auto", torch.float32, "autocast is off"), ("bf16", torch.bfloat16, "emulated"), ("auto", None, None)],
)
def test_precision_and_what_the_device_cannot_do_of_it_are_recorded(tmp_path, monkeypatch, precision, dtype, note):
    monkeypatch.setattr("common.device.cpu_bf16_hardware", lambda: None)
    notes = session._notes("09_small", options(tmp_path, precision=precision), torch.device("cpu"), dtype)
    assert any(word in text for text in notes for word in ("autocast", "emulated")) == bool(note)
    assert not note or any(note in text for text in notes)
    assert not any("no GPU" in text for text in notes)


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
        "00_texts.py", options(tmp_path), loader, train_step, torch.bfloat16, count_tokens=lambda batch: batch[1].sum()
    )
    assert (result.data, result.precision) == ("Texts", "bfloat16")
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


def test_a_run_killed_at_any_moment_leaves_nothing_torn(tmp_path, small):
    """SIGKILL just before each operation that changes what others see: after each, one whole run is there."""
    trace, [events] = small.folder / small.result.trace, small.folder.glob("events.*")
    logdir, folder = tmp_path / "logs", tmp_path / "logs" / "09_small"
    folder.mkdir(parents=True)
    for file in small.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_run_ended_while_it_measures_leaves_nothing_and_says_so_after_ctrl_c(tmp_path, number, code):
    program = ROOT / "steps" / "00_baseline.py"
    process = start_program(sys.executable, program, "--device", "cpu", "--logdir", tmp_path, "--data", tmp_path)
    for line in process.stdout:
        if line.strip().startswith("window 1"):
            process.send_signal(number)
            break
    _, errors = process.communicate(timeout=600)
    assert process.returncode == code
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    if number == signal.SIGINT:
        assert errors.splitlines()[-1].startswith("00_baseline: interrupted")
        assert all(path.suffix == ".lock" for path in tmp_path.iterdir())


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
