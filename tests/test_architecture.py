"""The architecture: who imports whom, and what starting costs in imports."""

import ast
import sys

import pytest
from support import NAMES, ROOT, STEPS, run_program

from common.ladder.published import RELATIVE

RECORDS = ["ablation_record", "input_limit_record", "limit_record", "overhead_record", "sweep_record"]
COMMON = sorted((ROOT / "common").glob("**/*.py"))


def imported(path):
    """Names of all modules that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", COMMON, ids=lambda path: path.name)
def test_common_imports_no_step_and_only_the_board_imports_the_plugin(path):
    names = imported(path)
    assert not any(name.split(".")[0] in ("steps", "labs", "tests") for name in names)
    if "board" not in path.parts:
        assert not any(name.startswith("torch_tb_profiler") for name in names)


@pytest.mark.parametrize("path", COMMON, ids=lambda path: path.name)
def test_nothing_but_the_course_imports_what_makes_the_docs(path):
    if "course" not in path.parts:
        assert not any(name.startswith("common.course") for name in imported(path))


def test_the_trace_engine_needs_msgspec_and_numpy_only():
    for path in (ROOT / "common" / "trace").glob("*.py"):
        names = imported(path)
        outside = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
        assert outside <= {"msgspec", "numpy", "common"}, path.name
        assert all(name.startswith(("common.trace", "common.errors")) for name in names if name.startswith("common"))
        assert len(path.read_text().splitlines()) <= 300, path.name


@pytest.mark.parametrize(
    "name", ["record", "machine", "errors", "progress", "ladder", "not_run", "studies", "ablation_plan", *RECORDS]
)
def test_the_leaves_need_the_standard_library_only(name):
    outside = {top.split(".")[0] for top in imported(ROOT / "common" / f"{name}.py")} - set(sys.stdlib_module_names)
    assert outside <= {"common"}


def test_the_steps_import_torch_torchvision_and_leaves_of_common_only():
    for path in STEPS:
        tops = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
        assert tops <= {"torch", "torchvision", "common"}, path.name


def modules_after(code):
    finished = run_program("-c", f"import sys\n{code}\nprint(*sys.modules)")
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_the_command_line_starts_without_torch_tensorboard_or_rich():
    loaded = modules_after("import common.__main__, common.ladder.compare, common.record")
    assert not loaded & {"torch", "torchvision", "tensorboard", "rich", "matplotlib", "numpy"}


def test_a_step_does_not_import_tensorboard_or_rich_before_it_has_measured():
    loaded = modules_after("import common.data, common.device, common.model, common.options, common.session")
    assert not loaded & {"tensorboard", "rich", "matplotlib", "pandas", "torch_tb_profiler"}


def test_every_requirement_has_its_reason_and_its_tested_version():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("# " in line for line in lines)
    names = [line.split("#")[0].strip().split(">")[0].split("=")[0] for line in lines if not line.startswith("-e")]
    locked = {line.split("=")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert set(names) <= locked


def test_the_readme_lists_the_steps_with_the_published_figures():
    rows = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert [row[1].strip(" `") for row in rows] == NAMES
    published = [f"{RELATIVE[name]:.2f}x" if name in RELATIVE else "-" for name in NAMES]
    assert [row[4].strip() for row in rows] == published
