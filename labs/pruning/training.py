"""Training from any epoch to the end, masked or not: the same batches and learning rates, wherever it begins."""

import copy
import hashlib
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from common.device import keep_freed_memory
from common.options import StepOptions
from labs.pruning.masks import Masks, apply
from labs.pruning.model import small_mobilenet, width_of
from labs.pruning.plans import PLANS, QUICK_EPOCHS, QUICK_IMAGES, Plan
from labs.shared.images import SPLIT_SEED, DataSet, image_data, source_in
from walkthrough.results.environment import code_hash
from walkthrough.results.errors import InputError
from walkthrough.results.result import write_whole, writing

import torch
from torch import nn
from torch.nn import functional as F

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
TEST_BATCH = 500
Checkpoint = dict[str, Any]  # "model", "optimizer": their state_dicts


def data_of(options: StepOptions, fold: int | None = None) -> tuple[DataSet, Plan]:
    """What is trained on, and how: CIFAR-10 where --data holds it, or its train/ and val/, else digits.

    By --quick fewer images and epochs. fold: see `image_data`. Raises InputError.
    """
    root = options.data
    photographs = (root / "train").is_dir() and (root / "val").is_dir()
    source = source_in(root, None, options.download)
    source = "imagenette" if source == "digits" and photographs else source
    plan = PLANS[source]
    data = image_data(source, root, plan.image_size, "pruning", options.download, fold)
    if options.quick:
        plan = replace(plan, epochs=min(QUICK_EPOCHS, plan.epochs))
        some = torch.Generator().manual_seed(SPLIT_SEED)  # at random, since those of a folder are in order of classes
        train, test = (
            part.chosen(torch.randperm(len(part), generator=some)[:QUICK_IMAGES]) for part in (data.train, data.test)
        )
        data = replace(data, train=train, test=test)
    if len(data.train) < options.batch_size:
        raise InputError(f"--batch-size {options.batch_size} is larger than the data ({len(data.train)} images)")
    return data, plan


class Training:
    """A network from a seed, its optimizer, and the data on the device.

    seed: of the network and of the batches. weights_seed: of the network alone, where its weights are to be others.
    """

    def __init__(
        self, options: StepOptions, data: DataSet, plan: Plan, seed: int, weights_seed: int | None = None
    ) -> None:
        self.plan, self.seed, self.device = plan, seed, torch.device(options.device)
        self.source, self.batch_size = data.source, options.batch_size
        if self.device.type == "cpu":
            keep_freed_memory()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed if weights_seed is None else weights_seed)
            network = small_mobilenet(width_of(options.model), data.channels, data.classes)
        self.use(network)
        self.images, self.labels = data.prepared(data.train, self.device)
        self.digest = hashlib.sha256(
            data.train.images.numpy().tobytes() + data.train.labels.numpy().tobytes()
        ).hexdigest()
        self.test_images, self.test_labels = data.prepared(data.test, self.device)

    def use(self, model: nn.Module) -> None:
        """Train this network, with an optimizer of its own."""
        self.model = model.to(self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=self.plan.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )

    @property
    def steps_per_epoch(self) -> int:
        return len(self.images) // self.batch_size

    def checkpoint(self) -> Checkpoint:
        """What `load` goes on with. Not of a network that is masked."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, checkpoint: Checkpoint) -> None:
        """Be as at a checkpoint: weights, batch norm's statistics, and the optimizer's momentum."""
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))  # it keeps the tensors that it is given

    def mask(self, masks: Masks) -> None:
        """Leave weights out from now on. The parameters stay the same objects, so the optimizer goes on with them."""
        apply(self.model, masks)

    def run(self, begin: int = 0, until: int | None = None, after: Callable[[int], None] | None = None) -> list[float]:
        """Train from the end of epoch `begin` to that of epoch `until`, by default the last; the mean loss of each.

        Batches are drawn from the seed and the epoch, so that those of an epoch are the same wherever a training
        begins. after(epoch): is called at the end of each. Raises InputError where a loss is no number.
        """
        losses = []
        for epoch in range(begin, self.plan.epochs if until is None else until):
            losses.append(self._epoch(epoch))
            if not math.isfinite(losses[-1]):
                raise InputError(f"the loss of epoch {epoch + 1} is no number: the training diverged")
            if after:
                after(epoch + 1)
        return losses

    def _epoch(self, epoch: int) -> float:
        self.model.train()
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = torch.randperm(len(self.images), generator=generator).to(self.device)
        losses = []
        for step, chosen in enumerate(order.split(self.batch_size)[: self.steps_per_epoch]):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.plan, epoch + step / self.steps_per_epoch)
            losses.append(self.step(self.images[chosen], self.labels[chosen]))
        return torch.stack(losses).mean().item()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train on one batch as `Training.images` and `labels` hold them; its loss."""
        loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of the test images that is classified right, 0..1."""
        self.model.eval()
        batches = zip(self.test_images.split(TEST_BATCH), self.test_labels.split(TEST_BATCH), strict=True)
        return sum(int((self.model(images).argmax(1) == labels).sum()) for images, labels in batches) / len(
            self.test_labels
        )


def learning_rate(plan: Plan, epochs: float) -> float:
    """After so many epochs: rises over the first, then falls to 0 along a cosine."""
    if epochs < 1:
        return plan.lr * max(epochs, 0.05)
    return plan.lr * 0.5 * (1 + math.cos(math.pi * (epochs - 1) / max(1, plan.epochs - 1)))


def checkpoints(options: StepOptions, training: Training, resets: Iterable[int]) -> dict[int, Checkpoint]:
    """{epoch: the `Checkpoint` at its end} of the unpruned training, for `resets` and its last epoch.

    They are kept in the log folder, in one file for each seed, so that many processes, or the nodes of a cluster that
    shares the folder, train it once; where the file is missing, this trains. `training` is changed.
    """
    wanted = [*resets, training.plan.epochs]
    settings = (training.plan, training.digest, wanted, options.model, training.batch_size, training.device.type)
    what = f"{settings} {torch.__version__} {code_hash('labs/pruning/*.py', 'studies/*.py')}"
    key = hashlib.sha256(what.encode()).hexdigest()[:12]
    path = options.logdir / "weights" / f"{training.source}-{options.model}-{training.seed}-{key}.pt"
    if not path.exists():
        kept: dict[int, Checkpoint] = {0: copy.deepcopy(training.checkpoint())}
        training.run(after=lambda epoch: kept.update({epoch: copy.deepcopy(training.checkpoint())}))
        content = io.BytesIO()
        torch.save({epoch: kept[epoch] for epoch in wanted}, content)
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())
    try:
        return torch.load(path, map_location=training.device)
    except Exception as error:  # torch.load fails in any way
        raise InputError(f"cannot read the weights in {path}: delete it, and they are trained again") from error
