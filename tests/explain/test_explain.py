"""The command `explain`: what it prints, for which kinds of paths, and what it refuses."""

import errno
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import ROOT, assert_refused, make_result, run_program, write_run
from support.trace_builder import V100, TraceBuilder, two_steps

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
from walkthrough.trace.kernel_names import short_name

RECORDED = ROOT / "tests" / "data" / "cpu.pt.trace.json.gz"


@pytest.fixture(autouse=True)
def no_forced_colours(monkeypatch):
    """Texts as in a pipe, whatever the environment of the tests."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def refused(explained):
    """refused(*words, message=...): asserts that `explain` refuses these words with one line on stderr only."""

    def command(*words, message):
        code, out, err = explained(*words)
        assert_refused(SimpleNamespace(returncode=code, stderr=err), message)
        assert out == ""
        assert "\x1b" not in err

    return command


def ladder_in(folder, device=V100):
    """Three runs whose traces predict at most 1.25x for workers: step 04 gains less than predicted, step 05 more."""
    windows = {"00_baseline": 100.0, "04_multiprocess_loading": 120.0, "05_pinned_memory": 200.0}
    for step, speed in windows.items():
        result = make_result(step, windows=[speed] * 5)
        builder = two_steps()
        builder.header["deviceProperties"] = [device]
        builder.write(write_run(folder, result) / result.trace)
    return folder


def test_without_step_marks_no_time_is_that_of_a_step(explained, tmp_path):
    builder = two_steps()
    builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep#")]
    code, out, _ = explained(builder.write(tmp_path / "made.pt.trace.json.gz"), "--all")
    assert code == 0
    assert "no step marks: 1.9 ms in all\n" in out
    assert "runs no kernel for 1.1 ms in this trace; meanwhile" in out
    assert "Kernels by kind, in this trace\n" in out


def test_a_first_look_names_the_parts_of_a_step_the_waits_and_what_to_do(explained, tmp_path):
    code, out, err = explained(two_steps().write(tmp_path / "made.pt.trace.json.gz"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "made.pt.trace.json.gz · Tesla V100 · 2 steps of 1.0 ms"
    assert (len(lines[1]), lines[1].count("▓"), lines[1].count("░")) == (100, 40, 20)
    assert lines[2].startswith("▓ kernels 40%   > copies 3%")
    assert "The GPU is idle for 600.0 us of a step" in out
    first = next(number for number, line in enumerate(lines) if line.startswith(" 1  "))
    assert lines[first].split("  ")[1:] == ["Use DataLoader workers", "about 1.25x", " steps/04"]
    assert lines[first + 1] == "    Each step waits 200 us for the main process to load its batch."
    assert "More: --all" in out and "volta_scudnn" not in out
    out = explained(tmp_path / "made.pt.trace.json.gz", "--all")[1]
    assert "  dataloader  200.0 us  20.0%  the loop waits for its next batch" in out
    assert "GPU 0 runs no kernel for 600.0 us per step" in out
    assert "volta_scudnn_128x64_relu_interior_nn_v1" in out
    assert "to the GPU      1  1.0 MB  30.0 us  33.3 GB/s  pageable 100%" in out


def test_kernels_are_grouped_by_kind_and_long_names_are_shortened(explained, tmp_path):
    name = "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_" + "_".join(f"P{number}" for number in range(100))
    builder = TraceBuilder(devices=[{"id": 0, "name": "AMD Instinct MI210"}])
    builder.step(1, 0, 1000)
    op = builder.op("aten::mm", 0, 100)
    builder.launch(name, 10, 5, 100, 300, op=op, call="hipLaunchKernel")
    builder.launch("SubTensorOpWithScalar1d", 20, 5, 500, 100, op=op, call="hipLaunchKernel")
    path = builder.write(tmp_path / "amd.pt.trace.json")
    code, out, _ = explained(path, "--all")
    assert code == 0
    assert "300.0 us  75.0%  matrix product\n  100.0 us  25.0%  copy-like" in out
    assert "Matrix cores" in out and "Tensor Cores: of the time" not in out
    assert name not in out


def test_a_cpu_trace_shows_its_operators_and_no_gpu(explained):
    code, out, _ = explained(RECORDED, "--all")
    assert code == 0
    assert "CPU only · 3 steps" in out
    assert "Operators on the CPU" in out
    assert "aten::mkldnn_convolution" in out
    assert "Tensor Cores" not in out
    assert "runs no kernel" not in out


def test_the_json_of_a_run_folder_is_that_of_its_newest_trace(explained, tmp_path):
    for stamp, steps in ((1_700_000_000_000, 1), (1_800_000_000_000, 2)):
        builder = TraceBuilder()
        for number in range(steps):
            builder.step(number, number * 100, 100)
        builder.write(tmp_path / f"host.{stamp}.pt.trace.json")
    os.utime(tmp_path / "host.1700000000000.pt.trace.json")
    code, out, _ = explained(tmp_path, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["steps"]["count"] == 2
    assert result["file"].endswith("host.1800000000000.pt.trace.json")


def test_traces_of_other_names_are_found_beside_a_result(tmp_path):
    write_run(tmp_path, make_result())
    folder = tmp_path / "00_baseline"
    two_steps().write(folder / "trace_rank_0.json.gz")
    assert explain.traces_at(folder)[0].name == "trace_rank_0.json.gz"


def pipe(path):
    os.mkfifo(path)


def link_to_a_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def listening(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def empty(path):
    path.touch()


def damaged(path):
    path.write_bytes(b"\x1f\x8b damaged")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("bad", [pipe, link_to_a_pipe, listening, empty, damaged, Path.mkdir])
def test_where_the_newest_trace_cannot_be_read_that_is_said_and_the_next_one_explained(
    explained, refused, tmp_path, monkeypatch, bad
):
    monkeypatch.chdir(tmp_path)
    newest = tmp_path / "host.1800000000000.pt.trace.json"
    bad(newest)
    refused(tmp_path, message=newest.name)
    before = two_steps().write(tmp_path / "host.1700000000000.pt.trace.json")
    for words in ([tmp_path], [tmp_path, "--json"], [tmp_path, before]):
        code, out, err = explained(*words)
        assert code == 0
        assert before.name in out
        lines = [line for line in err.splitlines() if newest.name in line]
        assert len(lines) == 1
        assert lines[0].endswith("the next newest trace is read")


def test_a_trace_without_permission_is_one_line(refused, tmp_path, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(chrome_trace, "open_plain", denied)
    refused(two_steps().write(tmp_path / "made.json"), message="Permission denied")


def test_before_and_after_show_what_changed(explained, tmp_path):
    before = two_steps().write(tmp_path / "before.json")
    after = TraceBuilder()
    after.step(1, 0, 500)
    after.launch("k", 0, 10, 20, 390)
    after.write(tmp_path / "after.json")
    code, out, _ = explained(before, tmp_path / "after.json")
    assert code == 0
    assert "After: 2.00x the steps/s, under the profiler. `walkthrough time" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["typical", "step", "1.0", "ms", "500.0", "us", "-500.0", "us"] in rows
    assert ["DataLoader", "200.0", "us", "0.0", "us", "-200.0", "us"] in rows
    code, out, _ = explained(before, tmp_path / "after.json", "--json")
    result = json.loads(out)
    assert result["moved"][0] == {"name": "dataloader", "before_us": 200.0, "after_us": 0.0}
    assert result["before"]["steps"]["mean_us"] == 1000


def test_ranks_have_a_row_each_and_their_spread(explained, tmp_path):
    for rank, length in ((0, 1000), (1, 1100)):
        builder = TraceBuilder(rank=rank)
        builder.step(1, 0, length)
        builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 0, 1, 100, 300 - rank * 200)
        builder.write(tmp_path / f"host_{rank}.1700000000{rank}00.pt.trace.json.gz")
    code, out, _ = explained(tmp_path)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["0", "0", "1.0", "ms", "300.0", "us", "30.0%", "300.0", "us", "300.0", "us"] in [row[:11] for row in rows]
    assert "2 ranks; rank 1 takes 10.0% longer per median step than rank 0" in out
    result = json.loads(explained(tmp_path, "--json")[1])
    assert [row["rank"] for row in result["ranks"]] == [0, 1]
    assert result["mean_step_us"] == {"min": 1000, "mean": 1050, "max": 1100}


def ranks_of_gloo(folder, *collectives):
    """A trace per rank of steps of 1000 µs: (start, duration) of its collective, between other work and an update."""
    for rank, (start, duration) in enumerate(collectives):
        builder = TraceBuilder(devices=(), rank=rank)
        for begin in (0, 1000):
            builder.step(begin, begin, 1000)
            builder.op("aten::mm", begin, 300)
            builder.op("autograd::engine::evaluate_function: MmBackward0", begin, 1)
            builder.add("annotation", "gloo:all_reduce", begin + start, duration, tid=5)
            builder.op("aten::add_", begin + 900, 100)
        builder.write(folder / f"host_{rank}.1700000000{rank}00.pt.trace.json")
    return folder


def test_ranks_on_cpus_have_one_advice_on_the_rank_that_others_wait_for(explained, tmp_path):
    code, out, _ = explained(ranks_of_gloo(tmp_path, (300, 600), (700, 200)))
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["rank", "step", "collectives", "exposed", "DataLoader"] in rows  # and no columns of a GPU
    assert ["0", "1.0", "ms", "600.0", "us", "600.0", "us", "0.0", "us"] in rows
    text = " ".join(out.split())
    assert 'The others wait 400.0 us of a step (40%) for rank 1, which has 400.0 us more of "other"' in text
    assert "on every rank collectives run at least 200.0 us of a step (20%) with nothing else running: fewer" in text
    assert "no_sync()" in text and "Rank 1: 40% of the step is operators" in text


def test_ranks_that_take_as_long_in_collectives_wait_for_none(explained, tmp_path):
    text = " ".join(explained(ranks_of_gloo(tmp_path, (300, 600), (310, 590)))[1].split())
    assert "the others wait" not in text
    assert "On every rank collectives run at least 590.0 us of a step (59%)" in text


def test_ranks_that_hide_their_collectives_get_no_advice_on_them(explained, tmp_path):
    text = " ".join(explained(ranks_of_gloo(tmp_path, (0, 300), (0, 300)))[1].split())
    assert "Overlap communication" not in text


def test_a_ladder_shows_the_predicted_and_the_measured_gain_of_each_step(explained, tmp_path):
    ladder = ladder_in(tmp_path / "device")
    code, out, _ = explained(ladder)
    assert code == 0
    rows = {row[0]: row[1:] for row in (line.split() for line in out.splitlines()) if row}
    loading = ["1.25x", "1.25x", "1.20x", "(1.20-1.20)", "within;", "estimate", "above"]
    assert rows["04_multiprocess_loading"] == loading
    assert rows["05_pinned_memory"] == ["1.05x", "1.05x", "1.67x", "(1.67-1.67)", "miss;", "estimate", "below"]
    assert "inside the measured interval, above or below it" in " ".join(out.split())
    result = json.loads(explained(ladder, "--json")[1])["ladder"]
    assert [(row["step"], row["outcome"]) for row in result] == [
        ("04_multiprocess_loading", "within"), ("05_pinned_memory", "miss")
    ]  # fmt: skip
    assert [(row["estimated_gain"], row["estimate"]) for row in result] == [
        (pytest.approx(1.25, rel=0.01), "above"), (pytest.approx(1 / 0.95, rel=0.01), "below")
    ]  # fmt: skip
    ladders, _ = predicted.predictions(ladder, record.read_results(ladder)[0])
    loading = "| 04_multiprocess_loading | 1.25x | 1.25x | 1.20x (1.20-1.20) | within; estimate above |"
    assert loading in predicted.table(ladders[0][1]).markdown()
    assert explained(tmp_path)[1] == out  # a folder of ladders, here of one


def test_a_step_that_is_far_longer_is_named_and_tables_count_the_steps(explained, tmp_path):
    builder = TraceBuilder()
    builder.launch("before", -500, 10, -480, 90)  # in no step
    for number, begin, length in ((1, 0, 200), (2, 200, 200), (3, 400, 900)):
        builder.step(number, begin, length)
        builder.launch("k", begin + 5, 5, begin + 15, 185)
    out = explained(builder.write(tmp_path / "made.json"), "--all")[1]
    assert "Step 3 takes 900.0 us, 700.0 us more than the median, the largest part of it other" in out
    assert "2 typical of 3 steps, 200.0 us; all: 433.3 us" in out
    assert "Kernels: 1 per typical step, 185.0 us" in out
    assert "GPU 0 runs no kernel for 15.0 us per typical step" in out
    assert "Of 2 typical steps; only the GPUs' shares and the memory are of all 3." in out
    result = json.loads(explained(tmp_path / "made.json", "--json")[1])
    assert result["kernels"]["count"] == 4  # the fixed interface is of the whole trace
    assert result["steps"]["mean_us"] == pytest.approx(1300 / 3)
    assert result["steps"]["typical_us"] == result["typical"]["mean_us"] == 200
    assert result["idle"][0]["us"] == pytest.approx(15)


def test_a_gpu_that_waits_for_itself_is_told_before_any_advice(explained, tmp_path):
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.launch("k", 0, 10, 600, 400, call="cudaGraphLaunch")
    out = " ".join(explained(builder.write(tmp_path / "made.json"), "--all")[1].split())
    assert "queued longest: 570.0 us before k, launched by cudaGraphLaunch" in out
    assert "For the first 0.6 ms the GPU most likely still runs what was launched before the trace" in out
    assert "in the rest kernels run 93% of the time, and 0% of that is matrix work" in out

    builder.launch("k", 2, 1, 5, 5)
    out = " ".join(explained(builder.write(tmp_path / "made.json"))[1].split())
    assert (
        "of the step the GPU runs no kernel although the next one is launched already, and nothing that the CPU" in out
    )


def test_one_step_alone_has_no_predictions(refused, tmp_path):
    write_run(tmp_path, make_result())
    refused(tmp_path, message="one step only")


def test_a_step_whose_trace_cannot_be_read_is_named_and_the_others_still_show(explained, tmp_path):
    folder = ladder_in(tmp_path)
    (folder / "00_baseline" / make_result().trace).write_bytes(b"no trace")
    code, out, err = explained(folder)
    assert code == 0
    assert "not JSON" in err
    assert "cannot tell" in out
    assert "miss" in out


def test_a_broken_result_is_named_once(explained, tmp_path):
    folder = ladder_in(tmp_path)
    (folder / "05_pinned_memory" / "result.json").write_text("broken")
    code, _, err = explained(folder)
    assert code == 0
    assert len([line for line in err.splitlines() if "05_pinned_memory" in line]) == 1


def test_gains_within_the_bound_are_no_miss():
    advice = predicted.Advice("04_x", "t", "w", 0.2, 1.25)
    outcome = {
        low: predicted.Prediction("a", "b", advice, Ratio(1.3, low, 1.4, 5)).outcome for low in (1.2, 1.25, 1.27)
    }
    assert outcome == {1.2: "within", 1.25: "within", 1.27: "miss"}
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


def test_an_interval_that_holds_both_no_gain_and_the_bound_decides_nothing():
    some = predicted.Advice("04_x", "t", "w", 0.2, 1.25)
    none = predicted.Advice("04_x", "t", "w", 0.0, 1.0)
    outcomes = [
        predicted.Prediction("a", "b", advice, Ratio(1.02, 0.9, high, 5)).outcome
        for advice, high in ((some, 1.2), (some, 1.3), (none, 1.1))
    ]
    assert outcomes == ["within", "cannot tell", "cannot tell"]


def test_a_part_of_a_trace_gives_no_advice_and_is_not_called_a_cpus(explained, tmp_path):
    path = two_steps().write(tmp_path / "cut.pt.trace.json")
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"cudaMemcpyAsync"')])  # before the first event of the device
    code, out, err = explained(path)
    assert code == 0
    assert len(err.splitlines()) == 1
    assert "cut off" in err
    assert "CPU only" not in out
    assert "· no event of a GPU in what is left of the file ·" in out
    assert "at most" not in out
    assert "record it again" in out
    code, out, err = explained(path, "--json")
    assert json.loads(out)["advice"] == []
    assert "cut off" in json.loads(out)["warnings"][0]
    assert "cut off" in err
    whole = two_steps().write(tmp_path / "whole.pt.trace.json")
    out = explained(path, whole)[1]
    assert "cannot be compared" in out
    assert "steps/s" not in out


def test_traces_of_two_different_gpus_are_said_to_be(explained, tmp_path):
    two_steps().write(tmp_path / "a.json")
    builder = two_steps()
    builder.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100"}]
    builder.write(tmp_path / "b.json")
    out = explained(tmp_path / "a.json", tmp_path / "b.json")[1]
    assert "· Tesla V100 ·" in out and "· NVIDIA A100 ·" in out
    assert "Two different GPUs" in out
    assert "Two different GPUs" not in explained(tmp_path / "a.json", tmp_path / "a.json")[1]
    builder.header["deviceProperties"] = []
    builder.write(tmp_path / "unnamed.json")
    assert "Two different GPUs" not in explained(tmp_path / "a.json", tmp_path / "unnamed.json")[1]


def test_the_units_of_both_makers_are_named_where_gpus_of_two_are_compared(explained, tmp_path):
    two_steps().write(tmp_path / "nvidia.json")
    builder = two_steps()
    builder.header["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI210"}]
    builder.write(tmp_path / "amd.json")
    assert "Tensor Cores / Matrix cores" in explained(tmp_path / "nvidia.json", tmp_path / "amd.json")[1]
    out = explained(tmp_path / "amd.json", tmp_path / "amd.json")[1]
    assert "Matrix cores" in out and "Tensor Cores" not in out


def test_the_json_has_what_the_text_concludes(explained, tmp_path):
    path = two_steps().write(tmp_path / "made.json")
    result = json.loads(explained(path, "--json")[1])
    text = " ".join(explained(path)[1].split())
    assert result["bound"][1:] in text and result["why_idle"] in text
    assert result["warnings"] == []
    assert [row["gpu"] for row in result["idle"]] == [0]
    assert result["idle"][0]["us"] == pytest.approx(600) == pytest.approx(sum(result["idle"][0]["causes_us"].values()))
    titles = [row["title"] for row in result["advice"]]
    assert all(set(row["titles"]) <= set(titles) for row in result["combined"])
    assert f"together: {result['combined'][0]['gain']}" in text


def test_the_memory_of_one_gpu_has_the_number_that_its_events_have(explained, tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "A"}, {"id": 5, "name": "B"}])
    builder.step(1, 0, 1000)
    _, kernel = builder.launch("k", 0, 5, 100, 300)
    kernel["pid"] = kernel["args"]["device"] = 5  # of eight; the process sees one of them
    builder.memory(10, 1000, 1000, 2000)
    out = explained(builder.write(tmp_path / "made.json"), "--all")[1]
    assert "GPU 5  1.0 kB    2.0 kB" in out
    assert "GPU 0" not in out


def test_a_pipe_gets_no_blanks_at_the_ends_of_lines(explained, tmp_path):
    two_steps().write(tmp_path / "made.json")
    out = explained(tmp_path / "made.json", "--all")[1] + explained(tmp_path / "made.json", tmp_path / "made.json")[1]
    assert [line for line in out.splitlines() if line != line.rstrip() or len(line) > 100 or "\x1b" in line] == []


def test_a_cpus_communication_row_names_no_gpu(explained, tmp_path):
    builder = TraceBuilder(devices=())
    builder.step(1, 0, 1000)
    builder.op("aten::mm", 0, 500)
    builder.op("gloo:all_reduce", 600, 200, kind="annotation")
    builder.op("nccl:all_reduce", 600, 200, kind="annotation")
    out = explained(builder.write(tmp_path / "made.json"), "--all")[1]
    assert "a marked collective, and nothing else" in out
    assert "NCCL" not in out


def test_a_rank_whose_trace_is_cut_off_is_left_out(explained, tmp_path):
    for rank in range(3):
        builder = TraceBuilder(rank=rank)
        builder.step(1, 0, 1000)
        builder.launch("k", 0, 1, 100, 300)
        path = builder.write(tmp_path / f"host_{rank}.1700000000{rank}00.pt.trace.json")
    path.write_bytes(path.read_bytes()[:-20])
    code, out, err = explained(tmp_path)
    assert code == 0
    assert "rank 2 is left out" in err
    assert "2 ranks; their median steps take the same time to within 0.5 %" in out


def test_steps_of_this_project_are_compared_by_their_images(explained, tmp_path):
    for step, batch in (("00_baseline", 32), ("02_bigger_batch", 128)):
        result = make_result(step, batch_size=batch)
        two_steps().write(write_run(tmp_path, result) / result.trace)
    code, out, _ = explained(tmp_path / "00_baseline", tmp_path / "02_bigger_batch")
    assert code == 0
    assert "4.00x the samples/s, with 32 per step before and 128 after" in out


def test_several_traces_without_ranks_are_counted(explained, tmp_path):
    two_steps().write(tmp_path / "a.1700000000000.pt.trace.json")
    two_steps().write(tmp_path / "b.1700000000001.pt.trace.json")
    code, out, err = explained(tmp_path)
    assert code == 0
    assert "2 traces" in err
    assert out.startswith("b.1700000000001")


def test_kernels_have_different_texts_in_a_narrow_terminal():
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::{}Functor<float>>(int)"
    short = {short_name(name.format(kind), 48) for kind in ("Add", "Mul")}
    assert len(short) == 2
    assert {len(text) for text in short} == {48}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_under_the_output_is_one_line():
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "walkthrough", "explain", RECORDED],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert "No space left" in finished.stderr


def test_names_of_a_trace_cannot_control_a_terminal(explained, tmp_path):
    builder = TraceBuilder(devices=[{"id": 0, "name": "\x1b]0;title\x07GPU\u202e"}])
    builder.step("1\x1b[2J", 0, 100)
    op = builder.op("aten::\x1b[31mred", 0, 50)
    builder.launch("kernel\r\n\x1b[A\x9b[bold]", 5, 1, 10, 20, op=op)
    builder.memory(5, 100, 100, 100, address=1)
    code, out, err = explained(builder.write(tmp_path / "made.json"), "--all")
    assert code == 0
    assert all(letter.isprintable() or letter == "\n" for letter in out + err)
    assert "[bold]" in out
    out = explained(tmp_path / "made.json", "--json")[1]
    assert out.isascii()
    assert json.loads(out)["gpus"][0]["name"] == "\x1b]0;title\x07GPU\u202e"


def test_an_encoding_without_some_characters_is_enough(tmp_path, monkeypatch):
    builder = TraceBuilder(devices=[{"id": 0, "name": "GPU 大"}])
    builder.step(1, 0, 100)
    builder.launch("kernel_" * 50, 5, 1, 10, 20)
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as exited:
        main(["explain", "--all", str(builder.write(tmp_path / "made.json"))])
    assert exited.value.code == 0
    text = stdout.buffer.getvalue().decode("ascii")
    assert "GPU ?" in text
    assert "kernel_kernel_" in text and "####" in text


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


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1MB", 10**6), ("8GB", 8 * 10**9), ("1.5GiB", 3 * 2**29), ("2000000", 2 * 10**6)]
)
def test_sizes_are_read_as_people_write_them(text, bytes_):
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "5", "-1GB", "1XB", "GB", "nan", "1e9"])
def test_other_sizes_are_refused(refused, text):
    refused("x.json", f"--max-size={text}", message="--max-size")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_what_cannot_be_read_ends_with_one_line_and_exit_code_2(refused, tmp_path, more):
    broken = tmp_path / "broken.json"
    broken.write_text("broken")
    bulky = tmp_path / "bulky.json"
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
        refused(*words, *more, message=message)


def test_a_refusal_as_a_program(tmp_path):
    finished = run_program("-m", "walkthrough", "explain", tmp_path / "\x1b[31m.json", cwd=ROOT)
    assert_refused(finished, "does not exist")
    assert "\x1b" not in finished.stderr
    assert finished.stdout == ""


def test_a_folder_of_folders_names_those_with_traces(tmp_path):
    (tmp_path / "mine").mkdir()
    shutil.copy(RECORDED, tmp_path / "mine")
    with pytest.raises(InputError, match="mine"):
        explain.traces_at(tmp_path)
    assert explain.traces_at(tmp_path / "mine")[0].name == RECORDED.name


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
    on_gpu = two_steps().write(tmp_path / "gpu.pt.trace.json.gz")
    assert modules_after("--help") & (SLOW | {"numpy", "msgspec", "rich"}) == set()
    for trace in (RECORDED, on_gpu):
        as_json = modules_after("--json", trace)
        assert "walkthrough.advice.report" in as_json
        assert as_json & (SLOW | {"rich", "common", "walkthrough.explain.text"}) == set()
        own = {name.split(".")[1] for name in as_json if name.startswith("walkthrough.")}
        assert own == {"cli", "explain", "advice", "trace", "results", "terminal"}
        as_text = modules_after(trace)
        assert "walkthrough.explain.text" in as_text
        assert as_text & (SLOW | {"rich"}) == set()


def test_the_runs_of_a_real_tour_are_explained(explained, quick_tour):
    results, _ = record.read_results(quick_tour.logdir)
    [(ladder, rows)], problems = predicted.predictions(quick_tour.logdir, results)
    assert problems == []
    assert [row.step for row in rows] == [row.result.step for row in ladder.acting[1:]]
    assert all(row.advice for row in rows)
    code, out, _ = explained(quick_tour.logdir / "04_multiprocess_loading", "--json")
    assert (code, json.loads(out)["steps"]["count"]) == (0, 3)


def test_compare_shows_the_gpu_use_from_the_traces(tmp_path, capsys):
    ladder_in(tmp_path)
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if line.startswith("00_baseline"))
    assert row[-2:] == ["40%", "0%"]
    assert "GPU busy, Tensor Cores: of the traced steps" in out
    with pytest.raises(SystemExit):
        main(["compare", str(ladder_in(tmp_path / "amd", {"id": 0, "name": "AMD Instinct MI300X"}))])
    out = capsys.readouterr().out
    assert "GPU busy, Matrix cores: of the traced steps" in out
    assert "Tensor" not in out
    (tmp_path / "00_baseline" / make_result().trace).unlink()
    with pytest.raises(SystemExit) as exited:
        main(["compare", str(tmp_path)])
    printed = capsys.readouterr()
    assert exited.value.code == 0
    assert "no figures from a trace" in printed.err
    row = next(line.split() for line in printed.out.splitlines() if line.startswith("00_baseline"))
    assert row[-2:] == ["-", "-"]


def test_a_cpus_runs_need_no_trace_to_compare(tmp_path):
    results = [make_result(device_type="cpu")]
    assert rounds.gpu_use(tmp_path, rounds.ladders(results)) == ({}, [])


def test_no_number_is_printed_that_says_nothing(explained, tmp_path):
    assert (time_text(-0.04), rounded_time(-0.4), time_text(999.96), rounded_time(999.7)) == (
        "0.0 us", "0 us", "1.0 ms", "1.0 ms"
    )  # fmt: skip
    builder = TraceBuilder()
    builder.step(10, 0, 1000)
    op = builder.op("aten::mm", 0, 100)
    builder.launch("sm80_xmma_gemm_bf16bf16", 10, 10, 100, 900, op=op)
    builder.memory(5, 4, 4, 4)
    out = explained(builder.write(tmp_path / "made.json"), "--all")[1]
    assert "· step 10, 1.0 ms\n" in out
    assert "Memory" not in out and "4 B" not in out
    assert " 0.0 us" not in out and "-0" not in out
