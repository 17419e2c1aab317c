"""The ladder's table and the command `compare`: whole texts in golden/, which `make golden-texts` writes anew."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import around, assert_golden, assert_refused, in_rounds, ladder_of, make_limit, make_result, write_run

from walkthrough.compare import figures, rounds
from walkthrough.compare.ladder import (
    PAIRS,
    PUBLISHED,
    comparison,
    intervals,
    page_table,
    print_ladders,
    summary,
)
from walkthrough.compare.study import write
from walkthrough.results import result as record
from walkthrough.results.result import NotRun

GOLDEN = Path(__file__).parent / "golden"
SLOW, FAST, NEAR = around(100.0), around(200.0), (97.0, 99.0, 100.1, 102.0, 104.0)


def a_limit():
    """What the table needs of a `roofs.Limit`, of 400 images/s."""
    return SimpleNamespace(
        setup=make_result().setup,
        batch_size=128,
        precision="bfloat16",
        started="2026-01-01T00:00:00+00:00",
        quick=False,
        fastest=SimpleNamespace(kind="compiled"),
        share_of_limit=lambda result: result.samples_per_second.median / 400.0,
        shares=lambda result: {"share_of_arithmetic_peak": None, "share_of_memory_roof": 0.123},
    )


def on_a_gpu():
    """Two ladders with everything that a table can have: notes of all and of some, a step that was not run, a limit."""
    slow, large = record.StepTime(13200.4, 1.0, 2.0), record.PeakMemory(123_510_000_000, None)
    results = [
        make_result(windows=SLOW, notes=["one", "two"]),
        make_result("01_amp", windows=NEAR, notes=["three", "two", "one"], started="2026-01-01T00:01:00+00:00"),
        make_result("03_reduced_h2d_copy", windows=(20.0, 60.0, 70.0, 70.0, 120.0), notes=["one", "three"]),
        make_result("04_multiprocess_loading", windows=around(12600.3), step_ms=slow, peak_memory_bytes=large,
                    notes=["one"]),
        make_result("01_amp", windows=FAST, device="Odd [/GPU]\x1b[2J", data="stand-in"),
        make_result("02_bigger_batch", windows=SLOW, device="Odd [/GPU]\x1b[2J", data="stand-in"),
    ]  # fmt: skip
    used = {"00_baseline": rounds.GpuUse(0.371, None, "Matrix Cores"), "01_amp": rounds.GpuUse(0.9, 0.25)}
    missing = [NotRun("02_bigger_batch", "no compiler")]
    first, *others = rounds.ladders(results)
    return [replace(first, missing=missing), *others], dict(used=used, limit=a_limit())


def on_a_cpu():
    """Steps of which one gains and four have no effect, although two of those happen to be fastest."""
    waits, pins, unpinned = "threads sleep", "no GPU: pinning has no effect", "no GPU: there is no cuDNN"
    results = [
        make_result(windows=SLOW, notes=[waits]),
        make_result("01_amp", windows=SLOW, needs="bf16 units", notes=[waits, "autocast is off"]),
        make_result("04_multiprocess_loading", windows=FAST, notes=[waits]),
        make_result("05_pinned_memory", windows=around(300.0), needs="a GPU", notes=[waits, pins]),
        make_result("12_cudnn_benchmark", windows=(224.0, 300.0, 375.0), needs="a GPU", notes=[waits, unpinned]),
        make_result("16_data_parallel", windows=(300.0, 400.0, 500.0), needs="a second process",
                    notes=[waits, "one trains"]),  # half their range is UNSTEADY's limit itself, and 12's just above
    ]  # fmt: skip
    return rounds.ladders([replace(result, device_type="cpu", model="tiny_convmixer") for result in results]), {}


CASES = {("on_a_gpu", 200): on_a_gpu, ("on_a_cpu", 80): on_a_cpu}


def printed(ladders, width=140, **more):
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    print_ladders(ladders, console, **more)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


@pytest.mark.parametrize(("case", "width"), CASES)
def test_the_printed_ladder_is_the_golden_one(case, width):
    ladders, more = CASES[case, width]()
    text = printed(ladders, width, **more)
    assert_golden(text, GOLDEN / f"{case}_{width}.txt")
    assert max(map(len, text.splitlines())) <= width


def test_parts_that_fit_beside_each_other_share_a_table():
    ladders, more = on_a_gpu()
    counts = {width: printed(ladders[:1], width, **more).count("\nstep  ") for width in (59, 113, 114, 179, 180)}
    assert counts == {59: 5, 113: 3, 114: 2, 179: 2, 180: 1}


def test_a_page_shows_the_cells_of_the_terminal():
    [ladder, _], _ = on_a_gpu()
    gain, page = ladder.rows[1].gain, page_table(ladder, a_limit()).splitlines()
    assert page[0].startswith("| step | batch | images/s | vs step before | vs baseline | windows | rounds | step ms |")
    assert page[3] == f"| `01_amp` | 32 | 100.1 | {gain} | {gain} | 97.0 to 104.0 | 1 | 319.7 | 2510 | 25% |"
    some = page_table(ladder, steps=["01_amp"], gains=False).splitlines()
    assert some[2:] == ["| `01_amp` | 32 | 100.1 | 97.0 to 104.0 | 1 | 319.7 | 2510 |"]
    needs = page_table(on_a_cpu()[0][0]).splitlines()[-1]
    assert needs.split(" | ")[2:5] == ["400.0", "needs a second process", ""]


def ladder_with_gains(*gains):
    """Steps with these ratios to the step before; None: no measurable difference; a text: what one needs."""
    steps, speed = [make_result(windows=around(100.0))], 100.0
    for number, gain in enumerate(gains, start=1):
        needs = gain if isinstance(gain, str) else None
        speed *= 1.0 if needs else gain or 1.0
        steps.append(make_result(f"{number:02}_step", windows=around(speed), needs=needs))
    return rounds.ladders(steps)[0]


@pytest.mark.parametrize(
    ("gains", "text"),
    [
        ((), "Only 00_baseline is here: there is nothing to compare it with."),
        ((1.5, None, 2.0), r"Top of the ladder: 03_step, 3.00x \(.*\) the baseline. Different from the step before "
                           r"beyond the spread of this one round's windows: 2 of 3 \(faster: 01 1.50x, 03 2.00x\). "
                           r"More rounds show how much runs vary: `tour --rounds 5`."),
        ((2.0, 0.5), r"Top of the ladder: 01_step, 2.00x .* 2 of 2 \(faster: 01 2.00x; slower: 02 0.50x\).*"),
        ((0.5,), r"No step is faster than the baseline. .* 1 of 1 \(slower: 01 0.50x\).*"),
        ((1.5, None, 1.002), r"Top of the ladder: 01_step, 1.50x \(.*\) the baseline; "
                             r"03_step, with the largest ratio, is ~1.00x \(.*\) that, no measurable difference. "
                             r".*: 1 of 3 \(faster: 01 1.50x\).*"),
        ((1.002,), r"Top of the ladder: 01_step, ~1.00x \(.*\) the baseline, no measurable difference. "
                   r".*: none of 1.*"),
        (("a GPU", "a GPU"), r"No step.* none of 0.* 2 steps have no effect on this device \(01, 02\)."),
    ],
)  # fmt: skip
def test_a_sentence_sums_a_ladder_up(gains, text):
    assert re.fullmatch(text, summary(ladder_with_gains(*gains)))


def test_no_step_is_measurably_faster_than_the_top():
    windows = [SLOW, around(150.0), around(170.0), (120.0, 150.0, 190.0, 250.0, 300.0)]  # the last as fast as any
    [ladder] = rounds.ladders(make_result(f"0{number}_step", windows=speeds) for number, speeds in enumerate(windows))
    assert re.match("Top of the ladder: 02_step, 1.70x .* baseline; 03_step, .* is ~1.12x .* that, no", summary(ladder))


@pytest.mark.parametrize(
    ("kept", "again", "source", "label"),
    [
        ((1, 1), None, "of one round's windows, without run-to-run", "one round (no run-to-run variation)"),
        ((2, 2), None, "over 2 rounds, in each of which every step ran", "2 rounds"),
        ((3, 2), None, "over the 2 to 3 rounds in which both steps ran", "2 to 3 rounds"),
        ((3, 3), 1, "over the up to 3 rounds", "1 to 3 rounds (1: no run-to-run variation)"),
    ],
)
def test_the_legend_says_what_the_intervals_are_from(tmp_path, kept, again, source, label):
    """again: the step that was run by itself since."""
    results = [in_rounds(tmp_path, "00_baseline", {number: SLOW for number in range(max(kept))})]
    for step, count in enumerate(kept, start=1):
        folder = tmp_path / ("elsewhere" if step == again else "")
        results.append(in_rounds(folder, f"{step:02}_step", {number: FAST for number in range(count)}))
    ladder = ladder_of(tmp_path, *results)
    assert f"the 95 % interval ({source}" in intervals(ladder)
    assert (PAIRS in intervals(ladder)) == (max(kept) > 1) == ("Measurably different" in summary(ladder))
    assert figures.interval_label(ladder) == f"95 % interval of {label}"


def test_the_published_figures_agree_with_each_other():
    for row in PUBLISHED.values():
        assert row.batch_size / row.step_ms * 1e3 == pytest.approx(row.images_per_second, rel=1.5e-3)
        of_baseline = row.images_per_second / PUBLISHED["00_baseline"].images_per_second
        assert of_baseline == pytest.approx(row.relative, abs=0.01)


@pytest.fixture
def command(run_command):
    """command(*words): exit code, output and error of `compare`."""
    return partial(run_command, "compare")


def test_the_json_is_the_results_and_their_relative_speed(tmp_path, command):
    in_rounds(tmp_path, "00_baseline", {1: around(100.0), 2: around(50.0)})
    in_rounds(tmp_path, "01_amp", {1: around(104.0), 2: around(49.0)})
    done = command(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert (list(value), value["baseline"]) == (["baseline", "rows", "warnings"], "00_baseline")
    base, row = value["rows"]
    assert [base[name] for name in ("relative", "relative_low", "relative_high", "resolved")] == [1.0, 1.0, 1.0, False]
    more = {name: row.pop(name) for name in list(row) if name not in make_result().as_json()}
    low, high = more.pop("relative_low"), more.pop("relative_high")
    assert low < 1 < high
    assert more.pop("relative") == pytest.approx((1.04 * 0.98) ** 0.5)
    assert more == {
        "resolved": False, "acts": True, "needs": None, "share_of_arithmetic_peak": None, "share_of_memory_roof": None
    }  # fmt: skip
    assert row == json.loads((tmp_path / "01_amp" / "result.json").read_text())
    write(tmp_path / "limit.json", make_limit(step_bytes=[{"precision": "float32", "fixed": 0.0, "per_image": 1e5}]))
    base, row = json.loads(command(tmp_path, "--json").stdout)["rows"]
    assert base["share_of_memory_roof"] == pytest.approx(0.0745)  # 74.5 images/s, 1e5 bytes each, of 1e8 bytes/s
    assert "% of limit" in command(tmp_path).stdout


def test_rows_of_another_ladder_and_of_no_effect_have_no_ratio_to_the_baseline():
    rows, warnings = (comparison(on_a_gpu()[0], a_limit())[name] for name in ("rows", "warnings"))
    assert [warning[:13] for warning in warnings] == ["UNSTEADY: the", "RUN APART: 01"]
    assert [row["relative"] and round(row["relative"]) for row in rows] == [1, 1, 1, 126, None, None]
    assert [row["resolved"] for row in rows] == [False, False, False, True, None, None]
    assert [row["share_of_memory_roof"] for row in rows] == [0.123] * 4 + [None] * 2
    needs = [None, "bf16 units", None, "a GPU", "a GPU", "a second process"]
    rows = comparison(on_a_cpu()[0])["rows"]
    assert [(row["acts"], row["needs"]) for row in rows] == [(need is None, need) for need in needs]


REFUSED = {  # what is in the folder, and what the line names besides it
    "mistyped": ({}, "is not there: name a folder of runs"),
    "empty": ({"": None}, "run `make tour`"),
    "one below": ({f"{number}/00_baseline/result.json": "" for number in range(7)}, "have: 0, 1, 2, 3, 4, 5\n"),
    "torn": ({"01_amp/result.json": "torn"}, "01_amp/result.json is broken: not JSON\n"),
    "a file": ({"": "text"}, "is a file: name a folder of runs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_without_readable_runs_is_refused(tmp_path, command, case):
    folder = tmp_path / "logs"
    files, text = REFUSED[case]
    for name, content in files.items():
        path = folder / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_text(content)
    done = command(folder)
    assert_refused(done, str(folder))
    assert text in done.stderr
    assert ("make tour" in done.stderr) == (case == "empty")


@pytest.mark.parametrize(
    "name", ["limit.json", "01_amp/not_run.json", "02_bigger_batch/result.json", "04_multiprocess_loading/runs/2.json"]
)
def test_a_broken_file_is_named_and_the_others_are_shown(tmp_path, command, name):
    for step in ("00_baseline", "04_multiprocess_loading"):
        in_rounds(tmp_path, step, {1: SLOW, 2: SLOW}, device_type="cpu")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("torn")
    done = command(tmp_path)
    assert done.returncode == 0
    assert "00_baseline" in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("skipped: ")
    assert f"{tmp_path / name} is broken" in line


def test_steps_of_another_version_are_named_where_they_share_a_number(tmp_path, command):
    for step in ("00_baseline", "06_channels_last"):
        write_run(tmp_path, make_result(step, device_type="cpu"))
    assert command(tmp_path).stderr == ""
    write_run(tmp_path, make_result("06_prefetch_stream", device_type="cpu"))
    done = command(tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert done.stderr.startswith("06_channels_last: of another version of the steps")


def test_a_table_into_a_closed_pipe_is_not_an_error(tmp_path):
    write_run(tmp_path, make_result(device_type="cpu"))
    command = f"{sys.executable} -m walkthrough compare {tmp_path} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
