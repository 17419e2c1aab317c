"""Each rule on a small trace that has what it looks for, and on the same one without."""

import pytest
from support.trace_builder import TraceBuilder, analyzed, repeated

from walkthrough.advice.catalogue import COSTS
from walkthrough.advice.gains import advise
from walkthrough.advice.report import report

IDS = {
    "unfused_attention", "misaligned_matmul", "fusable_elementwise", "layout_conversions", "unfused_optimizer",
    "host_python", "blocking_copies", "many_small_launches", "exposed_collectives", "device_queue_stall",
    "graph_capture", "startup", "outlier_steps", "precision_mix", "recomputation", "depthwise", "float64",
}  # fmt: skip
BMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
SGEMM = "ampere_sgemm_128x64_nn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 10, false, false>(...)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, MulFunctor<float> > >"
NCHW = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
DIRECT = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda> >"
CONV = "void cudnn::cnn::implicit_convolve_sgemm<float>"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BACKWARD = "autograd::engine::evaluate_function: ConvolutionBackward0"


def run(*kernels, inside=(), before=0.0, waits=False, more=lambda builder, begin: None, steps=3):
    """Steps whose kernels follow one another in one stream, each launched long before by an operator of its own.

    kernels: (name, µs, operator), the same in each step. inside: operators around all of a step's. before: µs of
    nothing before the first. waits: whether the CPU waits for the last one. more: adds other events.
    """
    builder, begin = TraceBuilder(), 0.0
    for number in range(steps):
        end = begin + before + sum(us for _, us, _ in kernels) + 20
        builder.step(number, begin, end - begin)
        for name in inside:
            builder.op(name, begin + 1, before + len(kernels) * 2 + 4)
        kernel_at = begin + before + 10
        for index, (name, us, operator) in enumerate(kernels):
            call_at = begin + 2 + before + index * 2
            arguments = {"name": operator} if isinstance(operator, str) else dict(operator)
            op = builder.op(arguments.pop("name"), call_at, 1.5)
            op["args"] |= arguments
            builder.launch(name, call_at + 0.2, 1, kernel_at, us, op=op)
            kernel_at += us
        if waits:
            builder.wait(begin + before + 4 + len(kernels) * 2, kernel_at)
        more(builder, begin)
        begin = end
    return builder


def found(builder):
    """The findings of a trace by their ids."""
    findings = advise(analyzed(builder)).findings
    assert len({finding.id for finding in findings}) == len(findings)
    assert {finding.id for finding in findings if not len(finding.when.start)} <= {"graph_capture"}
    return {finding.id: finding for finding in findings}


def times(builder, name):
    """[(begin, end)] in µs of what the timeline marks."""
    analysis = analyzed(builder)
    [when] = [finding.when for finding in advise(analysis).findings if finding.id == name]
    origin = analysis.trace.origin
    return list(zip((when.start + origin).tolist(), (when.end + origin).tolist(), strict=True))


def shaped(name, *shapes, dtype="c10::Half"):
    types = [dtype if shape else "Scalar" for shape in shapes]
    return {"name": name, "Input Dims": [list(shape) for shape in shapes], "Input type": types}


QK = shaped("aten::bmm", (16, 512, 64), (16, 64, 512))
AV = shaped("aten::bmm", (16, 512, 512), (16, 512, 64))
ATTENTION = [(BMM, 300, QK), (MUL, 100, "aten::mul"), (SOFTMAX, 200, "aten::_softmax"), (BMM, 300, AV)]
PRODUCT = (BMM, 500, "aten::mm")


def test_every_rule_has_a_fixed_id_and_every_id_a_rule():
    assert {cost.finding for cost in COSTS if cost.finding} == IDS


# Kernels.


def test_attention_in_parts_is_found_with_what_is_between_its_products():
    program = run(*ATTENTION, waits=True)
    finding = found(program)["unfused_attention"]
    assert finding.us_per_step == pytest.approx(900)
    for said in ("1x per step", "300 us of it softmax", "(mostly [16, 512, 64] @ [16, 64, 512])"):
        assert said in finding.why
    assert finding.estimated_gain == pytest.approx(920 / 620, rel=0.03)
    assert times(program, "unfused_attention") == [(10, 910), (930, 1830), (1850, 2750)]


