"""The doctor: every line is ok or says what to do."""

import argparse
from collections import namedtuple

import torch

from walkthrough import doctor
from walkthrough.results import environment


def examined(tmp_path, *words):
    parser = argparse.ArgumentParser()
    doctor.add_options(parser)
    args = parser.parse_args(["--logdir", str(tmp_path), "--data", str(tmp_path), *words])
    return {finding.subject: finding for finding in doctor.examine(args)}


def test_it_looks_at_everything_a_run_needs_and_its_exit_code_says_whether_something_is_to_be_fixed(
    tmp_path, monkeypatch, run_command
):
    words = ("doctor", "--logdir", tmp_path, "--data", tmp_path)
    done = run_command(*words)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    subjects = "Python, torch, CUDA, GPU, CPU, CIFAR-10, tensorboard, torch-tb-profiler, Disk".split(", ")
    assert [subject for subject in subjects if not any(line[5:].startswith(subject) for line in lines)] == []
    assert {line.split()[0] for line in lines} <= {"ok", "note", "fix"}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage_of(2e8))
    assert run_command(*words).returncode == 2


def test_what_is_missing_old_or_broken_comes_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage_of(2e8))
    monkeypatch.setattr(torch, "__version__", "2.4.1+cu121")
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    (tmp_path / "cifar-10-batches-py").mkdir()
    findings = examined(tmp_path)
    missing = {"tensorboard": "fix", "msgspec": "fix", "rich": "note", "psutil": "note", "torch-tb-profiler": "note"}
    states = missing | {"Disk": "fix", "torch": "fix", "CIFAR-10": "fix", "C++ compiler": "note"}
    assert {name: findings[name].state for name in states} == states
    assert all("make setup" in findings[name].text for name in missing)
    assert "--download" in findings["CIFAR-10"].text
    assert "steps from 13 on" in findings["C++ compiler"].text


def test_shared_memory_for_the_workers_is_compared_with_what_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path)
    free = 18 * 64 * (3 * 224**2 + 8)  # 8 workers with 2 batches each, and 2 in use
    words = ("--workers", "8", "--batch-size", "64", "--image-size", "224")
    for missing, state in ((0, "ok"), (1, "fix")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, missing=missing: usage_of(free - missing))
        finding = examined(tmp_path, *words)["Shared memory"]
        assert finding.state == state
        assert "8 workers need 0.17 GB" in finding.text
    assert "--shm-size" in finding.text
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "none")  # not Linux
    assert "Shared memory" not in examined(tmp_path, *words)


def test_on_a_gpu_compiling_needs_triton_and_a_c_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    findings = examined(tmp_path)
    assert findings["C compiler"].text == "/usr/bin/clang"
    assert "C++ compiler" not in findings
    assert [findings[subject].state for subject in ("Triton", "Python's headers")] == ["note", "note"]
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert examined(tmp_path)["C compiler"].text.startswith("no /nonexistent/cc: ")


def test_a_gpu_is_described_with_what_matters_to_the_steps(tmp_path, monkeypatch):
    properties = namedtuple("properties", "name major minor total_memory")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = [properties("Quadro RTX 4000", 7, 5, 8e9), properties("NVIDIA GeForce GTX 1080", 6, 1, 8e9)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: cards[index][1:3])
    monkeypatch.setattr(environment, "driver_version", lambda: "580.1")
    findings = examined(tmp_path)
    assert "GPU" not in findings
    assert findings["CUDA"].text == "13.0, driver 580.1"
    assert findings["GPU cuda:0"].text.startswith("Quadro RTX 4000: 8 GB, Tensor Cores, no bf16")
    assert "no Tensor Cores" in findings["GPU cuda:1"].text


def usage_of(free):
    return namedtuple("usage", "free")(free)
