"""Every cost that a trace is searched for: what treats it, the rules that find it, and what a replay would change.

Adding a cost is one entry here, its rule and a test. Titles are for people; all else goes by the id.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from walkthrough.advice import input_costs, kernel_costs, launch_costs, wait_costs
from walkthrough.advice.evidence import Evidence
from walkthrough.advice.replay import Change, without
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import LAYOUT
from walkthrough.trace.kernels import unit_name
from walkthrough.trace.memory import direction
from walkthrough.trace.operators import between_operators

Rule = Callable[[Analysis], Evidence | None] | Evidence

# How much less time treating a cost may save than estimated, as a share of that time.
# Waits that the trace shows: three published pairs (logs/reference/others.json) missed by about a tenth of it or less.
WAITING = 0.1
# Time on the CPU: the profiler's own is in it, which no trace tells apart; a traced launch takes up to twice as long,
# and with Python's functions recorded (stacks) longer still.
ON_CPU, WITH_STACKS = 0.4, 0.6
# Kernels that do not exist yet. Tensor Cores: 2.7 times estimated for matrix work of ResNet-50 on a V100, 2.3 and 3.3
# measured (see `kernel_costs.in_16_bits`): of the time saved 10 % less to 11 % more; those of other shapes differ more.
TENSOR_CORES = 0.25
UNKNOWN = 0.5  # of a cost that neither a replay nor a bound tells
# Batches that worker processes load on the cores that train: 0.82 times as fast on two cores (logs/reference), near the
# bound on many. So it comes after what surely gains as much, unless the wait is most of the step.
SHARED_CORES = 0.65
OTHER_DATA = 0.5  # whether the data is small enough, no trace tells
OTHER_RANKS = 0.5  # how much of a collective is a wait for another rank, no trace of one rank tells
OTHER_KERNELS = 0.5  # compiled, fused, of twice the batch: nothing is published that this could be compared with


class Cost(Struct, frozen=True, kw_only=True):
    """A cost, and what is known of treating it. Rules take the analysis of the typical steps.

    id: its name. title: what to do, for people; "" where nothing is advised and only a finding points it out. step: the
    script in steps/ that does it, or None. on_gpu, on_cpu: the rules for traces with work of a GPU and without, or what
    is so for all of them; None where that is no cost to speak of there. title_on_cpu: where it is another. unless: why
    treating it changes nothing for that trace, in words, or ""; unless_on_cpu: where that is another.

    change: what treating it would change, for a `Replay`; None where no trace tells: the cost followed as far as the
    trace can show, so that what is to go, goes, and what is to be fused, runs once. error: how much less than estimated
    it may save, as a share of that time; error_on_cpu: where that is another. finding: the id of what stands out
    because of it, where the rule says that something does. of_trace: whether that is about the trace as a whole, so
    that it comes first, and is looked for where the trace shows no steps.

    idle: why the GPU waits because of it, of `idle.CAUSES`. where: when it runs, if that is no time without a kernel.
    shortens_gpu_work: whether the GPU itself has less to do. joins_launches: whether waits for launches go; the second
    one of those may be the same gain twice. changes_training: whether another program is trained then.
    """

    id: str
    title: str = ""
    step: str | None = None
    on_gpu: Rule | None = None
    on_cpu: Rule | None = None
    title_on_cpu: str = ""
    unless: Callable[[Analysis], str] | None = None
    unless_on_cpu: Callable[[Analysis], str] | None = None
    change: Callable[[Analysis], Change] | None = None
    error: float = WAITING
    error_on_cpu: float | None = None
    finding: str = ""
    of_trace: bool = False
    idle: tuple[str, ...] = ()
    where: Callable[[Analysis], Cover] | None = None
    shortens_gpu_work: bool = False
    joins_launches: bool = False
    changes_training: bool = False
    of_all_steps: bool = False

    def evidence(self, a: Analysis) -> Evidence | None:
        """What the rule for that trace finds; None where this is no cost of such a trace."""
        rule, unless = (self.on_gpu, self.unless) if a.on_gpu else (self.on_cpu, self.unless_on_cpu or self.unless)
        if rule and unless and (reason := unless(a)):
            return Evidence(reason, gain=1.0)
        return rule(a) if callable(rule) else rule

    def error_for(self, a: Analysis) -> float:
        """The error of its estimate for that trace, see `error`."""
        error = self.error if a.on_gpu or self.error_on_cpu is None else self.error_on_cpu
        return WITH_STACKS if error == ON_CPU and a.workload.stacks else error

    def title_for(self, a: Analysis, evidence: Evidence) -> str:
        """What to do about it, for people."""
        title = evidence.title or (not a.on_gpu and self.title_on_cpu) or self.title
        return title.replace("Tensor Cores", unit_name(a.trace))


class Advice(Struct, frozen=True):
    """What to do about a cost of a trace: plain values, which records keep too.

    id, step, title: of the cost. why: the evidence, one line. do: what to do, in a sentence. share_of_step: the cost,
    or what it slows down, as a share of the mean typical step, 0..1. predicted_gain: at most this many times faster;
    None where there is no bound. estimated_gain: so many times faster by a replay of the trace; None where that cannot
    tell. low_gain: what of the estimate is nearly sure, by the `error` of the cost: what the profiler takes is in the
    times that are saved, and what replaces a cost costs too, so that estimates err upwards. error: see `Cost`. weight:
    the share of the program's time that typical steps stand for, by which all gains are weighed already, 0..1.
    """

    step: str | None
    title: str
    why: str
    share_of_step: float
    predicted_gain: float | None
    estimated_gain: float | None = None
    id: str = ""
    do: str = ""
    low_gain: float | None = None
    error: float = WAITING
    weight: float = 1.0

    @property
    def share_of_time(self) -> float:
        """The cost as a share of the program's time, 0..1."""
        return self.share_of_step * self.weight

    @property
    def cost(self) -> Cost:
        """The entry of the catalogue."""
        return BY_ID[self.id]

    @property
    def remaining(self) -> float:
        """The share of the time that is surely left to save nothing: by the lower end of the gain.

        Where no replay tells, the bound is taken, which is as uncertain as an estimate, else the share of the time.
        """
        if self.low_gain:
            return 1 / self.low_gain
        if gain := self.estimated_gain or self.predicted_gain:
            return 1 - (1 - 1 / gain) * (1 - self.error)
        return 1 - self.share_of_time * (1 - max(self.error, UNKNOWN))