@pytest.mark.parametrize(
    "kernels",
    [
        [(BMM, 50, "aten::mm"), *ATTENTION[:3]],  # another layer follows
        [ATTENTION[0], ATTENTION[2], (BMM, 300, "aten::mm")],  # a layer before a classifier's softmax
        [ATTENTION[0], ("void cudnn::bn_fw_tr_1C11_kernel", 50, "aten::cudnn_batch_norm"), *ATTENTION[2:]],
        [ATTENTION[0], *[ATTENTION[1]] * 9, *ATTENTION[2:]],
    ],
    ids=["no second product", "no batched product", "something else between", "too much between"],
)
def test_other_softmax_is_no_attention(kernels):
    assert "unfused_attention" not in found(run(*kernels))


SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>"
D884 = "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>"
ALIGN2 = BMM.replace("tn", "align2_tn")


@pytest.mark.parametrize(
    ("kernel", "operator", "shapes"),
    [
        (BMM, shaped("aten::mm", (64, 512), (512, 1001)), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::mm", (64, 512), (512, 1001), (64, 1001)), "[64, 512] @ [512, 1001]"),  # out=
        (BMM, shaped("aten::addmm", (1001,), (64, 512), (512, 1001), (), ()), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::addmm", (64, 1001), (64, 512), (512, 1001), (), (), (64, 1001)), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::_addmm_activation", (9,), (64, 512), (512, 1001), ()), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::baddbmm", (2, 64, 33), (2, 64, 512), (2, 512, 33), (), ()), "[2, 64, 512] @ [2, 512, 33]"),
        (ALIGN2, shaped("aten::mm", (64, 512), ()), "[64, 512]"),  # of an unrecorded factor no shape is shown
        (ALIGN2, shaped("aten::mm", (64,), (64, 512)), "[64, 512]"),
        (ALIGN2, "aten::mm", ""),
        (SIMT.replace("simt_sgemm", "tensorop_s1688gemm"), "aten::mm", ""),
        (D884.replace("d884", "s1688"), "aten::mm", ""),
    ],
)
def test_sizes_that_are_no_multiple_of_16_bytes_are_found_by_shape_and_by_name(kernel, operator, shapes):
    finding = found(run((kernel, 400, operator), (BMM, 500, QK)))["misaligned_matmul"]
    assert finding.us_per_step == pytest.approx(400)
    assert (f" (mostly {shapes}): " in finding.why) if shapes else ("mostly" not in finding.why)


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        (SIMT, "aten::mm"),  # such kernels always load one element
        (D884, "aten::mm"),
        (BMM, shaped("aten::mm", (64, 512), (512, 1000))),
        (BMM, shaped("aten::mm", (64, 512), (512, 1001), dtype="float")),
        (BMM, shaped("aten::mm", (64, 512), (512, 1))),  # a vector
        (BMM, {"name": "aten::mm", "Input Dims": "broken", "Input type": 5}),
        (BMM, {"name": "aten::mm", "Input Dims": [[1, None], {}], "Input type": ["c10::Half", "c10::Half"]}),
    ],
)
def test_sizes_that_do_not_matter_are_not_found(kernel, operator):
    assert "misaligned_matmul" not in found(run((kernel, 500, operator)))


def test_odd_sizes_of_attention_are_for_fused_attention_to_solve():
    odd = BMM.replace("tn", "align1_tn")
    parts = [(odd, 300, QK), (MUL, 100, "aten::mul"), (SOFTMAX, 200, "aten::_softmax"), (odd, 300, AV)]
    alone, beside = found(run(*parts)), found(run(*parts, (odd, 500, "aten::mm")))
    assert "misaligned_matmul" not in alone
    assert "600 us of it products of rows that are not aligned" in alone["unfused_attention"].why
    assert "not aligned" not in found(run(*ATTENTION))["unfused_attention"].why
    assert beside["misaligned_matmul"].us_per_step == pytest.approx(500)
    assert beside["misaligned_matmul"].why.startswith("1 kernel per step, built for rows")


CHAIN = [(ADD, 100, "aten::add"), (MUL, 300, "aten::mul"), (ADD, 200, "aten::add")]
CAT = ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", 50, "aten::cat")


