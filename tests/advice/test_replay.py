"""The replay, against programs whose truth can be computed: a small machine that runs them, and traces by hand.

And what no estimate may claim, of any of them.
"""

from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from support import ROOT
from support.trace_builder import TraceBuilder, analyzed, costs, read_trace, repeated, run_ahead, two_steps

from walkthrough.advice.catalogue import BY_ID
from walkthrough.advice.evidence import WORTHWHILE
from walkthrough.advice.gains import Gains, advise
from walkthrough.advice.replay import MAX_ERROR, RETURN, Change, Replay, _last_at_most, without
from walkthrough.advice.wait_costs import hidden_syncs
from walkthrough.trace.analysis import analyze
from walkthrough.trace.intervals import Cover
from walkthrough.trace.outliers import is_outlier
from walkthrough.trace.steps import is_loading, launching_step, steps

CALL, DELAY, GAP = 4.0, 6.0, 1.0  # µs: of a call on the CPU, from a launch to its kernel, between two kernels


@dataclass
class Machine:
    """One CPU thread and two streams of a GPU. Runs steps of instructions and writes the trace of what it did."""

    cpu: float = 0.0
    free: dict[int, float] = field(default_factory=lambda: {7: -1e9, 20: -1e9})  # when a stream has ended its work
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
            end = max(self.cpu, *self.free.values())
            self.step_us.append(end - max(begin, before))
            before = end
        return np.array(self.step_us)

    def load(self, us):
        self.builder.loading(self.cpu, us)
        self.cpu += us

    def python(self, us):
        self.cpu += us

    def kernel(self, us, stream=7):
        at = max(self.cpu + DELAY, self.free[stream] + GAP)
        op = self.builder.op("aten::mm", self.cpu, CALL)
        self.builder.launch("volta_sgemm_128x64_nn", self.cpu, CALL, at, us, op=op, stream=stream)
        self.cpu, self.free[stream] = self.cpu + CALL, at + us

    def other(self, us):
        self.kernel(us, 20)

    def event(self, _):
        """What is launched from now on waits for the other stream."""
        self.free[7] = max(self.free[7], self.free[20] - GAP)

    def copy(self, us):
        """From pageable memory: the call returns when the copy has ended."""
        at = max(self.cpu + DELAY, self.free[7] + GAP)
        self.builder.copy(self.cpu, at + us - self.cpu, at, us, 1000 * us)
        self.cpu = self.free[7] = at + us

    def sync(self, _):
        end = max(self.cpu + CALL, *self.free.values())
        self.builder.wait(self.cpu, end, "cudaDeviceSynchronize")
        self.cpu = end


def program(rows, count=4):
    """`count` equal steps."""
    return [list(rows) for _ in range(count)]


def changed(steps, **us):
    """The same program with other times: instruction=function of its µs."""
    return [[(name, us.get(name, float)(length)) for name, length in step] for step in steps]


def replayed(builder):
    """The `Replay` of the trace that a builder holds."""
    trace = read_trace(builder)
    return Replay(trace, steps(trace))


def run(rows):
    """The `Replay` of steps on the machine."""
    machine = Machine()
    true_us = machine.run(rows)
    again = replayed(machine.builder)
    assert again.steps.duration == approx(true_us, abs=0.01)
    return again


def loading(trace):
    mask = trace.named(trace.operators, is_loading)
    return Cover(trace.operators.start[mask], trace.operators.end[mask])


WORK = [
    st.tuples(st.just("load"), st.floats(50, 2000)),
    st.tuples(st.just("python"), st.floats(1, 300)),
    st.tuples(st.just("kernel"), st.floats(3, 800)),
    st.tuples(st.just("kernel"), st.floats(3, 80)),
    st.tuples(st.just("copy"), st.floats(40, 500)),
    st.tuples(st.just("sync"), st.just(0.0)),
]
STREAMS = [st.tuples(st.just("other"), st.floats(3, 800)), st.tuples(st.just("event"), st.just(0.0))]


def step_of(instructions):
    rows = st.lists(st.one_of(instructions), min_size=4, max_size=16)
    return rows.filter(lambda rows: sum(name == "kernel" for name, _ in rows) > 1)


