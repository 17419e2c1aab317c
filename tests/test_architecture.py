"""The architecture: who imports whom, and what starting costs in imports. See CONTRIBUTING, "The map"."""

import ast
import sys

import pytest
from support import ROOT, run_program
from support.recorded import make_record

from walkthrough.cli import COMMANDS

ROOMS = ("common", "walkthrough", "studies", "tools")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
BELOW = {  # which rooms of the tool a room may import, itself and `results` aside
    "results": set(),
    "terminal": set(),
    "doctor": set(),
    "trace": set(),
    "advice": {"trace", "terminal"},
    "compare": {"advice", "trace", "terminal"},
    "explain": {"compare", "advice", "terminal"},
    "attach": {"explain", "compare"},
    "memory": {"compare", "terminal"},
    "records": {"compare", "advice", "trace", "terminal"},
    "tensorboard": {"compare", "advice", "trace", "terminal"},
}


def imported(path, everywhere=True):
    """Names of all modules that a file imports, but for those that only its type annotations need.

    everywhere: inside functions too.
    """
    names, waiting = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef) and not everywhere:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)
    return names


def rooms(names, package):
    """The rooms of a package that are imported: by the second part of a module's name."""
    return {name.split(".")[1] for name in names if name.startswith(package + ".")}


NEVER = {  # what the files of a package do not import
    "walkthrough": {"steps", "labs", "tests", "studies", "common", "tools"},
    "common": {"steps", "labs", "tests", "studies", "tools"},
    "studies": {"steps", "labs", "tests", "tools"},
    "tools": {"steps", "tests"},
}


@pytest.mark.parametrize("package", ROOMS)
def test_arrows_point_one_way(package):
    for path in (path for path in MODULES if path.relative_to(ROOT).parts[0] == package):
        room, names = path.relative_to(ROOT).parts[1].removesuffix(".py"), imported(path)
        packages = {name.split(".")[0] for name in names}
        assert not packages & NEVER[package], path
        if package == "walkthrough" and room in BELOW:
            assert rooms(names, "walkthrough") <= BELOW[room] | {room, "results"}, path
        if package == "common":
            assert rooms(names, "walkthrough") <= {"results"}, path
        assert "torch_tb_profiler" not in packages or room == "tensorboard" or package == "tools", path


def test_every_module_can_be_read_at_once():
    scripts = (ROOT / "walkthrough" / "tensorboard" / "static").glob("*.js")
    long = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in (*MODULES, *scripts)}
    assert {path: lines for path, lines in long.items() if lines > 600} == {}


@pytest.mark.parametrize(
    "files, packages",
    [
        ("walkthrough/trace/**/*.py", {"msgspec", "numpy", "walkthrough", "isal"}),
        ("walkthrough/advice/**/*.py", {"msgspec", "numpy", "walkthrough", "isal"}),
        ("walkthrough/attach/site/**/*.py", {"torch"}),  # they run inside another program, whose torch it is
        ("steps/*.py", {"torch", "torchvision", "common"}),
    ],
)
def test_files_import_the_standard_library_and_few_packages(files, packages):
    paths = list(ROOT.glob(files))
    assert paths
    own = {path.stem for path in paths}  # relative imports
    for path in paths:
        outside = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - own
        assert outside <= packages, path.name


def test_what_a_step_starts_with_needs_the_standard_library_only():
    results = {path.stem for path in (ROOT / "walkthrough" / "results").glob("[!_]*.py")} - {"events"}
    names = ["common.options", "studies.ablation", "walkthrough.terminal", "walkthrough.doctor"]
    names += [f"walkthrough.results.{name}" for name in sorted(results)]
    blocked = "rich msgspec numpy torch torchvision tensorboard filelock psutil matplotlib pandas plotly".split()
    assert {*names} <= modules_after(f"sys.modules.update(dict.fromkeys({blocked!r}))\nimport {', '.join(names)}")


def modules_after(code):
    finished = run_program("-c", f"import sys\n{code}\nprint(*sys.modules)")
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def after_commands(*commands):
    """The modules that commands have imported when they end, what they print aside."""
    run = "  with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    cli.main(words)"
    return modules_after(f"import contextlib, io\nfrom walkthrough import cli\nfor words in {commands!r}:\n{run}")


def test_the_help_of_every_command_is_printed_without_large_packages():
    loaded = after_commands(*([command, "--help"] for command in COMMANDS))
    assert {module for module, _ in COMMANDS.values()} <= loaded
    assert not loaded & {"torch", "torchvision", "numpy", "rich", "tensorboard", "matplotlib", "pandas"}


def test_a_record_is_verified_without_torch(tmp_path):
    verifying = after_commands(["record", "--check", str(make_record(tmp_path / "test-gpu"))])
    assert "tensorboard" in verifying  # which reads the scalars
    assert not verifying & {"torch", "torchvision", "matplotlib"}


def test_a_step_does_not_import_tensorboard_or_rich_before_it_has_measured():
    for path in (ROOT / "common").glob("*.py"):
        names = imported(path, everywhere=False)
        assert not names & {"tensorboard", "rich", "matplotlib", "walkthrough.results.events"}, path.name
