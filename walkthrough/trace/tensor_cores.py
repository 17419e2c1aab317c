"""Which kernels use Tensor Cores (NVIDIA) or matrix cores (AMD), by their names, and their share of the kernel time.

Shares are the profiler plugin's (torch-tb-profiler 0.4.3, tensor_cores_parser.py): of the time of the kernels that
operators launched. Its list of names is from 2020; the rules here cover newer ones and also answer "cannot tell".
Sources: CUTLASS's and cuDNN's naming of kernels, NVIDIA PyProf's tc.py, torch's mem_eff_attention for fmha_cutlass, and
for the others the code named at their rules.
"""

import re
from collections.abc import Callable, Container
from functools import cache

import numpy as np
from msgspec import Struct

from walkthrough.trace.columns import Trace
from walkthrough.trace.kinds import COLLECTIVE, COPY, ELEMENTWISE, NORMALISATION, OPTIMIZER, REDUCTION, kind
from walkthrough.trace.operators import graph_launched, launched_in, launches, launching_operators
from walkthrough.trace.optimizer import optimizer_calls
from walkthrough.trace.ordered import distinct

# Matrix products and convolutions without matrix cores, by name.
_ORDINARY = (
    r"simt|ffma|sgemm|dgemm|cgemm|zgemm|scudnn(?!.*1688)|[_-]h(gemm|cudnn)|gemv|gemmk1|gemmsn|dot_kernel|fft|winograd",
    r"implicit_convolve_sgemm|explicit_convolve|(dgrad|wgrad)(_alg\d)?_engine|grouped_direct",
    # Tensile's kernels with neither MFMA nor WMMA: multiply-add or, since 2024, dot2 (see below).
    r"^cijk_\w*_mt\d+x\d+",
    # MIOpen's: Winograd and direct convolutions in assembly, with multiply-add and dot2 (its kernels/*.s); dlops and
    # gtcn are the implicit products for GPUs without xdlops. Not Fury, a Winograd with WMMA.
    r"miopensp3asmconv_(v|group_|ultra_v)\d|gcnasmconv|naive_conv|igemm_\w+_gtcn|igemm_v4r1|gridwisegemmdl|dlops|_dl_v\d",
    # vLLM's products of few rows, csrc/rocm/skinny_gemms.cu: dot2 for half; for bfloat16 MFMA on MI300 since 2025.
    r"wvsplitk\w*<_?_?half|llgemm1",
)
# Depthwise convolutions: no sum over channels, so no matrix product. cuDNN's (c1_k1: a group has one channel in and
# one out), torch's (DepthwiseConv2d.cu, DepthwiseConv3d.cu) and causal-conv1d's. Sources: a maintainer of torch on
# cuDNN's kernels (pytorch#22302), the authors of CUTLASS on theirs (cutlass#615), the code of the others. The
# name of an sm80_xmma kernel with Tensor Cores holds an instruction's shape (tensor16x8x16), these names hold none.
DEPTHWISE = r"depthwise|c1_k1_n(hwc|chw)|causal_conv1d"
# In this order; the first match decides. Patterns are in lower case.
_RULES = [
    # torch's elementwise kernels and reductions, whatever functor they name; Triton kernels of kinds without tl.dot.
    (False, r"elementwise_kernel|::reduce_kernel|multi_tensor_apply|^triton_(poi|red|per|spl|for)_"),
    # Tensile (rocBLAS, hipBLASLt): getNameMin and Naming.py write MI and the instruction's shape if and only if
    # EnableMatrixInstruction is on. The kernels beside them scale, convert or sum.
    (True, r"cijk_\w*_mi\d+x\d+x\d+"),
    (False, r"cijk_\w*postgsu|cijk_d\w*_(gb|betaonly)"),
    # MIOpen's implicit products: gtcx is "xdlops" in dynamic_igemm/igemm_gtc_xdlops_*. Composable Kernel: xdl, wmma.
    (True, r"igemm_(fwd|bwd|wrw)_gtcx|xdlops|_xdl_|xdl_c_?shuffle|mfma|wmma"),
    # SubTensorOp sets, scales or casts a tensor (MIOpen's MIOpenSubTensorOpWith*Kernel.cl).
    (False, r"subtensorop|batched_transpose|im2d2col"),
    # Parts of matrix products, attention and recurrent cells that only prepare, sum or scale.
    (False, r"split_?k_?reduce|reduce_?split_?k|reduce_wgrad|compute\w*offsets|im2col|col2im|epilogue::impl|zero_fill"),
    (
        False,
        r"(splitkv|fwd)_?combine|dot_do_o|bwd_?(pre|post)process|convert_?d(q|kv)|clear_dkvaccum|sumodo|bwdconvert"
        r"|bwdograddoto|fwdappendkv|fmhareduction|_odo_|dq_(convert|shuffle)",
    ),
    (False, r"elemwisernncell|(lstm|gru)_cell_(forward|backward)"),
    # Sums of partial results: vLLM's unified and paged attention, triton_kernels' _finalize_matmul.py, cuBLAS's dot.
    (False, r"^reduce_segments$|paged_attention\w*_reduce_kernel|_finalize_matmul|reduce_1block|sage_quant"),
    # torch.cuda._sleep (ATen's Sleep.cu).
    (False, r"spin_kernel"),
    (False, DEPTHWISE),
    *((False, pattern) for pattern in _ORDINARY),
    # Attention in torch's own CUTLASS kernels: fp16 needs compute capability 7.0, fp32 and bf16 need 8.0.
    (False, r"fmha_cutlass[fb]_f32_\w*_sm(50|60|70|75)|fmha_cutlass[fb]_f16_\w*_sm(50|60)"),
    (True, r"fmha_cutlass[fb]_(f32|f16|bf16)_\w*_sm\d+"),
    # Instructions and their shapes: mma.m8n8k4 to tcgen05.
    (True, r"[hsd]884|[hsc]1688|16816|16832|i8816|i8832|[hib]mma_?|dmma|tcgen05|m16n8k\d+|tensor(16x8x|8x8x)\d+"),
    # CUTLASS's, Hopper's and Blackwell's: s64x128x16gemm, warp-specialised, cuBLAS's nvjet.
    (True, r"(?<!sub)tensorop|s64x\d+x\d+gemm|gmma|nvjet_|warpgroupsize|warp_?specialized|tensoropmultiplicand"),
    # TensorRT-LLM's generated kernels for Blackwell: m128x16x32 is the shape of tcgen05.mma; attention for sm100.
    (True, r"^(bmm|gemm)_\w+_fp32_t\d+x\d+x\d+\w*_m\d+x\d+x\d+_\w*sm1\d\d|^fmhasm1\d\d"),
    (True, r"sm(80|86|89|90|100|103|120)_xmma|xmma_(implicit_)?gemm|xmma_sparse|xmma_(fprop|dgrad|wgrad)"),
    (True, r"flash_(fwd|bwd)|flashattn(fwd|bwd)|flash_(fprop|bprop)|sdpa_sm\d+_flash"),
    (True, r"deep_gemm::|fmha_v2_\w*(fp16|bf16|e4m3)"),
    # FlashInfer's attention of several queries (prefill.cuh: mma.sync, hopper/: wgmma) takes 8 and 16 bits only. Its
    # kernels of one query each (decode.cuh) multiply and add on ordinary units; those of MLA do either.
    (True, r"prefillwith(paged|ragged)?kvcachekernel"),
    (False, r"flashinfer::(batch|single)decodewith(paged)?kvcachekernel<"),
    # Marlin (vLLM, SGLang): weights of 4 or 8 bits times activations of 8 or 16, by mma.sync (marlin_mma.h).
    (True, r"marlin\w*::marlin(_24)?<"),
    # Attention on AMD: Composable Kernel's (ck_tile/ops/fmha: WarpGemm is MFMA or WMMA) and aiter's in assembly.
    (
        True,
        r"ck_tile\w*\d+fmha(fwd|bwd|batchprefill)|ck_tile::fmha(fwd|bwd|batchprefill)|aiter::fmha_(fwd|bwd)_hd\d+\w*(bf16|fp16)",
    ),
    # Triton kernels whose operands are 8 or 16 bits wide, so that tl.dot is a matrix instruction: triton_kernels'
    # matmul_ogs with the types in its name, aiter's SageAttention (8 bits).
    (True, r"^_p?_?matmul_ogs_\w*(bf16|fp16|fp8\w*|mxfp4)x|^sage_fwd"),
    # The attention of AOTriton and ROCm's flash-attention (attn_fwd), and vLLM's, in Triton: tl.dot of what the model
    # computes in. That is 16 bits wide where it serves; float32 takes MFMA and TF32, but plain multiply-adds on RDNA.
    (True, r"^attn_fwd$|^kernel_unified_attention_[23]d$"),
    # Inductor's templates of matrix products: a type in the name for which tl.dot needs Tensor Cores; else unknown.
    (True, r"^triton_tem_.*(mm|conv|attention).*(bf16|fp16|f16|tf32|fp8|e4m3)"),
    (None, r"^triton_tem_"),
]
_compiled = cache(re.compile)  # when it is first needed: all of them take as long as a small trace
_DECIDING = 2000  # letters: in public traces, the rest of a name decides nothing
_LOW_PRECISION = re.compile(r"half|bf16|bfloat16|fp16|fp8|[_-]h(gemm|cudnn)", re.IGNORECASE)
# TF32, by name or by an instruction's shape, where no type of 16 bits is named. float32 on AMD: Tensile's names begin
# with the indices and then the types (its Naming.py; S is single, MX computes in AMD's TF32), MIOpen's hold the type.
_TF32 = re.compile(r"tf32|s1688|16x8x8_f32|^cijk_[a-z]+_[a-z]+_s_mx_b_", re.IGNORECASE)
_AMD_FP32 = re.compile(r"^cijk_[a-z]+_[a-z]+_s_?b_|igemm_\w+_fp32|asmconv\w*_fp32", re.IGNORECASE)
# Kernels that read and write float32 under autocast as well: it computes layer and group norm, softmax and losses in
# float32 (torch's "CUDA Ops that can autocast to float32") and leaves embeddings alone. Batch norm takes what it gets.
_KEPT_FP32 = re.compile(
    r"(layer|group|rms)_?norm|rowwisemoments|gammabeta|compute(internalgradients|(backward)?fusedparams)"
    r"|softmax|loss|criterion|cross_?entropy|embedding|index|gather|scatter|multi_tensor_apply|nccl",
    re.IGNORECASE,
)
# Where no rule matches: kernels of these kinds use no matrix cores, unless the name (without template arguments and
# parameters) has a word of matrix products as well.
_PLAIN = frozenset((NORMALISATION, ELEMENTWISE, REDUCTION, OPTIMIZER, COLLECTIVE, COPY))
_MATRIX = re.compile(
    r"(?<!fb)gemm|conv(?!ert)|(?<!a)mma|attention|attn|matmul|[^a-z](b?add)?b?mm|dot|[dw]grad|fprop|lstm|gru|rnn"
)
_ARGUMENTS = re.compile(r"(?<=\w)[<(]")
_AMD = re.compile(r"AMD|Radeon|Instinct|gfx\d")
# AMD's GPUs without matrix instructions: Vega (gfx900, gfx906), and RDNA 1 and 2 by their compute capability (gfx10..).
_VEGA, _RDNA_1_AND_2 = re.compile(r"Vega|Radeon VII|MI(25|50|60)\b"), 10
_FIRST_WITH_TENSOR_CORES, _FIRST_WITH_TF32 = 7, 8  # compute capability, major

