"""The loading of runs: children that die, runs without a readable trace, runs side by side in the Diff view."""

import warnings

import pytest
from support.trace_builder import TraceBuilder, two_steps

pytest.importorskip("torch_tb_profiler")


def load(folder):
    """The run in a folder, by the loader whose children die."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plugin's own: it was written for the pandas of 2021
        from dying_loader import DyingLoader
        from torch_tb_profiler import io

        return DyingLoader("run", str(folder), io.Cache(str(folder))).load()


@pytest.mark.parametrize("worker", ["dies", "breaks"])
def test_a_child_that_dies_is_not_waited_for_and_the_others_are_loaded(tmp_path, caplog, worker):
    two_steps().write(tmp_path / f"{worker}.pt.trace.json")
    two_steps().write(tmp_path / "lives.pt.trace.json")
    run = load(tmp_path)
    assert [name for name, _ in run.profiles] == ["lives"]
    assert f"reading {worker}.pt.trace.json ended with exit code 9" in caplog.text


def test_a_run_without_one_readable_trace_is_an_error_that_names_it(tmp_path):
    two_steps().write(tmp_path / "dies.pt.trace.json")
    with pytest.raises(ValueError, match="no trace of run can be read"):
        load(tmp_path)


def test_the_diff_view_pairs_operators_by_their_names(tmp_path):
    other = TraceBuilder()
    other.step(1, 0, 1000)
    other.op("aten::item", 0, 10)
    other.op("aten::only_here", 20, 10)
    paths = [two_steps().write(tmp_path / "a.json"), other.write(tmp_path / "b.json")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        from torch_tb_profiler.profiler.data import RunProfileData
        from torch_tb_profiler.profiler.run_generator import RunGenerator

        import common.board.loader  # noqa: F401  # it patches the plugin

        data = [RunProfileData.parse("w", None, str(path), str(tmp_path)) for path in paths]
        profiles = [RunGenerator("w", None, parsed).generate_run_profile() for parsed in data]
    diff = profiles[0].compare_run(profiles[1]).get_diff_node_summary("0")
    left, right = ([operator["name"] for operator in diff[side]["aggs"]] for side in ("left", "right"))
    assert left == right
    assert {"aten::item", "aten::only_here", "aten::cudnn_convolution"} <= set(left)
