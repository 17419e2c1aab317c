"""The same numbers as TensorBoard's profiler plugin: by torch-tb-profiler's own parser, of traces as of 2021.

Those of today, and recorded ones, are compared in test_profiler_parser.py.
"""

import json
import logging

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.trace_builder import V100, TraceBuilder, analyzed

from walkthrough.trace.kernel_names import ELIGIBLE
from walkthrough.trace.kernels import tensor_cores
from walkthrough.trace.steps import ROLES

plugin = pytest.importorskip("torch_tb_profiler.profiler.data")
listed = pytest.importorskip("torch_tb_profiler.profiler.tensor_core").TC_Allowlist.allowlist

# The plugin passes pandas an argument that pandas 3 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """The plugin's parser warns of every event that it cannot link."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def near(value):
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)


def assert_same(ours, theirs):
    """Every number of ours is the plugin's; Tensor Cores by the plugin's lists, since ours know more."""
    total = theirs.avg_costs.costs[-1]
    assert (ours.steps.names, ours.steps.mean_us) == (theirs.steps_names, pytest.approx(total))
    for role, cost in zip(ROLES, theirs.avg_costs.costs, strict=False):
        assert ours.steps.mean_breakdown_us[role] == pytest.approx(cost, rel=1e-6, abs=1e-6 * total + 1e-3), role
    metrics = theirs.gpu_metrics_parser
    gpus = ours.gpus if len(ours.trace.kernels) else []  # the plugin lists no GPU that only copies
    assert [gpu.id for gpu in gpus] == sorted(metrics.gpu_ids)
    old = tensor_cores(ours.trace, ELIGIBLE, lambda name: any(part in name for part in listed))
    for gpu in gpus:
        assert gpu.utilization == near(metrics.gpu_utilization[gpu.id])
        efficiency = metrics.avg_approximated_sm_efficiency_per_device[gpu.id]  # None if all kernels are outside
        assert gpu.sm_efficiency == near(efficiency or 0)
        assert gpu.occupancy_percent == near(metrics.avg_occupancy_per_device[gpu.id])
        if theirs.tc_ratio[gpu.id] is not None:
            # the plugin has 0 for a GPU none of whose kernels an operator launched; we have None
            assert (old.share[gpu.id] or 0) == pytest.approx(theirs.tc_ratio[gpu.id], abs=1e-4)
    if gpus and old.eligible_share is not None:
        assert old.eligible_share == pytest.approx(theirs.tc_eligible_ops_kernel_ratio, abs=1e-4)
    if theirs.kernel_stat is not None:
        kernels = ours.all_tables.kernels
        assert sum(kernel.count for kernel in kernels) == theirs.kernel_stat["count"].sum()
        assert sum(kernel.us for kernel in kernels) == near(theirs.kernel_stat["sum"].sum())


KERNELS = [
    *("volta_sgemm_128x64_nn", "volta_h884gemm_64x64_ldg8_nn", "void at::native::vectorized_elementwise_kernel<4>"),
    "ncclKernel_AllReduce_RING_LL_Sum_float",
]
OPERATORS = ["aten::mm", "aten::add", "aten::linear", "nccl:all_reduce", "Optimizer.step#SGD.step"]


@st.composite
def traces(draw):
    """Training loops in which operators follow each other and launch work on streams that run behind."""
    builder = TraceBuilder("2021", [V100, V100 | {"id": 1}])
    whole = st.integers(0, 60)
    now, free = 1000, {0: 0, 1: 0}
    for number in range(draw(st.integers(0, 4))):
        begin = now
        for _ in range(draw(st.integers(0, 4))):
            now += draw(whole)
            if draw(st.booleans()):
                length = draw(whole)
                builder.loading(now, length)
                now += length
            op_begin, op = now, builder.op(draw(st.sampled_from(OPERATORS)), now, 0)
            for _ in range(draw(st.integers(0, 3))):
                now += draw(whole)
                device = draw(st.integers(0, 1))
                at = max(free[device], now + draw(whole))
                length = draw(st.integers(1, 200))
                kernel = KERNELS[2] if op["name"] in OPERATORS[3:] else draw(st.sampled_from(KERNELS))
                builder.launch(
                    kernel, now, 3, at, length, op=op, device=device,
                    **{"blocks per SM": draw(st.sampled_from([0.25, 0.5, 2.0])),
                       "est. achieved occupancy %": draw(st.integers(0, 100))},
                )  # fmt: skip
                free[device] = at + length if draw(st.booleans()) else at
                now += 3
            now += draw(st.integers(1, 30))
            op["dur"] = now - op_begin
            if draw(st.booleans()):
                builder.copy(now, 2, max(free[0], now), draw(st.integers(1, 40)), 1000)
                now += 3
        now += draw(st.integers(1, 50))
        if draw(st.booleans()) or number == 0:
            builder.step(number, begin, now - begin)
    builder.op("aten::last", now, 10)
    return builder


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any_training_loop(builder):
    theirs = plugin.RunProfileData.from_json("worker", None, json.loads(json.dumps(builder.json)))
    *parts, total = theirs.avg_costs.costs
    # Where copies and collectives fill a step, the plugin begins again with the whole step for the next role.
    assume(sum(parts) == pytest.approx(total, abs=1e-3))
    assert_same(analyzed(builder), theirs)
