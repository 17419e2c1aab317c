"""Kernel names and what such a kernel does, in which precision, on which units: `kernel_names.tsv`.

The names are as the libraries give them, most from public traces, cut where arguments follow: those of AMD's GPUs and
of Blackwell from the traces of TraceLens (MI210, MI300, B200). Whether one uses Tensor Cores, or AMD's matrix cores, is
from the name itself, its library's sources or NVIDIA's lists; none was checked with hardware counters. "-": not stated.
"""

import csv
from pathlib import Path

import pytest

from walkthrough.trace import kernel_names as tell

with Path(__file__).with_name("kernel_names.tsv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


COLLECTIVES = {"collective", "exchange"}


def told(column):
    """{name: value} of the names of which the table states that."""
    return {row["name"]: row[column] for row in ROWS if row[column] != "-"}


def test_a_kernels_kind_is_told_by_its_name():
    of = told("kind")
    assert {name: "exchange" if tell.is_exchange(name) else tell.kind(name) for name in of} == of
    assert {name for name in of if tell.is_collective(name)} == {name for name in of if of[name] in COLLECTIVES}
    assert all(tell.kind(name) == "collective" for name in of if of[name] == "exchange")
    assert set(of.values()) == {*tell.KINDS, *COLLECTIVES}


def test_a_name_tells_whether_a_kernel_uses_tensor_cores_or_leaves_it_open():
    of, words = told("Tensor Cores"), {True: "yes", False: "no", None: "?"}
    assert {name: words[tell.uses_tensor_cores(name)] for name in of} == of
    assert [name for name in of if of[name] == "?" and tell.is_ordinary(name)] == []


def test_a_kernel_that_computes_in_float64_is_recognised_and_a_parameter_of_type_double_makes_none():
    of = told("float64")
    assert {name: "yes" if tell.is_float64(name) else "no" for name in of} == of


def test_the_end_of_an_endless_name_decides_nothing():
    assert tell.uses_tensor_cores("void gemm<" + "a" * 1000 + "16816")
    assert tell.uses_tensor_cores("void gemm<" + "a" * 5000 + "16816") is None


@pytest.mark.parametrize("name", ["triton_red_fused__log_softmax_nll_loss_forward_1", "triton__0d1d2d3de", "triton_"])
def test_a_kernel_of_inductor_is_compiled(name):
    assert tell.is_compiled(name) and not tell.is_compiled("somebodys_" + name)


FUNCTOR = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
OF_ANY = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{FUNCTOR} >(...)>(int)"
COPYING = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"


@pytest.mark.parametrize(
    ("name", "width", "begin", "end"),
    [
        ("volta_sgemm", 40, "volta_sgemm", "volta_sgemm"),
        ("void at::native::some_kernel<" + 50 * "float, " + "int>(char*)", 40, "some_kernel<float", "int>(char*)"),
        (OF_ANY, 54, "elementwise_kernel<…MulFunctor<float>…", ""),  # its function is kept
        (COPYING, 60, "unrolled_elementwise_kernel<…direct_copy_kernel_cuda…", ""),
        (OF_ANY, 20, "", ""),  # where there is no room for that, begin and end as ever
    ],
)
def test_a_long_name_is_shortened_to_its_width(name, width, begin, end):
    short = tell.short_name(name, width)
    assert len(short) == min(width, len(name))
    assert short.startswith(begin) and short.endswith(end)
