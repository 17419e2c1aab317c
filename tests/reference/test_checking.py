"""Records handed on: what is whole and unedited passes, everything else is refused by name and nothing is imported."""

import contextlib
import gzip
import json
import os
import shutil
import stat
import struct
import zipfile
from dataclasses import asdict, replace
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, make_limit, make_result, run_program
from support.trace_builder import TraceBuilder

from common import record
from common.__main__ import main
from common.reference import checking as verification
from common.reference import packing as contribution
from common.reference import page as reference_page
from common.run import not_run, privacy
from common.run.event_file import scalars
from common.run.events import write_events

STEPS = ["00_baseline", "01_amp"]
GPU = {"id": 0, "name": "Test GPU", "computeMajor": 9, "computeMinor": 0}
ENVIRONMENT = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.1", "python": "3.12.3"}
ENVIRONMENT |= {"platform": "Linux-6.18.44-fc-v657-x86_64-with-glibc2.36", "cpu": "CPU @ 1.90GHz", "cores": 16}
MEDIANS = {"median/step_ms": 1.0, "median/images_per_second": 32_001.0}
SHIPPED = sorted(path for folder in ("logs/reference", "tests/data") for path in (ROOT / folder).rglob("*"))


def a_result(step, run):
    """One run of a step of 1 ms on 32 images."""
    speed = 32_000.0 + run
    return make_result(
        step,
        windows=[speed - 2, speed - 1, speed, speed + 1, speed + 2],
        step_ms=record.StepTime(1.0, 0.9, 1.2),
        trace=f"{step}.1795000000001.pt.trace.json.gz",
        environment=record.Environment(**ENVIRONMENT, git="0123456789ab"),
        started=f"2026-01-01T00:0{run}:00+00:00",
    )


def a_trace(result):
    """Three steps that copy a batch to the GPU and convolve it."""
    made = TraceBuilder(devices=[GPU])
    for number in (2, 3, 4):
        begin = number * 2000
        made.step(number, begin, 1500)
        made.copy(begin + 10, 20, begin + 20, 200, result.batch_bytes)
        op = made.op("aten::conv2d", begin + 300, 100)
        op["args"]["Input Dims"] = [[result.batch_size, 3, result.image_size, result.image_size], [32, 3, 3, 3], []]
        made.launch("void at::native::(anonymous namespace)::conv<float>()", begin + 310, 10, begin + 330, 900, op=op)
    return made.json | {"traceName": result.trace.removesuffix(".gz")}


def write_trace(path, trace):
    path.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0))


def sum_up(folder):
    """Write what `record` derives from the runs: each step's result, and the page."""
    for step in STEPS:
        record.write_result(folder / step / record.FILE, record.merged(record.read_runs(folder / step)))
    reference_page.write_page(folder)


@pytest.fixture(scope="session")
def made_record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "test-gpu"
    settings = {"device": "Test GPU", "data": "cifar10", "model": "mobilenet_v2", "image_size": 224}
    settings |= {"batch_size": 128, "workers": 8, "seed": 0, "quick": False}
    header = {"schema": 1, "settings": settings, "environment": ENVIRONMENT, "code": "0123456789abcdef" * 4}
    for step in STEPS:
        (folder / step / "runs").mkdir(parents=True)
        for run in (1, 2):
            record.write_result(folder / step / "runs" / f"{run}.json", a_result(step, run))
        write_trace(folder / step / a_result(step, 1).trace, a_trace(a_result(step, 1)))
        write_events(
            folder / step / f"events.out.tfevents.1795000000.{step}.1795000000001",
            [("loss", 1, 2.3), ("loss", 2, 3.6)], {"precision": "float32", "workers": 0}, MEDIANS,
        )  # fmt: skip
    (folder / "record.json").write_text(json.dumps(header, indent=2) + "\n")
    sum_up(folder)
    return folder


