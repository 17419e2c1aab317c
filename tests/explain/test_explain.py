"""The command `explain`: for which kinds of paths, in which form, and what it refuses. Texts: `test_golden_texts`."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pytest import approx
from support import ROOT, assert_refused, make_result, run_program, write_run
from support.trace_builder import TraceBuilder, one_step, repeated, two_steps
from test_golden_texts import amd_trace, ladder_in, launching

from walkthrough.cli import main
from walkthrough.compare import predictions as predicted
from walkthrough.compare.statistics import Ratio
from walkthrough.results import result as record
from walkthrough.results.errors import printable, size
from walkthrough.terminal import rounded_time, time_text

RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


# What a path may be.


def test_the_json_of_a_run_folder_is_that_of_its_newest_trace(run, tmp_path):
    for stamp, steps in ((1_700_000_000_000, 1), (1_800_000_000_000, 2)):
        repeated(lambda *_: None, steps=steps).write(tmp_path / f"host.{stamp}.pt.trace.json")
    os.utime(tmp_path / "host.1700000000000.pt.trace.json")
    out, err = run(tmp_path, "--json")
    result = json.loads(out)
    assert (result["steps"]["count"], Path(result["file"]).name) == (2, "host.1800000000000.pt.trace.json")
    assert "2 traces" in err


def damaged(path):
    path.write_bytes(b"\x1f\x8b damaged")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("bad", [os.mkfifo, damaged])
def test_where_the_newest_trace_cannot_be_read_that_is_said_and_the_next_one_explained(
    run, assert_refuses, tmp_path, bad
):
    newest = tmp_path / "host.1800000000000.pt.trace.json"
    bad(newest)
    assert_refuses(tmp_path, message=newest.name)
    before = two_steps().write(tmp_path / "host.1700000000000.pt.trace.json")
    for words in ([tmp_path, "--json"], [tmp_path, before]):
        out, err = run(*words)
        assert before.name in out
        [line] = [line for line in err.splitlines() if newest.name in line]
        assert line.endswith("the next newest trace is read")


# Forms.


def test_before_and_after_show_what_changed(run, tmp_path):
    before = two_steps().write(tmp_path / "before.json")
    after = launching(("k", 0, 10, 20, 390), length=500).write(tmp_path / "after.json")
    assert "After: 2.00x the steps/s" in run(before, after)[0]
    result = json.loads(run(before, after, "--json")[0])
    assert result["moved"][0] == {"name": "dataloader", "before_us": 200.0, "after_us": 0.0}
    assert result["before"]["steps"]["mean_us"] == 1000


def test_steps_of_this_project_are_compared_by_their_images(run, tmp_path):
    for step, batch in (("00_baseline", 32), ("02_bigger_batch", 128)):
        result = make_result(step, batch_size=batch)
        two_steps().write(write_run(tmp_path, result) / result.trace)
    out, _ = run(tmp_path / "00_baseline", tmp_path / "02_bigger_batch")
    assert "4.00x the samples/s, with 32 per step before and 128 after" in out


@pytest.mark.parametrize(
    ("other", "different", "units"),
    [
        (two_steps(), False, "Tensor Cores"),
        (launching(("k", 0, 10, 20, 390), devices=()), False, "Tensor Cores"),  # of a name that nobody knows
        (amd_trace(), True, "Tensor Cores / Matrix cores"),
    ],
)
def test_traces_of_two_different_gpus_are_said_to_be(run, tmp_path, other, different, units):
    out, _ = run(two_steps().write(tmp_path / "a.json"), other.write(tmp_path / "b.json"))
    assert ("Two different GPUs" in out) == different
    assert f"\n  {units}  " in out


def test_ranks_have_a_row_each_and_their_spread_and_one_that_is_cut_off_is_left_out(run, tmp_path):
    for rank, length in ((0, 1000), (1, 1100), (2, 1000)):
        builder = one_step(length, rank=rank)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 0, 1, 100, 300 - rank * 100)
        path = builder.write(tmp_path / f"host_{rank}.1700000000{rank}00.pt.trace.json")
    path.write_bytes(path.read_bytes()[:-20])
    out, err = run(tmp_path)
    assert "rank 2 is left out" in err
    assert "2 ranks; rank 1 takes 10.0% longer per median step than rank 0" in out
    result = json.loads(run(tmp_path, "--json")[0])
    assert [row["rank"] for row in result["ranks"]] == [0, 1]
    assert result["mean_step_us"] == {"min": 1000, "mean": 1050, "max": 1100}


def test_a_ladder_shows_the_predicted_and_the_measured_gain_of_each_step(run, tmp_path):
    ladder = ladder_in(tmp_path / "device")
    result = json.loads(run(ladder, "--json")[0])["ladder"]
    assert [(row["step"], row["outcome"], row["estimate"]) for row in result] == [
        ("04_multiprocess_loading", "within", "above"), ("05_pinned_memory", "miss", "below")
    ]  # fmt: skip
    assert [row["estimated_gain"] for row in result] == approx([1.25, 1 / 0.95], rel=0.01)
    assert run(tmp_path)[0] == run(ladder)[0]  # a folder of ladders, here of one


def test_steps_whose_result_or_trace_cannot_be_read_are_named_and_the_others_still_show(run, assert_refuses, tmp_path):
    folder = ladder_in(tmp_path)
    (folder / "00_baseline" / make_result().trace).write_bytes(b"no trace")
    out, err = run(folder)
    assert "not JSON" in err and "cannot tell" in out and "miss" in out
    (folder / "05_pinned_memory" / "result.json").write_text("broken")
    assert len([line for line in run(folder)[1].splitlines() if "05_pinned_memory" in line]) == 1
    (folder / "04_multiprocess_loading" / "result.json").unlink()
    (folder / "05_pinned_memory" / "result.json").unlink()
    assert_refuses(folder, message="one step only")


@pytest.mark.parametrize(
    ("bound", "estimate", "interval", "outcome", "where"),
    [
        (1.25, None, (1.2, 1.4), "within", None),
        (1.25, 1.1, (1.25, 1.4), "within", "below"),
        (1.25, 1.27, (1.27, 1.4), "miss", "inside"),
        (1.25, 1.2, (0.9, 1.2), "within", "inside"),  # it includes 1 but not the bound
        (1.25, 1.4, (0.9, 1.3), "cannot tell", "above"),
        (1.0, None, (0.9, 1.1), "cannot tell", None),
        (None, 1.5, (1.2, 1.4), "cannot tell", "above"),
    ],
)
def test_a_gain_lies_within_its_bound_and_around_its_estimate(bound, estimate, interval, outcome, where):
    advice = predicted.Advice("04_x", "t", "w", 0.2, bound, estimate)
    row = predicted.Prediction("a", "b", advice, gain := Ratio(1.3, *interval, 5))
    assert (row.outcome, row.estimate) == (outcome, where)
    [shown] = predicted.table([row]).texts()
    said = f"{outcome}; estimate {where}" if where else outcome
    about = [f"{estimate:.2f}x"] if estimate else []
    assert shown == ["b", *about, f"{bound:.2f}x" if bound else "no bound", str(gain), said]


def test_a_part_of_a_trace_gives_no_advice_and_is_not_called_a_cpus(run, tmp_path):
    path = two_steps().write(tmp_path / "cut.pt.trace.json")
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"cudaMemcpyAsync"')])  # before the first event of the device
    out, err = run(path)
    assert len(err.splitlines()) == 1 and "cut off" in err
    assert "no event of a GPU in what is left of the file" in out and "at most" not in out
    out, _ = run(path, two_steps().write(tmp_path / "whole.pt.trace.json"))
    assert "cannot be compared" in out and "steps/s" not in out


# Letters and terminals.


def test_names_of_a_trace_cannot_control_a_terminal(run, tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "\x1b]0;title\x07GPU\u202e"}])
    builder.step("1\x1b[2J", 0, 100)
    op = builder.op("aten::\x1b[31mred", 0, 50)
    builder.launch("kernel\r\n\x1b[A\x9b[bold]", 5, 1, 10, 20, op=op)
    builder.memory(5, 100, 100, 100, address=1)
    out, err = run(builder.write(tmp_path / "made.json"), "--all")
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)
    assert "[bold]" in out
    out, _ = run(tmp_path / "made.json", "--json")
    assert out.isascii()
    assert json.loads(out)["gpus"][0]["name"] == "\x1b]0;title\x07GPU\u202e"


def test_an_encoding_without_some_characters_is_enough(tmp_path, monkeypatch):
    builder = launching(("kernel_" * 50, 5, 1, 10, 20), length=100, devices=[{"id": 0, "name": "GPU 大"}])
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as exited:
        main(["explain", "--all", str(builder.write(tmp_path / "made.json"))])
    assert exited.value.code == 0
    text = stdout.buffer.getvalue().decode("ascii")
    assert "GPU ?" in text and "kernel_kernel_" in text and "####" in text


def test_printable_keeps_what_people_write():
    assert printable("Größe 大 [x]  y\n") == "Größe 大 [x] y"
    assert printable("a\x00\x1b\u202eb\ud800") == "a\ufffd\ufffd\ufffdb\ufffd"
    assert printable("abcdef", 4) == "abc…"


def test_no_number_is_printed_that_says_nothing():
    assert (time_text(-0.04), rounded_time(-0.4)) == ("0.0 us", "0 us")
    assert (time_text(999.96), rounded_time(999.7)) == ("1.0 ms", "1.0 ms")


# Refusals.


def test_sizes_are_read_as_people_write_them():
    texts = "1MB", "8GB", "1.5GiB", "2000000"
    assert [size(text) for text in texts] == [10**6, 8 * 10**9, 3 * 2**29, 2 * 10**6]


def test_what_cannot_be_read_ends_with_one_line_and_exit_code_2(assert_refuses, tmp_path):
    broken, bulky, empty, mine = (tmp_path / name for name in ("broken.json", "bulky.json", "empty", "runs/mine"))
    broken.write_text("broken")
    bulky.write_text('{"traceEvents": [' + " " * 1_100_000 + "]}")
    empty.mkdir()
    mine.mkdir(parents=True)
    (empty / "a.pt.trace.json").symlink_to("gone")
    two_steps().write(mine / "b.pt.trace.json")
    for words, message in (
        ([tmp_path / "samples" / "a" / "none.json"], f"`walkthrough samples {tmp_path / 'samples'}` fetches them"),
        ([broken], "not JSON"),
        ([empty], "holds no trace"),
        ([mine.parent], "mine"),  # a folder of folders
        ([broken, broken, broken], "3 paths"),
        ([bulky, "--max-size", "1MB"], "--max-size"),
        *(([RECORDED, f"--max-size={text}"], "see walkthrough explain --help") for text in ("5", "-1GB", "1XB", "nan")),
        ([RECORDED, "--al"], "explain: unrecognized arguments: --al (see walkthrough explain --help)"),
        ([tmp_path / "\x1b[31m.json"], "does not exist"),
        (["a" * 300], "File name too long"),
    ):
        assert_refuses(*words, message=message)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_under_the_output_is_one_line():
    command = [sys.executable, "-m", "walkthrough", "explain", RECORDED]
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert_refused(finished, "No space left")


# What is imported, and other commands that read traces.


IMPORTS = """
import sys
import walkthrough

