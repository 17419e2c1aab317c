"""The replay, against a small machine whose programs can really be changed: the truth that no real trace tells."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_builder import TraceBuilder, run_ahead, two_steps

from walkthrough.advice.gains import advise
from walkthrough.advice.replay import MAX_ERROR, Change, Replay, _last_at_most
from walkthrough.advice.wait_costs import hidden_syncs
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.reader import read
from walkthrough.trace.steps import is_loading, steps

CALL, DELAY, GAP = 4.0, 6.0, 1.0  # µs: of a call on the CPU, from a launch to its kernel, between two kernels


@dataclass
class Machine:
    """One CPU thread and one GPU stream. Runs steps of instructions and writes the trace of what it did."""

    cpu: float = 0.0
    stream: float = -1e9
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    step_us: list[float] = field(default_factory=list)

    def run(self, program):
        """Run the steps; each is a list of (instruction, µs). Returns the durations as `steps` defines them."""
        before = -1e9
        for number, instructions in enumerate(program):
            begin = self.cpu
            self.cpu += 1  # a mark begins before its first call, and ends after its last
            for name, us in instructions:
                getattr(self, name)(us)
            self.cpu += 1
            self.builder.step(number, begin, self.cpu - begin)
            end = max(self.cpu, self.stream)
            self.step_us.append(end - max(begin, before))
            before = end
        return np.array(self.step_us)

    def load(self, us):
        self.builder.loading(self.cpu, us)
        self.cpu += us

    def python(self, us):
        self.cpu += us

    def kernel(self, us):
        at = max(self.cpu + DELAY, self.stream + GAP)
        self.builder.launch("k", self.cpu, CALL, at, us)
        self.cpu, self.stream = self.cpu + CALL, at + us

    def copy(self, us):
        """From pageable memory: the call returns when the copy has ended."""
        at = max(self.cpu + DELAY, self.stream + GAP)
        end = at + us
        call, _ = self.builder.copy(self.cpu, end - self.cpu, at, us, 1000 * us)
        assert call["dur"] > 0
        self.cpu = self.stream = end

    def sync(self, _):
        end = max(self.cpu + CALL, self.stream)
        self.builder.add("runtime", "cudaStreamSynchronize", self.cpu, end - self.cpu, correlation=-2)
        self.cpu = end


def program(rows, count=4):
    """`count` equal steps."""
    return [list(rows) for _ in range(count)]


def changed(steps, **us):
    """The same program with other times: instruction=function of its µs."""
    return [[(name, us.get(name, float)(length)) for name, length in step] for step in steps]


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    """replay(steps): the `Replay` of that program on the machine, and its trace."""
    path = tmp_path_factory.mktemp("replay") / "made.pt.trace.json"

    def of(rows):
        machine = Machine()
        true_us = machine.run(rows)
        trace = read(machine.builder.write(path))
        found = steps(trace)
        assert found.duration == pytest.approx(true_us, abs=0.01)
        return Replay(trace, found), trace

    return of


def loading(trace):
    mask = trace.named(trace.operators, is_loading)
    return Cover(trace.operators.start[mask], trace.operators.end[mask])


instructions = st.one_of(
    st.tuples(st.just("load"), st.floats(50, 2000)),
    st.tuples(st.just("python"), st.floats(1, 300)),
    st.tuples(st.just("kernel"), st.floats(3, 800)),
    st.tuples(st.just("kernel"), st.floats(3, 80)),
    st.tuples(st.just("copy"), st.floats(40, 500)),
    st.tuples(st.just("sync"), st.just(0.0)),
)
step = st.lists(instructions, min_size=4, max_size=25).filter(lambda rows: sum(n == "kernel" for n, _ in rows) > 1)


@settings(max_examples=60, deadline=None)
@given(rows=step)
def test_a_replay_without_a_change_is_what_happened(replay, rows):
    again, _ = replay(program(rows))
    assert np.abs(again.same_us - again.steps.duration).sum() < max(0.02 * again.steps.duration.sum(), 10 * 4)


@settings(max_examples=60, deadline=None)
@given(rows=step, loader=st.sampled_from([0.0, 0.25, 2.0]), kernels=st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_a_replay_with_a_change_is_what_would_have_happened(replay, rows, loader, kernels):
    before = program(rows)
    again, trace = replay(before)
    after = changed(before, load=lambda us: us * loader, kernel=lambda us: us * kernels)
    truth = Machine().run(after)
    change = Change(cpu=[(loading(trace), loader)], kernels=np.full(len(trace.kernels), kernels))
    assert again.step_us(change).sum() == pytest.approx(truth.sum(), rel=0.05, abs=25 * len(before))


def test_a_step_bound_by_the_cpu_does_not_shrink_with_its_kernels(replay):
    again, trace = replay(program([("python", 400), ("kernel", 100)] * 5))
    assert again.gain(Change(kernels=np.full(len(trace.kernels), 0.1))) == pytest.approx(1, abs=0.05)


def test_loading_that_the_queue_hides_is_no_gain(replay):
    """The GPU is behind: while the loader loads, it works."""
    again, trace = replay(program([("load", 500), *[("kernel", 300)] * 5], count=6))
    assert again.gain(Change(cpu=[(loading(trace), 0.0)])) == pytest.approx(1.05, abs=0.06)


def test_without_its_waits_the_cpu_runs_ahead(replay):
    rows = program([("python", 300), ("kernel", 400), ("sync", 0.0)], count=8)
    again, trace = replay(rows)
    after = [[row for row in step if row[0] != "sync"] for step in rows]
    truth = Machine().run(rows).sum() / Machine().run(after).sum()
    assert again.gain(Change(returns=np.ones(len(trace.runtime), bool))) == pytest.approx(truth, rel=0.05)


def test_a_wait_that_was_none_becomes_one_though_a_later_kernel_lacks_its_call(tmp_path):
    """Each wait begins long after its kernel has ended; with kernels of ten times the length it does not."""
    rows = [("kernel", 100), ("python", 300), ("sync", 0.0), ("python", 300)]
    machine = Machine()
    machine.run([rows, rows, [*rows, ("kernel", 10)], rows, rows])
    calls = [event for event in machine.builder.events if event["name"] == "cudaLaunchKernel"]
    machine.builder.events.remove(calls[3])  # of the short kernel
    trace = read(machine.builder.write(tmp_path / "made.pt.trace.json"))
    factor = np.where(trace.kernels.duration > 50, 10.0, 1.0)
    longer = Replay(trace, steps(trace)).step_us(Change(kernels=factor))
    assert longer == pytest.approx([1000 + 300 + DELAY] * 5, rel=0.02)


def test_changes_add_up_to_more_than_their_parts(replay):
    """Loading and kernels alternate with a wait between: each alone is at most 2x, both together are more."""
    again, trace = replay(program([("load", 1000), ("kernel", 1000), ("sync", 0.0)]))
    no_loading = Change(cpu=[(loading(trace), 0.0)])
    fast = Change(kernels=np.full(len(trace.kernels), 0.1))
    assert again.gain(no_loading) == pytest.approx(2, rel=0.05)
    assert again.gain(fast) == pytest.approx(1.82, rel=0.05)
    assert again.gain(no_loading | fast) > 9


def test_a_step_of_twice_the_samples_counts_twice(replay):
    again, _ = replay(program([("python", 500), ("kernel", 10)]))
    assert again.gain(Change(samples=2.0)) == pytest.approx(2, rel=0.01)


def test_a_step_takes_at_least_what_goes_on_beside_it(replay):
    again, _ = replay(program([("load", 900), ("kernel", 100), ("sync", 0.0)]))
    assert again.step_us(Change(at_least=np.full(4, 5000.0))).tolist() == [5000.0] * 4


def test_no_estimate_where_waits_are_not_explained(tmp_path):
    """Every kernel begins 5 ms after its launch, for a reason that the trace does not hold."""
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, number * 10_000, 1000)
        for kernel in range(2):
            builder.launch("k", number * 10_000 + kernel * 10, 5, number * 10_000 + 20 + kernel * 5000, 100)
    trace = read(builder.write(tmp_path / "made.pt.trace.json"))
    again = Replay(trace, steps(trace))
    assert again.error > MAX_ERROR
    assert again.gain(Change()) is None


def test_no_estimate_where_work_waits_unexplained_beside_a_cpu_that_bounds_the_step(tmp_path):
    """Nothing is missed with nothing changed: the CPU takes 1 ms per step, whatever the GPU waits for."""
    builder = TraceBuilder()
    for number in range(4):
        begin = number * 1000
        builder.step(number, begin, 1000)
        builder.op("aten::mm", begin, 1000)
        for at, late in ((0, 8), (20, 500), (600, 8), (620, 8)):
            builder.launch("k", begin + at, 5, begin + at + late, 10)
    trace = read(builder.write(tmp_path / "made.pt.trace.json"))
    again = Replay(trace, steps(trace))
    assert again.same_us == pytest.approx(again.steps.duration, rel=0.01)
    assert again.error == pytest.approx(0.49, abs=0.02)
    assert again.gain(Change()) is None


@given(
    values=st.lists(st.integers(0, 9), max_size=12),
    queries=st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 10))),
)
def test_what_a_call_can_wait_for_is_the_last_work_launched_before_it(values, queries):
    queries = sorted((min(count, len(values)), limit) for count, limit in queries)
    truth = [max((at for at in range(count) if values[at] <= limit), default=-1) for count, limit in queries]
    assert _last_at_most(values, [count for count, _ in queries], [limit for _, limit in queries]) == truth


@pytest.fixture
def by_hand(tmp_path):
    """by_hand(add, µs): the `Replay` of four steps of so many µs, the CPU's marks, with the events that add() adds."""

    def of(add, length):
        builder = TraceBuilder()
        for number in range(4):
            builder.step(number, number * length, length)
            add(builder, number * length)
        trace = read(builder.write(tmp_path / "made.pt.trace.json"))
        return Replay(trace, steps(trace))

    return of


