"""Damaged and hostile results: a bad run is named and left out, and the others are compared all the same."""

import io
import json
import random
from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support import make_result, some_place, write_run

from walkthrough.compare.ladder import comparison, print_ladders
from walkthrough.compare.rounds import comparisons

GOOD = make_result("01_good")
RAW = {"huge": "9" * 5000, "infinite": "1e999", "nan": "NaN", "deep": "[" * 100_000}
ODD = [
    *(None, True, [], {}, "", 0, -1, 0.5, 1e308, -1e308, 5e-324, 1e-9, 1e18, 2**53, 2**63, 10**400),
    *("\ud800", "\x1b[31m\n", "[bold]", "x" * 10**5, [1e308, 1e308], [5e-324], [[1]]),
    *({"median": 1e308, "windows": [1e308]}, *(f"@{name}@" for name in RAW)),
]


def mutated(chance):
    """A result's text with one to four odd values, or damage."""
    value = deepcopy(GOOD.as_json()) | {"step": "02_odd"}
    for _ in range(chance.randint(1, 4)):
        inside, key = some_place(value, chance)
        if chance.random() < 0.1:
            del inside[key]
        else:
            inside[key] = deepcopy(chance.choice(ODD))
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(f'"@{name}@"', raw)
    return text[: chance.randrange(len(text))] if chance.random() < 0.1 else text


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_any_result_leaves_the_others_to_be_compared(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("logs")
    for step in ("00_baseline", "01_good"):
        write_run(folder, make_result(step))
    (folder / "02_odd").mkdir()
    (folder / "02_odd" / "result.json").write_text(mutated(random.Random(seed)))
    compared, problems = comparisons(folder)
    assert sum(len(one.rows) for one in compared) + len(problems) == 3
    answer = comparison(compared)
    json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
    assert {"00_baseline", "01_good"} <= {row["step"] for row in answer["rows"]}
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
    print_ladders(compared, Console(file=printed, width=140))
    printed.flush()
    assert b"\x1b" not in printed.buffer.getvalue()
