"""What a kernel does, by its name: one of ten kinds. All knowledge of names that is not about matrix cores is here.

Sources: the libraries' own names (torch's ATen and Inductor, cuDNN, cuBLAS, MIOpen, Tensile, Composable Kernel, aiter,
FBGEMM, vLLM, SGLang, TensorRT-LLM, triton_kernels), as they appear in their code and in published traces.
"""

import re
from functools import cache

import numpy as np

from walkthrough.trace.columns import Trace
from walkthrough.trace.intervals import Cover
from walkthrough.trace.operators import launched_in, launches
from walkthrough.trace.optimizer import optimizer_calls
from walkthrough.trace.steps import Steps

MATRIX, CONVOLUTION, ATTENTION = "matrix product", "convolution", "attention"
NORMALISATION, ELEMENTWISE, REDUCTION = "normalisation", "elementwise", "reduction"
OPTIMIZER, COLLECTIVE, COPY, OTHER = "optimizer", "collective", "copy-like", "other"
KINDS = (MATRIX, CONVOLUTION, ATTENTION, NORMALISATION, ELEMENTWISE, REDUCTION, OPTIMIZER, COLLECTIVE, COPY, OTHER)

_COPIES = "_to_copy|clone|copy|cat|stack|view|_unsafe_view|transpose|permute|slice|split|unbind|unsqueeze|expand|select"
LAYOUT = r"nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|batched_transpose|transpose_(nchw|cnhw)"  # conversions, lower case
# In this order; the first match decides. Patterns are in lower case.
_PATTERNS = [
    # Inductor's kernels: pointwise, reductions and templates; their names list the operators that were fused.
    (COPY, rf"^triton_poi_fused_(({_COPIES}|constant_pad_nd|fill|zeros|t)_)+\d+$"),
    (ELEMENTWISE, r"^triton_(poi|for)_"),
    (NORMALISATION, r"^triton_(red|per|spl)_.*(norm|rsqrt)"),
    (REDUCTION, r"^triton_(red|per|spl)_"),
    (ATTENTION, r"^triton_tem_.*attention"),
    (CONVOLUTION, r"^triton_tem_.*conv"),
    (MATRIX, r"^triton_tem_"),
    # A matrix product with a collective inside is a matrix product.
    (MATRIX, r"(?<!fb)(gemm|matmul)\w*(all_?reduce|all_?gather|reduce_?scatter)|all_?gather\w*(gemm|matmul)"),
    # NCCL, RCCL, MSCCL; torch's symmetric memory; the all-reduces of vLLM, SGLang, aiter, TensorRT-LLM and QuickReduce;
    # DeepEP, NVSHMEM, Transformer Engine's user buffers.
    (COLLECTIVE, r"^(void )?(nccl|rccl|msccl)|multimem_|cross_device_reduce|quick_?reduce|all_?reduce|all_?gather"),
    (COLLECTIVE, r"reduce_?scatter|all_?to_?all|deep_ep::|nvshmem|userbuffers_"),
    # Sums of embeddings (FBGEMM's backward ones apply the optimizer too): gather and scatter by index.
    (COPY, r"split_embedding|embedding_(bag|backward|forward|dense)"),
    (OPTIMIZER, r"multi_tensor_apply\w*<.*(adam|sgd|lamb(?!da)|adagrad|rmsprop|adadelta)|koptimizer\w*bit"),
    (OPTIMIZER, r"(fused|distributed)_?(adam|sgd|lamb(?!da)|adagrad)|(adam|sgd|adagrad)w?_?(kernel|functor|optimizer)"),
    # ATen's kernels for any function: copies and fills apart from those that compute.
    (NORMALISATION, r"elementwise_kernel\w*<.*(batch|layer|group|rms)_norm"),
    (COPY, r"elementwise_kernel\w*<.*(copy_kernel|copy_device|fillfunctor|index_\w*kernel|masked_fill|arange|flip_)"),
    (COPY, r"(index|scatter_gather)_elementwise_kernel|vectorized_gather|index(func|select)|index_(add|put)"),
    (ELEMENTWISE, r"elementwise_kernel|multi_tensor_apply|type_specialized_broadcast"),
    (REDUCTION, r"native::reduce_kernel<"),
    (ELEMENTWISE, r"rotary|(?<![a-z])rope(?![a-z])|elemwisernn|(lstm|gru)_cell|upsample|interpolat|scal_kernel"),
    (COPY, r"reshape_and_cache|store_kv_?cache|set_mla_kv|im2d2col|im2col|col2im"),
    (COPY, rf"{LAYOUT}|subtensorop|catarray"),
    # sage_quant: the quantisation of its inputs. reduce_segments: of vLLM's unified attention.
    (ELEMENTWISE, r"sage_quant"),
    (ATTENTION, r"flash_(fwd|bwd|attn|fprop|bprop)|flash::|flashattn|fmha|attention|attn|sdpa|pagedkv|mla_decode"),
    (ATTENTION, r"(prefill|decode)with\w*kvcachekernel"),  # FlashInfer's; "prefill" is no fill
    (ATTENTION, r"sumodo|dot_do_o|sage_fwd|^reduce_segments$"),
    (
        NORMALISATION,
        r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)|rowwisemoments|gammabeta|welford|(^|_)ln_(fwd|bwd)",
    ),
    (NORMALISATION, r"compute(internalgradients|backwardfusedparams|fusedparams|gradinput)"),
    # SGEMM and the like inside a convolution are a convolution.
    (CONVOLUTION, r"conv(?!ert)|fprop|[dw]grad|igemm_(fwd|bwd|wrw)|cudnn_\w*\d+x\d+|\d+cudnn|c1_k1_n|cask_cudnn"),
    (CONVOLUTION, r"winograd|fft2d_|cudnn::cnn::"),
    # triton_kernels' last step of a mixture of experts sums and scatters, although its name holds a product's.
    (COPY, r"_finalize_matmul"),
    (
        MATRIX,
        r"(?<!fb)gemm|cijk_|nvjet|(^|[^a-z])b?mm_|matmul|gemv|split_?k|dot_kernel|reduce_1block|fused_moe|fmoe|marlin",
    ),
    (
        MATRIX,
        r"wgmma|mfma|hmma|wmma|mmatensorop|mmasimt|llmm1|blockpersist|persist_?rnn|magma_|trsm|syrk|cublas(?!transpose)",
    ),
    (REDUCTION, r"(?<![a-z])cub::|rocprim|thrust::|softmax|topk|sort|scan|cumsum|cumprod|argm(ax|in)|histogram"),
    (
        REDUCTION,
        r"nll_?loss|class_?nll|criterion|cross_?entropy|_loss|pool(?!ed)|reduc|bitmatrix|moe_align|finalizekernel",
    ),
    (
        REDUCTION,
        r"routing_?(?!memset)(indices|compute)|bucketize|searchsorted|multinomial|average|moe_sum|offsets_range",
    ),
    (
        COPY,
        r"index|gather|scatter|embedding|permute|transpose|copy|fill|memset|repeat|arange|triu|tril|token_ids|to_dense",
    ),
    (COPY, r"bounds_check_indices|block_bucketize|kv_indices|compute_cuda_kernel|compute_position|roll_|pad\d*d?_"),
    (ELEMENTWISE, r"elementwise|distribution_|dropout|silu|gelu|relu|swiglu|act_and_mul|quant|fp8rowwise|fp8_qparam"),
    (ELEMENTWISE, r"add_tensor|op_generic_tensor|op\d?d?tensor|scalepackedtensor|bias"),
    (ELEMENTWISE, r"epilogue::impl|cudafunctor|clamp|cast_kernel|axpy"),
]
_compiled = cache(re.compile)  # when it is first needed: all of them take as long as a small trace
_DECIDING = 400  # letters: what follows are template arguments and parameters
# Of these kinds, a kernel that Optimizer.step launches is the optimizer's; its matrix products and collectives stay.
_OPTIMIZERS = frozenset((ELEMENTWISE, REDUCTION, COPY, OTHER))