def test_a_chain_of_elementwise_kernels_could_be_its_longest():
    program = run(PRODUCT, *CHAIN, PRODUCT)
    finding = found(program)["fusable_elementwise"]
    assert finding.us_per_step == pytest.approx(300)
    assert finding.why.startswith("of 3 elementwise kernels and reductions")
    assert times(program, "fusable_elementwise")[:2] == [(510, 610), (910, 1110)]  # the longest between them stays
    beside = found(run(PRODUCT, CAT, *CHAIN, CAT))["fusable_elementwise"]
    assert beside.why.startswith("of 3 elementwise kernels")  # what is beside a chain is not of it


@pytest.mark.parametrize(
    "program",
    [
        run(PRODUCT, CHAIN[0], PRODUCT, CHAIN[1], PRODUCT),
        run(PRODUCT, *CHAIN, inside=("Optimizer.step#SGD.step",)),  # compiling the model leaves them
        run(("triton_poi_fused_add_0", 100, "aten::add"), ("triton_poi_fused_mul_1", 300, "aten::mul")),
    ],
    ids=["each alone", "the optimizer's", "fused by Inductor"],
)
def test_what_is_no_chain_is_not_to_be_fused(program):
    assert "fusable_elementwise" not in found(program)


def test_compiled_code_without_a_fused_kernel_is_told_apart():
    chain = [(BMM, 100, "aten::mm"), *[(MUL, 100, "aten::mul")] * 4]
    triton = ("triton_poi_fused_add_0", 100, "triton_poi_fused_add_0")
    alone, fused = (found(run(*chain, *more, inside=("CompiledFunction",))) for more in ((), (triton,)))
    assert "backend inductor" in alone["fusable_elementwise"].do
    assert "graph breaks" in fused["fusable_elementwise"].do


@pytest.mark.parametrize(
    ("kernels", "inside", "us", "do"),
    [
        ([(NCHW, 100, "aten::conv2d"), PRODUCT], (), 100, "keep one layout"),
        ([(NCHW, 100, "aten::conv2d"), (CONV, 400, "aten::conv2d"), PRODUCT], (), 100, "torch.channels_last"),
        ([(DIRECT, 50, "aten::copy_"), PRODUCT], ("aten::contiguous", "aten::clone"), 50, "permute once"),
        ([(NCHW, 100, "aten::copy_"), PRODUCT], ("aten::contiguous",), 100, "keep one layout"),  # one of both
        ([("SubTensorOpWithScalar1d", 100, "aten::miopen_convolution")] * 2 + [PRODUCT], (), 200, "cudnn.benchmark"),
        ([(DIRECT, 50, "aten::copy_"), PRODUCT], (), 0, ""),
    ],
    ids=["a layout", "of convolutions", "contiguous", "layout in contiguous", "MIOpen", "another copy"],
)
def test_what_only_moves_elements_is_found(kernels, inside, us, do):
    finding = found(run(*kernels, inside=inside)).get("layout_conversions")
    assert (finding is not None) == (us > 0)
    if finding:
        assert finding.us_per_step == pytest.approx(us)
        assert do in finding.do and finding.do.count(";") == 0


def test_copies_within_the_gpu_are_found_where_no_kernel_runs():
    def copies(at, inside="CompiledFunction"):
        def add(builder, begin):
            builder.op(inside, begin + 1, 120)
            for copied in at:
                op = builder.op("aten::copy_", begin + copied / 10, 4)
                name = "Memcpy DtoD (Device -> Device)"
                builder.copy(begin + copied / 10 + 1, 2, begin + copied, 50, 2_000_000, name=name, op=op)

        return add

    finding = found(run(PRODUCT, before=400, more=copies((100, 600))))["layout_conversions"]  # one beside the kernel
    assert finding.us_per_step == pytest.approx(50)
    assert "2 copies within the GPU per step, 4 MB, 50 us with no kernel running" in finding.why
    assert finding.why.endswith("inside CompiledFunction") and "CUDA graph" in finding.do
    ddp = copies((100, 600), "torch.distributed.ddp.reducer::copy_bucket_to_grad")
    assert "gradient_as_bucket_view" in found(run(PRODUCT, before=400, more=ddp))["layout_conversions"].do
    assert "layout_conversions" not in found(run(PRODUCT, more=copies((100, 200))))