@settings(max_examples=40)
@given(rows=step_of(WORK + STREAMS), loader=st.floats(0, 1), kernels=st.floats(0, 1), every=st.integers(1, 5))
def test_no_removed_cost_gains_more_than_its_own_time_and_nothing_removed_gains_nothing(rows, loader, kernels, every):
    again = run(program(rows))
    trace, before = again.trace, again.same_us.sum()
    gone = np.arange(len(trace.kernels)) % every == 0
    removed = [
        (Change(kernels=np.where(gone, kernels, 1.0)), (1 - kernels) * trace.kernels.duration[gone].sum()),
        (Change(cpu=[(loading(trace), loader)]), (1 - loader) * loading(trace).total),
    ]
    if ("event", 0.0) not in rows:  # of which a replay does not know all, so that its waits may be longer
        assert before == approx(again.steps.duration.sum(), rel=0.02, abs=40)
        waits = trace.runtime.where(trace.calls.waits)
        removed.append((Change(returns=trace.calls.waits), waits.duration.sum()))
    for change, own_us in removed:
        assert before - own_us - 1 <= again.step_us(change).sum() <= before + 1


@settings(max_examples=40)
@given(rows=step_of(WORK), loader=st.sampled_from([0.0, 0.25, 2.0]), kernels=st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_a_replay_with_a_change_is_what_would_have_happened(rows, loader, kernels):
    before = program(rows)
    again = run(before)
    truth = Machine().run(changed(before, load=lambda us: us * loader, kernel=lambda us: us * kernels))
    change = Change(cpu=[(loading(again.trace), loader)], kernels=np.full(len(again.trace.kernels), kernels))
    assert again.step_us(change).sum() == approx(truth.sum(), rel=0.05, abs=25 * len(before))


def without_syncs(rows):
    return [[row for row in step if row[0] != "sync"] for step in rows]


@settings(max_examples=40)
@given(rows=step_of(WORK))
def test_no_bound_on_removing_waits_is_below_what_removing_them_gains(rows):
    """Whatever the CPU does after a wait, also loading: it would have done it while the GPU worked."""
    machine = Machine()
    measured, truth = machine.run(program(rows)).sum(), Machine().run(without_syncs(program(rows))).sum()
    bound = hidden_syncs(analyzed(machine.builder)).gain
    assert bound is None or measured / bound <= truth + 0.02 * measured + 40


def test_without_its_waits_the_cpu_runs_ahead_in_one_change_or_in_two():
    rows = program([("python", 300), ("kernel", 400), ("sync", 0.0)] * 2, count=8)
    again = run(rows)
    truth = Machine().run(rows).sum() / Machine().run(without_syncs(rows)).sum()
    waits = np.flatnonzero(again.trace.calls.waits)
    one, other = (np.isin(np.arange(len(again.trace.runtime)), waits[first::2]) for first in (0, 1))
    for change in (Change(returns=one | other), Change(returns=one) | Change(returns=other)):
        assert again.gain(change) == approx(truth, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "loader", "kernels", "gain"),
    [
        ([("python", 400), ("kernel", 100)] * 5, 1.0, 0.1, 1),  # the CPU bounds it
        ([("load", 500), *[("kernel", 300)] * 5], 0.0, 1.0, 1.05),  # the GPU is behind, and works while it loads
        ([("load", 1000), ("kernel", 1000), ("sync", 0.0)], 0.0, 1.0, 2),
        ([("load", 1000), ("kernel", 1000), ("sync", 0.0)], 1.0, 0.1, 1.82),
        ([("load", 1000), ("kernel", 1000), ("sync", 0.0)], 0.0, 0.1, 2010 / 112),  # both are more than their parts
    ],
)
def test_a_gain_is_of_what_bounds_the_steps(rows, loader, kernels, gain):
    again = run(program(rows, count=6))
    change = Change(cpu=[(loading(again.trace), loader)]) | Change(kernels=np.full(len(again.trace.kernels), kernels))
    assert again.gain(change) == approx(gain, rel=0.06)


def test_twice_the_samples_count_twice_and_a_step_takes_at_least_what_goes_on_beside_it():
    again = run(program([("load", 900), ("kernel", 100), ("sync", 0.0)]))
    assert again.gain(Change(samples=2.0) | Change(samples=1.5)) == approx(3, rel=0.01)
    least, less = np.full(4, 5000.0), np.array([6000.0, 0, 0, 0])
    assert again.step_us(Change(at_least=least) | Change(at_least=less)).tolist() == [6000, 5000, 5000, 5000]
    assert again.most(Change()) == approx(1012 / 100, rel=0.01)
    assert again.most(without(np.ones(4, bool))) == np.inf


