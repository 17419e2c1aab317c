"""Packages that only some labs need: what is imported, and the line where one is missing."""

import json
import sys

import pytest

from labs.shared.extras import imported
from walkthrough.results.errors import InputError


def test_what_is_installed_is_imported():
    assert imported("json.decoder", "mine", "accuracy") is json.decoder


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
    for words in (f"needs {package},", f"pip install {package},", "pip install -r labs/mine/requirements.txt"):
        assert words in str(refused.value)
