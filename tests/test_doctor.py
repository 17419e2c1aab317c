"""The doctor: every line is ok or says what to do."""

import importlib.metadata
from collections import namedtuple

import pytest
import torch

from common import doctor, machine
from common.__main__ import main


def examined(tmp_path):
    return {finding.subject: finding for finding in doctor.examine(tmp_path, tmp_path)}


def test_it_looks_at_everything_a_run_needs(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--logdir", str(tmp_path), "--data", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    for subject in ("Python", "torch", "CUDA", "GPU", "CPU", "CIFAR-10", "TensorBoard", "Profiler plugin", "Disk"):
        assert any(line[5:].startswith(subject) for line in lines), subject
    assert all(line.split()[0] in ("ok", "note", "fix") for line in lines)


def test_what_is_missing_comes_with_what_to_do(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(2e8))
    findings = examined(tmp_path)
    for subject in ("TensorBoard", "Profiler plugin"):
        assert "make setup" in findings[subject].text
    assert findings["TensorBoard"].state == "fix"  # a step cannot write its events without
    assert findings["Profiler plugin"].state == "note"  # it only shows what a step has recorded
    assert findings["Disk"].state == "fix"
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--logdir", str(tmp_path), "--data", str(tmp_path)])
    assert ended.value.code == 2


def test_a_missing_compiler_is_noted_with_the_steps_that_need_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    finding = examined(tmp_path)["C++ compiler"]
    assert finding.state == "note"
    assert "steps from 08 on" in finding.text


def test_broken_cifar10_and_an_old_torch_are_found(tmp_path, monkeypatch):
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setattr(torch, "__version__", "2.4.1+cu121")
    findings = examined(tmp_path)
    assert findings["CIFAR-10"].state == "fix"
    assert "--download" in findings["CIFAR-10"].text
    assert findings["torch"].state == "fix"


def test_a_gpu_is_described_with_what_matters_to_the_steps(tmp_path, monkeypatch):
    properties = namedtuple("properties", "name major minor total_memory")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cards = [properties("Quadro RTX 4000", 7, 5, 8e9), properties("NVIDIA GeForce GTX 1080", 6, 1, 8e9)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: cards[index][1:3])
    monkeypatch.setattr(machine, "driver_version", lambda: "580.1")
    findings = examined(tmp_path)
    assert "GPU" not in findings
    assert findings["CUDA"].text == "13.0, driver 580.1"
    assert findings["GPU cuda:0"].text.startswith("Quadro RTX 4000: 8 GB, Tensor Cores, no bf16")
    assert "no Tensor Cores" in findings["GPU cuda:1"].text
