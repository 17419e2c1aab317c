"""What torch-tb-profiler shows of traces, as JSON: python by_tensorboard.py [--as-it-is] TRACE…

A process of its own, since what mends the plugin mends it for the whole process. --as-it-is: without our mending.
"""

import importlib
import json
import logging
import sys

logging.disable(logging.CRITICAL)


def shown(path):
    """The data of every view of one trace, and the figures behind them."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    found = RunProfileData.parse("worker", None, path, "/tmp")
    run = RunGenerator("worker", None, found).generate_run_profile()
    views = {
        name: getattr(run, name, None)
        for name in (
            *("overview", "operation_pie_by_name", "operation_table_by_name", "operation_pie_by_name_input"),
            *("operation_table_by_name_input", "operation_stack_by_name", "kernel_op_table", "kernel_pie"),
            *("kernel_table", "tc_pie", "gpu_summary", "gpu_metrics", "module_stats"),
        )
    }
    views["names"] = [view.display_name for view in run.views]
    if run.memory_snapshot:
        views["memory"] = run.get_memory_stats()
        views["memory_curve"] = run.get_memory_curve()
    metrics = found.gpu_metrics_parser
    return {
        "steps": found.steps_names,
        "costs": found.avg_costs.costs,
        "utilization": {gpu: metrics.gpu_utilization[gpu] for gpu in metrics.gpu_ids},
        "tensor_core_share": {gpu: found.tc_ratio[gpu] for gpu in metrics.gpu_ids},
        "eligible_share": found.tc_eligible_ops_kernel_ratio,
        "peaks": sorted(found.memory_snapshot.get_peak_memory().values()) if found.memory_snapshot else [],
        "collectives": [
            {"name": node.name, "shape": node.input_shape, "type": node.input_type, "kernels": node.kernel_ranges}
            for node in found.comm_node_list
        ],
        "overlap": [vars(costs) for costs in found.comm_overlap_costs],
        "views": views,
    }


if __name__ == "__main__":
    paths = sys.argv[1:]
    if paths[0] == "--as-it-is":
        paths.pop(0)
    else:
        importlib.import_module("common.board.loader")  # which mends the plugin's parser
    json.dump([shown(path) for path in paths], sys.stdout)
