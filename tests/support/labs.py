"""What tests of several labs share: options, a training that is killed, whether two trainings are the same."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from common.options import StepOptions
from labs.shared.training import CHECKPOINT, Training, epochs_in, unpacked
from support.options import small_options


def lab_options(folder: Path, **changes: Any) -> StepOptions:
    """Options of a small --quick run on a CPU, without loader workers; its logs and data are in one folder."""
    of_labs = {"data": folder, "model": "w8", "image_size": 16, "batch_size": 8, "precision": "fp32"}
    return small_options(folder, **{**of_labs, **changes})


@contextmanager
def killed_in_epoch(number: int) -> Iterator[None]:
    """Ctrl-C before that epoch of a `Training` is done."""
    real = Training.done

    def done(self: Training, **values: float) -> None:
        if self.number + 1 == number:
            raise KeyboardInterrupt
        real(self, **values)

    with patch.object(Training, "done", done):
        yield


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """The model of a training's checkpoint."""
    return unpacked((folder / CHECKPOINT).read_bytes())["model"]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two models have the same weights, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def assert_goes_on_after_a_kill(run: Callable[..., Any], words: Sequence[str], folder: Path, whole: Path) -> None:
    """run(*words), a training in `folder` that ends in its second epoch, is the one in `whole` at the end."""
    with killed_in_epoch(2):
        assert run(*words).returncode == 130
    assert [row["epoch"] for row in epochs_in(folder)] == [1]
    assert "goes on after epoch 1" in run(*words).stdout
    assert_same_training(folder, whole)


def assert_same_training(folder: Path, other: Path) -> None:
    """Bit by bit: the weights at the end, and the loss of each epoch."""
    assert equal(weights_in(folder), weights_in(other))
    assert [row["loss"] for row in epochs_in(folder)] == [row["loss"] for row in epochs_in(other)]
