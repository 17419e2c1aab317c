"""The code that the docs show is the code that runs: docs/your_own_script.md as one program, and as a rank.

The commands of all pages are parsed; `tests/records/test_rehearsal.py` runs those of docs/recording.md.
"""

import gzip
import json
import re
import runpy
import shlex
import socket

import pytest
from support import ROOT

from walkthrough.cli import _parser

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")  # of the profiler
PAGE = (ROOT / "docs" / "your_own_script.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PARTS = dict(zip("setup timing trace loop ranks wrapped".split(), BLOCKS, strict=True))  # by what they are for


@pytest.fixture
def run_page(tmp_path, monkeypatch, finished):
    """run_page(*blocks): a program of these blocks, run in a folder of its own: what it prints."""

    def run(*blocks):
        program = tmp_path / "train.py"
        program.write_text("\n\n".join(blocks), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        done = finished(runpy.run_path, str(program))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def explained(run_command):
    return lambda path: json.loads(run_command("explain", path, "--json").stdout)


def test_the_page_is_a_program_that_prints_its_speed_and_records_three_steps(explained, run_page, tmp_path):
    printed = run_page(PARTS["setup"], PARTS["timing"], PARTS["trace"], PARTS["loop"])
    assert re.fullmatch(r"\d+ images/s \(windows \d+ to \d+\)", printed.strip())
    (trace,) = (tmp_path / "logs" / "before").iterdir()
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}_\d+\.\d+\.pt\.trace\.json\.gz", trace.name)
    summary = explained(trace.parent)
    assert summary["steps"]["names"] == ["2", "3", "4"]
    assert summary["steps"]["breakdown_us"]["dataloader"] > 0
    assert summary["memory"]["peak_allocated_bytes"] > 0
    assert explained(tmp_path / "logs" / "after")["steps"]["names"] == ["11", "12", "13"]


def test_a_rank_records_a_trace_that_holds_its_rank(run_page, monkeypatch, tmp_path):
    """The only one of its training: tests/explain and tests/attach have traces of several."""
    launched = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}
    for name, value in launched.items():  # as torchrun does; the system chooses the port
        monkeypatch.setenv(name, str(value))
    name, handler = 'worker_name=f"{socket.gethostname()}_{rank}"', 'tensorboard_trace_handler("logs/before", '
    assert f"`{name}`" in PAGE and handler in PARTS["trace"]
    traced = PARTS["trace"].replace(handler, f"{handler}{name}, ")
    run_page(PARTS["ranks"], PARTS["setup"], PARTS["wrapped"], traced, "dist.destroy_process_group()")
    (trace,) = (tmp_path / "logs" / "before").iterdir()
    assert trace.name.startswith(f"{socket.gethostname()}_0.")
    recorded = json.loads(gzip.decompress(trace.read_bytes()))["distributedInfo"]
    assert (recorded["rank"], recorded["world_size"]) == (0, 1)


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
