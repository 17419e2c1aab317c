"""Packages that only some labs need: what is imported, and the line where one is missing."""

import json
import sys

import pytest
from support import run_program

from labs.shared.extras import imported
from walkthrough.results.errors import InputError


def test_what_is_installed_is_imported():
    assert imported("json", "mine", "accuracy") is json
    assert imported("json.decoder", "mine", "accuracy") is json.decoder


@pytest.mark.parametrize(
    ("module", "package"), [("no_such_module", "no_such_module"), ("sklearn.datasets", "scikit-learn")]
)
def test_a_missing_package_is_one_line_that_says_how_to_install_it(monkeypatch, module, package):
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    with pytest.raises(InputError) as refused:
        imported(module, "mine", "accuracy")
    assert str(refused.value) == (
        f"accuracy needs {package}, which is not installed: pip install {package}, or all that this lab needs: "
        "pip install -r labs/mine/requirements.txt"
    )


def test_what_another_package_lacks_is_named(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="needs something_it_needs, which is not installed"):
        imported("half_installed", "mine", "accuracy")


def test_it_brings_nothing_with_it():
    code = "import sys, labs.shared.extras; print(*sorted(name for name in sys.modules if name[:7] == 'common.'))"
    assert run_program("-c", code).stdout.split() == []
