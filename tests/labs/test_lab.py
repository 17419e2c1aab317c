"""What the studies of all labs share: options by device, measurements that are kept, tables, claims, the file."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from support import run_program

from common.options import Defaults, Workload, step_options
from labs.shared.study import FILE, as_stored, cell, lab_options, ladder_rows, measurements, report
from labs.shared.study import program as study_program
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import Claim, NotMeasured, claim, interval, kept_path, read, show, write
from walkthrough.results import result as record
from walkthrough.results.errors import InputError

PROGRAM = """
import os
from walkthrough.results.errors import InputError
from labs.shared.study import measurement, program

@measurement
def squared(options, number, count=""):
    with open(options.logdir / "calls", "a") as file:
        file.write(count)
    return {"square": number ** 2, "model": options.model}

@measurement
def refused(options):
    raise InputError("the data is gone")

@measurement
def defect(options):
    raise ValueError("a defect")

@measurement
def crash(options):
    os._exit(7)

if __name__ == "__main__":
    program(None, None)
"""


@pytest.fixture
def defaults(tmp_path):
    return Defaults(
        cuda=Workload("large", 128, 32),
        cpu=Workload("small", 16, 16, other_image_size=8, quick_image_size=4),
        logdir=tmp_path / "default",
        models="large or small",
    )


@pytest.fixture
def options(tmp_path, defaults):
    return lab_options("A lab.", "mine", defaults, ["--logdir", str(tmp_path), "--device", "cpu", "--quick"])[0]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "measure.py"
    path.write_text(PROGRAM)
    return path


def test_a_lab_names_its_own_models_sizes_and_folder(defaults, tmp_path, monkeypatch, capsys):
    options = step_options("A program.", ["--device", "cpu"], defaults)
    assert (options.model, options.image_size, options.batch_size) == ("small", 16, 16)
    assert options.logdir == tmp_path / "default"
    assert step_options("A program.", ["--device", "cpu", "--model", "large"], defaults).image_size == 8
    assert step_options("A program.", ["--device", "cpu", "--quick"], defaults).image_size == 4
    assert step_options("A program.", ["--device", "cpu", "--batch-size", "3"], defaults).batch_size == 3
    monkeypatch.setattr("common.device.checked_device", lambda name: "cuda")
    options = step_options("A program.", [], defaults)
    assert (options.model, options.image_size, options.batch_size) == ("large", 32, 128)
    with pytest.raises(SystemExit):
        step_options("A program.", ["--help"], defaults)
    words = " ".join(capsys.readouterr().out.split())
    for text in ("large or small (default: large on a GPU, small on a CPU)", "128 on a GPU, 16 on a CPU"):
        assert text in words
    assert "32 on a GPU, 16 on a CPU" in words
    assert "from step" not in words


def test_a_flag_that_a_lab_does_not_take_is_refused_and_has_its_default(defaults):
    without = replace(defaults, without=("--download",))
    assert step_options("A program.", ["--device", "cpu"], without).download is False
    with pytest.raises(SystemExit):
        step_options("A program.", ["--download"], without)


def test_a_studys_folder_is_its_own_in_the_log_folder(options, tmp_path):
    assert options.logdir == tmp_path / "labs" / "mine"
    assert options.logdir.is_dir()
    assert (options.model, options.batch_size, options.quick) == ("small", 16, True)


def test_a_measurement_is_a_process_of_its_own_and_is_kept(options, program, capsys):
    first = measurements("mine", options, program)
    assert first.measure("squared", number=3, count="x") == {"square": 9, "model": "small"}
    again = measurements("mine", options, program)  # as after a cut
    assert again.measure("squared", number=3, count="x") == {"square": 9, "model": "small"}
    assert again.measure("squared", number=4, count="y")["square"] == 16
    assert (options.logdir / "calls").read_text() == "xy"
    assert "kept of an earlier call" in capsys.readouterr().out


FAILURES = {
    "refused": "the data is gone",
    "defect": "ValueError: a defect",
    "crash": "its process ended with code 7|no message",
}


@pytest.mark.parametrize(("what", "why"), FAILURES.items())
def test_what_cannot_be_measured_says_why_and_is_tried_again(options, program, what, why):
    measuring = measurements("mine", options, program)
    with pytest.raises(NotMeasured, match=why):
        measuring.measure(what)
    assert measuring.values == {}


def result(options, program, **tables):
    claims = [
        Claim("faster", "Half precision is faster.", 1.4, 1.3, 1.5, True),
        Claim("b", "B.", None, None, None, None),
    ]
    return measurements("mine", options, program).study(tables, claims, ["no GPU: nothing waits"])


def test_a_study_is_written_whole_as_the_house_fixes_it_and_read_back(options, program):
    measuring = measurements("mine", options, program)
    measuring.measure("squared", number=2)
    assert kept_path(options.logdir, "mine", options.quick).exists()
    study = result(options, program, speed=[{"workers": 0, "step ms": 104.0, "ratio": Ratio(1.4, 1.3, 1.5, 3)}])
    report(study, options)
    path = options.logdir / "study.json"
    value = json.loads(path.read_text())
    assert {"schema", "lab", "device", "environment", "started", "tables", "claims"} <= set(value)
    assert value["schema"] == 1
    assert value["lab"] == "mine"
    assert value["claims"][0] == {
        "id": "faster", "text": "Half precision is faster.", "value": 1.4, "low": 1.3, "high": 1.5, "holds": True,
        "needs": None, "published": None, "undecided": False,
    }  # fmt: skip
    ratio = {"ratio": 1.4, "low": 1.3, "high": 1.5, "rounds": 3}
    assert value["tables"] == {"speed": [{"workers": 0, "step ms": 104.0, "ratio": ratio}]}
    assert read(path) == study
    assert not kept_path(options.logdir, "mine", options.quick).exists()


def test_new_claims_of_a_written_study_leave_what_is_kept_of_one_that_was_cut(options, program, monkeypatch):
    path = options.logdir / "study.json"
    report(result(options, program), options)
    measurements("mine", options, program).measure("squared", number=2)
    monkeypatch.setattr("sys.argv", ["study.py", "--claims", str(path)])
    study_program(lambda: None, lambda tables, on_gpu: [Claim("new", "New.", None, None, None, None)])
    assert [claim.id for claim in read(path).claims] == ["new"]
    assert len(measurements("mine", options, program).values) == 1


def test_a_study_that_cannot_be_written_loses_nothing(options, program, monkeypatch):
    measuring = measurements("mine", options, program)
    measuring.measure("squared", number=2)

    def full(path, value):
        raise InputError("cannot write: no space left")

    study = result(options, program)
    monkeypatch.setattr(record, "write_json", full)
    with pytest.raises(InputError, match="no space left"):
        report(study, options)
    assert len(measurements("mine", options, program).values) == 1


def test_a_smoke_run_does_not_replace_a_whole_study(options, program, defaults, tmp_path):
    again = ["--logdir", str(tmp_path), "--device", "cpu", "--quick"]
    report(result(options, program), options)  # a smoke run's
    lab_options("A lab.", "mine", defaults, again)
    report(replace(result(options, program), quick=False), options)
    with pytest.raises(InputError, match=r"--quick would replace the whole study in .*study\.json: .*--logdir"):
        lab_options("A lab.", "mine", defaults, again)
    lab_options("A lab.", "mine", defaults, again[:-1])
    (options.logdir / "study.json").write_text("{")
    lab_options("A lab.", "mine", defaults, again)


@pytest.mark.parametrize("text", ["{", '{"schema": 2}', '{"schema": 1, "lab": 3}'])
def test_a_broken_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "study.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"study\.json"):
        read(path)


def test_tables_claims_and_notes_are_printed(options, program):
    rows = [{"workers": 0, "step ms": 104.04, "how": "[plain]"}, {"workers": 8, "step ms": None, "how": "b"}]
    out = io.StringIO()
    study = result(options, program, by_workers=rows, empty=[], timeline=[{"operator": 977}] * 41)
    show(study, Console(file=out, width=200))
    printed = out.getvalue()
    assert "41 rows: in the file" in printed
    assert "977" not in printed
    assert "by workers" in printed
    assert "empty" not in printed
    assert "[plain]" in printed
    assert "Half precision is faster.  -          1.4 (1.3 to 1.5)  holds" in printed
    assert [line.split() for line in printed.splitlines() if line.startswith("B.")] == [
        ["B.", "-", "-", *"not testable here".split()]
    ]
    assert "No GPU: nothing waits." in printed


def test_reading_a_study_needs_no_torch(tmp_path):
    finished = run_program("-c", "import sys, labs.shared.study; print('torch' in sys.modules)")
    assert finished.stdout.strip() == "False"


def test_several_measurements_come_in_their_order_and_what_failed_is_none(options, program):
    measuring = measurements("mine", options, program)
    settings = [{"number": number, "count": "x"} for number in (4, 2, 3)]
    assert [answer["square"] for answer in measuring.several("squared", settings, processes=2)] == [16, 4, 9]
    assert measuring.several("refused", [{}, {}], processes=2) == [None, None]
    assert len(measurements("mine", options, program).values) == 3


STUDY = """
from labs.shared.study import measurement, program
from walkthrough.compare.study import claim, interval

