"""The code that the docs show is the code that runs: docs/your_own_script.md as one program, and on two ranks.

The commands of all pages are parsed; `tests/records/test_rehearsal.py` runs those of docs/recording.md.
"""

import ast
import json
import re
import shlex
import socket

import pytest
from support import ROOT, run_program

from walkthrough.cli import _parser

PAGE = (ROOT / "docs" / "your_own_script.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PARTS = dict(zip("setup timing trace loop ranks wrapped".split(), BLOCKS, strict=True))  # by what they are for
ON_A_CPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def write_program(folder, *blocks):
    """A program of these blocks in a folder of its own, as the page's reader would write it."""
    program = folder / "train.py"
    program.write_text("\n\n".join(blocks), encoding="utf-8")
    return program


@pytest.fixture
def explained(run_command):
    return lambda path: json.loads(run_command("explain", path, "--json").stdout)


def test_the_page_is_a_program_that_prints_its_speed_and_records_three_steps(explained, tmp_path):
    program = write_program(tmp_path, PARTS["setup"], PARTS["timing"], PARTS["trace"], PARTS["loop"])
    finished = run_program(program, cwd=tmp_path, **ON_A_CPU)
    assert finished.returncode == 0, finished.stderr
    assert re.fullmatch(r"\d+ images/s \(windows \d+ to \d+\)", finished.stdout.strip())
    (trace,) = (tmp_path / "logs" / "before").iterdir()
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}_\d+\.\d+\.pt\.trace\.json\.gz", trace.name)
    summary = explained(trace.parent)
    assert summary["steps"]["count"] == 3
    assert summary["steps"]["names"] == ["2", "3", "4"]
    assert summary["steps"]["breakdown_us"]["dataloader"] > 0
    assert summary["memory"]["peak_allocated_bytes"] > 0
    assert explained(tmp_path / "logs" / "after")["steps"]["names"] == ["11", "12", "13"]


def test_two_ranks_record_a_trace_each_that_holds_its_rank(explained, tmp_path):
    name = 'worker_name=f"{socket.gethostname()}_{rank}"'
    assert f"`{name}`" in PAGE
    handler = 'tensorboard_trace_handler("logs/before", '
    assert handler in PARTS["trace"]
    traced = PARTS["trace"].replace(handler, f"{handler}{name}, ")
    blocks = PARTS["ranks"], PARTS["setup"], PARTS["wrapped"], traced, "dist.destroy_process_group()"
    program = write_program(tmp_path, *blocks)
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, program]
    finished = run_program(*started, cwd=tmp_path, **ON_A_CPU)
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / "logs" / "before"
    workers = sorted(re.sub(r"\.\d+\.pt\.trace\.json\.gz$", "", path.name) for path in folder.iterdir())
    assert workers == [f"{socket.gethostname()}_{rank}" for rank in (0, 1)]
    assert [(rank["rank"], rank["steps"]["count"]) for rank in explained(folder)["ranks"]] == [(0, 3), (1, 3)]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPAN, LINE = r"(?<!`)`([^`]+)`(?!`)", r"^ *(?:\$ )?((?:python3? -m )?walkthrough .+?)(?: {2,}#.*)?$"
STANDS_FOR = {"N": "8", "<device>": "device"}  # on the pages, in place of a value


def commands_of(page):
    """The words of each command in the page's text by hand, in a sentence or on a line of its own."""
    text = re.sub(r"<!-- begin .*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    fenced = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(SPAN, fenced.sub("", text))]
    for line in spans + re.findall(LINE, text.replace("\\\n", " "), re.MULTILINE):
        command = re.match(r"(?:python3? -m )?walkthrough ([a-z]+ .+)$", line)
        if command and "…" not in line and "..." not in line:
            yield [STANDS_FOR.get(word, word) for word in shlex.split(command[1])]


def test_each_command_on_a_page_is_one_and_has_the_options_that_the_page_gives_it():
    commands = [(page.name, words) for page in PAGES for words in commands_of(page)]
    assert len(commands) > 80  # they are found
    for options in re.findall(r"^\| (`--.+?`) \|", PAGE, re.MULTILINE):  # of `trace`
        commands.append(("the table of options", ["trace", *options.replace("`", "").replace(",", "").split(), "true"]))
    for page, words in commands:
        args, others = _parser().parse_known_args(words)
        assert args.command == words[0], page
        assert not others or hasattr(args, "passed_on"), (page, words)  # to the steps


def test_python_that_answers_a_question_is_python():
    questions = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", questions, re.DOTALL | re.MULTILINE)
    assert blocks and all(ast.parse(block).body for block in blocks)
