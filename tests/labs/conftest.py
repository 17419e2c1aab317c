"""What tests of several files of a lab share."""

import json

import pytest

from common import program, session
from common.timing import Plan
from labs.scale import data, drawing
from walkthrough.compare.study import Measurements


@pytest.fixture(autouse=True)
def short_windows(monkeypatch):
    """What is timed by --quick is timed for a step."""
    short = Plan(warmup_steps=1, warmup_seconds=0, windows=3, window_steps=1, window_seconds=0)
    monkeypatch.setattr(session, "QUICK", short)
    monkeypatch.setattr(program, "QUICK", short)
    monkeypatch.setitem(program.LOADED, True, short)


@pytest.fixture
def measure_here(monkeypatch):
    """measure_here(study): measurements are made in this process, not each in one of its own."""

    def here(study):
        def measure(self, what, **settings):
            answer = getattr(study, what)(self.options, **json.loads(json.dumps(settings)))
            return json.loads(json.dumps(answer))

        monkeypatch.setattr(Measurements, "measure", measure)

    return here


@pytest.fixture(scope="session", autouse=True)
def one_core():
    """Pictures are drawn and prepared in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """A folder of 96 training pictures of 4 classes, small ones, and 19 for validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "SIDES", (70, 130))
        patch.setattr(drawing, "LARGE_SIDE", 200)
        return data.drawn_folder(tmp_path_factory.mktemp("jpegs") / "drawn", images=96, classes=4)


@pytest.fixture(scope="session")
def prepared_32px(drawn):
    """{kind: its folder}: `drawn`, prepared in each way at 32 px."""
    from labs.scale.preprocess import KINDS, prepared

    return {kind: prepared(drawn, kind, 32) for kind in KINDS}
