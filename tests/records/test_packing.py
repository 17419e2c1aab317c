"""A record as one file: what is in it, the same bytes each time, and no names of its maker."""

import json
import zipfile
from pathlib import Path

import pytest
from support.recorded import TRACE, edit_trace, tree

from walkthrough.records import record
from walkthrough.results import result


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    """The machine and user of these tests, whatever theirs are called."""
    monkeypatch.setattr("platform.node", lambda: "box-1.lab")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody-1")
    monkeypatch.setattr("pathlib.Path.home", lambda: "/home/somebody-1")


def test_a_packed_record_unzips_to_what_it_was(folder, command, tmp_path):
    result.write_not_run(folder / "13_compile", "13_compile", "torch.compile found no C++ compiler that works")
    record.write_page(folder)
    code, _, err = command("--pack", folder)
    assert (code, err) == (0, [])
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        file.extractall(tmp_path / "logs")
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["test-gpu"]
    unpacked = tree(tmp_path / "logs" / "test-gpu")
    header = json.loads(unpacked.pop(Path("record.json")))
    assert header.pop("files").keys() == {path.as_posix() for path, content in unpacked.items() if content}
    assert header == json.loads((folder / "record.json").read_text())
    assert unpacked == {path: content for path, content in tree(folder).items() if path.name != "record.json"}
    assert command("--check", tmp_path / "logs" / "test-gpu")[0] == 0


def test_what_is_not_a_valid_record_is_not_packed_and_gets_no_page(folder, command, tmp_path):
    (folder / "README.md").unlink()
    edit_trace(folder / TRACE, lambda trace: trace.update(traceName="x"))
    code, out, [line] = command("--pack", folder)
    assert (code, out, TRACE in line) == (2, [], True)
    assert not (folder / "README.md").exists() and not list(tmp_path.glob("*.zip"))


def test_of_a_record_that_was_cut_off_within_a_round_all_runs_are_packed(folder, command, tmp_path):
    (folder / "01_amp" / "runs" / "2.json").unlink()
    (folder / "00_baseline" / "result.json").unlink()  # between a run and its sum
    (folder / "README.md").unlink()
    (folder / "02_bigger_batch").mkdir()
    (folder / "02_bigger_batch" / "02_bigger_batch.1.pt.trace.json.gz").touch()  # its run was not kept
    assert command("--check", folder)[0] == 2
    code, _, err = command("--pack", folder)
    assert (code, err) == (0, [])
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        runs = sorted(name.split("/", 1)[1] for name in file.namelist() if "/runs/" in name)
        file.extractall(tmp_path / "home")
    assert runs == ["00_baseline/runs/1.json", "00_baseline/runs/2.json", "01_amp/runs/1.json"]
    assert command("--check", tmp_path / "home" / "test-gpu")[0] == 0


def test_a_record_that_names_its_machine_or_user_is_not_packed(folder, command, tmp_path, monkeypatch):
    def name_kernels(trace):
        for event in trace["traceEvents"]:
            if event["cat"] == "kernel":
                event["name"] = "void Ann::box7::kernel<float>()"

    edit_trace(folder / TRACE, name_kernels)
    assert command("--check", folder)[0] == 0
    for own in ("box7", "ann"):
        monkeypatch.setattr("platform.node", lambda own=own: own)
        code, out, err = command("--pack", folder)
        assert (code, out, len(err)) == (2, [], 1)
        assert f"{TRACE} contains a name of this machine" in err[0]
    assert not list(tmp_path.glob("*.zip"))
