"""What some steps do besides training is told, by the trace or by its recording, and never averaged with the others."""

import pytest
from support.trace_builder import TraceBuilder

from walkthrough.advice.gains import advise
from walkthrough.advice.report import report
from walkthrough.advice.wait_costs import REMEDIES, doing
from walkthrough.trace.analysis import analyze

WORKERS = "_MultiProcessingDataLoaderIter"


class Loop(TraceBuilder):
    """A training loop on a CPU: each step loads a batch for 100 µs, then has a product, its backward pass, a step."""

    def __init__(self, loader=WORKERS, recording=None):
        super().__init__(devices=())
        self.now, self.number, self.loader = 0, 0, loader
        if recording is not None:
            self.header["walkthrough"] = recording

    def train(self, steps=1, before=lambda: None, after=lambda: None, load=100, sequenced=False):
        for _ in range(steps):
            begin = self.now
            before()
            self.load(load)
            self.compute("aten::addmm", 200, sequenced)
            self.compute("autograd::engine::evaluate_function: AddmmBackward0", 300)
            self.compute("Optimizer.step#SGD.step", 100)
            after()
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

    def evaluate(self, batches=10, sequenced=False):
        for _ in range(batches):
            self.load(100, "_SingleProcessDataLoaderIter")
            self.compute("aten::mul", 20, sequenced=True)  # of an environment, say
            self.compute("aten::addmm", 200, sequenced)
        self.load(5, "_SingleProcessDataLoaderIter")

    def save(self, us=9000):
        self.add("python_function", "torch/serialization.py(945): save", self.now, us)
        self.now += us


@pytest.fixture
def analysis(tmp_path):
    """analysis(builder): the `Analysis` of the trace that a builder holds."""
    return lambda builder: analyze(builder.write(tmp_path / "made.pt.trace.json.gz"))


def recording(**fields):
    return {"schema": 1, "untraced_step_ms": [0.6, 0.7, 0.8]} | fields


def happening(step, what):
    return recording(happenings=[{"step": str(step), "what": what}])


def test_of_a_recording_what_is_of_another_type_keeps_its_default(analysis):
    loop = Loop(recording={"untraced_after_ms": [1, 2.5], "warmup": "3", "asked": {"steps": 4}, "openmp": {"a": 1}})
    read = analysis(loop.train(2)).trace.recording
    assert (read.untraced_after_ms, read.asked) == ([1.0, 2.5], {"steps": 4})
    assert (read.warmup, read.openmp, read.workers_cpu, read.untraced_happenings) == (None, {}, None, [])


def test_a_step_that_begins_an_epoch_waits_from_the_last_ones_end_to_its_first_batch(analysis):
    loop = Loop().train(2)
    loop.train(before=loop.end_epoch, load=5000).train(3, load=110)
    result = analysis(loop)
    [epoch] = result.outliers
    assert (epoch.name, epoch.reasons, doing(epoch)) == ("2", ("new epoch",), "begins a new epoch")
    assert (epoch.wait_us, epoch.usual_wait_us) == (50 + 20_000 + 5000, 110)
    assert "persistent_workers=True" in REMEDIES[epoch.workers] and "anew" in REMEDIES[epoch.workers]
    assert result.typical.steps.names == ["0", "1", "3", "4", "5"]
    assert report(result)["steps"]["outliers"][0]["reasons"] == ["new epoch"]


def test_it_is_an_outlier_although_it_waits_for_the_dataloader_alone(analysis):
    loop = Loop().train(3)
    loop.train(before=lambda: loop.end_epoch(0), load=5000).train(3)
    [epoch] = analysis(loop).outliers
    assert (epoch.role, epoch.reasons) == ("dataloader", ("new epoch",))
    waiting = Loop().train(3).train(1, load=5000).train(3)
    assert analysis(waiting).outliers == []  # with workers one step in so many waits for all


@pytest.mark.parametrize(("persistent", "workers"), [(True, "kept"), (False, "anew")])
def test_the_recording_tells_whether_workers_are_kept(analysis, persistent, workers):
    loaders = [{"num_workers": 2, "persistent_workers": persistent}, {"num_workers": 0}]
    loop = Loop(recording=recording(loaders=loaders)).train(3)
    loop.train(before=loop.end_epoch).train(2)
    [epoch] = analysis(loop).outliers
    assert epoch.workers == workers
    assert ("filled anew" in REMEDIES[epoch.workers]) == persistent


def test_where_no_processes_load_no_workers_are_named(analysis):
    loop = Loop("_SingleProcessDataLoaderIter").train(3)
    loop.train(before=lambda: loop.end_epoch(0), load=5000).train(2)
    [epoch] = analysis(loop).outliers
    assert (epoch.wait_us, epoch.workers) == (5050, "")


def test_a_new_epoch_is_not_to_blame_for_what_happens_elsewhere_in_its_step(analysis):
    loop = Loop("_SingleProcessDataLoaderIter").train(3)

    def pause():
        loop.now += 9000

    loop.train(before=lambda: loop.end_epoch(0), after=pause).train(2)
    [outlier] = analysis(loop).outliers
    assert (outlier.reasons, outlier.role) == ((), "other")


