"""The labs' numbered programs as lessons: each is whole, opens as a step does, and changes one thing."""

import ast
import difflib
import re
from itertools import pairwise

import pytest
from support import ROOT

LABS = ("memory", "scale", "simcls", "speedrun", "transformer")
PROGRAMS = {lab: sorted((ROOT / "labs" / lab).glob("[0-9][0-9]_*.py")) for lab in LABS}
PAIRS = [pair for files in PROGRAMS.values() for pair in pairwise(files)]
PAIRS = [(PROGRAMS["scale"][2] if after.stem == "06_nvjpeg" else before, after) for before, after in PAIRS]


def code_lines(path):
    """The lines of a program's code: no docstring, no comments, no blank lines."""
    text = path.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("lab", LABS)
def test_programs_are_whole_and_open_as_a_step_does(lab):
    for number, path in enumerate(PROGRAMS[lab]):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert re.match(rf"[A-Z][\w ]+ {number:02}: ", docstring)
        assert [docstring.count(f"\n{part} ") for part in ("Idea", "Change", "Look for", "Caution")] == [1] * 4
        assert 20 < len(code_lines(path)) <= 80


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{path.parent.name}-{path.stem}" for _, path in PAIRS])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    assert 0 < max(sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- ")) <= 15
