"""Survive a batch that is larger than memory: fewer texts at once, gradients accumulated, the same effective batch."""

from collections.abc import Callable, Sequence

from common.device import device_name, empty_cache
from walkthrough.results.errors import InputError, is_out_of_memory

import torch
from torch.optim import Optimizer

Batch = Sequence[torch.Tensor]  # tensors whose first dimension counts texts
LossOf = Callable[..., torch.Tensor]  # loss_of(*batch): the mean over the texts of a batch, with its graph


class AutoBatch:
    """The gradients of a batch, in as many passes as memory needs.

    rows: texts in one pass at most; halved where a pass runs out of memory, and never raised again. enabled: False
    refuses such a batch instead. scaler: of fp16; it scales the losses, and is not updated here. say: is told, in one
    line, what a retry changed. hint: what helps where not even one text fits.

    A pass counts by its share of the batch's texts, so the sum of the losses is the whole batch's mean, and so is
    the gradient. What is different is dropout's masks, which are drawn pass by pass.

    The model, the optimizer and its state are not touched before all passes of a batch are done; an attempt that runs
    out of memory leaves neither a gradient nor a used-up random number behind. So a training that had to retry is,
    bit by bit, one that began with the smaller number of rows.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        device: torch.device,
        rows: int,
        enabled: bool = True,
        scaler: torch.amp.GradScaler | None = None,
        say: Callable[[str], None] = print,
        hint: str = "try a smaller --model",
    ) -> None:
        self.optimizer, self.device, self.rows, self.enabled = optimizer, device, rows, enabled
        self.scaler, self.say, self.hint = scaler, say, hint

    def gradients(self, batch: Batch, loss_of: LossOf) -> torch.Tensor:
        """Leave the gradients of a batch's mean loss in the parameters; returns that loss, detached.

        Raises InputError where one text is too large, or a batch and this is not enabled; there are then no gradients.
        """
        while True:
            random_state = self._random_state()
            try:
                return self._accumulated(batch, loss_of)
            except Exception as error:  # out of memory has many types
                if not is_out_of_memory(error):
                    raise
            # Not in the handler: there the error's frames hold the activations of the failed pass.
            self.optimizer.zero_grad()
            empty_cache(self.device)
            self._set_random_state(random_state)
            self._halve(len(batch[0]))

    def _accumulated(self, batch: Batch, loss_of: LossOf) -> torch.Tensor:
        self.optimizer.zero_grad()
        texts, losses = len(batch[0]), []
        for part in zip(*(tensor.split(self.rows) for tensor in batch), strict=True):
            loss = loss_of(*part) * (len(part[0]) / texts)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _halve(self, texts: int) -> None:
        tried = min(self.rows, texts)
        where = f"out of memory on {device_name(self.device)} with"
        if not self.enabled:
            raise InputError(
                f"{where} batch size {tried}: --auto-batch trains on it in parts; or --batch-size {tried // 2}"
                if tried > 1
                else f"{where} a batch of one text: {self.hint}"
            )
        if tried == 1:
            raise InputError(f"{where} a batch of one text, so no smaller one is left: {self.hint}")
        self.rows = tried // 2
        passes = -(-texts // self.rows)
        self.say(
            f"{where} {tried} texts at once: from here on {self.rows} at a time, {passes} passes per step; "
            f"the effective batch stays {texts}"
        )

    def _random_state(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _set_random_state(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self.device)