def test_where_gradients_are_accumulated_an_epochs_step_has_one_call_more_than_usual(analysis):
    loop = Loop()

    def micro_batches():
        for _ in range(3):
            loop.load(100)
            loop.compute("aten::addmm", 200)
            loop.compute("autograd::engine::evaluate_function: AddmmBackward0", 300)

    def with_an_epochs_end():
        micro_batches()
        loop.end_epoch()

    loop.train(2, before=micro_batches).train(before=with_an_epochs_end).train(2, before=micro_batches)
    [epoch] = analysis(loop).outliers
    assert (epoch.reasons, epoch.wait_us) == (("new epoch",), 50 + 20_000 + 100)


def test_forward_passes_without_backward_ones_may_be_a_rollout(analysis):
    loop = Loop().train(2)
    loop.train(after=loop.evaluate).train(2)
    result = analysis(loop)
    [outlier] = result.outliers
    assert (outlier.name, outlier.reasons) == ("2", ("forward passes",))
    assert "an evaluation, or a rollout" in doing(outlier)
    assert result.typical.steps.mean_us == 700


def test_they_are_an_evaluation_where_the_recording_says_so(analysis):
    loop = Loop(recording=happening(2, "evaluation")).train(2)
    loop.train(after=loop.evaluate).train(2)
    [outlier] = analysis(loop).outliers
    assert (outlier.reasons, doing(outlier)) == (("evaluation",), "holds an evaluation")


@pytest.mark.parametrize(("gradients", "reasons"), [(True, ()), (False, ("forward passes",))])
def test_forward_passes_that_gradients_are_recorded_for_are_no_evaluation(analysis, gradients, reasons):
    loop = Loop().train(2, sequenced=True)
    loop.train(after=lambda: loop.evaluate(sequenced=gradients), sequenced=True).train(2, sequenced=True)
    assert [outlier.reasons for outlier in analysis(loop).outliers] == [reasons]


def test_what_runs_inside_an_operator_with_gradients_needs_no_number_of_its_own(analysis):
    loop = Loop().train(2, sequenced=True)

    def compiled():
        for _ in range(10):
            loop.op("CompiledFunction", loop.now, 200)["args"]["Sequence number"] = 1
            loop.compute("aten::addmm", 200)

    loop.train(after=compiled, sequenced=True).train(2, sequenced=True)
    assert [outlier.reasons for outlier in analysis(loop).outliers] == [()]


def test_an_evaluation_of_compiled_code_is_told_by_its_batches(analysis):
    loop = Loop().train(2)
    loop.train(after=loop.evaluate).train(2)
    for event in loop.events:
        event["name"] = event["name"].replace("aten::addmm", "Torch-Compiled Region")
    [outlier] = analysis(loop).outliers
    assert outlier.reasons == ("forward passes",)


def test_a_longer_batch_is_no_evaluation(analysis):
    loop = Loop().train(2)

    def more():
        for _ in range(5):
            loop.compute("aten::addmm", 200)
            loop.compute("autograd::engine::evaluate_function: AddmmBackward0", 300)

    loop.train(after=more).train(2)
    [outlier] = analysis(loop).outliers
    assert outlier.reasons == ()


def test_with_stacks_a_checkpoint_is_told(analysis):
    loop = Loop().train(2)
    loop.train(after=loop.save).train(2)
    [outlier] = analysis(loop).outliers
    assert (outlier.reasons, doing(outlier)) == (("checkpoint",), "writes a checkpoint")


def test_what_the_recording_names_needs_no_sign_in_the_trace(analysis):
    loop = Loop(recording=happening(2, "checkpoint")).train(2)

    def pause():
        loop.now += 9000

    loop.train(after=pause).train(2)
    assert [outlier.reasons for outlier in analysis(loop).outliers] == [("checkpoint",)]
    loop.header["walkthrough"] = happening(2, "a \x1b[31mword of another version")
    assert [outlier.reasons for outlier in analysis(loop).outliers] == [()]


def test_most_of_three_steps_may_be_left_out_where_their_reasons_are_known(analysis):
    loop = Loop().train()
    loop.header["walkthrough"] = recording(
        happenings=[{"step": "1", "what": "checkpoint"}, {"step": "2", "what": "evaluation"}]
    )

    def pause():
        loop.now += 9000

    loop.train(2, after=pause)
    result = analysis(loop)
    assert [outlier.name for outlier in result.outliers] == ["1", "2"]
    assert result.typical.steps.names == ["0"]
    assert [outlier.excess_us for outlier in result.outliers] == [9000, 9000]


def test_of_two_steps_the_one_with_a_reason_is_the_odd_one(analysis):
    loop = Loop().train()
    loop.train(before=loop.end_epoch)
    result = analysis(loop)
    assert [outlier.name for outlier in result.outliers] == ["1"]
    assert not result.typical.workload.unusable
    assert advise(result).advice != []


def test_a_short_evaluation_in_one_of_three_steps_is_kept_apart(analysis):
    loop = Loop().train()
    loop.train(after=lambda: loop.evaluate(batches=1)).train()
    result = analysis(loop)
    assert [outlier.us for outlier in result.outliers] == [1025]
    assert result.typical.steps.mean_us == 700


def test_of_two_steps_that_differ_manifold_without_a_reason_nothing_is_advised(analysis):
    loop = Loop().train()

    def pause():
        loop.now += 1500

    loop.train(after=pause)
    result = analysis(loop)
    assert (result.outliers, advise(result).advice, advise(result).costs, advise(result).findings) == ([], [], [], [])
    assert "700 us and 2.2 ms, and nothing in the trace tells which is the usual one" in advise(result).verdict
    alike = Loop().train()
    alike.train(after=lambda: alike.compute("aten::mul", 1300))
    assert not analysis(alike).typical.workload.unusable  # 2.9 times as long