def kernels_times(again, name, factor):
    """The change that kernels of that name take so many times as long."""
    trace = again.trace
    return Change(kernels=np.where(trace.named(trace.kernels, lambda other: other == name), factor, 1.0))


def short(builder, begin):
    """Two short kernels 6 us after their launches, so that this is the usual delay."""
    for at in (begin, begin + 10):
        builder.launch("short", at, 4, at + 6, 2)


def wait(builder, begin, end, call="cudaStreamSynchronize"):
    builder.add("runtime", call, begin, end - begin, correlation=-2)


def test_work_that_is_late_by_tens_of_us_waited_for_another_stream(by_hand):
    def two_streams(builder, begin):
        short(builder, begin)
        builder.launch("first", begin + 20, 4, begin + 26, 60)
        _, second = builder.launch("second", begin + 30, 4, begin + 86, 500)  # 50 us after launch and stream allow it
        second["tid"] = second["args"]["stream"] = 20
        wait(builder, begin + 40, begin + 586)

    again = by_hand(two_streams, 590)
    assert again.step_us(kernels_times(again, "first", 10.0)) == pytest.approx([590 + 540] * 4, abs=2)


def test_a_launch_into_a_full_queue_waits_for_the_work_in_it(by_hand):
    def full_queue(builder, begin):
        builder.launch("k", begin, 4, begin + 6, 500)
        builder.launch("k", begin + 10, 498, begin + 507, 500)  # returns as the first one ends
        wait(builder, begin + 510, begin + 1007)

    again = by_hand(full_queue, 1010)
    assert again.step_us(kernels_times(again, "k", 0.1)) == pytest.approx([1010 - 900] * 4, abs=5)


