"""Options and devices: what is accepted, and the one line for what is not."""

import re
from pathlib import Path

import pytest
import torch
from support import ROOT, assert_refused

from common import device
from common.options import step_options
from walkthrough.results import environment
from walkthrough.results.errors import InputError

STEP = ROOT / "steps" / "02_bigger_batch.py"


@pytest.mark.parametrize(
    "words",
    [
        "--fast",
        "--batch-size many",
        "--batch-size 0",
        "--logdir=",
        "--workers -1",
        "--image-size 8",
        "--precision int8",
    ],
)
def test_options_out_of_range_are_one_line_and_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        step_options("A step.", words.split())
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words.split()[0].strip("=") in line


@pytest.mark.parametrize("name", ["tpu", "cpu:0", "cuda:01", "cuda:-1", "", "cuda:2"])
def test_devices_that_are_not_there_are_refused(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="has 2 GPU" if name == "cuda:2" else "--device takes cpu, cuda or cuda:N"):
        device.checked_device(name)
    assert (device.checked_device("cuda:1"), device.checked_device()) == ("cuda:1", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="use --device cpu"):
        device.checked_device("cuda")


PROGRAMS = {
    "model": (["--model", "mobilenet_v9"], ["mobilenet_v9", "did you mean"]),
    "batch larger than the data": (["--batch-size", "60000", "--quick"], ["60000", "50000"]),
    "log folder below a file": (["--logdir", __file__ + "/logs", "--quick"], ["cannot write"]),
    "data does not exist": (["--data", "/nowhere/data"], ["/nowhere/data does not exist"]),
}


@pytest.mark.parametrize(("words", "message"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_step_refuses_bad_input_without_a_traceback_or_a_result(words, message, run_here, tmp_path):
    options = ["--device", "cpu", "--logdir", tmp_path / "logs", "--data", tmp_path, *words]
    assert_refused(run_here(STEP, *options), STEP.stem, *message)
    assert not list(tmp_path.glob("logs/*/*"))


@pytest.mark.parametrize(
    ("kind", "words", "model", "image_size"),
    [
        ("cpu", "", "tiny_convmixer", 96),
        ("cpu", "--quick", "tiny_convmixer", 48),
        ("cpu", "--model mobilenet_v2", "mobilenet_v2", 64),
        ("cuda", "", "mobilenet_v2", 224),
        ("cuda:1", "--model tiny_convmixer", "tiny_convmixer", 224),
        ("cuda:1", "--image-size 96", "mobilenet_v2", 96),
    ],
)
def test_model_and_image_size_default_by_device(monkeypatch, kind, words, model, image_size):
    monkeypatch.setattr("common.device.checked_device", lambda name: kind)
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: None)
    options = step_options("A step.", words.split())
    assert (options.model, options.image_size) == (model, image_size)


def test_every_option_reaches_the_program(tmp_path):
    words = "--device cpu --model resnet18 --image-size 32 --batch-size 8 --workers 3 --precision fp16 --seed 5"
    options = step_options("A step.", [*words.split(), "--logdir", "a", "--data", "b", "--download", "--stacks"])
    given = {"logdir": Path("a"), "data": Path("b"), "download": True, "stacks": True, "quick": False}
    given |= {"device": "cpu", "model": "resnet18", "image_size": 32, "batch_size": 8, "workers": 3}
    given |= {"precision": "fp16", "seed": 5}
    assert {name: getattr(options, name) for name in given} == given


@pytest.fixture
def four_gpus(monkeypatch):
    """A made-up machine with four GPUs; returns a list of those that were made the current one."""
    current = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


@pytest.mark.parametrize(
    ("rank", "processes", "words", "device"),
    [
        (None, None, "", "cuda"),
        (None, None, "--device cuda:1", "cuda:1"),  # which the profiler and the pinning thread look at
        ("3", None, "", "cuda:3"),
        ("3", None, "--device cuda:1", "cuda:1"),  # asked for, by one process
        ("3", "5", "", "cuda:3"),
        ("3", "5", "--device cpu", "cpu"),
        ("3", "5", "--device cuda:1", "--device cuda:1 under torchrun: each of 5 processes needs a GPU"),
        ("4", "5", "", "torchrun started 5 processes here, this machine has 4 GPU(s)"),
    ],
)
def test_a_chosen_gpu_becomes_the_current_one_and_under_torchrun_each_process_has_its_own(
    four_gpus, monkeypatch, rank, processes, words, device
):
    for name, value in {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": processes}.items():
        if value:
            monkeypatch.setenv(name, value)
    if " " in device:
        with pytest.raises(InputError, match=re.escape(device)):
            step_options("A step.", words.split())
        assert four_gpus == []
    else:
        assert step_options("A step.", words.split()).device == device
        assert four_gpus == [device] * (":" in device)


@pytest.mark.parametrize(
    ("capability", "dtype", "noted"), [((8, 0), torch.bfloat16, []), ((7, 5), torch.float16, ["no bf16 hardware"])]
)
def test_autocast_on_a_gpu_is_bf16_in_hardware_and_else_fp16(monkeypatch, capability, dtype, noted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert device.autocast_dtype("cuda") == dtype
    assert all(word in note for word, note in zip(noted, device.autocast_notes("cuda"), strict=True))


@pytest.mark.parametrize(
    ("hardware", "why_slow"), [("AMX", None), ("AVX512-BF16", "AVX512-BF16 but not AMX"), (None, "emulated")]
)
def test_autocast_on_a_cpu_is_on_only_with_amx_unless_a_precision_is_asked_for(monkeypatch, capsys, hardware, why_slow):
    monkeypatch.setattr(device, "cpu_bf16_hardware", lambda: hardware)
    chosen = {name: device.autocast_dtype("cpu", name) for name in ("auto", "fp32", "bf16", "fp16")}
    asked = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert chosen == {"auto": torch.bfloat16 if hardware == "AMX" else torch.float32} | asked
    assert capsys.readouterr().out.startswith("precision: ")
    assert device.autocast_notes("cpu", "fp32") == ["autocast is off: --precision fp32"]
    notes = [*device.autocast_notes("cpu"), *device.autocast_notes("cpu", "bf16")]
    assert len(notes) == (0 if hardware == "AMX" else 2)
    assert all(why_slow in note for note in notes)


@pytest.mark.parametrize(
    "flags, name", [("fpu avx512_bf16", "AVX512-BF16"), ("avx512_bf16 amx_bf16 amx_tile", "AMX"), (None, None)]
)
def test_bf16_hardware_is_read_from_the_cpu_flags(monkeypatch, flags, name):
    monkeypatch.setattr(environment, "_cpuinfo", lambda field: flags)
    assert environment.cpu_bf16_hardware() == name


def test_tf32_is_switched_in_matrix_products_and_convolutions_of_a_gpu_alone():
    on_a_cpu = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.mkldnn.conv.fp32_precision
    for switch, precision, older in ((device.enable_tf32, "tf32", "high"), (device.disable_tf32, "ieee", "highest")):
        switch()
        assert torch.backends.cuda.matmul.fp32_precision == precision
        assert torch.get_float32_matmul_precision() == older  # which torch.compile reads up to 2.13, and refuses a mix
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")  # which max-autotune reads, and refuses a mix
        assert (torch.backends.mkldnn.matmul.fp32_precision, torch.backends.mkldnn.conv.fp32_precision) == on_a_cpu


def test_the_command_line_refuses_unknown_commands_and_none(run_command):
    assert_refused(run_command("dance"), "dance")
    assert_refused(run_command(), "COMMAND")