def test_matrix_products_in_several_precisions_are_found():
    full, half = (SGEMM, 300, "aten::mm"), (BMM, 700, "aten::mm")
    finding = found(run(full, half))["precision_mix"]
    assert finding.why == f"fp32 30%, 16 bits 70% of the kernels' time; for example {SGEMM}"
    assert finding.us_per_step == pytest.approx(300)
    sums = "void splitKreduce_kernel<float, float, float>", "void reduce_wgrad_nchw_helper<float, float>"
    for kernels in ((half, half), (full, full), *(((name, 300, "aten::mm"), half) for name in sums)):
        assert "precision_mix" not in found(run(*kernels))


@pytest.mark.parametrize(
    ("device", "tf32"),
    [
        ({"name": "Tesla V100", "computeMajor": 7}, False),
        ({"name": "NVIDIA A100", "computeMajor": 8}, True),
        ({"name": "AMD Instinct MI210", "computeMajor": 9, "warpSize": 64}, False),
        ({"name": "", "computeMajor": "broken"}, False),
    ],
)
def test_tf32_is_for_gpus_that_have_it(device, tf32):
    full, half = SGEMM, BMM
    if "AMD" in device["name"]:
        full, half = "Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1", "Cijk_Ailk_Bljk_BBS_BH_bf16_MT64x16x32_MI16x16x1"
    program = run((full, 300, "aten::mm"), (half, 700, "aten::mm"))
    program.header["deviceProperties"] = [{"id": 0, **device}]
    finding = found(program)["precision_mix"]
    assert "autocast" in finding.do
    assert ("TF32" in finding.do) is tf32


def test_kernels_in_float64_and_depthwise_convolutions_are_found():
    grouped = "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float, float>"
    depthwise = "void conv2d_c1_k1_nhwc_kernel<float, 3, 3>"
    mamba = "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true> >"
    for name in (depthwise, mamba):
        assert found(run((grouped, 100, "aten::conv2d"), (name, 200, "x")))["depthwise"].us_per_step == 200
    assert "depthwise" not in found(run((grouped, 100, "aten::conv2d")))
    finding = found(run((D884, 190, "aten::mm"), (BMM, 710, "aten::mm")))["float64"]
    assert finding.us_per_step == pytest.approx(190)
    assert finding.why.startswith("1 kernel per step, 21% of the kernels' time; for example cutlass::Kernel<")


def test_forward_operators_inside_the_backward_pass_are_recomputation():
    conv = (CONV, 300, "aten::convolution")
    assert found(run(conv, conv, inside=(BACKWARD,)))["recomputation"].us_per_step == pytest.approx(600)
    for other in (
        {},
        {"more": lambda builder, begin: builder.op(BACKWARD, begin + 1, 600, tid=2)},
    ):  # on its own thread
        assert "recomputation" not in found(run(conv, conv, **other))


def test_an_optimizer_of_many_kernels_is_found_unless_it_is_fused():
    def optimizer(count, *names, us=4, product=100):
        kernels = [*[(ADD, us, "aten::add_")] * count, (BMM, product, "aten::mm")]
        return found(run(*kernels, inside=("Optimizer.step#SGD.step", *names)))

    finding = optimizer(60)["unfused_optimizer"]
    assert "60 kernels per step" in finding.why  # a matrix product is no part of an optimizer
    assert finding.us_per_step >= 240
    assert "98% of all" in optimizer(60, us=0.1, product=1000)["unfused_optimizer"].why  # by the CPU's time alone
    for other in (optimizer(10), optimizer(60, us=0.1, product=10_000), optimizer(60, "aten::_fused_sgd_")):
        assert "unfused_optimizer" not in other


# The CPU.


def test_the_innermost_python_function_while_the_gpu_is_idle_is_named():
    def functions(builder, begin):
        builder.add("python_function", "train.py(10): main", begin + 1, 940)
        builder.add("python_function", "data.py(77): decode", begin + 100, 700)
        builder.add("python_function", "<built-in method f of object object at 0x7f00aa>", begin + 850, 50)

    finding = found(run((BMM, 100, "aten::mm"), before=900, more=functions))["host_python"]
    assert finding.us_per_step == pytest.approx(912, abs=15)
    assert "innermost functions: data.py(77): decode 700 us; train.py(10): main" in finding.why
    assert "<built-in method f of object> 50 us" in finding.why
    assert "host_python" not in found(run((BMM, 100, "aten::mm"), before=900))  # no stacks