@pytest.fixture
def folder(made_record, tmp_path):
    """A valid record, to be spoiled."""
    return shutil.copytree(made_record, tmp_path / "test-gpu")


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """command("--check", path): exit code, output and error lines of `record`, run in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["record", *map(str, words)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out.splitlines(), printed.err.splitlines()

    return run


def tree(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def assert_refused(command, tmp_path):
    """`--add`, which checks first, does not take it, says so in one line with these words, and nothing is imported."""

    def refuse(path, *words):
        logdir = tmp_path / "logs"
        logdir.mkdir(exist_ok=True)
        (logdir / "mine").write_text("as it was")
        code, out, err = command("--add", path, "--logdir", logdir)
        assert (code, out, len(err)) == (2, [], 1), err
        for word in words:
            assert word in err[0]
        assert "/record/" not in err[0]  # the private copy is nobody's business
        assert tree(logdir) == {(logdir / "mine").relative_to(logdir): b"as it was"}

    return refuse


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_limit(folder, **changes):
    (folder / "limit.json").write_text(json.dumps(asdict(make_limit(**changes)), indent=2) + "\n")


def test_a_record_may_hold_the_limit_of_its_device(folder, command):
    write_limit(folder)
    (folder / ".ablation.lock").touch()
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert "limit.json: of the same device, model and image size" in out
    assert command("--pack", folder)[0] == 0
    assert command("--add", "test-gpu.zip", "--logdir", "taken in")[0] == 0
    assert (folder / "limit.json").read_bytes() == (folder.parent / "taken in/test-gpu/limit.json").read_bytes()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device": "Other GPU"}, "limit.json is of device 'Other GPU', the record of 'Test GPU'"),
        ({"model": "resnet50"}, "limit.json is of model 'resnet50'"),
        ({"image_size": 64}, "limit.json is of image_size 64"),
        ({"floors": []}, "limit.json is broken"),
        ({"batch_size": 0}, "limit.json is broken"),
        ({"notes": ["smoke run (--quick): rough"]}, "limit.json is a smoke run"),
        ({"notes": ["<b>"]}, "limit.json holds an odd text"),
        ({"not_compiled": "/home/ada/cc"}, "limit.json holds"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_the_limit_of_something_else_is_refused(folder, assert_refused, changes, told):
    write_limit(folder, **changes)
    assert_refused(folder, told)


def test_a_record_passes_as_a_folder_and_as_an_archive_and_comes_back_as_it_was(folder, command, tmp_path):
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert out[-1] == "ok"
    assert [line.split(":")[0] for line in out[:-1]] == STEPS
    assert "2 runs, 10 windows, a trace of 3 steps on Test GPU, 3 kinds of scalars" in out[0]
    code, out, _ = command("--pack", folder)
    assert code == 0
    assert any("test-gpu.zip" in line for line in out)
    assert command("--check", "test-gpu.zip")[0] == 0
    assert command("--add", "test-gpu.zip", "--logdir", "new/logs")[0] == 0
    assert tree(tmp_path / "new" / "logs" / "test-gpu") == tree(folder)
    assert [path.name for path in (tmp_path / "new" / "logs").iterdir()] == ["test-gpu"]


def test_an_archive_has_the_same_bytes_whenever_it_is_made(folder, command, tmp_path):
    command("--pack", folder)
    first = (tmp_path / "test-gpu.zip").read_bytes()
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    folder.joinpath(".record.lock").touch()  # what `record` leaves behind is not packed
    assert command("--pack", folder)[0] == 0
    assert (tmp_path / "test-gpu.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == sorted(archive.namelist())


def test_a_record_with_a_step_that_was_not_run_passes_and_says_why(folder, command, tmp_path):
    not_run.write(folder / "08_compile", "08_compile", "torch.compile found no C++ compiler that works")
    reference_page.write_page(folder)
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert out[-2:] == ["08_compile: not run: torch.compile found no C++ compiler that works", "ok"]
    assert command("--pack", folder)[0] == 0
    assert command("--add", "test-gpu.zip", "--logdir", "new/logs")[0] == 0
    assert tree(tmp_path / "new" / "logs" / "test-gpu") == tree(folder)


def test_a_step_whose_data_is_on_the_device_copies_nothing(folder, command, assert_refused):
    def on_device(copied_bytes):
        for step in STEPS:
            for path in (folder / step / "runs").iterdir():
                record.write_result(path, replace(record.read_result(path), batch_bytes=0))
            trace = a_trace(a_result(step, 1))
            copied(copied_bytes)(trace)
            write_trace(folder / step / a_result(step, 1).trace, trace)
        sum_up(folder)

    on_device(4)
    assert command("--check", folder)[0] == 0
    on_device(1_000_000)
    assert_refused(folder, "a step copies 1000000 bytes to the GPU, a batch has 0")


def test_a_record_that_is_there_is_not_replaced(folder, command, tmp_path):
    assert command("--add", folder, "--logdir", "logs")[0] == 0
    before = tree(tmp_path / "logs")
    code, _, err = command("--add", folder, "--logdir", "logs")
    assert (code, len(err)) == (2, 1)
    assert "there already" in err[0]
    assert tree(tmp_path / "logs") == before


def test_checking_writes_nothing_beside_what_it_checks(folder, command, tmp_path):
    before = tree(tmp_path)
    command("--check", folder)
    assert tree(tmp_path) == before


def test_pack_check_and_add_exclude_each_other_and_start_without_torch(folder, command):
    code, _, err = command("--pack", folder, "--check", folder)
    assert (code, len(err)) == (2, 1)
    code = "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchvision'])); "
    code += f"from common.__main__ import main; main(['record', '--check', {str(folder)!r}])"
    finished = run_program("-c", code, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr


def remove(name):
    return lambda folder: (folder / name).unlink()


def run(change, name="00_baseline/runs/1.json", summed=True):
    """Edit one run, and by default all that follows from it."""

    def spoil(folder):
        edit(folder / name, change)
        if summed:
            sum_up(folder)

    return spoil


def header(**changes):
    return lambda folder: edit(folder / "record.json", lambda value: value.update(changes))


def traced(change, step="00_baseline"):
    def spoil(folder):
        [path] = (folder / step).glob("*.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
        change(trace)
        write_trace(path, trace)

    return spoil


def text(name, written):
    """Put text or bytes in place of a file, or beside the others."""
    return lambda folder: (folder / name).write_bytes(written if isinstance(written, bytes) else written.encode())


def not_run_as(**value):
    def spoil(folder):
        (folder / "02_x").mkdir()
        (folder / "02_x" / "not_run.json").write_text(json.dumps({"step": "02_x"} | value, indent=2) + "\n")

    return spoil


def windows(*speeds):
    return lambda value: value["samples_per_second"].update(windows=list(speeds))


def each_event(**changes):
    return lambda trace: [
        event["args"].update(changes) for event in trace["traceEvents"] if "Input Dims" in event["args"]
    ]


def copied(size):
    return lambda trace: [
        event["args"].update(bytes=size) for event in trace["traceEvents"] if "bytes" in event["args"]
    ]


def allocated(total):
    made = {"Device Type": 0, "Device Id": -1, "Bytes": 1, "Total Allocated": total}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 4000, "args": made}


TRACE = "00_baseline/00_baseline.1795000000001.pt.trace.json.gz"
EVENTS = "00_baseline/events.out.tfevents.1795000000.00_baseline.1795000000001"
DEEP = "[" * 100_000
RESERVED = {"allocated": 2_510_000_000, "reserved": 1}
SPOILED = {
    "runs of a step that was not run": (
        lambda folder: not_run.write(folder / "01_amp", "01_amp", "because"), ["is there although 01_amp was not run"],
    ),
    "no step that was run": (
        lambda folder: [
            [shutil.rmtree(folder / step), not_run.write(folder / step, step, "because")] for step in STEPS
        ],
        ["none of its steps was run"],
    ),
    "a step that was not run, for another's reason": (
        lambda folder: not_run.write(folder / "02_x", "01_amp", "because"), ["02_x/not_run.json is broken"],
    ),
    "a reason with a path": (not_run_as(reason="see /home/ann/x"), ["02_x/not_run.json", "/home/ann"]),
    "a reason with more in it": (not_run_as(reason="so", more=1), ["02_x/not_run.json is broken"]),
    "a reason that the page does not give": (not_run_as(reason="so"), ["README.md is not the page"]),
    "no header": (remove("record.json"), ["record.json is missing"]),
    "no page": (remove("README.md"), ["README.md is missing"]),
    "no result": (remove("00_baseline/result.json"), ["00_baseline has no result.json"]),
    "no trace": (remove(TRACE), ["00_baseline has no trace"]),
    "no events": (remove(EVENTS), ["00_baseline has no TensorBoard event file"]),
    "no runs": (lambda folder: shutil.rmtree(folder / "00_baseline" / "runs"), ["runs/1.json is missing"]),
    "a hole in the runs": (remove("00_baseline/runs/1.json"), ["00_baseline/runs/1.json is missing"]),
    "fewer runs of one step": (remove("01_amp/runs/2.json"), ["different numbers of runs (1, 2)"]),
    "two traces": (text(TRACE.replace("001.pt", "002.pt"), b""), ["2 traces"]),
    "a foreign file": (text("00_baseline/notes.txt", "hello"), ["00_baseline/notes.txt", "no file of a record"]),
    "a foreign folder": (lambda folder: (folder / "more").mkdir(), ["more is a folder"]),
    "a hidden file": (text(".bashrc", ""), [".bashrc"]),
    "a name that a terminal obeys": (text("\x1b[31mred", ""), ["\ufffd[31mred"]),
    "an edited figure": (
        lambda folder: edit(folder / "01_amp/result.json", lambda value: value.update(batch_bytes=1)),
        ["01_amp/result.json is not what its runs give"],
    ),
    "an edited page": (
        lambda folder: (folder / "README.md").write_text((folder / "README.md").read_text().replace("32001", "99001")),
        ["README.md is not the page"],
    ),
    "an edited median": (
        run(lambda value: value["samples_per_second"].update(median=32_002.0)), ["its median, 32002"],
    ),
    "an edited window": (run(windows(1.0, 2.0, 3.0, 4.0, 5.0), summed=False), ["runs/1.json: its median, 32001"]),
    "four windows": (run(windows(32000.0, 32001.0, 32001.0, 32002.0)), ["4 windows"]),
    "edited speeds that do not fit the steps": (
        run(lambda value: value.update(samples_per_second={"median": 2e5, "windows": [2e5] * 5})), ["do not fit"],
    ),
    "edited speeds below what the slowest steps allow": (
        run(lambda value: value.update(samples_per_second={"median": 5e3, "windows": [5e3] * 5})), ["do not fit"],
    ),
    "step times out of order": (run(lambda value: value["step_ms"].update(p10=1.1)), ["not in order"]),
    "another step's run": (run(lambda value: value.update(step="01_amp")), ["step is '01_amp', not '00_baseline'"]),
    "another device": (run(lambda value: value.update(device="Best GPU")), ["device is 'Best GPU', not 'Test GPU'"]),
    "another image size": (run(lambda value: value.update(image_size=32)), ["image_size is 32, not 224"]),
    "another torch": (run(lambda value: value["environment"].update(torch="1.0")), ["torch is '1.0'"]),
    "another trace": (run(lambda value: value.update(trace="x.gz")), ["trace is 'x.gz'"]),
    "another batch in one run": (run(lambda value: value.update(batch_size=33)), ["batch_size differs"]),
    "reserved less than allocated": (run(lambda value: value.update(peak_memory_bytes=RESERVED)), ["impossible size"]),
    "a size beyond all numbers": (run(lambda value: value.update(batch_bytes=10**400), summed=False), ["impossible"]),
    "uncommitted code": (run(lambda value: value["environment"].update(git="0123456789ab-dirty")), ["no commit"]),
    "no time": (run(lambda value: value.update(started="yesterday")), ["started is no time"]),
    "a field too many": (run(lambda value: value.update(more=1), summed=False), ["fields that no result has"]),
    "a field too few": (run(lambda value: value.pop("notes"), summed=False), ["runs/1.json is broken: notes"]),
    "a text that a terminal obeys": (run(lambda value: value.update(notes=["\x1b[2J"])), ["odd text (\ufffd[2J)"]),
    "another schema": (header(schema=2), ["record.json has schema 2"]),
    "a header with more in it": (header(more=1), ["record.json: more is unknown"]),
    "a header with less in it": (
        lambda folder: edit(folder / "record.json", lambda value: value["settings"].pop("seed")),
        ["settings.seed is missing"],
    ),
    "a header of wrong types": (
        lambda folder: edit(folder / "record.json", lambda value: value["settings"].update(workers=True)),
        ["settings.workers has a wrong type"],
    ),
    "code without its hash": (header(code="none"), ["code is no SHA-256"]),
    "settings that are none": (header(settings=[]), ["record.json: settings has a wrong type"]),
    "JSON cut off": (text("00_baseline/runs/1.json", '{"schema": 1'), ["runs/1.json is broken: not JSON"]),
    "JSON nested deeply": (text("00_baseline/runs/1.json", DEEP), ["runs/1.json is broken", "nested too deeply"]),
    "a header nested deeply": (text("record.json", DEEP), ["record.json is broken", "nested too deeply"]),
    "JSON that is no UTF-8": (text("record.json", b'{"\xff": 1}'), ["record.json is broken"]),
    "JSON that is a list": (text("record.json", "[]\n"), ["record.json is broken: not an object"]),
    "NaN": (run(lambda value: value["step_ms"].update(p10=float("nan")), summed=False), ["NaN is no number"]),
    "a key that is there twice": (text("record.json", '{"schema": 1, "schema": 1}'), ["not as `record` writes it"]),
    "a page with a path": (
        lambda folder: (folder / "README.md").write_text("see /home/ann/x\n"), ["README.md holds an absolute path"],
    ),
    "a path in a note": (run(lambda value: value.update(notes=["in /home/ann/x"])), ["runs/1.json holds", "/home/ann"]),
    "a host in the trace": (traced(lambda trace: trace.update(host_name="box")), [TRACE, "the key 'host_name'"]),
    "a path in the trace": (traced(each_event(Name="C:\\Users\\ann")), [TRACE, "an absolute path", "Users"]),
    "a path as a key of the trace": (traced(each_event(**{"/home/ann": 1})), [TRACE, "an absolute path"]),
    "call stacks": (traced(each_event(**{"Call stack": "a.py(1): f"})), [TRACE, "call stacks"]),
    "a trace of another name": (traced(lambda trace: trace.update(traceName="x")), ["named otherwise"]),
    "another GPU's trace": (
        traced(lambda trace: trace["deviceProperties"][0].update(name="Old GPU")),
        [TRACE, "it is from Old GPU, not from Test GPU"],
    ),
    "a trace without a GPU": (
        traced(lambda trace: trace.update(traceEvents=[e for e in trace["traceEvents"] if e["cat"] != "kernel"])),
        ["from no GPU"],
    ),
    "a trace of another batch": (
        traced(each_event(**{"Input Dims": [[16, 3, 224, 224]]})), [TRACE, "takes a batch of shape [32, 3, 224, 224]"],
    ),
    "a trace of smaller copies": (traced(copied(19_267_840 // 4)), ["a step copies 4816960 bytes"]),
    "a trace without steps": (
        traced(lambda trace: trace.update(traceEvents=[e for e in trace["traceEvents"] if "#" not in e["name"]])),
        ["marks no steps"],
    ),
    "a trace of much slower steps": (
        traced(lambda trace: [e.update(ts=e["ts"] * 50, dur=e["dur"] * 50) for e in trace["traceEvents"]]),
        ["its steps take"],
    ),
    "a trace of much faster steps": (
        traced(lambda trace: [e.update(ts=e["ts"] / 20, dur=e["dur"] / 20) for e in trace["traceEvents"]]),
        ["its steps take 0.075 ms"],
    ),
    "no trace at all": (traced(lambda trace: trace.update(traceEvents=[])), [TRACE, "no events"]),
    "a trace nested deeply": (text(TRACE, gzip.compress(DEEP.encode(), mtime=0)), [TRACE, "nested too deeply"]),
    "a trace that is no gzip": (text(TRACE, b"{}"), [TRACE, "no gzip"]),
    "a trace packed with its owner's file name": (
        lambda folder: (folder / TRACE).write_bytes(
            b"\x1f\x8b\x08\x08" + bytes(6) + b"ann.json\0" + (folder / TRACE).read_bytes()[10:]
        ),
        [TRACE, "packed otherwise"],
    ),
    "a trace with something behind it": (
        lambda folder: (folder / TRACE).write_bytes((folder / TRACE).read_bytes() + b"more"), ["packed otherwise"],
    ),
    "a trace cut off": (
        lambda folder: (folder / TRACE).write_bytes((folder / TRACE).read_bytes()[:-20]), [TRACE, "cut off"],
    ),
    "a huge trace": (text(TRACE, bytes(1_500_001)), [TRACE, "larger than 1.5 MB"]),
    "huge JSON": (text("01_amp/runs/1.json", bytes(1_000_001)), ["01_amp/runs/1.json is larger than 1.0 MB"]),
    "a huge page": (text("README.md", bytes(200_001)), ["README.md is larger than 0.2 MB"]),
    "events cut off": (
        lambda folder: (folder / EVENTS).write_bytes((folder / EVENTS).read_bytes()[:-1]), [EVENTS, "damaged"],
    ),
    "empty events": (text(EVENTS, b""), [EVENTS, "no scalar"]),
    "events of another run": (
        lambda folder: (folder / EVENTS).rename(folder / EVENTS.replace("00001", "00002")), ["is not of the run"],
    ),
    "a path in the events": (
        lambda folder: write_events(folder / EVENTS, [("/home/ann/loss", 1, 1.0)], {}, {}), [EVENTS, "/home/ann/loss"],
    ),
    "events of other figures": (
        lambda folder: write_events(folder / EVENTS, [], {}, MEDIANS | {"median/step_ms": 2.0}), [EVENTS, "step_ms"],
    ),
    "events with a wrong checksum": (
        lambda folder: (folder / EVENTS).write_bytes(spoilt((folder / EVENTS).read_bytes())), [EVENTS, "checksum"],
    ),
    "runs that are not interleaved": (
        run(lambda value: value.update(started="2026-01-01T00:09:00+00:00")), ["not interleaved"],
    ),
    "smoke runs": (
        lambda folder: edit(folder / "record.json", lambda value: value["settings"].update(quick=True)), ["smoke runs"],
    ),
    "HTML in a note": (run(lambda value: value.update(notes=["<img src=x onerror=alert(1)>"])), ["odd text"]),
    "a mark of the docs in a note": (run(lambda value: value.update(notes=["A <!-- end --> B"])), ["odd text"]),
    "a link in a note": (run(lambda value: value.update(notes=["x](up) [y"])), ["odd text"]),
    "a link to a file": (lambda folder: link(folder / "README.md"), ["README.md is a link"]),
    "a link to a folder": (lambda folder: link(folder / "01_amp"), ["01_amp is a link"]),
    "a hard link": (lambda folder: os.link(folder / "README.md", folder.parent / "x"), ["README.md", "a hard link"]),
    "a pipe": (
        lambda folder: [(folder / "README.md").unlink(), os.mkfifo(folder / "README.md")], ["is no regular file"],
    ),
}  # fmt: skip


def spoilt(content):
    """An event file's bytes with one bit of the last record's checksum turned."""
    return content[:-1] + bytes([content[-1] ^ 1])


def link(path):
    moved = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(moved)


@pytest.mark.parametrize(("spoil", "words"), SPOILED.values(), ids=SPOILED)
def test_a_record_is_refused_with(spoil, words, folder, assert_refused):
    spoil(folder)
    assert_refused(folder, *words)


def test_checking_refuses_as_adding_does(folder, command):
    (folder / "README.md").unlink()
    code, out, err = command("--check", folder)
    assert (code, out, len(err)) == (2, [], 1)
    assert "README.md is missing" in err[0]


def test_all_that_is_wrong_is_counted(folder, assert_refused):
    for name in ("a", "b", "c"):
        (folder / name).touch()
    assert_refused(folder, "a is no file of a record, and 2 more")


def test_what_is_not_there_or_a_link_is_refused(folder, assert_refused, tmp_path):
    assert_refused(tmp_path / "nothing", "nothing is not there")
    (tmp_path / "link").symlink_to(folder)
    assert_refused(tmp_path / "link", "is a link")


def test_a_trace_that_unpacks_to_too_much_is_refused(folder, assert_refused, monkeypatch):
    monkeypatch.setattr(verification, "UNPACKED_LIMIT", 1_000_000)
    (folder / TRACE).write_bytes(gzip.compress(bytes(1_000_001), mtime=0))
    assert_refused(folder, TRACE, "unpacks to more than 1 MB")


def test_a_record_of_too_much_altogether_is_refused(folder, assert_refused, monkeypatch):
    with monkeypatch.context() as small:
        small.setattr(contribution, "SIZE", 2_000)
        assert_refused(folder, "more than 0 MB")
    monkeypatch.setattr(contribution, "FILES", 3)
    assert_refused(folder, "more than 3 files")


def entry(name, mode=0o100644):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def packed(folder, *more, compression=zipfile.ZIP_DEFLATED):
    """The record as an archive, with more entries in it: (name or ZipInfo, content)."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
        for name, content in more:
            archive.writestr(name, content)
    return made.getvalue()


