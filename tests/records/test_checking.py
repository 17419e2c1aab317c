"""Verifying a record: what is whole and unedited passes, the limit of something else is refused by name."""

import gzip
import json

import pytest
from support import ROOT
from support.recorded import STEPS, TRACE, edit

from walkthrough.records import check
from walkthrough.results import result as record

LIMIT = next((ROOT / "logs" / "reference").glob("*/limit.json"))


def test_a_record_passes_with_a_line_per_step(valid_record, command):
    code, out, err = command("--check", valid_record)
    assert (code, err) == (0, [])
    assert [line.split(":")[0] for line in out] == [*STEPS, "ok"]
    assert "2 runs, 10 windows, a trace, 4 kinds of scalars" in out[0]


def write_limit(folder, **changes):
    """A real `limit.json` as if it were of the record's device, with changes in place of its fields."""
    value = json.loads(LIMIT.read_text())
    value["setup"] |= {"device": "Test GPU", "cores": None, "model": "mobilenet_v2", "image_size": 224}
    value["setup"] |= {name: changes.pop(name) for name in value["setup"].keys() & changes.keys()}
    record.write_json(folder / "limit.json", value | changes)


def test_a_record_may_hold_the_limit_of_its_device_and_name_the_instructions_of_its_cpu(folder, command):
    edit(folder / "record.json", lambda value: value["settings"].update(instructions="AVX512-BF16"))
    write_limit(folder)
    (folder / ".ablation.lock").touch()
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert out[-2:] == ["limit.json: of the same device, model and image size", "ok"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "Other GPU"}, "limit.json is of another setup than the record: device 'Other GPU', not 'Test"),
        ({"quick": True}, "limit.json is of a smoke run"),
        ({"notes": ["<b>"]}, "limit.json holds an odd text"),
    ],
)
def test_the_limit_of_something_else_is_refused(folder, assert_refused, changes, message):
    write_limit(folder, **changes)
    assert_refused(folder, message)


def test_a_trace_that_unpacks_to_too_much_is_refused(folder, assert_refused, monkeypatch):
    monkeypatch.setattr(check, "UNPACKED_LIMIT", 1_000_000)
    (folder / TRACE).write_bytes(gzip.compress(bytes(1_000_001), mtime=0))
    assert_refused(folder, TRACE, "unpacks to more than 1 MB")


@pytest.mark.parametrize("path", sorted((ROOT / "logs" / "reference").glob("*/README.md")), ids=lambda p: p.parent.name)
def test_every_record_of_this_project_passes(path, command):
    code, out, err = command("--check", path.parent)
    assert (code, out[-1:], err) == (0, ["ok"], [])
