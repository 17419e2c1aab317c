"""The notebook for Colab: its commands are commands, and it runs here up to the GPU."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support import CPU_RECORD, NAMES, ROOT

from walkthrough.cli import _parser

NOTEBOOK = ROOT / "docs" / "colab.ipynb"
COPIED = ("common", "walkthrough", "studies", "steps", "pyproject.toml")  # what a recording needs of the project
ADDRESS = 'REPOSITORY = "'
COMMIT = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "commit", "--quiet")


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def commands(notebook):
    """The words of each `python -m walkthrough` in the notebook."""
    text = "\n".join(cell.source for cell in code(notebook))
    lines = re.findall(r"^!python -m walkthrough (.+)$", text, re.MULTILINE)
    return [shlex.split(line.replace("{RECORD}", "runs/gpu").replace("{MINUTES}", "15")) for line in lines]


def replaced(notebook, old, new):
    """Replace a line of the notebook, which must hold it once."""
    cells = [cell for cell in code(notebook) if old in cell.source]
    assert len(cells) == 1, old
    assert cells[0].source.count(old) == 1
    cells[0].source = cells[0].source.replace(old, new)


def run(notebook, folder, timeout):
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(folder)}}).execute()


def printed(notebook):
    return "".join(output.get("text", "") for cell in code(notebook) for output in cell.outputs)


def test_the_notebook_is_committed_without_outputs_and_asks_for_a_t4(notebook):
    nbformat.validate(notebook)
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code(notebook))
    assert notebook.metadata.accelerator == "GPU"
    assert notebook.metadata.colab.gpuType == "T4"


def test_each_command_of_the_notebook_has_the_options_that_it_gives_it(notebook):
    words = commands(notebook)
    assert [line[0] for line in words].count("explain") == 3
    assert {line[0] for line in words} == {"doctor", "record", "compare", "explain"}
    for line in words:
        args, others = _parser().parse_known_args(line)
        assert args.command == line[0]
        assert not others or hasattr(args, "passed_on")  # to the steps
    steps = re.findall(r"\{RECORD\}/(\w+)", "".join(cell.source for cell in code(notebook)))
    assert set(steps) <= set(NAMES)


def test_the_notebook_clones_the_address_that_the_project_gives(notebook):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    address = re.search(r'^Repository = "(.*)"', project, re.MULTILINE)
    assert f'{ADDRESS}{address[1] if address else ""}"' in code(notebook)[0].source
    assert "docs/colab.ipynb" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("has_gpu", "line"),
    [(False, "No GPU here: Runtime > Change runtime type"), (True, "Set REPOSITORY, in the first cell")],
)
def test_without_a_gpu_or_an_address_one_line_says_what_to_do(notebook, tmp_path, monkeypatch, has_gpu, line):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if has_gpu:
        replaced(notebook, "if not torch.cuda.is_available():", "if False:")
        replaced(notebook, "print(torch.cuda.get_device_name(),", "print(")
    first = code(notebook)[0]
    first.source = re.sub(f'{ADDRESS}.*"', f'{ADDRESS}"', first.source)
    with pytest.raises(CellExecutionError):
        run(notebook, tmp_path, 120)
    (output,) = [output for cell in code(notebook) for output in cell.outputs if output.output_type == "error"]
    assert len(output.traceback) == 1
    assert output.traceback[0].startswith(line)


@pytest.fixture
def without_gpu(notebook, tmp_path, monkeypatch):
    """The notebook as it can run here: the project is copied, and what needs a GPU or the internet is left out."""
    for name in COPIED:  # instead of the clone
        source, target = ROOT / name, tmp_path / "walkthrough" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "walkthrough"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # a request to the internet fails at once
    replaced(notebook, "if not torch.cuda.is_available():", "if False:")
    replaced(notebook, "print(torch.cuda.get_device_name(),", "print(")
    replaced(notebook, "%pip install --quiet --editable .[train,board] matplotlib", "pass")
    replaced(notebook, "%load_ext tensorboard\n%tensorboard --logdir {RECORD}", "pass")
    return notebook


@pytest.mark.long
def test_the_notebook_reads_and_packs_what_was_recorded(without_gpu, tmp_path):
    shutil.copytree(ROOT / "logs" / "reference" / CPU_RECORD, tmp_path / "walkthrough" / "runs" / CPU_RECORD)
    replaced(without_gpu, "!python -m walkthrough record --runs 1", "#")
    run(without_gpu, tmp_path, 300)
    text = printed(without_gpu)
    assert " ".join(text.split()).count("More: --all") == 2
    assert "16_data_parallel" in text  # the table
    assert (tmp_path / "walkthrough" / "ladder.png").exists()
    assert (tmp_path / "walkthrough" / f"{CPU_RECORD}.zip").exists()


def test_a_second_run_of_all_cells_stays_in_the_first_clone(notebook, tmp_path):
    clone = next(cell.source for cell in code(notebook) if "git clone" in cell.source)
    origin = tmp_path / "origin"
    for words in (["init", "--quiet", origin], [*COMMIT, "--allow-empty", "--message", "empty"]):
        subprocess.run(["git", *words], cwd=tmp_path if words[0] == "init" else origin, check=True, timeout=60)
    sources = [f"REPOSITORY = {origin.as_uri()!r}", clone, clone, "print('now in', Path.cwd())"]
    again = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    run(again, tmp_path, 120)
    assert f"now in {(tmp_path / 'walkthrough').resolve()}\n" in printed(again)
    assert [path.parent.name for path in tmp_path.rglob(".git")] == ["origin", "walkthrough"]


@pytest.mark.long
@pytest.mark.thorough
def test_the_notebook_runs_on_a_cpu_but_for_its_gpu(without_gpu, tmp_path):
    notebook = without_gpu
    replaced(notebook, "--runs 1 --minutes {MINUTES} --download", "--runs 1 --device cpu --quick")
    run(notebook, tmp_path, 1200)
    text = printed(notebook)
    folder = next((tmp_path / "walkthrough" / "runs").iterdir())
    assert [path.name for path in sorted(folder.iterdir()) if path.is_dir()] == NAMES
    assert "16_data_parallel" in text  # the table
    assert " ".join(text.split()).count("More: --all") == 2
    assert (tmp_path / "walkthrough" / "ladder.png").exists()
    assert "smoke run" in text  # which --pack refuses
    assert not list((tmp_path / "walkthrough").glob("*.zip"))