def with_flag(data, name, at, value):
    """The archive with a 16-bit field of an entry's line in the directory changed."""
    found = data.index(name.encode(), data.index(b"PK\1\2")) - 46
    while data[found : found + 4] != b"PK\1\2":
        found = data.index(name.encode(), found + 47) - 46
    return data[: found + at] + struct.pack("<H", value) + data[found + at + 2 :]


HOSTILE = {
    "..": (lambda folder: packed(folder, ("../../evil", "x")), ["../../evil is no file of a record"]),
    "an absolute path": (lambda folder: packed(folder, ("/etc/evil", "x")), ["/etc/evil"]),
    "a backslash": (lambda folder: packed(folder, ("00_baseline\\runs\\3.json", "x")), ["00_baseline\\runs\\3.json"]),
    "a drive": (lambda folder: packed(folder, ("C:evil", "x")), ["C:evil"]),
    "a name cut by a zero": (lambda folder: packed(folder).replace(b"README.md", b"README\0md"), ["README"]),
    "a link": (
        lambda folder: packed(folder, (entry("02_more/result.json", stat.S_IFLNK | 0o777), "/etc/passwd")),
        ["02_more/result.json is a link"],
    ),
    "a device": (
        lambda folder: packed(folder, (entry("02_more/result.json", stat.S_IFBLK), "")), ["is no regular file"],
    ),
    "a file under a file": (lambda folder: packed(folder, ("README.md/x", "x")), ["README.md/x"]),
    "a bomb": (
        lambda folder: packed(folder, ("02_more/result.json", bytes(50_000_000))), ["02_more/result.json is larger"],
    ),
    "an encrypted file": (lambda folder: with_flag(packed(folder), "README.md", 8, 1), ["README.md is encrypted"]),
    "an unusual packing": (
        lambda folder: packed(folder, compression=zipfile.ZIP_LZMA), ["packed in an unusual way"],
    ),
    "a comment": (lambda folder: packed(folder)[:-2] + b"\4\0hide", ["no zip archive"]),
    "a comment that is not there": (lambda folder: packed(folder)[:-2] + b"\4\0", ["no zip archive"]),
    "its end cut off": (lambda folder: packed(folder)[:-30], ["no zip archive"]),
    "its middle damaged": (
        lambda folder: (data := packed(folder))[:200] + bytes(400) + data[600:], ["damaged"],
    ),
    "no zip in it": (lambda folder: b"hello", ["no zip archive"]),
    "nothing in it": (lambda folder: b"", ["no zip archive"]),
    "no record in it": (lambda folder: packed(folder / "01_amp" / "runs"), ["1.json is no file of a record"]),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_is_refused_with(make, words, folder, assert_refused, tmp_path):
    (tmp_path / "x.zip").write_bytes(make(folder))
    assert_refused(tmp_path / "x.zip", "x.zip", *words)


def test_an_archive_with_a_name_twice_is_refused(folder, assert_refused, tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        (tmp_path / "x.zip").write_bytes(packed(folder, ("README.md", "another")))
    assert_refused(tmp_path / "x.zip", "README.md is there twice")


def test_an_archive_that_claims_less_than_it_holds_is_not_read_past_its_claim(folder, assert_refused, tmp_path):
    data = packed(folder, ("02_more/result.json", bytes(50_000_000)))
    (tmp_path / "x.zip").write_bytes(
        with_flag(with_flag(data, "02_more/result.json", 24, 5), "02_more/result.json", 26, 0)
    )
    assert_refused(tmp_path / "x.zip", "02_more/result.json")


def test_an_archive_whose_directory_is_a_bomb_is_refused_before_it_is_read(
    folder, assert_refused, tmp_path, monkeypatch
):
    (tmp_path / "x.zip").write_bytes(packed(folder))
    monkeypatch.setattr(contribution, "FILES", 3)
    monkeypatch.setattr(zipfile, "ZipFile", lambda file: pytest.fail("its directory was read"))
    assert_refused(tmp_path / "x.zip", "more than 3 files")


def test_an_archive_that_people_packed_themselves_passes(folder, command, tmp_path):
    (tmp_path / "x.zip").write_bytes(packed(folder))
    assert command("--check", tmp_path / "x.zip")[0] == 0


def test_a_record_that_names_its_machine_or_user_is_not_packed(folder, command, tmp_path, monkeypatch):
    traced(each_event(Name="made by Ann on box-7"))(folder)
    assert command("--check", folder)[0] == 0
    for own in ("box-7", "ann"):
        monkeypatch.setattr("platform.node", lambda own=own: own)
        code, out, err = command("--pack", folder)
        assert (code, out, len(err)) == (2, [], 1)
        assert f"{TRACE} names this machine" in err[0]
    assert not list(tmp_path.glob("*.zip"))


def test_names_count_as_words_of_their_own_and_not_those_that_anybody_has(monkeypatch):
    assert privacy.holds_name(b'{"a": "Ann\'s"}', "ann")
    assert privacy.holds_name(b'{"a": "Jos\\u00e9"}', "José")
    assert not privacy.holds_name(b"annotation user_ann x-ann", "ann")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr("pathlib.Path.home", lambda: "/home/ann")
    monkeypatch.setattr("platform.node", lambda: "box.lab.org")
    assert privacy.own_names() == ["/home/ann", "box", "box.lab.org"]


def test_an_archive_is_not_written_into_the_record_itself(folder, command, monkeypatch):
    before = tree(folder)
    for here in (folder, folder / "01_amp"):
        monkeypatch.chdir(here)
        code, _, err = command("--pack", folder)
        assert (code, len(err)) == (2, 1)
    assert tree(folder) == before


PRIVATE = [
    "/home/ann", "/Users/ann", "/root", "/tmp/x", "x=/mnt/a", '"/word/word"', "at:/word/word", "a.py(1);/opt/a/b.py",
    "C:\\Users", "D:/data", "\\\\server\\share", "~/x", "~ann/x", "file:///x", "ann@box", "a.b@c.org", "HOME=/x",
    "MY_TOKEN=1", {"host_name": "x"}, {"a": [{"/home/ann": 1}]}, {"LD_LIBRARY_PATH": "x"}, b"\0\1/home/ann/x\0",
    b"\0ann@box.org\0",
]  # fmt: skip
HARMLESS = [
    "Linux-6.18.44-fc-v657-x86_64-with-glibc2.36", "images/s", "32,001 images/s; 1 / 2", "N/A",
    "Intel(R) CPU @ 1.90GHz", "https://pytorch.org/docs/stable", "torch/_ops.py(1160): __call__;<frozen os>(756)",
    "std::vector<int>::~vector()", "void at::native::(anonymous namespace)::f<float, {lambda()#1}>(T*)",
    "Memcpy HtoD (Pageable -> Device)",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", {"path": 1, "name": "user_annotation"}, b"fff@AB",
]  # fmt: skip


@pytest.mark.parametrize("value", PRIVATE, ids=str)
def test_private_texts_are_found(value):
    assert privacy.private_texts(value)


def test_a_long_text_is_looked_at_in_time():
    assert privacy.private_texts(["a" * 10**5, "/" * 10**5, "~a" * 10**5]) == []
    assert privacy.private_texts(b"a" * 10**5 + b"@" + b"b" * 10**5) == []


@pytest.mark.parametrize("value", [each for each in PRIVATE if isinstance(each, str)])
def test_what_is_private_can_be_taken_out_of_a_text(value):
    assert privacy.private_texts(privacy.redacted(f"see {value} now")) == []


@pytest.mark.parametrize("value", [each for each in HARMLESS if isinstance(each, str)])
def test_nothing_else_is_taken_out(value):
    assert privacy.redacted(value) == value


@pytest.mark.parametrize("value", HARMLESS, ids=str)
def test_names_of_kernels_operators_and_platforms_are_not_private(value):
    assert privacy.private_texts(value) == []


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.is_file()], ids=lambda path: path.name)
def test_no_file_of_this_project_says_whose_machine_it_was_made_on(path):
    """The stacks in `cpu_stacks` name files without folders, and those of torch by their place in it."""
    if path.suffix == ".py":
        pytest.skip("written by hand")
    content = path.read_bytes()
    if path.suffix in (".gz", ".json"):
        value = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    else:
        value = content if path.name.startswith("events.") else content.decode()
    assert privacy.private_texts(value) == []


