"""Each rule on a small trace that has what it looks for, and on the same one without."""

import json

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.catalogue import COSTS
from walkthrough.advice.gains import advise
from walkthrough.cli import main
from walkthrough.trace.analysis import analyze

IDS = {
    "unfused_attention", "misaligned_matmul", "fusable_elementwise", "layout_conversions", "unfused_optimizer",
    "host_python", "blocking_copies", "many_small_launches", "exposed_collectives", "device_queue_stall",
    "graph_capture", "startup", "outlier_steps", "precision_mix", "recomputation", "depthwise", "float64",
}  # fmt: skip
BMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 10, false, false>(...)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, MulFunctor<float> > >"


class Program:
    """Steps whose kernels follow one another in one stream, each launched long before by an operator of its own."""

    def __init__(self, steps=3):
        self.builder, self.at, self.steps = TraceBuilder(), 0.0, steps

    def run(self, *kernels, inside=(), before=0.0, waits=False, more=lambda builder, begin: None):
        """kernels: (name, µs, operator), the same in each step. inside: operators around all of a step's.

        before: µs of nothing before the first. waits: whether the CPU waits for the last one. more: adds other events.
        """
        for number in range(self.steps):
            begin = self.at
            end = begin + before + sum(us for _, us, _ in kernels) + 20
            self.builder.step(number, begin, end - begin)
            for name in inside:
                self.builder.op(name, begin + 1, before + len(kernels) * 2 + 4)
            kernel_at = begin + before + 10
            for index, (name, us, operator) in enumerate(kernels):
                call_at = begin + 2 + before + index * 2
                operator = {"name": operator} if isinstance(operator, str) else operator
                op = self.builder.op(operator["name"], call_at, 1.5)
                op["args"].update({key: value for key, value in operator.items() if key != "name"})
                self.builder.launch(name, call_at + 0.2, 1, kernel_at, us, op=op)
                kernel_at += us
            if waits:
                call_at = begin + before + 4 + len(kernels) * 2
                self.builder.add("runtime", "cudaStreamSynchronize", call_at, kernel_at - call_at, correlation=-2)
            more(self.builder, begin)
            self.at = end
        return self


@pytest.fixture
def found(tmp_path):
    """found(builder): the findings of a trace by their ids."""

    def find(builder):
        builder = getattr(builder, "builder", builder)
        analysis = analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))
        assert len({finding.id for finding in advise(analysis).findings}) == len(advise(analysis).findings)
        assert {finding.id for finding in advise(analysis).findings if not len(finding.when.start)} <= {"graph_capture"}
        find.origin = analysis.trace.origin
        return {finding.id: finding for finding in advise(analysis).findings}

    return find


def times(finding, found):
    """[(begin, end)] in µs of what the timeline marks."""
    edges = (finding.when.start + found.origin).tolist(), (finding.when.end + found.origin).tolist()
    return list(zip(*edges, strict=True))


def shaped(name, *shapes, dtype="c10::Half"):
    return {"name": name, "Input Dims": [list(shape) for shape in shapes], "Input type": [dtype] * len(shapes)}


QK = shaped("aten::bmm", (16, 512, 64), (16, 64, 512))
AV = shaped("aten::bmm", (16, 512, 512), (16, 512, 64))
ATTENTION = [(BMM, 300, QK), (MUL, 100, "aten::mul"), (SOFTMAX, 200, "aten::_softmax"), (BMM, 300, AV)]


def test_every_rule_has_a_fixed_id_and_every_id_a_rule():
    assert {cost.finding for cost in COSTS if cost.finding} == IDS
    assert all(cost.title or cost.finding for cost in COSTS)


