"""A GPU's clock while it was timed, from what nvidia-smi prints."""

import os
import signal
import types

import pytest
import torch

from common import record
from common.run import gpu_clocks
from common.run.gpu_clocks import GpuWatch, clocks, slowed_down

STEADY = "1980, 1980, 345.10, 700.00, 54, 0x0000000000000000\n"
SLOWED = "1410, 1980, 699.80, 700.00, 83, 0x0000000000000004\n"


def test_the_samples_are_summed_up():
    seen = clocks(STEADY * 2 + SLOWED)
    assert seen == gpu_clocks.GpuClocks(3, 1980, 1410, 1980, 345.1, 700, 83, ["power limit"])
    assert slowed_down(seen) == ["the GPU lowered its clock while it was timed (power limit): 1980 of 1980 MHz"]


def test_a_gpu_that_keeps_its_clock_has_no_note():
    assert slowed_down(clocks(STEADY)) == []
    idle_or_set_by_hand = STEADY.replace("0x0000000000000000", "0x0000000000000003")
    assert clocks(idle_or_set_by_hand).slowed_by == []
    assert slowed_down(None) == []


def test_every_reason_is_named():
    every = clocks(STEADY.replace("0x0000000000000000", "0x00000000000001ff"))
    assert every.slowed_by == list(gpu_clocks.REASONS.values())


@pytest.mark.parametrize("printed", ["", "1980, 1980", STEADY.rstrip("\n"), "No devices were found\n"])
def test_without_a_whole_line_nothing_is_known(printed):
    assert clocks(printed) is None


def test_what_a_gpu_keeps_to_itself_is_none():
    seen = clocks("1980, [N/A], [Not Supported], [N/A], [N/A], [N/A]\n")
    assert (seen.sm_mhz, seen.sm_mhz_limit, seen.power_watts, seen.temperature) == (1980, None, None, None)
    assert slowed_down(seen) == []


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of torch's with a number of its own."""
    properties = types.SimpleNamespace(uuid="5bd3-01")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    return torch.device("cuda:1")


@pytest.mark.parametrize(
    ("unknown", "field"),
    [
        ("clocks_throttle_reasons", "clocks_event_reasons.active"),  # a driver that has dropped the older name
        ("clocks_event_reasons", "clocks_throttle_reasons.active"),  # one that does not know the newer yet
    ],
)
def test_nvidia_smi_is_asked_about_this_gpu_and_ended(gpu, tmp_path, monkeypatch, unknown, field):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
case "$*" in *{unknown}*) echo 'Field "{unknown}.active" is not a valid field to query.'; exit 2;; esac
echo "$@" > {tmp_path}/asked
printf '{STEADY.strip()}\\n'
case "$*" in *loop-ms*) exec sleep 1000;; esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with GpuWatch(gpu) as watch:
        watch._process.stdout.readline()  # it has begun
    assert watch._process.returncode is not None
    asked = (tmp_path / "asked").read_text()
    assert "--id=GPU-5bd3-01 " in asked
    assert f"--query-gpu={','.join(gpu_clocks.FIELDS)},{field} " in asked


def test_an_nvidia_smi_that_does_not_end_holds_no_run_up(gpu, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $* in *--loop-ms*) ;; *) exit 0 ;; esac\n"
        "trap '' TERM\necho begun\nwhile true; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_clocks, "END_SECONDS", 0.1)
    with GpuWatch(gpu) as watch:
        assert watch._process.stdout.readline() == "begun\n"
    assert watch.clocks is None
    assert watch._process.wait(10) == -signal.SIGKILL


def test_without_nvidia_smi_and_on_a_cpu_nothing_is_known(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for device in (gpu, torch.device("cpu")):
        with GpuWatch(device) as watch:
            pass
        assert watch.clocks is None


def test_a_result_holds_them_where_somebody_looked(tmp_path):
    from support import make_result

    assert "gpu_clocks" not in make_result("00_baseline").as_json()
    result = make_result("00_baseline", gpu_clocks=clocks(SLOWED))
    assert result.as_json()["gpu_clocks"]["slowed_by"] == ["power limit"]
    record.write_result(tmp_path / "result.json", result)
    assert record.read_result(tmp_path / "result.json") == result


def test_runs_are_combined_by_medians_the_lowest_clock_and_the_highest_temperature():
    runs = [
        gpu_clocks.GpuClocks(3, 1980, 1900, 1980, 300, 700, 54, []),
        gpu_clocks.GpuClocks(4, 1800, 1410, 1980, 690, 700, 83, ["power limit"]),
        gpu_clocks.GpuClocks(5, 1950, 1930, 1995, 400, 650, 60, ["sync boost", "power limit"]),
    ]
    both = ["power limit", "sync boost"]
    assert gpu_clocks.over_runs(runs) == gpu_clocks.GpuClocks(12, 1950, 1410, 1995, 400, 700, 83, both)
    assert gpu_clocks.over_runs(runs[:1]) == runs[0]


def test_what_one_run_does_not_tell_nobody_tells_of_all_of_them():
    runs = [clocks(STEADY), clocks(SLOWED.replace("699.80", "[N/A]"))]
    together = gpu_clocks.over_runs(runs)
    assert (together.power_watts, together.sm_mhz, together.sm_mhz_lowest) == (None, 1695, 1410)
    assert gpu_clocks.over_runs([*runs, None]) is None
    assert gpu_clocks.over_runs([None]) is None
