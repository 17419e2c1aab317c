"""What tests of several files of a lab share."""

import json
import sys
from types import SimpleNamespace

import pytest
from support import exit_code_of

from labs.scale import data, drawing
from walkthrough.compare.study import Measurements


@pytest.fixture
def run_main(monkeypatch, capsys):
    """run_main(module, *words): the `main` of an imported program: its exit code, stdout and stderr."""

    def run(module, *words):
        monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, words)])
        capsys.readouterr()
        code = exit_code_of(module.main)
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture
def measure_here(monkeypatch):
    """measure_here(study): measurements are made in this process, not each in one of its own."""

    def here(study):
        def measure(self, what, **settings):
            answer = getattr(study, what)(self.options, **json.loads(json.dumps(settings)))
            return json.loads(json.dumps(answer))

        monkeypatch.setattr(Measurements, "measure", measure)

    return here


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """A folder of 96 training pictures of 4 classes, small ones, and 19 for validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "SIDES", (70, 130))
        patch.setattr(drawing, "LARGE_SIDE", 200)
        patch.setattr(data, "usable_cores", lambda: 1)
        return data.drawn_folder(tmp_path_factory.mktemp("jpegs") / "drawn", images=96, classes=4)


@pytest.fixture(scope="session")
def prepared_32px(drawn):
    """{kind: its folder}: `drawn`, prepared in each way at 32 px."""
    from labs.scale.preprocess import KINDS, prepared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "usable_cores", lambda: 1)
        return {kind: prepared(drawn, kind, 32) for kind in KINDS}
