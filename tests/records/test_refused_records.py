"""Every way in which a record can be wrong is refused, with the file and the reason."""

import os
import shutil

import pytest
from support.recorded import EVENTS, STEPS, TRACE, edit, sum_up

from walkthrough.records import record as recording
from walkthrough.results import result

RUN = "00_baseline/runs/1.json"


def remove(name):
    return lambda folder: (folder / name).unlink()


def run(summed=True, **changes):
    """Update the first run, a field of an object in it where a change is a dictionary; and all that follows from it."""

    def change(value):
        for name, new in changes.items():
            value[name] = value[name] | new if isinstance(value.get(name), dict) else new

    def spoil(folder):
        edit(folder / RUN, change)
        if summed:
            sum_up(folder)

    return spoil


def header(**changes):
    return lambda folder: edit(folder / "record.json", lambda value: value.update(changes))


def text(name, content):
    """Put bytes in place of a file, or beside the others."""
    return lambda folder: (folder / name).write_bytes(content)


def change_bytes(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def no_step_was_run(folder):
    for step in STEPS:
        shutil.rmtree(folder / step)
        result.write_not_run(folder / step, step, "because")


def a_link(folder):
    moved = (folder / "README.md").rename(folder.parent / "elsewhere")
    (folder / "README.md").symlink_to(moved)


SPOILED = [
    (no_step_was_run, "none of its steps was run"),
    (lambda folder: result.write_not_run(folder / "13_compile", "01_amp", "so"), "13_compile/not_run.json is broken"),
    (lambda folder: result.write_not_run(folder / "13_compile", "13_compile", "so"), "README.md is not the page"),
    (remove("00_baseline/result.json"), "00_baseline/result.json"),
    (remove(TRACE), TRACE),
    (remove(EVENTS), "00_baseline has no TensorBoard event file"),
    (remove("00_baseline/runs/2.json"), "different numbers of runs (1, 2)"),
    (text("00_baseline/notes.txt", b"hello"), "00_baseline/notes.txt is no file of a record"),
    (change_bytes("README.md", lambda page: page.replace(b"32001", b"99001")), "README.md is not the page"),
    (lambda folder: edit(folder / "01_amp/result.json", lambda value: value.update(batch_bytes=1)), "its runs give"),
    (run(samples_per_second={"median": 32_002.0}), "its median, 32002"),
    (run(samples_per_second={"windows": [32000.0, 32001.0, 32001.0, 32002.0]}), "4 windows"),
    (run(tokens_per_second={"median": 2.0, "windows": [1.0, 1.0, 1.0]}), "2 tokens/s, is not that of its windows, 1"),
    (run(step="01_amp"), "step is '01_amp', not '00_baseline'"),
    (run(device="Best GPU"), "device is 'Best GPU', in record.json"),
    (run(environment={"torch": "1.0.0"}), "torch is '1.0.0'"),
    (run(image_size=32), "setup differs from run to run"),
    (run(started="yesterday"), "'yesterday' as 'started', which is not a time"),
    (run(started="2026-01-01T00:09:00+00:00"), "not interleaved"),
    (run(more=1, summed=False), "fields that no result has"),
    (header(code="none"), "record.json holds 'none' as 'code', which is not a checksum"),
    (lambda folder: edit(folder / "record.json", lambda value: value["settings"].update(quick=True)), "smoke runs"),
    (text("record.json", b"[" * 100_000), "nested too deeply"),
    (text("record.json", b'{"schema": 1, "schema": 1}'), "a key is there twice"),
    (run(step_ms={"p10": float("nan")}, summed=False), "NaN is not a finite number"),
    (text(TRACE, b"{}"), "no gzip"),
    (text(TRACE, bytes(1_500_001)), "larger than 1.5 MB"),
    (change_bytes(TRACE, lambda old: b"\x1f\x8b\x08\x08" + bytes(6) + b"ann.json\0" + old[10:]), "packed otherwise"),
    (change_bytes(EVENTS, lambda old: old[:-1] + bytes([old[-1] ^ 1])), "checksum"),
    (a_link, "README.md is a link"),
    (lambda folder: (remove("README.md")(folder), os.mkfifo(folder / "README.md")), "not a plain file but a pipe"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "why"), SPOILED, ids=[f"{number} {why}" for number, (_, why) in enumerate(SPOILED)])
def test_a_record_is_refused(spoil, why, folder, assert_refused):
    spoil(folder)
    assert_refused(folder, why)


def test_of_a_record_with_checksums_any_edited_byte_is_refused(folder, assert_refused, command):
    edit(folder / "record.json", lambda value: value.update(files=recording.checksums(folder)))
    assert command("--check", folder)[0] == 0
    for name in recording.checksums(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert_refused(folder, name.split("/")[0])
        (folder / name).write_bytes(content)
    change_bytes("01_amp/runs/1.json", lambda old: old + b" ")(folder)  # nothing but the checksum tells
    assert_refused(folder, "01_amp/runs/1.json is not the file that was recorded")
