"""What the studies of all labs share: options by device, measurements that are kept, tables, claims, the file."""

import io
import json
import sys

import pytest
from rich.console import Console
from support import run_program

from common.options import Defaults, Workload, step_options
from labs.shared.extras import imported
from labs.shared.study import FILE, as_stored, cell, lab_options, ladder_rows, measurements, report
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import Claim, NotMeasured, claim, interval, kept_path, read, show, write
from walkthrough.results import result as record
from walkthrough.results.errors import InputError

STUDY = """
import os
from labs.shared.study import measurement, program
from walkthrough.compare.study import claim, interval
from walkthrough.results.errors import InputError

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

def claims(tables, on_gpu):
    speed, needs = interval(tables["speed"][0]["speed"]), None if on_gpu else "a GPU"
    return [claim("faster", "It is faster.", speed, above=1, needs=needs)]

if __name__ == "__main__":
    program(lambda: print("the study itself"), claims)
"""
FASTER = claim("faster", "Half precision is faster.", Ratio(1.4, 1.3, 1.5, 3), above=1)
TABLES = {"speed": [{"workers": 0, "step ms": 104.0, "speed": Ratio(1.4, 1.3, 1.5, 3)}]}


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
def lab(tmp_path, options):
    """lab(): the measurements of a study's program, as each call of it makes them."""
    path = tmp_path / "study.py"
    path.write_text(STUDY)
    return lambda: measurements("mine", options, path)


@pytest.mark.parametrize(
    ("device", "words", "expected"),
    [("cpu", [], ("small", 16, 16)), ("cpu", ["--model", "large"], ("large", 8, 16)), ("cuda", [], ("large", 32, 128)),
     ("cpu", ["--quick"], ("small", 4, 16)), ("cpu", ["--batch-size", "3"], ("small", 16, 3))],
)  # fmt: skip
def test_a_lab_names_its_own_models_sizes_and_folder(defaults, tmp_path, monkeypatch, device, words, expected):
    monkeypatch.setattr("common.device.checked_device", lambda name: device)
    options = step_options("A program.", words, defaults)
    assert (options.model, options.image_size, options.batch_size) == expected
    assert options.logdir == tmp_path / "default"


def test_a_measurement_is_a_process_of_its_own_and_is_kept(lab, options, tmp_path):
    assert options.logdir == tmp_path / "labs" / "mine"
    assert lab().measure("squared", number=3, count="x") == {"square": 9, "model": "small"}
    again = lab()  # as after a cut
    settings = [{"number": 4, "count": "y"}, {"number": 3, "count": "x"}]
    assert [answer["square"] for answer in again.several("squared", settings, processes=1)] == [16, 9]
    assert (options.logdir / "calls").read_text() == "xy"
    failures = {
        "refused": "the data is gone",
        "defect": "ValueError: a defect",
        "crash": "ended with code 7|no message",
    }
    for what, why in failures.items():
        with pytest.raises(NotMeasured, match=why):
            again.measure(what)
    assert again.several("refused", [{}], processes=2) == [None]
    assert len(lab().values) == 2  # what failed is tried again


def test_a_study_is_written_whole_as_the_house_fixes_it_and_read_back(lab, options, monkeypatch):
    measuring = lab()
    measuring.measure("squared", number=2)
    study, path = measuring.study(TABLES, [FASTER], ["no GPU: nothing waits"]), options.logdir / FILE
    with monkeypatch.context() as patched, pytest.raises(InputError, match="no space left"):
        patched.setattr(record, "write_json", lambda *_: (_ for _ in ()).throw(InputError("no space left")))
        report(study, options)
    assert len(lab().values) == 1  # nothing that was measured is lost
    report(study, options)
    value = json.loads(path.read_text())
    assert {"schema", "lab", "device", "environment", "started", "tables", "claims"} <= set(value)
    assert (value["schema"], value["lab"]) == (1, "mine")
    assert value["claims"][0] == {
        "id": "faster", "text": "Half precision is faster.", "value": 1.4, "low": 1.3, "high": 1.5, "holds": True,
        "needs": None, "published": None, "undecided": False,
    }  # fmt: skip
    ratio = {"ratio": 1.4, "low": 1.3, "high": 1.5, "rounds": 3}
    assert value["tables"] == {"speed": [{"workers": 0, "step ms": 104.0, "speed": ratio}]}
    assert read(path) == study
    assert not kept_path(options.logdir, "mine", options.quick).exists()


def test_a_study_writes_its_claims_anew_and_leaves_what_is_kept_of_one_that_was_cut(lab, options, tmp_path):
    file, path = tmp_path / "study.py", tmp_path / FILE
    measuring = lab()
    measuring.measure("squared", number=2)
    assert run_program(file).stdout == "the study itself\n"
    write(path, measuring.study(TABLES, [claim("faster", "Once.", 0.5, above=1)]))
    assert run_program(file, "--claims", path).returncode == 0
    (found,) = read(path).claims
    assert (found.text, found.value, found.holds, found.needs) == ("It is faster.", 1.4, None, "a GPU")
    assert interval(read(path).tables["speed"][0]["speed"]) == Ratio(1.4, 1.3, 1.5, 3)
    assert len(lab().values) == 1


