"""Training a classifier of texts epoch by epoch, and its state: what `train.py` and the study run."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from common.device import synchronize
from labs.transformer.auto_batch import AutoBatch
from labs.transformer.batches import DynamicPadding, FixedPadding, UniformLengthBatches
from labs.transformer.data import Tokenized, tokens_for
from labs.transformer.from_scratch import begin_with_word_vectors, dropped
from labs.transformer.model import SIZES, classifier, max_tokens
from labs.transformer.texts import PARTS, Texts

import torch
from torch import nn
from torch.utils.data import DataLoader

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCHES = ("fixed", "dynamic", "uniform")
STATEFUL = ("model", "optimizer", "scaler", "schedule")
WARMUP = 0.1  # of all steps: the learning rate rises; then it falls to 0
LR_TIMES_WIDTH, HUB_LR = 0.128, 5e-5
OF_TEST = 128  # texts per batch where nothing is kept for backward


@dataclass(frozen=True)
class Settings:
    """What determines a training; a checkpoint goes on with the same only.

    batches: one of `BATCHES`: filled up to the model's most tokens, to the batch's longest text, or so with texts of
    about one length. checkpoint: layers are computed again in the backward pass. epochs: the learning rate falls to 0
    at their end, so they are among the settings. precision: one of `DTYPES`, as "auto" differs from machine to machine.
    """

    model: str
    data: str
    batch_size: int
    epochs: int
    lr: float
    precision: str
    batches: str
    checkpoint: bool
    seed: int


@dataclass(frozen=True)
class Epoch:
    """One epoch of training, and what the validation texts say of it. Accuracies are shares (0..1).

    loss: the mean over training texts as they were trained on. padding: the share of the trained tokens that only fill
    up. rows: texts in one pass at its end, see `AutoBatch`.
    """

    epoch: int
    loss: float
    validation_loss: float
    validation_accuracy: float
    seconds: float
    tokens_per_second: float
    padding: float
    rows: int


class Training:
    """A model that is trained epoch by epoch; `state` and `load` carry it over from one process to the next.

    A model with random weights begins with word vectors and trains on texts with dropped tokens: see `from_scratch`.
    of: the texts. auto_batch: a batch that does not fit into memory is trained in parts. workers: of the loader.
    length: tokens at which texts are cut, the model's most if None.
    """

    def __init__(
        self,
        settings: Settings,
        of: Texts,
        device: torch.device,
        workers: int = 0,
        auto_batch: bool = False,
        length: int | None = None,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.device, self.of, self.epochs = settings, device, of, list[Epoch]()
        self.tokens, length = tokens_for(settings.model, of.train), length or max_tokens(settings.model)
        self.pad_id = self.tokens.pad_id
        self.sets = {part: Tokenized(getattr(of, part), self.tokens, length, of.source) for part in PARTS}
        self.model = classifier(settings.model, self.tokens.vocabulary, self.pad_id, len(of.classes), "sdpa").to(device)
        self.from_scratch = settings.model in SIZES
        if self.from_scratch:
            begin_with_word_vectors(self.model, self.sets["train"])
        if settings.checkpoint:
            # transformers 5 has renamed it.
            enable = getattr(self.model, "activation_checkpointing_enable", None)
            (enable or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.lr, weight_decay=0.01, fused=True)
        self.amp_dtype = DTYPES[settings.precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp_dtype == torch.float16)
        self.generator = torch.Generator()
        size, train = settings.batch_size, self.sets["train"]
        uniform = UniformLengthBatches(train.lengths, size, self.generator) if settings.batches == "uniform" else None
        fixed = FixedPadding(self.pad_id, length) if settings.batches == "fixed" else None
        self.loader = DataLoader(
            train, size, shuffle=None if uniform else True, sampler=uniform, collate_fn=fixed or self.padded,
            num_workers=workers, persistent_workers=workers > 0, pin_memory=device.type == "cuda",
            generator=self.generator,
        )  # fmt: skip
        self.steps = settings.epochs * len(self.loader)  # in all
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._factor)
        self.auto = AutoBatch(
            self.optimizer, device, size, auto_batch, self.scaler,
            hint="try --checkpoint or a smaller --model" if not settings.checkpoint else "try a smaller --model",
        )  # fmt: skip

    @property
    def padded(self) -> DynamicPadding:
        """Fills a batch up to its longest text."""
        return DynamicPadding(self.pad_id)

    def loss_of(self, labels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch as the loader yields it; one element, float32, on the device."""
        labels, ids = labels.to(self.device, non_blocking=True), ids.to(self.device, non_blocking=True)
        return nn.functional.cross_entropy(self._logits(ids), labels)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Train on one batch; returns its loss. Raises InputError where memory is too small."""
        labels, ids = batch
        if self.from_scratch:
            ids = dropped(ids, self.sets["train"])
        loss = self.auto.gradients((labels, ids), self.loss_of)
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss

    def epoch(self) -> Epoch:
        """Train one more epoch and validate. Its random numbers depend on the seed and on the epoch's number alone."""
        number = len(self.epochs) + 1
        self._seed(number)
        losses, real, all_tokens, begin = [], 0, 0, time.perf_counter()
        for labels, ids in self.loader:
            losses.append(self.step((labels, ids)) * len(labels))
            real += int((ids != self.pad_id).sum())
            all_tokens += ids.numel()
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        loss = torch.stack(losses).sum().item() / len(self.sets["train"])
        validation_loss, accuracy = self.evaluated("validation")
        padding, speed = 1 - real / all_tokens, real / seconds
        done = Epoch(number, loss, validation_loss, accuracy, seconds, speed, padding, self.auto.rows)
        self.epochs.append(done)
        return done

    def until(self, tokens: int) -> int:
        """Train on so many real tokens, and no epochs; the learning rate falls to 0 at their end. Returns the steps."""
        train = self.sets["train"]
        mean_tokens = sum(train.lengths) / len(train)
        self.steps = max(1, round(tokens / mean_tokens / self.settings.batch_size))
        seen = steps = number = 0
        while seen < tokens:
            number += 1
            self._seed(number)
            for labels, ids in self.loader:
                self.step((labels, ids))
                steps += 1
                seen += int((ids != self.pad_id).sum())
                if seen >= tokens:
                    break
        return steps

    @torch.no_grad()
    def evaluated(self, part: str) -> tuple[float, float]:
        """(Mean loss, share that is classified right) of the texts of "validation" or "test"."""
        self.model.eval()
        of = self.sets[part]
        by_length = sorted(range(len(of)), key=lambda number: of.lengths[number])
        loader = DataLoader(of, OF_TEST, sampler=by_length, collate_fn=self.padded)
        losses, right = 0.0, 0
        for labels, ids in loader:
            logits, labels = self._logits(ids.to(self.device)), labels.to(self.device)
            losses += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            right += int((logits.argmax(1) == labels).sum())
        self.model.train()
        return losses / len(of), right / len(of)

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on, for torch.save."""
        parts = {name: getattr(self, name).state_dict() for name in STATEFUL}
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {"settings": asdict(self.settings), "epochs": epochs, "rows": self.auto.rows, **parts}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` of a training with the same settings."""
        for name in STATEFUL:
            if state[name]:  # a scaler that is off has none
                getattr(self, name).load_state_dict(state[name])
        self.epochs, self.auto.rows = [Epoch(**epoch) for epoch in state["epochs"]], state["rows"]

    def _seed(self, number: int) -> None:
        """Begin an epoch by its number."""
        torch.manual_seed(self.settings.seed * 100_003 + number)
        self.generator.manual_seed(self.settings.seed * 100_003 + number)
        self.model.train()

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 [texts, classes]."""
        with torch.autocast(self.device.type, self.amp_dtype, enabled=self.amp_dtype != torch.float32):
            return self.model(ids, attention_mask=ids != self.pad_id).logits.float()

    def _factor(self, step: int) -> float:
        """Of the learning rate, by step: up over `WARMUP` of all, then down to 0, both linearly."""
        top = max(1, round(WARMUP * self.steps))
        return min((step + 1) / top, max(0.0, (self.steps - step) / max(1, self.steps - top)))


def learning_rate(model: str) -> float:
    """AdamW's highest: less for wider models, whose weights are random, and what is usual for weights of the hub."""
    return LR_TIMES_WIDTH / SIZES[model].width if model in SIZES else HUB_LR