def test_attention_in_parts_is_found_with_what_is_between_its_products(found):
    finding = found(Program().run(*ATTENTION, waits=True))["unfused_attention"]
    assert finding.us_per_step == pytest.approx(900)
    assert "1x per step" in finding.why
    assert "300 us of it softmax and elementwise" in finding.why
    assert "[16, 512, 64] @ [16, 64, 512]" in finding.why
    assert finding.estimated_gain == pytest.approx(920 / 620, rel=0.03)
    assert times(finding, found) == [(10, 910), (930, 1830), (1850, 2750)]


@pytest.mark.parametrize(
    "kernels",
    [
        [(BMM, 50, "aten::mm"), *ATTENTION[:3]],  # another layer follows
        [ATTENTION[0], ATTENTION[2], (BMM, 300, "aten::mm")],  # a layer before a classifier's softmax
        [ATTENTION[0], ("void cudnn::bn_fw_tr_1C11_kernel", 50, "aten::cudnn_batch_norm"), *ATTENTION[2:]],
    ],
    ids=["no second product", "no batched product", "something else between"],
)
def test_other_softmax_is_no_attention(found, kernels):
    assert "unfused_attention" not in found(Program().run(*kernels))


def test_sizes_that_are_no_multiple_of_16_bytes_are_found_by_shape_and_by_name(found):
    odd = shaped("aten::mm", (64, 512), (512, 1001))
    finding = found(Program().run((BMM, 500, odd), (BMM, 500, QK)))["misaligned_matmul"]
    assert finding.us_per_step == pytest.approx(500)
    assert "[64, 512] @ [512, 1001]" in finding.why
    named = Program().run((BMM.replace("tn", "align2_tn"), 400, "aten::mm"), (BMM, 500, "aten::mm"))
    assert found(named)["misaligned_matmul"].us_per_step == pytest.approx(400)


@pytest.mark.parametrize(
    "operator",
    [
        shaped("aten::mm", (64, 512), (512, 1000)),
        shaped("aten::mm", (64, 512), (512, 1001), dtype="float"),
        shaped("aten::mm", (64, 512), (512, 1)),
        {"name": "aten::mm", "Input Dims": "broken", "Input type": 5},
        {"name": "aten::mm", "Input Dims": [[1, None], {}], "Input type": ["c10::Half", "c10::Half"]},
    ],
    ids=["aligned", "float32", "a vector", "no shapes", "broken shapes"],
)
def test_sizes_that_do_not_matter_are_not_found(found, operator):
    assert "misaligned_matmul" not in found(Program().run((BMM, 500, operator)))


def test_odd_sizes_of_attention_are_for_fused_attention_to_solve(found):
    odd = BMM.replace("tn", "align1_tn")
    parts = [(odd, 300, QK), (MUL, 100, "aten::mul"), (SOFTMAX, 200, "aten::_softmax"), (odd, 300, AV)]
    all_found = found(Program().run(*parts))
    assert "misaligned_matmul" not in all_found
    assert "600 us of it products of rows that are not aligned" in all_found["unfused_attention"].why
    assert "not aligned" not in found(Program().run(*ATTENTION))["unfused_attention"].why
    other = found(Program().run(*parts, (odd, 500, "aten::mm")))["misaligned_matmul"]
    assert other.us_per_step == pytest.approx(500)
    assert other.why.startswith("1 kernel per step, built for rows")


def test_a_chain_of_elementwise_kernels_could_be_its_longest(found):
    chain = [(ADD, 100, "aten::add"), (MUL, 300, "aten::mul"), (ADD, 200, "aten::add")]
    finding = found(Program().run((BMM, 500, "aten::mm"), *chain, (BMM, 500, "aten::mm")))["fusable_elementwise"]
    assert finding.us_per_step == pytest.approx(300)
    assert finding.why.startswith("of 3 elementwise kernels and reductions")
    assert times(finding, found)[:2] == [(510, 610), (910, 1110)]  # the longest, between them, would stay
    alone = Program().run((BMM, 500, "aten::mm"), chain[0], (BMM, 500, "aten::mm"), chain[1], (BMM, 5, "aten::mm"))
    assert "fusable_elementwise" not in found(alone)
    copying = ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", 50, "aten::cat")
    beside = found(Program().run((BMM, 500, "aten::mm"), copying, *chain, copying))["fusable_elementwise"]
    assert beside.why.startswith("of 3 elementwise kernels")  # what is beside a chain is not of it
    stepping = Program().run((BMM, 5, "aten::mm"), *chain, inside=("Optimizer.step#SGD.step",))
    assert "fusable_elementwise" not in found(stepping)  # compiling the model leaves them


