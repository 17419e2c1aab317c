"""A GPU's clock while it was timed, from what nvidia-smi prints."""

import os
import types

import pytest
import torch

from common import gpu_clocks
from common.gpu_clocks import GpuWatch, clocks, slowed_down
from walkthrough.results.result import GpuClocks

STEADY = "1980, 1980, 345.10, 700.00, 54, 0x0000000000000000\n"
SLOWED = "1410, 1980, 699.80, 700.00, 83, 0x0000000000000004\n"


@pytest.mark.parametrize(
    ("printed", "seen", "note"),
    [
        (STEADY * 2 + SLOWED, GpuClocks(3, 1980, 1410, 1980, 345.1, 700, 83, ["power limit"]),
         "the GPU lowered its clock while it was timed (power limit): 1980 of 1980 MHz"),
        ("1980, [N/A], [Not Supported], [N/A], [N/A], [N/A]\n", GpuClocks(1, 1980, 1980, *[None] * 4, []), None),
        (STEADY.rstrip("\n"), None, None),
    ],
)  # fmt: skip
def test_whole_lines_are_summed_up_and_a_lower_clock_is_noted(printed, seen, note):
    assert clocks(printed) == seen
    assert slowed_down(seen) == [note] * bool(note)


@pytest.mark.parametrize(("bits", "reasons"), [("0003", []), ("01ff", list(gpu_clocks.REASONS.values()))])
def test_every_reason_is_named_but_those_of_an_idle_gpu_and_a_clock_set_by_hand(bits, reasons):
    assert clocks(STEADY.replace("0000\n", f"{bits}\n")).slowed_by == reasons


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of torch's with a number of its own."""
    properties = types.SimpleNamespace(uuid="5bd3-01")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    return torch.device("cuda:1")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """nvidia_smi(text): put a shell script on the path, in place of NVIDIA's program. BEGUN in it: see `watched`."""
    os.mkfifo(tmp_path / "begun")

    def write(commands):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{commands.replace('BEGUN', f'echo > {tmp_path}/begun')}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return write


def watched(gpu, begun=None):
    """A `GpuWatch` after its windows. begun: a FIFO; the windows last until a line was written into it."""
    with GpuWatch(gpu) as watch:
        if begun:
            begun.read_text()
    return watch


@pytest.mark.parametrize(
    ("unknown", "field"),
    [
        ("clocks_throttle_reasons", "clocks_event_reasons.active"),  # a driver that has dropped the older name
        ("clocks_event_reasons", "clocks_throttle_reasons.active"),  # one that does not know the newer yet
    ],
)
def test_nvidia_smi_is_asked_about_this_gpu_and_ended(gpu, nvidia_smi, tmp_path, monkeypatch, unknown, field):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-77,GPU-5bd3-01")  # cuda:1; nvidia-smi's own order is another
    nvidia_smi(
        f"""case "$*" in *{unknown}*) echo 'Field "{unknown}.active" is not a valid field to query.'; exit 2;; esac
echo "$@" > {tmp_path}/asked
printf '{STEADY.strip()}\\n'
case "$*" in *loop-ms*) BEGUN; exec sleep 1000;; esac"""
    )
    assert watched(gpu, tmp_path / "begun")._process.returncode is not None
    asked = (tmp_path / "asked").read_text()
    assert "--id=GPU-5bd3-01 " in asked
    assert f"--query-gpu={','.join(gpu_clocks.FIELDS)},{field} " in asked


UNREAD = "the GPU's clock and power were not read: "
SAMPLED = "case $* in *loop-ms*) ;; *) exit 0 ;; esac\n"  # what is asked before the windows


@pytest.mark.parametrize(
    ("commands", "note"),
    [
        ("echo 'No devices were found'; exit 6", f"{UNREAD}nvidia-smi says No devices were found"),  # MIG's part
        (f"{SAMPLED}printf '\\377\\376, 0xzz\\n'; BEGUN; exec sleep 1000", f"{UNREAD}nvidia-smi printed no values"),
        (f"{SAMPLED}trap '' TERM; BEGUN; while true; do sleep 0.05; done", f"{UNREAD}nvidia-smi did not end within"),
        (f"{SAMPLED}echo '1980, 1980, [Unknown Error], nan, 54, 0xzz'; BEGUN; exec sleep 1000",
         "nvidia-smi does not report for this GPU: power.draw, power.limit, reasons of a lower clock"),
    ],
)  # fmt: skip
def test_what_nvidia_smi_does_not_say_is_a_note(gpu, nvidia_smi, tmp_path, monkeypatch, commands, note):
    if "TERM" in commands:
        monkeypatch.setattr(gpu_clocks, "END_SECONDS", 0.2)
    nvidia_smi(commands)
    watch = watched(gpu, tmp_path / "begun" if "BEGUN" in commands else None)
    assert not watch._process or watch._process.returncode is not None
    assert (watch.clocks is None) == note.startswith(UNREAD)
    [text] = watch.notes
    assert text.startswith(note)


def test_without_nvidia_smi_and_on_an_amd_gpu_a_note_says_so_and_on_a_cpu_none(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert watched(gpu).notes == [UNREAD + "there is no nvidia-smi"]
    assert watched(torch.device("cpu")).notes == []
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert watched(gpu).notes == [UNREAD + "nvidia-smi knows NVIDIA's GPUs only"]
