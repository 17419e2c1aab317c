"""Each rule on a small trace that has what it looks for, and on the same one without."""

import pytest
from pytest import approx
from support.trace_builder import TraceBuilder, analyzed, one_step, repeated

from walkthrough.advice.gains import advise

BMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
SGEMM = "ampere_sgemm_128x64_nn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 10, false, false>(...)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, MulFunctor<float> > >"
NCHW = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
DIRECT = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda> >"
CONV = "void cudnn::cnn::implicit_convolve_sgemm<float>"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = (REDUCE, 300, "nccl:all_reduce")
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


# Kernels.


def test_attention_in_parts_is_found_with_what_is_between_its_products():
    program = run(*ATTENTION, waits=True)
    finding = found(program)["unfused_attention"]
    assert finding.us_per_step == approx(900)
    for said in ("1x per step", "300 us of it softmax", "(mostly [16, 512, 64] @ [16, 64, 512])"):
        assert said in finding.why
    assert "not aligned" not in finding.why
    assert finding.estimated_gain == approx(920 / 620, rel=0.03)
    assert times(program, "unfused_attention") == [(10, 910), (930, 1830), (1850, 2750)]


SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>"
D884 = "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>"
ALIGN1, ALIGN2 = BMM.replace("tn", "align1_tn"), BMM.replace("tn", "align2_tn")
ODD_ATTENTION = [(ALIGN1, 300, QK), *ATTENTION[1:3], (ALIGN1, 300, AV)]