@cache
def kind(name: str) -> str:
    """What a kernel of that name does, one of `KINDS`.

    reduction: sums, means, softmax, losses, pooling, sorts and scans. copy-like: what only moves elements or fills
    memory: gather, scatter, embeddings, concatenation, layouts, casts. Parts of a convolution, a matrix product or
    attention (offsets, sums of split products) count as that. optimizer: only where the name says so; see `kinds_us`.
    """
    name = name[:_DECIDING].lower()
    return next((answer for answer, pattern in _PATTERNS if _compiled(pattern).search(name)), OTHER)


def kind_numbers(trace: Trace) -> np.ndarray:
    """The kind of each kernel of a trace by its name, an index into `KINDS`; int64."""
    numbers = np.zeros(len(trace.names), np.int64)
    for number in np.flatnonzero(np.bincount(trace.kernels.name)).tolist():
        numbers[number] = KINDS.index(kind(trace.names[number]))
    return numbers[trace.kernels.name]


def kinds_us(trace: Trace, steps: Steps) -> dict[str, float]:
    """µs per step of the kernels of each kind that occurs, the longest first.

    Of each kernel the time within the steps, not between them, over the number of steps; kernels that overlap, on one
    GPU or several, count in full. Elementwise kernels, reductions and copies that `Optimizer.step` launches count as
    the optimizer's, without those of a closure.
    """
    kernels, number = trace.kernels, kind_numbers(trace)
    time = Cover(steps.start, steps.end).within(kernels.start, kernels.end)
    stepping = optimizer_calls(trace).own
    if len(stepping.start):
        launched = launched_in(trace, launches(trace, kernels), stepping)
        number[launched & np.isin(number, [KINDS.index(name) for name in _OPTIMIZERS])] = KINDS.index(OPTIMIZER)
    total = np.bincount(number, weights=time, minlength=len(KINDS)) / max(len(steps.names), 1)
    rows = [(name, float(us)) for name, us in zip(KINDS, total.tolist(), strict=True) if us > 0]
    return dict(sorted(rows, key=lambda row: -row[1]))