def after(*words):
    try:
        walkthrough.cli.main(["explain", *words])
    except SystemExit:
        pass
    print(*sys.modules)

print(*sys.modules)
import walkthrough.cli
after("--help")
after("--json", sys.argv[1])
after(sys.argv[1])
"""
SLOW = {"torch", "torchvision", "torch_tb_profiler", "tensorboard", "matplotlib", "pandas", "numpy.ma", "rich"}
SLOW |= {"importlib.metadata", "email", "hashlib", "subprocess", "tempfile", "statistics", "walkthrough.results.result"}


def test_explain_imports_only_what_it_needs(tmp_path):
    lines = run_program("-c", IMPORTS, two_steps().write(tmp_path / "gpu.pt.trace.json.gz")).stdout.splitlines()
    package, as_help, as_json, as_text = (set(line.split()) for line in lines if line.startswith("sys "))
    assert package & {"numpy", "msgspec"} == as_help & (SLOW | {"numpy", "msgspec"}) == set()
    own = {name.split(".")[1] for name in as_json if name.startswith("walkthrough.")}
    assert own == {"cli", "explain", "advice", "trace", "results", "terminal"}
    assert as_json & (SLOW | {"common", "walkthrough.explain.text"}) == set()
    assert as_text & SLOW == set()


def test_the_runs_of_a_real_tour_are_explained(run, quick_tour):
    results, _ = record.read_results(quick_tour.logdir)
    [(ladder, rows)], problems = predicted.predictions(quick_tour.logdir, results)
    assert (problems, all(row.advice for row in rows)) == ([], True)
    assert [row.step for row in rows] == [row.result.step for row in ladder.acting[1:]]
    assert json.loads(run(quick_tour.logdir / "04_multiprocess_loading", "--json")[0])["steps"]["count"] == 3


def test_where_a_trace_is_gone_compare_shows_the_rest(tmp_path, run_command):
    folder = ladder_in(tmp_path)
    (folder / "00_baseline" / make_result().trace).unlink()
    compared = run_command("compare", folder)
    assert (compared.returncode, "no figures from a trace" in compared.stderr) == (0, True)
    [row] = [line.split() for line in compared.stdout.splitlines() if line.startswith("00_baseline")]
    assert row[-2:] == ["-", "-"]
