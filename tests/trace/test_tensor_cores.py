"""Kernel names as the libraries give them, and whether such a kernel uses Tensor Cores or AMD's matrix cores.

Those of AMD's GPUs and of Blackwell are from the traces of TraceLens (MI210, MI300, B200), cut where arguments follow.

Sources: the name itself, its library's sources, NVIDIA's lists. None was checked with hardware counters.
"""

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.trace.analysis import analyze
from walkthrough.trace.kernel_names import ELIGIBLE, ELIGIBLE_SINCE, is_ordinary, uses_tensor_cores
from walkthrough.trace.kernels import has_matrix_units, unit_name, vendor

YES = """
volta_h884gemm_64x64_ldg8_nn
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn
volta_s884gemm_fp16_128x128_ldg8_f2f_tn
volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1
volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1
turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1
turing_h1688gemm_128x128_ldg8_stages_32x1_nn
turing_fp16_s1688gemm_fp16_64x64_sliced1x2_ldg8_f2f_nn
turing_int8_i8816cudnn_int8_128x128_ldg16_relu_t1r1s1_nt_v1
ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn
ampere_h16816gemm_256x128_ldg8_stages_64x3_tn
ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn
ampere_s16816gemm_bf16_128x128_ldg8_stages_32x5_nn
sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x32_stage3_warpsize2x4x1_tensor16x8x16_kernel
sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel__51_cublas
sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor8x8x4_kernel
sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel
sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn_infer
sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn
sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn
sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_warpgroupsize1x1x1_g1_strided_execute_kernel__5x_cudnn
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
nvjet_hsh_128x128_64x5_2x1_v_bz_coopB_NNN
nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT
nvjet_sm90_tst_mma_192x192x64_3_64x192x64_tmaAB_bz_TNT
void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4::Params)
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_tn_align8>(Params)
void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)
void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_64x64_64x4_nhwc_align8>(Params)
void cutlass_cudnn_train::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x128_16x3_nhwc_align4>(Params)
cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_warpspecialized_cooperative_epi_tma
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized<4>, SM90_64x128x16_F32BF16BF16_SS>>
_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS6_4warp11MmaTensorOpINS7_ILi64ELi64ELi32EEES
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t>>
void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8>>
void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>
fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)
fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)
fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel::Params)
fmha_cutlassF_f16_aligned_64x64_rf_sm70(PyTorchMemEffAttention::AttentionKernel::Params)
cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_64x64x64_4x1x1_kernel0_0
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x64_4x1x1_kernel0_0
void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<(at::native::KReductionType)0>>
triton_tem_fused_mm_bf16_0
triton_tem_fused__int_mm_2_0d1d2d
kernel_cutlass_kernel_torchaoprototypemoe_trainingepsynclesscutedsl_mxfp8_gmmSm100GroupedBlockScaledGemmKernel_object_at__TiledMMA
kernel_cutlass_kernel_flashinfergemmkernelsdense_blockscaled_gemm_sm100Sm100BlockScaledPersistentDenseGemmKernel_object_at__TiledMMA_ThrLayoutVMNK21111000
void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel::Params)
void cutlass::device_kernel<cutlass::conv::kernel::ConvUniversal<MainloopSm90TmaGmmaWarpSpecializedImplicitGemm<0, 4>, SM90_TMA_LOAD_IM2COL>>
void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u, 128u, 112u, 128u, 128u>
fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_causal_tma_ws_sm90_kernel
void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)0, 16u, 1u, 4u, 4u, 4u, 1u, 4u>>
void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1, 128u, 2u, 2u, 8u, 8u, 4u, 1u>>
void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<>>
void marlin::Marlin<1125899906909960l, 2814749767172868l, 1125899906909960l, 2814749767106568l, 256, 1, 8, 8, false, 4, 8, false>
void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899907892224l, 256, 1, 8, 8, false, 4, 8, false>(int4 const*, int4 const*, int4*)
"""