# Traces by hand: four equal steps each, of such events; times in µs from a step's begin on.


def launch(name, at, begins, us, call_us=4, **more):
    return lambda builder, begin: builder.launch(name, begin + at, call_us, begin + begins, us, **more)


def copy(at, call_us, begins, us, size=1000, **more):
    return lambda builder, begin: builder.copy(begin + at, call_us, begin + begins, us, size, **more)


def wait(at, until, call="cudaStreamSynchronize", **more):
    return lambda builder, begin: builder.wait(begin + at, begin + until, call, **more)


def by_hand(events, length):
    return replayed(repeated(lambda builder, begin: [event(builder, begin) for event in events], length))


def short(at):
    """Two short kernels 6 µs after their launches, so that this is the usual delay."""
    return launch("short", at, at + 6, 2), launch("short", at + 10, at + 16, 2)


def other_stream(called):
    """A second stream's kernel begins as the first one's ends, and could have begun 6 us after its call."""
    kernels = launch("first", 20, 26, 60), launch("second", called, 86, 500, stream=20)
    return *short(0), *kernels, wait(68, 586)


def full_queue(call_us):
    """The second launch returns as the first one's kernel ends, or might by chance if it takes no longer than usual."""
    us = call_us + 2
    return launch("k", 0, 6, us), launch("k", 10, us + 7, us, call_us), wait(us + 10, 2 * us + 7)


def copying_back(copy_us, call_us=600):
    """A copy's call from 100 on, its copy from 106 on, and a kernel that ends at 699; Python until 800."""
    back = copy(100, call_us, 106, copy_us, name="Memcpy DtoH (Device -> Pageable)", stream=20)
    return launch("k", 0, 6, 693), back


def waiting(call, at, until, kernel_us):
    return launch("k", 0, 6, kernel_us), wait(at, until, call)


def graph(builder, begin):
    """Three kernels, 3 µs between them."""
    _, first = builder.launch("graphed", begin + 1040, 4, begin + 1046, 100, call="cudaGraphLaunch")
    for at in (1149, 1252):
        builder.add("kernel", "graphed", begin + at, 100, tid=7, pid=0, **first["args"])


STAGED = copy(0, 500, 400, 100, 1_000_000), *short(502), launch("k", 522, 528, 468), wait(530, 996)
APART = *(launch("k", 5 * index, 6 + 109 * index, 100) for index in range(5)), wait(25, 542)
# a thread waits for `early` until 700; another launches `late`, which ends just before
MEANWHILE = launch("early", 10, 16, 674), wait(100, 700), launch("late", 650, 656, 43, tid=2, stream=20)
PAUSES = *(launch("k", 5 * index, 6 + 103 * index, 100) for index in range(10)), graph, wait(1050, 1352)


def change_of(again, returns=False, cpu=None, copies=1.0, **kernels):
    """The change that kernels of these names, and copies, take so many times as long; cpu: (from, to) in each step."""
    trace, factors = again.trace, np.ones(len(again.trace.kernels))
    for name, factor in kernels.items():
        factors[trace.named(trace.kernels, name.__eq__)] = factor
    begins = again.steps.cpu_start
    parts = [] if cpu is None else [(Cover(begins + cpu[0], begins + cpu[1]), 0.0)]
    mask = trace.calls.waits if returns else None
    return Change(parts, kernels=factors, copies=np.full(len(trace.copies), copies), returns=mask)


