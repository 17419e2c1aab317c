"""Damaged and hostile results, by seed: a bad run is named and left out, and the others are compared all the same."""

import io
import json
import random
from copy import deepcopy

import pytest
from rich.console import Console
from support import make_result, some_place, write_run

from walkthrough.cli import main
from walkthrough.compare.ladder import comparison, print_ladders
from walkthrough.compare.rounds import comparisons
from walkthrough.results.result import read_results

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


def check(folder, seed):
    """What `compare` makes of a folder with this run and two good ones: finite, and it can be printed and sent."""
    for step in ("00_baseline", "01_good"):
        write_run(folder, make_result(step))
    (folder / "02_odd").mkdir(exist_ok=True)
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


@pytest.mark.parametrize("seed", range(100))
def test_any_result_leaves_the_others_to_be_compared(tmp_path, seed):
    check(tmp_path, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(1, 21))
def test_many_results_leave_the_others_to_be_compared(tmp_path, block):
    for seed in range(100 * block, 100 * block + 100):
        try:
            check(tmp_path, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize(
    "windows", ["[1e308, 1e308]", "[1e308, 5e-324]", "[0]", "[-1]", "[NaN]", "[" + "9" * 5000 + "]", "[]"]
)
def test_windows_that_no_machine_has_are_named_and_the_others_compared(tmp_path, capsys, windows):
    for step in ("00_baseline", "01_good", "02_odd"):
        write_run(tmp_path, make_result(step))
    path = tmp_path / "02_odd" / "result.json"
    value = json.loads(path.read_text())
    value["samples_per_second"]["windows"] = "@"
    path.write_text(json.dumps(value).replace('"@"', windows))
    for words in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["compare", str(tmp_path), *words])
        printed = capsys.readouterr()
        assert ended.value.code == 0
        assert [line for line in printed.err.splitlines() if "02_odd" in line and "is broken" in line]
        assert "01_good" in printed.out


@pytest.mark.parametrize("name", ["../00_baseline", "/tmp", "..", "a\\b", "x" * 10**5])
@pytest.mark.parametrize("field", ["step", "trace"])
def test_a_result_names_no_file_elsewhere(tmp_path, field, name):
    write_run(tmp_path, make_result())
    (tmp_path / "02_odd").mkdir()
    (tmp_path / "02_odd" / "result.json").write_text(json.dumps(make_result().as_json() | {field: name}))
    results, problems = read_results(tmp_path)
    assert len(results) == len(problems) == 1
    assert f"`$.{field}`" in problems[0]


def test_ten_million_windows_are_refused(tmp_path):
    write_run(tmp_path, make_result())
    path = tmp_path / "00_baseline" / "result.json"
    value = json.loads(path.read_text())
    value["samples_per_second"]["windows"] = [1] * 5_000_000
    path.write_text(json.dumps(value, separators=(",", ":")))
    results, problems = read_results(tmp_path)
    assert not results
    assert "<= 100000" in problems[0]
