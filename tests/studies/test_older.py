"""What all studies have in common, each by the result that was recorded of it."""

import io
import json
from xml.etree import ElementTree

import pytest
from rich.console import Console
from support import ROOT

from studies import study
from walkthrough.cli import main
from walkthrough.compare.figures import save
from walkthrough.results.errors import InputError

RECORD = ROOT / "logs" / "reference" / "amd-epyc-avx512-bf16"
COMMANDS = {"limit": ["limit"], "input": ["limit", "--input"], "ablation": ["ablate"]}
pytestmark = pytest.mark.parametrize("name", [name for name in study.STUDIES if hasattr(study.module(name), "FILE")])


def recorded(name):
    return study.read_study(name, RECORD)


def test_a_result_is_read_as_it_was_written(name, tmp_path):
    assert study.read_study(name, tmp_path) is None
    study.write(tmp_path / study.module(name).FILE, recorded(name))
    assert study.read_study(name, tmp_path) == recorded(name)


@pytest.mark.parametrize("content", ["torn", "[]", "{}", '{"schema": 1}'])
def test_a_broken_file_or_one_of_another_version_is_refused_in_a_line(name, tmp_path, content):
    path = tmp_path / study.module(name).FILE
    path.write_text(content)
    with pytest.raises(InputError, match=path.name) as error:
        study.read_study(name, tmp_path)
    assert "\n" not in str(error.value)


def test_its_tables_fit_a_narrow_terminal(name):
    console = Console(width=80, highlight=False, file=io.StringIO())
    study.module(name).show(recorded(name), console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert recorded(name).setup.model in " ".join(lines)


def test_its_figure_is_drawn_the_same_each_time(name, tmp_path):
    for file in ("a.svg", "b.svg", "a.png"):
        save(study.module(name).figure(recorded(name)), tmp_path / file)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert recorded(name).setup.model in svg
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        save(study.module(name).figure(recorded(name)), tmp_path / "a.html")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "mobilenet_v22"], "unknown model"),
        (["--device", "tpu"], "unknown device"),
        (["--plot", "a.gif"], ".svg or .png"),
        (["--plot", "not there/a.svg"], "no folder"),
        (["--logdir", "/dev/null/logs"], "cannot write"),
    ],
)
def test_bad_words_are_a_line_and_nothing_is_written(name, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*COMMANDS.get(name, [name]), "--device", "cpu", "--quick", "--logdir", str(tmp_path / "logs"), *words])
    assert end.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "logs").exists() or not [*(tmp_path / "logs").glob("*.json")]


def test_the_file_holds_what_the_command_prints_as_json(name, capsys):
    study.print_result(name, True, RECORD, recorded(name))
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(recorded(name).as_json()))
    assert printed["schema"] == recorded(name).schema