def test_tables_claims_and_notes_are_printed(lab):
    rows = [{"workers": 0, "step ms": 104.04, "how": "[plain]"}, {"workers": 8, "step ms": None, "how": "b"}]
    study = lab().study(
        {"by_workers": rows, "empty": [], "timeline": [{"operator": 977}] * 41},
        [FASTER, Claim("b", "B.", None, None, None, None)],
        ["no GPU: nothing waits"],
    )
    out = io.StringIO()
    show(study, Console(file=out, width=200))
    printed = out.getvalue()
    for words in ("by workers", "[plain]", "41 rows: in the file", "1.4 (1.3 to 1.5)  holds", "No GPU: nothing waits."):
        assert words in printed
    assert "977" not in printed and "empty" not in printed
    assert ["B.", "-", "-", *"not testable here".split()] in [line.split() for line in printed.splitlines()]


def test_reading_a_study_needs_no_torch_and_extras_none_of_common():
    code = "import sys, labs.shared.extras; print('common.options' in sys.modules); import labs.shared.study; "
    assert run_program("-c", code + "print('torch' in sys.modules)").stdout.split() == ["False", "False"]


def test_a_cell_is_that_of_the_first_row_that_has_these_cells():
    rows = [{"batch": 1, "by": "a", "s": 1.0}, {"batch": 2, "by": "a", "s": 2.0}, {"batch": 2, "by": "b", "s": 3.0}]
    tables = as_stored({"times": rows, "speed": [{"times": Ratio(2.0, 1.0, 4.0, 3)}]})
    assert [cell(tables, "times", "s", by=by, batch=2) for by in "abc"] == [2.0, 3.0, None]
    assert cell(tables, "speed", "times") == Ratio(2.0, 1.0, 4.0, 3)
    assert (cell(tables, "times", "none"), cell(tables, "none", "s")) == (None, None)


def test_a_ladders_rows_compare_with_the_first_and_with_the_one_before_if_that_was_measured():
    rows = ladder_rows({"a": {1: [10.0, 30.0, 20.0], 2: [20.0]}, "b": {1: [40.0], 2: [40.0]}, "c": {2: [10.0]}})
    assert [row["samples/s"] for row in rows] == [20.0, 40.0, 10.0]
    for other, expected in (("the baseline", [2.0, 0.5]), ("the one before", [2.0, 0.25])):
        assert rows[0][f"times {other}"] is None
        assert [row[f"times {other}"].ratio for row in rows[1:]] == pytest.approx(expected)
    rows = ladder_rows({"a": {1: [10.0]}, "b": {}, "c": {1: [20.0]}, "d": {1: [30.0]}})
    assert [row["program"] for row in rows] == ["a", "c", "d"]
    assert rows[1]["times the baseline"].ratio == pytest.approx(2)
    assert (rows[1]["times the one before"], rows[2]["times the one before"].ratio) == (None, pytest.approx(1.5))
    assert [row["times the baseline"] for row in ladder_rows({"a": {}, "c": {1: [2.0]}, "d": {1: [3.0]}})] == [None] * 2


THREE, ONE = Ratio(1.5, 1.2, 1.8, 3), Ratio(1.5, 1.2, 1.8, 1)
MORE = "undecided: needs more rounds or seeds"


@pytest.mark.parametrize(
    ("value", "limits", "verdict"),
    [
        (THREE, {"above": 1}, "holds"),
        (THREE, {"above": 2}, "does not hold"),
        (THREE, {"above": 1.5}, MORE),
        (THREE, {"below": 2}, "holds"),
        (THREE, {"below": 1.2}, MORE),  # the limit itself is within
        (THREE, {"within": (1, 2)}, "holds"),
        (THREE, {"within": (2, 3)}, "does not hold"),
        (THREE, {"within": (1.3, 2)}, MORE),
        (Ratio(1.5, None, None, 1), {"above": 1}, "undecided: needs several rounds"),
        (ONE, {"above": 1}, "undecided: needs several rounds"),  # an interval over windows says nothing of other runs
        (0.7, {"above": 1}, "does not hold"),  # what does not vary decides by itself
        (0.7, {"below": 1}, "holds"),
        (None, {"above": 1}, "not measured yet"),
        (THREE, {"above": 1, "more": "three seeds"}, "undecided: needs three seeds"),
        (ONE, {"above": 1, "more": "three seeds", "needs": "a GPU"}, "not testable here: needs a GPU"),
        (None, {"above": 1, "needs": "a GPU"}, "not testable here: needs a GPU"),
    ],
)
def test_a_claim_is_decided_by_its_interval_or_says_what_it_needs(value, limits, verdict):
    found = claim("id", "A claim.", value, **limits)
    assert found.verdict == verdict
    assert found.holds is {"holds": True, "does not hold": False}.get(verdict)
    assert (found.needs is None) == (found.holds is not None)


# Packages that only some labs need


@pytest.mark.parametrize(
    ("module", "package"),
    [("no_such_module", "no_such_module"), ("sklearn.datasets", "scikit-learn"), ("half", "something_it_needs")],
)
def test_a_missing_package_is_one_line_that_says_how_to_install_it(monkeypatch, tmp_path, module, package):
    (tmp_path / "half.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError) as refused:
        imported(module, "mine", "accuracy")
    assert imported("json.decoder", "mine", "accuracy") is json.decoder
    for words in (f"needs {package},", f"pip install {package},", "pip install -r labs/mine/requirements.txt"):
        assert words in str(refused.value)
