"""What all studies have in common, each by the result that was recorded of it."""

import io
import json
import re
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from support import ROOT, SmallNet, assert_golden, assert_refused, exit_code_of

from common.options import options_from
from studies import ablation, overhead, study
from walkthrough.cli import main
from walkthrough.compare import roofs
from walkthrough.compare import study as results
from walkthrough.compare.statistics import Mean, Ratio, of_pairs
from walkthrough.results.errors import InputError

RECORD = ROOT / "logs" / "reference" / "amd-epyc-avx512-bf16"
COMMANDS = {"input": ["limit", "--input"], "ablation": ["ablate"]}
of_each = pytest.mark.parametrize("name", results.OF_A_LADDER)


def recorded(name):
    return results.read(RECORD / f"{name}.json")


def same(one, other):
    """Whether two values of JSON are equal but for the last digits of their numbers."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == pytest.approx(other, rel=1e-9) if isinstance(one, float) else one == other


@of_each
def test_its_tables_and_sentences_follow_from_what_was_measured_and_fit_a_narrow_terminal(name):
    result = recorded(name)
    assert same(study.recomputed(result).as_json(), result.as_json())
    console = Console(width=80, highlight=False, file=io.StringIO())
    results.show(result, console)
    assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_the_printed_study_is_the_golden_one():
    """Cells of every kind, a table too long to print, conclusions, claims with every verdict, notes."""
    faster, unclear, share = of_pairs([2.0, 2.1, 1.9]), of_pairs([0.9, 1.2, 1.0]), results.percent([0.5, 0.7, 0.6])
    cells = {"speed": 1.23456, "missing": None, "yes": True, "text": "words", "clear": faster, "unclear": unclear}
    cells |= {"share": share}
    row = {name: asdict(cell) if isinstance(cell, Ratio | Mean) else cell for name, cell in cells.items()}
    claims = [results.claim("c", f"Over {limit}.", faster, above=limit, published="3x") for limit in (1, 2, 4)]
    claims += [results.claim("c", "Needs.", None, needs="a GPU"), results.claim("c", "Less.", share, below=90)]
    tables = {"of_cells": [row], "for_a_figure": [row] * (results.MOST_ROWS + 1)}
    conclusions = {"of_cells": ["[b]So it is[/b]."]}
    made = replace(recorded("limit"), tables=tables, conclusions=conclusions, claims=claims, notes=["one note"])
    console = Console(width=100, highlight=False, file=io.StringIO())
    results.show(made, console)
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    assert_golden(f"{text}\n", Path(__file__).parent / "golden" / "study.txt")


def test_a_smoke_run_does_not_replace_a_whole_study_and_a_broken_one_is_named(tmp_path):
    path, whole = tmp_path / "overhead.json", recorded("overhead")
    results.keep_whole(path, quick=True)
    results.write(path, whole)
    results.keep_whole(path, quick=False)
    with pytest.raises(InputError, match=path.name):
        results.keep_whole(path, quick=True)
    results.write(path, replace(whole, quick=True))
    results.keep_whole(path, quick=True)
    for content in ("torn", "[]", '{"schema": 1}', '{"schema": 4}'):
        path.write_text(content)
        with pytest.raises(InputError, match=path.name):
            results.read(path)


@of_each
@pytest.mark.parametrize("words", [["--model", "mobilenet_v22"], ["--logdir", "/dev/null/logs"]])
def test_bad_words_are_a_line_and_nothing_is_written(name, words, tmp_path, run_command):
    own = [*COMMANDS.get(name, [name]), "--device", "cpu", "--quick", "--logdir", tmp_path / "logs", *words]
    assert_refused(run_command(*own), *{"--model": ["unknown model"], "--logdir": ["cannot write"]}[words[0]])
    assert not [*tmp_path.glob("logs/*.json")]


SMALL = {  # words of a call that takes seconds
    "limit": ["--batch-size", "4"],
    "input": ["--batch-size", "4"],
    "ablation": ["--batch-size", "8"],
    "overhead": ["--batch-size", "4", "--runs", "1"],
    "sweep": ["--workers-list", "0", "--batch-sizes", "8"],
}


def answer(command, request, limit_seconds, on_line=None):
    """`isolated.answer`, but measured in this process."""
    module = import_module(re.search(r"studies\.\w+", command[-1])[0])
    own = json.loads(json.dumps(request, default=str))
    return {"value": getattr(module, own["what"])(options_from(own["options"]), **own["settings"])}


@pytest.fixture
def little(monkeypatch):
    """Studies that measure little, in this process; what is compiled, for real, is a model of few kernels."""
    few = [one for one in overhead.tracings(torch.device("cpu")) if one.name in (overhead.OFF_AGAIN, "operators")]
    variants = [ablation.Variant("baseline", ()), ablation.Variant("baseline + on_device_data", ("on_device_data",))]
    for name, value in {
        "walkthrough.compare.isolated.answer": answer,
        "studies.ablation.variants": lambda *_: variants,
        "studies.fastest.QUICK_SEARCH_SECONDS": 0,
        "studies.fastest.classifier": lambda *_: SmallNet(),
        "studies.input.worker_numbers": lambda cores: [0, 1],
        "studies.overhead.tracings": lambda device: few,
        "studies.roofline.COPIES": {"cpu": (1,)},
        "studies.roofline.MATRICES": {"cpu": (8,)},
        "torch._functorch.config.enable_autograd_cache": True,  # put back afterwards
        "torch._inductor.config.fx_graph_cache": True,
        "torch._inductor.metrics.num_bytes_accessed": 0,  # of what other tests have compiled
    }.items():
        monkeypatch.setattr(name, value)


def assert_quick_call(name, tmp_path, capfd):
    """A real call of a command: its result, which it printed, drew and wrote."""
    words = [*COMMANDS.get(name, [name]), *SMALL[name], "--json", "--precision", "fp32", "--logdir", str(tmp_path)]
    assert exit_code_of(main, [*words, "--device", "cpu", "--quick", "--plot", str(tmp_path / "a.svg")]) == 0
    result = results.read(tmp_path / f"{name}.json")
    assert json.loads(capfd.readouterr().out) == result.as_json()
    assert (result.name, result.setup.model, result.quick) == (name, "tiny_convmixer", True)
    assert next(iter(result.tables.values()))
    assert not [*tmp_path.glob(".*.json")]
    svg = (tmp_path / "a.svg").read_text()
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "tiny_convmixer" in svg
    return result


@pytest.mark.parametrize("name", ["input", "ablation", "overhead"])
def test_a_quick_call(name, little, tmp_path, capfd):
    assert_quick_call(name, tmp_path, capfd)


def test_a_quick_limit_counts_times_and_compiles_one_step(little, tmp_path, capfd):
    measured, known = assert_quick_call("limit", tmp_path, capfd).measured, roofs.read(tmp_path)
    forward = measured["forward_flops_per_image"] * 4
    assert forward < measured["flops_per_step"] < forward * 3
    assert sum(group["flops"] or 0 for group in measured["groups"]) == measured["flops_per_step"]
    assert sum(group["bytes"] for group in measured["groups"]) == measured["bytes_per_step"]
    assert all(group["traced_ms"] > 0 for group in measured["groups"])  # each that was counted is found in the trace
    assert 0 < measured["without_formula"]["calls_share"] < 1
    assert 0 < measured["without_formula"]["time_share"] < 1
    assert known.flops_per_image == measured["flops_per_step"] / 4
    assert known.least_bytes(4, "float32") < measured["bytes_per_step"]
    uncompiled, compiled = measured["speeds"]
    moved = [speed["bytes_per_second"] / speed["samples_per_second"]["median"] for speed in (uncompiled, compiled)]
    assert (compiled["compiled"], 0.2 < moved[1] / moved[0] < 1) == (True, True)
    assert uncompiled["share_of_memory_roof"] < uncompiled["bytes_per_second"] / known.bytes_roof


def test_a_quick_sweep_measures_in_a_process_of_its_own(tmp_path, capfd):
    assert_quick_call("sweep", tmp_path, capfd)