YES_IN_PUBLIC_TRACES = """
Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1
Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1_AF1EM1_AMAS0_ASE_ASGT_ASLT_ASM_ASAE01_ASCE01
Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTLA0_DTLB0
Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_GNLL0_ISA90a_IU1_K1
igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_tb1x8x2x1_1x4x1x64_gkgs
igemm_bwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x128x32_wt16x64x4_ws1x1_wr1x1_ta1x4x1x1_1x8x1x32_tb1x4x1x4_1x8x1x32_mh_gkgs
igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x16_wt32x32x8_ws2x1_wr2x2_ta1x4x1x4_1x4x1x64_tb1x4x1x2_1x4x1x64_gkgs
_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn_xdlops_bwd_weightILi64EttftLN
_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffleINS_34GridwiseGemmMultipleD_xdl_cshuffle
_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipelineQRKSVSAsyncINS_36BlockFmha
void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 1, 128, 256, false, 4, 1>
aiter::fmha_fwd_hd128_bf16_rtz
attn_fwd
sage_fwd
kernel_unified_attention_2d
kernel_unified_attention_3d
_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu
_p_matmul_ogs_NNT_bf16xbf16xbf16_128x128x64x1
bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f
bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f
fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext
nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT
"""

NO_IN_PUBLIC_TRACES = """
SubTensorOpWithScalar1d
SubTensorOpWithCastTensor1d
batched_transpose_16x64_pack_1x4_ediv_1x2_half
Im2d2Col_v2
MIOpenBatchNormFwdTrainSpatialMeanVariance
void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>(__hip_bfloat16*, float const*)
reduce_segments
sage_quant_kernel
_finalize_matmul_scatter_bf16
_combined_routing_compute
_sum_bitmatrix_rows
void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>(__hip_bfloat16 const*)
std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)
_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i
_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib
void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, unsigned int**)
void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2, __nv_bfloat16, 32, true>(int)
void fbgemm_gpu::permute_indices_weights_kernel<false, int, decltype(nullptr)>(int, int, int, int const*, decltype(nullptr) const*)
void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half, float, c10::Half, 2ul, 32>(at::GenericPackedTensorAccessor<float, 2ul>)
at::cuda::(anonymous namespace)::spin_kernel(long)
Cijk_Ailk_Bljk_SB_MT128x64x8_SE_AMAS3_GRVW4_VW4
Cijk_SB_Bias_PostGSU8_VW4
igemm_fwd_gtcn2_nchwc_kcyxc_fp16x8_bx0_ex1_bt128x128x32_lt8x8_lw2x4_lr2x4_ta1x1x1x16_1x4x1x64_tb1x1x2x8_1x4x1x64
miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1
void wvSplitK_hf_sml_<__half, 64, 4, 16, 8, 1, 4>(int, int, int, int, int, int, __half const*)
"""

