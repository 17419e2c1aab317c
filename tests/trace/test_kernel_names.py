"""Kernel names, most of them from public traces, and what such a kernel does."""

import pytest

from walkthrough.trace.kernel_names import (
    KINDS,
    is_collective,
    is_compiled,
    is_exchange,
    is_float64,
    kind,
    short_name,
)

EXAMPLES = {
    "matrix product": """
volta_sgemm_128x64_nn
ampere_gcgemm_64x64_nt
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(Params)
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT
bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_sm100f
Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_GNLL0
_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false, false>
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx>
triton_tem_fused_mm_0
XXT_kernel
void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>
void marlin::Marlin<1125899906909960l, 2814749767172868l, 1125899906909960l, 2814749767106568l, 256, 1, 8, 8, false, 4>
""",
    "convolution": """
cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1
sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8
void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int, float const*)
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams)
void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*, int, float const*)
igemm_bwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x128x32_wt16x64x4_ws1x1_wr1x1_ta1x4x1x1_1x8x1x32_tb1x4x1x4_1x8x1x32_mh_gkgs
_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34GridwiseGemmMultiD
cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)
conv2d_c1_k1_nhwc_specialized
""",
    "attention": """
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false>>
fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)
fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext
_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipeline
void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>
void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u, 1u, 4u, 4u>>
void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u, 2u>>
aiter::fmha_fwd_hd128_bf16_rtz
attn_fwd
sage_fwd
kernel_unified_attention_3d
reduce_segments
""",
    "normalisation": """
void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, cudnnTensorStruct)
void at::native::batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>(at::GenericPackedTensorAccessor)
void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, float const*, float*)
void at::native::(anonymous namespace)::unrolled_elementwise_kernel_for_multi_outputs<3, batch_norm_update_stats_and
_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib
MIOpenBatchNormBwdSpatial
triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_20
""",
    "elementwise": """
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor>
void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}>
triton_poi_fused_addmm_cat_gelu_view_25
triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10
void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)
void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)
void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, false, 128, false>(__nv_bfloat16 const*)
to_mxfp8_dim0_kernel
_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i
""",
    "reduction": """
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>>>
void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>
void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*, long*, float*, int, int)
void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*, int, int)
void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false>
void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::routingRenormalize::KernelParams>
_topk_forward
void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*, int, int, int, int)
void deep_ep::elastic::combine_reduce_epilogue_impl<8, 512>(nv_bfloat16*)
fused_softcapped_entropy_bwd_kernel
void small_reduce_kernel<float>
void somebodys::BlockAllReduce<float>
""",
    "optimizer": """
void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float, float, float, float>
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<OptimizerTensorListMetadata<4>, FusedAdamMathFunctor>
""",
    "collective": """
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void nccl_kernel
rcclGenericKernel
mscclKernel_Sum_half_LL
void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)
void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**, unsigned long)
void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)
void sglang::cross_device_reduce_2stage<__half, 4>(sglang::RankData*)
void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)
void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half, quickreduce::CodecQ4>>
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>
void oneShotAllReduceKernel<8u, false>(at::BFloat16*)
ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC
void mscclpp::executionKernel<__half, mscclpp::LL16Packet, false>(int, __half*, __half*)
oneccl_allreduce_pcie
void executor_kernel<true>(ucc_ec_cuda_executor*, int)
void deep_ep::legacy::intranode::notify_dispatch<8>(int const*, int*, int const*, int*)
void alltoall_on_stream_kernel<float>(int, float*, float const*, unsigned long)
""",
    "copy-like": """
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)
void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda>
void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)
void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long, unsigned int, 1, 1, -2, true>
void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>
batched_transpose_16x64_pack_1x4_ediv_1x2_half
SubTensorOpWithScalar1d
void foldedNhwcToNhwcKernel<float, float, float, true, (cudnnKernelDataType_t)0>(int, int, cudnn::reduced_divisor)
void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(float, float const*, float, float*)
void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, unsigned char*, int, int)
void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(void*, void*)
void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>
void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*)
void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false, long, 1ul, 16ul>
triton_poi_fused_clone_transpose_21
""",
    "other": """
at::cuda::(anonymous namespace)::spin_kernel(long)
triton__0d1d2d3d4d5d
somebodys_kernel
void somebodys_prefill_kernel<float>
void somebodys_split_kernel<float>
""",
}

