"""What some steps do besides training is told, by the trace or by its recording, and never averaged with the others."""

import pytest
from support.trace_builder import TraceBuilder, analyzed

WORKERS, ALONE = "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


class Loop(TraceBuilder):
    """A training loop on a CPU: each step loads a batch for 100 µs, then has a product, its backward pass, a step."""

    def __init__(self, loader=WORKERS, **recording):
        super().__init__(devices=())
        self.now = self.number = 0
        self.loader, self.sequenced = loader, False
        if recording:
            self.header["walkthrough"] = {"schema": 1, "untraced_step_ms": [0.6, 0.7, 0.8]} | recording

    def train(self, steps=1, before=lambda loop: None, after=lambda loop: None, load=100):
        """before, after: what each step begins and ends with."""
        for _ in range(steps):
            begin = self.now
            before(self)
            self.load(load)
            self.compute("aten::addmm", 200, self.sequenced)
            self.compute(BACKWARD, 300)
            self.compute("Optimizer.step#SGD.step", 100)
            after(self)
            self.step(self.number, begin, self.now - begin)
            self.number += 1
        return self

    def load(self, us, loader=None):
        self.loading(self.now, us, loader or self.loader)
        self.now += us

    def compute(self, name, us, sequenced=False):
        op = self.op(name, self.now, us)
        if sequenced:
            op["args"]["Sequence number"] = self.now
        self.now += us

    def end_epoch(self, start_workers=20_000):
        """The call that finds the loader's end; then worker processes start."""
        self.load(50)
        self.now += start_workers

    def end_of_a_short_epoch(self):
        self.end_epoch(0)

    def micro_batches(self):
        for _ in range(3):
            self.load(100)
            self.more(1)

    def more(self, count=5):
        for _ in range(count):
            self.compute("aten::addmm", 200)
            self.compute(BACKWARD, 300)

    def last_of_an_epoch(self):
        self.micro_batches()
        self.end_epoch()

    def evaluate(self, batches=10, sequenced=False):
        for _ in range(batches):
            self.load(100, ALONE)
            self.compute("aten::mul", 20, sequenced=True)  # of an environment, say
            self.compute("aten::addmm", 200, sequenced)
        self.load(5, ALONE)

    def train_without_steps(self):
        self.evaluate(sequenced=True)

    def compiled(self):
        for _ in range(10):
            self.op("CompiledFunction", self.now, 200)["args"]["Sequence number"] = 1
            self.compute("aten::addmm", 200)

    def save(self):
        self.add("python_function", "torch/serialization.py(945): save", self.now, 9000)
        self.now += 9000

    def pause(self):
        self.now += 9000


def nothing(loop):
    pass


def odd(what=nothing, before=None, load=100, loader=WORKERS, sequenced=False, usual=nothing, **recording):
    """The outliers of a loop whose step 2 begins or ends with something, and its typical steps."""
    loop = Loop(loader, **recording)
    loop.sequenced = sequenced
    result = analyzed(loop.train(2, usual).train(1, before or usual, what, load).train(2, usual))
    return result.outliers, result.typical.steps


def happening(what):
    return {"happenings": [{"step": "2", "what": what}]}


EPOCH = "new epoch"


@pytest.mark.parametrize(
    ("how", "reasons"),
    [
        ({"before": Loop.end_epoch, "load": 5000}, (EPOCH,)),
        ({"before": Loop.end_of_a_short_epoch, "load": 5000}, (EPOCH,)),  # though it waits for the DataLoader alone
        ({"before": Loop.end_of_a_short_epoch, "what": Loop.pause, "loader": ALONE}, ()),  # not to blame for elsewhere
        ({"before": Loop.last_of_an_epoch, "usual": Loop.micro_batches}, (EPOCH,)),  # one call more than usual
        ({"what": Loop.evaluate}, ("forward passes",)),
        ({"what": Loop.evaluate, "sequenced": True}, ("forward passes",)),
        ({"what": Loop.evaluate, **happening("evaluation")}, ("evaluation",)),
        ({"what": Loop.train_without_steps, "sequenced": True}, ()),  # gradients are recorded: no evaluation
        ({"what": Loop.compiled, "sequenced": True}, ()),  # what runs inside needs no number of its own
        ({"what": Loop.more}, ()),  # a longer batch
        ({"what": Loop.save}, ("checkpoint",)),
        ({"what": Loop.pause}, ()),
        ({"what": Loop.pause, **happening("checkpoint")}, ("checkpoint",)),
        ({"what": Loop.pause, **happening("a \x1b[31mword of another version")}, ()),
    ],
)
def test_what_an_outlying_step_does_besides_training_is_told(how, reasons):
    [outlier], typical = odd(**how)
    assert (outlier.name, outlier.reasons) == ("2", reasons)
    assert typical.names == ["0", "1", "3", "4"]


@pytest.mark.parametrize(
    ("how", "waits", "workers"),
    [
        ({"before": Loop.end_epoch, "load": 5000}, 50 + 20_000 + 5000, "yes"),
        ({"before": Loop.last_of_an_epoch, "usual": Loop.micro_batches}, 50 + 20_000 + 100, "yes"),
        ({"before": Loop.end_of_a_short_epoch, "load": 5000, "loader": ALONE}, 5050, ""),  # no processes load
        ({"before": Loop.end_epoch, "loaders": [{"num_workers": 2, "persistent_workers": True}, {"num_workers": 0}]},
         20_150, "kept"),
        ({"before": Loop.end_epoch, "loaders": [{"num_workers": 2, "persistent_workers": False}]}, 20_150, "anew"),
    ],
)  # fmt: skip
def test_a_step_that_begins_an_epoch_waits_from_the_last_ones_end_to_its_first_batch(how, waits, workers):
    [epoch], _ = odd(**how)
    assert (epoch.wait_us, epoch.usual_wait_us, epoch.workers) == (waits, 400 if "usual" in how else 100, workers)


def test_an_evaluation_of_compiled_code_is_told_by_its_batches():
    loop = Loop().train(2).train(after=Loop.evaluate).train(2)
    for event in loop.events:
        event["name"] = event["name"].replace("aten::addmm", "Torch-Compiled Region")
    result = analyzed(loop)
    assert [outlier.reasons for outlier in result.outliers] == [("forward passes",)]


BOTH = [{"step": "1", "what": "checkpoint"}, {"step": "2", "what": "evaluation"}]


@pytest.mark.parametrize(
    ("loop", "outliers"),
    [
        (Loop(happenings=BOTH).train().train(2, after=Loop.pause), [("1", 9000), ("2", 9000)]),  # most of three
        (Loop().train().train(before=Loop.end_epoch), [("1", 20_050)]),  # one of two
        (Loop().train().train(after=lambda loop: loop.evaluate(batches=1)).train(), [("1", 325)]),  # a short one
    ],
)
def test_of_few_steps_those_with_a_reason_are_the_odd_ones(loop, outliers):
    result = analyzed(loop)
    assert [(outlier.name, outlier.excess_us) for outlier in result.outliers] == outliers
    assert (result.typical.steps.names[0], result.typical.steps.mean_us) == ("0", 700)


def test_of_a_recording_what_is_of_another_type_keeps_its_default():
    odd_types = {"untraced_after_ms": [1, 2.5], "warmup": "3", "asked": {"steps": 4}, "openmp": {"a": 1}}
    read = analyzed(Loop(**odd_types).train(2)).trace.recording
    assert (read.untraced_after_ms, read.asked) == ([1.0, 2.5], {"steps": 4})
    assert (read.warmup, read.openmp, read.workers_cpu, read.untraced_happenings) == (None, {}, None, [])