NO = """
void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 4u, 2u>
volta_sgemm_128x64_nn
volta_sgemm_32x128_tn
ampere_sgemm_32x128_tn
maxwell_scudnn_128x64_relu_interior_nn
volta_scudnn_128x64_relu_interior_nn_v1
volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1
volta_cgemm_32x32_tn
volta_dgemm_64x64_nt
void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(cutlass_80_simt_sgemm_128x128_8x4_nn_align1::Params)
sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__51_cublas
_ZN7cutlass6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS_4gemm4warp7MmaSimtINS_9GemmShapeILi64ELi32ELi8EEE
void cudnn::cnn::implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int, float const*)
void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int, float const*)
void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*, int, float const*)
void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, float const*, int, float*)
void cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, int, float, float, false, true, 0, 0, 0>(cudnnTensorStruct)
void cudnn::cnn::conv2d_grouped_direct_kernel<float, float, float, float, float, true, false, 0, 0, 0>(cudnnTensorStruct)
void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(at::PackedTensorAccessor)
void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel_generic<c10::Half, int>(at::GenericPackedTensorAccessor)
void at::native::(anonymous namespace)::conv_depthwise2d_backward_kernel<3, 1, float, int>(at::GenericPackedTensorAccessor)
void at::native::(anonymous namespace)::conv_depthwise2d_grad_weight_kernel<float, unsigned int>(at::GenericPackedTensorAccessor)
void at::native::(anonymous namespace)::conv_depthwise3d_cuda_kernel<float, float, 3, 3, 3, 1, 1, 1>(at::GenericPackedTensorAccessor)
void at::native::(anonymous namespace)::conv_depthwise3d_cuda_backward_input_kernel<c10::Half, float, 3, 3, 3, 1, 1, 1>
void at::native::(anonymous namespace)::conv_depthwise3d_cuda_backward_weight_kernel<c10::BFloat16, float, 1, 1>
conv2d_c1_k1_nhwc_specialized
void cudnn::cnn::conv2d_c1_k1_nhwc_kernel<__half, float, 3>
void conv2d_c1_k1_nhwc_kernel_specialized<__half, __half, __half, float, float, 5, 1, 8, 3, true>(float, cudnnTensorStruct)
void conv2d_c1_k1_nchw_hw_packed_kernel<__half, float, 3>
dgrad2d_c1_k1_nhwc_kernel
void dgrad2d_c1_k1_nhwc_kernel_specialized_window<__half, float, float, 3, 1, true>(float, __half const*, __half const*)
void cudnn::cnn::wgrad2d_c1_k1_nhwc_kernel<__half, float, 8, 7, 7, 1, 1, 1, 1, true>(cudnnTensorStruct, __half const*)
void cudnn::cnn::wgrad2d_c1_k1_nhwc_reduction_kernel<__half, float, 1, 3, 3>(cudnnTensorStruct, cudnnConvolutionStruct)
sm80_xmma_depthwise_convolution_dgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x8x8_1x5x5_1x1x1_1x1x1_stage2_warpsize4x1x1_g64_betaFalse_execute_kernel__5x_cudnn
sm80_xmma_depthwise_convolution_dgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x8x8_1x5x5_1x1x1_1x1x1_stage2_warpsize4x1x1_g64_betaFalse_execute_helper_kernel__5x_cudnn
sm80_xmma_depthwise_convolution_wgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x4x4_1x5x5_1x1x1_1x1x1_stage4_warpsize4x1x1_g32_betaTrue_post_execute_kernel__5x_cudnn
void causal_conv1d_channellast_fwd_kernel<Causal_conv1d_channellast_fwd_kernel_traits<128, 4, 64, true, c10::BFloat16, float>>
_causal_conv1d_fwd_kernel
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams)
void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int, int, int, int)
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx>
void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, cublasGemvParamsEx>
void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const>>
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensorStridedBatched<float>>>
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false, false>
void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<cutlass_cudnn_train::MatrixShape<4, 128>>>
cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)
cask_cudnn_infer::computeBOffsetsKernel(cask_cudnn_infer::ComputeBOffsetsParams)
void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, cublasLtEpilogue_t)
void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params, cudnnConvolutionStruct)
void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8>>
void pytorch_flash::flash_bwd_convert_dq_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8>>
void pytorch_flash::flash_fwd_splitkv_combine_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 64, 128, 4>>
fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel::Params)
fmha_cutlassF_f16_aligned_64x64_rf_sm50(PyTorchMemEffAttention::AttentionKernel::Params)
void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3> >
void at::native::vectorized_elementwise_kernel<4, at::native::lgamma_kernel_cuda(at::TensorIteratorBase&)>
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>>>
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>>
void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::OpaqueType<4u>>
void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*, int, int)
void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*, int, int, int)
void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*, long*, float*, int, int)
void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, cudnnTensorStruct)
void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)
void flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>, cute::C<128>>, cutlass::bfloat16_t, float>
void flash::FlashAttnBwdPostprocessConvertdQ<cute::tuple<cute::C<64>, cute::C<128>>, cutlass::bfloat16_t, float>
void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128>>, 5, 256, 1, false>>
void flash_bwd_clear_dkvaccum_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8>>(Flash_bwd_params)
cudnn::fusion::compute_dot_do_o_specialized<true, 128, 64>(Params)
void cutlass::device_kernel<cutlass::fmha::kernel::FmhaKernelBwdSumOdO<cute::tuple<int>>>
void elemWiseRNNcell<float, float, float, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>(int, int, int)
void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, int, 1>(at::cuda::detail::TensorInfo)
kernel_cutlass_prepare_kernel_torchaoprototypemoe_trainingepsynclesscutedsl_mxfp8_gmmSm100GroupedBlockScaledGemmKernel_object_at__0
void flash::prepare_varlen_num_blocks_kernel<8, false>(int, int, int, int const*)
volta_dgemm_128x64_nn
void deep_gemm::transpose_fp32<512, 128>(float const*, float*)
volta_hgemm_128x64_nn
maxwell_hcudnn_128x32_relu_interior_nn
triton_poi_fused_add_cos_sin_0
triton_red_fused_native_layer_norm_3
triton_per_fused__softmax_convolution_backward_2
"""