# Operators that autocast runs in lower precision and their backward ones: the plugin's list (tensor_core.py), then
# what torch has added since.
ELIGIBLE = frozenset(
    """
    aten::_convolution aten::conv1d aten::conv2d aten::conv3d aten::conv_tbc aten::conv_transpose1d
    aten::conv_transpose2d aten::conv_transpose3d aten::convolution aten::cudnn_convolution
    aten::cudnn_convolution_transpose aten::prelu aten::addmm aten::addmv aten::addr aten::matmul aten::mm aten::mv
    aten::linear aten::addbmm aten::baddbmm aten::bmm aten::chain_matmul aten::linalg_multi_dot
    aten::_thnn_fused_lstm_cell aten::_thnn_fused_gru_cell aten::lstm_cell aten::gru_cell aten::rnn_tanh_cell
    aten::rnn_relu_cell CudnnConvolutionBackward BmmBackward0 aten::cudnn_convolution_transpose_backward
    CudnnConvolutionTransposeBackward MmBackward aten::cudnn_convolution_backward_weight aten::addmm_ AddmvBackward
    MvBackward aten::cudnn_convolution_transpose_backward_weight aten::cudnn_convolution_transpose_backward_input
    AddmmBackward aten::cudnn_convolution_backward_input AddbmmBackward aten::cudnn_convolution_backward
    """.split()
)
ELIGIBLE_SINCE = frozenset(
    """
    aten::convolution_backward aten::convolution_overrideable aten::convolution_backward_overrideable
    aten::miopen_convolution aten::cudnn_convolution_relu aten::cudnn_convolution_add_relu aten::_addmm_activation
    aten::_scaled_mm aten::_grouped_mm aten::baddbmm_ aten::_cudnn_rnn aten::_cudnn_rnn_backward
    aten::scaled_dot_product_attention aten::_scaled_dot_product_flash_attention
    aten::_scaled_dot_product_flash_attention_backward aten::_scaled_dot_product_efficient_attention
    aten::_scaled_dot_product_efficient_attention_backward aten::_scaled_dot_product_cudnn_attention
    aten::_scaled_dot_product_cudnn_attention_backward aten::_flash_attention_forward
    aten::_flash_attention_backward aten::_efficient_attention_forward aten::_efficient_attention_backward
    aten::_cudnn_attention_forward aten::_cudnn_attention_backward
    """.split()
)


