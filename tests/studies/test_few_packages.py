"""A recording needs torch, torchvision and tensorboard, no more: as on somebody's GPU machine."""

import json

from support.few_packages import missing_modules, run_with_few_packages

from studies.study import STUDIES

IMPORTS = f"""
import sys
from importlib import import_module
sys.modules.update(dict.fromkeys(["torch", "torchvision", "numpy"]))
import_module("studies.study")
for name in {STUDIES}:
    import_module(f"studies.{{name}}")
    import_module(f"studies.{{name}}.record")
for name in ("torch", "torchvision", "numpy"):
    del sys.modules[name]
for name in {STUDIES}:
    import_module(f"studies.{{name}}.measure")
for name in ("limit.compiled", "ablation.program", "overhead.program", "sweep.program"):
    import_module(f"studies.{{name}}")
print("all")
"""


def limit(folder, *words):
    small = "--quick --device cpu --model shufflenet_v2_x0_5 --batch-size 4 --compile-limit 0".split()
    return run_with_few_packages(folder, "-m", "walkthrough", "limit", *small, "--logdir", folder / "logs", *words)


def test_what_only_tables_traces_and_figures_need_is_hidden():
    hidden = {"rich", "msgspec", "psutil", "plotly", "matplotlib", "pandas", "scipy", "torch_tb_profiler"}
    assert hidden <= set(missing_modules())
    assert not {"torch", "torchvision", "tensorboard", "numpy", "filelock", "PIL", "sympy"} & set(missing_modules())


def test_records_import_without_torch_and_measurements_with_torch_alone(tmp_path):
    finished = run_with_few_packages(tmp_path, "-c", IMPORTS)
    assert (finished.returncode, finished.stdout) == (0, "all\n"), finished.stderr


def test_a_limit_is_measured_without_what_tables_and_traces_need(tmp_path):
    finished = limit(tmp_path)
    assert finished.returncode == 0, finished.stderr
    path = tmp_path / "logs" / "limit.json"
    assert f"no table: rich is not installed; written to {path}" in finished.stdout
    result = json.loads(path.read_text())
    assert result["speeds"][0]["samples_per_second"]["median"] > 0
    assert (result["groups"], result["without_formula"]["time_share"]) == ([], None)
    assert any("msgspec" in note for note in result["notes"])


def test_a_plot_without_matplotlib_is_refused_before_measuring(tmp_path):
    finished = limit(tmp_path, "--plot", tmp_path / "roof.svg")
    assert finished.returncode == 2, finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1
    assert "needs matplotlib, which is not installed" in lines[0]
    assert not (tmp_path / "logs").exists()