def test_what_inductor_fused_is_not_to_be_fused(found):
    fused = [("triton_poi_fused_add_0", 100, "aten::add"), ("triton_poi_fused_mul_1", 300, "aten::mul")]
    assert "fusable_elementwise" not in found(Program().run(*fused))


def test_layout_kernels_and_copies_by_contiguous_are_found(found):
    own = ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>", 100)
    copy = ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda> >", 50)
    rest = ("ampere_sgemm_128x64_nn", 500, "aten::mm")
    finding = found(Program().run((*own, "aten::conv2d"), rest))["layout_conversions"]
    assert finding.us_per_step == pytest.approx(100)

    program = Program()
    program.run((*copy, "aten::copy_"), rest, inside=("aten::contiguous", "aten::clone"))
    once = found(Program().run((*own, "aten::copy_"), rest, inside=("aten::contiguous",)))["layout_conversions"]
    assert once.us_per_step == pytest.approx(100)  # a conversion inside .contiguous() is one of both
    assert "copies by" not in once.why
    permuting = found(program)["layout_conversions"]
    assert permuting.us_per_step == pytest.approx(50)
    assert "channels_last" not in permuting.do
    assert "layout_conversions" not in found(Program().run((*copy, "aten::copy_"), rest))


def test_fills_and_casts_beside_miopens_convolutions_are_found(found):
    rest = ("ampere_sgemm_128x64_nn", 500, "aten::mm")
    filling = ("SubTensorOpWithScalar1d", 100, "aten::miopen_convolution")
    finding = found(Program().run(filling, filling, rest))["layout_conversions"]
    assert finding.us_per_step == pytest.approx(200)
    assert finding.why.startswith("2 fills and casts by MIOpen per step, 29% of the kernels' time")
    assert "benchmark" in finding.do


def test_copies_within_the_gpu_are_found_where_no_kernel_runs(found):
    def copying(builder, begin, times=(100, 600), inside="CompiledFunction"):  # the second one runs beside the kernel
        builder.op(inside, begin + 1, 120)
        for at in times:
            op = builder.op("aten::copy_", begin + at / 10, 4)
            builder.copy(
                begin + at / 10 + 1, 2, begin + at, 50, 2_000_000, name="Memcpy DtoD (Device -> Device)", op=op
            )

    finding = found(Program().run((BMM, 500, "aten::mm"), before=400, more=copying))["layout_conversions"]
    assert finding.us_per_step == pytest.approx(50)
    assert "2 copies within the GPU per step, 4 MB, 50 us with no kernel running" in finding.why
    assert finding.why.endswith("inside CompiledFunction")
    assert "CUDA graph" in finding.do

    def of_ddp(builder, begin):
        copying(builder, begin, inside="torch.distributed.ddp.reducer::copy_bucket_to_grad")

    finding = found(Program().run((BMM, 500, "aten::mm"), before=400, more=of_ddp))["layout_conversions"]
    assert "gradient_as_bucket_view=True" in finding.do
    late = Program().run((BMM, 500, "aten::mm"), more=lambda builder, begin: copying(builder, begin, (100, 200)))
    assert "layout_conversions" not in found(late)