@pytest.mark.parametrize(
    ("kernel", "operator", "shapes"),
    [
        (BMM, shaped("aten::mm", (64, 512), (512, 1001)), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::mm", (64, 512), (512, 1001), (64, 1001)), "[64, 512] @ [512, 1001]"),  # out=
        (BMM, shaped("aten::addmm", (1001,), (64, 512), (512, 1001), (), ()), "[64, 512] @ [512, 1001]"),
        (BMM, shaped("aten::baddbmm", (2, 64, 33), (2, 64, 512), (2, 512, 33), (), ()), "[2, 64, 512] @ [2, 512, 33]"),
        (ALIGN2, shaped("aten::mm", (64, 512), ()), "[64, 512]"),  # of an unrecorded factor no shape is shown
        (ALIGN2, shaped("aten::mm", (64,), (64, 512)), "[64, 512]"),
        (SIMT.replace("simt_sgemm", "tensorop_s1688gemm"), "aten::mm", ""),
    ],
)
def test_sizes_that_are_no_multiple_of_16_bytes_are_found_by_shape_and_by_name(kernel, operator, shapes):
    finding = found(run((kernel, 400, operator), (BMM, 500, QK)))["misaligned_matmul"]
    assert finding.us_per_step == approx(400)
    assert (f" (mostly {shapes}): " in finding.why) if shapes else ("mostly" not in finding.why)


CHAIN = [(ADD, 100, "aten::add"), (MUL, 300, "aten::mul"), (ADD, 200, "aten::add")]
CAT = ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", 50, "aten::cat")
TRITON = [("triton_poi_fused_add_0", 100, "aten::add"), ("triton_poi_fused_mul_1", 300, "aten::mul")]
MIOPEN = "SubTensorOpWithScalar1d"
COPY = (DIRECT, 50, "aten::copy_")
SINGLE, HALF = (SGEMM, 300, "aten::mm"), (BMM, 700, "aten::mm")
GROUPED = "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float, float>"
DEPTHWISE = "void conv2d_c1_k1_nhwc_kernel<float, 3, 3>"
MAMBA = "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true> >"
CONVOLVE = (CONV, 300, "aten::convolution")


def backward(us, tid=1):
    """Part of a backward pass, around so many µs of the begin of a step."""
    return lambda builder, begin: builder.op(BACKWARD, begin + 1, us, tid)


FOUND = [  # (finding, program, µs per step, words of why it is one)
    ("unfused_attention", run(ATTENTION[0], *[ATTENTION[1]] * 8, *ATTENTION[2:]), 1600, "1.0 ms of it softmax"),
    ("unfused_attention", run(*ODD_ATTENTION), 900, "600 us of it products of rows that are not aligned"),
    ("misaligned_matmul", run(*ODD_ATTENTION, (ALIGN1, 500, "aten::mm")), 500, "1 kernel per step, built for rows"),
    ("fusable_elementwise", run(PRODUCT, *CHAIN, PRODUCT), 300, "of 3 elementwise kernels and reductions"),
    ("fusable_elementwise", run(PRODUCT, CAT, *CHAIN, CAT), 300, "of 3 elementwise"),  # what is beside is not of it
    ("precision_mix", run(SINGLE, HALF), 300, f"fp32 30%, 16 bits 70% of the kernels' time; for example {SGEMM}"),
    ("depthwise", run((GROUPED, 100, "aten::conv2d"), (DEPTHWISE, 150, "x"), (MAMBA, 50, "x")), 200,
     "2 kernels per step, 67% of the kernels' time"),
    ("float64", run((D884, 190, "aten::mm"), (BMM, 710, "aten::mm")), 190,
     "1 kernel per step, 21% of the kernels' time; for example cutlass::Kernel<"),
    ("recomputation", run(CONVOLVE, CONVOLVE, inside=(BACKWARD,)), 600, "2 forward operators per step run inside"),
    ("recomputation", run(*[CONVOLVE] * 20, more=backward(2.5)), 300, "1 forward operator per step runs inside"),
    ("exposed_collectives", run(PRODUCT, ALL_REDUCE), 300,
     "1 collective per step, 300 us on average, 300 us in all"),
    ("exposed_collectives", run(*[(REDUCE, 10, "nccl:all_gather")] * 9, (REDUCE, 600, "nccl:all_gather"), PRODUCT), 690,
     "10 collectives per step, 69 us on average, 600 us the longest"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "program", "us", "why"), FOUND)
def test_what_stands_out_is_found_with_its_time(name, program, us, why):
    finding = found(program)[name]
    assert finding.us_per_step == approx(us)
    assert why in finding.why


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("unfused_attention", run((BMM, 50, "aten::mm"), *ATTENTION[:3])),  # no second product: another layer follows
        ("unfused_attention", run(ATTENTION[0], ATTENTION[2], (BMM, 300, "aten::mm"))),  # a classifier's softmax
        ("unfused_attention", run(
            ATTENTION[0], ("void cudnn::bn_fw_tr_1C11_kernel", 50, "aten::cudnn_batch_norm"), *ATTENTION[2:])),
        ("unfused_attention", run(ATTENTION[0], *[ATTENTION[1]] * 9, *ATTENTION[2:])),
        ("misaligned_matmul", run(*ODD_ATTENTION)),  # for fused attention to solve
        *(("misaligned_matmul", run((kernel, 500, operator))) for kernel, operator in (
            (SIMT, "aten::mm"),  # such kernels always load one element
            (D884, "aten::mm"),
            (BMM, shaped("aten::mm", (64, 512), (512, 1000))),
            (BMM, shaped("aten::mm", (64, 512), (512, 1001), dtype="float")),
            (BMM, shaped("aten::mm", (64, 512), (512, 1))),  # a vector
            (BMM, {"name": "aten::mm", "Input Dims": [[1, None], {}], "Input type": ["c10::Half", "c10::Half"]}),
        )),
        ("fusable_elementwise", run(PRODUCT, CHAIN[0], PRODUCT, CHAIN[1], PRODUCT)),
        ("fusable_elementwise", run(PRODUCT, *CHAIN, inside=("Optimizer.step#SGD.step",))),  # stays without a compiler
        ("fusable_elementwise", run(*TRITON)),
        ("layout_conversions", run(COPY, PRODUCT)),
        ("precision_mix", run(HALF, HALF)),
        ("precision_mix", run(SINGLE, SINGLE)),
        ("precision_mix", run(("void reduce_wgrad_nchw_helper<float, float>", 300, "aten::mm"), HALF)),
        ("recomputation", run(CONVOLVE, CONVOLVE, more=backward(600, tid=2))),  # on a thread of its own
        ("recomputation", run(*[CONVOLVE] * 21, more=backward(2.5))),
        ("exposed_collectives", run(PRODUCT)),
    ],
)  # fmt: skip
def test_what_is_like_it_is_not_found(name, program):
    assert name not in found(program)