@pytest.mark.parametrize("size", [0, 250_000])
def test_a_late_copy_is_staged_for_a_ms_and_what_its_size_takes_but_no_longer(by_hand, size):
    again = by_hand(lambda builder, begin: builder.copy(begin, 5, begin + 5000, 100, size), 6000)
    assert again.error == pytest.approx((5000 - 1000 - size / 250) / 6000, abs=0.01)


def test_fewer_bytes_are_staged_faster_too(by_hand):
    def staged(builder, begin):
        builder.copy(begin, 500, begin + 400, 100, 1_000_000)
        short(builder, begin + 502)
        builder.launch("k", begin + 522, 4, begin + 528, 468)
        wait(builder, begin + 530, begin + 996)

    again = by_hand(staged, 1000)
    quarter = again.step_us(Change(copies=np.full(4, 0.25)))
    assert quarter == pytest.approx([1000 - 0.75 * 500] * 4, abs=3)


@settings(max_examples=60, deadline=None)
@given(rows=step)
def test_no_bound_on_removing_waits_is_below_what_removing_them_gains(replay, rows):
    """Whatever the CPU does after a wait, also loading: it would have done it while the GPU worked."""
    before = program(rows)
    _, trace = replay(before)
    after = [[row for row in step if row[0] != "sync"] for step in before]
    measured, truth = Machine().run(before).sum(), Machine().run(after).sum()
    bound = hidden_syncs(Analysis(trace)).gain
    assert bound is None or measured / bound <= truth + 0.02 * measured + 10 * len(before)


