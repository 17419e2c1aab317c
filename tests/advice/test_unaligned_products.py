"""Matrix products with unaligned sizes: by the kernels' names, and by the shapes of the two factors."""

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.kernel_costs import misaligned_matmul
from walkthrough.trace.analysis import analyze

HALF = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn"
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>"


@pytest.fixture
def found(tmp_path):
    """found(kernel, operator, shapes, dtype): the finding of three steps with such a product of 500 µs each."""

    def find(kernel, operator="aten::mm", shapes=()):
        builder = TraceBuilder()
        for begin in (0, 1000, 2000):
            builder.step(begin // 1000, begin, 1000)
            op = builder.op(operator, begin + 10, 100)
            if shapes:
                op["args"] |= {
                    "Input Dims": list(shapes),
                    "Input type": ["c10::Half" if shape else "Scalar" for shape in shapes],
                }
            builder.launch(kernel, begin + 20, 5, begin + 100, 500, op=op)
        return misaligned_matmul(analyze(builder.write(tmp_path / "made.pt.trace.json.gz")))

    return find


@pytest.mark.parametrize("kernel", [SIMT, "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>"])
def test_kernels_that_always_load_one_element_are_no_evidence(found, kernel):
    assert found(kernel) is None
    assert found(kernel.replace("simt_sgemm", "tensorop_s1688gemm").replace("d884", "s1688")) is not None


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        ("aten::mm", ([64, 512], [512, 1001])),
        ("aten::mm", ([64, 512], [512, 1001], [64, 1001])),  # out=
        ("aten::addmm", ([1001], [64, 512], [512, 1001], [], [])),
        ("aten::addmm", ([64, 1001], [64, 512], [512, 1001], [], [], [64, 1001])),  # a bias of two dimensions, out=
        ("aten::_addmm_activation", ([1001], [64, 512], [512, 1001], [], [])),
    ],
)
def test_the_two_factors_are_named_whatever_other_inputs_there_are(found, operator, shapes):
    assert "(mostly [64, 512] @ [512, 1001])" in found(HALF, operator, shapes).why


def test_the_factors_of_a_batch_come_after_its_bias(found):
    shapes = [16, 64, 33], [16, 64, 512], [16, 512, 33], [], []
    assert "(mostly [16, 64, 512] @ [16, 512, 33])" in found(HALF, "aten::baddbmm", shapes).why