def test_of_a_chain_the_longest_kernel_stays():
    marked = times(run(PRODUCT, *CHAIN, PRODUCT), "fusable_elementwise")
    assert marked[:2] == [(510, 610), (910, 1110)]


@pytest.mark.parametrize(
    ("kernels", "inside", "us", "do"),
    [
        ([(NCHW, 100, "aten::conv2d")], (), 100, ["keep one layout"]),
        ([(NCHW, 100, "aten::conv2d"), (CONV, 400, "aten::conv2d")], (), 100, ["torch.channels_last"]),
        ([COPY], ("aten::contiguous", "aten::clone"), 50, ["permute once"]),
        ([(NCHW, 100, "aten::copy_")], ("aten::contiguous",), 100, ["keep one layout"]),  # one of both
        ([(MIOPEN, 100, "aten::miopen_convolution")] * 2, (), 200, ["cudnn.benchmark"]),
        ([(MIOPEN, 25, "aten::x"), (NCHW, 100, "aten::conv2d")], (), 125, ["keep one layout", "cudnn.benchmark"]),
        ([(MIOPEN, 24, "aten::x"), (NCHW, 100, "aten::conv2d")], (), 124, ["keep one layout"]),  # not a fifth
    ],
)
def test_what_only_moves_elements_is_found_with_what_to_do_about_most_of_it(kernels, inside, us, do):
    finding = found(run(*kernels, PRODUCT, inside=inside))["layout_conversions"]
    assert finding.us_per_step == approx(us)
    parts = finding.do.split("; ")
    assert [word in part for word, part in zip(do, parts, strict=True)] == [True] * len(do)


def test_copies_within_the_gpu_are_found_where_no_kernel_runs():
    def copies(*at):
        def add(builder, begin):
            builder.op("CompiledFunction", begin + 1, 120)
            for copied in at:
                op = builder.op("aten::copy_", begin + copied / 10, 4)
                name = "Memcpy DtoD (Device -> Device)"
                builder.copy(begin + copied / 10 + 1, 2, begin + copied, 50, 2_000_000, name=name, op=op)

        return add

    finding = found(run(PRODUCT, before=400, more=copies(100, 600)))["layout_conversions"]  # one beside the kernel
    assert finding.us_per_step == approx(50)
    assert "2 copies within the GPU per step, 4 MB, 50 us with no kernel running" in finding.why
    assert finding.why.endswith("inside CompiledFunction") and "CUDA graph" in finding.do
    assert "layout_conversions" not in found(run(PRODUCT, more=copies(100, 200)))


@pytest.mark.parametrize(("major", "bf16", "tf32"), [(7, False, False), (8, True, True), ("broken", True, False)])
def test_bf16_and_tf32_are_for_gpus_that_have_them(major, bf16, tf32):
    program = run(SINGLE, HALF)
    program.header["deviceProperties"] = [{"id": 0, "name": "", "computeMajor": major}]
    do = found(program)["precision_mix"].do
    assert ("GradScaler" not in do, "TF32" in do) == (bf16, tf32)


