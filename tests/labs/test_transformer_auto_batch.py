"""labs/transformer/auto_batch.py: out of memory is survived, and changes nothing but the number of passes."""

import copy

import pytest
import torch
from torch import nn

from labs.transformer.auto_batch import AutoBatch
from walkthrough.results.errors import InputError

CPU = torch.device("cpu")


class Trained:
    """A model with dropout `p` whose passes run out of memory above `fits` texts; trained by AdamW on `batches`."""

    def __init__(self, p, fits, rows, steps=4, enabled=True, scaler=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(p), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.fits, self.sizes, self.said, self.losses = fits, [], [], []
        self.auto = AutoBatch(self.optimizer, CPU, rows, enabled, scaler, say=self.said.append)
        generator = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.randn(12, 6, generator=generator), torch.randint(3, (12,), generator=generator))
            for _ in range(steps)
        ]

    def loss_of(self, inputs, labels):
        self.sizes.append(len(inputs))
        hidden = self.model[:3](inputs)  # random numbers are used up before memory is
        if len(inputs) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return nn.functional.cross_entropy(self.model[3](hidden), labels)

    def run(self):
        for batch in self.batches:
            self.losses.append(self.auto.gradients(batch, self.loss_of).item())
            self.optimizer.step()
        return self

    def state(self):
        moments = [state for states in self.optimizer.state.values() for state in states.values()]
        return [*self.model.state_dict().values(), *moments, torch.get_rng_state()]


def test_in_parts_the_losses_and_the_weights_are_the_whole_batchs():
    whole = Trained(p=0.0, fits=100, rows=12).run()
    parts = Trained(p=0.0, fits=5, rows=12).run()
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    for mine, theirs in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert parts.sizes[:6] == [12, 6, 3, 3, 3, 3]


def test_parts_of_unequal_size_count_by_their_texts():
    whole = Trained(p=0.0, fits=100, rows=12).run()
    assert Trained(p=0.0, fits=100, rows=5).run().losses == pytest.approx(whole.losses, rel=1e-6)


def test_a_retry_leaves_no_trace_in_weights_moments_and_random_numbers():
    retried = Trained(p=0.5, fits=3, rows=12).run()
    from_the_beginning = Trained(p=0.5, fits=100, rows=3).run()
    assert retried.losses == from_the_beginning.losses
    torch.manual_seed(0)
    retried, from_the_beginning = (
        Trained(p=0.5, fits=3, rows=12).run().state(), Trained(p=0.5, fits=100, rows=3).run().state()
    )  # fmt: skip
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(retried, from_the_beginning, strict=True))


def test_the_optimizer_and_its_state_are_not_touched_by_an_attempt_that_fails():
    trained = Trained(p=0.5, fits=100, rows=12).run()
    before, random_state = copy.deepcopy(trained.optimizer.state_dict()), torch.get_rng_state()
    trained.fits = 0
    with pytest.raises(InputError):
        trained.auto.gradients(trained.batches[0], trained.loss_of)
    seen = trained.optimizer.state_dict()
    assert all(
        torch.equal(value, seen["state"][number][name])
        for number, values in before["state"].items()
        for name, value in values.items()
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in trained.model.parameters())


def test_it_says_in_one_line_what_it_did_and_only_once():
    trained = Trained(p=0.0, fits=6, rows=12).run()
    assert len(trained.said) == 1
    assert trained.said[0].count("\n") == 0
    assert (
        "with 12 texts at once: from here on 6 at a time, 2 passes per step; the effective batch stays 12"
        in (trained.said[0])
    )


def test_a_batch_of_one_that_does_not_fit_is_one_line():
    trained = Trained(p=0.0, fits=0, rows=12)
    with pytest.raises(InputError, match=r"batch of one text, so no smaller one is left: try a smaller --model"):
        trained.run()
    assert trained.sizes == [12, 6, 3, 1]


def test_where_it_is_not_asked_for_a_large_batch_is_refused_with_the_option():
    trained = Trained(p=0.0, fits=6, rows=12, enabled=False)
    with pytest.raises(InputError, match=r"with batch size 12: --auto-batch .* or --batch-size 6"):
        trained.run()
    assert trained.sizes == [12]


def test_a_defect_is_not_taken_for_a_lack_of_memory():
    trained = Trained(p=0.0, fits=100, rows=12)
    trained.loss_of = lambda *batch: [][1]
    with pytest.raises(IndexError):
        trained.run()


def test_scaled_losses_give_scaled_gradients_and_the_same_loss():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    plain, scaled = Trained(p=0.0, fits=4, rows=12), Trained(p=0.0, fits=4, rows=12, scaler=scaler)
    losses = [one.auto.gradients(one.batches[0], one.loss_of).item() for one in (plain, scaled)]
    assert losses[0] == pytest.approx(losses[1])
    for mine, theirs in zip(scaled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, 8 * theirs.grad)