def test_matrix_products_in_several_precisions_are_found(found):
    full, half = ("ampere_sgemm_128x64_nn", 300, "aten::mm"), (BMM, 700, "aten::mm")
    finding = found(Program().run(full, half))["precision_mix"]
    assert "fp32 30%" in finding.why
    assert "16 bits 70%" in finding.why
    assert finding.us_per_step == pytest.approx(300)
    assert "precision_mix" not in found(Program().run(half, half))
    for part in ("void splitKreduce_kernel<float, float, float>", "void reduce_wgrad_nchw_helper<float, float>"):
        assert "precision_mix" not in found(Program().run((part, 300, "aten::mm"), half))  # a sum, no product
    assert "precision_mix" not in found(Program().run(full, full))


@pytest.mark.parametrize(
    ("device", "tf32"),
    [
        ({"name": "Tesla V100", "computeMajor": 7}, False),
        ({"name": "NVIDIA A100", "computeMajor": 8}, True),
        ({"name": "AMD Instinct MI210", "computeMajor": 9, "warpSize": 64}, False),
        ({"name": "", "computeMajor": "broken"}, False),
    ],
)
def test_tf32_is_for_gpus_that_have_it(found, device, tf32):
    full, half = "ampere_sgemm_128x64_nn", BMM
    if "AMD" in device["name"]:
        full, half = "Cijk_Ailk_Bljk_SB_MT64x16x32_MI16x16x1", "Cijk_Ailk_Bljk_BBS_BH_bf16_MT64x16x32_MI16x16x1"
    program = Program().run((full, 300, "aten::mm"), (half, 700, "aten::mm"))
    program.builder.header["deviceProperties"] = [{"id": 0, **device}]
    finding = found(program)["precision_mix"]
    assert "autocast" in finding.do
    assert ("TF32" in finding.do) is tf32


def test_forward_operators_inside_the_backward_pass_are_recomputation(found):
    conv = ("void cudnn::cnn::implicit_convolve_sgemm<float>", 300, "aten::convolution")
    assert "recomputation" not in found(Program().run(conv, conv))
    inside = ("autograd::engine::evaluate_function: ConvolutionBackward0",)
    finding = found(Program().run(conv, conv, inside=inside))["recomputation"]
    assert finding.us_per_step == pytest.approx(600)

    def beside(builder, begin):
        builder.op(inside[0], begin + 1, 600, tid=2)

    assert "recomputation" not in found(Program().run(conv, conv, more=beside))  # on a thread of its own


def test_depthwise_convolutions_are_found(found):
    name = "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float, float>"
    depthwise = ("void conv2d_c1_k1_nhwc_kernel<float, 3, 3>", 200, "aten::conv2d")
    assert found(Program().run((name, 100, "aten::conv2d"), depthwise))["depthwise"].us_per_step == pytest.approx(200)
    mamba = ("void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true> >", 300, "aten::conv1d")
    assert found(Program().run((name, 100, "aten::conv2d"), mamba))["depthwise"].us_per_step == pytest.approx(300)
    assert "depthwise" not in found(Program().run((name, 100, "aten::conv2d")))


def test_an_optimizer_of_many_kernels_is_found_unless_it_is_fused(found):
    def optimizer(count, *names):
        program = Program()
        program.run(
            *[(ADD, 4, "aten::add_")] * count, (BMM, 100, "aten::mm"), inside=("Optimizer.step#SGD.step", *names)
        )
        return program

    finding = found(optimizer(60))["unfused_optimizer"]
    assert "61 kernels" not in finding.why  # a matrix product is no part of an optimizer
    assert "60 kernels per step" in finding.why
    assert finding.us_per_step >= 240
    assert "unfused_optimizer" not in found(optimizer(10))

    def beside(us):
        """Short kernels, so that only the CPU's time counts, of a step whose other kernel takes so many us."""
        program = Program().run(*[(ADD, 0.1, "aten::add_")] * 60, (BMM, us, "aten::mm"), inside=("Optimizer.step#SGD",))
        return found(program)

    assert "98% of all" in beside(1000)["unfused_optimizer"].why
    assert "unfused_optimizer" not in beside(10_000)
    assert "unfused_optimizer" not in found(optimizer(60, "aten::_fused_sgd_"))


