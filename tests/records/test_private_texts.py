"""Of private texts no kind passes, wherever in a record it stands; a GPU's trace loses nothing that is read."""

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT, some_place
from support.recorded import EVENTS, MEDIANS, POINTS, STEPS, TRACE, a_result, edit, edit_trace
from support.results import make_limit
from support.trace_builder import TraceBuilder

from walkthrough.records import allowed, check
from walkthrough.results import privacy, result
from walkthrough.results.errors import InputError, printable
from walkthrough.results.events import scalars, write_events

LINES = (ROOT / "tests" / "records" / "private_texts.txt").read_text().splitlines()
PRIVATE = dict(line.replace("^[", "\x1b").split("\t") for line in LINES)


def a_gpu_trace():
    """Steps on a GPU with all that is read: copies, shapes, kernels of CUDA and of Triton, NCCL, a graph, stacks."""
    gpu = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132}
    builder = TraceBuilder(devices=[gpu], rank=0)
    for number in (1, 2):
        at = number * 2000
        builder.step(number, at, 1500)
        builder.loading(at, 50)
        builder.copy(at + 60, 10, at + 70, 40, 1_000_000, name="Memcpy HtoD (Pinned -> Device)")
        op = builder.op("aten::addmm", at + 120, 60)
        op["args"] |= {"Input Dims": [[10], [32, 64], []], "Input type": ["c10::BFloat16", "float", "Scalar"]}
        op["args"] |= {"Concrete Inputs": ["", "[1, 2]"]}
        more = {"grid": [8, 1, 1], "block": [128, 1, 1], "blocks per SM": 0.5, "est. achieved occupancy %": 40}
        name = (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >"
        )
        name += "(int, at::native::tanh_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const, -1)"
        builder.launch(name, at + 130, 10, at + 200, 300, op=op, **more)
        builder.launch("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", at + 150, 10, at + 520, 100, op=op, **more)
        region = builder.op("Torch-Compiled Region: 0/0", at + 200, 100)
        builder.launch("triton_poi_fused_add_relu_0", at + 210, 10, at + 630, 90, op=region)
        builder.launch("Memset (Device)", at + 320, 5, at + 730, 5, kind="set", call="cudaMemsetAsync", bytes=64)
        record = builder.op("record_param_comms", at + 330, 60)
        record["args"] |= {"In msg nelems": 2048, "dtype": "Float", "Collective name": "allreduce", "Group size": 2}
        builder.op("nccl:all_reduce", at + 331, 50, kind="annotation")
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        builder.launch(name, at + 340, 10, at + 740, 90, op=record)
        builder.launch("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", at + 400, 9, at + 840, 90, call="cudaGraphLaunch")
        builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", at + 420, 30)
        builder.op("Optimizer.step#SGD.step", at + 460, 30, kind="annotation")
        builder.add("runtime", "cudaDeviceSynchronize", at + 500, 900, correlation=-2)
        builder.memory(at + 130, 4096, total=8192, reserved=1 << 20, address=number)
    for name, args in (("thread_name", {"name": "thread 7 (python)"}), ("process_labels", {"labels": "CPU"})):
        builder.events.append({"ph": "M", "name": name, "ts": 0, "pid": 1, "tid": 2, "args": args})
    return builder


GPU_TRACE = a_gpu_trace().json | {"traceName": "00_baseline.1.pt.trace.json", "trace_id": "0" * 32}
FORMS = ("{}", "aten::{}", "void at::native::f<{}>(int)", "thread 7 ({})", "ProfilerStep#{}")


@settings(max_examples=500)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(PRIVATE)), st.sampled_from(FORMS), st.booleans())
def test_no_trace_with_a_private_text_anywhere_passes_and_record_leaves_it_out(chance, kind, form, as_key):
    trace, text = deepcopy(GPU_TRACE), form.format(PRIVATE[kind])
    inside, key = some_place(trace, chance)
    if as_key and isinstance(inside, dict):
        inside[text] = 1
    else:
        inside[key] = text
    kept, gone = allowed.kept(trace)
    assert gone
    assert text not in allowed.texts(kept)
    assert json.dumps(PRIVATE[kind])[1:-1] not in json.dumps(kept)


IN_A_RESULT = "device model data precision trace needs started step device_type".split()
IN_AN_ENVIRONMENT = "torch cuda driver python platform cpu git".split()
SENTENCES = ("{}", "the GPU lowered its clock ({})", "torch.compile failed: {}")


