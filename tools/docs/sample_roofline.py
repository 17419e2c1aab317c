"""How near its GPU's limits a sample's operators are, by the GPU's data sheet.

The model is known, the shapes are not in the trace: so the operations and bytes of its step are counted once more, with
tensors that have no values.
"""

import re
from collections.abc import Mapping

from walkthrough.compare.table import markdown_table
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.columns import launching_operators

SAMPLE, MODEL, BATCH_SIZE, IMAGE_SIZE = "resnet50_v100_ddp", "resnet50", 32, 224
FLOPS, CORES_FLOPS, BYTES = 15.7e12, 125e12, 900e9  # per second, of a V100 with NVLink: in float32, on Tensor Cores
SOURCE = "https://www.nvidia.com/en-us/data-center/v100/"
KINDS = {  # of operators, by their names in the sample and in today's torch
    "convolutions, matrix products": r"conv|::(add)?mm$",
    "batch norm": "batch_norm",
    "ReLU": "relu|clamp_min|threshold",
    "additions": "::add_?$",
}
REST = "everything else"

Work = dict[str, tuple[float, float, float]]  # {kind: (µs of its kernels in a typical step, FLOPs, bytes)}


def kind_of(operator: str) -> str:
    """One of `KINDS`, or `REST`."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, operator)), REST)


def work(analysis: Analysis) -> Work:
    """The time of the sample's kernels by the kind of the operator that launched them, and what its step computes."""
    typical = analysis.typical
    trace, us = typical.trace, dict.fromkeys((*KINDS, REST), 0.0)
    operators = launching_operators(trace, trace.kernels.call).tolist()
    for operator, duration in zip(operators, trace.kernels.duration.tolist(), strict=True):
        us[kind_of(trace.names[trace.operators.name[operator]]) if operator >= 0 else REST] += duration
    counts = counted()
    return {kind: (round(all_us / len(typical.steps.names), 1), *counts[kind]) for kind, all_us in us.items()}


def counted() -> dict[str, tuple[int, int]]:
    """{kind: (FLOPs, bytes)} of a forward and a backward pass: 2 x multiply-adds; each operator's inputs and outputs.

    The first gradient of each weight is counted, too; SGD is not.
    """
    import torch
    import torchvision

    from studies.roofline import OperatorCounter

    with torch.device("meta"):
        model = torchvision.models.get_model(MODEL)
        images = torch.empty(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.zeros(BATCH_SIZE, dtype=torch.long)
    with OperatorCounter() as counter:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    counts: dict[str, tuple[int, int]] = dict.fromkeys((*KINDS, REST), (0, 0))
    for one in counter.counts.values():
        kind = kind_of(one.name)
        flops, moved = counts[kind]
        counts[kind] = (flops + (one.flops or 0), moved + one.bytes)
    return counts


def table(of: Mapping[str, tuple[float, float, float]]) -> str:
    """What limits each kind of operator, in Markdown, and the intensity of the whole step."""
    rows, least_ms, all_ms = [], 0.0, sum(us for us, _, _ in of.values()) / 1e3
    for kind in sorted(of, key=lambda kind: (kind == REST, -of[kind][0])):
        us, flops, moved = of[kind]
        if kind == REST:
            rows.append([kind, f"{us / 1e3:.1f}", "", "", "", "", ""])
            continue
        arithmetic, memory = flops / FLOPS * 1e3, moved / BYTES * 1e3
        least = max(arithmetic, memory)
        least_ms += least
        limit = "arithmetic" if arithmetic > memory else "memory"
        share = f"{least * 1e3 / us:.0%}"
        counts = [f"{flops / 1e9:.0f}" if flops else "-", f"{moved / 1e9:.1f}"]
        rows.append([kind, f"{us / 1e3:.1f}", *counts, limit, f"{least:.1f}", share])
    rows.append(["all", f"{all_ms:.1f}", "", "", "", f"{least_ms:.1f}", f"{least_ms / all_ms:.0%}"])
    headers = ["operators of a step", ">ms, traced", ">GFLOP", ">GB", "limited by", ">ms at that limit", ">% of limit"]
    all_flops, all_bytes = (sum(work[column] for work in of.values()) for column in (1, 2))
    peaks = f"{FLOPS / 1e12:g} TFLOP/s in float32, {CORES_FLOPS / 1e12:g} on Tensor Cores, {BYTES / 1e9:g} GB/s"
    return (
        f"{markdown_table(headers, rows)}\n\n*`{SAMPLE}`, a typical step. FLOPs and bytes are counted from the model's "
        f"shapes: each operator reads its inputs and writes its outputs once. Limits by [data sheet]({SOURCE}): "
        f"{peaks}. The whole step: {all_flops / 1e9:.0f} GFLOP and {all_bytes / 1e9:.0f} GB, "
        f"{all_flops / all_bytes:.0f} FLOPs per byte; the GPU's limits meet at {FLOPS / BYTES:.0f}, with Tensor Cores "
        f"at {CORES_FLOPS / BYTES:.0f}.*"
    )