def test_the_innermost_python_function_while_the_gpu_is_idle_is_named(found):
    def functions(builder, begin):
        builder.add("python_function", "train.py(10): main", begin + 1, 940)
        builder.add("python_function", "data.py(77): decode", begin + 100, 700)
        builder.add("python_function", "<built-in method f of object object at 0x7f00aa>", begin + 850, 50)

    finding = found(Program().run((BMM, 100, "aten::mm"), before=900, more=functions))["host_python"]
    assert finding.us_per_step == pytest.approx(912, abs=15)
    assert "innermost functions: data.py(77): decode 700 us; train.py(10): main" in finding.why
    assert "<built-in method f of object> 50 us" in finding.why
    assert "host_python" not in found(Program().run((BMM, 100, "aten::mm"), before=900))  # no stacks


def test_a_trace_without_launches_or_a_function_in_the_idle_time_names_none(found):
    builder = TraceBuilder()
    builder.step(1, 200, 200)
    for begin in (10, 210):
        calling, _ = builder.launch(BMM, begin, 5, begin, 100)
        builder.events.remove(calling)
    builder.add("python_function", "train.py(10): main", 500, 5)
    assert "host_python" not in found(builder)


def test_without_stacks_operators_tell_what_fills_the_longest_time_without_a_kernel(found):
    def before(name, us, wrapper="DistributedDataParallel.forward", thread=1):
        def add(builder, begin):
            builder.add("annotation", wrapper, begin + 1, 2000)
            builder.op(name, begin + 2, us, tid=thread)
            builder.op("aten::as_strided", begin + 3, us / 2, tid=thread)

        return found(Program().run((BMM, 300, "aten::mm"), before=2900, more=add)).get("host_python")

    finding = before("aten::unflatten_dense_tensors", 1700)
    assert finding.cost == "cpu_operators"
    assert finding.us_per_step == pytest.approx(1700, abs=15)
    assert "the CPU runs aten::unflatten_dense_tensors 1.7 ms" in finding.why
    assert "as_strided" not in finding.why
    assert "forward_sync_buffers=False" in finding.do
    assert "forward_sync_buffers" not in before("aten::unflatten_dense_tensors", 1700, wrapper="## forward ##").do
    assert before("aten::nonzero", 30) is None  # most of the time is nobody's
    assert before("aten::nonzero", 1700, thread=2) is None  # not the thread that launches


def copied(name, call="cudaMemcpyAsync"):
    builder = TraceBuilder()
    for number in range(3):
        begin = number * 1000
        builder.step(number, begin, 1000)
        calling, _ = builder.copy(begin, 300, begin + 10, 280, 1_000_000, name=name)
        calling["name"] = call
        builder.launch("k", begin + 350, 5, begin + 360, 600, op=builder.op("aten::mm", begin + 340, 20))
    return builder


def test_copies_that_the_cpu_waits_for_are_found(found):
    finding = found(copied("Memcpy HtoD (Pageable -> Device)"))["blocking_copies"]
    assert finding.us_per_step == pytest.approx(300, abs=10)
    assert finding.why.startswith("1 copy per step, 1.00 MB from pageable memory")
    assert times(finding, found) == [(0, 300), (1000, 1300), (2000, 2300)]
    assert "blocking_copies" in found(copied("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy"))
    assert "blocking_copies" not in found(copied("Memcpy HtoD (Pinned -> Device)"))


def launched(count, us, every, operator="aten::add"):
    builder = TraceBuilder()
    for number in range(3):
        begin = number * count * every
        builder.step(number, begin, count * every)
        for index in range(count):
            at = begin + index * every
            builder.launch("k", at + every - 8, 5, at + every - 1, us, op=builder.op(operator, at, every - 2))
    return builder


