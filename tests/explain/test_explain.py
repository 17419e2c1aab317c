"""The command `explain`: for which kinds of paths, in which form, and what it refuses. Texts: `test_golden_texts`."""

import errno
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pytest import approx
from support import ROOT, assert_refused, make_result, run_program, write_run
from support.trace_builder import TraceBuilder, two_steps
from test_golden_texts import amd_trace, ladder_in, one_step

from walkthrough.cli import main
from walkthrough.compare import predictions as predicted
from walkthrough.compare import rounds
from walkthrough.compare.statistics import SAME, Ratio
from walkthrough.explain import command as explain
from walkthrough.explain import text as written
from walkthrough.results import result as record
from walkthrough.results.errors import InputError, printable, size
from walkthrough.terminal import rounded_time, time_text
from walkthrough.trace import chrome_trace

RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


# What a path may be.


def test_the_json_of_a_run_folder_is_that_of_its_newest_trace(run, tmp_path):
    for stamp, steps in ((1_700_000_000_000, 1), (1_800_000_000_000, 2)):
        builder = TraceBuilder()
        for number in range(steps):
            builder.step(number, number * 100, 100)
        builder.write(tmp_path / f"host.{stamp}.pt.trace.json")
    os.utime(tmp_path / "host.1700000000000.pt.trace.json")
    out, err = run(tmp_path, "--json")
    result = json.loads(out)
    assert (result["steps"]["count"], Path(result["file"]).name) == (2, "host.1800000000000.pt.trace.json")
    assert "2 traces" in err


def test_traces_of_other_names_are_found_beside_a_result(tmp_path):
    folder = write_run(tmp_path, make_result())
    two_steps().write(folder / "trace_rank_0.json.gz")
    assert explain.traces_at(folder)[0].name == "trace_rank_0.json.gz"


def link_to_a_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def listening(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def damaged(path):
    path.write_bytes(b"\x1f\x8b damaged")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("bad", [os.mkfifo, link_to_a_pipe, listening, Path.touch, damaged, Path.mkdir])
def test_where_the_newest_trace_cannot_be_read_that_is_said_and_the_next_one_explained(
    run, assert_refuses, tmp_path, monkeypatch, bad
):
    monkeypatch.chdir(tmp_path)
    newest = tmp_path / "host.1800000000000.pt.trace.json"
    bad(newest)
    assert_refuses(tmp_path, message=newest.name)
    before = two_steps().write(tmp_path / "host.1700000000000.pt.trace.json")
    for words in ([tmp_path], [tmp_path, "--json"], [tmp_path, before]):
        out, err = run(*words)
        assert before.name in out
        [line] = [line for line in err.splitlines() if newest.name in line]
        assert line.endswith("the next newest trace is read")


def test_of_a_folder_of_folders_those_with_traces_are_named_and_links_to_nothing_are_none(tmp_path):
    (tmp_path / "mine").mkdir()
    shutil.copy(RECORDED, tmp_path / "mine")
    (tmp_path / "mine" / "a.pt.trace.json").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="mine"):
        explain.traces_at(tmp_path)
    assert [path.name for path in explain.traces_at(tmp_path / "mine")] == [RECORDED.name]


def test_a_trace_without_permission_is_one_line(assert_refuses, tmp_path, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(chrome_trace, "open_plain", denied)
    assert_refuses(two_steps().write(tmp_path / "made.json"), message="Permission denied")


# Forms.


def test_before_and_after_show_what_changed(run, tmp_path):
    before = two_steps().write(tmp_path / "before.json")
    after = one_step(("k", 0, 10, 20, 390), length=500).write(tmp_path / "after.json")
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
    ("devices", "different"),
    [([{"id": 0, "name": "NVIDIA A100"}], True), ([], False), (two_steps().header["deviceProperties"], False)],
)
def test_traces_of_two_different_gpus_are_said_to_be(run, tmp_path, devices, different):
    builder = two_steps()
    builder.header["deviceProperties"] = devices
    out, _ = run(two_steps().write(tmp_path / "a.json"), builder.write(tmp_path / "b.json"))
    assert ("Two different GPUs" in out) == different


@pytest.mark.parametrize("nvidia", [True, False])
def test_the_units_of_both_makers_are_named_where_gpus_of_two_are_compared(run, tmp_path, nvidia):
    amd = amd_trace().write(tmp_path / "amd.json")
    out, _ = run(two_steps().write(tmp_path / "nvidia.json") if nvidia else amd, amd)
    assert ("Tensor Cores / Matrix cores" in out) == ("Tensor Cores" in out) == nvidia
    assert "Matrix cores" in out


def test_ranks_have_a_row_each_and_their_spread_and_one_that_is_cut_off_is_left_out(run, tmp_path):
    for rank, length in ((0, 1000), (1, 1100), (2, 1000)):
        builder = TraceBuilder(rank=rank)
        builder.step(1, 0, length)
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
    ladders, _ = predicted.predictions(ladder, record.read_results(ladder)[0])
    loading = "| 04_multiprocess_loading | 1.25x | 1.25x | 1.20x (1.20-1.20) | within; estimate above |"
    assert loading in predicted.table(ladders[0][1]).markdown()
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