def test_a_trace_without_launches_or_a_function_in_the_idle_time_names_none():
    builder = TraceBuilder()
    builder.step(1, 200, 200)
    for begin in (10, 210):
        builder.events.remove(builder.launch(BMM, begin, 5, begin, 100)[0])
    builder.add("python_function", "train.py(10): main", 500, 5)
    assert "host_python" not in found(builder)


def test_without_stacks_operators_tell_what_fills_the_longest_time_without_a_kernel():
    def before(name, us, wrapper="DistributedDataParallel.forward", thread=1):
        def add(builder, begin):
            builder.add("annotation", wrapper, begin + 1, 2000)
            builder.op(name, begin + 2, us, tid=thread)
            builder.op("aten::as_strided", begin + 3, us / 2, tid=thread)

        return found(run((BMM, 300, "aten::mm"), before=2900, more=add)).get("host_python")

    finding = before("aten::unflatten_dense_tensors", 1700)
    assert (finding.cost, finding.us_per_step) == ("cpu_operators", pytest.approx(1700, abs=15))
    assert "aten::unflatten_dense_tensors 1.7 ms" in finding.why and "as_strided" not in finding.why
    assert "forward_sync_buffers=False" in finding.do
    assert "forward_sync_buffers" not in before("aten::unflatten_dense_tensors", 1700, wrapper="## forward ##").do
    assert "device=" in before("aten::nonzero", 1700).do and "--stacks" in before("CompiledFunction", 1700).do
    assert before("aten::nonzero", 30) is None  # most of the time is nobody's
    assert before("aten::nonzero", 1700, thread=2) is None  # not the thread that launches


def test_loading_and_preparing_input_is_for_worker_processes():
    def doing(name, loader=None):
        def more(builder, begin):
            builder.add("python_function", name, begin + 10, 880)
            if loader:
                builder.loading(begin + 10, 880, loader)

        return found(run((BMM, 100, "aten::mm"), before=900, more=more))["host_python"]

    assert doing("train.py(7): augment").cost == "host_python"
    assert doing("transformers/image_transforms.py(390): normalize").do.startswith("preparing input is for a DataL")
    loading = doing("train.py(7): augment", "_SingleProcessDataLoaderIter")
    assert loading.cost == "dataloader_workers" and "num_workers" in loading.do
    assert "waits 880 us for the main process" in loading.why and "train.py(7): augment 100%" in loading.why
    assert doing("train.py(7): augment", "_MultiProcessingDataLoaderIter").do.startswith("more worker processes")


def copied(name, call="cudaMemcpyAsync"):
    """Steps of 1000 us whose first 300 copy, before a kernel of 600."""

    def add(builder, begin):
        builder.copy(begin, 300, begin + 10, 280, 1_000_000, name=name)[0]["name"] = call
        builder.launch("k", begin + 350, 5, begin + 360, 600, op=builder.op("aten::mm", begin + 340, 20))

    return repeated(add, steps=3)


PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
BACK = "Memcpy DtoH (Device -> Pinned)"


def test_copies_that_the_cpu_waits_for_are_found():
    finding = found(copied(PAGEABLE))["blocking_copies"]
    assert (finding.cost, finding.us_per_step) == ("pinned_memory", pytest.approx(300, abs=10))
    assert finding.why.startswith("1 copy per step, 1.00 MB from pageable memory")
    assert times(copied(PAGEABLE), "blocking_copies") == [(0, 300), (1000, 1300), (2000, 2300)]
    assert found(copied(BACK, "cudaMemcpy"))["blocking_copies"].cost == "no_hidden_syncs"
    assert "blocking_copies" not in found(copied(PINNED))


def launched(count, us, every, operator="aten::add"):
    """Steps of `count` kernels, one launched every so many µs."""

    def add(builder, begin):
        for at in range(begin, begin + count * every, every):
            builder.launch("k", at + every - 8, 5, at + every - 1, us, op=builder.op(operator, at, every - 2))

    return repeated(add, count * every, 3)


@pytest.mark.parametrize(("count", "us", "many"), [(100, 3, True), (100, 0, True), (100, 29, False), (10, 3, False)])
def test_many_launches_of_kernels_shorter_than_them_are_found(count, us, many):
    """Also of kernels shorter than the clock's tick."""
    finding = found(launched(count, us, 30)).get("many_small_launches")
    assert (finding is not None) == many
    if finding:
        assert "100 kernels per step, 100% of them shorter" in finding.why
        assert "bigger batch" not in finding.do  # inference: each answer would take longer