def test_waits_of_two_changes_are_both_gone(replay):
    rows = program([("python", 300), ("kernel", 400), ("sync", 0.0)] * 2, count=8)
    again, trace = replay(rows)
    truth = (
        Machine().run(rows).sum() / Machine().run([[row for row in step if row[0] != "sync"] for step in rows]).sum()
    )
    syncs = np.flatnonzero(trace.calls.waits)
    one, other = (np.isin(np.arange(len(trace.runtime)), syncs[first::2]) for first in (0, 1))
    assert again.gain(Change(returns=one) | Change(returns=other)) == pytest.approx(truth, rel=0.05)


def test_a_long_wait_may_end_later_after_its_work_than_a_short_one(by_hand):
    def waiting(builder, begin):
        builder.launch("k", begin, 4, begin + 6, 9694)
        wait(builder, begin + 10, begin + 10_000, "cudaEventSynchronize")  # 300 us after the kernel

    again = by_hand(waiting, 10_000)
    assert again.step_us(kernels_times(again, "k", 0.1)) == pytest.approx([6 + 969.4 + 300] * 4, abs=3)


@pytest.mark.parametrize("builder", [two_steps(), two_steps("2021"), run_ahead()], ids=["today", "2021", "run ahead"])
def test_traces_by_hand_are_replayed(builder, tmp_path):
    trace = read(builder.write(tmp_path / "made.pt.trace.json"))
    again = Replay(trace, steps(trace))
    assert again.same_us == pytest.approx(again.steps.duration, rel=0.02)
    assert len(trace.kernels.call)


def test_a_stall_in_an_outlying_step_takes_no_estimate_from_the_others(tmp_path):
    """Six steps whose GPU is busy all the time, one of them stopped for 8 ms by what the trace does not hold."""
    builder, begin = TraceBuilder(), 0
    for number in range(6):
        stall = 8000 if number == 3 else 0
        builder.step(number, begin, 1000 + stall)
        for at in range(10, 910, 90):
            late = stall if at == 820 else 0
            op = builder.op("aten::mm", begin + at, 60)
            builder.launch("volta_sgemm_128x64_nn", begin + at + 5, 5, begin + at + 15 + late, 85, op=op)
        if stall:
            builder.add("runtime", "cudaDeviceSynchronize", begin + 900, stall + 20, correlation=-2)
        begin += 1000 + stall
    path = builder.write(tmp_path / "made.pt.trace.json")
    trace = read(path)
    found = steps(trace)
    assert Replay(trace, found).error > 0.5
    again = Replay(trace, found, ~is_outlier(found))
    assert again.error < MAX_ERROR
    faster = np.full(len(trace.kernels), 0.1)
    assert again.gain(Change(kernels=faster)) == pytest.approx(1, abs=0.1)  # the CPU bounds it
    amp = next(cost for cost in advise(analyze(path)).costs if cost.step == "01_amp")
    assert amp.estimated_gain == pytest.approx(1, abs=0.1)
