"""The course as a notebook: committed as it was executed."""

import re

import nbformat
import pytest
from support import NAMES, ROOT

from tools.docs.recorded import records
from walkthrough.compare.ladder import page_table

pytestmark = pytest.mark.xdist_group("notebook")
NOTEBOOK = ROOT / "docs" / "walkthrough.ipynb"
RUN = [NAMES[number] for number in (0, 2, 3, 7, 8)]  # which have an effect on a CPU, and compile nothing


def test_the_notebook_is_committed_executed_and_holds_nothing_of_the_machine_it_ran_on():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    printed = "".join(output.get("text", "") for output in outputs)
    assert all(re.search(rf"^{name}: \d+ images/s", printed, re.MULTILINE) for name in RUN)
    shown = [output.data for output in outputs if "data" in output]
    table = page_table(records()[0].ladder)  # of what is recorded today
    assert table in [data.get("text/markdown") for data in shown], "run `make docs-notebook`"
    assert sum("image/svg+xml" in data for data in shown) == 2
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work)/", text)
    assert not re.search(r"\.\d{13}\.pt\.trace", text)  # a trace's name begins with the host's
    assert len(text) < 1_000_000
