"""The course as a notebook: committed as it was executed, and executed here again from scratch."""

import re

import nbformat
import pytest
from support import NAMES, ROOT

from tools.docs.recorded import records
from walkthrough.compare.ladder import page_table

pytestmark = pytest.mark.xdist_group("notebook")
NOTEBOOK = ROOT / "docs" / "walkthrough.ipynb"
RUN = [NAMES[number] for number in (0, 2, 3, 7, 8)]  # which have an effect on a CPU, and compile nothing


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def assert_whole(notebook):
    """Every cell was executed, in order, without an error; every step ran; tables and figures are there."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    text = "".join(output.get("text", "") for output in outputs(notebook))
    for name in RUN:
        assert re.search(rf"^{name}: \d+ images/s", text, re.MULTILINE)
    shown = [output.data for output in outputs(notebook) if "data" in output]
    assert sum("| `08_on_device_data` |" in data.get("text/markdown", "") for data in shown) >= 2
    figures = [data["image/svg+xml"] for data in shown if "image/svg+xml" in data]
    assert len(figures) == 2
    assert all("<svg" in "".join(figure) for figure in figures)


def test_the_notebook_is_committed_executed_and_holds_nothing_of_the_machine_it_ran_on():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert_whole(notebook)
    shown = records()[0]
    table = page_table(shown.ladder)  # of what is recorded today
    assert any(output.get("data", {}).get("text/markdown") == table for output in outputs(notebook)), (
        "run `make docs-notebook`"
    )
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work)/", text)
    assert not re.search(r"\.\d{13}\.pt\.trace", text)  # a trace's name begins with the host's
    assert len(text) < 1_000_000
