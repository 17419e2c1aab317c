"""The callbacks, in the real frameworks where they are installed."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from walkthrough.attach.callbacks import StepProfiler, lightning_callback, trainer_callback
from walkthrough.results.errors import InputError
from walkthrough.results.folder import traces_in
from walkthrough.trace.analysis import analyze

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks warn about few workers, no logger and the like


def test_lightning_traces_optimizer_steps_where_gradients_are_accumulated(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Linear(8, 2)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    trainer = lightning.Trainer(
        callbacks=[lightning_callback(tmp_path, skip=2, steps=3)], accumulate_grad_batches=2, max_epochs=1,
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, batch_size=4))
    [path] = traces_in(tmp_path)
    analysis = analyze(path)
    assert analysis.steps.names == ["3", "4", "5"]
    loads = sum(row.count for row in analysis.operators if row.name == "aten::stack")
    assert loads == 12  # two batches per step, images and labels each stacked


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Linear(8, 2)

    def forward(self, inputs, labels):
        return {"loss": nn.functional.cross_entropy(self.network(inputs), labels)}


def test_the_trainer_of_transformers_traces_optimizer_steps(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        num_train_epochs=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(
        model=Regression(),
        args=arguments,
        train_dataset=[{"inputs": torch.randn(8), "labels": torch.tensor(0)} for _ in range(64)],
        callbacks=[trainer_callback(tmp_path / "trace", skip=2, steps=2)],
    ).train()
    [path] = traces_in(tmp_path / "trace")
    analysis = analyze(path)
    assert analysis.steps.names == ["3", "4"]
    assert sum(row.count for row in analysis.operators if row.name.startswith("Optimizer.step")) == 2


@pytest.mark.parametrize("make", [lightning_callback, trainer_callback])
def test_what_cannot_be_traced_and_a_framework_that_is_missing_are_refused(tmp_path, make, monkeypatch):
    for skip, steps in ((-1, 3), (0, 0)):
        with pytest.raises(InputError, match="skip at least 0"):
            StepProfiler(tmp_path, skip, steps)
    monkeypatch.setattr("walkthrough.attach.callbacks.find_spec", lambda package: None)
    with pytest.raises(InputError, match="is not installed: pip install "):
        make(tmp_path)
