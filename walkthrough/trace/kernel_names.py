"""What a name says: of a kernel, its kind, whether it uses Tensor Cores, its short form; of an event, communication.

Sources: the libraries' own names (torch's ATen and Inductor, cuDNN, cuBLAS, CUTLASS, MIOpen, Tensile, Composable
Kernel, aiter, FBGEMM, vLLM, SGLang, TensorRT-LLM, triton_kernels), as they appear in their code and in published
traces; for Tensor Cores also NVIDIA PyProf's tc.py, torch's mem_eff_attention for fmha_cutlass, and the code named at
the rules. The profiler plugin's list of kernels with Tensor Cores (torch-tb-profiler 0.4.3) is from 2020; these rules
also answer "cannot tell".
"""

import re
from functools import cache

from walkthrough.results.errors import printable

_COMMON = ("at::native::", "(anonymous namespace)::")
_GENERIC = re.compile(r"(\w*(?:elementwise_|reduce_|multi_tensor_apply_)kernel\w*)<")  # ATen's, for any function
# The function: the last of these names; the others wrap it.
_FUNCTION = re.compile(r"\b(?:\w*[Ff]unctor\w*|\w+_kernel(?:_cuda\w*|_impl\w*)?|\w+KernelImpl|\w+Ops)\b(?:<[^<>]*>)?")
_WRAPPER = re.compile(r"gpu_kernel|[AB]UnaryFunctor|BinaryFunctor|\w*opmath|\w*(elementwise_|reduce_|apply_)kernel")


def short_name(name: str, width: int) -> str:
    """A kernel's name on one line without common prefixes, its middle left out if it is longer than `width`.

    What one of ATen's kernels for any function computes, which is in the middle, stays.
    """
    line = printable(name).removeprefix("void ")
    for prefix in _COMMON:
        line = line.replace(prefix, "")
    if len(line) <= width:
        return line
    keep = (width - 1) // 2
    begins = [begin for begin in _with_function(line) if len(begin) < width]
    begin = begins[0] if begins else line[: width - 1 - keep]
    return f"{begin}…{line[len(line) - (width - 1 - len(begin)) :]}"


def _with_function(line: str) -> list[str]:
    """ "elementwise_kernel<…MulFunctor<float>", and without the type; [] where the name has no function to show."""
    generic = _GENERIC.match(line)
    functions = _FUNCTION.findall(line, generic.end()) if generic else []
    functions = [name for name in functions if not _WRAPPER.match(name)]
    if not generic or not functions:
        return []
    begin = f"{generic[1]}<…{functions[-1]}"
    return [begin, f"{generic[1]}<…{functions[-1].split('<')[0]}"]


MATRIX, CONVOLUTION, ATTENTION = "matrix product", "convolution", "attention"
NORMALISATION, ELEMENTWISE, REDUCTION = "normalisation", "elementwise", "reduction"
OPTIMIZER, COLLECTIVE, COPY, OTHER = "optimizer", "collective", "copy-like", "other"
KINDS = (MATRIX, CONVOLUTION, ATTENTION, NORMALISATION, ELEMENTWISE, REDUCTION, OPTIMIZER, COLLECTIVE, COPY, OTHER)