def test_an_optimizer_of_many_kernels_is_found_unless_it_is_fused():
    def optimizer(count, *names, us=4, product=100, others=1):
        kernels = [*[(ADD, us, "aten::add_")] * count, (REDUCE, 5, "nccl:all_reduce")]
        kernels += [(BMM, product / others, "aten::mm")] * others
        return found(run(*kernels, inside=("Optimizer.step#SGD.step", *names))).get("unfused_optimizer")

    finding = optimizer(50)
    assert "50 kernels per step" in finding.why  # no products (as in Muon), and no collective
    assert 200 <= finding.us_per_step < 230
    # kernels that take hardly any time count where they are many, and take the CPU long
    assert "97% of all" in optimizer(60, us=0.1, product=1000).why
    assert "20% of all" in optimizer(60, us=0.1, product=1000, others=239).why
    assert optimizer(60, us=0.1, product=1000, others=260) is None
    assert optimizer(60, us=0.1, product=4000) is None
    assert optimizer(49) is None and optimizer(60, "aten::_fused_sgd_") is None


# The CPU.


def test_the_innermost_python_function_while_the_gpu_is_idle_is_named():
    def functions(builder, begin):
        builder.add("python_function", "train.py(10): main", begin + 1, 940)
        builder.add("python_function", "data.py(77): decode", begin + 100, 700)
        builder.add("python_function", "<built-in method f of object object at 0x7f00aa>", begin + 850, 50)

    finding = found(run((BMM, 100, "aten::mm"), before=900, more=functions))["host_python"]
    assert finding.us_per_step == approx(912, abs=15)
    assert "innermost functions: data.py(77): decode 700 us; train.py(10): main" in finding.why
    assert "<built-in method f of object> 50 us" in finding.why
    assert "host_python" not in found(run((BMM, 100, "aten::mm"), before=900))  # no stacks


def test_without_stacks_operators_tell_what_fills_the_longest_time_without_a_kernel():
    def before(name, us, thread=1, idle=2900):
        def add(builder, begin):
            builder.add("annotation", "DistributedDataParallel.forward", begin + 1, us + 10)
            builder.op(name, begin + 2, us, tid=thread)
            builder.op("aten::as_strided", begin + 3, us / 2, tid=thread)

        return found(run((BMM, 300, "aten::mm"), before=idle, more=add)).get("host_python")

    finding = before("aten::unflatten_dense_tensors", 1700)
    assert (finding.cost, finding.us_per_step) == ("cpu_operators", approx(1700, abs=15))
    assert "aten::unflatten_dense_tensors 1.7 ms" in finding.why and "as_strided" not in finding.why
    assert "forward_sync_buffers=False" in finding.do
    assert before("aten::nonzero", 155) is None  # not a twentieth of the step
    assert before("aten::nonzero", 170)
    assert before("aten::nonzero", 1700, thread=2) is None  # not the thread that launches
    assert before("aten::convolution", 2905) is None  # it launches the kernel, at last
    stretches = [before("aten::nonzero", 800, idle=us) for us in (970, 1030)]  # to call operators takes no ms
    assert [finding is not None for finding in stretches] == [False, True]


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
    assert (loading.cost, "waits 880 us for the main process" in loading.why) == ("dataloader_workers", True)
    assert "train.py(7): augment 100%" in loading.why
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
    assert (finding.cost, finding.us_per_step) == ("pinned_memory", approx(300, abs=10))
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


@pytest.mark.parametrize(
    ("count", "us", "many"),
    [(50, 0, True), (50, 9, True), (50, 10, False), (49, 3, False)],  # 0: shorter than the clock's tick
)
def test_many_launches_of_kernels_shorter_than_them_are_found(count, us, many):
    finding = found(launched(count, us, 30)).get("many_small_launches")
    assert (finding is not None) == many
    assert not finding or "50 kernels per step, 100% of them shorter" in finding.why


@pytest.mark.parametrize(
    ("name", "program", "counted"),
    [
        ("blocking_copies", copied(PAGEABLE), "1 copy per step, 1.00 MB"),
        ("unfused_attention", run(*ATTENTION), "1x per step"),
        ("many_small_launches", launched(100, 3, 30), "100 kernels per step"),
    ],
)
def test_what_is_counted_per_step_is_counted_in_the_steps(name, program, counted):
    """The first of three steps is not marked."""
    program.events = [event for event in program.events if event["name"] != "ProfilerStep#0"]
    assert counted in found(program)[name].why