CANNOT_TELL = """
void flashinfer::BatchDecodeWithPagedKVCacheKernelMLA<2u, 8u, 2u, 32u, 2u, 1u>
void marlin::gptq_marlin_repack_kernel<256, 4, true>(unsigned int const*, unsigned int const*, unsigned int*, int, int)
triton_tem_fused_mm_0
triton_tem_fused_convolution_1
triton_tem_fused_addmm_t_transpose_0
triton_tem_fused__to_copy_addmm_0
triton_tem_fused_addmm_native_layer_norm_3
triton_tem_fused_baddbmm_softmax_2
triton_convert_element_type_bf16_conv_0
triton_mix_fused_mm_bf16_0
matmul_kernel
_attn_fwd
Custom_Cijk_of_somebody
miopenSp3AsmConvFury_v2_4_1_gfx11_fp16_fp16acc_f2x3_c16_stride1
void wvSplitK_hf_sml_<__hip_bfloat16, 64, 4, 16, 8, 1, 4>(int, int, int, int, int, int, __hip_bfloat16 const*)
triton__0d1d2d3d4d5d
my_fused_gemm
void somebodys::BatchedGemm<__nv_bfloat16>
void somebodys::StridedGemm<float>
void somebodys::FusedGemmK128<float>
void somebodys::DiffMatmul<float>
void somebodys::ClassGemm<float>
void somebodys::my_dot_kernel<float>
void somebodys::AddBmmAct<float>
somebodys_kernel
void elementwise_free_attention_kernel<float>
"""


def names(text):
    return text.strip().splitlines()


@pytest.mark.parametrize("name", names(YES) + names(YES_IN_PUBLIC_TRACES))
def test_a_tensor_core_kernel_is_recognised(name):
    assert uses_tensor_cores(name) is True


@pytest.mark.parametrize("name", names(NO) + names(NO_IN_PUBLIC_TRACES))
def test_a_kernel_without_tensor_cores_is_recognised(name):
    assert uses_tensor_cores(name) is False


@pytest.mark.parametrize("name", names(CANNOT_TELL))
def test_a_name_that_does_not_decide_is_left_open(name):
    assert uses_tensor_cores(name) is None


def test_the_operators_of_today_are_eligible_as_well():
    assert "aten::convolution_backward" in ELIGIBLE_SINCE
    assert not ELIGIBLE & ELIGIBLE_SINCE


def test_the_end_of_an_endless_name_decides_nothing():
    assert uses_tensor_cores("void gemm<" + "a" * 1000 + "16816")
    assert uses_tensor_cores("void gemm<" + "a" * 5000 + "16816") is None


@pytest.mark.parametrize("name", names(CANNOT_TELL))
def test_a_name_that_does_not_decide_is_no_ordinary_product(name):
    assert not is_ordinary(name)


@pytest.fixture
def launched(tmp_path):
    """launched(kernels, device, call): the analysis of [(kernel's name, µs, operator)] on that device."""

    def analysis(kernels, device=None, call="cudaLaunchKernel"):
        builder = TraceBuilder(devices=[{"id": 0, **device}] if device else [])
        for place, (name, us, operator) in enumerate(kernels):
            op = builder.op(operator, place * 1000, 50)
            builder.launch(name, place * 1000 + 10, 5, place * 1000 + 20, us, op=op, call=call)
        return analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))

    return analysis