@pytest.mark.parametrize("page", sorted((ROOT / "logs" / "reference").glob("*/README.md")), ids=lambda p: p.parent.name)
def test_every_record_of_this_project_passes(page, command):
    code, out, err = command("--check", page.parent)
    assert (code, out[-1:], err) == (0, ["ok"], [])


def test_an_event_file_holds_scalars_and_nothing_else(folder, tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    assert set(scalars((folder / EVENTS).read_bytes())) == {"loss", *MEDIANS}
    image = Summary.Value(tag="a", image=Summary.Image(height=1, width=1, colorspace=1, encoded_image_string=b"x"))
    scalar = Summary.Value(tag="a", simple_value=1.0, node_name="x")
    for event, told in (
        (Event(summary=Summary(value=[image])), "something else"),
        (Event(summary=Summary(value=[scalar])), "something else"),
        (Event(graph_def=b"x"), "no summary"),
    ):
        with open(tmp_path / "events", "wb") as file:
            RecordWriter(file).write(event.SerializeToString())
        with pytest.raises(contribution.InputError, match=told):
            scalars((tmp_path / "events").read_bytes())


def framed(*records):
    """Records as an event file frames them."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    made = b""
    for data in records:
        length = struct.pack("<Q", len(data))
        made += length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
    return made


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_whatever_an_event_file_holds_is_read_or_refused(records):
    with contextlib.suppress(contribution.InputError):
        assert scalars(framed(*records))


TURNED = [framed(bytes.fromhex(text)) for text in ("2805", "2a020805", "2a040a024805", "ff" * 50)]


@pytest.mark.parametrize("content", [b"x", bytes(16), b"\xff" * 40, *TURNED], ids=range(7))
def test_a_damaged_event_file_is_refused(content):
    with pytest.raises(contribution.InputError):
        scalars(content)


def test_a_record_of_a_cpu_passes_and_its_memory_must_be_that_of_its_trace(
    made_record, folder, command, assert_refused
):
    def cpu(total):
        for step in STEPS:
            for path in (folder / step / "runs").iterdir():
                result = replace(
                    record.read_result(path), device_type="cpu", peak_memory_bytes=record.PeakMemory(1000, None)
                )
                record.write_result(path, result)
            made, result = TraceBuilder(devices=[]), a_result(step, 1)
            for number in (2, 3, 4):
                made.step(number, number * 2000, 1500)
                op = made.op("aten::convolution", number * 2000 + 300, 100)
                op["args"]["Input Dims"] = [[result.batch_size, 3, result.image_size, result.image_size]]
                made.memory(number * 2000 + 350, total, total, device=None)
            trace = made.json | {"traceName": result.trace.removesuffix(".gz")}
            write_trace(folder / step / result.trace, trace)
        sum_up(folder)

    cpu(900)
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert "3 steps on CPU" in out[0]
    for total in (600, 1600):
        cpu(total)
        assert_refused(folder, TRACE, f"its peak memory is {total} bytes, the runs' 1000")
    for step in STEPS:
        shutil.copy(made_record / step / a_result(step, 1).trace, folder / step)
    assert_refused(folder, TRACE, "it shows a GPU at work")
