"""A record as one file: what is in it, the same bytes each time, and no names of its maker."""

import os
import shutil
import sys
import zipfile

import pytest
from support.recorded import TRACE, a_result, edit, edit_trace, tree

from walkthrough.compare import rounds
from walkthrough.records import page
from walkthrough.results import result


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    """The machine and user of these tests, whatever theirs are called."""
    monkeypatch.setattr("platform.node", lambda: "box-1.lab")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody-1")
    monkeypatch.setattr("pathlib.Path.home", lambda: "/home/somebody-1")


def test_a_packed_record_unzips_to_what_it_was(folder, command, tmp_path):
    result.write_not_run(folder / "13_compile", "13_compile", "torch.compile found no C++ compiler that works")
    page.write_page(folder)
    code, out, err = command("--pack", folder)
    assert (code, err) == (0, [])
    assert any("test-gpu.zip" in line for line in out)
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        file.extractall(tmp_path / "logs")
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["test-gpu"]
    assert tree(tmp_path / "logs" / "test-gpu") == tree(folder)
    assert command("--check", tmp_path / "logs" / "test-gpu")[0] == 0


def test_a_zip_has_the_same_bytes_whenever_and_from_whichever_folder_it_is_made(folder, command, tmp_path):
    command("--pack", folder)
    first = (tmp_path / "test-gpu.zip").read_bytes()
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    (folder / ".record.lock").touch()  # what `record` leaves behind is not packed
    moved = folder.rename(tmp_path / "mine of ann")
    assert command("--pack", moved)[0] == 0
    assert (tmp_path / "test-gpu.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.external_attr >> 16 for entry in file.infolist()} == {0o100644}
        assert file.namelist() == sorted(file.namelist())


def test_what_is_not_a_valid_record_is_not_packed(folder, command, tmp_path):
    next((folder / "01_amp").glob("*.gz")).unlink()
    code, out, err = command("--pack", folder)
    assert (code, out, len(err)) == (2, [], 1)
    assert "01_amp has no trace" in err[0]
    assert not list(tmp_path.glob("*.zip"))


def test_a_page_that_could_not_be_written_while_recording_is_written_first(folder, command, tmp_path):
    before = tree(folder)
    (folder / "README.md").unlink()
    code, out, err = command("--check", folder)
    assert (code, out, len(err)) == (2, [], 1)
    assert f"README.md is missing; `python -m walkthrough record --pack {folder}` writes it" in err[0]
    assert not (folder / "README.md").exists()
    code, _, err = command("--pack", folder)
    assert (code, err) == (0, [])
    assert tree(folder) == before
    assert command("--check", folder)[0] == 0


def test_no_page_is_written_for_what_is_not_a_valid_record(folder, command):
    (folder / "README.md").unlink()
    edit_trace(folder / TRACE, lambda trace: trace.update(traceName="x"))
    assert command("--pack", folder)[0] == 2
    assert not (folder / "README.md").exists()


def test_without_msgspec_a_record_is_packed_and_verified_where_it_is(folder, command, tmp_path, monkeypatch):
    command("--pack", folder)
    whole = (tmp_path / "test-gpu.zip").read_bytes()
    (folder / "README.md").unlink()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "msgspec", None)
        code, out, err = command("--check", folder)
        assert (code, out, len(err)) == (2, [], 1)
        code, out, err = command("--pack", folder)
        assert (code, err) == (0, [])
        assert "Without msgspec its traces are not compared" in out[-1]
        assert "a trace that was not compared with them" in out[0]
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        file.extractall(tmp_path / "home")
    assert command("--pack", tmp_path / "home" / "test-gpu")[0] == 0
    assert (tmp_path / "test-gpu.zip").read_bytes() == whole


def test_with_few_packages_what_can_be_verified_is(folder, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "msgspec", None)
    edit(folder / "01_amp" / "result.json", lambda value: value.update(batch_bytes=1))
    code, _, err = command("--pack", folder)
    assert (code, len(err)) == (2, 1)
    assert "01_amp/result.json is not what its runs give" in err[0]


def test_of_a_round_that_was_cut_off_nothing_is_packed_and_everything_is_kept(folder, command, tmp_path):
    (folder / "01_amp" / "runs" / "2.json").unlink()
    rounds.sum_up(folder / "01_amp")
    (folder / "00_baseline" / ".result.json.4711.partial").write_text("{")
    (folder / ".running" / "01_amp").mkdir(parents=True)
    (folder / ".running" / "01_amp" / "trace.json").write_text("{")
    (folder / ".seconds.json").write_text("{}")
    before = tree(folder)
    code, out, err = command("--pack", folder)
    assert (code, err) == (0, [])
    assert out[0] == f"packed are 1 round(s); {folder} keeps 1 file(s) of one that was cut off"
    assert tree(folder) == before
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        file.extractall(tmp_path / "home")
    unzipped = tmp_path / "home" / "test-gpu"
    assert command("--check", unzipped)[0] == 0
    assert sorted(path.name for path in unzipped.glob("*/runs/*")) == ["1.json", "1.json"]
    assert result.read_result(unzipped / "00_baseline" / "result.json") == a_result("00_baseline", 1)


def without_effect(folder, step):
    """Make a step of a record one that has no effect on its device: run once."""
    (folder / step / "runs" / "2.json").unlink()
    edit(folder / step / "runs" / "1.json", lambda value: value.update(needs="bf16 units"))
    result.write_result(folder / step / "runs" / "1.json", result.read_result(folder / step / "runs" / "1.json"))
    rounds.sum_up(folder / step)
    page.write_page(folder)


def test_a_step_without_effect_on_its_device_has_one_run_and_the_others_keep_theirs(folder, command, tmp_path):
    without_effect(folder, "01_amp")
    code, out, err = command("--check", folder)
    assert (code, err) == (0, [])
    assert [line.split(",")[0] for line in out[:2]] == ["00_baseline: 2 runs", "01_amp: 1 runs"]
    code, out, err = command("--pack", folder)
    assert (code, err) == (0, [])
    assert not any("cut off" in line for line in out)
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        assert len([name for name in file.namelist() if "/runs/" in name]) == 3


def test_of_a_first_round_that_was_cut_off_the_whole_runs_are_packed(folder, command, tmp_path):
    shutil.rmtree(folder / "01_amp" / "runs")
    (folder / "01_amp" / "result.json").unlink()
    assert command("--check", folder)[0] == 2
    code, _, err = command("--pack", folder)
    assert (code, err) == (0, [])
    with zipfile.ZipFile(tmp_path / "test-gpu.zip") as file:
        assert {name.split("/")[1] for name in file.namelist()} == {"README.md", "record.json", "00_baseline"}
        file.extractall(tmp_path / "home")
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


def test_a_zip_is_not_written_into_the_record_itself(folder, command, monkeypatch):
    before = tree(folder)
    for here in (folder, folder / "01_amp"):
        monkeypatch.chdir(here)
        code, _, err = command("--pack", folder)
        assert (code, len(err)) == (2, 1)
    assert tree(folder) == before


def test_packing_and_verifying_exclude_each_other(folder, command):
    code, _, err = command("--pack", folder, "--check", folder)
    assert (code, len(err)) == (2, 1)
