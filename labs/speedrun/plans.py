"""How each program races on each data set: its epochs and learning rate, chosen on the validation part alone.

Those of digits were chosen with `--fold`, which holds a fifth of the training part out: no test image was looked at. A
program without a plan of its own keeps that of the one before it. The naive learning rate is the exception: it
is what people write down first, and the study says what a better one does. Those of the other data sets are guesses to
begin with: no race was run on them here.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plan:
    """epochs: after which a race ends. lr: the learning rate, its highest where there is a schedule."""

    epochs: int
    lr: float


@dataclass(frozen=True)
class Setting:
    """A data set's race. target: the accuracy (0..1) to reach. image_size: px. model, batch_size: where none are given.

    plans: {program: `Plan`}; a program that is not named has that of the one before it.
    """

    target: float
    image_size: int
    model: str
    batch_size: int
    plans: dict[str, Plan] = field(default_factory=dict)

    def plan(self, program: str) -> Plan:
        """The `Plan` of a program."""
        return self.plans[max(name for name in self.plans if name <= program)]


DIGITS = {
    "00_naive": Plan(40, 0.01),
    "03_resnet9": Plan(20, 0.32),  # its scores are scaled by 1/8, and so are its gradients
    "04_one_cycle": Plan(8, 2.0),
    "05_decoupled_decay": Plan(6, 0.4),
    "14_muon": Plan(5, 0.2),
}
PHOTOGRAPHS = {
    "00_naive": Plan(60, 0.01),
    "04_one_cycle": Plan(24, 0.4),
    "05_decoupled_decay": Plan(24, 0.4),
    "09_whitening": Plan(16, 0.4),
    "14_muon": Plan(10, 0.24),
}
SETTINGS = {
    "digits": Setting(0.98, 16, "w16", 64, DIGITS),
    "cifar10": Setting(0.94, 32, "w64", 512, PHOTOGRAPHS),
    "cifar100": Setting(0.70, 32, "w64", 512, PHOTOGRAPHS),
    "imagenette": Setting(0.85, 64, "w64", 128, PHOTOGRAPHS),
}