# Waits of the GPU for other than the CPU, and steps.


TRAINING = ("AddmmBackward0",)
EXCHANGE = ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 400, "nccl:all_to_all")


@pytest.mark.parametrize(
    ("collectives", "inside", "do", "not_do"),
    [
        ([ALL_REDUCE], (), "", "bucket"),  # gradients have buckets, inference has none
        ([ALL_REDUCE], TRAINING, "bucket_cap_mb", "join"),
        ([ALL_REDUCE, EXCHANGE], TRAINING, "", "bucket"),
        ([(REDUCE, 249, "nccl:all_reduce")] * 50, TRAINING, "join them in buckets", "cap"),
        ([(REDUCE, 250, "nccl:all_reduce")] * 50, TRAINING, "", "join"),
        ([(REDUCE, 100, "nccl:all_reduce")] * 49, TRAINING, "", "join"),
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
    builder = one_step(3000)
    for index in range(60):
        builder.launch("k", index * 10, 5, 20 + index * (20 + us), 20)
    return builder


def test_a_gpu_that_waits_although_work_is_launched_is_found():
    finding = found(late(500))["device_queue_stall"]
    assert finding.us_per_step == approx(500, abs=25)
    assert times(late(500), "device_queue_stall")[0] == (120, 620)
    assert "the longest time is" in finding.why and "first work" not in finding.why
    waits = ["device_queue_stall" in found(builder) for builder in (pauses(10), late(1), pauses(9))]
    assert waits == [True, False, False]


def test_what_the_trace_is_of_comes_first():
    builder = copied(PINNED)
    for at in (970, 1970):
        builder.add("runtime", "cudaMalloc", at, 30, correlation=-at)
    assert found(builder)["startup"].us_per_step == approx(20, abs=5)
    builder = copied(PINNED)
    for begin, end in ((1000, 2900), (2950, 2990)):
        builder.add("runtime", "cudaStreamBeginCapture", begin, 5, correlation=-2)
        builder.add("runtime", "cudaStreamEndCapture", end, 5, correlation=-2)
    builder.add("python_function", "train.py(10): main", 0, 3000)
    assert set(found(builder)) == {"graph_capture"}  # nothing else is what the program does


def test_outlying_steps_are_named():
    builder = run(PRODUCT, steps=5)  # until 2600
    for number, begin, us in ((5, 2600, 5000), (6, 7600, 6000)):
        builder.step(number, begin, us)
        builder.launch(BMM, begin + 10, 5, begin + us - 1000, 500, op=builder.op("aten::mm", begin + 5, 20))
    finding = found(builder)["outlier_steps"]
    assert finding.why.startswith("steps 5, 6; the longest, step 6, takes 5.5 ms more")
    assert times(builder, "outlier_steps") == [(2600, 13_600)]
    assert finding.us_per_step == approx((4480 + 5480) / 7)


# Findings and the advice of the same cost.


@pytest.mark.parametrize(
    ("name", "cost", "builder", "gain"),
    [
        ("blocking_copies", "pinned_memory", copied(PAGEABLE), 1000 / 886),
        ("many_small_launches", "cuda_graphs", launched(100, 3, 30, "aten::mm"), 30 / 4.5),
        ("exposed_collectives", "overlap_communication", run(PRODUCT, ALL_REDUCE, waits=True), 820 / 520),
    ],
)  # fmt: skip
def test_a_finding_gains_what_the_advice_to_do_the_same_gains(name, cost, builder, gain):
    advised = advise(analyzed(builder))
    [finding] = [finding for finding in advised.findings if finding.id == name]
    [same] = [item for item in advised.costs if item.id == cost]
    assert finding.estimated_gain == same.estimated_gain == approx(gain, rel=0.05)
