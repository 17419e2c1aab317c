"""Every cost that a trace is searched for: what treats it, the rules that find it, and what a replay would change.

A cost that a step of the walkthrough treats has an entry for each kind of device, also where its trace cannot show it.
"""

from collections.abc import Callable

from msgspec import Struct

from walkthrough.advice import input_costs, kernel_costs, launch_costs, wait_costs
from walkthrough.advice.evidence import Evidence, Finding, no_effect
from walkthrough.advice.replay import Change
from walkthrough.trace.analysis import Analysis
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernels import unit_name

Rule = Callable[[Analysis], Evidence | None] | Evidence


class Cost(Struct, frozen=True, kw_only=True):
    """A cost, and what is known of treating it. Rules take the analysis of the typical steps.

    id: its name. title: what to do. step: the script in steps/ that does it, or None. on_gpu, on_cpu: the rules for
    traces with kernels and without, or what is so for all of them; None where that is no cost to speak of there.
    title_on_cpu: where it is another. change: what treating it would change, for a `Replay`; None where no trace tells:
    the cost followed as far as the trace can show, so that what is to go, goes, and what is to be fused, runs once.
    finding: the rule for what stands out because of it. of_trace: whether that is about the trace as a whole, so that
    it comes first, and also where the trace shows no steps.

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
    change: Callable[[Analysis], Change] | None = None
    finding: Callable[[Analysis], Finding | None] | None = None
    of_trace: bool = False
    idle: tuple[str, ...] = ()
    where: Callable[[Analysis], Cover] | None = None
    shortens_gpu_work: bool = False
    joins_launches: bool = False
    changes_training: bool = False

    def advice(self, a: Analysis) -> "Advice | None":
        """What the rule for that trace finds; the share is 0 where the trace does not show the cost."""
        on_gpu = len(a.trace.kernels) > 0
        rule = self.on_gpu if on_gpu else self.on_cpu
        evidence = rule(a) if callable(rule) else rule
        if not evidence:
            return None
        title = self.title.replace("Tensor Cores", unit_name(a.trace))
        return Advice(
            self.step,
            title if on_gpu else self.title_on_cpu or self.title,
            evidence.why,
            evidence.share,
            evidence.gain,
            id=self.id,
        )


class Advice(Struct, frozen=True):
    """What to do about a cost of a trace: plain values, which records keep too.

    step, title, id: of the cost. why: the evidence. share_of_step: the cost, or what it slows down, as a share of the
    mean typical step, 0..1. predicted_gain: at most this many times faster; None where
    there is no bound. estimated_gain: so many times faster by a replay of the trace; None where that cannot tell.
    """

    step: str | None
    title: str
    why: str
    share_of_step: float
    predicted_gain: float | None
    estimated_gain: float | None = None
    id: str = ""

    @property
    def cost(self) -> Cost:
        """The entry of the catalogue."""
        return BY_ID[self.id]

    @property
    def remaining(self) -> float:
        """The share of the step that is left: by the estimate, else at best."""
        gain = self.estimated_gain or self.predicted_gain
        return 1 / gain if gain else 1 - self.share_of_step


_NOTHING_COPIED = no_effect("no GPU in this trace: nothing is copied to a device")

COSTS = (
    Cost(
        id="mixed_precision",
        title="mixed precision, on Tensor Cores",
        step="01_amp",
        on_gpu=kernel_costs.mixed_precision,
        on_cpu=Evidence("whether bf16 is faster depends on this CPU's instructions, which no trace shows"),
        title_on_cpu="mixed precision",
        change=kernel_costs.in_16_bits,
        finding=kernel_costs.precision_mix,
        shortens_gpu_work=True,
    ),
    Cost(
        id="bigger_batch",
        title="give each launch more work",
        step="02_bigger_batch",
        on_gpu=launch_costs.bigger_batch,
        on_cpu=launch_costs.bigger_batch_on_cpu,
        title_on_cpu="do more work per step",
        change=launch_costs.twice_the_batch,
        idle=("launch",),
        changes_training=True,
    ),
    Cost(
        id="uint8_images",
        title="copy images as uint8",
        step="03_reduced_h2d_copy",
        on_gpu=input_costs.uint8_images,
        on_cpu=input_costs.uint8_images_on_cpu,
        title_on_cpu="load images as uint8",
        change=input_costs.quarter_of_the_bytes,
        idle=("copy",),
    ),
    Cost(
        id="dataloader_workers",
        title="load in processes",
        step="04_multiprocess_loading",
        on_gpu=input_costs.dataloader_workers,
        on_cpu=input_costs.dataloader_workers_on_cpu,
        change=input_costs.without_loading,
        idle=("dataloader",),
    ),
    Cost(
        id="more_workers",
        title="load in more processes",
        on_gpu=input_costs.more_workers,
        on_cpu=input_costs.more_workers_on_cpu,
        change=input_costs.without_loading,
        idle=("dataloader",),
    ),
    Cost(
        id="less_per_batch",
        title="do less for each batch",
        on_gpu=input_costs.less_per_batch,
        on_cpu=input_costs.less_per_batch_on_cpu,
        idle=("dataloader",),
    ),
    Cost(
        id="persistent_workers",
        title="keep the worker processes",
        on_gpu=input_costs.persistent_workers,
        on_cpu=input_costs.persistent_workers,
        idle=("dataloader",),
    ),
    Cost(
        id="pinned_memory",
        title="pinned memory",
        step="05_pinned_memory",
        on_gpu=input_costs.pinned_memory,
        on_cpu=_NOTHING_COPIED,
        change=input_costs.pinned,
        finding=input_costs.blocking_copies,
        idle=("copy",),
    ),
    Cost(
        id="prefetch_stream",
        title="copy the next batch early",
        step="06_prefetch_stream",
        on_gpu=input_costs.prefetch_stream,
        on_cpu=_NOTHING_COPIED,
        change=input_costs.copied_early,
        idle=("copy",),
    ),
    Cost(
        id="small_images",
        title="resize on the GPU",
        step="07_small_images",
        on_gpu=input_costs.small_images,
        on_cpu=input_costs.small_images_on_cpu,
        title_on_cpu="resize batches, not images",
        idle=("dataloader", "copy"),
    ),
    Cost(
        id="data_on_device",
        title="keep the data on the GPU",
        step="08_on_device_data",
        on_gpu=input_costs.data_on_device,
        on_cpu=input_costs.data_in_memory,
        title_on_cpu="prepare a batch at once",
        change=lambda a: input_costs.without_loading(a) | input_costs.without_copies(a, "h2d"),
        idle=("dataloader", "copy"),
    ),
    Cost(
        id="channels_last",
        title="channels last",
        step="09_channels_last",
        on_gpu=kernel_costs.channels_last,
        on_cpu=Evidence("which layout suits a CPU's convolutions, no trace shows"),
        change=lambda a: kernel_costs.without(kernel_costs.converts_layout(a)),
        finding=kernel_costs.layout_conversions,
        shortens_gpu_work=True,
    ),
    Cost(
        id="no_hidden_syncs",
        title="do not synchronise",
        step="10_no_hidden_syncs",
        on_gpu=wait_costs.hidden_syncs,
        on_cpu=no_effect("no GPU in this trace: nothing to wait for"),
        change=wait_costs.without_waits,
        idle=("synchronisation",),
    ),
    Cost(
        id="results_on_device",
        title="leave results on the GPU",
        on_gpu=input_costs.results_on_device,
        change=lambda a: input_costs.without_copies(a, "d2h"),
        idle=("copy",),
    ),
    Cost(
        id="fused_optimizer",
        title="a fused optimizer",
        step="11_fused_optimizer",
        on_gpu=launch_costs.fused_optimizer,
        on_cpu=launch_costs.fused_optimizer_on_cpu,
        change=lambda a: launch_costs.fused(a, a.phases.optimizer),
        finding=launch_costs.unfused_optimizer,
        idle=("launch",),
        shortens_gpu_work=True,
    ),
    Cost(
        id="cudnn_benchmark",
        title="choose algorithms by timing",
        step="12_cudnn_benchmark",
        on_gpu=Evidence("whether another of cuDNN's algorithms is faster, no trace shows"),
        on_cpu=no_effect("cuDNN's algorithms are for GPUs"),
    ),
    Cost(
        id="compile",
        title="compile the model",
        step="13_compile",
        on_gpu=launch_costs.compile_model,
        on_cpu=launch_costs.compile_model_on_cpu,
        change=launch_costs.compiled_model,
        finding=kernel_costs.fusable_elementwise,
        idle=("launch",),
        joins_launches=True,
    ),
    Cost(
        id="compile_loss",
        title="compile normalisation and loss",
        step="14_compile_loss",
        on_gpu=launch_costs.compile_loss,
        on_cpu=launch_costs.compile_loss_on_cpu,
        change=lambda a: launch_costs.fused(a, a.phases.preparing | a.phases.loss),
        idle=("launch",),
    ),
    Cost(
        id="cuda_graphs",
        title="CUDA graphs",
        step="15_cuda_graphs",
        on_gpu=launch_costs.cuda_graphs,
        on_cpu=no_effect("no GPU in this trace: nothing is launched"),
        change=lambda a: Change(cpu=[(launch_costs.model_code(a), 0.0)]),
        finding=launch_costs.many_small_launches,
        idle=("launch",),
        joins_launches=True,
    ),
    Cost(
        id="data_parallel",
        title="train on several GPUs",
        step="16_data_parallel",
        on_gpu=Evidence("what another GPU would add, no trace of one process shows"),
        on_cpu=Evidence("they share these cores: no trace shows"),
        title_on_cpu="train in several processes",
    ),
    Cost(id="graph_capture", finding=wait_costs.graph_capture, of_trace=True),
    Cost(
        id="warm_up",
        title="warm up first",
        on_gpu=wait_costs.warm_up,
        finding=wait_costs.startup,
        of_trace=True,
        idle=("setup",),
    ),
    Cost(id="outlier_steps", finding=wait_costs.outlier_steps, of_trace=True),
    Cost(
        id="overlap_communication",
        title="overlap communication",
        on_gpu=wait_costs.exposed_communication,
        on_cpu=wait_costs.exposed_communication_on_cpu,
        change=wait_costs.hidden_collectives,
        finding=wait_costs.exposed_collectives,
        where=wait_costs.while_only_communicating,
        shortens_gpu_work=True,
    ),
    Cost(
        id="host_python",
        title="find the Python between operators",
        on_gpu=wait_costs.host_python,
        on_cpu=wait_costs.host_python_on_cpu,
        change=wait_costs.without_python,
        finding=wait_costs.functions_while_idle,
        idle=("other",),
    ),
    Cost(id="long_host_wait", finding=wait_costs.long_host_wait),
    Cost(id="device_queue_stall", finding=wait_costs.device_queue_stall),
    Cost(
        id="fused_attention",
        title="fuse attention",
        on_gpu=kernel_costs.fused_attention,
        change=lambda a: kernel_costs.without(kernel_costs.attention(a)[1]),
        finding=kernel_costs.unfused_attention,
        shortens_gpu_work=True,
    ),
    Cost(id="misaligned_matmul", finding=kernel_costs.misaligned_matmul),
    Cost(id="recomputation", finding=kernel_costs.recomputation),
    Cost(id="depthwise", finding=kernel_costs.depthwise),
)
BY_ID = {cost.id: cost for cost in COSTS}
