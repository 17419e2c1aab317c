"""`trace --redact`: no name of the machine, its user or folders in the traces, and the numbers are the same."""

import gzip
import json
import os
import platform
from pathlib import Path

import pytest
from support import ROOT, run_program
from torch_tb_profiler.consts import NODE_PROCESS_PATTERN, WORKER_PATTERN

from walkthrough.advice.report import report
from walkthrough.attach.trace_command import _pack
from walkthrough.results import privacy
from walkthrough.results.errors import InputError
from walkthrough.trace.analysis import analyze

DATA = Path(__file__).parents[1] / "data"
PROGRAMS = Path(__file__).parent / "programs"
TRAIN = """
import far_away, torch, trainings
training = trainings.Training()
for _ in range(20):
    with torch.profiler.record_function("by ada.lovelace: {home}/data, {cwd}"):
        far_away.step(training.closure(next(training.batches)), training.optimizer)
"""
FAR_AWAY = "def step(closure, optimizer):\n    closure()\n    optimizer.step()\n"


def test_no_name_of_machine_user_or_folder_is_in_a_redacted_trace(tmp_path):
    home, elsewhere = tmp_path / "home of ada", tmp_path / "else where"
    cwd = home / "secret project"
    for path in (cwd, elsewhere):
        path.mkdir(parents=True)
    (cwd / "train.py").write_text(TRAIN.format(home=home, cwd=cwd), encoding="utf-8")
    (elsewhere / "far_away.py").write_text(FAR_AWAY, encoding="utf-8")
    words = ("--redact", "--stacks", "--warmup", 3, "--out", "out", "--", "train.py")
    environment = {"HOME": home, "LOGNAME": "ada.lovelace", "USER": "ada.lovelace"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, PROGRAMS, elsewhere)))
    finished = run_program("-m", "walkthrough", "trace", *words, cwd=cwd, **environment)
    assert finished.returncode == 0, finished.stderr
    assert "--redact" not in finished.stderr
    (trace,) = (cwd / "out").iterdir()
    assert trace.name.startswith("process_")
    worker = WORKER_PATTERN.match(trace.name)
    assert worker and NODE_PROCESS_PATTERN.match(worker[1])
    content = gzip.decompress(trace.read_bytes())
    for name in (platform.node(), "ada.lovelace", str(home), str(cwd), "home of", "secret project", "else where"):
        assert not privacy.holds_name(trace.name.encode() + b" " + content, name), name
    assert "far_away.py(1): step" in content.decode()
    assert privacy.scrubbed(json.loads(content)) == json.loads(content)
    assert b"home" not in trace.read_bytes()[:200]  # the name that gzip keeps


@pytest.mark.parametrize("name", ["cpu.pt.trace.json.gz", "cpu_stacks.pt.trace.json.gz"])
def test_explain_says_the_same_of_a_redacted_trace(tmp_path, name):
    source, reports = tmp_path / name, []
    for redact in (False, True):
        source.write_bytes(gzip.decompress((DATA / name).read_bytes()))
        (folder := tmp_path / str(redact)).mkdir()
        _pack(source, folder / name, {}, redact)
        assert list(folder.iterdir()) == [folder / name]
        reports.append(report(analyze(folder / name)) | {"file": None})
    assert reports[0] == reports[1]


def packed(folder, text):
    """What becomes of the text of a trace."""
    (folder / "source").write_bytes(text)
    (folder / "out").mkdir()
    _pack(folder / "source", folder / "out" / "rank_0.1.pt.trace.json.gz", {}, redact=True)
    [path] = (folder / "out").iterdir()
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("text", [b'{"a": "a "/home/ada/x", "b": "a "c"}', b'{"a": "C:\\x"}'])
def test_a_trace_that_is_no_json_is_not_redacted_by_half(tmp_path, text):
    with pytest.raises(InputError, match="not JSON, so it cannot be redacted"):
        packed(tmp_path, text)
    assert list((tmp_path / "out").iterdir()) == []


def test_texts_are_redacted_as_what_they_are_and_what_torch_writes_in_place_of_numbers_is_none(tmp_path):
    numbers = b'"a": N/A, "b": -nan(ind), "c": [inf, NaN, Infinity, 1e3], '
    text = b'{%s"host_name": "h", "x\\n/home/ada/x": "\\"\\t/home/ada"}\n' % numbers
    kept, rest = packed(tmp_path, text).split(numbers)
    assert kept == b'{"walkthrough": {},'
    assert json.loads(b"{" + rest) == {"x\n…": '"\t…'}
