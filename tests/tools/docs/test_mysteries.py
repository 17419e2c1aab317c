"""The mystery traces: they show what the page's answers say, and give nothing away; the fixed programs train alike."""

import gzip
import json
import re

import pytest

from tools.docs import mysteries
from tools.docs.blocks import BLOCKS
from walkthrough.results import privacy
from walkthrough.trace.analysis import analyze
from walkthrough.trace.steps import ROLES

GIVEAWAYS = re.compile(r"augment|cache|sync|fixed|mystery|slow", re.IGNORECASE)


@pytest.fixture(scope="module")
def shown():
    return {name: analyze(mysteries.trace_of(name)) for name in mysteries.NAMES}


@pytest.mark.parametrize("name", mysteries.NAMES)
def test_a_trace_is_whole_gives_nothing_away_and_names_no_machine(shown, name):
    assert len(shown[name].steps.names) == mysteries.TRACED_STEPS.get(name, 3)
    assert shown[name].trace.warnings == shown[name].trace.recording.happenings == []
    text = gzip.decompress(mysteries.trace_of(name).read_bytes()).decode()
    assert GIVEAWAYS.findall(text) == []
    assert privacy.scrubbed(json.loads(text)) == json.loads(text)
    assert [own for own in privacy.own_names() if privacy.holds_name(text.encode(), own)] == []


def test_trace_c_waits_in_every_second_step(shown):
    waits, step = shown["c"].steps.breakdown[ROLES.index("dataloader")], shown["c"].steps.mean_us
    long, short = sorted((waits[::2], waits[1::2]), key=sum, reverse=True)
    assert min(long) > 5 * max(short)
    assert shown["c"].trace.recording.loaders[0].num_workers == 2
    bound = step / (step - waits.mean())  # L / S is twice that
    assert 2 < 2 * bound <= 8  # as many workers as the fixed program has
    assert f"| bound: the step without that wait | {bound:.2f}x |" in BLOCKS["mystery"](None, "c", "loader")


@pytest.mark.parametrize(("name", "epochs"), [("a", 2), ("b", 2), ("d", 1), ("e", 1)])
def test_the_fixed_program_prints_the_same_losses(run_here, name, epochs):
    before, after = (run_here(mysteries.program(name, fixed), "--epochs", epochs) for fixed in (False, True))
    assert before.returncode == after.returncode == 0
    losses = [re.findall(r"epoch \d: loss (\d\.\d{6})\n", one.stdout) for one in (before, after)]
    assert len(losses[0]) == epochs
    assert losses[0] == pytest.approx(losses[1]) if name == "d" else losses[0] == losses[1]


def test_what_was_measured_is_of_these_programs():
    measured = mysteries.read_measured()
    assert measured.programs == mysteries.checksums()
    assert list(measured.gains) == list(mysteries.NAMES)
    for gain in measured.gains.values():
        assert len(gain.before) == len(gain.after) == gain.rounds >= 2
        assert gain.low < gain.ratio < gain.high
