"""What each piece of advice would change in a trace of a GPU, for `replay` to re-time.

Each is the advice followed as far as the trace can show: what is to go, goes; what is to be fused, runs once.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from walkthrough.advice.findings.finding import Look
from walkthrough.advice.findings.kernels import attention, fused_away, layout_kernels
from walkthrough.advice.replay import Change
from walkthrough.trace.columns import distinct, median, quantile
from walkthrough.trace.intervals import Cover
from walkthrough.trace.kernel_names import COLLECTIVE, is_exchange
from walkthrough.trace.kernels import TensorCores, is_amd
from walkthrough.trace.memory import direction
from walkthrough.trace.steps import is_mark

# How many times as many matrix operations per second in fp16 or bf16 with Tensor Cores, summed in fp32, as in fp32
# without, by compute capability. Dense; NVIDIA's data sheets of V100, T4, A100, A10, L4, H100 (SXM), B200, RTX 5090.
MATRIX_RATIO = {"7.0": 8, "7.5": 8, "8.0": 16, "8.6": 4, "8.9": 4, "9.0": 15, "10.0": 28, "12.0": 2}
# Of the data sheet's rate, what matrix products and convolutions reach in practice: medians over those with recorded
# shapes in the public traces that tests/data/public_traces.md names. 16 bits: 7749 in 16 traces (T; H100, B200 and
# MI300X), half of them from 0.05 to 0.53. fp32: 1932 in two traces (K; V100), half of them from 0.55 to 0.81.
REACHED_16_BITS, REACHED_FP32 = 0.25, 0.61
HALF_THE_BYTES = 2.0  # times faster, for a kernel that memory bounds, and for TF32: the data sheets' ratio to 16 bits
FUSE_ATTENTION = "fuse attention"  # the title of that advice
CALLS_PER_LAUNCH = 3  # a compiled launch takes as long on the CPU as that many bare calls of the driver


class Changes(Mapping[str, Change]):
    """The changes by the step of the walkthrough, or by the advice's title where no step treats it."""

    def __init__(self, look: Look, tensor_cores: TensorCores) -> None:
        self.look, self.tensor_cores = look, tensor_cores
        self.trace, self.steps, self.phases = look.trace, look.all_steps, look.phases
        self._computed: dict[str, Change] = {}
        self._of: dict[str, Callable[[], Change]] = {
            "01_amp": self._mixed_precision,
            "02_bigger_batch": self._bigger_batch,
            "03_reduced_h2d_copy": self._quarter_of_the_bytes,
            "04_multiprocess_loading": self._no_loading,
            "load in more processes": self._no_loading,
            "05_pinned_memory": self._pinned,
            "06_prefetch_stream": self._copied_early,
            "08_on_device_data": lambda: self._no_loading() | self._without("h2d"),
            "09_channels_last": self._one_layout,
            "10_no_hidden_syncs": self._no_waits,
            "leave results on the GPU": lambda: self._without("d2h"),
            "11_fused_optimizer": lambda: self._fused(self.phases.optimizer),
            "13_compile": self._compiled,
            "14_compile_loss": lambda: self._fused(self.phases.preparing | self.phases.loss),
            "15_cuda_graphs": self._one_launch,
            FUSE_ATTENTION: lambda: self.look.without(self.look.once(attention)[1]),
            "overlap communication": self._hidden_collectives,
            "find the Python between operators": lambda: Change(cpu=[(self._between_operators, 0.0)]),
        }

    def __getitem__(self, key: str) -> Change:
        if key not in self._computed:
            self._computed[key] = self._of[key]()
        return self._computed[key]

    def __contains__(self, key: object) -> bool:
        return key in self._of  # a Mapping's own would compute the change

    def __iter__(self):
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    @cached_property
    def _copy_call(self) -> np.ndarray:
        return self.trace.copies.call

    @cached_property
    def _shortest(self) -> float:
        """µs: the fixed cost of a kernel, as the shortest in the trace show it."""
        return quantile(self.trace.kernels.duration, 0.05)

    @cached_property
    def _between_operators(self) -> Cover:
        """Where the CPU runs no operator and no call: Python."""
        trace, operators = self.trace, self.trace.operators
        marks = trace.named(operators, is_mark)
        busy = operators.cover(~marks) | trace.runtime.cover()
        return busy.gaps(self.steps.cpu_start, self.steps.cpu_end)

    def _calls(self, copies: np.ndarray) -> np.ndarray:
        """A mask over the runtime's calls: those that start the `copies` of a mask."""
        calls = np.zeros(len(self.trace.runtime), bool)
        call = self._copy_call[copies]
        calls[call[call >= 0]] = True
        return calls

    def _mixed_precision(self) -> Change:
        """Autocast in an unchanged program. What it adds, casts of weights and gradients, is left out.

        To check `REACHED_16_BITS`: of ResNet-50's kernel time on a V100 two thirds are matrix work (K's traces), so it
        would run 2.7 times as fast. NVIDIA measured 2.3 times with pytorch-20.06, and 3.3 with 21.03, in channels_last
        (NVIDIA/DeepLearningExamples, one GPU); BERT-large gained more, 3.5 to 4.1. From TF32, on an A100, both gained
        1.8 with 20.06.
        """
        tensor_cores = self.tensor_cores
        faster = np.where(tensor_cores.fp32_matrix, self._matrix_ratio, 1.0)
        faster[tensor_cores.tf32_matrix | tensor_cores.fp32_other] = HALF_THE_BYTES
        return Change(kernels=self._at_least_the_shortest(1 / faster))

    @cached_property
    def _matrix_ratio(self) -> float:
        """How many times faster a matrix product is in 16 bits than in fp32: by what both reach; on AMD half the bytes.

        AMD's GPUs are not in the table, and some have the compute capability of one that is.
        """
        if is_amd(self.trace):
            return HALF_THE_BYTES
        versions = [(gpu.get("computeMajor"), gpu.get("computeMinor")) for gpu in self.trace.gpu_properties]
        known = [MATRIX_RATIO.get(f"{major}.{minor}") for major, minor in versions]
        ratio = max(filter(None, known), default=MATRIX_RATIO["7.0"])
        return max(HALF_THE_BYTES, ratio * REACHED_16_BITS / REACHED_FP32)

    def _at_least_the_shortest(self, factor: np.ndarray) -> np.ndarray:
        duration = np.maximum(self.trace.kernels.duration, 1e-9)
        return np.maximum(factor, np.minimum(1.0, self._shortest / duration))

    def _bigger_batch(self) -> Change:
        """Twice the batch. A kernel with less than a block per SM has room for more at the same time.

        Collectives take as long, since they join gradients or weights; but all-to-all, which exchanges samples.
        """
        kernels = self.trace.kernels
        blocks = np.where(kernels.blocks_per_sm > 0, kernels.blocks_per_sm, 1.0)
        once = self.look.launched_in(self.phases.optimizer) | self.look.of_kind(COLLECTIVE)
        factor = np.where(once, 1.0, np.clip(2 * blocks, 1.0, 2.0))
        return Change(
            cpu=[(self.phases.loading, 2.0)],
            kernels=np.where(self.look.of_names(is_exchange), 2.0, factor),
            copies=np.where(direction(self.trace, "h2d"), 2.0, 1.0),
            samples=2.0,
        )

    def _quarter_of_the_bytes(self) -> Change:
        return Change(copies=np.where(direction(self.trace, "h2d"), 0.25, 1.0))

    def _no_loading(self) -> Change:
        return Change(cpu=[(self.phases.loading, 0.0)])

    def _pinned(self) -> Change:
        """The copy takes as long, but nobody waits for it but the kernels."""
        pageable = direction(self.trace, "h2d") & self.trace.named(self.trace.copies, lambda name: "Pageable" in name)
        return Change(returns=self._calls(pageable))

    def _copied_early(self) -> Change:
        """Beside the step before: no kernel waits, but no step is faster than its copies."""
        copies, steps = self.trace.copies, self.steps
        mask = direction(self.trace, "h2d")
        return self._without("h2d") | Change(at_least=copies.cover(mask).within(steps.start, steps.end))

    def _without(self, name: str) -> Change:
        mask = direction(self.trace, name)
        return Change(copies=np.where(mask, 0.0, 1.0), returns=self._calls(mask))

    def _one_layout(self) -> Change:
        return self.look.without(layout_kernels(self.look))

    def _no_waits(self) -> Change:
        """Only threads that launch kernels: a thread that pins memory has to wait."""
        runtime = self.trace.runtime
        launching = distinct(runtime.thread[self.look.call[self.look.call >= 0]])
        waits = self.trace.calls.waits | self._calls(direction(self.trace, "d2h"))
        return Change(returns=waits & np.isin(runtime.thread, launching))

    def _fused(self, code: Cover) -> Change:
        """One launch in place of all, and of each kernel only what is not its fixed cost."""
        duration = np.maximum(self.trace.kernels.duration, 1e-9)
        rest = np.maximum(0.0, 1 - self._shortest / duration)
        return Change(cpu=[(code, 0.0)], kernels=np.where(self.look.launched_in(code), rest, 1.0))

    @cached_property
    def _model(self) -> Cover:
        """The forward and the backward pass on the CPU, to the last kernel that a step launches: what is compiled."""
        phases, runtime = self.phases, self.trace.runtime
        calls = distinct(self.look.call[self.look.call >= 0])
        calls = calls[~(phases.per_step | phases.loading).holds(runtime.start[calls])]
        last = np.searchsorted(runtime.start[calls], phases.model.end) - 1
        end = np.where(last >= 0, np.append(runtime.end[calls], -np.inf)[last], -np.inf)
        return (phases.per_step | phases.loading).gaps(phases.model.start, np.maximum(end, phases.model.start))

    def _compiled(self) -> Change:
        """Of a chain of pointwise kernels the longest stays; each launch left costs the CPU a few bare calls."""
        trace, model = self.trace, self._model
        inside = self.look.launched_in(model)
        if not model.total:  # no operator was recorded, so only what fusion saves is known
            inside = np.ones(len(inside), bool)
        gone = self.look.once(fused_away) & inside
        launching = trace.calls.launches
        call_us = float(median(trace.runtime.duration[launching])) if launching.any() else 0.0
        busy = trace.runtime.cover(trace.calls.waits).gaps(model.start, model.end).total
        factor = CALLS_PER_LAUNCH * call_us * int((inside & ~gone).sum()) / busy if busy > 0 else 1.0
        return self.look.without(gone) | Change(cpu=[(model, min(1.0, factor))])

    def _one_launch(self) -> Change:
        return Change(cpu=[(self._model, 0.0)])

    def _hidden_collectives(self) -> Change:
        kernels, steps = self.trace.kernels, self.steps
        collective = self.look.of_kind(COLLECTIVE)
        alone = kernels.cover(collective).within(steps.start, steps.end)
        return Change(kernels=np.where(collective, 0.0, 1.0), at_least=alone)