ALL = (0, 10_000)
EVENT, STREAM = "cudaEventSynchronize", "cudaStreamSynchronize"
KNOWN = {  # what happens: (events, µs of a step, what changes, µs of a step then)
    "work that is late waited for another stream": (other_stream(59.5), 590, {"first": 3.0}, 590 + 120),
    "work that is hardly late did not": (other_stream(60.5), 590, {"first": 3.0}, 590 - 19.5),
    "a launch into a full queue waits for the work in it": (full_queue(101), 216, {"k": 0.1}, 6 + 20.6 + 1 + 3),
    "one of 100 us has no need to": (full_queue(100), 214, {"k": 0.1}, 10 + 100 + 2 + RETURN + 3),
    "fewer bytes are staged faster too": (STAGED, 1000, {"copies": 0.25}, 1000 - 0.75 * 500),
    "more bytes take longer to copy, not to begin": (STAGED, 1000, {"copies": 2.0}, 1000 + 100),
    "a copy's call waits for its own copy": (copying_back(584), 800, {"k": 0.1}, 800),
    "and ends with it": (copying_back(584), 800, {"k": 0.1, "copies": 0.5}, 800 - 292),
    "or for a kernel, where its copy ended long before": (copying_back(294), 800, {"k": 0.5}, 800 - 346.5),
    "a call of 31 us waits for its copy": (copying_back(21, 31), 800, {"copies": 0.5}, 800 - 10.5),
    "one of 30 us does not": (copying_back(20, 30), 800, {"copies": 0.5}, 800),
    "a call that ends with no work waits for none": (waiting(EVENT, 10, 610, 100), 1000, {"k": 3.0}, 1000),
    "so its time is the CPU's": (waiting(EVENT, 10, 610, 100), 1000, {"cpu": (10, 610)}, 400),
    "a wait's time is not": (waiting(STREAM, 10, 107, 100), 1000, {"cpu": (10, 107)}, 1000),
    "a long wait may end later after its work": (waiting(EVENT, 10, 10_000, 9694), 10_000, {"k": 0.1}, 6 + 969.4 + 300),
    "a wait that was none becomes one": (waiting(STREAM, 300, 304, 100), 600, {"k": 10.0}, 1006 + 296),
    "a wait that returns takes a call's time": (waiting(STREAM, 10, 60, 53), 500, {"returns": True}, 500 - 45),
    "one that was none takes its own": (waiting(STREAM, 100, 103, 53), 500, {"returns": True}, 500),
    "what is launched later is not waited for": (MEANWHILE, 1100, {"early": 0.5}, 1100 - 337),
    "gaps and a graph's stay": (PAUSES, 1352, {"k": 0.1, "graphed": 0.1}, 1046 + 30 + 6),
    "of a gap, 5 us are usual": (APART, 545, {}, 545 - 4 * (9 - 5)),
    "gaps are as long": (PAUSES, 1352, {"k": 0.1, "graphed": 0.1, "cpu": ALL}, 6 + 130 + 12 * 3),
}


@pytest.mark.parametrize("name", KNOWN)
def test_steps_take_what_their_dependencies_let_them(name):
    events, length, changes, step_us = KNOWN[name]
    again = by_hand(events, length)
    assert again.step_us(change_of(again, **changes)) == approx([step_us] * 4, abs=0.1)


def test_waits_of_two_threads_that_cross_end_in_order():
    """One for A from 10 to 500, one of another thread for B from 20 to 300, which then launches C."""
    other = {"stream": 20, "tid": 2}
    kernels = launch("A", 0, 6, 493), launch("B", 15, 21, 278, **other), launch("C", 400, 406, 10, **other)
    again = by_hand([*kernels, wait(10, 500), wait(20, 300, tid=2)], 600)
    change = change_of(again, B=0.5)
    steps_begin, begin, end = again.timeline(change)
    is_c = again.trace.named(again.trace.kernels, "C".__eq__)
    assert again.step_us(change) == approx([600] * 4)
    assert (begin - np.repeat(steps_begin, 3))[is_c] == approx([406 - 139] * 4)
    assert (end - begin)[is_c] == approx([10] * 4)


@pytest.mark.parametrize("size", [0, 250_000])
def test_a_late_copy_is_staged_for_a_ms_and_what_its_size_takes_but_no_longer(size):
    again = by_hand([copy(0, 5, 5000, 100, size)], 6000)
    assert again.error == approx((5000 - 1000 - size / 250) / 6000, abs=0.01)


def test_no_estimate_where_work_waits_unexplained_beside_a_cpu_that_bounds_the_step():
    """Nothing is missed with nothing changed: the CPU takes 1 ms per step, whatever the GPU waits for."""
    late = (0, 8), (20, 520), (600, 608), (620, 628)
    kernels = [launch("k", at, begins, 10) for at, begins in late]
    again = by_hand([lambda builder, begin: builder.op("aten::mm", begin, 1000), *kernels], 1000)
    assert again.same_us == approx(again.steps.duration, rel=0.01)
    assert again.error == approx(0.49, abs=0.02)
    assert again.gain(Change()) is None


