"""Every way in which a record can be wrong is refused, with the file and the reason."""

import gzip
import os
import shutil

import pytest
from support.recorded import EVENTS, STEPS, TRACE, a_result, edit, sum_up

from walkthrough.records import record as recording
from walkthrough.results import result


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


def setting(change):
    return lambda folder: edit(folder / "record.json", lambda value: change(value["settings"]))


def text(name, content):
    """Put text or bytes in place of a file, or beside the others."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def not_run_as(**value):
    def spoil(folder):
        (folder / "13_compile").mkdir()
        result.write_json(folder / "13_compile" / "not_run.json", {"step": "13_compile"} | value)

    return spoil


def windows(*speeds):
    return lambda value: value["samples_per_second"].update(windows=list(speeds))


def with_wrong_checksum(content):
    """An event file's bytes with one bit of the last record's checksum flipped."""
    return content[:-1] + bytes([content[-1] ^ 1])


def link(path):
    moved = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(moved)


DEEP = "[" * 100_000
SPOILED = {
    "no step that was run": (
        lambda folder: [
            [shutil.rmtree(folder / step), result.write_not_run(folder / step, step, "because")] for step in STEPS
        ],
        ["none of its steps was run"],
    ),
    "a step that was not run, for another's reason": (
        lambda folder: result.write_not_run(folder / "13_compile", "01_amp", "because"),
        ["13_compile/not_run.json is broken"],
    ),
    "a reason with more in it": (not_run_as(reason="so", more=1), ["13_compile/not_run.json holds more than"]),
    "a reason that the page does not give": (not_run_as(reason="so"), ["README.md is not the page"]),
    "no header": (remove("record.json"), ["is not a record: it holds no record.json"]),
    "no page": (remove("README.md"), ["README.md is missing"]),
    "no result": (remove("00_baseline/result.json"), ["cannot read", "00_baseline/result.json"]),
    "no trace": (remove(TRACE), ["cannot read", TRACE]),
    "no events": (remove(EVENTS), ["00_baseline has no TensorBoard event file"]),
    "no runs": (lambda folder: shutil.rmtree(folder / "00_baseline" / "runs"), ["00_baseline lacks a run"]),
    "a hole in the runs": (remove("00_baseline/runs/1.json"), ["00_baseline lacks a run"]),
    "fewer runs of the first step": (remove("00_baseline/runs/2.json"), ["different numbers of runs (1, 2)"]),
    "a foreign file": (text("00_baseline/notes.txt", "hello"), ["00_baseline/notes.txt", "no file of a record"]),
    "a hidden file": (text(".bashrc", ""), [".bashrc"]),
    "an edited figure": (lambda folder: edit(folder / "01_amp/result.json", lambda value: value.update(batch_bytes=1)),
     ["01_amp/result.json is not what its runs give"]),
    "an edited page": (
        lambda folder: (folder / "README.md").write_text((folder / "README.md").read_text().replace("32001", "99001")),
        ["README.md is not the page"],
    ),
    "an edited median": (run(lambda value: value["samples_per_second"].update(median=32_002.0)), ["its median, 32002"]),
    "an edited window": (run(windows(1.0, 2.0, 3.0, 4.0, 5.0), summed=False), ["runs/1.json: its median, 32001"]),
    "four windows": (run(windows(32000.0, 32001.0, 32001.0, 32002.0)), ["4 windows"]),
    "step times out of order": (run(lambda value: value["step_ms"].update(p10=1.1)), ["not in order"]),
    "another step's run": (run(lambda value: value.update(step="01_amp")), ["step is '01_amp', not '00_baseline'"]),
    "another device": (run(lambda value: value.update(device="Best GPU")), ["device is 'Best GPU', in record.json"]),
    "another image size": (run(lambda value: value.update(image_size=32)), ["setup differs from run to run"]),
    "another torch": (run(lambda value: value["environment"].update(torch="1.0.0")), ["torch is '1.0.0'"]),
    "another trace": (run(lambda value: value.update(trace=a_result("01_amp", 1).trace)),
     ["trace differs from run to run"]),
    "another precision in one run": (run(lambda value: value.update(precision="float16")), ["precision differs"]),
    "tokens whose median is edited": (
        run(lambda value: value.update(tokens_per_second={"median": 2.0, "windows": [1.0, 1.0, 1.0]})),
        ["its median, 2 tokens/s, is not that of its windows, 1"],
    ),
    "uncommitted code": (run(lambda value: value["environment"].update(git="0123456789ab-dirty")),
     ["which is not a commit"]),
    "no time": (run(lambda value: value.update(started="yesterday")),
     ["'yesterday' as 'started', which is not a time"]),
    "a field too many": (run(lambda value: value.update(more=1), summed=False), ["fields that no result has"]),
    "another schema": (header(schema=3), ["record.json has schema 3"]),
    "a header with more in it": (header(more=1), ["record.json holds fields that no record has"]),
    "a header with less in it": (setting(lambda settings: settings.pop("seed")),
     ["record.json is broken", "missing required field `seed`"]),
    "a header of wrong types": (setting(lambda settings: settings.update(quick=1)),
     ["record.json is broken", "$.settings.quick"]),
    "instructions that no CPU has": (setting(lambda settings: settings.update(instructions="a b")),
     ["record.json is broken", "$.settings.instructions"]),
    "another environment": (
        lambda folder: edit(folder / "record.json", lambda value: value["environment"].update(cores=8)),
        ["cores is 16, in record.json it is 8"],
    ),
    "code without its hash": (header(code="none"), ["record.json holds 'none' as 'code', which is not a checksum"]),
    "JSON cut off": (text("00_baseline/runs/1.json", '{"schema": 1'), ["runs/1.json is broken: not JSON"]),
    "JSON nested deeply": (text("00_baseline/runs/1.json", DEEP), ["runs/1.json is broken", "nested too deeply"]),
    "a header nested deeply": (text("record.json", DEEP), ["record.json is broken", "nested too deeply"]),
    "JSON that is no UTF-8": (text("record.json", b'{"\xff": 1}'), ["record.json is broken"]),
    "JSON that is a list": (text("record.json", "[]\n"), ["record.json is broken: not an object"]),
    "NaN": (run(lambda value: value["step_ms"].update(p10=float("nan")), summed=False), ["NaN is not a finite number"]),
    "a key that is there twice": (text("record.json", '{"schema": 1, "schema": 1}'), ["a key is there twice"]),
    "a trace nested deeply": (text(TRACE, gzip.compress(DEEP.encode(), mtime=0)), [TRACE, "nested too deeply"]),
    "a trace that is no gzip": (text(TRACE, b"{}"), [TRACE, "no gzip"]),
    "a trace packed with its owner's file name": (
        lambda folder: (folder / TRACE).write_bytes(
            b"\x1f\x8b\x08\x08" + bytes(6) + b"ann.json\0" + (folder / TRACE).read_bytes()[10:]
        ),
        [TRACE, "packed otherwise"],
    ),
    "a trace with something behind it": (
        lambda folder: (folder / TRACE).write_bytes((folder / TRACE).read_bytes() + b"more"),
        ["packed otherwise"],
    ),
    "a trace cut off": (lambda folder: (folder / TRACE).write_bytes((folder / TRACE).read_bytes()[:-20]),
     [TRACE, "cut off"]),
    "a huge trace": (text(TRACE, bytes(1_500_001)), [TRACE, "larger than 1.5 MB"]),
    "events cut off": (lambda folder: (folder / EVENTS).write_bytes((folder / EVENTS).read_bytes()[:-1]),
     [EVENTS, "damaged"]),
    "empty events": (text(EVENTS, b""), [EVENTS, "no scalar"]),
    "events with a wrong checksum": (
        lambda folder: (folder / EVENTS).write_bytes(with_wrong_checksum((folder / EVENTS).read_bytes())),
        [EVENTS, "checksum"],
    ),
    "runs that are not interleaved": (run(lambda value: value.update(started="2026-01-01T00:09:00+00:00")),
     ["not interleaved"]),
    "smoke runs": (setting(lambda settings: settings.update(quick=True)), ["smoke runs"]),
    "a link to a file": (lambda folder: link(folder / "README.md"), ["README.md is a link"]),
    "a link to a folder": (lambda folder: link(folder / "01_amp"), ["01_amp is a link"]),
    "a pipe": (lambda folder: [(folder / "README.md").unlink(), os.mkfifo(folder / "README.md")],
     ["not a plain file but a pipe"]),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), SPOILED.values(), ids=SPOILED)
def test_a_record_is_refused_with(spoil, words, folder, assert_refused):
    spoil(folder)
    assert_refused(folder, *words)


def test_of_a_record_with_checksums_any_edited_byte_is_refused(folder, assert_refused, command):
    edit(folder / "record.json", lambda value: value.update(files=recording.checksums(folder)))
    assert command("--check", folder)[0] == 0
    for name in recording.checksums(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert_refused(folder, name.split("/")[0])
        (folder / name).write_bytes(content)
    with_space = (folder / "01_amp" / "runs" / "1.json").read_bytes() + b" "
    (folder / "01_amp" / "runs" / "1.json").write_bytes(with_space)  # nothing but the checksum tells
    assert_refused(folder, "01_amp/runs/1.json is not the file that was recorded")
