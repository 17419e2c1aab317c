"""A log folder that somebody has filled on purpose: every good run is shown, and nothing outside of it is let out."""

import gzip
import json
import os
import re
import shutil
import sys
import urllib.parse
import zlib
from pathlib import Path

import pytest
from support import make_result, write_run
from support.board import PROFILER, WALKTHROUGH, tensorboard
from support.trace_builder import TraceBuilder, two_steps

pytest.importorskip("torch_tb_profiler")
pytestmark = [
    pytest.mark.xdist_group("hostile folder"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory and links are looked at by Linux' own files"),
]
GOOD = [
    "crowd",
    "good",
    "ladder/00_baseline",
    "ladder/04_multiprocess_loading",
    "name \\xff",
    "surrogates",
    "with canary",
]
SECRET = "canary-5f0c"
LIMIT = 400  # MB, of a child
SERVER = 2**30  # bytes that TensorBoard's own process stays below


def bomb(path, piece, megabytes, head=b'{"traceEvents":[', tail=b"{}]}"):
    """A gzipped file of so many MB of JSON, most of it one piece again and again."""
    packed = zlib.compressobj(9, wbits=31)
    block = piece * (2**20 // len(piece))
    parts = map(packed.compress, (head, *[block] * megabytes, tail))
    path.write_bytes(b"".join(parts) + packed.flush())


def many_steps(count):
    builder = TraceBuilder()
    for number in range(count):
        builder.step(number, 10 * number, 10)
        builder.op("aten::add", 10 * number + 1, 5)
    return builder


def fill(logdir, megabytes, steps):
    """The good runs, and those that are not."""
    canary = logdir.parent / "canary.pt.trace.json"
    canary.write_text(json.dumps({"traceEvents": [], "secret": SECRET}))
    canary.chmod(0o600)
    for step, speed in {"00_baseline": 100.0, "04_multiprocess_loading": 120.0}.items():
        result = make_result(step, windows=[speed] * 5)
        two_steps().write(write_run(logdir / "ladder", result) / result.trace)
    for name in ("good", "surrogates", "with canary", "crowd", "bombs", "ranks", "slow", "pipes"):
        (logdir / name).mkdir()
    for name in ("good", "with canary", "ranks"):
        two_steps().write(logdir / name / "w.pt.trace.json.gz")
    odd = two_steps()
    odd.op("aten::\ud800", 10, 5)
    odd.write(logdir / "surrogates" / "w.pt.trace.json")
    (logdir / "with canary" / "link.pt.trace.json").symlink_to(canary)
    (logdir / "linked").symlink_to(logdir.parent)
    undecodable = Path(os.fsdecode(os.path.join(os.fsencode(logdir), b"name \xff")))
    undecodable.mkdir()
    two_steps().write(undecodable / "w.pt.trace.json")
    first = two_steps().write(logdir / "crowd" / "w0.pt.trace.json.gz")
    for number in range(1, 1000):
        os.link(first, logdir / "crowd" / f"notes{number}.trace.json.gz")  # no name of a worker: one tab reads them
    event = json.dumps(two_steps().events[0]).encode()
    for kind, piece in {"spaces": b" ", "objects": b"{},", "events": event + b",", "lists": b"["}.items():
        bomb(logdir / "bombs" / f"{kind}.pt.trace.json.gz", piece, megabytes)
    bomb(logdir / "bombs" / "text.pt.trace.json.gz", b"x", megabytes, b'{"traceEvents":[{"name":"', b'"}]}')
    for number in range(2):
        text = '{"distributedInfo": {"rank": 1' + "0" * 5000 + f'}}, "traceEvents": [], "n": {number}}}'
        (logdir / "ranks" / f"w{number}.pt.trace.json").write_text(text)
    for number in range(3):
        many_steps(steps).write(logdir / "slow" / f"w{number}.pt.trace.json.gz")
    os.mkfifo(logdir / "pipes" / "w.pt.trace.json")
    os.mkfifo(logdir / "pipes" / "result.json")
    huge = write_run(logdir / "huge", make_result("00_baseline")) / "result.json"
    value = json.loads(huge.read_text())
    value["samples_per_second"] = {"median": 1e308, "windows": [1e308] * 5}
    huge.write_text(json.dumps(value))


def peak(pid):
    """Bytes that a process has had in memory, at most; 0 where it is gone."""
    try:
        return 1024 * int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
    except (OSError, TypeError):
        return 0


def children(pid):
    """Its child processes that read traces."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            words = (status.parent / "cmdline").read_bytes()
            if f"PPid:\t{pid}\n" in status.read_text() and b"walkthrough.tensorboard.worker" in words:
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("megabytes", "steps", "limit"),
    [(500, 3_000, LIMIT), pytest.param(3_200, 60_000, 4_295, marks=pytest.mark.thorough)],
    ids=["small", "as large as they come"],
)
def test_every_good_run_is_shown_and_nothing_outside_of_the_folder(tmp_path, megabytes, steps, limit):
    logdir = tmp_path / "logs"
    logdir.mkdir()
    fill(logdir, megabytes, steps)
    peaks = {}
    with tensorboard(logdir, cache=tmp_path / "cache", WALKTHROUGH_READER_MEMORY=f"{limit}MB") as board:

        def read():
            peaks.update({pid: peak(pid) for pid in children(board.process.pid)})
            answer = board.json(f"{PROFILER}/runs")  # a new trace counts as being written, not as loading
            return not answer["loading"] and set(GOOD) <= set(answer["runs"])

        names = [run["key"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"]]
        assert set(GOOD) <= set(names)
        for name in GOOD:
            digest = board.digest(name)
            assert digest.get("typical", {}).get("kernel_count"), (name, digest)
        assert board.digest("bombs", trace="events.pt.trace.json.gz")["state"] == "failed"
        answer = board.json(f"{WALKTHROUGH}/ladders")
        assert [row["step"] for row in answer["ladders"][0]["rows"]] == ["00_baseline", "04_multiprocess_loading"]
        problems = [run["problem"] for run in board.json(f"{WALKTHROUGH}/runs")["runs"] if run["problem"]]
        assert any("huge" in problem for problem in [*answer["problems"], *problems])
        board.until(read, "the profiler's runs")
        failed = {failure["file"] for failure in board.json(f"{PROFILER}/failures")["failures"]}
        assert {f"{kind}.pt.trace.json.gz" for kind in ("objects", "events", "lists", "text")} <= failed
        for name in GOOD:
            query = urllib.parse.urlencode({"run": name, "worker": "w0" if name == "crowd" else "w", "span": "default"})
            status, _, body = board.get(f"{PROFILER}/overview?{query}")
            assert status == 200 or name.startswith("ladder"), body
        for route in (f"{WALKTHROUGH}/trace", f"{PROFILER}/trace"):
            for query in ({"trace": "link.pt.trace.json"}, {"worker": "link", "span": "default"}):
                _, _, body = board.get(f"{route}?{urllib.parse.urlencode({'run': 'with canary', **query})}")
                assert SECRET.encode() not in (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        assert peak(board.process.pid) < SERVER
        assert max(peaks.values()) < limit * 10**6 + 2**27  # and what is no data: code of libraries
        assert SECRET not in board.text()
    shutil.rmtree(logdir)