@pytest.mark.parametrize("field", [*IN_A_RESULT, *IN_AN_ENVIRONMENT])
def test_no_result_with_a_private_text_in_a_field_passes(field):
    value = a_result(STEPS[0], 1).as_json()
    assert not list(allowed.wrong_texts(value))
    for kind, text in PRIVATE.items():
        (value["environment"] if field in IN_AN_ENVIRONMENT else value)[field] = text
        assert list(allowed.wrong_texts(value)), kind


@pytest.mark.parametrize("sentence", SENTENCES)
def test_no_sentence_with_a_private_text_passes(sentence):
    """Notes, reasons, what studies say, and keys."""
    for kind, text in PRIVATE.items():
        for value in ({"notes": ["the loader", sentence.format(text)]}, {"groups": [{sentence.format(text): 1}]}):
            assert list(allowed.wrong_texts(value)), kind
        assert not list(allowed.wrong_texts({"reason": privacy.reason(sentence.format(text))})), kind


def test_no_tag_setting_or_value_of_an_event_file_is_a_private_text(tmp_path):
    path = tmp_path / "events"
    for text in PRIVATE.values():
        for points, values, medians in (
            ([(text, 1, 1.0)], {}, {}),
            ([], {text: 1.0}, MEDIANS),
            ([], {"precision": text}, MEDIANS),
            ([], {}, {f"median/{text}": 1.0}),
        ):
            write_events(path, [*POINTS, *points], values, medians)
            with pytest.raises(InputError, match="a text that no run writes"):
                scalars(path.read_bytes())


def in_a_missing_step(folder, text):
    (folder / "13_compile").mkdir(exist_ok=True)
    result.write_json(folder / "13_compile/not_run.json", {"step": "13_compile", "reason": text})


RUN = "01_amp/runs/2.json"
IN_A_FILE = {
    "record.json": lambda folder, text: edit(folder / "record.json", lambda value: value.update({text: 1})),
    TRACE: lambda folder, text: edit_trace(folder / TRACE, lambda trace: trace.update({text: 1})),
    EVENTS: lambda folder, text: write_events(folder / EVENTS, [*POINTS, (text, 1, 1.0)], {}, MEDIANS),
    RUN: lambda folder, text: edit(folder / RUN, lambda value: value["notes"].append(text)),
    "13_compile/not_run.json": in_a_missing_step,
    "limit.json": lambda folder, text: result.write_json(
        folder / "limit.json", make_limit().as_json() | {"notes": [text]}
    ),
    "README.md": lambda folder, text: (folder / "README.md").write_text(f"# A GPU\n\n{text}\n"),
}


@pytest.mark.parametrize("file", IN_A_FILE)
def test_the_check_names_the_file_that_holds_a_private_text_in_one_line(file, folder):
    IN_A_FILE[file](folder, PRIVATE["terminal escape"] + PRIVATE["AWS secret"])
    with pytest.raises(InputError) as refused:
        check.verify(folder)
    assert file in str(refused.value)
    assert str(refused.value) == printable(refused.value)


def test_a_trace_of_a_gpu_loses_nothing_that_is_read(tmp_path, run_command):
    builder = a_gpu_trace()
    builder.header |= {"host_name": "node-7", "username": "ada", "with_stack": 1}
    for event in builder.events:
        event["args"] |= {"Record id": 1, "Call stack": "ada/train.py(3): main", "kernel_file": "/home/ada/c.py"}
    trace = builder.json
    kept, gone = allowed.kept(trace)
    assert allowed.kept(GPU_TRACE) == (GPU_TRACE, [])
    keys = ("host_name", "username", "with_stack", "Record id", "Call stack", "kernel_file")
    named = "'made by hand' as 'traceName', which is not a trace's name"
    assert set(gone) == {named, *(f"the key {key!r}" for key in keys)}
    reports = []
    for content in (trace, kept):
        builder.write(tmp_path / "trace.json", json.dumps(content).encode())
        reports.append(json.loads(run_command("explain", tmp_path / "trace.json", "--json").stdout))
    assert reports[0] == reports[1]
    assert reports[0]["kinds"]


def test_a_name_that_is_none_is_left_out_and_its_time_is_kept():
    event = {"ph": "X", "cat": "user_annotation", "name": "ada's secret", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    kept, gone = allowed.kept({"traceEvents": [event, event | {"cat": "ada"}]})
    assert kept == {"traceEvents": [event | {"name": allowed.GONE}]}
    assert gone[0] == 'a name that is not a step or a mark: "ada\'s secret"'