_COPIES = "_to_copy|clone|copy|cat|stack|view|_unsafe_view|transpose|permute|slice|split|unbind|unsqueeze|expand|select"
# All-to-all, send and receive, and what dispatches tokens to experts and combines their results: DeepEP, the kernels of
# TensorRT-LLM, FlashInfer and Perplexity (a2a), mori.
EXCHANGE = (
    r"send_?recv|all_?to_?all|deep_ep::|ep::(?<![a-z].{4})(intra|inter)node|a2a\w*(dispatch|combine)"
    r"|mori::moe::ep"
)
# Conversions of layout, in lower case; a convolution of cuDNN that also converts its output has "_tn" after it.
LAYOUT = r"nchwtonhwc|nhwctonchw|(nchw2nhwc|nhwc2nchw)(?!_[nt])|batched_transpose|transpose_(nchw|cnhw)"
# In this order; the first match decides. Patterns are in lower case. Where a word must not go on to the left, the look
# behind stands after it: a search for patterns that begin with letters is faster.
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
    (MATRIX, r"(gemm(?<!fbgemm)|matmul)\w*(all_?reduce|all_?gather|reduce_?scatter)|all_?gather\w*(gemm|matmul)"),
    # DeepEP: what only counts or moves what this rank has (layout.cu, *_epilogue.cuh); all else exchanges, or waits.
    (REDUCTION, r"get_dispatch_layout|combine_reduce_epilogue"),
    (COPY, r"dispatch_copy_epilogue"),
    # NCCL, RCCL, MSCCL, oneCCL; torch's symmetric memory; the all-reduces of vLLM, SGLang, aiter, TensorRT-LLM and
    # QuickReduce; NVSHMEM, UCC's executor, Transformer Engine's user buffers; exchanges between experts.
    (COLLECTIVE, r"^(void )?((nccl|rccl|msccl|oneccl)|executor_kernel<)|multimem_|cross_device_reduce|quick_?reduce"),
    (COLLECTIVE, r"all(?<!small)(?<!overall)(?<!warpall)(?<!blockall)_?(reduce|gather)|reduce_?scatter"),
    (COLLECTIVE, rf"nvshmem|_on_stream_kernel|userbuffers_|{EXCHANGE}"),
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
    (ELEMENTWISE, r"rotary|rope(?<![a-z].{4})(?![a-z])|elemwisernn|(lstm|gru)_cell|upsample|interpolat|scal_kernel"),
    (COPY, r"reshape_and_cache|store_kv_?cache|set_mla_kv|im2d2col|im2col|col2im"),
    (COPY, rf"{LAYOUT}|foldednhwc|subtensorop|catarray"),
    # sage_quant: the quantisation of its inputs. reduce_segments: of vLLM's unified attention.
    (ELEMENTWISE, r"sage_quant"),
    (ATTENTION, r"flash_(fwd|bwd|attn|fprop|bprop)|flash::|flashattn|fmha|attention|attn|sdpa|pagedkv|mla_decode"),
    (ATTENTION, r"(prefill|decode)with\w*kvcachekernel"),  # FlashInfer's; "prefill" is no fill
    (ATTENTION, r"sumodo|dot_do_o|sage_fwd|^reduce_segments$"),
    (NORMALISATION, r"(batch|layer|group|instance|rms)_?norm|bn_(fw|bw)|rowwisemoments|gammabeta|welford"),
    (NORMALISATION, r"ln_(?<![^_].{3})(fwd|bwd)|compute(internalgradients|backwardfusedparams|fusedparams|gradinput)"),
    # SGEMM and the like inside a convolution are a convolution.
    (CONVOLUTION, r"conv(?!ert)|fprop|[dw]grad(?<![a-z].{5})(?!_gemm)|igemm_(fwd|bwd|wrw)|cudnn_\w*\d+x\d+|\d+cudnn"),
    (CONVOLUTION, r"c1_k1_n|cask_cudnn|winograd|fft2d_|cudnn::cnn::"),
    # Muon's products X @ X.T and b * A + c * A @ A (modded-nanogpt).
    (MATRIX, r"^(xxt|ba_plus_caa)_kernel"),
    # triton_kernels' last step of a mixture of experts sums and scatters, although its name holds a product's.
    (COPY, r"_finalize_matmul"),
    (MATRIX, r"gemm(?<!fbgemm)(?!::)|cijk_|nvjet|bmm_(?<![a-z].{4})|mm_(?<![a-z].{3})|matmul|gemv|split_?k(?!e[ry])"),
    (MATRIX, r"dot_kernel|reduce_1block|fmoe|fused_moe|marlin|wgmma|mfma|hmma|wmma|mmatensorop|mmasimt|llmm1"),
    (MATRIX, r"blockpersist|persist_?rnn|magma_|trsm|syrk|cublas(?!transpose)"),
    (REDUCTION, r"cub::(?<![a-z].{5})|rocprim|thrust::|softmax|topk|sort|scan|cumsum|cumprod|argm(ax|in)|histogram"),
    (
        REDUCTION,
        r"nll_?loss|class_?nll|criterion|entropy|_loss|pool(?!ed)|reduc(?!ed)|bitmatrix|moe_align|finalizekernel",
    ),
    (
        REDUCTION,
        r"routing_?(?!memset)(indices|compute)|bucketize|searchsorted|multinomial|average|moe_sum|offsets_range",
    ),
    (COPY, r"index|gather|scatter|embedding|permute|transpose|copy|fill(?<!prefill)|memset|repeat|arange"),
    (COPY, r"converttensor|triu|tril(?!inear)|token_ids|to_dense|block_bucketize|(kv|write|bounds_check)_indices"),
    (COPY, r"compute_cuda_kernel|compute_position|roll_(?<![a-z].{5})|pad\d*d?_"),
    (ELEMENTWISE, r"elementwise|distribution_|dropout|silu|gelu|relu|swiglu|act_and_mul|quant|fp8rowwise|fp8_qparam"),
    (ELEMENTWISE, r"add_tensor|op_generic_tensor|op\d?d?tensor|scalepackedtensor|bias"),
    (ELEMENTWISE, r"epilogue::impl|cudafunctor|clamp|cast_kernel|cast_(to|back)_|to_mxfp\d|axpy"),
]
_compiled = cache(re.compile)  # when it is first needed: all of them take as long as a small trace
_KIND_DECIDING = 400  # letters: what follows are template arguments and parameters


