"""The code that the docs show is the code that runs: docs/your_own_script.md as one program, and on two ranks.

Of docs/recording.md the commands are parsed; `tests/records/test_rehearsal.py` runs them. Those of docs/questions.md
are parsed too, and its Python is compiled.
"""

import json
import re
import shlex
import socket

import pytest
from support import ROOT, run_program

from walkthrough.cli import _parser

PAGE = (ROOT / "docs" / "your_own_script.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ON_A_CPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def write_program(folder, *blocks):
    """A program of these blocks in a folder of its own, as the page's reader would write it."""
    program = folder / "train.py"
    program.write_text("\n\n".join(blocks), encoding="utf-8")
    return program


def explained(path):
    finished = run_program("-m", "walkthrough", "explain", path, "--json", cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def parts():
    """The page's blocks by what they are for."""
    names = ("setup", "timing", "trace", "loop", "ranks", "wrapped")
    assert len(BLOCKS) == len(names), "a block was added to the page or removed: name here what it is for"
    return dict(zip(names, BLOCKS, strict=True))


def test_the_page_is_a_program_that_prints_its_speed_and_records_three_steps(parts, tmp_path):
    program = write_program(tmp_path, parts["setup"], parts["timing"], parts["trace"], parts["loop"])
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


def test_the_commands_of_the_page_are_commands_and_have_its_options():
    lines = re.findall(r"^    (walkthrough .+?)(?: {2,}#.*)?$", PAGE, re.MULTILINE)
    assert {shlex.split(line)[1] for line in lines} == {"trace", "time", "explain", "fit"}
    for line in lines:
        assert _parser().parse_args(shlex.split(line)[1:])
    parser = _parser()
    for option in re.findall(r"^\| (`--.+?`) \|", PAGE, re.MULTILINE):
        words = option.replace("`", "").replace(",", "").split()
        assert parser.parse_args(["trace", *words, "--", "true"])


def test_the_callbacks_of_the_page_are_there():
    from walkthrough.attach import callbacks

    (names,) = re.findall(r"from walkthrough\.attach\.callbacks import (.+)", PAGE)
    assert all(hasattr(callbacks, name) for name in names.split(", "))


def test_the_profiler_tab_reads_the_name_of_the_trace():
    consts = pytest.importorskip("torch_tb_profiler.consts")
    for name in ("node-1_4711.1795275442793000000.pt.trace.json.gz", "node-1_0.1.pt.trace.json"):
        assert consts.WORKER_PATTERN.match(name)
    assert not consts.WORKER_PATTERN.match("trace.json")


def test_two_ranks_record_a_trace_each_that_holds_its_rank(parts, tmp_path):
    name = 'worker_name=f"{socket.gethostname()}_{rank}"'
    assert f"`{name}`" in PAGE
    handler = 'tensorboard_trace_handler("logs/before", '
    assert handler in parts["trace"]
    traced = parts["trace"].replace(handler, f"{handler}{name}, ")
    program = write_program(
        tmp_path, parts["ranks"], parts["setup"], parts["wrapped"], traced, "dist.destroy_process_group()"
    )
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, program]
    finished = run_program(*started, cwd=tmp_path, **ON_A_CPU)
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / "logs" / "before"
    workers = sorted(re.sub(r"\.\d+\.pt\.trace\.json\.gz$", "", path.name) for path in folder.iterdir())
    assert workers == [f"{socket.gethostname()}_{rank}" for rank in (0, 1)]
    ranks = explained(folder)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert [rank["steps"]["count"] for rank in ranks] == [3, 3]


RECORDING = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    python3? -m walkthrough (.+?)(?: +#.*)?$", RECORDING, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_for_a_rented_gpu_has_the_options_that_the_page_gives_it(line):
    words = shlex.split(line.replace("<device>", "device"))
    args, others = _parser().parse_known_args(words)
    assert args.command == words[0]
    assert not others or hasattr(args, "passed_on")  # to the steps


QUESTIONS = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^    walkthrough (.+)$", QUESTIONS, re.MULTILINE))
def test_a_command_that_answers_a_question_is_a_command(line):
    args, others = _parser().parse_known_args(shlex.split(line))
    assert args.command == shlex.split(line)[0]
    assert not others


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", QUESTIONS, re.DOTALL | re.MULTILINE))
def test_python_that_answers_a_question_is_python(block):
    compile(block, "questions.md", "exec")