@given(
    values=st.lists(st.integers(0, 9), max_size=12),
    queries=st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 10))),
)
def test_what_a_call_can_wait_for_is_the_last_work_launched_before_it(values, queries):
    queries = sorted((min(count, len(values)), limit) for count, limit in queries)
    truth = [max((at for at in range(count) if values[at] <= limit), default=-1) for count, limit in queries]
    assert _last_at_most(values, [count for count, _ in queries], [limit for _, limit in queries]) == truth


@pytest.mark.parametrize("builder", [two_steps(), two_steps("2021"), run_ahead()], ids=["today", "2021", "run ahead"])
def test_a_replay_without_a_change_is_what_was_recorded(builder):
    again = replayed(builder)
    assert again.same_us == approx(again.steps.duration, rel=0.006)  # of 10 and 20 us, the median is the delay
    times = again.steps.start, again.trace.device_work.start, again.trace.device_work.end
    for replayed_us, recorded_us in zip(again.timeline(Change()), times, strict=True):
        assert replayed_us == approx(recorded_us, abs=10.1)


def test_a_stall_in_an_outlying_step_takes_no_estimate_from_the_others():
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
            builder.wait(begin + 900, begin + 920 + stall, "cudaDeviceSynchronize")
        begin += 1000 + stall
    trace = read_trace(builder)
    found = steps(trace)
    assert Replay(trace, found).error > 0.5
    assert Replay(trace, found, ~is_outlier(found)).error < MAX_ERROR
    assert costs(builder)["mixed_precision"].estimated_gain == approx(1, abs=0.1)


# What no estimate may claim, and no rule may take for a cost.

SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
MATRIX = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"


def loop(*rows, more=lambda builder, begin: None):
    """Four steps of 1000 µs. rows: (kernel, operator, when it is called, when it begins, µs) in each of them."""

    def add(builder, begin):
        for kernel, operator, call, start, us in rows:
            op = builder.op(operator, begin + call - 2, 8)
            builder.launch(kernel, begin + call, 5, begin + start, us, op=op)
        more(builder, begin)

    return repeated(add)


def staying_us(a, change):
    """µs in which kernels and copies run that the typical steps launch and that a change leaves as they are."""
    steps, covers = a.typical.steps, Cover()
    for work, factors in ((a.trace.kernels, change.kernels), (a.trace.copies, change.copies)):
        stays = np.ones(len(work), bool) if factors is None else factors >= 1
        stays &= launching_step(a.trace, work, steps.cpu_start, steps.cpu_end) >= 0
        covers = covers | work.cover(stays)
    return float(covers.within(steps.start, steps.end).sum())


def violations(a):
    """Gains that leave less than the work that stays; bounds below what a replay gains; lower ends beyond their
    estimates; and findings that gain more than all advice."""
    advised, replay = advise(a), Gains(a.typical).replay
    total_us = float(a.typical.steps.duration.sum()) * (1 + MAX_ERROR)  # as far as a replay may err
    wrong = []
    for item in advised.costs:
        change = item.cost.change(a.typical) if item.cost.change else Change()
        concerned = not (item.cost.unless and item.cost.unless(a.typical)) and item.weight == 1
        if item.predicted_gain and concerned and (replay.gain(change) or 1) > item.predicted_gain * (1 + MAX_ERROR):
            wrong.append((item.id, "its bound", item.predicted_gain, replay.gain(change)))
        bound = None if item.cost.shortens_gpu_work else item.predicted_gain  # else of kernels without fixed costs
        for gain in (bound, item.estimated_gain, item.low_gain):
            if gain and item.share_of_step >= WORTHWHILE and total_us * change.samples / gain < staying_us(a, change):
                wrong.append((item.id, "what stays", gain))
        if item.low_gain and not 1 <= item.low_gain <= item.estimated_gain:
            wrong.append((item.id, "its lower end", item.low_gain, item.estimated_gain))
    for both in advised.together:
        change = reduce(or_, (BY_ID[name].change(a.typical) for name in both.ids))
        if total_us / both.estimated_gain < staying_us(a, change) or not 1 <= both.low_gain <= both.estimated_gain:
            wrong.append((both.ids, both.low_gain, both.estimated_gain))
    shown = [item.estimated_gain or item.predicted_gain or 1.0 for item in advised.advice]
    advisable = {item.id for item in advised.costs if item in advised.advice or not item.cost.joins_launches}
    return wrong + [
        (finding.id, finding.estimated_gain)
        for finding in advised.findings
        if finding.cost in advisable and (finding.estimated_gain or 1.0) > max([1.03, *shown])
    ]


