"""How each data set is trained: epochs, learning rate, and the epochs that weights are reset to.

Those of digits were chosen with `choose.py`, on folds of the training images; no test image was looked at. Those of the
others are guesses to begin with: no network was trained on them here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """epochs: of a training. lr: the highest, after a first epoch in which it rises. resets: epochs that are reset to.

    rounds: sparsities (0..1) of iterative pruning, one round after the other.
    """

    epochs: int
    lr: float
    image_size: int
    resets: tuple[int, ...]
    rounds: tuple[float, ...] = (0.6, 0.8, 0.9, 0.95, 0.99)


PLANS = {
    "digits": Plan(epochs=16, lr=0.1, image_size=8, resets=(0, 1, 2, 4)),
    "cifar10": Plan(epochs=80, lr=0.1, image_size=32, resets=(0, 1, 2, 4, 8)),
    "imagenette": Plan(epochs=40, lr=0.1, image_size=64, resets=(0, 1, 2, 4, 8)),
}
QUICK_EPOCHS, QUICK_IMAGES = 10, 1200  # by --quick, of any data set
SPARSITIES = {True: (0.8, 0.95, 0.99), False: (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)}  # by --quick
RESETS = {True: (0, 1, 2)}  # by --quick
OTHER_SPARSITIES = {True: (0.95,), False: (0.8, 0.9, 0.95, 0.99)}  # with other masks, and reinitialised
CHANNELS = {True: (0.9,), False: (0.5, 0.75, 0.9)}  # shares of the channels inside blocks that are taken out