def test_what_is_counted_per_step_is_counted_in_the_steps(found):
    def counted(add):
        """What `add(builder, begin, times)` adds, ten times before the steps, and twice in each of three."""
        builder = TraceBuilder()
        add(builder, -50_000, 10)
        for number in range(3):
            builder.step(number, number * 1000, 1000)
            add(builder, number * 1000, 2)
        return {finding.id: finding.why for finding in found(builder).values()}

    def copies(builder, begin, times):
        for at in range(times):
            builder.copy(begin + at * 400, 300, begin + at * 400 + 10, 280, 1_000_000)
            builder.launch("k", begin + at * 400 + 310, 5, begin + at * 400 + 320, 60)

    def attention(builder, begin, times):
        for at in range(times):
            for index, (name, _, operator) in enumerate((ATTENTION[0], ATTENTION[2], ATTENTION[3])):
                start = begin + at * 300 + index * 100
                op = builder.op(operator["name"] if isinstance(operator, dict) else operator, start, 50)
                builder.launch(name, start + 5, 5, start + 15, 80, op=op)

    def again(builder, begin, times):
        for at in range(times):
            builder.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", begin + at * 300, 290)
            op = builder.op("aten::linear", begin + at * 300 + 10, 100)
            builder.launch("ampere_sgemm", begin + at * 300 + 20, 5, begin + at * 300 + 30, 200, op=op)

    assert counted(copies)["blocking_copies"].startswith("2 copies per step, 2.00 MB")
    assert counted(attention)["unfused_attention"].startswith("2x per step")
    assert counted(again)["recomputation"].startswith("2 forward operators per step")


def test_many_small_launches_are_found(found):
    finding = found(launched(100, 3, 30))["many_small_launches"]
    assert "bigger batch" not in finding.do  # inference: each answer would take longer
    assert "100 kernels per step, 100% of them shorter" in finding.why
    assert "many_small_launches" not in found(launched(100, 29, 30))  # as long as their launches
    assert "many_small_launches" not in found(launched(10, 3, 30))  # few


def test_collectives_beside_nothing_are_found(found):
    collective = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 300, "nccl:all_reduce")
    finding = found(Program().run((BMM, 500, "aten::mm"), collective))["exposed_collectives"]
    assert finding.us_per_step == pytest.approx(300)
    assert times(finding, found)[0] == (510, 810)
    assert "exposed_collectives" not in found(Program().run((BMM, 500, "aten::mm")))
    assert "1 collective per step, 300 us on average" in finding.why
    assert "bucket" not in finding.do  # gradients have buckets, inference has none
    training = Program().run((BMM, 500, "aten::mm"), collective, inside=("AddmmBackward0",))
    assert "bucket_cap_mb" in found(training)["exposed_collectives"].do
    exchange = ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 400, "nccl:all_to_all")
    training = Program().run((BMM, 500, "aten::mm"), collective, exchange, inside=("AddmmBackward0",))
    assert "bucket" not in found(training)["exposed_collectives"].do


def test_loading_and_preparing_input_is_for_worker_processes(found):
    def doing(name, loader=None):
        def more(builder, begin):
            builder.add("python_function", name, begin + 10, 880)
            if loader:
                builder.loading(begin + 10, 880, loader)

        return found(Program().run((BMM, 100, "aten::mm"), before=900, more=more))["host_python"]

    assert doing("train.py(7): augment").cost == "host_python"
    assert doing("transformers/image_transforms.py(390): normalize").do.startswith("preparing input is for a DataL")
    loading = doing("train.py(7): augment", "_SingleProcessDataLoaderIter")
    assert loading.cost == "dataloader_workers"
    assert loading.why.startswith(
        "each step waits 880 us for the main process to load its batch; of that the innermost"
    )
    assert "train.py(7): augment 100%" in loading.why
    assert "num_workers" in loading.do
    assert doing("train.py(7): augment", "_MultiProcessingDataLoaderIter").do.startswith("more worker processes")