EXCHANGES = """
ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)
_combine_all_to_all_kernel
void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*)
void ep::intranode::dispatch<8, 768>(int4*, float*, int*)
void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*, int*)
void deep_ep::elastic::hybrid_combine_impl<false, 24>(nv_bfloat16*)
moeA2ADispatchKernel
mori::moe::EpCombineInterNodeV1Kernel
"""

FLOAT64 = """
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, at::detail::Array<char*, 3> >
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::complex<double> >, Array<char*, 1> >
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<double, at::native::func_wrapper_t<double>, unsigned int>>
void at::native::vectorized_elementwise_kernel<4, log2_kernel_cuda(at::TensorIteratorBase&)::{lambda(double)#1}>
void at::native::(anonymous namespace)::cunn_SoftMaxForward<2, double, double, double>
void at::native::radixSortKVInPlace<-2, -1, 64, 32, double, long, unsigned int>(at::cuda::detail::TensorInfo<double>)
void gemv2T_kernel_val<int, int, double, double, double, double, 128, 16, 4, 4, false, false>
volta_dgemm_128x64_nn
void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>
sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor8x8x4_kernel
Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1
"""

NOT_FLOAT64 = """
void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>, double, double>
void at::native::vectorized_elementwise_kernel<4, nan_to_num_kernel_cuda(c10::optional<double>)::{lambda(float)#1}>
void unrolled_elementwise_kernel_for_multi_outputs<3, batch_norm_update_stats(Tensor const&, double)::{lambda(float)#1}>
void vision::ops::(anonymous namespace)::nms_kernel_impl<float>(int, double, float const*, unsigned long long*)
void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, double>(int, float)
ncclDevKernel_AllReduce_Sum_f64_RING_LL(ncclDevKernelArgsStorage<4096ul>)
kernel_cutlass_kernel_Sm100GroupedBlockScaledGemmKernel_object_at__TiledMMA
transpose_NCHW2CNHW_V2_2D_WG_off64
"""


@pytest.mark.parametrize(
    ("of", "name"), [(of, name) for of, text in EXAMPLES.items() for name in text.split("\n") if name]
)
def test_a_kernels_kind_is_told_by_its_name(of, name):
    assert kind(name) == of
    assert is_collective(name) is (of == "collective")


@pytest.mark.parametrize("name", EXCHANGES.strip().splitlines())
def test_what_ranks_computed_of_their_batches_is_exchanged(name):
    assert is_exchange(name) and kind(name) == "collective"


def test_other_collectives_and_deep_eps_counting_are_no_exchanges():
    assert not is_exchange("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert not is_exchange("void deep_ep::layout::get_dispatch_layout<256>(long const*)")


@pytest.mark.parametrize("name", FLOAT64.strip().splitlines())
def test_a_kernel_that_computes_in_float64_is_recognised(name):
    assert is_float64(name)


@pytest.mark.parametrize("name", NOT_FLOAT64.strip().splitlines())
def test_a_parameter_of_type_double_makes_no_float64_kernel(name):
    assert not is_float64(name)


@pytest.mark.parametrize("name", ["triton_red_fused__log_softmax_nll_loss_forward_1", "triton__0d1d2d3de", "triton_"])
def test_a_kernel_of_inductor_is_compiled(name):
    assert is_compiled(name) and not is_compiled("somebodys_" + name)


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize(
    "name", ["triton_poi_fused_all_gather_into_tensor_add_3", "void fused_gemm_allreduce_kernel<half>"]
)
def test_what_computes_around_a_collective_is_none(name):
    assert not is_collective(name)


def test_a_long_name_keeps_its_begin_and_its_end():
    name = "void at::native::(anonymous namespace)::some_kernel<" + 50 * "float, " + "int>(char*)"
    short = short_name(name, 40)
    assert len(short) == 40
    assert short.startswith("some_kernel<float") and short.endswith("int>(char*)") and "…" in short
    assert short_name("volta_sgemm", 40) == "volta_sgemm"


def test_a_long_name_of_a_kernel_for_any_function_keeps_the_function():
    functor = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
    name = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{functor} >(...)>(int)"
    short = short_name(name, 54)
    assert len(short) == 54
    assert short.startswith("elementwise_kernel<…MulFunctor<float>…")
    copying = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
    )
    assert "direct_copy_kernel_cuda" in short_name(copying, 60)
    assert len(short_name(name, 20)) == 20  # where there is no room for it, begin and end as ever