class Finding(Struct, frozen=True):
    """Something in a trace that an expert would point at.

    id: its name. cost: the id of the cost. what: what it is. why: the evidence. us_per_step: the time it is about. do:
    what to do about it. estimated_gain: how many times faster the steps would be, by a replay with the cost treated;
    None where it cannot tell. when: the times it is about (µs since `Trace.origin`), which the tab's timeline marks;
    none for the trace as a whole.
    """

    id: str
    cost: str
    what: str
    why: str
    us_per_step: float
    do: str
    estimated_gain: float | None = None
    when: Cover = Cover()


_NOTHING_COPIED = Evidence("no GPU in this trace: nothing is copied to a device", gain=1.0)
_NOTHING_LAUNCHED = Evidence("no GPU in this trace: nothing is launched", gain=1.0)

COSTS = (
    Cost(
        id="mixed_precision",
        title="Use Tensor Cores (mixed precision)",
        step="01_amp",
        on_gpu=kernel_costs.mixed_precision,
        on_cpu=Evidence("whether bf16 is faster depends on this CPU's instructions, which no trace shows"),
        title_on_cpu="Use bf16 (mixed precision)",
        unless=kernel_costs.has_no_units,
        change=kernel_costs.in_16_bits,
        error=TENSOR_CORES,
        finding="precision_mix",
        shortens_gpu_work=True,
    ),
    Cost(
        id="bigger_batch",
        title="Use a bigger batch",
        step="02_bigger_batch",
        on_gpu=launch_costs.bigger_batch,
        on_cpu=launch_costs.bigger_batch_on_cpu,
        change=launch_costs.twice_the_batch,
        error=OTHER_KERNELS,
        idle=("launch",),
        changes_training=True,
    ),
    Cost(
        id="uint8_images",
        title="Copy images as uint8",
        step="03_reduced_h2d_copy",
        on_gpu=input_costs.uint8_images,
        on_cpu=input_costs.uint8_images_on_cpu,
        title_on_cpu="Load images as uint8",
        unless=input_costs.copied_as_uint8,
        unless_on_cpu=input_costs.converted_in_batches,
        change=lambda a: Change(copies=np.where(direction(a.trace, "h2d"), 0.25, 1.0)),
        idle=("copy",),
    ),
    Cost(
        id="dataloader_workers",
        title="Use DataLoader workers",
        step="04_multiprocess_loading",
        on_gpu=input_costs.dataloader_workers,
        on_cpu=input_costs.dataloader_workers_on_cpu,
        unless=input_costs.loaded_by_workers,
        unless_on_cpu=input_costs.no_work_for_workers,
        change=input_costs.without_loading,
        error_on_cpu=SHARED_CORES,
        finding="host_python",
        idle=("dataloader",),
    ),
    Cost(
        id="more_workers",
        title="Use more DataLoader workers",
        on_gpu=input_costs.more_workers,
        on_cpu=input_costs.more_workers_on_cpu,
        change=input_costs.without_loading,
        finding="host_python",
        idle=("dataloader",),
    ),
    Cost(
        id="less_per_batch",
        title="Do less work per batch",
        on_gpu=input_costs.less_per_batch,
        on_cpu=input_costs.less_per_batch_on_cpu,
        idle=("dataloader",),
    ),
    # Median steps of small operators on two cores beside one or two workers: by default, with PASSIVE, with one thread.
    # Alone, the training thread without a core for 0.05 to 0.27 of the time: 10, 9 to 19 and 6 ms. Beside one busy
    # program, 0.29: 18 to 20, 9 to 44 and 12 ms; beside two, 0.5: 34 to 1030, 14 to 34 and 13 to 16 ms. So a small
    # share tells nothing, and what is gained where it is large is no part of that time: it has no bound.
    Cost(
        id="spinning_threads",
        title="Use fewer threads, or let them sleep",
        on_cpu=input_costs.spinning_threads,
    ),
    Cost(
        id="persistent_workers",
        title="Keep DataLoader workers alive",
        on_gpu=input_costs.persistent_workers,
        on_cpu=input_costs.persistent_workers,
        idle=("dataloader",),
        of_all_steps=True,
    ),
    Cost(
        id="pinned_memory",
        title="Pin memory",
        step="05_pinned_memory",
        on_gpu=input_costs.pinned_memory,
        on_cpu=_NOTHING_COPIED,
        unless=input_costs.pinned_already,
        change=lambda a: Change(returns=input_costs.calls_of_copies(a, input_costs.pageable_to_gpu(a))),
        finding="blocking_copies",
        idle=("copy",),
    ),
    Cost(
        id="prefetch_stream",
        title="Prefetch on a side stream",
        step="06_prefetch_stream",
        on_gpu=input_costs.prefetch_stream,
        on_cpu=_NOTHING_COPIED,
        unless=input_costs.no_kernels,
        change=input_costs.copied_early,
        idle=("copy",),
    ),
    Cost(
        id="small_images",
        title="Resize on the GPU",
        step="07_small_images",
        on_gpu=input_costs.small_images,
        on_cpu=input_costs.small_images_on_cpu,
        title_on_cpu="Resize batches, not images",
        unless=input_costs.nothing_to_enlarge,
        idle=("dataloader", "copy"),
    ),
    Cost(
        id="data_on_device",
        title="Keep the data on the GPU",
        step="08_on_device_data",
        on_gpu=input_costs.data_on_device,
        on_cpu=input_costs.data_in_memory,
        title_on_cpu="Prepare a batch at once",
        unless=input_costs.no_loader,
        change=lambda a: input_costs.without_loading(a) | input_costs.without_copies(a, "h2d"),
        error=OTHER_DATA,
        idle=("dataloader", "copy"),
    ),
    Cost(
        id="channels_last",
        title="Use channels_last",
        step="09_channels_last",
        on_gpu=kernel_costs.channels_last,
        on_cpu=Evidence("which layout suits a CPU's convolutions, no trace shows"),
        change=lambda a: without(a.named(LAYOUT)),
        error=OTHER_KERNELS,
        finding="layout_conversions",
        shortens_gpu_work=True,
    ),
    Cost(
        id="no_hidden_syncs",
        title="Remove synchronisations",
        step="10_no_hidden_syncs",
        on_gpu=wait_costs.hidden_syncs,
        on_cpu=Evidence("no GPU in this trace: nothing to wait for", gain=1.0),
        unless=input_costs.no_kernels,
        change=wait_costs.without_waits,
        finding="blocking_copies",
        idle=("synchronisation", "copy"),
    ),
    Cost(
        id="fused_optimizer",
        title="Use a fused optimizer",
        step="11_fused_optimizer",
        on_gpu=launch_costs.fused_optimizer,
        on_cpu=launch_costs.fused_optimizer_on_cpu,
        unless=launch_costs.fused_already,
        change=lambda a: launch_costs.one_launch(a, a.phases.optimizer, launch_costs.optimizer_kernels(a)),
        error=ON_CPU,
        finding="unfused_optimizer",
        idle=("launch",),
        shortens_gpu_work=True,
    ),
    Cost(
        id="cudnn_benchmark",
        title="Let cuDNN choose by timing",
        step="12_cudnn_benchmark",
        on_gpu=Evidence("whether another of cuDNN's algorithms is faster, no trace shows"),
        on_cpu=Evidence("cuDNN's algorithms are for GPUs", gain=1.0),
    ),
    Cost(
        id="compile",
        title="torch.compile the model",
        step="13_compile",
        on_gpu=launch_costs.compile_model,
        on_cpu=launch_costs.compile_model_on_cpu,
        unless=launch_costs.nothing_to_compile,
        unless_on_cpu=lambda a: "compiled code runs already" * a.workload.compiled,
        change=launch_costs.compiled_model,
        error=OTHER_KERNELS,
        finding="fusable_elementwise",
        idle=("launch",),
        joins_launches=True,
    ),
    Cost(
        id="compile_loss",
        title="Compile normalisation and loss",
        step="14_compile_loss",
        on_gpu=launch_costs.compile_loss,
        on_cpu=launch_costs.compile_loss_on_cpu,
        unless=launch_costs.without_a_loss,
        change=lambda a: launch_costs.one_launch(a, a.phases.preparing | a.phases.loss, launch_costs.loss_kernels(a)),
        error=OTHER_KERNELS,
        idle=("launch",),
    ),
    Cost(
        id="cuda_graphs",
        title="Use CUDA graphs",
        step="15_cuda_graphs",
        on_gpu=launch_costs.cuda_graphs,
        on_cpu=_NOTHING_LAUNCHED,
        unless=launch_costs.nothing_to_capture,
        change=lambda a: Change(cpu=[(launch_costs.model_code(a), 0.0)]),
        error=ON_CPU,
        finding="many_small_launches",
        idle=("launch",),
        joins_launches=True,
    ),
    Cost(
        id="data_parallel",
        title="Train on several GPUs",
        step="16_data_parallel",
        on_gpu=Evidence("what another GPU would add, no trace of one process shows"),
        on_cpu=Evidence("they share these cores: no trace shows"),
        title_on_cpu="Train in several processes",
    ),
    Cost(id="graph_capture", on_gpu=wait_costs.graph_capture, finding="graph_capture", of_trace=True),
    Cost(
        id="warm_up",
        title="Warm up before tracing",
        on_gpu=wait_costs.warm_up,
        finding="startup",
        of_trace=True,
        idle=("setup",),
    ),
    Cost(id="outlier_steps", on_gpu=wait_costs.outlier_steps, finding="outlier_steps", of_trace=True),
    Cost(
        id="slowest_rank",
        title="Compare the ranks",
        on_gpu=wait_costs.slowest_rank,
        on_cpu=wait_costs.slowest_rank,
        error=OTHER_RANKS,
        where=wait_costs.while_only_communicating,
        shortens_gpu_work=True,
    ),
    Cost(
        id="overlap_communication",
        title="Overlap communication",
        on_gpu=wait_costs.exposed_communication,
        on_cpu=wait_costs.exposed_communication,
        change=wait_costs.hidden_collectives,
        error=OTHER_KERNELS,
        finding="exposed_collectives",
        where=wait_costs.while_only_communicating,
        shortens_gpu_work=True,
    ),
    Cost(
        id="host_python",
        title="Reduce Python overhead",
        on_gpu=wait_costs.host_python,
        on_cpu=wait_costs.host_python_on_cpu,
        change=lambda a: Change(
            cpu=[(between_operators(a.trace, a.whole.steps.cpu_start, a.whole.steps.cpu_end), 0.0)]
        ),
        error=ON_CPU,
        finding="host_python",
        idle=("other",),
    ),
    Cost(
        id="cpu_operators",
        title="Move CPU work out of the step",
        on_gpu=wait_costs.cpu_operators,
        change=lambda a: Change(cpu=[(wait_costs.cpu_work(a), 0.0)]),
        error=ON_CPU,
        finding="host_python",
        idle=("launch",),
    ),
    Cost(id="device_queue_stall", on_gpu=wait_costs.device_queue_stall, finding="device_queue_stall"),
    Cost(
        id="fused_attention",
        title="Fuse attention (scaled_dot_product_attention)",
        on_gpu=kernel_costs.fused_attention,
        change=lambda a: without(kernel_costs.attention(a)[1]),
        error=OTHER_KERNELS,
        finding="unfused_attention",
        shortens_gpu_work=True,
    ),
    Cost(id="misaligned_matmul", on_gpu=kernel_costs.misaligned_matmul, finding="misaligned_matmul"),
    Cost(id="recomputation", on_gpu=kernel_costs.recomputation, finding="recomputation"),
    Cost(id="float64", on_gpu=kernel_costs.float64, finding="float64"),
    Cost(id="depthwise", on_gpu=kernel_costs.depthwise, finding="depthwise"),
)
BY_ID = {cost.id: cost for cost in COSTS}