def test_what_is_counted_per_step_is_counted_in_the_steps():
    def counted(name, add):
        """What `add(builder, begin, times)` adds, ten times before the steps, and twice in each of three."""
        builder = TraceBuilder()
        add(builder, -50_000, 10)
        for number in range(3):
            builder.step(number, number * 1000, 1000)
            add(builder, number * 1000, 2)
        return found(builder)[name].why

    def copies(builder, begin, times):
        for at in range(times):
            builder.copy(begin + at * 400, 300, begin + at * 400 + 10, 280, 1_000_000)
            builder.launch("k", begin + at * 400 + 310, 5, begin + at * 400 + 320, 60)

    def attention(builder, begin, times):
        for at in range(times):
            start = begin + at * 300
            for name, operator in ((BMM, "aten::bmm"), (SOFTMAX, "aten::_softmax"), (BMM, "aten::bmm")):
                builder.launch(name, start + 5, 5, start + 15, 80, op=builder.op(operator, start, 50))
                start += 100

    def again(builder, begin, times):
        for at in range(times):
            builder.op(BACKWARD, begin + at * 300, 290)
            op = builder.op("aten::linear", begin + at * 300 + 10, 100)
            builder.launch(SGEMM, begin + at * 300 + 20, 5, begin + at * 300 + 30, 200, op=op)

    assert counted("blocking_copies", copies).startswith("2 copies per step, 2.00 MB")
    assert counted("unfused_attention", attention).startswith("2x per step")
    assert counted("recomputation", again).startswith("2 forward operators per step")


# Waits of the GPU for other than the CPU, and steps.


def test_collectives_beside_nothing_are_found():
    program = run(PRODUCT, (REDUCE, 300, "nccl:all_reduce"))
    finding = found(program)["exposed_collectives"]
    assert finding.us_per_step == pytest.approx(300)
    assert times(program, "exposed_collectives")[0] == (510, 810)
    assert "1 collective per step, 300 us on average" in finding.why
    assert "exposed_collectives" not in found(run(PRODUCT))


EXCHANGE = ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 400, "nccl:all_to_all")


@pytest.mark.parametrize(
    ("collectives", "inside", "do", "not_do"),
    [
        ([(REDUCE, 300, "nccl:all_reduce")], (), "", "bucket"),  # gradients have buckets, inference has none
        ([(REDUCE, 300, "nccl:all_reduce")], ("AddmmBackward0",), "bucket_cap_mb", "join"),
        ([(REDUCE, 300, "nccl:all_reduce"), EXCHANGE], ("AddmmBackward0",), "", "bucket"),
        ([(REDUCE, 100, "nccl:all_reduce")] * 60, ("AddmmBackward0",), "join them in buckets", "cap"),
        ([(REDUCE, 1000, "nccl:all_reduce")] * 60, ("AddmmBackward0",), "", "join"),
        ([(REDUCE, 100, "nccl:all_reduce")] * 5, ("AddmmBackward0",), "", "join"),
    ],
)  # fmt: skip
def test_what_to_do_about_collectives_depends_on_what_they_exchange(collectives, inside, do, not_do):
    finding = found(run(PRODUCT, *collectives, inside=inside))["exposed_collectives"]
    assert do in finding.do and not_do not in finding.do


def late(by):
    """Steps whose second kernel begins `by` µs after the first one's end, launched long before."""

    def add(builder, begin):
        for at, start in ((10, 20), (40, 120 + by)):
            op = builder.op("aten::mm", begin + at - 5, 20)
            builder.launch("k", begin + at, 5, begin + start, 100, op=op)

    return repeated(add, steps=3)


def pauses(us):
    builder = TraceBuilder()
    builder.step(1, 0, 3000)
    for index in range(60):
        builder.launch("k", index * 10, 5, 20 + index * (20 + us), 20)
    return builder


def test_a_gpu_that_waits_although_work_is_launched_is_found():
    finding = found(late(500))["device_queue_stall"]
    assert finding.us_per_step == pytest.approx(500, abs=25)
    assert times(late(500), "device_queue_stall")[0] == (120, 620)
    assert "the longest time is" in finding.why and "first work" not in finding.why
    assert "device_queue_stall" in found(pauses(25))
    for usual in (late(1), pauses(6)):
        assert "device_queue_stall" not in found(usual)