@pytest.mark.parametrize(
    ("device", "call", "maker", "units"),
    [
        ({"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}, "cudaLaunchKernel", "nvidia", "Tensor Cores"),
        ({"name": "AMD Instinct MI300X", "computeMajor": 9}, "hipLaunchKernel", "amd", "Matrix cores"),
        ({"name": "Intel(R) Data Center GPU Max 1550"}, "urEnqueueKernelLaunch", "intel", "XMX engines"),
        (None, "urEnqueueKernelLaunchWithArgsExp", "intel", "XMX engines"),
        (None, "zeCommandListAppendLaunchKernel", "intel", "XMX engines"),
        (None, "cudaLaunchKernel", "nvidia", "Tensor Cores"),
    ],
)
def test_the_maker_and_its_word_for_the_units_are_told_by_names_and_calls(launched, device, call, maker, units):
    trace = launched([("gemm_kernel", 100, "aten::mm")], device, call).trace
    assert (vendor(trace), unit_name(trace)) == (maker, units)
    assert has_matrix_units(trace, 0)


def test_copies_of_an_intel_gpu_have_directions(tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "Intel(R) Arc(TM) B580 Graphics"}])
    for place, name in enumerate(
        ["M2D (MEMORY(Unknown) -> DEVICE)", "D2M (DEVICE -> MEMORY(Unknown))", "D2D (DEVICE)"]
    ):
        builder.copy(place * 100, 10, place * 100 + 20, 50, 1000, name=f"Memcpy {name}")
    copies = analyze(builder.write(tmp_path / "made.pt.trace.json.gz")).all_tables.copies
    assert {name: rows.bytes for name, rows in copies.items()} == {"h2d": 1000, "d2h": 1000, "d2d": 1000}


@pytest.mark.parametrize(
    ("name", "major", "has_units"),
    [
        ("NVIDIA GeForce GTX 1650", 7, False),
        ("NVIDIA T1000 8GB", 7, False),
        ("NVIDIA GeForce MX450", 7, False),
        ("Tesla P100-PCIE-16GB", 6, False),
        ("Tesla T4", 7, True),
        ("NVIDIA TITAN V", 7, True),
        ("NVIDIA GeForce RTX 2080 Ti", 7, True),
        ("AMD Instinct MI50/MI60", 9, False),
        ("AMD Radeon RX 6800", 10, False),
        ("AMD Radeon RX 7900 XTX", 11, True),
        ("Intel(R) Iris(R) Xe Graphics", None, False),
        ("Intel(R) Arc(TM) B580 Graphics", None, True),
    ],
)
def test_a_gpu_without_matrix_units_is_known_by_its_name_or_compute_capability(launched, name, major, has_units):
    result = launched([("volta_h884gemm_128x64", 100, "aten::mm")], {"name": name, "computeMajor": major})
    assert has_matrix_units(result.trace, 0) is has_units
    assert result.gpus[0].tensor_core_share == has_units
    assert result.all_tables.kernels[0].tensor_cores is has_units


def test_kernels_of_which_nothing_tells_what_they_do_are_not_counted_as_no_matrix_work(launched):
    elementwise = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    kernels = [("volta_sgemm_128x64_nn", 100, "aten::mm"), ("triton__0d1d2d3de", 600, "triton__0d1d2d3de")]
    kernels += [("_attn_fwd", 200, "my::attention"), (elementwise, 100, "aten::add")]
    cores = launched(kernels).tensor_cores
    assert (cores.eligible_share, cores.unknown_kind_share) == (pytest.approx(0.3), pytest.approx(0.6))
    assert launched([("somebodys_kernel", 100, "aten::mm")]).tensor_cores.unknown_kind_share == 0  # by its operator


def test_float64_products_are_none_that_autocast_would_speed_up(launched):
    kernels = [("volta_sgemm_128x64_nn", 100, "aten::mm"), ("volta_dgemm_128x64_nn", 100, "aten::mm")]
    kernels += [("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<double>, float>", 50, "aten::add")]
    cores = launched(kernels).tensor_cores
    assert cores.fp32_matrix.tolist() == [True, False, False]
    assert not cores.fp32_other.any()