@cache
def kind(name: str) -> str:
    """What a kernel of that name does, one of `KINDS`.

    reduction: sums, means, softmax, losses, pooling, sorts and scans. copy-like: what only moves elements or fills
    memory: gather, scatter, embeddings, concatenation, layouts, casts. Parts of a convolution, a matrix product or
    attention (offsets, sums of split products) count as that. optimizer: only where the name says so; see `kinds_us`.
    """
    name = name[:_KIND_DECIDING].lower()
    return next((answer for answer, pattern in _PATTERNS if _compiled(pattern).search(name)), OTHER)


# Matrix products and convolutions without matrix cores, by name.
_ORDINARY = (
    # The type's letter begins a word: BlockScaledGemm, GroupedGemm and DenseGemm do not hold a dgemm or an sgemm.
    r"[sdcz]gemm(?<![a-z].{5})|g[cz]gemm(?<![a-z].{6})|[_-]h(gemm|cudnn)|simt|ffma(?<![a-z].{4})(?![a-z])",
    r"scudnn(?<![a-z].{6})(?!.*1688)|gemv|gemmk1_|gemmsn_[nt]{2}|dot_kernel(?<![a-z_].{10})|rocblas_dot_kernel",
    r"fft(?<![a-z].{3})|winograd",
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
    # EnableMatrixInstruction is on. The kernels around them scale, convert or sum.
    (True, r"cijk_\w*_mi\d+x\d+x\d+"),
    (False, r"cijk_\w*postgsu|cijk_d\w*_(gb|betaonly)"),
    # MIOpen's implicit products: gtcx is "xdlops" in dynamic_igemm/igemm_gtc_xdlops_*. Composable Kernel: xdl, wmma.
    (True, r"igemm_(fwd|bwd|wrw)_gtcx|xdlops|_xdl_|xdl_c_?shuffle|mfma|wmma"),
    # SubTensorOp sets, scales or casts a tensor (MIOpen's MIOpenSubTensorOpWith*Kernel.cl).
    (False, r"subtensorop|batched_transpose|im2d2col"),
    # Parts of matrix products, attention and recurrent cells that only prepare, sum or scale.
    (False, r"split_?k_?reduce|reduce_?split_?k|reduce_wgrad|compute\w*offsets|(?<!load_)im2col|col2im|zero_fill"),
    (False, r"epilogue::impl|prepare_(varlen_num_blocks|kernel)"),
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
    (True, r"[hsd]884(?<![a-z0-9].{4})|[hsc]1688(?<![a-z0-9].{5})|16(816|832)(?<!\d.{5})(?!\d)|i8816|i8832"),
    (True, r"[hibd]mma(?<![a-z].{4})|tcgen05|m16n8k\d+|tensor(16x8x|8x8x)\d+"),
    # CUTLASS's, Hopper's and Blackwell's: s64x128x16gemm, warp-specialised, cuBLAS's nvjet.
    (True, r"(?<!sub)tensorop|s64x\d+x\d+gemm|gmma|nvjet_|warpgroupsize|warp_?specialized|tensoropmultiplicand"),
    # TensorRT-LLM's generated kernels for Blackwell: m128x16x32 is the shape of tcgen05.mma; attention for sm100.
    (True, r"^(bmm|gemm)_\w+_fp32_t\d+x\d+x\d+\w*_m\d+x\d+x\d+_\w*sm1\d\d|^fmhasm1\d\d"),
    (True, r"sm(80|86|89|90|100|103|120)_xmma|xmma_(implicit_)?gemm|xmma_sparse|xmma_(fprop|dgrad|wgrad)"),
    (True, r"flash_(fwd|bwd)|flashattn(fwd|bwd)|flash_(fprop|bprop)|sdpa_sm\d+_flash"),
    # DeepGEMM, CuTe's kernels in Python for Hopper and Blackwell, products of 8 bits or of blocks with one scale each.
    (True, r"deep_gemm::\w*(gemm|logits)|kernel_cutlass_\w*sm(90|1[0-3]\d)\w*tiledmma|block_?scaled\w*gemm"),
    (True, r"cutlass::device_kernel<[^>]*fp8[^>]*gemm"),
    (True, r"fmha_v2_\w*(fp16|bf16|e4m3)"),
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
    (True, r"^triton_tem_.*(int_mm|(mm|conv|attention).*(bf16|fp16|f16|tf32|fp8|e4m3))"),
    (None, r"^triton_tem_"),
]
_DECIDING = 2000  # letters: in public traces, the rest of a name decides nothing
# Types of 16 bits or fewer.
LOW_PRECISION = re.compile(r"half|bf16|bfloat16|fp16|fp8|[_-]h(gemm|cudnn)", re.IGNORECASE)
# TF32, by name or by an instruction's shape, where no type of 16 bits is named. Matrix products and convolutions in
# float32 on AMD: Tensile's names begin with the indices and then the types (its Naming.py; S is single, MX computes in
# AMD's TF32), MIOpen's hold the type.
TF32 = re.compile(r"tf32|s1688|16x8x8_f32|^cijk_[a-z]+_[a-z]+_s_mx_b_", re.IGNORECASE)
AMD_FP32 = re.compile(r"^cijk_[a-z]+_[a-z]+_s_?b_|igemm_\w+_fp32|asmconv\w*_fp32", re.IGNORECASE)
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
    r"(?<!fb)gemm(?!::)|conv(?!ert)|(?<!a)mma|attention|attn|matmul|[^a-z](b?add)?b?mm|dot|(?<![a-z])[dw]grad|fprop|lstm|gru|rnn"
)
_ARGUMENTS = re.compile(r"(?<=\w)[<(]")

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
    aten::_scaled_dot_product_flash_attention_for_cpu aten::_scaled_dot_product_flash_attention_for_cpu_backward
    aten::_scaled_dot_product_fused_attention_overrideable
    aten::_scaled_dot_product_fused_attention_overrideable_backward aten::miopen_rnn aten::miopen_rnn_backward
    aten::mkldnn_rnn_layer aten::mkldnn_rnn_layer_backward aten::mkldnn_convolution aten::mkldnn_linear
    aten::mkldnn_linear_backward_input aten::mkldnn_linear_backward_weights
    mkldnn::_convolution_pointwise mkldnn::_convolution_pointwise_ mkldnn::_convolution_transpose_pointwise
    mkldnn::_linear_pointwise
    """.split()
)


def is_matrix_work(name: str) -> bool:
    """Whether an operator is a convolution, a matrix product, attention or a recurrent layer, all of it in one call."""
    return name in ELIGIBLE or name in ELIGIBLE_SINCE


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


def halves_under_autocast(name: str) -> bool:
    """True for a kernel on float32 that is no matrix product and moves half as many bytes under autocast."""
    return "float" in name and not _KEPT_FP32.search(name) and kind(name) != OPTIMIZER


def is_ordinary(name: str) -> bool:
    """True for a matrix product or a convolution without Tensor Cores."""
    return _deciding_rule(name)[1] in _ORDINARY


# double as the first type of a template or a lambda's argument: that of a scalar, as in FusedAdam's parameters, of an
# optional, and after float is not what a kernel computes in. Then the libraries' letters and words for it.
_FLOAT64 = re.compile(
    r"(?<!optional)<(?:(?!float|\w*half|c10::|__)[^<>,(]+, ?)*double\b|lambda\([^()]*\bdouble\b"
    r"|(?<![a-z])g?[dz](gemm|884)|f64f64|fp64|^cijk_[a-z]+_[a-z]+_[dz]_?b_|_double(?![a-z])",
    re.IGNORECASE,
)
_COMPILED = re.compile(r"^triton_([a-z]+_fused_|_0d|$)")  # Inductor's, by its names of today and of 2023
_MARK = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):|record_param_comms")


def is_float64(name: str) -> bool:
    """True for a kernel that computes in float64, complex numbers of it too, or moves it; not for a collective."""
    return _FLOAT64.search(name) is not None and not is_collective(name)


def is_compiled(name: str) -> bool:
    """True for a kernel that torch.compile's Inductor wrote: its name lists the operators that were fused."""
    return _COMPILED.search(name) is not None


def is_collective(name: str) -> bool:
    """True for the name of a collective's kernel."""
    return kind(name) == COLLECTIVE


def is_collective_mark(name: str) -> bool:
    """True for what marks a collective on the CPU, of any library."""
    return _MARK.match(name) is not None


def is_exchange(name: str) -> bool:
    """True for a collective that exchanges what ranks computed of their batches: see `EXCHANGE`."""
    return is_collective(name) and _compiled(EXCHANGE).search(name.lower()) is not None