def test_gains_within_the_bound_are_no_miss_and_an_interval_with_no_gain_and_the_bound_decides_nothing():
    some, none = (predicted.Advice("04_x", "t", "w", 0.2, gain) for gain in (1.25, 1.0))
    outcomes = [
        predicted.Prediction("a", "b", advice, Ratio(1.3, low, high, 5)).outcome
        for advice, low, high in (
            (some, 1.2, 1.4), (some, 1.25, 1.4), (some, 1.27, 1.4), (some, 0.9, 1.2), (some, 0.9, 1.3), (none, 0.9, 1.1)
        )
    ]  # fmt: skip
    assert outcomes == ["within", "within", "miss", "within", "cannot tell", "cannot tell"]
    assert predicted.Prediction("a", "b", None, SAME).outcome == "cannot tell"


def test_an_estimate_lies_inside_the_measured_interval_above_or_below_it():
    gain = Ratio(1.3, 1.2, 1.4, 5)
    where = {
        estimate: predicted.Prediction("a", "b", predicted.Advice("04_x", "t", "w", 0.2, None, estimate), gain)
        for estimate in (None, 1.1, 1.2, 1.4, 1.5)
    }
    assert [row.estimate for row in where.values()] == [None, "below", "inside", "inside", "above"]
    both = predicted.table([where[1.5], where[None]]).texts()
    assert both[0] == ["b", "1.50x", "no bound", str(gain), "cannot tell; estimate above"]
    assert both[1] == ["b", "-", "cannot tell", str(gain), "cannot tell"]
    assert predicted.table([where[None]]).texts() == [["b", "cannot tell", str(gain), "cannot tell"]]


def test_a_part_of_a_trace_gives_no_advice_and_is_not_called_a_cpus(run, tmp_path):
    path = two_steps().write(tmp_path / "cut.pt.trace.json")
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"cudaMemcpyAsync"')])  # before the first event of the device
    out, err = run(path)
    assert len(err.splitlines()) == 1 and "cut off" in err
    assert "no event of a GPU in what is left of the file" in out and "at most" not in out
    result = json.loads(run(path, "--json")[0])
    assert (result["advice"], "cut off" in result["warnings"][0]) == ([], True)
    out, _ = run(path, two_steps().write(tmp_path / "whole.pt.trace.json"))
    assert "cannot be compared" in out and "steps/s" not in out


def test_the_json_has_what_the_text_concludes(run, tmp_path):
    path = two_steps().write(tmp_path / "made.json")
    result, text = json.loads(run(path, "--json")[0]), " ".join(run(path)[0].split())
    assert result["bound"][1:] in text and result["why_idle"] in text
    assert (result["warnings"], [row["gpu"] for row in result["idle"]]) == ([], [0])
    assert all(set(row["titles"]) <= {row["title"] for row in result["advice"]} for row in result["combined"])
    assert f"together: {result['combined'][0]['gain']}" in text


def test_the_memory_of_one_gpu_has_the_number_that_its_events_have(run, tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "A"}, {"id": 5, "name": "B"}])
    builder.step(1, 0, 1000)
    builder.launch("k", 0, 5, 100, 300, device=5)  # of eight; the process sees one of them
    builder.memory(10, 1000, 1000, 2000)
    out, _ = run(builder.write(tmp_path / "made.json"), "--all")
    assert "GPU 5  1.0 kB    2.0 kB" in out and "GPU 0" not in out


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
    builder = one_step(("kernel_" * 50, 5, 1, 10, 20), length=100, devices=[{"id": 0, "name": "GPU 大"}])
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as exited:
        main(["explain", "--all", str(builder.write(tmp_path / "made.json"))])
    assert exited.value.code == 0
    text = stdout.buffer.getvalue().decode("ascii")
    assert "GPU ?" in text and "kernel_kernel_" in text and "####" in text


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("a clause; more, of it", "A clause; more, of it."),
        ("a clause that fits; one that does not fit", "A clause that fits."),
        ("workers need cores (2), which the training uses", "Workers need cores."),
        ("DataLoader(workers=4, kept=True) is one", "DataLoader(workers=4, kept=T…"),
        ("run `walk, and stop`, then look at what there is", "Run `walk, and stop`."),
        ("a single clause that is too long for a line", "A single clause that is too …"),
    ],
)
def test_what_does_not_fit_into_a_line_ends_where_a_part_of_it_does(words, shown):
    assert written._one_line(words, 29) == shown


def test_printable_keeps_what_people_write():
    assert printable("Größe 大 [x]  y\n") == "Größe 大 [x] y"
    assert printable("a\x00\x1b\u202eb\ud800") == "a\ufffd\ufffd\ufffdb\ufffd"
    assert printable("abcdef", 4) == "abc…"


def test_no_number_is_printed_that_says_nothing(run, tmp_path):
    times = time_text(-0.04), rounded_time(-0.4), time_text(999.96), rounded_time(999.7)
    assert times == ("0.0 us", "0 us", "1.0 ms", "1.0 ms")
    builder = one_step(("sm80_xmma_gemm_bf16bf16", 10, 10, 100, 900))
    builder.memory(5, 4, 4, 4)
    out, _ = run(builder.write(tmp_path / "made.json"), "--all")
    assert "Memory" not in out and "4 B" not in out
    assert " 0.0 us" not in out and "-0" not in out