def test_compiled_code_without_a_fused_kernel_is_told_apart(found):
    def advised(*kernels):
        compiled = found(Program().run(*kernels, inside=("CompiledFunction",)))
        return compiled["fusable_elementwise"].do

    chain = [(BMM, 100, "aten::mm"), *[(MUL, 100, "aten::mul")] * 4]
    assert "backend inductor" in advised(*chain)
    assert "graph breaks" in advised(*chain, ("triton_poi_fused_add_0", 100, "triton_poi_fused_add_0"))


def test_kernels_shorter_than_the_clocks_tick_count(found):
    finding = found(launched(100, 0, 30)).get("many_small_launches")
    assert finding is not None
    assert "100 kernels per step, 100% of them shorter" in finding.why


def test_many_short_collectives_are_to_be_joined(found):
    def reduced(us, count):
        reduce = ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", us, "nccl:all_reduce")
        program = Program().run((BMM, 500, "aten::mm"), *[reduce] * count, inside=("AddmmBackward0",))
        return found(program)["exposed_collectives"].do

    assert "join them in buckets, as DDP does with gradients: one takes 100 us" in reduced(100, 60)
    assert "join" not in reduced(1000, 60)
    assert "join" not in reduced(100, 5)


def test_a_gpu_that_waits_although_work_is_launched_is_found(found):
    def late(by):
        builder = TraceBuilder()
        for number in range(3):
            begin = number * 1000
            builder.step(number, begin, 1000)
            for at, start in ((10, 20), (40, 120 + by)):
                op = builder.op("aten::mm", begin + at - 5, 20)
                builder.launch("k", begin + at, 5, begin + start, 100, op=op)
        return builder

    finding = found(late(500))["device_queue_stall"]
    assert finding.us_per_step == pytest.approx(500, abs=25)
    assert times(finding, found)[0] == (120, 620)
    assert "device_queue_stall" not in found(late(1))
    assert "the longest time is" in finding.why
    assert "first work" not in finding.why


def test_a_wait_before_a_streams_first_work_is_for_what_the_trace_lacks(found):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch(BMM, 0, 10, 600, 390, op=builder.op("aten::mm", 0, 20))
    finding = found(builder)["device_queue_stall"]
    assert finding.why.endswith("the first work of its stream in the trace")
    assert "launched before the trace began" in finding.do


def test_the_usual_pauses_between_kernels_are_no_wait(found):
    def with_pauses(us):
        builder = TraceBuilder()
        builder.step(1, 0, 3000)
        for index in range(60):
            builder.launch("k", index * 10, 5, 20 + index * (20 + us), 20)
        return found(builder)

    assert "device_queue_stall" not in with_pauses(6)
    assert "device_queue_stall" in with_pauses(25)


def test_what_the_trace_is_of_comes_first(found):
    builder = copied("Memcpy HtoD (Pinned -> Device)")
    builder.add("runtime", "cudaStreamBeginCapture", 1000, 5, correlation=-2)
    builder.add("runtime", "cudaStreamEndCapture", 2900, 5, correlation=-2)
    assert next(iter(found(builder))) == "graph_capture"
    builder.add("runtime", "cudaStreamBeginCapture", 2950, 5, correlation=-2)
    builder.add("runtime", "cudaStreamEndCapture", 2990, 5, correlation=-2)
    builder.add("python_function", "train.py(10): main", 0, 3000)
    assert set(found(builder)) == {"graph_capture"}  # nothing else is what the program does

    builder = copied("Memcpy HtoD (Pinned -> Device)")
    builder.add("runtime", "cudaMalloc", 970, 30, correlation=-3)
    builder.add("runtime", "cudaMalloc", 1970, 30, correlation=-4)
    assert found(builder)["startup"].us_per_step == pytest.approx(20, abs=5)