def copying():
    """Copies from pageable memory that fill 98 % of each step, and a short kernel."""
    return loop(
        (MATRIX, "aten::mm", 986, 992, 5),
        more=lambda builder, begin: builder.copy(begin + 5, 980, begin + 10, 970, 24_000_000),
    )


@pytest.mark.parametrize("source", [two_steps(), run_ahead(), copying(), SPECIMEN])
def test_no_gain_is_more_than_is_there(source):
    assert violations(analyzed(source) if isinstance(source, TraceBuilder) else analyze(source)) == []


@settings(max_examples=25)
@given(rows=step_of(WORK))
def test_nor_is_it_in_any_program(rows):
    machine = Machine()
    machine.run(program(rows))
    assert violations(analyzed(machine.builder)) == []


def test_set_up_is_neither_removed_nor_counted():
    """900 us of cudaFree inside the model's first operator: a graph would not launch faster without it."""

    def freeing(builder, begin):
        builder.add("runtime", "cudaFree", begin + 20, 900, correlation=-2)
        builder.op("aten::mm", begin + 15, 910)

    rows = [(MATRIX, "aten::mm", 950 + 10 * n, 957 + 10 * n, 6) for n in range(4)]
    a = analyzed(loop(*rows, more=freeing)).typical
    gains = Gains(a)
    assert gains.replay.gain(gains.change(BY_ID["cuda_graphs"])) < 1.1
    everything = Change(cpu=[(Cover(a.steps.cpu_start, a.steps.cpu_end), 0.0)])
    assert gains.replay.gain(everything) == approx(1000 / 900, rel=0.05)
    assert a.idle_share("launch") < 0.1


def test_compiled_code_that_names_a_loss_is_no_loss():
    name = "triton_red_fused__log_softmax_nll_loss_forward_3"
    assert costs(loop((name, name, 20, 30, 600)))["compile_loss"].share_of_step < 0.02


def test_one_graph_does_not_hide_that_most_kernels_are_launched_one_by_one():
    builder = loop(*[(ADD, "aten::add", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)])
    builder.launch(ADD, 940, 5, 950, 3, call="cudaGraphLaunch")
    assert costs(builder)["cuda_graphs"].share_of_step > 0.1
    assert violations(analyzed(builder)) == []


@pytest.mark.parametrize(("waits", "why"), [((200, 400), "for launches"), ((200, 400, 600), "the GPU 3x per step")])
def test_what_waits_for_the_gpu_is_no_graph(waits, why):
    def waiting(builder, begin):
        for at in waits:
            builder.op("aten::item", begin + at, 20)
            builder.wait(begin + at + 5, begin + at + 15)

    rows = [(ADD, "aten::mm", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)]
    graphs = costs(loop(*rows, more=waiting))["cuda_graphs"]
    assert (graphs.share_of_step > 0, why in graphs.why) == (len(waits) < 3, True)


def test_the_time_before_the_first_kernel_of_a_trace_without_steps_is_no_work_of_a_step():
    builder = TraceBuilder()
    builder.op("aten::randn", 0, 5000)
    for at in range(6000, 8000, 100):
        builder.launch(MATRIX, at + 5, 5, at + 20, 90, op=builder.op("aten::mm", at, 20))
    assert "cpu_operators" not in [item.id for item in advise(analyzed(builder)).advice]


def test_a_gpu_that_has_no_cuda_is_not_advised_to_use_its_graphs():
    builder = loop(*[(ADD, "aten::mm", 20 + 15 * n, 30 + 15 * n, 3) for n in range(60)])
    assert costs(builder)["cuda_graphs"].share_of_step > 0.1
    builder.header["deviceProperties"] = [{"id": 0, "name": "Intel(R) Data Center GPU Max 1550"}]
    assert costs(builder)["cuda_graphs"].share_of_step == 0
