"""The architecture: who imports whom, and what starting costs in imports. See CONTRIBUTING, "How it is built"."""

import ast
import re
import sys

import pytest
from support import NAMES, ROOT, STEPS, run_program

from common.ladder.published import RELATIVE

COMMON = sorted((ROOT / "common").glob("**/*.py"))
LABS = sorted((ROOT / "labs").glob("**/*.py"))
PACKAGES = ("run", "trace", "explain", "attach", "ladder", "studies", "reference", "board", "course")
BELOW = {  # which rooms of common a room may import; "flat": the modules that a program imports
    "trace": {"trace"},
    "flat": {"flat", "run"},
    "run": {"flat", "run"},
    "explain": {"explain", "trace", "flat", "run"},
    "ladder": {"ladder", "explain", "trace", "flat", "run"},
    "attach": {"attach", "ladder", "explain", "trace", "flat", "run"},
    "studies": {"studies", "ladder", "explain", "trace", "flat", "run"},
    "reference": {"reference", "studies", "ladder", "explain", "trace", "flat", "run"},
    "board": {"board", "ladder", "explain", "trace", "flat", "run"},
    "course": {"course", "reference", "studies", "ladder", "explain", "trace", "flat", "run"},
}
NO_TORCH = sorted((ROOT / "common").glob("**/__init__.py"))
NO_TORCH += sorted((ROOT / "common" / "studies").glob("*/record.py"))


def imported(path):
    """Names of all modules that a file imports anywhere in it, but for those that only its type annotations need."""
    names, waiting = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)
    return names


def room(parts):
    """The room of a module, by the parts of its name or path below `common`."""
    return parts[0] if parts[0] in PACKAGES else "flat"


def test_common_shows_about_twenty_names():
    names = [path for path in (ROOT / "common").iterdir() if path.name != "__pycache__"]
    assert len(names) <= 23
    assert {path.name for path in names if path.is_dir()} == set(PACKAGES)


@pytest.mark.parametrize("path", COMMON, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    names = imported(path)
    assert not any(name.split(".")[0] in ("steps", "labs", "tests") for name in names)
    if path.name == "__main__.py" and path.parent.name == "common":
        return  # it puts the commands together, by name
    own = room(path.relative_to(ROOT / "common").parts)
    rooms = {room(name.split(".")[1:]) for name in names if name.startswith("common.")}
    if own == "trace":
        assert all(name.startswith(("common.trace", "common.errors")) for name in names if name.startswith("common."))
    else:
        assert rooms <= BELOW[own]
    if own != "board":
        assert not any(name.startswith("torch_tb_profiler") for name in names)


def test_every_module_can_be_read_at_once():
    long = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in COMMON}
    assert {path: lines for path, lines in long.items() if lines > 350} == {}


def test_the_trace_engine_needs_msgspec_and_numpy_only():
    for path in (ROOT / "common" / "trace").rglob("*.py"):
        outside = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
        may_be_missing = {"isal"} if path.name == "source.py" else set()
        assert outside - may_be_missing <= {"msgspec", "numpy", "common"}, path.name


def test_what_runs_inside_another_program_imports_the_standard_library_and_its_torch_only():
    site = sorted((ROOT / "common" / "attach" / "site").rglob("*.py"))
    assert len(site) > 5
    for path in site:
        own = {"report", "task", "timing", "tracing", "watch"}  # relative imports
        outside = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - own
        assert outside <= {"torch"}, path.name


STANDARD_LIBRARY_ONLY = ["record", "machine", "errors", "options", "run/folder", "run/not_run", "run/privacy"]
STANDARD_LIBRARY_ONLY += [
    "run/progress",
    "ladder/runner",
    "ladder/rounds",
    "ladder/pace",
    "ladder/merging",
    "studies/ablation/plan",
]


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_what_a_recording_reads_with_needs_the_standard_library_only(name):
    blocked = "rich msgspec numpy torch torchvision tensorboard filelock psutil matplotlib pandas plotly".split()
    code = f"sys.modules.update(dict.fromkeys({blocked!r}))\nimport common.{name.replace('/', '.')}"
    assert f"common.{name.replace('/', '.')}" in modules_after(code)


def test_a_program_imports_torch_torchvision_and_the_flat_modules_of_common_only():
    for path in STEPS:
        names = imported(path)
        assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) <= {
            "torch",
            "torchvision",
            "common",
        }
        assert {room(name.split(".")[1:]) for name in names if name.startswith("common.")} == {"flat"}, path.name
    for path in LABS:
        rooms = {room(name.split(".")[1:]) for name in imported(path) if name.startswith("common.")}
        assert rooms <= {"flat", "studies"}, path.name


def modules_after(code):
    finished = run_program("-c", f"import sys\n{code}\nprint(*sys.modules)")
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_the_command_line_starts_without_torch_tensorboard_or_rich():
    loaded = modules_after("from common import __main__, record; __main__._parser()")
    assert not loaded & {"torch", "torchvision", "tensorboard", "rich", "matplotlib", "numpy"}


def test_packages_and_the_records_of_studies_are_read_without_torch():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in NO_TORCH]
    names = [name for name in names if name != "common.board"]  # TensorBoard imports that
    assert not modules_after(f"import {', '.join(names)}") & {"torch", "torchvision"}


def test_explain_starts_without_torch_and_tensorboard():
    trace = sorted((ROOT / "logs" / "reference").glob("*/00_baseline/*.pt.trace.json.gz"))[0]
    code = f"import common.__main__ as m\ntry:\n    m.main(['explain', {str(trace)!r}])\nexcept SystemExit:\n    pass"
    assert not modules_after(code) & {"torch", "torchvision", "tensorboard", "matplotlib"}


def test_a_step_does_not_import_tensorboard_or_rich_before_it_has_measured():
    loaded = modules_after("import common.data, common.device, common.model, common.options, common.session")
    assert not loaded & {"tensorboard", "rich", "matplotlib", "pandas", "torch_tb_profiler"}


def test_every_requirement_has_its_reason_and_its_tested_version():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("# " in line for line in lines)
    names = [re.split("[<>=#]", line)[0].strip() for line in lines if not line.startswith("-e")]
    locked = {line.split("=")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert set(names) <= locked


def test_the_readme_lists_the_steps_with_the_published_figures():
    rows = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert [row[1].strip(" `") for row in rows] == NAMES
    published = [f"{RELATIVE[name]:.2f}x" if name in RELATIVE else "-" for name in NAMES]
    assert [row[4].strip() for row in rows] == published