def test_outlying_steps_are_named(found):
    program = Program(steps=5)
    program.run((BMM, 500, "aten::mm"))
    builder = program.builder
    builder.step(5, program.at, 5000)
    builder.launch(BMM, program.at + 10, 5, program.at + 4000, 500, op=builder.op("aten::mm", program.at + 5, 20))
    finding = found(builder)["outlier_steps"]
    assert finding.why.startswith("step 5 takes")
    assert times(finding, found) == [(program.at, program.at + 5000)]
    builder.step(6, program.at + 5000, 6000)
    builder.launch(
        BMM, program.at + 5010, 5, program.at + 10_000, 500, op=builder.op("aten::mm", program.at + 5005, 20)
    )
    assert found(builder)["outlier_steps"].why.startswith("steps 5, 6; the longest, step 6, takes")
    assert "outlier_steps" not in found(Program(steps=6).run((BMM, 500, "aten::mm")))


COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def python(builder, begin):
    builder.add("python_function", "train.py(10): main", begin + 1, 900)


def loading(builder, begin):
    python(builder, begin)
    builder.loading(begin + 1, 900)


@pytest.mark.parametrize(
    ("name", "advice", "builder", "gain"),
    [
        ("blocking_copies", "05_pinned_memory", copied("Memcpy HtoD (Pageable -> Device)"), 1000 / 886),
        ("many_small_launches", "15_cuda_graphs", launched(100, 3, 30, "aten::mm"), 30 / 4.5),
        (
            "exposed_collectives",
            "Overlap communication",
            Program().run((BMM, 500, "aten::mm"), (COLLECTIVE, 300, "nccl:all_reduce"), waits=True),
            820 / 520,
        ),
        (
            "unfused_optimizer",
            "11_fused_optimizer",
            Program().run(*[(ADD, 4, "aten::add_")] * 60, (BMM, 100, "aten::mm"), inside=("Optimizer.step#SGD",)),
            360 / (360 - 126),  # the CPU's time in it
        ),
        (
            "host_python",
            "Reduce Python overhead",
            Program().run((BMM, 100, "aten::mm"), before=900, more=python, waits=True),
            1020 / 110,
        ),
        (
            "host_python",
            "04_multiprocess_loading",
            Program().run((BMM, 100, "aten::mm"), before=900, more=loading, waits=True),
            1020 / 120,
        ),
    ],
)
def test_a_finding_gains_what_the_advice_to_do_the_same_gains(tmp_path, name, advice, builder, gain):
    analysis = analyze(getattr(builder, "builder", builder).write(tmp_path / "made.pt.trace.json"))
    [finding] = [finding for finding in advise(analysis).findings if finding.id == name]
    [same] = [item for item in advise(analysis).costs if advice in (item.step, item.title)]
    assert finding.estimated_gain == same.estimated_gain == pytest.approx(gain, rel=0.05)


def test_a_copy_from_the_gpu_is_a_synchronisation(found):
    assert found(copied("Memcpy DtoH (Device -> Pinned)", "cudaMemcpy"))["blocking_copies"].cost == "no_hidden_syncs"


def test_findings_are_in_the_json_and_the_text(capsys, tmp_path):
    path = Program().run(*ATTENTION, waits=True).builder.write(tmp_path / "made.pt.trace.json.gz")
    with pytest.raises(SystemExit):
        main(["explain", str(path), "--json"])
    [finding] = [row for row in json.loads(capsys.readouterr().out)["findings"] if row["id"] == "unfused_attention"]
    assert {"id", "what", "why", "us_per_step", "do"} <= set(finding)
    with pytest.raises(SystemExit):
        main(["explain", str(path), "--all"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Fuse attention (scaled_dot_product_attention)" in text
    assert f"{finding['why'][0].upper()}{finding['why'][1:]}." in text  # with the advice of the same cost
    assert "attention in separate kernels" not in text  # nothing is said twice


def test_a_trace_of_a_cpu_has_none(found):
    builder = TraceBuilder(devices=())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 900)
    assert found(builder) == {}