@cache
def _deciding_rule(name: str) -> tuple[bool | None, str | None]:
    """The first rule, (answer, pattern), that matches a kernel's name; (None, None) without a match."""
    name = name[:_DECIDING].lower()
    return next((rule for rule in _RULES if _compiled(rule[1]).search(name)), (None, None))


@cache
def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel uses Tensor Cores, or AMD's matrix cores, by its name; None if unknown.

    Unknown are kernels of libraries without a rule, and Triton's matrix products without a data type in their names:
    with float32 they may or may not use Tensor Cores.
    """
    answer, pattern = _deciding_rule(name)
    if pattern:
        return answer
    own = _ARGUMENTS.split(name.lower().replace("(anonymous namespace)", ""), maxsplit=1)[0]
    return False if kind(name) in _PLAIN and not _MATRIX.search(own) else None


class TensorCores(Struct, frozen=True):
    """share: per GPU id, of its kernel time, None if all names are unknown. unknown: per GPU id, the unknown share.

    eligible_share: of the kernel time, in operators that could use Tensor Cores; None without kernels. Masks over
    `Trace.kernels`: fp32_matrix, the matrix products and convolutions that such operators or CUDA graphs launched, in
    full precision and surely without Tensor Cores, and on AMD those whose names say float32, which its matrix cores
    multiply as well, but slower than 16 bits; tf32_matrix, those in TF32; fp32_other, the other kernels that name float
    and no narrower type, and would not under autocast: not the optimizer's, nor what autocast leaves in float32.
    """

    share: dict[int, float | None]
    unknown: dict[int, float]
    eligible_share: float | None
    fp32_matrix: np.ndarray
    tf32_matrix: np.ndarray
    fp32_other: np.ndarray


def tensor_cores(
    trace: Trace,
    eligible: Container[str] = ELIGIBLE | ELIGIBLE_SINCE,
    classify: Callable[[str], bool | None] = uses_tensor_cores,
) -> TensorCores:
    """The `TensorCores` of a trace.

    Over the kernels that operators launched, as the plugin counts (Optimizer.* marks and the wrappers of parallel
    training are not operators), and those that CUDA graphs launched, which the plugin leaves out where no operator is
    around the launch; over all kernels if the trace links none to an operator. An operator that launches Tensor Core
    kernels is eligible whatever its name, and the time counts for the innermost eligible one. A graph's kernels name no
    operator: of those the matrix products and convolutions are eligible.
    """
    kernels, operators = trace.kernels, trace.operators
    none = np.zeros(len(kernels), bool)
    if not len(kernels):
        return TensorCores({}, {}, None, none, none, none)
    sure = trace.named(kernels, lambda name: classify(name) is True)
    unsure = trace.named(kernels, lambda name: classify(name) is None)
    amd = is_amd(trace)
    old = [device for device in distinct(kernels.device).tolist() if _has_none(trace, device, amd)]
    sure &= ~np.isin(kernels.device, old)
    unsure &= ~np.isin(kernels.device, old)

    call = launches(trace, kernels)
    graphed = graph_launched(trace, call)
    operator = launching_operators(trace, np.where(graphed, -1, call))
    launched = operator >= 0
    if len(operators):
        launched &= trace.named(operators, _is_operator)[operator]
    counted = launched | graphed if (launched | graphed).any() else np.ones(len(kernels), bool)
    time = kernels.duration

    share, unknown = {}, {}
    for device in distinct(kernels.device[np.isfinite(kernels.device)]).tolist():
        here = counted & (kernels.device == device)
        total, unknown[int(device)] = time[here].sum(), _part(time[here & unsure].sum(), time[here].sum())
        share[int(device)] = None if (unsure | ~here).all() else _part(time[here & sure].sum(), total)

    if not (launched | graphed).any():
        return TensorCores(share, unknown, None, none, none, none)
    able = trace.named(operators, eligible.__contains__)
    able[operator[launched & sure]] = True
    ordinary = trace.named(kernels, is_ordinary)
    in_innermost = graphed & (sure | ordinary)
    if launched.any():
        innermost = able & ~trace.nesting.has_descendant(able)
        in_innermost |= launched & innermost[operator]
    able_share = _part(time[in_innermost].sum(), time[counted].sum())
    full = ~trace.named(kernels, _LOW_PRECISION.search) & ~np.isin(kernels.device, old)
    fp32_matrix = in_innermost & full & (trace.named(kernels, _AMD_FP32.search) if amd else ordinary)
    tf32_matrix = in_innermost & full & sure & trace.named(kernels, _TF32.search)
    fp32_other = full & ~sure & ~fp32_matrix & trace.named(kernels, _halves_under_autocast)
    fp32_other &= ~launched_in(trace, call, optimizer_calls(trace).per_step)
    return TensorCores(share, unknown, able_share, fp32_matrix, tf32_matrix, fp32_other)


def _halves_under_autocast(name: str) -> bool:
    """True for a kernel on float32 that is no matrix product and moves half as many bytes under autocast."""
    return "float" in name and not _KEPT_FP32.search(name) and kind(name) != OPTIMIZER


def is_ordinary(name: str) -> bool:
    """True for a matrix product or a convolution without Tensor Cores."""
    _, pattern = _deciding_rule(name)
    return pattern in _ORDINARY


def _part(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _is_operator(name: str) -> bool:
    return not name.startswith(("Optimizer.", "enumerate(Data", "ProfilerStep#")) and name not in (
        "DataParallel.forward",
        "DistributedDataParallel.forward",
    )


def is_amd(trace: Trace) -> bool:
    """Whether the GPUs are AMD's: by their names or their wavefronts of 64, or because the process runs HIP.

    A process runs either CUDA or HIP, so this holds for all its GPUs; ROCm's device numbers often have no properties.
    """
    devices = trace.properties.values()
    if any(_AMD.search(str(device.get("name", ""))) or device.get("warpSize") == 64 for device in devices):
        return True
    return trace.hip or bool(trace.named(trace.runtime, lambda name: name.startswith("hip")).any())


def has_tf32(trace: Trace) -> bool:
    """Whether a GPU is known to multiply in TF32: NVIDIA's from compute capability 8.0."""
    majors = [device.get("computeMajor") for device in trace.properties.values()]
    return not is_amd(trace) and any(isinstance(major, int) and major >= _FIRST_WITH_TF32 for major in majors)


def unit_name(trace: Trace) -> str:
    """What the GPU's maker calls the units: "Tensor Cores", on AMD "Matrix cores"."""
    return "Matrix cores" if is_amd(trace) else "Tensor Cores"


def _has_none(trace: Trace, device: float, amd: bool) -> bool:
    """True for a GPU without them: an old one of NVIDIA's or AMD's, or a GeForce GTX 16."""
    properties = trace.properties.get(int(device), {}) if np.isfinite(device) else {}
    if amd:
        properties = properties or next(iter(trace.properties.values()), {})
        return properties.get("computeMajor") == _RDNA_1_AND_2 or bool(_VEGA.search(str(properties.get("name", ""))))
    major = properties.get("computeMajor")
    return (isinstance(major, int) and 0 < major < _FIRST_WITH_TENSOR_CORES) or "GTX 16" in str(properties.get("name"))
