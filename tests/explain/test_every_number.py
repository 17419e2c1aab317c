"""Every number that `explain` prints is in the object that `--json` prints."""

import json
import re
from collections.abc import Iterator

import pytest
from support import ROOT
from support.trace_builder import run_ahead, two_steps
from test_golden_texts import copies_only, inference, outlying_step, rank, without_steps

from walkthrough.terminal import count_text, rounded_time, size_text, time_text

BUILT = {
    "two steps": two_steps,
    "of 2021": lambda: two_steps("2021"),
    "run ahead": run_ahead,
    "inference": inference,
    "copies only": copies_only,
    "without steps": without_steps,
    "outlying step": outlying_step,
    "rank": lambda: rank(1),
}
RECORDED = sorted((ROOT / "tests" / "data").glob("*.trace.json.gz"))
NUMBER = re.compile(r"\d+(?:\.\d+)?(?: (?:us|ms|s|GB/s|GB|MB|kB|B)\b|%|x)?")


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def renderings(numbers):
    """All that a number may be printed as."""
    texts = set()
    for number in map(abs, numbers):
        texts |= {time_text(number), rounded_time(number), size_text(number), count_text(number), f"{number:.0f}"}
        texts |= {f"{number:.1%}", f"{number:.0%}", f"{number:.1f}%", f"{number:.2f}x", f"{number:.1f}x"}
        texts |= {f"{number:.1f} GB/s", time_text(number).split()[0]}
    return texts


@pytest.fixture(params=[*BUILT, *RECORDED], ids=lambda trace: trace if isinstance(trace, str) else trace.name[:24])
def trace(request, tmp_path):
    if isinstance(request.param, str):
        return BUILT[request.param]().write(tmp_path / "made.json")
    return request.param


@pytest.mark.parametrize("words", [[], ["--all"]], ids=["verdict", "all"])
def test_every_number_of_the_text_is_in_the_json(trace, words, run):
    report = json.loads(run(trace, "--json")[0])
    values = list(leaves(report))
    known = renderings(value for value in values if isinstance(value, int | float))
    known |= {str(number) for number in range(1, len(report["advice"]) + 1)}
    known |= {number for value in values if isinstance(value, str) for number in NUMBER.findall(value)}  # in sentences
    text = " ".join(run(trace, *words)[0].partition(" · ")[2].split())  # without the file's name, nor ends of lines
    assert [number for number in NUMBER.findall(text) if number not in known | {"100%"}] == []
