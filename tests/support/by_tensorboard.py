"""What torch-tb-profiler shows of traces: patched, in this process; as it is installed, in one of its own."""

import importlib
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def displayed(path):
    """The figures and views of one trace with our patches, parsed in this process (which they patch) once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plugin's own: it was written for the pandas of 2021
        importlib.import_module("walkthrough.tensorboard.profiler_parser")  # which patches the plugin's parser
        return json.loads(json.dumps(_figures_and_views(path)))


def displayed_unpatched(paths):
    """The same for several traces by the plugin as it is installed."""
    command = [sys.executable, __file__, *map(str, paths)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=1200)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def _figures_and_views(path):
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    data = RunProfileData.parse("worker", None, str(path), tempfile.gettempdir())
    profile = RunGenerator("worker", None, data).generate_run_profile()
    names = "overview operation_pie_by_name operation_table_by_name operation_pie_by_name_input "
    names += "operation_table_by_name_input operation_stack_by_name kernel_op_table kernel_pie kernel_table tc_pie "
    names += "gpu_summary gpu_metrics module_stats"
    views = {name: getattr(profile, name, None) for name in names.split()}
    views["names"] = [view.display_name for view in profile.views]
    if profile.memory_snapshot:
        views["memory"] = profile.get_memory_stats()
        views["memory_curve"] = profile.get_memory_curve()
    metrics = data.gpu_metrics_parser
    return {
        "steps": data.steps_names,
        "costs": data.avg_costs.costs,
        "utilization": {gpu: metrics.gpu_utilization[gpu] for gpu in metrics.gpu_ids},
        "tensor_core_share": {gpu: data.tc_ratio[gpu] for gpu in metrics.gpu_ids},
        "eligible_share": data.tc_eligible_ops_kernel_ratio,
        "peaks": sorted(data.memory_snapshot.get_peak_memory().values()) if data.memory_snapshot else [],
        "collectives": [
            {"name": node.name, "shape": node.input_shape, "type": node.input_type, "kernels": node.kernel_ranges}
            for node in data.comm_node_list
        ],
        "overlap": [vars(costs) for costs in data.comm_overlap_costs],
        "views": views,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    json.dump([_figures_and_views(path) for path in sys.argv[1:]], sys.stdout)