def test_a_wait_before_a_streams_first_work_is_for_what_the_trace_lacks():
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch(BMM, 0, 10, 600, 390, op=builder.op("aten::mm", 0, 20))
    finding = found(builder)["device_queue_stall"]
    assert finding.why.endswith("the first work of its stream in the trace")
    assert "launched before the trace began" in finding.do


def test_what_the_trace_is_of_comes_first():
    builder = copied(PINNED)
    builder.add("runtime", "cudaMalloc", 970, 30, correlation=-3)
    builder.add("runtime", "cudaMalloc", 1970, 30, correlation=-4)
    assert found(builder)["startup"].us_per_step == pytest.approx(20, abs=5)
    builder = copied(PINNED)
    builder.add("runtime", "cudaStreamBeginCapture", 1000, 5, correlation=-2)
    builder.add("runtime", "cudaStreamEndCapture", 2900, 5, correlation=-2)
    assert next(iter(found(builder))) == "graph_capture"
    builder.add("runtime", "cudaStreamBeginCapture", 2950, 5, correlation=-2)
    builder.add("runtime", "cudaStreamEndCapture", 2990, 5, correlation=-2)
    builder.add("python_function", "train.py(10): main", 0, 3000)
    assert set(found(builder)) == {"graph_capture"}  # nothing else is what the program does


def test_outlying_steps_are_named():
    builder = run(PRODUCT, steps=5)  # until 2600
    for number, begin, us in ((5, 2600, 5000), (6, 7600, 6000)):
        builder.step(number, begin, us)
        builder.launch(BMM, begin + 10, 5, begin + us - 1000, 500, op=builder.op("aten::mm", begin + 5, 20))
        if number == 5:
            one = found(builder)["outlier_steps"]
            assert one.why.startswith("step 5 takes") and "leave it out" in one.why
            assert one.what == "a step that takes far longer than the others"
            assert times(builder, "outlier_steps") == [(2600, 7600)]
    both = found(builder)["outlier_steps"]
    assert both.why.startswith("steps 5, 6; the longest, step 6, takes") and "leave them out" in both.why
    assert both.what == "steps that take far longer than the others"
    assert "outlier_steps" not in found(run(PRODUCT, steps=6))


# Findings and the advice of the same cost.


def python(builder, begin):
    builder.add("python_function", "train.py(10): main", begin + 1, 900)


def loading(builder, begin):
    python(builder, begin)
    builder.loading(begin + 1, 900)


@pytest.mark.parametrize(
    ("name", "cost", "builder", "gain"),
    [
        ("blocking_copies", "pinned_memory", copied(PAGEABLE), 1000 / 886),
        ("many_small_launches", "cuda_graphs", launched(100, 3, 30, "aten::mm"), 30 / 4.5),
        ("exposed_collectives", "overlap_communication",
         run(PRODUCT, (REDUCE, 300, "nccl:all_reduce"), waits=True), 820 / 520),
        ("unfused_optimizer", "fused_optimizer",
         run(*[(ADD, 4, "aten::add_")] * 60, (BMM, 100, "aten::mm"), inside=("Optimizer.step#SGD",)),
         360 / (360 - 126)),  # the CPU's time in it
        ("host_python", "host_python", run((BMM, 100, "aten::mm"), before=900, more=python, waits=True), 1020 / 110),
        ("host_python", "dataloader_workers",
         run((BMM, 100, "aten::mm"), before=900, more=loading, waits=True), 1020 / 120),
    ],
)  # fmt: skip
def test_a_finding_gains_what_the_advice_to_do_the_same_gains(name, cost, builder, gain):
    advised = advise(analyzed(builder))
    [finding] = [finding for finding in advised.findings if finding.id == name]
    [same] = [item for item in advised.costs if item.id == cost]
    assert finding.estimated_gain == same.estimated_gain == pytest.approx(gain, rel=0.05)


def test_findings_are_in_the_json():
    [row] = [row for row in report(analyzed(run(*ATTENTION)))["findings"] if row["id"] == "unfused_attention"]
    assert {"id", "what", "why", "us_per_step", "do"} <= set(row)


def test_a_trace_of_a_cpu_has_none():
    builder = TraceBuilder(devices=())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 900)
    assert found(builder) == {}