# Refusals.


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1MB", 10**6), ("8GB", 8 * 10**9), ("1.5GiB", 3 * 2**29), ("2000000", 2 * 10**6)]
)
def test_sizes_are_read_as_people_write_them(text, bytes_):
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "5", "-1GB", "1XB", "GB", "nan", "1e9"])
def test_other_sizes_are_refused(assert_refuses, text):
    assert_refuses("x.json", f"--max-size={text}", message="--max-size")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_what_cannot_be_read_ends_with_one_line_and_exit_code_2(assert_refuses, tmp_path, more):
    broken, bulky = tmp_path / "broken.json", tmp_path / "bulky.json"
    broken.write_text("broken")
    bulky.write_text('{"traceEvents": [' + " " * 1_100_000 + "]}")
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([tmp_path / "missing.json"], "does not exist"),
        ([broken], "not JSON"),
        ([tmp_path / "empty"], "holds no trace"),
        ([broken, broken, broken], "3 paths"),
        ([bulky, "--max-size", "1MB"], "--max-size"),
        ([RECORDED, broken], "not JSON"),
        ([tmp_path / "\x1b[31m.json"], "does not exist"),
        (["a" * 300], "File name too long"),
    ):
        assert_refuses(*words, *more, message=message)


def test_a_refusal_as_a_program(tmp_path):
    finished = run_program("-m", "walkthrough", "explain", tmp_path / "\x1b[31m.json", cwd=ROOT)
    assert_refused(finished, "does not exist")
    assert "\x1b" not in finished.stderr and finished.stdout == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_under_the_output_is_one_line():
    command = [sys.executable, "-m", "walkthrough", "explain", RECORDED]
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert_refused(finished, "No space left")


# What is imported, and other commands that read traces.


def modules_after(*words):
    """The names of the modules that `explain` has imported after these words."""
    program = f"""
import runpy, sys
sys.argv = ["x", "explain", *{list(map(str, words))}]
try:
    runpy.run_module("walkthrough", run_name="__main__")
except SystemExit:
    pass
print(*sys.modules)
"""
    return set(run_program("-c", program).stdout.splitlines()[-1].split())


SLOW = {"torch", "torchvision", "torch_tb_profiler", "tensorboard", "matplotlib", "pandas", "numpy.ma"}
SLOW |= {"importlib.metadata", "email", "hashlib", "subprocess", "tempfile", "statistics", "walkthrough.results.result"}


def test_explain_imports_only_what_it_needs(tmp_path):
    assert modules_after("--help") & (SLOW | {"numpy", "msgspec", "rich"}) == set()
    for trace in (RECORDED, two_steps().write(tmp_path / "gpu.pt.trace.json.gz")):
        as_json, as_text = modules_after("--json", trace), modules_after(trace)
        own = {name.split(".")[1] for name in as_json if name.startswith("walkthrough.")}
        assert own == {"cli", "explain", "advice", "trace", "results", "terminal"}
        assert as_json & (SLOW | {"rich", "common", "walkthrough.explain.text"}) == set()
        assert as_text & (SLOW | {"rich"}) == set()


def test_the_runs_of_a_real_tour_are_explained(run, quick_tour):
    results, _ = record.read_results(quick_tour.logdir)
    [(ladder, rows)], problems = predicted.predictions(quick_tour.logdir, results)
    assert (problems, all(row.advice for row in rows)) == ([], True)
    assert [row.step for row in rows] == [row.result.step for row in ladder.acting[1:]]
    assert json.loads(run(quick_tour.logdir / "04_multiprocess_loading", "--json")[0])["steps"]["count"] == 3


@pytest.mark.parametrize(
    ("device", "units", "traced", "use"),
    [
        ({"id": 0, "name": "Tesla V100", "computeMajor": 7}, "Tensor Cores", True, ["40%", "0%"]),
        ({"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}, "Matrix cores", True, ["40%", "0%"]),
        ({"id": 0, "name": "Tesla V100", "computeMajor": 7}, "Tensor Cores", False, ["-", "-"]),
    ],
)
def test_compare_shows_the_gpu_use_from_the_traces(tmp_path, capsys, device, units, traced, use):
    folder = ladder_in(tmp_path, device)
    if not traced:
        (folder / "00_baseline" / make_result().trace).unlink()
    with pytest.raises(SystemExit) as exited:
        main(["compare", str(folder)])
    printed = capsys.readouterr()
    assert exited.value.code == 0
    assert ("no figures from a trace" in printed.err) != traced
    [row] = [line.split() for line in printed.out.splitlines() if line.startswith("00_baseline")]
    assert row[-2:] == use
    assert f"GPU busy, {units}: of the traced steps" in printed.out


def test_a_cpus_runs_need_no_trace_to_compare(tmp_path):
    assert rounds.gpu_use(tmp_path, rounds.ladders([make_result(device_type="cpu")])) == ({}, [])
