"""What the studies of all labs share: options by device, measurements that are kept, tables, claims, the file."""

import json

import pytest

from common.options import Defaults, Workload
from labs.shared.study import FILE, lab_options, measurements, report
from walkthrough.compare.statistics import Ratio
from walkthrough.compare.study import NotMeasured, claim, kept_path, read
from walkthrough.results import result as record
from walkthrough.results.errors import InputError

STUDY = """
from labs.shared.study import measurement, program

@measurement
def squared(options, number, count=""):
    with open(options.logdir / "calls", "a") as file:
        file.write(count)
    return {"square": number ** 2, "model": options.model}

@measurement
def defect(options):
    raise ValueError("a defect")

if __name__ == "__main__":
    program(None, None)
"""
FASTER = claim("faster", "Half precision is faster.", Ratio(1.4, 1.3, 1.5, 3), above=1)
TABLES = {"speed": [{"workers": 0, "step ms": 104.0, "speed": Ratio(1.4, 1.3, 1.5, 3)}]}


@pytest.fixture
def options(tmp_path):
    defaults = Defaults(cuda=Workload("large", 128, 32), cpu=Workload("small", 16, 16), logdir=tmp_path, models="small")
    return lab_options("A lab.", "mine", defaults, ["--logdir", str(tmp_path), "--device", "cpu", "--quick"])[0]


@pytest.fixture
def lab(tmp_path, options):
    """lab(): the measurements of a study's program, as each call of it makes them."""
    path = tmp_path / "study.py"
    path.write_text(STUDY)
    return lambda: measurements("mine", options, path)


def test_a_measurement_is_a_process_of_its_own_and_is_kept(lab, options, tmp_path):
    assert options.logdir == tmp_path / "labs" / "mine"
    assert lab().measure("squared", number=3, count="x") == {"square": 9, "model": "small"}
    again = lab()  # as after a cut
    settings = [{"number": 4, "count": "y"}, {"number": 3, "count": "x"}]
    assert [answer["square"] for answer in again.several("squared", settings, processes=1)] == [16, 9]
    assert (options.logdir / "calls").read_text() == "xy"
    with pytest.raises(NotMeasured, match="ValueError: a defect"):
        again.measure("defect")
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
    assert {"device", "environment", "started"} <= set(value)
    assert (value["schema"], value["lab"]) == (1, "mine")
    assert value["claims"][0] == {
        "id": "faster", "text": "Half precision is faster.", "value": 1.4, "low": 1.3, "high": 1.5, "holds": True,
        "needs": None, "published": None, "undecided": False,
    }  # fmt: skip
    ratio = {"ratio": 1.4, "low": 1.3, "high": 1.5, "rounds": 3}
    assert value["tables"] == {"speed": [{"workers": 0, "step ms": 104.0, "speed": ratio}]}
    assert read(path) == study
    assert not kept_path(options.logdir, "mine", options.quick).exists()


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
        (ONE, {"above": 1}, "undecided: needs several rounds"),  # an interval over windows says nothing of other runs
        (0.7, {"above": 1}, "does not hold"),  # what does not vary decides by itself
        (0.7, {"below": 1}, "holds"),
        (None, {"above": 1}, "not measured yet"),
        (THREE, {"above": 1, "more": "three seeds"}, "undecided: needs three seeds"),
        (ONE, {"above": 1, "more": "three seeds", "needs": "a GPU"}, "not testable here: needs a GPU"),
    ],
)
def test_a_claim_is_decided_by_its_interval_or_says_what_it_needs(value, limits, verdict):
    found = claim("id", "A claim.", value, **limits)
    assert found.verdict == verdict
    assert found.holds is {"holds": True, "does not hold": False}.get(verdict)
    assert (found.needs is None) == (found.holds is not None)