@measurement
@measurement
def squared(options, number):
    return number**2

def claims(tables, on_gpu):
    speed, needs = interval(tables["speed"][0]["speed"]), None if on_gpu else "a GPU"
    return [claim("faster", "It is faster.", speed, above=1, needs=needs)]

def main():
    print("the study itself")

if __name__ == "__main__":
    program(main, claims)
"""


def test_a_study_is_its_own_measurements_and_writes_its_claims_anew(options, tmp_path):
    file = tmp_path / "study.py"
    file.write_text(STUDY)
    lab = measurements("mine", options, file)
    assert lab.measure("squared", number=7) == 49
    assert run_program(file).stdout == "the study itself\n"
    path = tmp_path / FILE
    write(path, lab.study({"speed": [{"speed": Ratio(1.5, 1.2, 1.8, 3)}]}, [claim("faster", "Once.", 0.5, above=1)]))
    assert run_program(file, "--claims", path).returncode == 0
    (found,) = read(path).claims
    assert (found.text, found.value, found.holds, found.needs) == ("It is faster.", 1.5, None, "a GPU")
    assert interval(read(path).tables["speed"][0]["speed"]) == Ratio(1.5, 1.2, 1.8, 3)


def test_a_cell_is_that_of_the_first_row_that_has_these_cells():
    rows = [{"batch": 1, "by": "a", "s": 1.0}, {"batch": 2, "by": "a", "s": 2.0}, {"batch": 2, "by": "b", "s": 3.0}]
    tables = as_stored({"times": rows, "speed": [{"times": Ratio(2.0, 1.0, 4.0, 3)}]})
    assert [cell(tables, "times", "s", by=by, batch=2) for by in "abc"] == [2.0, 3.0, None]
    assert cell(tables, "speed", "times") == Ratio(2.0, 1.0, 4.0, 3)
    assert (cell(tables, "times", "none"), cell(tables, "none", "s")) == (None, None)


def test_a_program_that_was_not_measured_is_not_replaced_by_an_earlier_one():
    rows = ladder_rows({"a": {1: [10.0]}, "b": {}, "c": {1: [20.0]}, "d": {1: [30.0]}})
    assert [row["program"] for row in rows] == ["a", "c", "d"]
    assert rows[1]["times the baseline"].ratio == pytest.approx(2)
    assert (rows[1]["times the one before"], rows[2]["times the one before"].ratio) == (None, pytest.approx(1.5))
    without_first = ladder_rows({"a": {}, "c": {1: [20.0]}, "d": {1: [30.0]}})
    assert [row["times the baseline"] for row in without_first] == [None, None]


def test_a_ladders_rows_compare_with_the_first_and_with_the_one_before():
    rows = ladder_rows({"a": {1: [10.0, 30.0, 20.0], 2: [20.0]}, "b": {1: [40.0], 2: [40.0]}, "c": {2: [10.0]}})
    assert [row["samples/s"] for row in rows] == [20.0, 40.0, 10.0]
    for other, expected in (("the baseline", [2.0, 0.5]), ("the one before", [2.0, 0.25])):
        assert rows[0][f"times {other}"] is None
        assert [row[f"times {other}"].ratio for row in rows[1:]] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "limits", "expected"),
    [
        (Ratio(1.5, 1.2, 1.8, 3), {"above": 1}, True),
        (Ratio(1.5, 1.2, 1.8, 3), {"above": 2}, False),
        (Ratio(1.5, 1.2, 1.8, 3), {"above": 1.5}, None),
        (Ratio(1.5, 1.2, 1.8, 3), {"below": 2}, True),
        (Ratio(1.5, 1.2, 1.8, 3), {"below": 1.2}, None),  # the limit itself is within
        (Ratio(1.5, 1.2, 1.8, 3), {"within": (1, 2)}, True),
        (Ratio(1.5, 1.2, 1.8, 3), {"within": (2, 3)}, False),
        (Ratio(1.5, 1.2, 1.8, 3), {"within": (1.3, 2)}, None),
        (Ratio(1.5, None, None, 1), {"above": 1}, None),  # one round: no interval
        (Ratio(1.5, 1.2, 1.8, 1), {"above": 1}, None),  # an interval over windows says nothing of other runs
        (0.7, {"above": 1}, False),  # what does not vary decides by itself
        (0.7, {"below": 1}, True),
        (None, {"above": 1}, None),
        (Ratio(1.5, 1.2, 1.8, 3), {"above": 1, "needs": "a GPU"}, None),
    ],
)
def test_a_claim_is_decided_by_its_interval_or_says_what_it_needs(value, limits, expected):
    found = claim("id", "A claim.", value, **limits)
    assert found.holds is expected
    assert (found.needs is None) == (expected is not None)


@pytest.mark.parametrize(
    ("value", "needed", "verdict"),
    [
        (Ratio(1.5, 1.2, 1.8, 3), {}, "holds"),
        (Ratio(1.5, 0.2, 1.8, 3), {}, "undecided: needs more rounds or seeds"),
        (Ratio(1.5, 1.2, 1.8, 1), {}, "undecided: needs several rounds"),
        (Ratio(1.5, 1.2, 1.8, 3), {"more": "three seeds"}, "undecided: needs three seeds"),
        (Ratio(1.5, 0.2, 1.8, 1), {"more": "three seeds", "needs": "a GPU"}, "not testable here: needs a GPU"),
        (None, {"needs": "a GPU"}, "not testable here: needs a GPU"),
        (None, {}, "not measured yet"),
    ],
)
def test_a_claim_that_more_of_the_same_would_decide_is_undecided_and_others_cannot_be_tested_here(
    value, needed, verdict
):
    assert claim("id", "A claim.", value, above=1, **needed).verdict == verdict
